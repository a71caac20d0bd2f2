# SPDX-License-Identifier: BSD-3-Clause
"""Where wide chains settle: fixed points, depth scales, the edge of chaos, correlations.

σ_w² is n_in Var(W), σ_b² is Var(b), and q the second moment of a pre-activation; layers are wide,
weights and biases independent with mean 0 (Poole et al. 2016; Schoenholz et al. 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from initcore.quadrature import gaussian_product_mean
from initcore.results.records import Record
from initcore.results.text import number
from initcore.specifications import finite_number, non_negative_number
from initcore.theory.expectations import Nonlinearity, Phi, nonlinearity
from initcore.theory.roots import bracketed_root

# What rounding leaves of a difference that is 0, as a share of its terms.
_ROUNDING = 1e-14
# Octaves from q = 1 between which the q map is looked at for a fixed point: dense where there can
# be several, sparse where every activation is its linear parts.
_OCTAVES = (*range(2, 62, 2), 80, 120, 200, 320, 500, 800, 1000)


@dataclass(frozen=True, eq=False)
class FixedPoint(Record):
    """Where the q map of a chain settles, and how fast signals of neighbouring inputs part there.

    q
        the second moment q* = σ_w² E φ(√q* z)² + σ_b² to which a chain goes from q = 1: 0 where it
        dies out, infinity where it grows without bound.
    chi
        χ = σ_w² E φ′(√q* z)²: the factor a layer of gradients and of small differences between
        inputs. Below 1 is order, above 1 chaos.
    xi_q
        −1/ln |dq′/dq| in layers: over so many a deviation from q* shrinks by e; negative where it
        grows.
    xi_c
        −1/ln χ in layers: over so many a small difference shrinks by e, and a gradient on its way
        back; negative in chaos, where both grow; infinite at the edge.
    stable
        |dq′/dq| < 1: q* attracts its neighbours. False where it repels them (of an edge of chaos,
        say, that is asked for by its q), for what has no bound, and on the margin, where q only
        drifts (a relu that conserves the second moment has every q as a fixed point).
    """

    q: float
    chi: float
    xi_q: float
    xi_c: float
    stable: bool

    def __str__(self) -> str:
        word = "stable" if self.stable else "not stable"
        return (
            f"q* = {number(self.q, 8)} ({word}), χ = {number(self.chi, 8)}, "
            f"ξ_q = {number(self.xi_q)}, ξ_c = {number(self.xi_c)} layers"
        )


class Variances(NamedTuple):
    """σ_w² = n_in Var(W) and σ_b² = Var(b)."""

    sigma_w2: float
    sigma_b2: float


class Critical(NamedTuple):
    """σ_w² at the edge of chaos, and the fixed point q there, which need not be stable."""

    sigma_w2: float
    q: float


def fixed_point(
    activation: Phi,
    sigma_w2: float,
    sigma_b2: float = 0.0,
    *,
    q: float | None = None,
    kinks: Sequence[float] = (),
) -> FixedPoint:
    """The fixed point of the q map that a chain reaches from q = 1; see :class:`FixedPoint`.

    Parameters
    ----------
    activation
        A specification such as ``"tanh"``, an :class:`Activation`, or a function that maps a
        float64 array (n,) to an array (n,).
    sigma_w2, sigma_b2
        n_in Var(W) and Var(b), not negative.
    q
        Look at this fixed point instead, known to 9 digits: that of :func:`critical`, say, which a
        chain leaves where it is not stable.
    kinks
        Where a function, or its derivative, jumps. Without, it is looked for within several of 0.

    Built-ins have 10 digits or more, but next to the edge of a vanishing q*, where the map hardly
    moves. Raises ValueError and TypeError for arguments that are not these.
    """
    phi = nonlinearity(activation, kinks)
    w = non_negative_number("sigma_w2", sigma_w2)
    b = non_negative_number("sigma_b2", sigma_b2)
    q = _settled(phi, w, b) if q is None else _known(phi, w, b, q)
    if 0.0 < q < math.inf:
        expected = phi.at(q)
        chi = w * expected.squared_slope
        slope = expected.growth * w * expected.moments.second_moment / q
    else:
        # At either end φ is its linear parts, and the two slopes are one.
        limit = phi.slope_at_origin if q == 0.0 else phi.slope_at_infinity
        chi = slope = w * limit if w else 0.0
    scale = _depth_scale(slope)
    return FixedPoint(q, chi, scale, _depth_scale(chi), 0.0 < scale < math.inf or slope == 0.0)


def _known(phi: Nonlinearity, w: float, b: float, q: float) -> float:
    """q, checked to be a fixed point."""
    given = non_negative_number("q", q)
    image = w * phi.at(given).moments.second_moment + b
    if not abs(image - given) <= 1e-9 * given:
        raise ValueError(f"q must be a fixed point, got {q!r}, which a layer maps to {image!r}")
    return given


def _settled(phi: Nonlinearity, w: float, b: float) -> float:
    """The fixed point from q = 1 up where the map lies above q there, else down."""
    at_one = phi.at(1.0).moments.second_moment
    if math.isnan(at_one):
        raise ValueError(
            f"activation must give numbers, got {phi}, whose E φ(z)² is NaN for a standard normal z"
        )
    if w == 0.0:
        return b

    def excess(q: float) -> float:
        return w * phi.at(q).moments.second_moment + b - q

    near, f_near = 1.0, w * at_one + b - 1.0
    if abs(f_near) <= _ROUNDING:
        return near
    direction = math.copysign(1.0, f_near)
    for octaves in _OCTAVES:
        far = 2.0 ** (direction * octaves)
        f_far = excess(far)
        if abs(f_far) <= _ROUNDING * far:
            continue  # the root itself, or a map that no longer moves: the next point tells
        if f_far * f_near < 0.0:
            (low, f_low), (high, f_high) = sorted([(near, f_near), (far, f_far)])
            return bracketed_root(excess, low, high, f_low, f_high)
        near, f_near = far, f_far
    return math.inf if direction > 0.0 else 0.0


def _depth_scale(factor: float) -> float:
    """Layers over which a quantity that changes by a factor a layer shrinks by e."""
    if math.isnan(factor):
        return math.nan
    if abs(abs(factor) - 1.0) < _ROUNDING:
        return math.inf
    return -1.0 / math.log(abs(factor)) if 0.0 < abs(factor) < math.inf else 0.0


def edge_of_chaos(activation: Phi, q: float, *, kinks: Sequence[float] = ()) -> Variances:
    """The (σ_w², σ_b²) at which q is a fixed point and χ = 1.

    σ_w² = 1/E φ′(√q z)², σ_b² = q − σ_w² E φ(√q z)². Arguments as in :func:`fixed_point`; q is
    finite and not negative. Raises ValueError where no variance does: φ′ vanishes, or σ_b² would be
    negative.
    """
    phi = nonlinearity(activation, kinks)
    edge = _edge(phi, non_negative_number("q", q))
    if not (0.0 < edge.sigma_w2 < math.inf and edge.sigma_b2 >= 0.0):
        raise ValueError(
            f"activation {phi} has no edge of chaos at q = {q!r}: "
            f"it would take sigma_w2 = {edge.sigma_w2:.6g} and sigma_b2 = {edge.sigma_b2:.6g}"
        )
    return edge


def _edge(phi: Nonlinearity, q: float) -> Variances:
    """The variances of the edge at q, whatever their signs."""
    if q == 0.0:
        slope, energy = phi.slope_at_origin, 0.0
    else:
        expected = phi.at(q)
        slope, energy = expected.squared_slope, expected.moments.second_moment
    sigma_w2 = 1.0 / slope if slope else math.inf
    sigma_b2 = q - (sigma_w2 * energy if energy else 0.0)
    return Variances(sigma_w2, sigma_b2 if abs(sigma_b2) > _ROUNDING * q else 0.0)


def critical(activation: Phi, sigma_b2: float = 0.0, *, kinks: Sequence[float] = ()) -> Critical:
    """The σ_w² of the edge of chaos for a given σ_b², and the fixed point q there.

    χ is 1 at that q, where a chain that starts there stays. Others come to it only where it is
    stable, as that of tanh; those of gelu, silu and mish are not while σ_b² is small, and a chain
    leaves them: ``fixed_point(activation, sigma_w2, sigma_b2, q=q).stable`` tells, and
    ``fixed_point`` without q where a chain from q = 1 goes.

    Of several, the one of the smallest q; where every q is one (relu without bias) q is 1.
    Arguments as in :func:`fixed_point`. Raises ValueError where there is none.
    """
    phi = nonlinearity(activation, kinks)
    b = non_negative_number("sigma_b2", sigma_b2)

    def excess(q: float) -> float:
        return _edge(phi, q).sigma_b2 - b

    if b == 0.0:
        for q in (1.0, 0.0):
            edge = _edge(phi, q)
            if edge.sigma_b2 == 0.0 and 0.0 < edge.sigma_w2 < math.inf:
                return Critical(edge.sigma_w2, q)
    # q is at least σ_b². From far below 1 where that is 0, up to where nothing changes any more.
    low = b or 2.0**-40
    f_low = excess(low)
    if f_low == 0.0 and b > 1.0:  # all but σ_b² is lost in rounding
        edge = _edge(phi, low)
        if edge.sigma_w2 < math.inf:
            return Critical(edge.sigma_w2, low)
    while low < 2.0**60 * max(1.0, b):
        high = 2.0 * low
        f_high = excess(high)
        if f_high == 0.0 or f_low * f_high < 0.0:
            q = high if f_high == 0.0 else bracketed_root(excess, low, high, f_low, f_high)
            return Critical(_edge(phi, q).sigma_w2, q)
        low, f_low = high, f_high
    raise ValueError(f"activation {phi} has no edge of chaos at sigma_b2 = {sigma_b2!r}")


def correlation_map(
    activation: Phi,
    c: npt.ArrayLike,
    sigma_w2: float,
    sigma_b2: float,
    q: float,
    *,
    kinks: Sequence[float] = (),
) -> float | npt.NDArray[np.float64]:
    """The correlation of two inputs' pre-activations a layer on from where it is c.

    c′ = (σ_w² E φ(√q u) φ(√q v) + σ_b²)/(σ_w² E φ(√q z)² + σ_b²) with E uv = c; the denominator is
    q where q is a fixed point. In closed form for linear, relu, leaky_relu (Cho and Saul 2009), erf
    (Williams 1997) and sin, otherwise by two-dimensional quadrature split at kinks.

    Parameters
    ----------
    activation, sigma_w2, sigma_b2, kinks
        As in :func:`fixed_point`.
    c
        The correlation, from −1 to 1, or an array of them.
    q
        The second moment of the pre-activations of both, positive.

    A float, or an array of the shape of c. Raises ValueError for values outside these ranges.
    """
    phi = nonlinearity(activation, kinks)
    w = non_negative_number("sigma_w2", sigma_w2)
    b = non_negative_number("sigma_b2", sigma_b2)
    q = finite_number("q", q)
    if q <= 0.0:
        raise ValueError(f"q must be positive, got {q!r}")
    given = np.asarray(c)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"c must be a real number or an array of them, got {c!r}")
    if not np.all(np.abs(given) <= 1.0):
        raise ValueError(f"c must be from -1 to 1, got {c!r}")
    whole = w * _overlap(phi, 1.0, q) + b
    if not 0.0 < whole < math.inf:
        raise ValueError(
            f"activation {phi} has no correlation at sigma_w2 = {sigma_w2!r}, "
            f"sigma_b2 = {sigma_b2!r}, q = {q!r}: the next layer's second moment is {whole}"
        )
    mapped = [(w * _overlap(phi, float(one), q) + b) / whole for one in given.ravel()]
    return np.array(mapped).reshape(given.shape) if given.ndim else mapped[0]


def _overlap(phi: Nonlinearity, c: float, q: float) -> float:
    """E φ(√q u) φ(√q v) with E uv = c."""
    if c == 1.0:
        return phi.at(q).moments.second_moment
    closed = phi.covariance(c, q)
    if closed is not None:
        return closed + phi.at(q).moments.mean ** 2
    return gaussian_product_mean(phi.function, math.sqrt(q), c, phi.kinks)
