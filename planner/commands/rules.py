"""`planner rules` and `planner rule`: what the linter looks for, and why."""

import click

from planner.commands.options import dialect_of, json_option
from planner.commands.output import print_json


@click.command()
@click.option(
    "--dialect", callback=dialect_of, metavar="NAME", help="Only those that apply to this framework's configs."
)
@json_option
def rules(*, dialect: str | None, as_json: bool) -> None:
    """List the rules of planner lint.

    Rules that need --select are opt-in: --select or --extend-select of planner lint must name them, or a configuration.

    \b
    Examples:
      planner rules
      planner rules --dialect axolotl
      planner rules --json
    """
    from planner.reporting.lint import rule_text
    from planner.rules import RULES, load_example, load_rule, rules_for

    found = [load_rule(entry) for entry in sorted(RULES if dialect is None else rules_for(dialect))]
    if as_json:
        print_json({"rules": [rule_text.document(rule, load_example(rule.name)) for rule in found]})
    else:
        click.echo(rule_text.listing(found), nl=False)


@click.command(short_help="Explain a rule of planner lint.")
@click.argument("rule_name", metavar="CODE|NAME")
@json_option
def rule(*, rule_name: str, as_json: bool) -> None:
    """Explain a rule of planner lint: what it finds, why that matters, an example, and what to write instead.

    \b
    Examples:
      planner rule OF101
      planner rule activation-offloading-without-checkpointing --json
    """
    from planner.linting.selection import SelectionError
    from planner.reporting.lint import rule_text
    from planner.rules import RULES, load_example, load_rule

    entry = next((entry for entry in RULES if rule_name.lower() in (entry.code.lower(), entry.name)), None)
    if entry is None:
        raise SelectionError(rule_name)
    found, example = load_rule(entry), load_example(entry.name)
    if as_json:
        print_json(rule_text.document(found, example))
    else:
        click.echo(rule_text.plain(found, example), nl=False)
