"""A plan's report as a picture: memory over the step, and the frontier if there is one. Needs the "plot" extra."""

from typing import Any

from matplotlib.figure import Figure

from planner.graph import Phase
from planner.reporting.memory import MemoryOverTime
from planner.reporting.picture import BYTES_PER_GB, draw_frontier, drawing, file_of
from planner.reporting.report import Report, peak_in_words
from planner.reporting.tables import duration, gigabytes
from planner.simulation.kinds import MemoryKind

# As on the page: what no plan changes in greys, the rest as Okabe and Ito (2008) have it.
_COLOURS = {
    MemoryKind.PARAMETERS: "#59616b",
    MemoryKind.OPTIMIZER_STATE: "#7a828b",
    MemoryKind.BUCKETS: "#8d959d",
    MemoryKind.GRADIENTS: "#a0a7ae",
    MemoryKind.SHARDING: "#bfc5ca",
    MemoryKind.INPUTS: "#d7dbdf",
    MemoryKind.KEPT: "#0072b2",
    MemoryKind.OFFLOADED: "#56b4e9",
    MemoryKind.REPLAYED: "#e69f00",
    MemoryKind.FORWARD: "#009e73",
    MemoryKind.BACKWARD: "#d55e00",
    MemoryKind.WORKSPACE: "#cc79a7",
    MemoryKind.OPTIMIZER_STEP: "#d9c400",
}
_BUDGET = "#b3261e"
_MS_PER_S = 1e3


def report_picture(report: Report, file_format: str) -> bytes:
    """The picture as the bytes of a file: "png" or "svg"."""
    plan = report.summary.plan
    with drawing():
        panels = 1 if report.frontier is None else 2
        figure = Figure(figsize=(9, 5 * panels), layout="constrained")
        axes = figure.subplots(panels, squeeze=False)[:, 0]
        _draw_memory(axes[0], report.memory, plan.budget_bytes)
        axes[0].set_title(
            f"{plan.model.name} on {plan.device}: peak {gigabytes(plan.predicted.peak_bytes)}, "
            f"step {duration(plan.predicted.step_s)}",
            loc="left",
        )
        if report.frontier is not None:
            draw_frontier(axes[1], report.frontier)
            added = 100 * report.overhead(report.summary.added_s)
            axes[1].plot(
                plan.predicted.peak_bytes / BYTES_PER_GB, added, "k*", markersize=12, label="this plan", zorder=7
            )
            axes[1].axvline(plan.budget_bytes / BYTES_PER_GB, color=_BUDGET, linestyle="--", label="the plan's budget")
        for panel in axes:
            panel.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return file_of(figure, file_format)


def _draw_memory(axes: Any, memory: MemoryOverTime, budget_bytes: int) -> None:
    edges = [_MS_PER_S * moment.start_s for moment in memory.columns] + [_MS_PER_S * memory.end_s]
    below = [0.0] * len(memory.columns)
    for place, kind in enumerate(memory.kinds):
        above = [base + c.by_kind_bytes[place] / BYTES_PER_GB for base, c in zip(below, memory.columns, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=_COLOURS[kind], label=str(kind))
        below = above
    axes.axhline(budget_bytes / BYTES_PER_GB, color=_BUDGET, linestyle="--", label=f"budget {gigabytes(budget_bytes)}")
    for number, peak in enumerate(memory.peaks, start=1):
        axes.annotate(
            str(number),
            (_MS_PER_S * (peak.start_s + peak.end_s) / 2, peak.total_bytes / BYTES_PER_GB),
            xytext=(7 if peak.phase == Phase.BACKWARD else -7, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="white",
            bbox={"boxstyle": "circle", "facecolor": "black", "linewidth": 0},
        )
    axes.set_xlabel(
        "Time (ms). "
        + "  ".join(
            f"{number}: {peak_in_words(peak)}, {gigabytes(peak.total_bytes)}"
            for number, peak in enumerate(memory.peaks, start=1)
        )
    )
    axes.set_ylabel("Memory (GB = 10⁹ bytes)")
    axes.set_xlim(0, _MS_PER_S * memory.end_s)
    axes.set_ylim(bottom=0, top=1.12 * max(budget_bytes, memory.peak_bytes) / BYTES_PER_GB)
