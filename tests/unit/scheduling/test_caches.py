"""Compile caches, and locks that nobody holds any more."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune_trials.caches import cache_variables, forget_stale_locks


def test_caches_are_kept_apart_by_stack_unless_the_user_chose_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")

    one, other = cache_variables(tmp_path, "aaa"), cache_variables(tmp_path, "bbb")

    assert one["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "cache" / "aaa" / "torch_extensions")
    assert not set(one.values()) & set(other.values())
    assert "TRITON_CACHE_DIR" not in one


def test_a_lock_that_nobody_can_hold_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "share_storage_ext" / "lock"
    lock.parent.mkdir()
    lock.touch()

    forget_stale_locks(tmp_path)

    assert not lock.exists()


def test_a_lock_stays_while_a_process_uses_the_folder(tmp_path: Path) -> None:
    lock = tmp_path / "share_storage_ext" / "lock"
    lock.parent.mkdir()
    lock.touch()
    reader = [sys.executable, "-I", "-S", "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        reader, env={"TORCH_EXTENSIONS_DIR": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        forget_stale_locks(tmp_path)

        assert lock.exists()
        process.communicate()


def test_a_folder_that_does_not_exist_has_no_locks(tmp_path: Path) -> None:
    forget_stale_locks(tmp_path / "nothing")
