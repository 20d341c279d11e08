"""What the commands of a script are once its variables are put in, each character with its place.

Nothing is executed: what only a run could know keeps the text that it was written as, and is marked as not known. What
depends on a condition is not certain, unless whoever uses it stands under that condition itself; where a variable may
have one of several values, nothing is known of it. The defaults of variables that a script takes from outside count as
their values: that is what it runs as it is. Bodies of functions are looked at last, with what the whole script sets.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from planner.linting.sources import SourceError
from planner.linting.sources.shell.syntax import (
    DECLARING,
    Assignment,
    Block,
    BlockKind,
    Command,
    Literal,
    Part,
    Region,
    Script,
    Statement,
    Variable,
    Word,
    read_script,
)

MAX_EXPANDED = 500_000  # characters, all words together: variables that double each other grow without bound
_MOST_VALUES = 8  # of one variable under different conditions, before nothing is said of it
_MOST_INNER_SCRIPTS = 4  # eval and bash -c within each other
_SETTING = frozenset(("read", "mapfile", "readarray", "getopts", "unset", "let"))  # variables by their names
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK = re.compile(r"[ \t\r\n]")
_NOT_BLANK = re.compile(r"[^ \t\r\n]+")


class Piece:
    """Text from one place: `is_known` is false for what could not be expanded, `is_certain` where it may not be so."""

    __slots__ = ("is_certain", "is_known", "places", "text")

    def __init__(self, text: str, places: Sequence[int], *, is_known: bool = True, is_certain: bool = True) -> None:
        self.text = text
        self.places = places
        self.is_known = is_known
        self.is_certain = is_certain


class Field:
    """One argument of a command: its pieces, and where a reader looks for it, quotes included.

    `is_open` says that it is a list which is not known: any number of arguments.
    """

    __slots__ = ("end", "is_open", "pieces", "start")

    def __init__(self, pieces: list[Piece], start: int, end: int, *, is_open: bool = False) -> None:
        self.pieces = pieces
        self.start = start
        self.end = end
        self.is_open = is_open

    @property
    def text(self) -> str:
        return self.pieces[0].text if len(self.pieces) == 1 else "".join(piece.text for piece in self.pieces)

    @property
    def places(self) -> Sequence[int]:
        if len(self.pieces) == 1:
            return self.pieces[0].places
        return [place for piece in self.pieces for place in piece.places]

    @property
    def is_known(self) -> bool:
        return all(piece.is_known for piece in self.pieces)


class Value:
    """What a variable was set to at one place; `fields` is None where that is not known.

    `is_more` says that it begins with what the variable was before.
    """

    __slots__ = ("fields", "is_array", "is_more", "key_end", "key_start", "region")

    def __init__(
        self,
        fields: list[Field] | None,
        region: Region,
        *,
        key: tuple[int, int] = (0, 0),
        is_array: bool = False,
    ) -> None:
        self.fields = fields
        self.region = region
        self.key_start, self.key_end = key
        self.is_array = is_array
        self.is_more = False


class Invocation:
    """A command with its arguments, and the environment variables that are set for it, by name."""

    __slots__ = ("environment", "fields", "region")

    def __init__(self, fields: list[Field], environment: dict[str, Value], region: Region) -> None:
        self.fields = fields
        self.environment = environment
        self.region = region


class Expander:
    """Goes through a script once, in its order, with the values of its variables."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.starts = [start for start, _ in script.borders]
        self.regions = script.regions
        self.values: dict[str, list[Value]] = {}
        self.times_set: dict[str, int] = {}
        self.exported: dict[str, None] = {}
        self.environment: dict[str, Value] | None = None  # as it is now, once somebody has asked
        self.environment_region: Region = ()
        self.functions: list[Block] = []
        self.function: Region | None = None
        self.set_by_functions = frozenset(_names_set(_functions(script.statements)))
        self.uncertain: set[int] = set()
        self.expanded = 0
        self.inner_scripts = 0
        self.invocations: list[Invocation] = []

    def run(self) -> list[Invocation]:
        """Every command, those in functions last."""
        self.statements(self.script.statements, ())
        while self.functions:
            block = self.functions.pop(0)
            self.function = block.region
            self.statements(block.statements, block.region)
        return self.invocations

    def is_certain(self, pieces: Sequence[Piece], region: Region) -> bool:
        """Whether a command in this region has these pieces whenever it is run."""
        return all(
            piece.is_certain and (not piece.places or _is_within(region, self.region_at(piece.places[0])))
            for piece in pieces
        )

    def region_at(self, place: int) -> Region:
        return self.script.borders[bisect_right(self.starts, place) - 1][1]

    # Statements.

    def statements(self, statements: list[Statement], region: Region) -> None:
        for statement in statements:
            if isinstance(statement, Command):
                self.command(statement, region)
            elif statement.kind == BlockKind.FUNCTION:
                self.functions.append(statement)
            else:
                if statement.kind == BlockKind.LOOP:
                    self.forget(_names_set([statement]), statement.region)
                self.statements(statement.statements, statement.region)

    def command(self, command: Command, region: Region) -> None:
        self.forget(command.changed, region)
        name = command.words[0].literal if command.words else ""
        if not command.words or name in DECLARING:
            for assignment in command.assignments:
                self.set(assignment.name, self.value_of(assignment, region))
            if name == "export" or (name in DECLARING and any(word.literal == "-x" for word in command.words)):
                self.export(command)
            return
        fields = [field for word in command.words for field in self.fields(word, region)]
        if not fields:
            return
        name = fields[0].text
        if name in _SETTING:
            self.forget([field.text for field in fields[1:]], region)
        given = {assignment.name: self.value_of(assignment, region) for assignment in command.assignments}
        script = _inner_script(fields)
        if script:
            self.inner_script(script, given, region)
        else:
            environment = self.exports(region)
            if given:
                self.count(len(environment))
                environment = {**environment, **given}
            self.invocations.append(Invocation(fields, environment, region))

    def export(self, command: Command) -> None:
        names = [word.literal or "" for word in command.words[1:]]
        names += [assignment.name for assignment in command.assignments]
        self.exported.update((name, None) for name in names if _NAME.fullmatch(name))
        self.environment = None

    def exports(self, region: Region) -> dict[str, Value]:
        """The exported variables with their values: what a condition decides has one that is not known."""
        if self.environment is None or self.environment_region != region:
            self.environment = {}
            self.environment_region = region
            for name in self.exported:
                self.count(len(name))
                found = self.lookup(name, region)
                if found is not None:
                    self.environment[name] = found[0] if len(found) == 1 else _unknown(found[0], region)
        return self.environment

    def inner_script(self, fields: list[Field], given: dict[str, Value], region: Region) -> None:
        """Runs through the text of a script that was handed to eval or to a shell."""
        if self.inner_scripts == _MOST_INNER_SCRIPTS:
            return
        pieces = _joined(fields)
        self.uncertain.update(place for piece in pieces if not piece.is_certain for place in piece.places)
        field = Field(pieces, 0, 0)
        before = self.exported
        self.exported = {**before, **dict.fromkeys(given)}
        for name, value in given.items():
            self.set(name, value)
        self.inner_scripts += 1
        self.count(len(field.text))
        script = read_script(field.text, field.places, region, self.regions)
        self.regions = script.regions
        self.statements(script.statements, region)
        self.inner_scripts -= 1
        self.exported = before
        self.environment = None

    # Variables.

    def value_of(self, assignment: Assignment, region: Region) -> Value:
        """What an assignment sets. What is appended, or has the variable in it, is its old value and more."""
        written = assignment.value
        key = (assignment.start, assignment.end)
        is_array = isinstance(written, list)
        if isinstance(written, list):
            fields = [field for word in written for field in self.fields(word, region)]
        else:
            fields = [Field(self.pieces(written, region), written.start, written.end)]
        if assignment.is_item:
            return Value(None, region, key=key)
        if assignment.appends:
            old = self.items(assignment.name, region, is_list=True)
            if old is None:
                return Value(None, region, key=key)
            if is_array:
                fields = old + fields
            else:
                fields = [Field(_joined(old[:1], "") + fields[0].pieces, fields[0].start, fields[0].end), *old[1:]]
        is_more = assignment.appends or assignment.name in _names_in(written)
        value = Value(fields, region, key=key, is_array=is_array)
        if is_more:  # it holds, without a doubt, what it held before: what is new is uncertain by its place
            value.is_more = True
            found = self.lookup(assignment.name, region)
            value.region = found[0].region if found and len(found) == 1 else region
        return value

    def set(self, name: str, value: Value) -> None:
        """Gives a variable a value: the only one, unless this is under a condition and the old one is not."""
        old = [other for other in self.values.get(name, ()) if not _is_within(other.region, value.region)]
        self.values[name] = [*old, value] if len(old) < _MOST_VALUES else [Value(None, ())]
        self.times_set[name] = self.times_set.get(name, 0) + (not value.is_more)
        if name in self.exported:
            self.environment = None

    def forget(self, names: Sequence[str], region: Region) -> None:
        for name in names:
            self.set(name, Value(None, region))

    def lookup(self, name: str, region: Region) -> list[Value] | None:
        """The values that a variable may have here, the last first; None where the script does not say what it is."""
        values = self.values.get(name)
        if not values:
            return None
        last = values[-1]
        if self.function is not None:
            if not _is_within(last.region, self.function) and self.times_set[name] > 1:
                return None
        elif name in self.set_by_functions:
            return None
        found: list[Value] = []
        for value in reversed(values):
            found.append(value)
            if _is_within(region, value.region):
                return found
        return [*found, Value(None, ())]  # it may as well be what it was outside of the script

    def items(self, name: str, region: Region, *, is_list: bool) -> list[Field] | None:
        """What a variable expands to; None where that is not known.

        Of several values it may have, those with flags are put in one after the other, none of them certain.
        """
        found = self.lookup(name, region)
        if found is None:
            return None
        fields: list[Field] = []
        for value in reversed(found):
            if value.fields is None:
                continue
            fields += value.fields if is_list or not value.is_array else value.fields[:1]
        self.count(sum(1 + len(piece.text) for field in fields for piece in field.pieces))
        if len(found) == 1:
            return None if found[0].fields is None else fields
        if not any(field.text.lstrip().startswith("-") for field in fields):
            return None
        return [Field([_uncertain(piece) for piece in field.pieces], field.start, field.end) for field in fields]

    # Words.

    def expansion(self, part: Variable, region: Region) -> list[Field] | None:
        """What a variable in a word stands for, before it is split; None where that is not known."""
        found = self.items(part.name, region, is_list=part.is_list)
        if part.alternate is not None:
            return None if found is None else self.fields(part.alternate, region)
        if part.default is None or found is not None or self.values.get(part.name):
            return found
        if any(isinstance(inner, Variable) and inner.is_list for inner in part.default.parts):
            return self.fields(part.default, region)
        default = Field(self.pieces(part.default, region), part.default.start, part.default.end)
        if part.assigns:
            self.set(part.name, Value([default], region, key=(default.start, default.start)))
        return [default]

    def pieces(self, word: Word, region: Region) -> list[Piece]:
        """A word as the value of a variable, which is not split: lists are joined by spaces."""
        pieces: list[Piece] = []
        for part in word.parts:
            expanded = self.expansion(part, region) if isinstance(part, Variable) else None
            pieces += [self.piece(part)] if expanded is None else _joined(expanded)
        return pieces

    def fields(self, word: Word, region: Region) -> list[Field]:
        """A word as arguments: none, one or more."""
        fields: list[Field] = []
        open_field: Field | None = None
        is_own = False
        for part in word.parts:
            cuts = self.cuts(part, region, word)
            for number, cut in enumerate(cuts):
                if open_field is None or number:
                    fields.append(cut)
                    open_field = cut
                    is_own = False
                    continue
                if not is_own:  # what a variable holds must not change
                    open_field = fields[-1] = Field(
                        [*open_field.pieces], word.start, word.end, is_open=open_field.is_open
                    )
                    is_own = True
                open_field.pieces += cut.pieces
                open_field.is_open |= cut.is_open
        return fields

    def cuts(self, part: Part, region: Region, word: Word) -> list[Field]:
        """A part of a word as arguments; the first of them continues what stands before it."""
        expanded = self.expansion(part, region) if isinstance(part, Variable) else None
        if expanded is None:
            is_open = isinstance(part, Variable) and part.is_list
            return [Field([self.piece(part)], word.start, word.end, is_open=is_open)]
        if part.is_quoted:
            return expanded
        return [cut for field in expanded for cut in _split(field)]

    def piece(self, part: Part) -> Piece:
        """What a part is as such."""
        self.count(1)
        is_certain = not self.uncertain or not part.places or part.places[0] not in self.uncertain
        return Piece(part.text, part.places, is_known=isinstance(part, Literal), is_certain=is_certain)

    def count(self, characters: int) -> None:
        self.expanded += characters
        if self.expanded > MAX_EXPANDED:
            raise SourceError(f"more than {MAX_EXPANDED:,} characters once its variables are expanded")


def _is_within(region: Region, outer: Region) -> bool:
    return region[: len(outer)] == outer


def _unknown(value: Value, region: Region) -> Value:
    return Value(None, region, key=(value.key_start, value.key_end))


def _uncertain(piece: Piece) -> Piece:
    return Piece(piece.text, piece.places, is_known=piece.is_known, is_certain=False)


def _joined(fields: list[Field], separator: str = " ") -> list[Piece]:
    """The pieces of fields with a separator between them, which stands where the next one begins."""
    pieces: list[Piece] = []
    for number, field in enumerate(fields):
        if number and separator:
            pieces.append(Piece(separator, [field.start]))
        pieces += field.pieces
    return pieces


def _split(field: Field) -> Iterator[Field]:
    """The fields between blanks. What is not known is not looked into; a field without blanks stays as it is."""
    if not any(piece.is_known and _BLANK.search(piece.text) for piece in field.pieces):
        if field.text:
            yield field
        return
    pieces: list[Piece] = []
    for piece in field.pieces:
        if not piece.is_known:
            pieces.append(piece)
            continue
        end = 0
        for match in _NOT_BLANK.finditer(piece.text):
            if pieces and match.start() > end:
                yield _placed(pieces, field)
                pieces = []
            end = match.end()
            places = piece.places[match.start() : end]
            pieces.append(Piece(match[0], places, is_certain=piece.is_certain))
        if pieces and end < len(piece.text):
            yield _placed(pieces, field)
            pieces = []
    if pieces:
        yield _placed(pieces, field)


def _placed(pieces: list[Piece], whole: Field) -> Field:
    """A field of pieces cut out of another one; its place is that of its own characters if they stand together."""
    start, end = pieces[0].places[0], pieces[-1].places[-1] + 1
    length = sum(len(piece.text) for piece in pieces)
    if end - start != length:
        start, end = (start, end) if whole.start <= start < end <= whole.end else (whole.start, whole.end)
    return Field(pieces, start, end)


def _inner_script(fields: list[Field]) -> list[Field]:
    """The arguments that are a script themselves, of eval and of a shell that is told to run one."""
    if fields[0].text == "eval":
        return fields[1:]
    is_shell = False
    for number, field in enumerate(fields[:-1]):
        if is_shell and field.text.startswith("-"):
            if field.text.endswith("c"):
                return fields[number + 1 : number + 2]
        else:
            is_shell = field.text.rpartition("/")[2] in _SHELLS
    return []


def _functions(statements: list[Statement]) -> list[Statement]:
    """The functions that are defined in these statements, at any depth, but not in each other."""
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Block):
            found += [statement] if statement.kind == BlockKind.FUNCTION else _functions(statement.statements)
    return found


def _names_set(statements: list[Statement]) -> list[str]:
    """The variables that statements set, except for a function's own."""
    names: list[str] = []
    for statement in statements:
        if isinstance(statement, Block):
            names += [statement.name] * bool(statement.name) + _names_set(statement.statements)
            continue
        first = statement.words[0].literal if statement.words else ""
        names += statement.changed
        if first in _SETTING:
            names += [word.literal or "" for word in statement.words[1:]]
        if first != "local" and (not statement.words or first in DECLARING):
            names += [assignment.name for assignment in statement.assignments]
    return names


def _names_in(written: Word | list[Word]) -> frozenset[str]:
    """The variables that an assigned value begins with or has among its items."""
    words = written if isinstance(written, list) else [written]
    return frozenset(part.name for word in words for part in word.parts if isinstance(part, Variable))
