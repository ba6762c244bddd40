"""How a rank's errors are told: the kind, one line, and memory measured from after the imports."""

import errno

import pytest

from autotune_trials.native.failures import kind_of, one_line


class NumericsError(ArithmeticError):
    """Named like the loop's, which needs Megatron to be imported."""


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out_of_memory"),
        (OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), "out_of_memory"),
        (NumericsError("loss is nan in step 2"), "numerics"),
        (RuntimeError("connection reset by peer"), "exception"),
        (OSError(errno.ENOENT, "no such file"), "exception"),
        (KeyboardInterrupt(), "exception"),
    ],
)
def test_kind_of_a_failure(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_message_is_one_short_line() -> None:
    assert one_line(ValueError("  first\n   second\n")) == "first second"
    assert len(one_line(ValueError("word " * 1000))) <= 500


def test_a_bare_assertion_is_told_by_its_place() -> None:
    def check(value: int) -> None:
        assert value == 1

    with pytest.raises(AssertionError) as caught:
        check(2)
    caught.value.args = ()
    assert one_line(caught.value).endswith("assert value == 1")
    assert one_line(caught.value).startswith("test_endings.py:")
    assert one_line(RuntimeError()) == "RuntimeError"
