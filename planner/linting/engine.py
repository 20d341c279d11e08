"""Runs the rules over one file."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from planner.configs.config import Config
from planner.configs.dialect import Version, load_dialect, parse_version
from planner.configs.tree import Document
from planner.configs.tree import Mapping as MappingNode
from planner.diagnostics import Finding, Rule
from planner.linting import MARK
from planner.linting.detection import detect
from planner.linting.dialects import read_facts
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
    """

    is_selected: Callable[[RuleEntry], bool] = lambda rule: not rule.opt_in
    dialect: str | None = None
    device: "DeviceProfile | None" = None
    target_versions: Mapping[str, Version] | None = None


def lint_text(text: str, path: str, options: Options) -> tuple[Finding, ...] | None:
    """The findings of a file's text in the order of the file; None when it is no training config.

    Raises:
        SourceError: The text cannot be read as what its name says.
    """
    source_format = format_of(path)
    return None if source_format is None else lint_document(parse(text, path, source_format), options)


def lint_document(document: Document, options: Options) -> tuple[Finding, ...] | None:
    """The findings of a document in its order; None when it is no training config."""
    config = config_of(document, options)
    if config is None:
        return None
    rules = [load_rule(entry) for entry in rules_for(config.dialect.name) if _runs(entry, options)]
    findings = [Finding(rule=rule, report=report) for rule in rules for report in rule.find(config)]
    if MARK in document.text:
        findings = _unsuppressed(document, findings, rules)
    return tuple(sorted(findings, key=lambda found: (found.report.place.start, found.rule.code)))


def _unsuppressed(document: Document, findings: Sequence[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """The findings that no comment silences, and those about such comments."""
    from planner.linting.suppression import reports_about, suppress  # for the few files that have any

    suppressed = suppress(document, findings, rules)
    rule_by_name = {rule.name: rule for rule in rules}
    about_comments = [
        Finding(rule=rule_by_name[name], report=report)
        for name, report in reports_about(document, suppressed)
        if name in rule_by_name
    ]
    return [*suppressed.findings, *about_comments]


def _runs(entry: RuleEntry, options: Options) -> bool:
    return options.is_selected(entry) and (options.device is not None or not entry.needs_device)


def config_of(document: Document, options: Options) -> Config | None:
    """The config that a document is; None when it is no training config."""
    name = options.dialect or detect(document)
    if name is None or not isinstance(document.root, MappingNode):
        return None
    dialect = load_dialect(name)
    versions = {name: parse_version(dialect.version), **dialect.included, **(options.target_versions or {})}
    config = Config(document=document, root=document.root, dialect=dialect, versions=versions)
    config = replace(config, facts=read_facts(config))
    if options.device is None:
        return config
    from planner.linting.prospects import prospects  # the estimator is imported only for those who ask

    return replace(config, prospect=prospects(options.device))
