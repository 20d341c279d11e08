"""`planner profile`: measures this machine and writes a device profile of it."""

import platform
import re
from pathlib import Path

import click

from planner.commands.guards import calm, imports
from planner.commands.options import format_of, json_option, quiet_option
from planner.commands.output import print_json, progress, say

_DTYPES = ("float32", "bfloat16", "float16", "float64")


@click.command(short_help="Measure this machine, and write a device profile.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="What to measure [default: cuda where there is one, else cpu]."
)
@click.option("-o", "--output", metavar="FILE.yaml", help="Write the profile there [default: the host's name].")
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: seconds instead of minutes, less accurate.")
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(_DTYPES),
    multiple=True,
    help="Measure this dtype; may be repeated [default: float32 and bfloat16, on CUDA also float16].",
)
@click.option("--threads", type=click.IntRange(min=1, max=1024), help="Threads of a CPU [default: torch's own choice].")
@json_option
@quiet_option
def profile(
    *,
    device: str | None,
    output: str | None,
    quick: bool,
    dtypes: tuple[str, ...],
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure this machine and write a device profile, to be named as `device` in a spec or with --device.

    Products, convolutions, attention and other ops are timed at several sizes, forward and backward, so that predicted
    step times are this machine's. Best run while nothing else does: it says when what it found is too noisy to trust.

    \b
    Examples:
      planner profile
      planner profile --device cpu --threads 1 -o one-thread.yaml
      planner profile --quick --dtype bfloat16 --json
    """
    name = output or f"{_slug(platform.node())}.yaml"
    format_of(name, ("yaml", "yml"))
    path = Path(name)
    with imports("planner profile"):
        from planner.files import check_writable
        from planner.reporting.profile import profile_document, profile_text
        from planner.runtime.profiling.machine import TRUSTED_SPREAD
        from planner.runtime.profiling.run import choose_device, profile_machine
    check_writable(path)
    place = choose_device(device)
    if threads is not None and place == "cuda":
        raise click.BadParameter("is for a CPU.", param_hint="'--threads'")
    with calm(verbose=False):
        written = profile_machine(
            path, device=place, dtypes=dtypes, threads=threads, is_quick=quick, report=progress(quiet)
        )
    for line in written.skipped:
        say(f"skipped: {line}")
    if written.spread > TRUSTED_SPREAD:
        say(
            f"warning: too noisy to trust: the quartiles of repeated times are typically {written.spread:.0%} apart; "
            "measure again while nothing else runs"
        )
    if as_json:
        print_json(profile_document(written))
    else:
        click.echo(profile_text(written))


def _slug(host: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-") or "this-machine"
