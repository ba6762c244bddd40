"""Two lines in a recipe that refuse to train with other settings than the policy's."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune_policies import PolicyError, PolicyFormatError, PolicyMismatch, dump_policy, load_policy
from autotune_policies.callback import PolicyGuard, check_running
from autotune_policies.surroundings import HYBRID_EP_VARIABLES
from tests.support.resolved_containers import arguments_of_run, document_of, fields_of

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
STACK = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2", "torch": "2.8.0", "deep_ep": "1.2.1"}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's own cluster: its stack, its variables, 32 ranks; no torch that could know better."""
    monkeypatch.setattr("autotune_policies.callback.detect_stack", lambda: dict(STACK))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "megatron.core.transformer.moe.fused_a2a", raising=False)
    for name in HYBRID_EP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**EXAMPLE.env, "WORLD_SIZE": "32"}.items():
        monkeypatch.setenv(name, value)


def container(**changes: Any) -> SimpleNamespace:
    sections = document_of(
        {**fields_of(EXAMPLE), **{name.replace("__", "."): value for name, value in changes.items()}}
    )
    return SimpleNamespace(**{
        name: value if name == "env_vars" else SimpleNamespace(**value) for name, value in sections.items()
    })  # fmt: skip


def start(guard: PolicyGuard, config: object) -> None:
    guard.on_train_start(SimpleNamespace(state=SimpleNamespace(cfg=config), model=[], user_state={}))


def test_training_as_the_policy_says_goes_on() -> None:
    guard = PolicyGuard(EXAMPLE)
    start(guard, container(train__global_batch_size=256))
    assert guard.found is not None
    assert guard.found.differences == ()
    assert {"num_gpus", "stack.torch", "stack.deep_ep", "global_batch_size"} <= set(guard.found.checked)
    assert "environment" not in guard.found.unchecked


def test_the_file_is_read_before_training(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(dump_policy(EXAMPLE), encoding="utf-8")
    start(PolicyGuard(str(path)), container())
    path.write_text("schema: nothing", encoding="utf-8")
    with pytest.raises(PolicyFormatError, match=r"p\.yaml:1"):
        PolicyGuard(path)


def test_a_fallback_refuses_to_train_and_says_why() -> None:
    config = container(model__moe_token_dispatcher_type="alltoall", model__moe_flex_dispatcher_backend=None)
    with pytest.raises(PolicyMismatch) as caught:
        start(PolicyGuard(EXAMPLE), config)
    assert "dispatcher is alltoall, but the policy says deepep (Megatron-Bridge goes on with alltoall" in str(
        caught.value
    )
    assert "Falling back to alltoall" in (caught.value.hint or "")


def test_all_differing_fields_are_named() -> None:
    with pytest.raises(PolicyMismatch) as caught:
        start(PolicyGuard(EXAMPLE), container(model__moe_permute_fusion=False, train__micro_batch_size=2))
    assert "micro_batch_size is 2" in caught.value.message
    assert "permute_fusion is no" in caught.value.message


def test_a_variable_of_this_process_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setenv("USE_MNNVL", "1")
    with pytest.raises(
        PolicyMismatch, match=r"CUDA_DEVICE_MAX_CONNECTIONS is 1.*USE_MNNVL is 1.*the policy says absent"
    ):
        start(PolicyGuard(EXAMPLE), container())


def test_another_stack_and_another_scale_are_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_policies.callback.detect_stack", lambda: {**STACK, "deep_ep": "2.0"})
    monkeypatch.setenv("WORLD_SIZE", "24")
    with pytest.raises(PolicyMismatch, match=r"num_gpus is 24.*stack\.deep_ep is 2\.0"):
        start(PolicyGuard(EXAMPLE), container())


def test_a_library_that_cannot_be_imported_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("fused_a2a")
    module.HAVE_DEEP_EP = False
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.moe.fused_a2a", module)
    with pytest.raises(PolicyMismatch, match="could not import deep_ep"):
        start(PolicyGuard(EXAMPLE), container())
    module.HAVE_DEEP_EP = True
    start(PolicyGuard(EXAMPLE), container())


@pytest.mark.parametrize("available", [True, False])
def test_without_a_gpu_a_backend_is_only_a_word(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: available)
    monkeypatch.setitem(sys.modules, "torch", torch)
    if available:
        start(PolicyGuard(EXAMPLE), container())
    else:
        with pytest.raises(PolicyMismatch, match="without a CUDA device"):
            start(PolicyGuard(EXAMPLE), container())


def test_a_bound_method_is_all_that_a_callback_manager_looks_for() -> None:
    # Megatron-Bridge compares __func__ with its base class's and skips what is missing.
    guard = PolicyGuard(EXAMPLE)
    assert guard.on_train_start.__func__ is PolicyGuard.on_train_start
    assert getattr(guard, "on_train_end", None) is None


def test_arguments_of_plain_megatron_lm() -> None:
    found = check_running(EXAMPLE, SimpleNamespace(**arguments_of_run(EXAMPLE)))
    assert {"dispatcher", "num_sms", "seq_length", "num_gpus", "stack.torch"} <= set(found.checked)
    assert not {"env.NCCL_GRAPH_REGISTER", "cuda_device_max_connections"} & set(found.unchecked)


def test_arguments_and_variables_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    monkeypatch.setenv("NVLINK_DOMAIN_SIZE", "72")
    changes = {"moe_token_dispatcher_type": "alltoall", "seq_length": 8192}
    with pytest.raises(PolicyMismatch) as caught:
        check_running(EXAMPLE, SimpleNamespace(**arguments_of_run(EXAMPLE, **changes)))
    for words in (
        "dispatcher is alltoall",
        "seq_length is 8192",
        "env.NCCL_GRAPH_REGISTER is 1",
        "NVLINK_DOMAIN_SIZE is 72",
    ):
        assert words in caught.value.message


def test_what_is_neither_container_nor_arguments_is_refused() -> None:
    with pytest.raises(PolicyError, match="a dict cannot be compared"):
        check_running(EXAMPLE, {})
    with pytest.raises(PolicyError, match="a SimpleNamespace cannot be compared"):
        check_running(EXAMPLE, SimpleNamespace(model_parallel=1))


def test_an_unknown_release_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_policies.callback.detect_stack", dict)
    with pytest.raises(PolicyError, match="release of this run is unknown"):
        check_running(EXAMPLE, SimpleNamespace(micro_batch_size=1))
