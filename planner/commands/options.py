"""Options that several commands share, and what their values become."""

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from planner.commands.output import Report, say
from planner.errors import UnitError

if TYPE_CHECKING:
    from planner.device import DeviceProfile
    from planner.spec import RunSpec


Decorator = Callable[[Callable[..., None]], Callable[..., None]]

PICTURES = ("png", "svg")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
host_budget_option = click.option(
    "--host-budget",
    metavar="SIZE",
    help="Pinned host memory that offloaded tensors may take; 0 for no offloading [default: half of the device's "
    "host_memory].",
)
quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress on stderr.")
database_option = click.option(
    "--db",
    "database",
    metavar="URL",
    default="sqlite:///planner.db",
    show_default=True,
    envvar="PLANNER_DB",
    show_envvar=True,
    help="Where a service keeps jobs and tokens: sqlite:///FILE or postgresql://USER@HOST/NAME. A password in the URL "
    "is for the environment variable alone: others can see a command's options.",
)
verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="Let warnings and log lines of torch and the model through."
)


class Number(click.FloatRange):
    """A finite number within a range: `FloatRange` alone lets nan pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def time_limit_option(default_s: float, help_text: str) -> Decorator:
    """The option that ends a search."""
    return click.option(
        "--time-limit",
        type=Number(min=0, min_open=True),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )


def gap_option(help_text: str) -> Decorator:
    """The option that says how close to optimal is close enough."""
    return click.option(
        "--gap", type=Number(min=0, max=1), default=0.005, show_default=True, metavar="FRACTION", help=help_text
    )


def sizes(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """The whole numbers of an option, from 1 and separated by commas."""
    if text is None:
        return None
    from planner.spec import MAX_SIZE

    parts = [part.strip() for part in text.split(",")]
    # Text too long for any size is not read: Python refuses thousands of digits.
    if not all(part.isdecimal() and len(part) <= len(str(MAX_SIZE)) and 1 <= int(part) <= MAX_SIZE for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers from 1 to {MAX_SIZE:,}, such as 1,2,4.")
    return tuple(int(part) for part in parts)


def dialect_of(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """The name of a dialect that an option gives."""
    from planner.linting.detection import DIALECTS

    if name is not None and name not in DIALECTS:
        raise click.BadParameter(f"{name!r} is no dialect; there are {', '.join(DIALECTS)}.")
    return name


def budget_bytes_of(text: str) -> int:
    """The bytes that `--budget` asks for."""
    from planner.units import parse_bytes

    try:
        return parse_bytes(text)
    except UnitError as error:
        raise UnitError(f"--budget: {error}", text=text) from None


def host_budget_bytes_of(profile: "DeviceProfile", text: str | None) -> int:
    """The bytes of host memory that `--host-budget` allows; more than the host has is worth a warning."""
    try:
        budget_bytes = profile.host_budget(text)
    except UnitError as error:
        raise UnitError(f"--host-budget: {error}", text=text or "") from None
    if budget_bytes > profile.host_memory_bytes:
        say(
            f"warning: the host budget of {text} is more than the {profile.host_memory_bytes / 1e9:.1f} GB of host "
            f"memory of {profile.name}"
        )
    return budget_bytes


def format_of(path: str, formats: Sequence[str] = PICTURES) -> str:
    """The format that the name of an output file asks for, one of those given."""
    suffix = os.path.splitext(path)[1].lower().removeprefix(".")
    if suffix in formats:
        return suffix
    ending = " or ".join(filter(None, (", ".join(f".{name}" for name in formats[:-1]), f".{formats[-1]}")))
    is_folder = path.endswith(os.sep) or os.path.isdir(path)
    wrong = f"{path!r} is a folder; name a file in it that ends in" if is_folder else f"{path!r} must end in"
    raise click.BadParameter(f"{wrong} {ending}.", param_hint="'--output' / '-o'")


def load_run(path: str) -> "RunSpec":
    """The run that a spec file describes, for commands that trace it."""
    from planner.spec import check_traceable, load

    run = load(path)
    check_traceable(run)  # before torch is imported
    return run


def device_of(run: "RunSpec", chosen: str | None) -> "DeviceProfile":
    """The device that `--device` names, or else the spec's."""
    from planner.device import load_device

    if chosen is not None:
        return load_device(chosen)
    return load_device(run.device, directory=os.path.dirname(run.path))


def timed_device_of(run: "RunSpec", chosen: str | None, report: Report) -> "DeviceProfile":
    """The same for commands that predict times: what its description leaves out is said."""
    from planner.device import DEFAULT_DEVICE

    profile = device_of(run, chosen)
    if profile.assumed_rates:
        report(f"{profile.name} is given without {', '.join(profile.assumed_rates)}: an {DEFAULT_DEVICE}'s are assumed")
    return profile


def warn_of_budget(budget: str, budget_bytes: int, profile: "DeviceProfile") -> None:
    """Says that the budget is more than the device has, if it is."""
    if budget_bytes > profile.memory_bytes:
        say(f"warning: the budget of {budget} is more than the {profile.memory_bytes / 1e9:.1f} GB of {profile.name}")
