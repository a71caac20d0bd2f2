# SPDX-License-Identifier: BSD-3-Clause
"""A chain of layers over the user's own arrays, and the moments of one array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..activations import Activation
from ..activations import activation as parse_activation
from ..results.layers import ChainLayers, LayerStats
from ..streams import parallel, resolve_threads
from .arrays import FLOAT64, check_array, compute_dtype, contiguous

# A trial of more multiplications may take over 10 ms: Ctrl-C should not wait for it.
_LONG_PRODUCTS = 2e8
# A layer of fewer multiplications is done sooner than it is handed out to threads.
_SHARED_PRODUCTS = 1e7
# Columns transposed at a time in `moments`: bounded scratch.
_BLOCK_ELEMENTS = 1 << 18


def layer_activations(
    activation: str | Activation | Sequence[str | Activation],
    last: str | Activation | None,
    n_layers: int,
) -> list[Activation]:
    """One activation a layer: `activation` is one or a list; the last layer has `last` if given."""
    if isinstance(activation, (str, Activation)):
        chosen = [parse_activation(activation)] * n_layers
    else:
        chosen = [parse_activation(one) for one in activation]
        if len(chosen) != n_layers:
            raise ValueError(
                f"activation has {len(chosen)} entries: one, or one for each of "
                f"{n_layers} layers, is accepted"
            )
    if last is not None:
        chosen[-1] = parse_activation(last)
    return chosen


def share_trials(n_trials: int, widths: Sequence[int], batch: int, threads: int) -> bool:
    """Whether threads had better share each trial's layers than take a trial each."""
    products = batch * sum(n_in * n_out for n_in, n_out in pairwise(widths))
    return n_trials < threads and products >= _SHARED_PRODUCTS * (len(widths) - 1)


def run_shared(
    kernels: _core.Kernels,
    chain: _core.Chain,
    widths: Sequence[int],
    batch: int,
    trial: int,
    state: npt.NDArray[np.float64] | None,
    y: npt.NDArray[Any] | None,
    workspaces: Sequence[npt.NDArray[np.uint8]],
    cancel: npt.NDArray[np.int32],
) -> bool:
    """One trial in as many threads as there are workspaces, the outputs of each layer cut among
    them. What ``Kernels.chain`` computes of one trial, with the same bits; state (layers, 2, 7) or
    None. False when cancelled."""
    shared, threads = workspaces[0], len(workspaces)
    units = np.empty((max(widths), 2, 2))
    parts = np.empty((threads, 2, 7))
    kernels.chain_input(chain, trial, shared)
    for layer, n_out in enumerate(widths[1:]):
        cuts = [n_out * i // threads for i in range(threads + 1)]

        def task(i: int, layer: int = layer, cuts: list[int] = cuts) -> bool:
            found, part = (None, None) if state is None else (units, parts[i])
            own = workspaces[i]
            return kernels.chain_columns(
                chain, trial, layer, cuts[i], cuts[i + 1], found, part, y, shared, own, cancel
            )

        if not all(parallel(task, [(i,) for i in range(threads)], threads)):
            return False
        if state is not None:
            kernels.chain_merge(units[:n_out], batch, parts, state[layer])
    return True


def chain(
    x: npt.ArrayLike,
    weights: Sequence[npt.ArrayLike],
    biases: Sequence[npt.ArrayLike | None] | None = None,
    *,
    activation: str | Activation | Sequence[str | Activation],
    last: str | Activation | None = None,
    stats: bool = True,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], ChainLayers | None]:
    """x ← φ(x Wᵀ + b), layer after layer, with the statistics of every layer.

    Args:
        x: (…, batch, n_in), float16, bfloat16, float32, float64 or integers.
        weights: one (…, n_out, n_in) array a layer; leading axes (trials) broadcast.
        biases: one (…, n_out) array or None a layer; None has no biases.
        activation: a name, or one a layer.
        last: the last layer's activation, if another.
        stats: False skips the statistics.
        threads: trials are spread over so many; results do not depend on it.

    Returns:
        y: (…, batch, n_out of the last layer). Computed in float64 if any array is float64 (or all
            are integers), else in float32; half precisions give float32.
        layers: `pre` (h = x Wᵀ + b) and `post` (φ(h)), fields of shape (…, layers); None without
            `stats`.

    Raises:
        TypeError, ValueError: naming the array, what it is and what is accepted.
    """
    inputs = check_array("x", x)
    if isinstance(weights, np.ndarray) and weights.ndim < 3:
        raise TypeError("weights is one array: a sequence with one array a layer is accepted")
    matrices = [check_array(f"weights[{i}]", w) for i, w in enumerate(weights)]
    n_layers = len(matrices)
    if n_layers == 0:
        raise ValueError("weights is empty: at least one layer is accepted")
    given_biases: Sequence[npt.ArrayLike | None] = [None] * n_layers if biases is None else biases
    if len(given_biases) != n_layers:
        raise ValueError(
            f"biases has {len(given_biases)} entries: one (or None) for each of "
            f"{n_layers} layers is accepted"
        )
    vectors = [
        None if b is None else check_array(f"biases[{i}]", b) for i, b in enumerate(given_biases)
    ]
    activations = layer_activations(activation, last, n_layers)
    widths = _widths(inputs, matrices, vectors)
    arrays = [inputs, *matrices, *(b for b in vectors if b is not None)]
    dtype = _common_dtype(arrays)
    lead = _leading_shape(inputs, matrices, vectors)

    def per_trial(array: npt.NDArray[Any], core: int) -> npt.NDArray[Any]:
        shape = lead + array.shape[array.ndim - core :]
        return array if array.shape == shape else np.broadcast_to(array, shape)

    batch = inputs.shape[-2]
    if batch >= 2**32:
        raise ValueError(f"x has shape {inputs.shape}: a batch below 2**32 is accepted")
    xs = per_trial(inputs, 2)
    ws = [per_trial(w, 2) for w in matrices]
    bs = [None if b is None else per_trial(b, 1) for b in vectors]
    y = np.empty((*lead, batch, widths[-1]), dtype)
    states = np.zeros((*lead, n_layers, 2, 7)) if stats else None
    kernels = _core.default()
    cancel = np.zeros(1, np.int32)
    table = [(a.kernel_id, a.parameter or 0.0, a.saturation_threshold) for a in activations]

    def task(index: tuple[int, ...]) -> None:
        spec = _core.Chain(
            dtype.name,
            0,
            batch,
            widths,
            table,
            _rows(xs[index], dtype),
            [_rows(w[index], dtype) for w in ws],
            [None if b is None else _rows(b[index], dtype) for b in bs],
        )
        size = kernels.chain_workspace(spec)
        state = None if states is None else states[index]
        if sharing:
            workspaces = [np.empty(size, np.uint8) for _ in range(n_threads)]
            run_shared(kernels, spec, widths, batch, 0, state, y[index], workspaces, cancel)
        else:
            stack = None if state is None else state[np.newaxis]
            kernels.chain(spec, 0, 1, stack, y[index], np.empty(size, np.uint8), cancel)

    tasks = [(index,) for index in np.ndindex(*lead)]
    n_threads = resolve_threads(threads)
    sharing = share_trials(len(tasks), widths, batch, n_threads)
    if batch:
        products = batch * sum(n_in * n_out for n_in, n_out in pairwise(widths))
        at_once = 1 if sharing else n_threads
        parallel(task, tasks, at_once, cancel if products > _LONG_PRODUCTS else None)
    if states is None:
        return y, None
    return y, ChainLayers(
        pre=LayerStats.from_states(states[..., 0, :]),
        post=LayerStats.from_states(states[..., 1, :], activation=True),
    )


def moments(x: npt.ArrayLike) -> LayerStats:
    """The statistics of all entries of one array, as `chain` takes them of a layer.

    Args:
        x: any shape; float16, bfloat16, float32, float64 or integers.

    Returns:
        LayerStats of 0-d float64 arrays: mean, second_moment, variance (ddof 0, from centred
        squares), abs_max, zero_fraction, nonfinite_fraction. Of an array (batch, n) they have the
        bits that `chain` gives for those activations.
    """
    array = check_array("x", x)
    real = compute_dtype(array.dtype)
    state = np.zeros(7)
    if array.size:
        rows = array.reshape(-1, 1) if array.ndim < 2 else array.reshape(-1, array.shape[-1])
        batch, n = rows.shape
        step = max(1, _BLOCK_ELEMENTS // batch)
        for start in range(0, n, step):
            units = contiguous(rows[:, start : start + step].T, real)
            _core.default().moments(units, state)
    return LayerStats.from_states(state, activation=True)


def _widths(
    x: npt.NDArray[Any],
    weights: list[npt.NDArray[Any]],
    biases: list[npt.NDArray[Any] | None],
) -> list[int]:
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}: (…, batch, n_in) is accepted")
    widths = [x.shape[-1]]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        if w.ndim < 2 or w.shape[-1] != widths[-1]:
            raise ValueError(
                f"weights[{i}] has shape {w.shape}: (…, n_out, {widths[-1]}) is accepted"
            )
        widths.append(w.shape[-2])
        if b is not None and (b.ndim < 1 or b.shape[-1] != widths[-1]):
            raise ValueError(f"biases[{i}] has shape {b.shape}: (…, {widths[-1]}) is accepted")
    return widths


def _leading_shape(
    x: npt.NDArray[Any],
    weights: list[npt.NDArray[Any]],
    biases: list[npt.NDArray[Any] | None],
) -> tuple[int, ...]:
    shapes = [x.shape[:-2], *(w.shape[:-2] for w in weights)]
    shapes += [b.shape[:-1] for b in biases if b is not None]
    try:
        return np.broadcast_shapes(*set(shapes))  # most often one, () of plain matrices
    except ValueError:
        raise ValueError(
            f"the leading axes of x, weights and biases {shapes} do not broadcast"
        ) from None


def _common_dtype(arrays: list[npt.NDArray[Any]]) -> np.dtype[Any]:
    floats = {a.dtype for a in arrays if a.dtype.kind not in "iub"}
    return compute_dtype(max(floats, key=lambda d: d.itemsize)) if floats else FLOAT64


def _rows(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array as the kernels read it: dtype, aligned, rows contiguous; copied only if not."""
    if (
        array.dtype == dtype
        and array.flags.aligned
        and array.strides[-1] == dtype.itemsize
        and array.strides[0] % dtype.itemsize == 0
    ):
        return array
    return contiguous(array, dtype)
