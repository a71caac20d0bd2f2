# SPDX-License-Identifier: BSD-3-Clause
"""Normalization of rows, forward and backward, with the same bits on every machine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.activations import activation
from initcore.experiments import engine

Rows = NDArray[np.float32]
Wide = NDArray[np.float64]

_LINEAR = activation("linear").kernel_words
# Elements that stay in cache in float64.
_BLOCK = 1 << 16


class Norm:
    """y = x/r of rows x (rows, n): r is the root mean square of a row ("rms"), that of the row
    without its mean, which is subtracted ("layer"), or its length ("l2"). Rows without size stay
    zero, and pass no gradient on.

    There is no ε: what is measured is the norm, not the size at which it gives way. Its arrays are
    made once, for many trials.
    """

    def __init__(self, rows: int, n: int, kind: str) -> None:
        self._kind, self._over = kind, 1 if kind == "l2" else n
        self.y: Rows = np.empty((rows, n), np.float32)
        self._inverse = np.empty((rows, 1))
        self._step = min(max(1, _BLOCK // max(n, 1)), max(rows, 1))
        # One is summed along its rows, the other is beside it.
        self._summed, self._beside = np.zeros((2, self._step, n))
        self._sums, self._kernels = np.empty((self._step, 1)), _core.default()
        ones = np.ones((1, n))
        self._chain = _core.Chain(
            "float64", 0, self._step, [n, 1], [_LINEAR], self._summed, [ones], [None]
        )
        self._scratch = np.empty(self._kernels.chain_workspace(self._chain), np.uint8)

    def forward(self, x: Rows, cancel: engine.Cancel) -> Rows:
        """y, which the next call overwrites. Raises Cancelled."""
        for block, wide, summed in self._blocks():
            wide[...] = x[block]
            self._centre(wide, cancel)
            np.multiply(wide, wide, out=summed)
            size = np.sqrt(self._row_sums(len(wide), cancel) / self._over)
            with np.errstate(divide="ignore"):
                self._inverse[block] = np.where(size > 0, 1 / size, 0.0)
            wide *= self._inverse[block]
            _store(self.y[block], wide)
        return self.y

    def backward(self, dy: Rows, cancel: engine.Cancel) -> Rows:
        """∂/∂x of what has ∂/∂y = `dy`, in its place: (dy − y·⟨dy·y⟩)/r, where ⟨⟩ is a row's mean
        (its sum for "l2"), and dy loses its mean first for "layer". Raises Cancelled."""
        for block, wide, summed in self._blocks():
            wide[...] = dy[block]
            self._centre(wide, cancel)
            np.multiply(wide, self.y[block], out=summed)
            along = self._row_sums(len(wide), cancel) / self._over
            np.multiply(self.y[block], along, out=summed)
            wide -= summed
            wide *= self._inverse[block]
            _store(dy[block], wide)
        return dy

    def _blocks(self) -> Iterator[tuple[slice, Wide, Wide]]:
        for first in range(0, len(self.y), self._step):
            rows = min(self._step, len(self.y) - first)
            yield slice(first, first + rows), self._beside[:rows], self._summed[:rows]

    def _centre(self, wide: Wide, cancel: engine.Cancel) -> None:
        if self._kind == "layer":
            self._summed[: len(wide)] = wide
            wide -= self._row_sums(len(wide), cancel) / self._over

    def _row_sums(self, rows: int, cancel: engine.Cancel) -> Wide:
        # As a product: its order of terms is the same everywhere, np.sum's is NumPy's affair.
        if not self._kernels.chain(self._chain, 0, 1, None, self._sums, self._scratch, cancel):
            raise engine.Cancelled
        return self._sums[:rows]


def _store(to: Rows, wide: Wide) -> None:
    with np.errstate(over="ignore"):
        to[...] = wide
