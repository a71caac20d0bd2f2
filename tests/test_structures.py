# SPDX-License-Identifier: BSD-3-Clause
"""Tensors whose entries are not drawn one by one: orthogonal, delta_orthogonal, identity, dirac,
sparse, embedding. Their defining properties, their laws, and torch's where it is installed."""

import itertools
import math
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import initcore as ic
from draws import DTYPES, ELEMENTWISE, HALVES, OF_FANS, moments_agree, same, within_5_sigma
from initcore import structures
from initcore.reference import sampling as reference

# The largest error of an orthonormal product: a few roundings of the dtype.
TOLERANCE = {"float32": 1e-6, "float64": 1e-13, "float16": 4e-3, "bfloat16": 3e-2}


def draw(init, shape, **keywords):
    return init(shape, **{"seed": 5, "name": "w", **keywords})


def orthonormal_error(matrix, gain=1.0):
    """max |QQᵀ/gain² − I| where rows ≤ columns, else of QᵀQ."""
    q = matrix.astype(np.float64) / gain
    q = q if q.shape[0] <= q.shape[1] else q.T
    return np.max(np.abs(q @ q.T - np.eye(q.shape[0])), initial=0.0)


# --- orthogonal --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(3, 5), (5, 3), (16, 3, 3, 3), (1, 7), (7, 1), (6, 6), (1, 1), (64, 2, 3), (2, 3, 4)]
)
def test_orthogonal_is_orthonormal_on_the_shorter_side(shape, dtype):
    """chainer #5485, jax #1615, mila blocks #346: tall, wide and convolution shapes."""
    w = draw(ic.orthogonal(), shape, dtype=dtype)
    assert w.shape == shape
    assert w.dtype == np.dtype(dtype)
    assert orthonormal_error(w.reshape(shape[0], -1)) <= TOLERANCE[dtype]


@pytest.mark.parametrize("gain", [2.0, 0.5, math.sqrt(2)])
def test_the_gain_of_orthogonal(gain):
    for shape in ((3, 5), (5, 3), (16, 3, 3, 3)):
        w = draw(ic.orthogonal(gain), shape, dtype="float64")
        assert orthonormal_error(w.reshape(shape[0], -1), gain) <= 1e-13
        unit = draw(ic.orthogonal(), shape, dtype="float64")
        np.testing.assert_allclose(w, gain * unit, rtol=1e-15)
        np.testing.assert_allclose(
            draw(ic.orthogonal().scaled(gain), shape, dtype="float64"), w, rtol=1e-15
        )
    assert not np.any(draw(ic.orthogonal(0), (3, 5)))


@pytest.mark.parametrize(
    ("shape", "in_axis", "out_axis"),
    [
        ((3, 3, 8, 16), 2, 3),
        ((3, 3, 64, 4), -2, -1),
        ((5, 3), 0, 1),
        ((12, 4, 6), 0, (1, 2)),
        ((4, 6, 12), (0, 1), 2),
    ],
)
def test_orthogonal_along_other_axes(shape, in_axis, out_axis):
    """Flattened with the out axes first, whatever their place."""
    w = draw(ic.orthogonal(in_axis=in_axis, out_axis=out_axis), shape, dtype="float64")
    assert w.shape == shape
    outs = (out_axis,) if isinstance(out_axis, int) else out_axis
    first = np.moveaxis(w, outs, range(len(outs)))
    rows = math.prod(first.shape[: len(outs)])
    assert orthonormal_error(first.reshape(rows, -1)) <= 1e-13


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (40, 2, 3, 3)])
def test_orthogonal_is_the_signed_q_of_the_streams_normals(shape):
    """Q·sign(diag R) of the stream's float64 normals, from the reference and NumPy's QR."""
    rows, columns = shape[0], math.prod(shape[1:])
    stream = reference.stream_id("w", 3)
    z = reference.normal(0, rows * columns, 5, stream, "float64").astype(np.float64)
    q, r = np.linalg.qr(z.reshape(rows, columns))
    expected = (q * np.where(np.diag(r) < 0, -1, 1)).reshape(shape)
    w = draw(ic.orthogonal(), shape, trial=3, dtype="float64")
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_orthogonal_is_computed_in_float64_and_rounded_once(dtype):
    for shape in ((5, 8), (16, 3, 3, 3)):
        exact = draw(ic.orthogonal(1.5), shape, dtype="float64")
        assert same(draw(ic.orthogonal(1.5), shape, dtype=dtype), exact.astype(dtype))


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 2)])
def test_orthogonal_has_haars_law(shape):
    """Every entry of a Haar matrix has mean 0 and, n the longer side, variance 1/n; LAPACK's Q
    without the signs has a first entry that is never positive."""
    trials = 2000
    w = np.array([draw(ic.orthogonal(), shape, trial=t, dtype="float64") for t in range(trials)])
    n = max(shape)
    for entry in np.ndindex(shape):
        x = w[(slice(None), *entry)]
        within_5_sigma(x.mean(), 0, 1 / math.sqrt(n * trials))
        # x² is Beta(1/2, (n − 1)/2) distributed
        variance = 2 * (n - 1) / (n * n * (n + 2))
        within_5_sigma(np.mean(x * x), 1 / n, math.sqrt(variance / trials))
    for one, other in itertools.combinations(np.ndindex(shape), 2):
        product = w[(slice(None), *one)] * w[(slice(None), *other)]
        within_5_sigma(product.mean(), 0, product.std() / math.sqrt(trials))
    signs = [draw(ic.orthogonal(), (1, 1), trial=t)[0, 0] for t in range(400)]
    assert {*signs} == {-1.0, 1.0}
    within_5_sigma(np.mean(signs), 0, 1 / math.sqrt(400))


def test_the_sign_of_zero_is_plus_one(monkeypatch):
    """torch multiplies by sign(0) = 0, which would lose a column."""

    def qr(a, *args, **keywords):
        return np.eye(*a.shape), np.zeros((a.shape[1], a.shape[1]))

    monkeypatch.setattr(np.linalg, "qr", qr)
    assert np.array_equal(draw(ic.orthogonal(), (5, 3)), np.eye(5, 3))
    assert np.array_equal(draw(ic.orthogonal(), (3, 5)), np.eye(3, 5))


class TestOneDecompositionAtATime:
    """LAPACK's own threads fight for the cores when several threads call it at once."""

    def test_threads_take_turns(self, monkeypatch):
        original, inside, most = np.linalg.qr, [], []

        def qr(matrix):
            inside.append(matrix)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()
            return original(matrix)

        expected = [draw(ic.orthogonal(), (3, 5), trial=t) for t in range(8)]
        monkeypatch.setattr(np.linalg, "qr", qr)
        with ThreadPoolExecutor(4) as pool:
            tasks = [pool.submit(draw, ic.orthogonal(), (3, 5), trial=t) for t in range(8)]
            assert same(np.array([task.result() for task in tasks]), np.array(expected))
        assert most == [1] * 8

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_child_forked_during_one_does_not_wait_for_it(self):
        context = multiprocessing.get_context("fork")
        with structures._qr_lock:
            child = context.Process(target=draw, args=(ic.orthogonal(), (3, 5)))
            child.start()
        try:
            child.join(30)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join()


def test_orthogonal_needs_two_axes():
    for shape in ((), (4,), (0,)):
        with pytest.raises(ValueError, match=r"shape.*\("):
            draw(ic.orthogonal(), shape)


# --- delta_orthogonal --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "centre"),
    [
        ((8, 5, 3), (1,)), ((8, 8, 4), (1,)), ((6, 2, 5, 3), (2, 1)), ((6, 6, 1, 2), (0, 0)),
        ((4, 3, 3, 4, 5), (1, 1, 2)), ((1, 1, 1), (0,)),
    ],
)  # fmt: skip
def test_delta_orthogonal(shape, centre, dtype):
    """Orthonormal columns at tap (k − 1)//2, exact zeros at all others (Xiao et al., 2018)."""
    w = draw(ic.delta_orthogonal(), shape, dtype=dtype)
    assert w.shape == shape
    tap = w[(slice(None), slice(None), *centre)]
    assert orthonormal_error(tap) <= TOLERANCE[dtype]
    assert np.count_nonzero(w) == np.count_nonzero(tap)
    gained = draw(ic.delta_orthogonal(3.0), shape, dtype="float64")
    assert orthonormal_error(gained[(slice(None), slice(None), *centre)], 3.0) <= 1e-13


def test_delta_orthogonal_preserves_the_energy_of_a_signal():
    """A circular convolution with it maps (in, n) to (out, n) isometrically."""
    w = draw(ic.delta_orthogonal(), (6, 4, 5), dtype="float64")
    x = np.random.default_rng(0).standard_normal((4, 11))
    y = sum(w[:, :, k] @ np.roll(x, k, axis=1) for k in range(5))
    assert np.sum(y * y) == pytest.approx(np.sum(x * x), rel=1e-13)


@pytest.mark.parametrize("shape", [(3, 4, 3), (3, 4, 3, 3), (4, 4), (4,), (), (2, 2, 2, 2, 2, 2)])
def test_delta_orthogonal_refuses(shape):
    """More inputs than outputs have no orthonormal columns; one to three kernel axes are known."""
    out = np.full(shape, 7, np.float32)
    with pytest.raises(ValueError, match="shape"):
        draw(ic.delta_orthogonal(), shape, out=out)
    assert np.all(out == 7)


# --- identity and dirac ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (5, 3), (1, 4), (0, 2), (70, 65)])
def test_identity(shape, dtype):
    assert same(draw(ic.identity(), shape, dtype=dtype), np.eye(*shape).astype(dtype))
    assert same(
        draw(ic.identity().scaled(0.5), shape, dtype=dtype), (np.eye(*shape) / 2).astype(dtype)
    )


@pytest.mark.parametrize("shape", [(), (3,), (3, 3, 3)])
def test_identity_is_a_matrix(shape):
    with pytest.raises(ValueError, match="shape"):
        draw(ic.identity(), shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((3, 3, 3), 1), ((2, 5, 4), 1), ((5, 2, 3, 3), 1), ((6, 3, 2, 5), 2), ((6, 2, 3, 4, 5), 3),
        ((4, 1, 3, 3), 4), ((6, 9, 1), 2),
    ],
)  # fmt: skip
def test_dirac(shape, groups, dtype):
    """w[g·out/groups + d, d, k//2, …] = 1, as many channels as there are."""
    expected = np.zeros(shape)
    per_group = shape[0] // groups
    for g, d in itertools.product(range(groups), range(min(per_group, shape[1]))):
        expected[(g * per_group + d, d, *(k // 2 for k in shape[2:]))] = 1
    assert same(draw(ic.dirac(groups=groups), shape, dtype=dtype), expected.astype(dtype))


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (4, 2), (6, 3)])
def test_dirac_passes_every_channel_through(channels, groups):
    """The convolution, with its group's channels, is the identity."""
    per_group = channels // groups
    w = draw(ic.dirac(groups=groups), (channels, per_group, 3), dtype="float64")
    x = np.random.default_rng(0).standard_normal((channels, 9))
    padded = np.pad(x, ((0, 0), (1, 1)))
    y = np.zeros_like(x)
    for out, i, k in np.ndindex(w.shape):
        y[out] += w[out, i, k] * padded[out // per_group * per_group + i, k : k + 9]
    assert np.array_equal(y, x)


@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 3), 1), ((3,), 1), ((2,) * 6, 1), ((5, 2, 3), 2)]
)
def test_dirac_refuses(shape, groups):
    with pytest.raises(ValueError, match=r"shape|groups"):
        draw(ic.dirac(groups=groups), shape)


# --- sparse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sparsity", "rows", "zeros"),
    [(0.1, 5, 1), (0.5, 5, 3), (0.0, 5, 0), (1.0, 5, 5), (0.25, 8, 2), (0.01, 1, 1), (0.9, 65, 59)],
)
def test_sparse_has_so_many_zeros_in_every_column(sparsity, rows, zeros, dtype):
    """⌈sparsity·rows⌉, as Martens (2010) and torch have it."""
    w = draw(ic.sparse(sparsity), (rows, 40), dtype=dtype)
    assert np.all(np.sum(w == 0, axis=0) == zeros)
    other = draw(ic.sparse(sparsity, std=3.0), (rows, 40), dtype=dtype)
    assert np.all(np.sum(other == 0, axis=0) == zeros)


def test_sparse_chooses_the_zeros_uniformly():
    """Each of the six pairs of four rows is as likely, in 6000 columns, and columns do not
    depend on their neighbours."""
    zero = draw(ic.sparse(0.5), (4, 6000)) == 0
    code = np.array([1, 2, 4, 8]) @ zero
    values, counts = np.unique(code, return_counts=True)
    assert values.tolist() == [3, 5, 6, 9, 10, 12]
    for count in counts:
        within_5_sigma(count, 1000, math.sqrt(6000 * (1 / 6) * (5 / 6)))
    within_5_sigma(np.mean(code[1:] == code[:-1]), 1 / 6, math.sqrt(5 / 36 / 5999))
    row = draw(ic.sparse(0.001), (1000, 3000)) == 0  # one zero a column: 3 a row expected
    _, each = np.nonzero(row.T)
    within_5_sigma(each.mean(), 499.5, 1000 / math.sqrt(12 * 3000))
    within_5_sigma(each.std(), 1000 / math.sqrt(12), 1000 * math.sqrt(0.2 / 12 / 3000))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_other_entries_of_sparse_are_normal(dtype):
    """N(0, std²), 0.01 unless told."""
    for init, std in (
        (ic.sparse(0.3), 0.01),
        (ic.sparse(0.3, std=2), 2),
        (ic.sparse(0.3).scaled(5), 0.05),
    ):
        w = draw(init, (400, 300), dtype=dtype)
        moments_agree(w[w != 0], 0, std)


def test_sparse_draws_differ_in_zeros_and_values():
    w = draw(ic.sparse(0.5), (40, 30))
    assert same(w, draw(ic.sparse(0.5), (40, 30), threads=3))
    for other in ({"trial": 1}, {"seed": 6}, {"name": "v"}):
        v = draw(ic.sparse(0.5), (40, 30), **other)
        assert np.any((w == 0) != (v == 0))
        assert not np.any((w == v) & (w != 0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-0.1,), ValueError, "sparsity.*-0.1"), ((1.1,), ValueError, "sparsity.*1.1"),
        ((math.nan,), ValueError, "sparsity.*nan"), ((True,), TypeError, "sparsity.*True"),
        (("a",), TypeError, "sparsity.*'a'"), ((0.5, -1), ValueError, "std.*-1"),
        ((0.5, True), TypeError, "std.*True"),
    ],
)  # fmt: skip
def test_bad_sparsity(arguments, error, message):
    with pytest.raises(error, match=message):
        ic.sparse(*arguments)


@pytest.mark.parametrize("shape", [(), (4,), (4, 4, 4)])
def test_sparse_is_a_matrix(shape):
    with pytest.raises(ValueError, match="shape"):
        draw(ic.sparse(0.5), shape)


# --- embedding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("padding_idx", "row"), [(None, None), (0, 0), (-1, 3), (2, 2), (-4, 0)])
@pytest.mark.parametrize("make_one", [ic.embedding, ic.torch_embedding])
def test_the_padding_row_is_zero_and_the_others_are_as_without(make_one, padding_idx, row, dtype):
    """fairseq #4076, pytorch #6411."""
    w = draw(make_one(padding_idx=padding_idx), (4, 5), dtype=dtype)
    expected = draw(ic.normal(), (4, 5), dtype=dtype)
    assert np.count_nonzero(expected) == 20
    if row is not None:
        expected[row] = 0
    assert same(w, expected)


def test_the_deviation_of_an_embedding():
    assert ic.embedding().std((9, 9)) == ic.torch_embedding().std((9, 9)) == 1
    init = ic.embedding(0.02, padding_idx=np.int64(1))
    w = draw(init, (300, 200))
    assert not np.any(w[1])
    assert same(w[2:], draw(ic.normal(0.02), (300, 200))[2:])
    scaled = draw(init.scaled(2), (300, 200))
    assert same(scaled, 2 * w)


@pytest.mark.parametrize("padding_idx", [7, 4, -5])
def test_a_padding_index_out_of_range(padding_idx):
    """fairseq #4076, pytorch #6411: seen when the number of rows is, before a write."""
    out = np.full((4, 4), 7, np.float32)
    for init in (ic.embedding(padding_idx=padding_idx), ic.torch_embedding(padding_idx)):
        with pytest.raises(IndexError, match=f"padding_idx.*{padding_idx}"):
            draw(init, (4, 4), out=out)
    assert np.all(out == 7)


@pytest.mark.parametrize("padding_idx", [True, False, 1.0, "0", (0,)])
def test_other_kinds_of_padding_index(padding_idx):
    for make_one in (ic.embedding, ic.torch_embedding):
        with pytest.raises(TypeError, match="padding_idx"):
            make_one(padding_idx=padding_idx)


# --- all of them -------------------------------------------------------------------------------

STRUCTURES = {
    "orthogonal()": (6, 4), "delta_orthogonal()": (6, 4, 3), "identity()": (6, 4),
    "dirac()": (6, 4, 3), "sparse(0.4)": (6, 4), "embedding(padding_idx=2)": (6, 4),
    "torch_embedding(padding_idx=2)": (6, 4),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", STRUCTURES)
def test_structures_fill_any_output(spec, dtype):
    """numpy #18704, cupy #4903: strided and transposed outputs get the same tensor in logical
    order, and what lies between their elements is left alone."""
    shape = STRUCTURES[spec]
    expected = draw(ic.initializer(spec), shape, dtype=dtype)
    assert expected.dtype == np.dtype(dtype)
    assert same(expected, draw(ic.initializer(spec), list(shape), dtype=dtype, threads=3))
    storage = np.full([2 * size for size in shape], 7, dtype)
    out = storage[tuple(slice(None, None, 2) for _ in shape)]
    assert draw(ic.initializer(spec), shape, out=out) is out
    assert same(out, expected)
    assert np.sum(storage != 7) <= out.size
    transposed = np.full(shape[::-1], 7, dtype).T
    draw(ic.initializer(spec), shape, out=transposed)
    assert same(transposed, expected)


@pytest.mark.parametrize("spec", STRUCTURES)
def test_structures_refuse_outputs_that_do_not_fit(spec):
    """numpy #18704, cupy #4903: before any write."""
    shape = STRUCTURES[spec]
    for out, error in (
        (np.full((*shape[:-1], shape[-1] + 1), 7, np.float32), ValueError),
        (np.full(shape, 7, np.int32), TypeError),
        (np.broadcast_to(np.float32(7), shape), ValueError),
    ):
        with pytest.raises(error, match="out"):
            draw(ic.initializer(spec), shape, out=out)
        assert np.all(out == 7)


@pytest.mark.parametrize("spec", [s for s in STRUCTURES if s not in ("identity()", "dirac()")])
def test_seed_name_and_trial_choose_a_random_structure(spec):
    init, shape = ic.initializer(spec), STRUCTURES[spec]
    first = draw(init, shape)
    for other in ({"seed": 6}, {"name": "v"}, {"trial": 1}):
        assert not same(first, draw(init, shape, **other))
    assert same(draw(init, shape, trial=1), draw(init, shape, trial=np.uint64(1)))


MATRICES, KERNELS = [(0, 5), (5, 0), (0, 0)], [(3, 0, 3, 3), (3, 3, 0), (3, 2, 3, 0)]
OF_TABLES = [spec for spec in OF_FANS if "embedding" in spec]
OF_MATRICES = [spec for spec in OF_FANS if "torch_rnn" not in spec and spec not in OF_TABLES]
EMPTY = [
    *itertools.product(
        [*ELEMENTWISE, "torch_rnn(hidden_size=4)", "xavier_uniform(fan_in=2, fan_out=2)"],
        [(0,), *MATRICES, *KERNELS],
    ),
    *itertools.product([*OF_MATRICES, "orthogonal()"], [*MATRICES, *KERNELS]),
    *itertools.product([*OF_TABLES, "identity()", "sparse(0.5)"], MATRICES),
    *itertools.product(["dirac()", "delta_orthogonal()"], KERNELS),
]


@pytest.mark.parametrize(("spec", "shape"), EMPTY)
def test_tensors_without_elements(spec, shape):
    """pytorch #56505, #48152, #73503: an empty array from every initializer, where the rank is
    enough; and no warning."""
    for dtype in ("float32", "float64", "float16"):
        w = draw(ic.initializer(spec), shape, dtype=dtype)
        assert w.shape == shape
        assert w.dtype == dtype


def test_a_chain_does_not_take_a_convolution():
    with pytest.raises(ValueError, match="delta_orthogonal"):
        ic.propagate([8, 8, 8], init="delta_orthogonal()", trials=2)


@pytest.mark.parametrize(
    "spec",
    [
        "truncated_normal(0.3)", "xavier_normal(distribution='truncated_normal')", "torch_linear()",
        "truncated_normal(0.5, bounds=(-0.2, 0.9))",
    ],
)  # fmt: skip
def test_a_chain_takes_every_law_of_entries(spec):
    """And has the weights that the initializer draws under the layer's name."""
    result = ic.propagate([8, 9], init=spec, trials=3, seed=4)
    for trial in range(3):
        expected = ic.initializer(spec)((9, 8), seed=4, name="layers.0.weight", trial=trial)
        assert same(result.weights(trial, 0), expected)


# --- marginal laws -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "shape", "variance"),
    [
        ("orthogonal()", (6, 4), 1 / 6), ("orthogonal(gain=3)", (4, 6), 9 / 6),
        ("orthogonal()", (16, 3, 3, 3), 1 / 27), ("sparse(0.4, std=2)", (5, 9), 4 * 3 / 5),
        ("delta_orthogonal(gain=2)", (6, 4, 3), 4 / 18),
    ],
)  # fmt: skip
def test_the_deviation_of_an_entry(spec, shape, variance):
    """Over draws: an orthonormal matrix has mean square 1/(its longer side), exactly in each."""
    init = ic.initializer(spec)
    assert init.std(shape) == pytest.approx(math.sqrt(variance), rel=1e-14)
    if "orthogonal" in spec:
        assert np.mean(draw(init, shape, dtype="float64") ** 2) == pytest.approx(
            variance, rel=1e-13
        )


# --- torch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((3, 16, 5, 5), 1), ((3, 24, 5, 5), 3), ((6, 2, 4), 2), ((4, 2, 2, 3, 4), 2)],
)
def test_dirac_is_torchs(shape, groups):
    torch = pytest.importorskip("torch")
    expected = torch.nn.init.dirac_(torch.empty(shape), groups).numpy()
    assert same(draw(ic.dirac(groups=groups), shape), expected)


@pytest.mark.parametrize("shape", [(3, 3), (3, 5), (5, 3)])
def test_identity_is_torchs(shape):
    torch = pytest.importorskip("torch")
    assert same(draw(ic.identity(), shape), torch.nn.init.eye_(torch.empty(shape)).numpy())


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (16, 3, 3, 3), (4, 4)])
def test_orthogonal_is_torchs_up_to_the_numbers(shape):
    """The same side is orthonormal, with the same gain."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.init.orthogonal_(torch.empty(shape), gain=2).numpy().reshape(shape[0], -1)
    ours = draw(ic.orthogonal(2), shape).reshape(shape[0], -1)
    for w in (theirs, ours):
        assert orthonormal_error(w, 2) <= 2e-6
    assert np.linalg.matrix_rank(ours, tol=0.1) == np.linalg.matrix_rank(theirs, tol=0.1)


@pytest.mark.parametrize(("sparsity", "rows"), [(0.1, 5), (0.5, 5), (0.9, 64), (0.3, 7)])
def test_sparse_has_torchs_number_of_zeros(sparsity, rows):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.init.sparse_(torch.empty(rows, 20), sparsity).numpy()
    ours = draw(ic.sparse(sparsity), (rows, 20))
    assert np.array_equal(np.sum(ours == 0, axis=0), np.sum(theirs == 0, axis=0))


@pytest.mark.parametrize("padding_idx", [None, 0, -1])
def test_the_padding_row_is_torchs(padding_idx):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Embedding(4, 5, padding_idx=padding_idx).weight.detach().numpy()
    ours = draw(ic.torch_embedding(padding_idx), (4, 5))
    assert np.array_equal(ours == 0, theirs == 0)


@pytest.mark.parametrize("shape", [(), (5,)])
def test_a_matrix_without_columns_is_no_orthogonal_one(shape):
    for ask in (ic.orthogonal().std, lambda shape: ic.orthogonal()(shape, seed=0, name="w")):
        with pytest.raises(ValueError, match="two axes or more for orthogonal, got"):
            ask(shape)
