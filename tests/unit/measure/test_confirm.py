"""Finalists measured again: order, winner or tie set, and the leanest of it."""

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.confirm import TieSet, confirmation_schedule, tie_set

TABLE = Path(__file__).parents[2] / "data" / "moe_layer_dispatcher_h100.tsv"

Cell = dict[str, tuple[float, int]]
"""Dispatcher: measured time in ms, peak memory in bytes."""


def cells() -> dict[tuple[str, str, str], Cell]:
    """Commit, model and precision: what each dispatcher measured."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    header = lines[0].split("\t")
    found: dict[tuple[str, str, str], Cell] = {}
    for line in lines[1:]:
        row = dict(zip(header, line.split("\t"), strict=True))
        cell = found.setdefault((row["commit"], row["model"], row["precision"]), {})
        cell[row["dispatcher"]] = (float(row["fwd_bwd_ms"]), int(row["max_allocated_bytes"]))
    return found


def measured(cell: Cell, seed: int, repeats: int = 3, between: float = 0.003, sigma: float = 0.03) -> TieSet:
    """Repeats of 50 steps around the table's times; no step and no run is exactly the same."""
    source = random.Random(seed)
    runs: dict[str, list[list[float]]] = {name: [] for name in cell}
    for name in confirmation_schedule(list(cell), repeats):
        level = cell[name][0] * math.exp(source.gauss(0.0, between))
        runs[name].append([level * math.exp(source.gauss(0.0, sigma)) for _ in range(50)])
    return tie_set(runs, {name: memory for name, (_, memory) in cell.items()})


CELLS = cells()


@pytest.mark.parametrize("key", CELLS, ids="-".join)
def test_every_cell_of_the_layer_table_has_its_winner_or_a_tie_set_with_it(key: tuple[str, str, str]) -> None:
    cell = CELLS[key]
    order = sorted(cell, key=lambda name: cell[name][0])
    for seed in range(4):
        found = measured(cell, seed)
        assert order[0] in found.members
        for name in cell:
            apart = cell[name][0] / cell[order[0]][0]
            if apart > 1.03:
                assert name not in found.members
            elif apart < 1.005:
                assert name in found.members
        assert found.chosen == min(found.members, key=lambda name: cell[name][1])


MIXTRAL = {
    "bf16": {"a2a": (12.0, 3), "deepep": (12.5, 2), "hybridep": (12.1, 2)},
    "fp8": {"a2a": (10.4, 3), "deepep": (10.9, 2), "hybridep": (10.27, 2)},
}
"""The same benchmark's Mixtral shape, rounded: differences of 0.8 and 1.3 % between the two fastest."""


@pytest.mark.parametrize("precision", MIXTRAL)
def test_close_dispatchers_end_in_a_tie_and_the_leaner_is_chosen(precision: str) -> None:
    cell = MIXTRAL[precision]
    both = [measured(cell, seed) for seed in range(12)]
    members = Counter(name for found in both for name in found.members)
    fastest = min(cell, key=lambda name: cell[name][0])
    assert members[fastest] == 12
    assert members["deepep"] == 0
    assert all(found.chosen == "hybridep" for found in both if len(found.members) > 1)
    assert sum(len(found.members) > 1 for found in both) >= 5


def test_commits_as_repeats_name_the_winner() -> None:
    """Each commit measured all three once: rounds, with one number standing for a run."""
    for precision, winner in (("bf16", "hybridep"), ("fp8", "hybridep")):
        rounds = [cell for (_, _, kind), cell in CELLS.items() if kind == precision and len(cell) == 3]
        assert len(rounds) == 3
        runs = {name: [[cell[name][0]] * 4 for cell in rounds] for name in rounds[0]}
        found = tie_set(runs, {name: rounds[0][name][1] for name in runs})
        assert found.members == (winner,)
        assert found.chosen == winner


@pytest.mark.parametrize(("between", "prior"), [(0.002, 0.003), (0.02, 0.02)])
def test_equals_are_rarely_told_apart(between: float, prior: float) -> None:
    single = 0
    for seed in range(40):
        source = random.Random(seed)
        runs = {
            name: [[math.exp(shift + source.gauss(0.0, 0.01)) for _ in range(20)] for shift in shifts]
            for name in ("a", "b", "c")
            for shifts in [[source.gauss(0.0, between) for _ in range(3)]]
        }
        single += len(tie_set(runs, {}, between_runs=prior, tie_within=0.0).members) == 1
    assert single <= 4  # 5 % of 40, and the fastest of three is the luckiest


def test_scatter_between_runs_counts_and_steps_do_not_hide_it() -> None:
    quiet = [[1.0] * 50, [1.002] * 50, [0.998] * 50]
    loud = [[1.0] * 50, [1.06] * 50, [0.94] * 50]
    slower = [[1.05 * value for value in run] for run in quiet]
    assert tie_set({"a": quiet, "b": slower}, {}).members == ("a",)
    assert set(tie_set({"a": loud, "b": slower}, {}).members) == {"a", "b"}


def test_one_run_each_tells_little_apart() -> None:
    for apart, members in ((1.03, ("a", "b")), (1.06, ("a",))):
        found = tie_set({"a": [[1.0] * 20], "b": [[apart] * 20]}, {})
        assert found.members == members
        assert found.ci95["b"][0] < apart < found.ci95["b"][1]


def test_what_a_round_did_to_all_is_taken_out() -> None:
    rounds = (1.0, 1.1, 1.2)
    a = [[level] * 10 for level in rounds]
    b = [[1.03 * level] * 10 for level in rounds]
    assert tie_set({"a": a, "b": b}, {}).members == ("a",)
    assert tie_set({"a": a, "b": b[:2]}, {}).chosen == "b"  # no rounds any more


def often_slow(source: random.Random, level: float, every: int = 4, times: float = 2.0) -> list[float]:
    """Of 50 steps every so many take longer, so that the mean step is slower than the median."""
    return [value * (times if step % every == 3 else 1.0) for step, value in enumerate(flat(source, level))]


def flat(source: random.Random, level: float) -> list[float]:
    return [level * math.exp(source.gauss(0.0, 0.005)) for _ in range(50)]


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_median_that_is_blind_to_slow_steps_beats_nobody(repeats: int) -> None:
    """A takes 95 ms and every fourth step twice that, 119 ms in the mean; B takes 100 ms. Training is faster with B."""
    source = random.Random(repeats)
    runs = {
        "a": [often_slow(source, 0.095) for _ in range(repeats)],
        "b": [flat(source, 0.100) for _ in range(repeats)],
        "c": [flat(source, 0.120) for _ in range(repeats)],
    }
    found = tie_set(runs, {"a": 1, "b": 2, "c": 1})
    assert found.members == ("a", "b"), "b beats c, so c is out though a does not beat it"
    assert found.chosen == "b", "though a needs less memory"
    assert found.mean_step_time_s["a"] == pytest.approx(0.119, rel=0.02)
    [objection] = found.objections
    assert (objection.faster, objection.slower) == ("a", "b")
    assert objection.reason.startswith("by the medians of the runs A is faster, by their means B is")


@pytest.mark.parametrize("trend", [lambda step: math.exp(-step / 40), lambda step: -step / 200, lambda step: step % 2])
def test_what_every_run_does_alike_is_no_uncertainty(trend: Callable[[int], float]) -> None:
    """Every run trains the same steps from the same weights, so a router that learns speeds all of them up alike."""
    source = random.Random(9)

    def run(level: float) -> list[float]:
        level *= math.exp(source.gauss(0.0, 0.002))
        return [value * (1.0 + 0.15 * trend(step)) for step, value in enumerate(flat(source, level))]

    runs = {name: [run(level) for _ in range(3)] for name, level in (("a", 0.100), ("b", 0.103))}
    found = tie_set(runs, {"a": 2, "b": 1})
    assert (found.members, found.chosen, found.objections) == (("a",), "a", ())


def test_what_pauses_in_every_run_beats_nobody_and_one_pause_is_an_accident() -> None:
    """A takes 95 ms and every tenth step three times that: too rare for a single run to object, but it never fails."""
    source = random.Random(6)
    slower = [flat(source, 0.100) for _ in range(3)]
    found = tie_set({"a": [often_slow(source, 0.095, every=10, times=3.0) for _ in range(3)], "b": slower}, {})
    assert (found.members, found.chosen) == (("a", "b"), "b")
    assert found.objections[0].reason.startswith("by the medians of the runs A is faster, by their means B is")

    once = [flat(source, 0.095) for _ in range(3)]
    once[1][20] = 1.5  # so that the mean of this run is 30 % slower, and that of all runs 9 %
    found = tie_set({"a": once, "b": slower}, {})
    assert found.mean_step_time_s["a"] > 1.03 * found.mean_step_time_s["b"]
    assert (found.members, found.objections) == (("a",), ())


def test_one_pause_does_not_cost_the_leaner_one_the_choice() -> None:
    source = random.Random(7)
    lean, large = ([flat(source, 0.100) for _ in range(3)] for _ in range(2))
    lean[1][20] = 2.0
    found = tie_set({"lean": lean, "large": large}, {"lean": 1, "large": 2})
    assert found.mean_step_time_s["lean"] > 1.04 * found.mean_step_time_s["large"]
    assert set(found.members) == {"lean", "large"}
    assert found.chosen == "lean"


def test_of_equal_memory_the_lower_mean_is_chosen() -> None:
    a = [[1.0, 1.0, 1.0, 1.03] * 10] * 2
    b = [[1.001] * 40] * 2
    found = tie_set({"a": a, "b": b}, {"a": 5, "b": 5})
    assert (found.members, found.chosen) == (("a", "b"), "b")


def test_memory_chooses_and_the_unknown_comes_last() -> None:
    runs = {name: [[1.0] * 10] * 2 for name in "abc"}
    assert tie_set(runs, {"a": 30, "b": 10, "c": 20}).chosen == "b"
    assert tie_set(runs, {"a": 30, "b": None}).chosen == "a"
    assert tie_set(runs, {}).chosen == "a"
    alone = TieSet(("only",), "only", {"only": 1.0}, {"only": (1.0, 1.0)}, 0.01, 4.0, {"only": 1.0})
    assert tie_set({"only": [[1.0] * 4]}, {}) == alone


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=4), st.integers(1, 3), st.sampled_from([2.0**-20, 1024.0]))
@settings(max_examples=20, deadline=None)
def test_neither_unit_nor_order_of_finalists_matters(levels: list[float], repeats: int, unit: float) -> None:
    runs = {
        f"f{place}": [[level * (1.0 + 0.001 * (step % 5)) for step in range(12)]] * repeats
        for place, level in enumerate(levels)
    }
    scaled = {name: [[unit * value for value in run] for run in of] for name, of in reversed(runs.items())}
    found, other = tie_set(runs, {}), tie_set(scaled, {})
    assert set(other.members) == set(found.members)
    assert found.ratio[found.members[0]] == 1.0
    assert all(found.ci95[name][0] <= found.ratio[name] <= found.ci95[name][1] for name in runs)


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_schedule_is_balanced(count: int, repeats: int) -> None:
    names = [f"f{place}" for place in range(count)]
    schedule = confirmation_schedule(names, repeats)
    assert Counter(schedule) == dict.fromkeys(names, repeats)
    assert all(sorted(schedule[at : at + count]) == names for at in range(0, len(schedule), count))
    if repeats % 2 == 0:  # a linear drift over the schedule adds the same to every finalist
        assert len({sum(at for at, name in enumerate(schedule) if name == one) for one in names}) == 1


def test_the_schedule_of_two() -> None:
    assert confirmation_schedule(["A", "B"], 3) == ["A", "B", "B", "A", "A", "B"]


def test_what_cannot_be_scheduled_or_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="must differ"):
        confirmation_schedule(["A", "A"], 2)
    with pytest.raises(ValueError, match="repeats=0"):
        confirmation_schedule(["A"], 0)
    with pytest.raises(ValueError, match="every finalist needs a run"):
        tie_set({"a": [[1.0] * 4], "b": []}, {})
    with pytest.raises(ValueError, match="too few"):
        tie_set({"a": [[1.0] * 3]}, {})
