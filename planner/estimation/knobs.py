"""What to change in a spec so that its run takes less: each change estimated, those that cost least first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.device import DeviceProfile
from planner.estimation.blocks import AttentionKind, Loss
from planner.estimation.run import Run, Sharding
from planner.estimation.step import Checkpointing
from planner.estimation.verdict import Estimate, Verdict, estimate
from planner.spec import OptimizerImplementation, OptimizerName

# How far to halve or double one number in search of the first that fits.
_STEPS = 5
_BETWEEN = "; "
# What lowers the peak by less is not worth a line.
_WORTH_SAYING = 0.01
_RANKS = {Verdict.OOM: 0, Verdict.AT_RISK: 1, Verdict.FITS: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A change of the spec and what it would give.

    Attributes:
        change: what to write in the spec; several are separated by "; ".
        effect: what it does, and what it costs.
        peak_bytes: allocated then.
        low_bytes, high_bytes: of the device, in all.
        verdict: then.
    """

    change: str
    effect: str
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    verdict: Verdict

    @property
    def is_combined(self) -> bool:
        """It is several changes together."""
        return _BETWEEN in self.change


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    change: str
    effect: str
    run: Run


def knobs(found: Estimate, device: DeviceProfile) -> tuple[Knob, ...]:
    """Changes that lower the peak; none where the run fits as it is. If no single one makes it fit, the last is many.

    Args:
        found: of the run as it is.
        device: that it is to fit.
    """
    if found.verdict is Verdict.FITS:
        return ()
    singles: list[Knob] = []
    for changes in _CHANGES:
        best: Knob | None = None
        for one in changes(found.run):
            knob = _knob(one.change, one.effect, one.run, device)
            if best is None or _RANKS[knob.verdict] > _RANKS[best.verdict]:
                best = knob  # the smallest change with the best verdict
            if best.verdict is Verdict.FITS:
                break
        if best is not None and best.peak_bytes < found.peak.size_bytes * (1 - _WORTH_SAYING):
            singles.append(best)
    if any(knob.verdict is Verdict.FITS for knob in singles):
        return tuple(singles)
    together = _together(found, device)
    return (*singles, together) if together is not None else tuple(singles)


def _together(found: Estimate, device: DeviceProfile) -> Knob | None:
    """Change upon change, cheapest first, until it fits or none is left; None if fewer than two help."""
    run, least_bytes = found.run, found.peak.size_bytes
    made: list[str] = []
    knob: Knob | None = None
    for changes in _CHANGES:
        before, here = list(made), run
        for one in changes(here):  # of one kind, the last that helps stands for all
            tried = _knob(_BETWEEN.join([*before, one.change]), "together", one.run, device)
            if tried.peak_bytes >= least_bytes:
                break
            run, least_bytes, knob, made = one.run, tried.peak_bytes, tried, [*before, one.change]
            if knob.verdict is Verdict.FITS:
                return knob
    return knob if len(made) > 1 else None


def _knob(change: str, effect: str, run: Run, device: DeviceProfile) -> Knob:
    after = estimate(run, device)
    return Knob(
        change=change,
        effect=effect,
        peak_bytes=after.peak.size_bytes,
        low_bytes=after.total.low_bytes,
        high_bytes=after.total.high_bytes,
        verdict=after.verdict,
    )


def _attention(run: Run) -> Iterator[_Change]:
    if run.attention is AttentionKind.EAGER and not run.architecture.attention_softcap:
        changed = replace(run, attention=AttentionKind.FUSED)
        yield _Change(change="attention: flash", effect="keeps no scores", run=changed)


def _loss(run: Run) -> Iterator[_Change]:
    if run.loss in (Loss.FULL, Loss.SHIFTED, Loss.FUSED):
        changed = replace(run, loss=Loss.FUSED_LINEAR, logits_stay=False)
        yield _Change(change="loss_kernel: fused-linear", effect="never holds all logits", run=changed)


def _implementation(run: Run) -> Iterator[_Change]:
    if run.step is OptimizerImplementation.FOREACH and run.optimizer in (OptimizerName.ADAMW, OptimizerName.ADAM):
        changed = replace(run, step=OptimizerImplementation.FUSED)
        yield _Change(change="optimizer.implementation: fused", effect="needs no temporaries", run=changed)


def _in_backward(run: Run) -> Iterator[_Change]:
    if not (run.in_backward or run.adds_gradients or run.offloads_optimizer) and run.sharding is Sharding.NONE:
        changed = replace(run, in_backward=True)
        yield _Change(change="optimizer.in_backward: true", effect="frees gradients at once", run=changed)


def _checkpointing(run: Run) -> Iterator[_Change]:
    order = (Checkpointing.SELECTIVE, Checkpointing.BLOCK)
    start = order.index(run.checkpointing) + 1 if run.checkpointing in order else 0
    effects = {
        Checkpointing.SELECTIVE: "repeats all but products",
        Checkpointing.BLOCK: "repeats the forward pass",
    }
    for mode in order[start:]:
        changed = replace(run, checkpointing=mode, group=1)
        yield _Change(change=f"checkpointing: {mode}", effect=effects[mode], run=changed)


def _optimizer(run: Run) -> Iterator[_Change]:
    if run.optimizer in (OptimizerName.ADAM, OptimizerName.ADAMW):
        name = OptimizerName.ADAMW_8BIT if run.optimizer is OptimizerName.ADAMW else OptimizerName.ADAM_8BIT
        changed = replace(run, optimizer=name, state_dtype=None)
        yield _Change(change=f"optimizer.name: {name}", effect="holds states in 8 bits", run=changed)


def _micro_batch(run: Run) -> Iterator[_Change]:
    size = run.micro_batch
    for _ in range(_STEPS):
        if size == 1:
            return
        size = -(-size // 2)
        changed = replace(run, micro_batch=size)
        yield _Change(change=f"batch.micro_batch: {size}", effect="accumulate gradients then", run=changed)


def _sharding(run: Run) -> Iterator[_Change]:
    if run.sharding not in (Sharding.NONE, Sharding.DDP, Sharding.FSDP2):
        return
    ranks = run.degrees.data
    if run.sharding is not Sharding.DDP:
        ranks *= 2
    for _ in range(_STEPS):
        changed = replace(run, sharding=Sharding.FSDP2, autocast=False, degrees=replace(run.degrees, data=ranks))
        yield _Change(change=f"parallel.fsdp: {ranks}", effect="shards over more devices", run=changed)
        ranks *= 2


def _offload(run: Run) -> Iterator[_Change]:
    if not run.offloads_optimizer and not run.in_backward and run.optimizer is not OptimizerName.NONE:
        changed = replace(run, offloads_optimizer=True)
        yield _Change(change="offload.optimizer: true", effect="runs the step on the host", run=changed)


_CHANGES = (
    _attention,
    _loss,
    _implementation,
    _in_backward,
    _checkpointing,
    _optimizer,
    _micro_batch,
    _sharding,
    _offload,
)
