# SPDX-License-Identifier: BSD-3-Clause
"""What would hold a chain's signal: read off the theory, where the measurement bears that out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initcore.activations import Activation
from initcore.gains import gain
from initcore.initializers import initializer
from initcore.quadrature import gaussian_mean
from initcore.results.chain_record import Direction, statistics_of
from initcore.results.chain_spec import (
    activation_of,
    arguments_of_theory,
    depth,
    is_function_name,
    per_layer,
)
from initcore.results.factor import Factor
from initcore.results.layers import ChainLayers
from initcore.results.records import Array
from initcore.results.verdict import bounded
from initcore.theory.chain import predict
from initcore.theory.expectations import Expectations, nonlinearity
from initcore.theory.mean_field import Critical, critical, fixed_point
from initcore.theory.roots import bracketed_root

# The share of a factor's distance from 1 that finite widths may have to themselves: but for E[h²]
# of a relu chain, all have corrections of order 1/n.
_UNEXPLAINED = 0.1
# Where nothing holds exactly, what may a signal grow or shrink by over all layers?
_WITHIN = 2.0
_AIM = 0.99 * _WITHIN  # what is printed is rounded
# A chain comes to a fixed point if its layers leave no more of a deviation from it.
_GONE = math.exp(-2)
# Gains, relatively, that are one when printed.
_ALIKE = 1e-3
# Half octaves from the present gain within which another is looked for.
_HALF_OCTAVES = 20
# The least multiplier of a branch that is looked at.
_LEAST = 2.0**-30


def advice(
    spec: Mapping[str, Any], theory: ChainLayers, direction: Direction, factor: Factor
) -> str:
    """What would hold in one direction, and how far from it is what holds in the other.

    The scale, where scaling the weights scales every layer in proportion; the gains that hold a
    layer whose E[h²] is 1, or behind a norm; the multiplier of residual branches. Gains are those
    of layers that share norm, biases and, but for the last, φ. Nothing where the measurement is not
    what theory says: a narrow, deep chain whose units die is not cured by a scale.
    """
    expected = _predicted(theory, direction, factor)
    doubt = max(3 * factor.se, _UNEXPLAINED * abs(expected - 1))
    if not abs(factor.value - expected) <= doubt:  # nor where one of them is NaN
        return ""
    if spec["residual"] is not None:
        return _multiplier(spec, direction)
    layers = range(depth(spec))
    hidden = {str(phi): phi for phi in (activation_of(spec, layer) for layer in layers[1:])}
    norms, biases = {per_layer(spec["norm"], i) for i in layers}, {_bias(spec, i) for i in layers}
    phi, *others = hidden.values()
    even = len(set(spec["widths"])) == 1
    passing = all(nonlinearity(phi).homogeneous_slope is not None for phi in hidden.values())
    if passing and norms == {None} and biases == {(0.0, 0.0)}:
        words = f"; .scaled({expected**-0.5:.4g}) would hold"
        return words + (f", a gain of {gain(phi):.4g}" if even and not others else "")
    if others or len(norms) > 1 or len(biases) > 1:
        return ""
    bias_mean, bias_variance = biases.pop()
    layer = _Layer(phi, norms.pop(), bias_mean, bias_variance, even, len(layers))
    if not direction.down:
        return layer.forward()
    if layer.norm is None:
        present = (theory.pre.variance[-1] - bias_variance) / theory.post.second_moment[-2]
        return layer.backward(math.sqrt(max(present, 0.0)))
    q = float(theory.pre.variance[factor.last - 1]) - bias_variance
    return layer.backward_behind_norm(math.sqrt(max(q, 0.0)))


def _predicted(theory: ChainLayers, direction: Direction, factor: Factor) -> float:
    """The factor a layer that theory has between the layers of the measured one."""
    ends = statistics_of(theory, direction.side).second_moment[[factor.first - 1, factor.last - 1]]
    if not (np.isfinite(ends) & (ends > 0)).all():
        return math.nan
    start, end = np.log(ends)
    return float(np.exp((end - start) / abs(factor.last - factor.first)))


def _bias(spec: Mapping[str, Any], index: int) -> tuple[float, float]:
    """Mean and variance of a layer's biases."""
    init = per_layer(spec["bias"], index)
    if init is None:
        return 0.0, 0.0
    n_in, n_out = spec["widths"][index : index + 2]
    law = initializer(init).laws((n_out,), fan_in=n_in, fan_out=n_out)[0]
    return law.mean, law.std * law.std


@dataclass(frozen=True)
class _Layer:
    """A layer like all others of its chain, but perhaps for its widths; no residual branch.

    Its pre-activations are N(mean b, v) with v = σ_w² E[x̂²] + Var b, where E[x̂²] is E φ², or 1
    behind a norm. A gain is σ_w.
    """

    phi: Activation
    norm: str | None
    bias_mean: float
    bias_variance: float
    even: bool  # all layers are equally wide
    depth: int

    @cached_property
    def level(self) -> float:
        """The E[h²] to hold: 1, or where biases alone are as much, twice theirs."""
        biases = self.bias_mean**2 + self.bias_variance
        return 1.0 if biases < 1 else 2 * biases

    @cached_property
    def variance(self) -> float:
        """Of h at that level."""
        return self.level - self.bias_mean**2

    @cached_property
    def expected(self) -> Expectations:
        """Of φ and φ′ at that level."""
        return self._at(self.variance)

    @cached_property
    def gain(self) -> float:
        """The gain that holds the level; NaN where none does, or φ saturates there."""
        energy = 1.0 if self.norm is not None else self.expected.moments.second_moment
        if not 0 < energy < math.inf or self._saturates(self.variance):
            return math.nan
        return math.sqrt((self.variance - self.bias_variance) / energy)

    def forward(self) -> str:
        """What holds E[h²], or E[x²] behind a norm."""
        if math.isnan(self.gain):
            return ""
        over = "" if self.even else " over √fan_in"
        words = f"; a gain of {self.gain:.4g}{over} would hold E[h²] at {self.level:.4g}"
        if self.norm is not None:
            return f"{words}, and E[x²] with it"
        slope = self._slope(self.gain)
        if slope < 1 and abs(slope) ** self.depth <= _GONE:
            return words
        change = "grow" if slope >= 1 else "shrink"
        return f"{words}, but deviations would {change} ×{slope:.4g} a layer"

    def backward(self, present: float) -> str:
        """What holds the gradient by h at that level, and what holds both: if that is the present
        gain, from which inputs on."""
        slope = self.expected.squared_slope
        if math.isnan(self.gain) or not 0 < slope < math.inf:
            return ""
        down, apart = slope**-0.5, self.gain**2 * slope
        words = f"; at E[h²] = {self.level:.4g} it would hold with a gain of {down:.4g}"
        if not self.even:
            return (
                f"{words} over √fan_out, E[h²] with {self.gain:.4g} over √fan_in "
                f"(variances ×{apart:.4g} fan_out/fan_in apart)"
            )
        words += f", E[h²] with {self.gain:.4g} (σ_w² ×{apart:.4g} apart)"
        if self.bias_mean or self.bias_variance:
            edge = self._critical()
            if edge is None:
                return words
            gain = math.sqrt(edge.sigma_w2)
            if not math.isclose(present, gain, rel_tol=_ALIKE):
                return f"{words}, both with {gain:.4g}, where E[h²] settles at {edge.q:.4g}"
            entering = (edge.q - self.bias_variance) / edge.sigma_w2
            return (
                f"; it holds where E[h²] has settled at {edge.q:.4g}, in every layer for inputs of "
                f"E[x²] = {entering:.4g}"
            )
        # Biases make up for what the smaller gain leaves of E[h²] (the edge of chaos).
        if apart > 1 and self._slope(down) < 1:
            words += f", both with {down:.4g} and biases of std {math.sqrt(1 - 1 / apart):.4g}"
        return words

    def backward_behind_norm(self, present: float) -> str:
        """What holds the gradient by x; where no gain does, and with the present one it changes by
        more than `_WITHIN` from the top to the bottom, what keeps it within that. Of several gains
        the nearest."""

        def deviation(gain: float) -> float:
            """ln of the factor a layer: σ_w² E φ′² over what the norm divides by."""
            expected = self._at(gain * gain + self.bias_variance)
            moments = expected.moments
            scale = moments.variance if self.norm == "layer" else moments.second_moment
            factor = gain * gain * expected.squared_slope / scale if scale else math.nan
            return math.log(factor) if 0 < factor < math.inf else math.nan

        def outside(gain: float) -> float:
            return abs(deviation(gain)) * self.depth - math.log(_AIM)

        if not present > 0:
            return ""
        here = deviation(present)
        if all(abs(deviation(present * c) - here) < 1e-9 for c in (0.5, 2.0)):
            return "; behind a norm no gain changes that"
        if not self.even:
            return ""
        goals = [(deviation, "hold it")]
        if abs(here) * self.depth > math.log(_WITHIN):
            goals.append((outside, f"keep it within ×{_WITHIN:g} over {self.depth} layers"))
        for function, words in goals:
            found = _nearest_root(function, present)
            if found is not None and not self._saturates(found * found + self.bias_variance):
                return f"; a gain of {found:.4g} would {words}, E[x²] holds with any"
        return ""

    def _at(self, variance: float) -> Expectations:
        return nonlinearity(self.phi).at(variance, self.bias_mean)

    def _slope(self, gain: float) -> float:
        """dv′/dv at the level: the factor a layer of deviations from it."""
        growth = self.expected.growth / self.variance
        return gain**2 * self.expected.moments.second_moment * growth

    def _critical(self) -> Critical | None:
        """The edge of chaos for these biases, where a chain of this depth comes to it."""
        if self.bias_mean:
            return None
        try:
            edge = critical(self.phi, self.bias_variance)
        except ValueError:
            return None
        found = fixed_point(self.phi, edge.sigma_w2, self.bias_variance)
        comes = math.isclose(found.q, edge.q, rel_tol=1e-6) and 0 < 2 * found.xi_q <= self.depth
        return None if not comes or self._saturates(edge.q) else edge

    def _saturates(self, variance: float) -> bool:
        """Whether such pre-activations would be judged to saturate."""
        if not bounded(self.phi):
            return False

        def saturated(h: Array) -> NDArray[np.bool_]:
            flat: NDArray[np.bool_] = np.abs(self.phi.derivative(h)) < self.phi.saturation_threshold
            return flat

        return gaussian_mean(saturated, math.sqrt(variance), mean=self.bias_mean) > 0.5


def _nearest_root(function: Callable[[float], float], present: float) -> float | None:
    """A root of a function of a gain, the next to the present one on a logarithmic scale."""
    values = {0: function(present)}

    def at(step: int) -> float:
        return present * math.pow(2.0, step / 2)

    for step in range(1, _HALF_OCTAVES + 1):
        for near, far in ((1 - step, -step), (step - 1, step)):
            values[far] = function(at(far))
            if values[near] * values[far] < 0:
                a, b = sorted((near, far))
                return bracketed_root(function, at(a), at(b), values[a], values[b], 1e-6)
    return None


def _multiplier(spec: Mapping[str, Any], direction: Direction) -> str:
    """The multiplier of all branches that keeps the signal within `_WITHIN` from one end to the
    other, and what 1/sqrt(L) would leave of its growth."""
    n = depth(spec)
    present = [per_layer(spec["residual"], i) for i in range(n)]
    inits = {per_layer(spec["init"], i) for i in range(n)}
    if None in present or any(map(is_function_name, inits)):
        return ""
    known = arguments_of_theory(spec)
    if spec["x"] is None:
        known["batch"] = 1  # no cosine is asked for

    @cache
    def growth(multiplier: float) -> float:
        found = predict(**{**known, "residual": multiplier}, backward=direction.down)
        bottom, top = statistics_of(found, direction.side).second_moment[[0, -1]]
        return float(bottom / top if direction.down else top / bottom)

    def outside(multiplier: float) -> float:
        return math.log(growth(multiplier) / _AIM)

    largest, by_depth = max(map(abs, present)), 1 / math.sqrt(n)
    if not growth(largest) > _WITHIN:
        return ""
    low = min(largest, by_depth)
    while outside(low) > 0:
        low /= 2
        if low < _LEAST:  # inputs of 0 are nothing beside whatever the branches bring
            return ""
    high = 2 * low
    while outside(high) < 0:
        high *= 2
    found = bracketed_root(outside, low, high, outside(low), outside(high), 1e-4)
    words = f"; residual={found:.3g} would keep it within ×{_WITHIN:g} over all layers"
    if by_depth >= largest:
        return words
    left = growth(by_depth)  # below 1 where means of x and φ(h) cancel
    return f"{words}, 1/sqrt(L) within ×{max(left, 1 / left):.3g}"
