# SPDX-License-Identifier: BSD-3-Clause
"""Draws into memory that is there already, and what a small draw costs beside its kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core, streams

from . import peers
from .measure import (
    NS,
    OURS,
    US,
    Case,
    Contender,
    NotBuilt,
    Settings,
    extra,
    faster,
    require,
    takes,
)

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[[], Array]

# Moments of the laws: standard deviation, and the bound no value exceeds.
_LAWS = {
    "normal": (1.0, math.inf),
    "uniform": (1 / math.sqrt(3), 1.0),
    "truncated": (0.87962566103423978, 2.0),  # the parent's ±2σ, not corrected
}
OUR_NORMAL = "our normal"


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    n = settings.sizes.elements
    many = f"{n >> 20}M" if n >= 1 << 20 else str(n)
    threads = settings.threads

    def case(name: str, work: str, law: str, dtype: str, threads: int, *targets: Any) -> Case:
        return Case(
            name,
            f"{work}, {many} into `out=`",
            NS,
            partial(_draws, law, dtype, n, threads),
            targets,
            threads,
            ("NumPy", "torch", "JAX", "numba"),
        )

    yield case(
        "normal", "normal", "normal", "float32", threads, faster(9, "NumPy"), faster(4, "torch")
    )
    yield case("normal-2", "normal", "normal", "float32", 2, faster(6, "torch"))
    yield case("uniform", "uniform", "uniform", "float32", threads, faster(6, "torch"))
    yield case(
        "truncated",
        "truncated normal ±2σ",
        "truncated",
        "float32",
        threads,
        faster(30, "torch"),
        takes(1.5, OUR_NORMAL),
    )
    yield case("bfloat16", "bfloat16 normal", "normal", "bfloat16", threads, faster(4, "torch"))
    yield Case(
        "small-draw",
        "a 64×64 normal, call included",
        US,
        _small,
        (extra(10e-6, "kernel alone"),),
    )


def _initializer(law: str) -> ic.Initializer:
    if law == "uniform":
        return ic.uniform(-1.0, 1.0)
    if law == "truncated":
        if not hasattr(ic, "truncated_normal"):
            raise NotBuilt
        truncated: ic.Initializer = ic.truncated_normal(corrected=False)
        return truncated
    return ic.normal()


def _ours(law: str, dtype: str, n: int, threads: int) -> Make:
    init = _initializer(law)
    try:
        out = init((n,), seed=0, name="bench", dtype=dtype, threads=threads)
    except TypeError:
        if dtype != "bfloat16":
            raise
        raise NotBuilt from None
    return lambda: init((n,), seed=0, name="bench", out=out, threads=threads)


def _draws(law: str, dtype: str, n: int, threads: int) -> list[Contender]:
    makes: dict[str, Make] = {OURS: _ours(law, dtype, n, threads)}
    if law == "truncated":
        makes[OUR_NORMAL] = _ours("normal", dtype, n, threads)
    if dtype == "float32" and threads == 1 and law != "truncated":  # NumPy draws in one thread
        makes["NumPy"] = _numpy(law, n)
    if (torch := peers.torch(threads)) is not None:
        makes["torch"] = _torch(torch, law, dtype, n)
    if threads == 1 and (jax := peers.jax()) is not None:
        makes["JAX"] = _jax(*jax, law, dtype, n)
    if threads == 1 and dtype == "float32" and (numba := peers.numba()) and law != "truncated":
        makes["numba"] = _numba(numba, law, n)
    for label, make in makes.items():
        _check(label, make(), "normal" if label == OUR_NORMAL else law, dtype)
    return [Contender(label, make, float(n)) for label, make in makes.items()]


def _check(label: str, values: Array, law: str, dtype: str) -> None:
    """Mean and standard deviation within six standard errors, and no value out of bounds."""
    std, bound = _LAWS[law]
    x = values[: 1 << 20].astype(np.float64)
    largest = float(np.abs(x).max())
    slack = 2.0**-8 if dtype == "bfloat16" else 0.0
    limit = 6 / math.sqrt(x.size)
    require(abs(x.mean()) <= limit * std + slack, f"{label}: {law} has mean {x.mean()}")
    require(abs(x.std() / std - 1) <= limit + slack, f"{label}: {law} has std {x.std()}")
    require(largest <= bound * (1 + slack), f"{label}: {law} reaches {largest}")


def _numpy(law: str, n: int) -> Make:
    generator = np.random.default_rng(0)
    out = np.empty(n, np.float32)

    def normal() -> Array:
        return generator.standard_normal(out=out, dtype=np.float32)

    def uniform() -> Array:
        generator.random(out=out, dtype=np.float32)
        np.multiply(out, np.float32(2), out=out)
        return np.subtract(out, np.float32(1), out=out)

    return normal if law == "normal" else uniform


def _torch(torch: Any, law: str, dtype: str, n: int) -> Make:
    out = torch.empty(n, dtype=getattr(torch, dtype))
    view = None if dtype == "bfloat16" else out.numpy()
    fill = {
        "normal": out.normal_,
        "uniform": partial(out.uniform_, -1.0, 1.0),
        "truncated": partial(torch.nn.init.trunc_normal_, out, 0.0, 1.0, -2.0, 2.0),
    }[law]

    def make() -> Array:
        fill()
        return out[: 1 << 20].float().numpy() if view is None else view

    return make


def _jax(jax: Any, jnp: Any, law: str, dtype: str, n: int) -> Make:
    kind = getattr(jnp, dtype)
    draw = {
        "normal": lambda key: jax.random.normal(key, (n,), kind),
        "uniform": lambda key: jax.random.uniform(key, (n,), kind, -1.0, 1.0),
        "truncated": lambda key: jax.random.truncated_normal(key, -2.0, 2.0, (n,), kind),
    }[law]
    compiled, key = jax.jit(draw), jax.random.key(0)
    return lambda: np.asarray(compiled(key).block_until_ready())


def _numba(numba: Any, law: str, n: int) -> Make:
    out = np.empty(n, np.float32)
    if law == "normal":

        @numba.njit
        def fill(out: Array) -> None:
            for i in range(out.size):
                out[i] = np.random.standard_normal()

    else:

        @numba.njit
        def fill(out: Array) -> None:
            for i in range(out.size):
                out[i] = 2 * np.random.random() - 1

    def make() -> Array:
        fill(out)
        return out

    return make


def _small() -> list[Contender]:
    """The public call with nothing given in advance, and the C kernel it ends in."""
    init, shape = ic.normal(), (64, 64)
    out = np.empty(shape, np.float32)
    words = astuple(init.distribution(shape, np.float32))
    draw, flat, stream = _core.default().draw, out.reshape(-1), streams.stream_id("bench")
    draw(flat, 0, 0, stream, *words)
    same = np.array_equal(out, init(shape, seed=0, name="bench"))
    require(same, "a 64×64 draw differs from its kernel's")
    return [
        Contender(OURS, lambda: init(shape, seed=0, name="bench")),
        Contender("kernel alone", lambda: draw(flat, 0, 0, stream, *words)),
    ]
