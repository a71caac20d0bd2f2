# SPDX-License-Identifier: BSD-3-Clause
"""What is summed over the trials of a chain, where it is kept, and which of it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from initcore.results.arithmetic import portable_log
from initcore.results.chain_spec import depth
from initcore.results.exact import Accumulator, ExactRecord
from initcore.results.exact_sum import ExactSum
from initcore.results.layers import AVERAGED, ChainLayers, LayerStats
from initcore.results.records import Array

# The sides of a layer, in the order of the fields of ChainLayers.
PRE, POST, GRAD_PRE, GRAD_POST, GRAD_WEIGHT = range(5)
_FIELDS = ("pre", "post", "grad_pre", "grad_post", "grad_weight")

# What a record sums up of every side but the last, and of that.
_SUMMED = (*AVERAGED, "log_energy")
_SUMMED_BY_WEIGHT = ("second_moment", "log_energy")


def middle(n_layers: int) -> int:
    """The layer (from 1) at which the fit of a factor starts.

    If a log energy is a random walk, its end-point slope is the generalised-least-squares fit; the
    later half is used so that a chain that settles is judged after it has settled.
    """
    return n_layers // 2 if n_layers >= 4 else 1


def column_of(n_layers: int, side: int, name: str, layer: int) -> int:
    """Where the record of a chain keeps a statistic; ``layer`` counts from 1.

    Of a weight's gradient it keeps the second moment and the log energy alone.
    """
    names = _SUMMED_BY_WEIGHT if side == GRAD_WEIGHT else _SUMMED
    return (side * len(_SUMMED) + names.index(name)) * n_layers + layer - 1


def second_moment(record: ExactRecord, n_layers: int, side: int, layer: int) -> ExactSum:
    """The sums of a layer's second moment; ``layer`` counts from 1."""
    return record.columns[column_of(n_layers, side, "second_moment", layer)]


def statistics_of(layers: ChainLayers, side: int) -> LayerStats:
    """Those of one side, which there are."""
    found: LayerStats = getattr(layers, _FIELDS[side])
    return found


def record_sizes(n_layers: int, backward: bool) -> tuple[int, int, int]:
    """The numbers of columns, of maxima and of histograms in the record of a chain."""
    sides = 4 if backward else 2
    columns = sides * len(_SUMMED) + (len(_SUMMED_BY_WEIGHT) if backward else 0)
    return columns * n_layers, sides * n_layers, (sides + backward) * n_layers


class Direction(NamedTuple):
    """Which way a signal travels: the side that is judged, and all that may overflow with it."""

    down: bool
    side: int
    sides: tuple[int, ...]
    signal: str
    quantity: str

    def order(self, n_layers: int) -> list[int]:
        """The layers (from 1) as they are passed."""
        layers = list(range(1, n_layers + 1))
        return layers[::-1] if self.down else layers


_FORWARD, _BACKWARD = (PRE, POST), (GRAD_PRE, GRAD_POST, GRAD_WEIGHT)
_PLAIN = (
    Direction(False, PRE, _FORWARD, "h", "E[h²]"),
    Direction(True, GRAD_PRE, _BACKWARD, "the gradient by h", "E[(∂/∂h)²]"),
)
# Behind a norm E[h²] is the weights' variance whatever reaches it, and what a residual branch does
# not carry goes by on the stream: there x tells whether the signal lives.
_STREAM = (
    Direction(False, POST, _FORWARD, "x", "E[x²]"),
    Direction(True, GRAD_POST, _BACKWARD, "the gradient by x", "E[(∂/∂x)²]"),
)


def directions(backward: bool, stream: bool) -> tuple[Direction, ...]:
    return (_STREAM if stream else _PLAIN)[: 1 + backward]


def has_stream(spec: Mapping[str, Any]) -> bool:
    """Whether x and not h is judged: where a layer has a norm or a residual branch."""
    return spec["norm"] is not None or spec["residual"] is not None


def settled(spec: Mapping[str, Any], record: ExactRecord, rtol: float) -> bool:
    """Whether the standard error of the last second moment that is judged, and of the gradient's,
    is at most ``rtol`` of its mean."""
    n = depth(spec)
    for direction in directions(spec["backward"], has_stream(spec)):
        one = second_moment(record, n, direction.side, direction.order(n)[-1])
        if not one.standard_error() <= rtol * one.mean():
            return False
    return True


def crossed(n_layers: int, backward: bool, stream: bool) -> list[tuple[int, int]]:
    """Of each direction, the columns whose products the record of a chain keeps: the second moments
    between which a factor is fitted."""
    pairs = []
    for direction in directions(backward, stream):
        order = direction.order(n_layers)
        first, last = (
            column_of(n_layers, direction.side, "second_moment", layer)
            for layer in (order[middle(n_layers) - 1], order[-1])
        )
        pairs.append((first, last))
    return pairs


class ChainAccumulator(Accumulator):
    """Takes the states of a chain's trials in; ``stream`` is what ``has_stream`` says of it."""

    def __init__(self, n_layers: int, *, backward: bool = False, stream: bool = False) -> None:
        pairs = crossed(n_layers, backward, stream)
        n_columns, n_maxima, n_histograms = record_sizes(n_layers, backward)
        super().__init__(n_columns, n_maxima, *pairs, n_histograms=n_histograms)

    def add_states(
        self, states: Array, inputs: Array, gradient_states: Array | None = None
    ) -> None:
        """Add trials: the chain kernel's states, (trials, L, 2, MOMENTS), of the inputs (trials,
        MOMENTS), and of the gradients by x, h and W, (trials, L, 3, MOMENTS)."""
        sides = [
            LayerStats.from_states(states[:, :, 0]),
            LayerStats.from_states(states[:, :, 1], activation=True),
        ]
        moments = [side.second_moment for side in sides]
        entered = [LayerStats.from_states(inputs).second_moment] * 2
        if gradient_states is not None:
            by_x, by_h, by_w = (
                LayerStats.from_states(gradient_states[:, :, i], activation=True) for i in range(3)
            )
            sides += [by_h, by_x]
            moments += [side.second_moment for side in (by_h, by_x, by_w)]
            entered += [by_x.second_moment[:, -1]] * 3
        logs = _log_ratio(moments, entered)
        columns = []
        for i, side in enumerate(sides):
            columns += [*(getattr(side, name) for name in AVERAGED), logs[i]]
        if gradient_states is not None:
            columns += [moments[GRAD_WEIGHT], logs[GRAD_WEIGHT]]
        table = np.stack(columns, axis=1)
        maxima = np.stack([side.abs_max for side in sides], axis=1)
        self.add(table.reshape(len(states), -1), maxima.reshape(len(states), -1))
        self.count(np.concatenate(logs, axis=1))


def _log_ratio(moments: Sequence[Array], energies: Sequence[Array]) -> Array:
    """ln(second moment / energy) of (trials, L) and (trials,), side by side; where no energy
    entered, of the second moment alone; −∞ where nothing is left."""
    entered = np.where(np.equal(energies, 0), 1.0, energies)
    both = np.concatenate([moments, np.expand_dims(entered, -1)], axis=-1)
    logs = portable_log(both)
    with np.errstate(invalid="ignore"):
        ratios: Array = logs[..., :-1] - logs[..., -1:]
    ratios[both[..., :-1] == 0] = -np.inf
    return ratios
