# SPDX-License-Identifier: BSD-3-Clause
"""What random chains did over trials: statistics by layer, the verdict, merging, comparison."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from initcore import architecture
from initcore.activations import Activation, activation
from initcore.gains import gain
from initcore.initializers import initializer
from initcore.quadrature import gaussian_mean
from initcore.results.chain_record import (
    GRAD_POST,
    GRAD_PRE,
    GRAD_WEIGHT,
    POST,
    PRE,
    ChainAccumulator,
    Direction,
    column_of,
    directions,
    has_stream,
    middle,
    record_sizes,
)
from initcore.results.exact import ExactSum, LogHistogram, nth_root, square_root
from initcore.results.layers import (
    AVERAGED,
    QUANTILES,
    ChainLayers,
    LayerStats,
    gradient_table,
    layer_table,
)
from initcore.results.monte_carlo import MonteCarlo, Saved, trials_text
from initcore.results.records import (
    Array,
    check_numbers,
    frozen,
    plain,
)
from initcore.results.text import (
    chosen_layers,
    html_table,
    measured,
    plus_minus,
    text_table,
    wrapped,
)
from initcore.specifications import finite_number, integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a chain computes in, and how its trials are drawn.
DTYPES = ("float32", "float64")
METHODS = ("dense", "gram")

# A chain's energy is nearly log-normal: where a handful of trials carry the mean, neither it nor
# its standard error can be trusted, and only a gross factor is called.
_ENOUGH_TRIALS = 30
_EVENLY = 0.8  # the share of the trials that carries the mean where all do
_GROSS_FACTOR = 1.2
# The mean cosine of pre-activations above which inputs cannot be told apart.
_ALIKE = 0.99
# Student's t at the level of three standard deviations of a normal, for 1 to 9 degrees of freedom.
_STUDENT = (235.8, 19.21, 9.219, 6.620, 5.507, 4.904, 4.530, 4.277, 4.094)


class _Fit(NamedTuple):
    """The factor a layer from one layer (from 1) to another, and its standard error."""

    first: int
    last: int
    factor: float
    se: float

    def __str__(self) -> str:
        return f"×{plus_minus(self.factor, self.se)} a layer"


@dataclass(frozen=True, eq=False)
class Propagation(MonteCarlo):
    """What random chains did to their inputs, over trials.

    spec
        what was run, as strings and numbers: widths (L + 1 integers), activation, init, bias,
        norm and residual (one, or a list of L), x (None, or a read-only array (batch, n_0) of the
        dtype), batch, correlation, dtype, backward, method.
        ``propagate(**spec, seed=seed, trials=...)`` runs it again.
    seed, method
        the seed of all streams; how trials were drawn ("dense": every weight, "gram": none).
    trials
        the trials it holds: sorted ranges that neither overlap nor touch.
    pre, post
        LayerStats of pre-activations and activations, arrays (L,), means over trials with ``.se``.
    grad_pre, grad_post, grad_weight
        the same of the gradients by h, by x = φ(h) and by W, of which only the second moment and
        its log energy are known, for a standard normal gradient by the last x; None without a
        backward pass.
    theory
        the same statistics in the limit of infinite width, where they are known.
    verdict, outcome, factor, factor_se
        one sentence, its first word (holds, decays, explodes, overflows, vanishes, saturates or
        undecided), and the factor a layer of E[h²]; of E[x²], ``post``, where a layer has a norm or
        a residual branch.
    grad_outcome, grad_factor, grad_factor_se
        the same of the gradient by h, or by x there, from the last layer to the first; "absent" and
        NaN without a backward pass.

    ``a + b`` merges disjoint trials of one specification, seed and method, exactly.
    """

    FORMAT: ClassVar[str] = "initcore.propagation"
    VERSION: ClassVar[int] = 2
    THEORY: ClassVar[type[ChainLayers]] = ChainLayers

    theory: ChainLayers = field(repr=False, compare=False)
    # Of a trial and a layer, where functions give weights and are still there.
    given_weight: Callable[[int, int], NDArray[Any]] | None = field(
        default=None, repr=False, compare=False
    )
    # Those functions, in layer order.
    functions: tuple[Callable[..., Any], ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spec["x"] is not None:
            x = frozen(self.spec["x"], self.spec["dtype"])
            object.__setattr__(self, "spec", MappingProxyType({**self.spec, "x": x}))

    def __add__(self, other: object) -> Self:
        total = super().__add__(other)
        if total is NotImplemented or not isinstance(other, Propagation):
            return NotImplemented
        if self.functions and other.functions and self.functions != other.functions:
            raise ValueError(
                f"results with different init cannot be added: {_listed(self.spec['init'])} is the "
                "name of different functions"
            )
        source = self if self.functions else other
        return replace(total, given_weight=source.given_weight, functions=source.functions)

    def __reduce__(self) -> tuple[Any, ...]:
        kind, values = super().__reduce__()
        return kind, values[:-2]  # a function may not pickle

    @property
    def method(self) -> str:
        """How trials were drawn."""
        return str(self.spec["method"])

    @property
    def n_layers(self) -> int:
        """The number of layers, L."""
        return len(self.spec["widths"]) - 1

    @property
    def input_second_moment(self) -> float:
        """E[x²] of the inputs: of given ones, or 1, which drawn ones have on average."""
        x = self.spec["x"]
        return 1.0 if x is None else float(np.mean(np.square(x, dtype=np.float64)))

    @cached_property
    def pre(self) -> LayerStats:
        """Statistics of the pre-activations h."""
        return self._side(PRE)

    @cached_property
    def post(self) -> LayerStats:
        """Statistics of the activations x = φ(h)."""
        return self._side(POST)

    @cached_property
    def grad_pre(self) -> LayerStats | None:
        """Statistics of the gradients by h."""
        return self._side(GRAD_PRE) if self.spec["backward"] else None

    @cached_property
    def grad_post(self) -> LayerStats | None:
        """Statistics of the gradients by x = φ(h)."""
        return self._side(GRAD_POST) if self.spec["backward"] else None

    @cached_property
    def grad_weight(self) -> LayerStats | None:
        """The second moment and the log energy of the gradients by W."""
        return self._side(GRAD_WEIGHT) if self.spec["backward"] else None

    @property
    def layers(self) -> ChainLayers:
        """All statistics by layer."""
        return ChainLayers(self.pre, self.post, self.grad_pre, self.grad_post, self.grad_weight)

    def _side(self, side: int) -> LayerStats:
        n, by_weight = self.n_layers, side == GRAD_WEIGHT
        unknown = np.full(n, np.nan)
        means: dict[str, Any] = {"mean": unknown, "variance": unknown}
        errors = dict(means)

        def sums(name: str) -> tuple[ExactSum, ...]:
            first = column_of(n, side, name, 1)
            return self.record.columns[first : first + n]

        for name in ("second_moment",) if by_weight else AVERAGED:
            means[name] = [column.mean() for column in sums(name)]
            errors[name] = [column.standard_error() for column in sums(name)]
        logs, counted = sums("log_energy"), self.record.histograms[side * n : (side + 1) * n]
        means["log_energy_mean"] = [column.mean() for column in logs]
        errors["log_energy_mean"] = [column.standard_error() for column in logs]
        means["log_energy_var"] = [column.variance() for column in logs]
        errors["log_energy_var"] = list(map(LogHistogram.variance_error, counted, logs))
        means["log_energy_quantiles"] = np.transpose([h.quantiles(QUANTILES) for h in counted])
        errors["log_energy_quantiles"] = np.transpose(
            [h.quantile_errors(QUANTILES) for h in counted]
        )
        means["dead_trials"] = [h.dead for h in counted]
        means["overflow_trials"] = [h.overflowed for h in counted]
        largest = unknown if by_weight else self.record.maxima[side * n : (side + 1) * n]
        return LayerStats(**means, abs_max=largest, se=LayerStats(**errors))

    def _second_moment(self, layer: int, side: int) -> ExactSum:
        return self.record.columns[column_of(self.n_layers, side, "second_moment", layer)]

    # Drawing again

    def weights(self, trial: int, layer: int) -> NDArray[Any]:
        """The weight (n_out, n_in) that was drawn in a trial for a layer; layers count from 0.

        It equals ``initializer(shape, seed=, name=f"layers.{layer}.weight", trial=trial)``, or what
        the function that ``init`` is gives again. ValueError for a trial or layer that this result
        does not hold, by "gram", which draws no weights, and for a function where it is no longer
        there: files and pickles do not keep it.
        """
        if self.method == "gram":
            raise ValueError(
                "weights exist for method='dense' alone: method='gram' draws pre-activations from "
                "their law given the layer's inputs, and never a weight"
            )
        trial, layer = self._held(trial), integer("layer", layer)
        if not 0 <= layer < self.n_layers:
            raise ValueError(f"layer must be from 0 to {self.n_layers - 1}; got {layer}")
        n_in, n_out = self.spec["widths"][layer : layer + 2]
        init = _per_layer(self.spec["init"], layer)
        if is_function_name(init):
            if self.given_weight is None:
                raise ValueError(
                    f"the weights of layer {layer} came from the function {init}, which files and "
                    "pickles do not keep"
                )
            return self.given_weight(trial, layer)
        name = f"layers.{layer}.weight"
        drawn: NDArray[Any] = initializer(init)(
            (n_out, n_in), seed=self.seed, name=name, trial=trial, dtype=self.spec["dtype"]
        )
        return drawn

    # The verdict

    @property
    def judged(self) -> tuple[Direction, ...]:
        """What is judged: the way up and, with a backward pass, the way down."""
        return directions(self.spec["backward"], has_stream(self.spec))

    @cached_property
    def _fits(self) -> list[_Fit | None]:
        return list(map(self._fit, self.judged))

    def _fit(self, direction: Direction) -> _Fit | None:
        """The factor a layer of what is judged, over the later half of the layers where it can be.

        Those end where a trial overflows or the mean sinks to where the dtype loses its digits. The
        standard error is that of a ratio of means (delta method).
        """
        tiny = float(np.finfo(self.spec["dtype"]).tiny)
        floor = max(tiny * tiny, np.finfo(np.float64).tiny)
        path = direction.order(self.n_layers)
        sums = [self._second_moment(layer, direction.side) for layer in path]
        last = 0
        for step, column in enumerate(sums, 1):
            if column.nonfinite or not column.mean() >= floor:
                break
            last = step
        if last < 2:
            return None
        first = middle(last)
        a, b = sums[first - 1], sums[last - 1]
        steps = last - first
        factor = nth_root(b.total * a.finite, a.total * b.finite, steps)
        # The covariance is kept for the whole path only.
        products = self.record.cross[direction.down][1] if last == self.n_layers else None
        se = factor * _log_ratio_se(a, b, products) / steps
        return _Fit(path[first - 1], path[last - 1], factor, se)

    @property
    def factor(self) -> float:
        """The factor a layer of E[h²] or of the stream's E[x²]; NaN where there is none."""
        fit = self._fits[0]
        return fit.factor if fit else math.nan

    @property
    def factor_se(self) -> float:
        """The standard error of ``factor``; NaN at one trial."""
        fit = self._fits[0]
        return fit.se if fit else math.nan

    @property
    def grad_factor(self) -> float:
        """The factor a layer, downwards, of the second moment of the gradient by h, or by the
        stream's x; NaN where there is none."""
        fit = self._fits[-1] if self.spec["backward"] else None
        return fit.factor if fit else math.nan

    @property
    def grad_factor_se(self) -> float:
        """The standard error of ``grad_factor``; NaN at one trial."""
        fit = self._fits[-1] if self.spec["backward"] else None
        return fit.se if fit else math.nan

    @property
    def outcome(self) -> str:
        """holds, decays, explodes, overflows, vanishes, saturates or undecided."""
        return self._judgements[0][0]

    @property
    def grad_outcome(self) -> str:
        """The same of the gradient, which does not saturate; "absent" without a backward pass."""
        return self._judgements[1][0] if self.spec["backward"] else "absent"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence; ``outcome`` is its first word. The gradient's follows it, and
        where the inputs of a batch become alike."""
        judged = "; gradient ".join(outcome + words for outcome, words in self._judgements)
        return judged + self._alike()

    @cached_property
    def _judgements(self) -> list[tuple[str, str]]:
        return list(map(self._judge, self.judged, self._fits))

    def _judge(self, direction: Direction, fit: _Fit | None) -> tuple[str, str]:
        n, path = self.n_layers, direction.order(self.n_layers)
        advice = self._advice(fit, direction) if fit else ""
        before = f", {direction.quantity} {fit} before{advice}" if fit else ""
        overflow = self._first_overflow(direction)
        if overflow is not None:
            layer, trials = overflow
            of = f"{self.spec['dtype']} at layer {layer} ({trials} of {self.n_trials} trials)"
            sides = map(self._side, (side for side in direction.sides if side != GRAD_WEIGHT))
            entries = (side.nonfinite_fraction[layer - 1] for side in sides)
            # squares of float32 do not overflow float64
            alone = self.spec["dtype"] == "float64" and not any(share > 0 for share in entries)
            what = " in the second moment alone" if alone else ""
            return "overflows", f" {of}{what}{before}"
        zeros = [self.record.maxima[direction.side * n + layer - 1] == 0 for layer in path]
        if zeros[-1]:
            alive = [step for step, zero in enumerate(zeros) if not zero]
            layer = path[alive[-1] + 1 if alive else 0]
            return "vanishes", f": exactly 0 from layer {layer}{before}"
        saturation = None if direction.down else self._saturation()
        if saturation is not None:
            layer, share = saturation
            where = f"in {100 * share:.0f} % of layer {layer}"
            return "saturates", f": |φ′| < 0.05 max|φ′| {where}{advice}"
        end = self._second_moment(path[-1], direction.side)
        size = f"{plus_minus(end.mean(), end.standard_error())} at layer {path[-1]}"
        if fit is None:
            return "undecided", f": {direction.quantity} {size}, no factor a layer to fit"
        words = f": {direction.quantity} {fit} (layers {fit.first} to {fit.last}), {size}"
        if math.isnan(fit.se):
            return "undecided", f"{words}; one trial has no standard error"
        carried = end.effective < min(_ENOUGH_TRIALS, _EVENLY * end.finite)
        caution = (
            "; a few trials carry the mean, more trials would say it better" if carried else ""
        )
        if abs(fit.factor - 1) <= _limit(end.finite) * fit.se:
            return "holds", words + caution
        if carried and abs(math.log(fit.factor)) < math.log(_GROSS_FACTOR):
            few = f"about {end.effective:.0f} of {end.finite} trials carry the mean"
            return "undecided", f"{words}; {few}, more trials would say it better"
        return "decays" if fit.factor < 1 else "explodes", words + advice + caution

    def _first_overflow(self, direction: Direction) -> tuple[int, int] | None:
        """The first layer (from 1) with trials that are not finite, and how many of them."""
        for layer in direction.order(self.n_layers):
            sums = (self._second_moment(layer, side) for side in direction.sides)
            trials = max(column.nonfinite for column in sums)
            if trials:
                return layer, trials
        return None

    def _saturation(self) -> tuple[int, float] | None:
        """The last layer (from 1), or the one below an unbounded output, if its φ is bounded and
        its saturated share over a half; past a residual branch the signal goes by, and what
        saturates further below may yet grow."""
        for layer in range(self.n_layers, max(self.n_layers - 2, 0), -1):
            past = _per_layer(self.spec["residual"], layer - 1) is not None
            if _bounded(self._activation(layer)) and not past:
                share = float(self.pre.saturated_fraction[layer - 1])
                return (layer, share) if share > 0.5 else None
        return None

    @property
    def bounded(self) -> Array:
        """Of each layer, whether φ has finite limits on both sides, so that it can saturate."""
        return np.array([_bounded(self._activation(i + 1)) for i in range(self.n_layers)])

    def _activation(self, layer: int) -> Activation:
        return activation(_per_layer(self.spec["activation"], layer - 1))

    def _advice(self, fit: _Fit, direction: Direction) -> str:
        """What would hold: the scale, where scaling the weights scales every layer in proportion;
        else the gains that hold a layer at E[h²] = 1, forward and backward."""
        hidden = {str(phi): phi for phi in map(self._activation, range(1, self.n_layers))}
        added = (self.spec[name] for name in ("bias", "norm", "residual"))
        if any(one is not None for one in added) or not hidden:
            return ""
        # What would hold is read off the theory, and only where the measurement bears it out: a
        # narrow, deep chain whose units die is not cured by a scale.
        theory = self.theory.grad_pre if direction.down else self.theory.pre
        assert theory is not None  # of a backward pass there is a prediction
        predicted = theory.second_moment[[fit.first - 1, fit.last - 1]]
        if not (np.isfinite(predicted) & (predicted > 0)).all():
            return ""
        start, end = np.log(predicted)
        factor = float(np.exp((end - start) / abs(fit.last - fit.first)))
        if not abs(fit.factor - factor) <= 3 * fit.se:
            return ""
        uniform = len(hidden) == 1 and len(set(self.spec["widths"])) == 1
        phi = next(iter(hidden.values()))
        if all(map(_homogeneous, hidden.values())):
            advice = f"; .scaled({factor**-0.5:.4g}) would hold"
            return advice + (f", a gain of {gain(phi):.4g}" if uniform else "")
        return _gains(phi, direction) if uniform else ""

    def _alike(self) -> str:
        """From which layer on the inputs of a batch cannot be told apart."""
        known = np.flatnonzero(np.isfinite(self.pre.cosine))
        apart = known[self.pre.cosine[known] <= _ALIKE]
        alike = known[known > apart[-1]] if apart.size else known
        if not alike.size:
            return ""
        return f"; inputs are alike from layer {alike[0] + 1}: mean cosine of h above {_ALIKE}"

    # Text and files

    @property
    def label(self) -> str:
        """The initializer, or the initializers in layer order."""
        return _listed(self.spec["init"])

    @property
    def title(self) -> str:
        """A line that says what was run."""
        return f"{self.label}: {_setting(self)}"

    def tables(self) -> list[tuple[str, list[list[str]]]]:
        """Headings and rows as text, each table with its caption: forward, and backward if there
        was a backward pass."""
        stream = has_stream(self.spec)
        rows = layer_table(
            self.layers,
            self.theory,
            scale=self.input_second_moment,
            stream=stream,
            bounded=self.bounded,
        )
        tables = [("theory is that of infinite width:", rows)]
        if self.spec["backward"]:
            rows = gradient_table(self.layers, self.theory, stream=stream)
            tables.append(("backward, from a standard normal gradient by the last x:", rows))
        return tables

    def notes(self) -> list[str]:
        """What the tables leave unsaid, a sentence each: what a median is of, and trials that died
        or overflowed."""
        medians = any("median" in rows[0] for _, rows in self.tables())
        notes = ["median: half of the networks lie below it"] if medians else []
        for direction in self.judged:
            side, path = self._side(direction.side), direction.order(self.n_layers)
            for counts, word, consequence in (
                (side.dead_trials, "is 0", ": the mean counts them, the median does not"),
                (side.overflow_trials, "overflows", ""),
            ):
                met = [layer for layer in path if counts[layer - 1]]
                if met:
                    of = f"{counts[path[-1] - 1]:.0f} of {self.n_trials} trials"
                    since = f"by layer {path[-1]}, the first at layer {met[0]}"
                    notes.append(f"{direction.signal} {word} in {of} {since}{consequence}")
        return notes

    def __str__(self) -> str:
        tables = [text_table(caption, rows, "") for caption, rows in self.tables()]
        words = map(wrapped, [*self.notes(), self.verdict])
        return "\n".join([wrapped(self.title), "\n\n".join(tables), "", *words])

    def _repr_html_(self) -> str:
        tables, words = self.tables(), "\n".join([*self.notes(), self.verdict])
        captions = [caption for caption, _ in tables]
        captions[0] = f"{self.title}; {captions[0]}"
        footers = [*("" for _ in tables[1:]), words]
        return "".join(
            html_table(caption, rows, footer)
            for caption, (_, rows), footer in zip(captions, tables, footers, strict=True)
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the second moments by layer, forward and backward, with the spread of networks and
        the theory beside them; saturation and cosine below. ``path`` also writes the figure.

        Needs the extra ``plot`` (matplotlib).
        """
        from initcore import plot

        return plot.propagation(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as strict JSON: non-finite numbers are strings, exact sums hexadecimal."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "spec": plain(self.spec),
            "seed": self.seed,
            "trials": [[held.start, held.stop] for held in self.trials],
            "verdict": self.verdict,
            "factor": plain(self.factor),
            "factor_se": plain(self.factor_se),
            "grad_factor": plain(self.grad_factor),
            "grad_factor_se": plain(self.grad_factor_se),
            **self.layers.to_dict(),
            "theory": self.theory.to_dict(),
            "record": self.record.to_dict(),
        }

    def _check(self) -> None:
        _check_spec(self.spec)
        backward = self.spec["backward"]
        kept = (self.record.columns, self.record.maxima, self.record.histograms)
        sizes = tuple(map(len, kept))
        if sizes != record_sizes(self.n_layers, backward):
            raise ValueError("{} columns, {} maxima, {} histograms".format(*sizes))
        if len(self.record.cross) != 1 + backward:
            raise ValueError(f"{len(self.record.cross)} sums of products")
        sums = ChainAccumulator(self.n_layers, backward=backward, stream=has_stream(self.spec))
        self.record.check_cross(sums.pairs)
        for i, counted in enumerate(self.record.histograms):
            side, layer = divmod(i, self.n_layers)
            counted.check(
                self.record.columns[column_of(self.n_layers, side, "log_energy", layer + 1)]
            )
        for largest, counted in zip(self.record.maxima, self.record.histograms, strict=False):
            if math.isnan(largest) and not counted.overflowed:
                raise ValueError("a maximum of NaN where nothing overflowed")

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        if data["spec"]["x"] is not None:
            check_numbers(chain.from_iterable(data["spec"]["x"]))
        return super()._read(data)


@dataclass(frozen=True, eq=False)
class Comparison(Saved, Sequence[Propagation]):
    """Several Propagations with common random numbers, as a sequence."""

    FORMAT: ClassVar[str] = "initcore.comparison"
    VERSION: ClassVar[int] = 2

    results: tuple[Propagation, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __iter__(self) -> Iterator[Propagation]:
        return iter(self.results)

    def _rows(self) -> list[list[str]]:
        rows = [["layer", *(result.label for result in self)]]
        side = self[0].judged[0].side
        for layer in chosen_layers(self[0].n_layers):
            sums = [result._second_moment(layer, side) for result in self]
            rows.append([str(layer), *(measured(s.mean(), s.standard_error()) for s in sums)])
        return rows

    @property
    def title(self) -> str:
        """A line that says what was run, but for the initializers."""
        return _setting(*self)

    @property
    def _caption(self) -> str:
        return f"{self.title}; {self[0].judged[0].quantity} ± s.e.:"

    def _verdicts(self) -> list[str]:
        return [f"{result.label} {result.verdict}" for result in self]

    def __str__(self) -> str:
        table = text_table(wrapped(self._caption), self._rows(), "")
        return "\n".join([table, "", *map(wrapped, self._verdicts())])

    def _repr_html_(self) -> str:
        return html_table(self._caption, self._rows(), "\n".join(self._verdicts()))

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
    def _read(cls, data: Mapping[str, Any]) -> Self:
        results = tuple(Propagation.from_dict(result) for result in data["results"])
        if not results:
            raise ValueError("no results")
        first, *others = ({**one["spec"], "init": None} for one in data["results"])
        if any(other != first for other in others):
            raise ValueError("results of different chains")
        return cls(results)


def _limit(trials: int) -> float:
    """How many standard errors from so many trials are as rare as three of a normal."""
    degrees = trials - 1
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    # Cornish and Fisher's expansion about 3 (Abramowitz & Stegun 26.7.5)
    return 3 + 30 / (4 * degrees) + 1656 / (96 * degrees**2) + 11592 / (384 * degrees**3)


def _check_spec(spec: Mapping[str, Any]) -> None:
    """ValueError, or one of DAMAGED, for a specification that ``propagate`` could not have run."""
    widths = spec["widths"]
    for size in (*widths, spec["batch"]):
        if type(size) is not int or not 1 <= size < 2**32:
            raise ValueError(f"size {size!r}")
    if spec["x"] is not None and spec["x"].shape != (spec["batch"], widths[0]):
        raise ValueError(f"x of shape {spec['x'].shape}")
    correlation = spec["correlation"]
    if type(correlation) not in (int, float) or not 0 <= correlation <= (spec["x"] is None):
        raise ValueError(f"correlation {spec['correlation']!r}")
    if type(spec["backward"]) is not bool:
        raise ValueError(f"backward {spec['backward']!r}")
    if spec["method"] not in METHODS:
        raise ValueError(f"method {spec['method']!r}")
    if len(widths) < 2 or spec["dtype"] not in DTYPES:
        raise ValueError(f"widths {widths}, dtype {spec['dtype']!r}")
    for name, parse in (
        ("activation", activation),
        ("init", initializer),
        ("bias", initializer),
        ("norm", architecture.norm),
        ("residual", _saved_multiplier),
    ):
        entries = spec[name]
        listed = isinstance(entries, list | tuple)
        if listed and len(entries) != len(widths) - 1:
            raise ValueError(f"{len(entries)} entries of {name}")
        for entry in entries if listed else (entries,):
            if entry is None and name in ("bias", "norm", "residual"):
                continue
            if not (name == "init" and isinstance(entry, str) and is_function_name(entry)):
                parse(entry)
    multipliers = [_per_layer(spec["residual"], layer) for layer in range(len(widths) - 1)]
    architecture.check_residuals(multipliers, widths)
    architecture.check_held(multipliers, spec["dtype"])


def _saved_multiplier(value: Any) -> float:
    if type(value) is not float:
        raise ValueError(f"residual {value!r}")
    return finite_number("residual", value)


def _log_ratio_se(a: ExactSum, b: ExactSum, products: int | None) -> float:
    """The standard error of ln(mean b / mean a), whose trials are the same, given Σab."""
    n = a.finite
    if n < 2:
        return math.nan
    if products is None:
        # Without the covariance the error comes out too large rather than too small, since a
        # chain's layers are positively correlated.
        return math.hypot(a.standard_error() / a.mean(), b.standard_error() / b.mean())
    # The delta method's variance is n/(n−1) Σ(aᵢ/Σa − bᵢ/Σb)², here without rounding.
    spread = a.total_sq * b.total**2 + b.total_sq * a.total**2 - 2 * products * a.total * b.total
    return square_root(n * spread, (n - 1) * (a.total * b.total) ** 2)


def _per_layer(one_or_each: Any, index: int) -> Any:
    return one_or_each[index] if isinstance(one_or_each, tuple) else one_or_each


def _homogeneous(phi: Activation) -> bool:
    """Whether φ(c·h) = c·φ(h) for c > 0, so that a factor on the weights passes through."""
    h = np.array([-3.0, -0.7, 0.4, 5.0])
    return bool(np.array_equal(phi(2 * h), 2 * phi(h)))


def _gains(phi: Activation, direction: Direction) -> str:
    """The gains that would hold E[h²], or the gradient, at E[h²] = 1."""
    forward, backward = gain(phi), gain(phi, "backward")
    # d ln E φ(√q z)² / d ln q at q = 1, of which σ_w² E φ² makes the slope of the map of E[h²]
    slope = gaussian_mean(lambda z: z * phi(z) * phi.derivative(z), 1.0, phi.kinks)
    if not direction.down:
        grows = forward**2 * slope
        but = "" if grows < 1 else f", but deviations would grow ×{grows:.4g} a layer"
        return f"; a gain of {forward:.4g} would hold E[h²] at 1{but}"
    apart = (forward / backward) ** 2
    advice = (
        f"; at E[h²] = 1 it would hold with a gain of {backward:.4g}, E[h²] with {forward:.4g} "
        f"(σ_w² ×{apart:.4g} apart)"
    )
    # Biases make up for what the smaller gain leaves of E[h²] (the edge of chaos at q = 1).
    if apart > 1 and backward**2 * slope < 1:
        std = math.sqrt(1 - 1 / apart)
        advice += f", both with {backward:.4g} and biases of std {std:.4g}"
    return advice


def _bounded(phi: Activation) -> bool:
    """Whether φ has finite limits on both sides, so that it can saturate at both."""
    return bool(np.isfinite(phi(np.array([-np.inf, np.inf]))).all())


def function_name(function: Callable[..., Any]) -> str:
    """What a specification has of a function, "module.qualname"."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def is_function_name(spec: str) -> bool:
    """Whether that of an initializer is such a name: initializers have a dot in calls alone."""
    return "." in spec and "(" not in spec


def _listed(one_or_each: Any) -> str:
    entries = one_or_each if isinstance(one_or_each, tuple) else (one_or_each,)
    words = {float: "{:.4g}", type(None): "none"}
    return ", ".join(words.get(type(one), "{}").format(one) for one in entries)


def _setting(result: Propagation, *others: Propagation) -> str:
    """What was run, but for the initializer, in one result or in several alike."""
    spec, widths = result.spec, result.spec["widths"]
    size = f"{widths[0]} wide" if len(set(widths)) == 1 else "widths " + ", ".join(map(str, widths))
    layers = f"{result.n_layers} layers" if result.n_layers > 1 else "1 layer"
    given = ((name, spec[name]) for name in ("bias", "norm", "residual"))
    added = "".join(f", {name} {_listed(value)}" for name, value in given if value is not None)
    least, *_, most = sorted([one.n_trials for one in (result, result, *others)])
    trials = "1 trial" if most == 1 else f"{most} trials"
    if least < most:
        trials = f"{least} to {trials}"
    elif result.trials != (range(most),):
        trials = trials_text(result.trials)
    by_gram = " by gram" if result.method == "gram" else ""
    batch = f"batch {spec['batch']}" if spec["x"] is None else f"{spec['batch']} given inputs"
    if spec["correlation"]:
        batch += f", correlation {spec['correlation']:.4g}"
    return (
        f"{layers}, {size}, {_listed(spec['activation'])}{added}, {batch}, "
        f"{spec['dtype']}, {trials}{by_gram}, seed {result.seed}"
    )
