# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of a chain by its input, weights and biases, with the statistics of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import activate
from .chain import branch
from .matmul import fma, matmul
from .moments import COUNT, FIELDS, LANES, M2, WITHIN, fold, layer_moments, merge
from .norm import norm, norm_backward

__all__ = ["chain_backward"]


def chain_backward(
    x: NDArray[Any],
    weights: Sequence[NDArray[Any]],
    dy: NDArray[Any],
    biases: Sequence[NDArray[Any] | None],
    activations: Sequence[tuple[str, float | None]],
    norms: Sequence[str | None] | None = None,
    residuals: Sequence[float | None] | None = None,
) -> tuple[NDArray[Any], list[NDArray[Any]], list[NDArray[Any]], NDArray[np.float64]]:
    """The gradients of Σ dy ⊙ y, y what `chain` returns of the same arguments, dy like it.

    From the last layer to the first, with dx the gradient of a layer's output:

        dh = dx ⊙ m φ′(h),    dW = dhᵀ x̂,    db = Σ_batch dh,    dx̂ = dh W

    where m is 1 of a layer that is not residual, and dx of the layer below is what the norm makes
    of dx̂ and, if this one is residual, its own dx besides. Returns dx (batch, n_in), a dW (n_out,
    n_in) and a db (n_out,) a layer, and the states (layers, 3, FIELDS) of every dx, dh and dW,
    columns as in `moments`; that of dW knows its count and, about 0 and not about the mean, Σ dW².
    A product is a chain of fma over ascending k: the
    layer's outputs in dx, the batch in dW and db. φ′(h) is exact and rounded once.
    """
    norms, residuals = norms or [None] * len(weights), residuals or [None] * len(weights)
    normed, slopes = [], []
    for weight, bias, (name, parameter), kind, m in zip(
        weights, biases, activations, norms, residuals, strict=True
    ):
        normed.append(norm(kind, x))
        h = matmul(normed[-1][0], weight, bias)
        with np.errstate(all="ignore"):
            phi = activate(h, name, parameter).astype(h.dtype)
            slope = activate(h, name, parameter, derivative=True).astype(h.dtype)
        x, slope = branch(m, x, phi, slope)
        slopes.append(slope)
    dx = dy
    d_weights, d_biases = [], []
    states = np.zeros((len(weights), 3, len(FIELDS)))
    for layer in reversed(range(len(weights))):
        with np.errstate(all="ignore"):
            dh = dx * slopes[layer]
        states[layer, 0], states[layer, 1] = layer_moments(dx.T), layer_moments(dh.T)
        seen, inverse = normed[layer]
        dw = matmul(dh.T, seen.T)
        d_weights.append(dw)
        d_biases.append(matmul(dh.T, np.ones((1, len(dh)), dh.dtype))[:, 0])
        n_out, n_in = dw.shape
        by_traces = (len(dh) + 15) // 16 * 16 * (n_in + n_out) < n_in * n_out
        squares = _traces(dh, seen) if by_traces else _squares(dw)
        states[layer, 2] = _merged(squares, n_out)
        below = norm_backward(norms[layer], seen, inverse, matmul(dh, weights[layer].T))
        with np.errstate(all="ignore"):
            dx = below if residuals[layer] is None else below + dx
    return dx, d_weights[::-1], d_biases[::-1], states


def _squares(dw: NDArray[Any]) -> NDArray[np.float64]:
    """Σ dW² of each column in float64, down the column by fma."""
    sums = np.zeros(dw.shape[1])
    for row in dw.astype(np.float64):
        sums = fma(row, row, sums)
    return sums


def _traces(dh: NDArray[Any], x: NDArray[Any]) -> NDArray[np.float64]:
    """What sums to Σ dW² = tr(dh dhᵀ x xᵀ) where the batch is small, in place of the columns' sums.

    Both matrices are products in float64, and symmetric. The p-th of P sixteens of rows is the sum
    of column ⌊p n / P⌋, those of other columns are 0. It takes the sixteens of columns from the
    last to its own, each row by row; doubles what it has before its own; and folds the lanes.
    """
    inputs, gradients = (matmul(v, v) for v in (x.astype(np.float64), dh.astype(np.float64)))
    batch, n_in = x.shape
    starts = range(0, batch, LANES)
    sums = np.zeros(n_in)
    for first in starts:
        lanes = np.zeros((1, LANES))
        for other in reversed(starts[first // LANES :]):
            if other == first:
                lanes = lanes + lanes
            columns = slice(other, min(other + LANES, batch))
            part = lanes[0, : columns.stop - other]
            for row in range(first, min(first + LANES, batch)):
                part[:] = fma(gradients[row, columns], inputs[row, columns], part)
        with np.errstate(all="ignore"):
            sums[first // LANES * n_in // len(starts)] = fold(lanes)[0]
    return sums


def _merged(squares: NDArray[np.float64], n_out: int) -> NDArray[np.float64]:
    """The state of Σ dW² in float64: sums of columns of n_out entries in index order, not < 0."""
    state = np.zeros(len(FIELDS))
    for column_sum in squares:
        column = np.zeros(len(FIELDS))
        column[[COUNT, M2, WITHIN]] = n_out, column_sum, column_sum
        state = merge(state, column)
    if state[M2] < 0:
        state[[M2, WITHIN]] = 0
    return state
