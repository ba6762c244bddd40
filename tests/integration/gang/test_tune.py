"""The trainable under a real Ray Tune, with stand-in ranks."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from autotune.errors import ClusterError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.scheduling.environment import prepare
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

prepare()  # Ray reads its variables when it is imported
ray = pytest.importorskip("ray")

from ray import tune  # noqa: E402

from autotune.scheduling.local_gang import LocalGang  # noqa: E402
from autotune.scheduling.preflight import preflight_local, preflight_nodes  # noqa: E402
from autotune.scheduling.trainable import execute, placement, run_trial  # noqa: E402

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]
STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_trial.py"))]
MODEL = ModelShape(name="none", num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=16, ffn_hidden_size=8)


def spec_of(trial: int, **settings: object) -> TrialSpec:
    contract = Contract(seq_length=8, global_batch_size=4, steps=6, warmup_steps=2)
    return TrialSpec("a-study", trial, MODEL, contract, resolve(settings), GangShape(1, 2, "cpu"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folders = [str(ROOT), str(ROOT / "trials"), str(ROOT / "policies")]
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("AUTOTUNE_SCRATCH", str(tmp_path_factory.mktemp("scratch")))
        ray.init(
            address="local", num_cpus=2, resources={"rank": 2}, include_dashboard=False, log_to_driver=False,
            object_store_memory=80 << 20, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        yield
        ray.shutdown()


def test_trials_leave_their_record_and_report_their_outcome(cluster, tmp_path):
    configs = []
    for trial, micro_batch_size in enumerate((1, 2, 1)):
        folder = tmp_path / f"{trial:04d}"
        folder.mkdir()
        spec = dataclasses.asdict(spec_of(trial, micro_batch_size=micro_batch_size))
        configs.append({"spec": spec, "trial_dir": str(folder), "argv": STAND_IN})

    class OneAfterTheOther(tune.search.Searcher):
        def __init__(self):
            super().__init__()
            self.left = list(configs)
            self.outcomes = []

        def suggest(self, trial_id):
            return self.left.pop(0) if self.left else tune.search.Searcher.FINISHED

        def on_trial_complete(self, trial_id, result=None, error=False):
            assert not error, result
            self.outcomes.append(TrialOutcome.from_dict(json.loads(result["outcome"])))

        def save(self, checkpoint_path):
            pass

        def restore(self, checkpoint_path):
            pass

    searcher = OneAfterTheOther()
    tune.Tuner(
        tune.with_resources(run_trial, placement),
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=-1, max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(name="t", storage_path=str(tmp_path / "tune"), verbose=0),
    ).fit()

    first, second, third = searcher.outcomes
    assert [first.state, second.state, third.state] == [TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.COMPLETE]
    assert "rank 1" in second.reason
    for outcome in (first, third):
        assert outcome.wall_s - outcome.rank_lifetime_s < 10  # the budget is 3 s; this box may be busy
    folder = tmp_path / "0000"
    assert sorted(item.name for item in folder.iterdir()) == [
        "node-0.log", "outcome.json", "resolved.yaml", "spec.json", "steps.jsonl",
    ]  # fmt: skip
    assert TrialSpec.from_json((folder / "spec.json").read_text()).trial == 0
    assert TrialOutcome.from_dict(json.loads((folder / "outcome.json").read_text())) == first
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert yaml.safe_load((folder / "resolved.yaml").read_text())["world_size"] == 2
    assert (folder / "node-0.log").read_text() == "==> rank 0 <==\nrank 0 of trial 0\n\n"
    assert "==> rank 1 <==" in (tmp_path / "0001" / "node-0.log").read_text()


def test_a_folder_that_the_node_cannot_see_is_told(tmp_path):
    gang = LocalGang(tmp_path, argv=STAND_IN)
    with pytest.raises(ClusterError, match="cannot be seen from node") as error:
        execute(gang, spec_of(0), tmp_path / "not-mounted")
    assert "--home" in str(error.value.hint)


def test_preflight_says_the_same_through_ray_as_here(cluster):
    [node] = ray.nodes()
    there = preflight_nodes([node["NodeID"]], ["deepep", "ncclep"], timeout_s=30)
    here = preflight_local(["deepep", "ncclep"], timeout_s=30)
    assert there.surroundings() == here.surroundings()
    assert here.unavailable == {
        "deepep": "ModuleNotFoundError: No module named 'deep_ep'",
        "ncclep": "ModuleNotFoundError: No module named 'transformer_engine'",
    }


def test_a_node_that_does_not_exist_is_told(cluster):
    with pytest.raises(ClusterError, match=r"^node (ab)+ did not answer the preflight: TaskUnschedulableError: .+$"):
        preflight_nodes(["ab" * 28], ["deepep"], timeout_s=5)
