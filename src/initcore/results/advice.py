# SPDX-License-Identifier: BSD-3-Clause
"""What would hold a chain's signal, where theory bears the measurement out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from initcore.activations import Activation
from initcore.gains import gain
from initcore.quadrature import gaussian_mean
from initcore.results.chain_record import Direction, statistics_of
from initcore.results.chain_spec import activation_of, depth
from initcore.results.factor import Factor
from initcore.results.layers import ChainLayers


def advice(
    spec: Mapping[str, Any], theory: ChainLayers, direction: Direction, factor: Factor
) -> str:
    """What would hold: the scale, where scaling the weights scales every layer in proportion;
    else the gains that hold a layer at E[h²] = 1, forward and backward."""
    hidden = {str(phi): phi for phi in (activation_of(spec, i) for i in range(1, depth(spec)))}
    added = (spec[name] for name in ("bias", "norm", "residual"))
    if any(one is not None for one in added) or not hidden:
        return ""
    # What would hold is read off the theory, and only where the measurement bears it out: a
    # narrow, deep chain whose units die is not cured by a scale.
    predicted = statistics_of(theory, direction.side).second_moment
    ends = predicted[[factor.first - 1, factor.last - 1]]
    if not (np.isfinite(ends) & (ends > 0)).all():
        return ""
    start, end = np.log(ends)
    expected = float(np.exp((end - start) / abs(factor.last - factor.first)))
    if not abs(factor.value - expected) <= 3 * factor.se:
        return ""
    uniform = len(hidden) == 1 and len(set(spec["widths"])) == 1
    phi = next(iter(hidden.values()))
    if all(map(_homogeneous, hidden.values())):
        words = f"; .scaled({expected**-0.5:.4g}) would hold"
        return words + (f", a gain of {gain(phi):.4g}" if uniform else "")
    return _gains(phi, direction) if uniform else ""


def _homogeneous(phi: Activation) -> bool:
    """Whether φ(c·h) = c·φ(h) for c > 0, so that a factor on the weights passes through."""
    h = np.array([-3.0, -0.7, 0.4, 5.0])
    return bool(np.array_equal(phi(2 * h), 2 * phi(h)))


def _gains(phi: Activation, direction: Direction) -> str:
    """The gains that would hold E[h²], or the gradient, at E[h²] = 1."""
    forward, backward = gain(phi), gain(phi, "backward")
    # d ln E φ(√q z)² / d ln q at q = 1, of which σ_w² E φ² makes the slope of the map of E[h²]
    slope = gaussian_mean(lambda z: z * phi(z) * phi.derivative(z), 1.0, phi.kinks)
    if not direction.down:
        grows = forward**2 * slope
        but = "" if grows < 1 else f", but deviations would grow ×{grows:.4g} a layer"
        return f"; a gain of {forward:.4g} would hold E[h²] at 1{but}"
    apart = (forward / backward) ** 2
    advice = (
        f"; at E[h²] = 1 it would hold with a gain of {backward:.4g}, E[h²] with {forward:.4g} "
        f"(σ_w² ×{apart:.4g} apart)"
    )
    # Biases make up for what the smaller gain leaves of E[h²] (the edge of chaos at q = 1).
    if apart > 1 and backward**2 * slope < 1:
        std = math.sqrt(1 - 1 / apart)
        advice += f", both with {backward:.4g} and biases of std {std:.4g}"
    return advice
