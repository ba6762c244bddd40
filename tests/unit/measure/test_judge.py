import json
import math
import random
import signal
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.failure import rank_names, violation_at
from autotune.measure.outcome import TrialOutcome, TrialState, judge
from autotune.measure.run import GangRun, RankExit
from autotune_policies.settings import resolve
from autotune_trials.claims import Claim
from autotune_trials.events import StepRecord
from autotune_trials.programs import CommandSpec
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

TOKENS = 8 * 16
SPEC = TrialSpec(
    study="tiny",
    trial=7,
    model=ModelShape("tiny", 4, 64, 4, 128, 128, num_experts=4),
    contract=Contract(seq_length=16, global_batch_size=8, steps=6, warmup_steps=2),
    settings=resolve(
        {"expert_parallel": 2, "recompute_granularity": "selective", "recompute_modules": ["moe_act", "mlp"]}
    ),
    gang=GangShape(1, 4, "cpu"),
)


def step(number, step_time_s=0.5, loss=4.0, grad_norm=1.0, tokens=TOKENS):
    return StepRecord(number, step_time_s, loss, grad_norm, tokens)


def finished(**changes):
    run = GangRun(
        ending="finished",
        ranks=tuple(RankExit(rank, 0, 0, False, "finished", 6, 1000 + rank) for rank in range(4)),
        steps=tuple(step(number, 0.1 * number) for number in range(1, 7)),
        resolved={"settings": dict(SPEC.settings), "world_size": 4},
        wall_s=9.0,
        rank_lifetime_s=8.0,
        hosts=("one",),
    )
    run = replace(run, **changes)
    return run if "claims" in changes or not run.resolved else replace(run, claims=(Claim((0, 1, 2, 3), run.resolved),))


def died(*ranks, ending="rank_died", message=""):
    """A run in which the given ranks ended in their own way and we killed the others."""
    by_rank = {rank.rank: rank for rank in ranks}
    others = {number: RankExit(number, 0, -9, True, "step", 3) for number in range(4)}
    return GangRun(ending, tuple((others | by_rank).values()), message=message)


def test_a_sound_run_is_complete_with_its_numbers():
    outcome = judge(SPEC, finished())
    assert outcome.state is TrialState.COMPLETE
    assert outcome.reason == ""
    assert outcome.violation == 0
    assert outcome.step_time_s == pytest.approx(0.45)
    assert outcome.tokens_per_s_per_gpu == pytest.approx(TOKENS / 0.45 / 4)
    assert outcome.peak_memory_bytes == 1003
    assert outcome.steps_used == 4
    assert len(outcome.step_times_s) == len(outcome.losses) == 6
    assert outcome.gpu_s == 32.0
    assert TrialOutcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


@pytest.mark.parametrize(
    ("name", "built", "reason"),
    [
        ("dispatcher", "allgather", "dispatcher asked alltoall, built allgather"),
        ("expert_parallel", 1, "expert_parallel asked 2, built 1"),
        ("ep_overlap", True, "ep_overlap asked false, built true"),
        ("recompute_modules", ["mlp"], "recompute_modules asked [moe_act, mlp], built [mlp]"),
        ("num_sms", 24, "num_sms asked null, built 24"),
        ("tensor_parallel", True, "tensor_parallel asked 1, built true"),
    ],
)
def test_anything_built_differently_is_a_fallback(name, built, reason):
    outcome = judge(SPEC, finished(resolved={"settings": {**SPEC.settings, name: built}}))
    assert outcome.state is TrialState.FALLBACK
    assert outcome.reason == reason
    assert outcome.violation > 0
    assert outcome.tokens_per_s_per_gpu is None
    assert outcome.peak_memory_bytes is None


@pytest.mark.parametrize(
    ("resolved", "reason"),
    [
        (None, "nothing was read back"),
        ({}, "nothing was read back"),
        ({"settings": {}}, "nothing was read back"),
        ({"settings": {"ep_overlap": False}}, "the dispatcher was not read back"),
        ({"settings": dict(SPEC.settings), "world_size": 2}, "world_size asked 4, built 2"),
    ],
)
def test_a_run_without_proof_is_a_fallback(resolved, reason):
    outcome = judge(SPEC, finished(resolved=resolved))
    assert outcome.state is TrialState.FALLBACK
    assert reason in outcome.reason


def test_fields_that_were_not_read_back_are_not_compared_and_module_order_means_nothing():
    resolved = {"settings": {"dispatcher": "alltoall", "recompute_modules": ["mlp", "moe_act"]}}
    assert judge(SPEC, finished(resolved=resolved)).state is TrialState.COMPLETE


def test_a_different_batch_is_a_fallback():
    steps = tuple(step(number, tokens=TOKENS // 2) for number in range(1, 7))
    outcome = judge(SPEC, finished(steps=steps))
    assert outcome.state is TrialState.FALLBACK
    assert outcome.reason == f"tokens per step asked {TOKENS}, ran {TOKENS // 2}"


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numerics_even_in_warm_up(name, value):
    steps = [step(number) for number in range(1, 7)]
    steps[1] = replace(steps[1], **{name: value})
    outcome = judge(SPEC, finished(steps=tuple(steps)))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == f"numerics: {name}={value} at step 2"
    assert outcome.violation == violation_at(1, 6)
    assert outcome.step_time_s is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [("num_dropped_tokens: 4096", "tokens_dropped"), ("paged stash overflow detected", "graph_overflow")],
)
def test_tokens_that_were_left_out_are_no_measurement(line, cause):
    ranks = [replace(rank, log_tail=f"iteration 1\n{line}\n" if rank.rank == 3 else "") for rank in finished().ranks]
    outcome = judge(SPEC, finished(ranks=tuple(ranks)))
    assert (outcome.state, outcome.cause) == (TrialState.INFEASIBLE, cause)
    assert line in outcome.reason


def test_one_measured_step_is_no_measurement():
    short = replace(SPEC, contract=replace(SPEC.contract, steps=3))
    outcome = judge(short, finished(steps=tuple(step(number) for number in range(1, 4))))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == "only 1 of 3 steps are after the 2 of warm-up, a measurement needs 2"


def test_a_rank_that_leaves_early_with_status_0_is_no_measurement():
    def left(**changes):
        return tuple(replace(rank, **changes) if rank.rank == 3 else rank for rank in finished().ranks)

    unfinished = judge(SPEC, finished(ranks=left(last_event="step", last_step=6)))
    assert (unfinished.state, unfinished.cause) == (TrialState.FALLBACK, "unproven")
    assert unfinished.reason.startswith("rank 3 left with status 0 without the proof that comes last")
    early = judge(SPEC, finished(ranks=left(last_step=5)))
    assert (early.state, early.cause) == (TrialState.INFEASIBLE, "ended_early")
    assert early.reason == "ended early: rank 3 left with status 0 after step 5 of 6"
    all_early = judge(SPEC, finished(steps=tuple(step(number) for number in range(1, 6))))
    assert (all_early.cause, all_early.tokens_per_s_per_gpu) == ("ended_early", None)
    assert "5 of 6 steps were told" in all_early.reason


def test_the_log_of_a_command_must_have_all_steps():
    command = replace(SPEC, program="command", command=CommandSpec(("train", "{arguments}")))
    contract = replace(SPEC.contract, steps=12)
    quiet = tuple(RankExit(rank, 0, 0, False, "finished", 0, 1000) for rank in range(4))

    def logged(*numbers):
        return judge(replace(command, contract=contract), finished(ranks=quiet, steps=tuple(map(step, numbers))))

    assert logged(*range(1, 13)).state is TrialState.COMPLETE
    assert logged(3, 6, 9, 12).state is TrialState.COMPLETE, "a line may stand for several steps"
    assert logged(*range(1, 12)).cause == "ended_early"
    gap = logged(1, 2, 3, 4, 5, 6, 8, 10, 11, 12)
    assert (gap.cause, gap.reason) == ("ended_early", "step 7 of 12 was not told, nor was another")


def test_a_clock_that_stands_still_is_no_measurement():
    steps = (*(step(number) for number in range(1, 6)), step(6, step_time_s=0.0))
    assert judge(SPEC, finished(steps=steps)).reason == "clock: step_time_s=0.0 at step 6"


def test_unknown_peak_memory_is_no_measurement():
    ranks = list(finished().ranks)
    ranks[2] = replace(ranks[2], peak_memory_bytes=None)
    outcome = judge(SPEC, finished(ranks=tuple(ranks)))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == "peak memory is unknown: rank 2 reported none"
    idle = tuple(replace(rank, peak_memory_bytes=0) for rank in ranks)
    assert judge(SPEC, finished(ranks=idle)).reason == "peak memory of 0 bytes is no measurement"


@pytest.mark.parametrize("ending", ["lost", "cancelled"])
def test_lost_and_cancelled_say_nothing_of_the_settings(ending):
    outcome = judge(SPEC, finished(ending=ending, message="node 0 is\ngone"))
    assert outcome.state is TrialState.LOST
    assert outcome.state.runs_again
    assert outcome.reason == f"{ending}: node 0 is gone"
    assert outcome.cause == ending
    assert outcome.violation == 0
    assert outcome.tokens_per_s_per_gpu is None


def fails(rank, kind, error, message, last_step=0, last_event="built", **more):
    failure = {"kind": kind, "error": error, "message": message}
    return RankExit(rank, 0, 1, False, last_event, last_step, failure=failure, **more)


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (
            fails(1, "rejected", "ValueError", "ep_overlap needs bf16", last_event="imported"),
            "configuration rejected: ValueError: ep_overlap needs bf16 (rank 1, node 0, during build)",
        ),
        (
            fails(1, "out_of_memory", "OutOfMemoryError", "CUDA out of memory. Tried 2 GiB", 2, "step"),
            "out of device memory: OutOfMemoryError: CUDA out of memory. Tried 2 GiB (rank 1, node 0, after step 2)",
        ),
        (
            fails(1, "exception", "torch.OutOfMemoryError", "no more"),
            "out of device memory: torch.OutOfMemoryError: no more (rank 1, node 0, in step 1)",
        ),
        (
            fails(1, "exception", "MemoryError", ""),
            "out of host memory: MemoryError (rank 1, node 0, in step 1)",
        ),
        (
            fails(1, "exception", "RuntimeError", "DefaultCPUAllocator: can't allocate memory: 9 bytes"),
            "out of host memory: RuntimeError: DefaultCPUAllocator: can't allocate memory: 9 bytes"
            " (rank 1, node 0, in step 1)",
        ),
        (
            RankExit(1, 0, 1, False, "built", log_tail="...\nCUDA out of memory. Tried"),
            "out of device memory (rank 1, node 0, in step 1)",
        ),
        (
            RankExit(1, 0, -9, False, "step", 4),
            "killed by SIGKILL, not by us: probably the kernel's out-of-memory killer (host memory)"
            " (rank 1, node 0, after step 4)",
        ),
        (RankExit(1, 0, -11, False, "built"), "crashed by SIGSEGV (rank 1, node 0, in step 1)"),
        (RankExit(1, 0, -6, False, "started"), "crashed by SIGABRT (rank 1, node 0, during imports)"),
        (
            fails(1, "exception", "AssertionError", "expected\n 4 experts"),
            "AssertionError: expected 4 experts (rank 1, node 0, in step 1)",
        ),
        (
            fails(1, "numerics", "FloatingPointError", "loss is NaN", 3, "step"),
            "numerics: FloatingPointError: loss is NaN (rank 1, node 0, after step 3)",
        ),
        (RankExit(1, 0, 3), "exit status 3 without a word (rank 1, node 0, before it started)"),
    ],
)
def test_the_cause_is_named(rank, reason):
    outcome = judge(SPEC, died(rank))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == reason
    assert outcome.violation == violation_at(rank.last_step, 6)


def test_a_rank_that_prints_no_steps_got_as_far_as_the_one_that_does():
    run = replace(died(RankExit(0, 0, -11, False, "built")), steps=tuple(step(number) for number in range(1, 6)))
    outcome = judge(SPEC, run)
    assert outcome.reason == "crashed by SIGSEGV (rank 0, node 0, after step 5)"
    assert outcome.violation < 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_rank_ended_from_outside_is_lost_and_runs_again(number):
    outcome = judge(SPEC, died(RankExit(2, 0, -number, False, "step", 3)))
    assert outcome.state is TrialState.LOST
    assert outcome.reason == f"ended from outside by {number.name} (rank 2, node 0, after step 3)"


def test_a_keyboard_interrupt_is_no_fault_of_the_settings():
    assert judge(SPEC, died(fails(0, "exception", "KeyboardInterrupt", ""))).state is TrialState.LOST


CAUSES = [
    fails(0, "out_of_memory", "MemoryError", "2 GiB", 2, "step"),
    RankExit(0, 0, -9, False, "step", 2),
    RankExit(0, 0, -11, False, "step", 2),
    fails(0, "exception", "ValueError", "bad layout", 2, "step"),
]
CONSEQUENCES = [
    fails(0, "exception", "RuntimeError", "Connection closed by peer [10.0.0.1]:4711", 2, "step"),
    fails(0, "exception", "RuntimeError", "[gloo] Read error: Connection reset by peer", 2, "step"),
    fails(0, "exception", "DistBackendError", "NCCL communicator was aborted on rank 0", 2, "step"),
    fails(0, "exception", "RuntimeError", "Timed out waiting 1800000ms for recv", 2, "step"),
    RankExit(0, 0, -6, False, "step", 2),
    RankExit(0, 0, -9, True, "step", 2),
]


@given(
    st.sampled_from(CAUSES),
    st.lists(st.sampled_from(CONSEQUENCES), min_size=3, max_size=3),
    st.permutations(range(4)),
)
def test_followers_never_hide_the_first_cause(cause, consequences, order):
    ranks = [replace(rank, rank=number) for rank, number in zip([cause, *consequences], order, strict=True)]
    outcome = judge(SPEC, died(*ranks))
    assert f"(rank {order[0]}, node 0, after step 2)" in outcome.reason
    followers = [rank.rank for rank in ranks[1:] if not rank.killed]
    assert outcome.reason.endswith(f"; {rank_names(followers)} followed") == bool(followers)


def test_a_failure_that_hung_on_its_way_out_is_that_failure():
    rank = replace(fails(3, "exception", "ValueError", "bad layout"), exit_code=-9, killed=True)
    assert judge(SPEC, died(rank, ending="stall")).reason.startswith("ValueError: bad layout (rank 3")


def stuck(*places):
    return tuple(RankExit(rank, 0, -9, True, event, last) for rank, (event, last) in enumerate(places))


@pytest.mark.parametrize(
    ("ending", "places", "reason"),
    [
        (
            "stall",
            [("step", 3), ("step", 2), ("step", 2), ("step", 3)],
            "hang: ranks 1-2 silent after step 2 of 6, ranks 0, 3 were further on; no word for 9 s",
        ),
        ("stall", [("built", 0)] * 4, "hang: ranks 0-3 silent in step 1 (all of them); no word for 9 s"),
        (
            "deadline",
            [("step", 4)] * 4,
            "deadline passed (hanging or too slow): ranks 0-3 last heard after step 4 of 6 (all of them);"
            " no word for 9 s",
        ),
        (
            "stall",
            [("finished", 6), ("step", 6), ("finished", 6), ("finished", 6)],
            "hang: rank 1 silent after step 6 of 6, ranks 0, 2-3 were further on; no word for 9 s",
        ),
        (
            "stall",
            [("imported", 0), (None, 0), ("imported", 0), ("started", 0)],
            "hang: rank 1 silent before it started, ranks 0, 2-3 were further on; no word for 9 s",
        ),
    ],
)
def test_a_hang_names_the_silent_ranks_and_their_step(ending, places, reason):
    outcome = judge(SPEC, GangRun(ending, stuck(*places), message="no word for 9 s"))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == reason


def test_an_end_nobody_explains_says_so():
    outcome = judge(SPEC, GangRun("rank_died", stuck(*[("step", 1)] * 4), message="rank 0 left"))
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.reason == "unknown cause: rank 0 left"
    assert judge(SPEC, GangRun("stall", ())).state is TrialState.INFEASIBLE


events = st.sampled_from([None, "started", "imported", "built", "step", "finished", "something new"])
texts = st.text(max_size=30)
ranks = st.builds(
    RankExit,
    rank=st.just(0),
    node=st.integers(0, 3),
    exit_code=st.none() | st.integers(-70, 255),
    killed=st.booleans(),
    last_event=events,
    last_step=st.integers(0, 9),
    peak_memory_bytes=st.none() | st.integers(0, 2**40),
    failure=st.none() | st.dictionaries(st.sampled_from(["kind", "error", "message"]), texts),
    log_tail=texts,
)
runs = st.builds(
    GangRun,
    ending=st.sampled_from(["finished", "rank_died", "deadline", "stall", "cancelled", "lost"]),
    ranks=st.lists(ranks, max_size=5).map(
        lambda found: tuple(replace(rank, rank=number) for number, rank in enumerate(found))
    ),
    steps=st.lists(
        st.builds(StepRecord, st.integers(1, 9), st.floats(), st.floats(), st.floats(), st.sampled_from([TOKENS, 1])),
        max_size=9,
    ).map(tuple),
    resolved=st.sampled_from([None, {"settings": dict(SPEC.settings)}, {"settings": {"dispatcher": "x"}}]),
    message=texts,
)


@given(runs)
def test_every_run_gets_a_verdict_that_keeps_the_rules(run):
    outcome = judge(SPEC, run)
    numbers = (outcome.step_time_s, outcome.tokens_per_s_per_gpu, outcome.peak_memory_bytes, outcome.loss)
    if outcome.state is TrialState.COMPLETE:
        assert run.ending == "finished"
        assert outcome.reason == ""
        assert outcome.violation == 0
        assert outcome.steps_used >= 2
        assert all(number is not None and math.isfinite(number) for number in numbers)
    else:
        assert outcome.reason
        assert "\n" not in outcome.reason
        assert numbers == (None, None, None, None)
        assert outcome.state.runs_again == (outcome.violation == 0)
        assert outcome.violation == 0 or 1 <= outcome.violation <= 2
    json.dumps(outcome.to_dict())


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_failing_earlier_is_never_a_smaller_violation(one, other, steps):
    earlier, later = sorted([one, other])
    assert violation_at(0, steps) == 2 >= violation_at(earlier, steps) >= violation_at(later, steps) >= 1


@given(st.sets(st.integers(0, 40), min_size=1))
def test_rank_names_name_exactly_these_ranks(ranks):
    found = set()
    for part in rank_names(list(ranks)).split(" ", 1)[1].split(", "):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    assert found == ranks


def faulted(log_tail, health):
    dead = RankExit(2, 0, -6, False, "step", 3, log_tail=log_tail)
    return judge(SPEC, replace(died(dead), hosts=("one",), health=(health,)))


XID = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.\n"
CALM = {"gpus": [{"index": 0, "samples": 9, "throttled": {}, "foreign_processes": 0, "xid_errors": []}]}


@pytest.mark.parametrize(
    ("health", "doubt"),
    [
        (CALM, "only the text says so, no counter of the node moved"),
        ({"gpus": [], "infiniband": {}}, "only the text says so, the node's counters cannot be read"),
        (None, "only the text says so, the node's counters cannot be read"),
    ],
)
def test_a_text_about_broken_hardware_alone_must_be_seen_elsewhere_too(health, doubt):
    outcome = faulted(XID, health)
    assert (outcome.state, outcome.cause, outcome.retry) == (TrialState.INFEASIBLE, "gpu_fault", "elsewhere")
    assert outcome.blamed_host == "one"
    assert outcome.reason.endswith(doubt)


@pytest.mark.parametrize("log_tail", [XID, "", "Connection closed by peer\n"])
def test_a_counter_that_moved_takes_the_blame_from_the_settings(log_tail):
    moved = {"gpus": [{**CALM["gpus"][0], "xid_errors": [79]}], "infiniband": {}}
    outcome = faulted(log_tail, moved)
    assert (outcome.state, outcome.cause, outcome.retry) == (TrialState.LOST, "sick_node", "again")
    assert outcome.blamed_host == "one"
    assert outcome.reason.startswith("broken hardware: one: GPU 0: Xid 79; ")
    assert outcome.runs_again
    settings = faulted("torch.OutOfMemoryError: CUDA out of memory\n", moved)
    assert (settings.state, settings.cause) == (TrialState.INFEASIBLE, "device_memory"), "that lies in the settings"


LONG = replace(SPEC, contract=replace(SPEC.contract, steps=43, warmup_steps=3))


def measured(times, spec=LONG):
    """The outcome of a run with these step times, the contract's warm-up among them."""
    steps = tuple(step(number, step_time_s) for number, step_time_s in enumerate(times, start=1))
    ranks = tuple(RankExit(rank, 0, 0, False, "finished", len(times), 1000) for rank in range(4))
    spec = replace(spec, contract=replace(spec.contract, steps=len(times)))
    return judge(spec, finished(steps=steps, ranks=ranks, rank_lifetime_s=2 * sum(times)))


def series(seed=1, count=43, sigma=0.004, slow=()):
    """Three steps of warm-up by the contract, then noise around 0.5 s; ``slow`` are (first step, last step, factor)."""
    source = random.Random(seed)
    times = [9.0, 2.0, 0.7, *(0.5 * math.exp(source.gauss(0.0, sigma)) for _ in range(count - 3))]
    for first, last, factor in slow:
        times[first - 1 : last] = [factor * value for value in times[first - 1 : last]]
    return times


@pytest.mark.parametrize(
    ("slow", "reason", "note"),
    [
        ((4, 5, 8.0), "warm_up", "not counted: warm-up steps 4-5"),
        ((20, 20, 30.0), "pause", "not counted: pause step 20"),
        ((15, 24, 1.3), "disturbed", "not counted: disturbed steps 15-24"),
    ],
)
def test_what_is_not_the_steady_speed_is_not_counted(slow, reason, note):
    times = series(slow=[slow])
    first, last, _ = slow
    outcome = measured(times)
    assert outcome.state is TrialState.COMPLETE
    assert outcome.set_aside == {reason: list(range(first - 1, last))}
    assert outcome.notes == [note]
    counted = times[3 : first - 1] + times[last:]
    assert outcome.step_time_s == median(counted)
    assert outcome.counted_step_times_s == counted
    assert outcome.measured_step_times_s == times[3:]
    assert outcome.steps_used == len(counted)
    late = sum(times[first - 1 : last]) if reason == "warm_up" else 0.0
    assert outcome.warmup_s == pytest.approx(sum(times[:3]) + late)
    assert TrialOutcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_a_compilation_after_a_steady_step_is_a_pause():
    outcome = measured(series(slow=[(5, 5, 20.0)]))
    assert (outcome.set_aside, outcome.notes) == ({"pause": [4]}, ["not counted: pause step 5"])


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_is_all_noise_counts_whole(seed):
    times = series(seed, sigma=0.3)
    outcome = measured(times)
    assert outcome.state is TrialState.COMPLETE
    assert outcome.step_time_s == median(times[3:])
    assert (outcome.set_aside, outcome.steps_used) == ({}, 40)


def test_a_run_without_a_steady_part_says_so():
    outcome = measured(series(slow=[(34, 43, 1.2)]))
    assert outcome.state is TrialState.COMPLETE
    assert outcome.steps_used == 40
    assert outcome.notes == [
        "unsteady: 10 of 40 steps after warm-up are on another level, and nothing says which one counts"
    ]


def test_too_much_on_another_level_is_contaminated_though_it_could_be_set_aside():
    outcome = measured(series(slow=[(16, 29, 1.4)]))
    assert (outcome.state, outcome.cause) == (TrialState.CONTAMINATED, "disturbed")
    assert "14 of 40 measured steps ran at another speed" in outcome.reason
    assert (outcome.set_aside, outcome.steps_used, outcome.counted_step_times_s) == ({}, 0, [])


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=12))
def test_a_short_trial_keeps_enough_steps(times):
    outcome = measured([1.0, 1.0, 1.0, *times])
    assert outcome.state is TrialState.COMPLETE
    assert outcome.steps_used >= min(4, len(times))
    assert outcome.step_time_s == median(outcome.counted_step_times_s)
    assert outcome.measured_step_times_s == times
    assert outcome.steps_used + sum(map(len, outcome.set_aside.values())) == len(times)


def test_lines_that_tell_the_mean_of_several_steps_are_counted_or_not_as_lines():
    command = replace(LONG, program="command", command=CommandSpec(("train", "{arguments}")))
    lines = {5 * line: 0.5 + 0.001 * (line % 3) for line in range(2, 13)}
    lines[30] = 2.5  # a checkpoint fell into these five steps
    ranks = tuple(RankExit(rank, 0, 0, False, "finished", 0, 1000) for rank in range(4))
    steps = tuple(step(number, step_time_s) for number, step_time_s in lines.items())
    spec = replace(command, contract=replace(command.contract, steps=60))
    outcome = judge(spec, finished(steps=steps, ranks=ranks))
    assert outcome.state is TrialState.COMPLETE
    assert outcome.notes == ["not counted: pause step 30"]
    assert outcome.measured_step_times_s == list(lines.values())
    assert outcome.steps_used == 10


def test_a_record_from_before_steps_were_set_aside_is_read():
    raw = measured(series()).to_dict()
    del raw["set_aside"]
    old = TrialOutcome.from_dict(raw)
    assert old.counted_step_times_s == old.measured_step_times_s == series()[3:]
