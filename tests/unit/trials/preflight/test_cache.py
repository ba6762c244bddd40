"""Good verdicts are kept for as long as nothing that they depend on has changed."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune_trials.preflight.cache import VerdictCache, library_files
from autotune_trials.preflight.verdict import verdict

GOOD = verdict("deepep", 1.5, level="exchange", notes=["worth knowing"])
FILES = {"deepep": [["/x/deep_ep/__init__.py", 10, 1]]}
FACTS = {"facts": {"versions": {"torch": "2.13"}}, "env": {"NCCL_DEBUG": "INFO"}}


def test_a_good_verdict_is_kept_and_a_bad_one_is_not(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "new", FACTS, FILES)
    assert cache.get("deepep") is None
    cache.keep(verdict("hybridep", 1.0, error="Hang", reason="it hung"))
    cache.keep(GOOD)
    assert VerdictCache(tmp_path / "new", FACTS, FILES).get("deepep") == GOOD
    assert cache.get("hybridep") is None
    assert cache.get("alltoall") is None


@pytest.mark.parametrize("changed", [{**FACTS, "env": {}}, {**FACTS, "facts": {"versions": {"torch": "2.14"}}}])
def test_another_stack_or_environment_is_looked_at_again(tmp_path: Path, changed: dict[str, object]) -> None:
    VerdictCache(tmp_path, FACTS, FILES).keep(GOOD)
    assert VerdictCache(tmp_path, changed, FILES).get("deepep") is None


def test_a_variable_that_finds_libraries_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VerdictCache(tmp_path, FACTS, FILES).keep(GOOD)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert VerdictCache(tmp_path, FACTS, FILES).get("deepep") is None


def test_a_library_that_was_built_again_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "deep_ep"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    before = library_files()
    VerdictCache(tmp_path, FACTS, before).keep(GOOD)
    assert before["deepep"][0][0] == str(package / "__init__.py")
    assert VerdictCache(tmp_path, FACTS, library_files()).get("deepep") == GOOD
    os.utime(package / "__init__.py", (1, 1))
    assert VerdictCache(tmp_path, FACTS, library_files()).get("deepep") is None


def test_a_subject_whose_files_nobody_knows_is_not_kept(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, FACTS, FILES)
    cache.keep(verdict("module:my_recipe", 1.0))
    assert cache.get("module:my_recipe") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b"null", json.dumps({**GOOD, "backend": "x"}).encode()]))
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    cache = VerdictCache(tmp_path, FACTS, FILES)
    cache.keep(GOOD)
    [path] = tmp_path.glob("*.json")
    path.write_bytes(content)
    assert cache.get("deepep") is None


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = VerdictCache(tmp_path / "file" / "folder", FACTS, FILES)
    cache.keep(GOOD)
    assert cache.get("deepep") is None
