# SPDX-License-Identifier: BSD-3-Clause
"""A chain of one input whose Gaussian weights are never drawn, forward and backward, in float64.

Given a layer's input x (n_in), units with weights N(0, σ²) and biases N(μ, β²) are independent:

    h = √a z + μ,    a = σ²|x|² + β²,    z (n_out) standard normal

With q = [σx, β]/√a, what the weights and biases have along q is z, and what is across it is
independent of all that is known; so with e standard normal

    g = σ|dh| e,    dx = σ(dh·z) q + g − (g·q) q    (without the bias's entry)

and |dW|² = |dh|²|x|².
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import activate
from .chain import branch
from .norm import norm, norm_backward

__all__ = ["gram_single"]

Float64 = NDArray[np.float64]


def gram_single(
    x: NDArray[Any],
    normals: Sequence[NDArray[Any]],
    laws: Sequence[tuple[float, float, float]],
    activations: Sequence[tuple[str, float | None]],
    dy: NDArray[Any],
    gradient_normals: Sequence[NDArray[Any]],
    norms: Sequence[str | None] | None = None,
    residuals: Sequence[float | None] | None = None,
) -> tuple[list[tuple[Float64, Float64, Float64]], list[tuple[Float64, Float64, float]]]:
    """(h, φ′(h), x) of each layer, x its output, and its gradients by x and h and |dW|².

    x (n_in,), dy (n_out,); normals: z (n_out,) of each layer; gradient_normals: its e, (n_in,), or
    (n_in + 1,) with β; laws: (σ, β, μ); activations, norms and residuals as in `chain`.
    """
    norms, residuals = norms or [None] * len(laws), residuals or [None] * len(laws)
    x = x.astype(np.float64)
    states: list[tuple[Float64, Float64, Float64]] = []
    inputs, inverses, slopes = [], [], []
    for layer, ((sigma, beta, mean), (name, parameter)) in enumerate(
        zip(laws, activations, strict=True)
    ):
        (seen,), inverse = norm(norms[layer], x[None])
        h = np.sqrt(sigma**2 * (seen @ seen) + beta**2) * normals[layer].astype(np.float64) + mean
        phi = activate(h, name, parameter).astype(np.float64)
        own = activate(h, name, parameter, derivative=True).astype(np.float64)
        x, slope = branch(residuals[layer], x, phi, own)
        inputs.append(seen)
        inverses.append(inverse)
        slopes.append(slope)
        states.append((h, own, x))

    gradients: list[tuple[Float64, Float64, float]] = []
    dx = dy.astype(np.float64)
    for layer in reversed(range(len(laws))):
        (sigma, beta, _), seen, dh = laws[layer], inputs[layer], dx * slopes[layer]
        gradients.insert(0, (dx, dh, (dh @ dh) * (seen @ seen)))
        if layer == 0:
            break
        q = np.append(sigma * seen, [beta] if beta else [])
        q = q / np.sqrt(q @ q)
        g = sigma * np.sqrt(dh @ dh) * gradient_normals[layer].astype(np.float64)
        g = g - (g @ q) * q + sigma * (dh @ normals[layer]) * q
        below = norm_backward(norms[layer], seen[None], inverses[layer], g[None, : len(seen)])[0]
        dx = below if residuals[layer] is None else below + dx
    return states, gradients
