# SPDX-License-Identifier: BSD-3-Clause
"""Statistics by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from initcore.results.records import Array, Record, frozen
from initcore.results.text import chosen_layers, html_table, measured, number, share, text_table

FIELDS = (
    "mean",
    "second_moment",
    "variance",
    "kurtosis",
    "batch_variance",
    "abs_max",
    "zero_fraction",
    "saturated_fraction",
    "nonfinite_fraction",
    "float16_overflow_fraction",
    "dead_fraction",
    "cosine",
    "log_energy_mean",
    "log_energy_var",
    "dead_trials",
    "overflow_trials",
)
# What one trial has, and what of that is averaged over trials.
_OF_A_TRIAL = FIELDS[: FIELDS.index("log_energy_mean")]
AVERAGED = tuple(name for name in _OF_A_TRIAL if name != "abs_max")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

# Where a state (ic_moments of csrc/initcore.h) has what the fields are made of; and what each field
# of a trial is or, where it is a share, what of. The last are for those that nothing is known of.
_COUNT, _MEAN, _M2, _ABS_MAX, _ZEROS, _SATURATED, _NONFINITE = range(7)
_M4, _WITHIN, _DEAD, _OVERFLOWS, _COSINE = range(8, 13)
_SOURCES = np.array([
    _MEAN, _M2, _M2, _M4, _WITHIN, _ABS_MAX, _ZEROS, _SATURATED, _NONFINITE, _OVERFLOWS, _DEAD,
    _COSINE, *[_COUNT] * len(QUANTILES),
])  # fmt: skip
_SATURATED_FRACTION = FIELDS.index("saturated_fraction")

# Fourth powers of deviations whose sum is smaller have lost digits in float64, or all.
_LEAST_FOURTH_POWERS = 1e-290


_UNKNOWN = frozen(np.array(np.nan))


def _unknown() -> Array:
    return _UNKNOWN


@dataclass(frozen=True, eq=False)
class LayerStats(Record):
    """Statistics by layer: float64 arrays (..., L), read-only; index 0 is the first layer.

    Each is a statistic over a trial's batch and units (ddof 0), and in a Monte Carlo result its
    mean over trials. A field that is not known is NaN throughout.

    mean, second_moment, variance
        of all entries: E[x], E[x²], E[x²] − E[x]² (computed from centred squares).
    kurtosis
        of all entries: E[(x − E[x])⁴] / variance², 3 of a normal; NaN where all are equal or their
        fourth powers leave the range of float64.
    batch_variance
        the variance over the batch of each unit, mean over units.
    abs_max
        the largest |x|, over trials the largest.
    zero_fraction, saturated_fraction, nonfinite_fraction
        shares of entries, from 0 to 1. Saturated, of pre-activations only: |φ′(h)| < 0.05 max|φ′|;
        NaN where φ′ is unbounded.
    float16_overflow_fraction
        the share of entries that float16 rounds to ±∞: |x| ≥ 65520.
    dead_fraction
        the share of units that are zero for the whole batch.
    cosine
        the mean cosine of two different rows of the batch, (‖Σ_b x̂_b‖² − B) / (B(B − 1)) with
        x̂ = x/‖x‖ and B rows that are not zero; NaN below two of them.
    log_energy_mean, log_energy_var, log_energy_quantiles
        over trials, of ln(second moment / that of the input or, of gradients, of the gradient that
        enters at the top): its mean, its variance (ddof 1), and its 5, 25, 50, 75 and 95 %
        quantiles (5, ..., L), known to 1/32. Trials in which the second moment is 0 or not finite
        have no logarithm: dead_trials, overflow_trials are their numbers.
    se
        the standard errors over trials (ddof 1) in the same record, NaN at one trial, for
        abs_max, log_energy_var, quantiles and counts; None where there were no trials.
    """

    mean: Array
    second_moment: Array
    variance: Array
    kurtosis: Array = field(default_factory=_unknown)
    batch_variance: Array = field(default_factory=_unknown)
    abs_max: Array = field(default_factory=_unknown)
    zero_fraction: Array = field(default_factory=_unknown)
    saturated_fraction: Array = field(default_factory=_unknown)
    nonfinite_fraction: Array = field(default_factory=_unknown)
    float16_overflow_fraction: Array = field(default_factory=_unknown)
    dead_fraction: Array = field(default_factory=_unknown)
    cosine: Array = field(default_factory=_unknown)
    log_energy_mean: Array = field(default_factory=_unknown)
    log_energy_var: Array = field(default_factory=_unknown)
    dead_trials: Array = field(default_factory=_unknown)
    overflow_trials: Array = field(default_factory=_unknown)
    log_energy_quantiles: Array = field(default_factory=_unknown)
    se: LayerStats | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.second_moment)
        unknown = np.full((len(QUANTILES), *shape), np.nan)
        unknown.setflags(write=False)
        for name in (*FIELDS, "log_energy_quantiles"):
            nothing = unknown if name == "log_energy_quantiles" else unknown[0, ...]
            values = getattr(self, name)
            if values is not _UNKNOWN:
                values = np.asarray(values, dtype=np.float64)
                if values.shape != nothing.shape:
                    values = np.broadcast_to(values, nothing.shape)
                values = frozen(values)
            object.__setattr__(self, name, nothing if values is _UNKNOWN else values)

    @classmethod
    def from_states(cls, states: ArrayLike, *, activation: bool = False) -> Self:
        """Statistics from the running states of the moments kernel, float64 (..., MOMENTS); fields
        (...).

        A state is what ``ic_moments`` of csrc/initcore.h is. ``activation``: they are of
        activations or gradients, which are never saturated.
        """
        table = _fields(np.asarray(states, np.float64))
        if activation:
            table[_SATURATED_FRACTION] = np.nan
        return cls._of(table)

    @classmethod
    def _of(cls, table: Array) -> Self:
        """Of a table of ``_fields``, which nobody else has."""
        table.setflags(write=False)
        stats = object.__new__(cls)  # every array is read-only already
        known = len(_OF_A_TRIAL)
        rows = table if table.ndim > 1 else [table[i, ...] for i in range(len(table))]
        values = vars(stats)
        for name, row in zip(_OF_A_TRIAL, rows, strict=False):
            values[name] = row
        for name in FIELDS[known:]:
            values[name] = rows[known]
        values["log_energy_quantiles"] = table[known:]
        values["se"] = None
        return stats

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        se = None if data["se"] is None else cls.from_dict(data["se"])
        names = (*FIELDS, "log_energy_quantiles")
        return cls(**{name: frozen(data[name]) for name in names}, se=se)

    def __str__(self) -> str:
        return text_table("", layer_rows(self, None), "")

    def _repr_html_(self) -> str:
        return html_table("", layer_rows(self, None), "")


def _fields(states: Array) -> Array:
    """The fields of a trial, then NaN, (len(_SOURCES), ...), of states (..., MOMENTS), as if all
    were of pre-activations."""
    state = states.reshape(-1, states.shape[-1]).T
    count, m4 = state[_COUNT], state[_M4]
    table = state.take(_SOURCES, axis=0)
    mean, second_moment, variance, kurtosis, _, abs_max = table[:6]
    # Overflowed entries (inf − inf) and empty arrays (0 / 0) become NaN, and are counted.
    with np.errstate(all="ignore"):
        table[1 : FIELDS.index("cosine")] /= count
        second_moment += mean * mean
        np.divide(m4, state[_M2], out=kurtosis)
        kurtosis /= variance
    table[len(_OF_A_TRIAL) :] = np.nan
    abs_max[:] = state[_ABS_MAX]
    kurtosis[~((m4 >= _LEAST_FOURTH_POWERS) & (m4 < np.inf))] = np.nan
    if not count.all():
        table[:, count == 0] = np.nan
    if not abs_max.all():  # of nothing but NaN there is no largest
        abs_max[(abs_max == 0) & (state[_NONFINITE] == count)] = np.nan
    return table.reshape(len(table), *states.shape[:-1])


@dataclass(frozen=True, eq=False)
class ChainLayers(Record):
    """Statistics of a chain's pre-activations h and activations x = φ(h), by layer.

    grad_pre, grad_post, grad_weight
        of the gradients by h, x and W where there is a backward pass, else None.
    """

    pre: LayerStats
    post: LayerStats
    grad_pre: LayerStats | None = None
    grad_post: LayerStats | None = None
    grad_weight: LayerStats | None = None

    @classmethod
    def from_states(cls, states: Array) -> Self:
        """Of the states of a forward pass, float64 (..., L, 2, MOMENTS): fields (..., L)."""
        sides = states.reshape(-1, 2, states.shape[-1]).swapaxes(0, 1)
        table = _fields(sides)
        table = table.reshape(len(table), 2, *states.shape[:-2])
        table[_SATURATED_FRACTION, 1] = np.nan
        return cls(LayerStats._of(table[:, 0]), LayerStats._of(table[:, 1]))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        gradients = (data[name] for name in ("grad_pre", "grad_post", "grad_weight"))
        return cls(
            LayerStats.from_dict(data["pre"]),
            LayerStats.from_dict(data["post"]),
            *(None if stats is None else LayerStats.from_dict(stats) for stats in gradients),
        )

    def __str__(self) -> str:
        return text_table("", layer_rows(self, None), "")

    def _repr_html_(self) -> str:
        return html_table("", layer_rows(self, None), "")


def visible_shares(layers: ChainLayers) -> dict[str, Array]:
    """Shares worth a look, by name: of zeros among x where there are any, else of saturated h; and
    of units that are zero for the whole batch, unless a batch of one makes them the zeros. NaN
    where entries overflow."""
    pre, post = layers.pre, layers.post
    zeros, dead = post.zero_fraction, post.dead_fraction
    shares = {"x = 0": zeros} if np.any(zeros > 0) else {"saturated": pre.saturated_fraction}
    if not np.array_equal(dead, zeros):
        shares["dead units"] = dead
    return {
        name: np.where(pre.nonfinite_fraction > 0, np.nan, values)
        for name, values in shares.items()
        if np.any(values > 0)
    }


def layer_rows(layers: LayerStats | ChainLayers, theory: ChainLayers | None) -> list[list[str]]:
    """A heading and rows of the chosen layers: the pre-activation h first, then the activation x,
    each with the second moment of the gradient by it where there is a backward pass, else with what
    it says of dead units and of inputs that become alike.

    A LayerStats, which may be of either, has one row a layer. Axes before the layers (trials of a
    user's arrays) are averaged over.
    """
    # symbol: statistics, prediction, gradient, its prediction
    sides: dict[str, tuple[LayerStats, LayerStats | None, LayerStats | None, LayerStats | None]]
    if isinstance(layers, LayerStats):
        first, backward, sides = layers, False, {"": (layers, None, None, None)}
    else:
        first, backward = layers.pre, layers.grad_pre is not None
        predicted = theory or ChainLayers(first, first)
        sides = {
            "h": (first, predicted.pre, layers.grad_pre, predicted.grad_pre),
            "x": (layers.post, predicted.post, layers.grad_post, predicted.grad_post),
        }
    error = "" if first.se is None else " ± s.e."
    heading = ["layer", "", f"second moment{error}", "predicted"]
    heading += ["mean", "variance", "zeros", "saturated"]
    heading += [f"gradient{error}", "predicted"] if backward else ["dead", "cosine"]

    def at(values: Array, layer: int) -> float:
        return float(np.mean(np.atleast_1d(values)[..., layer - 1]))

    def second_moment(stats: LayerStats, layer: int) -> str:
        se = math.nan if stats.se is None else at(stats.se.second_moment, layer)
        return measured(at(stats.second_moment, layer), se)

    rows = [heading]
    for layer in chosen_layers(np.atleast_1d(first.mean).shape[-1]):
        for symbol, (stats, expected, gradient, expected_gradient) in sides.items():
            row = [
                "" if symbol == "x" else str(layer),
                symbol,
                second_moment(stats, layer),
                number(at(expected.second_moment, layer)) if expected else "-",
                number(at(stats.mean, layer)),
                number(at(stats.variance, layer)),
                share(at(stats.zero_fraction, layer)),
                share(at(stats.saturated_fraction, layer)),
            ]
            if gradient is None:
                row.append(share(at(stats.dead_fraction, layer)))
                cosine = at(stats.cosine, layer)
                row.append("-" if math.isnan(cosine) else f"{cosine:.3f}")
            else:
                row.append(second_moment(gradient, layer))
                known = expected_gradient
                row.append(number(at(known.second_moment, layer)) if known else "-")
            rows.append(row)
    if theory is None:
        shown = [i for i, name in enumerate(heading) if name != "predicted"]
        rows = [[row[i] for i in shown] for row in rows]
    return rows
