"""An option of one way of checkpointing, while another way is chosen."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report for each option that the chosen mode does not read."""
    for key, mode_key, modes in _OPTIONS[config.dialect.name]:
        option, mode = config.get(key), config.value(mode_key)
        if option is None or option.value is None or not isinstance(mode, str | None) or mode in modes:
            continue
        setting = config.get(mode_key)
        yield report(
            option,
            f"{option.entry.key} does nothing with {_name(mode_key)} {_said(mode)}",
            help=f"remove it, or set {_name(mode_key)} to {' or '.join(modes)}",
            related=[(setting, "the mode")],
        )


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _said(mode: str | None) -> str:
    return "unset" if mode is None else f'"{mode}"'


# By dialect: an option, the key of the mode that it belongs to, and the values of that with which it is read.
_OPTIONS = {
    "torchtitan": (
        ("activation_checkpoint.memory_budget", "activation_checkpoint.mode", ("memory_budget",)),
        ("activation_checkpoint.selective_ac_option", "activation_checkpoint.mode", ("selective",)),
    ),
    "torchtune": (("ac_option", "ac_mode", ("selective",)),),
}

RULE = Rule(
    code="RC303",
    name="checkpointing-option-of-another-mode",
    severity=Severity.NO_OP,
    summary="An option of one mode of activation checkpointing is set while another mode is chosen.",
    why='The option is not read: with `mode = "full"`, for example, every layer is recomputed whatever '
    "`selective_ac_option` says. Some configs keep such an option for the day the mode is changed; so this rule speaks "
    "only when asked to.",
    instead="The mode that the option belongs to, or no option.",
    sources=(
        Source(title="torchtitan 0.2.2", where="torchtitan/distributed/activation_checkpoint.py, apply_ac"),
        Source(title="torchtune 0.6.1", where="torchtune/training/activations.py"),
    ),
    find=find,
    dialects=("torchtune", "torchtitan"),
    opt_in=True,
)
