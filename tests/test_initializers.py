# SPDX-License-Identifier: BSD-3-Clause
"""Fans, gains, and initializers as values; the numbers of the literature and of public reports."""

import inspect
import math
import pickle

import numpy as np
import pytest

import initcore.initializers as module
from initcore import _core, gains
from initcore.activations import ACTIVATIONS, activation
from initcore.gains import CONVENTIONS, gain
from initcore.initializers import (
    INITIALIZERS,
    MODES,
    Initializer,
    constant,
    embedding,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    initializer,
    kaiming_normal,
    kaiming_uniform,
    lecun_normal,
    lecun_uniform,
    normal,
    ones,
    torch_linear,
    truncated_normal,
    uniform,
    variance_scaling,
    xavier_normal,
    xavier_uniform,
    zeros,
)
from initcore.layouts import fans
from initcore.quadrature import gaussian_mean, gaussian_moments

ROOT2 = math.sqrt(2.0)

# 1/√Eφ², 1/std, 1/√Eφ′², fixed point
GAINS = {
    "relu": (1.41421356237, 1.71285855045, 1.41421356237, ROOT2),
    "leaky_relu": (1.41414285700, 1.70483162718, 1.41414285700, 1.41414285700),
    "leaky_relu(0.2)": (1.38675049056, 1.54646006036, 1.38675049056, 1.38675049056),
    "tanh": (1.59253741972, 1.59253741972, 1.46741359163, None),
    "sigmoid": (1.84622854534, 4.80131337204, 4.72264608594, None),
    "gelu": (1.53353044120, 1.70092624336, 1.48111441271, 1.46801126055),
    "gelu_tanh": (1.53358052167, 1.70091656170, 1.48116805809, 1.46796075825),
    "silu": (1.67653247033, 1.78718722210, 1.62332025795, 1.55875993007),
    "mish": (1.48684758127, 1.59202538110, 1.44475523255, 1.45149123996),
    "elu": (1.24519830070, 1.27084341785, 1.22342855755, 1.27796007540),
    "selu": (1.0, 1.0, 0.966025776974, 1.0),
    "softplus": (1.04186683554, 1.91912598011, 1.84622854534, 1.08312188151),
    "softsign": (2.33753336311, 2.33753336311, 2.09578060894, None),
    "erf": (1.46716695049, 1.46716695049, 1.32521835286, None),
    "sin": (1.52086662318, 1.52086662318, 1.32725060028, None),
    "relu2": (0.816496580928, 0.894427191000, 0.707106781187, 1.5**-0.25),
    "hardtanh": (1.39203614045, 1.39203614045, 1.21028706243, None),
    "linear": (1.0, 1.0, 1.0, 1.0),
}

# E φ, E φ², E φ′² at q = 1, as printed in the literature; the last is checked by the gain.
MOMENTS = {
    "relu": (0.3989422804, 0.5),
    "leaky_relu": (0.3949528576, 0.50005),
    "leaky_relu(0.2)": (0.3191538243, 0.52),
    "tanh": (0, 0.3942944904),
    "sigmoid": (0.5, 0.29337903586),
    "gelu": (0.2820947918, 0.42522148257),
    "gelu_tanh": (0.2820385881, 0.42519371103),
    "silu": (0.2066209641, 0.35577551982),
    "mish": (0.2404038884, 0.45234219238),
    "elu": (0.1605205723, 0.64494541749),
    "selu": (0, 1),
    "softplus": (0.8060591833, 0.92124590886),
    "softsign": (0, 0.18301402127),
    "erf": (0, 0.4645590544),
    "sin": (0, 0.43233235838),
    "relu2": (0.5, 1.5),
    "hardtanh": (0, 0.51605855096),
}


# --- fans ---


def test_fans_of_the_plain_layout():
    assert fans((512, 784)) == (784, 512)
    assert fans((64, 3, 7, 7)) == (147, 3136)
    assert fans([64, 3, 7]) == (21, 448)
    assert fans((np.int64(2), np.int8(3))) == (3, 2)
    assert fans((0, 5)) == (5, 0)


def test_fans_by_axes():
    assert fans((784, 512), in_axis=0) == fans((784, 512), out_axis=1) == (784, 512)
    assert fans((3, 3, 64, 128), in_axis=-2, out_axis=-1) == (576, 1152)
    assert fans((512, 8, 64), in_axis=0, out_axis=(1, 2)) == (512, 512)
    assert fans((2, 3, 5), in_axis=[1], out_axis=np.int64(0)) == (15, 10)


@pytest.mark.parametrize(
    ("shape", "axes", "error", "message"),
    [
        ((5,), {}, ValueError, r"shape \(5,\) has no fans.*fan_in="),
        ((), {}, ValueError, r"shape \(\) has no fans.*fan_in="),
        (5, {}, ValueError, r"shape \(5,\) has no fans"),
        ((2, -3), {}, ValueError, r"negative sizes, got \(2, -3\)"),
        ((2, 3.0), {}, TypeError, "shape must be an integer, got 3.0"),
        ((2, True), {}, TypeError, "shape must be an integer, got True"),
        ("23", {}, TypeError, "shape must be an integer"),
        (None, {}, TypeError, "shape must be an integer, got None"),
        ((2, 3), {"in_axis": 2}, ValueError, "axes of the shape, got in_axis=.2,."),
        ((2, 3), {"in_axis": 0, "out_axis": -2}, ValueError, "different axes"),
        ((2, 3), {"in_axis": ()}, ValueError, "different axes"),
        ((2, 3), {"in_axis": (0, 1)}, ValueError, "different axes"),
        ((2, 3), {"in_axis": 0.5}, TypeError, "in_axis must be an integer"),
        ((2, 3, 4), {"in_axis": 0}, ValueError, "must both be given"),
    ],
)
def test_bad_fans(shape, axes, error, message):
    with pytest.raises(error, match=message):
        fans(shape, **axes)


# --- gains ---


@pytest.mark.parametrize("spec", GAINS)
def test_gains_of_the_literature(spec):
    for convention, expected in zip(CONVENTIONS, GAINS[spec], strict=False):
        if expected is None:
            with pytest.raises(ValueError, match="no fixed point"):
                gain(spec, convention)
        else:
            assert gain(spec, convention) == pytest.approx(expected, rel=5e-12)
    assert gain(spec) == gain(activation(spec), "second_moment")


@pytest.mark.parametrize("spec", MOMENTS)
def test_moments_of_the_literature(spec):
    phi = activation(spec)
    mean, second, _ = gaussian_moments(phi, 1.0, phi.kinks)
    assert mean == pytest.approx(MOMENTS[spec][0], abs=6e-11)
    assert second == pytest.approx(MOMENTS[spec][1], abs=6e-11)
    assert 1 / math.sqrt(second) == pytest.approx(gain(spec), rel=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_literals_are_what_the_quadrature_gives(name):
    phi = ACTIVATIONS[name]
    moments = gaussian_moments(phi, 1.0, phi.kinks)
    expectations = {
        "second_moment": moments.second_moment,
        "variance": moments.variance,
        "backward": gaussian_mean(lambda x: phi.derivative(x) ** 2, 1.0, phi.kinks),
    }
    for convention, expectation in expectations.items():
        assert gain(phi, convention) == pytest.approx(expectation**-0.5, rel=1e-13)
    for convention in CONVENTIONS[:4]:
        try:
            literal = gain(phi, convention)
        except ValueError:
            with pytest.raises(ValueError, match="no fixed point"):
                gain(lambda x: phi(x), convention, kinks=phi.kinks)
            continue
        # A function's gain is rounded to 12 digits.
        assert gain(lambda x: phi(x), convention, kinks=phi.kinks) == float(f"{literal:.12g}")
        if convention == "fixed_point":
            second = gaussian_moments(phi, literal, phi.kinks).second_moment
            assert second == pytest.approx(1.0, rel=1e-13)


def test_every_built_in_has_its_literals():
    assert {*gains._GAINS, "linear", "relu", "leaky_relu"} == ACTIVATIONS.keys()


def test_gains_of_torch():
    expected = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": ROOT2,
        "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
        "leaky_relu(0.2)": math.sqrt(2 / 1.04),
        "selu": 0.75,
    }
    for spec, value in expected.items():
        assert gain(spec, "torch") == pytest.approx(value, rel=1e-15)
    for spec in (*(ACTIVATIONS.keys() - {*expected}), np.tanh):
        with pytest.raises(ValueError, match="linear, sigmoid, tanh, relu, selu and leaky_relu"):
            gain(spec, "torch")


def test_leaky_relu_with_any_slope():
    for slope in (-1.0, 0.0, 1.0, 3.0, 1e8):
        phi = activation(f"leaky_relu({slope})")
        moments = gaussian_moments(phi, 1.0, phi.kinks)
        assert gain(phi) == pytest.approx(moments.second_moment**-0.5, rel=1e-13)
        assert gain(phi, "variance") == pytest.approx(moments.variance**-0.5, rel=1e-13)
        assert gain(phi, "backward") == gain(phi, "fixed_point") == gain(phi)
    assert gain("leaky_relu(0)") == gain("relu") == ROOT2
    assert gain("leaky_relu(1)", "variance") == 1.0


def test_parameters_other_than_the_default():
    assert gain("elu(1)") == gain("elu")
    assert gain("elu(0)") == 1.41421356237
    assert gain("elu(0)", "backward") == 1.41421356237
    assert gain("elu(0.5)", "fixed_point") == pytest.approx(
        gain(lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))), "fixed_point"),
        rel=1e-11,
    )


def test_functions():
    assert gain(lambda x: np.maximum(x, 0), kinks=[0]) == 1.41421356237
    assert gain(np.tanh) == 1.59253741972
    assert gain(lambda x: np.maximum(x - 0.3, 0), "backward", kinks=(0.3,)) == pytest.approx(
        (0.5 * math.erfc(0.3 / ROOT2)) ** -0.5, rel=5e-12
    )
    # Without the kink a few digits fewer.
    assert gain(lambda x: np.maximum(x - 0.3, 0), "backward") == pytest.approx(
        (0.5 * math.erfc(0.3 / ROOT2)) ** -0.5, rel=1e-5
    )
    # E (1.5 − |σz|)² = 2.25 − bσ + σ² falls through 1, and rises through it later.
    b = 3 * math.sqrt(2 / math.pi)
    assert gain(lambda x: 1.5 - np.abs(x), "fixed_point", kinks=(0,)) == pytest.approx(
        (b - math.sqrt(b * b - 5)) / 2, rel=5e-12
    )


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        (("swish",), {}, ValueError, "one of linear"),
        (("relu", "forward"), {}, ValueError, "convention must be one of second_moment"),
        (("relu",), {"kinks": (0,)}, ValueError, "kinks= is for functions"),
        ((np.tanh,), {"kinks": (math.nan,)}, ValueError, "kinks must be a finite"),
        ((np.tanh,), {"kinks": ("a",)}, TypeError, "kinks must be a finite"),
        ((lambda x: 0 * x,), {}, ValueError, "no second_moment gain"),
        ((lambda x: 0 * x + 3.3, "variance"), {}, ValueError, "no variance gain"),
        ((lambda x: x * np.inf,), {}, ValueError, "no second_moment gain"),
        ((lambda x: np.log(x),), {}, ValueError, "no second_moment gain"),
        ((lambda x: 1.0,), {}, ValueError, "one of the same shape"),
        ((3,), {}, TypeError, "got 3"),
        (("leaky_relu(True)",), {}, TypeError, "slope of leaky_relu"),
    ],
)
def test_bad_gains(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        gain(*arguments, **keywords)


# --- laws ---


def test_xavier():
    shape = (512, 784)
    assert xavier_normal().std(shape) == pytest.approx(math.sqrt(2 / (784 + 512)), rel=1e-15)
    assert xavier_uniform().bound(shape) == pytest.approx(math.sqrt(6 / (784 + 512)), rel=1e-15)
    assert xavier_uniform().std(shape) == pytest.approx(xavier_normal().std(shape), rel=1e-15)
    assert xavier_normal().bound(shape) == math.inf
    assert xavier_normal(5 / 3) == xavier_normal(nonlinearity="tanh", convention="torch")
    assert xavier_normal(nonlinearity="tanh").std(shape) == pytest.approx(
        1.5925374197228315 * xavier_normal().std(shape), rel=1e-15
    )


def test_kaiming_is_that_of_relu_unless_told():
    assert kaiming_normal().std((512, 784)) == pytest.approx(math.sqrt(2 / 784), rel=1e-15)
    assert kaiming_normal() == kaiming_normal(nonlinearity="relu") == kaiming_normal(a=0)
    assert kaiming_normal() == kaiming_normal(a=0, nonlinearity="relu")
    assert kaiming_normal(a=0.2) == kaiming_normal(nonlinearity="leaky_relu(0.2)")
    assert kaiming_normal(a=0.2) == kaiming_normal(a=0.2, nonlinearity="leaky_relu")
    assert kaiming_normal(gain=1) == lecun_normal()
    assert kaiming_normal(nonlinearity=activation("gelu")) == kaiming_normal(nonlinearity="gelu")


def test_what_root_five_means():
    """pytorch 15314, 57109."""
    init = kaiming_uniform(a=math.sqrt(5))
    shape = (256, 512)
    assert init.rule.gain == pytest.approx(0.5773502692, abs=6e-11)
    assert init.bound(shape) == pytest.approx(0.0441941738, abs=6e-11)
    assert init.std(shape) == pytest.approx(0.0255155182, abs=6e-11)
    assert init.bound(shape) == pytest.approx(1 / math.sqrt(512), rel=1e-15)
    assert torch_linear().bound(shape) == pytest.approx(init.bound(shape), rel=1e-15)
    assert torch_linear().std(shape) ** 2 == pytest.approx(1 / (3 * 512), rel=1e-15)
    assert torch_linear().bound((256,), fan_in=512) == pytest.approx(1 / math.sqrt(512), rel=1e-15)


def test_scaled_by_the_side_that_sums():
    """pytorch 130122: a weight stored (in, out)."""
    assert kaiming_normal(in_axis=0).std((100, 10)) == pytest.approx(0.1414213562, abs=6e-11)
    assert kaiming_normal(in_axis=1).std((100, 10)) == pytest.approx(0.4472135955, abs=6e-11)


@pytest.mark.parametrize("init", [xavier_normal, xavier_uniform, kaiming_normal, torch_linear])
@pytest.mark.parametrize("shape", [(5,), (), 5])
def test_shapes_without_fans(init, shape):
    """pytorch: "can not be computed for tensor with fewer than 2 dimensions"."""
    with pytest.raises(ValueError, match=r"shape \(5?,?\) has no fans.*fan_in="):
        init().std(shape)
    with pytest.raises(ValueError, match=r"shape \(5?,?\) has no fans.*fan_in="):
        init()(shape, seed=0, name="bias")
    explicit = {"fan_in": 4, "fan_out": 4} if "xavier" in init.__name__ else {"fan_in": 4}
    values = init(**explicit)(shape, seed=0, name="bias")
    assert values.shape == ((5,) if shape != () else ())
    assert init(**explicit).std(shape) == init().std((4, 4))


def test_uniform_has_its_root_three():
    """tch-rs 573, tensorflow 19081."""
    shape = (256, 512)
    assert he_uniform().bound(shape) == pytest.approx(0.1082531755, abs=6e-11)
    assert he_uniform().std(shape) == pytest.approx(0.0625, rel=1e-15)
    assert he_uniform(mode="fan_out").bound(shape) == pytest.approx(0.1530931089, abs=6e-11)
    assert lecun_uniform().bound(shape) == pytest.approx(math.sqrt(3 / 512), rel=1e-15)
    values = he_uniform()(shape, seed=1, name="w", dtype="float64")
    assert 0.108 < np.abs(values).max() < he_uniform().bound(shape)
    # The standard error of the std of n uniform values is σ √(0.2/n).
    assert values.std() == pytest.approx(0.0625, abs=5 * 0.0625 * math.sqrt(0.2 / values.size))


def test_modes_of_variance_scaling():
    fan = {"fan_in": 512, "fan_out": 128, "fan_avg": 320, "fan_geo_avg": 256}
    assert fan.keys() == set(MODES)
    for mode, n in fan.items():
        for distribution in ("normal", "uniform"):
            init = variance_scaling(1.7, mode, distribution)
            assert init.std((128, 512)) == pytest.approx(math.sqrt(1.7 / n), rel=1e-15)
            assert variance_scaling(1.7, mode, distribution, fan_in=512, fan_out=128).std(
                ()
            ) == init.std((128, 512))
    assert variance_scaling(2, "fan_in", "normal") == kaiming_normal()
    assert variance_scaling(1, "fan_avg", "uniform") == xavier_uniform()
    # Only the fan that the mode needs is asked for, and an explicit one wins.
    assert kaiming_normal(fan_in=8).std((3,)) == 0.5
    assert kaiming_normal(fan_in=8).std((3, 5), fan_in=7) == 0.5
    assert xavier_normal(fan_in=6).std((2, 5)) == 0.5


def test_constants():
    for init, value in ((zeros(), 0.0), (ones(), 1.0), (constant(-2.5), -2.5)):
        assert (init.std(3), init.bound(3)) == (0.0, abs(value))
        assert np.array_equal(init((2, 3), seed=0, name="w"), np.full((2, 3), value, np.float32))
        assert init((), seed=0, name="w").shape == ()


def test_plain_laws():
    assert normal(0.02, 1).std(7) == 0.02
    assert normal(0.02, 1).bound(7) == math.inf
    assert normal(0, -1).bound(7) == 1.0
    assert uniform(-1, 3).std(()) == pytest.approx(4 / math.sqrt(12), rel=1e-15)
    assert uniform(-1, 3).bound(()) == 3
    assert uniform(-5, 3).law(()).mean == -1
    assert uniform(-1.7e308, 1.7e308).std(()) == pytest.approx(1.7e308 / math.sqrt(3), rel=1e-15)


def test_scaled_multiplies_every_value():
    assert kaiming_normal().scaled(1.5).std((4, 8)) == 0.75
    assert kaiming_normal().scaled(2).scaled(3) == kaiming_normal().scaled(6)
    assert uniform(1, 2).scaled(3).law(()) == module.Uniform(3.0, 6.0)
    assert normal(2, 1).scaled(0.5).law(()) == module.Normal(1.0, 0.5)
    assert constant(2).scaled(3).bound(()) == 6
    assert xavier_uniform().scaled(2).bound((3, 3)) == 2 * xavier_uniform().bound((3, 3))
    for init in (kaiming_uniform(), normal(), constant(1), uniform(1, 2)):
        values = init.scaled(0)((3, 3), seed=0, name="w")
        assert np.array_equal(values, np.zeros((3, 3)))
    for bad in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="factor must"):
            normal().scaled(bad)
    with pytest.raises(TypeError, match="factor must"):
        normal().scaled(True)
    with pytest.raises(ValueError, match="product of the factors"):
        normal().scaled(1e300).scaled(1e300)


REQUIRED = {
    "scale": 1,
    "mode": "fan_avg",
    "distribution": "uniform",
    "low": -1,
    "high": 1,
    "value": 2,
    "sparsity": 0.1,
    "hidden_size": 3,
}


def test_zero_size_shapes():
    """pytorch 48152, 73503."""
    for shape in ((0, 5), (5, 0), (0, 3, 3, 3), (3, 0, 3, 3), (3, 3, 0, 3)):
        for name, make in INITIALIZERS.items():
            if name in ("identity", "sparse") and len(shape) != 2:
                continue
            if name in ("dirac", "delta_orthogonal") and (len(shape) == 2 or shape[0] == 0):
                continue
            parameters = inspect.signature(make).parameters.values()
            init = make(**{p.name: REQUIRED[p.name] for p in parameters if p.default is p.empty})
            assert init(shape, seed=0, name="w").shape == shape
            assert math.isfinite(init.std(shape))
        for mode in MODES:
            init = variance_scaling(1, mode, "uniform")
            assert init(shape, seed=0, name="w").shape == shape
    for init in (normal(), uniform(-1, 1), truncated_normal(), constant(2), embedding()):
        assert init((0,), seed=0, name="w").shape == (0,)
    assert INITIALIZERS["dirac"]()((0, 3, 3), seed=0, name="w").shape == (0, 3, 3)


# --- what the kernels are given ---


def test_distributions():
    assert normal(0.1, 2).distribution((3,), "float32") == module.streams.Distribution(
        _core.NORMAL, float(np.float32(0.1)), 2.0
    )
    assert constant(0.1).distribution((3,), "float64") == module.streams.Distribution(
        _core.CONSTANT, shift=0.1
    )
    law = uniform(-1, 3).distribution((3,), np.float32)
    assert (law.kind, law.scale, law.shift) == (_core.UNIFORM, 2.0, 1.0)
    assert (law.low, law.high) == (-1.0, float(np.nextafter(np.float32(3), np.float32(0))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_of_a_uniform(dtype):
    rng = np.random.default_rng(1)
    edge = 1 - np.finfo(dtype).epsneg  # the largest |s| the kernel can have
    for _ in range(300):
        low, high = np.sort(rng.standard_normal(2)) * 10.0 ** rng.integers(-12, 12)
        law = uniform(low, high).distribution((), dtype)
        for s in (-edge, edge, 0.0, rng.uniform(-1, 1)):
            # In double precision, rounded once to the dtype: fma's result to within the clamp.
            value = dtype(
                np.clip(dtype(s * law.scale + law.shift), dtype(law.low), dtype(law.high))
            )
            assert low <= float(value) < high
            assert value < dtype(high)
        a = abs(high)
        law = uniform(-a, a).distribution((), dtype)
        assert (law.shift, law.low) == (0.0, -law.high)
        assert 0 < float(dtype(edge) * dtype(law.scale)) == law.high < a
        assert law.high < float(dtype(a))


def test_ranges_and_values_that_a_dtype_does_not_have():
    for init, message in (
        (uniform(1, 1 + 1e-12), "must have values in float32"),
        (uniform(-1e-60, 1e-60), "must have values in float32"),
        (uniform(0, 1e39), "upper end must be finite in float32"),
        (uniform(-1e39, 0), "lower end must be finite in float32"),
        (normal(1e39), "standard deviation must be finite in float32"),
        (normal(1, 1e39), "mean must be finite in float32"),
        (constant(-1e39), "value must be finite in float32"),
    ):
        out = np.full(3, 7.0, np.float32)
        with pytest.raises(ValueError, match=message):
            init(3, seed=0, name="w", out=out)
        assert np.array_equal(out, np.full(3, 7.0))
        assert np.isfinite(init(3, seed=0, name="w", dtype="float64")).all()
    # A range of subnormal numbers: both ends stay out.
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    values = uniform(-3 * tiny, 3 * tiny)(1000, seed=0, name="w")
    assert np.abs(values).max() <= np.float32(2 * tiny)


# --- drawing ---


def test_draws_follow_the_law():
    for init, mean, std in (
        (kaiming_normal(), 0, math.sqrt(2 / 200)),
        (normal(0.5, 3), 3, 0.5),
        (kaiming_uniform(a=math.sqrt(5)), 0, 1 / math.sqrt(600)),
        (uniform(2, 3), 2.5, 1 / math.sqrt(12)),
    ):
        for dtype in ("float32", np.float64):
            values = init((500, 200), seed=3, name="w", dtype=dtype).astype(np.float64)
            n = values.size
            assert abs(values.mean() - mean) < 5 * std / math.sqrt(n)
            assert abs(values.std() - std) < 5 * std / math.sqrt(2 * n)
            assert np.abs(values).max() <= init.bound((500, 200))


def test_name_trial_and_seed_choose_the_numbers():
    init = normal()
    first = init((4, 5), seed=1, name="a")
    assert first.dtype == np.float32
    assert np.array_equal(first, init((4, 5), seed=np.uint64(1), name="a", threads=3))
    for other in ({"seed": 2}, {"name": "b"}, {"name": 7}, {"trial": 1}):
        assert not np.array_equal(first, init((4, 5), **{"seed": 1, "name": "a", **other}))
    with pytest.raises(TypeError, match="name"):
        init((4, 5), seed=1)


def test_out():
    init = kaiming_normal()
    expected = init((6, 8), seed=1, name="a", dtype="float64")
    out = np.zeros((6, 8))
    assert init((6, 8), seed=1, name="a", out=out) is out
    assert np.array_equal(out, expected)
    strided = np.zeros((6, 16), order="F")[:, ::2]
    init((6, 8), seed=1, name="a", out=strided, dtype=np.float64)
    assert np.array_equal(strided, expected)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"dtype": "int64"}, TypeError, "float32, float64, float16, bfloat16, got 'int64'"),
        ({"dtype": int}, TypeError, "float32, float64"),
        ({"dtype": "complex64"}, TypeError, "float32, float64"),
        ({"dtype": "nothing"}, TypeError, "float32, float64, float16, bfloat16, got 'nothing'"),
        ({"dtype": ">f4"}, TypeError, "float32, float64"),
        ({"dtype": "float64", "out": np.zeros((2, 2), np.float32)}, TypeError, "float64"),
        ({"out": np.zeros((2, 2), int)}, TypeError, "float32, float64"),
        ({"out": np.zeros((2, 3))}, ValueError, "shape"),
        ({"seed": None}, TypeError, "seed"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": True}, TypeError, "seed"),
        ({"name": 1.5}, TypeError, "name"),
        ({"trial": -1}, ValueError, "trial"),
        ({"threads": 0}, ValueError, "threads"),
        ({"shape": (2, -2)}, ValueError, "negative sizes"),
        ({"shape": 2.0}, TypeError, "shape must be an integer"),
    ],
)
def test_bad_draws(keywords, error, message):
    """pytorch 180560, and its kind; nothing is written."""
    before = {k: v.copy() for k, v in keywords.items() if k == "out"}
    with pytest.raises(error, match=message):
        kaiming_normal()(**{"shape": (2, 2), "seed": 0, "name": "w", **keywords})
    for key, value in before.items():
        assert np.array_equal(keywords[key], value)


# --- values and specifications ---

SPELLED = {
    "kaiming_normal": kaiming_normal(),
    "kaiming_normal(mode='fan_out').scaled(1.5)": kaiming_normal(mode="fan_out").scaled(1.5),
    "kaiming_normal(nonlinearity='leaky_relu(0.2)')": kaiming_normal(
        nonlinearity=activation("leaky_relu(0.2)")
    ),
    "kaiming_uniform(a=0.5, in_axis=0, out_axis=(1, 2))": kaiming_uniform(
        a=0.5, in_axis=0, out_axis=[1, 2]
    ),
    "lecun_uniform(in_axis=(1, 2), out_axis=0)": lecun_uniform(
        in_axis=np.array([1, 2]), out_axis=np.array(0)
    ),
    "xavier_uniform(gain=2)": xavier_uniform(2.0),
    "xavier_normal(nonlinearity='tanh', convention='torch')": xavier_normal(
        nonlinearity="tanh", convention="torch"
    ),
    "lecun_normal(fan_in=3)": lecun_normal(fan_in=np.int64(3)),
    "normal(std=0.02)": normal(0.02, 0),
    "normal()": normal(1),
    "uniform(low=-1, high=3)": uniform(-1, np.float32(3)),
    "constant(value=0)": constant(-0.0),
    "zeros().scaled(2)": zeros().scaled(2),
    "torch_linear()": torch_linear(),
    "variance_scaling(scale=2, mode='fan_in', distribution='normal')": variance_scaling(
        2, "fan_in", "normal"
    ),
}


@pytest.mark.parametrize("text", SPELLED)
def test_the_repr_pastes_back(text):
    init = SPELLED[text]
    assert repr(init) == str(init) == (text if "(" in text else f"{text}()")
    names = {name: getattr(module, name) for name in INITIALIZERS}
    for other in (initializer(text), eval(repr(init), names), pickle.loads(pickle.dumps(init))):
        assert isinstance(other, Initializer)
        assert other == init
        assert hash(other) == hash(init)
        assert repr(other) == repr(init)
    assert initializer(init) is init


def test_values_differ():
    all_of_them = [*SPELLED.values(), kaiming_uniform(), normal(2), constant(1), ones().scaled(3)]
    distinct = set(all_of_them)
    # variance_scaling(2, …) is kaiming_normal(), however it is written.
    assert len(distinct) == len(all_of_them) - 1


def test_names():
    assert glorot_normal is xavier_normal
    assert glorot_uniform is xavier_uniform
    assert he_normal is kaiming_normal
    for name in INITIALIZERS:
        assert getattr(module, name).__doc__
    assert initializer("he_uniform") == he_uniform()
    assert "-> 'Initializer'" in str(inspect.signature(normal))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: normal(-1), ValueError, "std must not be negative, got -1"),
        (lambda: normal(math.nan), ValueError, "std must be a finite"),
        (lambda: normal(True), TypeError, "std must be a finite real number, got True"),
        (lambda: normal(1, math.inf), ValueError, "mean must be"),
        (lambda: uniform(1, 1), ValueError, "low must be less than high"),
        (lambda: uniform(2, 1), ValueError, "low must be less than high"),
        (lambda: uniform("a", 1), TypeError, "low must be"),
        (lambda: constant(math.nan), ValueError, "value must be"),
        (lambda: variance_scaling(-1, "fan_in", "normal"), ValueError, "scale must not be neg"),
        (lambda: variance_scaling(1, "fan", "normal"), ValueError, "mode must be .* got 'fan'"),
        (
            lambda: variance_scaling(1, "fan_in", "gauss"),
            ValueError,
            "distribution must be one of normal, uniform, truncated_normal, got 'gauss'",
        ),
        (lambda: kaiming_normal(fan_in=0), ValueError, "fan_in must be at least 1"),
        (lambda: kaiming_normal(fan_in=2.0), TypeError, "fan_in must be an integer"),
        (lambda: kaiming_normal(fan_out=True), TypeError, "fan_out must be an integer"),
        (lambda: kaiming_normal(in_axis="a"), TypeError, "in_axis must be an integer"),
        (lambda: kaiming_normal(gain=-1), ValueError, "gain must not be negative"),
        (lambda: kaiming_normal(gain=1, a=1), ValueError, "gain= must be given alone"),
        (lambda: kaiming_normal(gain=1, nonlinearity="relu"), ValueError, "given alone"),
        (lambda: kaiming_normal(a=True), TypeError, "a must be a finite real number"),
        (lambda: kaiming_normal(a=1, nonlinearity="tanh"), ValueError, "a= must be given with"),
        (lambda: kaiming_normal(a=1, nonlinearity="relu"), ValueError, "a= must be given with"),
        (lambda: kaiming_normal(nonlinearity="swish"), ValueError, "one of linear"),
        (lambda: kaiming_normal(nonlinearity=np.tanh), TypeError, "specification"),
        (lambda: kaiming_normal(nonlinearity="gelu", convention="torch"), ValueError, "torch"),
        (lambda: xavier_normal(nonlinearity="tanh", convention="x"), ValueError, "convention"),
        (lambda: initializer("kaiming"), ValueError, "one of normal, uniform"),
        (lambda: initializer("kaiming_normal(std=1)"), ValueError, "takes nonlinearity, mode, a"),
        (lambda: initializer("uniform(1)"), ValueError, "takes low, high"),
        (lambda: initializer("zeros(1)"), ValueError, "takes no arguments"),
        (lambda: initializer("normal(std=-1)"), ValueError, "std must not be negative"),
        (lambda: initializer("normal().scaled(-1)"), ValueError, "factor must not be negative"),
        (lambda: initializer(3), TypeError, "got 3"),
    ],
)
def test_bad_initializers(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_minus_zero_is_zero():
    """They are equal, hash alike and are spelled alike, so they also draw alike."""
    for value in (0.0, -0.0):
        assert not np.signbit(constant(value)((2,), seed=0, name="c")).any()


def test_a_huge_slope_does_not_overflow():
    assert gain("leaky_relu(1e200)") == pytest.approx(math.sqrt(2) * 1e-200, rel=1e-15)
    assert gain("leaky_relu(1e200)", "variance") == pytest.approx(
        (0.5 - 0.5 / math.pi) ** -0.5 * 1e-200, rel=1e-15
    )
