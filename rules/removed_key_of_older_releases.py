"""A key that later releases refuse, in a config that may be of an older one."""

from collections.abc import Iterator

from planner.configs.config import Config
from planner.configs.renames import keys_refused_by_name, refused_keys
from planner.diagnostics import FixSafety, Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each key that a release refuses which the run may have or not."""
    yield from refused_keys(config, is_certain=False)
    yield from keys_refused_by_name(config, is_certain=False)


RULE = Rule(
    code="KEY009",
    name="removed-key-of-older-releases",
    severity=Severity.WASTE,
    summary="A key that the framework has removed and refuses, while nothing says which release the run has.",
    why="With the newest release the run ends where the config is read; with the release that the config was written "
    "for it does not. Which of them runs it, the config does not say.",
    instead="The key that took its place, where there is one. Best say which release runs the config, on the command "
    "line or in the configuration: `--target-version deepspeed=0.18` silences this, or makes it an error.",
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/config.py, _REMOVED_TOP_LEVEL_CONFIG_KEYS"),
        Source(title="axolotl 0.19.0", where="utils/schemas/deprecated.py"),
    ),
    find=find,
    fix=FixSafety.SAFE,
)
