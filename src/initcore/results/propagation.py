# SPDX-License-Identifier: BSD-3-Clause
"""What random chains did over trials: statistics by layer, text, files, exact merging."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from initcore.initializers import initializer
from initcore.results.chain_record import (
    GRAD_POST,
    GRAD_PRE,
    GRAD_WEIGHT,
    POST,
    PRE,
    Direction,
    column_of,
    crossed,
    directions,
    has_stream,
    record_sizes,
    statistics_of,
)
from initcore.results.chain_spec import (
    activation_of,
    check_spec,
    depth,
    is_function_name,
    listed,
    per_layer,
)
from initcore.results.exact_sum import ExactSum
from initcore.results.factor import Factor, fitted
from initcore.results.layers import (
    AVERAGED,
    QUANTILES,
    ChainLayers,
    LayerStats,
    gradient_table,
    layer_table,
)
from initcore.results.log_histogram import LogHistogram
from initcore.results.monte_carlo import MonteCarlo, trials_text
from initcore.results.records import Array, check_numbers, frozen, plain
from initcore.results.text import html_table, text_table, wrapped
from initcore.results.verdict import Judgement, alike, bounded, judgement
from initcore.specifications import integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
                f"results with different init cannot be added: {self.label} is the "
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
        return depth(self.spec)

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
        init = per_layer(self.spec["init"], layer)
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
    def _factors(self) -> list[Factor | None]:
        return [fitted(self.spec, self.record, direction) for direction in self.judged]

    @property
    def factor(self) -> float:
        """The factor a layer of E[h²] or of the stream's E[x²]; NaN where there is none."""
        found = self._factors[0]
        return found.value if found else math.nan

    @property
    def factor_se(self) -> float:
        """The standard error of ``factor``; NaN at one trial."""
        found = self._factors[0]
        return found.se if found else math.nan

    @property
    def grad_factor(self) -> float:
        """The factor a layer, downwards, of the second moment of the gradient by h, or by the
        stream's x; NaN where there is none."""
        found = self._factors[-1] if self.spec["backward"] else None
        return found.value if found else math.nan

    @property
    def grad_factor_se(self) -> float:
        """The standard error of ``grad_factor``; NaN at one trial."""
        found = self._factors[-1] if self.spec["backward"] else None
        return found.se if found else math.nan

    @property
    def outcome(self) -> str:
        """holds, decays, explodes, overflows, vanishes, saturates or undecided."""
        return self._judgements[0].outcome

    @property
    def grad_outcome(self) -> str:
        """The same of the gradient, which does not saturate; "absent" without a backward pass."""
        return self._judgements[1].outcome if self.spec["backward"] else "absent"

    @cached_property
    def verdict(self) -> str:
        """The verdict in a sentence; ``outcome`` is its first word. The gradient's follows it, and
        where the inputs of a batch become alike."""
        from initcore.theory.advice import advice

        sentences = []
        for direction, factor, found in zip(
            self.judged, self._factors, self._judgements, strict=True
        ):
            would_hold = ""
            if found.fails and factor is not None:
                would_hold = advice(self.spec, self.theory, direction, factor)
            sentences.append(f"{found.outcome}{found.words}{would_hold}{found.caution}")
        return "; gradient ".join(sentences) + alike(self.pre)

    @cached_property
    def _judgements(self) -> list[Judgement]:
        return [
            judgement(self.spec, self.record, self.layers, direction, factor)
            for direction, factor in zip(self.judged, self._factors, strict=True)
        ]

    @property
    def bounded(self) -> Array:
        """Of each layer, whether φ has finite limits on both sides, so that it can saturate."""
        layers = range(1, self.n_layers + 1)
        return np.array([bounded(activation_of(self.spec, layer)) for layer in layers])

    # Text and files

    @property
    def label(self) -> str:
        """The initializer, or the initializers in layer order."""
        return listed(self.spec["init"])

    @property
    def title(self) -> str:
        """A line that says what was run."""
        return f"{self.label}: {setting(self)}"

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
        layers = self.layers
        for direction in self.judged:
            side, path = statistics_of(layers, direction.side), direction.order(self.n_layers)
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
        check_spec(self.spec)
        backward = self.spec["backward"]
        kept = (self.record.columns, self.record.maxima, self.record.histograms)
        sizes = tuple(map(len, kept))
        if sizes != record_sizes(self.n_layers, backward):
            raise ValueError("{} columns, {} maxima, {} histograms".format(*sizes))
        pairs = crossed(self.n_layers, backward, has_stream(self.spec))
        if len(self.record.cross) != len(pairs):
            raise ValueError(f"{len(self.record.cross)} sums of products")
        self.record.check_cross(pairs)
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


def setting(result: Propagation, *others: Propagation) -> str:
    """What was run, but for the initializer, in one result or in several alike."""
    spec, widths = result.spec, result.spec["widths"]
    size = f"{widths[0]} wide" if len(set(widths)) == 1 else "widths " + ", ".join(map(str, widths))
    layers = f"{result.n_layers} layers" if result.n_layers > 1 else "1 layer"
    given = ((name, spec[name]) for name in ("bias", "norm", "residual"))
    added = "".join(f", {name} {listed(value)}" for name, value in given if value is not None)
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
        f"{layers}, {size}, {listed(spec['activation'])}{added}, {batch}, "
        f"{spec['dtype']}, {trials}{by_gram}, seed {result.seed}"
    )
