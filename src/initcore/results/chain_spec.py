# SPDX-License-Identifier: BSD-3-Clause
"""The specification of a chain, as a record keeps it: its entries by layer, and whether
``propagate`` could have run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from initcore import architecture
from initcore.activations import Activation, activation
from initcore.initializers import initializer
from initcore.specifications import finite_number

# What a chain computes in, and how its trials are drawn.
DTYPES = ("float32", "float64")
METHODS = ("dense", "gram")
_OF_THEORY = (
    "widths", "activation", "init", "bias", "norm", "residual", "x", "batch", "correlation",
)  # fmt: skip


def arguments_of_theory(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that ``theory.predict`` takes."""
    return {name: spec[name] for name in _OF_THEORY}


def depth(spec: Mapping[str, Any]) -> int:
    """The number of layers, L."""
    return len(spec["widths"]) - 1


def per_layer(one_or_each: Any, index: int) -> Any:
    """The entry of a layer, from 0."""
    return one_or_each[index] if isinstance(one_or_each, tuple) else one_or_each


def activation_of(spec: Mapping[str, Any], layer: int) -> Activation:
    """φ of a layer, from 1."""
    return activation(per_layer(spec["activation"], layer - 1))


def listed(one_or_each: Any) -> str:
    """An entry in words: one, or those of the layers in order."""
    entries = one_or_each if isinstance(one_or_each, tuple) else (one_or_each,)
    words = {float: "{:.4g}", type(None): "none"}
    return ", ".join(words.get(type(one), "{}").format(one) for one in entries)


def function_name(function: Callable[..., Any]) -> str:
    """What a specification has of a function, "module.qualname"."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def is_function_name(spec: str) -> bool:
    """Whether that of an initializer is such a name: initializers have a dot in calls alone."""
    return "." in spec and "(" not in spec


def check_spec(spec: Mapping[str, Any]) -> None:
    """ValueError, or one of DAMAGED, for a specification that ``propagate`` could not have run."""
    widths = spec["widths"]
    for size in (*widths, spec["batch"]):
        if type(size) is not int or not 1 <= size < 2**32:
            raise ValueError(f"size {size!r}")
    if spec["x"] is not None and spec["x"].shape != (spec["batch"], widths[0]):
        raise ValueError(f"x of shape {spec['x'].shape}")
    correlation = spec["correlation"]
    if type(correlation) not in (int, float) or not 0 <= correlation <= (spec["x"] is None):
        raise ValueError(f"correlation {spec['correlation']!r}")
    if type(spec["backward"]) is not bool:
        raise ValueError(f"backward {spec['backward']!r}")
    if spec["method"] not in METHODS:
        raise ValueError(f"method {spec['method']!r}")
    if len(widths) < 2 or spec["dtype"] not in DTYPES:
        raise ValueError(f"widths {widths}, dtype {spec['dtype']!r}")
    for name, parse in (
        ("activation", activation),
        ("init", initializer),
        ("bias", initializer),
        ("norm", architecture.norm),
        ("residual", _saved_multiplier),
    ):
        entries = spec[name]
        several = isinstance(entries, list | tuple)
        if several and len(entries) != len(widths) - 1:
            raise ValueError(f"{len(entries)} entries of {name}")
        for entry in entries if several else (entries,):
            if entry is None and name in ("bias", "norm", "residual"):
                continue
            if not (name == "init" and isinstance(entry, str) and is_function_name(entry)):
                parse(entry)
    multipliers = [per_layer(spec["residual"], layer) for layer in range(depth(spec))]
    architecture.check_residuals(multipliers, widths)
    architecture.check_held(multipliers, spec["dtype"])


def _saved_multiplier(value: Any) -> float:
    if type(value) is not float:
        raise ValueError(f"residual {value!r}")
    return finite_number("residual", value)
