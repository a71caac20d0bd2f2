# SPDX-License-Identifier: BSD-3-Clause
"""What a chain does with its signal in the limit of wide layers, computed layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from initcore import architecture
from initcore.architecture import each_activation, each_layer
from initcore.initializers import Initializer, initializer
from initcore.kernels.arrays import check_array
from initcore.laws import Constant, Law
from initcore.results.layers import ChainLayers, LayerStats
from initcore.specifications import finite_number, integer, non_negative_number
from initcore.structures import Moments
from initcore.theory.expectations import Expectations, Nonlinearity, Phi, is_function, nonlinearity
from initcore.theory.rows import Rows, groups

_UNKNOWN = Constant(math.nan)
_UNKNOWN_ROWS = Rows(math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class Prediction(ChainLayers):
    """Statistics by layer at infinite width, arrays of length L.

    pre, post
        mean, second moment and variance of the pre-activations h and of the activations x, and the
        cosine of two rows of the batch.
    grad_pre, grad_post
        the same of ∂/∂h and ∂/∂x for a standard normal gradient ∂/∂x of the last layer; None
        without ``backward``.
    grad_weight
        the second moment of ∂/∂W, summed over the batch; None without ``backward``.
    """


class _Layer(NamedTuple):
    n_in: int
    n_out: int
    phi: Nonlinearity
    weight: Law | Moments
    bias: Law | Moments
    norm: str | None
    residual: float | None  # the multiplier of the branch


class _Transport(NamedTuple):
    """What of a layer's forward pass the backward pass needs."""

    input_energy: float  # E x̂², of what the weights see
    scale: float  # the energy by which the norm divides, 1 without
    squared_slope: float  # E φ′(h)²


class _Moments(NamedTuple):
    """Statistics of a layer."""

    mean: float
    second_moment: float
    variance: float
    cosine: float


_NOTHING_KNOWN = _Moments(math.nan, math.nan, math.nan, math.nan)
_NO_TRANSPORT = _Transport(math.nan, math.nan, math.nan)


def predict(
    widths: Sequence[int],
    *,
    activation: Phi | Sequence[Phi] = "relu",
    init: str
    | Initializer
    | Callable[..., Any]
    | Sequence[str | Initializer | Callable[..., Any]] = "kaiming_normal",
    bias: str | Initializer | Sequence[str | Initializer | None] | None = None,
    last: Phi | None = None,
    norm: str | Sequence[str | None] | None = None,
    residual: float | bool | str | Sequence[float | bool | str | None] | None = None,
    x: npt.ArrayLike | None = None,
    batch: int | None = None,
    correlation: float = 0.0,
    input_second_moment: float = 1.0,
    backward: bool = False,
    kinks: Sequence[float] = (),
) -> Prediction:
    """Predict a chain's moments, forward and backward.

    A layer is h = W norm(x) + b, then x ← φ(h), or x + m φ(h) with ``residual=m``. Its
    pre-activations are N(mean b, q) with

        q = n_in Var(W) E[x̂²] + Var(b),    x̂ = x, x/√E[x²] (rms) or (x − E x)/√Var x (layer).

    Backward, a gradient of second moment G at x has G E φ′(h)² m² at h, and that, times
    n_out Var(W) and divided by the norm's scale, at the x below; around a residual branch comes G
    itself. (Poole et al. 2016; Schoenholz et al. 2017.) All of it is exact in the limit of wide
    layers, with Var(W) and Var(b) what the initializers give these very widths.

    Parameters
    ----------
    widths
        n_0, …, n_L: the inputs and L layers.
    activation
        A specification, an :class:`Activation` or a function that maps a float64 array (n,) to an
        array (n,); or a list of L of them.
    init, bias
        The initializer of the weights (n_out, n_in) and of the biases (n_out,), whose fans are the
        weights'; or a list of L. None is no bias. A function that gives weights has no known law.
    last
        The activation of the last layer, if it is another.
    norm
        None, ``"rms"`` or ``"layer"`` (without gain and bias); or a list of L.
    residual
        None, or the multiplier m of the branch: a number, True for 1, or ``"1/sqrt(L)"``; or a
        list of L. Such a layer is as wide as its input.
    x
        The inputs (batch, n_0), if they are known; without, they have mean 0. Rows are predicted by
        their own mean and second moment where these have up to eight values, of more in up to eight
        groups of near ones; cosines from the mean cosine of their pairs, as if each pair had that
        and were of equal norm.
    batch
        Inputs over which the gradients of the weights are summed, 32 or the rows of ``x``; one has
        no cosine.
    correlation, input_second_moment
        Of any two inputs, from −1 to 1, and E[x²]; of ``x``, they are what they are, and left out.
    backward
        Predict the gradients too.
    kinks
        Where the functions among the activations, or their derivatives, jump. Without, it is looked
        for within several of 0.

    Weights whose mean is not zero carry the sum of a layer's activations, which no wide limit has:
    what has passed them is NaN, and so is what has passed weights that a function gives; around
    them, beside a branch of multiplier 0, it is known. A norm makes zeros of a row of zeros, which
    has no derivative there: 0 is taken for it. Raises ValueError for widths, lists and
    specifications that do not fit.
    """
    layers = _layers(widths, activation, init, bias, last, norm, residual, kinks)
    given = None if x is None else check_array("x", x)
    if given is not None and (given.ndim != 2 or given.shape[1] != widths[0] or not len(given)):
        raise ValueError(f"x must have shape (batch, {widths[0]}), got {given.shape}")
    rows_of_x = 32 if given is None else len(given)
    batch = rows_of_x if batch is None else integer("batch", batch)
    if batch < 1 or (given is not None and batch != rows_of_x):
        accepted = "a positive integer" if given is None else f"{rows_of_x}, the rows of x"
        raise ValueError(f"batch must be {accepted}, got {batch}")
    for name, value, without in (
        ("correlation", correlation, 0.0), ("input_second_moment", input_second_moment, 1.0)
    ):  # fmt: skip
        if given is not None and value != without:
            raise ValueError(f"{name} must be left out where x is given, got {value!r}")
    if not isinstance(backward, bool | np.bool_):
        raise TypeError(f"backward must be True or False, got {backward!r}")
    entering = _entering(correlation, input_second_moment)

    @cache  # a chain at its critical point, or that has settled, asks for the same again
    def expectations(phi: Nonlinearity, q: float, mean: float) -> Expectations:
        return phi.at(q, mean)

    shares, tables, gradients = [], [], []
    for share, rows in [(1.0, entering)] if given is None else groups(given):
        table, transports = _forward(layers, rows, expectations, batch, backward)
        shares.append(share)
        tables.append(table)
        if backward:
            gradients.append(_backward(layers, transports, batch))
    pre, post = (
        _together(np.array(shares), np.array(side), batch) for side in zip(*tables, strict=True)
    )
    if not backward:
        return Prediction(pre, post)
    at_h, at_x, at_weights = np.tensordot(shares, np.array(gradients), 1).T
    unknown = np.array(np.nan)
    return Prediction(
        pre,
        post,
        _independent(at_h, batch),
        _independent(at_x, batch),
        LayerStats(unknown, at_weights, unknown),
    )


def _forward(
    layers: Sequence[_Layer],
    rows: Rows,
    expectations: Callable[[Nonlinearity, float, float], Expectations],
    batch: int,
    backward: bool,
) -> tuple[tuple[list[_Moments], list[_Moments]], list[_Transport]]:
    """The moments of h and of x by layer, for rows that are alike."""
    pre, post, transports = [], [], []
    for layer in layers:
        scale, unit, product = _seen(rows, layer.norm)
        # Roots first: the variance of the weights may underflow where its product does not.
        root = math.sqrt(layer.n_in * unit) * layer.weight.std
        bias_variance = _square(layer.bias.std)
        q = root * root + bias_variance
        if layer.weight.mean != 0.0 or math.isnan(q):
            pre.append(_NOTHING_KNOWN)
            transports.append(_NO_TRANSPORT)
            if layer.residual != 0.0:
                rows = _UNKNOWN_ROWS
            post.append(_moments(rows))
            continue
        h = Rows(layer.bias.mean, q, 0.0, root * root * product + bias_variance)
        expected = expectations(layer.phi, q, h.mean)
        covariance = math.nan
        if batch > 1:
            covariance = expected.covariance(_ratio(h.covariance, q) if q else 1.0)
        branch = Rows(expected.moments.mean, expected.moments.variance, 0.0, covariance)
        if layer.residual is None:
            rows = branch
        elif layer.residual:
            # In the wide limit a branch is independent of the stream it is added to.
            rows = rows.plus(layer.residual, branch)
        pre.append(_moments(h))
        post.append(_moments(rows))
        slope = expected.squared_slope if backward else math.nan
        transports.append(_Transport(unit, scale, slope))
    return (pre, post), transports


def _seen(rows: Rows, norm: str | None) -> tuple[float, float, float]:
    """The second moment by which a norm divides, and of what the weights then see the second
    moment and, of two rows and as a share of that, the product."""
    if norm == "layer":
        scale, product = rows.variance, rows.covariance
    else:
        scale, product = rows.second_moment, rows.product
    share = product / scale if scale else 1.0
    if norm is None:
        return 1.0, scale, share
    # A row of zeros, or of equal entries under a layer norm, becomes one of zeros.
    return scale, 1.0 if 0.0 < scale < math.inf else 0.0 if scale == 0.0 else math.nan, share


def _moments(rows: Rows) -> _Moments:
    return _Moments(
        rows.mean,
        rows.second_moment,
        rows.variance + rows.between,
        _ratio(rows.product, rows.second_moment),
    )


def _together(
    shares: npt.NDArray[np.float64], sides: npt.NDArray[np.float64], batch: int
) -> LayerStats:
    """Statistics by layer of groups (groups, L, 4) that have these shares of the batch."""
    mean, second_moment, variance, cosine = np.moveaxis(sides, 2, 0)
    whole = shares @ mean
    with np.errstate(invalid="ignore"):
        variance = shares @ (variance + (mean - whole) ** 2)
        # Rows of zeros have no cosine, and are left out.
        counted = np.where(second_moment == 0.0, 0.0, shares[:, None])
        cosine = np.where(second_moment == 0.0, 0.0, cosine)
        cosine = np.sum(counted * cosine, axis=0) / np.sum(counted, axis=0)
    if batch == 1:
        cosine = np.array(np.nan)
    return LayerStats(whole, shares @ second_moment, variance, cosine=cosine)


def _square(x: float) -> float:
    """x², infinite where it is beyond float64: ``x**2`` raises OverflowError there."""
    return x * x


def _ratio(part: float, whole: float) -> float:
    """A cosine, which rounding must not take beyond 1; NaN of nothing."""
    return min(max(part / whole, -1.0), 1.0) if whole else math.nan


def _entering(correlation: float, second_moment: float) -> Rows:
    """Inputs of mean 0."""
    cosine = finite_number("correlation", correlation)
    if not -1.0 <= cosine <= 1.0:
        raise ValueError(f"correlation must be from -1 to 1, got {correlation!r}")
    energy = non_negative_number("input_second_moment", second_moment)
    return Rows(0.0, energy, 0.0, cosine * energy)


def _backward(
    layers: Sequence[_Layer], transports: Sequence[_Transport], batch: int
) -> list[tuple[float, float, float]]:
    """The second moments of ∂/∂h, ∂/∂x and ∂/∂W by layer."""
    rows: list[tuple[float, float, float]] = []
    at_x = 1.0
    for layer, transport in zip(reversed(layers), reversed(transports), strict=True):
        multiplier = 1.0 if layer.residual is None else layer.residual
        # What is multiplied by 0 may be unknown.
        at_h = at_x * transport.squared_slope * _square(multiplier) if at_x * multiplier else 0.0
        at_weights = batch * at_h * transport.input_energy if at_h else 0.0
        rows.append((at_h, at_x, at_weights))
        through = 0.0
        if at_h and transport.scale:  # a norm of zeros, which has no gradient, passes 0
            root = math.sqrt(layer.n_out * at_h) * layer.weight.std
            through = root * root / transport.scale
        at_x = through if layer.residual is None else at_x + through
    return rows[::-1]


def _independent(second_moment: npt.NDArray[np.float64], batch: int) -> LayerStats:
    """Gradients by layer, of mean 0 and with nothing in common, as those that enter at the top."""
    zero = np.where(np.isnan(second_moment), np.nan, 0.0)
    cosine = np.where(second_moment > 0.0, zero, np.nan) if batch > 1 else np.array(np.nan)
    return LayerStats(zero, second_moment, second_moment, cosine=cosine)


# Arguments


def _layers(
    widths: Any, activation: Any, init: Any, bias: Any, last: Any, norm: Any, residual: Any,
    kinks: Any,
) -> list[_Layer]:  # fmt: skip
    sizes = [integer("widths", width) for width in widths]
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"widths must be two or more positive integers, got {widths!r}")
    n_layers = len(sizes) - 1
    functions = any(each_activation(activation, last, n_layers, is_function))
    known: dict[str | int, Nonlinearity] = {}

    def parsed(phi: Phi) -> Nonlinearity:
        key = phi if isinstance(phi, str) else id(phi)
        if key not in known:
            # A list may mix functions, whose kinks these are, and built-ins, which know theirs.
            known[key] = nonlinearity(phi, kinks if is_function(phi) or not functions else ())
        return known[key]

    @cache  # most layers are alike
    def law(
        init: Initializer | None, shape: tuple[int, ...], n_in: int, n_out: int
    ) -> Law | Moments:
        if init is None:
            return Constant(0.0)
        fans = {"fan_in": n_in, "fan_out": n_out}
        what = init.laws(shape, **fans)[0]
        # A structure whose entries have mean 0, orthogonal above all, has the same wide limit.
        return what if isinstance(what, Moments) else init.law(shape, **fans)

    layers = [
        _Layer(
            n_in,
            n_out,
            phi,
            _UNKNOWN if weight is None else law(weight, (n_out, n_in), n_in, n_out),
            law(offset, (n_out,), n_in, n_out),
            one_norm,
            multiplier,
        )
        for n_in, n_out, phi, weight, offset, one_norm, multiplier in zip(
            sizes[:-1],
            sizes[1:],
            each_activation(activation, last, n_layers, parsed),
            each_layer("init", init, n_layers, _weight),
            each_layer(
                "bias", bias, n_layers, lambda one: None if one is None else initializer(one)
            ),
            each_layer("norm", norm, n_layers, architecture.norm),
            each_layer(
                "residual", residual, n_layers, lambda m: architecture.multiplier(m, n_layers)
            ),
            strict=True,
        )
    ]
    architecture.check_residuals([layer.residual for layer in layers], sizes)
    return layers


def _weight(init: Any) -> Initializer | None:
    """None for a function, whose law nobody knows."""
    if callable(init) and not isinstance(init, Initializer):
        return None
    return initializer(init)
