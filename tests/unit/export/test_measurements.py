from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as configure
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.export.measurements import (
    COLUMNS,
    group_digest,
    measurement_row,
    read_measurements,
    row_settings,
    write_measurements,
)
from autotune.files import write_atomically
from autotune_policies.settings import SETTINGS, resolve

# The columns of the measurement table as its description lists them.
_TEXT = """
model cluster num_gpus precision seq_length micro_batch_size global_batch_size tensor_parallel
pipeline_parallel virtual_pipeline context_parallel expert_parallel expert_tensor_parallel dispatcher num_sms
cuda_graph_impl cuda_graph_modules ep_overlap delay_wgrad recompute_granularity recompute_modules
offload_modules permute_fusion pipeline_layout routing_source data_condition token_policy step_time_s
tokens_per_s_per_gpu tflops_per_gpu peak_memory_bytes state group stack source note
"""
DOCUMENTED = _TEXT.split()


def values(setting):
    """Every legal value of a setting."""
    text = st.sampled_from(setting.choices) if setting.choices else st.text("Etm|*()L2", min_size=1, max_size=9)
    legal = {
        "float": st.floats(setting.minimum, 8, exclude_min=True),
        "int": st.integers(setting.minimum, 2**40),
        "bool": st.booleans(),
        "str": text,
        "list": st.lists(text, max_size=3),
    }[setting.kind]
    return st.none() | legal if setting.optional else legal


all_settings = st.fixed_dictionaries({name: values(setting) for name, setting in SETTINGS.items()})


def facts_of(study):
    facts = study.facts
    return {
        "model": facts.shape,
        "cluster": facts.cluster,
        "contract": facts.contract,
        "gang": facts.gang,
        "stack": facts.stack,
    }


def rows_of(study):
    return [measurement_row(outcome, study="demo", **facts_of(study)) for outcome in study.outcomes]


def test_columns_are_the_documented_ones_then_one_per_further_setting(study, tmp_path):
    assert list(COLUMNS) == DOCUMENTED
    write_measurements(tmp_path / "m.parquet", rows_of(study))
    names = pq.read_schema(tmp_path / "m.parquet").names
    further = [name for name in SETTINGS if name not in DOCUMENTED]
    assert names == DOCUMENTED + [f"p.{name}" for name in further]


def test_a_study_reads_back_as_it_was_written(study, tmp_path):
    rows = rows_of(study)
    write_measurements(tmp_path / "folder" / "m.parquet", rows)
    back = read_measurements(tmp_path / "folder" / "m.parquet")
    assert back == rows
    assert [row_settings(row) for row in back] == [outcome.settings for outcome in study.outcomes]
    assert [row["state"] for row in back] == [outcome.state.value for outcome in study.outcomes]
    assert back[0]["source"] == "demo/0000"
    assert back[0]["stack"] == "megatron_core=0.16.1;python=3.11;torch=2.13.0+cpu"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["m.parquet"]


def test_unmeasured_numbers_are_blank_and_the_reason_is_the_note(study):
    row = rows_of(study)[9]
    assert row["state"] == "INFEASIBLE"
    assert row["step_time_s"] is row["tokens_per_s_per_gpu"] is row["peak_memory_bytes"] is None
    assert row["note"] == "out of host memory: MemoryError (rank 1, node 0, after step 2)"


@configure(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(given_settings=all_settings)
def test_any_legal_settings_survive_the_table(study, tmp_path, given_settings):
    outcome = replace(study.outcomes[0], settings=resolve(given_settings))
    write_measurements(tmp_path / "m.parquet", rows_of(replace(study, outcomes=(outcome,))))
    (row,) = read_measurements(tmp_path / "m.parquet")
    assert row_settings(row) == outcome.settings


def test_the_group_separates_what_must_not_be_ranked_together(study):
    facts = facts_of(study)
    contract, stack = facts["contract"], facts["stack"]
    changes = [
        {"model": replace(facts["model"], num_layers=5)},
        {"cluster": "gb300"},
        {"contract": replace(contract, seed=1)},
        {"contract": replace(contract, routing=replace(contract.routing, source="forced_balance"))},
        {"gang": replace(facts["gang"], ranks_per_node=2)},
        {"stack": {**stack, "torch": "2.14.0"}},
    ]
    same = group_digest(**facts)
    assert group_digest(**(facts | {"stack": dict(reversed(stack.items()))})) == same
    assert len({same, *(group_digest(**(facts | change)) for change in changes)}) == 1 + len(changes)


def test_an_unknown_column_is_refused_and_the_old_table_kept(study, tmp_path):
    path = tmp_path / "m.parquet"
    write_measurements(path, rows_of(study))
    with pytest.raises(ValueError, match="'step_time_ms'"):
        write_measurements(path, [{"step_time_ms": 3.0}])
    assert len(read_measurements(path)) == len(study.outcomes)


def test_what_is_no_table_is_refused_in_one_line(tmp_path):
    with pytest.raises(RequestError, match=r"m\.parquet: cannot be read .*No such file"):
        read_measurements(tmp_path / "m.parquet")
    (tmp_path / "m.parquet").write_text("model,cluster\n")
    with pytest.raises(RequestError, match="not a Parquet file"):
        read_measurements(tmp_path / "m.parquet")
    pq.write_table(pa.table({"model": ["tiny"]}), tmp_path / "m.parquet")
    with pytest.raises(RequestError, match="column 'cluster' is missing"):
        read_measurements(tmp_path / "m.parquet")


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
