# SPDX-License-Identifier: BSD-3-Clause
"""Gains: the factors by which weights make up for an activation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from initcore import fixed_points, quadrature
from initcore.activations import ACTIVATIONS, Activation
from initcore.activations import activation as find_activation
from initcore.specifications import finite_number

CONVENTIONS = ("second_moment", "variance", "backward", "fixed_point", "torch")

# second_moment, variance, backward and fixed_point of each activation with its default parameter;
# those of linear, relu and leaky_relu have closed forms. None: there is no fixed point.
# tools/derive_gains.py: begin
_GAINS: dict[str, tuple[float, float, float, float | None]] = {
    "tanh": (1.5925374197228315, 1.5925374197228315, 1.467413591630795, None),
    "sigmoid": (1.8462285453386054, 4.801313372039962, 4.722646085937974, None),
    "elu": (1.2451983007007066, 1.2708434178501964, 1.223428557552621, 1.2779600754047147),
    "selu": (1.0, 1.0, 0.9660257769739011, 1.0),
    "gelu": (1.5335304411955353, 1.7009262433633332, 1.4811144127083482, 1.4680112605467932),
    "gelu_tanh": (1.533580521666147, 1.7009165616954505, 1.4811680580933506, 1.467960758246148),
    "silu": (1.676532470331091, 1.787187222100442, 1.6233202579524972, 1.5587599300694919),
    "mish": (1.486847581273208, 1.5920253810994462, 1.4447552325473194, 1.4514912399603466),
    "softplus": (1.0418668355353018, 1.9191259801076563, 1.8462285453386054, 1.0831218815076133),
    "softsign": (2.3375333631085398, 2.3375333631085398, 2.095780608943311, None),
    "erf": (1.4671669504891387, 1.4671669504891387, 1.3252183528612111, None),
    "sin": (1.5208666231788148, 1.5208666231788148, 1.327250600284575, None),
    "hardtanh": (1.3920361404483097, 1.3920361404483097, 1.2102870624325224, None),
    "hardswish": (1.7366572127665416, 1.8138714738131827, 1.6700763674413823, 1.5671838351787897),
    "relu2": (0.816496580927726, 0.8944271909999159, 0.7071067811865476, 0.9036020036098449),
}
# tools/derive_gains.py: end

# torch.nn.init.calculate_gain; leaky_relu's depends on the slope.
_TORCH_GAINS = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}
_IN_TORCH = f"{', '.join(_TORCH_GAINS)} and leaky_relu"


def gain(
    activation: str | Activation | Callable[[npt.NDArray[np.float64]], Any],
    convention: str = "second_moment",
    *,
    kinks: Sequence[float] = (),
) -> float:
    """The factor by which weights of standard deviation gain/√fan make up for an activation φ.

    Parameters
    ----------
    activation
        A specification such as ``"leaky_relu(0.2)"``, an :class:`Activation`, or a function that
        maps a float64 array (n,) to an array (n,).
    convention
        With z ~ N(0, 1): ``second_moment`` 1/√E[φ(z)²], ``variance`` 1/√Var φ(z), ``backward``
        1/√E[φ′(z)²], ``fixed_point`` the σ with E[φ(σz)²] = 1, at which a deep chain of this gain
        settles with activations of second moment 1, and ``torch`` what torch.nn.init.calculate_gain
        has for the few it knows.
    kinks
        The points where a function, or a derivative of it, jumps. With them its gain has 12 digits.

    Built-in activations with their default parameter, and leaky_relu with any, have full precision;
    the gains of others, by quadrature, are rounded to 12 digits, so that weights drawn with them
    are the same on every machine.

    Raises ValueError for an unknown name, where there is no fixed point, for an activation torch
    does not have, and for a function that is constant (variance, backward) or whose expectation is
    not finite.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
    if callable(activation) and not isinstance(activation, Activation):
        if convention == "torch":
            raise ValueError(f"convention 'torch' has a gain for {_IN_TORCH}, not for a function")
        kinks = tuple(finite_number("kinks", kink) for kink in kinks)
        slope = functools.partial(quadrature.gaussian_squared_slope, activation, kinks)
        return _quadrature_gain(activation, convention, kinks, slope)
    known = find_activation(activation)
    if len(kinks):
        raise ValueError(f"kinks= is for functions, {known} knows its own; got {kinks!r}")
    if convention == "torch" and known.name in _TORCH_GAINS:
        return _TORCH_GAINS[known.name]
    if convention == "torch" and known.name != "leaky_relu":
        raise ValueError(f"convention 'torch' has a gain for {_IN_TORCH}, not for {known}")
    if known.name in ("linear", "relu", "leaky_relu"):
        negative_slope = {"linear": 1.0, "relu": 0.0}.get(known.name, known.parameter)
        return _piecewise_linear_gain(negative_slope, convention)
    if known == ACTIVATIONS[known.name]:
        value = _GAINS[known.name][CONVENTIONS.index(convention)]
        if value is None:
            raise ValueError(_no_fixed_point(known))
        return value

    def squared_slope() -> float:
        return quadrature.gaussian_mean(lambda x: known.derivative(x) ** 2, 1.0, known.kinks)

    return _quadrature_gain(known, convention, known.kinks, squared_slope)


def _no_fixed_point(function: object) -> str:
    return f"activation {function} has no fixed point: at no sigma is E φ(sigma z)² = 1"


def _piecewise_linear_gain(slope: float, convention: str) -> float:
    """The gain of slope·x below 0 and x above: for all conventions the same, but for `variance`."""
    larger = max(1.0, abs(slope))  # whose square might overflow
    above, below = 1.0 / larger, slope / larger
    square = above * above + below * below
    if convention == "variance":
        return 1.0 / math.sqrt(square * (0.5 - 0.5 / math.pi) + above * below / math.pi) / larger
    return math.sqrt(2.0 / square) / larger


def _quadrature_gain(
    function: quadrature.Function,
    convention: str,
    kinks: Sequence[float],
    squared_slope: Callable[[], float],
) -> float:
    if convention == "fixed_point":
        return _rounded(_fixed_point(function, kinks))
    if convention == "backward":
        expectation = squared_slope()
    else:
        moments = quadrature.gaussian_moments(function, 1.0, kinks)
        expectation = moments.second_moment
        if convention == "variance":
            # A constant has the variance of its rounding errors.
            expectation = moments.variance if moments.variance > 1e-24 * expectation else 0.0
    if not 0.0 < expectation < math.inf:
        raise ValueError(
            f"activation {function} has no {convention} gain: "
            f"its expectation must be positive and finite, it is {expectation}"
        )
    return _rounded(1.0 / math.sqrt(expectation))


def _rounded(value: float) -> float:
    return float(f"{value:.12g}")


def _fixed_point(function: quadrature.Function, kinks: Sequence[float]) -> float:
    sigma = fixed_points.fixed_point(function, kinks)
    if sigma is None:
        raise ValueError(_no_fixed_point(function))
    return sigma
