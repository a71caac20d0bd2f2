# SPDX-License-Identifier: BSD-3-Clause
"""What a chain has by layer, and what stands around a layer's product: h = W norm(x) + b, and
x ← φ(h) or x + m φ(h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from initcore.specifications import finite_number, named

T = TypeVar("T")

# The norms of a row, without gain, bias and epsilon, and their numbers in csrc/initcore.h.
NORMS = {"rms": 1, "layer": 2}
BY_DEPTH = "1/sqrt(L)"


def each_layer(
    argument: str, value: Any, n_layers: int, parse: Callable[[Any], T]
) -> tuple[T, ...]:
    """One entry for all layers, or a list of one a layer, parsed; errors name the entry."""
    if not isinstance(value, list | tuple):
        with named(argument):
            return (parse(value),) * n_layers
    if len(value) != n_layers:
        accepted = f"one value, or a list of {n_layers}, one a layer"
        raise ValueError(f"{argument} must be {accepted}; got {value!r}")
    found = []
    for i, entry in enumerate(value):
        with named(f"{argument}[{i}]"):
            found.append(parse(entry))
    return tuple(found)


def each_activation(
    activation: Any, last: Any, n_layers: int, parse: Callable[[Any], T]
) -> tuple[T, ...]:
    """As ``each_layer``; the last layer has ``last``, if that is not None."""
    found = each_layer("activation", activation, n_layers, parse)
    if last is None:
        return found
    with named("last"):
        return (*found[:-1], parse(last))


def norm(value: object) -> str | None:
    """None or the name of a norm; ValueError or TypeError for another value."""
    if value is None or (isinstance(value, str) and value in NORMS):
        return value
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"norm must be None or one of {', '.join(NORMS)}, got {value!r}")


def multiplier(value: object, n_layers: int) -> float | None:
    """The multiplier m of a residual branch, in a chain of `n_layers`; None of a layer without.

    None and False are no residual branch, True is m = 1, "1/sqrt(L)" that of the depth.
    """
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return 1.0 if value else None
    if isinstance(value, str):
        if value.replace(" ", "") == BY_DEPTH:
            return 1.0 / math.sqrt(n_layers)
        raise ValueError(
            f"residual must be None, True, a finite real number or {BY_DEPTH!r}, got {value!r}"
        )
    return finite_number("residual", value)


def check_residuals(multipliers: Sequence[float | None], widths: Sequence[int]) -> None:
    """ValueError for a residual layer that is not as wide as its input."""
    for layer, (m, n_in, n_out) in enumerate(
        zip(multipliers, widths[:-1], widths[1:], strict=True)
    ):
        if m is not None and n_in != n_out:
            raise ValueError(
                f"residual: layer {layer} adds its input to its output, which needs equal widths; "
                f"got {n_in} and {n_out}"
            )


def check_held(residuals: Sequence[float | None], dtype: str) -> None:
    """ValueError for a multiplier beyond the dtype that a chain computes in."""
    largest = float(np.finfo(dtype).max)
    for layer, factor in enumerate(residuals):
        if factor is not None and abs(factor) > largest:
            raise ValueError(
                f"residual of layer {layer} must be a number that {dtype} holds; got {factor!r}"
            )
