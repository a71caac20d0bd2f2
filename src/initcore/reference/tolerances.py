# SPDX-License-Identifier: BSD-3-Clause
"""The largest errors that the kernels' headers state: the tests and `initcore verify` hold them
to these numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# of a normal unit in ulps, an ulp never smaller than that of the floor
NORMAL_ULPS = {"float32": 4.0, "float64": 3.0}
NORMAL_FLOOR = 2.0**-10

# of a truncated normal unit, likewise
TRUNCATED_ULPS = {"float32": 8.0, "float64": 6.0}
TRUNCATED_FLOOR = 0.25

# of p and the statistics in units of eps/2·(1 + |t|), t the largest logit, csrc/softmax.h
SOFTMAX_UNITS = 6.0
# of the statistics of attention, likewise, given the products; csrc/attention.h
ATTENTION_UNITS = 8.0
# of its gradients likewise, relative to the largest of each
ATTENTION_BACKWARD_UNITS = 32.0
# of dz in units of eps/2, relative to the terms of the difference that it is
BACKWARD_UNITS = 8.0

# of φ and φ′ in ulps, csrc/activations.h; leaky_relu's with the rounding of its slope
ACTIVATION_ULPS = {
    "linear": (0.0, 0.0),
    "relu": (0.0, 0.0),
    "leaky_relu": (1.1, 0.5),
    "tanh": (2.6, 4.2),
    "sigmoid": (2.5, 4.2),
    "elu": (1.7, 1.7),
    "selu": (2.0, 2.0),
    "gelu": (5.0, 5.5),
    "gelu_tanh": (3.2, 6.0),
    "silu": (3.2, 6.0),
    "mish": (4.4, 6.0),
    "softplus": (1.8, 2.5),
    "softsign": (1.6, 3.1),
    "erf": (1.2, 2.5),
    "sin": (2.3, 2.6),
    "hardtanh": (0.0, 0.0),
    "hardswish": (2.0, 1.1),
    "relu2": (0.5, 0.0),
}


def activation_floor(name: str, x: NDArray[Any], *, derivative: bool) -> NDArray[np.float64]:
    """The size an ulp is never smaller than: around the zero of these φ′ it is that of 1/8."""
    cancels = derivative and name in ("gelu", "gelu_tanh", "silu", "mish")
    return np.where((x > -1.7) & (x < -0.5) & cancels, 0.125, 0.0)
