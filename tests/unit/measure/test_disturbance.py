from dataclasses import replace

import pytest

from autotune.measure.disturbance import disturbance, sick_nodes, slow_nodes
from autotune.measure.run import GangRun, RankExit
from autotune.measure.steady import steady_steps

GPU = {"index": 1, "samples": 40, "throttled": {}, "temperature_c_max": 88, "foreign_processes": 0, "xid_errors": []}
QUIET_S = [0.1, 0.1001, 0.0999, 0.1] * 10
QUIET = steady_steps(QUIET_S)


def run_with(gpu=None, infiniband=None):
    health = {"gpus": [{**GPU, **(gpu or {})}], "infiniband": infiniband or {}}
    return GangRun("finished", (), hosts=("one", "two"), health=(None, health))


def test_a_quiet_node_disturbs_nothing():
    assert disturbance(run_with(), QUIET) == ""
    assert sick_nodes(run_with()) == []


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (
            {"throttled": {"hardware thermal limit": 0.4}},
            "two: GPU 1 was slowed (hardware thermal limit) in 40% of the samples, up to 88 C",
        ),
        ({"foreign_processes": 2}, "two: GPU 1 was shared with 2 processes of others"),
    ],
)
def test_what_disturbed_is_named_with_its_host(gpu, said):
    assert disturbance(run_with(gpu), QUIET) == said


def test_a_short_spike_of_heat_is_no_disturbance():
    assert disturbance(run_with({"throttled": {"power brake": 0.05}}), QUIET) == ""


def test_half_a_run_on_another_level_is_no_measurement():
    slowed = steady_steps(QUIET_S + [1.4 * value for value in QUIET_S[:30]])
    assert disturbance(run_with(), slowed) == "30 of 70 measured steps ran at another speed than the rest"


def test_what_was_set_aside_still_speaks_against_a_run():
    passing = steady_steps(QUIET_S[:12] + [1.4 * value for value in QUIET_S[:14]] + QUIET_S[:14])
    assert [(part.reason, len(part.places)) for part in passing.set_aside] == [("disturbed", 14)]
    assert disturbance(run_with(), passing) == "14 of 40 measured steps ran at another speed than the rest"


@pytest.mark.parametrize(
    ("gpu", "infiniband", "reason"),
    [
        ({"xid_errors": [79]}, {}, "GPU 1: Xid 79"),
        ({"ecc_uncorrected": 2}, {}, "GPU 1: 2 uncorrected ECC errors"),
        ({"nvlink_errors": 5}, {}, "GPU 1: 5 NVLink errors"),
        ({"remapped_rows_failed": 1}, {}, "GPU 1: a failed row remapping"),
        ({}, {"mlx5_0/1": {"link_downed": 3}}, "InfiniBand port mlx5_0/1 went down 3 times"),
    ],
)
def test_a_broken_node_is_sick(gpu, infiniband, reason):
    [sick] = sick_nodes(run_with(gpu, infiniband))
    assert (sick.host, sick.reason) == ("two", reason)


def test_a_few_symbol_errors_are_a_cables_life():
    assert sick_nodes(run_with(None, {"mlx5_0/1": {"symbol_error": 99}})) == []
    assert sick_nodes(run_with(None, {"mlx5_0/1": {"symbol_error": 100}})) != []


def test_a_slow_node_is_named():
    ranks = tuple(
        RankExit(rank, rank // 2, 0, median_step_time_s=0.13 if rank // 2 == 1 else 0.1 + rank / 1e4)
        for rank in range(8)
    )
    run = GangRun("finished", ranks, hosts=("a", "b", "c", "d"))
    assert slow_nodes(run) == ["b is 29% slower"]
    assert slow_nodes(replace(run, ranks=ranks[:4])) == []  # of two nodes nobody knows which one is usual
