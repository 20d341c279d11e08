"""Helpers that die, and answers that are remembered: which, how many, and that nobody can change them for others."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from planner.errors import PlannerError
from planner.service import helper_pool
from planner.service.helper_pool import HelperPool
from planner.service.settings import HelperLimits, Settings
from tests.service.processes import children_of, eventually, is_running

SPEC = "model: {{preset: gpt2}}\nbatch: {{micro_batch: {}, sequence_length: 64}}\n"


def test_a_helper_that_was_killed_while_it_had_nothing_to_do_costs_no_answer() -> None:
    before = children_of(os.getpid())
    pool = HelperPool(Settings(database="sqlite://", helpers=HelperLimits(count=1)))
    try:
        (helper,) = set(children_of(os.getpid())) - set(before)
        os.kill(helper, signal.SIGKILL)
        eventually(lambda: not is_running(helper))
        assert "gpt2" == pool.estimate("me", spec=SPEC.format(1), device="rtx-4090")["model"]
    finally:
        pool.close()


def test_a_helper_is_not_told_the_databases_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_DB", "postgresql://u:secret@db/p")
    before = children_of(os.getpid())
    pool = HelperPool(Settings(database="sqlite://", helpers=HelperLimits(count=1)))
    try:
        (helper,) = set(children_of(os.getpid())) - set(before)
        assert "gpt2" == pool.estimate("me", spec=SPEC.format(1), device="rtx-4090")["model"]
        environment = Path(f"/proc/{helper}/environ").read_bytes()
        assert b"PATH=" in environment
        assert b"secret" not in environment
    finally:
        pool.close()


def test_the_same_question_has_an_equal_answer_that_is_its_askers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_pool, "_MOST_KNOWN", 2)
    pool = HelperPool(Settings(database="sqlite://"))
    try:
        first = pool.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        asked: list[str] = []
        monkeypatch.setattr(helper_pool._Helper, "ask", lambda self, question: asked.append(question["what"]) or {})
        again = pool.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        assert first == again
        again["verdict"] = "changed"
        assert first == pool.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        assert [] == asked
    finally:
        pool.close()


def test_what_could_not_be_answered_is_asked_again_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(helper_pool, "_MOST_KNOWN", 2)
    asked: list[str] = []

    def ask(self: object, question: dict[str, dict[str, str]]) -> dict[str, object]:
        spec = question["of"]["spec"]
        asked.append(spec)
        return {"problem": {"detail": "no", "status": 422}} if spec == "bad" else {"answer": {"spec": spec}}

    monkeypatch.setattr(helper_pool._Helper, "ask", ask)
    pool = HelperPool(Settings(database="sqlite://"))
    try:
        for spec in ("a", "b", "c", "c", "a"):
            assert {"spec": spec} == pool.estimate("me", spec=spec, device=None)
        for _ in range(2):
            with pytest.raises(PlannerError, match="no"):
                pool.estimate("me", spec="bad", device=None)
    finally:
        pool.close()
    assert ["a", "b", "c", "a", "bad", "bad"] == asked


def test_nothing_is_remembered_where_specs_may_name_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        helper_pool._Helper, "ask", lambda self, question: asked.append(question["what"]) or {"answer": len(asked)}
    )
    pool = HelperPool(Settings(database="sqlite://", allowed=frozenset({"/srv/device.yaml"})))
    try:
        assert [1, 2] == [pool.estimate("me", spec="a", device=None) for _ in range(2)]
    finally:
        pool.close()


def test_no_client_has_all_helpers_and_each_is_given_back() -> None:
    helpers = helper_pool._Helpers(HelperLimits(longest_wait_s=0.0))
    with ExitStack() as held:
        for client in ("a", "a", "b"):
            held.enter_context(helpers.one(client))
        for client in ("a", "b", "c"):  # all three are at work
            with pytest.raises(PlannerError, match="try again"), helpers.one(client):
                pass
    with helpers.one("a"), helpers.one("a"):
        with pytest.raises(PlannerError, match="try again"), helpers.one("a"):  # though the third is idle
            pass
        with helpers.one("b"):
            pass
    helpers.close()


def test_one_helper_is_for_everyone() -> None:
    helpers = helper_pool._Helpers(HelperLimits(count=1))
    for client in ("a", "b"):
        with helpers.one(client):
            pass
    helpers.close()
