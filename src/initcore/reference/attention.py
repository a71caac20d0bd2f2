# SPDX-License-Identifier: BSD-3-Clause
"""Attention of one head, forward and backward, with every logit in memory and in wide precision.

    u = q kᵀ,  c = softcap·tanh(scale·u/softcap) or scale·u,  t = c + bias,
    p = softmax(t),  o = p v

and, with g = ∂/∂o,

    ∂v = pᵀ g,  ∂p = g vᵀ,  ∂t = p ⊙ (∂p − Σ ∂p·p),  ∂c/∂(scale·u) = 1 − (c/softcap)² or 1,
    ∂(scale·u) = ∂t ∂c/∂(scale·u),  ∂q = scale ∂(scale·u) k,  ∂k = scale ∂(scale·u)ᵀ q,
    ∂scale = Σ ∂(scale·u) ⊙ u.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .softmax import STATISTICS as ROW_STATISTICS
from .softmax import Mask, Wide, logits, softmax, softmax_backward

__all__ = ["STATISTICS", "attention", "attention_backward", "attention_statistics", "weigh"]

STATISTICS = (*ROW_STATISTICS, "logit_mean", "logit_var", "logit_max", "keys")


def attention_statistics(
    u: NDArray[Any],
    scale: float = 1.0,
    softcap: float | None = None,
    keep: Mask | None = None,
    bias: NDArray[Any] | None = None,
    causal: bool = False,
) -> tuple[Wide, Wide]:
    """p (queries, keys) and STATISTICS (queries, 9) of the products u = q kᵀ.

    The options are those of `softmax.logits`. The mean, the variance (ddof 0) and the largest are
    of the logits that take part and are above −∞, `keys` their number: what a row of attention
    chooses from. Where there are none the other statistics of the row are NaN and lse is −∞;
    where a NaN or +∞ takes part all are NaN.
    """
    t, part = logits(u, scale, softcap, keep, bias, causal)
    p, rows = softmax(t, part)
    extra = np.full((len(t), len(STATISTICS) - len(ROW_STATISTICS)), np.nan, dtype=np.longdouble)
    for r in range(len(t)):
        seen = t[r, part[r]]
        seen = seen[~np.isneginf(seen)]
        if len(seen) == 0:
            extra[r, -1] = 0
        elif np.all(np.isfinite(seen)):
            mean = np.sum(seen) / len(seen)
            extra[r] = mean, np.sum((seen - mean) ** 2) / len(seen), np.max(seen), len(seen)
    return p, np.concatenate([rows, extra], axis=1)


def weigh(p: Wide, v: NDArray[Any]) -> Wide:
    """p v, p (queries, keys) and v (keys, d_v); keys of probability 0 are not looked at."""
    output = np.zeros((len(p), v.shape[1]), dtype=np.longdouble)
    for r, row in enumerate(p):
        alive = row != 0
        output[r] = row[alive] @ v[alive].astype(np.longdouble)
    return output


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    scale: float = 1.0,
    softcap: float | None = None,
    keep: Mask | None = None,
    bias: NDArray[Any] | None = None,
    causal: bool = False,
) -> tuple[Wide, Wide]:
    """The output (queries, d_v) and STATISTICS (queries, 9) of q (queries, d_k), k (keys, d_k) and
    v (keys, d_v). A fully masked row is zeros."""
    u = q.astype(np.longdouble) @ k.astype(np.longdouble).T
    p, statistics = attention_statistics(u, scale, softcap, keep, bias, causal)
    return weigh(p, v), statistics


def attention_backward(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    dout: NDArray[Any],
    scale: float = 1.0,
    softcap: float | None = None,
    keep: Mask | None = None,
    bias: NDArray[Any] | None = None,
    causal: bool = False,
) -> tuple[Wide, Wide, Wide, Wide]:
    """∂/∂q, ∂/∂k, ∂/∂v and ∂/∂scale of the sum of dout ⊙ attention(q, k, v)."""
    q, k, v, dout = (array.astype(np.longdouble) for array in (q, k, v, dout))
    u = q @ k.T
    p, _ = softmax(*logits(u, scale, softcap, keep, bias, causal))
    scaled = softmax_backward(p, dout @ v.T)
    if softcap is not None:
        scaled = scaled * (1 - np.tanh(np.longdouble(scale) * u / softcap) ** 2)
    return scale * scaled @ k, scale * scaled.T @ q, p.T @ dout, np.sum(scaled * u)
