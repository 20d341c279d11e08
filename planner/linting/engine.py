"""Runs the rules over one file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.configs.config import Config, Setting
from planner.configs.dialect import Version, load_dialect, parse_version
from planner.configs.tree import Document
from planner.configs.tree import Mapping as MappingNode
from planner.diagnostics import Finding, Rule
from planner.linting.detection import detect
from planner.linting.dialects import merged_facts, read_facts
from planner.linting.links import linked_roots
from planner.linting.sources import format_of, parse
from planner.linting.suppression import reports_about, suppress
from planner.rules import load_rule, rules_for

if TYPE_CHECKING:
    from planner.device import DeviceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to check.

    Attributes:
        is_selected: Whether a rule is to run.
        dialect: The dialect to take every file for, or None to recognise it.
        device: The device that runs are for, or None: rules that need one are silent then.
        target_versions: By dialect, the release to check against instead of the newest known.
    """

    is_selected: Callable[[Rule], bool] = lambda rule: not rule.opt_in
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
    """The findings of a document in its order, then those of files it names; None when it is no training config."""
    config = config_of(document, options)
    return None if config is None else _lint(config, options)


def _lint(config: Config, options: Options) -> tuple[Finding, ...]:
    inline = [linked for linked in config.linked if linked.document is config.document]
    rules: dict[str, Rule] = {}
    findings: list[Finding] = []
    for part in (config, *inline):
        for entry in rules_for(part.dialect.name):
            rule = load_rule(entry)
            if _runs(rule, options):
                rules[rule.name] = rule
                findings += [Finding(rule=rule, report=report) for report in rule.find(part)]
    suppressed = suppress(config.document, findings, tuple(rules.values()))
    about_comments = [
        Finding(rule=rules[name], report=report)
        for name, report in reports_about(config.document, suppressed)
        if name in rules
    ]
    own = sorted((*suppressed.findings, *about_comments), key=lambda found: (found.report.place.start, found.rule.code))
    others = [found for linked in config.linked if linked not in inline for found in _lint(linked, options)]
    return (*own, *others)


def _runs(rule: Rule, options: Options) -> bool:
    return options.is_selected(rule) and (options.device is not None or not rule.needs_device)


def config_of(document: Document, options: Options) -> Config | None:
    """The config that a document is; None when it is no training config."""
    name = options.dialect or detect(document)
    if name is None or not isinstance(document.root, MappingNode):
        return None
    config = _config(name, document, document.root, options)
    if options.device is None:
        return config
    from planner.linting.prospects import prospects  # the estimator is imported only for those who ask

    return replace(config, prospect=prospects(options.device))


def _config(
    name: str,
    document: Document,
    root: MappingNode,
    options: Options,
    named_by: tuple[Setting, str] | None = None,
) -> Config:
    dialect = load_dialect(name)
    versions = {name: parse_version(dialect.version), **dialect.included, **(options.target_versions or {})}
    config = Config(document=document, root=root, dialect=dialect, versions=versions, named_by=named_by)
    if named_by is None:  # one step: what a named file names itself is not followed, so that there is no loop
        linked = tuple(
            _config(other, its_document, its_root, options, (setting, name))
            for other, setting, its_document, its_root in linked_roots(config)
        )
        config = replace(config, linked=linked)
    return replace(config, facts=merged_facts(read_facts(config), config.linked))
