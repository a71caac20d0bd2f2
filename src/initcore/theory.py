# SPDX-License-Identifier: BSD-3-Clause
"""What a chain does with its signal in the limit of wide layers, computed layer by layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from initcore.activations import Activation
from initcore.activations import activation as find_activation
from initcore.initializers import Initializer, initializer
from initcore.laws import Constant, Law
from initcore.quadrature import Moments, gaussian_moments
from initcore.results.layers import LayerStats
from initcore.specifications import integer, non_negative_number

Phi = str | Activation | Callable[..., Any]

# From here on E sin² is 1/2 and E sin is 0 to the last bit: the rest is of order exp(−σ²/2).
_SIN_AVERAGES = 9.0


@dataclass(frozen=True, eq=False)
class Prediction:
    """Moments by layer, arrays of length L: `pre` of the pre-activations h, `post` of φ(h)."""

    pre: LayerStats
    post: LayerStats


def predict(
    widths: Sequence[int],
    *,
    activation: Phi | Sequence[Phi] = "relu",
    init: str | Initializer | Sequence[str | Initializer] = "kaiming_normal",
    bias: str | Initializer | Sequence[str | Initializer | None] | None = None,
    last: Phi | None = None,
    input_second_moment: float = 1.0,
) -> Prediction:
    """Predict mean, second moment and variance of a chain's pre-activations and activations.

    A layer's pre-activations are N(m, q), with m the mean of its bias and

        q = n_in Var(W) E[x²] + Var(b),    E[x²] = E[φ(m + √q z)²] of the layer below.

    This is exact in the limit of wide layers (Poole et al. 2016), with Var(W) and Var(b) what the
    initializers give these very widths.

    Parameters
    ----------
    widths
        n_0, …, n_L: the inputs and L layers.
    activation
        A specification, an :class:`Activation` or a function that maps a float64 array (n,) to an
        array (n,); or a list of L of them.
    init, bias
        The initializer of the weights (n_out, n_in) and of the biases (n_out,), whose fans are the
        weights'; or a list of L. None is no bias.
    last
        The activation of the last layer, if it is another.
    input_second_moment
        E[x²] of the inputs.

    Weights whose mean is not zero carry the sum of a layer's activations, which no wide limit has:
    from their layer on everything is NaN. Raises ValueError for widths, lists and specifications
    that do not fit.
    """
    sizes = [integer("widths", width) for width in widths]
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"widths must be two or more positive integers, got {widths!r}")
    n_layers = len(sizes) - 1
    phis = list(map(_phi, _per_layer("activation", activation, n_layers)))
    if last is not None:
        phis[-1] = _phi(last)
    inits = list(map(initializer, _per_layer("init", init, n_layers)))
    biases = _per_layer("bias", bias, n_layers)
    energy = non_negative_number("input_second_moment", input_second_moment)

    rows: list[tuple[float, ...]] = []
    for n_in, n_out, phi, weight, offset in zip(
        sizes[:-1], sizes[1:], phis, inits, biases, strict=True
    ):
        weights = weight.law((n_out, n_in))
        shift: Law = Constant(0.0)
        if offset is not None:
            shift = initializer(offset).law((n_out,), fan_in=n_in, fan_out=n_out)
        energy = energy if weights.mean == 0.0 else math.nan
        # Roots first: the variance of the weights may underflow where its product does not.
        root = math.sqrt(n_in * energy) * weights.std
        q = root * root + shift.std * shift.std
        post = _moments(phi, q, shift.mean)
        mean = math.nan if math.isnan(q) else shift.mean
        rows.append((mean, q + mean * mean, q, *post))
        energy = post.second_moment
    columns = np.array(rows).T
    return Prediction(LayerStats(*columns[:3]), LayerStats(*columns[3:]))


def _per_layer(argument: str, value: Any, n_layers: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        return [value] * n_layers
    if len(value) != n_layers:
        raise ValueError(
            f"{argument} must be one, or a list of one for each of the {n_layers} layers, "
            f"got {len(value)}"
        )
    return value


def _phi(phi: Phi) -> Activation | Callable[..., Any]:
    if callable(phi) and not isinstance(phi, Activation):
        return phi
    return find_activation(phi)


@functools.lru_cache(maxsize=1024)  # layers are alike, and so are the chains that are compared
def _known_moments(phi: Activation, sigma: float, mean: float) -> Moments:
    return gaussian_moments(phi, sigma, phi.kinks, mean)


def _moments(phi: Activation | Callable[..., Any], q: float, mean: float) -> Moments:
    """The moments of φ(mean + √q z)."""
    if math.isnan(q):
        return Moments(math.nan, math.nan, math.nan)
    sigma = math.sqrt(q)
    if not isinstance(phi, Activation):
        return gaussian_moments(phi, sigma, mean=mean)
    if phi.name == "sin" and sigma > _SIN_AVERAGES:
        # Thousands of periods are beyond a quadrature, and average out.
        return Moments(0.0, 0.5, 0.5)
    return _known_moments(phi, sigma, mean)
