# SPDX-License-Identifier: BSD-3-Clause
"""A chain of layers h = x̂ Wᵀ + b, x ← φ(h) or x + m φ(h), with the statistics of every h and x."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import activate
from .matmul import fma, matmul
from .moments import FIELDS, layer_moments
from .norm import norm

__all__ = ["branch", "chain"]


def branch(
    m: float | None, x: NDArray[Any], phi: NDArray[Any], slope: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The output x + m φ of a layer, rounded once, and m φ′; x itself and 0 where m is 0, and φ and
    φ′ where it is None."""
    if m is None:
        return phi, slope
    if m == 0:
        return x, np.zeros_like(x)
    factor = x.dtype.type(m)
    with np.errstate(all="ignore"):
        return fma(factor, phi, x, x.dtype), (factor * slope).astype(x.dtype)


def chain(
    x: NDArray[Any],
    weights: Sequence[NDArray[Any]],
    biases: Sequence[NDArray[Any] | None],
    activations: Sequence[tuple[str, float | None]],
    thresholds: Sequence[float] | None = None,
    norms: Sequence[str | None] | None = None,
    residuals: Sequence[float | None] | None = None,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """x (batch, n_in), weights (n_out, n_in) a layer, biases (n_out,) or None.

    activations: (name, parameter) a layer; thresholds: a layer's unit counts as saturated where
    |φ′(h)| is below it (None: nowhere; NaN: unknown). norms: of each layer's x, as `norm` has them,
    x̂ = x without; residuals: m of each layer, None of one without. Returns the last x (batch,
    n_out) and the states (layers, 2, FIELDS) of h and of x, columns as in `moments`. The dtype is
    x's: h is a chain of fma in it, φ(h) is exact and rounded once to it, statistics are float64.
    """
    norms, residuals = norms or [None] * len(weights), residuals or [None] * len(weights)
    states = np.zeros((len(weights), 2, len(FIELDS)))
    for layer, (weight, bias, (name, parameter)) in enumerate(
        zip(weights, biases, activations, strict=True)
    ):
        h = matmul(norm(norms[layer], x)[0], weight, bias)
        with np.errstate(all="ignore"):
            phi = activate(h, name, parameter).astype(h.dtype)
        slope = activate(h, name, parameter, derivative=True)
        x, _ = branch(residuals[layer], x, phi, slope)
        threshold = 0.0 if thresholds is None else thresholds[layer]
        states[layer, 0] = layer_moments(h.T, slope.T, threshold)
        states[layer, 1] = layer_moments(x.T)
    return x, states
