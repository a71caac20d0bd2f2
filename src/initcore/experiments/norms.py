# SPDX-License-Identifier: BSD-3-Clause
"""Normalization of rows, forward and backward, with the same bits on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.activations import activation

Rows = NDArray[np.float32]
Wide = NDArray[np.float64]

_BLOCK = 1 << 16
_LINEAR = activation("linear").kernel_words


class Normalized(NamedTuple):
    """Rows x (rows, n) after a norm: y = x/r, r the root mean square of a row ("rms"), that of the
    row without its mean, which is subtracted ("layer"), or its length ("l2"). Rows without size
    stay zero, and pass no gradient on.

    There is no ε: what is measured is the norm, not the size at which it gives way.
    """

    y: Rows
    kind: str
    inverse: Wide  # 1/r, (rows, 1)

    def gradient(self, dy: Rows) -> Rows:
        """∂/∂x of what has ∂/∂y = `dy`: (dy − y·⟨dy·y⟩)/r, where ⟨⟩ is a row's mean (its sum for
        "l2"), and dy loses its mean first for "layer"."""
        dx = np.empty_like(dy)
        n = dy.shape[1]
        for block in _blocks(dy):
            wide, y = dy[block].astype(np.float64), self.y[block].astype(np.float64)
            if self.kind == "layer":
                wide -= _row_sums(wide) / n
            y *= _row_sums(wide * y) / (1 if self.kind == "l2" else n)
            wide -= y
            wide *= self.inverse[block]
            _store(dx[block], wide)
        return dx


def normalize(x: Rows, kind: str) -> Normalized:
    """See :class:`Normalized`."""
    rows, n = x.shape
    y, inverse = np.empty_like(x), np.empty((rows, 1))
    for block in _blocks(x):
        wide = x[block].astype(np.float64)
        if kind == "layer":
            wide -= _row_sums(wide) / n
        size = np.sqrt(_row_sums(wide * wide) / (1 if kind == "l2" else n))
        with np.errstate(divide="ignore"):
            inverse[block] = np.where(size > 0, 1 / size, 0.0)
        wide *= inverse[block]
        _store(y[block], wide)
    return Normalized(y, kind, inverse)


def _blocks(x: Rows) -> Iterator[slice]:
    """Rows that stay in cache in float64."""
    rows, n = x.shape
    step = max(1, _BLOCK // max(n, 1))
    return (slice(first, first + step) for first in range(0, rows, step))


def _store(to: Rows, wide: Wide) -> None:
    with np.errstate(over="ignore"):
        to[...] = wide


def _row_sums(wide: Wide) -> Wide:
    # As a product, whose order of terms is the same everywhere; that of np.sum is NumPy's affair.
    rows, n = wide.shape
    ones, sums, kernels = np.ones((1, n)), np.empty((rows, 1)), _core.default()
    spec = _core.Chain("float64", 0, rows, [n, 1], [_LINEAR], wide, [ones], [None])
    scratch = np.empty(kernels.chain_workspace(spec), np.uint8)
    kernels.chain(spec, 0, 1, None, sums, scratch, np.zeros(1, np.int32))
    return sums
