"""Under any plan, loss, gradients and buffers are those of the unplanned model, bit by bit."""

import copy
from collections.abc import Iterable

import pytest

from planner.plan import Plan, Retention
from planner.runtime.handle import apply
from tests.runtime.models import MODELS, Case, Result, build, difference, run_step
from tests.runtime.plans import Subject, plain_plans, random_plans, solved, study

_FORWARDS = 5  # two or three are recorded, the others replay from the tape
_QUICK = ("llama", "gpt2", "bert", "resnet", "unet")
_MAX_RECORDINGS = 3  # the first forward may fill caches


def _steps(case: Case) -> list[Result]:
    return [run_step(case, seed) for seed in range(_FORWARDS)]


def _check(case: Case, plans: Iterable[tuple[str, Plan]]) -> int:
    """Check each plan against the unplanned model; returns how many there were."""
    before = copy.deepcopy(case.model.state_dict())
    expected = _steps(case)
    count = 0
    for name, plan in plans:
        count += 1
        case.model.load_state_dict(before)
        handle = apply(case.model, plan)
        for place, result in enumerate(_steps(case)):
            assert not difference(expected[place], result), f"{name}, forward {place}"
        assert 0 == handle.fallbacks, name
        assert handle.recordings <= _MAX_RECORDINGS, name
        handle.remove()
    case.model.load_state_dict(before)
    return count


def _study(case: Case) -> Subject:
    return study(case.model, case.batch())


@pytest.mark.parametrize("name", _QUICK)
def test_gradients_are_exact_under_ten_plans(name: str) -> None:
    case = build(name)
    subject = _study(case)

    def plans() -> Iterable[tuple[str, Plan]]:
        yield from plain_plans(subject)
        yield from random_plans(subject, (0.8, 0.5, 0.2))
        yield from solved(subject, (0.1, 0.3, 0.5, 0.8), time_s=1.0)

    assert 10 == _check(case, plans())


@pytest.mark.parametrize("name", [name for name in MODELS if name not in _QUICK])
def test_gradients_are_exact_when_as_little_as_possible_is_kept(name: str) -> None:
    case = build(name)
    subject = _study(case)
    least = list(plain_plans(subject))[1]

    assert least[1].count(Retention.RECOMPUTE) > 0
    assert 2 == _check(case, [least, *random_plans(subject, (0.5,))])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_exact_under_twenty_plans(name: str) -> None:
    case = build(name)
    subject = _study(case)

    def plans() -> Iterable[tuple[str, Plan]]:
        yield from plain_plans(subject)
        yield from random_plans(subject, (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01))
        yield from solved(subject, (0.05, 0.2, 0.5, 0.8), time_s=10.0)

    assert 20 == _check(case, plans())
