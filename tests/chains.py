# SPDX-License-Identifier: BSD-3-Clause
"""Chains that the tests of both passes take: given operands, and specifications of drawn ones."""

import numpy as np

from initcore.reference import sampling
from initcore.reference.sampling import CONSTANT, NORMAL, UNIFORM
from kernel_calls import INFINITE, layer_codes


def operands(rng, batch, widths, dtype, gain=1.5):
    x = rng.normal(size=(batch, widths[0])).astype(dtype)
    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [(rng.normal(size=p) * gain / np.sqrt(p[1])).astype(dtype) for p in pairs]
    biases = [(rng.normal(size=p[0]) * 0.1).astype(dtype) for p in pairs]
    return x, weights, biases


def drawn_spec(dtype, seed, batch, widths, names):
    """A chain whose input, weights and biases are all drawn; and what to draw by hand."""
    layers = range(len(widths) - 1)
    sources = {"input": (sampling.stream_id("input"), NORMAL, 1.0, 0.0, *INFINITE)}
    for layer in layers:
        stream = sampling.stream_id(f"layers.{layer}.weight")
        std = float(np.sqrt(2 / widths[layer]))
        sources[f"w{layer}"] = (
            (stream, NORMAL, std, 0.0, *INFINITE)
            if layer % 2 == 0
            else (stream, UNIFORM, 0.4, 0.1, -0.25, 0.45)
        )
        stream = sampling.stream_id(f"layers.{layer}.bias")
        sources[f"b{layer}"] = (stream, CONSTANT, 0.0, 0.125, *INFINITE)
    sources["b0"] = None
    spec = (
        dtype.name, seed, batch, widths, layer_codes(names, [0.05] * len(names)),
        sources["input"], [sources[f"w{layer}"] for layer in layers],
        [sources[f"b{layer}"] for layer in layers],
    )  # fmt: skip
    return spec, sources


def drawn_by_hand(kernels, source, shape, seed, trial, dtype):
    if source is None:
        return None
    out = np.empty(int(np.prod(shape)), dtype)
    stream, *distribution = source
    kernels.draw(out, 0, seed, (stream + trial) % 2**64, *distribution)
    return out.reshape(shape)
