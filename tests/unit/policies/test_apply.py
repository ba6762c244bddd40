"""Policy.apply: everything or nothing."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies import PolicyError, PolicyMismatch, load_policy
from autotune_policies.apply import detect_stack
from autotune_policies.megatron_core import RELEASES, read_back, render
from autotune_policies.surroundings import ENVIRONMENT_SETTINGS, LAUNCH_SETTINGS

EXAMPLE = Path(__file__).parent / "example.yaml"
POLICY = load_policy(EXAMPLE)
STACK = {"megatron_core": "0.19.2", "torch": "2.13.0", "deep_ep": "1.2.1"}
RUN: dict[str, Any] = {
    "model": "example-moe", "cluster": "example-cluster", "num_gpus": 32, "precision": "bf16", "seq_length": 4096,
    "global_batch_size": 256, "stack": STACK,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without torch, Megatron and launcher, whatever other tests have imported."""
    for name in ("torch", "megatron.core", "transformer_engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("WORLD_SIZE", *POLICY.env):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def config_of(release: str, **changes: object) -> SimpleNamespace:
    return SimpleNamespace(**{**render({}, release).transformer, **changes})


def assert_nothing_happened(config: SimpleNamespace, before: dict[str, object]) -> None:
    assert vars(config) == before
    assert not set(POLICY.env) & set(os.environ)


@pytest.mark.parametrize("release", RELEASES)
def test_all_settings_are_in_force_afterwards(release: str) -> None:
    config = config_of(release)
    applied = POLICY.apply(config, **{**RUN, "stack": {**STACK, "megatron_core": f"{release}.1"}})
    elsewhere = {**applied.elsewhere["ddp"], **applied.elsewhere["training"]}
    in_force = {**read_back({**vars(config), **elsewhere}, release), **dict.fromkeys(ENVIRONMENT_SETTINGS)}
    assert in_force == {name: value for name, value in POLICY.settings.items() if name not in LAUNCH_SETTINGS}
    assert applied.release == release
    assert applied.unchecked == applied.forced == ()
    assert {name: os.environ[name] for name in POLICY.env} == POLICY.env == applied.env


def test_settings_that_live_in_other_objects_are_handed_to_the_recipe() -> None:
    applied = POLICY.apply(config_of("0.19"), **RUN)
    assert applied.elsewhere == {
        "ddp": {
            "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
            "delay_wgrad_compute": True,
        },
        "training": {"micro_batch_size": 1, "manual_gc": False, "manual_gc_interval": 0},
    }  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
def test_an_alltoall_policy_leaves_nothing_of_flex_behind(release: str) -> None:
    flex = render({"dispatcher": "hybridep", "num_sms": 40}, release).transformer
    config = config_of(release, **{**flex, "moe_enable_deepep": True, "moe_deepep_num_sms": 30})
    assert POLICY.fallback is not None
    baseline = POLICY._replace(settings=POLICY.fallback)
    baseline.apply(config, **{**RUN, "stack": {**STACK, "megatron_core": release}})
    untouched = render(POLICY.fallback, release).transformer
    assert vars(config) == untouched


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model", "other", "model is other, but the policy holds for example-moe"),
        ("num_gpus", 24, "num_gpus is 24, but the policy holds for at least 16, at most 64, a multiple of 16"),
        ("precision", "fp16", "precision is fp16, but the policy holds for bf16"),
        ("global_batch_size", 128, "global_batch_size is 128, but the policy holds for 256"),
        ("stack", {**STACK, "megatron_core": "0.20.0"}, "stack.megatron_core is 0.20.0"),
        ("stack", {**STACK, "deep_ep": "1.2.2"}, "stack.deep_ep is 1.2.2, but the policy holds for 1.2.1"),
    ],
)
def test_another_run_is_refused_and_the_field_named(field: str, value: object, words: str) -> None:
    config = config_of("0.19")
    before = dict(vars(config))
    with pytest.raises(PolicyMismatch) as caught:
        POLICY.apply(config, **{**RUN, field: value})
    assert words in caught.value.message
    assert_nothing_happened(config, before)


def test_all_differing_fields_are_named_at_once() -> None:
    with pytest.raises(PolicyMismatch) as caught:
        POLICY.apply(config_of("0.19"), **{**RUN, "model": "other", "seq_length": 8192})
    assert "model is other" in caught.value.message
    assert "seq_length is 8192" in caught.value.message


def test_force_applies_loudly() -> None:
    config = config_of("0.19")
    with pytest.warns(UserWarning, match="by force: cluster is other, but the policy holds for example-cluster"):
        applied = POLICY.apply(config, **{**RUN, "cluster": "other"}, force=True)
    assert applied.forced == ("cluster is other, but the policy holds for example-cluster",)
    assert config.moe_token_dispatcher_type == "flex"


def test_force_under_warnings_as_errors_applies_nothing() -> None:
    config = config_of("0.19")
    before = dict(vars(config))
    with pytest.raises(UserWarning, match="by force"):
        POLICY.apply(config, **{**RUN, "cluster": "other"}, force=True)
    assert_nothing_happened(config, before)


def test_what_nobody_knows_is_listed_and_not_assumed() -> None:
    applied = POLICY.apply(config_of("0.19"), stack=STACK)
    assert applied.unchecked == ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size")


@pytest.mark.parametrize(
    ("attributes", "environment", "words"),
    [
        ({"fp16": True, "bf16": False}, {}, "precision is fp16"),
        ({"fp8": "hybrid", "bf16": True}, {}, "precision is fp8"),
        ({"fp4": "e2m1"}, {}, "precision is fp4"),
        ({"seq_length": 8192}, {}, "seq_length is 8192"),
        ({}, {"WORLD_SIZE": "8"}, "num_gpus is 8"),
    ],
)
def test_facts_are_detected(
    attributes: dict[str, object], environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PolicyMismatch) as caught:
        POLICY.apply(config_of("0.19", **attributes), stack=STACK)
    assert caught.value.message == f"the policy is for another run: {words}" + caught.value.message.split(words)[1]


def test_given_facts_win_over_detected_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    applied = POLICY.apply(config_of("0.19", bf16=True, seq_length=1), **RUN)
    assert applied.unchecked == ()


@pytest.mark.parametrize("attributes", [{"bf16": False, "fp16": False, "fp8": None}, {"seq_length": None}])
def test_unset_flags_prove_nothing(attributes: dict[str, object]) -> None:
    applied = POLICY.apply(config_of("0.19", **attributes), stack=STACK)
    assert {"precision", "seq_length"} <= set(applied.unchecked)


def test_an_fp8_flag_does_not_prove_which_fp8() -> None:
    policy = POLICY._replace(applies_to={**POLICY.applies_to, "precision": "fp8_mx"})
    assert "precision" in policy.apply(config_of("0.19", fp8="e4m3"), stack=STACK).unchecked


@pytest.mark.parametrize("present", ["8", None])
def test_a_torch_that_is_imported_under_another_environment_is_refused(
    present: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    if present:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", present)
    config = config_of("0.19")
    before, environment = dict(vars(config)), dict(os.environ)
    with pytest.raises(PolicyError) as caught:
        POLICY.apply(config, **RUN)
    shown = present or "not set"
    assert f"CUDA_DEVICE_MAX_CONNECTIONS is {shown}, but the policy needs 32" in caught.value.message
    assert "NCCL_GRAPH_REGISTER" not in caught.value.message
    assert "autotune policy exec" in str(caught.value.hint)
    assert (vars(config), dict(os.environ)) == (before, environment)


def test_force_does_not_reach_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(PolicyError, match="torch is already imported"):
        POLICY.apply(config_of("0.19"), **RUN, force=True)


def test_an_imported_torch_under_the_right_environment_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    for name, value in POLICY.env.items():
        monkeypatch.setenv(name, value)
    assert POLICY.apply(config_of("0.19"), **RUN).env == POLICY.env


def test_a_field_that_the_configuration_lacks_is_named_and_nothing_applied() -> None:
    config = config_of("0.18")
    before = dict(vars(config))
    with pytest.raises(PolicyError) as caught:
        POLICY.apply(config, **RUN)
    assert "SimpleNamespace has no field" in caught.value.message
    assert "moe_flex_dispatcher_num_sms" in caught.value.message
    assert "which Megatron-Core 0.19 has" in caught.value.message
    assert_nothing_happened(config, before)


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_policies.apply.detect_stack", dict)
    with pytest.raises(PolicyError, match="release of this run is unknown"):
        POLICY.apply(config_of("0.19"))


def test_a_setting_that_the_release_cannot_express_applies_nothing() -> None:
    policy = POLICY._replace(settings={**POLICY.settings, "dispatcher": "ncclep"})
    config = config_of("0.16")
    before = dict(vars(config))
    with pytest.raises(PolicyError, match=r"dispatcher=ncclep cannot be expressed in Megatron-Core 0\.16"):
        policy.apply(config, **{**RUN, "stack": {**STACK, "megatron_core": "0.16.1"}})
    assert_nothing_happened(config, before)


class Stubborn(SimpleNamespace):
    """A configuration that refuses one field."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == self.__dict__.get("refused"):
            raise AttributeError("read-only")
        super().__setattr__(name, value)


@settings(max_examples=30, deadline=None)
@given(refused=st.sampled_from(sorted(render({}, "0.19").transformer)))
def test_a_configuration_that_refuses_a_field_is_as_it_was(refused: str) -> None:
    config = Stubborn(**render({}, "0.19").transformer, refused=refused)
    before = dict(vars(config))
    with pytest.raises(PolicyError, match=f"Stubborn.{refused} cannot be set: read-only"):
        POLICY.apply(config, **RUN)
    assert_nothing_happened(config, before)


def test_values_are_not_shared_with_the_policy() -> None:
    config = config_of("0.19")
    applied = POLICY.apply(config, **RUN)
    config.recompute_modules.append("mlp")
    assert POLICY.settings["recompute_modules"] == ["moe_act", "layernorm"]
    assert applied.fields["recompute_modules"] == ["moe_act", "layernorm"]


def test_a_loaded_module_says_its_version_better_than_the_package_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("megatron.core")
    module.__dict__["__version__"] = "0.18.9"
    monkeypatch.setitem(sys.modules, "megatron.core", module)
    assert detect_stack()["megatron_core"] == "0.18.9"
    monkeypatch.setattr("autotune_policies.apply.installed_versions", lambda: {"megatron_core": "0.18.9"})
    module.__dict__["__version__"] = "0.18.9+0123abc"
    assert detect_stack()["megatron_core"] == "0.18.9", "a commit, be it of another repository, is not told apart"


def test_reading_and_applying_cost_little() -> None:
    config = config_of("0.19")
    started_s = time.process_time()
    load_policy(EXAMPLE).apply(config, **RUN)
    assert time.process_time() - started_s < 0.5


@pytest.mark.parametrize("version", [None, 0.19, ""])
def test_a_version_that_is_no_text_is_refused_by_name(version: Any) -> None:
    config = config_of("0.19")
    with pytest.raises(PolicyError, match=r"stack.megatron_core is .*, but a version is a text"):
        POLICY.apply(config, **{**RUN, "stack": {"megatron_core": version}})
    assert not set(POLICY.env) & set(os.environ)
