"""Before 0.28 vLLM dropped `false` from its YAML."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.edits import rename_key, set_value
from planner.configs.tree import SourceFormat
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source

_FIRST_DROPPING = (0, 10, 0)  # some options were passed on before
_FIRST_READING = (0, 28, 0)
# On unless switched off, though their default in vLLM's source is None or true.
_ON_BY_DEFAULT = ("enable_prefix_caching", "enable_chunked_prefill")


def find(config: Config) -> Iterator[Report]:
    """A report for each option that is switched off in YAML and stays on."""
    if not _FIRST_DROPPING <= config.target < _FIRST_READING or config.document.format is not SourceFormat.YAML:
        return
    for name in _ON_BY_DEFAULT:
        setting = config.get(name)
        if setting is not None and setting.value is False:
            written = setting.entry.key
            yield report(
                setting,
                f"vLLM before 0.28 drops false from its YAML, and {written} stays on",
                help=f"write no-{written}: true",
                fix=Fix(
                    title=f"Write no-{written}: true",
                    safety=FixSafety.UNSAFE,
                    edits=(*rename_key(setting, f"no-{written}"), *set_value(setting, True)),
                ),
            )


RULE = Rule(
    code="KV403",
    name="false-dropped-from-yaml",
    severity=Severity.NO_OP,
    summary="An option is switched off in YAML for a vLLM that drops false, and stays on.",
    why="Before 0.28 `vllm serve --config` turned each `true` of the file into a flag and each `false` into nothing. "
    "Prefix caching and chunked prefill are on by default, so `enable-prefix-caching: false` left it on, without a "
    "word.",
    instead="`no-enable-prefix-caching: true`, which all releases read, or vLLM 0.28 and later.",
    sources=(
        Source(title="vLLM 0.27.1", where="vllm/utils/argparse_utils.py: FlexibleArgumentParser.load_config_file"),
        Source(title="vLLM 0.28.0, which reads it", where="vllm/utils/argparse_utils.py"),
    ),
    find=find,
    dialects=("vllm",),
    fix=FixSafety.UNSAFE,
)
