# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of attention rows: those of a softmax row, and what it chose from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from initcore.results.records import Array, frozen
from initcore.results.softmax_rows import SoftmaxRows, SoftmaxSummary
from initcore.results.text import number, share, text_table

_MEANS = (
    "lse", "max_prob", "entropy", "sum_sq", "jacobian_norm", "logit_mean", "logit_var", "logit_max",
    "keys", "effective_keys", "entropy_share",
)  # fmt: skip
_PRINTED = ("logit_var", "max_prob", "entropy", "entropy_share", "effective_keys", "jacobian_norm")


@dataclass(frozen=True, eq=False)
class AttentionSummary(SoftmaxSummary):
    """Counts of rows, and the mean of each statistic over the rows that have one.

    rows, masked_rows, nonfinite_rows, saturated_rows
        all rows; fully masked ones; those with a NaN or +inf among their logits; saturated ones.
    lse, max_prob, …, entropy_share
        means of the fields of AttentionRows over the rows that are neither masked nor non-finite
        (entropy_share: and have more than one key); NaN where there are none.
    heads
        the same of each head, over the leading axes; empty where there is no axis of heads.
    """

    logit_mean: float
    logit_var: float
    logit_max: float
    keys: float
    effective_keys: float
    entropy_share: float
    heads: tuple[AttentionSummary, ...] = ()

    def __str__(self) -> str:
        rows = [["head", "rows", "saturated", *(name.replace("_", " ") for name in _PRINTED)]]
        for label, one in [*enumerate(self.heads), ("all", self)]:
            counted = one.rows - one.masked_rows - one.nonfinite_rows
            saturated = share(one.saturated_rows / counted if counted else np.nan)
            means = (number(getattr(one, name)) for name in _PRINTED)
            rows.append([str(label), str(one.rows), saturated, *means])
        return text_table(self.counts(), rows, "")


@dataclass(frozen=True, eq=False)
class AttentionRows(SoftmaxRows):
    """Statistics of the rows of p = softmax of a head's logits: read-only float64 arrays
    (…, n_heads, seq_q).

    lse
        ln Σ exp of the logits (scaled, capped, masked); −inf in a fully masked row.
    max_prob, entropy, sum_sq
        the largest p; −Σ p ln p in nats; Σ p², from 1/keys (uniform) to 1 (one-hot).
    jacobian_norm
        Frobenius norm of diag p − p pᵀ.
    saturated
        bool: the largest p reaches the threshold that was given (0.99 if none).
    logit_mean, logit_var, logit_max
        mean, variance (ddof 0) and largest of the row's logits that take part and are above −inf.
    keys, effective_keys
        how many those are; 1/Σ p², how many equally likely ones would be as concentrated.

    A fully masked row has 0 keys, lse −inf and NaN in the others; a row with a NaN or +inf among
    its logits has NaN in all.
    """

    logit_mean: Array
    logit_var: Array
    logit_max: Array
    keys: Array
    effective_keys: Array

    @classmethod
    def from_statistics(cls, statistics: ArrayLike, threshold: float) -> Self:
        """From the attention kernel's rows, float64 (..., 9): the first five fields, then
        `logit_mean logit_var logit_max keys`.

        A row is saturated where its largest p is ``threshold`` or more.
        """
        table = np.asarray(statistics, np.float64)
        names = [f.name for f in fields(cls) if f.name != "saturated"]
        columns = np.empty((len(names), *table.shape[:-1]))
        columns[:-1] = np.moveaxis(table, -1, 0)
        np.divide(1, columns[names.index("sum_sq")], out=columns[-1, ...])
        return cls._of_columns(names, columns, threshold)

    @property
    def entropy_share(self) -> Array:
        """Entropy as a share of its largest value, ln keys; NaN where there is one key or none."""
        possible = np.where(self.keys > 1, self.keys, np.nan)
        return frozen(self.entropy / np.log(possible))

    def summary(self) -> AttentionSummary:
        """Counts and means over all rows and by head; masked and non-finite rows are left out of
        the means.

        The sums are exact, so the order of rows does not matter.
        """
        by_head = self.lse.shape[-2] if self.lse.ndim > 1 else 0
        heads = tuple(self._head(h)._summary(()) for h in range(by_head))
        return self._summary(heads)

    def _head(self, head: int) -> AttentionRows:
        rows = {f.name: getattr(self, f.name)[..., head, :] for f in fields(self)}
        return AttentionRows(**rows)

    def _summary(self, heads: tuple[AttentionSummary, ...]) -> AttentionSummary:
        return AttentionSummary(**self._counts_and_means(_MEANS), heads=heads)
