"""Which extra an absent package is blamed on."""

import pytest

from planner import extras
from planner.errors import MissingExtraError
from planner.extras import needs


def blamed(monkeypatch: pytest.MonkeyPatch, error: ImportError, *, absent: set[str], extra: str) -> MissingExtraError:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
    with pytest.raises(MissingExtraError) as caught, needs("planner x", extra):
        raise error
    return caught.value


def test_the_package_that_an_import_missed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = blamed(monkeypatch, ImportError(name="matplotlib.figure"), absent={"matplotlib"}, extra="plot")
    assert ("matplotlib", "plot") == (error.package, error.extra)


def test_what_only_draws_pictures_is_not_blamed_for_a_solver_that_does_not_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = blamed(monkeypatch, ImportError("broken"), absent={"matplotlib"}, extra="solve")
    assert (None, "solve") == (error.package, error.extra)
    error = blamed(monkeypatch, ImportError("broken"), absent={"ortools", "matplotlib"}, extra="solve")
    assert ("ortools", "solve") == (error.package, error.extra)
    error = blamed(monkeypatch, ImportError("broken"), absent={"ortools", "matplotlib"}, extra="plot")
    assert ("matplotlib", "plot") == (error.package, error.extra)
