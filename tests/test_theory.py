# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of the wide limit against closed forms and numbers of the literature."""

import math

import numpy as np
import pytest

import initcore as ic
from initcore.activations import activation
from initcore.initializers import constant, kaiming_normal, normal, torch_linear, uniform
from initcore.theory import correlation_map, fixed_point, predict


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


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_norm_of_zeros_gives_zeros_and_a_gradient_of_zero(norm):
    """As the kernels have it: what is below it gets no gradient, and around it comes what does."""
    dead = predict([8] * 4, init="zeros", norm=norm, backward=True)
    assert dead.post.second_moment.tolist() == [0.0, 0.0, 0.0]
    assert dead.grad_pre.second_moment.tolist() == [0.0, 0.0, 0.0]  # φ′(0) is 0
    alive = predict([8] * 4, activation="tanh", init="zeros", norm=norm, backward=True)
    assert alive.grad_pre.second_moment.tolist() == [0.0, 0.0, 1.0]
    assert dead.grad_post.second_moment.tolist() == [0.0, 0.0, 1.0]
    assert dead.grad_weight.second_moment.tolist() == [0.0, 0.0, 0.0]
    around = predict([8] * 4, norm=norm, residual=True, input_second_moment=0.0, backward=True)
    assert around.post.second_moment.tolist() == [0.0, 0.0, 0.0]
    assert around.grad_post.second_moment.tolist() == [1.0, 1.0, 1.0]
    x = np.zeros((2, 8), np.float32)
    same = {"norm": norm, "residual": True, "x": x, "trials": 2, "backward": True, "seed": 0}
    measured = ic.propagate([8] * 4, **same).grad_post.second_moment
    assert measured.tolist() == [measured[-1]] * 3


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
    assert text.splitlines()[0].split() == ["layer", "E[h²]", "cosine", "E[x²]", "mean", "x"]
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


@pytest.mark.parametrize("init", ["ones", "uniform(0, 1)", lambda **_: 0])
def test_what_passes_a_branch_of_multiplier_zero_is_known(init):
    """ReZero: beside the branch x and its gradient are as they were, whatever its weights are."""
    result = predict(
        [10] * 4, init=["kaiming_normal", init, "kaiming_normal"], residual=[None, 0, 0.5],
        norm=["rms", "layer", None], correlation=0.3, backward=True,
    )  # fmt: skip
    known = predict(
        [10] * 3, init="kaiming_normal", residual=[None, 0.5], norm=["rms", None],
        correlation=0.3, backward=True,
    )  # fmt: skip
    for field in ("mean", "second_moment", "variance", "cosine"):
        assert np.isnan(getattr(result.pre, field)).tolist() == [False, True, False]
        for side in ("pre", "post", "grad_pre", "grad_post"):
            found, expected = (getattr(getattr(p, side), field) for p in (result, known))
            assert found[[0, 2]].tolist() == expected.tolist()
    assert result.post.second_moment[1] == result.post.second_moment[0]
    assert result.grad_post.second_moment[1] == result.grad_post.second_moment[0]
    assert result.grad_pre.second_moment[1] == result.grad_weight.second_moment[1] == 0.0


@pytest.mark.parametrize("function", [np.tanh, lambda x: np.clip(x, -1.0, 1.0)])
def test_a_layer_takes_one_expectation(function):
    """The cost of a prediction: φ at a few hundred points a layer, once or (kinks) twice."""
    points = []

    def counted(x):
        points.append(x.size)
        return function(x)

    for backward in (False, True):
        points.clear()
        predict([512] * 101, activation=counted, backward=backward)
        assert len(points) <= 3 * 100
        assert max(points) <= 4000


@pytest.mark.parametrize("norm", [None, "rms", "layer"])
@pytest.mark.parametrize("arguments", [
    {"residual": 1e300}, {"bias": "constant(1e300)"}, {"bias": "normal(std=1e160)"},
    {"residual": 1e300, "bias": "normal(std=1e160)"}, {"init": "normal(std=1e155)"},
    {"init": "normal(std=1e155)", "activation": lambda x: x},
])  # fmt: skip
def test_what_is_beyond_float64_is_not_finite(arguments, norm):
    """Squares that overflow are infinite, or NaN where something is then unknown; never an error
    or a wrong number."""
    found = predict([4] * 4, backward=True, norm=norm, **arguments)
    where = found.post if "residual" in arguments else found.pre
    first = where.second_moment[0]
    assert first == math.inf
    assert not np.isfinite(where.second_moment[[0, -1]]).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"widths": [5]}, ValueError, "widths must be two or more"),
        ({"widths": [5, 0]}, ValueError, "widths must be two or more positive"),
        ({"widths": [5, 2.5]}, TypeError, "widths must be an integer"),
        ({"activation": "swish"}, ValueError, "one of linear"),
        ({"activation": 3}, TypeError, "got 3"),
        ({"last": "swish"}, ValueError, "last: .* one of linear"),
        ({"activation": ["relu", "swish"]}, ValueError, r"activation\[1\] must be one of linear"),
        ({"init": "kaiming"}, ValueError, "initializer must be one of"),
        ({"init": None}, TypeError, "got None"),
        (
            {"init": ["zeros"]},
            ValueError,
            "init must be one value, or a list of 2, one a layer",
        ),
        ({"activation": ["relu"] * 3}, ValueError, "activation must be one value, or a list"),
        ({"bias": []}, ValueError, "bias must be one value, or a list"),
        ({"input_second_moment": -1}, ValueError, "input_second_moment must not be negative"),
        ({"input_second_moment": math.nan}, ValueError, "input_second_moment must be"),
        ({"norm": "batch"}, ValueError, "norm must be None or one of rms, layer, got 'batch'"),
        ({"norm": True}, TypeError, "norm must be None or one of rms, layer, got True"),
        ({"norm": ["rms"]}, ValueError, "norm must be one value, or a list"),
        ({"residual": "1/L"}, ValueError, "residual must be .* or '1/sqrt\\(L\\)', got '1/L'"),
        ({"residual": None, "norm": 1j}, TypeError, "norm must be"),
        ({"residual": 1j}, TypeError, "residual must be a finite real number"),
        ({"residual": math.inf}, ValueError, "residual must be a finite real number"),
        ({"residual": [1.0] * 3}, ValueError, "residual must be one value, or a list"),
        ({"residual": True, "widths": [4, 4, 5]}, ValueError, "residual: layer 1 .* 4 and 5"),
        ({"batch": 0}, ValueError, "batch must be a positive integer, got 0"),
        ({"x": np.ones((2, 4)), "correlation": 0.5}, ValueError, "correlation must be left out"),
        (
            {"x": np.ones((2, 4)), "input_second_moment": 2.0},
            ValueError,
            "input_second_moment .* out",
        ),
        ({"batch": 2.0}, TypeError, "batch must be an integer"),
        ({"backward": 1}, TypeError, "backward must be True or False, got 1"),
        ({"kinks": (0,)}, ValueError, "relu knows its own"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        predict(**{"widths": [4, 4, 4], **arguments})


class TestCosines:
    """Of two rows of the batch, from their correlation at the input."""

    @pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "selu", "erf", "sin", "softsign"])
    @pytest.mark.parametrize("correlation", [-0.4, 0.5, 0.98])
    def test_layers_follow_the_correlation_map(self, name, correlation):
        """c of h goes to correlation_map(c), by its two-dimensional quadrature, layer by layer."""
        result = predict(
            [100] * 4, activation=name, init="normal(0.12)", bias="normal(0.3)",
            correlation=correlation,
        )  # fmt: skip
        w, b = 100 * 0.12**2, 0.09
        c = (w * correlation + b) / (w + b)
        q = result.pre.second_moment
        for layer in range(3):
            assert result.pre.cosine[layer] == pytest.approx(c, abs=1e-5)
            mapped = float(correlation_map(name, c, w, 0, q[layer]))
            assert result.post.cosine[layer] == pytest.approx(mapped, abs=1e-5)
            c = float(correlation_map(name, c, w, b, q[layer]))

    @pytest.mark.parametrize("name", ["tanh", "gelu", "silu", "mish", "sigmoid"])
    def test_smooth_activations_have_ten_digits(self, name):
        result = predict([100, 9], activation=name, init="normal(0.14)", correlation=0.8)
        mapped = correlation_map(name, 0.8, 1.0, 0.0, 1.96)
        assert result.post.cosine == pytest.approx([mapped], rel=1e-10)

    def test_a_sine_with_a_bias(self):
        """Its closed form against that of a function, which is a series."""
        for mean in (0.7, -2.0):
            same = {"widths": [100, 9], "init": "normal(0.1)", "bias": f"constant({mean})"}
            for c in (-0.9, 0.0, 0.4):
                closed = predict(activation="sin", correlation=c, **same).post.cosine
                series = predict(activation=np.sin, correlation=c, **same).post.cosine
                assert closed == pytest.approx(series, rel=1e-11)

    def test_what_has_kinks_elsewhere(self):
        result = predict([100] * 4, activation="hardtanh", init="normal(0.15)", correlation=0.9)
        c, w = 0.9, 2.25
        for layer in range(3):
            assert result.pre.cosine[layer] == pytest.approx(c, abs=2e-5)
            c = float(correlation_map("hardtanh", c, w, 0, result.pre.second_moment[layer]))

    def test_a_bias_of_known_mean(self):
        """relu of h > 0 alone is h: E φφ′ = μ² + q c, the cosine (μ² + qc)/(μ² + q)."""
        result = predict(
            [100, 9], activation="relu", init="normal(0.01)", bias="constant(1.0)", correlation=0.3
        )
        q = 0.01
        assert result.pre.cosine == pytest.approx([(1 + 0.3 * q) / (1 + q)], rel=1e-14)
        assert result.post.cosine == pytest.approx([(1 + 0.3 * q) / (1 + q)], rel=1e-7)

    @pytest.mark.parametrize("norm", ["rms", "layer"])
    def test_norms(self, norm):
        """rms keeps the cosine of what it gets; layer leaves that of the deviations from the
        mean."""
        result = predict([100] * 3, init="normal(0.1)", norm=norm, correlation=0.4)
        post = result.post
        expected = post.cosine[0]
        if norm == "layer":
            mean2, energy = post.mean[0] ** 2, post.second_moment[0]
            expected = (expected * energy - mean2) / (energy - mean2)
        assert result.pre.cosine == pytest.approx([0.4, expected], rel=1e-12)

    def test_residual_branches_add_what_they_have_in_common(self):
        """x + m φ(h) of a linear φ: (c E x² + m² w c E x²)/(E x² + m² w E x²) = c, and with a bias
        of variance b (c + m²(w c + b))/(1 + m²(w + b))."""
        chain = {"widths": [100] * 2, "activation": "linear", "init": "normal(0.1)"}
        result = predict(**chain, residual=0.5, correlation=0.3)
        assert result.post.cosine == pytest.approx([0.3], rel=1e-14)
        result = predict(**chain, residual=0.5, correlation=0.3, bias="normal(2.0)")
        expected = (0.3 + 0.25 * (0.3 + 4)) / (1 + 0.25 * 5)
        assert result.post.cosine == pytest.approx([expected], rel=1e-14)
        shifted = predict([4, 4], activation="relu", init="zeros", bias="ones", residual=True)
        assert shifted.post.cosine == pytest.approx([1 / 2], rel=1e-14)

    def test_rows_that_are_equal_stay_so_and_one_row_has_none(self):
        result = predict([50] * 4, activation="gelu", correlation=1.0, backward=True)
        assert result.pre.cosine.tolist() == result.post.cosine.tolist() == [1, 1, 1]
        assert result.grad_pre.cosine.tolist() == [0, 0, 0]
        result = predict([50] * 4, activation="gelu", batch=1, backward=True)
        for side in (result.pre, result.post, result.grad_pre, result.grad_post):
            assert np.isnan(side.cosine).all()
        zeros = predict([50] * 2, init="zeros")
        assert np.isnan(zeros.pre.cosine).all()

    def test_inputs_that_are_known(self):
        x = np.array([[3.0, 1.0], [1.0, 3.0]])  # mean 2, E x² = 5, cosine 6/10
        result = predict([2, 7], activation="linear", init="normal(0.5)", x=x)
        assert result.pre.second_moment == pytest.approx([2 * 0.25 * 5], rel=1e-15)
        assert result.pre.cosine == pytest.approx([0.6], rel=1e-15)
        layer = predict([2, 7], activation="linear", init="normal(0.5)", x=x, norm="layer")
        assert layer.pre.second_moment == pytest.approx([0.5], rel=1e-15)
        assert layer.pre.cosine == pytest.approx([-1], rel=1e-15)

    @pytest.mark.parametrize(
        ("change", "error"),
        [({"correlation": 1.1}, ValueError), ({"correlation": np.nan}, ValueError),
         ({"correlation": "0"}, TypeError), ({"x": np.ones((2, 3)) * 1j}, TypeError)],
    )  # fmt: skip
    def test_refused(self, change, error):
        with pytest.raises(error, match=next(iter(change))):
            predict([3, 3], **change)

    def test_gradients_that_explode_are_predicted_in_silence(self):
        result = predict([2] * 100, activation="relu2", init="normal(9)", backward=True)
        assert not np.isfinite(result.grad_pre.second_moment[0])


def averaged(results, side, field):
    return np.mean([getattr(getattr(one, side), field) for one in results], axis=0)


class TestGivenInputs:
    CHAINS = (
        {},
        {"norm": "rms"},
        {"norm": "layer", "residual": 0.5},
        {"residual": [None, 0.7, -0.4], "bias": "normal(std=0.3)"},
        {"residual": True, "norm": [None, "layer", "rms"], "bias": "constant(0.2)"},
    )

    @pytest.mark.parametrize("chain", CHAINS)
    def test_rows_are_predicted_by_their_own_norms(self, chain, rng):
        """Of rows of several norms, zeros and equal entries among them, the mean over the rows."""
        x = rng.standard_normal((6, 8)) * np.array([[0.1], [0.5], [1.0], [3.0], [0.0], [1.0]])
        x[5] = 1.5
        same = {"widths": [8] * 4, "activation": "tanh", "init": "normal(0.6)", "backward": True}
        whole = predict(x=x, **same, **chain)
        rows = [predict(x=row[None], **same, **chain) for row in x]
        for side in ("pre", "post", "grad_pre", "grad_post"):
            for field in ("mean", "second_moment"):
                found = getattr(getattr(whole, side), field)
                assert found == pytest.approx(averaged(rows, side, field), rel=1e-13, abs=1e-16)
        of_rows = averaged(rows, "grad_weight", "second_moment")
        assert whole.grad_weight.second_moment == pytest.approx(len(x) * of_rows, rel=1e-13)
        for side in (whole.pre, whole.post):
            expected = side.second_moment - side.mean**2
            assert side.variance == pytest.approx(expected, rel=1e-12)

    def test_many_norms_are_eight_groups(self, rng):
        """The mean over 64 rows to 1 %, where a row of their mean norm is off by more than 5 %."""
        x = rng.standard_normal((64, 100)) * np.exp(0.4 * rng.standard_normal((64, 1)))
        same = {"widths": [100] * 3, "activation": "tanh", "init": "lecun_normal"}
        found = predict(x=x, **same).post.second_moment[0]
        exact = np.mean([predict(x=row[None], **same).post.second_moment[0] for row in x])
        alike = predict(input_second_moment=np.mean(x**2), **same).post.second_moment[0]
        assert found == pytest.approx(exact, rel=1e-2)
        assert abs(alike / exact - 1) > 0.05
        linear = predict(x=x, **(same | {"activation": "leaky_relu"})).pre.second_moment
        assert linear[0] == pytest.approx(np.mean(x**2), rel=1e-13)

    @pytest.mark.parametrize("shift", [1.0, 1e3, 2.0**26])
    def test_a_layer_norm_takes_any_mean_away(self, shift):
        """Also one of which the squares have no digits left for what is around it."""
        x = np.array([[3.0, 1.0, -2.0, 6.0], [1.0, 4.0, 0.5, 2.5]])
        same = {"widths": [4] * 3, "init": "normal(0.4)", "norm": "layer", "backward": True}
        still, moved = predict(x=x, **same), predict(x=x + shift, **same)
        for side in ("pre", "post", "grad_pre", "grad_post"):
            for field in ("second_moment", "cosine"):
                expected = getattr(getattr(still, side), field)
                found = getattr(getattr(moved, side), field)
                assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
        stream = predict(x=x + shift, **same, residual=True)
        assert stream.post.variance == pytest.approx(
            predict(x=x, **same, residual=True).post.variance
            + np.var((x + shift).mean(axis=1)) - np.var(x.mean(axis=1)),
            rel=1e-7,
        )  # fmt: skip

    def test_an_activation_that_hardly_moves_keeps_its_cosines(self):
        """sigmoid of small h is 1/2 + h/4: behind a layer norm the cosine of h, digit by digit."""
        result = predict(
            [64] * 3, activation="sigmoid", init="normal(1e-7)", norm=[None, "layer"],
            correlation=0.3,
        )  # fmt: skip
        assert result.pre.cosine == pytest.approx([0.3, 0.3], rel=1e-9)

    def test_zeros_have_no_cosine_and_are_left_out(self):
        x = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        result = predict([2, 2], activation="linear", init="normal(1)", x=x)
        assert result.pre.cosine == pytest.approx([0.5**0.5], rel=1e-15)
        assert np.isnan(predict([2, 2], x=np.zeros((3, 2))).pre.cosine).all()

    def test_gradients_of_weights_are_summed_over_the_rows_of_x(self):
        x = np.ones((4, 8))
        by_rows = predict([8, 8], x=x, backward=True).grad_weight.second_moment
        alone = predict([8, 8], x=x[:1], backward=True).grad_weight.second_moment
        assert by_rows == pytest.approx(4 * alone)

    @pytest.mark.parametrize("options", [
        {"x": np.ones((4, 5))}, {"x": np.ones(8)}, {"x": np.ones((0, 8))},
        {"x": np.ones((4, 8)), "batch": 3}, {"x": np.ones((4, 8)), "correlation": 0.5},
    ])  # fmt: skip
    def test_refusals(self, options):
        with pytest.raises(ValueError, match="must"):
            predict([8, 8], **options)
