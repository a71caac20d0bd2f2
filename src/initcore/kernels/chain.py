# SPDX-License-Identifier: BSD-3-Clause
"""A chain of layers over the user's own arrays, forward and backward; the moments of one array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..activations import Activation
from ..activations import activation as parse_activation
from ..architecture import each_activation
from ..results.layers import ChainLayers, LayerStats
from ..streams import parallel, resolve_threads
from .arrays import check_array, common_dtype, compute_dtype, contiguous

# A trial of more multiplications may take over 100 ms: Ctrl-C should not wait for it.
_LONG_PRODUCTS = 4e9
# A layer of fewer multiplications is done sooner than it is handed out to threads.
_SHARED_PRODUCTS = 1e7
# Columns transposed at a time in `moments`: bounded scratch.
_BLOCK_ELEMENTS = 1 << 18


def share_trials(n_trials: int, widths: Sequence[int], batch: int, threads: int) -> bool:
    """Whether threads had better share each trial's layers than take a trial each."""
    if n_trials >= threads:
        return False
    return _products(widths, batch) >= _SHARED_PRODUCTS * (len(widths) - 1)


def _products(widths: Sequence[int], batch: int) -> int:
    """Multiplications of a trial."""
    return batch * int(sum(map(operator.mul, widths, widths[1:])))


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
    input_state: npt.NDArray[np.float64] | None = None,
) -> bool:
    """One trial in as many threads as there are workspaces, the outputs of each layer cut among
    them. What ``Kernels.chain`` computes of one trial, with the same bits; state
    (layers, 2, MOMENTS) and input_state (MOMENTS) or None. False when cancelled."""
    shared, threads = workspaces[0], len(workspaces)
    units = np.empty((max(widths), 2, _core.UNIT))
    parts = np.empty((threads, 2, _core.MOMENTS))
    found = (None, None) if state is None else (units, parts)
    kernels.chain_input(chain, trial, shared, input_state)
    for layer, n_out in enumerate(widths[1:]):
        kernels.chain_norm(chain, layer, shared)

        def task(i: int, first: int, last: int, layer: int = layer) -> bool:
            part = None if found[1] is None else found[1][i]
            return kernels.chain_columns(
                chain, trial, layer, first, last, found[0], part, y, shared, workspaces[i], cancel
            )

        if not _in_ranges(task, n_out, threads):
            return False
        if state is not None:
            kernels.chain_merge(units[:n_out], batch, parts, state[layer])
            kernels.chain_cosines(chain, layer, False, state[layer], shared, shared)
    return True


def run_shared_backward(
    kernels: _core.Kernels,
    chain: _core.Chain,
    widths: Sequence[int],
    batch: int,
    trial: int,
    state: npt.NDArray[np.float64] | None,
    gradient_state: npt.NDArray[np.float64] | None,
    out: _core.Gradients | None,
    workspaces: Sequence[npt.NDArray[np.uint8]],
    cancel: npt.NDArray[np.int32],
    input_state: npt.NDArray[np.float64] | None = None,
) -> bool:
    """``Kernels.chain_backward`` of one trial as ``run_shared`` does ``Kernels.chain``; the states
    are (layers, 2, MOMENTS) and (layers, 3, MOMENTS), both or neither None."""
    forward = (kernels, chain, widths, batch, trial, state, None, workspaces, cancel, input_state)
    if not run_shared(*forward):
        return False
    shared, threads = workspaces[0], len(workspaces)
    top = None if gradient_state is None else gradient_state[-1, :2]
    kernels.chain_output_gradient(chain, trial, top, out, shared, shared)
    if top is not None:
        kernels.chain_cosines(chain, len(widths) - 2, True, top, shared, shared)
    units = np.empty((max(widths), 2, _core.UNIT))
    weight_units = np.empty((max(widths), 1, _core.UNIT))
    parts = np.empty((threads, 2, _core.MOMENTS))
    for layer in reversed(range(len(widths) - 1)):
        n_in, n_out = widths[layer : layer + 2]
        found = (None, None) if gradient_state is None else (units, weight_units)

        def task(
            i: int,
            first: int,
            last: int,
            layer: int = layer,
            found: tuple[Any, Any] = found,
        ) -> bool:
            part = None if gradient_state is None else parts[i]
            own = workspaces[i]
            return kernels.chain_backward_columns(
                chain, trial, layer, first, last, *found, part, out, shared, own, cancel
            )

        if not _in_ranges(task, n_in, threads):
            return False
        below = gradient_state[layer - 1, :2] if gradient_state is not None and layer else None
        kernels.chain_norm_backward(chain, layer, below, out, shared)
        if gradient_state is not None:
            if below is not None:
                if not chain.norms[layer]:
                    kernels.chain_merge(units[:n_in], batch, parts, below)
                kernels.chain_cosines(chain, layer - 1, True, below, shared, shared)
            no_parts = np.empty((0, 1, _core.MOMENTS))
            kernels.chain_merge(weight_units[:n_in], n_out, no_parts, gradient_state[layer, 2:])
    return True


def _in_ranges(task: Callable[[int, int, int], bool], n: int, threads: int) -> bool:
    """Runs task(i, first, last) in as many threads, over ranges that cover n; False if one did."""
    cuts = [n * i // threads for i in range(threads + 1)]
    return all(parallel(task, [(i, *cuts[i : i + 2]) for i in range(threads)], threads))


class _Operands(NamedTuple):
    """The checked arrays of a chain, each with all leading axes, and what they have in common."""

    x: npt.NDArray[Any]
    weights: list[npt.NDArray[Any]]
    biases: list[npt.NDArray[Any] | None]
    shapes: list[tuple[int, ...]]  # of x, weights and biases as they came, () of no bias
    activations: tuple[Activation, ...]
    widths: list[int]
    lead: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def batch(self) -> int:
        return int(self.x.shape[-2])

    @property
    def products(self) -> int:
        """Multiplications of a trial."""
        return _products(self.widths, self.batch)

    def spec(self, index: tuple[int, ...], dy: npt.NDArray[Any] | None = None) -> _core.Chain:
        """One trial, with the gradient of its output if there is a backward pass."""
        return _core.Chain(
            self.dtype.name,
            0,
            self.batch,
            self.widths,
            [phi.kernel_words for phi in self.activations],
            self._rows(self.x, index),
            [self._rows(w, index) for w in self.weights],
            [None if b is None else self._rows(b, index) for b in self.biases],
            None if dy is None else self._rows(dy, index),
        )

    def _rows(self, array: npt.NDArray[Any], index: tuple[int, ...]) -> npt.NDArray[Any]:
        """One trial of an array as the kernels read it: the dtype, aligned, rows contiguous; copied
        only if it is not."""
        part = array[index] if index else array
        flags = part.flags
        if flags.c_contiguous and flags.aligned and part.dtype is self.dtype:  # most are
            return part
        size = self.dtype.itemsize
        rows = part.dtype == self.dtype and part.strides[-1] == size and part.strides[0] % size == 0
        return part if rows and flags.aligned else contiguous(part, self.dtype)

    def for_each_trial(
        self,
        task: Callable[[tuple[int, ...], int], None],
        work: float,
        threads: int | None,
        cancel: npt.NDArray[np.int32],
    ) -> None:
        """Runs task(index, threads that share the trial); `work` is a trial's multiplications."""
        trials = list(np.ndindex(*self.lead)) if self.lead else [()]
        n_threads = resolve_threads(threads)
        sharing = share_trials(len(trials), self.widths, self.batch, n_threads)
        each, at_once = (n_threads, 1) if sharing else (1, n_threads)
        interruptible = cancel if work > _LONG_PRODUCTS else None
        parallel(task, [(index, each) for index in trials], at_once, interruptible)


def _operands(
    x: npt.ArrayLike,
    weights: Sequence[npt.ArrayLike],
    biases: Sequence[npt.ArrayLike | None] | None,
    activation: str | Activation | Sequence[str | Activation],
    last: str | Activation | None,
    also: npt.NDArray[Any] | None = None,
) -> _Operands:
    """The arguments of a chain, checked; the dtype of the array `also` counts as theirs."""
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
    activations = each_activation(activation, last, n_layers, parse_activation)
    widths, lead, alike = _sizes(inputs, matrices, vectors)
    every = [inputs, *matrices, *vectors, also]
    dtype = common_dtype([array for array in every if array is not None])
    shapes = [() if array is None else array.shape for array in every[:-1]]
    if inputs.shape[-2] >= 2**32:
        raise ValueError(f"x has shape {inputs.shape}: a batch below 2**32 is accepted")
    if not alike:
        inputs = np.broadcast_to(inputs, lead + inputs.shape[-2:])
        matrices = [np.broadcast_to(w, lead + w.shape[-2:]) for w in matrices]
        vectors = [None if b is None else np.broadcast_to(b, lead + b.shape[-1:]) for b in vectors]
    return _Operands(inputs, matrices, vectors, shapes, activations, widths, lead, dtype)


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
    chosen = _operands(x, weights, biases, activation, last)
    y = np.empty((*chosen.lead, chosen.batch, chosen.widths[-1]), chosen.dtype)
    states = np.zeros((*chosen.lead, len(chosen.weights), 2, _core.MOMENTS)) if stats else None
    kernels = _core.default()
    cancel = np.zeros(1, np.int32)

    def task(index: tuple[int, ...], each: int) -> None:
        spec = chosen.spec(index)
        workspaces = _workspaces(kernels.chain_workspace(spec), each)
        state = None if states is None else states[index]
        if each > 1:
            widths, batch = chosen.widths, chosen.batch
            run_shared(kernels, spec, widths, batch, 0, state, y[index], workspaces, cancel)
        else:
            stack = None if state is None else state[np.newaxis]
            kernels.chain(spec, 0, 1, stack, y[index], workspaces[0], cancel)

    if chosen.batch:
        chosen.for_each_trial(task, chosen.products, threads, cancel)
    if states is None:
        return y, None
    return y, ChainLayers.from_states(states)


def chain_backward(
    x: npt.ArrayLike,
    weights: Sequence[npt.ArrayLike],
    dy: npt.ArrayLike,
    biases: Sequence[npt.ArrayLike | None] | None = None,
    *,
    activation: str | Activation | Sequence[str | Activation],
    last: str | Activation | None = None,
    threads: int | None = None,
) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]], list[npt.NDArray[Any] | None] | None]:
    """The gradients of a chain: of Σ dy ⊙ y, y what ``chain`` returns, by x, weights and biases.

    From the last layer to the first, with h = x Wᵀ + b and dx the gradient by φ(h), at the top dy:
    dh = dx ⊙ φ′(h), dW = dhᵀ x, db = Σ_batch dh, and dh W is dx of the layer below. At a kink φ′ is
    that of ``Activation.derivative``.

    Args:
        x, weights, biases, activation, last, threads: as ``chain`` takes them.
        dy: the gradient by y, (…, batch, n_out of the last layer); leading axes broadcast to y's.

    Returns:
        dx, dweights, dbiases: arrays of the shapes of x, of each of weights and of each of biases
            (None where there is none; None without ``biases``): what was broadcast over leading
            axes has its gradients summed over them, in index order. Computed in float64 if any
            array is float64 (or all are integers), else in float32; half precisions give float32.

    Raises:
        TypeError, ValueError: naming the array, what it is and what is accepted.
    """
    top = check_array("dy", dy)
    chosen = _operands(x, weights, biases, activation, last, also=top)
    lead, widths, batch, dtype = chosen.lead, chosen.widths, chosen.batch, chosen.dtype
    top = _output_gradient(top, (*lead, batch, widths[-1]))
    kernels = _core.default()
    cancel = np.zeros(1, np.int32)
    dx = np.empty((*lead, batch, widths[0]), dtype)
    d_weights = [np.empty(w.shape, dtype) for w in chosen.weights]
    d_biases = [None if b is None else np.empty(b.shape, dtype) for b in chosen.biases]

    def task(index: tuple[int, ...], each: int) -> None:
        spec = chosen.spec(index, top)
        out = _core.Gradients(
            dtype.name,
            dx[index],
            [w[index] for w in d_weights],
            [None if b is None else b[index] for b in d_biases],
        )
        workspaces = _workspaces(kernels.chain_workspace(spec), each)
        if each > 1:
            run_shared_backward(
                kernels, spec, widths, batch, 0, None, None, out, workspaces, cancel
            )
        else:
            kernels.chain_backward(spec, 0, 1, None, None, out, workspaces[0], cancel)

    chosen.for_each_trial(task, 3 * chosen.products, threads, cancel)
    n_layers = len(d_weights)
    x_shape, *others = chosen.shapes
    dweights = list(map(_sum_to, d_weights, others[:n_layers]))
    dbiases = [
        None if db is None else _sum_to(db, shape)
        for db, shape in zip(d_biases, others[n_layers:], strict=True)
    ]
    return _sum_to(dx, x_shape), dweights, None if biases is None else dbiases


def _output_gradient(dy: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """dy with all leading axes of the output's shape."""
    error = ValueError(
        f"dy has shape {dy.shape}: what broadcasts over leading axes to y's {shape} is accepted"
    )
    if dy.shape[-2:] != shape[-2:]:
        raise error
    try:
        return np.broadcast_to(dy, shape)
    except ValueError:
        raise error from None


def _workspaces(size: int, threads: int) -> list[npt.NDArray[np.uint8]]:
    return [np.empty(size, np.uint8) for _ in range(threads)]


def _sum_to(array: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The sum over the leading axes along which `shape` was broadcast, in index order."""
    if array.shape == shape:
        return array
    extra = array.ndim - len(shape)
    total = np.zeros(shape, array.dtype)
    axes = [i for i in range(array.ndim) if i < extra or shape[i - extra] != array.shape[i]]
    for index in np.ndindex(*(array.shape[i] for i in axes)):
        at: list[Any] = [slice(None)] * array.ndim
        for axis, position in zip(axes, index, strict=True):
            at[axis] = slice(position, position + 1)
        total += array[tuple(at)].reshape(shape)
    return total


def moments(x: npt.ArrayLike) -> LayerStats:
    """The statistics of all entries of one array, as `chain` takes them of a layer.

    Args:
        x: any shape; float16, bfloat16, float32, float64 or integers.

    Returns:
        LayerStats of 0-d float64 arrays, of which saturated_fraction is unknown; a unit is an entry
        of the last axis, the batch all others (of 0 or 1 axes all). Of an array (batch, n) they
        have the bits that `chain` gives for those activations. The cosine takes a copy of x.
    """
    array = check_array("x", x)
    real = compute_dtype(array.dtype)
    state = np.zeros(_core.MOMENTS)
    if array.size:
        rows = array.reshape(-1, 1) if array.ndim < 2 else array.reshape(-1, array.shape[-1])
        batch, n = rows.shape
        step = max(1, _BLOCK_ELEMENTS // batch)
        for start in range(0, n, step):
            units = contiguous(rows[:, start : start + step].T, real)
            _core.default().moments(units, state)
        panels = np.zeros(((batch + 15) // 16, n, 16), real)
        lanes = panels.swapaxes(1, 2)  # (., 16, n): the batch, 16 rows a panel
        whole = batch // 16
        with np.errstate(over="ignore"):
            lanes[:whole] = rows[: 16 * whole].reshape(whole, 16, n)
            lanes[whole:, : batch % 16] = rows[16 * whole :]
        scales = np.empty(16 * len(panels))
        state[-1] = _core.default().cosine(panels, batch, scales)
    return LayerStats.from_states(state, activation=True)


def _sizes(
    x: npt.NDArray[Any],
    weights: list[npt.NDArray[Any]],
    biases: list[npt.NDArray[Any] | None],
) -> tuple[list[int], tuple[int, ...], bool]:
    """The widths, the leading axes, and whether all arrays have just these."""
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}: (…, batch, n_in) is accepted")
    n = x.shape[-1]
    widths, leads = [n], [x.shape[:-2]]
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        shape = w.shape
        if len(shape) < 2 or shape[-1] != n:
            raise ValueError(f"weights[{i}] has shape {shape}: (…, n_out, {n}) is accepted")
        n = shape[-2]
        widths.append(n)
        leads.append(shape[:-2])
        if b is not None:
            if b.ndim < 1 or b.shape[-1] != n:
                raise ValueError(f"biases[{i}] has shape {b.shape}: (…, {n}) is accepted")
            leads.append(b.shape[:-1])
    if len(set(leads)) == 1:
        return widths, leads[0], True
    try:
        return widths, np.broadcast_shapes(*set(leads)), False
    except ValueError:
        raise ValueError(
            f"the leading axes of x, weights and biases {leads} do not broadcast"
        ) from None
