# SPDX-License-Identifier: BSD-3-Clause
"""The activations φ and their derivatives φ′, from their definitions, in wide precision.

Every formula is arranged so that nothing cancels but where φ′ itself passes through zero (gelu,
gelu_tanh, silu, mish, hardswish, sin): there the error is relative to the terms, elsewhere to the
value. On x86 it is below 0.02 float64 ulp, but in the far negative tail of gelu_tanh, whose
exponent is a cubic: half an ulp there. Limits at ±∞ and conventions at kinks are the ones a user
of PyTorch expects; NaN stays NaN.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACTIVATIONS", "PARAMETERS", "activate", "erf", "erfc"]

Wide: TypeAlias = Any  # an array of numpy.longdouble, whose type differs between platforms
Function = Callable[[Wide, np.longdouble], Wide]

PI = np.longdouble("3.14159265358979323846264338327950288")
SQRT_2 = np.sqrt(np.longdouble(2))
SQRT_PI = np.sqrt(PI)
SELU_LAMBDA = np.longdouble("1.0507009873554804934193349852946")
SELU_ALPHA = np.longdouble("1.6732632423543772848170429916717")
CUBIC = np.longdouble("0.044715")

SERIES_TERMS = 60
FRACTION_TERMS = 300
ERF_MEETS_ERFC = 1.25


# --- building blocks -------------------------------------------------------------------------


def _gaussian(x: Wide, over: int = 1) -> Wide:
    """exp(−x²/over), with x² in two parts: one rounding of x² would cost x² ulps."""
    x = np.clip(x, -200, 200)
    high = x.astype(np.float32).astype(np.longdouble)  # its square is exact
    return np.exp(-high * high / over) * np.exp(-(x - high) * (x + high) / over)


def _scaled_erfc(x: Wide) -> Wide:
    """exp(x²) erfc(x) for x ≥ 1.25, by its continued fraction from the far end."""
    tail = x
    for k in range(FRACTION_TERMS, 0, -1):
        tail = x + np.longdouble(k) / 2 / tail
    return 1 / (SQRT_PI * tail)


def _erf_series(x: Wide) -> Wide:
    """erf(x) = 2/√π e^(−x²) Σ 2^n x^(2n+1)/(2n+1)!!, for |x| ≤ 1.25; all terms of one sign."""
    term = x
    total = x
    for k in range(1, SERIES_TERMS):
        term = term * (2 * x * x / (2 * k + 1))
        total = total + term
    return 2 / SQRT_PI * _gaussian(x) * total


def _erfc_positive(x: Wide, gaussian: Wide) -> Wide:
    far = np.maximum(x, ERF_MEETS_ERFC)
    near = np.minimum(x, ERF_MEETS_ERFC)
    return np.where(x > ERF_MEETS_ERFC, gaussian * _scaled_erfc(far), 1 - _erf_series(near))


def erfc(x: Wide) -> Wide:
    """The complementary error function; relative error below 2^-58 on x86, also in the tail."""
    positive = _erfc_positive(np.abs(x), _gaussian(x))
    return np.where(x < 0, 2 - positive, positive)


def erf(x: Wide) -> Wide:
    """The error function; relative error below 2^-60 on x86."""
    small = np.clip(x, -ERF_MEETS_ERFC, ERF_MEETS_ERFC)
    far = np.copysign(1 - erfc(np.abs(x)), x)
    return np.where(np.abs(x) <= ERF_MEETS_ERFC, _erf_series(small), far)


def _normal_cdf(x: Wide) -> Wide:
    """Φ(x), from whichever tail is nearer."""
    tail = _erfc_positive(np.abs(x) / SQRT_2, _gaussian(x, over=2)) / 2
    return np.where(x < 0, tail, 1 - tail)


def _logistic(x: Wide) -> Wide:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _logistic_derivative(x: Wide) -> Wide:
    e = np.exp(-np.abs(x))
    return e / (1 + e) ** 2


def _times(x: Wide, factor: Wide) -> Wide:
    """x·factor where the factor dies faster than x grows: −∞ gives 0."""
    return np.where(np.isneginf(x), 0, x * factor)


# --- φ and φ′ --------------------------------------------------------------------------------


def _linear(x: Wide, _: np.longdouble) -> Wide:
    return x


def _linear_d(x: Wide, _: np.longdouble) -> Wide:
    return np.ones_like(x)


def _relu(x: Wide, _: np.longdouble) -> Wide:
    return np.where(x < 0, 0, x)


def _relu_d(x: Wide, _: np.longdouble) -> Wide:
    return np.where(x > 0, 1, 0)


def _leaky_relu(x: Wide, slope: np.longdouble) -> Wide:
    return np.where(x > 0, x, slope * x)


def _leaky_relu_d(x: Wide, slope: np.longdouble) -> Wide:
    return np.where(x > 0, 1, slope)


def _tanh(x: Wide, _: np.longdouble) -> Wide:
    return np.tanh(x)


def _tanh_d(x: Wide, _: np.longdouble) -> Wide:
    return 4 * _logistic_derivative(2 * x)


def _sigmoid(x: Wide, _: np.longdouble) -> Wide:
    return _logistic(x)


def _sigmoid_d(x: Wide, _: np.longdouble) -> Wide:
    return _logistic_derivative(x)


def _elu(x: Wide, alpha: np.longdouble) -> Wide:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _elu_d(x: Wide, alpha: np.longdouble) -> Wide:
    return np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0)))


def _selu(x: Wide, _: np.longdouble) -> Wide:
    return SELU_LAMBDA * _elu(x, SELU_ALPHA)


def _selu_d(x: Wide, _: np.longdouble) -> Wide:
    return SELU_LAMBDA * _elu_d(x, SELU_ALPHA)


def _gelu(x: Wide, _: np.longdouble) -> Wide:
    return _times(x, _normal_cdf(x))


def _gelu_d(x: Wide, _: np.longdouble) -> Wide:
    bounded = np.clip(x, -200, 200)
    return _normal_cdf(x) + bounded * _gaussian(x, over=2) / np.sqrt(2 * PI)


def _gelu_tanh_exponent(x: Wide) -> tuple[Wide, Wide]:
    """2u and its derivative, where ½(1 + tanh u) = logistic(2u); beyond ±200 nothing changes."""
    x = np.clip(x, -200, 200)
    factor = np.sqrt(8 / PI)
    return factor * (x + CUBIC * x**3), factor * (1 + 3 * CUBIC * x * x)


def _gelu_tanh(x: Wide, _: np.longdouble) -> Wide:
    return _times(x, _logistic(_gelu_tanh_exponent(x)[0]))


def _gelu_tanh_d(x: Wide, _: np.longdouble) -> Wide:
    exponent, slope = _gelu_tanh_exponent(x)
    bounded = np.clip(x, -200, 200)
    return _logistic(exponent) + bounded * slope * _logistic_derivative(exponent)


def _silu(x: Wide, _: np.longdouble) -> Wide:
    return _times(x, _logistic(x))


def _silu_d(x: Wide, _: np.longdouble) -> Wide:
    # The product dies at both ends; the bound only keeps ∞·0 out of it.
    bounded = np.clip(x, -11000, 11000)
    return _logistic(x) * (1 + bounded * _logistic(-x))


def _tanh_softplus(x: Wide) -> tuple[Wide, Wide]:
    """t = tanh(ln(1 + e^x)) and 1 − t², by e = e^(−|x|): no overflow, no cancellation."""
    e = np.exp(-np.abs(x))
    numerator = np.where(x < 0, e * (e + 2), 1 + 2 * e)
    denominator = np.where(x < 0, numerator + 2, 1 + 2 * e + 2 * e * e)
    complement = np.where(x < 0, 4, 4 * e * e) * (1 + e) ** 2 / denominator**2
    return numerator / denominator, complement


def _mish(x: Wide, _: np.longdouble) -> Wide:
    return _times(x, _tanh_softplus(x)[0])


def _mish_d(x: Wide, _: np.longdouble) -> Wide:
    t, complement = _tanh_softplus(x)
    bounded = np.clip(x, -11000, 11000)
    return t + bounded * complement * _logistic(x)


def _softplus(x: Wide, _: np.longdouble) -> Wide:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _softplus_d(x: Wide, _: np.longdouble) -> Wide:
    return _logistic(x)


def _softsign(x: Wide, _: np.longdouble) -> Wide:
    return np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x)))


def _softsign_d(x: Wide, _: np.longdouble) -> Wide:
    return 1 / (1 + np.abs(x)) ** 2


def _erf(x: Wide, _: np.longdouble) -> Wide:
    return erf(x)


def _erf_d(x: Wide, _: np.longdouble) -> Wide:
    return 2 / SQRT_PI * _gaussian(x)


def _sin(x: Wide, _: np.longdouble) -> Wide:
    return np.sin(x)


def _sin_d(x: Wide, _: np.longdouble) -> Wide:
    return np.cos(x)


def _hardtanh(x: Wide, _: np.longdouble) -> Wide:
    return np.clip(x, -1, 1)


def _hardtanh_d(x: Wide, _: np.longdouble) -> Wide:
    return np.where(np.abs(x) < 1, 1, 0)


def _hardswish(x: Wide, _: np.longdouble) -> Wide:
    return np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6))


def _hardswish_d(x: Wide, _: np.longdouble) -> Wide:
    return np.where(x <= -3, 0, np.where(x >= 3, 1, (2 * x + 3) / 6))


def _relu2(x: Wide, _: np.longdouble) -> Wide:
    return np.maximum(x, 0) ** 2


def _relu2_d(x: Wide, _: np.longdouble) -> Wide:
    return 2 * np.maximum(x, 0)


ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "linear": (_linear, _linear_d),
    "relu": (_relu, _relu_d),
    "leaky_relu": (_leaky_relu, _leaky_relu_d),
    "tanh": (_tanh, _tanh_d),
    "sigmoid": (_sigmoid, _sigmoid_d),
    "elu": (_elu, _elu_d),
    "selu": (_selu, _selu_d),
    "gelu": (_gelu, _gelu_d),
    "gelu_tanh": (_gelu_tanh, _gelu_tanh_d),
    "silu": (_silu, _silu_d),
    "mish": (_mish, _mish_d),
    "softplus": (_softplus, _softplus_d),
    "softsign": (_softsign, _softsign_d),
    "erf": (_erf, _erf_d),
    "sin": (_sin, _sin_d),
    "hardtanh": (_hardtanh, _hardtanh_d),
    "hardswish": (_hardswish, _hardswish_d),
    "relu2": (_relu2, _relu2_d),
}
PARAMETERS = {"leaky_relu": 0.01, "elu": 1.0}


def activate(
    x: NDArray[Any], name: str, parameter: float | None = None, derivative: bool = False
) -> Wide:
    """φ(x), or φ′(x), elementwise and unrounded.

    x: floats of any precision, taken as exact; parameter: the slope of leaky_relu, the alpha of
    elu (None: the default).
    """
    wide = np.asarray(x, dtype=np.longdouble)
    if parameter is None:
        parameter = PARAMETERS.get(name, 0.0)
    with np.errstate(all="ignore"):
        value = ACTIVATIONS[name][derivative](wide, np.longdouble(parameter))
    return np.where(np.isnan(wide), wide, value)
