# SPDX-License-Identifier: BSD-3-Clause
"""The softmax of n independent logits N(0, std²): exact expectations by quadrature.

Attention is not quite this: the logits of a row share their query, q·k_j/√d, so that given q they
are independent with the variance |q|²/d of that row, which differs from row to row. For wide heads
|q|²/d concentrates and the law is the one here; for narrow ones average it over |q|²/d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from initcore.quadrature import Array
from initcore.results.records import Record
from initcore.results.text import number
from initcore.specifications import finite_number, integer, non_negative_number
from initcore.theory.roots import bracketed_root

# Every integrand is analytic in the logarithm of its variable, a Gumbel's density at the sharpest:
# a trapezoid of this step errs by exp(−π²/step).
_STEP = 0.2
_REACH = 9.5  # of a standard normal: beyond are 2e-21 of the mass
_MAX_N = 10**12
_MAX_STD = 100.0
_POINTS = 16  # of a Gauss-Legendre panel

# Abate and Whitt's Euler inversion: the discretisation errs by exp(−A), rounding by exp(A/2) ulps.
_EULER_A = 23.0
_EULER_TERMS = 40
_EULER_AVERAGED = 14


@dataclass(frozen=True, eq=False)
class RandomSoftmax(Record):
    """Expectations over rows p = softmax(z), z_1, …, z_n independent N(0, std²).

    sum_sq
        E Σp²; its inverse is roughly the number of keys a row looks at.
    entropy
        E H in nats, from ln n (std 0) down to 0.
    max_prob
        E max p.
    jacobian_sq
        E ‖diag p − p pᵀ‖² = E[Σp² − 2 Σp³ + (Σp²)²]: what a white gradient by p leaves of itself.
    """

    sum_sq: float
    entropy: float
    max_prob: float
    jacobian_sq: float

    def __str__(self) -> str:
        return (
            f"E Σp² = {number(self.sum_sq, 7)}, E H = {number(self.entropy, 7)}, "
            f"E max p = {number(self.max_prob, 7)}"
        )


def softmax(n: int, std: float) -> RandomSoftmax:
    """What a softmax over n independent logits N(0, std²) is like on average.

    With φ_k(t) = E[e^{k·std·z} exp(−t e^{std·z})]: E Σp² = n ∫ t φ₂ φ₀ⁿ⁻¹ dt and
    E H = E ln Σe^z − n E p z, likewise; E max p conditions on the largest logit. Ten digits or
    more, of ‖diag p − p pᵀ‖² ten decimals.

    n: the number of logits, from 1 to 10¹². std: from 0 to 100. Raises ValueError outside.
    """
    n = _logits(n)
    std = non_negative_number("std", std)
    if std > _MAX_STD:
        raise ValueError(f"std must be at most {_MAX_STD:g}, got {std!r}")
    if n == 1 or std == 0.0:
        return RandomSoftmax(1.0 / n, math.log(n), 1.0 / n, (1.0 - 1.0 / n) / n)
    sum_sq, entropy, jacobian_sq = _by_trapezoids(n, std)
    return RandomSoftmax(sum_sq, entropy, _max_prob(n, std), jacobian_sq)


def freezing_std(n: int) -> float:
    """√(2 ln n): beyond this std of the logits a handful of keys carry the row, whatever n.

    It is the freezing transition of the random energy model (Derrida 1981): below it the number of
    keys that count still grows with n.
    """
    return math.sqrt(2.0 * math.log(_logits(n)))


def saturated_share(n: int, std: float, threshold: float = 0.99) -> float:
    """The share of rows whose largest probability exceeds the threshold, for logits N(0, std²).

    Given the largest logit the others' Σ e^(z_i − z_max) has a known Laplace transform, which is
    inverted numerically (Abate and Whitt 1995): the error is below 1e-9 up to n = 10⁶, below 2e-8
    from there. n: from 2 to 10¹². std: not negative. threshold: from 1/2 up to, not including, 1.
    """
    n, threshold = _several_logits(n), _threshold(threshold)
    std = non_negative_number("std", std)
    return _saturated(n, std, threshold) if std else 0.0


def saturation_std(n: int, share: float, threshold: float = 0.99) -> float:
    """The std of the logits at which a share of rows has a largest probability > threshold.

    The inverse of :func:`saturated_share`, whose arguments these are. share: between 0 and 1.
    """
    n, threshold = _several_logits(n), _threshold(threshold)
    share = finite_number("share", share)
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share!r}")

    def excess(std: float) -> float:
        return _saturated(n, std, threshold) - share

    # By doublings from where the largest logits begin to count: the share grows with std.
    near = freezing_std(n)
    f_near = excess(near)
    factor = 2.0 if f_near < 0.0 else 0.5
    for _ in range(60):
        far = near * factor
        f_far = excess(far)
        if f_near * f_far <= 0.0:
            (low, f_low), (high, f_high) = sorted([(near, f_near), (far, f_far)])
            return bracketed_root(excess, low, high, f_low, f_high, relative=1e-10)
        near, f_near = far, f_far
    raise ValueError(f"no std has a share of {share!r} of rows above {threshold!r}")


def _grid(start: float, stop: float, step: float) -> Array:
    # Not arange(start, stop, step), which adds up a step that has been rounded.
    return start + step * np.arange(math.ceil((stop - start) / step), dtype=np.float64)


# E Σp², E H and E ‖diag p − p pᵀ‖²


def _by_trapezoids(n: int, std: float) -> tuple[float, float, float]:
    """Trapezoids are over u = ln t; the expectations over z are sums over a grid, too."""
    # Where the step of u is fine enough for std·z, too, their sums are the points of one grid.
    aligned = _STEP / std < 0.5
    step_z = _STEP / std if aligned else 0.5
    half = math.ceil(_REACH / step_z)
    z = step_z * np.arange(-half, half + 1, dtype=np.float64)
    gaussian = np.exp(-0.5 * z * z)
    density = gaussian / gaussian.sum()
    low = -(_REACH * std + math.log(n) + 40.0)
    u = _grid(low, _REACH * std + 5.0, _STEP)
    v = low + _STEP * np.arange(-half, u.size + half) if aligned else u[:, None] + std * z

    def expect(values: Array, weights: Array) -> Array:
        return np.correlate(values, weights, "valid") if aligned else values @ weights

    with np.errstate(all="ignore"):
        t = np.exp(np.minimum(v, 10.0))  # where exp(−t) is 0 already
        survival = -np.expm1(-t)  # 1 − exp(−t e^z), small where n of them are counted
        damped = t * np.exp(-t)
        log_phi0 = np.log1p(-np.minimum(expect(survival, density), 1.0))
        others = np.exp((n - 1) * log_phi0)
        square = expect(t * damped, density)
        sum_sq = n * _STEP * float(square @ others)
        # 1/S³ = ∫ t²/2 e^{−tS} dt and 1/S⁴ = ∫ t³/6 e^{−tS} dt: of one key, and of two.
        damped_cubes = t * t * damped
        sum_cubes = n / 2 * _STEP * float(expect(damped_cubes, density) @ others)
        rest = np.exp((n - 2) * np.maximum(log_phi0, -1e3))  # not 0·(−∞) for two logits
        two = square**2 @ rest
        one = expect(t * damped_cubes, density) @ others
        squared = n / 6 * _STEP * float(one + (n - 1) * two)
        # ∫ (e^{−t} − φ₀ⁿ) dt/t, from the nearer of 0 and 1
        t = np.exp(u)
        log_sum = np.where(t < 1.0, np.expm1(-t) - np.expm1(n * log_phi0),
                           np.exp(-t) - np.exp(n * log_phi0))  # fmt: skip
        mean_logit = n * float(expect(damped, std * z * density) @ others)
        entropy = _STEP * (float(log_sum.sum()) - mean_logit)
        return sum_sq, entropy, sum_sq - 2 * sum_cubes + squared


# The largest probability, given the largest logit std·z: p = 1/(1 + R), R = Σ exp(std(y_i − z))
# over the n − 1 others. E exp(−λR) = ψⁿ⁻¹ with ψ = 1 − E[1 − exp(−λ e^−x)], x = std(z − y): for
# many z and λ at once a matrix product, z by y times y by λ.


class _Largest(NamedTuple):
    """A grid over the largest of n standard normals."""

    z: Array  # (m,)
    log_weights: Array  # (m,), of n φ(z) dz: the density but for P(no other is larger)


class _Others(NamedTuple):
    """Nodes over another logit y beside the largest, by x = std(z − y)."""

    x: Array  # (k,)
    weights: Array  # (m, k), of the Gaussian measure at y = z − x/std
    above: Array  # (m,), P(y > z − x/std) at the least x


def _largest(n: int, step: float) -> _Largest:
    """`step` is in units of the width of its law."""
    step /= math.sqrt(1.0 + 2.0 * math.log(n))
    z = _grid(-_REACH, _REACH + 1.0, step)
    log_weights = math.log(n * step / math.sqrt(2.0 * math.pi)) - 0.5 * z * z
    with np.errstate(divide="ignore"):
        kept = log_weights + (n - 1) * np.log1p(-np.minimum(_upper_tail(z), 1.0)) > -40.0
    return _Largest(z[kept], log_weights[kept])


def _upper_tail(z: Array) -> Array:
    return np.array([0.5 * math.erfc(value / math.sqrt(2.0)) for value in z])


def _others(largest: _Largest, std: float, cuts: Array) -> _Others:
    """Panels from the first to the last of `cuts` in x, cut there and at steps of 1 in y."""
    # As far as there is a Gaussian at any of the y = z − depth.
    first = max(cuts[0] / std, largest.z[0] - _REACH)
    last = min(cuts[-1] / std, largest.z[-1] + _REACH)
    depths = np.concatenate([[first], cuts / std, np.arange(math.ceil(first), last), [last]])
    depths = np.unique(np.clip(depths, first, last))
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    half = np.diff(depths)[:, None] / 2.0
    depth = (depths[:-1, None] + half * (1.0 + nodes)).ravel()
    measure = (half * weights).ravel() / math.sqrt(2.0 * math.pi)
    return _Others(
        std * depth,
        measure * np.exp(-0.5 * (largest.z[:, None] - depth) ** 2),
        _upper_tail(largest.z - first),
    )


def _max_prob(n: int, std: float) -> float:
    """E 1/(1 + R) = ∫ e^−λ E e^−λR dλ, with no other logit above the largest."""
    largest = _largest(n, 0.3)
    cuts = np.concatenate([np.arange(0.0, 9.0), np.arange(9.0, 46.0 + math.log(n), 4.0)])
    u = _grid(-(32.0 + math.log(n)), 4.5, _STEP)  # ln λ
    with np.errstate(all="ignore"):
        others = _others(largest, std, cuts)
        missing = others.weights @ -np.expm1(-np.exp(u - others.x[:, None]))
        log_psi = np.log1p(-np.minimum(others.above[:, None] + missing, 1.0))
        joint = np.exp(largest.log_weights[:, None] + (n - 1) * log_psi)
        return float(np.sum(joint @ np.exp(u - np.exp(u)))) * _STEP


def _saturated(n: int, std: float, threshold: float) -> float:
    """n P(R < r), r = 1/threshold − 1 ≤ 1: two logits cannot both have so much.

    R is over all others, larger ones too, whose law is smooth: Euler summation of the inversion
    integral converges.
    """
    r = (1.0 - threshold) / threshold
    if n == 2:  # R has one term, and may be next to a point: e^(a normal), without an inversion
        return math.erfc(-math.log(r) / (2.0 * std))
    largest = _largest(n, 0.08)  # what is integrated turns as the rates do
    k = np.arange(_EULER_TERMS + _EULER_AVERAGED + 1)
    rates = (_EULER_A + 2j * math.pi * k) / (2.0 * r)
    cuts = _cuts(rates[0].real, abs(rates[-1]), n)
    with np.errstate(all="ignore"):
        others = _others(largest, std, cuts)
        missing = others.weights @ -np.expm1(-rates * np.exp(-others.x[:, None]))
        missing += others.above[:, None]
        # ln(1 − missing), with every digit where n of them are counted: NumPy's has not
        size = np.where(
            np.abs(missing) < 0.5,
            0.5 * np.log1p(np.abs(missing) ** 2 - 2.0 * missing.real),
            np.log(np.abs(1.0 - missing)),
        )
        log_psi = size + 1j * np.arctan2(-missing.imag, 1.0 - missing.real)
        transform = np.exp(largest.log_weights[:, None] + (n - 1) * log_psi).sum(axis=0)
    terms = (transform / rates).real * (-1.0) ** k
    terms[0] /= 2.0
    sums = np.cumsum(terms)[_EULER_TERMS:]
    share = np.array([math.comb(_EULER_AVERAGED, j) for j in range(_EULER_AVERAGED + 1)])
    averaged = float(sums @ share) / 2.0**_EULER_AVERAGED
    return min(max(math.exp(_EULER_A / 2.0) / r * averaged, 0.0), 1.0)


def _cuts(real: float, largest: float, n: int) -> Array:
    """Cuts in x for exp(−λ e^−x) with Re λ = `real` and |λ| ≤ `largest`.

    From where it has died, at e^−40, no panel turns it by more than 8, down to where n times what
    it lacks of 1 is below rounding.
    """
    turns = np.arange(0.0, 40.0 * largest / real, 8.0)[:0:-1]
    fine = math.log(largest) - np.log(turns)
    last = float(fine[-1]) + 42.0 + math.log(n)
    coarse = fine[-1] + np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    return np.concatenate(
        [[math.log(real / 40.0)], fine, coarse, np.arange(coarse[-1] + 4.0, last, 4.0), [last]]
    )


# Arguments


def _logits(n: int) -> int:
    count = integer("n", n)
    if not 1 <= count <= _MAX_N:
        raise ValueError(f"n must be from 1 to 10**12, got {n!r}")
    return count


def _several_logits(n: int) -> int:
    if _logits(n) == 1:
        raise ValueError("n must be from 2 to 10**12: one logit has probability 1; got 1")
    return integer("n", n)


def _threshold(value: float) -> float:
    threshold = finite_number("threshold", value)
    if not 0.5 <= threshold < 1.0:
        raise ValueError(f"threshold must be from 0.5 up to, not including, 1, got {value!r}")
    return threshold
