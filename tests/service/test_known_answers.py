"""Answers at once: which are remembered, how many, that nobody who has one can change it for others, and that no client
has all that answer.
"""

from contextlib import ExitStack

import pytest

pytest.importorskip("fastapi")

from planner.errors import PlannerError
from planner.service import answers as answers_module
from planner.service.answers import Answers
from planner.service.settings import HelperLimits, Settings

SPEC = "model: {{preset: gpt2}}\nbatch: {{micro_batch: {}, sequence_length: 64}}\n"


def test_the_same_question_has_an_equal_answer_that_is_its_askers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "_MOST_KNOWN", 2)
    answers = Answers(Settings(database="sqlite://"))
    try:
        first = answers.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        asked: list[str] = []
        monkeypatch.setattr(answers_module._Helper, "ask", lambda self, question: asked.append(question["what"]) or {})
        again = answers.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        assert first == again
        again["verdict"] = "changed"
        assert first == answers.estimate("me", spec=SPEC.format(1), device="rtx-4090")
        assert [] == asked
    finally:
        answers.close()


def test_what_could_not_be_answered_is_asked_again_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers_module, "_MOST_KNOWN", 2)
    asked: list[str] = []

    def ask(self: object, question: dict[str, dict[str, str]]) -> dict[str, object]:
        spec = question["of"]["spec"]
        asked.append(spec)
        return {"problem": {"detail": "no", "status": 422}} if spec == "bad" else {"answer": {"spec": spec}}

    monkeypatch.setattr(answers_module._Helper, "ask", ask)
    answers = Answers(Settings(database="sqlite://"))
    try:
        for spec in ("a", "b", "c", "c", "a"):
            assert {"spec": spec} == answers.estimate("me", spec=spec, device=None)
        for _ in range(2):
            with pytest.raises(PlannerError, match="no"):
                answers.estimate("me", spec="bad", device=None)
    finally:
        answers.close()
    assert ["a", "b", "c", "a", "bad", "bad"] == asked


def test_nothing_is_remembered_where_specs_may_name_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        answers_module._Helper, "ask", lambda self, question: asked.append(question["what"]) or {"answer": len(asked)}
    )
    answers = Answers(Settings(database="sqlite://", allowed=frozenset({"/srv/device.yaml"})))
    try:
        assert [1, 2] == [answers.estimate("me", spec="a", device=None) for _ in range(2)]
    finally:
        answers.close()


def test_no_client_has_all_helpers_and_each_is_given_back() -> None:
    helpers = answers_module._Helpers(HelperLimits(longest_wait_s=0.0))
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
    helpers = answers_module._Helpers(HelperLimits(count=1))
    for client in ("a", "b"):
        with helpers.one(client):
            pass
    helpers.close()
