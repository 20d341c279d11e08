"""Options of DeepCompile are on, and DeepCompile is off."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_OPTIONS = ("free_activation", "offload_activation", "offload_opt_states", "offload_parameters")


def find(config: Config) -> Iterator[Report]:
    """A report where options that save memory are on without deepcompile."""
    switch = config.get("compile.deepcompile")
    if switch is not None and switch.value is not False:
        return
    on = [setting for name in _OPTIONS if (setting := config.on(f"compile.{name}")) is not None]
    if on:
        names = " and ".join(setting.key.rpartition(".")[2] for setting in on)
        yield report(
            on[0].at_key,
            f"{names} {'does' if len(on) == 1 else 'do'} nothing: compile.deepcompile is "
            + ("off" if switch is not None else "not set, and off by default"),
            help='set "deepcompile": true, and call engine.compile() in the training script',
            related=[(switch, "off here")] if switch is not None else [],
        )


RULE = Rule(
    code="OF204",
    name="deepcompile-option-without-deepcompile",
    severity=Severity.NO_OP,
    summary="Options of DeepCompile that free or offload memory are on, and deepcompile is off.",
    why="They are passes over the graph that DeepCompile makes. Without it there is no graph, and nothing is said.",
    instead='`"deepcompile": true`.',
    sources=(
        Source(title="DeepSpeed 0.19.8", where="deepspeed/runtime/engine.py: DeepSpeedEngine.get_deepcompile_backend"),
    ),
    find=find,
    dialects=("deepspeed",),
)
