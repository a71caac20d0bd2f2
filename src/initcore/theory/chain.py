# SPDX-License-Identifier: BSD-3-Clause
"""What a chain does with its signal in the limit of wide layers, computed layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from initcore import architecture
from initcore.initializers import Initializer, initializer
from initcore.kernels.chain import moments
from initcore.laws import Constant, Law
from initcore.results.layers import ChainLayers, LayerStats
from initcore.specifications import finite_number, integer, non_negative_number
from initcore.structures import Moments
from initcore.theory.expectations import Expectations, Nonlinearity, Phi, is_function, nonlinearity

T = TypeVar("T")
_UNKNOWN = Constant(math.nan)


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
        The inputs (batch, n_0), if they are known: their mean, second moment and mean cosine are
        where the prediction starts from, as if all rows had these. Without it they have mean 0.
    batch
        Inputs over which the gradients of the weights are summed, 32 or the rows of ``x``; one has
        no cosine.
    correlation, input_second_moment
        Of any two inputs, from −1 to 1, and E[x²]; of ``x``, they are what they are, and left out.
    backward
        Predict the gradients too.
    kinks
        Where the functions among the activations, or their derivatives, jump.

    Weights whose mean is not zero carry the sum of a layer's activations, which no wide limit has:
    what has passed them is NaN, and so is what has passed weights that a function gives. Raises
    ValueError for widths, lists and specifications that do not fit.
    """
    layers = _layers(widths, activation, init, bias, last, norm, residual, kinks)
    given = None if x is None else np.asarray(x)
    if given is not None and (given.ndim != 2 or given.shape[1] != widths[0] or not len(given)):
        raise ValueError(f"x must have shape (batch, {widths[0]}), got {given.shape}")
    rows_of_x = 32 if given is None else len(given)
    batch = rows_of_x if batch is None else integer("batch", batch)
    if batch < 1 or (given is not None and batch != rows_of_x):
        accepted = "a positive integer" if given is None else f"{rows_of_x}, the rows of x"
        raise ValueError(f"batch must be {accepted}, got {batch}")
    if given is not None and correlation:
        raise ValueError(f"correlation must be left out where x is given, got {correlation!r}")
    mean, energy, common = _entering(x, correlation, input_second_moment)
    if not isinstance(backward, bool | np.bool_):
        raise TypeError(f"backward must be True or False, got {backward!r}")

    @cache  # a chain at its critical point, or that has settled, asks for the same again
    def expectations(phi: Nonlinearity, q: float, mean: float) -> Expectations:
        return phi.at(q, mean)

    rows: list[tuple[float, ...]] = []
    transports: list[_Transport] = []
    variance = energy - mean * mean
    for layer in layers:
        scale = {None: 1.0, "rms": energy, "layer": variance}[layer.norm]
        unit = energy if layer.norm is None else _normalised(scale)
        share = common / energy if energy else 1.0  # of what the weights see in common
        if layer.norm == "layer":
            share = (common - mean * mean) / variance if variance else 1.0
        # Roots first: the variance of the weights may underflow where its product does not.
        root = math.sqrt(layer.n_in * unit) * layer.weight.std
        bias_variance = _square(layer.bias.std)
        q = root * root + bias_variance
        q_common = root * root * share + bias_variance
        if layer.weight.mean != 0.0 or math.isnan(q):
            mean = energy = variance = common = math.nan
            rows.append((math.nan,) * 8)
            transports.append(_Transport(math.nan, math.nan, math.nan))
            continue
        expected = expectations(layer.phi, q, layer.bias.mean)
        branch = expected.moments
        overlap = math.nan
        if batch > 1:
            overlap = expected.overlap(_ratio(q_common, q) if q else 1.0)
        if layer.residual is None:
            mean, energy, variance = branch
            common = overlap
        elif layer.residual:
            # In the wide limit a branch is independent of the stream it is added to.
            common -= mean * mean
            mean += layer.residual * branch.mean
            squared = _square(layer.residual)
            variance += squared * branch.variance
            energy = variance + mean * mean
            common += mean * mean + squared * (overlap - _square(branch.mean))
        offset = _square(layer.bias.mean)
        cosine = _ratio(q_common + offset, q + offset)
        rows.append((layer.bias.mean, q + offset, q, cosine))
        rows[-1] += mean, energy, variance, _ratio(common, energy)
        slope = expected.squared_slope if backward else math.nan
        transports.append(_Transport(unit, scale, slope))
    columns = np.array(rows).T
    if batch == 1:
        columns[[3, 7]] = math.nan
    pre, post = (
        LayerStats(mean, second, variance, cosine=cosine)
        for mean, second, variance, cosine in (columns[:4], columns[4:])
    )
    return Prediction(pre, post, *(_backward(layers, transports, batch) if backward else ()))


def _square(x: float) -> float:
    """x², infinite where it is beyond float64: ``x**2`` raises OverflowError there."""
    return x * x


def _ratio(part: float, whole: float) -> float:
    """A cosine, which rounding must not take beyond 1; NaN of nothing."""
    return min(max(part / whole, -1.0), 1.0) if whole else math.nan


def _entering(
    x: npt.ArrayLike | None, correlation: float, second_moment: float
) -> tuple[float, float, float]:
    """E x, E x² and, of two rows, E x x′ of the inputs."""
    cosine = finite_number("correlation", correlation)
    if not -1.0 <= cosine <= 1.0:
        raise ValueError(f"correlation must be from -1 to 1, got {correlation!r}")
    energy = non_negative_number("input_second_moment", second_moment)
    if x is None:
        return 0.0, energy, cosine * energy
    found = moments(x)
    energy = float(found.second_moment)
    return float(found.mean), energy, float(found.cosine) * energy


def _normalised(scale: float) -> float:
    """E x̂² behind a norm that divides by `scale`: 1, but a layer of zeros stays one."""
    return 1.0 if 0.0 < scale < math.inf else 0.0 if scale == 0.0 else math.nan


def _backward(
    layers: Sequence[_Layer], transports: Sequence[_Transport], batch: int
) -> tuple[LayerStats, LayerStats, LayerStats]:
    """The second moments of ∂/∂h, ∂/∂x and ∂/∂W by layer."""
    rows: list[tuple[float, float, float]] = []
    at_x = 1.0
    for layer, transport in zip(reversed(layers), reversed(transports), strict=True):
        multiplier = 1.0 if layer.residual is None else layer.residual
        at_h = at_x * transport.squared_slope * _square(multiplier) if multiplier else 0.0
        rows.append((at_h, at_x, batch * at_h * transport.input_energy))
        root = math.sqrt(layer.n_out * at_h) * layer.weight.std
        # Where a norm meets a layer of zeros there is no derivative.
        through = root * root / transport.scale if transport.scale else math.nan
        at_x = through if layer.residual is None else at_x + through
    at_h_all, at_x_all, at_weights = np.array(rows[::-1]).T
    unknown = np.array(np.nan)

    def independent(second_moment: npt.NDArray[np.float64]) -> LayerStats:
        """Rows of mean 0 that have nothing in common, as those that enter at the top."""
        zero = np.where(np.isnan(second_moment), np.nan, 0.0)
        cosine = np.where(second_moment > 0.0, zero, np.nan) if batch > 1 else unknown
        return LayerStats(zero, second_moment, second_moment, cosine=cosine)

    return (
        independent(at_h_all),
        independent(at_x_all),
        LayerStats(unknown, at_weights, unknown),
    )


# Arguments


def _layers(
    widths: Any, activation: Any, init: Any, bias: Any, last: Any, norm: Any, residual: Any,
    kinks: Any,
) -> list[_Layer]:  # fmt: skip
    sizes = [integer("widths", width) for width in widths]
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"widths must be two or more positive integers, got {widths!r}")
    n_layers = len(sizes) - 1
    phis = [*_per_layer("activation", activation, n_layers, lambda phi: phi)]
    if last is not None:
        phis[-1] = last
    functions = any(map(is_function, phis))

    def parsed(phi: Phi) -> Nonlinearity:
        # A list may mix functions, whose kinks these are, and built-ins, which know theirs.
        return nonlinearity(phi, kinks if is_function(phi) or not functions else ())

    keys = [phi if isinstance(phi, str) else id(phi) for phi in phis]
    known = {key: parsed(phi) for key, phi in dict(zip(keys, phis, strict=True)).items()}

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
            (known[key] for key in keys),
            _per_layer("init", init, n_layers, _weight),
            _per_layer(
                "bias", bias, n_layers, lambda one: None if one is None else initializer(one)
            ),
            _per_layer("norm", norm, n_layers, architecture.norm),
            _per_layer(
                "residual", residual, n_layers, lambda m: architecture.multiplier(m, n_layers)
            ),
            strict=True,
        )
    ]
    architecture.check_residuals([layer.residual for layer in layers], sizes)
    return layers


def _per_layer(argument: str, value: Any, n_layers: int, parse: Callable[[Any], T]) -> Sequence[T]:
    if not isinstance(value, list | tuple):
        return [parse(value)] * n_layers
    if len(value) != n_layers:
        raise ValueError(
            f"{argument} must be one, or a list of one for each of the {n_layers} layers, "
            f"got {len(value)}"
        )
    return [parse(one) for one in value]


def _weight(init: Any) -> Initializer | None:
    """None for a function, whose law nobody knows."""
    if callable(init) and not isinstance(init, Initializer):
        return None
    return initializer(init)
