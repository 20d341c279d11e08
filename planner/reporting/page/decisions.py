"""What becomes of the saved tensors: totals, by module, and group by group."""

from planner.plan import Retention
from planner.reporting.page.html import Markup, join, tag
from planner.reporting.page.parts import RETENTION_COLOURS, details, module_path, percent_of, swatch, table
from planner.reporting.summary import ModuleDecisions, PlanSummary, RetentionTotal
from planner.reporting.tables import gigabytes, shape
from planner.reporting.text import short_op

_PAST = {Retention.SAVE: "saved", Retention.RECOMPUTE: "recomputed", Retention.OFFLOAD: "offloaded"}


def totals(summary: PlanSummary) -> Markup:
    """A bar of all saved bytes by retention, and the same as a list."""
    whole = sum(total.size_bytes for total in summary.retentions)
    items = [
        tag(
            "li",
            swatch(RETENTION_COLOURS[total.retention]),
            tag("strong", f"{gigabytes(total.size_bytes)} {_PAST[total.retention]}"),
            f" in {total.tensors:,} saved {'tensor' if total.tensors == 1 else 'tensors'}",
        )
        for total in summary.retentions
    ]
    if anchors := summary.plan.anchors:
        size_bytes = sum(anchor.size_bytes for anchor in anchors)
        what = "module input or output" if len(anchors) == 1 else "module inputs or outputs"
        items.append(
            tag(
                "li",
                swatch("none"),
                tag("strong", f"{gigabytes(size_bytes)} held besides"),
                f" in {len(anchors):,} {what} that replays start from",
            )
        )
    return join((_bar(summary.retentions, whole, "bar big"), tag("ul", *items, class_="totals")))


def modules_table(rows: tuple[ModuleDecisions, ...]) -> Markup:
    """Bytes by module pattern and retention."""
    largest = max((row.size_bytes for row in rows), default=0)
    return table(
        "Decisions by module",
        ("Modules", "Class", "Saved", "Recomputed", "Offloaded", "All", ""),
        [
            (
                module_path(row.modules),
                row.kind or "–",
                *(_total(row, retention) for retention in Retention),
                gigabytes(row.size_bytes),
                _bar(row.totals, largest, "bar"),
            )
            for row in rows
        ],
        left=2,
    )


def groups_table(summary: PlanSummary) -> Markup:
    """The largest groups of decisions that are alike, to be opened."""
    return details(
        f"The {len(summary.groups):,} largest groups of tensors",
        table(
            "Tensors that are alike, by bytes",
            ("Modules", "Op", "Shape", "Decision", "Tensors", "Size"),
            [
                (
                    module_path(group.modules),
                    short_op(group.op),
                    shape(group.shape),
                    join((swatch(RETENTION_COLOURS[group.retention]), str(group.retention))),
                    f"{group.tensors:,}",
                    gigabytes(group.size_bytes),
                )
                for group in summary.groups
            ],
            left=4,
        ),
    )


def _total(row: ModuleDecisions, retention: Retention) -> str:
    found = next((total for total in row.totals if total.retention is retention), None)
    return gigabytes(found.size_bytes) if found and found.size_bytes else "–"


def _bar(parts: tuple[RetentionTotal, ...], whole: int, name: str) -> Markup:
    pieces = [
        tag("span", class_=RETENTION_COLOURS[part.retention], style=f"width:{percent_of(part.size_bytes, whole)}")
        for part in parts
        if part.size_bytes
    ]
    return tag("div", *pieces, class_=name, aria_hidden="true")
