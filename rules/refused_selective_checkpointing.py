"""Selective checkpointing that axolotl refuses together with other settings."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

# What peft changes in place cannot have been saved.
_MATMUL_OPS = ("aten::mm", "aten::addmm", "aten::matmul", "aten::bmm")
_SINCE = (0, 18)


def find(config: Config) -> Iterator[Report]:
    """A report for each setting that rules selective checkpointing out."""
    selective = config.get("selective_checkpointing")
    if selective is None or not selective.value or config.target < _SINCE:
        return
    checkpointing = config.get("gradient_checkpointing")
    if checkpointing is None or not checkpointing.value:
        yield _refused(
            selective, checkpointing, "gradient_checkpointing, which is off", "set gradient_checkpointing: true"
        )
    if reentrant := config.on("gradient_checkpointing_kwargs.use_reentrant"):
        yield _refused(selective, reentrant, "checkpointing that is not reentrant", "set use_reentrant: false")
    offloading = config.get("activation_offloading")
    if offloading is not None and offloading.value in (True, "legacy", "disk"):
        yield _refused(
            selective,
            offloading,
            "the model's own checkpointing, which this offloader replaces",
            "set activation_offloading: hidden_states",
        )
    saved = config.value("selective_checkpointing.save")
    if config.value("adapter") and isinstance(saved, list):
        for op in saved:
            if isinstance(op, str) and op != "attention" and any(op in name for name in _MATMUL_OPS):
                yield _refused(
                    selective, config.get("adapter"), f"no adapter where it saves {op}", "save only attention"
                )


def _refused(selective: Setting, cause: Setting | None, needs: str, remedy: str) -> Report:
    related = [(cause, "set here")] if cause is not None else []
    return report(selective, f"axolotl refuses selective_checkpointing: it needs {needs}", help=remedy, related=related)


RULE = Rule(
    code="RC101",
    name="refused-selective-checkpointing",
    severity=Severity.ERROR,
    summary="Selective checkpointing beside settings that it cannot be combined with.",
    why="It saves some outputs within checkpointed blocks. Without checkpointing there are none, reentrant "
    "checkpointing knows no selection, the stream offloader puts another checkpointing in place, and peft writes into "
    "the outputs of matmuls, which could then not be the saved ones.",
    instead="`gradient_checkpointing: true` with `use_reentrant: false`, and `save: [attention]` with an adapter.",
    sources=(Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, check_selective_checkpointing"),),
    find=find,
    dialects=("axolotl",),
)
