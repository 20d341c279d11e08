"""A key of an axolotl plugin that the config does not list."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.keys import is_extended, is_read
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each such key that asks for something; none where unknown plugins may read it."""
    if is_extended(config):
        return
    listed = config.get("plugins")
    names = [str(name) for name in listed.value] if listed is not None and isinstance(listed.value, list) else []
    for setting in config.settings():
        schema = config.dialect.key_schema(setting.key)
        plugin = schema.get("x-plugin") if schema else None
        if schema and plugin and plugin not in names and setting.value and is_read(config, schema):
            yield report(
                setting.at_key,
                f"{setting.key} is a key of the {plugin.rpartition('.')[2]}, which is not among the plugins: "
                "axolotl drops it without a word",
                help=f"add {plugin} to plugins",
                related=[(listed.at_key, "the plugins are listed here")] if listed is not None else [],
            )


RULE = Rule(
    code="KEY103",
    name="plugin-key-without-plugin",
    severity=Severity.NO_OP,
    summary="A key of an axolotl plugin, such as a Liger kernel or cut cross entropy, without the plugin itself.",
    why="axolotl knows keys of plugins only while they are listed under `plugins:`, and drops others. With "
    "`liger_fused_linear_cross_entropy: true` and no plugin, the logits are computed in full, which at 8,192 tokens "
    "and 128,256 entries are 2.1 GB in bfloat16 and 4.2 GB more in float32.",
    instead="List the plugin, such as `axolotl.integrations.liger.LigerPlugin`.",
    sources=(
        Source(title="axolotl 0.19.0", where="integrations/config.py, merge_input_args"),
        Source(title="axolotl 0.19.0", where="integrations/liger/args.py; integrations/cut_cross_entropy/args.py"),
    ),
    find=find,
    dialects=("axolotl",),
)
