import pytest

from autotune.errors import ClusterError
from autotune.scheduling.preflight import NodeReport, Preflight

FACTS = {"python": "3.12", "cpu_count": 2, "versions": {"torch": "2.13"}, "gpus": []}


def report(host, facts=FACTS, **verdicts):
    found = {
        name: {"backend": name, "available": not reason, "reason": reason, "error": "ImportError" if reason else ""}
        for name, reason in verdicts.items()
    }
    return NodeReport({"host": host, **facts}, found)


def test_a_backend_counts_only_when_every_node_has_it():
    preflight = Preflight((report("a", alltoall="", deepep=""), report("b", alltoall="", deepep="no libnvshmem")))
    assert preflight.unavailable == {"deepep": "ImportError: no libnvshmem (on 1 of 2 nodes: b)"}
    assert dict(preflight.surroundings().unavailable) == preflight.unavailable


def test_a_reason_that_all_nodes_share_is_said_once():
    preflight = Preflight(tuple(report(host, deepep="missing") for host in "abcd"))
    assert preflight.unavailable == {"deepep": "ImportError: missing"}


def test_many_hosts_are_not_all_listed():
    nodes = [report(host, deepep="missing") for host in "abcd"] + [report("e", deepep="")]
    assert Preflight(tuple(nodes)).unavailable["deepep"].endswith("(on 4 of 5 nodes: a, b, c, ...)")


def test_equal_nodes_have_the_fingerprint_of_one():
    one, two = Preflight((report("a"),)), Preflight((report("a"), report("b")))
    assert one.surroundings().fingerprint == two.surroundings().fingerprint
    assert one.surroundings().stack == {"torch": "2.13"}


def test_a_small_difference_makes_a_fingerprint_of_its_own_whatever_the_order():
    other = report("b", facts={**FACTS, "cpu_count": 3})
    there, back = Preflight((report("a"), other)), Preflight((other, report("a")))
    assert there.surroundings().fingerprint == back.surroundings().fingerprint
    assert there.surroundings().fingerprint != Preflight((report("a"),)).surroundings().fingerprint


def test_nodes_with_different_software_are_refused():
    other = report("b", facts={**FACTS, "versions": {"torch": "2.12"}})
    with pytest.raises(ClusterError, match=r"nodes differ in versions: .*2\.13.* on a, but .*2\.12.* on b"):
        Preflight((report("a"), other)).surroundings()
