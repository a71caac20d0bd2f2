# SPDX-License-Identifier: BSD-3-Clause
"""Attention of the user's own queries to their keys, row by row, without their logits in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..results.attention_rows import AttentionRows
from ..streams import parallel, resolve_threads
from .arrays import (
    check_array,
    check_finite_in,
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
    """Checked arguments. `lead` is the shape of the heads, leading axes included, `shape` that of
    the rows in results; `index` (heads, 3) says which matrix of q, of k and of the mask."""

    real: np.dtype[Any]
    lead: tuple[int, ...]
    shape: tuple[int, ...]
    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
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
        )


def _check_heads(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    scale: float | None,
    causal: bool,
    mask: npt.ArrayLike | None,
    softcap: float | None,
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
    factor = 1 / sqrt(d_k) if scale is None else check_number("scale", scale, "a finite number")
    cap = check_softcap(softcap)
    real = common_dtype([queries, keys])
    check_finite_in(real, factor, cap)

    headless = queries.ndim == keys.ndim == 2
    # (leading axes, heads, seq, d_k) of both
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
        shape=rows[1:] if headless else rows,
        q=_matrices(queries, real),
        k=_matrices(keys, real),
        mask=entries,
        index=np.stack([i.ravel() for i in index], axis=1),
        scale=factor,
        softcap=cap,
        causal=bool(causal),
    )


def _matrices(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """(matrices, rows, columns), as the kernels read them."""
    return contiguous(array, dtype).reshape(prod(array.shape[:-2]), *array.shape[-2:])


def _run(
    task: Callable[[int, int, npt.NDArray[np.int32]], bool],
    heads: int,
    rows: int,
    products: float,
    threads: int | None,
) -> None:
    """Calls task(first, rows, cancel) over the rows of all heads; a row takes `products`."""
    wanted = max(_TASK_PRODUCTS // max(int(products), 1), 1)
    count = resolve_threads(threads)
    if wanted >= rows:  # heads at a time
        step = max(wanted // max(rows, 1), 1) * rows
        pieces = [(i, min(step, heads * rows - i)) for i in range(0, heads * rows, max(step, 1))]
    else:
        step = -(-wanted // _CHUNK) * _CHUNK
        pieces = [
            (h * rows + i, min(step, rows - i)) for h in range(heads) for i in range(0, rows, step)
        ]
    cancel = np.zeros(1, np.int32)
    long = len(pieces) > 1 or products * heads * rows > _TASK_PRODUCTS
    parallel(task, [(*piece, cancel) for piece in pieces], count, cancel if long else None)


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
    heads = _check_heads(q, k, scale, causal, mask, softcap)
    threshold = check_saturation(saturation)
    spec, kernels = heads.spec(), _core.default()
    statistics = np.empty((prod(heads.shape), _core.ATTENTION_STATISTICS))

    def task(first: int, rows: int, cancel: npt.NDArray[np.int32]) -> bool:
        workspace = np.empty(kernels.attention_workspace(spec), np.uint8)
        return kernels.attention(spec, first, statistics[first : first + rows], workspace, cancel)

    _, keys, d_k = heads.k.shape
    products = keys * (d_k + _SOFTMAX_PRODUCTS)
    _run(task, prod(heads.lead), heads.shape[-1], products, threads)
    table = statistics.reshape(*heads.shape, _core.ATTENTION_STATISTICS)
    return AttentionRows.from_statistics(table, threshold)
