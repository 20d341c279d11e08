"""A command's arguments as settings: which program it runs under which launcher, and its flags with their values.

Values are converted as programs do by their argument parsers: decimal numbers are numbers, true and false are truth
values, and all else is text, quoted or not.
"""

import re
from collections.abc import Iterator

from planner.configs.tree import Entry, Mapping, Node, Scalar, Sequence
from planner.linting.sources import MAX_DEPTH, MAX_NODES, SourceError
from planner.linting.sources.shell.expansion import Expander, Field, Invocation, Piece, Value

# A value of which the script does not say what it is, or a flag of which it does not say whether it is there.
UNKNOWN = "${...}"

_FLAG = re.compile(r"--?([A-Za-z][^=\s]*)(=)?")
_OVERRIDE = re.compile(r"(?:\+\+?)?([A-Za-z_]\w*(?:[./]\w+)*)(=)")  # Hydra's key=value
_INT = re.compile(r"[-+]?[0-9](?:_?[0-9])*")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_MOST_DIGITS = 300  # of a number; Python refuses to read thousands
_END = re.compile(r"[;&|]+|[0-9]*(?:<|>|&>).*")  # of a command that a variable holds as a whole

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_PYTHON_OPTIONS_WITH_VALUES = frozenset(("-W", "-X", "--check-hash-based-pycs"))
# Launchers, and which of their flags have no value, dashes as underscores. Whatever follows them without a dash is the
# program. Read with argparse from torch 2.13 (distributed/run.py), accelerate 1.15 (commands/launch.py) and DeepSpeed
# 2d991ba (launcher/runner.py).
_LAUNCHERS = {
    "torchrun": """standalone m module no_python run_path virtual_local_rank use_env""",
    "accelerate": """
        q quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic
        dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network m
        module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug
    """,
    "deepspeed": """
        module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank
    """,
}
_LAUNCHER_BY_MODULE = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_MODULE_FLAGS = frozenset(("m", "module"))
_WRAPPERS = """
    apptainer command conda docker env exec ibrun ipexrun jsrun mpiexec mpirun ncu nice nohup nsys numactl podman poetry
    ray singularity srun stdbuf sudo taskset time timeout uv
"""  # which run another program, looked for among their arguments
_PROGRAMS = """
    automodel axolotl composer fabric lightning litgpt llamafactory-cli megatron nemo sglang swift trl tune vllm
"""  # that train or serve, as far as they are not scripts


def _is_program(name: str) -> bool:
    return bool(_PYTHON.fullmatch(name)) or name in _PROGRAMS.split() or name in _LAUNCHERS


def to_mapping(invocation: Invocation, expander: Expander, text: str, count: "Count") -> Mapping | None:
    """The settings of a command; None for one without any."""
    return _Arguments(invocation, expander, text, count).mapping()


class Count:
    """How many nodes have been made for a script."""

    def __init__(self) -> None:
        self.nodes = 0
        self.environments: dict[int, tuple[dict[str, Value], Mapping]] = {}

    def add(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise SourceError(f"more than {MAX_NODES:,} values once its variables are expanded")


class _Flag:
    """A flag while its values are collected."""

    __slots__ = ("is_bare", "is_certain", "is_long", "key", "key_end", "key_start", "values")

    def __init__(self, key: str, key_start: int, key_end: int, *, is_certain: bool, is_long: bool) -> None:
        self.key = key
        self.key_start = key_start
        self.key_end = key_end
        self.is_certain = is_certain
        self.is_long = is_long  # two dashes, or an override: no option of mkdir or test
        self.is_bare = True  # without "=", so that values may follow
        self.values: list[Scalar] = []

    def entry(self) -> Entry:
        value: Node
        if len(self.values) == 1:
            value = self.values[0]
        elif self.values:
            first, last = self.values[0], self.values[-1]
            is_in_order = first.start < last.end
            value = Sequence(first.start, last.end if is_in_order else first.end, [*self.values])
        else:
            value = Scalar(self.key_end, self.key_end, True)
        if not self.is_certain:
            value = Scalar(value.start, value.end, UNKNOWN)
        return Entry(self.key, self.key_start, self.key_end, value)


class _Arguments:
    """Reads the arguments of one command."""

    def __init__(self, invocation: Invocation, expander: Expander, text: str, count: Count) -> None:
        self.fields = invocation.fields
        self.environment = invocation.environment
        self.region = invocation.region
        self.expander = expander
        self.text = text
        self.count = count
        self.program: list[Field] = []
        self.launcher: list[_Flag] = []
        self.flags: list[_Flag] = []
        self.unknown: list[Scalar] = []
        self.position = 0

    def mapping(self) -> Mapping | None:
        if self.fields[0].text.startswith("-"):
            return None
        self.read_program()
        self.read_flags()
        if not any(flag.is_long for flag in self.flags) and not (self.launcher and self.unknown):
            return None
        start, end = self.fields[0].start, max(self.fields[-1].end, self.fields[0].end)
        name = " ".join(field.text for field in self.program)
        place = self.program[-1]
        special = [
            Entry("$command", start, start, Scalar(place.start, place.end, name)),
            Entry("$env", start, start, self.environment_mapping(start)),
        ]
        if self.launcher:
            special.append(Entry("$launcher", start, start, _mapping(self.launcher, start, end)))
        if self.unknown:
            special.append(Entry("$unknown", start, start, Sequence(start, end, [*self.unknown])))
        self.count.add(len(special) + sum(1 + len(flag.values) for flag in self.flags + self.launcher))
        entries = special + _mapping(self.flags, start, end).entries
        return Mapping(start, end, entries, [])

    def environment_mapping(self, start: int) -> Mapping:
        known = self.count.environments.get(id(self.environment))
        if known is not None:
            return known[1]
        entries = []
        for name, value in self.environment.items():
            node = Scalar(value.key_end, value.key_end, UNKNOWN)
            if value.fields is not None and len(value.fields) == 1:
                node = self.scalar(value.fields[0], 0)
            entries.append(Entry(name, value.key_start, value.key_end, node))
        self.count.add(len(entries))
        found = Mapping(start, start, entries, [])
        self.count.environments[id(self.environment)] = (self.environment, found)  # kept, so that its id stays its own
        return found

    # The program.

    def read_program(self) -> None:
        """Reads what is before the program's own flags."""
        while self.position < len(self.fields):
            name = self.take_program()
            if _PYTHON.fullmatch(name):
                name = self.read_python()
            launcher = _LAUNCHER_BY_MODULE.get(name, name)
            if launcher == "accelerate" and name == launcher:
                if self.next_text() != "launch":
                    break
                self.take_program()
            if launcher in _LAUNCHERS:
                if self.read_launcher(_LAUNCHERS[launcher].split()):
                    continue
                return
            if name not in _WRAPPERS.split() or not self.read_wrapper():
                break
        while self.position < len(self.fields) and not self.next_text().startswith("-"):
            if _OVERRIDE.match(self.next_text()) or _END.fullmatch(self.next_text()):
                return
            if self.fields[self.position].is_open:
                return
            self.take_program()

    def next_text(self) -> str:
        return self.fields[self.position].text if self.position < len(self.fields) else ""

    def take_program(self) -> str:
        """Adds the next word to those of the program, and gives its name without the folder."""
        field = self.fields[self.position]
        self.program.append(field)
        self.position += 1
        return field.text.rpartition("/")[2]

    def read_python(self) -> str:
        """Reads Python's own options; gives the module that it is to run, or nothing for a script."""
        while self.next_text().startswith("-"):
            option = self.next_text()
            if option == "-m" and self.position + 1 < len(self.fields):
                self.take_program()
                self.take_program()
                return self.program[-1].text
            self.position += 2 if option in _PYTHON_OPTIONS_WITH_VALUES else 1
        return ""

    def read_launcher(self, bare: list[str]) -> bool:
        """Reads a launcher's flags; whether the program after it runs another one in turn."""
        while self.position < len(self.fields):
            field = self.fields[self.position]
            match = _FLAG.match(field.text)
            if match is None:
                break
            self.position += 1
            flag = self.flag(field, match)
            self.launcher.append(flag)
            name = match[1].replace("-", "_")
            if name in _MODULE_FLAGS and self.position < len(self.fields):
                self.program.append(field)
                self.take_program()
                return False
            following = self.next_text()
            if flag.is_bare and name not in bare and following and not _FLAG.match(following):
                flag.values.append(self.scalar(self.fields[self.position], 0))
                self.position += 1
        if self.position == len(self.fields) or self.fields[self.position].is_open:
            return False
        name = self.next_text().rpartition("/")[2]
        if _is_program(name):
            return True
        self.take_program()
        return False

    def read_wrapper(self) -> bool:
        """Reads up to the program that a wrapper runs; whether there is one."""
        for number in range(self.position, len(self.fields)):
            text = self.fields[number].text
            name = text.rpartition("/")[2]
            if not _is_program(name) and text != "--" and not name.endswith(".py"):
                continue
            self.launcher += self.read(self.fields[self.position : number])
            self.position = number + (text == "--")
            return self.position < len(self.fields)
        return False

    # Flags.

    def read_flags(self) -> None:
        self.flags = self.read(self.fields[self.position :])

    def read(self, fields: list[Field]) -> list[_Flag]:
        """The flags of a program with the values that follow them."""
        flags: list[_Flag] = []
        for field in fields:
            text = field.text
            if _END.fullmatch(text) and field.is_known and self.text[field.start : field.start + 1] not in "\"'":
                break
            last = flags[-1] if flags and flags[-1].is_bare else None
            match = _FLAG.match(text)
            if match is None and (last is None or (last.values and "." in text)):
                match = _OVERRIDE.match(text)
            if match is not None and self.is_name_known(field, match):
                flags.append(self.flag(field, match))
            elif match is not None or field.is_open or (not field.is_known and (not last or text.startswith("--"))):
                self.unknown.append(self.scalar(field, 0))
            elif last is not None:
                last.values.append(self.scalar(field, 0))
        return flags

    def is_name_known(self, field: Field, match: re.Match[str]) -> bool:
        end = 0
        for piece in field.pieces:
            if end >= match.end():
                break
            if not piece.is_known:
                return False
            end += len(piece.text)
        return True

    def flag(self, field: Field, match: re.Match[str]) -> _Flag:
        start, end = _span(field, match.start(1), match.end(1))
        is_certain = self.expander.is_certain(field.pieces[:1], self.region)
        is_long = field.text.startswith("--") or not field.text.startswith("-")
        flag = _Flag(match[1], start, end, is_certain=is_certain, is_long=is_long)
        if match[2]:
            flag.is_bare = False
            flag.values.append(self.scalar(field, match.end()))
        return flag

    def scalar(self, field: Field, start: int) -> Scalar:
        """The value that a field is from one of its characters on."""
        text = field.text[start:]
        first, last = (field.start, field.end) if start == 0 else self.value_span(field, start)
        pieces = field.pieces if start == 0 else _pieces_after(field, start)
        if not self.expander.is_certain(pieces, self.region):
            return Scalar(first, last, UNKNOWN)
        is_quoted = first < last and self.text[first] in "\"'" and self.text[first:last] != text
        return Scalar(first, last, convert(text), quoted=is_quoted)

    def value_span(self, field: Field, start: int) -> tuple[int, int]:
        if start == len(field.text):
            return field.end, field.end
        first, last = _span(field, start, len(field.text))
        mark = self.text[first - 1 : first]
        if mark in ("'", '"') and self.text[first - 2 : first - 1] == "=" and self.text[last : last + 1] == mark:
            return first - 1, last + 1  # the value's own quotes
        return first, last


def convert(text: str) -> str | int | float | bool:
    """The value that a program's argument parser makes of an argument."""
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if len(text) > _MOST_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _pieces_after(field: Field, start: int) -> list[Piece]:
    end = 0
    found = []
    for piece in field.pieces:
        end += len(piece.text)
        if end > start:
            found.append(piece)
    return found


def _span(field: Field, start: int, end: int) -> tuple[int, int]:
    """Where characters of a field stand; the whole field where they do not stand together."""
    places = field.places
    first, last = places[start], places[end - 1] + 1
    if last - first == end - start or field.start <= first < last <= field.end:
        return first, last
    return field.start, field.end


def _mapping(flags: list[_Flag], start: int, end: int) -> Mapping:
    """The flags as entries, those with dots in mappings below each other.

    A flag that may not be there is one entry, however often: which of them counts is not known.
    """
    last = {flag.key: flag for flag in flags}
    uncertain = {flag.key for flag in flags if not flag.is_certain}
    root = Mapping(start, end, [], [])
    for flag in flags:
        if flag.key in uncertain:
            if flag is not last[flag.key]:
                continue
            flag.is_certain = False
        _add(root, flag.key, flag.entry())
    return root


def _add(root: Mapping, key: str, entry: Entry) -> None:
    """Adds an entry below the parts of a dotted key; as it is where another value is in the way."""
    *outer, last = key.split(".")
    mapping = root
    place = entry.key_start
    if len(outer) < MAX_DEPTH and all(outer) and last and entry.key_end - entry.key_start == len(key):
        for part in outer:
            found = mapping.by_key.get(part)
            if found is None:
                found = Entry(part, place, place + len(part), Mapping(entry.key_start, entry.value.end, [], []))
                mapping.entries.append(found)
                mapping.by_key[part] = found
            if not isinstance(found.value, Mapping):
                break
            mapping = found.value
            place += len(part) + 1
        else:
            entry = Entry(last, place, entry.key_end, entry.value)
            mapping.entries.append(entry)
            mapping.by_key[last] = entry
            return
    root.entries.append(entry)
    root.by_key[entry.key] = entry


def mappings(invocations: list[Invocation], expander: Expander, text: str) -> Iterator[Mapping]:
    """The settings of every command that has any."""
    count = Count()
    for invocation in invocations:
        mapping = to_mapping(invocation, expander, text, count)
        if mapping is not None:
            yield mapping
