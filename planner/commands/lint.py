"""`planner lint`: training configs checked before they cost a GPU hour."""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from planner.commands.options import dialect_of
from planner.commands.output import STDOUT, say
from planner.diagnostics import FixSafety, Severity
from planner.files import check_apart, check_writable, read_text, write_whole
from planner.records import record, replace
from planner.reporting.lint import FORMATS, render

if TYPE_CHECKING:
    from planner.configs.dialect import Version
    from planner.linting.configuration import LintConfiguration
    from planner.linting.run import LintRun

_USUAL_PATH = "."
_STDIN_NAME = "stdin.yaml"  # unless --stdin-filename gives another
_FOUND_STATUS = 1
_UNUSABLE_STATUS = 2


def _words(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Codes, prefixes and names of rules, from values that may have several each."""
    from planner.linting.selection import SelectionError, check_words

    words = tuple(word.strip() for value in values for word in value.split(",") if word.strip())
    try:
        check_words(words)
    except SelectionError as error:
        raise click.BadParameter(f"{error}.") from None
    return words


def _versions(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> "Mapping[str, Version]":
    from planner.linting.configuration import target_version

    versions: dict[str, Version] = {}
    for value in values:
        name, equals, release = value.partition("=")
        if not equals:
            raise click.BadParameter(f"expected DIALECT=RELEASE, such as axolotl=0.12, found {value!r}.")
        try:
            versions[name.strip()] = target_version(name.strip(), release.strip())
        except ValueError as error:
            raise click.BadParameter(f"expected {error}, found {value!r}.") from None
    return versions


@record
class _Given:
    """The options, as they were given."""

    paths: tuple[str, ...]
    dialect: str | None
    target_versions: "Mapping[str, Version]"
    select: tuple[str, ...]
    extend_select: tuple[str, ...]
    ignore: tuple[str, ...]
    device: str | None
    is_isolated: bool
    skip_unknown: bool
    stdin_filename: str | None
    is_fixed: bool
    is_unsafe: bool
    is_diff: bool
    baseline: str | None
    new_baseline: str | None
    output_format: str
    output: str | None
    statistics: bool
    fail_level: str | None
    exit_zero: bool
    quiet: bool

    @property
    def is_stdin(self) -> bool:
        return self.stdin_filename is not None or self.paths == (STDOUT,)


@click.command(short_help="Check training configs of other tools.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--dialect", metavar="NAME", callback=dialect_of, help="Take every file for a config of this framework.")
@click.option(
    "--target-version",
    "target_versions",
    multiple=True,
    callback=_versions,
    metavar="DIALECT=RELEASE",
    help="Check against this release of a framework, such as axolotl=0.12.",
)
@click.option(
    "--select", multiple=True, callback=_words, metavar="RULES", help="Run only these: codes, prefixes, names."
)
@click.option("--extend-select", multiple=True, callback=_words, metavar="RULES", help="Run these besides.")
@click.option("--ignore", multiple=True, callback=_words, metavar="RULES", help="Do not run these.")
@click.option("--device", metavar="NAME|FILE", help="The GPU, for rules that need to know it: planner devices.")
@click.option("--isolated", "is_isolated", is_flag=True, help="Heed no .planner.toml and no pyproject.toml.")
@click.option("--skip-unknown", is_flag=True, help="No word on PATHs that are no training configs: for pre-commit.")
@click.option("--stdin-filename", metavar="NAME", help="Check stdin as if it were this file.")
@click.option("--fix", "is_fixed", is_flag=True, help="Change the files, where a finding has a certain fix.")
@click.option("--unsafe-fixes", "is_unsafe", is_flag=True, help="Also apply fixes that change what will be run.")
@click.option("--diff", "is_diff", is_flag=True, help="Print what --fix would change, and change nothing.")
@click.option("--baseline", metavar="FILE", help="Say nothing of the findings that this file knows.")
@click.option("--write-baseline", "new_baseline", metavar="FILE", help="Write all findings to this file, as known.")
@click.option("--output-format", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True)
@click.option("--output", "-o", metavar="FILE", help="Write the findings there.")
@click.option("--statistics", is_flag=True, help="Print how many findings each rule has.")
@click.option(
    "--fail-level",
    type=click.Choice([str(level) for level in Severity]),
    help=f"The least that makes the exit status 1 [default: {Severity.WASTE}].",
)
@click.option("--exit-zero", is_flag=True, help="Exit status 0 also with findings.")
@click.option("--quiet", "-q", is_flag=True, help="No summary on stderr.")
@click.pass_context
def lint(ctx: click.Context, /, **given: Any) -> None:
    """Check training configs for what fails, is silently not done, or wastes memory.

    PATHs are files and directories, of which every training config is checked [default: .]; - is stdin.

    \b
    Examples:
      planner lint
      planner lint configs/ --target-version axolotl=0.12
      planner lint train.yaml --diff
      planner lint . --output-format sarif -o findings.sarif

    Exit status: 0 no findings; 1 findings; 2 wrong usage, or a file that cannot be read.
    """
    with _no_collection():
        status = _lint(_Given(**given))
    ctx.exit(status)


@contextmanager
def _no_collection() -> Iterator[None]:
    """While files are checked, no garbage is looked for: trees of files have no cycles, so counting frees them."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _lint(given: _Given) -> int:
    """Does what the options ask for; returns the exit status."""
    from planner.linting.configuration import LintConfiguration, configuration_for

    _check_usage(given)
    if given.output is not None:
        check_writable(given.output)
    # What concerns the run as a whole is taken from the configuration of where it is started.
    configuration = LintConfiguration() if given.is_isolated else configuration_for(os.getcwd())
    content = _stdin() if given.is_stdin else b""
    run = _run(given, content)
    for written in filter(None, (given.output, given.new_baseline)):
        check_apart(written, [os.path.join(run.directory, path) for path in run.checked])
    if given.new_baseline is not None:
        _write_baseline(given.new_baseline, run)
        _say_unreadable(run)
        return _status(given, run, is_failed=False)
    run = _without_known(run, given.baseline, configuration)
    if given.is_diff:
        from planner.linting.fixing import diff

        _print("".join(diff(change.path, change.before, change.after) for change in run.changes), given.output)
        _say_unreadable(run)
        return _status(given, run, is_failed=bool(run.changes))
    if given.is_fixed and given.is_stdin:
        click.echo(run.changes[0].after.encode() if run.changes else content, nl=False)
    elif given.is_fixed:
        for change in run.changes:
            write_whole(change.path, change.after)
    _print(_rendered(given, run), given.output, err=given.is_fixed and given.is_stdin)
    _say_what_happened(given, run)
    level = Severity(given.fail_level) if given.fail_level else configuration.fail_level
    return _status(given, run, is_failed=any(found.rule.severity.is_at_least(level) for found in run.findings))


def _stdin() -> bytes:
    from planner.linting.sources import MAX_FILE_BYTES

    return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)


def _status(given: _Given, run: "LintRun", *, is_failed: bool) -> int:
    if run.unreadable:
        return _UNUSABLE_STATUS
    return _FOUND_STATUS if is_failed and not given.exit_zero else 0


def _check_usage(given: _Given) -> None:
    if given.is_unsafe and not (given.is_fixed or given.is_diff):
        raise click.UsageError("--unsafe-fixes needs --fix or --diff.")
    if given.is_fixed and given.is_diff:
        raise click.UsageError("--fix changes files and --diff changes none: choose one.")
    if given.stdin_filename is not None and given.paths not in ((), (STDOUT,)):
        raise click.UsageError("--stdin-filename goes with no PATH.")
    if STDOUT in given.paths and not given.is_stdin:
        raise click.UsageError("- for stdin goes with no other PATH.")
    if given.statistics and given.output_format not in ("full", "concise", "json"):
        raise click.UsageError(f"--statistics cannot be written as {given.output_format}; text and json can.")


def _run(given: _Given, content: bytes) -> "LintRun":
    from planner.linting.run import Request, lint_content, lint_paths
    from planner.linting.selection import Selection

    device = None
    if given.device is not None:
        from planner.device import load_device

        device = load_device(given.device)
    fix = FixSafety.UNSAFE if given.is_unsafe else FixSafety.SAFE
    request = Request(
        selection=Selection(select=given.select, extend=given.extend_select, ignore=given.ignore),
        dialect=given.dialect,
        target_versions=given.target_versions,
        device=device,
        skip_unknown=given.skip_unknown,
        is_isolated=given.is_isolated,
        fix=fix if given.is_fixed or given.is_diff else None,
    )
    if given.is_stdin:
        return lint_content(content, given.stdin_filename or _STDIN_NAME, request)
    return lint_paths(given.paths or (_USUAL_PATH,), request)


def _write_baseline(path: str, run: "LintRun") -> None:
    from planner.linting.baseline import baseline_of, format_baseline

    write_whole(path, format_baseline(baseline_of(run.findings, os.path.dirname(path) or os.curdir)))


def _without_known(run: "LintRun", given: str | None, configuration: "LintConfiguration") -> "LintRun":
    """The run without the findings that the baseline knows, of the option or else of the configuration."""
    if given is not None:
        path = given
    elif configuration.baseline is not None and configuration.path is not None:
        path = os.path.join(os.path.dirname(configuration.path), configuration.baseline)
    else:
        return run
    from planner.linting.baseline import BaselineError, parse_baseline, unknown_findings

    baseline = parse_baseline(read_text(path, error_type=BaselineError), path)
    return replace(run, findings=unknown_findings(run.findings, baseline, os.path.dirname(path) or os.curdir))


def _rendered(given: _Given, run: "LintRun") -> str:
    if given.statistics:
        from planner.reporting.lint import statistics

        return statistics.text(run, as_json=given.output_format == "json")
    return render(run, given.output_format, is_coloured=given.output is None and _is_coloured())


def _is_coloured() -> bool:
    """Whether colours are wanted: as https://no-color.org and https://force-color.org say, or on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _print(text: str, path: str | None, *, err: bool = False) -> None:
    # As bytes: whatever the locale is, and names of files need not be text.
    content = text.encode(errors="surrogateescape")
    if path is None or path == STDOUT:
        click.echo(content, nl=False, err=err)
    else:
        write_whole(path, content)


def _say_unreadable(run: "LintRun") -> None:
    for error in run.unreadable:
        say(f"error: {error}")


def _say_what_happened(given: _Given, run: "LintRun") -> None:
    _say_unreadable(run)
    for path in run.unknown:
        say(f"{path}: skipped: no training config of a framework that is known")
    if not given.quiet:
        from planner.reporting.lint import summary

        say(summary.line(run))
