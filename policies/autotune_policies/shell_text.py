"""The commands in a shell script, with its own variables put in: what a training script would run.

Only what can be known without running it: plain assignments, arrays, ``${NAME:-default}``. Whatever else a word
depends on (a variable from outside, a command substitution, an assignment that may not happen, a command that sets
variables or reads other files) stays in the word as an :class:`~autotune_policies.shell_words.Unknown`, and is refused
by name only where somebody needs that word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune_policies.shell_variables import Value, Variables
from autotune_policies.shell_words import (
    ASSIGNMENT,
    END_OF_ARRAY,
    NEXT_ITEM,
    Lexer,
    Literal,
    Reference,
    Statement,
    Unknown,
    Word,
)

_OPENS = ("if", "for", "select", "while", "until", "case", "{", "function")
_CLOSES = ("fi", "done", "esac", "}")
_LEADING = ("then", "else", "do", "elif", "!", "time", "exec", "coproc", "command", "builtin")
_SETS = ("declare", "typeset", "local", "readonly", "let", "read", "mapfile", "readarray", "getopts", "unset", "printf")
"""Commands of the shell that set the variables that their words name."""
_SETS_ANY = ("source", ".", "eval")
_TESTS = ("[", "[[", "test")

_NAME = re.compile(r"[A-Za-z_]\w*")
_ITEM = re.compile(r"([A-Za-z_]\w*)\[")
_SET_INSIDE = re.compile(r"\$\{\w+:?=|\$\(\(.*((?<![=!<>])=(?!=)|\+\+|--)", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """One command of a script.

    Attributes:
        line: Where it begins, from 1.
        words: Its words, variables put in; some of them unknown until it runs.
        variables: What stands before it as ``NAME=value`` or was exported by then.
        unread: Lines above it that may have set any variable, such as ``source env.sh``.
    """

    line: int
    words: list[str | Unknown]
    variables: dict[str, str | Unknown] = field(default_factory=dict)
    unread: tuple[int, ...] = ()


def read_commands(text: str, name: str) -> list[Command]:
    """The commands of a script in order; those that only assign or export are not among them.

    Args:
        text: The script, or a single command with line continuations.
        name: File name for messages.

    Raises:
        PolicyFormatError: a quote or bracket that is not closed; the message begins with ``name:line:``.
    """
    reader = _Reader()
    return [command for statement in Lexer(text, name).statements() for command in reader.read(statement)]


class _Reader:
    """Follows a script statement by statement."""

    def __init__(self) -> None:
        self.variables = Variables()
        self.blocks: list[str] = []
        self.unread: tuple[int, ...] = ()

    def read(self, statement: Statement) -> Iterator[Command]:
        """The command of a statement, if it is one; what it does to the variables is remembered."""
        words = self._without_keywords(statement)
        inside = "function" in self.blocks
        first = _text(words[0]) if words else ""
        exporting = first == "export"
        rest = words[1:] if exporting or first == "env" else words
        count = next((index for index, word in enumerate(rest) if not _assignment(word)), len(rest))
        # Before a command it holds for that command only.
        scope = self.variables if exporting or count == len(rest) else self.variables.copy()
        scope.always |= inside and scope is not self.variables  # what a function reads is what holds when it is called
        own = [self._assign(word, scope, statement.certain and not self.blocks, inside) for word in rest[:count]]
        rest = rest[count:]
        for word in words:
            for part in word:
                if isinstance(part, Unknown) and _SET_INSIDE.match(part.written):
                    self._forget([[Literal(part.written, True)]], inside)
        if exporting:
            self._export(own, rest, inside)
        elif rest and not self._sets(statement.line, rest, inside) and _text(rest[0]) not in _TESTS:
            expanded = [item for word in rest for item in _expand(word, scope)]
            named = [*(key for key in scope.exported if scope.get(key) is not None), *own]
            unset = first == "env" and _text(rest[0]).startswith("-")
            seen = {key: Unknown(f"${key}") if unset else scope.word(key) for key in named}
            yield Command(statement.line, expanded, seen, self.unread)

    def _without_keywords(self, statement: Statement) -> list[Word]:
        """The words without the shell's own; conditions, loops and functions are opened and closed."""
        words, function = statement.words, statement.before == ")"
        while words:
            first = _keyword(words[0])
            if first in _CLOSES:
                del self.blocks[-1:]
                return []
            if first not in (*_OPENS, *_LEADING):
                break
            if first == "function":
                function, words = True, words[2:]
                continue
            if first in _OPENS:
                self.blocks.append("function" if first == "{" and function else first)
            if first in ("for", "select"):
                self._forget(words[1:2], "function" in self.blocks)
            if first in ("for", "select", "case"):
                return words[1:] if len(words) > 1 and _text(words[1]) == "let" else []
            words = words[1:]
        return words

    def _assign(self, word: Word, scope: Variables, certain: bool, in_function: bool) -> str:
        match = _assignment(word)
        assert match is not None
        name = match.group(1)
        if certain:
            scope.values[name] = _assigned(word, match, scope)
        elif scope is self.variables:
            scope.forget(name, in_function)
        else:
            scope.values[name] = _assigned(word, match, scope)
        return name

    def _export(self, own: list[str], rest: list[Word], in_function: bool) -> None:
        if any(not _NAME.fullmatch(_text(word)) for word in rest):  # an option, or a name that is not written here
            self._forget(rest, in_function)
        self.variables.exported |= {*own, *(_text(word) for word in rest)}

    def _sets(self, line: int, words: list[Word], in_function: bool) -> bool:
        """Whether a command sets variables, which are unknown from then on."""
        first = _text(words[0])
        if match := _ITEM.match(first):
            self.variables.forget(match.group(1), in_function)
        elif first in _SETS_ANY:
            self.variables.forget_all(in_function)
            self.unread = (*self.unread, line)
        elif first in _SETS:
            options = [_text(word) for word in words]
            if first == "printf":
                words = words[options.index("-v") :][:2] if "-v" in options else words[:1]
            self._forget(words[1:], in_function)
        else:
            return False
        return True

    def _forget(self, words: list[Word], in_function: bool) -> None:
        """All variables that the words may name; any variable where a name is not written out."""
        for word in words:
            parts = [part for part in word if part != Literal("", True)]
            if parts and not isinstance(parts[0], Literal):
                self.variables.forget_all(in_function)
            for part in parts:
                for name in _NAME.findall(part.text) if isinstance(part, Literal) else ():
                    self.variables.forget(name, in_function)


def _text(word: Word) -> str:
    """A word that is written out, in quotes or not; empty where it depends on something."""
    return "".join(part.text if isinstance(part, Literal) else "\n" for part in word)


def _keyword(word: Word) -> str:
    """A word that may be one of the shell's own: those are never in quotes."""
    first = word[0] if len(word) == 1 else None
    return first.text if isinstance(first, Literal) and not first.quoted else ""


def _assignment(word: Word) -> re.Match[str] | None:
    first = word[0] if word else None
    return ASSIGNMENT.match(first.text) if isinstance(first, Literal) and not first.quoted else None


def _assigned(word: Word, match: re.Match[str], known: Variables) -> Value:
    first = word[0]
    assert isinstance(first, Literal)
    name, adds = match.group(1), bool(match.group(2))
    rest: Word = [Literal(first.text[match.end() :], False), *word[1:]]
    array = word[-1] == END_OF_ARRAY
    value: Value
    if array:
        value = tuple(item for inner in _split_array(rest[:-1]) for item in _expand(inner, known))
    else:
        value = (_joined(rest, known),)
    if not adds:
        return value
    before = known.get(name)
    before = before if before is not None else ("",) if not array else ()
    if array or len(before) != 1:
        return (*before, *value)
    old, new = before[0], value[0]
    return (old + new if isinstance(old, str) and isinstance(new, str) else Unknown(f"${name}"),)


def _split_array(parts: Word) -> list[Word]:
    words: list[Word] = [[]]
    for part in parts:
        if part == NEXT_ITEM:
            words.append([])
        elif part != Literal("", False):
            words[-1].append(part)
    return [word for word in words if word]


def _joined(word: Word, known: Variables) -> str | Unknown:
    """The word as an assignment takes it: one text, never split."""
    text = ""
    for part in word:
        value = _value(part, known)
        if len(value) != 1 or isinstance(value[0], Unknown):
            return next((item for item in value if isinstance(item, Unknown)), Unknown("(...)"))
        text += value[0]
    return text


def _expand(word: Word, known: Variables) -> Iterator[str | Unknown]:
    """The words that a word becomes: an unquoted variable is split at blanks, an array gives each of its words."""
    open_word: str | Unknown | None = None
    for part in word:
        pieces = list(_value(part, known))
        if isinstance(part, Reference) and not part.quoted:
            split: list[str | Unknown] = []
            for piece in pieces:
                split += piece.split() if isinstance(piece, str) else [piece]
            pieces = split
        for position, piece in enumerate(pieces):
            if position:
                assert open_word is not None
                yield open_word
                open_word = None
            if open_word is None:
                open_word = piece
            elif isinstance(open_word, str):
                open_word = open_word + piece if isinstance(piece, str) else piece
    if open_word is not None:
        yield open_word


def _value(part: Literal | Reference | Unknown, known: Variables) -> Value:
    if isinstance(part, Unknown):
        return (part,)
    if isinstance(part, Literal):
        return (part.text,)
    value = known.get(part.name)
    if value == ("",) and part.default is not None and ":-" in part.written:
        value = None  # what is empty is not there
    if value is None:
        return (part.default,) if part.default is not None and "$" not in part.default else (Unknown(part.written),)
    return value if part.whole else value[:1] or ("",)
