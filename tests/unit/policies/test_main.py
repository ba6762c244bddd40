"""The commands of ``python -m autotune_policies``."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune_policies
from autotune_policies.__main__ import main
from autotune_policies.megatron_core import render
from autotune_policies.megatron_lm import arguments_of
from autotune_policies.policy import load_policy
from autotune_policies.surroundings import HYBRID_EP_VARIABLES

EXAMPLE_FILE = Path(__file__).parent / "example.yaml"
EXAMPLE = str(EXAMPLE_FILE)
GOLDEN = Path(__file__).parents[2] / "golden" / "policies"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv), prog="policy")
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def changed(tmp_path: Path, **parts: Any) -> str:
    document = {**yaml.safe_load(EXAMPLE_FILE.read_text(encoding="utf-8")), **parts}
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def test_validate_says_what_kind_of_policy_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "validate", EXAMPLE)
    assert (status, err) == (0, "")
    assert out == f"{EXAMPLE}: ok, a measured policy for example-moe on example-cluster\n"


def test_validate_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "validate", EXAMPLE, "--json")
    assert json.loads(out) == {"valid": True, "file": EXAMPLE, "evidence": "measured"}


@pytest.mark.parametrize("command", ["validate", "show"])
def test_json_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, command, EXAMPLE, "--json")
    assert (len(out.splitlines()), out[-1], err) == (1, "\n", "")


def test_validate_as_json_of_a_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, lauch={})
    status, out, err = run(capsys, "validate", path, "--json")
    answer = json.loads(out)
    assert (status, err, len(out.splitlines())) == (2, "", 1)
    assert answer.pop("error").endswith("the policy has an unknown key 'lauch'")
    assert answer == {"valid": False, "hint": "did you mean launch?"}


def test_validate_as_json_of_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "validate", "no/such.yaml", "--json")
    assert (status, err) == (2, "")
    assert json.loads(out) == {"valid": False, "error": "no/such.yaml: No such file or directory", "hint": None}


def test_show_is_the_golden_text(capsys: pytest.CaptureFixture[str]) -> None:
    golden = GOLDEN / "show.txt"
    status, out, err = run(capsys, "show", EXAMPLE)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(out, encoding="utf-8")
    assert (status, err) == (0, "")
    assert out == golden.read_text(encoding="utf-8")


def test_a_predicted_policy_shows_that_nobody_ran_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, evidence={"kind": "predicted"}, env={}, launch={}, alternatives=[], fallback=None)
    _, out, _ = run(capsys, "show", path)
    assert "PREDICTED: nobody has run these settings" in out
    assert "environment" not in out
    assert "alternative" not in out
    assert "fallback" not in out


def test_show_as_json_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", EXAMPLE, "--json")
    assert json.loads(out) == yaml.safe_load(EXAMPLE_FILE.read_text(encoding="utf-8"))


def test_render_env_is_shell_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, env={"PYTORCH_CUDA_ALLOC_CONF": "a:$(touch x); 'b'", "OMP_NUM_THREADS": "4"})
    _, out, _ = run(capsys, "render", path, "--for", "env")
    shell = subprocess.run(
        ["sh", "-c", out + 'printf "%s|%s" "$PYTORCH_CUDA_ALLOC_CONF" "$OMP_NUM_THREADS"'],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert shell.stdout == "a:$(touch x); 'b'|4"
    assert not (tmp_path / "x").exists()


def test_render_env_unsets_what_belongs_to_a_dispatcher_that_is_not_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, err = run(capsys, "render", EXAMPLE, "--for", "env")
    left = 'env | grep -c "HYBRID_EP\\|NVLINK_DOMAIN\\|MNNVL\\|PER_CHUNK\\|STAGES\\|IN_FLIGHT"'
    before = dict.fromkeys(HYBRID_EP_VARIABLES, "1")
    shell = subprocess.run(
        ["bash", "-c", f"{left}; {out}{left}"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], **before},
    )  # fmt: skip
    assert shell.stdout == f"{len(HYBRID_EP_VARIABLES)}\n0\n"
    assert "launch.segment" in err


HYBRID_EP = {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8", "NVLINK_DOMAIN_SIZE": "8", "USE_MNNVL": "0"}


def test_render_env_of_hybridep_sets_its_whole_switch_and_unsets_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**load_policy(EXAMPLE).settings, "dispatcher": "hybridep"}
    _, out, _ = run(capsys, "render", changed(tmp_path, settings=settings, env=HYBRID_EP), "--for", "env")
    assert out == "".join(f"export {name}={value}\n" for name, value in HYBRID_EP.items())


@pytest.mark.parametrize(
    "use",
    [
        'eval "show $(cat words)"',
        'eval "WORDS=($(cat words))"; show "${WORDS[@]}"',
        'echo "show $(cat words)" > script; source ./script',
    ],
)
def test_render_megatron_lm_gives_a_shell_exactly_its_words(
    use: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(
        capsys, "render", changed(tmp_path, launch={}), "--for", "megatron-lm", "--megatron-core", "0.18"
    )
    (tmp_path / "words").write_text(out, encoding="utf-8")
    shell = subprocess.run(
        ["bash", "-c", f"show() {{ printf '%s\\0' \"$@\"; }}; {use}"], capture_output=True, text=True, check=True,
        cwd=tmp_path,
    )  # fmt: skip
    words = arguments_of(load_policy(EXAMPLE).settings, "0.18")
    assert (status, shell.stdout.split("\0")[:-1]) == (0, words)
    assert "Et|tt|tt|tL" in words
    assert all(line.startswith("--") for line in out.splitlines())
    assert err.startswith("its environment: policy render ")


def test_render_megatron_lm_refuses_what_only_a_launcher_can_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("render", EXAMPLE, "--for", "megatron-lm", "--megatron-core", "0.18")
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.startswith("error: launch.segment cannot be said on Megatron-LM's command line")
    monkeypatch.setenv("AUTOTUNE_POLICY", EXAMPLE)
    assert run(capsys, *argv)[0::2] == (0, "")


def test_render_json_has_what_a_program_needs(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "render", EXAMPLE, "--for", "json")
    policy = load_policy(EXAMPLE)
    assert json.loads(out) == {"settings": policy.settings, "env": policy.env, "launch": policy.launch}


@pytest.mark.parametrize("version", ["0.16", "0.19.2"])
def test_render_megatron_core_has_the_fields_of_the_release(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "render", EXAMPLE, "--for", "megatron-core", "--megatron-core", version)
    fields = render(load_policy(EXAMPLE).settings, version)
    assert json.loads(out) == {
        "megatron_core": version[:4], "transformer": fields.transformer, "ddp": fields.ddp,
        "training": fields.training,
    }  # fmt: skip


def test_render_without_a_release_asks_for_one_where_none_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune_policies.commands.render.detect_stack", dict)
    status, out, err = run(capsys, "render", EXAMPLE, "--for", "megatron-core")
    assert (status, out) == (2, "")
    assert err == "error: no megatron-core is installed here\nhint: name the release: --megatron-core 0.19\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "error: the following arguments are required: COMMAND"),
        (["shwo", EXAMPLE], "invalid choice: 'shwo'"),
        (["show"], "required: FILE"),
        (["render", EXAMPLE], "required: --for"),
        (["render", EXAMPLE, "--for", "nemo"], "choose from"),
        (["render", EXAMPLE, "--for", "megatron-core", "--megatron-core", "0.15"], "'0.15' is not supported"),
        (["render", EXAMPLE, "--for", "env", "--megatron-core", "0.19"], "means nothing to --for env"),
        (["show", "no/such/file.yaml"], "error: no/such/file.yaml: No such file or directory"),
        (["show", "."], "error: .: Is a directory"),
        (["show", EXAMPLE, "--", "true"], "'--' and a command belong to exec"),
        (["exec", EXAMPLE], "exec needs '--' and a command"),
        (["exec", EXAMPLE, "--"], "exec needs '--' and a command"),
        (["exec", EXAMPLE, "true"], "unrecognized arguments: true"),
        (["exec", EXAMPLE, "--", ""], "the command is empty: ''"),
        (["exec", EXAMPLE, "--", "no-such-program-anywhere"], "cannot run 'no-such-program-anywhere'"),
    ],
)
def test_wrong_requests_are_one_line_and_exit_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in err


def test_a_broken_file_is_told_with_its_line_and_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, lauch={})
    status, out, err = run(capsys, "validate", path)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path}:")
    assert err.endswith("the policy has an unknown key 'lauch'\nhint: did you mean launch?\n")


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "usage: policy" in out


def test_a_reader_that_has_seen_enough_is_no_traceback() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "autotune_policies", "show", EXAMPLE], stdout=write_end, stderr=subprocess.PIPE,
        text=True, check=False, env={"PYTHONPATH": str(Path(autotune_policies.__file__).parents[1])},
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def shell(redirection: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$0" -m autotune_policies show "$1" {redirection}', sys.executable, EXAMPLE],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(Path(autotune_policies.__file__).parents[1])},
    )  # fmt: skip


def test_a_closed_output_is_no_traceback() -> None:
    done = shell(">&-")
    assert (done.returncode, done.stderr) == (1, "error: standard output is closed, so nothing was printed\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_no_traceback() -> None:
    done = shell("> /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def execute(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The real program: exec replaces the process, so it needs one of its own."""
    return subprocess.run(
        [sys.executable, "-m", "autotune_policies", "exec", *argv], capture_output=True, text=True, check=False,
        env={
            "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(autotune_policies.__file__).parents[1]), **(env or {})
        },
    )  # fmt: skip


def test_exec_runs_the_command_under_the_policy() -> None:
    done = execute(EXAMPLE, "--", "env", env={"KEPT": "yes"})
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert done.returncode == 0
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert seen["NCCL_GRAPH_REGISTER"] == "0"
    assert seen["AUTOTUNE_POLICY"] == EXAMPLE
    assert seen["KEPT"] == "yes"
    assert done.stderr == "launch.segment=4 is for the scheduler, nothing is done about it here\n"


def test_exec_says_when_the_policy_replaces_a_variable(tmp_path: Path) -> None:
    path = changed(tmp_path, launch={})
    done = execute(path, "--", "sh", "-c", "echo $NCCL_GRAPH_REGISTER", env={"NCCL_GRAPH_REGISTER": "1"})
    assert done.stdout == "0\n"
    assert done.stderr == "NCCL_GRAPH_REGISTER: the policy's 0 replaces 1\n"


def test_exec_leaves_nothing_of_a_dispatcher_that_was_given_up(tmp_path: Path) -> None:
    before = {**HYBRID_EP, "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128"}
    done = execute(changed(tmp_path, launch={}), "--", "env", env=before)
    assert not [line for line in done.stdout.splitlines() if line.split("=")[0] in HYBRID_EP_VARIABLES]
    assert done.stderr.splitlines() == [
        f"{name}: unset, since dispatcher is deepep" for name in HYBRID_EP_VARIABLES if name in before
    ]


def test_exec_passes_arguments_and_the_exit_status_through_untouched(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1:]); sys.exit(7)"
    done = execute(changed(tmp_path, launch={}), "--", sys.executable, "-c", program, "--", "$HOME; x", "*")
    assert done.returncode == 7
    assert done.stdout == "['--', '$HOME; x', '*']\n"
    assert done.stderr == ""


def numactl(tmp_path: Path) -> dict[str, str]:
    """A PATH with a numactl that prints what it was asked."""
    path = tmp_path / "bin" / "numactl"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_exec_binds_a_rank_to_its_numa_node(variable: str, tmp_path: Path) -> None:
    path = changed(tmp_path, launch={"numa_binding": {"gpus_per_numa_node": 2}})
    done = execute(path, "--", "train", "x", env={**numactl(tmp_path), variable: "3"})
    assert done.stdout == "--cpunodebind=1 --membind=1 train x\n"


def test_exec_refuses_a_binding_that_it_cannot_do(tmp_path: Path) -> None:
    path = changed(tmp_path, launch={"numa_binding": {"gpus_per_numa_node": 2}})
    done = execute(path, "--", "true", env={"PATH": str(tmp_path), "LOCAL_RANK": "0"})
    assert done.returncode == 2
    assert "error: launch.numa_binding needs numactl" in done.stderr
    done = execute(path, "--", "true", env=numactl(tmp_path))
    assert done.returncode == 2
    assert "error: launch.numa_binding needs the local rank" in done.stderr
