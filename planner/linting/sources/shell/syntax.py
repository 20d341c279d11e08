"""Bash as statements whose words know where every character stands. Nothing is expanded here, and nothing executed.

Read are commands, assignments, arrays, quotes, parameters with defaults, lists (``&&``, ``||``), pipelines, groups,
conditions, loops and functions. Command substitutions, arithmetic and other expansions are kept as the text that they
are; redirections, here-documents and conditions in brackets are skipped. What is no valid script is read as well as it
can be, unless a quote or bracket is never closed.
"""

import re
from collections.abc import Sequence

from planner.configs.tree import Comment
from planner.linting.sources import MAX_DEPTH, SourceError, is_alone
from planner.records import field, record


class Part:
    """A piece of a word: `text` as it reads, and the document's offset of each of its characters."""

    __slots__ = ("is_quoted", "places", "text")

    def __init__(self, text: str, places: Sequence[int], *, is_quoted: bool) -> None:
        self.text = text
        self.places = places
        self.is_quoted = is_quoted


class Literal(Part):
    """Text that means itself."""

    __slots__ = ()


class Opaque(Part):
    """An expansion that is not looked into, as it was written."""

    __slots__ = ()


class Variable(Part):
    """An expansion of a variable. `text` is as it was written, `default` what stands for it where it is not set.

    `is_list` says that it expands to each item of an array, `assigns` that the default becomes its value; `alternate`
    is what is used instead where it is set.
    """

    __slots__ = ("alternate", "assigns", "default", "is_list", "name")

    def __init__(self, name: str, text: str, places: Sequence[int], *, is_quoted: bool, is_list: bool = False) -> None:
        super().__init__(text, places, is_quoted=is_quoted)
        self.name = name
        self.is_list = is_list
        self.default: Word | None = None
        self.alternate: Word | None = None
        self.assigns = False


class Word:
    """A word, from `start` to before `end` in the document, with its quotes."""

    __slots__ = ("end", "parts", "start")

    def __init__(self, parts: list[Part], start: int, end: int) -> None:
        self.parts = parts
        self.start = start
        self.end = end

    @property
    def literal(self) -> str | None:
        """The word's text, or None where it expands to something."""
        if all(type(part) is Literal for part in self.parts):
            return "".join(part.text for part in self.parts)
        return None


class Assignment:
    """``name=value``, or ``name+=value``; an array's value is a list of words."""

    __slots__ = ("appends", "end", "is_item", "name", "start", "value")

    def __init__(
        self, name: str, value: Word | list[Word], start: int, end: int, *, appends: bool, is_item: bool
    ) -> None:
        self.name = name
        self.value = value
        self.start = start  # of the name
        self.end = end
        self.appends = appends
        self.is_item = is_item  # name[index]=value


class Command:
    """A command with the assignments before it; after export and the like, assignments are its arguments."""

    __slots__ = ("assignments", "changed", "words")

    def __init__(self, words: list[Word], assignments: list[Assignment], changed: Sequence[str] = ()) -> None:
        self.changed = changed  # names that arithmetic changes, in a command of nothing else
        self.words = words
        self.assignments = assignments


class BlockKind:
    """When the statements of a block are run."""

    BRANCH = "branch"  # once or never
    LOOP = "loop"
    FUNCTION = "function"


class Block:
    """Statements that are run under a condition. Whatever is written at `region` or below is inside of it.

    `name` is a loop's variable.
    """

    __slots__ = ("kind", "name", "region", "statements")

    def __init__(self, kind: str, region: "Region", statements: "list[Statement]", name: str = "") -> None:
        self.kind = kind
        self.region = region
        self.statements = statements
        self.name = name


Statement = Command | Block
Region = tuple[int, ...]  # a path of block numbers, outermost first; () is what is always run


@record
class Script:
    """A script.

    Attributes:
        statements: In its order.
        comments: In its order.
        borders: Where a region begins: its offset, and what region it is up to the next border.
        regions: How many there are.
    """

    statements: list[Statement] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    borders: list[tuple[int, Region]] = field(default_factory=list)
    regions: int = 0


def read_script(text: str, places: Sequence[int] | None = None, region: Region = (), regions: int = 0) -> Script:
    """The statements of a script.

    Args:
        text: The script.
        places: The document's offset of each character, for a script that is a value in another one. Such a script has
            neither comments nor borders of its own.
        region: The region that such a script is in.
        regions: How many there are outside of it.

    Raises:
        SourceError: A quote or bracket is never closed, or it is nested beyond the limit.
    """
    reader = _Reader(text, places, region, regions)
    statements = reader.statements(frozenset())
    return Script(statements=statements, comments=reader.comments, borders=reader.borders, regions=reader.regions)


_BLANK = re.compile(r"(?:[ \t\r]+|\\\r?\n)*")
_KEYWORD = re.compile(r"[^ \t\r\n;&|<>()'\"\\$`#]+(?=[ \t\r\n;&|<>()]|\Z)")
_MOST_INDEX = 100  # characters of an array's index: a bound on what is looked through in vain
_MOST_INNER_HEREDOCS = 100  # within substitutions, for the same reason
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\[[^\] \t\r\n]{{0,{_MOST_INDEX}}}\])?(\+?)=")
_FUNCTION = re.compile(r"[^ \t\r\n;&|<>()'\"\\$`#=]+[ \t]*\([ \t]*\)")
_REDIRECTION = re.compile(r"[0-9]*(?:<<<|<<-?|<>|<&|<(?!\()|>&|>>|>\||>(?!\())|&>>?")
_EXPANSION = re.compile(rf"\$\{{([!#]?)({_NAME}|[0-9]+|[@*#?$!-])(\[[^\]\n]{{0,{_MOST_INDEX}}}\])?")
_DEFAULT = re.compile(r":?[-=+?]")
_SIMPLE_EXPANSION = re.compile(rf"\$({_NAME}|[0-9@*#?$!-])")
_HEREDOC_IN_SUBSTITUTION = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z0-9_]+)\1")
_ARITHMETIC_CHANGE = re.compile(rf"({_NAME})[ \t]*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))")
DECLARING = frozenset(("export", "declare", "typeset", "local", "readonly"))
_CASE_ENDS = (";;&", ";;", ";&")

_IN_WORD = re.compile(r"[^ \t\r\n'\"\\$`;&|<>()]+")
_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_IN_BRACES = re.compile(r"[^'\"\\$`}]+")
_IN_QUOTED_BRACES = re.compile(r"[^\"\\$`}]+")


class _Reader:
    """Reads by recursive descent, counting the depth."""

    def __init__(self, text: str, places: Sequence[int] | None, region: Region, regions: int) -> None:
        self.text = text
        self.is_document = places is None
        self.places = range(len(text)) if places is None else places
        self.position = 1 if text.startswith("\ufeff") else 0
        self.depth = 0
        self.heredocs: list[tuple[str, bool]] = []
        self.inner_heredocs = 0
        self.comments: list[Comment] = []
        self.region = region
        self.regions = regions
        self.borders: list[tuple[int, Region]] = [(0, region)]

    # Statements.

    def statements(self, stops: frozenset[str]) -> list[Statement]:
        """The statements up to one of the words that stop them, or to the end."""
        self.enter()
        found: list[Statement] = []
        while not self.is_at_stop(stops):
            before = self.position
            found += self.list_of_pipelines()
            if self.position == before:  # what cannot begin a statement here, such as a stray bracket
                self.position += 1
        self.depth -= 1
        return found

    def is_at_stop(self, stops: frozenset[str]) -> bool:
        while True:
            self.skip_blank()
            if self.position >= len(self.text):
                return True
            if ";;" in stops and self.text.startswith(_CASE_ENDS, self.position):
                return True
            if self.text[self.position] == "\n":
                self.skip_line_end()
            elif self.text[self.position] in ";&" and not _REDIRECTION.match(self.text, self.position):
                self.position += 1
            else:
                break
        return (self.text[self.position] == ")" and ")" in stops) or self.keyword() in stops

    def list_of_pipelines(self) -> list[Statement]:
        """Pipelines joined by && and ||: what comes after the first one is run under a condition."""
        found = self.pipeline()
        last = ""
        outer = self.region
        block: list[Statement] = []
        while True:
            self.skip_blank()
            operator = self.text[self.position : self.position + 2]
            if operator not in ("&&", "||"):
                self.leave(outer)
                return found
            self.position += 2
            self.skip_lines()
            if operator != last:
                last = operator
                self.leave(outer)
                block = []
                found.append(Block(BlockKind.BRANCH, self.begin_region(), block))
            block += self.pipeline()

    def pipeline(self) -> list[Statement]:
        found = self.command()
        while True:
            self.skip_blank()
            if not self.at("|") or self.at("||"):
                return found
            self.position += 2 if self.at("|&") else 1
            self.skip_lines()
            found += self.command()

    def command(self) -> list[Statement]:
        self.skip_blank()
        if self.at("(("):
            start = self.position
            self.position = self.closing_bracket(start)
            return [Command([], [], _ARITHMETIC_CHANGE.findall(self.text[start : self.position]))]
        if self.at("("):
            self.position += 1
            found: list[Statement] = [self.block(BlockKind.BRANCH, frozenset((")",)))]
            self.expect(")")
            return found
        keyword = self.keyword()
        compound = _COMPOUND.get(keyword)
        if compound is not None:
            self.position += len(keyword)
            return compound(self)
        function = _FUNCTION.match(self.text, self.position)
        if function is not None:
            self.position = function.end()
            return self.function_body()
        return self.simple_command()

    def block(self, kind: str, stops: frozenset[str], name: str = "") -> Block:
        """The statements up to a word that stops them, as a block of their own."""
        outer = self.region
        region = self.begin_region()
        statements = self.statements(stops)
        self.leave(outer)
        return Block(kind, region, statements, name)

    def group(self) -> list[Statement]:
        found = self.statements(frozenset(("}",)))
        self.expect("}")
        return found

    def condition(self) -> list[Statement]:
        """The branches of an if; what its conditions do is done outside of them."""
        found = self.statements(frozenset(("then", "fi")))
        while not self.expect("fi") and self.position < len(self.text):
            if self.expect("then") or self.expect("else"):
                found.append(self.block(BlockKind.BRANCH, frozenset(("elif", "else", "fi"))))
            elif self.expect("elif"):
                found += self.statements(frozenset(("then", "fi")))
            else:
                break
        return found

    def loop(self) -> list[Statement]:
        """The statements of while and until."""
        return self.loop_body(self.statements(frozenset(("do",))))

    def loop_body(self, found: list[Statement], name: str = "") -> list[Statement]:
        if self.expect("do"):
            found.append(self.block(BlockKind.LOOP, frozenset(("done",)), name))
            self.expect("done")
        return found

    def counted_loop(self) -> list[Statement]:
        self.skip_blank()
        if self.at("(("):
            self.position = self.closing_bracket(self.position)
        name = self.keyword()
        self.statements(frozenset(("do",)))  # "x in a b c": no command, and skipped
        return self.loop_body([], name)

    def cases(self) -> list[Statement]:
        found: list[Statement] = []
        self.skip_lines()
        self.word()
        self.skip_lines()
        self.expect("in")
        while True:
            self.skip_lines()
            if self.position >= len(self.text) or self.expect("esac"):
                return found
            before = self.position
            self.skip_pattern()
            found.append(self.block(BlockKind.BRANCH, frozenset((";;", "esac"))))
            end = next((end for end in _CASE_ENDS if self.at(end)), "")
            self.position += len(end)
            if self.position == before:
                return found

    def skip_pattern(self) -> None:
        """Moves past ``(a|b)`` or ``a|b)``."""
        if self.at("("):
            self.position += 1
        while self.position < len(self.text):
            self.skip_blank()
            if self.at(")"):
                self.position += 1
                return
            before = self.position
            self.word()
            if self.position == before:
                if not self.at("|"):
                    return
                self.position += 1

    def named_function(self) -> list[Statement]:
        self.skip_blank()
        self.word()
        self.skip_blank()
        if self.at("("):
            self.position = self.closing_bracket(self.position)
        return self.function_body()

    def function_body(self) -> list[Statement]:
        self.enter()
        self.skip_lines()
        outer = self.region
        region = self.begin_region()
        statements = self.command()
        self.leave(outer)
        self.depth -= 1
        return [Block(BlockKind.FUNCTION, region, statements)]

    def test(self) -> list[Statement]:
        """[[ ... ]], in which operators mean something else."""
        while self.position < len(self.text):
            self.skip_lines()
            if self.expect("]]"):
                break
            if not self.word().parts:
                self.position += 1
        return []

    def prefix(self) -> list[Statement]:
        """What follows "!", "time" or "coproc" is a command as any other."""
        self.enter()
        found = self.command()
        self.depth -= 1
        return found

    def simple_command(self) -> list[Statement]:
        words: list[Word] = []
        assignments: list[Assignment] = []
        while True:
            self.skip_blank()
            if self.position >= len(self.text):
                break
            if self.redirection():
                continue
            if self.text[self.position] in "\n;&|()":
                break
            match = _ASSIGNMENT.match(self.text, self.position)
            if match is not None and (not words or words[0].literal in DECLARING):
                assignments.append(self.assignment(match))
            else:
                words.append(self.word())
        return [Command(words, assignments)] if words or assignments else []

    def assignment(self, match: re.Match[str]) -> Assignment:
        start = self.place(match.start())
        end = self.place(match.end(1) - 1) + 1
        self.position = match.end()
        value: Word | list[Word] = self.array() if self.at("(") else self.word()
        return Assignment(match[1], value, start, end, appends=bool(match[3]), is_item=match[2] is not None)

    def array(self) -> list[Word]:
        start = self.position
        self.position += 1
        words: list[Word] = []
        while True:
            self.skip_lines()
            if self.position >= len(self.text):
                raise self.unclosed("bracket", start)
            if self.at(")"):
                self.position += 1
                return words
            word = self.word()
            if word.parts:
                words.append(word)
            else:  # an operator, which cannot stand here
                self.position += 1

    def redirection(self) -> bool:
        match = _REDIRECTION.match(self.text, self.position)
        if match is None:
            return False
        self.position = match.end()
        self.skip_blank()
        target = self.word()
        operator = match[0].lstrip("0123456789")
        if operator in ("<<", "<<-"):
            self.heredocs.append(("".join(part.text for part in target.parts), operator == "<<-"))
        return True

    # Words.

    def word(self) -> Word:
        start = self.position
        parts = self.parts(_IN_WORD)
        end = max(self.position, start)
        first = self.place(start)
        return Word(parts, first, self.place(end - 1) + 1 if end > start else first)

    def parts(self, run: re.Pattern[str]) -> list[Part]:
        """The parts up to the end of a word, or to the mark that closes the quotes or braces around them.

        Args:
            run: What text means itself there; it also says which kind of text this is.
        """
        self.enter()
        parts: list[Part] = []
        is_quoted = run is _IN_QUOTES or run is _IN_QUOTED_BRACES
        while self.position < len(self.text):
            match = run.match(self.text, self.position)
            if match is not None:
                self.add(parts, match.start(), match.end(), is_quoted=is_quoted)
                continue
            mark = self.text[self.position]
            if mark == "\\":
                self.escape(parts, is_quoted=is_quoted)
            elif mark == "$":
                self.dollar(parts, run)
            elif mark == "`":
                self.substitution(parts, self.closing_backquote(), is_quoted=is_quoted)
            elif mark == '"' and run is not _IN_QUOTES:
                self.quotes(parts)
            elif mark == "'":
                self.single_quotes(parts, self.position)
            elif mark in "<>" and self.text.startswith("(", self.position + 1) and run is _IN_WORD:
                self.substitution(parts, self.closing_bracket(self.position + 1), is_quoted=False)
            else:
                break
        self.depth -= 1
        return parts

    def add(self, parts: list[Part], start: int, end: int, *, is_quoted: bool) -> None:
        parts.append(Literal(self.text[start:end], self.places[start:end], is_quoted=is_quoted))
        self.position = end

    def substitution(self, parts: list[Part], end: int, *, is_quoted: bool) -> None:
        start = self.position
        parts.append(Opaque(self.text[start:end], self.places[start:end], is_quoted=is_quoted))
        self.position = end

    def escape(self, parts: list[Part], *, is_quoted: bool) -> None:
        following = self.text[self.position + 1 : self.position + 2]
        if following in ("\n", ""):  # a line that goes on; nothing at the end of the file
            self.position += 1 + len(following)
        elif self.text.startswith("\r\n", self.position + 1):
            self.position += 3
        elif is_quoted and following not in '$`"\\':
            self.add(parts, self.position, self.position + 2, is_quoted=True)
        else:
            self.add(parts, self.position + 1, self.position + 2, is_quoted=True)

    def quotes(self, parts: list[Part]) -> None:
        start = self.position
        self.position += 1
        inner = self.parts(_IN_QUOTES)
        if not self.at('"'):
            raise self.unclosed("quote", start)
        self.position += 1
        parts += inner or [Literal("", (), is_quoted=True)]

    def single_quotes(self, parts: list[Part], start: int) -> None:
        end = self.text.find("'", start + 1)
        if end < 0:
            raise self.unclosed("quote", start)
        self.add(parts, start + 1, end, is_quoted=True)
        self.position = end + 1

    def dollar(self, parts: list[Part], run: re.Pattern[str]) -> None:
        start = self.position
        is_quoted = run is _IN_QUOTES or run is _IN_QUOTED_BRACES
        if self.at("$("):
            self.substitution(parts, self.closing_bracket(start + 1), is_quoted=is_quoted)
        elif self.at("${"):
            parts.append(self.expansion(is_quoted=is_quoted))
        elif self.at("$'") and not is_quoted:
            self.escaped_quotes(parts)
        elif self.at('$"') and not is_quoted:
            self.position += 1
            self.quotes(parts)
        else:
            match = _SIMPLE_EXPANSION.match(self.text, start)
            if match is None:
                self.add(parts, start, start + 1, is_quoted=is_quoted)
                return
            self.position = match.end()
            places = self.places[start : match.end()]
            parts.append(Variable(match[1], match[0], places, is_quoted=is_quoted, is_list=match[1] in "@*"))

    def escaped_quotes(self, parts: list[Part]) -> None:
        """$'...': opaque where it has escapes."""
        start = self.position
        end = start + 2
        while end < len(self.text) and self.text[end] != "'":
            end += 2 if self.text[end] == "\\" else 1
        if end >= len(self.text):
            raise self.unclosed("quote", start)
        if "\\" in self.text[start:end]:
            self.substitution(parts, end + 1, is_quoted=True)
        else:
            self.add(parts, start + 2, end, is_quoted=True)
            self.position = end + 1

    def expansion(self, *, is_quoted: bool) -> Part:
        """${...}: a variable, with what stands for it where it is not set; opaque where more is done to it."""
        start = self.position
        run = _IN_QUOTED_BRACES if is_quoted else _IN_BRACES
        match = _EXPANSION.match(self.text, start)
        default: Word | None = None
        operator = None
        self.position = start + 2
        if match is not None:
            self.position = match.end()
            operator = _DEFAULT.match(self.text, self.position)
            self.position = operator.end() if operator else self.position
        inner = self.position
        parts = self.parts(run)
        if not self.at("}"):
            raise self.unclosed("brace", start)
        default = Word(parts, self.place(inner), self.place(self.position))
        self.position += 1
        text = self.text[start : self.position]
        places = self.places[start : self.position]
        if match is None or match[1] or match[3] not in (None, "[@]", "[*]") or (parts and operator is None):
            return Opaque(text, places, is_quoted=is_quoted)
        is_list = match[3] is not None or match[2] in "@*"
        variable = Variable(match[2], text, places, is_quoted=is_quoted, is_list=is_list)
        if operator is not None and operator[0][-1] in "-=":
            variable.default = default
            variable.assigns = operator[0][-1] == "="
        elif operator is not None and operator[0][-1] == "+":
            variable.alternate = default
        return variable

    # Places and blanks.

    def closing_bracket(self, start: int) -> int:
        """Where the bracket that opens at `start` has been closed, past quotes and what they contain."""
        open_marks: list[str] = []
        position = start
        while position < len(self.text):
            mark = self.text[position]
            in_quotes = bool(open_marks) and open_marks[-1] == '"'
            if mark == "\\":
                position += 1
            elif mark == '"':
                if in_quotes:
                    open_marks.pop()
                else:
                    open_marks.append('"')
            elif in_quotes:
                if self.text.startswith("$(", position):
                    open_marks.append(")")
                    position += 1
            elif mark == "'":
                position = self.text.find("'", position + 1)
                if position < 0:
                    break
            elif mark == "(":
                open_marks.append(")")
            elif mark == ")":
                open_marks.pop()
                if not open_marks:
                    return position + 1
            elif mark == "#" and self.text[position - 1] in " \t\n;":
                position = self.line_end(position) - 1
            elif mark == "<":
                position = self.heredoc_end(position)
            position += 1
        raise self.unclosed("bracket", start)

    def heredoc_end(self, position: int) -> int:
        """The last character of the here-document that begins here, in a substitution; this one if none does."""
        match = _HEREDOC_IN_SUBSTITUTION.match(self.text, position)
        if match is None or self.inner_heredocs == _MOST_INNER_HEREDOCS:
            return position
        self.inner_heredocs += 1
        end = re.compile(rf"^[ \t]*{match[2]}$", re.M).search(self.text, self.line_end(position))
        return end.end() - 1 if end else match.end() - 1

    def closing_backquote(self) -> int:
        start = self.position
        position = start + 1
        while position < len(self.text):
            if self.text[position] == "`":
                return position + 1
            position += 2 if self.text[position] == "\\" else 1
        raise self.unclosed("backquote", start)

    def line_end(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end

    def skip_blank(self) -> None:
        """Moves past blanks and lines that go on, and past a comment."""
        match = _BLANK.match(self.text, self.position)
        assert match is not None  # it matches the empty text
        self.position = match.end()
        if self.at("#"):
            end = self.line_end(self.position)
            if self.is_document:
                text = self.text[self.position : end].rstrip()
                self.comments.append(Comment(start=self.position, text=text, alone=is_alone(self.text, self.position)))
            self.position = end

    def skip_lines(self) -> None:
        self.skip_blank()
        while self.at("\n"):
            self.skip_line_end()
            self.skip_blank()

    def skip_line_end(self) -> None:
        """Moves past the end of a line, and past the here-documents that follow it."""
        self.position += 1
        for delimiter, is_indented in self.heredocs:
            while self.position < len(self.text):
                end = self.line_end(self.position)
                line = self.text[self.position : end].rstrip("\r")
                self.position = min(end + 1, len(self.text))
                if (line.lstrip("\t") if is_indented else line) == delimiter:
                    break
        self.heredocs.clear()

    def keyword(self) -> str:
        """The word here if it is one without quotes or expansions, or nothing."""
        match = _KEYWORD.match(self.text, self.position)
        return match[0] if match else ""

    def expect(self, keyword: str) -> bool:
        """Moves past a keyword or mark; whether it is there."""
        if not (self.keyword() == keyword or (keyword == ")" and self.at(")"))):
            return False
        self.position += len(keyword)
        return True

    def at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.position)

    def begin_region(self) -> Region:
        """A new region within the present one, from here on."""
        self.regions += 1
        self.leave((*self.region, self.regions))
        return self.region

    def leave(self, region: Region) -> None:
        """From here on, it is another region."""
        if self.region != region:
            self.region = region
            if self.is_document:
                self.borders.append((self.position, region))

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SourceError(f"nested more than {MAX_DEPTH} levels deep", offset=self.place(self.position))

    def place(self, position: int) -> int:
        """Where a character stands in the document; for the end of the text, after its last one."""
        if position < len(self.places):
            return self.places[position]
        return self.places[-1] + 1 if len(self.places) else 0

    def unclosed(self, what: str, start: int) -> SourceError:
        return SourceError(f"not a valid shell script: a {what} that is never closed", offset=self.place(start))


_COMPOUND = {
    "{": _Reader.group,
    "if": _Reader.condition,
    "while": _Reader.loop,
    "until": _Reader.loop,
    "for": _Reader.counted_loop,
    "select": _Reader.counted_loop,
    "case": _Reader.cases,
    "function": _Reader.named_function,
    "[[": _Reader.test,
    "!": _Reader.prefix,
    "time": _Reader.prefix,
    "coproc": _Reader.prefix,
}
