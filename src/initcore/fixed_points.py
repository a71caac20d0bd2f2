# SPDX-License-Identifier: BSD-3-Clause
"""The width of Gaussian inputs at which a function's second moment is 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from initcore.quadrature import (
    Array,
    Function,
    evaluate,
    gaussian_moments,
    gaussian_panels,
    legendre_rule,
)

_EXPONENTS = np.arange(-30.0, 31.0)  # a fixed point is looked for between these powers of two


@functools.cache
def _scan() -> tuple[Array, Array, Array]:
    """Panels on x > 0 that double, and what they weigh for every σ = 2^k of _EXPONENTS.

    The nodes (panels, n), their Gaussian weights (σ, panels · n), the panels' weights (σ, panels).
    """
    rule = legendre_rule()
    cuts = np.concatenate([[0.0], 2.0 ** np.arange(_EXPONENTS[0] - 3.0, _EXPONENTS[-1] + 7.0)])
    half = (np.diff(cuts) / 2)[:, None]
    x = cuts[:-1, None] + half * (1.0 + rule.nodes)
    sigma = 2.0 ** _EXPONENTS[:, None, None]
    weights = half / sigma * rule.weights * np.exp(-0.5 * (x / sigma) ** 2)
    weights /= math.sqrt(2.0 * math.pi)
    return x, weights.reshape(len(weights), -1), weights.sum(axis=2)


def fixed_point(function: Function, kinks: Sequence[float] = ()) -> float | None:
    """The σ at which E f(σz)² crosses 1, of several the first; None where there is none.

    It is looked for between the powers of two from 2⁻³⁰ to 2³⁰, and has the digits that
    :func:`gaussian_moments` has. Where panels that are the same for every σ do not tell on which
    side of 1 the expectation is, that function does.
    """
    with np.errstate(all="ignore"):
        x, weights, masses = _scan()
        squares = evaluate(function, x) ** 2 + evaluate(function, -x) ** 2
        squares = np.minimum(squares, 1e290)  # infinity · 0 would hide it from a σ that sees none
        energies = weights @ squares.ravel()
        errors = masses @ np.abs(squares @ legendre_rule().last).sum(axis=1)
        known = np.abs(energies - 1.0) > 10.0 * errors + 1e-9

    def below(i: int) -> bool:
        if known[i]:
            return bool(energies[i] < 1.0)
        return gaussian_moments(function, 2.0 ** _EXPONENTS[i], kinks).second_moment < 1.0

    start = below(0)
    right = next((i for i in range(1, len(_EXPONENTS)) if below(i) != start), None)
    return None if right is None else _root(function, kinks, 2.0 ** _EXPONENTS[right], start)


def _root(function: Function, kinks: Sequence[float], right: float, rises: bool) -> float:
    """The σ in (right/2, right) at which E f(σz)² crosses 1, by Newton's method in a bracket.

    With s = ln σ, d/ds E f(σz)² = E (z² − 1) f(σz)²; ln E f², which is nearly linear in s, is what
    Newton's method sees. f is sampled once, as z of the wider Gaussian needs it.
    """
    with np.errstate(all="ignore"):
        panels = gaussian_panels(function, right, kinks)
        squares, z2 = panels.weights * panels.values**2, panels.z**2
        low, s, high = -math.log(2.0), 0.0, 0.0  # ln(σ/right)
        for _ in range(60):
            # The weights are those of σ = right; these are of this σ.
            ratio = math.exp(-2.0 * s)
            here = squares * np.exp(0.5 * (1.0 - ratio) * z2)
            energy = float(np.sum(here)) * math.sqrt(ratio)
            slope = float(np.sum(here * (ratio * z2 - 1.0))) * math.sqrt(ratio)
            low, high = (s, high) if (energy < 1.0) == rises else (low, s)
            step = math.inf
            if 0.0 < energy < math.inf and slope != 0.0:
                step = -math.log(energy) * energy / slope
            new = s + step if low <= s + step <= high else (low + high) / 2.0
            if abs(new - s) < 1e-15:
                break
            s = new
    return right * math.exp(new)
