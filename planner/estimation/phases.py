"""The phases of a training run, from loading to evaluation, and what is on the device at the fullest moment of each.

Every figure is a sum of `Entry`s: a part, what it is, and factors whose product is its bytes. What the report adds up
and what `--explain` prints are the same entries.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod

from planner.costs.optimizers import OPTIMIZER_COSTS
from planner.estimation.blocks import Section
from planner.estimation.estimate import HeldParameter, Static, held_parameters, sections_of, static_of, step_parts
from planner.estimation.parallel import check_degrees
from planner.estimation.run import Run, Sharding
from planner.estimation.step import Checkpointing, Gathering, Moment, StepParts, kept_tensors, moments, places_kept
from planner.estimation.tape import Alive, Passage, Tensor, forward
from planner.units import DTYPE_BYTES


class Part(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    QUANTIZED = "quantized base"
    ADAPTERS = "adapters"
    MASTER = "master weights"
    COPIES = "autocast copies"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"
    LOGITS = "logits and loss"
    GATHERED = "gathered by FSDP"
    BUCKETS = "DDP buckets"
    STEP = "optimizer temporaries"
    DEQUANTIZED = "dequantized weights"
    INPUTS = "inputs"
    WORKING = "working memory"


class Phase(StrEnum):
    """When."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    REDUCTION = "gradient reduction"
    FIRST_STEP = "first optimizer step"
    STEP = "optimizer step"
    EVALUATION = "evaluation"


# Where the rules behind a part's entries come from.
SOURCES: Mapping[Part, str] = {
    Part.PARAMETERS: "the model's configuration; shards as in torch/distributed/fsdp/_fully_shard",
    Part.QUANTIZED: "QLoRA, arXiv 2305.14314, section 3; bitsandbytes, functional.py, quantize_4bit",
    Part.ADAPTERS: "peft, tuners/lora/layer.py",
    Part.MASTER: "a copy of what is trained, in the dtype the spec names",
    Part.COPIES: "ATen/autocast_mode.cpp: one copy of each weight in the compute dtype, kept for backward",
    Part.GRADIENTS: "one per trained parameter, made in backward (torch/csrc/autograd)",
    Part.OPTIMIZER: "torch/optim, and bitsandbytes for 8-bit states",
    Part.ACTIVATIONS: "tools/autograd/derivatives.yaml of torch 2.13: what each op of a block saves",
    Part.LOGITS: "transformers 5.24, loss/loss_utils.py, and the output matrix before it",
    Part.GATHERED: "torch/distributed/fsdp/_fully_shard: the root, a block in use, and the next one ahead",
    Part.BUCKETS: "torch/csrc/distributed/c10d/reducer.cpp",
    Part.STEP: "torch/optim/adam.py, _multi_tensor_adam, and alike",
    Part.DEQUANTIZED: "bitsandbytes, autograd/_functions.py: a weight is made whole for each product",
    Part.INPUTS: "token ids, labels and positions of 8 bytes",
    Part.WORKING: "the ops' own results and gradients on the way",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Bytes of a part.

    Attributes:
        part: of it.
        what: in a few words.
        factors: named numbers.
        size_bytes: their product, rounded; asked for more often than an entry is made.
    """

    part: Part
    what: str
    factors: tuple[tuple[str, float], ...]
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_bytes", round(prod([value for _, value in self.factors])))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The fullest moment of a phase: where, and everything that is there then."""

    phase: Phase
    where: str
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def parts(self) -> dict[Part, int]:
        """Bytes by part, in the order of `Part`; those that are there."""
        totals = dict.fromkeys(Part, 0)
        for entry in self.entries:
            totals[entry.part] += entry.size_bytes
        return {part: size_bytes for part, size_bytes in totals.items() if size_bytes}


def entry_of(part: Part, what: str, size_bytes: float) -> Entry:
    """Bytes of which nothing but their number is told."""
    return Entry(part=part, what=what, factors=(("bytes", size_bytes),))


# -- what is there whatever the batch


def _parameter_entries(run: Run, static: Static) -> list[Entry]:
    def part_of(one: HeldParameter) -> Part:
        return Part.ADAPTERS if one.is_adapter else Part.QUANTIZED if one.is_quantized else Part.PARAMETERS

    found = [
        Entry(
            part=part_of(one),
            what=one.name,
            factors=(
                *((("blocks", one.copies),) if one.is_in_block else ()),
                ("elements on this rank", one.elements),
                ("bytes", one.dtype_bytes),
            ),
        )
        for one in held_parameters(run)
    ]
    return _completed(found, static.parameters, Part.PARAMETERS, "rounding")


def _completed(found: list[Entry], size_bytes: int, part: Part, what: str) -> list[Entry]:
    """The entries, and one more if they are not all of the size."""
    rest = size_bytes - sum(entry.size_bytes for entry in found)
    return [*found, entry_of(part, what, rest)] if rest else found


def _per_element(part: Part, what: str, size_bytes: int, width: float) -> list[Entry]:
    """Bytes as so many elements of a width, where it divides them."""
    if not size_bytes:
        return []
    if width and size_bytes % width == 0:
        return [Entry(part=part, what=what, factors=(("elements", size_bytes / width), ("bytes", width)))]
    return [entry_of(part, what, size_bytes)]


class _Fixed:
    """The entries that phases share."""

    def __init__(self, run: Run, static: Static) -> None:
        trained = run.adapters.dtype if run.adapters is not None else run.parameter_dtype
        updated = DTYPE_BYTES[run.master_dtype or trained]
        state = DTYPE_BYTES[run.state_dtype] if run.state_dtype is not None else updated
        cost = OPTIMIZER_COSTS["sgd-momentum" if run.momentum else run.optimizer.value]
        name = run.optimizer.value
        gradient = DTYPE_BYTES[run.gradient_dtype or trained]
        self.parameters = _parameter_entries(run, static)
        self.master = _per_element(Part.MASTER, f"in {run.master_dtype}", static.master, updated)
        self.optimizer = _per_element(Part.OPTIMIZER, f"of {name}", static.optimizer, state * (cost.states or 1))
        self.workspace = (
            [entry_of(Part.WORKING, "of kernel libraries", run.workspace_bytes)] if run.workspace_bytes else []
        )
        self.gradients = _per_element(Part.GRADIENTS, "of all that is trained", static.gradients, gradient)
        self.reduced = _per_element(Part.GRADIENTS, "of all that is trained", static.reduced_gradients, gradient)
        self.buckets = _per_element(Part.BUCKETS, "as large as all gradients", static.buckets, gradient)
        self.step = _per_element(
            Part.STEP, f"of {name}, {run.step}", static.step_transient, updated * (cost.transients or 1)
        )

    @property
    def resident(self) -> list[Entry]:
        """Alive through the whole step."""
        return [*self.parameters, *self.master, *self.optimizer, *self.buckets, *self.workspace]


# -- what a moment of the step has besides


def _weights_cast(sections: Sequence[Section]) -> int:
    """Bytes of the copies that autocast makes of the sections' weights."""
    return sum(
        count * sum(t.size_bytes for t in section.tape.tensors if _is_copy(t)) for section, count in _alike(sections)
    )


def _alike(sections: Sequence[Section]) -> list[tuple[Section, int]]:
    """Each section once, with how many there are of it; alike blocks are one object."""
    counts = Counter(id(section) for section in sections)
    return [(section, counts[key]) for key, section in {id(section): section for section in sections}.items()]


def _is_copy(tensor: Tensor) -> bool:
    return tensor.name.endswith(".weight cast")


def _tensor_entry(part: Part, tensor: Tensor, what: str, *before: tuple[str, float]) -> Entry:
    factors = (*before, *((name, float(value)) for name, value in tensor.size.factors))
    return Entry(part=part, what=what, factors=(*factors, ("bytes", float(DTYPE_BYTES[tensor.dtype]))))


def _kept_entries(parts: StepParts, blocks: int, mode: Checkpointing) -> Iterator[Entry]:
    """What blocks that ran before left for backward; those of a row that are alike are one entry."""
    for section, count in _alike([parts.blocks[place] for place in places_kept(parts, blocks)]):
        for tensor in kept_tensors(section, mode):
            part = Part.COPIES if _is_copy(tensor) else Part.ACTIVATIONS
            yield _tensor_entry(part, tensor, tensor.name, ("blocks", count))


def _alive_entries(moment: Moment, passage: Passage, section: Section, run: Run, parts: StepParts) -> Iterator[Entry]:
    """What is alive within the embedding, the block or the head that is running."""
    is_head, is_block = section is parts.head, section is not parts.head and section is not parts.embedding
    saved = {t.index for t in kept_tensors(section, Checkpointing.NONE)} if is_block else set()
    keeps = run.checkpointing is Checkpointing.NONE
    for alive in passage.alive:
        if alive.kind == "parameter gradient":
            yield entry_of(Part.GRADIENTS, f"of {alive.op}", alive.size_bytes)
            continue
        tensor = None if alive.tensor is None else section.tape.tensors[alive.tensor]
        part = _part_of(alive, tensor, run, is_head=is_head, is_kept=keeps and alive.tensor in saved)
        if tensor is None:
            yield entry_of(part, f"while {moment.where.rpartition(', ')[2]} runs", alive.size_bytes)
        elif tensor.size_bytes == alive.size_bytes:
            what = f"gradient of {tensor.name}" if alive.kind == "gradient" else tensor.name
            yield _tensor_entry(part, tensor, what)
        else:
            yield entry_of(part, tensor.name, alive.size_bytes)


def _part_of(alive: Alive, tensor: Tensor | None, run: Run, *, is_head: bool, is_kept: bool) -> Part:
    if tensor is not None and _is_copy(tensor) and alive.kind != "gradient":
        return Part.COPIES
    if is_head:
        return Part.LOGITS
    if alive.kind == "saved" or (alive.kind == "tensor" and is_kept):
        return Part.ACTIVATIONS
    is_product = alive.kind == "temporary" and alive.op.endswith("_proj")
    return Part.DEQUANTIZED if is_product and run.quantization is not None else Part.WORKING


def _moment_entries(moment: Moment, run: Run, parts: StepParts, fixed: _Fixed) -> tuple[Entry, ...]:
    """Everything at a moment; the entries add up to its size."""
    assert moment.passage is not None
    assert moment.section is not None
    known = [*fixed.resident]
    if parts.gradients_present:
        known += fixed.gradients
    known += [entry_of(Part.INPUTS, "token ids, labels and positions", moment.parts["inputs"])]
    known.append(entry_of(Part.ACTIVATIONS, "of other micro-batches in flight", moment.parts["waiting"]))
    gathered = moment.parts["gathered"], moment.parts.get("gathered now", 0)
    known += [entry_of(Part.GATHERED, what, size) for what, size in zip(("the root", "blocks"), gathered, strict=True)]
    known.append(entry_of(Part.GRADIENTS, "made so far", moment.parts.get("gradients", 0)))
    known.append(entry_of(Part.LOGITS, "the model's output", moment.parts.get("outputs", 0)))
    saved = moment.parts.get("saved", 0) + moment.parts.get("left by blocks", 0)
    kept = list(_kept_entries(parts, moment.blocks_before, run.checkpointing))
    known += _completed(kept, saved, Part.ACTIVATIONS, "of the embedding and of blocks that run again")
    known += _alive_entries(moment, moment.passage, moment.section, run, parts)
    known = [entry for entry in known if entry.size_bytes]
    return tuple(
        _completed(known, moment.size_bytes, Part.WORKING, "the block's input and its gradient, beside a replay")
    )


def _cached_copies(moment: Moment, run: Run, parts: StepParts) -> list[Entry]:
    """Copies that autocast caches until the model's forward and loss are done, though no block keeps them.

    Source: ATen/autocast_mode.cpp, `cached_cast`: the cache is emptied on leaving the outermost autocast region.
    """
    if run.checkpointing is Checkpointing.NONE or moment.phase not in (Phase.FORWARD, Phase.LOSS):
        return []
    size_bytes = _weights_cast(parts.blocks[: moment.blocks_before])
    return [entry_of(Part.COPIES, "cached until forward ends", size_bytes)] if size_bytes else []


# -- the phases


def phases_of(run: Run) -> tuple[PhasePeak, ...]:
    """The fullest moment of each phase, in the order of time; in a pipeline, of the rank that needs most."""
    if run.degrees.pipeline == 1:
        return phases_of_stage(run)
    check_degrees(run)
    # By all phases, also those that a rank's moments leave out: the reduction of gradients, and evaluation.
    stages = (phases_of_stage(replace(run, stage=stage)) for stage in range(run.degrees.pipeline))
    return max(stages, key=lambda phases: max(one.size_bytes for one in phases))


def phases_of_stage(run: Run) -> tuple[PhasePeak, ...]:
    """The same of a rank of the run's own stage."""
    static, parts = static_of(run), step_parts(run)
    fixed = _Fixed(run, static)
    found = [PhasePeak(phase=Phase.LOAD, where="the model", entries=(*fixed.parameters, *fixed.buckets))]
    for moment in moments(parts):
        entries = (*_moment_entries(moment, run, parts, fixed), *_cached_copies(moment, run, parts))
        if run.in_backward and moment.phase == Phase.BACKWARD:
            entries += tuple(fixed.step)  # of the largest parameter, wherever in backward its turn comes
        found.append(PhasePeak(phase=Phase(moment.phase), where=moment.where, entries=entries))
    if run.sharding is not Sharding.NONE:
        found.append(_reduction(run, fixed, parts.gathering))
    outputs = entry_of(Part.LOGITS, "the last outputs, and what their graph keeps", parts.lingering_bytes)
    step = (*fixed.resident, *fixed.reduced, *fixed.step, *([outputs] if parts.lingering_bytes else []))
    found.append(PhasePeak(phase=Phase.FIRST_STEP, where="states are made", entries=step))
    found.append(PhasePeak(phase=Phase.STEP, where="all parameters", entries=step))
    found.append(_evaluation(run, parts, fixed))
    if run.degrees.pipeline > 1:
        found = [replace(one, where=f"stage {run.stage}, {one.where}") for one in found]
    return tuple(found)


def _reduction(run: Run, fixed: _Fixed, gathering: Gathering) -> PhasePeak:
    """When the last gradients are reduced: all of them are there, and what the root gathered."""
    root = [entry_of(Part.GATHERED, "the root, and the input of its reduction", 2 * gathering.always)]
    entries = (*fixed.resident, *fixed.gradients, *(root if gathering.always else ()))
    return PhasePeak(phase=Phase.REDUCTION, where="the last gradients", entries=entries)


def _evaluation(run: Run, parts: StepParts, fixed: _Fixed) -> PhasePeak:
    """A forward pass and a loss that keep nothing, between steps."""
    _, blocks, head = sections_of(run)
    gathered = parts.gathering.always + parts.gathering.forward
    passages = ((one, forward(one.tape, kept=(), output=one.exit)) for one, _ in _alike((*blocks, head)))
    section, passage = max(passages, key=lambda found: found[1].peak_bytes)
    copies = _weights_cast(blocks)
    mine: Sequence[tuple[Part, str, int]] = (
        (Part.INPUTS, "token ids, labels and positions", parts.inputs_bytes),
        (Part.GATHERED, "the root and blocks", gathered),
        (Part.COPIES, "cached until forward ends", copies),
        (Part.LOGITS if section is head else Part.WORKING, "the most that is alive in one", passage.peak_bytes),
    )
    entries = (
        *fixed.resident,
        *(fixed.gradients if run.gradients_persist else ()),
        *(entry_of(part, what, size_bytes) for part, what, size_bytes in mine if size_bytes),
    )
    return PhasePeak(phase=Phase.EVALUATION, where=passage.peak_op, entries=entries)
