"""A study whose baseline and winner are profiled after it is known how they rank."""

import json
import re

import pytest

from autotune_policies import load_policy

from .conftest import Command

pytestmark = [pytest.mark.service, pytest.mark.trial, pytest.mark.head]

_RANKED = ("counts", "pareto", "best")


def test_profiling_leaves_two_files_and_the_ranking_as_it_was(own_command: Command, short_model: str) -> None:
    command = own_command
    asked = ("start", "--model", short_model, "--cluster", "local", "--trials", "2", "--confirm", "0", "--json")
    before = command.run(*asked)
    assert before.returncode == 0, before.stderr
    after = command.run(*asked, "--profile")
    assert after.returncode == 0, after.stderr
    ranked, again = json.loads(before.stdout), json.loads(after.stdout)
    study = command.home / "tiny-moe-local"
    found = {role: json.loads((study / "profile" / f"{role}.json").read_text()) for role in ("baseline", "winner")}

    assert {name: again[name] for name in _RANKED} == {name: ranked[name] for name in _RANKED}
    assert again["gpu_hours"] > ranked["gpu_hours"]
    assert len(list((study / "trials").iterdir())) == 2
    assert found["winner"]["trial"] == again["best"]["trial"]
    for shown in found.values():
        assert min(shown["exposed_dispatch_s"], shown["experts_s"], shown["host_s"]) > 0.0
    evidence = load_policy(study / "policy.yaml").evidence
    here = ("host", "trace")  # of use on this machine only
    told = {role: {name: shown[name] for name in shown if name not in here} for role, shown in found.items()}
    assert evidence["profile"] == told
    assert evidence["step_time_s"]["median"] == ranked["best"]["step_time_s"]
    status = command.run("status", "tiny-moe-local")
    assert re.findall(r"^profile of (\w+) .*unscored.*experts \d+%", status.stdout, re.MULTILINE) == list(found)
