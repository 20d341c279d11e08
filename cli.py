"""The `planner` command: the list of commands, and errors as exit codes.

Nothing heavy is imported before a command needs it: `planner --help` loads neither torch nor a solver. What
is printed is made in `planner.reporting`; results go to stdout, progress and errors to stderr.
"""

import gc

# What modules define as they load is no garbage, and looking for it takes a tenth of a start.
_COLLECTS = gc.isenabled()
gc.disable()

import errno
import os
import sys
from importlib import import_module
from typing import IO, Any

import click
from click.exceptions import NoArgsIsHelpError

from planner import __version__
from planner.commands.interrupts import INTERRUPTED, INTERRUPTED_STATUS, is_interrupt
from planner.commands.output import say
from planner.errors import PlannerError

if _COLLECTS:
    gc.enable()

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
    "prune": "prune",
    "devices": "catalogue",
    "presets": "catalogue",
}


class _WrongUsage(click.ClickException):
    """An error of click's in one line, with the way out."""

    exit_code = PlannerError.exit_status

    def __init__(self, error: click.UsageError, command_path: str) -> None:
        message = error.format_message().strip()
        ending = "" if message.endswith(("?", ".")) else "."
        super().__init__(f"{message[:1].lower()}{message[1:]}{ending} See {command_path} --help")

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"error: {self.message}")


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in _MODULE_BY_COMMAND or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches  # only where something is wrong

        near = get_close_matches(name, _MODULE_BY_COMMAND, n=1)
        raise click.UsageError(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""), ctx)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(info_name, args, *more, **extra)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise _WrongUsage(error, info_name or "planner") from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            own = ctx.command_path if ctx.invoked_subcommand is None else f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise _WrongUsage(error, own) from None
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
