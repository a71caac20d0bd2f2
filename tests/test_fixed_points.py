# SPDX-License-Identifier: BSD-3-Clause
"""Fixed points against closed forms, over sixteen decades of σ."""

import math

import numpy as np
import pytest

from initcore.fixed_points import fixed_point


@pytest.mark.parametrize(
    ("function", "kinks", "sigma"),
    [
        # E (cσz)² = c²σ²
        (lambda x: 3.0 * x, (), 1 / 3),
        (lambda x: 1e-8 * x, (), 1e8),
        (lambda x: 1e8 * x, (), 1e-8),
        # E (e^σz − 1)² = e^2q − 2 e^q/2 + 1, with q = σ²; e^x itself soon overflows
        (np.expm1, (), math.sqrt(math.log(2) / 1.5)),
        # E (2 sin 30σz)² = 2(1 − e^−1800q): no panel of the scan resolves it
        (lambda x: 2 * np.sin(30 * x), (), math.sqrt(math.log(2) / 1800)),
        # E (3·1[σz > 5])² = 9 P(z > 5/σ) = 1, P(z > 1.220640348847350) = 1/9
        (lambda x: 3.0 * (x > 5), (5,), 5 / 1.2206403488473501),
        # of the square of 1.5 − |x|, which falls through 1 and rises through it, the first
        (lambda x: 1.5 - np.abs(x), (0,),
         3 / math.sqrt(2 * math.pi) - math.sqrt(4.5 / math.pi - 1.25)),
        (lambda x: np.where(np.abs(x) > 1e5, np.nan, x), (), 1.0),
        (np.tanh, (), None),
        (lambda x: 0.5 * np.cos(x), (), None),
    ],
)  # fmt: skip
def test_fixed_points(function, kinks, sigma):
    found = fixed_point(function, kinks)
    assert found == (None if sigma is None else pytest.approx(sigma, rel=1e-13))


def test_a_fixed_point_takes_a_scan_and_one_expectation():
    calls = []

    def counted(x):
        calls.append(x.size)
        return x / (1 + np.exp(-np.clip(x, -700, None)))

    assert fixed_point(counted) == pytest.approx(1.5587599300694919, rel=1e-14)
    assert len(calls) <= 4
    assert sum(calls) <= 6000
