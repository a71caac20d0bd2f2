# SPDX-License-Identifier: BSD-3-Clause
"""A shard of a tensor is the slice of the whole, bit for bit, at a cost of its own size."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from draws import DTYPE_NAMES, DTYPES, ELEMENTWISE, OF_FANS, same
from initcore import streams
from initcore.reference import sampling as reference
from initcore.reference import ulps
from initcore.reference.tolerances import (
    NORMAL_FLOOR,
    NORMAL_ULPS,
    TRUNCATED_FLOOR,
    TRUNCATED_ULPS,
)

SEED, NAME = 17, "layers.3.weight"


def draw(init, shape, **keywords):
    return init(shape, **{"seed": SEED, "name": NAME, **keywords})


def slices(size):
    """NumPy's slices of an axis, with a positive step: open ends, negative and distant ones too."""
    ends = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, ends, ends, st.none() | st.integers(1, size + 2))


@st.composite
def shards(draw, min_dims=0, max_dims=4, max_side=9):
    """A shape, and slices for some or all of its axes."""
    shape = draw(st.lists(st.integers(0, max_side), min_size=min_dims, max_size=max_dims))
    kept = draw(st.integers(0, len(shape)))
    return tuple(shape), tuple(draw(slices(size)) for size in shape[:kept])


# --- the slice of the whole --------------------------------------------------------------------


@pytest.mark.parametrize("spec", ELEMENTWISE)
@given(case=shards(), dtype=st.sampled_from(DTYPE_NAMES))
def test_a_shard_is_the_slice(spec, case, dtype):
    shape, shard = case
    init = ic.initializer(spec)
    assert same(draw(init, shape, shard=shard, dtype=dtype), draw(init, shape, dtype=dtype)[shard])


@pytest.mark.parametrize("spec", OF_FANS)
@given(case=shards(min_dims=2, max_dims=2), dtype=st.sampled_from(DTYPE_NAMES))
def test_a_shard_has_the_fans_of_the_whole(spec, case, dtype):
    """The law is the global tensor's, not the shard's."""
    shape, shard = case
    init = ic.initializer(spec)
    assert same(draw(init, shape, shard=shard, dtype=dtype), draw(init, shape, dtype=dtype)[shard])


@given(
    case=shards(min_dims=2, max_dims=2, max_side=12),
    spec=st.sampled_from(["identity()", "identity().scaled(3)", "embedding(padding_idx=-1)"]),
    dtype=st.sampled_from(DTYPE_NAMES),
)
def test_a_shard_of_a_structured_matrix(case, spec, dtype):
    shape, shard = case
    if "padding" in spec and shape[0] == 0:
        shape = (1, shape[1])
    init = ic.initializer(spec)
    assert same(draw(init, shape, shard=shard, dtype=dtype), draw(init, shape, dtype=dtype)[shard])


@given(
    channels=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    groups=st.integers(1, 3),
    kernel=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    data=st.data(),
)
def test_a_shard_of_dirac(channels, groups, kernel, data):
    shape = (channels[0] * groups, channels[1], *kernel)
    shard = tuple(data.draw(slices(size)) for size in shape)
    init = ic.dirac(groups=groups)
    assert same(draw(init, shape, shard=shard), draw(init, shape)[shard])


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    other=st.integers(1, 9),
    axis=st.integers(0, 1),
    spec=st.sampled_from(["xavier_uniform", "xavier_normal", "he_uniform"]),
    dtype=st.sampled_from(DTYPE_NAMES),
    data=st.data(),
)
def test_a_shard_across_packed_parts(sizes, other, axis, spec, dtype, data):
    """Each part has its own law, wherever the shard begins and however it steps."""
    shape = (sum(sizes), other) if axis == 0 else (other, sum(sizes))
    shard = tuple(data.draw(slices(size)) for size in shape)
    init = getattr(ic, spec)(parts=tuple(sizes), in_axis=1 - axis, out_axis=axis)
    assert same(draw(init, shape, shard=shard, dtype=dtype), draw(init, shape, dtype=dtype)[shard])


@given(case=shards(min_dims=1, max_dims=3), dtype=st.sampled_from(DTYPE_NAMES), data=st.data())
def test_a_shard_fills_any_output(case, dtype, data):
    """Strided, transposed, reversed; what lies between its elements is left alone."""
    shape, shard = case
    expected = draw(ic.normal(), shape, dtype=dtype)[shard]
    axes = data.draw(st.permutations(range(expected.ndim)))
    steps = [data.draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in axes]
    sizes = [expected.shape[axis] * abs(step) for axis, step in zip(axes, steps, strict=True)]
    storage = np.full(sizes, 9, dtype)
    view = storage[tuple(slice(None, None, step) for step in steps)]
    out = view.transpose(np.argsort(axes))
    assert draw(ic.normal(), shape, shard=shard, out=out) is out
    assert same(out, expected)
    view[...] = 9
    assert np.all(storage == 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", ["normal()", "truncated_normal()", "uniform(low=0, high=1)"])
@pytest.mark.parametrize(
    "shard",
    [
        (slice(None), slice(1, None)), (slice(3, 1100, 2), slice(None)),
        (slice(None), slice(None, None, 3)), (slice(700, 701),), (slice(None), slice(5, 6)),
    ],
)  # fmt: skip
def test_shards_of_more_than_a_task(spec, dtype, shard):
    """numba #8957: shards that threads divide between them, from a matrix of 1.3 million."""
    shape, init = (1200, 1100), ic.initializer(spec)
    expected = draw(init, shape, dtype=dtype)[shard]
    for threads in (1, 3, 7):
        assert same(draw(init, shape, shard=shard, dtype=dtype, threads=threads), expected)
    out = np.zeros(expected.shape[::-1], dtype).T
    draw(init, shape, shard=shard, out=out, threads=2)
    assert same(out, expected)


@pytest.mark.parametrize("world", [1, 4, 8, 16])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("spec", ["normal()", "kaiming_uniform()", "truncated_normal(0.02)"])
def test_the_ranks_of_any_world_hold_one_tensor(spec, world, axis):
    """torchtitan #3106, OLMo-core #307, jax #40232: the shards put together are the whole,
    whatever their number, and no two ranks hold the same numbers."""
    shape, init = (496, 64), ic.initializer(spec)
    step = shape[axis] // world
    parts = [
        draw(init, shape, shard=(slice(None),) * axis + (slice(r * step, (r + 1) * step),))
        for r in range(world)
    ]
    assert same(np.concatenate(parts, axis), draw(init, shape))
    for one, other in itertools.combinations(parts, 2):
        # float32 numbers meet by chance alone
        assert np.mean(one == other) < 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [*ELEMENTWISE, "embedding(padding_idx=1)"])
def test_a_shorter_draw_is_a_prefix(spec, dtype):
    """pytorch #80202, jax #2155: values do not change at 16 elements, nor when axis 0 grows."""
    init = ic.initializer(spec)
    if "embedding" not in spec:
        for n in (1, 15, 16, 17, 63, 64, 65, 200):
            assert same(draw(init, 300, dtype=dtype)[:n], draw(init, n, dtype=dtype))
    for rows in (2, 3, 16, 40):
        assert same(draw(init, (50, 7), dtype=dtype)[:rows], draw(init, (rows, 7), dtype=dtype))


def test_slices_are_numpys():
    """Open, negative, distant and empty ends; NumPy integers; no slice at all."""
    full = draw(ic.normal(), (7, 5))
    for shard in (
        (), (slice(None),), (slice(-3, None), slice(-100, 100)), (slice(5, 2),), (slice(9, 99),),
        (slice(np.int64(1), np.uint8(6), np.int16(2)), slice(None, -1)), (slice(0, 7, 100),),
    ):  # fmt: skip
        assert same(draw(ic.normal(), (7, 5), shard=shard), full[shard])
    assert same(draw(ic.normal(), (7, 5), shard=None), full)
    assert draw(ic.normal(), (), shard=()).shape == ()


# --- far out -----------------------------------------------------------------------------------

# Where a 32-bit index, signed and unsigned, a block counter of 32 bits in either dtype, and 64-bit
# byte counts would wrap.
FAR = [2**31 - 4, 2**32 - 4, 2**33 + 5, 2**34 - 4, 2**36 - 4, 2**37 - 4, 2**38 - 4, 2**61 + 3]
HUGE = 2**62
UNITS = {  # entries that are the stream's units themselves, and what the reference says of them
    "uniform(low=-1, high=1)": reference.UNIFORM,
    "normal()": reference.NORMAL,
    "truncated_normal(corrected=False)": reference.TRUNCATED_NORMAL,
}


def directly(spec, first, n, dtype):
    """The elements from the stream's definition, rounded to float32 or float64."""
    return reference.draw(
        first, n, SEED, reference.stream_id(NAME), UNITS[spec], 1.0, 0.0, -math.inf, math.inf,
        dtype, (-2.0, 2.0),
    )  # fmt: skip


def agree(spec, x, expected):
    """Bit for bit, or within the tolerance of a kernel whose unit is not exact."""
    if "uniform" in spec:
        return same(x, expected)
    truncated = "truncated" in spec
    limit = (TRUNCATED_ULPS if truncated else NORMAL_ULPS)[x.dtype.name]
    floor = TRUNCATED_FLOOR if truncated else NORMAL_FLOOR
    # half an ulp more: the expected value is rounded
    return bool(np.all(ulps(x, expected, floor) <= limit + 0.5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", UNITS)
@pytest.mark.parametrize("first", FAR)
def test_elements_of_a_tensor_that_fits_nowhere(first, spec, dtype):
    """tensorflow #19473, FlagGems #4995: eight numbers of a tensor of 2^62, and from far out in
    its second axis."""
    init, shard = ic.initializer(spec), (slice(first, first + 8),)
    x = draw(init, (HUGE,), shard=shard, dtype=dtype)
    assert agree(spec, x, directly(spec, first, 8, dtype))
    for shape in ((2, HUGE // 2), (1, HUGE), (1, 1, HUGE)):
        flat = (slice(0, 1),) * (len(shape) - 1) + shard
        if first + 8 <= shape[-1]:
            assert same(draw(init, shape, shard=flat, dtype=dtype).ravel(), x)


@pytest.mark.parametrize("half", DTYPE_NAMES[2:])
@pytest.mark.parametrize("spec", UNITS)
def test_halves_far_out(spec, half):
    """They are the float32 numbers, rounded."""
    for first in FAR:
        shard = (slice(first, first + 8),)
        wide = draw(ic.initializer(spec), (HUGE,), shard=shard)
        x = draw(ic.initializer(spec), (HUGE,), shard=shard, dtype=half).astype(np.float64)
        np.testing.assert_allclose(x, wide, rtol=2.0**-11 if half == "float16" else 2.0**-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", UNITS)
def test_the_corners_of_a_huge_matrix(spec, dtype):
    """A block of (3, 4) with steps in a (2^31, 2^31 − 1) matrix: element r·columns + c."""
    rows, columns = 2**31, 2**31 - 1
    for first_row, first_column in ((0, columns - 7), (2**20, 5), (rows - 5, columns - 7)):
        shard = (slice(first_row, first_row + 5, 2), slice(first_column, first_column + 7, 2))
        x = draw(ic.initializer(spec), (rows, columns), shard=shard, dtype=dtype)
        assert x.shape == (3, 4)
        for i, j in np.ndindex(3, 4):
            element = (first_row + 2 * i) * columns + first_column + 2 * j
            assert agree(spec, x[i, j : j + 1], directly(spec, element, 1, dtype))


def test_elements_far_apart_differ():
    """tensorflow #19473, FlagGems #4995: no counter or index wraps to numbers already seen."""
    places = [0, *(2**k for k in (30, 31, 32, 33, 34, 36, 37, 38, 40, 48, 60))]
    for dtype in ("float32", "float64"):
        drawn = [draw(ic.normal(), (HUGE,), shard=(slice(p, p + 64),), dtype=dtype) for p in places]
        for one, other in itertools.combinations(drawn, 2):
            assert not np.any(one == other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_cost_nothing_in_between(dtype):
    """Four elements of 2^60, 2^58 apart, and a column of a matrix: O(shard) in time and memory."""
    x = draw(ic.normal(), (2**60,), shard=(slice(0, None, 2**58),), dtype=dtype)
    assert x.shape == (4,)
    for i, value in enumerate(x):
        one = draw(ic.normal(), (2**60,), shard=(slice(i << 58, (i << 58) + 1),), dtype=dtype)
        assert one[0] == value
    shape = (2**40, 2**20)
    column = draw(ic.normal(), shape, shard=(slice(0, None, 2**37), slice(7, 8)), dtype=dtype)
    assert column.shape == (8, 1)
    assert len({*column.ravel().tolist()}) == 8


def test_the_memory_of_a_shard_is_its_own():
    """jax #40232: a rank must not make the whole to keep a part."""
    out = np.empty((1000, 1000), np.float32)
    shard = (slice(5000, 7000, 2), slice(3, 2003, 2))
    tracemalloc.start()
    try:
        draw(ic.normal(), (10**5, 10**5), shard=shard, out=out, threads=2)
        draw(ic.truncated_normal(), (10**5, 10**5), shard=(slice(0, 10),), threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_structures_far_out():
    """The diagonal, a padding row and a tap of tensors that fit nowhere."""
    side, row = 2**31 + 8, 2**31 + 3
    shard = (slice(row - 1, row + 2), slice(row, row + 2))
    x = draw(ic.identity(), (side, side), shard=shard)
    assert np.array_equal(x, [[0, 0], [1, 0], [0, 1]])
    table, row = (2**34, 5), 2**32 + 3
    for padding_idx in (row, row - 2**34):
        x = draw(ic.embedding(padding_idx=padding_idx), table, shard=(slice(row - 1, row + 2),))
        expected = draw(ic.normal(), table, shard=(slice(row - 1, row + 2),))
        expected[1] = 0
        assert same(x, expected)
    # 2^19 outputs a group: output 2^32 + 5 is the sixth of its group
    shard = (slice(2**32 + 5, 2**32 + 7), slice(5, 7))
    x = draw(ic.dirac(groups=2**14), (2**33, 2**20, 3), shard=shard)
    assert np.array_equal(x, [[[0, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 1, 0]]])
    # Two packed parts: std 1/√2 below 2^33, 1/√(1 + 2^33) above.
    init = ic.variance_scaling(1, "fan_out", "normal", parts=(2, 2**33))
    unit = draw(ic.normal(), (2**33 + 2, 1), shard=(slice(1, 4),))
    x = draw(init, (2**33 + 2, 1), shard=(slice(1, 4),))
    assert same(x[:1], unit[:1] * np.float32(1 / math.sqrt(2)))
    assert same(x[1:], unit[1:] * np.float32(2**-16.5))


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        ((0,), TypeError, "shard.*0"), ((slice(None), 1), TypeError, "shard"),
        ((None,), TypeError, "shard"), ((...,), TypeError, "shard"),
        (([0, 1],), TypeError, "shard"), ("ab", TypeError, "shard"), (3, TypeError, "shard"),
        ((slice(0.0, 2),), TypeError, "shard"), ((slice("a"),), TypeError, "shard"),
        ((slice(0, 2, 0),), ValueError, "shard.*0"), ((slice(3, 0, -1),), ValueError, "shard.*-1"),
        ((slice(None, None, -2),), ValueError, "shard.*-2"),
        ((slice(None),) * 3, ValueError, "shard"),
    ],
)  # fmt: skip
def test_bad_shards(shard, error, message):
    """Named, and nothing is written; the same for every kind of initializer."""
    for init in (
        ic.normal(),
        ic.identity(),
        ic.embedding(padding_idx=0),
        ic.xavier_normal(parts=2),
    ):
        out = np.full((4, 3), 7, np.float32)
        with pytest.raises(error, match=message):
            draw(init, (4, 3), shard=shard, out=out)
        assert np.all(out == 7)


@pytest.mark.parametrize(
    ("spec", "shape"), [("orthogonal()", (4, 3)), ("delta_orthogonal()", (4, 3, 3)),
                        ("sparse(0.5)", (4, 3))]
)  # fmt: skip
def test_what_is_drawn_whole_has_no_shards(spec, shape):
    """An orthonormal matrix and a sparse column have no entries of their own."""
    out = np.full((2, *shape[1:]), 7, np.float32)
    for shard in ((slice(0, 2),), (slice(0, 2), slice(None))):
        with pytest.raises(
            ValueError, match=rf"shard.*{spec.split('(')[0]}|{spec.split('(')[0]}.*shard"
        ):
            draw(ic.initializer(spec), shape, shard=shard, out=out)
    assert np.all(out == 7)


def test_the_output_of_a_shard_has_the_shards_shape():
    shard = (slice(1, 3), slice(None, None, 2))
    for wrong in ((7, 5), (2, 5), (3, 3), (2,), (2, 3, 1)):
        out = np.full(wrong, 7, np.float32)
        with pytest.raises(ValueError, match=r"out.*\(2, 3\)"):
            draw(ic.normal(), (7, 5), shard=shard, out=out)
        assert np.all(out == 7)
    out = np.empty((2, 3), np.float64)
    assert draw(ic.normal(), (7, 5), shard=shard, out=out) is out
    assert same(out, draw(ic.normal(), (7, 5), dtype="float64")[shard])


def test_a_shard_does_not_hide_a_shape_that_does_not_fit():
    """The whole's rank, layout and padding row are checked, whatever the shard holds."""
    nothing = (slice(0, 0),)
    for init, shape, error in (
        (ic.xavier_normal(), (5,), ValueError), (ic.identity(), (2, 2, 2), ValueError),
        (ic.embedding(padding_idx=9), (4, 4), IndexError), (ic.dirac(), (3, 3), ValueError),
        (ic.kaiming_normal(groups=3), (4, 4), ValueError), (ic.normal(1e39), (4,), ValueError),
    ):  # fmt: skip
        with pytest.raises(error):
            draw(init, shape, shard=nothing)


class Counter:
    """In the place of a kernel: which elements it was asked for."""

    def __init__(self):
        self.calls, self.elements = 0, 0

    def __call__(self, out, first, *words, stride=0, half=0):
        self.calls += 1
        self.elements += out.size
        rows = np.atleast_2d(out)
        indices = first + stride * np.arange(len(rows))[:, None] + np.arange(rows.shape[1])
        rows[...] = indices


@pytest.mark.parametrize(
    ("shape", "shard"),
    [
        ((256, 256, 3, 3), np.s_[:, :, ::2, ::2]),
        ((256, 256, 3, 3), np.s_[:, :, 0:2, 0:2]),
        ((256, 256, 3, 3), np.s_[::17, 5:9, :, 1:2]),
        ((100_000, 16), np.s_[:, 0:8]),
        ((1_000_000,), np.s_[::3]),
        ((3_000, 3_000), np.s_[::100, ::100]),
        ((70, 4097, 40), np.s_[3::7, :, ::3]),
        ((2, 1 << 21), np.s_[:, ::2]),
        ((5, 7, 9, 11), np.s_[1::2, ::3, 2:8:5, ::4]),
    ],
)
def test_what_a_shard_draws(shape, shard):
    """Its own elements, in C order; at most a tile for each, in few calls."""
    kernel, piece = (
        Counter(),
        streams.Shard.of(shape, shard if isinstance(shard, tuple) else (shard,)),
    )
    buffer = np.empty(math.prod(piece.sizes))
    first, runs = piece.runs()
    streams._draw_runs(kernel, buffer, first, runs, (), 0)
    whole = np.arange(math.prod(shape)).reshape(shape)
    assert np.array_equal(buffer, whole[shard].ravel())
    assert kernel.elements <= 64 * buffer.size
    assert kernel.calls <= 64 + buffer.size // 100


def test_parts_of_a_bias():
    init = ic.xavier_uniform(parts=(4, 8), fan_in=5, fan_out=4)
    bias = init((12,), seed=0, name="b")
    assert init.bound((12,)) == (pytest.approx(math.sqrt(6 / 9)),) * 2
    assert np.array_equal(bias[3:7], init((12,), seed=0, name="b", shard=np.s_[3:7,]))


@pytest.mark.parametrize("init", [ic.normal(), ic.identity()])
def test_tensors_that_no_index_reaches(init):
    with pytest.raises(ValueError, match=r"shape.*fewer than 2\*\*63"):
        init((2**62, 2), seed=0, name="w", shard=(slice(3), slice(1)))
