# SPDX-License-Identifier: BSD-3-Clause
"""Softmax with the statistics of every row, beside others who compute the same, and fewer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core
from initcore.reference import softmax as reference

from . import peers
from .measure import NS, OURS, US, Case, Contender, Settings, extra, faster, require, takes

Array = np.ndarray[Any, np.dtype[Any]]
Computed = tuple[Array, Sequence[Array]]  # p, and lse max_prob entropy sum_sq jacobian_norm

ALONE = "torch softmax alone"


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    rows, n, threads = settings.sizes.rows, settings.sizes.columns, settings.threads
    yield Case(
        "softmax",
        f"softmax + statistics, {rows}×{n}",
        NS,
        partial(_softmax, rows, n, threads),
        (faster(12, "NumPy", "torch"), takes(0.7, ALONE)),
        threads,
        ("NumPy", "torch", "JAX", "numba"),
    )
    yield Case(
        "small-softmax",
        "a 32×128 softmax + statistics, call included",
        US,
        _small,
        (extra(10e-6, "kernel alone"),),
    )


def _softmax(rows: int, n: int, threads: int) -> list[Contender]:
    z = 2 * np.random.default_rng(0).standard_normal((rows, n), np.float32)
    p = np.empty_like(z)

    def ours() -> Computed:
        _, found = ic.softmax(z, out=p, threads=threads)
        return p, [getattr(found, name) for name in reference.STATISTICS]

    calls: dict[str, Callable[[], Computed]] = {OURS: ours}
    if threads == 1:
        calls["NumPy"] = _numpy(z)
    torch = peers.torch(threads)
    if torch is not None:
        calls["torch"] = _torch(torch, z)
    if threads == 1 and (jax := peers.jax()) is not None:
        calls["JAX"] = _jax(*jax, z)
    if threads == 1 and (numba := peers.numba()) is not None:
        calls["numba"] = _numba(numba, z)
    for label, call in calls.items():
        _check(label, z, *call())
    contenders = [Contender(label, call, float(z.size)) for label, call in calls.items()]
    if torch is not None:
        logits, out = torch.from_numpy(z), torch.empty(z.shape)
        contenders.append(
            Contender(ALONE, lambda: torch.softmax(logits, 1, out=out), float(z.size))
        )
    return contenders


def _check(label: str, z: Array, p: Array, statistics: Sequence[Array]) -> None:
    """p, and each statistic, against float64 on a few rows."""
    few = slice(0, min(32, len(z)))
    exact, rows = reference.softmax(z[few].astype(np.float64))
    worst = float(np.abs(p[few] - exact).max() / exact.max())
    require(worst <= 1e-5, f"{label}: p is off by {worst}")
    for name, values, truth in zip(reference.STATISTICS, statistics, rows.T, strict=True):
        error = float(np.max(np.abs(values[few] - truth) / np.abs(truth)))
        require(error <= 1e-4, f"{label}: {name} is off by {error}")


def _numpy(z: Array) -> Callable[[], Computed]:
    """Every array preallocated, sums of products by einsum, which makes no temporaries."""
    p, t = np.empty_like(z), np.empty_like(z)

    def run() -> Computed:
        top = z.max(axis=1, keepdims=True)
        np.subtract(z, top, out=t)
        np.exp(t, out=p)
        total = p.sum(axis=1, keepdims=True)
        np.divide(p, total, out=p)
        entropy = np.log(total[:, 0]) - np.einsum("ij,ij->i", p, t)
        np.multiply(p, p, out=t)
        squares, cubes = t.sum(axis=1), np.einsum("ij,ij->i", t, p)
        jacobian = np.sqrt(squares - 2 * cubes + squares * squares)
        lse = top[:, 0] + np.log(total[:, 0])
        return p, (lse, 1 / total[:, 0], entropy, squares, jacobian)

    return run


def _torch(torch: Any, z: Array) -> Callable[[], Computed]:
    """torch's own softmax, and the rest from p."""
    logits = torch.from_numpy(z)
    p, t = torch.empty(z.shape), torch.empty(z.shape)

    def run() -> Computed:
        with torch.no_grad():
            torch.softmax(logits, 1, out=p)
            top = p.amax(1)
            lse = logits.amax(1) - top.log()
            torch.mul(p, logits, out=t)
            entropy = lse - t.sum(1)
            torch.mul(p, p, out=t)
            squares = t.sum(1)
            t.mul_(p)
            jacobian = (squares - 2 * t.sum(1) + squares * squares).sqrt()
        rows = [x.numpy() for x in (lse, top, entropy, squares, jacobian)]
        return p.numpy(), rows

    return run


def _jax(jax: Any, jnp: Any, z: Array) -> Callable[[], Computed]:
    """One jitted function, which XLA fuses."""

    @jax.jit
    def compute(z: Any) -> Any:
        t = z - z.max(axis=1, keepdims=True)
        e = jnp.exp(t)
        total = e.sum(axis=1, keepdims=True)
        p = e / total
        log_total = jnp.log(total[:, 0])
        entropy = log_total - (p * t).sum(axis=1)
        squares = (p * p).sum(axis=1)
        jacobian = jnp.sqrt(squares - 2 * (p * p * p).sum(axis=1) + squares * squares)
        return p, (z.max(axis=1) + log_total, 1 / total[:, 0], entropy, squares, jacobian)

    logits = jnp.asarray(z)

    def run() -> Computed:
        p, rows = jax.block_until_ready(compute(logits))
        return np.asarray(p), [np.asarray(row) for row in rows]

    return run


def _numba(numba: Any, z: Array) -> Callable[[], Computed]:
    """A loop a row, with numba's fast arithmetic."""
    p, rows = np.empty_like(z), np.empty((5, len(z)), np.float32)

    @numba.njit(fastmath=True)
    def compute(z: Array, p: Array, rows: Array) -> None:
        for i in range(z.shape[0]):
            top = z[i, 0]
            for j in range(z.shape[1]):
                top = max(top, z[i, j])
            total, weighted = np.float32(0), np.float32(0)
            squares, cubes = np.float32(0), np.float32(0)
            for j in range(z.shape[1]):
                t = z[i, j] - top
                e = math.exp(t)
                p[i, j] = e
                total += e
                weighted += e * t
                squares += e * e
                cubes += e * e * e
            for j in range(z.shape[1]):
                p[i, j] /= total
            squares /= total * total
            cubes /= total * total * total
            rows[0, i] = top + math.log(total)
            rows[1, i] = 1 / total
            rows[2, i] = math.log(total) - weighted / total
            rows[3, i] = squares
            rows[4, i] = math.sqrt(squares - 2 * cubes + squares * squares)

    def run() -> Computed:
        compute(z, p, rows)
        return p, list(rows)

    return run


def _small() -> list[Contender]:
    """The public call, and the C kernel it ends in."""
    z = np.random.default_rng(0).standard_normal((32, 128), np.float32)
    p, statistics = np.empty_like(z), np.empty((32, _core.ROW_STATISTICS))
    kernel = _core.default().softmax

    def alone() -> None:
        kernel(z, p, statistics, 0, 1.0, 0.0, None, None, None, 0)

    alone()
    require(np.array_equal(p, ic.softmax(z)[0]), "a 32×128 softmax differs from its kernel's")
    return [Contender(OURS, lambda: ic.softmax(z)), Contender("kernel alone", alone)]
