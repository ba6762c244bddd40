"""The summary for scripts and the table for people."""

import json
from dataclasses import replace

import pytest

from autotune.export.pareto import front, winner
from autotune.export.report import counts, summary
from autotune.measure.outcome import TrialState
from autotune.monitor.table import compare, format_bytes, format_seconds, render_result
from autotune_trials.spec import GangShape, Routing


def summary_of(study, outcomes):
    best = front(outcomes)
    return summary(
        study=study.facts.study,
        model=study.facts.model,
        cluster=study.facts.cluster,
        state="finished",
        outcomes=outcomes,
        front=best,
        winner=winner(best) if best else None,
        policy="policy.yaml" if best else None,
        gpu_hours=0.125,
        wall_s=90.5,
    )


def table_of(study, outcomes, baseline=None, facts=None, **more):
    facts = facts or study.facts
    best = front(outcomes)
    return render_result(
        study=facts.study,
        cluster=facts.cluster,
        contract=facts.contract,
        gang=facts.gang,
        outcomes=outcomes,
        front=best,
        winner=winner(best) if best else None,
        baseline=baseline,
        **more,
    )


def test_summary(study, golden):
    found = summary_of(study, study.outcomes)
    assert json.loads(json.dumps(found)) == found
    golden("summary.json", found)


def test_summary_without_a_winner(study):
    found = summary_of(study, study.outcomes[6:])
    assert found["best"] is None
    assert found["pareto"] == []
    assert found["policy"] is None
    assert list(found["counts"]) == ["REFUSED", "UNAVAILABLE", "INFEASIBLE", "FALLBACK", "LOST"]


def test_counts_add_up(study):
    assert sum(counts(study.outcomes).values()) == len(study.outcomes)
    assert counts([]) == {}


@pytest.mark.parametrize("width", [80, 110])
def test_table(study, golden, width):
    text = table_of(study, study.outcomes, study.outcomes[0], width=width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"table-{width}.txt", text)


def test_table_of_a_gpu_cluster_with_forced_balance(study, golden):
    contract = replace(study.facts.contract, routing=Routing())
    facts = replace(study.facts, cluster="gb300", contract=contract, gang=GangShape(2, 4))
    golden("table-cuda.txt", table_of(study, study.outcomes[:3], study.outcomes[0], facts, width=110))


def test_table_when_nothing_completed(study, golden):
    golden("table-none.txt", table_of(study, study.outcomes[6:], study.outcomes[9], width=110))


def test_colours_only_for_a_terminal(study):
    assert "\x1b[" not in table_of(study, study.outcomes)
    assert "\x1b[" in table_of(study, study.outcomes, color=True)


def test_the_surroundings_do_not_change_the_text(study, monkeypatch):
    plain = table_of(study, study.outcomes, width=90)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    assert table_of(study, study.outcomes, width=90) == plain


def test_reasons_that_look_like_markup_are_printed_as_they_are(study):
    odd = replace(study.outcomes[9], reason="bad [bold]layout[/bold] :smile:")
    assert "bad [bold]layout[/bold] :smile:" in table_of(study, (odd,))


def test_many_reasons_are_cut_with_their_number(study):
    many = [replace(study.outcomes[9], trial=number, reason=f"reason {number}") for number in range(9)]
    text = table_of(study, many)
    assert "reason 5 (5)" in text
    assert "reason 6" not in text
    assert "... and 3 other reasons" in text


def test_only_settings_that_differ_are_columns(study):
    lines = table_of(study, study.outcomes).splitlines()
    rule = next(number for number, line in enumerate(lines) if "peak memory down" in line) + 4
    header = " ".join(lines[rule - 2 : rule]).split()
    assert sorted(header) == sorted(
        "trial tokens/s per GPU step time peak memory dispatcher micro- batch EP recompute".split()  # noqa: SIM905
    )


def test_winner_against_baseline_is_about_whole_configurations(study):
    lines = compare(study.outcomes[2], study.outcomes[0])
    assert lines[0] == ("Winner: trial 2 against the baseline, trial 0: 1.67 x throughput, 1.50 x peak memory.")
    assert lines[1] == "Changed together: micro_batch_size 1 -> 2, expert_parallel 1 -> 2."
    assert "cannot be credited to any single setting" in lines[2]


def test_one_setting_alone_is_credited(study):
    baseline = study.outcomes[0]
    other = {**baseline.settings, "dispatcher": "deepep", "num_sms": 20}
    lines = compare(replace(baseline, trial=9, settings=other), baseline)
    assert lines[1:] == [
        "Changed: dispatcher alltoall -> deepep, num_sms - -> 20; nothing but the dispatcher and what belongs to it"
        " differs."
    ]
    larger = replace(baseline, trial=9, settings={**baseline.settings, "micro_batch_size": 2})
    assert compare(larger, baseline)[1:] == [
        "Changed: micro_batch_size 1 -> 2; nothing but the micro_batch_size differs."
    ]
    assert compare(replace(baseline, trial=9), baseline)[1:] == ["Their settings are the same."]


@pytest.mark.parametrize("state", [state for state in TrialState if state is not TrialState.COMPLETE])
def test_nothing_is_compared_with_a_baseline_that_was_not_measured(study, state):
    baseline = replace(study.outcomes[0], state=state, reason="why")
    (line,) = compare(study.outcomes[2], baseline)
    assert line == f"Winner: trial 2; not compared, since the baseline is {state}: why."


def test_a_winning_baseline_and_a_missing_one_are_said_so(study):
    assert compare(study.outcomes[0], study.outcomes[0]) == [
        "Winner: trial 0, which is the baseline itself: no measured trial was preferred to it."
    ]
    assert compare(study.outcomes[0], None) == ["Winner: trial 0; not compared, since there is no baseline."]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (200 * 2**20, "200 MiB"),
        (80 * 2**30, "80 GiB"),
    ],
)
def test_sizes(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.0123456, "12.35 ms"), (1.0, "1 s"), (61.756, "61.76 s")])
def test_times(seconds, text):
    assert format_seconds(seconds) == text
