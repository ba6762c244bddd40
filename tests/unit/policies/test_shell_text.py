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
    'A=\ntrain ${A:-4} "${A-4}"\n',
    "train a &> /dev/null b\n",
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


SETS_A = [
    '[ -n "$BIG" ] && A=8', "true ||\n  A=8", "(A=8)", "( cd x; A=8 )", "declare A=8", "declare -r A=8", "let A=8",
    "let 'A = 8'", "printf -v A %d 8", "((A*=2))", "f() { A=8; }; f", "f() {\n  A=8\n}\nA=4\nf",
    "function f {\n A=8\n}",
    "unset A", "read A < file", 'IFS=, read -r A B <<< "8,9"', "source ./env.sh", ". env.sh", 'eval "A=8"', "A=8 &",
    "echo 8 | read A", "{ A=8; }", "if A=8; then true; fi", "for A in 1 2; do true; done",
    "while read A; do true; done",
    "echo $((A++))", "echo $((A = 8))", ": ${A=8}", "case $X in\n a) A=8 ;;\nesac", 'f() { source "$1"; }\nA=4\nf x',
    "export -n A", 'export "$B"', "command eval A=8", "builtin read A", "for ((A=0; A<3; A++)); do true; done",
    "f() ( A=8 )", "mapfile A < x", "A[0]=8", "readonly A=8",
]  # fmt: skip


@pytest.mark.parametrize("line", SETS_A)
def test_a_variable_that_anything_but_a_plain_assignment_may_set_is_not_known(line: str) -> None:
    assert calls(f"A=2\n{line}\ntrain $A\n") == [[Unknown("$A")]]


@pytest.mark.parametrize(
    "line", ["echo A=8", "train2 --A=8", "if [ x = A ]; then true; fi", "printf '%s' A", "cd A && ls", "B=8 true"]
)  # fmt: skip
def test_a_variable_that_nothing_sets_stays_known(line: str) -> None:
    assert calls(f"A=2\n{line}\ntrain $A\n") == [["2"]]


def test_a_later_plain_assignment_is_known_again_unless_a_function_may_follow() -> None:
    assert calls("A=2\nsource x\nA=3\ntrain $A $B ${C:-4}\n") == [["3", Unknown("$B"), Unknown("$C")]]
    assert calls("f() { A=8; }\nA=3\nf\ntrain $A\n") == [[Unknown("$A")]]
    assert calls("A=3\nf() {\n  train $A\n}\nA=8\nf\n") == [[Unknown("$A")]]


def test_what_a_here_document_holds_is_not_run() -> None:
    script = "A=2\ncat > x <<'EOF' 2>&1\nA=8\ntrain other\nEOF\ncat <<-END | sort\n\tA=8\n\tEND\ntrain $A\n"
    assert calls(script) == [["2"]]


def test_files_that_are_read_by_the_script_are_told_by_line() -> None:
    (command,) = read_commands("export A=1\nsource x\neval y\ntrain\n", "x.sh")
    assert (command.unread, command.variables) == ((2, 3), {"A": Unknown("$A")})


@pytest.mark.parametrize("word", ["env -u A train", "env -i train"])
def test_variables_that_env_may_take_away_are_not_known(word: str) -> None:
    (command,) = read_commands(f"export A=1\n{word}\n", "x.sh")
    assert command.variables == {"A": Unknown("$A")}
