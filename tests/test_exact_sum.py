# SPDX-License-Identifier: BSD-3-Clause
"""Exact sums of numbers and squares: equal to integer arithmetic, in any order and split."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from initcore import _core
from initcore.reference import exact_sum as reference
from kernel_calls import exact_sums

FLOATS = st.floats(width=64, allow_nan=True, allow_infinity=True)


def column_sums(kernels, values):
    (result,) = exact_sums(kernels, np.array(values, dtype=np.float64).reshape(-1, 1))
    return result


@given(values=st.lists(FLOATS, max_size=60))
def test_equals_integer_arithmetic(kernels, values):
    assert column_sums(kernels, values) == reference.exact_sums(values)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0, -0.0],
        [5e-324],
        [-5e-324, 5e-324],
        [1.7976931348623157e308] * 3,
        [1.7976931348623157e308, -1.7976931348623157e308, 5e-324],
        [1e300, 1e-300, -1e300],
        [2.2250738585072014e-308, -5e-324],
        [-(2.0**k) for k in range(-1074, 1024, 7)],
        [math.nan, math.inf, -math.inf, 1.0],
    ],
)
def test_extremes(kernels, values):
    assert column_sums(kernels, values) == reference.exact_sums(values)


@pytest.mark.parametrize("value", [1.7976931348623157e308, -1.7976931348623157e308, -1.0, 0.1])
def test_carries_of_many_terms(kernels, value):
    """More terms than a word's spare bits hold without a carry, in one call and in many."""
    n = 20_000
    count, nonfinite, total, squares = column_sums(kernels, [value] * n)
    _, _, one, one_squared = reference.exact_sums([value])
    assert (count, nonfinite, total, squares) == (n, 0, n * one, n * one_squared)


def test_order_and_split_do_not_matter(kernels):
    """Values from 1e-300 to 1e300 whose float sum depends on the order. (numba #8957 for
    reductions)"""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(400, 3)) * 10.0 ** rng.integers(-300, 300, (400, 3))
    expected = exact_sums(kernels, x)
    assert expected == [reference.exact_sums(x[:, j]) for j in range(3)]
    assert exact_sums(kernels, x[rng.permutation(400)]) == expected
    parts = [exact_sums(kernels, part) for part in np.split(x, [1, 7, 200])]
    merged = [tuple(map(sum, zip(*column, strict=True))) for column in zip(*parts, strict=True)]
    assert merged == expected


def test_adding_continues(kernels):
    """A second call adds to the accumulators of the first, column by column."""
    x = np.random.default_rng(6).normal(size=(50, 4))
    accumulators = np.zeros((4, _core.EXACT_WORDS), dtype=np.int64)
    for rows in np.split(x, [0, 3, 20]):
        kernels.exact_add(accumulators, np.ascontiguousarray(rows))
    assert kernels.exact_values(accumulators) == exact_sums(kernels, x)


def test_every_instruction_set_keeps_the_same_words(every_isa):
    x = np.random.default_rng(8).normal(size=(100, 5)) * 1e200
    results = []
    for kernels in every_isa:
        accumulators = np.zeros((5, _core.EXACT_WORDS), dtype=np.int64)
        kernels.exact_add(accumulators, x)
        results.append(accumulators)
    assert all(np.array_equal(results[0], other) for other in results)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_digits_are_carried_before_they_overflow(kernels, sign):
    """The carry comes at 2^30 additions: word 2 counts them, and may start just below."""
    accumulators = np.zeros((1, _core.EXACT_WORDS), np.int64)
    accumulators[0, 2] = 2**30 - 3
    x = np.full((10, 1), sign * (2.0**53 - 1))
    kernels.exact_add(accumulators, x)
    assert accumulators[0, 2] < 10
    ((count, nonfinite, total, total_sq),) = kernels.exact_values(accumulators)
    assert (count, nonfinite) == (10, 0)
    assert total == int(sign) * 10 * (2**53 - 1) << 1074
    assert total_sq == 10 * (2**53 - 1) ** 2 << 2148
