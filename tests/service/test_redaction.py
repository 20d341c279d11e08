"""What is left of texts where others may read them."""

import logging

import pytest

from planner.errors import TraceError
from planner.service.problems import problem_of
from planner.service.redaction import discreet, fault, one_line


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("no module in …/site.py", "no module in /usr/lib/python3/site.py"),
        ("'…/c.json'", "'/home/a/b-1.2/c.json'"),
        ("see https://example.org/a/b.html", "see https://example.org/a/b.html"),
        ("and/or, /v1, 1/2, a/b/c", "and/or, /v1, 1/2, a/b/c"),
        ("a\\nplanner: b\\x1b[1m\\u2028", "a\nplanner: b\x1b[1m\u2028c"[:-1]),
        ("größer", "größer"),
    ],
)
def test_a_line_of_a_log_has_no_paths_and_is_one_line(expected: str, text: str) -> None:
    assert expected == one_line(text + "\0").removesuffix("\\x00")


def test_a_fault_is_a_line_that_says_where_it_is() -> None:
    with pytest.raises(ZeroDivisionError) as found:
        1 / 0  # noqa: B018
    assert fault(found.value).startswith("fault: ZeroDivisionError at test_redaction.py:")


def test_a_problem_names_no_file_of_the_server() -> None:
    assert "cannot read …/a.json" == problem_of(TraceError("cannot read /srv/models/a.json"))["detail"]


def test_a_log_of_requests_has_no_tokens_and_nothing_that_a_terminal_obeys() -> None:
    token = "planner_" + "aB3-_" * 8
    said = ("\x9b31m evil", f"/v1/plans?token={token}&q=a%2Fb", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s "GET %s" %d', said, None)
    assert discreet(record)
    assert '\\x9b31m evil "GET /v1/plans?token=planner_…&q=a%2Fb" 200' == record.getMessage()
