# SPDX-License-Identifier: BSD-3-Clause
"""The verdict on a chain: what became of the signal, in a word, and in the sentence it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from initcore.activations import Activation
from initcore.results.chain_record import (
    GRAD_WEIGHT,
    Direction,
    has_stream,
    second_moment,
    statistics_of,
)
from initcore.results.chain_spec import activation_of, depth, per_layer
from initcore.results.exact import ExactRecord
from initcore.results.factor import Factor, limit
from initcore.results.layers import ChainLayers, LayerStats
from initcore.results.text import plus_minus

# A chain's energy is nearly log-normal: where a handful of trials carry the mean, neither it nor
# its standard error can be trusted, and only a gross factor is called.
_ENOUGH_TRIALS = 30
_EVENLY = 0.8  # the share of the trials that carries the mean where all do
_GROSS_FACTOR = 1.2
# The mean cosine of pre-activations above which inputs cannot be told apart.
_ALIKE = 0.99


class Judgement(NamedTuple):
    """A word, the sentence that it starts, and what to be careful about."""

    outcome: str
    words: str
    caution: str = ""

    @property
    def fails(self) -> bool:
        """The signal does not hold, and what would may follow the words."""
        return self.outcome not in ("holds", "undecided")


def judgement(
    spec: Mapping[str, Any],
    record: ExactRecord,
    layers: ChainLayers,
    direction: Direction,
    factor: Factor | None,
) -> Judgement:
    """What became of the signal in one direction."""
    n = depth(spec)
    path = direction.order(n)
    before = f", {direction.quantity} {factor} before" if factor else ""
    overflow = _first_overflow(record, n, direction)
    if overflow is not None:
        layer, trials = overflow
        of = f"{spec['dtype']} at layer {layer} ({trials} of {record.n_trials} trials)"
        sides = (statistics_of(layers, side) for side in direction.sides if side != GRAD_WEIGHT)
        entries = (side.nonfinite_fraction[layer - 1] for side in sides)
        # squares of float32 do not overflow float64
        alone = spec["dtype"] == "float64" and not any(share > 0 for share in entries)
        what = " in the second moment alone" if alone else ""
        return Judgement("overflows", f" {of}{what}{before}")
    zeros = [record.maxima[direction.side * n + layer - 1] == 0 for layer in path]
    if zeros[-1]:
        alive = [step for step, zero in enumerate(zeros) if not zero]
        layer = path[alive[-1] + 1 if alive else 0]
        return Judgement("vanishes", f": exactly 0 from layer {layer}{before}")
    saturation = None if direction.down else _saturation(spec, layers.pre)
    if saturation is not None:
        layer, share = saturation
        where = f"in {100 * share:.0f} % of layer {layer}"
        return Judgement("saturates", f": |φ′| < 0.05 max|φ′| {where}")
    end = second_moment(record, n, direction.side, path[-1])
    size = f"{plus_minus(end.mean(), end.standard_error())} at layer {path[-1]}"
    if factor is None:
        return Judgement("undecided", f": {direction.quantity} {size}, no factor a layer to fit")
    start, total = second_moment(record, n, direction.side, path[0]), ""
    if has_stream(spec) and start.mean() > 0:  # branches make it grow, but perhaps by little
        total = f", ×{end.mean() / start.mean():.3g} from layer {path[0]}"
    fitted = f"{direction.quantity} {factor} (layers {factor.first} to {factor.last})"
    words = f": {fitted}{total}, {size}"
    if math.isnan(factor.se):
        return Judgement("undecided", f"{words}; one trial has no standard error")
    carried = end.effective < min(_ENOUGH_TRIALS, _EVENLY * end.finite)
    caution = "; a few trials carry the mean, more trials would say it better" if carried else ""
    if abs(factor.value - 1) <= limit(end.finite) * factor.se:
        return Judgement("holds", words, caution)
    if carried and abs(math.log(factor.value)) < math.log(_GROSS_FACTOR):
        few = f"about {end.effective:.0f} of {end.finite} trials carry the mean"
        return Judgement("undecided", f"{words}; {few}, more trials would say it better")
    return Judgement("decays" if factor.value < 1 else "explodes", words, caution)


def alike(pre: LayerStats) -> str:
    """From which layer on the inputs of a batch cannot be told apart."""
    known = np.flatnonzero(np.isfinite(pre.cosine))
    apart = known[pre.cosine[known] <= _ALIKE]
    late = known[known > apart[-1]] if apart.size else known
    if not late.size:
        return ""
    return f"; inputs are alike from layer {late[0] + 1}: mean cosine of h above {_ALIKE}"


def bounded(phi: Activation) -> bool:
    """Whether φ has finite limits on both sides, so that it can saturate at both."""
    return bool(np.isfinite(phi(np.array([-np.inf, np.inf]))).all())


def _first_overflow(
    record: ExactRecord, n_layers: int, direction: Direction
) -> tuple[int, int] | None:
    """The first layer (from 1) with trials that are not finite, and how many of them."""
    for layer in direction.order(n_layers):
        sums = (second_moment(record, n_layers, side, layer) for side in direction.sides)
        trials = max(column.nonfinite for column in sums)
        if trials:
            return layer, trials
    return None


def _saturation(spec: Mapping[str, Any], pre: LayerStats) -> tuple[int, float] | None:
    """The last layer (from 1), or the one below an unbounded output, if its φ is bounded and
    its saturated share over a half; past a residual branch the signal goes by, and what
    saturates further below may yet grow."""
    n = depth(spec)
    for layer in range(n, max(n - 2, 0), -1):
        past = per_layer(spec["residual"], layer - 1) is not None
        if bounded(activation_of(spec, layer)) and not past:
            share = float(pre.saturated_fraction[layer - 1])
            return (layer, share) if share > 0.5 else None
    return None
