# SPDX-License-Identifier: BSD-3-Clause
"""Softmax of the user's own logits, with statistics of every row, and its backward pass."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..dtypes import find_dtype
from ..results.softmax_rows import SoftmaxRows
from ..streams import blocks, check_output, parallel, resolve_threads
from .arrays import (
    check_array,
    check_finite_in,
    check_flag,
    check_mask,
    check_number,
    check_saturation,
    check_softcap,
    compute_dtype,
    contiguous,
    native,
)

# Rows handed to a thread at a time: enough work to hide the hand-over, little enough scratch.
_BLOCK_ELEMENTS = 1 << 18


def _last(array: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """A view with `axis` last; one number is a row of one."""
    if array.ndim == 0 and axis in (-1, 0):
        return array.reshape(1)
    if axis == -1:  # what moveaxis would give, at a tenth of its cost
        return array
    return np.moveaxis(array, axis, -1)


def _mask(
    mask: object, z: npt.NDArray[Any], axis: int, real: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The mask's own rows (m, n), uint8 or `real`, and which of them each row of z has."""
    array = check_mask(mask, z.shape)
    own, rows = _last(array, axis), _last(z, axis)
    lead = own.shape[:-1]
    dtype = np.dtype(np.uint8) if array.dtype.kind == "b" else real
    entries = contiguous(np.broadcast_to(own, (*lead, rows.shape[-1])), dtype)
    which = np.arange(prod(lead)).reshape(lead)
    return entries.reshape(which.size, rows.shape[-1]), np.broadcast_to(which, rows.shape[:-1])


def softmax(
    z: npt.ArrayLike,
    *,
    axis: int = -1,
    scale: float = 1.0,
    softcap: float | None = None,
    mask: npt.ArrayLike | None = None,
    causal: bool = False,
    out: npt.NDArray[Any] | None = None,
    saturation: float = 0.99,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], SoftmaxRows]:
    """Softmax along an axis, and what each row is like, in one pass over the logits.

    Args:
        z: logits, any shape; float16, bfloat16 (computed in float32), float32, float64, or
            integers (computed and returned in float64).
        axis: the axis that sums to one.
        scale: multiplies the logits; a product that overflows the dtype is an infinite logit.
        softcap: after the scale, logits become softcap·tanh(z/softcap).
        mask: broadcasts to z's shape. Boolean: True where the entry takes part; cells masked out
            are never looked at and are exactly 0. Floating-point: added to the logits.
        causal: on the last two axes (queries, keys): a key takes part if it is not after its
            query, the last query standing beside the last key.
        out: where p goes, of p's shape and dtype; may be z itself, or strided.
        saturation: rows whose largest probability reaches this are called saturated.
        threads: how many; None is INITCORE_NUM_THREADS or the CPUs this process may use.

    Returns:
        p: z's shape and dtype.
        rows: `lse`, `max_prob`, `entropy` (nats), `sum_sq` (Σp²), `jacobian_norm` (‖diag p −
            ppᵀ‖_F) as float64 and `saturated`, of z's shape without `axis`. A row with nothing to
            choose from is zeros with lse −inf and NaN for the rest; a row with NaN or +inf is NaN
            in that row alone.

    Raises:
        TypeError: a dtype or kind that is not accepted. ValueError: a shape or value that is not;
            an `axis` out of range is a numpy AxisError.
    """
    logits = check_array("z", z)
    axis = _axis(axis)
    scale = check_number("scale", scale, "a finite number")
    cap = check_softcap(softcap)
    threshold = check_saturation(saturation)
    rows = _last(logits, axis)
    if check_flag("causal", causal) and (logits.ndim < 2 or axis % logits.ndim != logits.ndim - 1):
        raise ValueError(
            f"causal=True with axis={axis} of shape {logits.shape}: "
            "the last axis of at least two (queries, keys) is accepted"
        )
    lead, n = rows.shape[:-1], rows.shape[-1]
    dtype = native(logits.dtype)
    real = compute_dtype(logits.dtype)
    check_finite_in(real, scale, cap)
    entries, which = (None, None) if mask is None else _mask(mask, logits, axis, real)
    keep = entries if entries is not None and entries.dtype == np.uint8 else None
    bias = entries if keep is None else None
    p = np.empty(logits.shape, dtype) if out is None else _result(out, logits, dtype)
    if mask is not None and out is not None and np.shares_memory(p, np.asarray(mask)):
        raise ValueError("out overlaps mask: memory of its own is accepted")
    targets = _last(p, axis)
    statistics = np.empty((*lead, _core.ROW_STATISTICS))
    if n == 0:
        statistics[...] = np.nan
        statistics[..., 0] = -np.inf
    kernel = _core.default().softmax
    queries = lead[-1] if causal else 0

    def task(first: int, size: int, index: tuple[Any, ...]) -> None:
        shape = (size, n)
        block = contiguous(rows[index], real).reshape(shape)
        target = targets[index]
        direct = target.dtype == real and target.flags.carray
        block_p = target.reshape(shape) if direct else np.empty(shape, real)
        mask_row = None if which is None else np.ascontiguousarray(which[index]).reshape(size)
        stats = statistics[index].reshape(size, -1)
        kernel(block, block_p, stats, first, scale, cap, keep, bias, mask_row, queries)
        if not direct:
            target[...] = block_p.reshape(target.shape)

    pieces = list(blocks(lead, max(1, _BLOCK_ELEMENTS // max(n, 1)))) if n else []
    few = threads is None and len(pieces) < 2  # then nobody needs to look at the environment
    parallel(task, pieces, 1 if few else resolve_threads(threads, len(pieces)))
    return p, SoftmaxRows.from_statistics(statistics, threshold)


def softmax_backward(
    p: npt.ArrayLike,
    dp: npt.ArrayLike,
    *,
    axis: int = -1,
    scale: float = 1.0,
    out: npt.NDArray[Any] | None = None,
    threads: int | None = None,
) -> npt.NDArray[Any]:
    """The gradient with respect to z of p = softmax(scale·z): scale·p⊙(dp − Σ dp·p) a row.

    Args:
        p: probabilities, as `softmax` returns them.
        dp: the gradient with respect to p, of p's shape and dtype.
        axis, scale, threads: as in `softmax`.
        out: where dz goes, of p's shape and dtype; may be p or dp.

    Returns:
        dz, of p's shape and dtype. The sum is taken in float64.
    """
    probabilities = check_array("p", p)
    gradient = check_array("dp", dp)
    if gradient.shape != probabilities.shape:
        raise ValueError(
            f"dp has shape {gradient.shape}: p's shape {probabilities.shape} is accepted"
        )
    dtype = native(probabilities.dtype)
    if native(gradient.dtype) != dtype:
        raise TypeError(f"dp has dtype {gradient.dtype}: p's dtype {dtype} is accepted")
    axis = _axis(axis)
    scale = check_number("scale", scale, "a finite number")
    real = compute_dtype(dtype)
    check_finite_in(real, scale)
    rows, gradients = _last(probabilities, axis), _last(gradient, axis)
    lead, n = rows.shape[:-1], rows.shape[-1]
    shape = probabilities.shape
    dz = np.empty(shape, dtype) if out is None else _result(out, probabilities, dtype, gradient)
    targets = _last(dz, axis)
    kernel = _core.default().softmax_backward

    def task(first: int, size: int, index: tuple[Any, ...]) -> None:
        shape = (size, n)
        block = contiguous(rows[index], real).reshape(shape)
        block_dp = contiguous(gradients[index], real).reshape(shape)
        target = targets[index]
        direct = target.dtype == real and target.flags.carray
        block_dz = target.reshape(shape) if direct else np.empty(shape, real)
        kernel(block, block_dp, block_dz, scale)
        if not direct:
            target[...] = block_dz.reshape(target.shape)

    pieces = list(blocks(lead, max(1, _BLOCK_ELEMENTS // max(n, 1)))) if n else []
    parallel(task, pieces, resolve_threads(threads, len(pieces)))
    return dz


def _axis(axis: object) -> int:
    if type(axis) is int:
        return axis
    if isinstance(axis, (bool, np.bool_)) or not hasattr(axis, "__index__"):
        raise TypeError(f"axis={axis!r}: an integer is accepted")
    return int(axis.__index__())


def _result(
    out: object,
    like: npt.NDArray[Any],
    dtype: np.dtype[Any],
    *others: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """`out`, checked: the same memory as an input, or none of it."""
    result = check_output(out, like.shape, (find_dtype(dtype),))
    for given in (like, *others):
        if result is given or not np.may_share_memory(result, given):
            continue
        same = (
            result.__array_interface__["data"] == given.__array_interface__["data"]
            and result.strides == given.strides
            and result.dtype == given.dtype
        )
        if not same and np.shares_memory(result, given):
            raise ValueError(
                "out overlaps an input: the input itself, or memory of its own, is accepted"
            )
    return result
