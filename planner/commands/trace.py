"""`planner trace`: what one step computes and saves."""

import json
from pathlib import Path

import click

from planner.commands.guards import imports
from planner.commands.options import json_option, load_run, quiet_option, verbose_option
from planner.commands.output import print_json, progress
from planner.commands.tracing import trace_run


@click.command(short_help="Show what a training step computes and saves.")
@click.argument("spec")
@click.option(
    "--graph", "graph_file", metavar="FILE.json", help="Write the op graph there, as networkx node-link JSON."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Lines in each list.")
@json_option
@quiet_option
@verbose_option
def trace(*, spec: str, graph_file: str | None, top: int, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Show what one training step of SPEC computes and what autograd saves, without weights or a GPU.

    \b
    Examples:
      planner trace examples/llama-3-8b.yaml
      planner trace model.yaml --top 30
      planner trace model.yaml --graph step.json --json
    """
    run = load_run(spec)
    with imports("planner trace"):
        from planner.files import check_apart, check_writable, write_whole
        from planner.graph import to_node_link
        from planner.reporting import documents, summary, text
        from planner.simulation.allocations import saving_step
        from planner.simulation.reserved import reserved
    if graph_file is not None:
        check_writable(Path(graph_file))
        check_apart(Path(graph_file), [spec])
    _, graph, trace_s = trace_run(run, report=progress(quiet), verbose=verbose)
    if graph_file is not None:
        content = json.dumps(to_node_link(graph), separators=(",", ":"))
        write_whole(Path(graph_file), content)
    found = summary.summarize_trace(graph, reserved=reserved(saving_step(graph)), seconds=trace_s, top=top)
    if as_json:
        print_json(documents.trace_document(found))
    else:
        click.echo(text.trace_text(found))
