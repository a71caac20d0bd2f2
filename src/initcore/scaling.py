# SPDX-License-Identifier: BSD-3-Clause
"""Attention scalings: what stands between q, k and the softmax.

A scaling says, for given sizes, what q and k are normalized to, what multiplies q·k, and what
multiplies the standard deviation of W_Q's initializer. It is a value, and its repr is the
specification that makes it again, in Python, on the command line and in JSON. One more takes five
lines, which the grammar then knows too::

    @ic.scaling.define
    def gemma2_27b(sizes):
        return ic.scaling.Effect(logits=(sizes.d_model / sizes.n_heads) ** -0.5)

    ic.propagate_attention(scaling=gemma2_27b(), d_k=128)

Parameters come after ``sizes``. On an executor nothing needs to know the function: workers get the
numbers.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec

from initcore.specifications import finite_number, integer, non_negative_number, parse, spell

P = ParamSpec("P")

QK_NORMS = ("rms", "l2")


class Sizes(NamedTuple):
    """What a scaling may depend on."""

    d_model: int
    n_heads: int
    d_k: int
    seq: int


@dataclass(frozen=True)
class Effect:
    """What a scaling does at given sizes.

    norm
        what every q and k is divided by before their product: None, "rms" (its root mean square) or
        "l2" (its length). A zero vector stays zero.
    logits
        multiplies q·k: the scale at run time.
    weight
        multiplies the standard deviation of W_Q's initializer.
    """

    norm: str | None = None
    logits: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.norm is not None and self.norm not in QK_NORMS:
            raise ValueError(
                f"norm must be {' or '.join(map(repr, QK_NORMS))} or None, got {self.norm!r}"
            )
        finite_number("logits", self.logits)
        non_negative_number("weight", self.weight)


@dataclass(frozen=True, repr=False)
class Scaling:
    """A scaling: the call that makes it, and its effect. Made by the functions of this module."""

    call: str

    def __repr__(self) -> str:
        return self.call

    def effect(self, sizes: Sizes) -> Effect:
        """What it does at these sizes."""
        found = parse(self.call)
        return _RULES[found.name](sizes, *found.args, **found.kwargs)


_RULES: dict[str, Callable[..., Effect]] = {}
#: The functions that make scalings, by the names specifications have for them.
SCALINGS: dict[str, Callable[..., Scaling]] = {}
# Arguments are tried out on it when a scaling is made.
_ANY = Sizes(d_model=64, n_heads=4, d_k=16, seq=32)


def define(rule: Callable[Concatenate[Sizes, P], Effect]) -> Callable[P, Scaling]:
    """Make a function (sizes, parameters) → Effect one of the parameters → Scaling.

    The grammar knows it by its name from then on. Parameters take literals: numbers, strings, None.
    Defining a name again, as a notebook does, replaces your earlier scaling; a result tells them
    apart by the name alone, so give a different law a different name. ValueError for the name of a
    scaling of this module.
    """
    name = rule.__name__
    if name in SCALINGS and SCALINGS[name].__module__ == __name__:
        raise ValueError(
            f"rule must not have the name of a built-in scaling ({', '.join(SCALINGS)}), "
            f"got {name!r}"
        )
    signature = inspect.signature(rule)
    parameters = list(signature.parameters.values())[1:]
    signature = signature.replace(parameters=parameters, return_annotation="Scaling")

    @functools.wraps(rule)
    def make(*args: P.args, **kwargs: P.kwargs) -> Scaling:
        arguments = ", ".join(
            f"{parameter}={spell(value)}"
            for parameter, value in signature.bind(*args, **kwargs).arguments.items()
            if spell(value) != spell(signature.parameters[parameter].default)
        )
        made = Scaling(f"{name}({arguments})")
        made.effect(_ANY)
        return made

    make.__signature__ = signature  # type: ignore[attr-defined]
    _RULES[name] = rule
    SCALINGS[name] = make
    return make


@define
def sqrt_dk(sizes: Sizes) -> Effect:
    """1/√d_k (Vaswani et al. 2017): logits of variance 1 for q and k of variance 1."""
    return Effect(logits=1 / math.sqrt(sizes.d_k))


@define
def dk(sizes: Sizes) -> Effect:
    """1/d_k: right once training has aligned q and k; at step 0 the logits' variance is 1/d_k."""
    return Effect(logits=1 / sizes.d_k)


@define
def sqrt_dmodel(sizes: Sizes) -> Effect:
    """1/√d_model, a slip for 1/√d_k: logits of variance d_k/d_model."""
    return Effect(logits=1 / math.sqrt(sizes.d_model))


@define
def learned(sizes: Sizes, alpha: float | None = None) -> Effect:
    """A scalar that training changes, from `alpha`: None starts at 1/√d_k."""
    return Effect(logits=_or(1 / math.sqrt(sizes.d_k), "alpha", alpha))


@define
def absorbed(sizes: Sizes) -> Effect:
    """1/√d_k in W_Q's standard deviation and nothing at run time, as T5 has it."""
    return Effect(weight=1 / math.sqrt(sizes.d_k))


@define
def qk_norm(sizes: Sizes, kind: str = "rms", g: float | None = None) -> Effect:
    """g·q̂·k̂ of normalized q and k.

    kind "rms": to root mean square 1, where g None is 1/√d_k. "l2": to length 1, where g None is
    log₂(L² − L) for L = seq (Henry et al. 2020), at least 1.
    """
    length = max(sizes.seq, 2)
    usual = math.log2(length * (length - 1)) if kind == "l2" else 1 / math.sqrt(sizes.d_k)
    return Effect(norm=kind, logits=_or(usual, "g", g))


@define
def none(sizes: Sizes) -> Effect:
    """Nothing: logits of variance d_k."""
    return Effect()


@define
def constant(sizes: Sizes, c: float) -> Effect:
    """c, whatever the sizes."""
    return Effect(logits=finite_number("c", c))


@define
def mup(sizes: Sizes, base: int) -> Effect:
    """√base/d_k (μP, Yang et al. 2022): 1/d_k that agrees with 1/√d_k at d_k = `base`."""
    if integer("base", base) < 1:
        raise ValueError(f"base must be positive, got {base!r}")
    return Effect(logits=math.sqrt(base) / sizes.d_k)


@define
def inverse_layer(sizes: Sizes, layer: int) -> Effect:
    """1/(√d_k·(layer + 1)), layers from 0 (Mistral's GPT-2): deeper layers are flatter."""
    if integer("layer", layer) < 0:
        raise ValueError(f"layer must not be negative, got {layer!r}")
    return Effect(logits=1 / (math.sqrt(sizes.d_k) * (layer + 1)))


def _or(default: float, argument: str, value: float | None) -> float:
    return default if value is None else finite_number(argument, value)


def scaling(spec: str | Scaling) -> Scaling:
    """The scaling of a specification, such as ``"qk_norm('l2', g=10)"``.

    A :class:`Scaling` is returned as it is. Raises ValueError for names and arguments that do not
    exist, TypeError for what is no specification.
    """
    if isinstance(spec, Scaling):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"scaling must be a specification such as 'sqrt_dk', got {spec!r}")
    found = parse(spec)
    if found.name not in SCALINGS or found.factors:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, got {spec!r}")
    make: Callable[..., Any] = SCALINGS[found.name]
    signature = inspect.signature(make)
    try:
        signature.bind(*found.args, **found.kwargs)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "no arguments"
        raise ValueError(f"scaling {spec!r}: {error}; {found.name} takes {accepted}") from None
    made: Scaling = make(*found.args, **found.kwargs)
    return made
