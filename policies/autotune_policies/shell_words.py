"""Cuts a shell script into statements, and those into words whose parts say where they come from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autotune_policies.errors import PolicyFormatError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""How a word begins that assigns."""

_PLAIN_NAME = re.compile(r"\w+|[@*#?$!]")
_BRACED = re.compile(r"(\w+|[@*#])(\[[@*]\])?(?:(:?-)(.*))?", re.DOTALL)
_ENDS = "\n;|&()"
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[\n;|&()]")
_LEAVES_OPEN = ("&&", "||", "|", "|&")
_ELSEWHERE = ("|", "|&", "&")


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


@dataclass(frozen=True)
class Statement:
    """What stands between two operators of the shell.

    Attributes:
        line: Where it begins, from 1.
        words: Its words.
        before: The operator before it, such as ``&&``; a line break counts only where nothing else stands.
        certain: Whether it runs in this very shell and does not depend on how another command ends.
    """

    line: int
    words: list[Word]
    before: str
    certain: bool


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
        self.here_documents: list[str] = []

    def statements(self) -> Iterator[Statement]:
        """Each statement; ``((...))`` is one too, in the words of ``let``, which means the same."""
        words: list[Word] = []
        begun, before, brackets = 1, "\n", 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self.at = self._end_of_line()
            elif char in "<>" or self.text.startswith("&>", self.at):
                self._redirection()
            elif self.text.startswith("((", self.at) and (end := self.text.find("))", self.at)) > 0:
                words += [[Literal("let", False)], [Literal(self.text[self.at + 2 : end], True)]]
                begun, self.at = self._line(), end + 2
            elif char in _ENDS:
                operator = self._operator()
                if words:
                    yield Statement(
                        begun, words, before, not brackets and before not in _LEAVES_OPEN and operator not in _ELSEWHERE
                    )
                if words or operator != "\n":
                    before = operator
                brackets = max(0, brackets + (operator == "(") - (operator == ")"))
                words = []
            else:
                if not words:
                    begun = self._line()
                word = self._word(_ENDS)
                if not (word and isinstance(word[0], Literal) and word[0].text.isdigit() and self._next() in "<>"):
                    words.append(word)
        if words:
            yield Statement(begun, words, before, not brackets and before not in _LEAVES_OPEN)

    def _operator(self) -> str:
        match = _OPERATOR.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        if match.group() == "\n":
            while self.here_documents:
                self._skip_here_document(self.here_documents.pop(0))
        return match.group()

    def _skip_here_document(self, end: str) -> None:
        """What a command reads is no part of the script."""
        while self.at < len(self.text):
            line = self.text[self.at : self._end_of_line()]
            self.at = min(len(self.text), self._end_of_line() + 1)
            if line.lstrip("\t") == end:
                return

    def _next(self) -> str:
        return self.text[self.at : self.at + 1] or "\n"

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _redirection(self) -> None:
        here_document = self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at)
        while self._next() in "<>&|-" and self.at < len(self.text):
            self.at += 1
        while self._next() in " \t":
            self.at += 1
        if self._next() not in _ENDS:
            word = self._word(_ENDS)
            if here_document:
                self.here_documents.append("".join(part.text for part in word if isinstance(part, Literal)))

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
        if self.text.startswith("$'", self.at) and not quoted:
            self.at += 1
            return Unknown(f"$'{self._until(chr(39))}'")
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
