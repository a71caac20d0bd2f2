# SPDX-License-Identifier: BSD-3-Clause
"""Results: records of what was measured, their exact merging, JSON and text.

Records are frozen and hold read-only NumPy arrays. Sums over trials are exact integers, so that
merging is associative to the last bit, in memory and after ``save`` and ``load``.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initcore import _core
from initcore.activations import Activation, activation
from initcore.initializers import gain, initializer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

FIELDS = (
    "mean",
    "second_moment",
    "variance",
    "abs_max",
    "zero_fraction",
    "saturated_fraction",
    "nonfinite_fraction",
)
# Every field but abs_max is a mean over trials; abs_max is the largest.
_AVERAGED = tuple(name for name in FIELDS if name != "abs_max")
_PRE, _POST = 0, 1


# ---------------------------------------------------------------------------------------------
# Records


def _frozen(values: ArrayLike, dtype: Any = np.float64) -> NDArray[Any]:
    """A read-only copy in C order."""
    array = np.array(values, dtype=dtype, order="C")
    array.setflags(write=False)
    return array


def _same(a: object, b: object) -> bool:
    """Equality by bits, where every NaN equals every NaN."""
    if isinstance(a, Record):
        return a.equals(b)
    if isinstance(a, float | np.ndarray) and isinstance(b, float | np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if x.dtype.kind == "f":
            x, y = (np.where(np.isnan(v), np.nan, v).view(np.int64) for v in (x, y))
        return bool(np.array_equal(x, y))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _plain(value: object) -> Any:
    """A value as strict JSON has it: lists and dicts, non-finite numbers as strings."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True, eq=False)
class Record:
    """A frozen dataclass that compares by ``equals``, pickles, and knows its ``to_dict``."""

    def equals(self, other: object) -> bool:
        """True when ``other`` is of the same type and every field has the same bits (NaN = NaN)."""
        return type(self) is type(other) and all(
            _same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as strict JSON has them: nested lists, non-finite numbers as strings."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a plain unpickling would leave the arrays writable.
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


def _unknown() -> Array:
    return np.array(np.nan)


@dataclass(frozen=True, eq=False)
class LayerStats(Record):
    """Statistics by layer: float64 arrays (..., L), read-only; index 0 is the first layer.

    Each is a statistic over a trial's batch and units (ddof 0), and in a Monte Carlo result its
    mean over trials. A field that is not known is NaN throughout.

    mean, second_moment, variance
        of all entries: E[x], E[x²], E[x²] − E[x]² (computed from centred squares).
    abs_max
        the largest |x|, over trials the largest.
    zero_fraction, saturated_fraction, nonfinite_fraction
        shares of entries, from 0 to 1. Saturated, of pre-activations only: |φ′(h)| < 0.05 max|φ′|;
        NaN where φ′ is unbounded.
    se
        the standard errors over trials (ddof 1) in the same record, NaN at one trial and for
        abs_max; None where there were no trials.
    """

    mean: Array
    second_moment: Array
    variance: Array
    abs_max: Array = field(default_factory=_unknown)
    zero_fraction: Array = field(default_factory=_unknown)
    saturated_fraction: Array = field(default_factory=_unknown)
    nonfinite_fraction: Array = field(default_factory=_unknown)
    se: LayerStats | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.second_moment)
        for name in FIELDS:
            values = np.broadcast_to(np.asarray(getattr(self, name), dtype=np.float64), shape)
            object.__setattr__(self, name, _frozen(values))

    @classmethod
    def from_states(cls, states: ArrayLike, *, activation: bool = False) -> Self:
        """Statistics from the running states of the moments kernel, float64 (..., 7); fields (...).

        A state is count, mean, Σ(x − mean)², largest |x|, and the numbers of zero, saturated and
        non-finite entries. ``activation``: they are of activations, which are never saturated.
        """
        columns = np.moveaxis(np.asarray(states, np.float64), -1, 0)
        count, mean, m2, abs_max, zeros, saturated, nonfinite = columns
        # Overflowed entries (inf − inf) and empty arrays (0 / 0) become NaN, and are counted.
        with np.errstate(all="ignore"):
            variance = m2 / count
            return cls(
                mean=np.where(count > 0, mean, np.nan),
                second_moment=variance + mean * mean,
                variance=variance,
                abs_max=abs_max,
                zero_fraction=zeros / count,
                saturated_fraction=np.full_like(count, np.nan) if activation else saturated / count,
                nonfinite_fraction=nonfinite / count,
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        se = None if data["se"] is None else cls.from_dict(data["se"])
        return cls(**{name: _frozen(data[name]) for name in FIELDS}, se=se)

    def __str__(self) -> str:
        return _text("", _layer_rows(self, None, None), "")

    def _repr_html_(self) -> str:
        return _html("", _layer_rows(self, None, None), "")


@dataclass(frozen=True, eq=False)
class ChainLayers(Record):
    """Statistics of a chain's pre-activations h and activations x = φ(h), by layer."""

    pre: LayerStats
    post: LayerStats

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        return cls(LayerStats.from_dict(data["pre"]), LayerStats.from_dict(data["post"]))

    def __str__(self) -> str:
        return _text("", _layer_rows(self.pre, self.post, None), "")

    def _repr_html_(self) -> str:
        return _html("", _layer_rows(self.pre, self.post, None), "")


# ---------------------------------------------------------------------------------------------
# Exact sums over trials


class ExactSum(NamedTuple):
    """What is kept of a float64 statistic over trials: exact, so merging is integer addition.

    ``total`` is Σx in units of 2^-1074 and ``total_sq`` Σx² in units of 2^-2148, both over the
    ``finite`` trials; the ``nonfinite`` ones are counted and left out.
    """

    finite: int
    nonfinite: int
    total: int
    total_sq: int

    def mean(self) -> float:
        """Σx / n, correctly rounded; NaN where no trial was finite."""
        return self.total / (self.finite << 1074) if self.finite else math.nan

    def standard_error(self) -> float:
        """√(Σ(x − mean)² / (n − 1) / n), correctly rounded; NaN below two finite trials."""
        n = self.finite
        if n < 2:
            return math.nan
        return _sqrt(n * self.total_sq - self.total**2, n * n * (n - 1) << 2148)


def _sqrt(numerator: int, denominator: int) -> float:
    """√(numerator / denominator), correctly rounded."""
    # The quotient gets at least 130 bits, its root 65; a last bit stands for everything after them,
    # so that the division below, which rounds correctly, cannot take a near tie for a tie.
    shift = max(0, (denominator.bit_length() - numerator.bit_length()) // 2 + 66)
    quotient, rest = divmod(numerator << 2 * shift, denominator)
    root = math.isqrt(quotient)
    inexact = rest != 0 or root * root != quotient
    return (2 * root + inexact) / (2 << shift)


def _root(numerator: int, denominator: int, degree: int) -> float:
    """(numerator / denominator)^(1/degree); inf where that is too large for a float."""
    power = numerator.bit_length() - denominator.bit_length()
    ratio = (numerator << max(-power, 0)) / (denominator << max(power, 0))
    with np.errstate(over="ignore"):
        return float(ratio ** (1 / degree) * np.exp2(power / degree))


def _units(x: float) -> int:
    """A finite float in units of 2^-1074."""
    numerator, denominator = x.as_integer_ratio()
    return numerator << (1075 - denominator.bit_length())


def _to_hex(value: int, unit: int) -> str:
    """value · 2^unit as a hexadecimal number, ``-0x1a2bp-12``, as long as it needs to be."""
    twos = (value & -value).bit_length() - 1 if value else -unit
    return f"{value >> twos:#x}p{twos + unit}"


def _from_hex(text: str, unit: int) -> int:
    """The inverse of ``_to_hex``."""
    mantissa, _, exponent = text.partition("p")
    return int(mantissa, 16) << (int(exponent) - unit)


@dataclass(frozen=True, eq=False)
class ExactRecord(Record):
    """All that is kept of the trials of an experiment.

    columns
        an ``ExactSum`` for each averaged statistic.
    maxima
        float64, the largest values of the others.
    cross
        (count, Σxy in units of 2^-2148) of one pair of statistics over the trials where both are
        finite: what the standard error of their ratio needs.
    """

    columns: tuple[ExactSum, ...]
    maxima: Array
    cross: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "maxima", _frozen(self.maxima))

    def __add__(self, other: ExactRecord) -> ExactRecord:
        """The record of both's trials; exact, hence associative and commutative bit for bit."""
        return ExactRecord(
            tuple(
                ExactSum._make(map(operator.add, a, b))
                for a, b in zip(self.columns, other.columns, strict=True)
            ),
            np.fmax(self.maxima, other.maxima),
            (self.cross[0] + other.cross[0], self.cross[1] + other.cross[1]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON; the sums as hexadecimal numbers in units of 1."""
        return {
            "columns": [
                [c.finite, c.nonfinite, _to_hex(c.total, -1074), _to_hex(c.total_sq, -2148)]
                for c in self.columns
            ],
            "maxima": _plain(self.maxima),
            "cross": [self.cross[0], _to_hex(self.cross[1], -2148)],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        return cls(
            tuple(
                ExactSum(finite, nonfinite, _from_hex(total, -1074), _from_hex(total_sq, -2148))
                for finite, nonfinite, total, total_sq in data["columns"]
            ),
            _frozen(data["maxima"]),
            (data["cross"][0], _from_hex(data["cross"][1], -2148)),
        )


class Accumulator:
    """Takes trials in, a table at a time, and gives their ``ExactRecord``. For one thread."""

    def __init__(self, n_columns: int, n_maxima: int, pair: tuple[int, int]) -> None:
        """``pair`` are the two columns whose products are summed."""
        self._sums = np.zeros((n_columns, _core.EXACT_WORDS), np.int64)
        self._maxima = np.full(n_maxima, np.nan)
        self._pair = pair
        self._both, self._products = 0, 0

    def add(self, table: Array, maxima: Array) -> None:
        """Add trials: float64 (trials, columns) to average, (trials, maxima) to maximise."""
        _core.default().exact_add(self._sums, np.ascontiguousarray(table))
        self._maxima = np.fmax(self._maxima, np.fmax.reduce(maxima, initial=np.nan))
        x, y = (table[:, column] for column in self._pair)
        both = np.isfinite(x) & np.isfinite(y)
        self._both += int(both.sum())
        # Squares of small second moments underflow in float64: integers do not.
        for a, b in zip(x[both].tolist(), y[both].tolist(), strict=True):
            self._products += _units(a) * _units(b)

    def record(self) -> ExactRecord:
        """The record of all trials so far."""
        sums = tuple(ExactSum(*values) for values in _core.default().exact_values(self._sums))
        return ExactRecord(sums, self._maxima, (self._both, self._products))


# ---------------------------------------------------------------------------------------------
# Propagation through a chain


def _middle(n_layers: int) -> int:
    """The layer (from 1) at which the fit of a factor starts.

    If a log energy is a random walk, its end-point slope is the generalised-least-squares fit; the
    later half is used so that a chain that settles is judged after it has settled.
    """
    return n_layers // 2 if n_layers >= 4 else 1


def _column(n_layers: int, side: int, name: str, layer: int) -> int:
    """Where the record of a chain keeps a statistic; ``layer`` counts from 1."""
    return (side * len(_AVERAGED) + _AVERAGED.index(name)) * n_layers + layer - 1


class ChainAccumulator(Accumulator):
    """Takes the states of a chain's trials in."""

    def __init__(self, n_layers: int) -> None:
        first, last = (
            _column(n_layers, _PRE, "second_moment", layer)
            for layer in (_middle(n_layers), n_layers)
        )
        super().__init__(2 * len(_AVERAGED) * n_layers, 2 * n_layers, (first, last))

    def add_states(self, states: Array) -> None:
        """Add trials: the chain kernel's states, (trials, L, 2, 7)."""
        sides = (
            LayerStats.from_states(states[:, :, _PRE]),
            LayerStats.from_states(states[:, :, _POST], activation=True),
        )
        table = np.stack([getattr(side, name) for side in sides for name in _AVERAGED], axis=1)
        maxima = np.stack([side.abs_max for side in sides], axis=1)
        self.add(table.reshape(len(states), -1), maxima.reshape(len(states), -1))


class _Fit(NamedTuple):
    """The factor a layer between two layers (from 1), and its standard error."""

    first: int
    last: int
    factor: float
    se: float

    def __str__(self) -> str:
        return f"×{_plus_minus(self.factor, self.se)} a layer"


@dataclass(frozen=True, eq=False)
class Propagation(Record):
    """What random chains did to standard normal inputs, over trials.

    spec
        what was run, as strings and numbers: widths (L + 1 integers), activation, init and bias
        (one, or a list of L), batch, dtype. ``propagate(**spec, seed=seed, trials=...)`` runs it
        again.
    seed, method
        the seed of all streams; how trials were drawn ("dense": every weight).
    trials
        the trials it holds: sorted ranges that neither overlap nor touch.
    pre, post
        LayerStats of pre-activations and activations, arrays (L,), means over trials with ``.se``.
    theory
        the same statistics in the limit of infinite width, where they are known.
    verdict, outcome, factor, factor_se
        one sentence, its first word, and the factor a layer of the pre-activation's second moment.

    ``a + b`` merges disjoint trials of one specification, seed and method, exactly.
    """

    FORMAT: ClassVar[str] = "initcore.propagation"
    VERSION: ClassVar[int] = 1

    spec: dict[str, Any]
    seed: int
    trials: tuple[range, ...]
    record: ExactRecord = field(repr=False)
    theory: ChainLayers = field(repr=False)
    method: str = "dense"

    @property
    def n_layers(self) -> int:
        """The number of layers, L."""
        return len(self.spec["widths"]) - 1

    @property
    def n_trials(self) -> int:
        """The number of trials."""
        return sum(map(len, self.trials))

    @cached_property
    def pre(self) -> LayerStats:
        """Statistics of the pre-activations h."""
        return self._side(_PRE)

    @cached_property
    def post(self) -> LayerStats:
        """Statistics of the activations x = φ(h)."""
        return self._side(_POST)

    def _side(self, side: int) -> LayerStats:
        n, columns = self.n_layers, self.record.columns
        means: dict[str, Any] = {}
        errors: dict[str, Any] = {}
        for name in _AVERAGED:
            first = _column(n, side, name, 1)
            sums = columns[first : first + n]
            means[name] = np.array([column.mean() for column in sums])
            errors[name] = np.array([column.standard_error() for column in sums])
        largest = self.record.maxima[side * n : (side + 1) * n]
        return LayerStats(**means, abs_max=largest, se=LayerStats(**errors))

    def _second_moment(self, layer: int, side: int = _PRE) -> ExactSum:
        return self.record.columns[_column(self.n_layers, side, "second_moment", layer)]

    # Merging and drawing again

    def __add__(self, other: object) -> Propagation:
        """Both's trials in one result, the same bits in whatever order results are added.

        ValueError, naming what differs, for another specification, seed or method, and for trials
        that both hold.
        """
        if not isinstance(other, Propagation):
            return NotImplemented
        mine, others = ({**r.spec, "seed": r.seed, "method": r.method} for r in (self, other))
        for name in mine | others:
            if mine.get(name) != others.get(name):
                raise ValueError(
                    f"results with different {name} cannot be added: "
                    f"{mine.get(name)!r} and {others.get(name)!r}"
                )
        trials = merge_trials(self.trials, other.trials)
        return Propagation(
            self.spec, self.seed, trials, self.record + other.record, self.theory, self.method
        )

    def weights(self, trial: int, layer: int) -> NDArray[Any]:
        """The weight (n_out, n_in) that was drawn in a trial for a layer; layers count from 0.

        It equals ``initializer(shape, seed=, name=f"layers.{layer}.weight", trial=trial)``.
        ValueError for a trial or layer that this result does not hold.
        """
        trial, layer = operator.index(trial), operator.index(layer)
        if not any(trial in held for held in self.trials):
            raise ValueError(f"trial must be one of {_trials_text(self.trials)}; got {trial}")
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"layer must be from 0 to {self.n_layers - 1}; got {layer}")
        n_in, n_out = self.spec["widths"][layer : layer + 2]
        init = initializer(_per_layer(self.spec["init"], layer))
        name = f"layers.{layer}.weight"
        drawn: NDArray[Any] = init(
            (n_out, n_in), seed=self.seed, name=name, trial=trial, dtype=self.spec["dtype"]
        )
        return drawn

    # The verdict

    @cached_property
    def _fit(self) -> _Fit | None:
        """The factor a layer of E[h²] over the later half of the layers that can be judged.

        Those end where a trial overflows or the mean sinks to where the dtype loses its digits. The
        standard error is that of a ratio of means (delta method).
        """
        tiny = float(np.finfo(self.spec["dtype"]).tiny)
        floor = max(tiny * tiny, np.finfo(np.float64).tiny)
        last = 0
        for layer in range(1, self.n_layers + 1):
            column = self._second_moment(layer)
            if column.nonfinite or not column.mean() >= floor:
                break
            last = layer
        if last < 2:
            return None
        first = _middle(last)
        a, b = self._second_moment(first), self._second_moment(last)
        steps = last - first
        factor = _root(b.total * a.finite, a.total * b.finite, steps)
        return _Fit(first, last, factor, factor * self._log_ratio_se(a, b, last) / steps)

    def _log_ratio_se(self, a: ExactSum, b: ExactSum, last: int) -> float:
        """The standard error of ln(mean b / mean a), whose trials are the same."""
        n = a.finite
        if n < 2:
            return math.nan
        if last == self.n_layers:
            # The delta method's variance is n/(n−1) Σ(aᵢ/Σa − bᵢ/Σb)², here without rounding.
            spread = (
                a.total_sq * b.total**2
                + b.total_sq * a.total**2
                - 2 * self.record.cross[1] * a.total * b.total
            )
            return _sqrt(n * spread, (n - 1) * (a.total * b.total) ** 2)
        # The covariance is kept for the last layer only; without it the error comes out too large
        # rather than too small, since a chain's layers are positively correlated.
        return math.hypot(a.standard_error() / a.mean(), b.standard_error() / b.mean())

    @property
    def factor(self) -> float:
        """The factor a layer of the pre-activation's second moment; NaN where there is none."""
        return self._fit.factor if self._fit else math.nan

    @property
    def factor_se(self) -> float:
        """The standard error of ``factor``; NaN at one trial."""
        return self._fit.se if self._fit else math.nan

    @property
    def outcome(self) -> str:
        """holds, decays, explodes, overflows, vanishes, saturates or undecided."""
        return self._judgement[0]

    @property
    def verdict(self) -> str:
        """The verdict in a sentence; ``outcome`` is its first word."""
        outcome, words = self._judgement
        return outcome + words

    @cached_property
    def _judgement(self) -> tuple[str, str]:
        fit, n = self._fit, self.n_layers
        before = f", second moment {fit} before{self._advice(fit)}" if fit else ""
        overflow = self._first_overflow()
        if overflow is not None:
            layer, trials = overflow
            where = f"{self.spec['dtype']} at layer {layer} ({trials} of {self.n_trials} trials)"
            return "overflows", f" {where}{before}"
        zero = self.record.maxima[:n] == 0
        if zero[-1]:
            layer = int(np.max(np.flatnonzero(~zero), initial=-1)) + 2
            return "vanishes", f": exactly 0 from layer {layer}{before}"
        saturation = self._saturation()
        if saturation is not None:
            layer, share = saturation
            return "saturates", f": |φ′| < 0.05 max|φ′| in {100 * share:.0f} % of layer {layer}"
        end = self._second_moment(n)
        size = f"{_plus_minus(end.mean(), end.standard_error())} at layer {n}"
        if fit is None:
            return "undecided", f": second moment {size}, no factor a layer to fit"
        words = f": second moment {fit} (layers {fit.first} to {fit.last}), {size}"
        if math.isnan(fit.se):
            return "undecided", f"{words}; one trial has no standard error"
        if abs(fit.factor - 1) <= 3 * fit.se:
            return "holds", words + self._caution(end)
        outcome = "decays" if fit.factor < 1 else "explodes"
        return outcome, words + self._advice(fit) + self._caution(end)

    def _first_overflow(self) -> tuple[int, int] | None:
        """The first layer (from 1) with trials that are not finite, and how many of them."""
        for layer in range(1, self.n_layers + 1):
            trials = max(self._second_moment(layer, side).nonfinite for side in (_PRE, _POST))
            if trials:
                return layer, trials
        return None

    def _saturation(self) -> tuple[int, float] | None:
        """The last layer (from 1) whose φ is bounded and the saturated share, if over a half."""
        for layer in range(self.n_layers, 0, -1):
            if _bounded(self._activation(layer)):
                share = float(self.pre.saturated_fraction[layer - 1])
                return (layer, share) if share > 0.5 else None
        return None

    def _activation(self, layer: int) -> Activation:
        return activation(_per_layer(self.spec["activation"], layer - 1))

    def _advice(self, fit: _Fit) -> str:
        """The scale that would hold, where scaling the weights scales every layer in proportion."""
        hidden = {str(phi): phi for phi in map(self._activation, range(1, self.n_layers))}
        if self.spec["bias"] is not None or not all(map(_homogeneous, hidden.values())):
            return ""
        # What would hold is read off the theory, and only where the measurement bears it out: a
        # narrow, deep chain whose units die is not cured by a scale.
        predicted = self.theory.pre.second_moment[[fit.first - 1, fit.last - 1]]
        if not (np.isfinite(predicted) & (predicted > 0)).all():
            return ""
        start, end = np.log(predicted)
        factor = float(np.exp((end - start) / (fit.last - fit.first)))
        if not abs(fit.factor - factor) <= 3 * fit.se:
            return ""
        advice = f"; .scaled({factor**-0.5:.4g}) would hold"
        if len(hidden) == 1:
            advice += f", a gain of {gain(next(iter(hidden.values()))):.4g}"
        return advice

    def _caution(self, end: ExactSum) -> str:
        """A warning where the mean rests on a few trials, as it does in narrow, deep chains."""
        if end.standard_error() <= 0.3 * end.mean():
            return ""
        return "; a few trials carry the mean, more trials would say it better"

    # Text and files

    @property
    def label(self) -> str:
        """The initializer, or the initializers in layer order."""
        return _listed(self.spec["init"])

    @property
    def title(self) -> str:
        """A line that says what was run."""
        return f"{self.label}: {_setting(self)}"

    def __str__(self) -> str:
        rows = _layer_rows(self.pre, self.post, self.theory)
        return _text(self.title, rows, self.verdict)

    def _repr_html_(self) -> str:
        rows = _layer_rows(self.pre, self.post, self.theory)
        return _html(self.title, rows, self.verdict)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the second moments by layer, theory beside them; ``path`` also writes the figure.

        Needs the extra ``plot`` (matplotlib).
        """
        from initcore import plot

        return plot.propagation(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as strict JSON: non-finite numbers are strings, exact sums hexadecimal."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "spec": self.spec,
            "seed": self.seed,
            "method": self.method,
            "trials": [[held.start, held.stop] for held in self.trials],
            "verdict": self.verdict,
            "factor": _plain(self.factor),
            "factor_se": _plain(self.factor_se),
            "pre": self.pre.to_dict(),
            "post": self.post.to_dict(),
            "theory": self.theory.to_dict(),
            "record": self.record.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``; ValueError where the data is of another format or damaged."""
        _check_format(cls, data)
        try:
            result = cls(
                spec=dict(data["spec"]),
                seed=data["seed"],
                trials=tuple(range(start, stop) for start, stop in data["trials"]),
                record=ExactRecord.from_dict(data["record"]),
                theory=ChainLayers.from_dict(data["theory"]),
                method=data["method"],
            )
            expected = 2 * result.n_layers
            sizes = (len(result.record.columns), len(result.record.maxima))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"damaged {cls.FORMAT} data: {error!r}") from error
        if sizes != (expected * len(_AVERAGED), expected):
            raise ValueError(f"damaged {cls.FORMAT} data: {sizes[0]} columns, {sizes[1]} maxima")
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, from which ``load`` gives back the same bits. All of it or nothing."""
        _save(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of ``save``; ValueError where it is of another format, version or damaged."""
        return cls.from_dict(_load(path))


def merge_trials(*groups: Sequence[range]) -> tuple[range, ...]:
    """The trials of all groups as sorted ranges that neither overlap nor touch.

    ValueError where two ranges have a trial in common.
    """
    merged: list[range] = []
    for held in sorted((r for group in groups for r in group), key=lambda r: r.start):
        if merged and held.start < merged[-1].stop:
            shared = range(held.start, min(held.stop, merged[-1].stop))
            both = _trials_text([shared])
            raise ValueError(f"results with trials in common cannot be added: {both}")
        if merged and held.start == merged[-1].stop:
            merged[-1] = range(merged[-1].start, held.stop)
        else:
            merged.append(held)
    return tuple(merged)


@dataclass(frozen=True, eq=False)
class Comparison(Record, Sequence[Propagation]):
    """Several Propagations with common random numbers, as a sequence."""

    FORMAT: ClassVar[str] = "initcore.comparison"
    VERSION: ClassVar[int] = 1

    results: tuple[Propagation, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __iter__(self) -> Iterator[Propagation]:
        return iter(self.results)

    def _rows(self) -> list[list[str]]:
        rows = [["E[h²]", *(result.label for result in self)]]
        for layer in chosen_layers(self[0].n_layers):
            sums = [result._second_moment(layer) for result in self]
            rows.append([str(layer), *(_measured(s.mean(), s.standard_error()) for s in sums)])
        return rows

    def _verdicts(self) -> list[str]:
        return [f"{result.label} {result.verdict}" for result in self]

    def __str__(self) -> str:
        return _text(_setting(self[0]), self._rows(), "\n".join(self._verdicts()))

    def _repr_html_(self) -> str:
        return _html(_setting(self[0]), self._rows(), "\n".join(self._verdicts()))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw all second moments by layer in one figure; ``path`` also writes it.

        Needs the extra ``plot`` (matplotlib).
        """
        from initcore import plot

        return plot.propagation(self.results, path)

    def to_dict(self) -> dict[str, Any]:
        """Every result's ``to_dict``, as strict JSON."""
        results = [result.to_dict() for result in self]
        return {"format": self.FORMAT, "version": self.VERSION, "results": results}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``; ValueError where the data is of another format or damaged."""
        _check_format(cls, data)
        return cls(tuple(Propagation.from_dict(result) for result in data["results"]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, from which ``load`` gives back the same bits. All of it or nothing."""
        _save(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of ``save``; ValueError where it is of another format, version or damaged."""
        return cls.from_dict(_load(path))


def _per_layer(one_or_list: Any, index: int) -> Any:
    return one_or_list[index] if isinstance(one_or_list, list) else one_or_list


def _homogeneous(phi: Activation) -> bool:
    """Whether φ(c·h) = c·φ(h) for c > 0, so that a factor on the weights passes through."""
    h = np.array([-3.0, -0.7, 0.4, 5.0])
    return bool(np.array_equal(phi(2 * h), 2 * phi(h)))


def _bounded(phi: Activation) -> bool:
    """Whether φ has finite limits on both sides, so that it can saturate at both."""
    return bool(np.isfinite(phi(np.array([-np.inf, np.inf]))).all())


# ---------------------------------------------------------------------------------------------
# Rows of a softmax

_ROW_STATISTICS = ("lse", "max_prob", "entropy", "sum_sq", "jacobian_norm")


def _exact_means(table: Array) -> list[float]:
    """The means of the finite values in the columns of a float64 table, correctly rounded."""
    sums = np.zeros((table.shape[1], _core.EXACT_WORDS), np.int64)
    _core.default().exact_add(sums, table)
    return [ExactSum(*values).mean() for values in _core.default().exact_values(sums)]


@dataclass(frozen=True, eq=False)
class SoftmaxSummary(Record):
    """Counts of rows, and the mean of each statistic over the rows that have one.

    rows, masked_rows, nonfinite_rows, saturated_rows
        all rows; fully masked ones; those with a NaN or +inf among their logits; saturated ones.
    lse, max_prob, entropy, sum_sq, jacobian_norm
        means over the rows that are neither masked nor non-finite; NaN where there are none.
    """

    rows: int
    masked_rows: int
    nonfinite_rows: int
    saturated_rows: int
    lse: float
    max_prob: float
    entropy: float
    sum_sq: float
    jacobian_norm: float

    def __str__(self) -> str:
        counts = f"{self.rows} rows"
        for name in ("masked", "nonfinite", "saturated"):
            counts += f", {getattr(self, name + '_rows')} {name}"
        means = (f"{name} {number(getattr(self, name))}" for name in _ROW_STATISTICS)
        return f"{counts}\nmeans: {', '.join(means)}"


@dataclass(frozen=True, eq=False)
class SoftmaxRows(Record):
    """Statistics of softmax rows p: read-only arrays of the logits' shape without the softmax axis.

    lse
        ln Σ exp z of the scaled logits; −inf in a fully masked row.
    max_prob, entropy, sum_sq
        the largest p; −Σ p ln p in nats; Σ p², from 1/n (uniform) to 1 (one-hot).
    jacobian_norm
        Frobenius norm of diag p − p pᵀ.
    saturated
        bool: the largest p reaches the threshold the softmax was given (0.99 if none).

    A fully masked row has NaN but in lse; a row with a NaN or +inf among its logits has NaN in all.
    """

    lse: Array
    max_prob: Array
    entropy: Array
    sum_sq: Array
    jacobian_norm: Array
    saturated: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in _ROW_STATISTICS:
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        object.__setattr__(self, "saturated", _frozen(self.saturated, np.bool_))

    @classmethod
    def from_statistics(cls, statistics: ArrayLike, threshold: float) -> Self:
        """From the softmax kernel's rows, float64 (..., 5), columns in the order of the fields.

        A row is saturated where its largest p is ``threshold`` or more.
        """
        columns = np.moveaxis(np.asarray(statistics, np.float64), -1, 0)
        lse, max_prob, entropy, sum_sq, jacobian_norm = columns
        return cls(lse, max_prob, entropy, sum_sq, jacobian_norm, max_prob >= threshold)

    def summary(self) -> SoftmaxSummary:
        """Counts and means over all rows; masked and non-finite rows are left out of the means.

        The sums are exact, so the order of rows does not matter.
        """
        columns = [np.ravel(getattr(self, name)) for name in _ROW_STATISTICS]
        means = _exact_means(np.stack(columns, axis=1))
        return SoftmaxSummary(
            rows=self.lse.size,
            masked_rows=int(np.sum(self.lse == -np.inf)),
            nonfinite_rows=int(np.sum(np.isnan(self.lse))),
            saturated_rows=int(np.sum(self.saturated)),
            **dict(zip(_ROW_STATISTICS, means, strict=True)),
        )

    def __str__(self) -> str:
        return str(self.summary())


# ---------------------------------------------------------------------------------------------
# Files


def _check_format(cls: type[Propagation | Comparison], data: Any) -> None:
    found = (data.get("format"), data.get("version")) if isinstance(data, dict) else (None, None)
    if found != (cls.FORMAT, cls.VERSION):
        raise ValueError(
            f"format {cls.FORMAT!r}, version {cls.VERSION} is needed; "
            f"got {found[0]!r}, {found[1]!r}"
        )


def _save(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Write JSON beside the file, then put it in its place: a reader never sees half of it."""
    path = Path(path)
    text = json.dumps(data, allow_nan=False, ensure_ascii=False)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _load(path: str | os.PathLike[str]) -> Any:
    text = Path(path).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} is not a JSON file: {error}") from error


# ---------------------------------------------------------------------------------------------
# Text


def chosen_layers(n_layers: int) -> list[int]:
    """The layers worth a row, from 1: all of a few; else 1, 2, 5, 10, 20, 50, … and the last."""
    if n_layers <= 8:
        return list(range(1, n_layers + 1))
    series = (step * 10**power for power in range(len(str(n_layers))) for step in (1, 2, 5))
    return sorted({layer for layer in series if layer < n_layers} | {n_layers})


def number(value: float, digits: int = 4) -> str:
    """A number as a person reads it: a few digits, an exponent only where it must be."""
    value = float(value)
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits - 1}e}"
    return f"{value:#.{digits}g}".rstrip(".")


def _measured(value: float, se: float) -> str:
    """For a column: ``2.003 ± 0.012``, the digits the same in every row."""
    return f"{number(value)} ± {number(se, 2)}" if se > 0 else number(value)


def _plus_minus(value: float, se: float) -> str:
    """For a sentence: the value to the digit where its error starts."""
    if not (math.isfinite(se) and se > 0 and 1e-3 <= abs(value) < 1e4):
        return _measured(value, se)
    decimals = min(max(1 - math.floor(math.log10(se)), 0), 9)
    return f"{value:.{decimals}f} ± {se:.{decimals}f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def _listed(one_or_list: Any) -> str:
    return ", ".join(map(str, one_or_list)) if isinstance(one_or_list, list) else str(one_or_list)


def _setting(result: Propagation) -> str:
    """What was run, but for the initializer."""
    spec, widths = result.spec, result.spec["widths"]
    size = f"{widths[0]} wide" if len(set(widths)) == 1 else "widths " + ", ".join(map(str, widths))
    layers = f"{result.n_layers} layers" if result.n_layers > 1 else "1 layer"
    bias = "" if spec["bias"] is None else f", bias {_listed(spec['bias'])}"
    trials = f"{result.n_trials} trials" if result.n_trials > 1 else "1 trial"
    return (
        f"{layers}, {size}, {_listed(spec['activation'])}{bias}, batch {spec['batch']}, "
        f"{spec['dtype']}, {trials}, seed {result.seed}"
    )


def _trials_text(trials: Sequence[range]) -> str:
    return ", ".join(f"trials {held.start} to {held.stop - 1}" for held in trials)


def _layer_rows(
    pre: LayerStats, post: LayerStats | None, theory: ChainLayers | None
) -> list[list[str]]:
    """A heading and rows of the chosen layers: the pre-activation h first, then the activation x.

    Without ``post`` the rows are those of one record, which may be of either. Axes before the
    layers (trials of a user's arrays) are averaged over.
    """
    heading = ["layer", "", "second moment", "predicted", "mean", "variance", "zeros", "saturated"]
    if pre.se is not None:
        heading[2] += " ± s.e."
    sides: dict[str, tuple[LayerStats, LayerStats | None]] = {"": (pre, None)}
    if post is not None:
        predictions = (theory.pre, theory.post) if theory else (None, None)
        sides = {"h": (pre, predictions[0]), "x": (post, predictions[1])}

    def at(values: Array, layer: int) -> float:
        return float(np.mean(np.atleast_1d(values)[..., layer - 1]))

    rows = [heading]
    for layer in chosen_layers(np.atleast_1d(pre.mean).shape[-1]):
        for symbol, (stats, predicted) in sides.items():
            se = math.nan if stats.se is None else at(stats.se.second_moment, layer)
            rows.append(
                [
                    "" if symbol == "x" else str(layer),
                    symbol,
                    _measured(at(stats.second_moment, layer), se),
                    number(at(predicted.second_moment, layer)) if predicted else "-",
                    number(at(stats.mean, layer)),
                    number(at(stats.variance, layer)),
                    _share(at(stats.zero_fraction, layer)),
                    _share(at(stats.saturated_fraction, layer)),
                ]
            )
    if theory is None:
        rows = [row[:3] + row[4:] for row in rows]
    return rows


def _text(title: str, rows: list[list[str]], footer: str) -> str:
    """A plain table: the first column and numbers to the right, two spaces between columns."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, sizes)).rstrip() for row in rows]
    return "\n".join(part for part in (title, *lines, footer) if part)


def _html(title: str, rows: list[list[str]], footer: str) -> str:
    """The same table for a notebook."""
    head, *body = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in [("th", rows[0]), *(("td", row) for row in rows[1:])]
    )
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    paragraphs = [
        "<br>".join(map(html.escape, text.split("\n"))) if text else "" for text in (title, footer)
    ]
    before, after = (f"<p>{text}</p>" if text else "" for text in paragraphs)
    return before + table + after
