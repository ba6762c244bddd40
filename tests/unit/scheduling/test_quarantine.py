from autotune.measure.disturbance import Sick
from autotune.scheduling.quarantine import (
    excluded_nodes,
    label_selector,
    put_in_quarantine,
    quarantined,
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
