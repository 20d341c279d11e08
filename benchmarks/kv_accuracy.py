"""Published sizes of KV caches against the arithmetic of `planner kv`: errors, coverage, and figures that are wrong.

    python benchmarks/kv_accuracy.py FILE.csv [--json]

FILE has the columns id, model, layers, kv_heads, head_dim, kv_dtype, bytes_per_elem, tp, tokens, reported (the figure
as published), reported_bytes and kind; others are not read. A row is judged by what it states:

* layers, heads and tokens: size = tokens × bytes per token, on one of `tp` ranks;
* weights, activation peak and so on of an engine's log: the budget that is left for the cache;
* totals of a whole GPU at several contexts: what a further token takes, cache and score buffer together;
* one size in two formats: their ratio.

Every other row is refused with the reason. Whether a figure is wrong, and by which slip, is found from its number
alone; the notes of a file are not read.
"""

import argparse
import csv
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from planner.estimation.kv import Attention, KvBudget, Vectors, layer_token_bytes
from planner.estimation.kv_claims import AGREES_WITHIN, ClaimedSizes, Verdict, judge, rounding, slips
from planner.estimation.kv_formats import KvError, kv_format, vector_bytes

REFUSED = "refused"
_GIB = 2**30

# vLLM advises a cache size that leaves this much of its budget (gpu_worker.py, redundancy_buffer_memory).
_VLLM_BUFFER_BYTES = 150 * 2**20

# llama.cpp without flash attention holds, for the 512 tokens it evaluates at a time (n_ubatch), one float32 score for
# each head and token of the context, and one mask. Seen also in logs of an 8B Llama, where the compute buffer grows by
# 67,584 B a token = 512 × 4 × (32 + 1) (fedora-copr/logdetective#106).
_UBATCH_TOKENS, _SCORE_BYTES = 512, 4

# Query heads of models that files name without saying them: config.json of each, as published.
_SIZES: Mapping[str, dict[str, int]] = {
    "llama-2-70b": {"layers": 80, "heads": 64, "kv_heads": 8, "head_width": 128},
    "llama-3-70b": {"layers": 80, "heads": 64, "kv_heads": 8, "head_width": 128},
    "llama-3.1-70b": {"layers": 80, "heads": 64, "kv_heads": 8, "head_width": 128},
    "llama-3-8b": {"layers": 32, "heads": 32, "kv_heads": 8, "head_width": 128},
    "llama-3.1-8b": {"layers": 32, "heads": 32, "kv_heads": 8, "head_width": 128},
    "qwen2.5-coder:32b": {"layers": 64, "heads": 40, "kv_heads": 8, "head_width": 128},
    "qwen3-235b-a22b": {"layers": 94, "heads": 64, "kv_heads": 4, "head_width": 128},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published figure, with what its source states; None for what it does not."""

    id: str
    model: str
    reported: str
    kind: str
    layers: int | None
    kv_heads: int | None
    head_width: int | None
    dtype: str
    tp: int
    tokens: int | None
    reported_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A row judged: `quantity` is what was compared; `error` is predicted / reported − 1, None if refused."""

    id: str
    verdict: str
    quantity: str = ""
    predicted: float | None = None
    reported: float | None = None
    error: float | None = None
    why: tuple[str, ...] = ()


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: Mapping[str, str]) -> Row:
    return Row(
        id=line["id"],
        model=line["model"],
        reported=line["reported"],
        kind=line["kind"],
        layers=_whole(line["layers"]),
        kv_heads=_whole(line["kv_heads"]),
        head_width=_whole(line["head_dim"]),
        dtype=line["kv_dtype"].removesuffix("+scales"),
        tp=_whole(line["tp"]) or 1,
        tokens=_whole(line["tokens"]),
        reported_bytes=_whole(line["reported_bytes"]),
    )


def _whole(text: str) -> int | None:
    return round(float(text)) if text.strip() else None


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Each row judged, in their order."""
    rows = list(rows)
    totals = _totals(rows)
    return [totals.get(row.id) or _judged(row) for row in rows]


def _judged(row: Row) -> Finding:
    if (found := _budget(row)) or (found := _ratio(row)):
        return found
    missing = [
        name
        for name, value in (
            ("layers", row.layers),
            ("key and value heads", row.kv_heads),
            ("head width", row.head_width),
            ("format", row.dtype or None),
            ("tokens", row.tokens),
            ("bytes", row.reported_bytes),
        )
        if value is None
    ]
    if missing:
        known = row.reported_bytes and row.tokens
        says = f"; it comes to {row.reported_bytes / row.tokens:,.0f} B a token" if known else ""
        return Finding(id=row.id, verdict=REFUSED, why=(f"not stated: {', '.join(missing)}{says}",))
    return _size(row)


def _size(row: Row) -> Finding:
    """Tokens × bytes a token."""
    assert row.layers
    assert row.kv_heads
    assert row.head_width
    assert row.tokens
    assert row.reported_bytes
    try:
        how = kv_format(row.dtype)
        heads = _heads(row)
        if _LATENT.search(row.model):
            attention = Attention(name="", kv_heads=0, vectors=(Vectors(count=1, width=row.head_width),))
        else:
            vectors = (Vectors(count=2 * row.kv_heads, width=row.head_width),)
            attention = Attention(name="", kv_heads=row.kv_heads, vectors=vectors)
        layer_bytes = layer_token_bytes(attention, how, heads=heads or row.kv_heads * row.tp, ranks=row.tp)
    except KvError as error:
        return Finding(id=row.id, verdict=REFUSED, why=(str(error),))
    token_bytes = row.layers * layer_bytes
    group = heads // row.kv_heads if heads else 1
    sizes = ClaimedSizes(
        layers=row.layers,
        kv_heads=row.kv_heads,
        element_bytes=vector_bytes(how, row.head_width) / row.head_width,
        heads_sharing=group,
        multi_head_factor=group,
        token_bytes=token_bytes,
        tokens=row.tokens,
        ranks=row.tp,
    )
    predicted = row.tokens * token_bytes
    open_bytes = rounding(row.reported, row.reported_bytes)
    found = judge(row.reported_bytes, predicted, slips(sizes), rounding_bytes=open_bytes)
    why = tuple(f"as if one {reason}" for reason in found.reasons)
    if found.verdict is Verdict.WRONG and not why:
        why = ("no common slip gives it",)
    if found.verdict is Verdict.DIFFERS and "->" in row.reported and predicted < row.reported_bytes:
        why = ("the tokens take less than the memory; perhaps it is of another worker than the least, which counts",)
    return Finding(
        id=row.id,
        verdict=found.verdict,
        quantity="bytes",
        predicted=predicted,
        reported=row.reported_bytes,
        error=found.error,
        why=why,
    )


_LATENT = re.compile(r"\bMLA\b|DeepSeek-?(V2|V3|R1)", re.IGNORECASE)  # one vector a layer, as wide as head_dim says


def _heads(row: Row) -> int | None:
    """The query heads of a model that is named; None if it is not known."""
    sizes = _sizes(row.model)
    return sizes["heads"] if sizes else None


def _sizes(model: str) -> Mapping[str, int] | None:
    return next((sizes for name, sizes in _SIZES.items() if model.lower().startswith(name)), None)


_BUDGET = re.compile(
    r"weights (?P<weights>[\d.]+), activation peak (?P<peak>[\d.]+), non-torch (?P<other>[\d.]+), "
    r"CUDA graph (?P<graph>[\d.]+) GiB;.* of (?P<memory>[\d.]+) GiB x ?(?P<fraction>[\d.]+)"
)


def _budget(row: Row) -> Finding | None:
    """Memory × fraction − weights − activation peak − the rest."""
    match = _BUDGET.search(row.reported)
    if match is None or row.reported_bytes is None:
        return None
    size = {name: round(float(text) * _GIB) for name, text in match.groupdict().items() if name != "fraction"}
    budget = KvBudget(
        memory_bytes=size["memory"],
        fraction=float(match["fraction"]),
        weights_bytes=(size["weights"],),
        activations_bytes=size["peak"],
        reserved_bytes=size["other"] + size["graph"] + _VLLM_BUFFER_BYTES,
    )
    return _compared(row.id, "bytes left for the cache", budget.cache_bytes(0), row.reported_bytes, ())


_RATIO = re.compile(r"([\d.]+) ?GiB (\w+) vs ([\d.]+) ?GiB (\w+)")


def _ratio(row: Row) -> Finding | None:
    """One cache in two formats: their sizes' ratio needs no model, if neither format has scales per head."""
    match = _RATIO.search(row.reported)
    if match is None:
        return None
    one, one_name, other, other_name = match.groups()
    try:
        bits = [kv_format(name).bits for name in (one_name, other_name)]
    except KvError as error:
        return Finding(id=row.id, verdict=REFUSED, why=(str(error),))
    why = () if row.dtype in ("", one_name) else (f"the text says {one_name}, the form {row.dtype}",)
    return _compared(row.id, f"{one_name} / {other_name}", bits[0] / bits[1], float(one) / float(other), why)


def _totals(rows: list[Row]) -> dict[str, Finding]:
    """What a further token takes, from each total to the next of the same model."""
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if "total" in row.kind and row.tokens and row.reported_bytes:
            series[row.model].append(row)
    found = {}
    for model, alike in series.items():
        alike.sort(key=lambda row: row.tokens or 0)
        sizes = _sizes(model)
        found[alike[0].id] = Finding(
            id=alike[0].id,
            verdict=REFUSED,
            why=("a total of weights, buffers and cache; the first of its series, so nothing is known of the rest",),
        )
        for before, after in pairwise(alike):
            found[after.id] = _slope(before, after, sizes)
    return found


def _slope(before: Row, after: Row, sizes: Mapping[str, int] | None) -> Finding:
    assert before.tokens
    assert after.tokens
    assert before.reported_bytes
    assert after.reported_bytes
    if sizes is None:
        return Finding(id=after.id, verdict=REFUSED, why=(f"the sizes of {after.model} are not stated",))
    vectors = (Vectors(count=2 * sizes["kv_heads"], width=sizes["head_width"]),)
    attention = Attention(name="", kv_heads=sizes["kv_heads"], vectors=vectors)
    cache_bytes = sizes["layers"] * layer_token_bytes(attention, kv_format(after.dtype), heads=sizes["heads"])
    scores_bytes = _UBATCH_TOKENS * _SCORE_BYTES * (sizes["heads"] + 1)
    reported = (after.reported_bytes - before.reported_bytes) / (after.tokens - before.tokens)
    extra = reported - cache_bytes
    predicted = cache_bytes + scores_bytes
    quantity = f"B a token from {before.tokens:,} to {after.tokens:,} tokens"
    if abs(predicted / reported - 1) <= AGREES_WITHIN:
        why = f"{cache_bytes:,} of cache and {scores_bytes:,} of float32 scores and mask of {_UBATCH_TOKENS} tokens"
        return _compared(after.id, quantity, predicted, reported, (why,))
    what = f"{cache_bytes:,} B a token are cache; the other {extra:,.0f} are not {scores_bytes:,} of scores: "
    reason = (
        "another buffer is still the largest there"
        if extra < scores_bytes
        else "more than one score buffer grows, as with a second GPU or another evaluation size, which is not stated"
    )
    return Finding(id=after.id, verdict=REFUSED, quantity=quantity, reported=reported, why=(what + reason,))


def _compared(id: str, quantity: str, predicted: float, reported: float, why: tuple[str, ...]) -> Finding:
    error = predicted / reported - 1
    verdict = Verdict.AGREES if abs(error) <= AGREES_WITHIN else Verdict.DIFFERS
    return Finding(
        id=id, verdict=verdict, quantity=quantity, predicted=predicted, reported=reported, error=error, why=why
    )


def summary(found: list[Finding]) -> dict[str, object]:
    """Counts, and the largest error of rows that are neither refused nor wrong nor rounded."""
    by_verdict = {verdict: [f.id for f in found if f.verdict == verdict] for verdict in (*Verdict, REFUSED)}
    judged = [f for f in found if f.error is not None]
    exact = [abs(f.error) for f in judged if f.verdict == Verdict.AGREES and f.error is not None]
    return {
        "rows": len(found),
        "judged": len(judged),
        "largest_error_of_those_that_agree": max(exact, default=None),
        "rows_by_verdict": by_verdict,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        found = findings(read(arguments.file))
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"{arguments.file}: {type(error).__name__}: {error}")
    totals = summary(found)
    if arguments.json:
        print(json.dumps({"findings": [asdict(one) for one in found], "summary": totals}, indent=2))
        return
    for one in found:
        error = "" if one.error is None else f"{one.error:+9.3%}"
        print(f"{one.id:6} {one.verdict:26} {error:>10}  {one.quantity}")
        for why in one.why:
            print(f"{'':45}{why}")
    print(f"\n{totals['judged']} of {totals['rows']} rows judged")
    for verdict, ids in totals["rows_by_verdict"].items():
        print(f"{verdict:26} {len(ids):3}  {' '.join(ids)}")


if __name__ == "__main__":
    main()
