"""What can be done about a step's memory: each technique alone, sensible combinations, and what they change in a spec.

A `Setup` says which techniques are on. Which mechanism finds its memory, and with which figures, is decided in
`planner.comparison`. Pure records and functions; nothing is traced or solved here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from planner.estimation.blocks import AttentionKind, Loss
from planner.estimation.parallel import DegreesError, check_degrees
from planner.estimation.phases import phases_of
from planner.estimation.run import Degrees, Run
from planner.estimation.step import Checkpointing
from planner.spec import AttentionKernel, OptimizerName, RunSpec

# Ranks that one sequence is spread over, beside those that data is.
RANKS = (2, 4, 8)
# As a spec names it under `loss`; the module itself needs torch.
CHUNKED_CROSS_ENTROPY = "planner.tracing.losses:chunked_cross_entropy"
# The optimizers that have an 8-bit variant with the same states.
HAS_8BIT = frozenset({OptimizerName.ADAM, OptimizerName.ADAMW})
EIGHT_BIT = OptimizerName.ADAMW_8BIT


class Keeping(StrEnum):
    """By which rule saved tensors are kept, replayed or sent to the host."""

    EVERYTHING = "no checkpointing"
    BLOCK = "every block"
    ROOT = "every √N blocks"
    SELECTIVE = "selective"
    OFFLOAD_ALL = "offload all"
    OFFLOAD_INPUTS = "offload block inputs"
    PLAN = "solved plan"


# Rules that the closed form has.
_CHECKPOINTING = {
    Keeping.EVERYTHING: Checkpointing.NONE,
    Keeping.BLOCK: Checkpointing.BLOCK,
    Keeping.ROOT: Checkpointing.BLOCK,
    Keeping.SELECTIVE: Checkpointing.SELECTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which techniques are on.

    Attributes:
        attention: the kernel.
        keeping: the rule for saved tensors.
        loss: how cross entropy is computed; `Loss.FULL` is the model's own.
        is_8bit: the optimizer's state is in 8 bits.
        sequence: ranks of tensor parallelism with sequence parallelism.
        context: ranks that share each sequence.
    """

    attention: AttentionKernel
    keeping: Keeping = Keeping.EVERYTHING
    loss: Loss = Loss.FULL
    is_8bit: bool = False
    sequence: int = 1
    context: int = 1

    @property
    def is_parallel(self) -> bool:
        """Whether ranks share sequences."""
        return self.sequence > 1 or self.context > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicable:
    """What makes sense for a model.

    Attributes:
        attends: attention goes through a kernel that can be chosen.
        is_known: the closed form has it, and agrees with the trace.
        is_decoder: the loss is cross entropy over a vocabulary, of every token.
        has_8bit: the optimizer has an 8-bit variant.
        has_blocks: there are repeated blocks to checkpoint.
    """

    attends: bool
    is_known: bool
    is_decoder: bool
    has_8bit: bool
    has_blocks: bool


def own_setup(spec: RunSpec) -> Setup:
    """The spec as it is."""
    return Setup(attention=spec.attention)


def alone(own: Setup, it: Applicable) -> tuple[Setup, ...]:
    """Each technique by itself, on top of the spec as it is."""
    return tuple(_alone(own, it))


def _alone(own: Setup, it: Applicable) -> Iterator[Setup]:
    if it.attends:
        is_eager = own.attention is AttentionKernel.EAGER
        yield replace(own, attention=AttentionKernel.FLASH if is_eager else AttentionKernel.EAGER)
    if it.has_blocks:
        for keeping in (Keeping.BLOCK, Keeping.ROOT, Keeping.SELECTIVE):
            yield replace(own, keeping=keeping)
    yield replace(own, keeping=Keeping.OFFLOAD_ALL)
    if it.has_blocks:
        yield replace(own, keeping=Keeping.OFFLOAD_INPUTS)
    if it.is_known and it.is_decoder:
        yield from (replace(own, sequence=ranks) for ranks in RANKS)
        # Ranks exchange what a kernel makes, and eager attention is none.
        yield from (replace(own, context=ranks) for ranks in RANKS if own.attention is not AttentionKernel.EAGER)
    if it.is_decoder:
        yield replace(own, loss=Loss.CHUNKED)
    if it.is_known and it.is_decoder:
        yield from (replace(own, loss=loss) for loss in (Loss.FUSED, Loss.FUSED_LINEAR))
    if it.has_8bit:
        yield replace(own, is_8bit=True)
    yield replace(own, keeping=Keeping.PLAN)


def together(own: Setup, it: Applicable) -> tuple[Setup, ...]:
    """Combinations that make sense, all with a fused attention kernel; none twice, none that is one technique alone."""
    single = {own, *alone(own, it)}
    return tuple(setup for setup in dict.fromkeys(_together(own, it)) if setup not in single)


def _together(own: Setup, it: Applicable) -> Iterator[Setup]:
    is_eager = it.attends and own.attention is AttentionKernel.EAGER
    start = replace(own, attention=AttentionKernel.FLASH) if is_eager else own
    small = replace(start, loss=Loss.CHUNKED if it.is_decoder else Loss.FULL)
    smallest = replace(small, is_8bit=it.has_8bit)
    rules = [Keeping.BLOCK, Keeping.SELECTIVE, Keeping.OFFLOAD_INPUTS] if it.has_blocks else []
    for keeping in (*rules, Keeping.PLAN):
        yield replace(small, keeping=keeping)
        yield replace(smallest, keeping=keeping)
    if it.is_known and it.is_decoder and it.has_blocks:
        least = replace(smallest, loss=Loss.FUSED_LINEAR, keeping=Keeping.BLOCK)
        yield least
        yield from (replace(least, sequence=ranks) for ranks in RANKS)
        yield from (replace(least, context=ranks) for ranks in RANKS)


# -- in words

# Alone, and beside others.
_KEEPING_WORDS = {
    Keeping.BLOCK: ("every block", "block"),
    Keeping.ROOT: ("every √N blocks", "√N blocks"),
    Keeping.SELECTIVE: ("selective", "selective"),
    Keeping.OFFLOAD_ALL: ("offload all", "offload all"),
    Keeping.OFFLOAD_INPUTS: ("offload block inputs", "offload inputs"),
    Keeping.PLAN: ("solved plan", "plan"),
}
_LOSS_WORDS = {
    Loss.CHUNKED: ("chunked loss", "chunked"),
    Loss.FUSED: ("fused loss", "fused"),
    Loss.FUSED_LINEAR: ("fused linear loss", "fused linear"),
}


def in_words(setup: Setup, own: Setup) -> str:
    """What is on beside the spec as it is, such as "selective" or "block, chunked, 8-bit"."""
    found = tuple(_words(setup, own))
    if len(found) == 1:
        return found[0][0]
    return ", ".join(short for _, short in found) or "as it is"


def _words(setup: Setup, own: Setup) -> Iterator[tuple[str, str]]:
    if setup.attention != own.attention:
        is_eager = setup.attention is AttentionKernel.EAGER
        yield ("eager attention", "eager") if is_eager else ("fused attention", str(setup.attention))
    if setup.keeping is not own.keeping:
        yield _KEEPING_WORDS[setup.keeping]
    if setup.loss is not own.loss:
        yield _LOSS_WORDS[setup.loss]
    if setup.is_8bit:
        yield "8-bit optimizer", "8-bit"
    if setup.sequence > 1:
        yield f"sequence parallel, {setup.sequence} ranks", f"SP {setup.sequence}"
    if setup.context > 1:
        yield f"context parallel, {setup.context} ranks", f"CP {setup.context}"


def changes_of(setup: Setup, own: Setup, *, group: int) -> tuple[str, ...]:
    """What to write in the spec for the techniques that are on, one change for each.

    What no key of a spec says is named by what does it in the training code.

    Args:
        setup: which are on.
        own: the spec as it is.
        group: blocks that √N of them are.
    """
    found = []
    if setup.attention != own.attention:
        found.append(f"attention: {setup.attention}")
    if setup.keeping is not own.keeping:
        found.append(_keeping_change(setup.keeping, group))
    if setup.loss is not own.loss:
        chunked = f"loss: {CHUNKED_CROSS_ENTROPY}"
        found.append(chunked if setup.loss is Loss.CHUNKED else f"loss_kernel: {setup.loss}")
    if setup.is_8bit:
        found.append(f"optimizer: {{name: {EIGHT_BIT}}}")
    if setup.sequence > 1:
        found.append(f"parallel: {{tp: {setup.sequence}, sp: true}}")
    if setup.context > 1:
        found.append(f"parallel: {{cp: {setup.context}}}")
    return tuple(found)


def _keeping_change(keeping: Keeping, group: int) -> str:
    return {
        Keeping.BLOCK: "checkpointing: block",
        Keeping.ROOT: f"checkpointing: {{every: {group}}}",
        Keeping.SELECTIVE: "checkpointing: selective",
        Keeping.OFFLOAD_ALL: "torch.autograd.graph.save_on_cpu around forward",
        Keeping.OFFLOAD_INPUTS: "checkpointing: block and offload: {activations: true}",
        Keeping.PLAN: "planner.apply with the plan that planner solve then writes",
    }[keeping]


# -- in closed form


def closed_form(run: Run, setup: Setup, *, group: int) -> Run | None:
    """The run with those techniques on; None where the closed form lacks the rule for saved tensors.

    Checkpoints are a plan's, as in the traced rows.

    Args:
        run: of the spec as it is.
        setup: which are on.
        group: blocks that √N of them are.
    """
    checkpointing = _CHECKPOINTING.get(setup.keeping)
    if checkpointing is None:
        return None
    # No kernel of scaled_dot_product_attention caps scores.
    is_eager = setup.attention is AttentionKernel.EAGER or run.architecture.attention_softcap
    return replace(
        run,
        attention=AttentionKind.EAGER if is_eager else AttentionKind.FUSED,
        checkpointing=checkpointing,
        group=group if setup.keeping is Keeping.ROOT else 1,
        is_planned=checkpointing is not Checkpointing.NONE,
        loss=setup.loss,
        # Source: torchtune's recipes delete the logits before backward, and a fused linear loss never has them.
        logits_stay=setup.loss in (Loss.FULL, Loss.FUSED),
        optimizer=EIGHT_BIT if setup.is_8bit else run.optimizer,
        degrees=_degrees(run, setup),
    )


def closed_form_peak(run: Run) -> tuple[int, str]:
    """The bytes of the peak of a run in closed form, and its moment."""
    highest = max(phases_of(run), key=lambda phase: phase.size_bytes)
    return highest.size_bytes, f"{highest.phase}, {highest.where}"


def indivisible(run: Run, setup: Setup) -> str | None:
    """Why ranks cannot share the run's sequences so, or None if they can."""
    try:
        check_degrees(replace(run, degrees=_degrees(run, setup)))
    except DegreesError as error:
        return error.what
    return None


def _degrees(run: Run, setup: Setup) -> Degrees:
    return replace(run.degrees, tensor=setup.sequence, sequence=setup.sequence > 1, context=setup.context)
