"""Runs the rules over one file."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from planner.configs.config import Config, Setting
from planner.configs.dialect import Version, load_dialect, parse_version
from planner.configs.tree import Document, Sequence, SourceFormat
from planner.configs.tree import Mapping as MappingNode
from planner.diagnostics import Finding, Rule
from planner.linting import MARK
from planner.linting.detection import detect
from planner.linting.dialects import merged_facts, read_environment, read_facts, settings_root
from planner.linting.links import links
from planner.linting.sources import format_of, parse
from planner.records import record, replace
from planner.rules import RuleEntry, load_rule, rules_for

if TYPE_CHECKING:
    from planner.device import DeviceProfile


@record
class Options:
    """What to check.

    Attributes:
        is_selected: Whether a rule is to run.
        dialect: The dialect to take every file for, or None to recognise it.
        device: The device that runs are for, or None: rules that need one are silent then.
        target_versions: By dialect, the release to check against instead of the newest known.
        reads_files: Whether files that a config names are read.
    """

    is_selected: Callable[[RuleEntry], bool] = lambda rule: not rule.opt_in
    dialect: str | None = None
    device: "DeviceProfile | None" = None
    target_versions: Mapping[str, Version] | None = None
    reads_files: bool = True


def lint_text(text: str, path: str, options: Options) -> tuple[Finding, ...] | None:
    """The findings of a file's text in the order of the file; None when it is no training config.

    Raises:
        SourceError: The text cannot be read as what its name says.
    """
    source_format = format_of(path)
    return None if source_format is None else lint_document(parse(text, path, source_format), options)


def lint_document(document: Document, options: Options) -> tuple[Finding, ...] | None:
    """The findings of a document in its order, then those of files it names; None when it is no training config."""
    configs = configs_of(document, options)
    return None if not configs else _lint(document, configs, options)


def _lint(document: Document, configs: list[Config], options: Options) -> tuple[Finding, ...]:
    parts = [part for config in configs for part in (config, *config.linked)]
    rules: dict[str, Rule] = {}
    findings: list[Finding] = []
    for part in parts:
        if part.document is document:
            chosen = [load_rule(entry) for entry in rules_for(part.dialect.name) if _runs(entry, options)]
            rules.update((rule.name, rule) for rule in chosen)
            findings += [Finding(rule=rule, report=report) for rule in chosen for report in rule.find(part)]
    findings = _distinct(findings)
    if MARK in document.text:
        findings = _unsuppressed(document, findings, rules)
    own = sorted(findings, key=lambda found: (found.report.place.start, found.rule.code))
    others = [
        found for part in parts if part.document is not document for found in _lint(part.document, [part], options)
    ]
    return (*own, *_distinct(others))


def _unsuppressed(document: Document, findings: list[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """The findings that no comment silences, and those about such comments."""
    from planner.linting.suppression import reports_about, suppress  # for the few files that have any

    suppressed = suppress(document, findings, rules.values())
    about_comments = [
        Finding(rule=rules[name], report=report)
        for name, report in reports_about(document, suppressed)
        if name in rules
    ]
    return [*suppressed.findings, *about_comments]


def _distinct(findings: list[Finding]) -> list[Finding]:
    """Each finding once: commands of a script share the variables that their flags stand in, and files they name."""
    by_place = {}
    for found in findings:
        place = found.report.place
        by_place[found.rule.code, place.document.path, place.start, place.end, found.report.message] = found
    return list(by_place.values())


def _runs(entry: RuleEntry, options: Options) -> bool:
    return options.is_selected(entry) and (options.device is not None or not entry.needs_device)


def configs_of(document: Document, options: Options) -> list[Config]:
    """The configs in a document, of a shell script one for each training command; none when it is no config."""
    roots = _roots(document)
    if options.dialect is None:
        found = [(root, name) for root in roots if (name := detect(document, root))]
    else:
        # Of a script, the command that is meant is the one with the most to say.
        longest = max(roots, key=lambda root: len(root.entries), default=None)
        found = [] if longest is None else [(longest, options.dialect)]
    configs = [_read(document, root, name, options) for root, name in found]
    if options.device is None:
        return configs
    from planner.linting.prospects import prospects  # the estimator is imported only for those who ask

    prospect = prospects(options.device)
    return [replace(config, prospect=prospect) for config in configs]


def _roots(document: Document) -> list[MappingNode]:
    root = document.root
    if isinstance(root, Sequence) and document.format is SourceFormat.SHELL:
        return [command for command in root.items if isinstance(command, MappingNode)]
    return [root] if isinstance(root, MappingNode) else []


def _read(
    document: Document, root: MappingNode, name: str, options: Options, namer: tuple[Config, Setting] | None = None
) -> Config:
    """The config of a dialect; `namer` is the config that names it, and where."""
    dialect = load_dialect(name)
    versions = {name: parse_version(dialect.version), **dialect.included, **(options.target_versions or {})}
    stated = frozenset(options.target_versions or ())
    if namer is not None and dialect.part_of is not None:
        versions = {**namer[0].versions, name: namer[0].versions[dialect.part_of]}
        stated |= {name} if dialect.part_of in stated else set()
    config = Config(
        document=document,
        root=root,
        dialect=dialect,
        versions=versions,
        stated=stated,
        named_by=None if namer is None else namer[1],
    )
    config = replace(config, environment=read_environment(config))
    config = replace(config, root=settings_root(config))
    if namer is None:  # one step: what a named file names itself is not followed, so that there is no loop
        linked = tuple(
            _read(linked.document, linked.root, linked.dialect, options, (config, linked.named_by))
            for linked in links(config, reads_files=options.reads_files)
        )
        config = replace(config, linked=linked) if linked else config
    return replace(config, facts=merged_facts(read_facts(config), config.linked))
