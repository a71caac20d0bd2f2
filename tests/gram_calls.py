# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of chains without weights share: chains of stored inputs, what a trial of them
draws, and how their moments are compared."""

import numpy as np

from initcore import _core
from initcore.reference.moments import COSINE
from initcore.reference.sampling import CONSTANT, NORMAL
from kernel_calls import architecture, layer_codes, normal

INFINITE = (-np.inf, np.inf)
COUNT, MEAN, M2, ABS_MAX, ZEROS, SATURATED, NONFINITE = range(7)
STREAMS = [50, 51, 52]
SHAPES = [
    (["rms", "layer", "rms"], None),
    (None, [0.5, 1.0, None]),
    (["layer", "rms", None], [1.0, 0.3, None]),
    ([None, "layer", "layer"], [0.7, None, None]),
    (["layer", None, "rms"], [0.0, 0.5, 0.7]),
]


def source(stream, std, mean=0.0):
    return stream, NORMAL, std, mean, *INFINITE


def gram_spec(x, widths, names, laws, norms=None, residuals=None, *, backward=False, weights=None):
    """A chain of stored inputs; `laws` (σ, β, μ) a layer, with β = μ = None for no bias."""
    biases = [
        None if beta is None else source(90 + i, beta, mean) if beta
        else (90 + i, CONSTANT, 0.0, mean, mean, mean)
        for i, (_, beta, mean) in enumerate(laws)
    ]  # fmt: skip
    weights = weights or [source(10 + i, sigma) for i, (sigma, _, _) in enumerate(laws)]
    codes = layer_codes(names, [0.05] * len(names))
    top = source(70, 1.0) if backward else None
    shape = architecture(norms, residuals)
    return x.dtype.name, 5, len(x), widths, codes, x, weights, biases, top, *shape


def drawn_for(x, widths, names, laws, norms=None, residuals=None, *, backward=False):
    """What the reference's `gram_arrays` takes, of trial 0 of `gram_spec`."""
    batch, dtype = len(x), x.dtype.name
    kernels = _core.default()

    def drawn(stream, rows, columns):
        return normal(kernels, rows * columns, seed=5, stream=stream, dtype=dtype).reshape(
            rows, columns
        )

    zs = [drawn(10 + i, n, batch) for i, n in enumerate(widths[1:])]
    es = [
        drawn(50 + i, n + bool(beta), batch)
        for i, (n, (_, beta, _)) in enumerate(zip(widths[:-1], laws, strict=True))
    ]
    rounded = [tuple(float(x.dtype.type(v or 0)) for v in law) for law in laws]
    dy = drawn(70, batch, widths[-1]) if backward else None
    return (x, zs, rounded, [(name, None) for name in names]), (dy, es, norms, residuals)


def assert_close(got, want, dtype):
    """Moments of the same entries, whose rounding may put one on the other side of a threshold."""
    tolerance = 2e-4 if dtype == "float32" else 1e-9
    size = np.sqrt(want[..., M2] / want[..., COUNT] + want[..., MEAN] ** 2)
    np.testing.assert_array_equal(got[..., COUNT], want[..., COUNT])
    assert np.all(np.abs(got[..., MEAN] - want[..., MEAN]) <= tolerance * size)
    np.testing.assert_allclose(got[..., M2], want[..., M2], rtol=tolerance, atol=1e-300)
    np.testing.assert_allclose(got[..., ABS_MAX], want[..., ABS_MAX], rtol=tolerance)
    for field in (ZEROS, SATURATED, NONFINITE):
        allowed = 2 if dtype == "float32" else 0
        assert np.all(np.abs(got[..., field] - want[..., field]) <= allowed)
    np.testing.assert_allclose(got[..., COSINE], want[..., COSINE], rtol=0, atol=tolerance)
