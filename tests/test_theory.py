# SPDX-License-Identifier: BSD-3-Clause
"""Predictions of the wide limit against closed forms and numbers of the literature."""

import math

import numpy as np
import pytest

from initcore.initializers import constant, kaiming_normal, normal, torch_linear, uniform
from initcore.theory import predict


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

    predict([512] * 101, activation=counted)
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
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        predict(**{"widths": [4, 4, 4], **arguments})
