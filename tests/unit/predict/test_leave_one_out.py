"""One pass says what learning from all other rows says, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.predict.efficiency import Observation, learn_efficiency
from autotune.predict.leave_one_out import LeaveOneOut

ROWS = st.lists(
    st.builds(
        Observation, st.sampled_from(["h100", "b200"]), st.sampled_from(["bf16", "fp8"]), st.sampled_from(["a", "b"]),
        st.floats(0.1, 100), st.floats(0.1, 100),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(ROWS)
def test_every_row_gets_what_the_others_show(rows: list[Observation]) -> None:
    shown = LeaveOneOut(rows)
    for place, one in enumerate(rows):
        others = rows[:place] + rows[place + 1 :]
        stack = (one.cluster, one.precision, one.stack)
        expected = learn_efficiency(others, *stack)
        assert shown.without(one) == (None if expected is None else pytest.approx(expected))
        assert shown.of(*stack) == pytest.approx(learn_efficiency(rows, *stack))
    assert shown.of("gb300", "bf16", "a") is None
