"""Answers that are remembered: which, how many, and that nobody who has one can change it for others."""

import pytest

pytest.importorskip("fastapi")

from planner.errors import PlannerError
from planner.service import answers as answers_module
from planner.service.answers import Answers
from planner.service.settings import Settings

SPEC = "model: {{preset: gpt2}}\nbatch: {{micro_batch: {}, sequence_length: 64}}\n"


def test_the_same_question_has_an_equal_answer_that_is_its_askers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "_MOST_KNOWN", 2)
    answers = Answers(Settings(database="sqlite://"))
    try:
        first = answers.estimate(spec=SPEC.format(1), device="rtx-4090")
        asked: list[str] = []
        monkeypatch.setattr(answers_module._Helper, "ask", lambda self, question: asked.append(question["what"]) or {})
        again = answers.estimate(spec=SPEC.format(1), device="rtx-4090")
        assert first == again
        again["verdict"] = "changed"
        assert first == answers.estimate(spec=SPEC.format(1), device="rtx-4090")
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
            assert {"spec": spec} == answers.estimate(spec=spec, device=None)
        for _ in range(2):
            with pytest.raises(PlannerError, match="no"):
                answers.estimate(spec="bad", device=None)
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
        assert [1, 2] == [answers.estimate(spec="a", device=None) for _ in range(2)]
    finally:
        answers.close()
