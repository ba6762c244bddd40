import socket

import pytest

from autotune.errors import ClusterError
from autotune.measure.disturbance import Sick
from autotune.request import load_request
from autotune.scheduling.environment import prepare
from autotune.scheduling.quarantine import (
    excluded_nodes,
    label_selector,
    put_in_quarantine,
    quarantined,
    refuse_quarantined,
    study_folder,
)

NODES = [
    {"NodeID": "a1", "NodeManagerHostname": "one", "Alive": True},
    {"NodeID": "b2", "NodeManagerHostname": "two", "Alive": True},
    {"NodeID": "c3", "NodeManagerHostname": "two", "Alive": False},
]


def test_the_first_reason_stays_and_removing_the_file_takes_the_node_back(tmp_path):
    put_in_quarantine(tmp_path, [Sick("two", "GPU 1: Xid 79")], trial=3)
    put_in_quarantine(tmp_path, [Sick("two", "again"), Sick("a/b", "odd name")], trial=4)
    assert [(node.host, node.reason, node.trial) for node in quarantined(tmp_path)] == [
        ("a/b", "odd name", 4),
        ("two", "GPU 1: Xid 79", 3),
    ]
    (tmp_path / "quarantine" / "two.json").unlink()
    assert [node.host for node in quarantined(tmp_path)] == ["a/b"]


def test_nothing_sick_writes_nothing(tmp_path):
    put_in_quarantine(tmp_path, [], trial=0)
    assert list(tmp_path.iterdir()) == []
    assert quarantined(tmp_path) == ()


def test_a_file_that_somebody_broke_still_holds_its_host(tmp_path):
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "three.json").write_text("{")
    assert [node.host for node in quarantined(tmp_path)] == ["three"]


def test_placing_is_kept_off_the_living_nodes_of_these_hosts():
    assert excluded_nodes(NODES, ["two", "unknown"]) == ["b2"]
    assert label_selector(["b2", "a1"], 2) == [{"ray.io/node-id": "!in(a1,b2)"}] * 2
    assert label_selector([], 2) == []


def test_the_study_is_found_from_a_trial_and_from_a_confirming_run(tmp_path):
    (tmp_path / "request.yaml").write_text("")
    assert study_folder(tmp_path / "trials" / "0007") == tmp_path
    assert study_folder(tmp_path / "confirm" / "f" / "1-2" / "0") == tmp_path


def test_a_host_in_quarantine_is_refused_with_its_file_and_the_others_are_not(tmp_path):
    put_in_quarantine(tmp_path, [Sick("a/b", "GPU 1: Xid 79")], trial=3)
    refuse_quarantined(tmp_path, ["one", "two"])
    with pytest.raises(ClusterError, match=r"^node a/b is in quarantine: GPU 1: Xid 79$") as caught:
        refuse_quarantined(tmp_path, ["one", "a/b"])
    assert str(tmp_path / "quarantine" / "a%2Fb.json") in str(caught.value.hint)
    assert (tmp_path / "quarantine" / "a%2Fb.json").exists()


@pytest.mark.service
def test_this_machine_in_quarantine_is_refused_before_ray_starts(tmp_path, monkeypatch):
    prepare()
    session = pytest.importorskip("autotune.scheduling.session", reason="ray not installed (extra: service)")
    request = load_request("tiny-moe", "local", home=tmp_path)
    put_in_quarantine(request.folder, [Sick(socket.gethostname(), "2 uncorrected ECC errors")], trial=3)
    monkeypatch.setattr(session, "_init", lambda **_: pytest.fail("Ray was started"))
    with pytest.raises(ClusterError, match="is in quarantine: 2 uncorrected ECC errors") as caught:
        session.ray_session(request, "auto").__enter__()
    assert caught.value.exit_status == 2
    assert "have it checked, then remove " in str(caught.value.hint)
