# SPDX-License-Identifier: BSD-3-Clause
"""Draws into memory that is there already, and what a small draw costs beside its kernel."""

from __future__ import annotations

import atexit
import io
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core, streams

from . import peers
from .measure import (
    MS,
    NS,
    OURS,
    US,
    Case,
    Contender,
    Settings,
    Unavailable,
    extra,
    faster,
    require,
    takes,
)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Draw:
    """What is timed, and how its last numbers are looked at."""

    fill: Callable[[], object]
    read: Callable[[], Array]


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
    side = settings.sizes.columns
    yield Case(
        "orthogonal",
        f"orthogonal, {side}×{side}, float32",
        MS,
        partial(_orthogonal, side),
        (takes(1.3, "numpy.linalg.qr"),),
    )
    yield Case(
        "file",
        f"bfloat16 normal, {many} into a file, `initcore draw`",
        NS,
        partial(_file, n, threads),
        (),
        threads,
    )
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
        return ic.truncated_normal(corrected=False)
    return ic.normal()


def _ours(law: str, dtype: str, n: int, threads: int) -> Draw:
    init = _initializer(law)
    try:
        out = init((n,), seed=0, name="bench", dtype=dtype, threads=threads)
    except ModuleNotFoundError as error:
        raise Unavailable(str(error)) from None
    return Draw(lambda: init((n,), seed=0, name="bench", out=out, threads=threads), lambda: out)


def _draws(law: str, dtype: str, n: int, threads: int) -> list[Contender]:
    draws = {OURS: _ours(law, dtype, n, threads)}
    if law == "truncated":
        draws[OUR_NORMAL] = _ours("normal", dtype, n, threads)
    if dtype == "float32" and threads == 1 and law != "truncated":  # NumPy draws in one thread
        draws["NumPy"] = _numpy(law, n)
    if (torch := peers.torch(threads)) is not None:
        draws["torch"] = _torch(torch, law, dtype, n)
    # JAX's bfloat16 normals come from 8 random bits: their mean is -0.012
    if threads == 1 and dtype == "float32" and (jax := peers.jax()) is not None:
        draws["JAX"] = _jax(*jax, law, n)
    if threads == 1 and dtype == "float32" and (numba := peers.numba()) and law != "truncated":
        draws["numba"] = _numba(numba, law, n)
    for label, draw in draws.items():
        draw.fill()
        _check(label, draw.read(), "normal" if label == OUR_NORMAL else law, dtype)
    return [Contender(label, draw.fill, float(n)) for label, draw in draws.items()]


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


def _numpy(law: str, n: int) -> Draw:
    generator = np.random.default_rng(0)
    out = np.empty(n, np.float32)

    def normal() -> None:
        generator.standard_normal(out=out, dtype=np.float32)

    def uniform() -> None:
        generator.random(out=out, dtype=np.float32)
        np.multiply(out, np.float32(2), out=out)
        np.subtract(out, np.float32(1), out=out)

    return Draw(normal if law == "normal" else uniform, lambda: out)


def _torch(torch: Any, law: str, dtype: str, n: int) -> Draw:
    out = torch.empty(n, dtype=getattr(torch, dtype))
    fill = {
        "normal": out.normal_,
        "uniform": partial(out.uniform_, -1.0, 1.0),
        "truncated": partial(torch.nn.init.trunc_normal_, out, 0.0, 1.0, -2.0, 2.0),
    }[law]
    return Draw(fill, lambda: out.float().numpy())


def _jax(jax: Any, jnp: Any, law: str, n: int) -> Draw:
    kind = jnp.float32
    draw = {
        "normal": lambda key: jax.random.normal(key, (n,), kind),
        "uniform": lambda key: jax.random.uniform(key, (n,), kind, -1.0, 1.0),
        "truncated": lambda key: jax.random.truncated_normal(key, -2.0, 2.0, (n,), kind),
    }[law]
    compiled, key = jax.jit(draw), jax.random.key(0)
    return Draw(lambda: compiled(key).block_until_ready(), lambda: np.asarray(compiled(key)))


def _numba(numba: Any, law: str, n: int) -> Draw:
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

    return Draw(lambda: fill(out), lambda: out)


def _orthogonal(side: int) -> list[Contender]:
    """Beside the decomposition alone, in float64 as ours is, of normals that are there already."""
    init, out = ic.orthogonal(), np.empty((side, side), np.float32)
    normals = np.random.default_rng(0).standard_normal((side, side))
    init((side, side), seed=0, name="bench", out=out)
    error = np.abs(out @ out.T - np.eye(side)).max()
    require(error < 1e-5, f"orthogonal rows are off by {error}")
    return [
        Contender(OURS, lambda: init((side, side), seed=0, name="bench", out=out)),
        Contender("numpy.linalg.qr", lambda: np.linalg.qr(normals)),
    ]


def _file(n: int, threads: int) -> list[Contender]:
    """Beside the drawing alone and the writing of as many bytes alone, to the disk both."""
    if peers.find("typer") is None or peers.find("ml_dtypes") is None:
        raise Unavailable("the command line needs its extra: pip install '.[cli]'")
    from initcore.cli import main

    directory = Path(tempfile.mkdtemp(prefix="initcore-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    words = ("--init", "normal", "--dtype", "bfloat16", "--threads", str(threads))
    drawn = ic.normal()((n,), seed=0, name="w", dtype="bfloat16")

    def ours() -> None:
        with redirect_stdout(io.StringIO()):
            code = main(["draw", "--out", str(directory / "w.npy"), "--shape", str(n), *words])
        require(code == 0, f"initcore draw failed: {code}")

    def write() -> None:
        with (directory / "bytes").open("wb") as file:
            file.write(drawn.view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())

    ours()
    found = np.load(directory / "w.npy").view(np.uint16)
    require(np.array_equal(found, drawn.view(np.uint16)), "the file is not the tensor")
    draw = partial(ic.normal(), (n,), seed=0, name="w", out=drawn, threads=threads)
    return [
        Contender(OURS, ours, float(n)),
        Contender("drawing alone", draw, float(n)),
        Contender("writing alone", write, float(n)),
    ]


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
