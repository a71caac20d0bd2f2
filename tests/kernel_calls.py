# SPDX-License-Identifier: BSD-3-Clause
"""The kernels as functions that return what they compute: the one place that knows how the
bindings are called."""

import hashlib
from itertools import pairwise

import numpy as np

from initcore import _core
from initcore.reference.attention import STATISTICS as ATTENTION_STATISTICS
from initcore.reference.moments import FIELDS
from initcore.reference.sampling import CONSTANT, NORMAL, TRUNCATED_NORMAL, UNIFORM
from initcore.reference.softmax import STATISTICS
from initcore.truncation import truncation

ACTIVATION_NAMES = """
linear relu leaky_relu tanh sigmoid elu selu gelu gelu_tanh silu mish softplus softsign erf sin
hardtanh hardswish relu2
"""
ACTIVATION_IDS = {name: number for number, name in enumerate(ACTIVATION_NAMES.split())}
DEFAULT_PARAMETERS = {"leaky_relu": 0.01, "elu": 1.0}
# Lengths on both sides of a vector, of a panel and of a tile.
EDGES = (0, 1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 257)
# Widths and batches on both sides of a vector and of a block of rows.
SMALL = (1, 7, 15, 17, 63, 65)
INFINITE = (-np.inf, np.inf)
HALVES = {"float16": _core.FLOAT16, "bfloat16": _core.BFLOAT16}


def philox(kernels, first, stream, key, n=1):
    out = np.empty((n, 4), dtype=np.uint32)
    kernels.philox(first | stream << 64, key, out)
    return out


def draw(
    kernels, n, *, first=0, seed=0, stream=0, kind=NORMAL, scale=1.0, shift=0.0,
    bounds=INFINITE, dtype="float32", interval=(-2.0, 2.0), stride=0,
):  # fmt: skip
    """n elements, or with n = (rows, columns) as many of each row; halves come as their bits.
    interval: of a truncated normal, in standard deviations."""
    half = HALVES.get(dtype, 0) if isinstance(dtype, str) else 0
    out = np.empty(n, dtype=np.uint16 if half else dtype)
    extra = (truncation(*interval),) if kind == TRUNCATED_NORMAL else ()
    kernels.draw(
        out, first, seed, stream, kind, scale, shift, *bounds, *extra, stride=stride, half=half
    )
    return out


def normal(kernels, n, **where):
    return draw(kernels, n, kind=NORMAL, **where)


def uniform(kernels, n, **where):
    return draw(kernels, n, kind=UNIFORM, **where)


def truncated(kernels, n, interval, **where):
    return draw(kernels, n, kind=TRUNCATED_NORMAL, interval=interval, **where)


def constant(kernels, n, value, **where):
    return draw(kernels, n, kind=CONSTANT, scale=0.0, shift=value, **where)


def activate(kernels, x, name, parameter=None, derivative=False):
    if parameter is None:
        parameter = DEFAULT_PARAMETERS.get(name, 0.0)
    out = np.empty_like(x)
    kernels.activate(x, out, ACTIVATION_IDS[name], parameter, derivative)
    return out


def moments(kernels, x, state=None):
    state = np.zeros(len(FIELDS)) if state is None else state.copy()
    kernels.moments(np.ascontiguousarray(x), state)
    return state


def layer_codes(names, thresholds=None):
    thresholds = thresholds or [0.0] * len(names)
    return [
        (ACTIVATION_IDS[name], DEFAULT_PARAMETERS.get(name, 0.0), threshold)
        for name, threshold in zip(names, thresholds, strict=True)
    ]


def run_chain(kernels, spec, trial=0, n_trials=1, y_shape=None):
    """(states, y) of trials of `_core.Chain(*spec)`; y, of the last trial, only if shaped."""
    dtype, _, _, widths, *_ = spec
    chain = _core.Chain(*spec)
    states = np.empty((n_trials, len(widths) - 1, 2, len(FIELDS)))
    y = None if y_shape is None else np.empty(y_shape, dtype=dtype)
    workspace = np.empty(kernels.chain_workspace(chain), dtype=np.uint8)
    finished = kernels.chain(chain, trial, n_trials, states, y, workspace, np.zeros(1, np.int32))
    assert finished
    return states, y


def run_columns(kernels, spec, cuts, trial=0, y_shape=None):
    """(states, y) of one trial in pieces: `cuts` are the ranges of a layer's outputs, in the order
    in which they are computed, as fractions."""
    chain = _core.Chain(*spec)
    y = None if y_shape is None else np.empty(y_shape, dtype=spec[0])
    workspaces = dirty_workspaces(kernels, chain)
    return forward_columns(kernels, chain, spec, cuts, trial, y, *workspaces), y


def dirty_workspaces(kernels, chain):
    """That which threads share, and a thread's own."""
    size = kernels.chain_workspace(chain)
    return np.full(size, 255, np.uint8), np.full(size, 255, np.uint8)


def pieces(cuts, n):
    """(first, last, the states to be written) of each range of n units; and all those states."""
    parts = np.full((len(cuts), 2, len(FIELDS)), np.nan)
    return [(int(a * n), int(b * n), part) for (a, b), part in zip(cuts, parts, strict=True)], parts


def forward_columns(kernels, chain, spec, cuts, trial, y, shared, own):
    """The states of the forward pass."""
    _, _, batch, widths, *_ = spec
    cancel = np.zeros(1, np.int32)
    states = np.zeros((len(widths) - 1, 2, len(FIELDS)))
    kernels.chain_input(chain, trial, shared)
    for layer, n_out in enumerate(widths[1:]):
        kernels.chain_norm(chain, layer, shared)
        units = np.full((n_out, 2, _core.UNIT), np.nan)
        ranges, parts = pieces(cuts, n_out)
        for first, last, part in ranges:
            assert kernels.chain_columns(
                chain, trial, layer, first, last, units, part, y, shared, own, cancel
            )
        kernels.chain_merge(units, batch, parts, states[layer])
        kernels.chain_cosines(chain, layer, False, states[layer], shared, own)
    return states


NORMS = {None: 0, "rms": _core.RMS_NORM, "layer": _core.LAYER_NORM}


def architecture(norms, residuals):
    """The last two arguments of `_core.Chain`, which come after the output's gradient."""
    return None if norms is None else [NORMS[norm] for norm in norms], residuals


def chain(kernels, x, weights, biases, names, thresholds=None, norms=None, residuals=None):
    """(y, states) of a chain over given arrays."""
    widths = [x.shape[1]] + [w.shape[0] for w in weights]
    spec = (
        x.dtype.name, 0, x.shape[0], widths, layer_codes(names, thresholds), x, weights, biases,
        None, *architecture(norms, residuals),
    )  # fmt: skip
    states, y = run_chain(kernels, spec, y_shape=(x.shape[0], widths[-1]))
    return y, states[0]


def run_backward(kernels, spec, trial=0, n_trials=1, *, stats=True, out=None):
    """(forward states, gradient states) of trials of `_core.Chain(*spec)`, which has the source of
    the output's gradient; `out` a `_core.Gradients` or None."""
    n_layers = len(spec[3]) - 1
    chain = _core.Chain(*spec)
    states, gradients = (
        np.full((n_trials, n_layers, k, len(FIELDS)), np.nan) if stats else None for k in (2, 3)
    )
    workspace = np.full(kernels.chain_workspace(chain), 255, np.uint8)
    cancel = np.zeros(1, np.int32)
    assert kernels.chain_backward(chain, trial, n_trials, states, gradients, out, workspace, cancel)
    return states, gradients


def gradient_arrays(dtype, batch, widths):
    """(dx, [dW], [db]) to be written, NaN."""
    dw = [np.full((m, n), np.nan, dtype) for n, m in pairwise(widths)]
    return (
        np.full((batch, widths[0]), np.nan, dtype),
        dw,
        [np.full(len(w), np.nan, dtype) for w in dw],
    )


def run_backward_columns(kernels, spec, cuts, trial=0, out=None):
    """(forward states, gradient states) of one trial in pieces, as in `run_columns`."""
    _, _, batch, widths, *_ = spec
    chain = _core.Chain(*spec)
    n_layers = len(widths) - 1
    gradients, cancel = np.zeros((n_layers, 3, len(FIELDS))), np.zeros(1, np.int32)
    shared, own = dirty_workspaces(kernels, chain)
    states = forward_columns(kernels, chain, spec, cuts, trial, None, shared, own)
    kernels.chain_output_gradient(chain, trial, gradients[-1, :2], out, shared, own)
    kernels.chain_cosines(chain, n_layers - 1, True, gradients[-1, :2], shared, own)
    for layer in reversed(range(n_layers)):
        n_in, n_out = widths[layer : layer + 2]
        units, weight_units = (
            np.full((n_in, 2, _core.UNIT), np.nan),
            np.full((n_in, 1, _core.UNIT), np.nan),
        )
        ranges, parts = pieces(cuts, n_in)
        for first, last, part in ranges:
            assert kernels.chain_backward_columns(
                chain, trial, layer, first, last, units, weight_units, part, out, shared, own,
                cancel,
            )  # fmt: skip
        below = gradients[layer - 1, :2] if layer else None
        kernels.chain_norm_backward(chain, layer, below, out, shared)
        if layer:
            if not chain.norms[layer]:
                kernels.chain_merge(units, batch, parts, below)
            kernels.chain_cosines(chain, layer - 1, True, below, shared, own)
        kernels.chain_merge(weight_units, n_out, parts[:0, :1].copy(), gradients[layer, 2:])
    return states, gradients


def chain_backward(kernels, x, weights, dy, biases, names, norms=None, residuals=None):
    """(dx, [dW], [db], gradient states) of a chain over given arrays."""
    widths = [x.shape[1]] + [w.shape[0] for w in weights]
    spec = (
        x.dtype.name, 0, x.shape[0], widths, layer_codes(names), x, weights, biases, dy,
        *architecture(norms, residuals),
    )  # fmt: skip
    dx, dw, db = gradient_arrays(x.dtype, x.shape[0], widths)
    _, states = run_backward(kernels, spec, out=_core.Gradients(x.dtype.name, dx, dw, db))
    return dx, dw, db, states[0]


def run_gram(kernels, spec, gradient_streams=None, trial=0, n_trials=1, inputs=None):
    """(forward states, gradient states) of trials of `_core.Chain(*spec)` without its weights; the
    latter None without gradient_streams, one a layer. The inputs' moments go into `inputs`."""
    n_layers = len(spec[3]) - 1
    chain = _core.Chain(*spec)
    states = np.full((n_trials, n_layers, 2, len(FIELDS)), np.nan)
    gradients = None
    if gradient_streams is not None:
        gradients = np.full((n_trials, n_layers, 3, len(FIELDS)), np.nan)
    streams = np.array(gradient_streams or [0] * n_layers, np.uint64)
    workspace = np.full(kernels.gram_workspace(chain), 255, np.uint8)
    cancel = np.zeros(1, np.int32)
    assert kernels.gram(
        chain, streams, trial, n_trials, states, gradients, workspace, cancel, inputs
    )
    return states, gradients


def softmax(kernels, z, *, scale=1.0, softcap=0.0, keep=None, bias=None, queries=0, first_row=0):
    """(p, statistics) of the rows z (rows, n); keep and bias have z's shape."""
    p = np.empty_like(z)
    statistics = np.empty((z.shape[0], len(STATISTICS)))
    if keep is not None:
        keep = np.ascontiguousarray(keep, dtype=np.uint8)
    mask_row = None if keep is None and bias is None else np.arange(z.shape[0])
    kernels.softmax(z, p, statistics, first_row, scale, softcap, keep, bias, mask_row, queries)
    return p, statistics


def softmax_backward(kernels, p, dp, scale=1.0):
    dz = np.empty_like(p)
    kernels.softmax_backward(p, dp, dz, scale)
    return dz


def attention(kernels, q, k, *, first=0, rows=None, heads=None, **options):
    """Statistics of rows first, first + 1, … (all if `rows` is None) of `_core.Attention`; q (.,
    queries, d_k), k (., keys, d_k); heads None: one of each."""
    heads = np.zeros((1, 3), np.int64) if heads is None else heads
    spec = _core.Attention(q, k, heads, **{"scale": 1.0, **options})
    rows = len(heads) * q.shape[1] - first if rows is None else rows
    statistics = np.empty((rows, len(ATTENTION_STATISTICS)))
    workspace = np.empty(kernels.attention_workspace(spec), np.uint8)
    assert kernels.attention(spec, first, statistics, None, workspace, np.zeros(1, np.int32))
    return statistics


def exact_sums(kernels, x):
    """[(finite, non-finite, Σ, Σ of squares)] of the columns of x (t, m)."""
    accumulators = np.zeros((x.shape[1], _core.EXACT_WORDS), dtype=np.int64)
    kernels.exact_add(accumulators, np.ascontiguousarray(x))
    return kernels.exact_values(accumulators)


def same_bits(a, b):
    """Equal in every bit, but for the payload and sign of a NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    bits_a = np.ascontiguousarray(a).view(unsigned)
    bits_b = np.ascontiguousarray(b).view(unsigned)
    return bool(np.all((bits_a == bits_b) | (np.isnan(a) & np.isnan(b))))


def unaligned(array):
    """A copy whose elements lie at odd addresses."""
    storage = np.empty(array.nbytes + 1, np.uint8)
    copy = storage[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def sha256(array):
    """The hash of an array's values in C order, little-endian."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()
