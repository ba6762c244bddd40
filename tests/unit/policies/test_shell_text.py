"""Commands of a shell script, with its own variables put in; bash itself is the judge."""

import shlex
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.errors import PolicyFormatError
from autotune_policies.shell_text import Command, read_commands
from autotune_policies.shell_words import Unknown

SCRIPTS = [
    "train --a 1 --b=2  'single $x' \"double\" plain\\ space\n",
    "train one \\\n  two \\\n  three # a remark\n",
    'A=1\nB="$A 2"\ntrain $A "$A" \'$A\' $B "$B" ${A}x x$A$A\n',
    "ARGS=(--layers 12 --layout 'E|t*3|L' # remark\n  --name \"a b\"\n)\nARGS+=(--more)\ntrain ${ARGS[@]}\n",
    'ARGS=(--layers 12 --name "a b")\ntrain "${ARGS[@]}" last\n',
    'ARGS="\n  --layers 12 \\\n  --bf16\n"\nARGS+=" --lr 1"\ntrain ${ARGS}\n',
    'train ${UNSET_HERE:-8} ${UNSET_HERE-x} "${UNSET_HERE:-a b}"\n',
    "EP=4\ntrain --ep=${EP:-8} --x=${EP} --path a/$EP/b\n",
    'EMPTY=\ntrain a $EMPTY b "$EMPTY" c\n',
    "train a > /dev/null 2>&1\ntrain b 2> /dev/null\n",
    "A=old\nA=new train x\ntrain $A\n",
    "export A=1 B=2\ntrain $A $B\n",
    'train "a\\"b" "c\\$d" \'e\\f\' g\\$h "i\\j"\n',
    "true && train a; train b\n",
]


def bash(script: str) -> list[list[str]]:
    """The words of every call of ``train``, as bash makes them."""
    told = 'train() { printf "%s\\0" "$@" >&9; printf "\\1" >&9; }\n' + script
    done = subprocess.run(
        ["bash", "-c", f"exec 9>&1 >/dev/null\n{told}"], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    return [call.split("\0")[:-1] for call in done.stdout.decode().split("\1")[:-1]]


def calls(script: str) -> list[list[str | Unknown]]:
    return [command.words[1:] for command in read_commands(script, "x.sh") if command.words[0] == "train"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_that_bash_makes(script: str) -> None:
    found = calls(script)
    assert found
    assert found == bash(script)


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\1\r"), max_size=12), min_size=1))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert calls(f"train {shlex.join(words)}\n") == [words]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("ab=$(){}[]@'\"\\\n #|&;<>`:-+x1")) | st.text())
def test_no_text_is_a_traceback(text: str) -> None:
    message = "x.sh:"
    found: list[Command] = []
    try:
        found = read_commands(text, "x.sh")
    except PolicyFormatError as error:
        message = error.message
    assert message.startswith("x.sh:")
    assert all(command.words for command in found)


def test_what_only_a_run_can_tell_is_told_as_it_is_written() -> None:
    script = 'D=$1\nW=$((2*3))\nH=`hostname`\ntrain $D ${OUT} "$(date)/x" $W $H ${D%%/} "$@"\n'
    written = [word.written if isinstance(word, Unknown) else word for word in calls(script)[0]]
    assert written == ["$1", "${OUT}", "$(date)", "$((2*3))", "`hostname`", "${D%%/}", "$@"]


def test_what_is_assigned_under_a_condition_is_not_known_after_it() -> None:
    script = 'EP=4\nif [ -n "$X" ]; then\n  EP=8\nfi\nfor i in 1 2; do\n  PP=$i\ndone\ntrain $EP $PP\n'
    assert calls(script) == [[Unknown("$EP"), Unknown("$PP")]]


def test_variables_of_a_command_are_its_own_and_the_exported_ones() -> None:
    script = "A=1\nexport B=2 C\nC=3\nexport C\nD=4 train x\nexport E=5\ntrain y\n"
    first, second = read_commands(script, "x.sh")
    assert (first.line, first.variables) == (5, {"B": "2", "C": "3", "D": "4"})
    assert (second.line, second.variables) == (7, {"B": "2", "C": "3", "E": "5"})


@pytest.mark.parametrize(
    ("script", "line"),
    [("train 'a\n", 1), ('\ntrain "a\n', 2), ("train ${A\n", 1), ("\n\nA=(1\n2\n", 3), ("train `x", 1)],
)
def test_what_is_not_closed_is_told_with_its_line(script: str, line: int) -> None:
    with pytest.raises(PolicyFormatError, match=rf"^x.sh:{line}: .* is not closed"):
        read_commands(script, "x.sh")
