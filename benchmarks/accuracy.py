"""How far `planner.estimation` is from published measurements.

    python benchmarks/accuracy.py FILE... [--json] [--rows]

Files are of two forms, told apart by their header: published figures with settings in words (the columns id, source,
model, micro_batch, seq, reported_mem_gib, mem_kind and more), and golden values of Megatron-LM's tests. What a source's
software does is in `benchmarks/measurements/stacks`; a row that cannot be expressed is refused with the reason.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script from a checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measurements.files import FileError, read
from benchmarks.measurements.judging import Judged, Summary, acceptance, judge, summary

_GB = 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison; returns 0 if all that is demanded holds, 1 if not, 2 on a file that cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", action="store_true", help="also print every row")
    options = parser.parse_args(arguments)
    try:
        rows = [judge(row) for path in options.files for row in read(path)]
    except FileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    demands = acceptance(rows)
    if options.json:
        print(json.dumps(_document(rows), indent=2))
    else:
        print("\n".join(_text(rows, has_rows=options.rows)))
    return 0 if all(one.holds or one.found is None for one in demands) else 1


def _by_source(rows: Sequence[Judged]) -> dict[tuple[str, str], Summary]:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in rows:
        if one.counts:
            groups[one.row.source, one.row.kind.value].append(one.error)
            groups["all", one.row.kind.value].append(one.error)
    found = {key: summary(errors) for key, errors in sorted(groups.items())}
    return {key: one for key, one in found.items() if one is not None}


def _refusals(rows: Sequence[Judged]) -> Counter[tuple[str, str]]:
    return Counter((one.row.source.split(":")[0], one.row.refusal or "") for one in rows if not one.is_expressed)


def _text(rows: Sequence[Judged], *, has_rows: bool) -> Iterator[str]:
    expressed = sum(one.is_expressed for one in rows)
    share = expressed / len(rows) if rows else 0.0
    yield f"{len(rows)} rows, {expressed} of them expressed ({share:.0%})"
    yield ""
    yield f"{'errors':<70} {'kind':<13} rows  median     p90     under    over"
    for (source, kind), one in _by_source(rows).items():
        under, over = min(0.0, one.lowest), max(0.0, one.highest)
        errors = f"{one.median:>7.2%} {one.p90:>7.2%}  {under:>+8.2%} {over:>+7.2%}"
        yield f"{source[:70]:<70} {kind:<13} {one.count:>4} {errors}"
    yield ""
    for demand in acceptance(rows):
        state = "no rows" if demand.found is None else "holds" if demand.holds else "FAILS"
        yield f"{state:<8} {demand.demand}: {demand.found or '-'}"
    impossible = [one for one in rows if one.impossible]
    yield ""
    yield f"Impossible figures: {len(impossible)}"
    yield from (f"  {one.row.id} {one.row.label}: {one.impossible}" for one in impossible)
    yield ""
    yield f"Refused rows: {len(rows) - expressed}"
    yield from (f"  {count:>4} {source}: {why}" for (source, why), count in _refusals(rows).most_common())
    if has_rows:
        yield ""
        yield from (_line(one) for one in rows)


def _line(one: Judged) -> str:
    row = one.row
    head = f"{row.id:<8} {row.label[:60]:<60} {row.kind.value:<13} {row.measured_bytes / _GB:>8.3f} GB"
    if not one.is_expressed:
        return f"{head} refused: {row.refusal}"
    if one.impossible:
        return f"{head} impossible: {one.impossible}"
    if not one.counts:
        said = "fits" if one.says_fits else "does not fit" if one.says_oom else "at risk"
        return f"{head} estimated {one.estimate_bytes / _GB:>8.3f} GB: {said}"
    return f"{head} estimated {one.compared_bytes / _GB:>8.3f} GB {one.error:>+7.2%} at the peak of {one.phase}"


def _document(rows: Sequence[Judged]) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "expressed": sum(one.is_expressed for one in rows),
        "errors": [{"source": key[0], "kind": key[1], **asdict(one)} for key, one in _by_source(rows).items()],
        "acceptance": [asdict(one) for one in acceptance(rows)],
        "impossible": [{"id": one.row.id, "reason": one.impossible} for one in rows if one.impossible],
        "refused": [{"id": one.row.id, "reason": one.row.refusal} for one in rows if not one.is_expressed],
        "judged": [
            {
                "id": one.row.id,
                "source": one.row.source,
                "label": one.row.label,
                "kind": one.row.kind.value,
                "measured_bytes": one.row.measured_bytes,
                "estimate_bytes": one.estimate_bytes,
                "low_bytes": one.low_bytes,
                "high_bytes": one.high_bytes,
                "error": one.error if one.counts else None,
                "phase": one.phase,
            }
            for one in rows
            if one.is_expressed
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
