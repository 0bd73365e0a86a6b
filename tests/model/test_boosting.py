"""What LightGBM grew parts rows as LightGBM itself does; see also the tests of what is grown on the past."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.model import boosting


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6, width=32))
def test_a_rounded_threshold_parts_the_same_numbers(threshold: float, number: float) -> None:
    assert (number <= threshold) == (np.float32(number) <= np.float32(boosting._at_most(threshold)))
