# SPDX-License-Identifier: BSD-3-Clause
"""What a finite width adds: the law of one network's log-energy, and of its Jacobian's spectrum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initcore.specifications import integer, non_negative_number
from initcore.theory.expectations import Nonlinearity, Phi, nonlinearity

_STEP = 0.2  # of the trapezoid over ln t: its error is of order exp(−π²/step)


class MeanVar(NamedTuple):
    """A mean and a variance."""

    mean: float
    var: float


def jacobian(
    activation: Phi,
    n_layers: int,
    orthogonal: bool = False,
    *,
    q: float = 1.0,
    kinks: Sequence[float] = (),
) -> MeanVar:
    """Mean and variance of the squared singular values of ∂h_L/∂h_0, at the edge of chaos.

    At χ = 1 the mean is 1 and the variance L(μ₂/μ₁² − 1 − s₁), μ_k = E φ′(√q z)^2k, s₁ = −1 for
    Gaussian and 0 for orthogonal weights (Pennington, Schoenholz and Ganguli 2017); layers are
    wide. With orthogonal weights a linear chain has variance 0: every direction is kept.

    Parameters
    ----------
    activation, kinks
        As in :func:`fixed_point`.
    n_layers
        L, positive.
    orthogonal
        Orthogonal weights instead of Gaussian ones.
    q
        The second moment of the pre-activations, positive; it makes no difference to relu,
        leaky_relu and linear.

    Raises ValueError where φ′ vanishes or has no fourth moment.
    """
    phi = nonlinearity(activation, kinks)
    depth = integer("n_layers", n_layers)
    if depth < 1:
        raise ValueError(f"n_layers must be a positive integer, got {depth}")
    if not isinstance(orthogonal, bool | np.bool_):
        raise TypeError(f"orthogonal must be True or False, got {orthogonal!r}")
    expected = phi.at(_positive_q(q))
    square, fourth = expected.squared_slope, expected.fourth_power_of_slope
    if not (square > 0.0 and math.isfinite(fourth)):
        raise ValueError(f"activation {phi} has no edge of chaos at q = {q!r}: E φ′² is {square}")
    excess = fourth / square**2 - 1.0
    return MeanVar(1.0, depth * (excess if orthogonal else excess + 1.0))


def log_energy(
    activation: Phi, widths: Sequence[int], *, q: float = 1.0, kinks: Sequence[float] = ()
) -> MeanVar:
    """Mean and variance over networks of ln(energy of x_L / its limit at infinite width).

    The energy is ‖x_L‖²/n_L for one input (batch 1); weights are Gaussian and hold the second
    moment, biases are 0. For linear, relu and leaky_relu a layer multiplies the energy by an
    independent (1/n) Σ φ(z_i)²/E φ², and the law is exact at every width: ln S is found from
    E exp(−tS), which is closed. A relu network that dies (all units of a layer 0) has no logarithm:
    mean and variance are those of the networks that live. To first order in 1/n they are −v/2n and
    v/n a layer, v = E φ⁴/(E φ²)² − 1: 2 for linear, 5 for relu (Hanin and Nica 2019).

    For other activations that first order is what is returned, around the fixed point q of the
    map q′ = q E φ(√q′ z)²/E φ(√q z)²: with its logarithmic slope s and curvature s₂ there,

        var ← s² var + v/n,    mean ← s mean + s₂ var/2 − v/2n    layer by layer.

    Good where the variance is well below 1. All of it is of plain chains: norms and residual
    branches are in none of it, and :func:`predict` has no law of the log-energy either.

    Parameters
    ----------
    activation, kinks
        As in :func:`fixed_point`.
    widths
        n_0, …, n_L, of which n_0 does not matter: the energy of the input is given.
    q
        The second moment of the pre-activations, positive; for linear, relu and leaky_relu it makes
        no difference.
    """
    phi = nonlinearity(activation, kinks)
    sizes = [integer("widths", width) for width in widths]
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"widths must be two or more positive integers, got {widths!r}")
    q = _positive_q(q)
    slope = phi.homogeneous_slope
    if slope is None:
        return _first_order(phi, sizes[1:], q)
    layers = [(count, _log_sum(slope, n)) for n, count in sorted(Counter(sizes[1:]).items())]
    return MeanVar(
        math.fsum(count * one.mean for count, one in layers),
        math.fsum(count * one.var for count, one in layers),
    )


def _positive_q(q: float) -> float:
    value = non_negative_number("q", q)
    if value == 0.0:
        raise ValueError(f"q must be positive, got {q!r}")
    return value


def _log_sum(slope: float, n: int) -> MeanVar:
    """Of ln(S/E S) given S > 0, S = Σ φ(z_i)² over n units, φ(z) = z above 0 and slope·z below.

    With an independent exponential E, T = E/S has P(T > t) = E exp(−tS) = m(t)ⁿ, and
    ln S = ln E − ln T, where ln E has mean −γ and variance π²/6. The density of u = ln T is
    analytic, so a trapezoid finds its moments to the last digits.
    """
    larger = max(1.0, abs(slope))
    above, below = larger**-2, (slope / larger) ** 2
    shift = math.log(n * (above + below) / 2.0)
    smallest = min(above, below) or max(above, below)
    v = _STEP * np.arange(-200, 450 - round(math.log(smallest) / _STEP))  # ln T + ln E S
    t = np.exp(v - shift)
    logs = [-0.5 * np.log1p(2.0 * a * t) for a in (above, below)]
    halves = (np.expm1(logs[0]) + np.expm1(logs[1])) / 2.0
    log_m = np.where(
        t < 1.0,  # its n-th power needs all digits of what is nearly 0
        np.log1p(np.maximum(halves, -0.9)),
        np.logaddexp(*logs) - math.log(2.0),
    )
    steepness = sum(a * t * (1.0 + 2.0 * a * t) ** -1.5 for a in (above, below))
    density = np.exp((n - 1) * log_m) * steepness
    density /= density.sum()
    mean = float(density @ v)
    variance = float(density @ (v - mean) ** 2)
    return MeanVar(-np.euler_gamma - mean, variance - math.pi**2 / 6.0)


def _first_order(phi: Nonlinearity, widths: Sequence[int], q: float) -> MeanVar:
    expected = phi.at(q)
    second, fourth = expected.moments.second_moment, expected.fourth_moment
    if not (second > 0.0 and math.isfinite(fourth)):
        raise ValueError(f"activation {phi} has no energy at q = {q!r}: E φ² is {second}")
    noise = fourth / second**2 - 1.0
    slope, curvature = expected.growth, expected.curvature
    mean = variance = 0.0
    for n in widths:
        mean = slope * mean + curvature * variance / 2.0 - noise / (2.0 * n)
        variance = slope**2 * variance + noise / n
    return MeanVar(mean, variance)
