"""Every Mixture-of-Experts recipe of the installed megatron-bridge: import, apply, overrides, Bridge's own start-up."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TOPOLOGY = {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL"}


def _importable() -> bool:
    try:
        return importlib.util.find_spec("megatron.bridge") is not None
    except ModuleNotFoundError:
        return False


pytestmark = [
    pytest.mark.bridge,
    pytest.mark.skipif(not _importable(), reason="megatron-bridge 0.6 (Python 3.12) is not installed"),
]

NOT_BUILT = {
    "LookupError: no local configuration": "a dense model, or one whose configuration only its own remote code reads",
    "FileNotFoundError": "the wheel lacks te_quant.cfg, which the recipe reads",
    "NotImplementedError": "the recipe says that it is not supported",
    "RuntimeError: Found no NVIDIA driver": "the recipe asks the GPU for its name",
    "OSError": "the recipe asks the hub itself, past AutoBridge",
    "AttributeError: 'Glm4vMoeTextConfig'": "the installed transformers lacks a field that the recipe reads",
}
"""Why a recipe cannot be built without GPU and network: begin of the error, and what it means."""

LEFTOVER = "a HybridEP variable beside another dispatcher: applying any policy removes it"
NO_DRIVER = "validate_flex_dispatcher_backend > get_device_properties"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``prove_recipes`` found, in one process for the whole file."""
    paths = (ROOT, ROOT / "trials", ROOT / "policies")
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("prove_recipes.py")), str(tmp_path_factory.mktemp("models"))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.fixture(scope="module")
def proven(report: dict[str, Any]) -> dict[str, Any]:
    """Outcomes of the recipes that the installed Megatron-Core accepts."""
    return {name: outcome for name, outcome in report["recipes"].items() if "error" not in outcome}


def test_the_recipes_are_all_there(report: dict[str, Any]) -> None:
    assert sum(name.startswith("perf_recipes") for name in report["recipes"]) >= 294
    assert len(report["recipes"]) >= 400


def test_what_cannot_be_built_has_a_known_reason(report: dict[str, Any]) -> None:
    unknown = {name: error for name, error in report["failed"].items() if not error.startswith(tuple(NOT_BUILT))}
    assert unknown == {}


def test_what_cannot_be_read_is_refused_by_megatron_core_too(report: dict[str, Any]) -> None:
    refused = {name: outcome for name, outcome in report["recipes"].items() if "error" in outcome}
    for name, outcome in refused.items():
        assert outcome["error"] == "PolicyError: recompute_modules contains 'mhc'", name
        assert "Invalid choices for recompute_modules: {'mhc'}" in outcome["untouched"], name
    assert len(refused) <= 0.03 * len(report["recipes"])


def test_import_and_apply_leave_a_recipe_as_it_was(proven: dict[str, Any]) -> None:
    exceptions = {}
    for name, outcome in proven.items():
        added = (
            {".env_vars", *(f".env_vars.{variable}" for variable in outcome["given"])} if outcome["given"] else set()
        )
        if set(outcome["changed"]) - added:
            exceptions[name] = outcome["changed"]
    for name, paths in exceptions.items():
        assert set(paths) <= {".env_vars", *(f".env_vars.{variable}" for variable in TOPOLOGY)}, (name, LEFTOVER)
    assert len(exceptions) <= 0.02 * len(proven), exceptions


def test_a_policy_that_changes_every_group_is_read_back(proven: dict[str, Any]) -> None:
    for name, outcome in proven.items():
        assert outcome["kept"] == [], name
        assert outcome["wrong"] == [], name
        assert outcome["again"] == [], name


def test_the_way_back_leads_to_the_recipe(proven: dict[str, Any]) -> None:
    assert {name: outcome["back"] for name, outcome in proven.items() if outcome["back"]} == {}


def test_python_and_overrides_give_the_same_configuration(report: dict[str, Any]) -> None:
    assert len(report["launched"]) >= 16
    for name, outcome in report["launched"].items():
        for dispatcher in ("alltoall", "hybridep"):
            assert outcome[dispatcher]["words"] > 0, name
            assert outcome[dispatcher]["unequal"] == [], (name, dispatcher)
            assert outcome[dispatcher]["differing"] == [], (name, dispatcher)


def test_bridge_starts_with_what_was_applied(report: dict[str, Any]) -> None:
    """On a CPU its start-up ends where a flex dispatcher asks for the GPU's name, and nowhere before."""
    whole = 0
    for name, outcome in report["launched"].items():
        untouched = outcome["untouched"]
        for how in ("started", "started_by_words"):
            if "--data-cache-path must be provided" in untouched:  # the recipe itself leaves that to its user
                assert outcome["alltoall"][how] == outcome["hybridep"][how] == untouched, name
                continue
            assert outcome["alltoall"][how] == "", name
            assert NO_DRIVER in outcome["hybridep"][how], name
            whole += 1
    assert whole >= 28


def test_hydra_reads_every_value_as_it_was_meant(report: dict[str, Any]) -> None:
    assert report["quoting"] > 2000
