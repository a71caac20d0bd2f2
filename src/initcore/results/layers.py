# SPDX-License-Identifier: BSD-3-Clause
"""Statistics by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

# How far, as a share of the mean, a median lies from it to be worth a column: medians are known to
# 3 %, and of a wide network the two are one.
_APART = 0.1


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
        enters at the top; where that is 0, of the second moment alone): its mean, its variance
        (ddof 1), and its 5, 25, 50, 75 and 95 % quantiles (5, ..., L), known to 1/32. Trials in
        which the second moment is 0 or not finite have no logarithm: dead_trials, overflow_trials
        are their numbers.
    se
        the standard errors over trials in the same record: of means std/√T (ddof 1), of
        log_energy_var √((m₄ − (T − 3)/(T − 1) var²)/T), m₄ the fourth central moment, of the
        p-quantile half the distance of those at p ± √(p(1 − p)/T), NaN where that leaves (0, 1).
        NaN at one trial, for abs_max and counts; None where there were no trials.
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
        return text_table("", statistics_table(self), "")

    def _repr_html_(self) -> str:
        return html_table("", statistics_table(self), "")


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
        return text_table("", layer_table(self), "")

    def _repr_html_(self) -> str:
        return html_table("", layer_table(self), "")


def visible_shares(layers: ChainLayers, bounded: ArrayLike = True) -> dict[str, Array]:
    """Shares worth a look, by name: of zeros among x where there are any, else of saturated h in
    the layers whose φ is ``bounded``; and of units that are zero for the whole batch, unless a
    batch of one makes them the zeros. NaN where entries overflow."""
    pre, post = layers.pre, layers.post
    zeros, dead = post.zero_fraction, post.dead_fraction
    saturated = np.where(bounded, pre.saturated_fraction, np.nan)
    shares = {"x = 0": zeros} if np.any(zeros > 0) else {"saturated": saturated}
    if not np.array_equal(dead, zeros):
        shares["dead units"] = dead
    known = {
        name: np.where(pre.nonfinite_fraction > 0, np.nan, values)
        for name, values in shares.items()
    }
    return {name: values for name, values in known.items() if np.any(values > 0)}


def statistics_table(stats: LayerStats) -> list[list[str]]:
    """A heading and a row a chosen layer, of pre-activations or of activations."""
    shown = _chosen(stats)
    return _table(
        ("layer", list(map(str, shown))),
        (f"second moment{_error(stats)}", _second_moments(stats, shown)),
        *((name, _cells(getattr(stats, name), shown)) for name in ("mean", "variance")),
        *((name, _cells(values, shown, share)) for name, values in (
            ("zeros", stats.zero_fraction),
            ("saturated", stats.saturated_fraction),
            ("dead units", stats.dead_fraction),
        )),
        ("cosine", _cells(stats.cosine, shown, _three_decimals)),
    )  # fmt: skip


def layer_table(
    layers: ChainLayers,
    theory: ChainLayers | None = None,
    *,
    names: Sequence[str] | None = None,
    scale: float = 1.0,
    stream: bool = False,
    bounded: ArrayLike = True,
) -> list[list[str]]:
    """A heading and a row a chosen layer: its pre-activation h first, then its activation x.

    Of h the second moment, its prediction, its median over trials where that is another, and the
    cosine of two inputs; of x the second moment, the mean, and the shares worth a look. With
    ``stream`` the second moments of h and x change places. ``names`` stand in for the layers'
    numbers, and then no layer is left out; ``scale`` is the second moment of the inputs, which log
    energies are relative to; ``bounded`` says of which layers φ can saturate.
    """
    pre, post = layers.pre, layers.post
    h = "E[h²]", pre, theory.pre if theory else None
    x = "E[x²]", post, theory.post if theory else None
    judged, other = (x, h) if stream else (h, x)
    shown = _chosen(pre) if names is None else list(range(1, len(names) + 1))
    first = ["layer", *(map(str, shown) if names is None else names)]
    width = 0 if names is None else max(map(len, first))  # names stand to the left
    columns = [
        (first[0].ljust(width), [name.ljust(width) for name in first[1:]]),
        *_judged(*judged, shown, scale),
    ]
    if np.isfinite(pre.cosine).any():
        columns.append(("cosine", _cells(pre.cosine, shown, _three_decimals)))
    columns.append(_beside(*other, shown))
    columns.append(("mean x", _cells(post.mean, shown)))
    columns += [
        (name, _cells(values, shown, share))
        for name, values in visible_shares(layers, bounded).items()
    ]
    return _table(*columns)


def gradient_table(
    layers: ChainLayers, theory: ChainLayers | None, *, stream: bool = False
) -> list[list[str]]:
    """A heading and a row a chosen layer: second moments of the gradients by h, x and W, with
    predictions; by x first with ``stream``; no rows without a backward pass."""
    by_h, by_x, by_w = layers.grad_pre, layers.grad_post, layers.grad_weight
    if by_h is None or by_x is None or by_w is None:
        return []
    h = "E[(∂/∂h)²]", by_h, theory.grad_pre if theory else None
    x = "E[(∂/∂x)²]", by_x, theory.grad_post if theory else None
    judged, other = (x, h) if stream else (h, x)
    shown = _chosen(by_h)
    return _table(
        ("layer", list(map(str, shown))),
        *_judged(*judged, shown),
        _beside(*other, shown),
        (f"E[(∂/∂W)²]{_error(by_w)}", _second_moments(by_w, shown)),
        *_predicted(theory.grad_weight if theory else None, shown),
        *_median(by_w, shown),
    )


Column = tuple[str, list[str]]


def _table(*columns: Column) -> list[list[str]]:
    return [list(row) for row in zip(*([name, *cells] for name, cells in columns), strict=True)]


def _by_layer(values: Array) -> Array:
    """(L,); axes before the layers (trials of a user's arrays) are averaged over."""
    values = np.atleast_1d(values)
    means: Array = np.mean(values, axis=tuple(range(values.ndim - 1)))
    return means


def _chosen(stats: LayerStats) -> list[int]:
    return chosen_layers(_by_layer(stats.second_moment).size)


def _cells(values: Array, shown: Sequence[int], form: Callable[[float], str] = number) -> list[str]:
    by_layer = _by_layer(values)
    return [form(float(by_layer[layer - 1])) for layer in shown]


def _second_moments(stats: LayerStats, shown: Sequence[int]) -> list[str]:
    values = _by_layer(stats.second_moment)
    errors = np.zeros_like(values) if stats.se is None else _by_layer(stats.se.second_moment)
    # What is left where some entries or squares overflowed is no statistic of the layer.
    entries, trials = _by_layer(stats.nonfinite_fraction), _by_layer(stats.overflow_trials)
    overflowed = (entries > 0) | (trials > 0)
    return [
        "overflow" if overflowed[i] else measured(values[i], errors[i])
        for i in (layer - 1 for layer in shown)
    ]


def _judged(
    name: str,
    stats: LayerStats,
    theory: LayerStats | None,
    shown: Sequence[int],
    scale: float = 1.0,
) -> list[Column]:
    """A second moment with its standard error, its prediction and the median network's."""
    return [
        (f"{name}{_error(stats)}", _second_moments(stats, shown)),
        *_predicted(theory, shown),
        *_median(stats, shown, scale),
    ]


def _beside(name: str, stats: LayerStats, _: LayerStats | None, shown: Sequence[int]) -> Column:
    """The other second moment, alone."""
    return name, _second_moments(replace(stats, se=None), shown)


def _error(stats: LayerStats) -> str:
    return "" if stats.se is None else " ± s.e."


def _predicted(theory: LayerStats | None, shown: Sequence[int]) -> list[Column]:
    return [("theory", _cells(theory.second_moment, shown))] if theory else []


def _median(stats: LayerStats, shown: Sequence[int], scale: float = 1.0) -> list[Column]:
    """The second moment of the median network, where it is not the mean."""
    medians = scale * np.exp(_by_layer(stats.log_energy_quantiles[QUANTILES.index(0.5)]))
    means = _by_layer(stats.second_moment)
    apart = np.abs(medians - means) > _APART * means
    if not any(apart[layer - 1] for layer in shown):
        return []
    return [("median", _cells(medians, shown, lambda value: number(value, 2)))]


def _three_decimals(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
