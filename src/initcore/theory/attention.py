# SPDX-License-Identifier: BSD-3-Clause
"""Attention with random weights: second moments by link, exact up to the logits, and what follows
as of independent logits.

W_Q, W_K, W_V and W_O are independent of each other, their entries uncorrelated with mean 0. Then
E[q²] = d_model·Var(W_Q)·E[x²], E[(q·k)²] = d_k·E[q²]·E[k²], and what the keys of a row have in
common, a share c of a logit's variance where tokens have correlation c, cancels in the softmax.
Tokens that no norm has made equally long take E[|x|²|x'|²] instead of its factors: of normal ones
of correlation c, that is 1 + 2c²/d_model as much, and so are their squared logits.

On the way back, from a standard normal gradient of the output: E[(∂/∂head_output)²] = γ with
γ = d_model·Var(W_O), E[(∂/∂v)²] = γ·E Σp², and E Σ(∂/∂logits)² = d_k·γ·E[v²]·(1 − c)·E‖J‖² a row,
J = diag p − p pᵀ. What follows, by q, k and x, depends on how p and k go together: not predicted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from initcore.initializers import initializer
from initcore.quadrature import Array
from initcore.results.attention import WEIGHTS, weight_law
from initcore.results.attention_links import AttentionLinks, AttentionMeans, AttentionTheory
from initcore.scaling import Effect
from initcore.theory.random_logits import RandomSoftmax, softmax

# Rows of a causal softmax have 1, …, seq keys: a polynomial in ln n through so many of them.
_ROW_NODES = 9
_MAX_STD = 100.0


def predict_attention(spec: Mapping[str, Any], effect: Effect) -> AttentionTheory:
    """What ``propagate_attention`` measures under a specification, where it is known; else NaN.

    The rows are those of independent logits whose variance follows the length of their query.
    """
    var_q, var_k, var_v, var_o = (_weight_variance(spec, effect, which) for which in WEIGHTS)
    d_model, d_k, n_heads = spec["d_model"], spec["d_k"], spec["n_heads"]
    common = spec["correlation"]
    x = spec["x_std"] ** 2
    normalized = x if spec["norm"] is None or not x else 1.0
    q, k, v = (d_model * var * normalized for var in (var_q, var_k, var_v))
    q_hat, k_hat = (_normalized(effect.norm, moment, d_k) for moment in (q, k))
    raw = d_k * q_hat * k_hat
    logits = raw * effect.logits**2
    lengths = 1.0
    if spec["norm"] is None and effect.norm is None:
        lengths += 2 * _mean_squared_correlation(spec) / d_model
    degrees = math.inf if effect.norm else d_k
    counts = np.arange(1, spec["seq"] + 1) if spec["causal"] else np.array([spec["seq"]])
    rows, spread, jacobian_sq = _rows(
        logits * (1 - common), degrees, tuple(counts.tolist()), d_model
    )
    heads = v * ((1 - common) * spread + common)
    by_heads = d_model * var_o
    by_logits = d_k * by_heads * v * (1 - common) * jacobian_sq / float(np.mean(counts))
    return AttentionTheory(
        AttentionLinks(
            input=x,
            normalized=normalized,
            q=q,
            k=k,
            v=v,
            q_normalized=q_hat,
            k_normalized=k_hat,
            raw_logits=raw * lengths,
            logits=logits * lengths,
            head_output=heads,
            output=n_heads * d_k * var_o * heads,
        ),
        rows,
        AttentionLinks(
            v=by_heads * rows.sum_sq,
            raw_logits=by_logits * effect.logits**2,
            logits=by_logits,
            head_output=by_heads,
            output=1.0,
        ),
    )


def _mean_squared_correlation(spec: Mapping[str, Any]) -> float:
    """Of the tokens of query and key, over all pairs that take part: 1 of a token and itself."""
    seq, others = spec["seq"], spec["correlation"] ** 2
    share = 2 / (seq + 1) if spec["causal"] else 1 / seq  # of pairs of a token and itself
    return float(share + (1 - share) * others)


def _weight_variance(spec: Mapping[str, Any], effect: Effect, which: str) -> float:
    text, shape = weight_law(spec, effect, which)
    laws = initializer(text).laws(shape)
    if len(laws) > 1 or laws[0].mean != 0:
        return math.nan
    return laws[0].std ** 2


def _normalized(norm: str | None, moment: float, d_k: int) -> float:
    if norm is None or not moment:
        return moment
    return 1.0 if norm == "rms" else 1 / d_k


def _rows(
    variance: float, degrees: float, counts: tuple[int, ...], d_model: int
) -> tuple[AttentionMeans, float, float]:
    """Rows of so many independent logits N(0, variance·χ²/degrees), one χ² a row; E|Σ p x|² of
    tokens x of length 1; and E ‖diag p − p pᵀ‖².

    E|Σ p x|² is E Σp² and more, for the keys that are looked at are alike: along one of d_model
    directions lies what makes a logit large. By Stein's lemma, twice, that adds
    s² E Σ_{j≠l} p_j p_l (1 − 2p_j − 2p_l + 6p_j p_l)/d_model, of which the expectation is
    (1 − E Σp²)³ for weights that freeze (Poisson–Dirichlet), and nearly so for flat ones.
    """
    centred = variance * (1 - float(np.mean(1 / np.array(counts))))
    points = _chi_square(degrees)
    if not variance * points[-1][0] <= _MAX_STD**2:  # NaN too
        return AttentionMeans(logit_var=centred), math.nan, math.nan

    def at(n: int) -> Array:
        total = np.zeros(5)
        for factor, weight in points:
            found = _softmax(n, math.sqrt(variance * factor))
            alike = variance * factor * (1 - found.sum_sq) ** 3 / d_model
            means = found.sum_sq, found.entropy, found.max_prob
            total += weight * np.array([*means, found.sum_sq + alike, found.jacobian_sq])
        return total

    sum_sq, entropy, max_prob, spread, jacobian_sq = _mean_over(counts, at).tolist()
    means = AttentionMeans(sum_sq=sum_sq, entropy=entropy, max_prob=max_prob, logit_var=centred)
    return means, spread, jacobian_sq


def _chi_square(degrees: float) -> list[tuple[float, float]]:
    """Two points and weights with the first three moments of χ²/degrees."""
    if degrees == math.inf:
        return [(1.0, 1.0)]
    # Of a variable with mean 1, variance 2/degrees and third central moment 8/degrees².
    skew = 2 / degrees
    root = math.sqrt(skew**2 + 2 / degrees)
    low, high = 1 + skew - root, 1 + skew + root
    return [(low, (high - 1) / (2 * root)), (high, (1 - low) / (2 * root))]


@functools.lru_cache(maxsize=1024)
def _softmax(n: int, std: float) -> RandomSoftmax:
    return softmax(n, std)


def _mean_over(counts: tuple[int, ...], at: Callable[[int], Array]) -> Array:
    """The mean of a function of ln n over the counts, interpolated where they are many."""
    if len(counts) <= _ROW_NODES:
        mean: Array = np.mean([at(n) for n in counts], axis=0)
        return mean
    last = math.log(counts[-1])
    angles = np.linspace(0.0, math.pi, _ROW_NODES)
    nodes = np.unique(np.rint(np.exp(last * (1 - np.cos(angles)) / 2)).astype(int))
    places, values = np.log(nodes), np.array([at(int(n)) for n in nodes])
    weights = [1 / np.prod(np.delete(x - places, i)) for i, x in enumerate(places)]
    gaps = np.log(np.array(counts))[:, None] - places
    exact = gaps == 0
    terms = np.where(exact.any(1, keepdims=True), exact, weights / np.where(exact, 1.0, gaps))
    mean = np.mean(terms @ values / terms.sum(1, keepdims=True), axis=0)
    return mean
