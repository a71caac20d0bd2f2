# SPDX-License-Identifier: BSD-3-Clause
"""A chain of layers x ← φ(x Wᵀ + b) with the statistics of every h and every x."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import activate
from .matmul import matmul
from .moments import FIELDS, layer_moments

__all__ = ["chain"]


def chain(
    x: NDArray[Any],
    weights: Sequence[NDArray[Any]],
    biases: Sequence[NDArray[Any] | None],
    activations: Sequence[tuple[str, float | None]],
    thresholds: Sequence[float] | None = None,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """x (batch, n_in), weights (n_out, n_in) a layer, biases (n_out,) or None.

    activations: (name, parameter) a layer; thresholds: a layer's unit counts as saturated where
    |φ′(h)| is below it (None: nowhere; NaN: unknown). Returns the last activation (batch, n_out)
    and the states (layers, 2, FIELDS) of h and of φ(h), columns as in `moments`. The dtype is x's:
    h is a chain of fma in it, φ(h) is exact and rounded once to it, statistics are float64.
    """
    states = np.zeros((len(weights), 2, len(FIELDS)))
    for layer, (weight, bias, (name, parameter)) in enumerate(
        zip(weights, biases, activations, strict=True)
    ):
        h = matmul(x, weight, bias)
        with np.errstate(all="ignore"):
            x = activate(h, name, parameter).astype(h.dtype)
        slope = activate(h, name, parameter, derivative=True)
        threshold = 0.0 if thresholds is None else thresholds[layer]
        states[layer, 0] = layer_moments(h.T, slope.T, threshold)
        states[layer, 1] = layer_moments(x.T)
    return x, states
