# SPDX-License-Identifier: BSD-3-Clause
"""initcore: weights that keep the signal alive, and whether it stays alive.

>>> import initcore as ic
>>> W = ic.kaiming_normal(nonlinearity="relu")((512, 784), seed=0, name="fc1.weight")
>>> print(ic.propagate([512] * 51, init="kaiming_normal"))  # doctest: +SKIP
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from . import _core
from .activations import Activation, activation
from .gains import gain
from .initializers import (
    Initializer,
    constant,
    delta_orthogonal,
    dirac,
    embedding,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    initializer,
    kaiming_normal,
    kaiming_uniform,
    lecun_normal,
    lecun_uniform,
    normal,
    ones,
    orthogonal,
    sparse,
    torch_conv,
    torch_conv_transpose,
    torch_embedding,
    torch_linear,
    torch_rnn,
    truncated_normal,
    uniform,
    variance_scaling,
    xavier_normal,
    xavier_uniform,
    zeros,
)
from .layouts import fans

if TYPE_CHECKING:
    from . import scaling, theory
    from .experiments.attention import compare_scalings, propagate_attention
    from .experiments.chain import compare_inits, propagate
    from .kernels.attention import attention, attention_backward, attention_stats
    from .kernels.chain import chain, chain_backward, moments
    from .kernels.softmax import softmax, softmax_backward
    from .results.attention import AttentionPropagation
    from .results.attention_rows import AttentionRows, AttentionSummary
    from .results.comparison import Comparison
    from .results.layers import ChainLayers, LayerStats
    from .results.propagation import Propagation
    from .results.scaling_comparison import ScalingComparison
    from .results.softmax_rows import SoftmaxRows, SoftmaxSummary

    __version__: str

# What a program that draws weights does not need is imported when it is first asked for.
_LATER = {
    "AttentionPropagation": "results.attention",
    "AttentionRows": "results.attention_rows",
    "AttentionSummary": "results.attention_rows",
    "ChainLayers": "results.layers",
    "Comparison": "results.comparison",
    "LayerStats": "results.layers",
    "Propagation": "results.propagation",
    "ScalingComparison": "results.scaling_comparison",
    "SoftmaxRows": "results.softmax_rows",
    "SoftmaxSummary": "results.softmax_rows",
    "attention": "kernels.attention",
    "attention_backward": "kernels.attention",
    "attention_stats": "kernels.attention",
    "chain": "kernels.chain",
    "chain_backward": "kernels.chain",
    "compare_inits": "experiments.chain",
    "compare_scalings": "experiments.attention",
    "moments": "kernels.chain",
    "propagate": "experiments.chain",
    "propagate_attention": "experiments.attention",
    "softmax": "kernels.softmax",
    "softmax_backward": "kernels.softmax",
}


def __getattr__(name: str) -> object:
    value: object
    if name in ("scaling", "theory"):
        value = _import_module(f".{name}", __name__)
    elif name == "__version__":
        value = _import_module("importlib.metadata").version("initcore")
    elif name in _LATER:
        value = getattr(_import_module(f".{_LATER[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def isa() -> str:
    """The instruction set in use: the best this machine runs, or the one INITCORE_ISA names."""
    return _core.default().isa


__all__ = [
    "Activation",
    "AttentionPropagation",
    "AttentionRows",
    "AttentionSummary",
    "ChainLayers",
    "Comparison",
    "Initializer",
    "LayerStats",
    "Propagation",
    "ScalingComparison",
    "SoftmaxRows",
    "SoftmaxSummary",
    "activation",
    "attention",
    "attention_backward",
    "attention_stats",
    "chain",
    "chain_backward",
    "compare_inits",
    "compare_scalings",
    "constant",
    "delta_orthogonal",
    "dirac",
    "embedding",
    "fans",
    "gain",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "initializer",
    "isa",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "moments",
    "normal",
    "ones",
    "orthogonal",
    "propagate",
    "propagate_attention",
    "scaling",
    "softmax",
    "softmax_backward",
    "sparse",
    "theory",
    "torch_conv",
    "torch_conv_transpose",
    "torch_embedding",
    "torch_linear",
    "torch_rnn",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]
