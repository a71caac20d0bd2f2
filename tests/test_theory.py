# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of the wide limit against closed forms and numbers of the literature."""

import math

import numpy as np
import pytest

from initcore.activations import activation
from initcore.initializers import constant, kaiming_normal, normal, torch_linear, uniform
from initcore.theory import fixed_point, predict


def test_one_linear_layer():
    """Var y = n Var(w) Var(x), for a normal and a uniform alike."""
    for init in (normal(0.1), uniform(-0.1 * math.sqrt(3), 0.1 * math.sqrt(3))):
        result = predict([300, 50], activation="linear", init=init, input_second_moment=4.0)
        assert result.pre.second_moment == pytest.approx([12.0], rel=1e-14)
        assert result.pre.mean.tolist() == [0.0]
        assert result.post.variance == pytest.approx([12.0], rel=1e-13)
    result = predict([300, 50, 20, 7], activation="linear", init="normal(std=0.1)")
    assert result.pre.variance == pytest.approx([3, 1.5, 0.3], rel=1e-13)


def test_a_std_of_five_and_of_a_fifth():
    for factor, after_ten in ((5.0, 9765625.0), (0.2, 1.024e-7)):
        init = normal(factor / 10)
        result = predict([100] * 11, activation="linear", init=init)
        assert math.sqrt(result.post.second_moment[-1]) == pytest.approx(after_ten, rel=1e-12)


def test_relu_conserves_the_second_moment_not_the_variance():
    result = predict([512] * 51)
    assert result.pre.second_moment == pytest.approx([2.0] * 50, rel=1e-12)
    assert result.post.second_moment == pytest.approx([1.0] * 50, rel=1e-12)
    assert result.post.mean == pytest.approx([0.5641895835] * 50, abs=6e-11)
    assert result.post.variance == pytest.approx([0.6816901138] * 50, abs=6e-11)


def test_torch_linear():
    result = predict([512] * 51, init="torch_linear")
    assert result.pre.second_moment == pytest.approx(2 * 6.0 ** -np.arange(1, 51), rel=1e-12)
    assert result.pre.second_moment[-1] == pytest.approx(2.5e-39, rel=0.02)
    linear = predict([512] * 51, activation="linear", init=torch_linear())
    assert linear.pre.second_moment == pytest.approx(3.0 ** -np.arange(1, 51), rel=1e-12)
    result = predict([512] * 51, init="torch_linear", bias="torch_linear")
    assert result.pre.second_moment[-1] == pytest.approx(2 / (5 * 512), rel=1e-12)
    assert result.pre.second_moment[-1] == pytest.approx(7.8e-4, rel=2e-3)


def test_tanh():
    gain_1 = np.sqrt(
        predict([512] * 101, activation="tanh", init="xavier_normal").post.second_moment
    )
    assert gain_1[[9, 49, 99]] == pytest.approx([0.2285, 0.1011, 0.0712], abs=6e-5)
    torch = predict([512] * 101, activation="tanh", init="xavier_normal(gain=1.6666666666666667)")
    assert math.sqrt(torch.post.second_moment[-1]) == pytest.approx(0.651347, abs=6e-7)
    assert torch.post.mean.tolist() == pytest.approx([0.0] * 100, abs=1e-15)


def test_selu():
    one = predict([64] * 101, activation="selu", init="lecun_normal")
    assert one.post.second_moment == pytest.approx([1.0] * 100, rel=1e-12)
    torch = predict(
        [64] * 301,
        activation="selu",
        init="kaiming_normal(nonlinearity='selu', convention='torch')",
    )
    rms = np.sqrt(torch.post.second_moment)
    assert rms[[9, 49, 99, 299]] == pytest.approx([0.3270, 0.2057, 0.20242, 0.20236], abs=6e-5)


def test_sine_of_any_width():
    q = np.array([1e-6, 1.0, 80.0, 82.0, 1e6, 1e12])
    for value in q:
        result = predict([4, 4], activation="sin", init="lecun_normal", input_second_moment=value)
        assert result.post.second_moment[0] == pytest.approx(-math.expm1(-2 * value) / 2, rel=1e-12)


def test_bias_with_a_mean():
    result = predict([100, 100], init=kaiming_normal(), bias=constant(0.7), input_second_moment=0.5)
    density = math.exp(-0.245) / math.sqrt(2 * math.pi)
    share = 0.5 * math.erfc(-0.7 / math.sqrt(2))
    assert (result.pre.mean[0], result.pre.second_moment[0], result.pre.variance[0]) == (
        pytest.approx(0.7),
        pytest.approx(1.49),
        pytest.approx(1.0),
    )
    assert result.post.mean[0] == pytest.approx(0.7 * share + density, rel=1e-13)
    assert result.post.second_moment[0] == pytest.approx(1.49 * share + 0.7 * density, rel=1e-13)


def test_functions_and_lists():
    plain = predict([30] * 6, activation="tanh")
    function = predict([30] * 6, activation=np.tanh)
    assert function.post.second_moment == pytest.approx(plain.post.second_moment, rel=1e-12)
    mixed = predict(
        [30, 20, 10],
        activation=["relu", np.tanh],
        init=["normal(std=0.1)", "zeros"],
        bias=[None, "normal(std=0.5)"],
    )
    assert mixed.pre.second_moment == pytest.approx([0.3, 0.25])
    assert mixed.post.second_moment[0] == pytest.approx(0.15)
    last = predict([30] * 4, last="linear")
    assert last.post.second_moment == pytest.approx([1, 1, 2])


# --- norms, residual branches, gradients -----------------------------------------------------


def normed(x, norm):
    """norm(x) over the last axis, and the gradient at x as a function of that at norm(x)."""
    if norm is None:
        return x, lambda g: g
    centre = x.mean(axis=-1, keepdims=True) if norm == "layer" else 0.0
    scale = np.sqrt(np.mean((x - centre) ** 2, axis=-1, keepdims=True))
    y = (x - centre) / scale

    def gradient(g):
        g = g - y * np.mean(y * g, axis=-1, keepdims=True)
        return (g - (g.mean(axis=-1, keepdims=True) if norm == "layer" else 0.0)) / scale

    return y, gradient


def simulated(n, n_layers, phi, gain, bias, norm, residual, batch, rng):
    """Second moments of h, x, ∂/∂h, ∂/∂x, ∂/∂W by layer, (5, L), and means of x, (L,)."""
    x = rng.standard_normal((batch, n))
    layers, forward = [], []
    for _ in range(n_layers):
        w = gain / math.sqrt(n) * rng.standard_normal((n, n))
        seen, norm_gradient = normed(x, norm)
        h = seen @ w.T + bias * rng.standard_normal(n)
        x = phi(h) if residual is None else x + residual * phi(h)
        layers.append((w, seen, norm_gradient, phi.derivative(h)))
        forward.append((np.mean(h**2), np.mean(x**2), np.mean(x)))
    backward = []
    g = rng.standard_normal(x.shape)
    for w, seen, norm_gradient, slope in reversed(layers):
        at_h = g * slope * (1.0 if residual is None else residual)
        backward.append((np.mean(at_h**2), np.mean(g**2), np.mean((at_h.T @ seen) ** 2)))
        below = norm_gradient(at_h @ w)
        g = below if residual is None else g + below
    second_h, second_x, mean_x = np.array(forward).T
    return np.array([second_h, second_x, *np.array(backward[::-1]).T, mean_x])


@pytest.mark.parametrize(
    ("name", "gain", "bias", "norm", "residual"),
    [
        ("tanh", 1.3, 0.2, None, None),
        ("gelu", 1.4, 0.3, "rms", None),
        ("relu", 1.2, 0.0, "layer", None),
        ("relu", 1.0, 0.1, None, 0.3),
        ("silu", 1.5, 0.5, "rms", 1.0),
        ("softplus", 0.8, 0.0, "layer", -0.7),
    ],
)
def test_norms_branches_and_gradients_of_simulated_chains(name, gain, bias, norm, residual, rng):
    n, n_layers, batch, trials = 192, 5, 6, 40
    setting = (n, n_layers, activation(name), gain, bias, norm, residual, batch, rng)
    measured = np.array([simulated(*setting) for _ in range(trials)])
    result = predict(
        [n] * (n_layers + 1),
        activation=name,
        init=f"normal(std={gain / math.sqrt(n)})",
        bias=f"normal(std={bias})",
        norm=norm,
        residual=residual,
        batch=batch,
        backward=True,
    )
    predicted = [
        result.pre.second_moment, result.post.second_moment, result.grad_pre.second_moment,
        result.grad_post.second_moment, result.grad_weight.second_moment, result.post.mean,
    ]  # fmt: skip
    error = measured.std(axis=0, ddof=1) / math.sqrt(trials)
    # a layer of n units is short of its wide limit by a few n-ths
    bias_of_width = 4 * n_layers / n * np.abs(predicted) / 2
    assert np.all(np.abs(measured.mean(axis=0) - predicted) < 5 * error + bias_of_width)


def test_gradients_of_a_linear_chain():
    """Backward a layer multiplies by n_out Var(W); ∂/∂W sums E[∂/∂h²] E[x²] over the batch."""
    widths = [40, 10, 20, 30]
    result = predict(widths, activation="linear", init="normal(std=0.1)", batch=7, backward=True)
    assert result.grad_post.second_moment == pytest.approx([0.2 * 0.3, 0.3, 1.0], rel=1e-13)
    assert result.grad_pre.second_moment == pytest.approx([0.2 * 0.3, 0.3, 1.0], rel=1e-13)
    inputs = np.array([1.0, 0.4, 0.4 * 0.1])
    weights = 7 * result.grad_pre.second_moment * inputs
    assert result.grad_weight.second_moment == pytest.approx(weights, rel=1e-13)
    assert result.grad_post.mean.tolist() == [0.0] * 3
    assert result.grad_pre.variance == pytest.approx(result.grad_pre.second_moment)
    assert np.isnan(result.grad_weight.variance).all()
    forward = predict(widths, activation="linear", init="normal(std=0.1)")
    assert (forward.grad_pre, forward.grad_post, forward.grad_weight) == (None, None, None)
    assert forward.pre.equals(result.pre)


def test_chi_is_the_backward_factor_at_a_fixed_point():
    for name, sigma_w2, sigma_b2 in (("tanh", 1.76, 0.05), ("relu", 1.9, 0.1), ("gelu", 1.5, 0.2)):
        found = fixed_point(name, sigma_w2, sigma_b2)
        gradients = predict(
            [64] * 31,
            activation=name,
            init=f"normal(std={math.sqrt(sigma_w2) / 8})",
            bias=f"normal(std={math.sqrt(sigma_b2)})",
            input_second_moment=(found.q - sigma_b2) / sigma_w2,
            backward=True,
        ).grad_pre.second_moment
        assert gradients[:-1] / gradients[1:] == pytest.approx([found.chi] * 29, rel=1e-9)


def test_he_initialisation_conserves_one_direction_at_a_time():
    """ReLU: gain √2 over fan_in holds the forward, over fan_out the backward second moment."""
    widths = [300, 100, 400, 200]
    forward = predict(widths, init="kaiming_normal", backward=True)
    assert forward.pre.second_moment == pytest.approx([2.0] * 3)
    assert forward.grad_post.second_moment == pytest.approx([400 / 100 * 200 / 400, 200 / 400, 1])
    backward = predict(widths, init="kaiming_normal(mode='fan_out')", backward=True)
    assert backward.grad_post.second_moment == pytest.approx([1.0] * 3)


def test_residual_streams():
    """Independent branches of variance v add up: 1 + L v; with norm h stays; 0 is ReZero."""
    n_layers = 12
    widths = [256] * (n_layers + 1)
    same = {"activation": "tanh", "init": "lecun_normal", "norm": "rms"}
    v = 0.3942944904
    grows = predict(widths, residual=True, **same)
    assert grows.pre.second_moment == pytest.approx([1.0] * n_layers, rel=1e-14)
    assert grows.post.second_moment == pytest.approx(1 + v * np.arange(1, 13), rel=1e-9)
    held = predict(widths, residual="1/sqrt(L)", **same)
    assert held.post.second_moment[-1] == pytest.approx(1 + v, rel=1e-9)
    by_layer = predict(widths, residual=[0.5] * 6 + [2.0] * 6, **same)
    assert by_layer.post.second_moment[-1] == pytest.approx(1 + 6 * v * 4.25, rel=1e-9)
    zero = predict(widths, residual=0, backward=True, **same)
    assert zero.post.second_moment.tolist() == [1.0] * n_layers
    assert zero.grad_post.second_moment.tolist() == [1.0] * n_layers
    assert zero.grad_pre.second_moment.tolist() == [0.0] * n_layers
    # without a norm the branch grows with its stream: (1 + m²)ᴸ for unit linear branches
    linear = predict(widths, activation="linear", init="lecun_normal", residual=0.5)
    assert linear.post.second_moment == pytest.approx(1.25 ** np.arange(1, 13), rel=1e-12)


def test_norms():
    """A norm undoes every scale below it, and its gradient is divided by σ_x²."""
    for norm in ("rms", "layer"):
        result = predict(
            [50] * 4, activation="linear", init="normal(std=7)", norm=norm, backward=True
        )
        assert result.post.second_moment == pytest.approx([49 * 50.0] * 3, rel=1e-14)
        assert result.grad_post.second_moment == pytest.approx([1, 1, 1], rel=1e-13)
        loud = predict([50] * 2, init="normal(std=7)", norm=norm, input_second_moment=1e30)
        assert loud.pre.second_moment == pytest.approx([49 * 50.0])
    mixed = predict([8] * 3, init="lecun_normal", norm=["rms", None], input_second_moment=9.0)
    assert mixed.pre.second_moment == pytest.approx([1.0, 0.5])
    # relu's E x² is q/2, its variance q(1/2 − 1/2π)
    layer = predict([8] * 3, init="lecun_normal", norm="layer", backward=True)
    assert layer.pre.second_moment == pytest.approx([1.0, 1.0])
    assert layer.grad_post.second_moment[0] == pytest.approx(0.5 / (0.5 - 0.5 / math.pi))
    dead = predict([8] * 3, init="zeros", norm="rms")
    assert dead.post.second_moment.tolist() == [0.0, 0.0]


def test_gradients_of_functions_come_from_their_values():
    same = {"init": "kaiming_normal", "backward": True}
    plain = predict([30] * 6, activation="tanh", **same)
    function = predict([30] * 6, activation=np.tanh, **same)
    assert function.grad_pre.second_moment == pytest.approx(plain.grad_pre.second_moment, rel=1e-11)
    bent = predict([30] * 6, activation=lambda x: np.maximum(x, 0), kinks=(0,), **same)
    relu = predict([30] * 6, **same)
    assert bent.grad_post.second_moment == pytest.approx(relu.grad_post.second_moment, rel=1e-11)
    still = predict([30] * 3, activation=np.tanh, init="zeros", backward=True)
    assert still.grad_pre.second_moment == pytest.approx([0.0, 1.0], abs=1e-10)


def test_what_a_person_reads():
    text = str(predict([30] * 3))
    assert text.splitlines()[0].split() == [
        "layer", "second", "moment", "mean", "variance", "zeros", "saturated", "dead", "cosine",
    ]  # fmt: skip
    assert "2.000" in text


def test_to_the_ends_of_the_range():
    down = predict([100] * 101, init="normal(std=0.0001)").pre.second_moment
    assert down[40] == pytest.approx(1e-6 * 5e-7**40, rel=1e-12)
    assert down[-1] == 0.0
    up = predict([100] * 101, activation="gelu", init="normal(std=1000.)").pre.second_moment
    assert np.all(up[1:] >= up[:-1])
    assert up[-1] == math.inf
    saturated = predict([100] * 4, activation="tanh", init="normal(std=1e200)")
    assert saturated.post.second_moment.tolist() == [1.0, 1.0, 1.0]
    assert predict([5, 5], init="zeros").post.second_moment.tolist() == [0.0]


def test_weights_with_a_mean_have_no_prediction():
    result = predict([10] * 4, init=["kaiming_normal", "uniform(0, 1)", "kaiming_normal"])
    for stats in (result.pre, result.post):
        for field in (stats.mean, stats.second_moment, stats.variance):
            assert np.isnan(field).tolist() == [False, True, True]


def test_a_layer_takes_one_expectation():
    """The cost of a prediction: φ at a few hundred points a layer, once or (kinks) twice."""
    points = []

    def counted(x):
        points.append(x.size)
        return np.tanh(x)

    for backward in (False, True):
        points.clear()
        predict([512] * 101, activation=counted, backward=backward)
        assert len(points) <= 3 * 100
        assert max(points) <= 4000


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"widths": [5]}, ValueError, "widths must be two or more"),
        ({"widths": [5, 0]}, ValueError, "widths must be two or more positive"),
        ({"widths": [5, 2.5]}, TypeError, "widths must be an integer"),
        ({"activation": "swish"}, ValueError, "one of linear"),
        ({"activation": 3}, TypeError, "got 3"),
        ({"last": "swish"}, ValueError, "one of linear"),
        ({"init": "kaiming"}, ValueError, "initializer must be one of"),
        ({"init": None}, TypeError, "got None"),
        ({"init": ["zeros"]}, ValueError, "init must be one, or a list .* 2 layers, got 1"),
        ({"activation": ["relu"] * 3}, ValueError, "activation must be one, or a list"),
        ({"bias": []}, ValueError, "bias must be one, or a list"),
        ({"input_second_moment": -1}, ValueError, "input_second_moment must not be negative"),
        ({"input_second_moment": math.nan}, ValueError, "input_second_moment must be"),
        ({"norm": "batch"}, ValueError, "norm must be None or one of rms, layer, got 'batch'"),
        ({"norm": True}, TypeError, "norm must be None or one of rms, layer, got True"),
        ({"norm": ["rms"]}, ValueError, "norm must be one, or a list"),
        ({"residual": "1/L"}, ValueError, "residual must be .* or '1/sqrt\\(L\\)', got '1/L'"),
        ({"residual": None, "norm": 1j}, TypeError, "norm must be"),
        ({"residual": 1j}, TypeError, "residual must be a finite real number"),
        ({"residual": math.inf}, ValueError, "residual must be a finite real number"),
        ({"residual": [1.0] * 3}, ValueError, "residual must be one, or a list"),
        ({"residual": True, "widths": [4, 4, 5]}, ValueError, "residual: layer 1 .* 4 and 5"),
        ({"batch": 0}, ValueError, "batch must be a positive integer, got 0"),
        ({"batch": 2.0}, TypeError, "batch must be an integer"),
        ({"backward": 1}, TypeError, "backward must be True or False, got 1"),
        ({"kinks": (0,)}, ValueError, "relu knows its own"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        predict(**{"widths": [4, 4, 4], **arguments})
