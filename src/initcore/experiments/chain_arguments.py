# SPDX-License-Identifier: BSD-3-Clause
"""The arguments of experiments with chains, checked, in their plainest form."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from initcore import architecture
from initcore.activations import activation
from initcore.architecture import each_layer
from initcore.experiments.arguments import flag, number, positive, refused
from initcore.experiments.chain_trial import (
    ChainExperiment,
    WeightFunction,
    init_name,
    too_large,
)
from initcore.initializers import Initializer, initializer
from initcore.kernels.arrays import check_array, contiguous
from initcore.laws import Constant, Law, Normal
from initcore.results.chain_spec import DTYPES, METHODS, function_name, is_function_name
from initcore.results.records import frozen
from initcore.specifications import named
from initcore.streams import check_seed


def relative(rtol: Any) -> float | None:
    """A positive number, or None."""
    if rtol is None:
        return None
    value = number("rtol", rtol, accepted := "a positive number or None")
    if value <= 0:
        raise refused("rtol", rtol, accepted, is_value=True)
    return value


def _dtype(dtype: DTypeLike) -> str:
    accepted = " or ".join(DTYPES)
    try:
        name = np.dtype(dtype).name if dtype is not None else ""
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise refused("dtype", dtype, accepted)
    return name


def _method(method: object) -> str:
    if not isinstance(method, str) or method not in METHODS:
        accepted = " or ".join(map(repr, METHODS))
        raise refused("method", method, accepted, is_value=isinstance(method, str))
    return method


def _law(init: str | WeightFunction, shape: tuple[int, ...], **fans: int) -> Law | None:
    """The one law of an initializer's entries; None where it has none."""
    if not isinstance(init, str):
        return None
    try:
        return initializer(init).law(shape, **fans)
    except ValueError:
        return None


def _check_gaussian(experiment: ChainExperiment) -> None:
    """ValueError where "gram" would not have the law of the weights and biases."""
    layers = zip(pairwise(experiment.widths), experiment.inits, experiment.biases, strict=True)
    checked = set()  # most layers are alike
    for layer, kind in enumerate(layers):
        if kind in checked:
            continue
        checked.add(kind)
        (n_in, n_out), init, bias = kind
        law = _law(init, (n_out, n_in))
        if not isinstance(law, Normal) or law.mean:
            raise ValueError(
                f"init of layer {layer} must be normal with mean 0 for method='gram', which draws "
                f"what Gaussian weights do and not the weights; got {init_name(init)}: use "
                "method='dense'"
            )
        if bias is None:
            continue
        law = _law(bias, (n_out,), fan_in=n_in, fan_out=n_out)
        if not isinstance(law, Normal | Constant):
            raise ValueError(
                f"bias of layer {layer} must be normal or constant for method='gram', which draws "
                f"what Gaussian biases do and not the biases; got {bias}: use method='dense'"
            )


def _init(init: Any) -> str | WeightFunction:
    """The specification of an initializer in full, or a function as it is."""
    if callable(init) and not isinstance(init, Initializer):
        _check_signature(init)
        return init  # type: ignore[no-any-return]
    if isinstance(init, str) and is_function_name(init):
        raise ValueError(f"{init} names a function: the function itself is accepted")
    return repr(initializer(init))


def _bias(bias: Any) -> str | None:
    """The specification of an initializer in full, or None."""
    return None if bias is None else repr(initializer(bias))


def _check_signature(function: Callable[..., Any]) -> None:
    """TypeError for a function that does not take what it is called with."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return
    try:
        signature.bind(0, 0, 0, (1, 1))
    except TypeError as error:
        raise TypeError(
            "a function is called with (seed, trial, layer, shape); got "
            f"{function_name(function)}{signature}: {error}"
        ) from None


def check_sendable(experiment: ChainExperiment, error: Exception) -> None:
    """TypeError where it is for a function that does not pickle that a task could not be sent."""
    for function in experiment.functions:
        try:
            pickle.dumps(function)
        except Exception as reason:
            if str(reason) == str(error):
                raise TypeError(
                    f"init: {function_name(function)} cannot be sent to the executor's processes, "
                    f"which takes a function at the top of a module; {error}"
                ) from error


def _inputs(x: Any, n_in: int, batch: Any, dtype: str) -> tuple[NDArray[Any] | None, int]:
    """The inputs of every trial, if they are given, and how many they are."""
    if x is None:
        return None, 32 if batch is None else positive("batch", batch)
    array = check_array("x", x)
    if array.ndim != 2 or array.shape[1] != n_in or not 1 <= len(array) < 2**32:
        raise ValueError(f"x must be an array (batch, {n_in}) of one row or more; got shape "
                         f"{array.shape}")  # fmt: skip
    if batch is not None and positive("batch", batch) != len(array):
        accepted = f"left out, or {len(array)}, the rows of x"
        raise refused("batch", batch, accepted, is_value=True)
    inputs = frozen(contiguous(array, np.dtype(dtype)), dtype)
    bad = np.argwhere(~np.isfinite(inputs))
    if bad.size:
        row, column = bad[0]
        raise ValueError(f"x must be finite in {dtype}; got {array[row, column]} at x[{row}, "
                         f"{column}]")  # fmt: skip
    return inputs, len(array)


def _correlation(correlation: Any, x: Any) -> float:
    """From 0 to 1, and 0 where the inputs are given."""
    accepted = "a number from 0 to 1 (√c common + √(1 − c) own has no other)"
    value = number("correlation", correlation, accepted)
    if not 0 <= value <= 1:
        raise refused("correlation", correlation, accepted, is_value=True)
    if value and x is not None:
        raise refused("correlation", correlation, "left out where x is given", is_value=True)
    return value


def chain_experiment(
    widths: Any,
    phi: Any,
    init: Any,
    bias: Any,
    last: Any,
    norm: Any,
    residual: Any,
    x: Any,
    batch: Any,
    correlation: Any,
    seed: Any,
    dtype: Any,
    backward: Any,
    method: Any,
) -> ChainExperiment:
    """The arguments of ``propagate``, checked, in their plainest form."""
    accepted = "a sequence of two or more positive integers"
    if isinstance(widths, np.ndarray) and widths.ndim != 1:
        raise refused("widths", widths, accepted, is_value=True)
    if not isinstance(widths, Sequence | np.ndarray) or isinstance(widths, str | bytes):
        raise refused("widths", widths, accepted)
    if len(widths) < 2:
        raise refused("widths", widths, accepted, is_value=True)
    sizes = tuple(positive(f"widths[{i}]", width) for i, width in enumerate(widths))
    n_layers = len(sizes) - 1
    activations = each_layer("activation", phi, n_layers, lambda entry: str(activation(entry)))
    if last is not None:
        with named("last"):
            activations = (*activations[:-1], str(activation(last)))
    dtype = _dtype(dtype)
    inputs, batch = _inputs(x, sizes[0], batch, dtype)
    if isinstance(residual, np.ndarray) and residual.ndim == 1:
        residual = residual.tolist()
    experiment = ChainExperiment(
        sizes,
        activations,
        each_layer("init", init, n_layers, _init),
        each_layer("bias", bias, n_layers, _bias),
        each_layer("norm", norm, n_layers, architecture.norm),
        each_layer("residual", residual, n_layers, lambda m: architecture.multiplier(m, n_layers)),
        batch,
        dtype,
        check_seed(seed),
        flag("backward", backward),
        _method(method),
        inputs,
        _correlation(correlation, x),
    )
    architecture.check_residuals(experiment.residuals, sizes)
    architecture.check_held(experiment.residuals, dtype)
    if experiment.method == "gram":
        _check_gaussian(experiment)
    features = 2 * sum(sizes) + 4 * max(sizes) if backward else 3 * max(sizes)
    if experiment.method == "gram":  # Gram matrices and factors
        features += (experiment.batch + 16) * (n_layers + 9)
    panels = 8 * (experiment.batch + 16) * (features + 34 * len(sizes))
    if panels >= 2**60:
        raise too_large(experiment, panels)
    experiment.chain()  # a law that a shape does not admit is refused here
    return experiment
