"""The command line: one line and a hint for what is wrong, exit status 2, no traceback."""

import errno
import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import click
import pytest

import autotune
from autotune.cli.commands import autotune as command_line
from autotune.cli.main import main
from autotune_policies.policy import load_policy

EXAMPLE = str(Path(__file__).parents[1] / "policies" / "example.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("strat",), "error: unknown command 'strat'; did you mean start or status?", "hint: autotune --help"),
        (("backends",), "error: unknown command 'backends'; legal: start, status, list,", "hint: autotune --help"),
        (
            ("start", "--modl", "x"),
            "error: no such option '--modl'. Did you mean '--model'?",
            "hint: autotune start --help",
        ),
        (("start",), "error: missing option '--model'", "hint: autotune start --help"),
        (("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "two"), "'two' is not a valid integer", ""),
        (("start", "--model", "tiny-moe", "--cluster", "local", "--seed", "-5"), "-5 is not in the range 0<=x<=", ""),
        (("start", "--model", "no.yaml", "--cluster", "local"), "error: no such file: no.yaml", ""),
        (("status", "nothing"), "error: no study 'nothing' in", "hint: there are none yet"),
        (
            ("start", "--model", "qwen3-next", "--cluster", "h100", "--trial", "command", "--dry-run"),
            "error: model 'qwen3-next' has no command to run",
            "hint: give one with --command 'torchrun ... {arguments}'; it may hold {arguments} {overrides}",
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


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"name: \xff\n", "is not UTF-8 text: byte 6 is 0xff"),
        (b"- a\n", "own.yaml:1: is a list, expected a model file"),
        (b"hello\n", "own.yaml:1: is a single value, expected a model file"),
        (b"", "own.yaml:1: is empty, expected a model file"),
    ],
)
@pytest.mark.parametrize("name", ["own.yaml", "own"])
def test_what_is_no_model_file_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, error: str, name: str
) -> None:
    own = tmp_path / name
    own.write_bytes(content)

    status, out, talk = run(capsys, "spaces", "validate", str(own))

    assert (status, out) == (2, "")
    assert error.replace("own.yaml", name) in talk
    assert talk.endswith("\nhint: autotune spaces show NAME prints one to start from\n")
    assert talk.count("\n") == 2


def test_a_folder_is_no_model_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, talk = run(capsys, "spaces", "validate", str(tmp_path))

    assert (status, out) == (2, "")
    assert talk.startswith(f"error: {tmp_path}: cannot be read: Is a directory\n")


def test_a_policy_is_not_written_over_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, talk = run(capsys, "export", "any", "-o", str(tmp_path))

    assert (status, out) == (2, "")
    assert talk == f"error: output {tmp_path} is a folder, expected a file\nhint: -o {tmp_path}/policy.yaml\n"


def test_a_policy_that_cannot_be_written_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("autotune.cli.export.stored_request", lambda study, home: study)
    monkeypatch.setattr("autotune.cli.export.Study", lambda *_, **__: SimpleNamespace(outcomes=list, surroundings=None))
    monkeypatch.setattr("autotune.cli.export.choose_policy", lambda *_: load_policy(EXAMPLE))

    status, out, talk = run(capsys, "export", "any", "-o", str(tmp_path / "file" / "policy.yaml"))

    assert (status, out) == (2, "")
    assert talk.startswith(f"error: output {tmp_path}/file/policy.yaml cannot be written: ")
    assert talk.endswith("\nhint: name a file in a folder that you may write to\n")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "error: Permission denied: /x\n"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/x"), "error: Is a directory: /x\n"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x"), "error: Not a directory: /x\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "error: No such file or directory: /x\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/x"), "error: File name too long: /x\n"),
        (OSError(errno.EROFS, "Read-only file system", "/x"), "error: Read-only file system: /x\n"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device\n"),
    ],
)  # fmt: skip
def test_what_the_machine_refuses_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    monkeypatch.setattr("autotune.cli.spaces.resources.names", Mock(side_effect=error))

    assert run(capsys, "spaces", "list") == (1, "", says)


@pytest.mark.parametrize("error", [ConnectionRefusedError(errno.ECONNREFUSED, "refused"), PermissionError(1, "kill")])
def test_other_errors_of_the_system_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    monkeypatch.setattr("autotune.cli.spaces.resources.names", Mock(side_effect=error))

    with pytest.raises(type(error)):
        main(["spaces", "list"])


def options_of(group: click.Command) -> set[str]:
    found = {name for parameter in group.params for name in parameter.opts}
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            found |= options_of(command)
    return found


def test_hints_name_options_that_exist() -> None:
    package = Path(autotune.__file__).parent
    hints = [line for path in package.rglob("*.py") for line in path.read_text("utf-8").splitlines() if "hint=" in line]
    named = {option for line in hints for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}

    assert "--gpus" in named
    assert named <= {*options_of(command_line), "--help"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        status = main(["spaces", "list"])

    assert (status, capfd.readouterr().err) == (1, "error: No space left on device\n")


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
