# SPDX-License-Identifier: BSD-3-Clause
"""Draws follow their law and are independent: `pytest -m statistical`, 10^8 draws of every law and
dtype. The limit is five standard deviations a check (5.7e-7), the seeds are fixed.

The checks themselves must go red: below, draws with a fault each.
"""

import math

import numpy as np
import pytest

from initcore.reference.sampling import bfloat16
from tools.draw_statistics import (
    BLOCK,
    DTYPES,
    HALVES,
    LAWS,
    cells,
    chi_square_score,
    count_score,
    first_draws,
    half,
    keys,
    magnitudes,
    measure,
    normal_tail,
    rounding_boundaries,
    stream_draws,
)

pytestmark = pytest.mark.statistical

DRAWS = 10**8
UNIFORM, NORMAL, TRUNCATED, TAIL = LAWS


def failures(checks):
    return [str(check) for check in checks if not check.passed]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
class TestDraws:
    def test_of_one_stream_follow_the_law_and_are_independent(self, law, dtype):
        assert failures(measure(law, dtype, stream_draws(law, dtype, DRAWS))) == []

    @pytest.mark.parametrize("of", ["seeds", "streams"])
    def test_that_begin_neighbouring_ones_follow_the_law_and_are_independent(self, law, dtype, of):
        assert failures(measure(law, dtype, first_draws(law, dtype, of))) == []


# --- the exact laws the draws are held against ----------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_probabilities_of_all_cells_add_up(law, dtype):
    assert cells(law, dtype).probability.min() >= 0
    assert math.isclose(cells(law, dtype).probability.sum(), 1, rel_tol=1e-12)


def test_moments_of_the_cells_are_those_of_the_law():
    normal, uniform = cells(NORMAL, "float64"), cells(UNIFORM, "float64")
    for k in range(2, 17, 2):
        assert math.isclose(normal.moments[k], math.prod(range(1, k, 2)), rel_tol=1e-5)
        assert math.isclose(uniform.moments[k], 3 ** (k / 2) / (k + 1), rel_tol=1e-5)
    # E X = (phi(a) - phi(b)) / (Phi(b) - Phi(a)), in textbooks
    density, tail = math.exp(-8) / math.sqrt(2 * math.pi), normal_tail(np.array([4.0]))[0]
    assert math.isclose(cells(TAIL, "float64").mean, density / tail, rel_tol=1e-6)
    variance = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))
    assert math.isclose(cells(TRUNCATED, "float64").std ** 2, variance, rel_tol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cells_begin_where_rounding_does(dtype):
    """Midway between the last float32 (for float64: float64) that is rounded down and the first
    that is rounded up."""
    fine = np.float64 if dtype == "float64" else np.float32
    boundary = rounding_boundaries(dtype)[1:]
    if dtype == "float32":  # nothing is rounded: the cell's first number, and the one before it
        above = magnitudes(dtype)[1:].astype(np.float32)
    else:
        above = boundary.astype(fine)
        above = np.where(above > boundary, above, np.nextafter(above, fine(np.inf)))
    below = np.nextafter(above, fine(0))
    if dtype == "float64":  # the boundary is a float64 itself, a tie
        below = np.nextafter(below, 0)
    else:
        assert np.array_equal((below.astype(np.float64) + above) / 2, boundary)
    number = np.arange(1, len(boundary) + 1)
    if dtype in HALVES:
        above, below = half(above, dtype), half(below, dtype)
    assert np.array_equal(keys(above), number)
    assert np.array_equal(keys(below), number - 1)


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "mean", "score"),
    [
        (0, 20.0, -5.74),  # exp(-20) = 2.1e-9
        (3, 0.2, 3.05),  # 1 - exp(-0.2) (1 + 0.2 + 0.02) = 1.1e-3
        (0, 0.2, 0.0),
    ],
)
def test_rare_counts_have_exact_limits(count, mean, score):
    assert abs(count_score(count, 10**9, mean / 1e9) - score) < 0.2


def test_a_chi_square_of_100_freedoms_has_its_tabulated_quantile():
    # its 99.9th percentile is 149.449
    assert abs(chi_square_score(149.449, 100) - 3.090) < 0.01


# --- faults must go red ---------------------------------------------------------------------------


def wrong_std(x):
    x *= np.float32(1 + 2e-3)


def wrong_mean(x):
    x += np.float32(2e-3)


def short_tails(x):
    x[np.abs(x) > 5] = 1


def heavy_tails(x):
    x[0] = 6.5  # once a million draws, where one in 1e10 is right


def granular(x):
    x[...] = np.round(x * np.float32(2**16)) * np.float32(2.0**-16)


def same_lanes(x):
    tiles = x.reshape(-1, 4, 16)
    tiles[:, :, 5] = tiles[:, :, 4]


def sine_is_cosine(x):
    tiles = x.reshape(-1, 4, 16)
    tiles[:, 1] = tiles[:, 0]


def same_radius(x):
    """Uncorrelated, but not independent: one draw's size is another's."""
    tiles = x.reshape(-1, 4, 16)
    tiles[:, 2] = np.copysign(tiles[:, 0], tiles[:, 2])


def lane_of_last_tile(x):
    """As neighbouring seeds would be that share words: position 9 is the last tile's position 2."""
    tiles = x.reshape(-1, 64)
    tiles[1:, 9] = tiles[:-1, 2]


def wrong_first(x):
    tiles = x.reshape(-1, 64)
    tiles[:, 0] = np.abs(tiles[:, 0])


@pytest.mark.parametrize(
    ("fault", "blocks", "test"),
    [
        (wrong_std, 16, "moments"),
        (wrong_mean, 16, "moments"),
        (short_tails, 32, "tails"),
        (heavy_tails, 4, "tails"),
        (granular, 1, "digits"),
        (same_lanes, 1, "correlation"),
        (sine_is_cosine, 1, "pairs"),
        (same_radius, 1, "pairs"),
        (lane_of_last_tile, 1, "correlation"),
        (wrong_first, 1, "positions"),
    ],
)
def test_a_fault_goes_red(fault, blocks, test):
    def faulty():
        for block in stream_draws(NORMAL, "float32", blocks * BLOCK):
            fault(block)
            yield block

    checks = measure(NORMAL, "float32", faulty())
    assert test in {check.test for check in checks if not check.passed}


def test_a_half_rounded_twice_goes_red():
    """float32 to bfloat16 by way of float16: the law differs in single values."""

    def faulty():
        for block in stream_draws(NORMAL, "float32", 4 * BLOCK):
            yield bfloat16(block.astype(np.float16).astype(np.float32))

    assert failures(measure(NORMAL, "bfloat16", faulty()))


@pytest.mark.parametrize("grid", [2.0**-16, 2.0**-19])
def test_bits_more_uneven_than_rounding_makes_them_go_red(grid):
    def faulty():
        for block in stream_draws(TRUNCATED, "float32", 4 * BLOCK):
            block[:] = np.clip(np.round(block / grid) * grid, -2 + grid, 2 - grid)
            yield block

    checks = measure(TRUNCATED, "float32", faulty())
    assert "unevenness" in {check.test for check in checks if not check.passed}


def test_a_value_on_an_excluded_bound_goes_red():
    def faulty():
        for block in stream_draws(TRUNCATED, "float16", BLOCK):
            block[7] = np.array([2], np.float16).view(np.uint16)[0]
            yield block

    assert any(
        "impossible" in failure for failure in failures(measure(TRUNCATED, "float16", faulty()))
    )


def test_keys_of_float64_are_those_of_the_nearest_float32():
    x = np.array([1 + 2.0**-25, 1 + 2.0**-11 - 2.0**-26])
    assert np.array_equal(keys(x), keys(x.astype(np.float32)))
