"""Centres and intervals of figures over seeds, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hadoppler.scripts.intervals import Estimate, estimate


def test_one_value_is_known_without_an_interval() -> None:
    assert estimate([3.0]) == Estimate(3.0, 3.0, 3.0, 1)
    assert str(estimate([3.0])) == "3"


def test_two_to_four_values_get_students_interval() -> None:
    found = estimate([1.0, 3.0])
    half = 12.706204736174698 * math.sqrt(2.0) / math.sqrt(2.0)  # t of one degree of freedom, deviation sqrt(2)
    assert found == Estimate(2.0, pytest.approx(2.0 - half), pytest.approx(2.0 + half), 2)


def test_five_values_leave_the_ends_out() -> None:
    found = estimate([100.0, 1.0, 2.0, 3.0, -50.0])
    assert found.centre == 2.0  # of 1, 2, 3
    assert -50.0 <= found.low < 2.0 < found.high <= 100.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_seeds_does_not_matter_and_the_centre_lies_inside(values: list[float], random) -> None:
    found, shuffled = estimate(values), random.sample(values, len(values))
    assert estimate(shuffled) == found
    assert found.low <= found.centre + 1e-9 * abs(found.centre)
    assert found.centre <= found.high + 1e-9 * abs(found.centre)
    assert found.seeds == len(values)


def test_equal_values_have_no_width() -> None:
    assert estimate([2.0] * 7) == Estimate(2.0, 2.0, 2.0, 7)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [np.inf]])
def test_what_is_no_number_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected one finite number or more"):
        estimate(values)
