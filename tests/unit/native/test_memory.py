"""Peak memory counts what was used after the watch began, also when it is given back."""

import pytest

pytest.importorskip("torch", reason="torch not installed (extra: trial)")

from autotune_trials.native.memory import PeakMemory, resident_bytes

pytestmark = pytest.mark.trial

MIB = 1 << 20


def test_a_peak_that_is_over_still_counts() -> None:
    memory = PeakMemory("cpu")
    assert memory.kind == "rss_over_imports"
    before = memory.peak_bytes()
    block = bytearray(64 * MIB)
    del block
    assert 60 * MIB < memory.peak_bytes() - before < 80 * MIB


def test_what_was_used_before_does_not_count() -> None:
    block = bytearray(64 * MIB)
    del block
    memory = PeakMemory("cpu")
    assert memory.peak_bytes() < 8 * MIB
    assert abs(memory.rss_bytes - resident_bytes()) < 8 * MIB
