"""Times every probe in interleaved rounds and makes rate curves of the medians."""

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch

from planner.costs.kinds import counted_bytes, kind_of
from planner.device import ARITHMETIC, Kind
from planner.errors import DeviceError
from planner.graph import Op
from planner.runtime.profiling.curves import Point, Sample, net_seconds, points, spread
from planner.runtime.profiling.probes import (
    Pool,
    Probe,
    Watch,
    empty_probe,
    optimizer_elements,
    optimizer_for,
    probes,
    tiny_step,
)
from planner.runtime.profiling.reference import Reference, Speed, at_best, slowdown
from planner.runtime.profiling.timing import Stopwatch

# A turn repeats a short call until it takes about so long, but not so often that its tensors take too much memory.
_TURN_S = 0.003
_TURN_BYTES = 256 * 2**20
_MAX_REPEATS = 64
_ROUNDS, _QUICK_ROUNDS = 7, 3
_WARM_UP_STEPS = 3
_HALF = 0.5
# Copies between device and host, by size; the largest says what the link reaches.
_LINK_BYTES = (2**20, 2**24, 2**26)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure.

    Attributes:
        device: a CPU or a CUDA device.
        dtypes: to measure each rate in.
        is_quick: fewer sizes and fewer rounds.
    """

    device: torch.device
    dtypes: tuple[torch.dtype, ...]
    is_quick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured.

    Attributes:
        rates: the curve of each kind by dtype name.
        launch_s: what each op of a step takes beside its work.
        link_bytes_per_s: of copies to and from the host by bytes, the slower direction; of a CPU, within its memory.
        best: the machine's speed while it was least disturbed; all times are as at that speed.
        typical_slowdown: how many times as long it took in the middle of the measurements.
        rounds: how often each call was timed, in turns with all others.
        spread: the median over all calls of the distance of their quartiles over their median.
        skipped: calls that this machine refused, and why.
    """

    rates: Mapping[Kind, Mapping[str, tuple[Point, ...]]]
    launch_s: float
    link_bytes_per_s: Mapping[int, float]
    best: Speed
    typical_slowdown: float
    rounds: int
    spread: float
    skipped: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Times:
    """Repeated timings, each with the machine's speed around it."""

    is_arithmetic: bool = False
    found: list[tuple[float, tuple[Speed, Speed]]] = field(default_factory=list)

    def at_best(self, best: Speed) -> list[float]:
        """The times as they were had the machine always been at its best."""
        share = 1.0 if self.is_arithmetic else 0.0
        return [seconds / slowdown(around, best, arithmetic_share=share) for seconds, around in self.found]


class _Watched:
    """A stopwatch that also notes the machine's speed before and after each time it takes."""

    def __init__(self, stopwatch: Stopwatch, device: torch.device) -> None:
        self._stopwatch = stopwatch
        self._reference = Reference(device)
        self._reference.speed(stopwatch)  # warms up
        self.speeds = [self._reference.speed(stopwatch)]

    def take(self, times: _Times, run: Callable[[], object], *, calls: int = 1) -> None:
        """Add the time of one of the calls that a run makes."""
        before, seconds = self.speeds[-1], self._stopwatch.seconds(run) / calls
        self.speeds.append(self._reference.speed(self._stopwatch))
        times.found.append((seconds, (before, self.speeds[-1])))


@dataclass(slots=True, kw_only=True)
class _Timed:
    """A probe, what it dispatches, and its times so far."""

    probe: Probe
    pool: Pool
    repeats: int
    ops: tuple[Op, ...]  # of forward, and of backward if it has one
    times: tuple[_Times, ...]


def measure(settings: Settings, stopwatch: Stopwatch, report: Report = lambda _: None) -> Measured:
    """The rates of this machine.

    Args:
        settings: what to measure.
        stopwatch: times the calls.
        report: called with lines of progress.

    Raises:
        DeviceError: the clock is too coarse, or products or elementwise ops run in none of the dtypes.
    """
    skipped: list[str] = []
    watched = _Watched(stopwatch, settings.device)
    dtype_pools = {dtype: Pool(dtype, settings.device) for dtype in settings.dtypes}
    timed = []
    for dtype, pool in dtype_pools.items():
        report(f"trying the calls in {_name(dtype)}")
        for probe in (empty_probe(), *probes(settings.device, dtype, is_quick=settings.is_quick)):
            ready = _ready(probe, pool, watched, skipped)
            timed += [ready] if ready else []
    optimizers = [
        _TimedSteps(dtype=dtype, elements=elements, pool=pool)
        for dtype, pool in dtype_pools.items()
        for elements in optimizer_elements(settings.is_quick)
    ]
    tiny, tiny_ops = tiny_step(settings.device, settings.dtypes[0])
    launches = _Times()
    link = {size_bytes: _Times() for size_bytes in _LINK_BYTES}
    rounds = _QUICK_ROUNDS if settings.is_quick else _ROUNDS
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        gc.collect()
        for item in timed:
            _take_turn(item, watched)
        for steps in optimizers:
            _step_optimizer(steps, watched)
        for _ in range(_WARM_UP_STEPS):
            tiny()
        watched.take(launches, partial(_repeat, tiny, _MAX_REPEATS), calls=_MAX_REPEATS * tiny_ops)
        for size_bytes, times in link.items():
            _copy(size_bytes, settings.device, times, watched)
    best = at_best(watched.speeds)
    if not min(best.product_s, best.elementwise_s) > 0:
        raise DeviceError("the clock is too coarse: a product took no time", path="planner profile")
    rates = _curves(timed, optimizers, best)
    _check_basis(rates, skipped)
    return Measured(
        rates=rates,
        launch_s=median(launches.at_best(best)),
        link_bytes_per_s={size: size / _slower_direction_s(times.at_best(best)) for size, times in link.items()},
        best=best,
        typical_slowdown=median(slowdown([speed], best, arithmetic_share=_HALF) for speed in watched.speeds),
        rounds=rounds,
        spread=median([spread(item.times[0].at_best(best)) for item in timed]),
        skipped=tuple(skipped),
    )


def _check_basis(rates: Mapping[Kind, Mapping[str, tuple[Point, ...]]], skipped: list[str]) -> None:
    """Without these there is nothing to fall back on for what has no curve."""
    for kind in (Kind.PRODUCT, Kind.ELEMENTWISE):
        if not rates.get(kind):
            why = f": {skipped[0]}" if skipped else ""
            raise DeviceError(f"no {kind} could be timed{why}", path="planner profile", hint="try another --dtype")


def _ready(probe: Probe, pool: Pool, watched: _Watched, skipped: list[str]) -> _Timed | None:
    """The probe once run, with what it dispatches; None if the machine has no such op in this dtype, or no room."""
    try:
        inputs = _inputs(probe, pool)
        with Watch() as forward:
            output = probe.run(*inputs)
        gradient = pool.cut(tuple(output.shape))
        with Watch() as backward:
            if probe.backward is not None:
                torch.autograd.grad(output, inputs, gradient)
        size_bytes = sum(op.read_bytes + op.write_bytes for op in (*forward.ops, *backward.ops))
        del output, inputs, gradient
        ops = (_main(forward, probe.kind), *([_main(backward, probe.backward)] if probe.backward else ()))
        once = _Timed(probe=probe, pool=pool, repeats=1, ops=ops, times=_no_times(ops))
        for _ in range(_WARM_UP_STEPS):
            _take_turn(once, watched)
    except (RuntimeError, NotImplementedError) as error:  # also for memory that runs out
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        skipped.append(f"{probe.name} in {_name(pool.dtype)}: {first_line}")
        return None
    warm_s = once.times[0].found[-1][0]
    repeats = math.ceil(_TURN_S / max(warm_s, 1e-9))
    repeats = max(1, min(repeats, _TURN_BYTES // max(1, size_bytes), _MAX_REPEATS))
    return _Timed(probe=probe, pool=pool, repeats=repeats, ops=ops, times=_no_times(ops))


def _no_times(ops: tuple[Op, ...]) -> tuple[_Times, ...]:
    return tuple(_Times(is_arithmetic=kind_of(op) in ARITHMETIC) for op in ops)


def _main(watch: Watch, kind: Kind) -> Op:
    """The op that was called for.

    Raises:
        NotImplementedError: this device has another one for it, whose rate would be taken for the kind's.
    """
    found = watch.main_op(kind)
    if found is None:
        names = ", ".join(op.name for op in watch.ops if not op.is_view)
        raise NotImplementedError(f"no {kind} op, but {names or 'nothing'}")
    return found


def _inputs(probe: Probe, pool: Pool) -> list[torch.Tensor]:
    return [pool.cut(shape).detach().requires_grad_() for shape in probe.shapes]


def _take_turn(item: _Timed, watched: _Watched) -> None:
    """Time the call, and its backward, so often in a row; every repetition has inputs of its own."""
    inputs = [_inputs(item.probe, item.pool) for _ in range(item.repeats)]
    outputs: list[torch.Tensor] = []

    def forward() -> None:
        for given in inputs:
            outputs.append(item.probe.run(*given))

    watched.take(item.times[0], forward, calls=item.repeats)
    if item.probe.backward is None:
        return
    gradients = [item.pool.cut(tuple(output.shape)) for output in outputs]

    def backward() -> None:
        for output, given, gradient in zip(outputs, inputs, gradients, strict=True):
            torch.autograd.grad(output, given, gradient)

    watched.take(item.times[1], backward, calls=item.repeats)


@dataclass(slots=True, kw_only=True)
class _TimedSteps:
    dtype: torch.dtype
    elements: int
    pool: Pool
    times: _Times = field(default_factory=_Times)

    @property
    def counted_bytes(self) -> int:
        """As the costs count a step of Adam: parameters and two states read and written, gradients read."""
        return 7 * self.elements * self.dtype.itemsize


def _step_optimizer(steps: _TimedSteps, watched: _Watched) -> None:
    optimizer = optimizer_for(steps.elements, steps.pool)
    optimizer.step()  # makes its state
    watched.take(steps.times, optimizer.step)


def _repeat(run: Callable[[], None], times: int) -> None:
    for _ in range(times):
        run()


def _copy(size_bytes: int, device: torch.device, times: _Times, watched: _Watched) -> None:
    """Times a copy out and a copy back."""
    is_cuda = device.type == "cuda"
    here = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    there = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=is_cuda)
    for target, source in ((there, here), (here, there)):
        target.copy_(source)
        watched.take(times, partial(target.copy_, source, non_blocking=is_cuda))


def _slower_direction_s(times: list[float]) -> float:
    """Copies out and back take turns in the list."""
    return max(median(times[::2]), median(times[1::2]))


def _curves(
    timed: list[_Timed], optimizers: list[_TimedSteps], best: Speed
) -> dict[Kind, dict[str, tuple[Point, ...]]]:
    samples: dict[tuple[Kind, str], list[Sample]] = {}
    empty_s: dict[torch.dtype, list[float]] = {}
    for item in timed:
        net = empty_s.get(item.pool.dtype)
        if net is None:  # the empty call comes first
            empty_s[item.pool.dtype] = [median(times.at_best(best)) for times in item.times]
            continue
        for op, times, empty in zip(item.ops, item.times, net, strict=False):
            kind, sample = _sample(op, times.at_best(best), empty)
            samples.setdefault((kind, op.dtype), []).append(sample)
    for steps in optimizers:
        seconds = steps.times.at_best(best)
        sample = Sample(
            place=steps.counted_bytes, work=steps.counted_bytes, seconds=median(seconds), spread=spread(seconds)
        )
        samples.setdefault((Kind.OPTIMIZER, _name(steps.dtype)), []).append(sample)
    found: dict[Kind, dict[str, tuple[Point, ...]]] = {}
    for kind, dtype in sorted(samples, key=lambda key: list(Kind).index(key[0])):
        if curve := points(samples[kind, dtype]):
            found.setdefault(kind, {})[dtype] = curve
    return found


def _sample(op: Op, times: list[float], empty_s: float) -> tuple[Kind, Sample]:
    kind = kind_of(op)
    size_bytes = counted_bytes(op, kind)
    is_arithmetic = kind in ARITHMETIC
    return kind, Sample(
        place=op.flops / max(1, size_bytes) if is_arithmetic else size_bytes,
        work=op.flops if is_arithmetic else size_bytes,
        seconds=net_seconds(median(times), empty_s),
        spread=spread(times),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
