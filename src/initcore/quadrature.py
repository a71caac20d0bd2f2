# SPDX-License-Identifier: BSD-3-Clause
"""Gaussian expectations E f(m + σz), z ~ N(0, 1), by composite Gauss–Legendre quadrature.

Gauss–Hermite converges as slowly as 1/n at a kink. Here the line is cut on the scale of the
Gaussian (steps of about σ around m), at the kinks, and on the scale of f (steps around 0 that
double), because a saturating f seen by a wide Gaussian lives in a sliver of it. A panel whose
Legendre coefficients have not died away is divided until they have, so a kink nobody has told of
costs more evaluations, not digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from initcore.specifications import finite_number

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Any]

_POINTS = 20  # a panel
_TOLERANCE = 1e-14  # of E|f|: what a panel's last coefficients may contribute
_MAX_PANELS = 20_000  # then the rest stays as it is: noise and fast oscillation never resolve
_OCTAVES = 54  # of x around f's scale, which is 1: further out 1/x is below rounding
_EXPONENTS = np.concatenate([np.arange(10.0), np.arange(10.0, _OCTAVES, 3.0)])


class _Rule(NamedTuple):
    nodes: Array  # (n,), Gauss–Legendre on [-1, 1]
    weights: Array  # (n,)
    last: Array  # (n, 2): values -> the two highest Legendre coefficients
    barycentric: Array  # (n,), the weights of interpolation
    slope: Array  # (n, n): values -> derivatives at the nodes


class Panels(NamedTuple):
    """Where f was evaluated: enough of it to integrate f², f f′ and their like by more sums."""

    z: Array  # (panels, n), the nodes; f's argument there is mean + sigma·z
    half: Array  # (panels, 1), half their widths in z
    weights: Array  # (panels, n), of the Gaussian measure; their sum is 1
    values: Array  # (panels, n), f at the nodes

    def mean(self, integrand: Array) -> float:
        """The expectation of what has the values `integrand` (panels, n) at the nodes."""
        return float(np.vdot(self.weights, integrand))

    def slopes(self, sigma: float) -> Array:
        """f′ at the nodes, from f's values alone; a jump of f itself is left out."""
        return self.values @ legendre_rule().slope.T / (self.half * sigma)


@functools.cache
def legendre_rule() -> _Rule:
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    vandermonde = np.polynomial.legendre.legvander(nodes, _POINTS - 1)
    coefficients = (vandermonde * weights[:, None]) * (np.arange(_POINTS) + 0.5)
    signs = (-1.0) ** np.arange(_POINTS)
    barycentric = np.asarray(signs * np.sqrt((1.0 - nodes * nodes) * weights), np.float64)
    distance = nodes[:, None] - nodes
    np.fill_diagonal(distance, 1.0)
    slope = barycentric / barycentric[:, None] / distance
    np.fill_diagonal(slope, 0.0)
    np.fill_diagonal(slope, -slope.sum(axis=1))
    return _Rule(nodes, weights, coefficients[:, -2:], barycentric, slope)


# In units of the Gaussian, to where its density underflows.
_Z_CUTS = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0, 37.0])


class _Grid(NamedTuple):
    """Panels without a function on them."""

    left: Array  # (panels,)
    right: Array  # (panels,)
    half: Array  # (panels, 1)
    z: Array  # (panels, n)
    weights: Array  # (panels, n)
    masses: Array  # (panels,), the sums of the weights

    @classmethod
    def between(cls, left: Array, right: Array) -> _Grid:
        rule = legendre_rule()
        half = ((right - left) / 2)[:, None]
        z = left[:, None] + half * (1.0 + rule.nodes)
        weights = half * rule.weights * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return cls(left, right, half, z, weights, weights.sum(axis=1))


@functools.lru_cache(maxsize=256)
def _grid(octaves: int) -> _Grid:
    """Around f(0) at z = 0, where 1/4 of the Gaussian is 2^octaves of the scale of f."""
    cuts = np.unique(np.concatenate([_Z_CUTS, _details(octaves)]))
    cuts = np.concatenate([-cuts[:0:-1], cuts])
    return _Grid.between(cuts[:-1], cuts[1:])


def _details(octaves: int) -> Array:
    """Cuts z > 0 on the scale of f: at 1, 1.5, 2, 3, 4, 6, 8, 12, 16 and powers of two from there,
    each up to a thousand and every third beyond, where f follows its asymptotes."""
    powers = 2.0 ** _EXPONENTS[octaves > _EXPONENTS]
    return 0.25 * 0.5**octaves * np.concatenate([powers, 1.5 * powers[:4]])


def _octaves(sigma: float) -> int:
    return max(0, math.frexp(sigma)[1] - 2)


def _first_grid(octaves: int, sigma: float, kinks: Sequence[float], mean: float) -> _Grid:
    """What a function of these kinks is most often resolved on, for the octaves of sigma."""
    at = [z for z in ((kink - mean) / sigma for kink in kinks) if z != 0.0 and abs(z) < _Z_CUTS[-1]]
    if not at and (mean == 0.0 or octaves == 0):
        return _grid(octaves)
    grid = _grid(octaves if mean == 0.0 else 0)
    cuts = np.concatenate([grid.left, grid.right[-1:], at])
    if mean != 0.0 and octaves:
        steps = np.concatenate([[0.0], _details(octaves), [0.25, 0.5, 1.0, 2.0, 4.0]])
        scaled = np.concatenate([-steps, steps]) - mean / sigma
        cuts = np.concatenate([cuts, scaled[np.abs(scaled) < _Z_CUTS[-1]]])
    cuts.sort()
    distinct = cuts[1:] > cuts[:-1]
    return _Grid.between(cuts[:-1][distinct], cuts[1:][distinct])


def evaluate(function: Function, x: Array) -> Array:
    """f(x), of x's shape, as float64; ValueError where f gives anything but real numbers."""
    values = np.asarray(function(x.ravel()))
    if values.shape != (x.size,) or values.dtype.kind not in "biuf":
        raise ValueError(
            "the function must map an array of real numbers to one of the same shape: "
            f"given shape {(x.size,)}, it returned shape {values.shape} of dtype {values.dtype}"
        )
    return values.astype(np.float64).reshape(x.shape)


def gaussian_panels(
    function: Function,
    sigma: float,
    kinks: Sequence[float] = (),
    mean: float = 0.0,
    size: float = 0.0,
    max_panels: int = _MAX_PANELS,
) -> Panels:
    """Panels on which f is resolved, as :func:`gaussian_mean` takes its arguments, unchecked.

    size: what errors are compared with if it is larger than E|f|, for an f with errors of its own;
    max_panels: after so many what is rough stays so.
    """
    if sigma == 0.0 or math.isinf(sigma):
        # The limits: a point, or half of the mass at either end of the line.
        z = np.array([[0.0]] if sigma == 0.0 else [[-1.0, 1.0]])
        x = np.full_like(z, mean) if sigma == 0.0 else z * math.inf
        return Panels(z, np.zeros((1, 1)), np.full_like(z, 1.0 / z.size), evaluate(function, x))
    rule = legendre_rule()
    grid = _first_grid(_octaves(sigma), sigma, kinks, mean)
    total = 0.0
    finished: list[Panels] = []
    budget, pieces = max_panels, 2
    while True:
        values = evaluate(function, mean + sigma * grid.z)
        panels = Panels(grid.z, grid.half, grid.weights, values)
        # Those already finished are resolved: what they add to E|f| is known to the first pass.
        total = total or max(size, panels.mean(np.abs(values)))
        budget -= len(values)
        last = np.abs(values @ rule.last)
        rough = (last[:, 0] + last[:, 1]) * grid.masses > _TOLERANCE * total
        if not rough.any() or pieces * np.count_nonzero(rough) > budget:
            finished.append(panels)
            break
        finished.append(Panels(*(part[~rough] for part in panels)))
        cuts = np.linspace(grid.left[rough], grid.right[rough], pieces + 1)
        grid = _Grid.between(cuts[:-1].ravel(), cuts[1:].ravel())
        pieces = 8  # what is rough still is so at a point, and far from resolved
    if len(finished) == 1:
        return finished[0]
    return Panels(*(np.concatenate(parts) for parts in zip(*finished, strict=True)))


def _checked(sigma: float, mean: float) -> tuple[float, float]:
    mean = finite_number("mean", mean)
    if not sigma >= 0.0:
        raise ValueError(f"sigma must be a number that is not negative, got {sigma!r}")
    return float(sigma), mean


def gaussian_mean(
    function: Function, sigma: float = 1.0, kinks: Sequence[float] = (), mean: float = 0.0
) -> float:
    """E f(mean + sigma·z) for z ~ N(0, 1).

    Parameters
    ----------
    function
        Maps a float64 array (n,) to an array (n,) of real numbers.
    sigma
        The standard deviation, not negative; infinity gives the limit, (f(−∞) + f(∞))/2.
    kinks
        The points x where the function, or a derivative of it, jumps. With them a function smooth
        elsewhere has 12 digits or more (of E|f|); without, it has nearly as many after more
        evaluations. A function that oscillates thousands of times within sigma is not resolved.
    mean
        The mean of the Gaussian.

    Raises ValueError for a negative or NaN sigma and for a function that does not map shape to
    shape.
    """
    sigma, mean = _checked(sigma, mean)
    with np.errstate(all="ignore"):
        panels = gaussian_panels(function, sigma, kinks, mean)
        return panels.mean(panels.values)


class Moments(NamedTuple):
    """E f, E f² and E(f − E f)²."""

    mean: float
    second_moment: float
    variance: float

    @classmethod
    def of(cls, panels: Panels) -> Moments:
        """The moments of what has its values on these panels."""
        first = panels.mean(panels.values)
        second = panels.mean(panels.values**2)
        # Centred, not E f² − (E f)²: a nearly constant f would have lost every digit.
        variance = panels.mean((panels.values - first) ** 2)
        return cls(first, second, second if math.isinf(second) else variance)


def gaussian_moments(
    function: Function, sigma: float = 1.0, kinks: Sequence[float] = (), mean: float = 0.0
) -> Moments:
    """The moments of f(mean + sigma·z), as :func:`gaussian_mean` takes its arguments."""
    sigma, mean = _checked(sigma, mean)
    with np.errstate(all="ignore"):
        return Moments.of(gaussian_panels(function, sigma, kinks, mean))


def gaussian_squared_slope(function: Function, kinks: Sequence[float] = ()) -> float:
    """E f′(z)² for a function known by its values alone, differentiated panel by panel.

    12 digits when the kinks are given, about 6 when they are not. A jump of f itself is left out.
    """
    with np.errstate(all="ignore"):
        panels = gaussian_panels(function, 1.0, kinks)
        return panels.mean(panels.slopes(1.0) ** 2)


_FINE = 2.0**-10  # half the width of a panel that only a kink has made
_APART = 0.05  # panels so far from each other are of two kinks
_MAX_KINKS = 64  # a function with more is rough
_SEARCHED = 1.37  # times a panel's cuts, where kinks at round numbers would not be seen


def find_kinks(function: Function) -> tuple[float, ...]:
    """Where a function, of whose kinks nobody has told, jumps or bends within several of 0.

    To eleven digits: cuts there serve as those at the kinks. () if there are more than 64.
    """
    rule = legendre_rule()

    def roughness(values: Array) -> Array:
        size: Array = np.abs(values @ rule.last).sum(axis=1)
        return size

    with np.errstate(all="ignore"):
        panels = gaussian_panels(function, _SEARCHED)
        fine = np.flatnonzero(panels.half[:, 0] < _FINE)
        places = _SEARCHED * panels.z[:, _POINTS // 2]
        fine = fine[np.argsort(places[fine])]
        clusters = np.split(fine, np.flatnonzero(np.diff(places[fine]) > _APART) + 1)
        if not fine.size or len(clusters) > _MAX_KINKS:
            return ()
        kinks = []
        for cluster in clusters:
            smallest = cluster[np.argmin(panels.half[cluster, 0])]
            x, half = float(places[smallest]), 16.0 * float(panels.half[smallest, 0])
            while half > 1e-11 * max(1.0, abs(x)):  # then rounding errors are as rough
                cuts = np.linspace(x - half, x + half, 9)
                half /= 8.0
                nodes = cuts[:-1, None] + half * (1.0 + rule.nodes)
                x = float(cuts[np.argmax(roughness(evaluate(function, nodes)))] + half)
            kinks.append(x)
    return tuple(kinks)


HERMITE_ORDERS = 128
_MOST_KEPT = 8  # octaves of grids whose polynomials are kept


@functools.cache
def _hermite_functions(octaves: int) -> tuple[Array, Array]:
    """exp(−z²/4) He_k(z)/√k!, which are bounded, at the z > 0 of a grid: those of even and those of
    odd order, each (n, orders/2)."""
    z = _grid(octaves).z.ravel()
    z = z[z.size // 2 :]
    rows = [np.exp(-0.25 * z * z), z * np.exp(-0.25 * z * z)]
    for k in range(1, HERMITE_ORDERS - 1):
        rows.append((z * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    functions = np.array(rows).T
    return np.ascontiguousarray(functions[:, ::2]), np.ascontiguousarray(functions[:, 1::2])


def hermite_coefficients(
    function: Function, sigma: float, kinks: Sequence[float], mean: float, panels: Panels
) -> Array:
    """E f(mean + sigma·z) He_k(z)/√k!, z ~ N(0, 1), k < 128: f in normed Hermite polynomials.

    The panels are those of :func:`gaussian_panels` for the same; sigma is positive and finite. 10
    digits of √E f² or more, but where f jumps or bends beyond 4 sigma, there 5, and 5 of an f that
    jumps at 0, or nearly so, for a sigma above a thousand.
    """
    octaves = _octaves(sigma) if mean == 0.0 else 0
    if octaves > _MOST_KEPT:  # what is smaller than 1/1000 of the Gaussian is left unresolved
        octaves = _MOST_KEPT
        first = _first_grid(octaves, sigma, kinks, mean)
        values = evaluate(function, mean + sigma * first.z)
        panels = Panels(first.z, first.half, first.weights, values)
    grid = _grid(octaves)
    products = panels.weights * panels.values * np.exp(0.25 * panels.z * panels.z)
    if panels.z is not grid.z:
        products = _gathered(products, panels, grid)
    flat = products.ravel()
    n = flat.size // 2
    above, below = flat[n:], flat[n - 1 :: -1]  # at z and at −z
    even, odd = _hermite_functions(octaves)
    coefficients = np.empty(HERMITE_ORDERS)
    coefficients[::2] = (above + below) @ even
    coefficients[1::2] = (above - below) @ odd
    return coefficients


def _gathered(products: Array, panels: Panels, grid: _Grid) -> Array:
    """Weighted values (panels, n) on panels that are parts of a grid's, as such at its own nodes:
    they integrate a polynomial of degree n − 1 on one of its panels to the same."""
    places = np.searchsorted(grid.left, panels.z[:, _POINTS // 2]) - 1
    whole = panels.half[:, 0] == grid.half[places, 0]
    gathered = np.zeros(grid.z.shape)
    gathered[places[whole]] = products[whole]
    parts = np.flatnonzero(~whole)
    if parts.size:
        places = places[parts]
        local = (panels.z[parts] - grid.left[places, None]) / grid.half[places] - 1.0
        rule = legendre_rule()
        distance = local[:, :, None] - rule.nodes
        distance[distance == 0.0] = 1e-100  # at a node its own polynomial is 1, the others 0
        lagrange = rule.barycentric / distance
        scaled = products[parts] / lagrange.sum(axis=2)
        np.add.at(gathered, places, (scaled[:, None, :] @ lagrange)[:, 0])
    return gathered


# Two correlated Gaussians

_INNER_Z = np.array([0.0, 1.0, 2.0, 3.0, 4.5, 6.5, 9.0, 12.5])
_INNER_X = np.concatenate([[0.0, 1.0, 2.0, 3.0, 4.0, 6.0], 2.0 ** np.arange(3, _OCTAVES + 1)])
_OUTER_PANELS = 1000  # each is as dear as a hundred of one Gaussian
_ROWS = 256  # outer nodes at a time: the inner panels of more would not stay in cache


def gaussian_product_mean(
    function: Function, sigma: float, correlation: float, kinks: Sequence[float] = ()
) -> float:
    """E f(σu) f(σv) for standard normal u, v with E uv = correlation, by quadrature in two steps.

    v = cu + √(1 − c²) z: the mean over z, on panels cut at the kinks as they lie for each u, is a
    function of u that :func:`gaussian_mean` resolves. A function smooth but at the given kinks has
    11 digits or more (of E f²); kinks that are not given cost digits here. sigma is positive and
    finite, |correlation| ≤ 1.
    """
    with np.errstate(all="ignore"):
        if abs(correlation) == 1.0:
            mirrored = [*kinks, *(correlation * kink for kink in kinks)]
            return gaussian_mean(
                lambda x: evaluate(function, x) * evaluate(function, correlation * x),
                sigma,
                mirrored,
            )
        narrow = sigma * math.sqrt((1.0 - correlation) * (1.0 + correlation))

        def integrand(x: Array) -> Array:
            means = correlation * x
            inner = [
                _inner_means(function, means[i : i + _ROWS], narrow, kinks)
                for i in range(0, x.size, _ROWS)
            ]
            return evaluate(function, x) * np.concatenate(inner)

        size = gaussian_moments(function, sigma, kinks).second_moment
        panels = gaussian_panels(integrand, sigma, kinks, size=size, max_panels=_OUTER_PANELS)
        return panels.mean(panels.values)


def _inner_means(function: Function, means: Array, sigma: float, kinks: Sequence[float]) -> Array:
    """E f(m + σz) for each m of `means` (n,), on panels of its own; nothing is refined."""
    rule = legendre_rule()
    last = _INNER_Z[-1]
    # Where f changes on the scale of 1, cuts around 0 that the Gaussian's own do not make up for.
    reach = float(np.max(np.abs(means))) + last * sigma
    x_cuts = _INNER_X[reach >= _INNER_X] if sigma > 0.5 else _INNER_X[:0]
    fixed = np.concatenate([-x_cuts, x_cuts, kinks])
    z_cuts = np.concatenate([-_INNER_Z[:0:-1], _INNER_Z])
    cuts = np.concatenate(
        [
            np.broadcast_to(z_cuts, (means.size, z_cuts.size)),
            np.clip((fixed - means[:, None]) / sigma, -last, last),
        ],
        axis=1,
    )
    cuts.sort(axis=1)
    half = (np.diff(cuts, axis=1) / 2)[:, :, None]
    z = cuts[:, :-1, None] + half * (1.0 + rule.nodes)
    weights = half * rule.weights * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    values = evaluate(function, means[:, None, None] + sigma * z)
    means_of_f: Array = np.sum(weights * values, axis=(1, 2))
    return means_of_f
