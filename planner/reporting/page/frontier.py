"""What other budgets would cost, beside checkpointing by hand: a chart and two tables."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING

from planner.reporting.page.html import Markup, join, tag
from planner.reporting.page.parts import percent_of, table, tick, tick_labels, ticks
from planner.reporting.report import Report
from planner.reporting.tables import duration, gigabytes, percent

if TYPE_CHECKING:
    from planner.tradeoff import FrontierPoint

# The chart's own units; see `planner.reporting.page.memory`.
_WIDTH, _HEIGHT = 1000, 1000
_BYTES_PER_GB = 1e9
# Room beside the outermost marks, as a part of what they span.
_MARGIN = 0.08
_PLAN_MARK = "P"
_OWN, _RIVAL = "own", "rival"  # classes of letters
# Of a letter on a chart of a narrow page, as parts of the chart.
_LETTER_WIDTH, _LETTER_HEIGHT = 0.06, 0.1
_MAX_LEVEL = 2  # higher ones would leave the chart

Place = tuple[float, float]  # GB, percent of the step


def frontier_chart(report: Report) -> Markup:
    """Memory against time added: the frontier, this plan, and the baselines by their letters."""
    plan = report.summary.plan
    points = _points(report)
    dots = [(point.budget_bytes / _BYTES_PER_GB, 100 * point.overhead) for point in points]
    own = (plan.predicted.peak_bytes / _BYTES_PER_GB, 100 * report.overhead(report.summary.added_s))
    others = [(row.peak_bytes / _BYTES_PER_GB, 100 * report.overhead(row.recompute_s)) for row in plan.baselines]
    budget_gb = plan.budget_bytes / _BYTES_PER_GB
    axes = _Axes([*dots, own, *others])
    levels = _levels([own, *others], axes)
    marks = [
        _mark(name, place, axes, level, _RIVAL)
        for name, place, level in zip(ascii_uppercase, others, levels[1:], strict=False)
    ]
    plot = tag(
        "div",
        tag(
            "svg",
            *(tag("path", d=f"M0,{axes.y(value)}H{_WIDTH}", class_="grid") for value in axes.y_ticks),
            tag("path", d=_steps([*dots, own], axes), class_="frontier") if dots else None,
            tag("path", d=f"M{axes.x(budget_gb)},0V{_HEIGHT}", class_="budget") if axes.has_x(budget_gb) else None,
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            preserveAspectRatio="none",
            aria_hidden="true",
        ),
        *(tag("span", class_="dot", style=axes.style(place), aria_hidden="true") for place in dots),
        *marks,
        _mark(_PLAN_MARK, own, axes, levels[0], _OWN),
        class_="plot",
        role="img",
        aria_label=_in_words(report),
    )
    return tag(
        "div",
        tick_labels([(axes.share_y(value), tick(value, "%")) for value in axes.y_ticks], "y"),
        plot,
        tick_labels([(axes.share_x(value), tick(value, "GB")) for value in axes.x_ticks], "x"),
        class_="chart",
    )


def frontier_table(report: Report) -> Markup:
    """The budgets, and what the best plan found for each adds."""
    return table(
        "What other budgets would cost",
        ("Budget", "Peak", "Recompute", "Waiting", "Added", "Gap"),
        [
            (
                gigabytes(point.budget_bytes),
                gigabytes(point.peak_bytes),
                duration(point.recompute_s),
                duration(point.stall_s),
                share(100 * point.overhead),
                percent(point.gap),
            )
            for point in _points(report)
        ],
    )


def baselines_table(report: Report) -> Markup:
    """This plan and checkpointing by hand."""
    plan = report.summary.plan
    predicted = plan.predicted
    own = (
        join((_letter(_PLAN_MARK, _OWN), "this plan")),
        "yes" if predicted.peak_bytes <= plan.budget_bytes else "no",
        gigabytes(predicted.peak_bytes),
        duration(predicted.step_s),
        duration(report.summary.added_s),
        share(100 * report.overhead(report.summary.added_s)),
    )
    rows = [
        (
            join((_letter(letter, _RIVAL), row.name)),
            "yes" if row.fits else "no",
            gigabytes(row.peak_bytes),
            duration(row.step_s),
            duration(row.recompute_s),
            share(100 * report.overhead(row.recompute_s)),
        )
        for letter, row in zip(ascii_uppercase, plan.baselines, strict=False)
    ]
    return table(
        "This plan and checkpointing by hand",
        ("Way", "Fits", "Peak", "Step", "Added", "Of the step"),
        [own, *rows],
        left=2,
    )


def share(value: float) -> str:
    """A percentage to one decimal, so that plans close to each other can be told apart."""
    return f"{value:.1f}%"


class _Axes:
    """Where memory (across, GB) and time added (up, percent) lie in the chart."""

    def __init__(self, places: Sequence[Place]) -> None:
        low, high = min(x for x, _ in places), max(x for x, _ in places)
        margin = _MARGIN * (high - low) or high * _MARGIN or 1.0
        self._low, self._span = low - margin, high - low + 2 * margin
        highest = max(y for _, y in places)
        self._top = highest * (1 + 3 * _MARGIN) or 1.0
        self.x_ticks = ticks(self._low, self._low + self._span)
        self.y_ticks = ticks(0, self._top)

    def has_x(self, value: float) -> bool:
        return self._low <= value <= self._low + self._span

    def share_x(self, value: float) -> float:
        return (value - self._low) / self._span

    def share_y(self, value: float) -> float:
        return value / self._top

    def x(self, value: float) -> int:
        return round(_WIDTH * self.share_x(value))

    def y(self, value: float) -> int:
        return _HEIGHT - round(_HEIGHT * self.share_y(value))

    def style(self, place: Place) -> str:
        return f"left:{percent_of(self.share_x(place[0]), 1)};bottom:{percent_of(self.share_y(place[1]), 1)}"


def _points(report: Report) -> Sequence["FrontierPoint"]:
    return report.frontier.points if report.frontier is not None else ()


def _steps(places: Sequence[Place], axes: _Axes) -> str:
    """What each budget costs at most by these plans: one that fits a budget fits every larger one."""
    commands: list[str] = []
    best = float("inf")
    for x, y in sorted(places):
        if y < best:
            commands.append(f"H{axes.x(x)}V{axes.y(y)}" if commands else f"M{axes.x(x)},{axes.y(y)}")
            best = y
    return "".join([*commands, f"H{_WIDTH}"])


def _levels(places: Sequence[Place], axes: _Axes) -> list[int]:
    """How far to raise the letter of each place above it, so that letters do not cover each other."""
    taken: list[Place] = []
    levels = []
    for x, y in places:
        share_x, share_y, level = axes.share_x(x), axes.share_y(y), 0
        while level < _MAX_LEVEL and any(
            abs(share_x - other_x) < _LETTER_WIDTH and abs(share_y + level * _LETTER_HEIGHT - other_y) < _LETTER_HEIGHT
            for other_x, other_y in taken
        ):
            level += 1
        taken.append((share_x, share_y + level * _LETTER_HEIGHT))
        levels.append(level)
    return levels


def _mark(name: str, place: Place, axes: _Axes, level: int, kind: str) -> Markup:
    """The letter of a place; raised, it stands on a stem."""
    style = f"{axes.style(place)};--level:{level}"
    return tag("span", name, class_=f"letter on-chart {kind}", style=style, aria_hidden="true")


def _letter(name: str, kind: str) -> Markup:
    return tag("span", name, class_=f"letter {kind}", aria_hidden="true")


def _in_words(report: Report) -> str:
    plan = report.summary.plan
    return (
        f"Time added to the step against memory. This plan: {share(100 * report.overhead(report.summary.added_s))} at "
        f"{gigabytes(plan.predicted.peak_bytes)}. The tables below have the figures of the others."
    )
