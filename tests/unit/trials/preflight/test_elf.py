"""Kernels of a shared object by architecture, read without loading it."""

import contextlib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.preflight.elf import Target, machine, runs_on, targets
from tests.support.shared_objects import fatbin, shared_object

ENTRIES = st.lists(st.tuples(st.sampled_from([1, 2]), st.sampled_from([75, 80, 90, 100, 103, 120])), max_size=4)


@given(st.lists(ENTRIES, max_size=3))
def test_every_target_of_every_group_is_found(tmp_path_factory: pytest.TempPathFactory, groups: list) -> None:
    path = tmp_path_factory.getbasetemp() / "library.so"
    path.write_bytes(shared_object(*map(fatbin, groups)))
    expected = {Target(divmod(number, 10), kind == 1) for group in groups for kind, number in group}
    assert targets(path) == expected


@given(st.integers(0, 700), st.binary(max_size=40), st.integers(0, 700))
def test_a_damaged_file_is_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, at: int, damage: bytes, end: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    whole = bytearray(shared_object(fatbin([(2, 90), (1, 90)]), fatbin([(2, 100)])))
    whole[at : at + len(damage)] = damage
    path.write_bytes(bytes(whole[:end]))
    with contextlib.suppress(ValueError):
        assert all(isinstance(target, Target) for target in targets(path))


def test_relocatable_kernels_count_and_other_sections_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(shared_object(fatbin([(2, 90)]), section=b"__nv_relfatbin"))
    (tmp_path / "b.so").write_bytes(shared_object(fatbin([(2, 90)]), section=b".text"))
    assert targets(tmp_path / "a.so") == {Target((9, 0), False)}
    assert targets(tmp_path / "b.so") == frozenset()


def test_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(shared_object(machine=183))
    assert machine(tmp_path / "a.so") == "aarch64"
    (tmp_path / "b.so").write_text("INPUT(libc.so.6)")
    with pytest.raises(ValueError, match=r"b\.so is not a shared object: it begins with 494e50"):
        machine(tmp_path / "b.so")


@pytest.mark.parametrize(
    ("target", "gpu", "runs"),
    [
        (Target((9, 0), False), (9, 0), True),
        (Target((9, 0), False), (10, 0), False),
        (Target((10, 0), False), (10, 3), True),
        (Target((10, 3), False), (10, 0), False),
        (Target((9, 0), True), (10, 0), True),
        (Target((10, 0), True), (9, 0), False),
    ],
)
def test_code_runs_on_its_generation_and_ptx_on_later_ones(target: Target, gpu: tuple[int, int], runs: bool) -> None:
    assert runs_on(frozenset({target}), gpu) is runs
    assert not runs_on(frozenset(), gpu)


@pytest.mark.trial
def test_a_real_library_of_nvidia_has_kernels_for_the_gpus_it_is_made_for() -> None:
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the nvidia-nccl wheel is not installed")
    [library] = Path(next(iter(spec.submodule_search_locations))).glob("lib/libnccl.so.2")
    found = targets(library)
    assert {Target((9, 0), False), Target((10, 0), False)} <= found
    assert runs_on(found, (10, 3))
