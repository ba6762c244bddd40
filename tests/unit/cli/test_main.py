"""The command line: one line and a hint for what is wrong, exit status 2, no traceback."""

import json
from pathlib import Path

import pytest

from autotune.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("strat",), "error: unknown command 'strat'; did you mean start or status?", "hint: autotune --help"),
        (
            ("start", "--modl", "x"),
            "error: no such option '--modl'. Did you mean '--model'?",
            "hint: autotune start --help",
        ),
        (("start",), "error: missing option '--model'", "hint: autotune start --help"),
        (("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "two"), "'two' is not a valid integer", ""),
        (("start", "--model", "no.yaml", "--cluster", "local"), "error: no such file: no.yaml", ""),
        (("status", "nothing"), "error: no study 'nothing' in", "hint: there are none yet"),
        (
            ("start", "--model", "qwen3-next", "--cluster", "h100", "--dry-run"),
            "error: trial kind 'bridge' of model 'qwen3-next' does not run yet",
            "hint: --trial native is the one that does, but the native trainer does not build gated delta nets",
        ),
        (("spaces", "show", "guid"), "error: no model or cluster is called 'guid'", "hint: did you mean guide?"),
        (("spaces", "show", "dsv"), "error: no model or cluster is called 'dsv'", "hint: did you mean dsv3?"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    arguments: tuple[str, ...], error: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))

    status, out, talk = run(capsys, *arguments)

    assert status == 2
    assert out == ""
    assert error in talk
    assert hint in talk
    assert talk.count("\n") <= 2


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")

    assert status == 0
    for name in ("start", "status", "list", "export", "preflight", "policy", "spaces", "completion"):
        assert f"  {name} " in out


@pytest.mark.parametrize("command", ["start", "status", "list", "export", "preflight", "spaces", "completion"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = run(capsys, command, "--help")

    assert status == 0
    assert "Usage: autotune" in out


def test_known_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "spaces", "list", "--json")

    assert status == 0
    assert "tiny-moe" in json.loads(out)["models"]


def test_a_shown_model_file_is_a_valid_start_for_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, text, _ = run(capsys, "spaces", "show", "tiny-moe")
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("name: tiny-moe", "name: own"), encoding="utf-8")

    status, out, talk = run(capsys, "spaces", "validate", str(own))

    assert (status, talk) == (0, "")
    assert "valid model file" in out


@pytest.mark.parametrize(("name", "kind"), [("guide", "guide"), ("gb300", "cluster"), ("qwen3-next", "model")])
def test_whatever_is_shown_is_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, kind: str) -> None:
    _, text, _ = run(capsys, "spaces", "show", name)
    own = tmp_path / "own.yaml"
    own.write_text(text, encoding="utf-8")

    status, out, talk = run(capsys, "spaces", "validate", str(own))

    assert (status, talk) == (0, "")
    assert out == f"{own}: valid {kind} file\n"


def test_a_dry_run_of_ones_own_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, text, _ = run(capsys, "spaces", "show", "tiny-moe")
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("name: tiny-moe", "name: own"), encoding="utf-8")

    status, out, _ = run(capsys, "start", "--model", str(own), "--cluster", "local", "--dry-run", "--json")

    assert status == 0
    assert json.loads(out)["first_trial"]["study"] == "own-local"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    status, out, _ = run(capsys, "completion", shell)

    assert status == 0
    assert "_AUTOTUNE_COMPLETE" in out
