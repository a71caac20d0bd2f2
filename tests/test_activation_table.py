# SPDX-License-Identifier: BSD-3-Clause
"""The table of activations: specifications, φ and φ′ as values, the largest slopes."""

import math
import pickle

import numpy as np
import pytest

from initcore.activations import ACTIVATIONS, Activation, activation
from initcore.quadrature import gaussian_mean

IDS = {
    "linear": 0,
    "relu": 1,
    "leaky_relu": 2,
    "tanh": 3,
    "sigmoid": 4,
    "elu": 5,
    "selu": 6,
    "gelu": 7,
    "gelu_tanh": 8,
    "silu": 9,
    "mish": 10,
    "softplus": 11,
    "softsign": 12,
    "erf": 13,
    "sin": 14,
    "hardtanh": 15,
    "hardswish": 16,
    "relu2": 17,
}


def _sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


FORMULAS = {
    "linear": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: (
        1.0507009873554804934 * (x if x > 0 else 1.6732632423543772848 * math.expm1(x))
    ),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2.0)),
    "gelu_tanh": lambda x: (
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "softsign": lambda x: x / (1.0 + abs(x)),
    "erf": math.erf,
    "sin": math.sin,
    "hardtanh": lambda x: max(-1.0, min(1.0, x)),
    "hardswish": lambda x: x * max(0.0, min(6.0, x + 3.0)) / 6.0,
    "relu2": lambda x: max(x, 0.0) ** 2,
}


def test_names_and_kernel_ids():
    assert {name: entry.kernel_id for name, entry in ACTIVATIONS.items()} == IDS


@pytest.mark.parametrize("name", IDS)
def test_value_is_the_formula(name):
    x = np.linspace(-6.0, 6.0, 241)
    expected = np.array([FORMULAS[name](v) for v in x.tolist()])
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, rtol=1e-13, atol=1e-14)
    single = ACTIVATIONS[name](x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("spec", [*IDS, "leaky_relu(0.3)", "leaky_relu(-2)", "elu(0.5)", "elu(2)"])
def test_derivative_is_the_slope_of_the_value(spec):
    phi = activation(spec)
    x = np.setdiff1d(np.linspace(-5.0, 5.0, 201), phi.kinks)
    h = 1e-4
    # Fourth order; the grid's spacing keeps the stencil on one side of a kink.
    slope = (8.0 * (phi(x + h) - phi(x - h)) - (phi(x + 2 * h) - phi(x - 2 * h))) / (12.0 * h)
    np.testing.assert_allclose(phi.derivative(x), slope, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("spec", [*IDS, "leaky_relu(0.3)", "leaky_relu(-2)", "elu(0.5)", "elu(2)"])
def test_largest_slope_and_saturation(spec):
    phi = activation(spec)
    x = np.concatenate([np.linspace(-6.0, 6.0, 120_001), np.array([-1e-9, 1e-9, 2.999999999])])
    largest = np.abs(phi.derivative(x)).max()
    if phi.name == "relu2":
        assert phi.max_derivative == math.inf
        assert math.isnan(phi.saturation_threshold)
        return
    assert largest <= phi.max_derivative * (1 + 1e-14)
    if phi.name == "softplus":  # its slope only tends to 1
        largest = phi.derivative(40.0)
    np.testing.assert_allclose(largest, phi.max_derivative, rtol=1e-8)
    assert phi.saturation_threshold == 0.05 * phi.max_derivative


@pytest.mark.parametrize("name", IDS)
def test_kinks_are_complete(name):
    """The derivative that a kink hides is of bounded variation elsewhere: Stein's E f′ = E z f."""
    phi = ACTIVATIONS[name]
    left = gaussian_mean(phi.derivative, 1.0, phi.kinks)
    right = gaussian_mean(lambda z: z * phi(z), 1.0, phi.kinks)
    assert left == pytest.approx(right, rel=1e-13, abs=1e-15)


def test_specifications_round_trip():
    for spec, text in {
        "gelu": "gelu",
        "gelu()": "gelu",
        "leaky_relu": "leaky_relu",
        "leaky_relu(0.01)": "leaky_relu",
        "leaky_relu(0.2)": "leaky_relu(0.2)",
        "leaky_relu(slope=0.2)": "leaky_relu(0.2)",
        "leaky_relu(-1)": "leaky_relu(-1)",
        "elu(alpha=0.5)": "elu(0.5)",
        "elu(2.0)": "elu(2)",
    }.items():
        phi = activation(spec)
        assert str(phi) == text
        assert activation(text) == phi
        assert hash(activation(text)) == hash(phi)
        assert activation(phi) is phi
        assert eval(repr(phi), {"activation": activation}) == phi
        assert pickle.loads(pickle.dumps(phi)) == phi
    assert activation("leaky_relu(0.2)") != activation("leaky_relu(0.3)")
    assert isinstance(activation("relu"), Activation)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("swish", ValueError, "one of linear, relu"),
        ("ReLU", ValueError, "one of linear"),
        ("relu(0.1)", ValueError, "relu takes no parameter"),
        ("leaky_relu(0.1, 0.2)", ValueError, "one parameter, slope"),
        ("leaky_relu(0.1, slope=0.2)", ValueError, "one parameter, slope"),
        ("leaky_relu(alpha=0.1)", ValueError, "one parameter, slope"),
        ("relu.scaled(2)", ValueError, "cannot be scaled"),
        ("leaky_relu(True)", TypeError, "slope of leaky_relu .* got True"),
        ("leaky_relu('a')", TypeError, "slope of leaky_relu"),
        ("leaky_relu(1e999)", ValueError, "slope of leaky_relu .* got inf"),
        (3, TypeError, "got 3"),
        (None, TypeError, "got None"),
        (np.tanh, TypeError, "specification"),
    ],
)
def test_bad_specifications(spec, error, message):
    with pytest.raises(error, match=message):
        activation(spec)


def test_arrays_of_any_layout_and_kind():
    phi = ACTIVATIONS["tanh"]
    x = np.linspace(-2.0, 2.0, 24).reshape(2, 3, 4)
    expected = np.tanh(x)
    assert np.allclose(phi(x), expected, rtol=1e-14)
    assert np.array_equal(phi(x.T), phi(x).T)
    assert np.array_equal(phi(x[:, ::-1, ::2]), phi(x)[:, ::-1, ::2])
    assert np.array_equal(phi(x.astype(">f8")), phi(x))
    assert phi(x.astype(">f4")).dtype == np.float32
    assert phi(np.array([1, 2])).dtype == np.float64
    assert phi(x.astype(np.float16)).dtype == np.float64
    assert phi(np.empty((0, 3))).shape == (0, 3)
    assert phi(0.5) == pytest.approx(math.tanh(0.5))
    frozen = x.copy()
    frozen.setflags(write=False)
    assert np.array_equal(phi(frozen), phi(x))
    assert np.array_equal(x, np.linspace(-2.0, 2.0, 24).reshape(2, 3, 4))
    for bad in (np.ma.masked_array(x), x.astype(complex), np.array(["a"]), np.array([True])):
        with pytest.raises(TypeError, match="x must be an array"):
            phi(bad)
