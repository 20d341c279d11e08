"""A run with findings of every kind that formats must show, made by hand."""

from planner.configs.tree import Document, Scalar, SourceFormat
from planner.diagnostics import Edit, Finding, Fix, FixSafety, Place, Related, Report, Rule, Severity, Source
from planner.errors import ConfigError
from planner.linting.run import Change, LintRun

TRAIN = """\
# Trained on 8 × H100
model: "大模型-7b"	# named by its authors
batch: 64
flags: {checkpointing: no,	offload: yes}
sequence_lenght: 8192
"""
# 🙂 is one character, two UTF-16 code units and two columns.
SHARDING = '{"note": "🙂", "stage": 3, "offload": {"device": "none"}}\n'
DIRECTORY = "/repository"


def document(path: str, text: str, source_format: SourceFormat = SourceFormat.YAML) -> Document:
    return Document(path=path, text=text, format=source_format, root=Scalar(0, 0, None))


def place(source: Document, text: str, key: str = "") -> Place:
    """The place of the first occurrence of a text."""
    start = source.text.index(text)
    return Place(document=source, start=start, end=start + len(text), key=key)


def rule(code: str, name: str, severity: Severity, fix: FixSafety | None = None) -> Rule:
    return Rule(
        code=code,
        name=name,
        severity=severity,
        summary=f"What {name} finds.",
        why="It costs memory.",
        instead="Write it right.",
        sources=(Source(title="a framework 1.2", where="https://example.org/docs"),),
        find=lambda config: (),
        dialects=("axolotl",),
        fix=fix,
    )


# Names of real rules, since a rule's example is looked up by its name.
OFFLOAD = rule("OF101", "activation-offloading-without-checkpointing", Severity.ERROR)
TYPO = rule("KEY001", "misspelt-key", Severity.NO_OP, FixSafety.SAFE)
BATCH = rule("KEY007", "invalid-value", Severity.WASTE, FixSafety.UNSAFE)

train = document("configs/train 1.yaml", TRAIN)
sharding = document("configs/ds.json", SHARDING, SourceFormat.JSON)


def finding_with_a_place_in_the_same_file() -> Finding:
    report = Report(
        place=place(train, "yes", "flags.offload"),
        message="offload needs checkpointing, which is off",
        help="set checkpointing: yes, or remove offload",
        related=(Related(place=place(train, "no", "flags.checkpointing"), message="it is off here"),),
    )
    return Finding(rule=OFFLOAD, report=report)


def finding_with_a_fix() -> Finding:
    where = place(train, "sequence_lenght", "sequence_lenght")
    edit = Edit(document=train, start=where.start, end=where.end, text="sequence_length")
    fix = Fix(title="Rename to sequence_length", safety=FixSafety.SAFE, edits=(edit,))
    report = Report(place=where, message="there is no 'sequence_lenght': 100% dropped, silently", fix=fix)
    return Finding(rule=TYPO, report=report)


def finding_in_another_file() -> Finding:
    where = place(sharding, '"none"', "offload.device")
    edit = Edit(document=sharding, start=where.start, end=where.end, text='"cpu"')
    report = Report(
        place=where,
        message="nothing is offloaded",
        related=(Related(place=place(train, "batch", "batch"), message="and this batch needs it"),),
        fix=Fix(title="Offload to the host", safety=FixSafety.UNSAFE, edits=(edit,)),
    )
    return Finding(rule=BATCH, report=report)


def finding_of_a_file_as_a_whole() -> Finding:
    return Finding(rule=BATCH, report=Report(place=Place(document=train, start=0, end=0), message="no model length"))


def run() -> LintRun:
    findings = (
        finding_of_a_file_as_a_whole(),
        finding_with_a_place_in_the_same_file(),
        finding_with_a_fix(),
        finding_in_another_file(),
    )
    return LintRun(
        directory=DIRECTORY,
        findings=findings,
        checked=(train.path, "configs/clean.yaml"),
        unknown=("README.yaml",),
        unreadable=(ConfigError("not valid YAML: expected ',', or ']'", path="configs/broken.yaml", line=3),),
    )


def fixed_run() -> LintRun:
    fixed = finding_with_a_fix()
    after = TRAIN.replace("lenght", "length")
    change = Change(path=train.path, before=TRAIN, after=after, fixed=(fixed,))
    return LintRun(directory=DIRECTORY, findings=(), checked=(train.path,), changes=(change,))


def empty_run() -> LintRun:
    return LintRun(directory=DIRECTORY, findings=())
