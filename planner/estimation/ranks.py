"""The ranks of a run, one for each stage of its pipeline, and which of them is the fullest."""

from dataclasses import dataclass, replace

from planner.estimation.estimate import Static, static_of, step_moments
from planner.estimation.parallel import check_degrees, in_flight, layers_of, root_matrices, unlike_blocks
from planner.estimation.run import Run
from planner.estimation.step import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One stage's rank; all of its tensor-, context- and data-parallel ranks are alike.

    Attributes:
        stage: from 0.
        layers: it has.
        parameters: elements on the rank, before data-parallel ranks divide them.
        chunks_in_flight: chunks of its layers whose activations it holds at once.
        static: what it holds whatever the batch.
        moments: the fullest of each phase.
    """

    stage: int
    layers: tuple[int, ...]
    parameters: int
    chunks_in_flight: int
    static: Static
    moments: tuple[Moment, ...]

    @property
    def static_bytes(self) -> int:
        """Parameters, gradients, optimizer state and buckets."""
        s = self.static
        return s.parameters + s.master + s.gradients + s.optimizer + s.buckets

    @property
    def fullest(self) -> Moment:
        """Its fullest moment."""
        return max(self.moments, key=lambda moment: moment.size_bytes)

    @property
    def peak_bytes(self) -> int:
        """All that is there then."""
        return self.fullest.size_bytes


def ranks_of(run: Run) -> tuple[Rank, ...]:
    """Every stage's rank, in the pipeline's order.

    Raises:
        DegreesError: the degrees fit neither each other nor the model.
    """
    check_degrees(run)
    return tuple(_rank(replace(run, stage=stage)) for stage in range(run.degrees.pipeline))


def fullest_rank(run: Run) -> Rank:
    """The rank with the highest peak; of equal ones, the first.

    Raises:
        DegreesError: the degrees fit neither each other nor the model.
    """
    return max(ranks_of(run), key=lambda rank: rank.peak_bytes)


def _rank(run: Run) -> Rank:
    units = ((root_matrices(run), 1), *unlike_blocks(run))
    return Rank(
        stage=run.stage,
        layers=layers_of(run),
        parameters=sum(count * m.elements for unit, count in units for m in unit),
        chunks_in_flight=in_flight(run),
        static=static_of(run),
        moments=step_moments(run),
    )
