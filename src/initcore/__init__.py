# SPDX-License-Identifier: BSD-3-Clause
"""initcore: weights that keep the signal alive, and whether it stays alive.

>>> import initcore as ic
>>> W = ic.kaiming_normal(nonlinearity="relu")((512, 784), seed=0, name="fc1.weight")
>>> print(ic.propagate([512] * 51, init="kaiming_normal"))  # doctest: +SKIP
"""

from importlib.metadata import version as _version

from . import _core, theory
from .activations import Activation, activation
from .experiments.chain import compare_inits, propagate
from .initializers import (
    Initializer,
    constant,
    fans,
    gain,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    initializer,
    kaiming_normal,
    kaiming_uniform,
    lecun_normal,
    lecun_uniform,
    normal,
    ones,
    torch_linear,
    uniform,
    variance_scaling,
    xavier_normal,
    xavier_uniform,
    zeros,
)
from .kernels.chain import chain, moments
from .kernels.softmax import softmax, softmax_backward
from .results import ChainLayers, LayerStats, Propagation, SoftmaxRows

__version__ = _version("initcore")


def isa() -> str:
    """The instruction set in use: the best this machine runs, or the one INITCORE_ISA names."""
    return _core.default().isa


__all__ = [
    "Activation",
    "ChainLayers",
    "Initializer",
    "LayerStats",
    "Propagation",
    "SoftmaxRows",
    "activation",
    "chain",
    "compare_inits",
    "constant",
    "fans",
    "gain",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "initializer",
    "isa",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "moments",
    "normal",
    "ones",
    "propagate",
    "softmax",
    "softmax_backward",
    "theory",
    "torch_linear",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]
