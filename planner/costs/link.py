"""The host link beside the computation: when copies out and back are done, and how long the device waits for them.

The link has two directions that do not slow each other, and each moves one copy at a time, in order. A copy out may
start when the step that makes its bytes has ended; a copy back may start when its own copy out is done, forward has
ended and there is room for it. The device waits where the link is behind: before a step whose bytes are not back yet,
and, where what waits to leave is limited, after a step that made more. Copies out may run on into backward.

Left out: that copies slow the computation down by the memory bandwidth they take, and the launch of each copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes that leave for the host and come back, or only leave if `need_step` is None."""

    size_bytes: int
    ready_step: int  # they can leave when this step has ended
    need_step: int | None  # they must be back before this step starts


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimeline:
    """When each copy runs and each step starts. Nanoseconds from the start of step 0; copies as the transfers given.

    Attributes:
        step_start_ns: of each step, and at the end the time at which the last one is done.
        out_start_ns, out_finish_ns: of each copy out.
        back_start_ns, back_finish_ns: of each copy back; None for what does not come back.
        stall_ns: time that the device waits, in all.
    """

    step_start_ns: tuple[int, ...]
    out_start_ns: tuple[int, ...]
    out_finish_ns: tuple[int, ...]
    back_start_ns: tuple[int | None, ...]
    back_finish_ns: tuple[int | None, ...]
    stall_ns: int


def link_timeline(
    step_ns: Sequence[int],
    transfers: Sequence[Transfer],
    *,
    bytes_per_s: float,
    backward_step: int,
    waiting_bytes: int | None = None,
    ahead_bytes: int | None = None,
) -> LinkTimeline:
    """The link and the computation side by side.

    Args:
        step_ns: duration of each step without any waiting.
        transfers: what leaves; each ready before `backward_step` and needed from then on.
        bytes_per_s: what the link moves in each direction.
        backward_step: first step of backward; no copy back starts while an earlier one runs.
        waiting_bytes: the device waits after a step rather than let more than this wait to leave. A single transfer may
            be larger; then it waits alone. None for no limit.
        ahead_bytes: at most this much is back, or on its way, before it is needed; a single transfer may be larger.
            None for no limit.

    Raises:
        ValueError: a transfer is ready in backward, or needed before it, or not a step of `step_ns`.
    """
    for transfer in transfers:
        need = backward_step if transfer.need_step is None else transfer.need_step
        if not 0 <= transfer.ready_step < backward_step <= need <= len(step_ns):
            raise ValueError(f"{transfer} does not fit {len(step_ns)} steps with backward from step {backward_step}")
    waits = [0] * (len(step_ns) + 1)  # before each step, and before the end
    out_start, out_finish = _copies_out(step_ns, transfers, waits, bytes_per_s, waiting_bytes)
    back_start, back_finish = _copies_back(
        step_ns, transfers, waits, bytes_per_s, ahead_bytes, out_finish_ns=out_finish, backward_step=backward_step
    )
    starts = [time + wait for time, wait in zip(accumulate(step_ns, initial=0), accumulate(waits), strict=True)]
    return LinkTimeline(
        step_start_ns=tuple(starts),
        out_start_ns=tuple(out_start),
        out_finish_ns=tuple(out_finish),
        back_start_ns=tuple(back_start),
        back_finish_ns=tuple(back_finish),
        stall_ns=sum(waits),
    )


def copy_ns(size_bytes: int, bytes_per_s: float) -> int:
    """Time of one copy in one direction."""
    return round(size_bytes / bytes_per_s * _NS_PER_S)


class _Clock:
    """When steps start, asked for in rising order; waits may be added at the step last asked for."""

    def __init__(self, step_ns: Sequence[int], waits: list[int]) -> None:
        self._step_ns, self._waits = step_ns, waits
        self._step = 0
        self._time_ns = waits[0]

    def start_ns(self, step: int) -> int:
        while self._step < step:
            self._time_ns += self._step_ns[self._step]
            self._step += 1
            self._time_ns += self._waits[self._step]
        return self._time_ns

    def wait_until(self, time_ns: int) -> None:
        late_ns = max(0, time_ns - self._time_ns)
        self._waits[self._step] += late_ns
        self._time_ns += late_ns


def _copies_out(
    step_ns: Sequence[int],
    transfers: Sequence[Transfer],
    waits: list[int],
    bytes_per_s: float,
    waiting_bytes: int | None,
) -> tuple[list[int], list[int]]:
    order = sorted(range(len(transfers)), key=lambda index: (transfers[index].ready_step, index))
    start_ns, finish_ns = [0] * len(transfers), [0] * len(transfers)
    clock, free_ns = _Clock(step_ns, waits), 0
    oldest, waiting = 0, 0  # place in `order` of the first copy that is not done, and the bytes from there on
    for place, index in enumerate(order):
        ready_ns = clock.start_ns(transfers[index].ready_step + 1)
        while oldest < place and finish_ns[order[oldest]] <= ready_ns:
            waiting -= transfers[order[oldest]].size_bytes
            oldest += 1
        start_ns[index] = max(free_ns, ready_ns)
        finish_ns[index] = free_ns = start_ns[index] + copy_ns(transfers[index].size_bytes, bytes_per_s)
        waiting += transfers[index].size_bytes
        while waiting_bytes is not None and waiting > waiting_bytes and oldest < place:
            clock.wait_until(finish_ns[order[oldest]])
            waiting -= transfers[order[oldest]].size_bytes
            oldest += 1
    return start_ns, finish_ns


def _copies_back(
    step_ns: Sequence[int],
    transfers: Sequence[Transfer],
    waits: list[int],
    bytes_per_s: float,
    ahead_bytes: int | None,
    *,
    out_finish_ns: Sequence[int],
    backward_step: int,
) -> tuple[list[int | None], list[int | None]]:
    order = sorted((t.need_step, index) for index, t in enumerate(transfers) if t.need_step is not None)
    start_ns: list[int | None] = [None] * len(transfers)
    finish_ns: list[int | None] = [None] * len(transfers)
    clock = _Clock(step_ns, waits)
    free_ns = clock.start_ns(backward_step)
    needed_ns: list[int] = []  # for each copy so far, when the step that needs it starts
    oldest, ahead = 0, 0  # place in `order` of the first copy whose room is still taken, and the bytes from there on
    for need_step, index in order:
        ahead += transfers[index].size_bytes
        while ahead_bytes is not None and ahead > ahead_bytes and oldest < len(needed_ns):
            free_ns = max(free_ns, needed_ns[oldest])
            ahead -= transfers[order[oldest][1]].size_bytes
            oldest += 1
        begin_ns = max(free_ns, out_finish_ns[index])
        free_ns = begin_ns + copy_ns(transfers[index].size_bytes, bytes_per_s)
        start_ns[index], finish_ns[index] = begin_ns, free_ns
        clock.start_ns(need_step)
        clock.wait_until(free_ns)
        needed_ns.append(clock.start_ns(need_step))
    return start_ns, finish_ns
