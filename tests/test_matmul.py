# SPDX-License-Identifier: BSD-3-Clause
"""The product inside a chain: one chain of fma an output, k ascending, bias last."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from initcore.reference.matmul import matmul
from kernel_calls import SMALL, chain, same_bits


def product(kernels, x, w, bias=None):
    return chain(kernels, x, [w], [bias], ["linear"])[0]


def operands(rng, batch, n_in, n_out, dtype):
    x = rng.normal(size=(batch, n_in)).astype(dtype)
    w = (rng.normal(size=(n_out, n_in)) * 10.0 ** rng.integers(-3, 3, (n_out, n_in))).astype(dtype)
    return x, w, rng.normal(size=n_out).astype(dtype)


@pytest.mark.parametrize("batch", SMALL)
@pytest.mark.parametrize("n", SMALL)
def test_equals_the_fma_chain_bit_for_bit(every_isa, rng, n, batch, dtype):
    x, w, bias = operands(rng, batch, n, n, dtype)
    expected = matmul(x, w, bias)
    for kernels in every_isa:
        assert same_bits(product(kernels, x, w, bias), expected)


@given(
    batch=st.integers(1, 50),
    n_in=st.integers(1, 40),
    n_out=st.integers(1, 40),
    biased=st.booleans(),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_rectangles(kernels, batch, n_in, n_out, biased, seed, dtype):
    x, w, bias = operands(np.random.default_rng(seed), batch, n_in, n_out, dtype)
    bias = bias if biased else None
    assert same_bits(product(kernels, x, w, bias), matmul(x, w, bias))


def test_terms_are_added_in_ascending_order(kernels, dtype):
    """big + 1 − big is 0 from the left, big − big + 1 is 1: no other order gives both."""
    big = 4 / np.finfo(dtype).eps
    for terms, expected in [([big, 1, -big], 0), ([big, -big, 1], 1)]:
        assert product(kernels, np.array([terms], dtype), np.ones((1, 3), dtype)).item() == expected


def test_each_term_is_one_fma(kernels, dtype):
    """(1 + ε)(1 − ε) − 1 = −ε² survives only if the product is not rounded."""
    e = float(np.finfo(dtype).eps)
    x = np.array([[-1.0, 1 + e]], dtype)
    w = np.array([[1.0, 1 - e]], dtype)
    assert product(kernels, x, w).item() == -e * e


def test_bias_comes_last(kernels, dtype):
    """big − big + 1 = 1 with the bias at the end; with it at the start, 0."""
    big = 4 / np.finfo(dtype).eps
    x = np.array([[big, -big]], dtype)
    assert product(kernels, x, np.ones((1, 2), dtype), np.ones(1, dtype)).item() == 1


def test_sums_start_at_positive_zero(kernels, dtype):
    x, w = np.array([[-0.0]], dtype), np.ones((1, 1), dtype)
    assert not np.signbit(product(kernels, x, w)).item()


def test_special_values(kernels, dtype):
    """NaN and infinities reach their own outputs and no others; subnormals are kept."""
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([[np.inf, 0], [np.nan, 0], [tiny, tiny], [1, 2], [np.finfo(dtype).max] * 2], dtype)
    w = np.array([[1, 1], [0, 1]], dtype)
    expected = np.array([[np.inf, np.nan], [np.nan, np.nan], [2 * tiny, tiny], [3, 2],
                         [np.inf, np.finfo(dtype).max]], dtype)  # fmt: skip
    assert same_bits(product(kernels, x, w), expected)
    assert same_bits(matmul(x, w), expected)
