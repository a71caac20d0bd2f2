# SPDX-License-Identifier: BSD-3-Clause
"""A chain whose Gaussian weights are never drawn, forward and backward, in float64.

Given a layer's inputs X (batch, n_in), the pre-activations of a unit with weights N(0, σ²) and a
bias N(μ, β²) are N(μ, A) over the batch, A = σ²XXᵀ + β²11ᵀ = LLᵀ:

    H = L Zᵀ + μ,    Z (n_out, rank) standard normal

Z is [V, v] Qᵀ, where σV are the weights, βv + μ the biases and the rows of Q, with
L Q = [σX, β1], are orthonormal. What Q does not see of [V, v] is independent of H, so that with
dH dHᵀ = D Dᵀ and E standard normal

    G = σ D Eᵀ,    dX = σ dH Z Q + G − G QᵀQ    (without the bias's column)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import activate
from .chain import branch
from .moments import FIELDS, layer_moments
from .norm import norm, norm_backward

__all__ = ["factor", "gram", "gram_arrays"]

Float64 = NDArray[np.float64]
# A row's residual share below which it is a combination of rows before it: (2^-20)² of an angle.
TOLERANCE = 2.0**-40


def factor(a: Float64) -> tuple[Float64, list[int]]:
    """L (n, rank) and pivots with L Lᵀ = a, positive semidefinite, and L[pivots] triangular.

    Cholesky's elimination of a's correlations: the next pivot is the first row with at least a
    sixteenth of the largest residual. Rows of zero are zero.
    """
    lengths = np.sqrt(np.diag(a))
    rest = np.divide(a, np.outer(lengths, lengths), out=np.zeros_like(a), where=a != 0)
    np.fill_diagonal(rest, lengths > 0)
    columns, pivots = [], []
    for _ in range(len(a)):
        largest = np.diag(rest).max()
        if largest <= TOLERANCE:
            break
        pivot = int(np.argmax(np.diag(rest) >= largest / 16))
        column = rest[pivot] / np.sqrt(rest[pivot, pivot])
        rest = rest - np.outer(column, column)
        known = np.diag(rest) <= TOLERANCE
        known[pivot] = True
        rest[known], rest[:, known] = 0.0, 0.0
        columns.append(lengths * column)
        pivots.append(pivot)
    return np.array(columns).reshape(-1, len(a)).T, pivots


def gram_arrays(
    x: NDArray[Any],
    normals: Sequence[NDArray[Any]],
    laws: Sequence[tuple[float, float, float]],
    activations: Sequence[tuple[str, float | None]],
    dy: NDArray[Any] | None = None,
    gradient_normals: Sequence[NDArray[Any]] = (),
    norms: Sequence[str | None] | None = None,
    residuals: Sequence[float | None] | None = None,
) -> tuple[list[tuple[Float64, Float64, Float64]], list[tuple[Float64, Float64, Float64]]]:
    """(h, φ′(h), x) of each layer, x its output, and with dy (batch, n_out) its gradients by x, h
    and W.

    x (batch, n_in); a layer's Z is the first columns of normals (n_out, batch), its E those of
    gradient_normals (n_in, or n_in + 1 with β; batch); laws: (σ, β, μ); activations, norms and
    residuals as in `chain`; X is that of the norm.
    """
    norms, residuals = norms or [None] * len(laws), residuals or [None] * len(laws)
    x = x.astype(np.float64)
    states: list[tuple[Float64, Float64, Float64]] = []
    inputs, inverses, slopes, factors = [], [], [], []
    for layer, ((sigma, beta, mean), (name, parameter)) in enumerate(
        zip(laws, activations, strict=True)
    ):
        seen, inverse = norm(norms[layer], x)
        left, pivots = factor(sigma**2 * (seen @ seen.T) + beta**2)
        z = normals[layer][:, : len(pivots)].astype(np.float64)
        h = left @ z.T + mean
        inputs.append(seen)
        inverses.append(inverse)
        factors.append((left, pivots, z))
        phi = activate(h, name, parameter).astype(np.float64)
        own = activate(h, name, parameter, derivative=True).astype(np.float64)
        x, slope = branch(residuals[layer], x, phi, own)
        slopes.append(slope)
        states.append((h, own, x))

    gradients: list[tuple[Float64, Float64, Float64]] = []
    if dy is None:
        return states, gradients
    dx = dy.astype(np.float64)
    for layer in reversed(range(len(laws))):
        sigma, beta, _ = laws[layer]
        x, (left, pivots, z) = inputs[layer], factors[layer]
        dh = dx * slopes[layer]
        gradients.insert(0, (dx, dh, dh.T @ x))
        if layer == 0:
            break
        known = np.hstack([sigma * x, np.full((len(x), 1 if beta else 0), beta)])
        q = np.linalg.solve(left[pivots], known[pivots])
        left, pivots = factor(dh @ dh.T)
        g = sigma * left @ gradient_normals[layer][:, : len(pivots)].astype(np.float64).T
        below = (sigma * dh @ z @ q + g - g @ q.T @ q)[:, : x.shape[1]]
        below = norm_backward(norms[layer], x, inverses[layer], below)
        dx = below if residuals[layer] is None else below + dx
    return states, gradients


def gram(
    x: NDArray[Any],
    normals: Sequence[NDArray[Any]],
    laws: Sequence[tuple[float, float, float]],
    activations: Sequence[tuple[str, float | None]],
    thresholds: Sequence[float],
    dy: NDArray[Any] | None = None,
    gradient_normals: Sequence[NDArray[Any]] = (),
    norms: Sequence[str | None] | None = None,
    residuals: Sequence[float | None] | None = None,
) -> tuple[Float64, Float64 | None]:
    """The states (layers, 2, .) of h and x of `gram_arrays`, and with dy those (layers, 3, .) of
    the gradients, columns as in `chain` and `chain_backward`; thresholds as in `chain`.
    """
    forward, backward = gram_arrays(
        x, normals, laws, activations, dy, gradient_normals, norms, residuals
    )
    states = np.zeros((len(laws), 2, len(FIELDS)))
    gradients = np.zeros((len(laws), 3, len(FIELDS)))
    for layer, (h, slope, after) in enumerate(forward):
        states[layer, 0] = layer_moments(h.T, slope.T, thresholds[layer])
        states[layer, 1] = layer_moments(after.T)
    for layer, (dx, dh, dw) in enumerate(backward):
        gradients[layer, 0], gradients[layer, 1] = layer_moments(dx.T), layer_moments(dh.T)
        gradients[layer, 2, [0, 2]] = dw.size, np.sum(dw**2)
    return states, None if dy is None else gradients
