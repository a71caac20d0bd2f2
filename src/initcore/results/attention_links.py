# SPDX-License-Identifier: BSD-3-Clause
"""What is measured of random attention, and predicted: links of its chain, rows, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from initcore.results.exact_sum import ExactSum
from initcore.results.records import Array, Record, frozen

R = TypeVar("R", bound=Record)

#: The logits' standard deviations at which the gradient by the logarithm of the scale is measured.
PULL_STDS = (0.7, 1.0, 1.3, 8.0)


@dataclass(frozen=True, eq=False)
class AttentionLinks(Record):
    """Second moments E[x²] of what passes through attention, or of the gradients by it; floats.

    input, normalized
        x (batch·seq, d_model), and what the norm makes of it.
    q, k, v
        the products with W_Q, W_K, W_V: (batch·seq, n_heads·d_k).
    q_normalized, k_normalized
        after QK-norm; q and k where there is none.
    raw_logits, logits
        q·k of the keys that take part, and scaled.
    head_output, output
        softmax(logits) v of all heads, and its product with W_O: (batch·seq, d_model).
    se
        the standard errors over trials in the same record; None where there were no trials.

    NaN is unknown.
    """

    input: float = math.nan
    normalized: float = math.nan
    q: float = math.nan
    k: float = math.nan
    v: float = math.nan
    q_normalized: float = math.nan
    k_normalized: float = math.nan
    raw_logits: float = math.nan
    logits: float = math.nan
    head_output: float = math.nan
    output: float = math.nan
    se: AttentionLinks | None = None

    @property
    def std(self) -> AttentionLinks:
        """√E[x²] of each, with its standard error: the standard deviation over draws of the
        weights, about 0, where weights have mean 0."""
        roots = {name: root(getattr(self, name)) for name in LINKS}
        if self.se is None:
            return _made(AttentionLinks, roots)
        errors = {
            name: getattr(self.se, name) / (2 * root) if root > 0 else math.nan
            for name, root in roots.items()
        }
        return _made(AttentionLinks, roots, _made(AttentionLinks, errors))


@dataclass(frozen=True, eq=False)
class AttentionMeans(Record):
    """Means over the softmax rows of a trial, and over trials; floats.

    lse, max_prob, entropy, sum_sq, jacobian_norm, logit_mean, logit_var, logit_max, effective_keys
        as of AttentionRows, over the rows without a NaN or +inf.
    entropy_share, keys_share, saturated_fraction
        entropy/ln keys, effective_keys/keys and the share of rows whose largest probability is 0.99
        or more, of those with more than one key.
    nonfinite_fraction
        the share of rows with a NaN or +inf among their logits.
    se
        the standard errors over trials in the same record; None where there were no trials.
    """

    lse: float = math.nan
    max_prob: float = math.nan
    entropy: float = math.nan
    sum_sq: float = math.nan
    jacobian_norm: float = math.nan
    logit_mean: float = math.nan
    logit_var: float = math.nan
    logit_max: float = math.nan
    effective_keys: float = math.nan
    entropy_share: float = math.nan
    keys_share: float = math.nan
    saturated_fraction: float = math.nan
    nonfinite_fraction: float = math.nan
    se: AttentionMeans | None = None


@dataclass(frozen=True, eq=False)
class ScaleGradient(Record):
    """Gradients by the scale α that multiplies q·k.

    second_moment
        E[(∂/∂α)²], a sum over all heads and rows, for a standard normal gradient of the output.
    any_key, best_key
        float64 (4,), ∂loss/∂ln α a row at logits of standard deviation 0.7, 1, 1.3 and 8, where the
        loss is −ln p of one key: any (the mean over all keys that take part), or that of the
        largest logit. Where it is positive, training makes the scale smaller.
    se
        the standard errors over trials in the same record.
    """

    second_moment: float
    any_key: Array
    best_key: Array
    se: ScaleGradient | None = None

    def __post_init__(self) -> None:
        for name in ("any_key", "best_key"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @classmethod
    def from_columns(cls, columns: Sequence[ExactSum]) -> ScaleGradient:
        """Means and standard errors of the columns, in the order of the fields."""

        def made(values: list[float], se: ScaleGradient | None = None) -> ScaleGradient:
            n = 1 + len(PULL_STDS)
            return cls(values[0], frozen(values[1:n]), frozen(values[n:]), se)

        errors = made([column.standard_error() for column in columns])
        return made([column.mean() for column in columns], errors)


@dataclass(frozen=True, eq=False)
class AttentionTheory(Record):
    """Predictions beside what is measured: second moments, and means over rows."""

    forward: AttentionLinks
    rows: AttentionMeans
    backward: AttentionLinks

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        kinds = AttentionLinks, AttentionMeans, AttentionLinks
        sides = (data["forward"], data["rows"], data["backward"])
        return cls(
            *(
                _made(kind, {name: float(side[name]) for name in _names(kind)})
                for kind, side in zip(kinds, sides, strict=True)
            )
        )


def _names(record: type[Record]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record) if f.name != "se")


def _made(record: Callable[..., R], values: Mapping[str, float], se: R | None = None) -> R:
    return record(**values, se=se)


def root(value: float) -> float:
    """√value; NaN of what has none."""
    return math.sqrt(value) if value >= 0 else math.nan


def record_of(record: type[R], columns: Sequence[ExactSum]) -> R:
    """Means and standard errors of the columns of its fields, which may be followed by others."""
    pairs = list(zip(_names(record), columns, strict=False))
    errors = {name: column.standard_error() for name, column in pairs}
    return _made(record, {name: column.mean() for name, column in pairs}, _made(record, errors))


LINKS, MEANS = map(_names, (AttentionLinks, AttentionMeans))
FORWARD_COLUMNS = len(LINKS) + len(MEANS)
ALL_COLUMNS = FORWARD_COLUMNS + len(LINKS) + 1 + 2 * len(PULL_STDS)
