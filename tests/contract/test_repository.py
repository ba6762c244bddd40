"""What every file of the repository holds to."""

import ast
import os
import re
import tomllib
from pathlib import Path

import click
import pytest

import autotune
from autotune.cli.start import command as start

LONG: dict[str, str] = {}
"""Modules above the limit, each with the reason."""

MOST_LINES = 350

FOREIGN = (
    re.compile(r"(?<![\w.~-])/(?:root|work|workspace|opt/(?:wheels|pypi)|home/[a-z]\w*|Users/\w+)(?=[/\s\"'`)]|$)"),
    re.compile(r"\b(?:pypi\.org|pythonhosted\.org|deb\.debian\.org|registry\.npmjs|download\.pytorch\.org)\b"),
)
"""Folders of one machine, and hosts of registries: each machine has its own."""

GOLDEN = Path(__file__).parents[1] / "golden" / "cli" / "start.txt"


def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def foreign_words(text):
    return [found.group() for pattern in FOREIGN for found in pattern.finditer(text)]


def test_no_file_names_folders_or_hosts_of_one_machine(tracked):
    found = {}
    for path in tracked:
        words = foreign_words(path.read_bytes().decode("utf-8", errors="replace"))
        if words:
            found[path.name] = words
    assert found == {}


@pytest.mark.parametrize(
    "text", ["cd /ro" + "ot/x", "see /wo" + "rk/main", "'/ho" + "me/ann/a'", "https://py" + "pi.org/simple"]
)
def test_such_words_are_seen(text):
    assert foreign_words(text)


@pytest.mark.parametrize("text", ["~/.autotune", "/tmp/x", "tests/networks/x", "a/root/b", "$HOME/root", "/homework/x"])
def test_other_words_are_not(text):
    assert not foreign_words(text)


def test_every_module_begins_with_its_docstring(modules):
    trees = {module.name: ast.parse(module.path.read_text(encoding="utf-8")) for module in modules}
    assert [name for name, tree in trees.items() if not (ast.get_docstring(tree) or "").strip()] == []


def test_modules_are_small(modules):
    sizes = {module.name: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules}
    assert {name: size for name, size in sizes.items() if size > MOST_LINES and name not in LONG} == {}
    assert [name for name in LONG if sizes.get(name, 0) <= MOST_LINES] == [], "no longer an exception"


def test_there_is_one_version(root):
    version = project(root)["version"]
    assert autotune.__version__ == version
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(version)}\]", changelog, flags=re.MULTILINE)


def test_markers_and_targets_agree(root):
    """Every marker that the Makefile selects by exists, and every target has a help line."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    markers = {line.partition(":")[0] for line in settings["markers"]}
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    selections = re.findall(r"\$\(PYTEST\).* -m (\w+)|\$\(call pytest,([^$]+)\)$", makefile, flags=re.MULTILINE)
    words = {word for pair in selections for text in pair for word in re.findall(r"\w+", text)} - {"and", "or", "not"}
    assert {"slow", "trial"} <= words
    assert words <= markers
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE).group(1).split())
    assert targets == set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))


def test_the_options_of_start_are_frozen():
    """Scripts use them: a change here is a change for users, and belongs into the changelog."""
    lines = [
        f"{' '.join(option.opts)} {option.metavar or option.type.name if not option.is_flag else ''}".rstrip()
        for option in start.params
        if isinstance(option, click.Option)
    ]
    text = "\n".join(lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text, encoding="utf-8")
    assert GOLDEN.exists(), "golden file is missing; UPDATE_GOLDEN=1 writes it"
    assert text == GOLDEN.read_text(encoding="utf-8")
