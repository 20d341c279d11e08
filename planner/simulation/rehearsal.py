"""What a rehearsal reports: the peak of a step that the product's own runtime ran on tensors without data.

The timeline of `planner.simulation.liveness` says what the runtime should do; a rehearsal says what it does. How one is
run is in `planner.runtime.rehearsal`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One step under a plan, as the runtime carried it out.

    Attributes:
        peak_bytes: the most bytes alive at a time, static memory and the optimizer step included.
        peak_at: where that is, for a person.
        live_bytes: bytes alive at each op of forward and backward that is no view, in order.
        replays: how many ops backward ran again.
        fallbacks: how many forwards did not match the plan or their own recording, and kept everything from there on.
        wall_s: what the rehearsal took.
        host_bytes: the most bytes of offloaded tensors on the host at a time.
    """

    peak_bytes: int
    peak_at: str
    live_bytes: tuple[int, ...]
    replays: int
    fallbacks: int
    wall_s: float
    host_bytes: int = 0


Rehearse = Callable[[Plan], Rehearsal]
