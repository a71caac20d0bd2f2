# SPDX-License-Identifier: BSD-3-Clause
"""Chains without weights, of one input: units are lanes and go by in pieces; no factor."""

import math
from itertools import pairwise

import numpy as np
import pytest

from gram_calls import (
    ABS_MAX,
    COUNT,
    M2,
    MEAN,
    NONFINITE,
    SATURATED,
    SHAPES,
    STREAMS,
    ZEROS,
    assert_close,
    drawn_for,
    gram_spec,
    source,
)
from initcore import _core
from initcore.reference.gram import gram_arrays
from initcore.reference.gram_single import gram_single
from initcore.reference.moments import COSINE, DEAD, FIELDS, M3, M4, OVERFLOWS, WITHIN
from kernel_calls import architecture, layer_codes, normal, run_gram, same_bits


def plain_moments(x):
    """Of an array's values in one go, by their formulas."""
    state = np.zeros(len(FIELDS))
    d = x - x.mean()
    state[[COUNT, MEAN, ABS_MAX]] = x.size, x.mean(), np.abs(x).max()
    state[[M2, M3, M4]] = np.sum(d**2), np.sum(d**3), np.sum(d**4)
    state[[ZEROS, DEAD]] = np.sum(x == 0)
    state[COSINE] = np.nan
    return state


def one_row(case):
    """What the reference takes, of trial 0 of `gram_spec` with one input."""
    (x, zs, laws, activations), (dy, es, *shape) = drawn_for(*case, backward=True)
    rows = x[0], [z[:, 0] for z in zs], laws, activations, dy[0], [e[:, 0] for e in es]
    return *rows, *shape


@pytest.mark.parametrize("shape", [(), *SHAPES])
def test_the_references_agree(rng, shape):
    """Norms alone say what the factor of a Gram matrix of one entry says."""
    laws = [(0.3, 0.2, 0.0), (0.4, 0.5, -0.3), (0.5, None, None)]
    case = rng.normal(size=(1, 20)), [20] * 4, ["tanh", "relu", "gelu"], laws, *shape
    chain, others = drawn_for(*case, backward=True)
    for single, many in zip(gram_single(*one_row(case)), gram_arrays(*chain, *others), strict=True):
        for one, of_batch in zip(single, many, strict=True):
            *arrays, last = of_batch
            last = np.sum(last**2) if np.ndim(one[2]) == 0 else last
            for got, want in zip(one, [*arrays, last], strict=True):
                np.testing.assert_allclose(got, np.squeeze(want), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("widths", "shape"),
    [
        *(([255] * 4, shape) for shape in [(), *SHAPES]),
        ([256, 512, 272, 31], ()),
        ([4113, 4113, 30, 4113], (None, [0.5, None, None])),
        ([30, 4113, 20, 4113], (["rms", None, "layer"], None)),
    ],
)
def test_pieces(every_isa, rng, dtype, widths, shape):
    """Every statistic of every state and gradient, around a block of values and a piece."""
    x = rng.normal(0.2, 0.6, size=(1, widths[0])).astype(dtype)
    stds = [1 / math.sqrt(n) for n in widths]
    laws = [(stds[0], 0.2, 0.0), (2 * stds[1], 0.5, -0.3), (stds[2], None, None)]
    case = x, widths, ["tanh", "relu", "gelu"], laws, *shape
    forward, backward = gram_single(*one_row(case))
    want = np.array([
        [plain_moments(a) for a in (h, after, dx, dh)]
        for (h, _, after), (dx, dh, _) in zip(forward, backward, strict=True)
    ])  # fmt: skip
    want[:, 0, SATURATED] = [np.sum(np.abs(slope) < 0.05) for _, slope, _ in forward]
    spec = gram_spec(*case, backward=True)
    answers = [run_gram(kernels, spec, STREAMS) for kernels in every_isa]
    for states, gradients in answers:
        assert same_bits(states, answers[0][0])
        assert same_bits(gradients, answers[0][1])
    got = np.concatenate([states[0], gradients[0, :, :2]], axis=1)
    assert_close(got, want, dtype)
    size = np.sqrt(want[..., M2] / want[..., COUNT])
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    allowed = tolerance * want[..., COUNT] * size**3
    assert np.all(np.abs(got[..., M3] - want[..., M3]) <= allowed)
    np.testing.assert_allclose(got[..., M4], want[..., M4], rtol=tolerance)
    np.testing.assert_array_equal(got[..., [WITHIN, OVERFLOWS]], 0)
    np.testing.assert_array_equal(got[..., DEAD], got[..., ZEROS])
    sizes = [n_in * n_out for n_in, n_out in pairwise(widths)]
    weights = sizes, [square for _, _, square in backward]
    np.testing.assert_allclose(gradients[0, :, 2, [COUNT, M2]], weights, rtol=tolerance)
    forward_alone, _ = run_gram(every_isa[0], gram_spec(*case))
    assert same_bits(forward_alone, answers[0][0])


def test_many_units_are_their_draw(every_isa):
    """h is the draw of N(μ, σ²|x|² + β²) from the layer's stream, to a rounding."""
    n, std = 20001, math.sqrt(0.25 * 5 + 0.04)
    spec = gram_spec(np.ones((1, 5)), [5, n], ["linear"], [(0.5, 0.2, 0.3)])
    for kernels in every_isa:
        h = normal(kernels, n, seed=5, stream=10, scale=std, shift=0.3, dtype="float64")
        states, _ = run_gram(kernels, spec)
        got = dict(zip(FIELDS, states[0, 0, 0], strict=True))
        assert got["mean"] == pytest.approx(h.mean(), abs=1e-14)
        assert got["m2"] == pytest.approx(np.sum((h - h.mean()) ** 2), rel=1e-13)
        assert got["abs_max"] == pytest.approx(np.abs(h).max(), rel=1e-14)


def test_the_layer_norm_of_a_constant_is_zero(kernels, dtype):
    """Of units that are all tanh(μ), exactly, and no gradient passes it."""
    x, n = np.ones((1, 7), dtype), 5000
    laws = [(0.0, 0.0, 0.3), (1.0, None, None), (1.0, None, None)]
    case = x, [7, n, n, 50], ["tanh", "linear", "linear"], laws, [None, "layer", "rms"], None
    states, gradients = run_gram(kernels, gram_spec(*case, backward=True), STREAMS)
    assert np.all(states[0, 1:, :, ZEROS] == states[0, 1:, :, COUNT])
    assert np.all(gradients[0, :2, :2, ZEROS] == gradients[0, :2, :2, COUNT])
    assert np.all(gradients[0, :, 2, M2] == 0)
    assert np.all(gradients[0, 2, :2, M2] > 0)


@pytest.mark.parametrize(("n", "kind"), [(1, "rms"), (1, "layer"), (2, "layer")])
def test_no_gradient_passes_the_norm_of_few(kernels, rng, n, kind):
    """x̂ is ±1 whatever x is; in float32 that is exact, as it is of many inputs."""
    for batch in (1, 2):
        x = rng.normal(size=(batch, n)).astype(np.float32)
        case = x, [n, n, 40], ["tanh", "linear"], [(0.7, 0.2, 0.1)] * 2, [None, kind], None
        _, gradients = run_gram(kernels, gram_spec(*case, backward=True), STREAMS[:2])
        assert np.all(gradients[0, 0, :2, ZEROS] == batch * n)


@pytest.mark.parametrize("shape", [(), (["rms", "layer"], [0.5, None])])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_input_that_is_not_finite(kernels, dtype, value, shape):
    x = np.ones((1, 300), dtype)
    x[0, 7] = value
    case = x, [300] * 3, ["linear"] * 2, [(0.1, None, None)] * 2, *shape
    states, gradients = run_gram(kernels, gram_spec(*case, backward=True), STREAMS[:2])
    assert np.all(states[0, ..., NONFINITE] == 300)
    assert np.all(np.isnan(states[0, ..., WITHIN]))
    assert np.all(gradients[0, :, 1, NONFINITE] == 300)
    assert np.all(np.isnan(gradients[0, :, 2, M2]))


def test_memory_does_not_grow_with_the_width_forward(kernels):
    laws = source(1, 1.0), [source(2, 1.0)], [None]
    sizes = {
        kernels.gram_workspace(
            _core.Chain(
                "float32", 0, 1, [n, n], layer_codes(["relu"]), *laws, None,
                *architecture(norms, None),
            )
        )
        for n in (1000, 10**6)
        for norms in (None, ["layer"])
    }  # fmt: skip
    assert len(sizes) == 1
    assert sizes.pop() < 1 << 17
