# SPDX-License-Identifier: BSD-3-Clause
"""Gaussian expectations against closed forms, over twelve decades of σ."""

import math

import numpy as np
import pytest

from initcore.activations import ACTIVATIONS
from initcore.quadrature import (
    find_kinks,
    gaussian_mean,
    gaussian_moments,
    gaussian_panels,
    gaussian_product_mean,
    gaussian_squared_slope,
    hermite_coefficients,
)

SIGMAS = [1e-6, 1e-3, 0.1, 0.7, 1.0, 3.0, 10.0, 123.4, 1e4, 1e6]


def _gelu(q):
    return q * (
        0.25
        + (q / ((1 + q) * math.sqrt(1 + 2 * q)) + 0.5 * math.atan(q / math.sqrt(1 + 2 * q)))
        / math.pi
    )


# E φ(√q z)²; the arc-cosine kernel (Cho and Saul 2009), that of erf (Williams 1997), and others.
SECOND_MOMENTS = {
    "linear": lambda q: q,
    "relu": lambda q: q / 2,
    "leaky_relu": lambda q: q * (1 + 1e-4) / 2,
    "erf": lambda q: 2 / math.pi * math.asin(2 * q / (1 + 2 * q)),
    "sin": lambda q: -math.expm1(-2 * q) / 2,
    "gelu": _gelu,
    "relu2": lambda q: 1.5 * q * q,
}


def _cases(names):
    """Names and sigmas, but for a sine that oscillates faster than a quadrature resolves."""
    return [(name, sigma) for name in names for sigma in SIGMAS if name != "sin" or sigma < 200]


@pytest.mark.parametrize(("name", "sigma"), _cases(SECOND_MOMENTS))
def test_closed_forms(name, sigma):
    phi = ACTIVATIONS[name]
    exact = SECOND_MOMENTS[name](sigma * sigma)
    # asin loses digits next to 1, where this form of it does not.
    if name == "erf" and sigma > 1:
        exact = 1 - 4 / math.pi * math.asin(math.sqrt(0.5 / (1 + 2 * sigma**2)))
    moments = gaussian_moments(phi, sigma, phi.kinks)
    assert moments.second_moment == pytest.approx(exact, rel=2e-13)
    assert gaussian_mean(lambda x: phi(x) ** 2, sigma, phi.kinks) == pytest.approx(exact, rel=2e-13)


@pytest.mark.parametrize(("name", "sigma"), _cases(ACTIVATIONS))
def test_stein(name, sigma):
    """E x f(x) = σ² E f′(x), where one side may live in a sliver around 0 and the other not."""
    phi = ACTIVATIONS[name]
    slope = gaussian_mean(phi.derivative, sigma, phi.kinks)
    value = gaussian_mean(lambda x: x * phi(x), sigma, phi.kinks)
    # E x f is the difference of its halves: what they cancel is lost.
    size = gaussian_mean(lambda x: np.abs(x * phi(x)), sigma, phi.kinks)
    assert value == pytest.approx(sigma * sigma * slope, rel=2e-13, abs=2e-13 * size)


def test_narrow_slope_seen_by_a_wide_gaussian():
    # ∫ sech²x exp(−x²/2σ²) dx, expanded in 1/σ².
    phi = ACTIVATIONS["tanh"]
    for sigma in (1e3, 1e6):
        q = sigma * sigma
        integral = 2 - math.pi**2 / (12 * q) + 7 * math.pi**4 / (960 * q * q)
        exact = integral / (sigma * math.sqrt(2 * math.pi))
        assert gaussian_mean(phi.derivative, sigma) == pytest.approx(exact, rel=1e-13)


def test_variance_does_not_cancel():
    sigma = 1e-4
    phi = ACTIVATIONS["sigmoid"]
    assert gaussian_moments(phi, sigma).variance == pytest.approx(sigma**2 / 16, rel=1e-7)
    moments = gaussian_moments(lambda x: x + 1e6, 1.0)
    assert moments.variance == pytest.approx(1.0, rel=1e-9)


def test_one_evaluation_for_built_ins():
    for phi in ACTIVATIONS.values():
        calls = []

        def counted(x, phi=phi, calls=calls):
            calls.append(x.size)
            return phi(x)

        gaussian_moments(counted, 1.0, phi.kinks)
        assert len(calls) <= 2, phi
        assert sum(calls) <= 2000, phi


def test_functions_with_kinks_anywhere():
    def second(c):  # E max(z − c, 0)²
        density = math.exp(-c * c / 2) / math.sqrt(2 * math.pi)
        return (1 + c * c) * 0.5 * math.erfc(c / math.sqrt(2)) - c * density

    for c in (0.3, -1.7, 2.123456):
        for kinks in ((c,), ()):
            moments = gaussian_moments(lambda x, c=c: np.maximum(x - c, 0), 1.0, kinks)
            assert moments.second_moment == pytest.approx(second(c), rel=1e-12)


def test_mean_of_the_gaussian():
    for mean in (0.0, -3.0, 1e4):
        for sigma in (1e-3, 1.0, 50.0):
            moments = gaussian_moments(lambda x: x * x, sigma, mean=mean)
            assert moments.mean == pytest.approx(mean**2 + sigma**2, rel=1e-13)
    # E exp(m + σz)
    assert gaussian_mean(np.exp, 2.0, mean=0.5) == pytest.approx(math.exp(2.5), rel=1e-13)


def test_limits():
    tanh, relu = ACTIVATIONS["tanh"], ACTIVATIONS["relu"]
    assert gaussian_moments(tanh, 0.0, mean=0.5).mean == pytest.approx(math.tanh(0.5), rel=1e-15)
    assert gaussian_moments(tanh, 0.0) == (0, 0, 0)
    assert gaussian_moments(tanh, math.inf) == (0, 1, 1)
    assert gaussian_moments(relu, math.inf) == (math.inf,) * 3
    assert gaussian_mean(lambda x: x * x, 1e-150) == pytest.approx(1e-300, rel=1e-13)
    assert gaussian_mean(lambda x: x * x, 1e170) == math.inf


def test_noise_and_oscillation_end():
    def noisy(x):
        return np.tanh(x.astype(np.float32))

    assert gaussian_moments(noisy).second_moment == pytest.approx(0.3942944904, rel=1e-6)
    assert abs(gaussian_mean(lambda x: np.sin(1e7 * x))) < 0.1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_squared_slope_from_values_alone(name):
    phi = ACTIVATIONS[name]
    exact = gaussian_mean(lambda x: phi.derivative(x) ** 2, 1.0, phi.kinks)
    assert gaussian_squared_slope(phi, phi.kinks) == pytest.approx(exact, rel=1e-12)


# E φ(√q u) φ(√q v), E uv = c: arc-cosine kernels (Cho and Saul 2009), erf (Williams 1997), sin.
def _arc_cosine_2(q, c):
    angle = math.acos(c)
    both = 3 * math.sin(angle) * c + (math.pi - angle) * (1 + 2 * c * c)
    return q * q * both / (2 * math.pi)


OVERLAPS = {
    "linear": lambda q, c: q * c,
    "relu": lambda q, c: q * (math.sqrt(1 - c * c) + (math.pi - math.acos(c)) * c) / (2 * math.pi),
    "relu2": _arc_cosine_2,
    "erf": lambda q, c: 2 / math.pi * math.asin(2 * q * c / (1 + 2 * q)),
    "sin": lambda q, c: (math.exp(-q * (1 - c)) - math.exp(-q * (1 + c))) / 2,
}


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("c", [-1.0, -0.999, -0.5, 0.0, 1e-9, 0.3, 0.9, 0.999999, 1 - 1e-12, 1.0])
def test_two_correlated_gaussians(name, c):
    phi = ACTIVATIONS[name]
    for sigma in (1e-2, 1.0, 5.0, 1e3):
        if name == "sin" and sigma > 200:
            continue
        q = sigma * sigma
        whole = SECOND_MOMENTS[name](q)
        found = gaussian_product_mean(phi, sigma, c, phi.kinks)
        # asin is steep next to 1: 1e-16 of c is that much of E f² there
        assert found == pytest.approx(OVERLAPS[name](q, c), abs=2e-11 * whole)


def test_two_correlated_gaussians_and_kinks_elsewhere():
    """E 1(u > a)(u − a) 1(v > b)… with c = 0 is a product of two means."""

    def function(x):
        return np.maximum(x - 0.4, 0) + np.abs(x + 1.3)

    one = gaussian_mean(function, 1.0, (0.4, -1.3))
    assert gaussian_product_mean(function, 1.0, 0.0, (0.4, -1.3)) == pytest.approx(
        one**2, rel=1e-13
    )
    both = gaussian_mean(lambda x: function(x) * function(-x), 1.0, (0.4, -0.4, 1.3, -1.3))
    assert gaussian_product_mean(function, 1.0, -1.0, (0.4, -1.3)) == pytest.approx(both, rel=1e-13)
    near = gaussian_product_mean(function, 1.0, -1.0 + 1e-13, (0.4, -1.3))
    assert near == pytest.approx(both, rel=1e-6)


def test_bad_arguments():
    for sigma in (-1.0, math.nan):
        with pytest.raises(ValueError, match="sigma must be"):
            gaussian_mean(np.tanh, sigma)
    with pytest.raises(ValueError, match="mean must be"):
        gaussian_mean(np.tanh, 1.0, mean=math.inf)
    for function in (lambda x: 1.0, lambda x: x[:-1], lambda x: x + 0j, lambda x: x.astype(str)):
        with pytest.raises(ValueError, match="one of the same shape"):
            gaussian_mean(function)


@pytest.mark.parametrize(("function", "kinks"), [
    (lambda x: np.clip(x, -1.0, 1.0), (-1.0, 1.0)),  # at round numbers
    (lambda x: np.clip(x, 0.0, 6.0), (6.0,)),  # 0 is always cut
    (lambda x: x * np.clip(x + 3.0, 0.0, 6.0), (-3.0, 3.0)),
    (lambda x: np.maximum(x - 0.3, 0.0) + np.abs(x + math.e), (-math.e, 0.3)),
    (lambda x: 1.0 * (x > 0.37), (0.37,)),
    (np.tanh, ()),
    (lambda x: np.maximum(x, 0.0), ()),
    (lambda x: np.sin(1e4 * x), ()),
])  # fmt: skip
def test_kinks_that_nobody_told_of(function, kinks):
    assert find_kinks(function) == pytest.approx(kinks, abs=1e-10)


# --- Hermite coefficients ---------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 1.0, 3.9, 4.1, 30.0, 900.0, 3000.0])
def test_hermite_coefficients_of_erf(sigma):
    """E erf(σu) erf(σv) = 2/π arcsin(s c), s = 2q/(1 + 2q), is Σ a_k² c^k: the arcsine's series."""
    phi = ACTIVATIONS["erf"]
    squares = hermite_coefficients(phi, sigma, (), 0.0, gaussian_panels(phi, sigma)) ** 2
    s = 2 * sigma**2 / (1 + 2 * sigma**2)
    orders = np.arange(64)
    ratios = np.append(1.0, (orders[1:] - 0.5) / orders[1:])  # C(2m, m)/4^m
    expected = 2 / math.pi * np.cumprod(ratios) * s ** (2 * orders + 1) / (2 * orders + 1)
    assert squares[1::2] == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert squares[::2] == pytest.approx(np.zeros(64), abs=1e-25)


_KINKS = [
    (1.0, 0.0, 0.3), (1.0, 0.7, 0.0), (3.0, 0.0, -2.0), (20.0, 0.0, 1.0), (20.0, 3.0, 0.0),
    (20.0, -30.0, 5.0), (0.01, 1.0, 1.02),
]  # fmt: skip


@pytest.mark.parametrize(("sigma", "mean", "kink", "told"), [
    *((*one, told) for one in _KINKS for told in (True, False)),
    (5000.0, 0.0, -700.0, True),
])  # fmt: skip
def test_hermite_coefficients_of_a_kink(sigma, mean, kink, told):
    """max(x − k, 0): by parts, twice, σ He_{n−2}(t) φ(t)/√n! with t = (k − mean)/σ and n > 1."""

    def bent(x):
        return np.maximum(x - kink, 0.0)

    kinks = (kink,) if told else ()
    panels = gaussian_panels(bent, sigma, kinks, mean)
    t = (kink - mean) / sigma
    density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    above = 0.5 * math.erfc(t / math.sqrt(2))
    expected = [sigma * (density - t * above), sigma * above]
    before, hermite = 0.0, 1.0  # He_{k}/√k!
    for k in range(126):
        expected.append(sigma * density * hermite / math.sqrt((k + 1) * (k + 2)))
        before, hermite = hermite, (t * hermite - math.sqrt(k) * before) / math.sqrt(k + 1)
    found = hermite_coefficients(bent, sigma, kinks, mean, panels)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-11 * sigma)
