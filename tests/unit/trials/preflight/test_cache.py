"""Good verdicts are kept for as long as nothing that they depend on has changed."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune_trials.preflight.cache import VerdictCache
from autotune_trials.preflight.verdict import is_verdict, verdict

GOOD = verdict("deepep", 1.5, level="exchange", notes=["worth knowing"])
GARBAGE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text())
FACTS = {"facts": {"versions": {"torch": "2.13"}}, "env": {"NCCL_DEBUG": "INFO"}, "files": "4"}


def test_a_good_verdict_is_kept_and_a_bad_one_is_not(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "new", FACTS)
    assert cache.get("deepep") is None
    cache.keep(verdict("hybridep", 1.0, error="Hang", reason="it hung"))
    cache.keep(GOOD)
    assert VerdictCache(tmp_path / "new", FACTS).get("deepep") == GOOD
    assert cache.get("hybridep") is None
    assert cache.get("alltoall") is None


@pytest.mark.parametrize(
    "changed", [{**FACTS, "env": {}}, {**FACTS, "files": "5"}, {**FACTS, "facts": {"versions": {"torch": "2.14"}}}]
)
def test_another_stack_or_environment_is_looked_at_again(tmp_path: Path, changed: dict[str, object]) -> None:
    VerdictCache(tmp_path, FACTS).keep(GOOD)
    assert VerdictCache(tmp_path, changed).get("deepep") is None


def test_a_variable_that_finds_libraries_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VerdictCache(tmp_path, FACTS).keep(GOOD)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    assert VerdictCache(tmp_path, FACTS).get("deepep") is None


def test_a_module_of_the_user_is_not_kept(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, FACTS)
    cache.keep(verdict("module:my_recipe", 1.0))
    assert cache.get("module:my_recipe") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b"null", json.dumps({**GOOD, "backend": "x"}).encode()]))
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    cache = VerdictCache(tmp_path, FACTS)
    cache.keep(GOOD)
    [path] = tmp_path.glob("*.json")
    path.write_bytes(content)
    assert cache.get("deepep") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), GARBAGE | st.dictionaries(st.text(), GARBAGE), min_size=1))
def test_a_file_whose_values_are_of_other_types_is_as_good_as_none(tmp_path: Path, changed: dict[str, object]) -> None:
    """What is trusted can be printed and summed up like a verdict that was just found."""
    cache = VerdictCache(tmp_path, FACTS)
    cache.keep(GOOD)
    [path] = tmp_path.glob("*.json")
    path.write_text(json.dumps({**GOOD, **changed}))
    kept = cache.get("deepep")
    if kept is not None:
        assert (kept["backend"], kept["available"], kept["error"]) == ("deepep", True, "")
        assert {name: type(value) for name, value in {**kept, "seconds": float(kept["seconds"])}.items()} == {
            name: type(value) for name, value in GOOD.items()
        }
        assert all(isinstance(note, str) for note in kept["notes"])


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("available", 1), ("available", "yes"), ("notes", "words"), ("notes", [1]), ("untried", []), ("reason", None),
        ("untried", {"exchange": 2}), ("seconds", "1"), ("seconds", True), ("seconds", -1.0), ("provider", 7),
        ("error", "Hang"), ("level", ["import"]),
    ],
)  # fmt: skip
def test_one_wrong_word_is_enough(word: str, value: object) -> None:
    assert is_verdict(GOOD)
    assert not is_verdict({**GOOD, word: value})


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = VerdictCache(tmp_path / "file" / "folder", FACTS)
    cache.keep(GOOD)
    assert cache.get("deepep") is None
