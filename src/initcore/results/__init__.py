# SPDX-License-Identifier: BSD-3-Clause
"""Results: frozen records of read-only arrays that merge exactly, save, load and print."""

from initcore.results.exact import Accumulator, ExactRecord, ExactSum
from initcore.results.layers import FIELDS, ChainLayers, LayerStats
from initcore.results.propagation import ChainAccumulator, Comparison, Propagation, merge_trials
from initcore.results.records import Record
from initcore.results.softmax_rows import SoftmaxRows, SoftmaxSummary
from initcore.results.text import chosen_layers, number

__all__ = [
    "FIELDS",
    "Accumulator",
    "ChainAccumulator",
    "ChainLayers",
    "Comparison",
    "ExactRecord",
    "ExactSum",
    "LayerStats",
    "Propagation",
    "Record",
    "SoftmaxRows",
    "SoftmaxSummary",
    "chosen_layers",
    "merge_trials",
    "number",
]
