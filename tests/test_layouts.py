# SPDX-License-Identifier: BSD-3-Clause
"""Fans of every layout: counted weight by weight, the figures of public reports, what is refused;
and the standard deviations that initializers take from them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from draws import same

# --- what a fan is -----------------------------------------------------------------------------

SIZES = st.integers(1, 4)
KERNELS = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def counted(outputs, inputs):
    """(fan_in, fan_out) where weight w connects inputs[w] with outputs[w]: the weights that every
    output has, and that every input has."""
    fan_in, fan_out = (set(np.unique(side, return_counts=True)[1]) for side in (outputs, inputs))
    assert len(fan_in) == len(fan_out) == 1
    return int(fan_in.pop()), int(fan_out.pop())


@given(out=SIZES, inside=SIZES, kernel=KERNELS, groups=SIZES)
def test_fans_of_convolutions_are_counts_of_weights(out, inside, kernel, groups):
    """weight[o, i, k] of a grouped convolution connects channel i of o's group with output o."""
    shape = (out * groups, inside, *kernel)
    o, i, *_ = np.indices(shape)
    assert ic.fans(shape, groups=groups) == counted(o, o // out * inside + i)


@given(out=SIZES, inside=SIZES, kernel=KERNELS, groups=SIZES)
def test_fans_of_transposed_convolutions_are_counts_of_weights(out, inside, kernel, groups):
    """weight[i, o, k] of one connects input i with channel o of i's group."""
    shape = (inside * groups, out, *kernel)
    i, o, *_ = np.indices(shape)
    assert ic.fans(shape, transposed=True, groups=groups) == counted(i // inside * out + o, i)


@given(sizes=st.lists(SIZES, min_size=2, max_size=5), data=st.data())
def test_fans_of_axes_are_counts_of_weights(sizes, data):
    """Over a batch axis there are so many layers side by side, each with the same fans."""
    roles = data.draw(
        st.lists(st.sampled_from("iobk"), min_size=len(sizes), max_size=len(sizes)).filter(
            lambda roles: {"i", "o"} <= {*roles}
        )
    )
    axes = {role: tuple(a for a, r in enumerate(roles) if r == role) for role in "iobk"}
    where = np.indices(sizes)

    def number(role):  # the channel, and the layer, that a weight belongs to
        chosen = axes[role] + axes["b"]
        return np.ravel_multi_index([where[a] for a in chosen], [sizes[a] for a in chosen])

    batch = {"batch_axis": axes["b"]} if axes["b"] else {}
    got = ic.fans(tuple(sizes), in_axis=axes["i"], out_axis=axes["o"], **batch)
    assert got == counted(number("o"), number("i"))
    negative = [tuple(a - len(sizes) for a in axes[role]) for role in "iob"]
    batch = {"batch_axis": negative[2]} if axes["b"] else {}
    assert ic.fans(tuple(sizes), in_axis=negative[0], out_axis=negative[1], **batch) == got


# --- the layouts of the field ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((512, 784), {}, (784, 512)),
        ((64, 3, 7, 7), {}, (147, 3136)),
        ((8, 4, 5), {}, (20, 40)),
        ((2, 3, 4, 5, 6), {}, (360, 240)),
        # depthwise, and grouped: torch, which ignores groups, says 36 and 1152 for the fan out
        ((4, 1, 3, 3), {"groups": 4}, (9, 9)),
        ((128, 16, 3, 3), {"groups": 4}, (144, 288)),
        ((4, 1, 3, 3), {"groups": np.int64(4)}, (9, 9)),
        # (kernel, in, out), as JAX and Keras store it
        ((3, 3, 64, 128), {"in_axis": -2, "out_axis": -1}, (576, 1152)),
        ((3, 3, 1, 4), {"in_axis": 2, "out_axis": 3, "groups": 4}, (9, 9)),
        # Lasagne #858, tensorflow #31192: a transposed convolution stores (in, out, *kernel)
        ((64, 32, 4, 4), {"transposed": True}, (1024, 512)),
        ((64, 32), {"transposed": True}, (64, 32)),
        ((64, 8, 4, 4), {"transposed": True, "groups": 4}, (256, 128)),
        # heads
        ((512, 8, 64), {"in_axis": 0, "out_axis": (1, 2)}, (512, 512)),
        ((8, 64, 512), {"in_axis": (0, 1), "out_axis": 2}, (512, 512)),
        ((512, 8, 64), {"in_axis": 0, "out_axis": 2, "batch_axis": 1}, (512, 64)),
        ((16, 256, 64), {"in_axis": 2, "out_axis": 1, "batch_axis": 0}, (64, 256)),
        ((2, 3, 4, 5), {"in_axis": 3, "out_axis": 2, "batch_axis": (0, -3)}, (5, 4)),
        # pytorch #166378, apex #910: packed projections
        ((1536, 512), {"parts": 3}, (512, 512)),
        ((1536, 512), {"parts": 1}, (512, 1536)),
        ((512, 1536), {"parts": 3, "in_axis": 0, "out_axis": 1}, (512, 512)),
        ((1536, 512), {"parts": (512, 512, 512)}, ((512, 512),) * 3),
        ((768, 512), {"parts": [512, 128, 128]}, ((512, 512), (512, 128), (512, 128))),
        # a shape without elements
        ((0, 5), {}, (5, 0)),
        ((3, 0, 3, 3), {}, (0, 27)),
        ((0, 5), {"transposed": True}, (0, 5)),
    ],
)  # fmt: skip
def test_fans(shape, layout, expected):
    assert ic.fans(shape, **layout) == expected


@pytest.mark.parametrize(
    ("shape", "layout", "error", "message"),
    [
        ((5,), {}, ValueError, r"\(5,\).*fan_in="),
        ((), {}, ValueError, r"\(\).*fan_in="),
        ((5,), {"transposed": True}, ValueError, r"\(5,\).*fan_in="),
        ((6, 2, 3), {"groups": 4}, ValueError, "groups.*4"),
        ((6, 4, 3), {"groups": 4, "transposed": True}, ValueError, "groups.*4"),
        ((6, 2), {"groups": 0}, ValueError, "groups.*0"),
        ((6, 2), {"groups": -2}, ValueError, "groups.*-2"),
        ((6, 2), {"groups": 2.0}, TypeError, "groups.*2.0"),
        ((6, 2), {"groups": True}, TypeError, "groups.*True"),
        ((7, 2), {"parts": 3}, ValueError, "parts.*3"),
        ((6, 2), {"parts": 0}, ValueError, "parts.*0"),
        ((6, 2), {"parts": (3, 2)}, ValueError, r"parts.*\(3, 2\)"),
        ((6, 2), {"parts": (7, -1)}, ValueError, r"parts.*-1"),
        ((6, 2), {"parts": ()}, ValueError, "parts"),
        ((6, 2), {"parts": True}, TypeError, "parts"),
        ((6, 2), {"parts": 1.5}, TypeError, "parts"),
        ((6, 2), {"parts": (3, 3.0)}, TypeError, "parts"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": (1, 2), "parts": 2}, ValueError, "parts"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": 1, "batch_axis": 1}, ValueError, "batch_axis"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": 1, "batch_axis": 0}, ValueError, "batch_axis"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": 1, "batch_axis": 3}, ValueError, "batch_axis"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": 1, "batch_axis": 1.0}, TypeError, "batch_axis"),
        ((2, 4, 6), {"in_axis": 0, "out_axis": -3}, ValueError, "in_axis.*0.*out_axis.*-3"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_the_shape(shape, layout, error, message):
    """The argument and the value given are named; an initializer of that layout says the same."""
    with pytest.raises(error, match=message):
        ic.fans(shape, **layout)
    out = np.full(shape, 7, np.float32)
    with pytest.raises(error, match=message):
        ic.xavier_uniform(**layout)(shape, seed=0, name="w", out=out)
    assert np.all(out == 7)


# --- initializers ------------------------------------------------------------------------------


def test_groups_change_the_law():
    """Depthwise: each output sums nine products, whatever the number of channels."""
    shape = (4, 1, 3, 3)
    for mode in ("fan_in", "fan_out", "fan_avg", "fan_geo_avg"):
        init = ic.variance_scaling(2, mode, "normal", groups=4)
        assert init.std(shape) == pytest.approx(math.sqrt(2 / 9), rel=1e-15)
    assert ic.kaiming_uniform(groups=4, mode="fan_out").bound(shape) == pytest.approx(
        math.sqrt(6 / 9), rel=1e-15
    )
    assert ic.xavier_normal().std(shape) == pytest.approx(math.sqrt(2 / 45), rel=1e-15)


def test_transposed_convolutions():
    """Lasagne #858, tensorflow #31192."""
    shape = (64, 32, 4, 4)
    assert ic.kaiming_normal(transposed=True).std(shape) == pytest.approx(
        math.sqrt(2 / 1024), rel=1e-15
    )
    assert ic.kaiming_normal(transposed=True, mode="fan_out").std(shape) == pytest.approx(
        math.sqrt(2 / 512), rel=1e-15
    )


@pytest.mark.parametrize(
    ("make", "scale"),
    [
        (ic.xavier_uniform, 1), (ic.kaiming_normal, 2), (ic.lecun_normal, 1), (ic.lecun_uniform, 1),
        (ic.kaiming_uniform, 2), (ic.xavier_normal, 1),
    ],
)  # fmt: skip
def test_every_initializer_of_fans_takes_the_layout(make, scale):
    """(16, 12, 8) as heads, experts' weights, groups: the variance is scale/fan."""
    for layout, fan_in, fan_out in [
        ({"in_axis": 0, "out_axis": (1, 2)}, 16, 96),
        ({"in_axis": 2, "out_axis": 1, "batch_axis": 0}, 8, 12),
        ({"groups": 4}, 96, 32),
        ({"transposed": True}, 128, 96),
        ({"parts": 2}, 96, 64),
    ]:
        fan = (fan_in + fan_out) / 2 if "xavier" in make.__name__ else fan_in
        assert make(**layout).std((16, 12, 8)) == pytest.approx(math.sqrt(scale / fan), rel=1e-15)


def test_packed_projections():
    """pytorch #166378, apex #910: not the 0.0541265877 of a fan out of 3·512."""
    init = ic.xavier_uniform(parts=3)
    assert init.bound((1536, 512)) == pytest.approx(0.0765465545, abs=6e-11)
    assert ic.xavier_uniform().bound((1536, 512)) == pytest.approx(0.0541265877, abs=6e-11)
    packed = init((1536, 512), seed=1, name="qkv", dtype="float64")
    for part in np.split(packed, 3):
        assert 0.0765 < np.abs(part).max() < 0.0765465546
    single = ic.uniform(-1, 1)((1536, 512), seed=1, name="qkv", dtype="float64")
    np.testing.assert_allclose(packed, math.sqrt(6 / 1024) * single, rtol=4e-16)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes", "sizes"),
    [
        ((12, 5), {}, (8, 2, 2)),
        ((5, 12), {"in_axis": 0, "out_axis": 1}, (8, 2, 2)),
        ((3, 12, 7), {"in_axis": 2, "out_axis": 1, "batch_axis": 0}, (1, 11)),
        ((12, 5, 3), {}, (6, 1, 5)),
    ],
)
def test_unequal_parts_have_laws_of_their_own(shape, axes, sizes, dtype):
    """Grouped-query attention (pytorch #166378, apex #910): a part has the standard deviation that
    it has alone, and each entry is the stream's normal times its part's."""
    init = ic.xavier_normal(parts=sizes, **axes)
    axis = axes.get("out_axis", 0)
    alone = [
        ic.xavier_normal(**axes).std((*shape[:axis], size, *shape[axis + 1 :])) for size in sizes
    ]
    assert init.std(shape) == pytest.approx(tuple(alone), rel=1e-15)
    assert isinstance(init.std(shape), tuple)
    assert init.bound(shape) == (math.inf,) * len(sizes)
    # The parts' axis may end in the middle of a tile, and need not be the first.
    unit = ic.normal()(shape, seed=2, name="kv", dtype=dtype)
    parts = np.split(unit, np.cumsum(sizes)[:-1], axis)
    expected = np.concatenate(
        [part * part.dtype.type(std) for part, std in zip(parts, alone, strict=True)], axis
    )
    assert same(init(shape, seed=2, name="kv", dtype=dtype, threads=2), expected)
    out = np.zeros(shape[::-1], dtype).T
    assert init(shape, seed=2, name="kv", out=out) is out
    assert np.array_equal(out, expected)


def test_equal_parts_are_the_sizes_spelled_out():
    for make in (ic.xavier_uniform, ic.xavier_normal, ic.kaiming_normal):
        three = make(parts=3)((12, 5), seed=2, name="qkv")
        assert same(three, make(parts=(4, 4, 4))((12, 5), seed=2, name="qkv"))
    assert ic.xavier_uniform(parts=(4, 8)).bound((12, 5)) == pytest.approx(
        (math.sqrt(6 / 9), math.sqrt(6 / 13)), rel=1e-15
    )
    # The fan in is the same for all parts, so a mode that needs no other makes no difference.
    for parts in (3, (2, 10)):
        kaiming = ic.kaiming_normal(parts=parts)((12, 5), seed=2, name="qkv")
        assert same(kaiming, ic.kaiming_normal()((12, 5), seed=2, name="qkv"))


def test_a_factor_reaches_every_part():
    init = ic.xavier_uniform(parts=(4, 8)).scaled(2)
    plain = ic.xavier_uniform(parts=(4, 8))
    assert init.std((12, 5)) == pytest.approx([2 * std for std in plain.std((12, 5))], rel=1e-15)
    drawn, half = (i((12, 5), seed=2, name="qkv") for i in (init, plain))
    assert same(drawn, 2 * half)


@pytest.mark.parametrize("shape", [(5,), (), (0,)])
@pytest.mark.parametrize(
    ("make", "explicit"),
    [
        (lambda **k: ic.xavier_normal(**k), {"fan_in": 4, "fan_out": 4}),
        (lambda **k: ic.xavier_uniform(transposed=True, **k), {"fan_in": 4, "fan_out": 4}),
        (lambda **k: ic.kaiming_normal(**k), {"fan_in": 4}),
        (lambda **k: ic.kaiming_normal(mode="fan_out", **k), {"fan_out": 4}),
        (lambda **k: ic.kaiming_normal(distribution="truncated_normal", **k), {"fan_in": 4}),
        (lambda **k: ic.lecun_normal(**k), {"fan_in": 4}),
        (lambda **k: ic.lecun_uniform(**k), {"fan_in": 4}),
        (lambda **k: ic.torch_linear(**k), {"fan_in": 4}),
    ],
)
def test_shapes_without_fans_need_them_given(make, explicit, shape):
    """pytorch: "can not be computed for tensor with fewer than 2 dimensions"."""
    message = rf"\({'' if shape == () else f'{shape[0]},'}\).*fan_in="
    with pytest.raises(ValueError, match=message):
        make().std(shape)
    with pytest.raises(ValueError, match=message):
        make()(shape, seed=0, name="bias")
    init = make(**explicit)
    assert init(shape, seed=0, name="bias").shape == shape
    assert init.std(shape) == make().std(shape, **explicit) == make().std((4, 4))


def test_explicit_fans_win_over_the_layout():
    """They are what the mode divides by, also where groups or the transposition say otherwise."""
    for layout in ({"groups": 2}, {"transposed": True}, {"in_axis": 0, "out_axis": 1}):
        init = ic.variance_scaling(1, "fan_geo_avg", "normal", fan_in=4, fan_out=9, **layout)
        assert init.std((6, 2)) == pytest.approx(1 / math.sqrt(6), rel=1e-15)


def test_parts_in_any_container():
    expected = ic.fans((6, 3), parts=(2, 4))
    for parts in ([2, 4], np.array([2, 4]), range(2, 6, 2)):
        init = ic.xavier_normal(parts=parts)
        assert ic.fans((6, 3), parts=parts) == expected
        assert init == ic.initializer(repr(init)) == ic.xavier_normal(parts=(2, 4))
    assert ic.fans((6, 3), parts=np.array(2)) == (3, 3)
    for used_once in (iter([2, 4]), map(int, "24"), (part for part in (2, 4))):
        with pytest.raises(TypeError, match="parts must be an integer"):
            ic.fans((6, 3), parts=used_once)
