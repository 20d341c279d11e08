"""What `planner kv` prints: the KV cache of a model, what fits beside the weights, and how each number comes about."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.architecture import Architecture, parameter_count
from planner.estimation.kv import (
    SAMPLING_BYTES_PER_LOGIT,
    Alternative,
    Attention,
    Fit,
    KvBudget,
    KvSetting,
    LayerGroup,
    held_tokens,
    mean_waste_tokens,
    profiled_sequences,
    shared_tokens,
)
from planner.estimation.kv_claims import Judgement, Verdict
from planner.estimation.kv_formats import vector_formula
from planner.reporting.tables import gigabytes, percent, table, wrapped

_THIS = "← this model"
_ENGINE = "gpu_worker.py of vLLM: memory × utilization − weights − activation peak − the rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvReport:
    """All that there is to say.

    Attributes:
        model, device: their names.
        architecture, attention, setting, budget: what was asked.
        weights: the format of the weights, or "given" where their size was.
        are_activations_estimated: they were not given.
        fit: what fits.
        unshared: the same without a shared prefix; None without one.
        sequences: how many were asked about; None for as many as fit.
        attentions, formats: the same model with others.
        claim: a stated size of these sequences, judged; None without one.
        notes: what was assumed.
    """

    model: str
    device: str
    architecture: Architecture
    attention: Attention
    setting: KvSetting
    budget: KvBudget
    weights: str
    are_activations_estimated: bool
    fit: Fit
    unshared: Fit | None
    sequences: int | None
    attentions: tuple[Alternative, ...]
    formats: tuple[Alternative, ...]
    claim: Judgement | None
    notes: tuple[str, ...]

    @property
    def needed_bytes(self) -> int | None:
        """What the sequences asked about take."""
        return None if self.sequences is None else self.fit.needed_bytes(self.sequences)

    @property
    def is_enough(self) -> bool:
        """Whether what was asked about fits: the sequences, or else one of them."""
        return self.fit.sequences >= (self.sequences or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that explains itself: its formula with the values put in, and where the formula comes from."""

    name: str
    value: int | float
    unit: str
    formula: str
    source: str


def kv_text(report: KvReport) -> str:
    """Tables for a person."""
    setting = report.setting
    cache = f"KV cache in {setting.how.name}, sequences of {setting.context_tokens:,} tokens{_sharing(setting)}"
    parts = [
        wrapped(f"{report.model} on {report.device}: {cache}"),
        _sizes(report),
        _verdict(report),
        _alternatives("Attention", report.attentions, with_heads=True),
        _alternatives("Format", report.formats, with_heads=False),
        _claim(report.claim),
        [line for note in report.notes for line in wrapped(f"Note: {note}")],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def explain_text(report: KvReport) -> str:
    """How each number comes about, one paragraph a number."""
    lines = []
    for figure in figures(report):
        lines += wrapped(f"{figure.name} = {figure.formula}")
        lines += wrapped(f"    = {figure.value:,} {figure.unit}   [{figure.source}]")
    return "\n".join(lines)


def kv_document(report: KvReport) -> dict[str, Any]:
    """The same for a program. Sizes in bytes, of the fullest GPU."""
    fit, setting, budget = report.fit, report.setting, report.budget
    return {
        "model": report.model,
        "device": report.device,
        "attention": {
            "kind": report.attention.name,
            "layers": report.architecture.layers,
            "heads": report.architecture.heads,
            "kv_heads": report.attention.kv_heads,
            "vectors": [asdict(vectors) for vectors in report.attention.vectors],
            "windows": [asdict(group) for group in fit.groups],
        },
        "setting": {
            "context_tokens": setting.context_tokens,
            "format": setting.how.name,
            "block_tokens": setting.block_tokens,
            "prefix_tokens": setting.prefix_tokens,
            "tensor": setting.tensor,
            "pipeline": setting.pipeline,
            "context": setting.context,
        },
        "budget": {
            "memory_bytes": budget.memory_bytes,
            "fraction": budget.fraction,
            "weights_bytes": budget.weights_bytes[fit.stage],
            "weights_format": report.weights,
            "activations_bytes": budget.activations_bytes,
            "are_activations_estimated": report.are_activations_estimated,
            "reserved_bytes": budget.reserved_bytes,
            "cache_bytes": fit.cache_bytes,
        },
        "token_bytes": fit.token_bytes,
        "sequence_bytes": fit.sequence_bytes,
        "shared_bytes": fit.shared_bytes,
        "tokens": fit.tokens,
        "sequences": fit.sequences,
        "sequences_unshared": report.unshared.sequences if report.unshared else None,
        "longest_tokens": fit.longest_tokens,
        "asked_sequences": report.sequences,
        "needed_bytes": report.needed_bytes,
        "is_enough": report.is_enough,
        "attentions": [asdict(row) for row in report.attentions],
        "formats": [asdict(row) for row in report.formats],
        "claim": asdict(report.claim) if report.claim else None,
        "figures": [asdict(figure) for figure in figures(report)],
        "notes": list(report.notes),
    }


def _sharing(setting: KvSetting) -> str:
    shared = {"tensor": setting.tensor, "pipeline": setting.pipeline, "context": setting.context}
    used = [f"{name} {count}" for name, count in shared.items() if count > 1]
    return f"; the fullest GPU of {', '.join(used)} parallel" if used else ""


def _sizes(report: KvReport) -> list[str]:
    fit, budget, setting = report.fit, report.budget, report.setting
    waste_bytes = round(mean_waste_tokens(setting.block_tokens) * fit.token_bytes)
    rows = [
        ("A token", f"{fit.token_bytes:,} B", ""),
        (f"A sequence of {setting.context_tokens:,}", gigabytes(fit.sequence_bytes + fit.shared_bytes), _windows(fit)),
        ("  wasted in its last block", gigabytes(waste_bytes), f"on average, blocks of {setting.block_tokens}"),
        ("", "", ""),
        (f"Device memory × {budget.fraction:g}", gigabytes(int(budget.memory_bytes * budget.fraction)), ""),
        ("  weights", gigabytes(budget.weights_bytes[fit.stage]), report.weights),
        (
            "  activation peak",
            gigabytes(budget.activations_bytes),
            "estimated, see --explain" if report.are_activations_estimated else "given",
        ),
        *([("  reserved", gigabytes(budget.reserved_bytes), "given")] if budget.reserved_bytes else []),
        ("  left for the KV cache", gigabytes(fit.cache_bytes), ""),
    ]
    if report.unshared is not None:
        shared = f"{shared_tokens(setting):,} of {setting.prefix_tokens:,} tokens, once"
        rows.insert(2, ("  shared prefix", gigabytes(fit.shared_bytes), shared))
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return [f"{name:{name_width}}  {value:>{value_width}}  {more}".rstrip() for name, value, more in rows]


def _windows(fit: Fit) -> str:
    windowed = [group for group in fit.groups if group.window_tokens]
    return "; ".join(f"{group.layers} layers keep a window of {group.window_tokens:,}" for group in windowed)


def _verdict(report: KvReport) -> list[str]:
    fit, setting = report.fit, report.setting
    if fit.cache_bytes <= 0:
        return wrapped(
            f"Fits       nothing: weights and activations alone take {gigabytes(-fit.cache_bytes)} more than there is; "
            "more --tp or --pp, smaller --weights, or another --device"
        )
    longest = (
        "one sequence of any length, as all layers have a window"
        if fit.longest_tokens is None
        else f"one sequence of up to {fit.longest_tokens:,} tokens"
    )
    lines = wrapped(
        f"Fits       {fit.sequences:,} sequences of {setting.context_tokens:,} tokens; {fit.tokens:,} tokens in all; "
        f"{longest}"
    )
    if report.unshared is not None:
        lines += wrapped(f"Sharing    {fit.sequences:,} sequences rather than {report.unshared.sequences:,}")
    if (needed_bytes := report.needed_bytes) is not None:
        answer = "fit" if report.is_enough else "DO NOT FIT"
        lines += wrapped(f"Asked      {report.sequences:,} sequences take {gigabytes(needed_bytes)} and {answer}")
    return lines


def _alternatives(title: str, found: Sequence[Alternative], *, with_heads: bool) -> list[str]:
    heads = ("KV heads",) if with_heads else ()
    rows = [
        (
            f"{row.name} {_THIS}" if row.is_this else row.name,
            *((str(row.kv_heads) if row.kv_heads else "latent",) if with_heads else ()),
            f"{row.token_bytes:,} B",
            percent(row.relative),
            f"{row.sequences:,}",
        )
        for row in found
    ]
    return table((title, *heads, "a token", f"of {found[0].name}", "sequences"), rows) if found else []


def _claim(claim: Judgement | None) -> list[str]:
    if claim is None:
        return []
    lines = wrapped(
        f"Claim      {claim.stated_bytes:,} B {claim.verdict}: it is {claim.right_bytes:,} B "
        f"({claim.right_bytes / claim.stated_bytes:.4g} of what is claimed)"
    )
    if claim.reasons:
        lines += [line for why in claim.reasons for line in wrapped(f"           as if one {why}")]
    elif claim.verdict is Verdict.WRONG:
        lines += wrapped("           no common slip gives it")
    return lines


# -- numbers that explain themselves


def figures(report: KvReport) -> tuple[Figure, ...]:
    """Every number of the report with its formula, in the order in which they build on each other."""
    return (*_stored(report), *_left(report), *_fitting(report))


def _stored(report: KvReport) -> list[Figure]:
    fit, setting = report.fit, report.setting
    parts = [_sequence_formula(group, setting, setting.context_tokens - shared_tokens(setting)) for group in fit.groups]
    found = [
        Figure(
            name="bytes a token",
            value=fit.token_bytes,
            unit="B",
            formula=_token_formula(report),
            source=f"a key and a value vector of each head, or one latent vector; {setting.how.name}: "
            f"{setting.how.source}",
        ),
        Figure(
            name="bytes of a sequence" + (" beside the prefix" if fit.shared_bytes else ""),
            value=fit.sequence_bytes,
            unit="B",
            formula=" + ".join(parts),
            source="whole blocks, arXiv 2309.06180; a window of W touches at most ⌈(W − 1) / block⌉ + 1 blocks",
        ),
    ]
    if report.unshared is not None:
        whole = setting.block_tokens * setting.context
        shared = [_sequence_formula(group, setting, shared_tokens(setting)) for group in fit.groups]
        found.append(
            Figure(
                name="bytes of the shared prefix",
                value=fit.shared_bytes,
                unit="B",
                formula=f"{' + '.join(shared)}, as ⌊{setting.prefix_tokens:,} / {whole}⌋ whole blocks are shared",
                source="arXiv 2309.06180, section 4.4",
            )
        )
    waste = mean_waste_tokens(setting.block_tokens)
    found.append(
        Figure(
            name="wasted by a sequence, on average",
            value=round(waste * fit.token_bytes),
            unit="B",
            formula=f"({setting.block_tokens} − 1) / 2 tokens × {fit.token_bytes:,} B",
            source="the last block of lengths of all remainders",
        )
    )
    return found


def _token_formula(report: KvReport) -> str:
    setting, fit = report.setting, report.fit
    layers = sum(group.layers for group in fit.groups)
    latent = report.architecture.latent
    if report.attention.kv_heads == 0 and latent is not None:
        vector = vector_formula(setting.how, f"{latent.kv_rank} + {latent.rope_width}")
        whole = f" (each of {setting.tensor} ranks has it whole)" if setting.tensor > 1 else ""
        return f"{vector}{whole} × {layers} layers"
    held = max(1, report.attention.kv_heads // setting.tensor)
    vector = vector_formula(setting.how, report.attention.vectors[0].width)
    shared = f" ({report.attention.kv_heads} heads over {setting.tensor} ranks)" if setting.tensor > 1 else ""
    return f"2 (key, value) × {held} heads{shared} × {vector} × {layers} layers"


def _sequence_formula(group: LayerGroup, setting: KvSetting, tokens: int) -> str:
    here = -(-tokens // setting.context)
    window = -(-group.window_tokens // setting.context)
    held = held_tokens(here, window, setting.block_tokens)
    return f"{group.layers} layers × {group.token_bytes:,} B × {held:,} tokens"


def _left(report: KvReport) -> list[Figure]:
    fit, budget, a = report.fit, report.budget, report.architecture
    engine_bytes = int(budget.memory_bytes * budget.fraction)
    weights_bytes = budget.weights_bytes[fit.stage]
    sharing = (
        f", over {report.setting.tensor} ranks and {report.setting.pipeline} stages" if _sharing(report.setting) else ""
    )
    is_given = report.weights == "given"
    found = [
        Figure(
            name="memory of the engine",
            value=engine_bytes,
            unit="B",
            formula=f"{budget.memory_bytes:,} B × {budget.fraction:g}",
            source=_ENGINE,
        ),
        Figure(
            name="weights",
            value=weights_bytes,
            unit="B",
            formula="given" if is_given else f"{parameter_count(a):,} parameters in {report.weights}{sharing}",
            source="--weights"
            if is_given
            else "the architecture; embeddings, output matrix, norms, routers unquantized",
        ),
    ]
    if report.are_activations_estimated:
        sequences = profiled_sequences(budget.memory_bytes)
        found.append(
            Figure(
                name="activation peak",
                value=budget.activations_bytes,
                unit="B",
                formula=f"{sequences:,} sequences × {a.vocab:,} logits × {SAMPLING_BYTES_PER_LOGIT} B",
                source="estimate: five published vLLM logs have 38.4 to 39.8 B a logit; --activations replaces it",
            )
        )
    terms = [engine_bytes, weights_bytes, budget.activations_bytes, budget.reserved_bytes]
    found.append(
        Figure(
            name="left for the KV cache",
            value=fit.cache_bytes,
            unit="B",
            formula=" − ".join(f"{term:,}" for term in terms),
            source=_ENGINE,
        )
    )
    return found


def _fitting(report: KvReport) -> list[Figure]:
    fit, setting = report.fit, report.setting
    has_windows = any(group.window_tokens for group in fit.groups)
    ranks = f" × {setting.context}" if setting.context > 1 else ""
    blocks = f"⌊{fit.cache_bytes:,} / ({setting.block_tokens} × {fit.token_bytes:,} B)⌋ × {setting.block_tokens}{ranks}"
    found = [
        Figure(
            name="sequences that fit",
            value=fit.sequences,
            unit="sequences",
            formula=f"⌊({fit.cache_bytes:,} − {fit.shared_bytes:,}) / {fit.sequence_bytes:,}⌋, at least 0",
            source="each has its blocks for itself but for the prefix",
        ),
        Figure(
            name="tokens that fit",
            value=fit.tokens,
            unit="tokens",
            formula=f"{fit.sequences:,} sequences × {setting.context_tokens:,}" if has_windows else blocks,
            source="whole blocks; where layers have windows, of sequences of this length",
        ),
    ]
    if fit.longest_tokens is not None:
        layers = " + ".join(f"{group.layers} × {group.token_bytes:,} B × held" for group in fit.groups)
        found.append(
            Figure(
                name="longest single sequence",
                value=fit.longest_tokens,
                unit="tokens",
                formula=f"the most tokens with {layers} ≤ {fit.cache_bytes:,} B",
                source="held: its tokens in whole blocks, at most those that the layers' window touches",
            )
        )
    if (needed_bytes := report.needed_bytes) is not None:
        found.append(
            Figure(
                name="bytes of the sequences asked about",
                value=needed_bytes,
                unit="B",
                formula=f"{fit.shared_bytes:,} + {report.sequences:,} × {fit.sequence_bytes:,}",
                source="as above",
            )
        )
    return found
