# SPDX-License-Identifier: BSD-3-Clause
"""Structures: tensors whose entries are not drawn one by one from a law.

`Identity` and `Dirac` are zeros but for ones at places that the shape tells. `Orthogonal`,
`DeltaOrthogonal` and `Sparse` are drawn whole: an entry depends on all of the stream.
"""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from initcore import _core, streams
from initcore.dtypes import FLOAT64
from initcore.laws import Constant, Normal, Pieces
from initcore.layouts import Layout

# Elements from here on choose the zeros of a sparse tensor: beyond those of any tensor.
_KEYS = 2**62


@dataclass(frozen=True)
class Moments:
    """What is known of the entries of a structure, taken over all of them."""

    mean: float
    std: float
    bound: float

    def scaled(self, factor: float) -> Moments:
        return Moments(self.mean * factor, self.std * factor, self.bound * factor)


def _of_ones(n_ones: int, shape: tuple[int, ...]) -> Moments:
    size = math.prod(shape)
    share = n_ones / size if size else 0.0
    return Moments(share, math.sqrt(share * (1.0 - share)), 1.0)


Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """Ones on the main diagonal of a matrix."""

    def _check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2:
            raise ValueError(f"shape must have 2 axes for identity, got {shape}")

    def ones(self, shape: tuple[int, ...], rows: Indices) -> list[Indices]:
        """The indices of the ones in these rows, an array an axis."""
        self._check(shape)
        rows = rows[rows < shape[1]]
        return [rows, rows]

    def laws(self, shape: tuple[int, ...], *_: object) -> tuple[Moments]:
        self._check(shape)
        return (_of_ones(min(shape), shape),)

    def pieces(self, shape: tuple[int, ...]) -> Pieces:
        """But for the ones."""
        self._check(shape)
        return Pieces((Constant(0.0),))


@dataclass(frozen=True)
class Dirac:
    """A convolution that passes on its input, channel by channel: ones at the centre tap."""

    groups: int

    def _group_size(self, shape: tuple[int, ...]) -> int:
        if not 3 <= len(shape) <= 5:
            raise ValueError(
                f"shape must have 3 to 5 axes, (out, in, *kernel), for dirac, got {shape}"
            )
        if shape[0] % self.groups:
            raise ValueError(
                f"groups must divide the number of outputs, got {self.groups} for shape {shape}"
            )
        return shape[0] // self.groups

    def ones(self, shape: tuple[int, ...], rows: Indices) -> list[Indices]:
        """The indices of the ones in these rows, an array an axis."""
        channels = rows % max(self._group_size(shape), 1)
        passed = channels < shape[1]
        taps = [np.full(np.count_nonzero(passed), size // 2) for size in shape[2:]]
        return [rows[passed], channels[passed], *taps]

    def laws(self, shape: tuple[int, ...], *_: object) -> tuple[Moments]:
        return (_of_ones(self.groups * min(self._group_size(shape), shape[1]), shape),)

    def pieces(self, shape: tuple[int, ...]) -> Pieces:
        """But for the ones."""
        self._group_size(shape)
        return Pieces((Constant(0.0),))


@dataclass(frozen=True)
class Source:
    """Where the random numbers of a whole tensor come from."""

    seed: int
    stream: int
    threads: int

    def normals(self, shape: tuple[int, ...], std: float) -> npt.NDArray[np.float64]:
        array = np.empty(shape)
        law = Normal(std).distribution(FLOAT64)
        streams.fill(array, law, seed=self.seed, stream=self.stream, threads=self.threads)
        return array

    def keys(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Uniform numbers that no other tensor of the stream takes."""
        array = np.empty(shape)
        unit = (_core.UNIFORM, 1.0, 0.0, -1.0, 1.0)
        _core.default().draw(array.reshape(-1), _KEYS, self.seed, self.stream, *unit)
        return array


# LAPACK brings threads of its own: two decompositions at once, from the threads of an experiment,
# fight for the cores. (Where other processes are at work its threads still wait for each other.)
_qr_lock = threading.Lock()


def _renew_qr_lock() -> None:
    # a forked child has the lock as it was, but not the thread that would release it
    global _qr_lock
    _qr_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_qr_lock)


def _orthogonal(source: Source, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Haar on the matrices (rows, columns) whose shorter side is orthonormal.

    The QR decomposition of normals, columns by the signs of R's diagonal (Mezzadri 2007).
    """
    normals = source.normals((rows, columns), 1.0)
    wide = rows < columns
    with _qr_lock:
        q, r = np.linalg.qr(normals.T if wide else normals)
    q *= np.where(np.diagonal(r) < 0.0, -1.0, 1.0)
    return q.T if wide else q


@dataclass(frozen=True)
class Orthogonal:
    """A matrix whose rows, or columns if they are fewer, are orthogonal and of norm `gain`."""

    gain: float
    layout: Layout

    def _outs(self, shape: tuple[int, ...]) -> list[int]:
        """The axes of the rows."""
        if len(shape) < 2:
            raise ValueError(f"shape must have two axes or more for orthogonal, got {shape}")
        return sorted(self.layout.axes(shape)[1])

    def sides(self, shape: tuple[int, ...]) -> tuple[int, int]:
        outs = self._outs(shape)
        rows = math.prod(shape[axis] for axis in outs)
        return rows, math.prod(shape[axis] for axis in range(len(shape)) if axis not in outs)

    def laws(self, shape: tuple[int, ...], *_: object) -> tuple[Moments]:
        longer = max(*self.sides(shape), 1)
        return (Moments(0.0, self.gain / math.sqrt(longer), self.gain),)

    def draw(self, shape: tuple[int, ...], source: Source) -> npt.NDArray[np.float64]:
        outs = self._outs(shape)
        order = [*outs, *(axis for axis in range(len(shape)) if axis not in outs)]
        matrix = _orthogonal(source, *self.sides(shape))
        if self.gain != 1.0:
            matrix *= self.gain
        unflattened = matrix.reshape([shape[axis] for axis in order])
        return unflattened.transpose(np.argsort(order))


@dataclass(frozen=True)
class DeltaOrthogonal:
    """A convolution (out, in, *kernel) that is an orthogonal matrix at its centre tap, and zero
    elsewhere (Xiao et al. 2018)."""

    gain: float

    def _check(self, shape: tuple[int, ...]) -> None:
        if not 3 <= len(shape) <= 5:
            raise ValueError(
                "shape must have 3 to 5 axes, (out, in, *kernel), for delta_orthogonal, "
                f"got {shape}"
            )
        if shape[1] > shape[0]:
            raise ValueError(
                "shape must have no more inputs than outputs for delta_orthogonal, "
                f"(out, in, *kernel), got {shape}"
            )

    def laws(self, shape: tuple[int, ...], *_: object) -> tuple[Moments]:
        self._check(shape)
        longer = max(shape[0] * math.prod(shape[2:]), 1)
        return (Moments(0.0, self.gain / math.sqrt(longer), self.gain),)

    def draw(self, shape: tuple[int, ...], source: Source) -> npt.NDArray[np.float64]:
        self._check(shape)
        tensor = np.zeros(shape)
        if tensor.size:
            centre: tuple[int | slice, ...] = tuple((size - 1) // 2 for size in shape[2:])
            tap = (slice(None), slice(None), *centre)
            tensor[tap] = _orthogonal(source, *shape[:2]) * self.gain
        return tensor


@dataclass(frozen=True)
class Sparse:
    """A matrix of normals with ⌈sparsity·rows⌉ zeros in each column (Martens 2010)."""

    sparsity: float
    std: float

    def _zeros(self, shape: tuple[int, ...]) -> int:
        if len(shape) != 2:
            raise ValueError(f"shape must have 2 axes for sparse, got {shape}")
        return math.ceil(self.sparsity * shape[0])

    def laws(self, shape: tuple[int, ...], *_: object) -> tuple[Moments]:
        kept = 1.0 - self._zeros(shape) / max(shape[0], 1)
        return (Moments(0.0, self.std * math.sqrt(kept), math.inf if self.std and kept else 0.0),)

    def draw(self, shape: tuple[int, ...], source: Source) -> npt.NDArray[np.float64]:
        n_zeros = self._zeros(shape)
        tensor = source.normals(shape, self.std)
        chosen = np.argsort(source.keys(shape), axis=0, kind="stable")[:n_zeros]
        np.put_along_axis(tensor, chosen, 0.0, axis=0)
        return tensor


Pattern = Identity | Dirac
Whole = Orthogonal | DeltaOrthogonal | Sparse
