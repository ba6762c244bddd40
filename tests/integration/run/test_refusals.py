"""Requests that cannot be served say so in one line and start nothing."""

import json
from pathlib import Path

import pytest

from autotune.errors import ClusterError
from autotune.request import load_request
from autotune.scheduling.environment import prepare

from .conftest import Command

pytestmark = pytest.mark.service


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (
            ("--model", "dsv3", "--cluster", "gb300", "--address", "local"),
            "error: cluster 'gb300' needs 64 nodes x 4 GB300 GPUs (256 in all, NVLink domains of 72), "
            "but no Ray cluster runs here and this machine has no GPU",
            "--dry-run",
        ),
        (
            ("--model", "dsv3", "--cluster", "gb300", "--address", "127.0.0.1:1"),
            "error: no Ray cluster answers at --address 127.0.0.1:1: ",
            "--address HOST:PORT",
        ),
        (
            ("--model", "tiny-moe", "--cluster", "local", "--address", "127.0.0.1:1"),
            "error: cluster 'local' is the CPUs of this machine, so nothing runs at --address 127.0.0.1:1",
            "leave --address out",
        ),
        (
            ("--model", "tiny-moe", "--cluster", "local", "--trial", "command", "--command", "python x.py {steps}"),
            "error: the command 'python x.py {steps}' has no place for a trial's settings",
            "put one of {arguments}, {overrides}, {policy} into it",
        ),
        (("--model", "dsv4", "--cluster", "gb300"), "error: unknown model 'dsv4'", "did you mean dsv3 or dsv4-flash?"),
        (("--model", "tiny-moe", "--cluster", "locale"), "error: unknown cluster 'locale'", "did you mean local?"),
        (
            ("--model", "tiny-moe", "--cluster", "local", "--gpus", "16"),
            "error: the baseline cannot run on 16 GPUs: MC023: ",
            "--gpus",
        ),
    ],
)
def test_an_impossible_request_exits_2_with_a_hint(
    own_command: Command, arguments: tuple[str, ...], says: str, hint: str
) -> None:
    run = own_command.run("start", *arguments, timeout_s=60)

    assert run.returncode == 2
    assert run.stdout == ""
    assert says in run.stderr
    assert hint in run.stderr
    assert "Traceback" not in run.stderr


def test_a_dry_run_prints_the_first_trial_and_leaves_nothing(own_command: Command) -> None:
    run = own_command.run("start", "--model", "dsv3", "--cluster", "gb300", "--dry-run", "--json", timeout_s=60)

    document = json.loads(run.stdout)
    assert document["gang"]["world_size"] == 256
    assert document["first_trial"]["settings"]["dispatcher"] == "alltoall"
    assert list(own_command.home.iterdir()) == []


def test_more_ranks_than_one_machine_offers_are_refused(tmp_path: Path) -> None:
    prepare()
    from autotune.scheduling.session import ray_session

    request = load_request("tiny-moe", "local", gpus=16, home=tmp_path)

    with (
        pytest.raises(ClusterError, match="needs 2 x 8 ranks, but this machine is one node") as caught,
        ray_session(request, "local"),
    ):
        pass

    assert "--gpus 8" in str(caught.value.hint)
