"""The `planner` command: the list of commands, and errors as exit codes.

Nothing heavy is imported before a command needs it: `planner --help` loads neither torch nor a solver. What
is printed is made in `planner.reporting`; results go to stdout, progress and errors to stderr.
"""

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from planner import __version__
from planner.commands.interrupts import INTERRUPTED, INTERRUPTED_STATUS, is_interrupt
from planner.commands.output import say
from planner.errors import PlannerError

# Each command's module; the function in it has the command's name. Only the one that is asked for is imported, since
# `planner lint` runs before each commit.
_MODULE_BY_COMMAND = {
    "solve": "solve",
    "frontier": "frontier",
    "compare": "compare",
    "report": "report",
    "estimate": "estimate",
    "trace": "trace",
    "verify": "verify",
    "profile": "profile",
    "kv": "kv",
    "lint": "lint",
    "rules": "rules",
    "rule": "rules",
    "serve": "serve",
    "worker": "serve",
    "token": "token",
    "devices": "catalogue",
    "presets": "catalogue",
}


class _Commands(click.Group):
    """A group that imports a command when it is asked for, and ends errors in one line and the error's exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULE_BY_COMMAND)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module_name = _MODULE_BY_COMMAND.get(cmd_name)
        if module_name is None:
            return None
        command: click.Command = getattr(import_module(f"planner.commands.{module_name}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PlannerError as error:
            if is_interrupt(error):
                say(INTERRUPTED)
                ctx.exit(INTERRUPTED_STATUS)
            say(f"error: {error}")
            ctx.exit(error.exit_status)
        except KeyboardInterrupt:
            say(INTERRUPTED)
            ctx.exit(INTERRUPTED_STATUS)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            say(f"error: the results cannot be written: {error.strerror or error}")
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # or Python would try again at exit, and complain
            ctx.exit(PlannerError.exit_status)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="planner")
def main() -> None:
    """Plan which saved tensors of a PyTorch training step to save, to recompute and to offload to the host.

    \b
    Examples:
      planner solve examples/llama-3-8b.yaml --budget 40GB
      planner trace examples/llama-3-8b.yaml
      planner lint configs/
      planner devices

    Exit status: 0 done; 1 no plan fits the budget, or findings; 2 the input cannot be used; 130 interrupted.
    """


if __name__ == "__main__":
    main()
