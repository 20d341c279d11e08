"""What is said about an estimate. No torch is needed."""

from planner.device import DeviceProfile
from planner.estimation.blocks import Loss, attention_in_words
from planner.estimation.estimate import computation_of
from planner.estimation.explain import explain as explain_estimate
from planner.estimation.knobs import knobs
from planner.estimation.run import Run
from planner.estimation.verdict import estimate
from planner.reporting.estimate import EstimateSummary


def summary_of(
    model: str, run: Run, profile: DeviceProfile, *, notes: tuple[str, ...] = (), explain: bool = False
) -> EstimateSummary:
    """The summary of a run's estimate on a device, with every formula where it is to be explained."""
    found = estimate(run, profile)
    return EstimateSummary(
        model=model,
        device=profile.name,
        stack=_stack(run),
        estimate=found,
        knobs=knobs(found, profile),
        notes=(*notes, *_notes(run, profile)),
        explained=explain_estimate(found) if explain else (),
    )


def _stack(run: Run) -> str:
    attention = attention_in_words(run.architecture, computation_of(run))
    losses = {
        Loss.FULL: "cross entropy on all logits in float32",
        Loss.CHUNKED: "torchtune's chunked cross entropy",
        Loss.FUSED: "a fused cross entropy on all logits in float32",
        Loss.FUSED_LINEAR: "Liger's fused linear cross entropy",
        Loss.SHIFTED: "cross entropy on a shifted copy of all logits",
    }
    return f"torch 2.13 and transformers 5.24 without torch.compile, with {attention} and {losses[run.loss]}"


def _notes(run: Run, profile: DeviceProfile) -> tuple[str, ...]:
    found = []
    if run.quantization is not None:
        found.append(
            f"norms, embedding and output matrix are taken in {run.parameter_dtype}; peft's "
            "prepare_model_for_kbit_training holds them in float32: then say precision.parameters: float32"
        )
    if profile.usable_memory_bytes is None:
        found.append("what a process can have of the device is taken to be its memory as stated")
    if run.optimizer.value.startswith("paged"):
        found.append(
            "the paged optimizer's state is outside of PyTorch's allocator, and leaves the device when it is full"
        )
    if run.degrees.expert > 1:
        found.append("each rank's experts are taken to get as many tokens as the others'; a router may send them more")
    if run.offloads_optimizer:
        found.append("the optimizer's step runs on the host, with its state and master weights there")
    return tuple(found)
