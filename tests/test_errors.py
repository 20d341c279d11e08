"""Errors carry their facts as attributes and say them in one sentence."""

from planner.errors import InfeasibleError, MissingExtraError, PlannerError, SpecError


def test_a_located_error_reads_path_line_key_message_and_hint() -> None:
    error = SpecError(
        "expected a positive integer, found -1", path="a.yaml", line=3, key="batch.micro_batch", hint="use 1"
    )
    assert "a.yaml:3: batch.micro_batch: expected a positive integer, found -1; use 1" == str(error)
    assert "a.yaml: no such file" == str(SpecError("no such file", path="a.yaml"))


def test_a_missing_extra_says_how_to_install_it() -> None:
    error = MissingExtraError("planner solve", "solve", package="ortools")
    assert "planner solve needs ortools: pip install 'activation-planner[solve]'" == str(error)


def test_only_a_true_no_exits_with_one() -> None:
    infeasible = InfeasibleError(
        "too small",
        budget_bytes=1,
        static_bytes=2,
        smallest_peak_bytes=4,
        bound_bytes=3,
        where="mm",
        is_proven=True,
    )
    assert (1, 2) == (infeasible.exit_status, PlannerError("x").exit_status)
