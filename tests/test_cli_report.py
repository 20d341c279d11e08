"""`planner report` as a user meets it: which spec it finds, what it writes, and what it refuses."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.plan import load_plan, write_plan
from tests.test_cli import MODEL, here, peaks, refused, run, spec, write_spec

__all__ = ["here", "spec"]  # fixtures
NO_FRONTIER = ("--frontier", "0")


@pytest.fixture
def plan(spec: str) -> str:
    """A plan that recomputes something, beside its spec."""
    limits = peaks(spec)
    budget_bytes = (limits["no checkpointing"] + limits["every block"]) // 2
    assert 0 == run("solve", spec, "--budget", f"{budget_bytes}B").exit_code
    return "model.plan.yaml"


def document(*arguments: str) -> dict[str, Any]:
    result = run("report", *arguments, "--json", "-q")
    assert 0 == result.exit_code, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_report_writes_a_page_beside_what_it_prints(plan: str) -> None:
    result = run("report", plan, *NO_FRONTIER)

    assert 0 == result.exit_code, result.output
    page = Path("model.plan.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert "peak of backward" in result.stdout
    assert "Report     model.plan.html" == result.stdout.splitlines()[-1]


def test_the_peak_reported_is_the_one_that_the_plan_predicts(plan: str) -> None:
    found = document(plan, *NO_FRONTIER)

    predicted = load_plan(plan).predicted
    assert predicted.peak_bytes == found["predicted_peak_bytes"]
    assert predicted.peak_bytes == max(peak["bytes"] for peak in found["memory"]["peaks"])
    assert {"replayed", "kept for backward", "parameters"} <= set(found["memory"]["kinds"])
    assert [] == [note for note in found["notes"] if "predicts" in note]
    assert found["frontier"] is None


def test_the_frontier_has_as_many_budgets_as_asked_for(plan: str) -> None:
    found = document(plan, "--frontier", "3", "--time-limit", "2")

    assert 3 == len(found["frontier"]["points"])
    assert "the other budgets were solved with up to 125.00 GB of host memory" in found["notes"]
    assert "What other budgets would cost" in Path("model.plan.html").read_text()
    assert 2 == run("report", plan, "--frontier", "1").exit_code


def test_a_plan_remembers_its_spec_from_where_it_lies(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("plans").mkdir()
    run("solve", "model.yaml", "--budget", "1GB", "-o", "plans/a.yaml")
    monkeypatch.chdir("plans")

    found = document("a.yaml", *NO_FRONTIER)

    assert ("../model.yaml", "../model.yaml") == (load_plan("a.yaml").model.spec, found["spec"])
    assert ("a.yaml", "a.html") == (found["plan"], found["report"])


def test_a_link_to_a_plan_finds_the_spec_too(plan: str) -> None:
    Path("links").mkdir()
    Path("links/a.yaml").symlink_to(Path(plan).resolve())

    assert 0 == run("report", "links/a.yaml", *NO_FRONTIER).exit_code
    assert Path("a.html").exists()


def test_a_spec_that_moved_or_is_not_named_must_be_given(plan: str) -> None:
    Path("model.yaml").rename("moved.yaml")

    said = refused("report", plan)
    assert "there is no model.yaml" in said
    assert "--spec SPEC" in said
    assert "moved.yaml" == document(plan, *NO_FRONTIER, "--spec", "moved.yaml")["spec"]
    Path(plan).write_text(re.sub("spec: .*", "spec: null", Path(plan).read_text()))
    said = refused("report", plan)
    assert "does not say which spec" in said
    assert "--spec SPEC" in said


def test_a_folder_to_write_to_is_refused_with_what_to_name(plan: str) -> None:
    Path("pages").mkdir()
    for folder in ("pages", "pages/", "absent/"):
        assert f"{folder!r} is a folder; name a file in it that ends in .html" in refused("report", plan, "-o", folder)


def test_a_plan_for_another_step_is_refused_and_nothing_written(plan: str) -> None:
    write_spec(MODEL.replace("blocks=3", "blocks=2"))

    assert "another step than model.yaml describes" in refused("report", plan, "-q")


def test_the_micro_batch_of_the_plan_counts(plan: str) -> None:
    run("solve", "model.yaml", "--budget", "1GB", "--objective", "throughput", "--micro-batches", "256")

    found = document(plan, *NO_FRONTIER)

    assert "the plan is for a micro-batch of 256, and model.yaml has 512" in found["notes"]


def test_the_device_is_that_of_the_plan(plan: str) -> None:
    assert "made for h100-80gb, and --device has rtx-4090" in refused("report", plan, "-q", "--device", "rtx-4090")
    run("solve", "model.yaml", "--budget", "1GB", "--device", "rtx-4090")
    assert "rtx-4090" == document(plan, *NO_FRONTIER)["device"]
    Path("mine.yaml").write_text("name: mine\nmemory: 10GB\npeak_flops_per_s: {float32: 1.0e+12}\n")
    run("solve", "model.yaml", "--budget", "1GB", "--device", "mine.yaml")
    said = refused("report", plan, "-q")
    assert "made for mine, and model.yaml has h100-80gb; give the plan's: --device" in said
    assert "mine" == document(plan, *NO_FRONTIER, "--device", "mine.yaml")["device"]


def test_a_plan_that_was_changed_by_hand_is_shown_as_it_is(plan: str) -> None:
    Path(plan).write_text(Path(plan).read_text().replace("retention: recompute", "retention: save"))

    found = document(plan, *NO_FRONTIER)

    assert any("the simulation" in note and "more" in note for note in found["notes"])
    assert any("it was changed by hand" in note for note in found["notes"])
    assert "replayed" not in found["memory"]["kinds"]


def test_a_plan_with_a_decision_too_few_is_refused(plan: str) -> None:
    whole = load_plan(plan)
    write_plan(replace(whole, decisions=whole.decisions[1:]), Path(plan))

    assert "no decision about saved tensor" in refused("report", plan, "-q")


def test_pictures_are_written_by_their_suffix(plan: str) -> None:
    pytest.importorskip("matplotlib")

    run("report", plan, *NO_FRONTIER, "-o", "a.png")
    run("report", plan, *NO_FRONTIER, "-o", "a.svg")

    assert b"\x89PNG\r\n\x1a\n" == Path("a.png").read_bytes()[:8]
    assert "peak of backward" in Path("a.svg").read_text()
    result = run("report", plan, "-o", "a.txt")
    assert 2 == result.exit_code
    assert ".html, .png or .svg" in " ".join(result.stderr.split())


def test_a_dash_prints_the_page_alone(plan: str) -> None:
    result = run("report", plan, *NO_FRONTIER, "-q", "-o", "-")

    assert result.stdout.startswith("<!doctype html>")
    assert result.stdout.endswith("</html>\n")
    assert not Path("model.plan.html").exists()
    assert 2 == run("report", plan, "-o", "-", "--json").exit_code


def test_what_cannot_be_written_is_refused_before_tracing(plan: str) -> None:
    assert "cannot be written" in refused("report", plan, "-o", "nowhere/a.html")


def test_an_interrupt_leaves_no_file(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import planner.tradeoff

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    Path("model.plan.html").write_text("the report before")
    monkeypatch.setattr(planner.tradeoff, "frontier", interrupted)

    result = run("report", plan, "-q")

    assert (130, "planner: error: interrupted\n") == (result.exit_code, result.stderr)
    assert "the report before" == Path("model.plan.html").read_text()
    assert "" == result.stdout
