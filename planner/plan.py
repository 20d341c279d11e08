"""The plan: one retention decision for every tensor that autograd saves, and what it was predicted to give.

A plan is a YAML file that a person can read in a review and a program can check. `load_plan` gives back what
`write_plan` wrote, up to the order of decisions and anchors, which means nothing; equal plans give equal
bytes.
"""

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.errors import PlanFileError
from planner.files import write_whole
from planner.link import Staging
from planner.patterns import compress, expand
from planner.validation import check
from planner.yaml_source import FlowMapping, SourcedDocument, format_yaml, load_yaml, parse_yaml

PLAN_VERSION = 1
_LINE_WIDTH = 140
# More than the plan of any real step has; a file with more is a mistake or an attack.
MAX_ITEMS = 1_000_000
_MAX_FILE_BYTES = 32_000_000
_MAX_NODES = 2_000_000


class Retention(StrEnum):
    """What happens to a saved tensor between forward and backward."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The retention of one saved tensor: the `ordinal`-th that autograd packs in that call of that module."""

    module_fqn: str
    module_call: int
    ordinal: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    retention: Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A module's input or output that autograd does not save and the plan keeps for replays to start from."""

    module_fqn: str
    module_call: int
    side: str  # "input" or "output"
    position: int  # among the tensors of that side
    op: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanModel:
    """What the plan was made for. The fingerprint covers the sequence of saved tensors, shapes included.

    `micro_batch` and `spec` are there to be read; None for a live module, whose arguments do not say what they are.
    `spec` is the spec's file, from where the plan lies.
    """

    name: str
    fingerprint: str
    parameters: int
    torch: str
    attention: str
    micro_batch: int | None = None
    spec: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the step is predicted to take under the plan; `stall_s` is time spent waiting for transfers."""

    peak_bytes: int
    peak_at: str
    static_bytes: int
    host_bytes: int
    step_s: float
    recompute_s: float
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the solver proved: no plan within the budget adds less than `bound_s` to the step."""

    status: str
    gap: float
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow:
    """One way of checkpointing by hand, from the same cost model."""

    name: str
    fits: bool
    peak_bytes: int
    step_s: float
    recompute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A retention decision for every saved tensor of one training step; staging if any of them is offloaded."""

    model: PlanModel
    device: str
    budget_bytes: int
    predicted: Prediction
    solver: Proof
    baselines: tuple[BaselineRow, ...]
    staging: Staging | None = None
    decisions: tuple[Decision, ...]
    anchors: tuple[Anchor, ...]

    def count(self, retention: Retention) -> int:
        """How many saved tensors have this retention."""
        return sum(decision.retention is retention for decision in self.decisions)


def format_plan(plan: Plan) -> str:
    """The plan as YAML text."""
    data = {
        "version": PLAN_VERSION,
        "model": asdict(plan.model),
        "device": plan.device,
        "budget_bytes": plan.budget_bytes,
        "predicted": asdict(plan.predicted),
        "solver": asdict(plan.solver),
        "baselines": [FlowMapping(asdict(row)) for row in plan.baselines],
        **({} if plan.staging is None else {"staging": asdict(plan.staging)}),
        "counts": FlowMapping(decisions=len(plan.decisions), anchors=len(plan.anchors)),
        "decisions": _grouped(plan.decisions, "saved"),
        "anchors": _grouped(plan.anchors, "kept"),
    }
    return format_yaml(data, width=_LINE_WIDTH)


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan to a file, whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_whole(path, format_plan(plan))


def naming_spec(plan: Plan, spec: str | Path, *, plan_file: str | Path) -> Plan:
    """The plan, saying which spec it was made for: the way to the spec's file from where the plan's is or will be."""
    way = os.path.realpath(spec)
    with suppress(ValueError):  # on Windows, no path leads from one drive to another
        way = os.path.relpath(way, Path(os.path.realpath(plan_file)).parent)
    return replace(plan, model=replace(plan.model, spec=Path(way).as_posix()))


def load_plan(path: str | Path) -> Plan:
    """The plan in a file.

    Raises:
        PlanFileError: the file cannot be read or is not a whole plan; names the line and key.
    """
    return _plan_of(load_yaml(path, error_type=PlanFileError, max_bytes=_MAX_FILE_BYTES, max_nodes=_MAX_NODES))


def parse_plan(text: str, name: str) -> Plan:
    """The plan in a plan file's text; `name` is for messages only.

    Raises:
        PlanFileError: as `load_plan`.
    """
    return _plan_of(parse_yaml(text, name, error_type=PlanFileError, max_nodes=_MAX_NODES))


def _plan_of(document: SourcedDocument) -> Plan:
    check(document, "plan", error_type=PlanFileError)
    data: Any = document.data
    decisions = [
        Decision(**where, **{**row, "shape": tuple(row["shape"]), "retention": Retention(row["retention"])})
        for where, row in _ungrouped(document, "decisions", "saved", ("ordinal",))
    ]
    anchors = [Anchor(**where, **row) for where, row in _ungrouped(document, "anchors", "kept", ("side", "position"))]
    for section, items in (("decisions", decisions), ("anchors", anchors)):
        if len(items) != data["counts"][section]:
            message = f"expected {data['counts'][section]:,} as `counts` says, found {len(items):,}"
            raise document.error(message, (section,), hint="part of the file is missing", error_type=PlanFileError)
    return Plan(
        model=PlanModel(**data["model"]),
        device=data["device"],
        budget_bytes=data["budget_bytes"],
        predicted=Prediction(**data["predicted"]),
        solver=Proof(**data["solver"]),
        baselines=tuple(BaselineRow(**row) for row in data["baselines"]),
        staging=Staging(**data["staging"]) if "staging" in data else None,
        decisions=tuple(decisions),
        anchors=tuple(anchors),
    )


def _grouped(items: Iterable[Decision | Anchor], key: str) -> list[dict[str, Any]]:
    """The items by module pattern: modules and calls whose rows are all equal share one entry."""
    by_place: dict[tuple[str, int], list[tuple[tuple[str, Hashable], ...]]] = {}
    for item in items:
        row = tuple(
            (field.name, getattr(item, field.name))
            for field in fields(item)
            if field.name not in ("module_fqn", "module_call")
        )
        by_place.setdefault((item.module_fqn, item.module_call), []).append(row)
    rows = [(path, (call, tuple(entries))) for (path, call), entries in by_place.items()]
    grouped = []
    for pattern, (call, entries) in compress(rows):
        entry: dict[str, Any] = {"modules": pattern}
        if call:
            entry["call"] = call
        entry[key] = [FlowMapping({name: _plain(value) for name, value in row}) for row in entries]
        grouped.append(entry)
    return grouped


def _ungrouped(
    document: SourcedDocument, section: str, key: str, identity: tuple[str, ...]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The place and the row of every item; `identity` names what tells the rows of one place apart."""
    data: Any = document.data
    seen: set[Hashable] = set()
    for index, entry in enumerate(data[section]):
        call = entry.get("call", 0)
        try:
            paths = tuple(expand(entry["modules"]))
        except ValueError as error:
            raise document.error(str(error), (section, index, "modules"), error_type=PlanFileError) from None
        for path in paths:
            for place, row in enumerate(entry[key]):
                who = (path, call, *(row[name] for name in identity))
                if who in seen:
                    message = f"{path or 'the model'} has this entry twice"
                    raise document.error(message, (section, index, key, place), error_type=PlanFileError)
                if len(seen) >= MAX_ITEMS:
                    raise document.error(f"more than {MAX_ITEMS:,} entries", (section,), error_type=PlanFileError)
                seen.add(who)
                yield {"module_fqn": path, "module_call": call}, row


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, StrEnum) else value
