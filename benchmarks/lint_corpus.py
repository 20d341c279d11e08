"""What planner lint makes of a directory of real configs: what each file is taken for, and what is found.

    python benchmarks/lint_corpus.py CONFIGS [--sample 60] [--seed 6] [--errors]

CONFIGS has one folder for each framework, and a manifest.csv whose columns `framework` (a folder), `file` (whose last
part is a file there) and `origin` ("maintainer" or "user") say where each file is from. Printed are the confusion
table of folders and recognised dialects, the findings of every rule by origin, opt-in rules too, and the share of
maintainers' files with an error of a rule that is on by default. `--sample` adds so many findings by chance, as
evenly over the rules as there are findings, with the lines that they are about, and `--errors` all errors in
maintainers' files: both are to be read by a person beside the files.

A shell script has one config per command: it counts once for each dialect in it.
"""

import argparse
import csv
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from planner.diagnostics import Finding, Severity
from planner.linting.engine import Options, configs_of, lint_document
from planner.linting.sources import SourceError, format_of, parse
from planner.rules import RULES

NOTHING = "none"
UNREADABLE = "unreadable"
ORIGINS = ("maintainer", "user")
EVERY_RULE = Options(is_selected=lambda entry: True)


class Checked(NamedTuple):
    """A file: where it is, its origin, the dialects it has, and all that every rule finds in it."""

    path: Path
    origin: str
    dialects: tuple[str, ...]
    findings: tuple[Finding, ...]


Located = tuple[Checked, Finding]  # a finding, and the file that it was found in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path)
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--errors", action="store_true")
    arguments = parser.parse_args()
    checked = list(check(arguments.configs))
    show_confusion(checked)
    show_counts(checked)
    show_shares(checked)
    every = [(file, found) for file in checked for found in file.findings]
    if arguments.errors:
        show(
            "Errors in maintainers' files",
            [(file, found) for file, found in every if is_maintainers_error(file, found)],
        )
    if arguments.sample:
        show("A sample", sample(every, arguments.sample, random.Random(arguments.seed)))


def check(root: Path) -> Iterator[Checked]:
    """Every file of the manifest, in its order."""
    with open(root / "manifest.csv", newline="") as manifest:
        for row in csv.DictReader(manifest):
            path = root / row["framework"] / Path(row["file"]).name
            yield Checked(path, row["origin"], *check_file(path))


def check_file(path: Path) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """The dialects of a file, and its findings."""
    source_format = format_of(str(path))
    if source_format is None:
        return (NOTHING,), ()
    try:
        document = parse(path.read_bytes().decode(), str(path), source_format)
    except (SourceError, UnicodeDecodeError):
        return (UNREADABLE,), ()
    dialects = sorted({config.dialect.name for config in configs_of(document, EVERY_RULE)})
    return tuple(dialects) or (NOTHING,), lint_document(document, EVERY_RULE) or ()


def sample(
    every: Iterable[tuple[Checked, Finding]], count: int, chance: random.Random
) -> list[tuple[Checked, Finding]]:
    """Findings by chance: one of each rule, then another one of each that has more, and so on."""
    by_rule: dict[str, list[Located]] = {}
    for one in every:
        by_rule.setdefault(one[1].rule.name, []).append(one)
    for findings in by_rule.values():
        chance.shuffle(findings)
    rounds = zip_longest(*by_rule.values())
    return list(islice((one for each in rounds for one in each if one is not None), count))


def is_maintainers_error(file: Checked, found: Finding) -> bool:
    return file.origin == "maintainer" and found.rule.severity is Severity.ERROR and not found.rule.opt_in


def show_confusion(checked: Iterable[Checked]) -> None:
    """Prints one line for each folder: what its files are taken for."""
    table: dict[str, Counter[str]] = {}
    for file in checked:
        table.setdefault(file.path.parent.name, Counter()).update(file.dialects)
    print("Folder            taken for")
    for folder, taken in sorted(table.items()):
        print(f"{folder:<17} {', '.join(f'{name} {count}' for name, count in taken.most_common())}")
    print()


def show_counts(checked: Iterable[Checked]) -> None:
    """Prints how many findings each rule has, by origin."""
    counts = Counter((found.rule.name, file.origin) for file in checked for found in file.findings)
    severities = {found.rule.name: found.rule.severity for file in checked for found in file.findings}
    print(f"{'Rule':<56} {'severity':<9} {'on':<7} {'  '.join(ORIGINS)}")
    for entry in RULES:
        by_origin = [counts[entry.name, origin] for origin in ORIGINS]
        if any(by_origin):
            when = "opt-in" if entry.opt_in else "default"
            shown = "  ".join(f"{count:>{len(origin)}}" for count, origin in zip(by_origin, ORIGINS, strict=True))
            print(f"{entry.code} {entry.name:<49} {severities[entry.name]:<9} {when:<7} {shown}")
    print(f"{len(severities)} of {len(RULES)} rules have findings\n")


def show_shares(checked: Sequence[Checked]) -> None:
    """Prints how many files of each origin have any finding of a rule that is on by default, and any error."""
    for origin in ORIGINS:
        files = [file for file in checked if file.origin == origin]
        for title, severities in (("an error", {Severity.ERROR}), ("any finding", set(Severity))):
            having = sum(any(_counts(found, severities) for found in file.findings) for file in files)
            print(
                f"{having} of {len(files)} {origin} files ({having / max(len(files), 1):.1%}) have {title} by default"
            )
    print()


def _counts(found: Finding, severities: set[Severity]) -> bool:
    return found.rule.severity in severities and not found.rule.opt_in


def show(title: str, findings: Sequence[Located]) -> None:
    """Prints findings with the lines that they point at."""
    print(f"{title}: {len(findings)}")
    for number, (file, found) in enumerate(findings, 1):
        place = found.report.place
        line, column = place.document.position(place.start)
        when = " opt-in" if found.rule.opt_in else ""
        print(f"{number}. {file.path.parent.name}/{Path(place.document.path).name}:{line}:{column}")
        print(f"   {found.rule.severity}{when} {found.rule.code} {place.key}: {found.report.message}")
        print(f"   | {place.document.line(line).strip()}")
    print()


if __name__ == "__main__":
    main()
