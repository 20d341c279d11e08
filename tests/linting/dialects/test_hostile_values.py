"""Rules and readers on configs in which any value is of a kind that nobody expects."""

from pathlib import Path

import pytest

from planner.configs.tree import Mapping, Node, Scalar, Sequence
from planner.linting.engine import Options, lint_document
from planner.linting.sources import format_of, parse
from tests.linting.generated import entries

DATA = Path(__file__).parents[2] / "rules" / "data"
EXAMPLES = sorted(path for path in DATA.glob("*/bad*") if path.suffix != ".expected" and format_of(path.name))
HOSTILE: tuple[Node, ...] = (
    *(Scalar(0, 1, value) for value in (None, True, -1, 0, 10**30, float("nan"), "", "auto", "${x}", "x" * 100)),
    Sequence(0, 1, []),
    Sequence(0, 1, [Sequence(0, 1, []), Scalar(0, 1, None)]),
    Mapping(0, 1, [], []),
)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_value_of_any_kind_leads_to_findings_or_to_none(path: Path) -> None:
    source_format = format_of(path.name)
    assert source_format is not None
    document = parse(path.read_text(), path.name, source_format)
    for entry in entries(document.root):
        value = entry.value
        for hostile in HOSTILE:
            entry.value = hostile
            found = lint_document(document, Options(is_selected=lambda rule: True))
            assert found is None or all(finding.report.message for finding in found)
        entry.value = value
