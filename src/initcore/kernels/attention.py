# SPDX-License-Identifier: BSD-3-Clause
"""Attention of the user's own arrays, forward and backward, without their logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, isfinite, prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..results.attention_rows import AttentionRows
from ..streams import parallel, resolve_threads
from .arrays import (
    check_array,
    check_finite_in,
    check_flag,
    check_mask,
    check_number,
    check_saturation,
    check_softcap,
    common_dtype,
    contiguous,
)

# The kernel packs this many queries at a time; a task of so many multiplications takes a few
# milliseconds, and Ctrl-C should not wait for many of them.
_CHUNK = 128
_TASK_PRODUCTS = 1 << 26
# What a logit costs beside its product, in multiplications.
_SOFTMAX_PRODUCTS = 32


@dataclass(frozen=True)
class _Heads:
    """Checked arguments. `lead` is the shape of the heads, leading axes included, `rows` that of
    the rows in results; matrices are (., rows, columns); `index` (heads, 3) says which matrix of q,
    of k and v, and of the mask a head has."""

    real: np.dtype[Any]
    lead: tuple[int, ...]
    rows: tuple[int, ...]
    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
    v: npt.NDArray[Any] | None
    mask: npt.NDArray[Any] | None
    index: npt.NDArray[np.int64]
    scale: float
    softcap: float
    causal: bool

    def spec(self) -> _core.Attention:
        return _core.Attention(
            self.q,
            self.k,
            self.index,
            scale=self.scale,
            softcap=self.softcap,
            causal=self.causal,
            mask=self.mask,
            v=self.v,
        )


def _check_heads(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    values: npt.NDArray[Any] | None,
    scale: float | None,
    causal: bool,
    mask: npt.ArrayLike | None,
    softcap: float | None,
    dout: npt.NDArray[Any] | None = None,
) -> _Heads:
    queries, keys = check_array("q", q), check_array("k", k)
    for argument, array, axes in [("q", queries, "seq_q"), ("k", keys, "seq_k")]:
        if array.ndim < 2:
            raise ValueError(f"{argument} has shape {array.shape}: (…, {axes}, d_k) is accepted")
    d_k = queries.shape[-1]
    if keys.shape[-1] != d_k:
        raise ValueError(
            f"k has shape {keys.shape}: (…, seq_k, {d_k}) is accepted beside q of {queries.shape}"
        )
    if scale is None and d_k == 0:
        raise ValueError("scale=None with d_k 0: a number is accepted where 1/√d_k is none")
    if values is not None and (values.ndim < 2 or values.shape[:-1] != keys.shape[:-1]):
        raise ValueError(
            f"v has shape {values.shape}: k's, {keys.shape}, but for the last axis is accepted"
        )
    factor = 1 / sqrt(d_k) if scale is None else check_number("scale", scale, "a finite number")
    cap = check_softcap(softcap)
    real = common_dtype([a for a in (queries, keys, values, dout) if a is not None])
    check_finite_in(real, factor, cap)

    headless = queries.ndim == keys.ndim == 2
    # (leading axes, heads, seq, d) of all
    queries, keys = (a[None] if a.ndim == 2 else a for a in (queries, keys))
    n_heads, kv_heads = queries.shape[-3], keys.shape[-3]
    if n_heads != kv_heads and (kv_heads == 0 or n_heads % kv_heads):
        raise ValueError(
            f"q has {n_heads} heads and k has {kv_heads}: "
            "a number of q's that is a multiple of k's is accepted"
        )
    try:
        lead = (*np.broadcast_shapes(queries.shape[:-3], keys.shape[:-3]), n_heads)
    except ValueError:
        raise ValueError(
            f"k has shape {keys.shape}: leading axes that broadcast to those of q, "
            f"{queries.shape}, are accepted"
        ) from None
    rows = (*lead, queries.shape[-2])
    logits = (*rows, keys.shape[-2])

    def which(own: tuple[int, ...], repeats: int = 1) -> npt.NDArray[np.int64]:
        numbers = np.arange(prod(own), dtype=np.int64).reshape(own).repeat(repeats, axis=-1)
        return np.broadcast_to(numbers, lead)

    index = [which(queries.shape[:-2]), which(keys.shape[:-2], n_heads // max(kv_heads, 1))]
    entries = None
    if mask is None:
        index.append(np.zeros(lead, np.int64))
    else:
        own = check_mask(mask, logits[1:] if headless else logits)
        own = own.reshape((1,) * (len(logits) - own.ndim) + own.shape)
        index.append(which(own.shape[:-2]))
        entries = _matrices(own, np.dtype(np.uint8) if own.dtype.kind == "b" else real)
    return _Heads(
        real=real,
        lead=lead,
        rows=rows[1:] if headless else rows,
        q=_matrices(queries, real),
        k=_matrices(keys, real),
        v=None if values is None else _matrices(values, real),
        mask=entries,
        index=np.stack([i.ravel() for i in index], axis=1),
        scale=factor,
        softcap=cap,
        causal=check_flag("causal", causal),
    )


def _matrices(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """(matrices, rows, columns), as the kernels read them."""
    return contiguous(array, dtype).reshape(prod(array.shape[:-2]), *array.shape[-2:])


def _run(
    task: Callable[[int, int, npt.NDArray[np.int32]], bool],
    matrices: int,
    rows: int,
    products: float,
    threads: int,
) -> None:
    """Calls task(first, rows, cancel) over the rows of all matrices; a row takes `products`."""
    wanted = max(int(_TASK_PRODUCTS / max(products, 1)), 1)
    if wanted >= rows:  # matrices at a time
        step = max(wanted // max(rows, 1), 1) * rows
        total = matrices * rows
        pieces = [(i, min(step, total - i)) for i in range(0, total, max(step, 1))]
    else:
        step = -(-wanted // _CHUNK) * _CHUNK
        pieces = [
            (m * rows + i, min(step, rows - i))
            for m in range(matrices)
            for i in range(0, rows, step)
        ]
    cancel = np.zeros(1, np.int32)
    long = products * matrices * rows > _TASK_PRODUCTS
    parallel(task, [(*piece, cancel) for piece in pieces], threads, cancel if long else None)


def _forward(
    heads: _Heads, spec: _core.Attention, threads: int, output: npt.NDArray[Any] | None
) -> npt.NDArray[np.float64]:
    """Statistics (rows of all heads, ATTENTION_STATISTICS), and the output (those rows, d_v)."""
    kernels = _core.default()
    statistics = np.empty((prod(heads.rows), _core.ATTENTION_STATISTICS))

    def task(first: int, rows: int, cancel: npt.NDArray[np.int32]) -> bool:
        piece = slice(first, first + rows)
        workspace = np.empty(kernels.attention_workspace(spec), np.uint8)
        to = None if output is None else output[piece]
        return kernels.attention(spec, first, statistics[piece], to, workspace, cancel)

    features = heads.q.shape[2] + (0 if output is None else output.shape[1])
    products = heads.k.shape[1] * (features + _SOFTMAX_PRODUCTS)
    _run(task, prod(heads.lead), heads.q.shape[1], products, threads)
    return statistics


def _record(heads: _Heads, statistics: npt.NDArray[np.float64], saturation: float) -> AttentionRows:
    table = statistics.reshape(*heads.rows, _core.ATTENTION_STATISTICS)
    return AttentionRows.from_statistics(table, saturation)


def attention_stats(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: npt.ArrayLike | None = None,
    softcap: float | None = None,
    saturation: float = 0.99,
    threads: int | None = None,
) -> AttentionRows:
    """Statistics of every row of softmax(scale·q kᵀ), in memory that grows with seq, not seq².

    Args:
        q: queries (…, n_heads, seq_q, d_k), or (seq_q, d_k).
        k: keys (…, kv_heads, seq_k, d_k), or (seq_k, d_k) for all heads. n_heads is a multiple of
            kv_heads, whose keys n_heads/kv_heads heads in a row share; leading axes broadcast.
            float16, bfloat16, float32, float64 or integers: computed in float64 if either is
            float64 or both are integers, else in float32.
        scale: multiplies q kᵀ; None is 1/√d_k.
        causal: a key takes part if it is not after its query, the last query standing beside the
            last key. (torch's `is_causal` puts the first query beside the first key, which is
            something else where seq_q and seq_k differ.)
        mask: broadcasts to (…, n_heads, seq_q, seq_k). Boolean: True where the key takes part,
            others are not looked at. Floating-point: added to the logits.
        softcap: after the scale and before the mask, logits become softcap·tanh(logit/softcap).
        saturation: rows whose largest probability reaches this are called saturated.
        threads: how many; None is INITCORE_NUM_THREADS or the CPUs this process may use. Results do
            not depend on it.

    Returns:
        AttentionRows: fields of shape (…, n_heads, seq_q), or (seq_q,) if neither q nor k has an
        axis of heads; `summary()` has the means by head.

    Raises:
        TypeError: a dtype or kind that is not accepted. ValueError: a shape or value that is not.
    """
    heads = _check_heads(q, k, None, scale, causal, mask, softcap)
    threshold = check_saturation(saturation)
    statistics = _forward(heads, heads.spec(), resolve_threads(threads), None)
    return _record(heads, statistics, threshold)


def attention(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: npt.ArrayLike | None = None,
    softcap: float | None = None,
    stats: bool = True,
    saturation: float = 0.99,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], AttentionRows | None]:
    """softmax(scale·q kᵀ) v and the statistics of every row, in memory that grows with seq.

    Args:
        q, k, scale, causal, mask, softcap, saturation, threads: as of `attention_stats`.
        v: values (…, kv_heads, seq_k, d_v): k's shape but for the last axis.
        stats: False gives no statistics.

    Returns:
        output: (…, n_heads, seq_q, d_v), or (seq_q, d_v), in float64 if any array is float64 (or
            all are integers), else in float32. A fully masked row is zeros; a row with a NaN or
            +inf among its logits is NaN; v is not looked at where p is 0.
        rows: as `attention_stats` returns them; None without `stats`.

    Raises:
        TypeError: a dtype or kind that is not accepted. ValueError: a shape or value that is not.
    """
    heads = _check_heads(q, k, check_array("v", v), scale, causal, mask, softcap)
    threshold, wanted = check_saturation(saturation), check_flag("stats", stats)
    assert heads.v is not None
    output = np.empty((prod(heads.rows), heads.v.shape[2]), heads.real)
    statistics = _forward(heads, heads.spec(), resolve_threads(threads), output)
    shaped = output.reshape(*heads.rows, output.shape[1])
    return shaped, _record(heads, statistics, threshold) if wanted else None


def attention_backward(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    dout: npt.ArrayLike,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: npt.ArrayLike | None = None,
    softcap: float | None = None,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], float]:
    """Gradients of the sum of dout ⊙ attention(q, k, v), the logits made again tile by tile.

    With s = scale·q kᵀ: ∂s = p ⊙ (dp − Σ dp·p) row by row, dp = dout vᵀ (times 1 − (s̃/softcap)² of
    the capped s̃ where there is a softcap); dq = scale ∂s k, dk = scale ∂sᵀ q, dv = pᵀ dout and
    dscale = Σ ∂s ⊙ q kᵀ.

    Args:
        q, k, v, scale, causal, mask, softcap, threads: as of `attention`.
        dout: the gradient by its output, of its shape.

    Returns:
        dq, dk, dv: of the shapes of q, k and v (sums over the heads that share them, and over axes
            along which they were broadcast), in float64 if any array is float64 (or all are
            integers), else in float32.
        dscale: the gradient by the scale, summed over all heads in float64 (for the logarithm of
            the scale multiply it by the scale).

    Raises:
        TypeError: a dtype or kind that is not accepted. ValueError: a shape or value that is not.
    """
    gradient = check_array("dout", dout)
    heads = _check_heads(q, k, check_array("v", v), scale, causal, mask, softcap, gradient)
    assert heads.v is not None
    n_heads, kernels, count = prod(heads.lead), _core.default(), resolve_threads(threads)
    (_, queries, d_k), (_, keys, d_v) = heads.q.shape, heads.v.shape
    if gradient.shape != (*heads.rows, d_v):
        raise ValueError(
            f"dout has shape {gradient.shape}: the output's shape {(*heads.rows, d_v)} is accepted"
        )
    by_rows = contiguous(gradient, heads.real).reshape(n_heads * queries, d_v)
    output = np.empty_like(by_rows)
    forward = heads.spec()
    statistics = _forward(heads, forward, count, output)
    prepared = np.empty((n_heads * queries, 3), heads.real)
    kernels.attention_prepare(forward, statistics, output, by_rows, prepared)

    spec = _core.AttentionGradient(
        forward,
        by_rows.reshape(n_heads, queries, d_v),
        prepared.reshape(n_heads, queries, 3),
        *_users(heads.index[:, 0], len(heads.q)),
        *_users(heads.index[:, 1], len(heads.k)),
    )
    dq, dk = (np.empty((a.shape[0] * a.shape[1], d_k), heads.real) for a in (heads.q, heads.k))
    dv = np.empty((len(dk), d_v), heads.real)
    sums = np.empty((len(dq), _core.GRADIENT_SUMS))

    def for_queries(first: int, rows: int, cancel: npt.NDArray[np.int32]) -> bool:
        piece = slice(first, first + rows)
        workspace = np.empty(kernels.attention_backward_workspace(spec), np.uint8)
        return kernels.attention_backward(
            spec, first, dq[piece], None, sums[piece], workspace, cancel
        )

    def for_keys(first: int, rows: int, cancel: npt.NDArray[np.int32]) -> bool:
        piece = slice(first, first + rows)
        workspace = np.empty(kernels.attention_backward_workspace(spec), np.uint8)
        return kernels.attention_backward(
            spec, first, dk[piece], dv[piece], None, workspace, cancel
        )

    cell = 2 * (d_k + d_v) + _SOFTMAX_PRODUCTS
    users_q, users_k = (n_heads / max(len(matrices), 1) for matrices in (heads.q, heads.k))
    _run(for_queries, len(heads.q), queries, users_q * keys * cell, count)
    _run(for_keys, len(heads.k), keys, users_k * queries * cell, count)
    shapes = (np.shape(q), np.shape(k), np.shape(v))
    dq, dk, dv = (a.reshape(shape) for a, shape in zip((dq, dk, dv), shapes, strict=True))
    return dq, dk, dv, rounded_sum(sums[:, _core.BY_SCALE])


def _users(
    matrix: npt.NDArray[np.int64], matrices: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """begin (matrices + 1) and heads in the order of their matrices: those of matrix m are from
    begin[m] to begin[m + 1]."""
    users = np.argsort(matrix, kind="stable").astype(np.int64)
    return np.searchsorted(matrix[users], np.arange(matrices + 1)).astype(np.int64), users


def rounded_sum(values: npt.NDArray[np.float64]) -> float:
    """Correctly rounded, so that the order of rows does not matter."""
    total = float(np.sum(values))
    return fsum(values.tolist()) if isfinite(total) else total
