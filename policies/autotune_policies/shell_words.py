"""Cuts a shell script into commands, and those into words whose parts say where they come from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autotune_policies.errors import PolicyFormatError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""How a word begins that assigns."""

_PLAIN_NAME = re.compile(r"\w+|[@*#?$!]")
_BRACED = re.compile(r"(\w+|[@*#])(\[[@*]\])?(?:(:?-)(.*))?", re.DOTALL)
_ENDS = "\n;|&()"


@dataclass(frozen=True)
class Unknown:
    """A part of a word that only a run could tell, as it is written."""

    written: str


@dataclass(frozen=True)
class Literal:
    """A part of a word that stands there, and whether it was in quotes."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Reference:
    """A part of a word that a variable gives."""

    name: str
    whole: bool
    default: str | None
    quoted: bool
    written: str


Word = list[Literal | Reference | Unknown]

NEXT_ITEM = Literal("\1", False)
"""Parts the items of an array."""
END_OF_ARRAY = Literal("\0", False)
"""Ends a word that assigns an array."""


class Lexer:
    """Walks through a script once. An array is one word: its items parted by ``NEXT_ITEM``, ended by ``END_OF_ARRAY``.

    Raises:
        PolicyFormatError: a quote or bracket that is not closed; the message begins with ``name:line:``.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.name = name
        self.at = 0

    def commands(self) -> Iterator[tuple[int, list[Word]]]:
        """Each command: the line where it begins, from 1, and its words."""
        words: list[Word] = []
        begun = 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self.at = self._end_of_line()
            elif char in "<>":
                self._redirection()
            elif char in _ENDS:
                if words:
                    yield begun, words
                words = []
                self.at += 1
            else:
                if not words:
                    begun = self._line()
                word = self._word(_ENDS)
                if not (word and isinstance(word[0], Literal) and word[0].text.isdigit() and self._next() in "<>"):
                    words.append(word)
        if words:
            yield begun, words

    def _next(self) -> str:
        return self.text[self.at : self.at + 1] or "\n"

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _redirection(self) -> None:
        while self._next() in "<>&|-" and self.at < len(self.text):
            self.at += 1
        while self._next() in " \t":
            self.at += 1
        if self._next() not in _ENDS:
            self._word(_ENDS)

    def _word(self, ends: str) -> Word:
        word: Word = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                if self._next() in " \t":
                    break
            elif char == "(" and self._begins_array(word):
                word += self._array()
                break
            elif char in ends or char in " \t<>":
                break
            elif char == "'":
                word.append(Literal(self._until("'"), True))
            elif char == '"':
                word += self._double_quoted()
            elif char in "$`":
                word.append(self._dollar(False))
            else:
                if char == "\\":
                    self.at += 1
                self._add(word, self._next(), char == "\\")
                self.at += 1
        return word

    @staticmethod
    def _begins_array(word: Word) -> bool:
        match = ASSIGNMENT.match(word[0].text) if len(word) == 1 and isinstance(word[0], Literal) else None
        return match is not None and isinstance(word[0], Literal) and match.end() == len(word[0].text)

    def _array(self) -> Word:
        opened = self._line()
        self.at += 1
        items: Word = []
        while self.at < len(self.text) and self._next() != ")":
            if self._next() in " \t\n":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self._next() == "#":
                self.at = self._end_of_line()
            else:
                items += [*self._word(")\n"), NEXT_ITEM]
        if self.at >= len(self.text):
            raise PolicyFormatError(f"{self.name}:{opened}: '(' is not closed")
        self.at += 1
        return [*items, END_OF_ARRAY]

    def _double_quoted(self) -> Word:
        opened = self._line()
        self.at += 1
        word: Word = [Literal("", True)]
        while self.at < len(self.text) and self._next() != '"':
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self._next() in "$`":
                word.append(self._dollar(True))
            else:
                if self._next() == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('"\\$`'):
                    self.at += 1
                self._add(word, self._next(), True)
                self.at += 1
        if self.at >= len(self.text):
            raise PolicyFormatError(f"{self.name}:{opened}: '\"' is not closed")
        self.at += 1
        return word

    def _dollar(self, quoted: bool) -> Literal | Reference | Unknown:
        begun = self.at
        if self.text[self.at] == "`":
            return Unknown(f"`{self._until('`')}`")
        if self.text.startswith("$(", self.at):
            self._balanced("(", ")")
            return Unknown(self.text[begun : self.at])
        if self.text.startswith("${", self.at):
            inner = self._balanced("{", "}")
            match = _BRACED.fullmatch(inner)
            written = self.text[begun : self.at]
            if match is None:
                return Unknown(written)
            return Reference(match.group(1), bool(match.group(2)), match.group(4), quoted, written)
        match = _PLAIN_NAME.match(self.text, self.at + 1)
        self.at = match.end() if match else self.at + 1
        return Reference(match.group(), False, None, quoted, "$" + match.group()) if match else Literal("$", quoted)

    def _balanced(self, opens: str, closes: str) -> str:
        begun, line, depth = self.at + 2, self._line(), 0
        for position in range(self.at + 1, len(self.text)):
            depth += (self.text[position] == opens) - (self.text[position] == closes)
            if depth == 0:
                self.at = position + 1
                return self.text[begun:position]
        raise PolicyFormatError(f"{self.name}:{line}: '${opens}' is not closed")

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise PolicyFormatError(f"{self.name}:{self._line()}: {quote} is not closed")
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return inner

    @staticmethod
    def _add(word: Word, char: str, quoted: bool) -> None:
        last = word[-1] if word else None
        if isinstance(last, Literal) and last.quoted == quoted:
            word[-1] = Literal(last.text + char, quoted)
        else:
            word.append(Literal(char, quoted))
