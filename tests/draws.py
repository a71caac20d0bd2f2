# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of drawn tensors share: the dtypes, comparisons of bits, limits of 5 sigma."""

import importlib.util
import math

import numpy as np
import pytest

HAS_BFLOAT16 = importlib.util.find_spec("ml_dtypes") is not None
DTYPE_NAMES = ["float32", "float64", "float16", *(["bfloat16"] if HAS_BFLOAT16 else [])]
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="bfloat16 is ml_dtypes' dtype")
# For parametrize: the dtype that cannot be tested shows as skipped.
HALVES = ["float16", pytest.param("bfloat16", marks=needs_bfloat16)]
DTYPES = ["float32", "float64", *HALVES]

# An initializer of every kind whose entries are drawn one by one.
ELEMENTWISE = [
    "zeros()", "ones()", "constant(value=-0.3)",
    "normal(std=0.5, mean=0.25)", "uniform(low=-1, high=3)", "uniform(low=-0.1, high=0.1)",
    "truncated_normal()", "truncated_normal(0.02, 0.01, cut=1.5, corrected=False)",
    "truncated_normal(bounds=(0.3, 2))", "truncated_normal(bounds=(-1e999, -1))",
    "normal().scaled(0.3)",
]  # fmt: skip
# The same for shapes of two axes or more.
OF_FANS = [
    "xavier_normal()", "xavier_uniform()", "kaiming_normal()", "kaiming_uniform(a=0.2)",
    "lecun_normal()", "lecun_uniform()", "xavier_normal(distribution='truncated_normal')",
    "variance_scaling(1, 'fan_geo_avg', 'truncated_normal')",
    "kaiming_normal(transposed=True)", "torch_linear()", "torch_conv()", "torch_conv_transpose()",
    "torch_rnn(hidden_size=4)", "torch_embedding()", "embedding(std=0.5)",
]  # fmt: skip


def same(x, y):
    """Equal dtype, shape and bits, in logical order; also of bfloat16 and of -0."""
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def values_of(half):
    """Every finite number of a half-precision dtype, ascending, as float64."""
    numbers = np.arange(2**16, dtype=np.uint16).view(np.dtype(half))
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float64)
    return np.unique(numbers[np.isfinite(numbers)])


def within_5_sigma(value, expected, standard_error):
    assert abs(value - expected) <= 5 * standard_error, (
        f"{value} is {abs(value - expected) / standard_error:.1f} standard errors from {expected}"
    )


def moments_agree(x, mean, std):
    """The sample's mean and standard deviation are within 5 standard errors of the law's."""
    x = x.astype(np.float64).ravel()
    within_5_sigma(x.mean(), mean, std / math.sqrt(x.size))
    centred = (x - mean) ** 2
    within_5_sigma(centred.mean(), std**2, centred.std() / math.sqrt(x.size))


# The Kolmogorov-Smirnov statistic times √n exceeds this with the probability of 5 sigma, 5.7e-7.
KOLMOGOROV = math.sqrt(math.log(2 / 5.7e-7) / 2)


def follows(x, cdf):
    """One-sample Kolmogorov-Smirnov; cdf maps a sorted float64 array to probabilities."""
    x = np.sort(x.astype(np.float64).ravel())
    p, i = cdf(x), np.arange(x.size)
    distance = max(np.max(p - i / x.size), np.max((i + 1) / x.size - p))
    assert distance * math.sqrt(x.size) < KOLMOGOROV


def same_law(x, y):
    """Two-sample Kolmogorov-Smirnov."""
    x, y = (np.sort(np.asarray(sample, np.float64).ravel()) for sample in (x, y))
    both = np.concatenate([x, y])
    cdf_x, cdf_y = (np.searchsorted(sample, both, "right") / sample.size for sample in (x, y))
    distance = np.max(np.abs(cdf_x - cdf_y))
    assert distance * math.sqrt(x.size * y.size / (x.size + y.size)) < KOLMOGOROV
