from dataclasses import replace

import pytest

from autotune.errors import ClusterError
from autotune.request import load_request
from autotune.scheduling.preflight import NodeReport, Preflight, fusions_of

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


def test_a_fused_permutation_that_fails_on_one_node_is_pinned_off_and_is_another_stack():
    good = Preflight((report("a", alltoall="", permute_fusion=""),))
    bad = Preflight((report("a", alltoall="", permute_fusion=""), report("b", alltoall="", permute_fusion="no Triton")))
    assert good.surroundings().pinned == {}
    assert bad.surroundings().pinned == {"permute_fusion": False}
    assert bad.surroundings().fingerprint != good.surroundings().fingerprint


def test_the_fused_permutation_is_looked_at_where_a_trial_can_ask_for_it(tmp_path):
    asked = load_request("tiny-moe", "local", home=tmp_path)
    assert fusions_of(asked) == ["permute_fusion"]
    others = tuple(each for each in asked.space.parameters if each.name != "permute_fusion")
    assert fusions_of(replace(asked, space=replace(asked.space, parameters=others))) == []
    assert fusions_of(load_request("dsv3", "gb300", home=tmp_path)) == ["permute_fusion"]
