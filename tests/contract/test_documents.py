"""What the documents say can be typed, followed and found."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from autotune.cli.commands import autotune
from autotune_policies import __main__ as policy_commands
from autotune_policies.policy import parse_policy
from autotune_trials import train

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("search_spaces/*.md")])
PLACEHOLDER = re.compile(r"^(?:[A-Z][A-Z_|]*|\.\.\.|\[.*|.*\])$")


class Wrong(Exception):
    """A command line that nobody could type."""


def command_lines(text: str) -> Iterator[list[str]]:
    """Every ``autotune ...`` line of code blocks and of inline code, as words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *re.findall(r"`([^`\n]+)`", prose)]:
        words = line.split("#")[0].strip().removeprefix("$ ")
        while re.match(r"[A-Z_]+=\S* ", words):
            words = words.partition(" ")[2]
        if words.startswith("autotune "):
            yield shlex.split(words)[1:]


def check(words: list[str]) -> None:
    """Raises Wrong when a command or an option does not exist; values are not looked at."""
    words = words[: words.index("--")] if "--" in words else words
    command: click.Command = autotune
    if words[0] == "policy" and words[1:2] != ["check"]:
        check_policy(words[1:])
        return
    context = click.Context(autotune)
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise Wrong(f"no command {words[0]!r}")
        command, words = found, words[1:]
    known = {name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        name = word.strip("[]").partition("=")[0]
        if name.startswith("-") and name not in known:
            raise Wrong(f"{command.name} has no option {name}")


def check_policy(words: list[str]) -> None:
    if not words or words[0].startswith("-") or PLACEHOLDER.match(words[0]):
        return
    options = [word.strip("[]") for word in words[1:] if word.strip("[]").startswith("--")]
    for command in words[0].split("|"):
        text = help_of_policy(command)
        for option in options:
            if not re.search(rf"{option}\b", text):
                raise Wrong(f"policy {command} has no option {option}")


def help_of_policy(command: str) -> str:
    parser = policy_commands._parser("autotune policy", command)
    [subparsers] = [action for action in parser._actions if action.choices]
    if command not in subparsers.choices:
        raise Wrong(f"no policy command {command!r}")
    return str(subparsers.choices[command].format_help())


LINES = [(path.name, words) for path in DOCUMENTS for words in command_lines(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("document", "words"), LINES, ids=[f"{name}: {' '.join(words)}" for name, words in LINES])
def test_a_command_line_can_be_typed(document, words):
    check(words)


def test_there_are_command_lines():
    assert {words[0] for _, words in LINES} >= {"start", "status", "list", "export", "preflight", "policy", "spaces"}


@pytest.mark.parametrize(
    "line",
    [
        "begin --model x",
        "start --modle x",
        "spaces lst",
        "policy verifi x",
        "policy show --nope x",
        "policy check --nope x",
    ],
)
def test_a_wrong_line_is_seen(line):
    with pytest.raises(Wrong):
        check(shlex.split(line))


def test_command_lines_are_found():
    text = "a `autotune list` b\n```bash\nX=1 autotune start --model a \\\n  --trials 3  # c\nmake demo\n```\n"
    assert sorted(command_lines(text)) == [["list"], ["start", "--model", "a", "--trials", "3"]]


def test_the_readme_lists_the_commands_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Commands")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `autotune (\w+)", table, flags=re.MULTILINE))
    assert listed == set(autotune.list_commands(click.Context(autotune)))


def test_the_readme_lists_the_variables_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\bAUTOTUNE_[A-Z]+\b", text))
    sources = [path for folder in ("autotune", "trials", "policies") for path in (ROOT / folder).rglob("*.py")]
    real = {name for path in sources for name in re.findall(r"\bAUTOTUNE_[A-Z]+\b", path.read_text(encoding="utf-8"))}
    assert listed == real


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_make_targets_exist(path):
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text, flags=re.MULTILINE)
    assert [name for pair in targets for name in pair if name and f"\n{name}:" not in makefile] == []


def test_the_folders_that_architecture_lists_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Folders")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)
    assert len(listed) > 10
    assert [name for name in listed if not (ROOT / name).exists()] == []


def test_the_policy_in_the_documentation_is_valid():
    text = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```yaml\n(schema: .*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    policy = parse_policy(example, "docs/policy.md")
    assert policy.evidence["kind"] == "measured"
    assert train.spec_of(policy).settings == yaml.safe_load(example)["settings"]
