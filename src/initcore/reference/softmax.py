# SPDX-License-Identifier: BSD-3-Clause
"""Softmax by rows with its statistics, and its gradient, in wide precision.

Near one-hot rows the textbook forms of the entropy and of ‖J‖_F cancel; here both are sums of
terms of one sign. With i* the largest entry, R the sum of e^(t − t*) over the others:

    ln p_i = (t_i − t*) − log1p(R), both parts negative, so H = Σ p_i ((t* − t_i) + log1p R);
    J = diag p − p pᵀ, so ‖J‖² = Σ p_i² (1 − p_i)² + 2 Σ_{i<j} p_i² p_j², 1 − p_i being the sum of
    the other probabilities.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["STATISTICS", "logits", "softmax", "softmax_backward"]

STATISTICS = ("lse", "max_prob", "entropy", "sum_sq", "jacobian_norm")

Wide: TypeAlias = Any  # an array of numpy.longdouble, whose type differs between platforms
Mask = NDArray[np.bool_]


def logits(
    z: NDArray[Any],
    scale: float = 1.0,
    softcap: float | None = None,
    keep: Mask | None = None,
    bias: NDArray[Any] | None = None,
    causal: bool = False,
) -> tuple[Wide, Mask]:
    """What is exponentiated: z (…, queries, keys) scaled, then capped, then masked.

    keep: True where an entry takes part, broadcast to z; bias: added, broadcast to z; causal:
    the last query is aligned with the last key. Returns the logits and which entries take part
    (−∞ is a logit like others, of probability 0).
    """
    t = z.astype(np.longdouble)
    part = np.ones(z.shape, dtype=np.bool_)
    if keep is not None:
        part &= keep
    if causal:
        queries, keys = z.shape[-2:]
        part &= np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    with np.errstate(all="ignore"):
        t = t * np.longdouble(scale)
        if softcap is not None:
            t = softcap * np.tanh(t / np.longdouble(softcap))
        if bias is not None:
            t = t + bias
    return t, part


def _sum_of_others(p: Wide) -> Wide:
    """For each i the sum of p_j over j ≠ i, without subtraction."""
    zero = np.zeros(1, dtype=np.longdouble)
    before = np.concatenate([zero, np.cumsum(p[:-1])])
    after = np.concatenate([np.cumsum(p[:0:-1])[::-1], zero])
    return before + after


def _row(t: Wide) -> tuple[Wide, list[np.longdouble]]:
    """Softmax and statistics of the participating logits of one row, one at least finite."""
    top = int(np.argmax(t))
    below = t - t[top]
    e = np.exp(below)
    e[top] = 0
    rest = np.sum(np.sort(e))
    e[top] = 1
    p = e / (1 + rest)
    log_sum = np.log1p(rest)
    alive = p > 0
    entropy = np.sum(p[alive] * (log_sum - below[alive]))
    squares = p * p
    pairs = np.sum(squares[1:] * np.cumsum(squares)[:-1])
    jacobian = np.sqrt(np.sum(squares * _sum_of_others(p) ** 2) + 2 * pairs)
    return p, [t[top] + log_sum, p[top], entropy, np.sum(squares), jacobian]


def softmax(t: Wide, part: Mask | None = None) -> tuple[Wide, Wide]:
    """Softmax over the last axis of the logits t (rows, n) and its statistics (rows, 5).

    part: the entries that take part (None: all); the others are exactly 0. A row where none
    does, or only −∞, is zeros with lse −∞ and NaN statistics; a row where a NaN or +∞ takes part
    is NaN throughout. Columns are STATISTICS: ln Σ e^t, the largest probability, the entropy in
    nats, Σ p² and the Frobenius norm of the Jacobian.
    """
    if part is None:
        part = np.ones(t.shape, dtype=np.bool_)
    p = np.zeros(t.shape, dtype=np.longdouble)
    statistics = np.full((t.shape[0], len(STATISTICS)), np.nan, dtype=np.longdouble)
    for r in range(t.shape[0]):
        row = t[r, part[r]]
        if np.any(np.isnan(row) | np.isposinf(row)):
            p[r] = np.nan
        elif np.all(np.isneginf(row)):
            statistics[r, 0] = -np.inf
        else:
            with np.errstate(under="ignore"):
                p[r, part[r]], statistics[r] = _row(row)
    return p, statistics


def softmax_backward(p: NDArray[Any], dp: NDArray[Any], scale: float = 1.0) -> Wide:
    """∂/∂z of softmax(scale·z) over the last axis: scale·p ⊙ (dp − Σ dp·p)."""
    wide = p.astype(np.longdouble)
    inner = np.sum(dp.astype(np.longdouble) * wide, axis=-1, keepdims=True)
    return np.longdouble(scale) * wide * (dp - inner)
