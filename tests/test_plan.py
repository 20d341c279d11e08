"""Plan files: whole or not at all, the same bytes for the same plan, and damage reported with its place."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import OutputError, PlanFileError
from planner.plan import (
    Anchor,
    BaselineRow,
    Decision,
    Plan,
    PlanModel,
    Prediction,
    Proof,
    Retention,
    format_plan,
    load_plan,
    naming_spec,
    write_plan,
)

PLAN = Plan(
    model=PlanModel(name="tiny", fingerprint="sha256:" + "0" * 64, parameters=1234, torch="2.13.0", attention="flash"),
    device="h100-80gb",
    budget_bytes=40_000_000_000,
    predicted=Prediction(
        peak_bytes=39_000_000_000,
        peak_at="backward, aten.mm.default of layers.1",
        static_bytes=19_000_000_000,
        host_bytes=0,
        step_s=1.25,
        recompute_s=1e-05,
        stall_s=0.0,
    ),
    solver=Proof(status="optimal", gap=0.0, bound_s=1e-05),
    baselines=(
        BaselineRow(name="every √N blocks", fits=True, peak_bytes=30_000_000_000, step_s=1.5, recompute_s=0.25),
    ),
    decisions=tuple(
        Decision(
            module_fqn=f"layers.{layer}",
            module_call=0,
            ordinal=ordinal,
            op="aten.mm.default",
            shape=(8, 16),
            dtype="bfloat16",
            retention=Retention.SAVE if ordinal else Retention.RECOMPUTE,
        )
        for layer in range(3)
        for ordinal in range(2)
    ),
    anchors=(
        Anchor(
            module_fqn="layers.1",
            module_call=0,
            side="input",
            position=0,
            op="aten.add.Tensor",
            size_bytes=256,
        ),
    ),
)

SHORT_TEXT = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Co", "Cn"), exclude_characters="\u2028\u2029\ufeff"),
    max_size=6,
)
PATHS = st.lists(st.sampled_from(["0", "1", "2", "layers", "mlp", "01", "{x}", "on", "null"]), max_size=3).map(".".join)
SECONDS = st.floats(0, 1e6)
SIZES = st.integers(0, 2**62)
DECISIONS = st.builds(
    Decision,
    module_fqn=PATHS,
    module_call=st.integers(0, 2),
    ordinal=st.integers(0, 3),
    op=SHORT_TEXT,
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    retention=st.sampled_from(Retention),
)
ANCHORS = st.builds(
    Anchor,
    module_fqn=PATHS,
    module_call=st.integers(0, 1),
    side=st.sampled_from(["input", "output"]),
    position=st.integers(0, 1),
    op=SHORT_TEXT,
    size_bytes=SIZES,
)
PLANS = st.builds(
    Plan,
    model=st.builds(
        PlanModel,
        name=SHORT_TEXT,
        fingerprint=st.just("sha256:" + "f" * 64),
        parameters=SIZES,
        torch=st.just("2.13.0"),
        attention=st.just("eager"),
    ),
    device=SHORT_TEXT,
    budget_bytes=st.integers(1, 2**62),
    predicted=st.builds(
        Prediction,
        peak_bytes=SIZES,
        peak_at=SHORT_TEXT,
        static_bytes=SIZES,
        host_bytes=SIZES,
        step_s=SECONDS,
        recompute_s=SECONDS,
        stall_s=SECONDS,
    ),
    solver=st.builds(Proof, status=st.sampled_from(["optimal", "feasible"]), gap=st.floats(0, 1), bound_s=SECONDS),
    baselines=st.lists(
        st.builds(
            BaselineRow,
            name=SHORT_TEXT,
            fits=st.booleans(),
            peak_bytes=SIZES,
            step_s=SECONDS,
            recompute_s=SECONDS,
        ),
        max_size=2,
    ).map(tuple),
    decisions=st.lists(DECISIONS, max_size=12, unique_by=lambda d: (d.module_fqn, d.module_call, d.ordinal)).map(tuple),
    anchors=st.lists(ANCHORS, max_size=4, unique_by=lambda a: (a.module_fqn, a.module_call, a.side, a.position)).map(
        tuple
    ),
)


def in_order(plan: Plan) -> Plan:
    return replace(
        plan,
        decisions=tuple(sorted(plan.decisions, key=lambda d: (d.module_fqn, d.module_call, d.ordinal))),
        anchors=tuple(sorted(plan.anchors, key=lambda a: (a.module_fqn, a.module_call, a.side, a.position))),
    )


@given(PLANS)
def test_a_plan_that_is_read_back_is_the_plan_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    write_plan(plan, path)
    loaded = load_plan(path)
    assert in_order(plan) == in_order(loaded)
    assert path.read_text() == format_plan(loaded)


def test_a_plan_names_its_spec_from_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "plans" / "tiny.plan.yaml"
    path.parent.mkdir()
    link = tmp_path / "link.yaml"
    link.symlink_to(path)

    write_plan(naming_spec(PLAN, tmp_path / "specs" / "tiny.yaml", plan_file=path), path)

    assert "../specs/tiny.yaml" == load_plan(path).model.spec
    assert "../tiny.yaml" == naming_spec(PLAN, tmp_path / "tiny.yaml", plan_file=link).model.spec
    assert load_plan(path) == replace(PLAN, model=replace(PLAN.model, spec="../specs/tiny.yaml"))
    path.write_text(format_plan(PLAN).replace("  spec: null\n", ""))
    assert load_plan(path).model.spec is None  # of an older planner


def test_a_plan_says_its_micro_batch_and_one_of_an_older_planner_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.plan.yaml"
    told = replace(PLAN, model=replace(PLAN.model, micro_batch=18))
    write_plan(told, path)

    assert told == load_plan(path)
    assert "\n  micro_batch: 18\n" in path.read_text()
    path.write_text(path.read_text().replace("\n  micro_batch: 18\n", "\n"))
    assert load_plan(path).model.micro_batch is None
    path.write_text(format_plan(told).replace("micro_batch: 18", f"micro_batch: {10**24}"))
    with pytest.raises(PlanFileError, match=r"model\.micro_batch"):
        load_plan(path)
    path.write_text(format_plan(told).replace("micro_batch: 18", "micro_batch: 0"))
    with pytest.raises(PlanFileError, match=r"model\.micro_batch"):
        load_plan(path)


def test_a_name_that_looks_like_a_number_stays_a_name(tmp_path: Path) -> None:
    plan = replace(PLAN, device="1e5", model=replace(PLAN.model, name="12"))
    write_plan(plan, tmp_path / "plan.yaml")
    assert plan == load_plan(tmp_path / "plan.yaml")


def test_equal_plans_give_equal_bytes(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "a.yaml")
    write_plan(replace(PLAN), tmp_path / "b.yaml")
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()


def test_a_plan_file_reads_as_its_documentation_says() -> None:
    expected = """\
decisions:
- modules: layers.{0..2}
  saved:
  - {ordinal: 0, op: aten.mm.default, shape: [8, 16], dtype: bfloat16, retention: recompute}
  - {ordinal: 1, op: aten.mm.default, shape: [8, 16], dtype: bfloat16, retention: save}
anchors:
- modules: layers.1
  kept:
  - {side: input, position: 0, op: aten.add.Tensor, size_bytes: 256}
"""
    text = format_plan(PLAN)
    assert expected == text[text.index("decisions:\n") :]
    assert "version: 1" == text.splitlines()[0]
    assert "counts: {decisions: 6, anchors: 1}" in text.splitlines()


def test_any_part_of_a_plan_file_is_told_from_the_whole(tmp_path: Path) -> None:
    text = format_plan(PLAN)
    path = tmp_path / "part.yaml"
    for end in range(0, len(text.rstrip()), 3):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(PlanFileError) as caught:
            load_plan(path)
        assert str(path) == caught.value.path


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = format_plan(PLAN)
    assert old in text
    path = tmp_path / "edited.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "where", "complaint"),
    [
        ("version: 1", "version: 2", "version", "expected 1, the format that this planner reads, found 2"),
        ("version: 1\n", "", None, "'version' is missing"),
        ("budget_bytes: 40000000000", "budget_bytes: 40GB", "budget_bytes", "expected a whole number"),
        ("budget_bytes: 40000000000", "budget_bytes: -1", "budget_bytes", "at least 1, found -1"),
        ("peak_bytes: 39000000000", "peak_bytes: 39.5", "predicted.peak_bytes", "expected a whole number"),
        ("step_s: 1.25", "step_s: .nan", "predicted.step_s", "expected a time in seconds"),
        ("sha256:" + "0" * 64, "md5:0", "model.fingerprint", "expected sha256:"),
        ("device: h100", "devise: h100", "devise", "unknown key; did you mean 'device'?"),
        ("retention: save", "retention: safe", "decisions[0].saved[1].retention", "did you mean 'save'?"),
        ("retention: save", "retention: ", "decisions[0].saved[1].retention", "found nothing"),
        ("ordinal: 1", "ordinal: 0", "decisions[0].saved[1]", "layers.0 has this entry twice"),
        ("layers.{0..2}", "layers.{0..2", "decisions[0].modules", "cannot read the module pattern"),
        ("layers.{0..2}", "layers.{2..0}", "decisions[0].modules", "cannot read the range"),
        ("layers.{0..2}", "'layers.{0..9999999}'", "decisions[0].modules", "cannot read the range"),
        ("layers.{0..2}", "layers.{0..1}", "decisions", "expected 6 as `counts` says, found 4"),
        ("gap: 0.0", "gap: 2", "solver.gap", "expected at most 1, found 2"),
        ("  kept:\n", "  kept: []\n  extra:\n", "anchors[0].kept", "at least one entry"),
        ("shape: [8, 16]", "shape: [8, !!python/object:os.system 16]", None, "tag"),
        ("decisions:\n", "decisions: &d\n  - *d\nmore:\n", None, ""),
        ("solver:", "\tsolver:", None, "not valid YAML"),
    ],
)
def test_an_edit_that_breaks_a_plan_is_one_error_at_its_line(
    tmp_path: Path, old: str, new: str, where: str | None, complaint: str
) -> None:
    path = edited(tmp_path, old, new)
    with pytest.raises(PlanFileError) as caught:
        load_plan(path)
    assert complaint in str(caught.value)
    assert caught.value.line is not None
    if where is not None:
        assert where == caught.value.key


def test_an_edited_retention_is_a_plan_like_any_other(tmp_path: Path) -> None:
    loaded = load_plan(edited(tmp_path, "retention: recompute", "retention: save"))
    assert (6, 0) == (loaded.count(Retention.SAVE), loaded.count(Retention.RECOMPUTE))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[]", b"just text", b"{" * 5000, b"%PDF-1.4\x00"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.yaml"
    path.write_bytes(content)
    with pytest.raises(PlanFileError):
        load_plan(path)


def test_a_spec_in_place_of_a_plan_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("model:\n  preset: gpt2\n")
    with pytest.raises(PlanFileError, match=r"model.yaml:1: this is a spec, expected a plan; planner solve"):
        load_plan(path)


@pytest.mark.slow
def test_a_plan_with_many_unlike_modules_can_be_read_back(tmp_path: Path) -> None:
    plan = replace(
        PLAN,
        decisions=tuple(
            replace(PLAN.decisions[0], module_fqn=f"stage{place}", shape=(place, 8, 8, 8)) for place in range(8000)
        ),
    )
    write_plan(plan, tmp_path / "large.yaml")
    assert in_order(plan) == in_order(load_plan(tmp_path / "large.yaml"))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="cannot be written: No space left on device"):
        write_plan(PLAN, path)
    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(PLAN, path)
    assert "old" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_plan_file_is_plain_yaml() -> None:
    assert 6 == yaml.safe_load(format_plan(PLAN))["counts"]["decisions"]
