# SPDX-License-Identifier: BSD-3-Clause
"""Fixed points, the edge of chaos and correlations: published values, closed forms, mpmath."""

import math

import mpmath as mp
import numpy as np
import pytest

import initcore as ic
from initcore.activations import ACTIVATIONS
from initcore.theory import correlation_map, critical, edge_of_chaos, fixed_point, predict


def logistic(x):
    return 1 / (1 + mp.exp(-x))


# φ from its definition, and where it has a kink.
DEFINITIONS = {
    "tanh": (mp.tanh, ()),
    "sigmoid": (logistic, ()),
    "elu": (lambda x: x if x > 0 else mp.expm1(x), (0,)),
    "gelu": (lambda x: x * mp.ncdf(x), ()),
    "silu": (lambda x: x * logistic(x), ()),
    "mish": (lambda x: x * mp.tanh(mp.log1p(mp.exp(x))), ()),
    "softplus": (lambda x: mp.log1p(mp.exp(x)), ()),
    "softsign": (lambda x: x / (1 + abs(x)), (0,)),
    "hardtanh": (lambda x: max(-1, min(1, x)), (-1, 1)),
}


def exact_mean(function, q, kinks=()):
    """E function(√q z), by mpmath's own quadrature."""
    root = mp.sqrt(q)
    ends = sorted({-12, -6, -3, -1, 0, 1, 3, 6, 12, *(kink / root for kink in kinks)})
    return mp.quad(lambda z: function(root * z) * mp.npdf(z), ends)


# --- published values ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "sigma_w2", "sigma_b2"),
    [
        (0.05, 1.0936273141, 0.000128296609),
        (0.5, 1.68797512058, 0.0380412011),
        (1.0, 2.1533026489, 0.150964629379),
    ],
)
def test_edge_of_chaos_of_tanh(q, sigma_w2, sigma_b2):
    edge = edge_of_chaos("tanh", q)
    assert edge == pytest.approx((sigma_w2, sigma_b2), rel=2e-9)
    found = fixed_point("tanh", *edge)
    assert found.q == pytest.approx(q, rel=1e-12)
    assert found.chi == pytest.approx(1.0, abs=1e-13)


def test_critical_points():
    assert critical("tanh", 0.01).sigma_w2 == pytest.approx(1.42420529, abs=5e-9)
    assert critical("tanh", 0.05) == pytest.approx((1.76095464, 0.5700478816), abs=5e-9)
    assert critical("relu", 0) == (2.0, 1.0)
    assert critical("tanh", 0) == (1.0, 0.0)
    assert critical("erf", 0) == (pytest.approx(math.pi / 4, rel=1e-14), 0.0)
    for slope in (0.01, 0.2, -0.5):
        found = critical(f"leaky_relu({slope})", 0).sigma_w2
        assert found == pytest.approx(2 / (1 + slope**2), rel=1e-14)
    # φ′ is λ above 0 and λα below
    slopes = 1.0507009873554805**2 * (1 + 1.6732632423543772**2) / 2
    assert critical("selu", 0) == (pytest.approx(1 / slopes, rel=1e-13), 0.0)


@pytest.mark.parametrize("name", ["tanh", "erf", "gelu", "silu", "mish", "selu", "hardtanh", "sin"])
def test_critical_is_where_the_edge_is(name):
    for sigma_b2 in (1e-6, 0.01, 0.3):
        sigma_w2, q = critical(name, sigma_b2)
        assert edge_of_chaos(name, q) == (
            pytest.approx(sigma_w2, rel=1e-12),
            pytest.approx(sigma_b2, rel=1e-9),
        )


def test_gain_five_thirds_of_tanh_settles_where_it_is_known_to():
    sigma_w2 = 25 / 9
    found = fixed_point("tanh", sigma_w2, 0)
    assert math.sqrt(found.q / sigma_w2) == pytest.approx(0.651347, abs=5e-7)
    assert found.stable


def test_selu():
    found = fixed_point("selu", 1.0, 0.0)
    assert found.q == pytest.approx(1.0, rel=1e-13)
    assert found.chi == pytest.approx(1.0715749925, abs=5e-11)
    assert found.stable
    torch = fixed_point("selu", 0.75**2, 0.0)
    assert math.sqrt(torch.q) / 0.75 == pytest.approx(0.20236, abs=5e-6)


# --- closed forms ----------------------------------------------------------------------------


def test_relu_with_bias_is_a_geometric_series():
    for sigma_w2, sigma_b2 in ((1.9, 0.1), (0.3, 4.0), (1.999, 1e-3)):
        found = fixed_point("relu", sigma_w2, sigma_b2)
        assert found.q == pytest.approx(sigma_b2 / (1 - sigma_w2 / 2), rel=1e-12)
        assert found.chi == pytest.approx(sigma_w2 / 2, rel=1e-14)
        scale = -1 / math.log(sigma_w2 / 2)
        assert (found.xi_q, found.xi_c) == pytest.approx((scale, scale), rel=1e-11)
        assert found.stable


def test_erf_and_sine_by_their_closed_forms():
    for sigma_w2, sigma_b2 in ((1.5, 0.05), (4.0, 0.2), (0.5, 1.0)):
        q = fixed_point("erf", sigma_w2, sigma_b2).q
        image = sigma_w2 * 2 / math.pi * math.asin(2 * q / (1 + 2 * q)) + sigma_b2
        assert image == pytest.approx(q, rel=1e-13)
        q = fixed_point("sin", sigma_w2, sigma_b2).q
        assert sigma_w2 * -math.expm1(-2 * q) / 2 + sigma_b2 == pytest.approx(q, rel=1e-13)
        slope = sigma_w2 * math.exp(-2 * q)
        found = fixed_point("sin", sigma_w2, sigma_b2)
        assert found.xi_q == pytest.approx(-1 / math.log(slope), rel=1e-10)
        assert found.chi == pytest.approx(sigma_w2 * (1 + math.exp(-2 * q)) / 2, rel=1e-13)
    wide = fixed_point("sin", 400.0, 1.0)
    assert (wide.q, wide.chi, wide.xi_q) == pytest.approx((201.0, 200.0, 0.0), rel=1e-14)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_built_ins_against_mpmath(name):
    """Ten digits: q*, χ and ξ_q at a stable point, from the definition of φ."""
    function, kinks = DEFINITIONS[name]
    sigma_w2, sigma_b2 = 0.9, 0.3
    found = fixed_point(name, sigma_w2, sigma_b2)
    energy = exact_mean(lambda x: function(x) ** 2, found.q, kinks)
    # d/dq E φ² = E[x φφ′]/q, and both φ′ by mpmath
    steps = exact_mean(lambda x: mp.diff(function, x) ** 2, found.q, kinks)
    growth = exact_mean(lambda x: x * function(x) * mp.diff(function, x), found.q, kinks) / found.q
    slope = sigma_w2 * growth
    # An error δ of q moves q′ − q by (slope − 1)δ.
    missed = (sigma_w2 * energy + sigma_b2 - found.q) / (1 - slope)
    assert abs(missed) < 1e-11 * found.q
    assert found.chi == pytest.approx(float(sigma_w2 * steps), rel=1e-10)
    assert found.xi_q == pytest.approx(float(-1 / mp.log(slope)), rel=1e-10)
    assert found.xi_c == pytest.approx(float(-1 / mp.log(sigma_w2 * steps)), rel=1e-9)


# --- what a chain does -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "softplus"])
def test_a_chain_goes_there_at_the_rate_of_its_depth_scale(name):
    """From q = 1, by the layer-by-layer prediction, that knows nothing of fixed points."""
    sigma_w2, sigma_b2 = 0.8, 0.2
    found = fixed_point(name, sigma_w2, sigma_b2)
    chain = predict(
        [100] * 61,
        activation=name,
        init=f"normal(std={math.sqrt(sigma_w2 / 100)})",
        bias=f"normal(std={math.sqrt(sigma_b2)})",
        input_second_moment=(1 - sigma_b2) / sigma_w2,
    ).pre.second_moment
    assert chain[0] == pytest.approx(1.0, rel=1e-14)
    assert chain[-1] == pytest.approx(found.q, rel=1e-7)
    deviation = np.abs(chain[8:11] - found.q)
    assert deviation[1:] / deviation[:-1] == pytest.approx(
        [math.exp(-1 / found.xi_q)] * 2, rel=2e-3
    )


def test_where_a_chain_dies_out_or_has_no_bound():
    dies = fixed_point("tanh", 0.9, 0)
    assert (dies.q, dies.chi, dies.stable) == (0.0, 0.9, True)
    assert dies.xi_q == dies.xi_c == pytest.approx(-1 / math.log(0.9))
    slowly = fixed_point("tanh", 1.0, 0)
    assert (slowly.q, slowly.chi, slowly.xi_c, slowly.stable) == (0.0, 1.0, math.inf, False)
    grows = fixed_point("gelu", 3.0, 0)
    assert (grows.q, grows.chi, grows.stable) == (math.inf, 1.5, False)
    assert fixed_point("relu", 2.0, 0.1).q == math.inf
    assert fixed_point("relu2", 1.0, 0).chi == math.inf
    assert fixed_point("relu2", 0.1, 0).q == 0.0
    assert fixed_point("relu2", 0.1, 0).chi == 0.0
    margin = fixed_point("relu", 2.0, 0)
    assert (margin.q, margin.chi, margin.xi_q, margin.stable) == (1.0, 1.0, math.inf, False)
    nothing = fixed_point("sigmoid", 0.0, 0.0)
    assert (nothing.q, nothing.chi, nothing.stable) == (0.0, 0.0, True)
    assert fixed_point("sigmoid", 0.0, 2.5).q == 2.5


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "mish"])
def test_a_chain_leaves_an_unstable_edge(name):
    """The edge's own fixed point, and by the layer-by-layer prediction, that knows none of them,
    a deviation that grows by exp(−1/ξ_q) a layer, to either side."""
    sigma_b2 = 0.05
    sigma_w2, q = critical(name, sigma_b2)
    edge = fixed_point(name, sigma_w2, sigma_b2, q=q)
    assert (edge.q, edge.stable) == (q, False)
    assert edge.chi == pytest.approx(1.0, abs=1e-12)
    assert edge.xi_q < 0
    assert fixed_point(name, sigma_w2, sigma_b2).q == math.inf
    for share in (1 + 1e-4, 1 - 1e-4):
        chain = predict(
            [100] * 11,
            activation=name,
            init=f"normal(std={math.sqrt(sigma_w2 / 100)})",
            bias=f"normal(std={math.sqrt(sigma_b2)})",
            input_second_moment=(share * q - sigma_b2) / sigma_w2,
        ).pre.second_moment
        grown = (chain[-1] - q) / (chain[0] - q)
        assert grown == pytest.approx(math.exp(-9 / edge.xi_q), rel=2e-3)


def test_biases_are_absent_unless_given():
    assert fixed_point("relu", sigma_w2=2).equals(fixed_point("relu", 2, 0))
    assert critical("tanh") == critical("tanh", 0)


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.1, 0.2, 0.3, -0.7])
def test_on_the_margin_rounding_errors_are_no_fixed_points(slope):
    """At σ_w² = 2/(1 + a²) any bias grows without bound, though it is soon lost in rounding."""
    name = f"leaky_relu({slope})"
    sigma_w2 = critical(name, 0).sigma_w2
    assert fixed_point(name, sigma_w2, 0).q == 1.0
    assert fixed_point(name, sigma_w2, 0.05).q == math.inf
    for name in ("tanh", "erf", "sin"):
        assert fixed_point(name, critical(name, 0).sigma_w2, 0).q == 0.0


def test_chaos():
    found = fixed_point("tanh", 3.0, 0.05)
    assert found.chi > 1
    assert found.stable
    assert found.xi_c == pytest.approx(-1 / math.log(found.chi))
    assert found.xi_c < 0 < found.xi_q


def test_functions():
    for sigma_w2, sigma_b2 in ((1.76, 0.05), (1.5, 0.0), (0.9, 0.0)):
        mine = fixed_point("tanh", sigma_w2, sigma_b2)
        theirs = fixed_point(np.tanh, sigma_w2, sigma_b2)
        assert theirs.q == pytest.approx(mine.q, rel=1e-11)
        assert theirs.chi == pytest.approx(mine.chi, rel=1e-11)
    assert critical(np.tanh, 0.05) == pytest.approx(critical("tanh", 0.05), rel=1e-10)
    assert critical(np.tanh, 0).sigma_w2 == pytest.approx(1.0, rel=1e-10)
    shifted = edge_of_chaos(lambda x: np.maximum(x - 0.3, 0), 1.0, kinks=(0.3,))
    assert shifted.sigma_w2 == pytest.approx(2 / math.erfc(0.3 / math.sqrt(2)), rel=1e-12)
    c = correlation_map(lambda x: np.maximum(x, 0), 0.3, 2, 0, 1, kinks=(0,))
    assert c == pytest.approx(correlation_map("relu", 0.3, 2, 0, 1), rel=1e-12)


# --- correlations ----------------------------------------------------------------------------


def relu_map(c, a=0.0):
    both = math.sqrt(1 - c * c) + (math.pi - math.acos(c)) * c
    return ((1 - a) ** 2 * both / math.pi + 2 * a * c) / (1 + a * a)


def test_correlation_maps_in_closed_form():
    for c in (-1.0, -0.3, 0.0, 0.5, 0.999, 1.0):
        assert correlation_map("relu", c, 2, 0, 3.7) == pytest.approx(relu_map(c), abs=1e-15)
        leaky = correlation_map("leaky_relu(0.2)", c, 2, 0, 3.7)
        assert leaky == pytest.approx(relu_map(c, 0.2), abs=1e-15)
        assert correlation_map("linear", c, 2, 0, 3.7) == pytest.approx(c, abs=1e-15)
        q = 0.8
        erf = 2 / math.pi * math.asin(2 * q * c / (1 + 2 * q))
        whole = 2 / math.pi * math.asin(2 * q / (1 + 2 * q))
        expected = (1.5 * erf + 0.1) / (1.5 * whole + 0.1)
        assert correlation_map("erf", c, 1.5, 0.1, q) == pytest.approx(expected, abs=1e-14)
        sine = math.exp(-q) * math.sinh(q * c) / (-math.expm1(-2 * q) / 2)
        assert correlation_map("sin", c, 1.5, 0, q) == pytest.approx(sine, abs=1e-14)


@pytest.mark.parametrize("name", ["tanh", "gelu", "elu", "hardtanh", "softsign"])
def test_correlation_maps_against_mehlers_series(name):
    """E φ(√q u)φ(√q v) = Σ a_k² cᵏ, a_k = E φ(√q z) He_k(z)/√k!: one Gaussian at a time."""
    function, kinks = DEFINITIONS[name]
    q, c = 0.7, 0.6
    root = math.sqrt(q)
    ends = np.array(sorted({-12, -6, -3, -1, 0, 1, 3, 6, 12, *(kink / root for kink in kinks)}))
    nodes, weights = np.polynomial.legendre.leggauss(60)
    half = np.diff(ends)[:, None] / 2
    z = (ends[:-1, None] + half * (1 + nodes)).ravel()
    weights = (half * weights).ravel() * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    values = np.array([float(function(root * x)) for x in z])
    overlap = 0.0
    before, hermite = np.zeros_like(z), np.ones_like(z)
    for k in range(60):  # 0.6**60 is 5e-14
        overlap += float(weights @ (values * hermite)) ** 2 * c**k
        following = (z * hermite - math.sqrt(k) * before) / math.sqrt(k + 1)
        before, hermite = hermite, following
    energy = float(weights @ values**2)
    expected = (1.3 * overlap + 0.2) / (1.3 * energy + 0.2)
    assert correlation_map(name, c, 1.3, 0.2, q) == pytest.approx(expected, abs=2e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_correlation_of_one_is_kept_and_of_nought_is_that_of_the_means(name):
    q = 0.9
    moments = predict([1, 1], activation=name, init=f"normal(std={math.sqrt(q)})").post
    mean, second = moments.mean[0], moments.second_moment[0]
    assert correlation_map(name, 1.0, 1.1, 0.3, q) == pytest.approx(1.0, rel=1e-14)
    nought = correlation_map(name, 0.0, 1.1, 0.3, q)
    assert nought == pytest.approx((1.1 * mean**2 + 0.3) / (1.1 * second + 0.3), rel=1e-12)


def test_correlations_within_five_standard_errors_of_a_wide_layer(rng):
    u, v = rng.standard_normal((2, 400_000))
    c, q = -0.4, 2.0
    for name in ("silu", "tanh", "relu2", "hardswish"):
        phi = ic.activation(name)
        products = phi(math.sqrt(q) * u) * phi(math.sqrt(q) * (c * u + math.sqrt(1 - c * c) * v))
        whole = predict([1, 1], activation=name, init=f"normal(std={math.sqrt(q)})").post
        expected = correlation_map(name, c, 1.0, 0.0, q) * whole.second_moment[0]
        error = products.std() / math.sqrt(products.size)
        assert abs(products.mean() - expected) < 5 * error


def test_slope_at_one_is_chi():
    """Near 1 a difference between inputs shrinks by χ, which is E φ′² and no overlap."""
    for name in ("tanh", "gelu", "mish"):
        sigma_w2, sigma_b2 = 1.4, 0.1
        found = fixed_point(name, sigma_w2, sigma_b2)
        step = 1e-5
        image = correlation_map(name, 1 - step, sigma_w2, sigma_b2, found.q)
        assert (1 - image) / step == pytest.approx(found.chi, rel=1e-4)


def test_arrays_of_correlations():
    c = np.array([[0.0, 0.5], [0.9, -1.0]])
    mapped = correlation_map("relu", c, 2, 0, 1)
    assert mapped.shape == (2, 2)
    assert mapped == pytest.approx(np.vectorize(relu_map)(c), abs=1e-15)
    assert type(correlation_map("relu", 0.5, 2, 0, 1)) is float
    assert correlation_map("relu", np.zeros(0), 2, 0, 1).shape == (0,)


@pytest.mark.parametrize("sigma_b2", [1e100, 1e300])
def test_an_edge_of_chaos_far_out(sigma_b2):
    """E sech⁴(√q z) is 4/3 over √(2πq) for a large q, which is σ_b² to the last bit."""
    found = critical("tanh", sigma_b2)
    assert found.q == sigma_b2
    assert found.sigma_w2 == pytest.approx(0.75 * math.sqrt(2 * math.pi * found.q), rel=1e-12)


# --- records and errors ----------------------------------------------------------------------


def test_what_a_person_reads():
    assert str(fixed_point("tanh", 3.0, 0.05)) == (
        "q* = 1.4280085 (stable), χ = 1.2089344, ξ_q = 1.041, ξ_c = -5.270 layers"
    )
    found = fixed_point("relu", 2, 0)
    assert found.to_dict() == {
        "q": 1.0, "chi": 1.0, "xi_q": "Infinity", "xi_c": "Infinity", "stable": False,
    }  # fmt: skip
    assert found.equals(fixed_point("relu", 2, 0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fixed_point("swish", 1, 0), ValueError, "activation must be one of"),
        (lambda: fixed_point("tanh", -1, 0), ValueError, "sigma_w2 must not be negative, got -1"),
        (lambda: fixed_point("tanh", 1, math.nan), ValueError, "sigma_b2 must be a finite"),
        (lambda: fixed_point(lambda x: x * math.nan, 1, 0), ValueError, "activation must give num"),
        (lambda: fixed_point(lambda x: x * math.nan, 0, 1), ValueError, "got .*lambda.* NaN"),
        (lambda: fixed_point("tanh", "1", 0), TypeError, "sigma_w2 must be a finite"),
        (lambda: fixed_point("tanh", 1, 0, kinks=(0,)), ValueError, "tanh knows its own"),
        (lambda: fixed_point(np.tanh, 1, 0, kinks=(math.nan,)), ValueError, "kinks must be"),
        (lambda: fixed_point("tanh", 1, 0, q=-1), ValueError, "q must not be negative, got -1"),
        (lambda: fixed_point("tanh", 1, 0, q=0.5), ValueError, "q must be a fixed point, got 0.5"),
        (lambda: fixed_point("sigmoid", 1, 0, q=0), ValueError, "q must be a fixed point, got 0"),
        (lambda: edge_of_chaos("tanh", -0.1), ValueError, "q must not be negative"),
        (lambda: edge_of_chaos("softplus", 1), ValueError, "softplus has no edge of chaos at q"),
        (lambda: edge_of_chaos("sigmoid", 0), ValueError, "no edge of chaos"),
        (lambda: edge_of_chaos("relu2", 0), ValueError, "no edge of chaos"),
        (lambda: critical("relu", 0.1), ValueError, "relu has no edge of chaos at sigma_b2 = 0.1"),
        (lambda: critical("relu", 5e-324), ValueError, "no edge of chaos at sigma_b2 = 5e-324"),
        (lambda: critical("relu", 1e300), ValueError, "no edge of chaos at sigma_b2 = 1e\\+300"),
        (lambda: critical(lambda x: 0 * x, 1), ValueError, "no edge of chaos at sigma_b2 = 1"),
        (lambda: critical(lambda x: x * math.nan, 1), ValueError, "no edge of chaos at sigma_b2"),
        (lambda: critical("relu2", 0), ValueError, "no edge of chaos"),
        (lambda: critical("tanh", -0.1), ValueError, "sigma_b2 must not be negative"),
        (lambda: correlation_map("tanh", 1.1, 1, 0, 1), ValueError, "c must be from -1 to 1"),
        (lambda: correlation_map("tanh", math.nan, 1, 0, 1), ValueError, "c must be from -1"),
        (lambda: correlation_map("tanh", "a", 1, 0, 1), TypeError, "c must be a real number"),
        (lambda: correlation_map("tanh", 0.5, 1, 0, 0), ValueError, "q must be positive"),
        (lambda: correlation_map("tanh", 0.5, 0, 0, 1), ValueError, "no correlation"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
