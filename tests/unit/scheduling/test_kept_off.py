"""Gangs are placed off nodes in quarantine, and off those where their settings failed before, while others are left."""

from dataclasses import asdict

import pytest

from autotune.errors import ClusterError
from autotune.measure.disturbance import Sick
from autotune.scheduling.quarantine import put_in_quarantine
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

trainable = pytest.importorskip("autotune.scheduling.trainable", reason="ray not installed (extra: service)")

MODEL = ModelShape("tiny", 4, 64, 4, 128, 128)


@pytest.fixture
def selector(tmp_path, monkeypatch):
    nodes = [
        {"NodeID": f"id-{host}", "NodeManagerHostname": host, "Alive": True, "Resources": {"rank": 2.0}}
        for host in ("one", "two", "three")
    ]
    nodes.append({"NodeID": "id-head", "NodeManagerHostname": "head", "Alive": True, "Resources": {"CPU": 8.0}})
    monkeypatch.setattr(trainable.ray, "nodes", lambda: nodes)
    (tmp_path / "request.yaml").write_text("")

    def place(num_nodes, sick=(), avoid=()):
        put_in_quarantine(tmp_path, [Sick(host, "Xid 79") for host in sick], trial=1)
        spec = TrialSpec("s", 0, MODEL, Contract(8, 2), resolve({}), GangShape(num_nodes, 2, "cpu"))
        config = {"spec": asdict(spec), "trial_dir": str(tmp_path / "trials" / "0002"), "avoid_hosts": list(avoid)}
        trainable.require_healthy(spec, tmp_path)
        return trainable.placement(config)._kwargs.get("bundle_label_selector")

    return place


def test_a_healthy_cluster_gets_one_request_for_all_trials(selector):
    assert selector(2) is None


def test_what_is_sick_or_suspected_is_left_out(selector):
    assert selector(1, sick=["two"], avoid=["one"]) == [{"ray.io/node-id": "!in(id-one,id-two)"}]


def test_a_suspect_is_used_again_before_the_run_stands_still_but_a_sick_node_is_not(selector):
    assert selector(2, sick=["two"], avoid=["one"]) == [{"ray.io/node-id": "!in(id-two)"}] * 2


def test_too_few_healthy_nodes_end_the_run(selector):
    with pytest.raises(ClusterError, match=r"3 nodes are needed, but 1 of 3 are in quarantine: two: Xid 79"):
        selector(3, sick=["two"])
