# SPDX-License-Identifier: BSD-3-Clause
"""The rows of a batch as theory sees them: what rows that are alike have in units and in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from initcore.kernels.chain import moments
from initcore.quadrature import Array

_GROUPS = 8  # of different norms at most
_PER_OCTAVE = 3  # within a factor of 2^(1/3) a mean over rows is that of the mean row, to 0.1 %
_SAME = 1e-9  # a relative difference of second moments that is none


class Rows(NamedTuple):
    """Means over the units of rows that are alike, and over pairs of them.

    No difference of large numbers: a mean far from 0 leaves what is around it its digits.
    """

    mean: float
    variance: float  # around the row's own mean
    between: float = 0.0  # the variance of the rows' means
    covariance: float = 0.0  # of two rows, around their own means
    common: float = 0.0  # the covariance of the means of two rows

    @property
    def second_moment(self) -> float:
        return self.variance + self.between + self.mean * self.mean

    @property
    def product(self) -> float:
        """E x x′ of two rows."""
        return self.covariance + self.common + self.mean * self.mean

    def plus(self, factor: float, other: Rows) -> Rows:
        """Of x + factor·y with independent y, of which all rows have one mean."""
        squared = factor * factor
        return Rows(
            self.mean + factor * other.mean,
            self.variance + squared * other.variance,
            self.between,
            self.covariance + squared * other.covariance,
            self.common,
        )


def groups(x: npt.NDArray[Any]) -> list[tuple[float, Rows]]:
    """The rows of x (batch, n) in groups of nearly one norm, with their shares of the batch.

    Up to eight different norms are as many groups. More are groups of equally many rows in the
    order of their norms: three for a factor of 2 between the second moments, at most eight. Rows of
    zeros and rows of equal entries, which norms treat in ways of their own, are kept apart. The
    cosine of two rows is the mean one, in every group.
    """
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        cosine = _cosine(wide)
        means = np.zeros(len(wide))
        for _ in range(2):  # the second time takes away what rounding left: equal entries become 0
            shift = wide.mean(axis=1)
            wide -= shift[:, None]
            means += shift
        centred_cosine = _cosine(wide)
        variances = np.einsum("bu,bu->b", wide, wide) / wide.shape[1]
        second_moments = variances + means * means
        kind = np.where(variances == 0.0, np.where(means == 0.0, 0, 1), 2)
        found = []
        for these in (np.flatnonzero(kind == i) for i in range(3)):
            for alike in _split(second_moments[these]):
                chosen = these[alike]
                variance, between = float(variances[chosen].mean()), float(means[chosen].var())
                rows = Rows(float(means[chosen].mean()), variance, between)
                covariance = centred_cosine * variance
                common = cosine * rows.second_moment - covariance - rows.mean * rows.mean
                rows = rows._replace(covariance=covariance, common=common)
                found.append((len(chosen) / len(wide), rows))
        return found


def _cosine(rows: Array) -> float:
    """The mean cosine of pairs; 0 where there is none, of fewer than two rows that are not 0."""
    return float(np.nan_to_num(moments(rows).cosine))


def _split(values: Array) -> list[npt.NDArray[np.intp]]:
    """Indices of equal values, or where those are many, of up to eight groups of neighbours."""
    order = np.argsort(values)
    ascending = values[order]
    steps = np.flatnonzero(np.diff(ascending) > _SAME * ascending[1:]) + 1
    if len(steps) < _GROUPS:
        return np.split(order, steps) if len(order) else []
    octaves = np.log2(ascending[-1] / ascending[0])
    count = _GROUPS if not octaves < _GROUPS / _PER_OCTAVE else 1 + int(_PER_OCTAVE * octaves)
    return np.array_split(order, min(count, _GROUPS))
