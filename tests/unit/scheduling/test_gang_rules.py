"""How a gang's end is named, decided on statuses alone: no process, no clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.scheduling.gang import GangLost, run_gang
from autotune_trials.events import StepRecord
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec
from autotune_trials.status import NodeStatus, RankStatus

MODEL = ModelShape(name="none", num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=16, ffn_hidden_size=8)


def spec_of(nodes=1, ranks=2, deadline_s=100.0, stall_s=10.0):
    shape = GangShape(num_nodes=nodes, ranks_per_node=ranks, device="cpu")
    return TrialSpec("study", 0, MODEL, Contract(8, 2), {}, shape, deadline_s=deadline_s, stall_s=stall_s)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Script:
    """Answers poll() from a list; the last answer repeats. An exception in the list is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.kills = 0

    def launch(self, spec):
        pass

    def poll(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, *, stacks=False):
        self.kills += 1

    def logs(self, rank, max_bytes):
        return f"log of rank {rank}"

    def close(self):
        pass


def node(*ranks, index=0, **fields):
    return NodeStatus(index, f"host-{index}", tuple(ranks), **fields)


def run(gang, spec, **options):
    clock = Clock()
    return run_gang(gang, spec, clock=clock, sleep=clock.sleep, **options)


def test_steps_and_resolved_are_put_together_from_all_looks():
    first, second = (StepRecord(step, 0.1, 1.0, 1.0, 8) for step in (1, 2))
    alive, ended = RankStatus(0), RankStatus(0, exit_code=0)
    gang = Script(
        [node(alive, steps=(first,), resolved={"torch": "2"})],
        [node(alive)],
        [node(ended, steps=(second,), ended=True, lifetime_s=3.0)],
        [node(ended, ended=True, lifetime_s=3.0)],
    )
    result = run(gang, spec_of(ranks=1))
    assert (result.ending, result.steps, result.resolved) == ("finished", (first, second), {"torch": "2"})
    assert result.rank_lifetime_s == 3.0
    assert gang.kills == 1


def test_a_deaf_node_meets_the_deadline_of_the_gang():
    clock = Clock()
    busy = Script([node(RankStatus(0))])
    result = run_gang(busy, spec_of(ranks=1, deadline_s=5, stall_s=1e9), clock=clock, sleep=clock.sleep)
    assert (result.ending, result.message) == ("deadline", "the gang still ran after 5 s")
    assert 5 < result.wall_s < 5.3


def test_a_silent_rank_is_a_stall_even_when_its_node_does_not_notice():
    silent = RankStatus(1, last_event="built")
    looks = [[node(RankStatus(0, last_event="step", last_step=step), silent)] for step in range(200)]
    result = run(Script(*looks), spec_of(stall_s=3))
    assert result.ending == "stall"
    assert result.message == "rank 1 reported nothing for 3 s after built"


def test_a_fenced_node_is_a_lost_one():
    gang = Script([node(RankStatus(0, exit_code=-9, killed=True), ended=True, why="fence", message="nobody asked")])
    result = run(gang, spec_of(ranks=1))
    assert (result.ending, result.message) == ("lost", "nobody asked (on host-0)")


def test_a_lost_node_ends_the_gang_and_keeps_what_is_known():
    gang = Script([node(RankStatus(0), index=0), node(RankStatus(1), index=1)], GangLost("node 1 is gone"))
    result = run(gang, spec_of(nodes=2, ranks=1))
    assert (result.ending, result.message) == ("lost", "node 1 is gone")
    assert [rank.exit_code for rank in result.ranks] == [None, None]
    assert gang.kills == 1


def test_a_gang_that_cannot_be_launched_is_lost_with_an_entry_for_every_rank():
    class Refuses(Script):
        def launch(self, spec):
            raise GangLost("no such bundle")

    result = run(Refuses(GangLost("never launched")), spec_of(nodes=2, ranks=2))
    assert result.ending == "lost"
    assert [(rank.rank, rank.node, rank.exit_code) for rank in result.ranks] == [
        (0, 0, None), (1, 0, None), (2, 1, None), (3, 1, None),
    ]  # fmt: skip


def test_losing_a_node_after_the_end_does_not_change_the_end():
    gang = Script([node(RankStatus(0, exit_code=0), ended=True)], GangLost("too late to matter"))
    assert run(gang, spec_of(ranks=1)).ending == "finished"


def test_only_rank_0_and_ranks_that_failed_bring_their_log():
    ranks = [
        RankStatus(0, exit_code=-9, killed=True),
        RankStatus(1, exit_code=1),
        RankStatus(2, exit_code=-9, killed=True),
        RankStatus(3, exit_code=-9, killed=True, failure={"kind": "exception", "error": "E", "message": ""}),
    ]
    result = run(Script([node(*ranks, ended=True, why="rank_died", message="rank 1 died")]), spec_of(ranks=4))
    assert [rank.log_tail for rank in result.ranks] == ["log of rank 0", "log of rank 1", "", "log of rank 3"]


def test_many_deaths_are_told_on_one_line():
    ranks = [RankStatus(rank, exit_code=1) for rank in range(6)]
    result = run(Script([node(*ranks, ended=True)]), spec_of(ranks=6))
    assert result.message.endswith("rank 3 exited with status 1; 2 more")


def test_an_error_of_the_caller_still_kills():
    gang = Script([node(RankStatus(0), steps=(StepRecord(1, 0.1, 1.0, 1.0, 8),))])
    with pytest.raises(ZeroDivisionError):
        run(gang, spec_of(ranks=1), on_step=lambda _: 1 / 0)
    assert gang.kills == 1


ended_rank = st.tuples(st.sampled_from([0, 1, 3, -9, -11]), st.booleans())


@given(st.lists(ended_rank, min_size=1, max_size=6))
def test_an_ended_gang_finished_exactly_when_no_rank_died_by_itself_and_none_was_killed(ends):
    ranks = [RankStatus(rank, exit_code=code, killed=killed) for rank, (code, killed) in enumerate(ends)]
    why = "cancelled" if any(killed for _, killed in ends) else None
    result = run(Script([node(*ranks, ended=True, why=why)]), spec_of(ranks=len(ranks)))
    died = [rank for rank, (code, killed) in enumerate(ends) if code != 0 and not killed]
    expected = "rank_died" if died else "cancelled" if why else "finished"
    assert result.ending == expected


optional_failure = st.none() | st.fixed_dictionaries({"kind": st.text(), "error": st.text(), "message": st.text()})
rank_statuses = st.builds(
    RankStatus, rank=st.integers(0, 999), exit_code=st.none() | st.integers(-64, 255), killed=st.booleans(),
    last_event=st.none() | st.text(), last_step=st.integers(0), peak_memory_bytes=st.none() | st.integers(0),
    failure=optional_failure,
)  # fmt: skip
step_records = st.builds(
    StepRecord, step=st.integers(1), step_time_s=st.floats(0, 1e6), loss=st.floats(allow_nan=False),
    grad_norm=st.floats(allow_nan=False), tokens=st.integers(1),
)  # fmt: skip


@given(
    st.builds(
        NodeStatus,
        node=st.integers(0),
        host=st.text(),
        ranks=st.lists(rank_statuses).map(tuple),
        steps=st.lists(step_records).map(tuple),
        resolved=st.none() | st.dictionaries(st.text(), st.integers()),
        ended=st.booleans(),
        why=st.sampled_from([None, "stall", "fence"]),
        message=st.text(),
        lifetime_s=st.floats(0, 1e6),
    )
)
def test_a_node_status_survives_the_way_through_json(status):
    import json

    assert NodeStatus.from_dict(json.loads(json.dumps(status.to_dict()))) == status


def ended_beside(*later):
    """Rank 0 ends well after step 3; the other rank tells these steps, one list a look, and ends well too."""
    left = RankStatus(0, exit_code=0, last_event="finished")
    told = [tuple(StepRecord(step, 0.1, 1.0, 1.0, 8) for step in steps) for steps in ([1, 2, 3], *later)]
    looks = [[node(left, RankStatus(1, last_event="step"), steps=steps)] for steps in told]
    return Script(*looks, [node(left, RankStatus(1, exit_code=0, last_event="finished"), ended=True)])


def test_a_rank_that_left_while_the_others_trained_on_is_no_clean_end():
    result = run(ended_beside(*([step] for step in range(4, 20))), spec_of())
    assert result.ending == "rank_died"
    assert result.message == "rank 0 ended after step 3 of 8, the others trained on without it"


@pytest.mark.parametrize("later", [[[4], [5], [6]], [*[[]] * 30, [4, 5, 6], [7, 8, 9, 10]], [[]] * 30])
def test_lines_that_come_late_are_no_training(later):
    assert run(ended_beside(*later), spec_of(stall_s=1e9)).ending == "finished"
