"""The CI examples: they parse, and every command in them exists with the options that are used."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from autotune.cli.policy_check import EXIT_STATUS
from autotune.cli.policy_check import command as policy_check
from autotune_policies.__main__ import main as policy_main

FOLDER = Path(__file__).parents[2] / "docs" / "ci"
FILES = sorted(FOLDER.glob("*.yml"))


def scripts(document: Any) -> Iterator[str]:
    """Every shell script of a pipeline, wherever it stands."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("run", "script"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from scripts(value)
    elif isinstance(document, list):
        for item in document:
            yield from scripts(item)


def commands(script: str) -> Iterator[list[str]]:
    """The words of every ``autotune`` line, without the program's name and what the shell takes."""
    text = re.sub(r"\$\{\{[^}]*\}\}", "X", script.replace("\\\n", " "))
    for line in text.splitlines():
        if line.strip().startswith("autotune "):
            yield shlex.split(line.partition(">")[0])[1:]


def test_there_is_one_for_each_service() -> None:
    assert [path.name for path in FILES] == ["github-actions.yml", "gitlab-ci.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_can_be_typed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = [words for script in scripts(document) for words in commands(script)]
    assert {tuple(words[:2]) for words in found} == {("policy", "validate"), ("policy", "render"), ("policy", "check")}
    for _, name, *words in found:
        if name == "check":
            known = {option for parameter in policy_check.params for option in parameter.opts}
        else:
            assert policy_main([name, "--help"]) == 0
            known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_script_is_a_shell_script(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = list(scripts(document))
    assert any("policy check" in script for script in found)
    for script in found:
        text = re.sub(r"\$\{\{[^}]*\}\}", "X", script)
        assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_exit_statuses_are_those_of_the_command(path: Path) -> None:
    text = " ".join(line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    assert EXIT_STATUS == {"OK": 0, "GAIN": 0, "DRIFT": 1, "REGRESSION": 1}
    assert "0 = OK or GAIN, 1 = DRIFT, REGRESSION or a run that failed, 2 = the request is wrong" in text
    assert isinstance(policy_check, click.Command)
    assert "exit 1" in (policy_check.help or "")
