# SPDX-License-Identifier: BSD-3-Clause
"""Predictions: chains at infinite and finite width, and the softmax of random logits."""

from initcore.theory.chain import Prediction, predict
from initcore.theory.finite_width import MeanVar, jacobian, log_energy
from initcore.theory.mean_field import (
    Critical,
    FixedPoint,
    Variances,
    correlation_map,
    critical,
    edge_of_chaos,
    fixed_point,
)
from initcore.theory.random_logits import (
    RandomSoftmax,
    freezing_std,
    saturated_share,
    saturation_std,
    softmax,
)

__all__ = [
    "Critical",
    "FixedPoint",
    "MeanVar",
    "Prediction",
    "RandomSoftmax",
    "Variances",
    "correlation_map",
    "critical",
    "edge_of_chaos",
    "fixed_point",
    "freezing_std",
    "jacobian",
    "log_energy",
    "predict",
    "saturated_share",
    "saturation_std",
    "softmax",
]
