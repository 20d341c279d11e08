"""Everything the planner raises on purpose, with the facts of each error as attributes.

The command line, the service and the tests read the attributes; the text is for people. This module imports only
`planner.records` of the planner.
"""

from typing import TYPE_CHECKING

from planner.records import record

if TYPE_CHECKING:
    from planner.plan import Plan


class PlannerError(Exception):
    """Any error the planner raises on purpose."""

    # What the command line exits with: 2 is "we could not look", 1 is "we looked, and the answer is no".
    exit_status = 2


class UnitError(PlannerError):
    """A quantity or dtype name that cannot be read, such as "40" (no unit) or "40GC"."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class LocatedError(PlannerError):
    """A problem at a place in a file; its text reads ``path:line: key: message; hint``.

    Args:
        message: What was found and what was expected.
        path: The file as the user named it.
        line: 1-based, or None when the problem is the file as a whole.
        column: 1-based.
        key: The dotted key path, such as "batch.micro_batch".
        hint: What to try.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str,
        line: int | None = None,
        column: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.column = column
        self.key = key
        self.hint = hint

    def __str__(self) -> str:
        location = self.path if self.line is None else f"{self.path}:{self.line}"
        key = f"{self.key}: " if self.key else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{location}: {key}{self.message}{hint}"


class SpecError(LocatedError):
    """A model spec, or a file it names, that cannot be used."""


class DeviceError(LocatedError):
    """A device profile that cannot be used, or a device name that does not exist."""


class PlanFileError(LocatedError):
    """A plan file that cannot be used."""


class ConfigError(LocatedError):
    """A training config, or what steers the linter, that cannot be used."""


class OutputError(LocatedError):
    """A file that cannot be written."""


class MissingExtraError(PlannerError):
    """A command needs packages that the base installation leaves out.

    Args:
        feature: What the user asked for, such as "planner solve".
        extra: The extra that brings what is missing, such as "solve".
        package: The package that could not be imported; None when naming it would not help.
    """

    def __init__(self, feature: str, extra: str, *, package: str | None = None) -> None:
        needs = package or f"the {extra!r} extra"
        super().__init__(f"{feature} needs {needs}: pip install 'activation-planner[{extra}]'")
        self.feature = feature
        self.extra = extra
        self.package = package


class TraceError(PlannerError):
    """A model whose training step cannot be traced.

    Args:
        message: What was found and what was expected.
        module_fqn: The module being run when it failed, when known.
        hint: What to try.
        source: Where a spec chose what failed, such as "model.yaml:2: model.factory"; None without a spec.
    """

    def __init__(
        self, message: str, *, module_fqn: str | None = None, hint: str | None = None, source: str | None = None
    ) -> None:
        places = [source, f"in {module_fqn}" if module_fqn else None]
        text = ": ".join([*(place for place in places if place), message])
        super().__init__(text + (f"; {hint}" if hint else ""))
        self.message = message
        self.module_fqn = module_fqn
        self.hint = hint
        self.source = source


class GraphError(PlannerError):
    """An op graph that breaks its own rules; it names the offending node."""

    def __init__(self, node: object, message: str) -> None:
        super().__init__(f"node {node}: {message}")
        self.node = node
        self.message = message


@record
class WayOut:
    """One change of the spec and the smallest peak it would reach.

    Attributes:
        change: What to write in the spec, such as "parallel.fsdp: 16".
        effect: What it does, in a few words.
        peak_bytes: The smallest peak found with the change.
        fits: Whether that is within the budget.
    """

    change: str
    effect: str
    peak_bytes: int
    fits: bool


class InfeasibleError(PlannerError):
    """No plan fits the budget. This is an answer, not a failure of the planner.

    Args:
        message: The whole sentence for a person.
        budget_bytes: What the step was allowed.
        static_bytes: Parameters, gradients and optimizer state, which no plan can reduce.
        smallest_peak_bytes: The smallest peak that any plan found reaches.
        bound_bytes: No plan can peak below this.
        where: The op or phase at which the smallest peak is reached.
        is_proven: Whether it is proven that no plan fits; otherwise the time limit ended the search, or the plans
            that should fit did not when they were rehearsed.
        ways_out: What the user could change, cheapest first.
    """

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        budget_bytes: int,
        static_bytes: int,
        smallest_peak_bytes: int,
        bound_bytes: int,
        where: str,
        is_proven: bool,
        ways_out: tuple[WayOut, ...] = (),
    ) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.static_bytes = static_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.bound_bytes = bound_bytes
        self.where = where
        self.is_proven = is_proven
        self.ways_out = ways_out


class SolveInterrupted(KeyboardInterrupt):  # no error: the user's wish
    """Ctrl-C was pressed while a plan was looked for.

    Args:
        plan: The best one found until then that fits the budget, if any. Nothing has rehearsed it: it predicts the peak
            of the simulation.
        solve_s: How long the solver had.
    """

    def __init__(self, plan: "Plan | None", *, solve_s: float) -> None:
        super().__init__()
        self.plan = plan
        self.solve_s = solve_s


class PlanMismatchError(PlannerError):
    """A plan that does not belong to the model it is applied to; it names the first difference."""


class HostMemoryError(PlannerError):
    """Host memory for offloaded tensors that cannot be had.

    Args:
        message: The whole sentence for a person.
        needed_bytes: What was asked for.
        limit_bytes: What offloaded tensors may have; None if the system refused.
    """

    def __init__(self, message: str, *, needed_bytes: int, limit_bytes: int | None = None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes


class AllocatorError(PlannerError):
    """A sequence of allocations that no program can make: one name taken twice, or freed without being held."""


class AllocatorMemoryError(AllocatorError):
    """A request that the modelled device has no memory for, not even after all that is unused was given back."""

    def __init__(self, *, requested_bytes: int, reserved_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{requested_bytes:,} bytes were asked for with {reserved_bytes:,} reserved; the limit is {limit_bytes:,}: "
            "raise it, or plan for a smaller budget"
        )
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.limit_bytes = limit_bytes


class RehearsalError(PlannerError):
    """A plan that the runtime cannot carry out on the step it was made for; its cause says why."""


class ReplayError(PlannerError):
    """A dropped tensor that cannot be replayed, found before or during backward."""
