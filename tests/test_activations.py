# SPDX-License-Identifier: BSD-3-Clause
"""The activation kernels: φ and φ′ within their ulps of the reference, the same bits anywhere."""

from functools import cache

import numpy as np
import pytest

from initcore.reference import activations as reference
from initcore.reference import ulps
from initcore.reference.tolerances import ACTIVATION_ULPS, activation_floor
from kernel_calls import ACTIVATION_IDS, DEFAULT_PARAMETERS, EDGES, activate, same_bits

NAMES = list(ACTIVATION_IDS)


def grid(dtype):
    """Both sides of everything: dense in the middle, every exponent, kinks, ends, specials."""
    rng = np.random.default_rng(7)
    info = np.finfo(dtype)
    exponents = rng.uniform(np.log2(info.smallest_subnormal), info.maxexp - 1e-6, 3000)
    kinks = np.array([0.0, 1.0, 3.0, 6.0], dtype)
    return np.concatenate([
        rng.uniform(-12, 12, 6000),
        rng.uniform(-110, 110, 2000),
        np.exp2(exponents) * rng.choice([-1, 1], 3000),
        [np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, -info.tiny,
         info.smallest_subnormal, -info.smallest_subnormal, 0.0, -0.0],
        kinks, -kinks,
        np.nextafter(kinks, dtype.type(np.inf)), np.nextafter(kinks, dtype.type(-np.inf)),
        -np.nextafter(kinks, dtype.type(np.inf)), -np.nextafter(kinks, dtype.type(-np.inf)),
    ]).astype(dtype)  # fmt: skip


@cache
def judged(name, derivative, dtype):
    """(x, exact value, floor of the ulp) on the grid."""
    x = grid(np.dtype(dtype))
    if name == "sin":  # larger arguments have a test of their own
        x = x[(np.abs(x) <= 1e4) | ~np.isfinite(x)]
    floor = activation_floor(name, x, derivative=derivative)
    return x, reference.activate(x, name, derivative=derivative), floor


@pytest.mark.parametrize("derivative", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_within_ulps_of_the_reference(kernels, name, derivative, dtype):
    x, exact, floor = judged(name, derivative, dtype.name)
    error = ulps(activate(kernels, x, name, derivative=derivative), exact, floor=floor)
    worst = np.argmax(error)
    stated = ACTIVATION_ULPS[name][derivative]
    assert error[worst] <= stated, f"{error[worst]:.1f} ulp at x = {x[worst]!r}"


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_set_gives_the_same_bits(every_isa, name, dtype):
    x = np.concatenate([grid(dtype), np.array([1e6, -1e9, 1e30], dtype)])
    for derivative in (False, True):
        values = [activate(k, x, name, derivative=derivative) for k in every_isa]
        assert all(same_bits(values[0], other) for other in values)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_does_not_depend_on_its_place(kernels, name, dtype):
    """Every length gives the values of the whole, also in place."""
    x = np.random.default_rng(1).normal(size=max(EDGES)).astype(dtype) * 3
    for derivative in (False, True):
        whole = activate(kernels, x, name, derivative=derivative)
        parameter = DEFAULT_PARAMETERS.get(name, 0.0)
        for n in EDGES:
            part = x[:n].copy()
            assert same_bits(activate(kernels, part, name, derivative=derivative), whole[:n])
            kernels.activate(part, part, ACTIVATION_IDS[name], parameter, derivative)
            assert same_bits(part, whole[:n])


def test_sin_of_large_arguments(kernels, dtype):
    """Absolute error 4 eps to the end of the range."""
    rng = np.random.default_rng(3)
    x = np.exp2(rng.uniform(10, np.finfo(dtype).maxexp - 1e-6, 2000)).astype(dtype)
    for derivative in (False, True):
        exact = reference.activate(x, "sin", derivative=derivative)
        error = np.abs(activate(kernels, x, "sin", derivative=derivative) - exact)
        assert np.max(error) <= 4 * np.finfo(dtype).eps


@pytest.mark.parametrize(
    ("name", "x", "slope"),
    [
        ("relu", 0.0, 0.0), ("relu", -0.0, 0.0), ("leaky_relu", 0.0, 0.01), ("elu", 0.0, 1.0),
        ("selu", 0.0, 1.7580993408473768), ("hardtanh", 1.0, 0.0), ("hardtanh", -1.0, 0.0),
        ("hardswish", -3.0, 0.0), ("hardswish", 3.0, 1.0), ("relu2", 0.0, 0.0),
    ],
)  # fmt: skip
def test_derivatives_at_kinks(kernels, dtype, name, x, slope):
    value = activate(kernels, np.array([x], dtype), name, derivative=True)[0]
    assert value == pytest.approx(slope, rel=4 * float(np.finfo(dtype).eps), abs=0)


LIMITS = {
    "linear": (-np.inf, np.inf), "leaky_relu": (-np.inf, np.inf), "tanh": (-1, 1),
    "sigmoid": (0, 1), "elu": (-1, np.inf), "softsign": (-1, 1), "erf": (-1, 1),
    "sin": (np.nan, np.nan), "hardtanh": (-1, 1), "selu": (-1.7580993408473768, np.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_infinities_give_the_limits_and_nan_stays(kernels, dtype, name):
    value = activate(kernels, np.array([-np.inf, np.inf, np.nan], dtype), name)
    expected = np.array(LIMITS.get(name, (0, np.inf)), dtype)
    assert np.allclose(value[:2], expected, rtol=4 * np.finfo(dtype).eps, atol=0, equal_nan=True)
    assert np.isnan(value[2])
    assert np.isnan(activate(kernels, np.array([np.nan], dtype), name, derivative=True)[0])


@pytest.mark.parametrize(("name", "parameter"), [
    ("leaky_relu", 0.0), ("leaky_relu", 0.2), ("leaky_relu", 1.5), ("leaky_relu", -0.5),
    ("elu", 0.5), ("elu", 2.0),
])  # fmt: skip
def test_parameters(kernels, dtype, name, parameter):
    x = grid(dtype)
    for derivative in (False, True):
        exact = reference.activate(x, name, parameter, derivative)
        value = activate(kernels, x, name, parameter, derivative)
        assert np.max(ulps(value, exact)) <= ACTIVATION_ULPS[name][derivative]


def test_relu_and_linear_are_exact(kernels, dtype):
    """Sign of zero included: relu(−0) is −0, as max(x, 0) by `0 > x ? 0 : x` gives."""
    x = grid(dtype)
    assert same_bits(activate(kernels, x, "linear"), x)
    assert same_bits(activate(kernels, x, "relu"), np.where(x < 0, dtype.type(0), x))
