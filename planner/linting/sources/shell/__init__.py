"""Shell scripts: the settings of each command, with the place of every flag and value. Nothing is executed.

A document's root is a `Sequence` with a `Mapping` for each command that has at least one flag (``--name``), or override
(``name=value``). Its entries are the flags, without their leading dashes and as often as they are given:
``--flag value``, ``--flag=value``, ``--flag`` alone (true), ``--flag several values`` (a `Sequence`); ``--a.b 1`` is b
in a. Besides them it has

- ``$command``: the words of the program before its first flag, such as "torchrun pretrain_gpt.py";
- ``$env``: the environment variables that the script sets for it, by name;
- ``$launcher``: the flags before the program, of torchrun, accelerate launch, deepspeed, srun and others;
- ``$unknown``: arguments that only a run could know, such as "$@". Where it is there, a flag that is missing may yet be
  given.

Places are those of the characters themselves: of a flag in ``ARGS="--a 1"`` or in ``ARGS=(--a 1)`` they are in there,
and of ``--a $X`` the value's place is where X is set. They include quotes around the whole value.

What the script does not determine keeps its text, such as "$1" or "$(nproc)"; what a condition decides (which value, or
whether a flag is there at all) has the value "${...}". So nothing is known of a value with a "$" in it.
"""

from planner.configs.tree import Document, Node, Sequence, SourceFormat
from planner.linting.sources import SourceError
from planner.linting.sources.shell.commands import mappings
from planner.linting.sources.shell.expansion import Expander
from planner.linting.sources.shell.syntax import read_script

MAX_CHARACTERS = 100_000  # tighter than for other formats: one character may be a command


def parse(text: str, path: str) -> Document:
    """The document of a shell script.

    Raises:
        SourceError: A quote or bracket is never closed, or it is long, nested or expanded beyond the limits.
    """
    if len(text) > MAX_CHARACTERS:
        raise SourceError(f"longer than {MAX_CHARACTERS:,} characters, which no training script should be")
    script = read_script(text)
    expander = Expander(script)
    commands: list[Node] = [*mappings(expander.run(), expander, text)]
    commands.sort(key=lambda command: command.start)
    return Document(
        path=path,
        text=text,
        format=SourceFormat.SHELL,
        root=Sequence(0, len(text), commands),
        comments=tuple(script.comments),
    )
