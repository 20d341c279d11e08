"""Activations that axolotl is told to offload to disk, and that go to host memory."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_VALUE_BY_KEY = {"activation_offloading": "disk", "gradient_checkpointing": "offload_disk"}
_SINCE = (0, 12)


def find(config: Config) -> Iterator[Report]:
    """A report where the disk is asked for."""
    for key, value in _VALUE_BY_KEY.items():
        setting = config.get(key)
        if setting is not None and setting.value == value and config.target >= _SINCE:
            yield report(
                setting,
                "axolotl does not write activations to disk: its loader waits for the value 'offload_disk', which the "
                "config's check turns into 'disk' or refuses, so that they go to host memory",
                help="set activation_offloading: true, and leave host memory for what is offloaded",
            )


RULE = Rule(
    code="OF102",
    name="disk-offload-that-stays-in-memory",
    severity=Severity.NO_OP,
    summary="Activations are to be offloaded to disk, and stay in host memory.",
    why="`activation_offloading: disk` passes axolotl's check, and no code acts on it: the patch that writes to disk "
    "is applied for `offload_disk`, a value that the check never lets through. The offloader to host memory runs "
    "instead, and host memory fills up.",
    instead="`activation_offloading: true` with enough host memory, or `hidden_states`, which offloads less.",
    sources=(
        Source(
            title="axolotl 0.12.0 to 0.19.0", where="loaders/patch_manager.py, _apply_gradient_checkpointing_patches"
        ),
        Source(title="axolotl 0.19.0", where="core/trainers/mixins/activation_checkpointing.py"),
    ),
    find=find,
    dialects=("axolotl",),
)
