"""The page: headline figures, the sections, and the style and script that it carries along."""

import base64
import hashlib
from importlib import resources

from planner.reporting.page.decisions import groups_table, modules_table, totals
from planner.reporting.page.frontier import baselines_table, frontier_chart, frontier_table, share
from planner.reporting.page.html import Markup, data_block, tag
from planner.reporting.page.link import link_chart, link_in_words, stretches_table
from planner.reporting.page.memory import cursor_data, memory_chart, peaks_in_words, peaks_table
from planner.reporting.page.parts import facts, section
from planner.reporting.report import Report
from planner.reporting.tables import duration, gigabytes, percent
from planner.reporting.text import proof_in_words

_HERE = "planner.reporting.page"


def report_page(report: Report) -> str:
    """The whole HTML file; the same report gives the same text."""
    plan = report.summary.plan
    title = f"{plan.model.name} on {plan.device}"
    style, script = (Markup(resources.files(_HERE).joinpath(name).read_text()) for name in ("page.css", "page.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # Nothing is fetched, and no script runs but ours, whatever a name in the plan says.
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title}: memory plan"),
        tag("style", style),
    )
    body = tag(
        "body",
        tag("header", tag("p", "Memory plan", class_="eyebrow"), tag("h1", title), _subtitle(report), _tiles(report)),
        tag("main", *_sections(report)),
        data_block("memory-data", cursor_data(report.memory)),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _subtitle(report: Report) -> Markup:
    plan = report.summary.plan
    parts = [f"budget {gigabytes(plan.budget_bytes)}", f"{plan.model.attention} attention"]
    if plan.model.micro_batch is not None:
        parts.insert(1, f"micro-batch {plan.model.micro_batch:,}")
    return tag("p", " · ".join(parts), class_="subtitle")


def _tiles(report: Report) -> Markup:
    plan, summary = report.summary.plan, report.summary
    predicted = plan.predicted
    plain = next(iter(plan.baselines), None)
    peak_note = f"of a budget of {gigabytes(plan.budget_bytes)}"
    if plain is not None:
        peak_note += f"; {gigabytes(plain.peak_bytes)} with {plain.name}"
    tiles = [_tile("Peak memory", gigabytes(predicted.peak_bytes), peak_note)]
    tiles.append(
        _tile(
            "Step",
            duration(predicted.step_s),
            f"{duration(summary.added_s)} ({share(100 * report.overhead(summary.added_s))}) more than saving everything"
            if summary.added_s
            else "nothing is added to it",
        )
    )
    every = report.every_block
    if every is not None and every.step_s:
        change = predicted.step_s / every.step_s - 1
        fits = "" if every.fits else ", which does not fit"
        tiles.append(
            _tile(
                "Step beside every block",
                f"{abs(100 * change):.1f}% {'shorter' if change <= 0 else 'longer'}",
                f"checkpointing every block takes {duration(every.step_s)}{fits}",
            )
        )
    if summary.gap_of_step:
        note = "of the step: no plan within the budget is faster by more"
        tiles.append(_tile("Proven within", percent(summary.gap_of_step), note))
    else:
        tiles.append(_tile("Proven", "optimal", "no plan within the budget is faster"))
    return tag("dl", *tiles, class_="tiles")


def _tile(name: str, figure: str, note: str) -> Markup:
    return tag("div", tag("dt", name), tag("dd", figure, class_="figure"), tag("dd", note, class_="note"))


def _sections(report: Report) -> list[Markup]:
    plan, memory, link = report.summary.plan, report.memory, report.summary.link
    return [
        section(
            "memory",
            "Memory over the step",
            memory_chart(memory, plan.budget_bytes),
            tag("p", id="readout", class_="readout", aria_live="polite", hidden=True),
            peaks_in_words(memory),
            peaks_table(memory),
            tag(
                "p",
                f"Each of the chart's {len(memory.columns):,} columns shows the fullest moment in it, so no peak is "
                "lost. Sizes are in GB, 10⁹ bytes.",
                class_="small",
            ),
        ),
        section(
            "decisions",
            "Decisions by module",
            totals(report.summary),
            modules_table(report.modules),
            groups_table(report.summary),
        ),
        section(
            "link",
            "The link to the host",
            tag("p", link_in_words(link) if link else "The plan offloads nothing."),
            link_chart(link, memory.end_s) if link else None,
            stretches_table(link) if link else None,
        ),
        _costs(report),
        _about(report),
    ]


def _costs(report: Report) -> Markup:
    frontier = report.frontier
    why = (
        "Time added to the step, in percent, against peak memory. P is this plan; the letters are ways of "
        "checkpointing by hand, from the same cost model."
    )
    if frontier is not None:
        why += (
            " The line is the frontier: what each budget costs at most, by the plans found; its dots were solved for."
        )
    return section(
        "costs",
        "What other budgets cost, and what people do by hand" if frontier else "What people do by hand",
        tag("p", why),
        frontier_chart(report),
        tag("div", frontier_table(report) if frontier else None, baselines_table(report), class_="pair"),
    )


def _about(report: Report) -> Markup:
    plan, versions = report.summary.plan, report.versions
    traced = versions.torch_of_plan if versions.torch == versions.torch_of_plan else f"{versions.torch_of_plan}; "
    if versions.torch != versions.torch_of_plan:
        traced += f"{versions.torch} for this report"
    rows = [
        ("Solver", f"{plan.solver.status}: {proof_in_words(report.summary)}"),
        ("Bound", f"{duration(plan.solver.bound_s)}: no plan within the budget adds less to the step"),
        ("Gap", f"{percent(plan.solver.gap)} of what the plan adds, {percent(report.summary.gap_of_step)} of the step"),
        ("Parameters", f"{plan.model.parameters:,}"),
        ("Fingerprint", tag("code", plan.model.fingerprint)),
        ("Plan", tag("code", report.plan_file)),
        ("Spec", tag("code", report.spec_file)),
        ("Versions", f"planner {versions.planner}, torch {traced}"),
    ]
    notes = [tag("li", note) for note in report.notes]
    notes.append(
        tag(
            "li",
            "every figure is a prediction: memory of the simulation of the runtime, times from the FLOPs and bytes of "
            "each op and the device's profile",
        )
    )
    return section("about", "Proof, notes and versions", facts(rows), tag("ul", *notes, class_="notes"))
