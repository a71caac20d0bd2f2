# SPDX-License-Identifier: BSD-3-Clause
"""What all of theory asks of an activation: expectations over a Gaussian pre-activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from initcore.activations import Activation
from initcore.activations import activation as find_activation
from initcore.quadrature import (
    HERMITE_ORDERS,
    Array,
    Function,
    Moments,
    Panels,
    find_kinks,
    gaussian_panels,
    hermite_coefficients,
)
from initcore.specifications import finite_number

Phi = str | Activation | Callable[..., Any]

# From here on E sin² is 1/2 and E sin is 0 to the last bit: the rest is of order exp(−σ²/2).
_SIN_AVERAGES = 9.0
# σ at which a function stands for its linear parts at 0: as small as its rounding errors allow.
_ORIGIN_OF_BUILT_INS = 2.0**-200
_ORIGIN_OF_FUNCTIONS = 2.0**-20
_FAR = 2.0**40
_ORDERS = np.arange(1.0, HERMITE_ORDERS)


@dataclass(frozen=True, eq=False)
class Nonlinearity:
    """An activation as theory sees it: φ, where it has kinks, and φ′ where that is known."""

    function: Function
    kinks: tuple[float, ...]
    derivative: Function | None  # None: from the values, panel by panel
    built_in: Activation | None

    def at(self, q: float, mean: float = 0.0) -> Expectations:
        """Expectations over pre-activations N(mean, q)."""
        if mean == 0.0 < q and self.homogeneous_slope is not None:
            return _Homogeneous(self, q, self.homogeneous_slope)
        return Expectations(self, math.sqrt(q), mean)

    @cached_property
    def slope_at_origin(self) -> float:
        """E φ′² over N(0, q) as q → 0: of the slopes on either side of 0.

        It is 0 where φ starts with a power higher than the first, and infinite where with a lower
        one, which a φ(0) that is not 0 is too.
        """
        known = self.built_in is not None
        sigma = _ORIGIN_OF_BUILT_INS if known else _ORIGIN_OF_FUNCTIONS
        expected = self.at(sigma * sigma)
        power = expected.growth
        if abs(power - 1.0) < 0.01:
            return expected.squared_slope
        return math.inf if power < 1.0 else 0.0

    @cached_property
    def slope_at_infinity(self) -> float:
        """E φ′² over N(0, q) as q → ∞: of the slopes far out on either side."""
        sigma = math.inf if self.built_in is not None else _FAR
        return self.at(sigma * sigma).squared_slope

    @cached_property
    def homogeneous_slope(self) -> float | None:
        """The slope below 0 where φ is that, and x above; None where φ is something else."""
        phi = self.built_in
        if phi is None or phi.name not in ("linear", "relu", "leaky_relu"):
            return None
        return {"linear": 1.0, "relu": 0.0}.get(phi.name, phi.parameter)

    def covariance(self, c: float, q: float, mean: float = 0.0) -> float | None:
        """Of φ(h) and φ(h′), two h ~ N(mean, q) of correlation c, where there is a closed form.

        Without a mean linear, relu and leaky_relu (Cho and Saul 2009) and erf (Williams 1997); sin.
        """
        name = self.built_in.name if self.built_in else ""
        if name == "sin":
            size = math.exp(-q * (1.0 - abs(c))) * -math.expm1(-2.0 * q * abs(c)) / 2.0
            shift = math.exp(-q * (1.0 + min(c, 0.0))) * -math.expm1(-q * abs(c))
            return math.copysign(1.0, c) * (size - math.sin(mean) ** 2 * shift)
        if mean != 0.0:
            return None
        slope = self.homogeneous_slope
        if slope is not None:
            s = math.sqrt((1.0 - c) * (1.0 + c))
            half = c * (math.pi - math.acos(c) - c / (1.0 + s)) / (2.0 * math.pi)  # that of relu
            return q * ((1.0 - slope) * (1.0 - slope) * half + slope * c)
        return 2.0 / math.pi * _arcsine(c, q) if name == "erf" else None

    def __str__(self) -> str:
        return str(self.built_in or self.function)


def _arcsine(c: float, q: float) -> float:
    """arcsin(2qc/(1 + 2q)) by its tangent: the sine alone has lost its digits next to 1."""
    cosine = math.sqrt((1.0 + 2.0 * q * (1.0 - c)) * (1.0 + 2.0 * q * (1.0 + c)))
    return math.atan2(2.0 * q * c, cosine)


def is_function(phi: object) -> bool:
    """True for an activation that is known by its values alone."""
    return callable(phi) and not isinstance(phi, Activation)


def nonlinearity(phi: Phi, kinks: Sequence[float] = ()) -> Nonlinearity:
    """An activation from a specification, an :class:`Activation`, or a function and its kinks.

    Without kinks a function's are looked for. Raises what :func:`initcore.activation` raises, and
    ValueError for kinks of a built-in, which knows its own.
    """
    if callable(phi) and not isinstance(phi, Activation):
        points = tuple(finite_number("kinks", kink) for kink in kinks)
        return Nonlinearity(phi, points or find_kinks(phi), None, None)
    known = find_activation(phi)
    if len(kinks):
        raise ValueError(f"kinks= is for functions, {known} knows its own; got {kinks!r}")
    return Nonlinearity(known, known.kinks, known.derivative, known)


class Expectations:
    """Expectations of φ(h) and φ′(h) for one Gaussian h, from one set of panels."""

    def __init__(self, phi: Nonlinearity, sigma: float, mean: float) -> None:
        self._phi, self._sigma, self._mean = phi, sigma, mean
        sine = phi.built_in is not None and phi.built_in.name == "sin"
        # Thousands of periods are beyond a quadrature, and average out: any phase is as likely.
        self._averages = sine and sigma > _SIN_AVERAGES
        with np.errstate(all="ignore"):
            self._panels = (
                _all_phases() if self._averages
                else gaussian_panels(phi.function, sigma, phi.kinks, mean)
            )  # fmt: skip

    @cached_property
    def moments(self) -> Moments:
        """E φ, E φ² and Var φ."""
        with np.errstate(all="ignore"):
            return Moments.of(self._panels)

    @cached_property
    def fourth_moment(self) -> float:
        """E φ⁴."""
        with np.errstate(all="ignore"):
            return self._panels.mean(self._panels.values**4)

    @cached_property
    def _squared_slopes(self) -> Array:
        phi, panels = self._phi, self._panels
        with np.errstate(all="ignore"):
            if phi.derivative is None:
                sigma = self._sigma
                if sigma in (0.0, math.inf):  # limits have no panels to differentiate on
                    sigma = _FAR if sigma else _ORIGIN_OF_FUNCTIONS
                    panels = gaussian_panels(phi.function, sigma, phi.kinks, self._mean)
                    return np.full_like(self._panels.z, panels.mean(panels.slopes(sigma) ** 2))
                return panels.slopes(sigma) ** 2
            x = panels.z if self._averages else self._mean + self._sigma * panels.z
            slopes: Array = np.asarray(phi.derivative(x), np.float64)
            return slopes * slopes

    @cached_property
    def squared_slope(self) -> float:
        """E φ′²."""
        return self._panels.mean(self._squared_slopes)

    @cached_property
    def fourth_power_of_slope(self) -> float:
        """E φ′⁴."""
        with np.errstate(all="ignore"):
            return self._panels.mean(self._squared_slopes**2)

    def covariance(self, c: float) -> float:
        """Of φ(h) and φ(h′) for two such h of correlation c.

        In closed form where there is one, else Σ a_k² c^k over k > 0 with the Hermite coefficients
        a_k of φ (Mehler's formula). What the first 128 of them leave of Var φ, and of
        q E φ′² = Σ k a_k², is put at the one order that has both, so that value and slope are right
        at c = 1.
        """
        if c == 1.0 or self._sigma == 0.0:
            return self.moments.variance
        closed = self._phi.covariance(c, self._sigma**2, self._mean)
        if closed is not None:
            return closed
        with np.errstate(all="ignore"):
            total = float(self._shares @ c**_ORDERS)
            rest, order = self._rest
        return total + rest * c**order if rest > 0.0 < c else total

    @cached_property
    def _shares(self) -> Array:
        """Of the Hermite polynomials in Var φ: the squares of their coefficients."""
        phi, sigma, panels = self._phi, self._sigma, self._panels
        if sigma == math.inf:  # a limit has no panels to integrate on
            sigma = _FAR
            panels = gaussian_panels(phi.function, sigma, phi.kinks, self._mean)
        found = hermite_coefficients(phi.function, sigma, phi.kinks, self._mean, panels)
        shares: Array = found[1:] ** 2
        return shares

    @cached_property
    def _rest(self) -> tuple[float, float]:
        """What they leave of Var φ, and the order at which it makes up for q E φ′² too."""
        rest = self.moments.variance - float(self._shares.sum())
        slope = self._sigma**2 * self.squared_slope - float(self._shares @ _ORDERS)
        return rest, max(float(HERMITE_ORDERS), slope / rest) if rest > 0.0 else 0.0

    @cached_property
    def growth(self) -> float:
        """d ln E φ² / d ln q, for 0 < q < ∞; with Stein's lemma no derivative of φ is needed."""
        return self._hermite(lambda y: y - 1.0) / 2.0

    @cached_property
    def curvature(self) -> float:
        """d² ln E φ² / (d ln q)², for 0 < q < ∞."""
        second = self._hermite(lambda y: (y - 6.0) * y + 3.0) / 4.0  # q² (E φ²)″ / E φ²
        return second + self.growth - self.growth**2

    def _hermite(self, polynomial: Callable[[Array], Array]) -> float:
        """E p(z²) φ² / E φ² for a p with E p(z²) = 0."""
        if self._averages:
            return 0.0
        panels = self._panels
        with np.errstate(all="ignore"):
            squares = panels.values**2
            # φ(h) ≈ φ(0) for small h: what integrates to 0 would leave its rounding errors.
            level = float(squares[np.unravel_index(np.argmin(np.abs(panels.z)), squares.shape)])
            deviation = panels.mean(polynomial(panels.z**2) * (squares - level))
        whole = self.moments.second_moment
        return deviation / whole if whole else math.nan


class _Homogeneous(Expectations):
    """Those of φ(h) = slope·h below 0 and h above it, h ~ N(0, q), q > 0, in closed form."""

    def __init__(self, phi: Nonlinearity, q: float, slope: float) -> None:
        self._phi, self._q, self._slope = phi, q, slope

    @cached_property
    def moments(self) -> Moments:
        jump, second = 1.0 - self._slope, self._q * self.squared_slope
        if not jump:
            return Moments(0.0, second, second)
        half_normal = jump * jump / (2.0 * math.pi)
        variance = self._q * (self.squared_slope - half_normal) if second < math.inf else second
        return Moments(jump * math.sqrt(self._q / (2.0 * math.pi)), second, variance)

    @cached_property
    def fourth_moment(self) -> float:
        return 3.0 * self._q * self._q * self.fourth_power_of_slope

    @cached_property
    def squared_slope(self) -> float:
        return (1.0 + self._slope * self._slope) / 2.0

    @cached_property
    def fourth_power_of_slope(self) -> float:
        square = self._slope * self._slope
        return (1.0 + square * square) / 2.0

    def covariance(self, c: float) -> float:
        found = self._phi.covariance(c, self._q)
        assert found is not None
        return found

    @property
    def growth(self) -> float:
        return 1.0

    @property
    def curvature(self) -> float:
        return 0.0


def _all_phases() -> Panels:
    """A full turn in 16 steps: powers of a sine up to the 15th have their averages exactly."""
    x = (2.0 * math.pi / 16.0) * np.arange(16.0).reshape(1, 16)
    return Panels(x, np.zeros((1, 1)), np.full_like(x, 1.0 / 16.0), np.sin(x))
