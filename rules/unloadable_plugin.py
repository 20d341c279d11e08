"""An axolotl plugin that is not there: axolotl logs that, and trains without it."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_OWN = "axolotl.integrations."


def find(config: Config) -> Iterator[Report]:
    """A report for each plugin in a package of axolotl's own that axolotl does not have."""
    schema = config.dialect.key_schema("plugins") or {}
    packages = {_package(name) for name in schema.get("x-extends", ())}
    listed = config.value("plugins")
    for number, name in enumerate(listed if isinstance(listed, list) else ()):
        setting = config.get(f"plugins.{number}")
        if setting is None or not isinstance(name, str) or not name.startswith(_OWN) or _package(name) in packages:
            continue
        from difflib import get_close_matches  # only where something is wrong

        near = get_close_matches(name, schema.get("x-extends", ()), n=1)
        yield report(
            setting,
            f"axolotl {config.dialect.version} has no plugin {name}: it logs that, and trains without the plugin",
            help=f"did you mean {near[0]}?" if near else "",
        )


def _package(name: str) -> str:
    return name.removeprefix(_OWN).partition(".")[0]


RULE = Rule(
    code="KEY104",
    name="unloadable-plugin",
    severity=Severity.NO_OP,
    summary="A plugin of axolotl's own that axolotl does not have.",
    why="A plugin whose module cannot be imported is reported in the log, and the run goes on without it and without "
    "what its keys ask for.",
    instead="The plugin's full name, as its documentation has it.",
    sources=(Source(title="axolotl 0.19.0", where="integrations/base.py, PluginManager.register"),),
    find=find,
    dialects=("axolotl",),
)
