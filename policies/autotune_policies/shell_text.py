"""The commands in a shell script, with its own variables put in: what a training script would run.

Only what can be known without running it: plain assignments, arrays, ``${NAME:-default}``. Whatever else a word
depends on (a variable from outside, a command substitution, an assignment under a condition) stays in the word as an
:class:`~autotune_policies.shell_words.Unknown`, and is refused by name only where somebody needs that word.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune_policies.shell_words import ASSIGNMENT, END_OF_ARRAY, NEXT_ITEM, Lexer, Literal, Reference, Unknown, Word

_BLOCKS = {"if": 1, "for": 1, "while": 1, "until": 1, "case": 1, "{": 1, "fi": -1, "done": -1, "esac": -1, "}": -1}
_LEADING = ("then", "else", "do", "elif", "!", "time", "exec")


Value = tuple[str | Unknown, ...]
"""What a variable holds: one word, or those of an array."""


@dataclass(frozen=True)
class Command:
    """One command of a script.

    Attributes:
        line: Where it begins, from 1.
        words: Its words, variables put in; some of them unknown until it runs.
        variables: What stands before it as ``NAME=value`` or was exported by then.
    """

    line: int
    words: list[str | Unknown]
    variables: dict[str, str | Unknown] = field(default_factory=dict)


def read_commands(text: str, name: str) -> list[Command]:
    """The commands of a script in order; those that only assign or export are not among them.

    Args:
        text: The script, or a single command with line continuations.
        name: File name for messages.

    Raises:
        PolicyFormatError: a quote or bracket that is not closed; the message begins with ``name:line:``.
    """
    known: dict[str, Value] = {}
    exported: dict[str, str | Unknown] = {}
    commands = []
    depth = 0
    for line, words in Lexer(text, name).commands():
        depth, words = _without_keywords(words, depth)
        own: dict[str, str | Unknown] = {}
        assigned: dict[str, Value] = {}
        exporting = bool(words) and words[0] == [Literal("export", False)]
        rest = words[1:] if exporting or (words and words[0] == [Literal("env", False)]) else words
        while rest and (match := _assignment(rest[0])):
            value = _assigned(rest, match, {**known, **assigned}, depth)
            assigned[match.group(1)] = value
            own[match.group(1)] = value[0] if len(value) == 1 else Unknown(f"{match.group(1)}=(...)")
            rest = rest[1:]
        if exporting or not rest:  # before a command it holds for that command only
            known |= assigned
        if exporting:
            exported |= own
            exported |= {item.text: known[item.text][0] for word in rest for item in word[:1]
                         if isinstance(item, Literal) and len(known.get(item.text, ())) == 1}  # fmt: skip
        elif rest:
            expanded = [item for word in rest for item in _expand(word, known)]
            commands.append(Command(line, expanded, {**exported, **own}))
        if not exporting and not rest:
            exported |= {key: value for key, value in own.items() if key in exported}
    return commands


def _without_keywords(words: list[Word], depth: int) -> tuple[int, list[Word]]:
    """The words without the shell's own, and how many conditions and loops are open after them."""
    while words and len(words[0]) == 1 and isinstance(words[0][0], Literal) and not words[0][0].quoted:
        first = words[0][0].text
        if first in _BLOCKS:
            return max(0, depth + _BLOCKS[first]), []
        if first not in _LEADING:
            break
        words = words[1:]
    return depth, words


def _assignment(word: Word) -> re.Match[str] | None:
    first = word[0] if word else None
    return ASSIGNMENT.match(first.text) if isinstance(first, Literal) and not first.quoted else None


def _assigned(words: list[Word], match: re.Match[str], known: Mapping[str, Value], depth: int) -> Value:
    first = words[0][0]
    assert isinstance(first, Literal)
    name, adds = match.group(1), bool(match.group(2))
    rest: Word = [Literal(first.text[match.end() :], False), *words[0][1:]]
    array = words[0][-1] == END_OF_ARRAY
    if depth:  # whether it happens, only a run could tell
        value: Value = (Unknown(f"${name}"),)
    elif array:
        inner = _split_array(rest[:-1])
        value = tuple(item for word in inner for item in _expand(word, known))
    else:
        value = (_joined(rest, known),)
    if not adds:
        return value
    before = known.get(name, ("",) if not array else ())
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


def _joined(word: Word, known: Mapping[str, Value]) -> str | Unknown:
    """The word as an assignment takes it: one text, never split."""
    text = ""
    for part in word:
        value = _value(part, known)
        if len(value) != 1 or isinstance(value[0], Unknown):
            return next((item for item in value if isinstance(item, Unknown)), Unknown("(...)"))
        text += value[0]
    return text


def _expand(word: Word, known: Mapping[str, Value]) -> Iterator[str | Unknown]:
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


def _value(part: Literal | Reference | Unknown, known: Mapping[str, Value]) -> Value:
    if isinstance(part, Unknown):
        return (part,)
    if isinstance(part, Literal):
        return (part.text,)
    value = known.get(part.name)
    if value is None:
        return (part.default,) if part.default is not None and "$" not in part.default else (Unknown(part.written),)
    return value if part.whole else value[:1] or ("",)
