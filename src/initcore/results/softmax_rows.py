# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of softmax rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initcore import _core
from initcore.results.exact_sum import ExactSum
from initcore.results.records import Array, Record, frozen
from initcore.results.text import number

_ROW_STATISTICS = ("lse", "max_prob", "entropy", "sum_sq", "jacobian_norm")


def exact_means(table: Array) -> list[float]:
    """The means of the finite values in the columns of a float64 table, correctly rounded."""
    sums = np.zeros((table.shape[1], _core.EXACT_WORDS), np.int64)
    _core.default().exact_add(sums, table)
    return [ExactSum(*values).mean() for values in _core.default().exact_values(sums)]


@dataclass(frozen=True, eq=False)
class SoftmaxSummary(Record):
    """Counts of rows, and the mean of each statistic over the rows that have one.

    rows, masked_rows, nonfinite_rows, saturated_rows
        all rows; fully masked ones; those with a NaN or +inf among their logits; saturated ones.
    lse, max_prob, entropy, sum_sq, jacobian_norm
        means over the rows that are neither masked nor non-finite; NaN where there are none.
    """

    rows: int
    masked_rows: int
    nonfinite_rows: int
    saturated_rows: int
    lse: float
    max_prob: float
    entropy: float
    sum_sq: float
    jacobian_norm: float

    def __str__(self) -> str:
        means = (f"{name} {number(getattr(self, name))}" for name in _ROW_STATISTICS)
        return f"{self.counts()}\nmeans: {', '.join(means)}"

    def counts(self) -> str:
        """``4 rows, 1 masked, 0 nonfinite, 2 saturated``."""
        counts = f"{self.rows} rows"
        for name in ("masked", "nonfinite", "saturated"):
            counts += f", {getattr(self, name + '_rows')} {name}"
        return counts


@dataclass(frozen=True, eq=False)
class SoftmaxRows(Record):
    """Statistics of softmax rows p: read-only arrays of the logits' shape without the softmax axis.

    lse
        ln Σ exp z of the scaled logits; −inf in a fully masked row.
    max_prob, entropy, sum_sq
        the largest p; −Σ p ln p in nats; Σ p², from 1/n (uniform) to 1 (one-hot).
    jacobian_norm
        Frobenius norm of diag p − p pᵀ.
    saturated
        bool: the largest p reaches the threshold the softmax was given (0.99 if none).

    A fully masked row has NaN but in lse; a row with a NaN or +inf among its logits has NaN in all.
    """

    lse: Array
    max_prob: Array
    entropy: Array
    sum_sq: Array
    jacobian_norm: Array
    saturated: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for f in fields(self):
            dtype = np.bool_ if f.name == "saturated" else np.float64
            object.__setattr__(self, f.name, frozen(getattr(self, f.name), dtype))

    @classmethod
    def from_statistics(cls, statistics: ArrayLike, threshold: float) -> Self:
        """From the softmax kernel's rows, float64 (..., 5), columns in the order of the fields.

        A row is saturated where its largest p is ``threshold`` or more.
        """
        table = np.asarray(statistics, np.float64)
        # of rows alone what moveaxis would give, at a tenth of its cost
        columns = table.T if table.ndim == 2 else np.moveaxis(table, -1, 0)
        return cls._of_columns(_ROW_STATISTICS, columns.copy(), threshold)

    @classmethod
    def _of_columns(cls, names: Sequence[str], columns: Array, threshold: float) -> Self:
        """From an array of its own, a field a row, the first of them as the kernel has them."""
        saturated = np.asarray(columns[_ROW_STATISTICS.index("max_prob")] >= threshold)
        for array in (columns, saturated):
            array.setflags(write=False)
        rows = object.__new__(cls)  # every array is read-only already
        values = vars(rows)
        each = columns if columns.ndim > 1 else [columns[i, ...] for i in range(len(columns))]
        for name, column in zip(names, each, strict=True):
            values[name] = column
        values["saturated"] = saturated
        return rows

    def summary(self) -> SoftmaxSummary:
        """Counts and means over all rows; masked and non-finite rows are left out of the means.

        The sums are exact, so the order of rows does not matter.
        """
        return SoftmaxSummary(**self._counts_and_means(_ROW_STATISTICS))

    def _counts_and_means(self, names: tuple[str, ...]) -> dict[str, Any]:
        columns = [np.ravel(getattr(self, name)) for name in names]
        return {
            "rows": self.lse.size,
            "masked_rows": int(np.sum(self.lse == -np.inf)),
            "nonfinite_rows": int(np.sum(np.isnan(self.lse))),
            "saturated_rows": int(np.sum(self.saturated)),
            **dict(zip(names, exact_means(np.stack(columns, axis=1)), strict=True)),
        }

    def __str__(self) -> str:
        return str(self.summary())
