# SPDX-License-Identifier: BSD-3-Clause
"""What random attention did over trials: every link of its chain, its rows, its gradients."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from numpy.typing import NDArray

from initcore.initializers import initializer
from initcore.results.exact import ExactSum
from initcore.results.monte_carlo import MonteCarlo, Saved
from initcore.results.records import (
    Array,
    Record,
    frozen,
    plain,
)
from initcore.results.text import html_table, measured, number, share, text_table
from initcore.scaling import Effect, Sizes, scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = TypeVar("R", bound=Record)

#: The logits' standard deviations at which the gradient by the logarithm of the scale is measured.
PULL_STDS = (0.7, 1.0, 1.3, 8.0)

# The largest probability half way from uniform to one-hot, whatever the number of keys, or a tenth
# of the rows with no gradient to speak of.
_SATURATED_WAY, _SATURATED_SHARE = 0.5, 0.1
# 1/Σp² as a share of the keys: e^(−s²) for logits of standard deviation s, so below s = 0.32.
_UNIFORM_KEYS = 0.9


@dataclass(frozen=True, eq=False)
class AttentionLinks(Record):
    """Second moments E[x²] of what passes through attention, or of the gradients by it; floats.

    input, normalized
        x (batch·seq, d_model), and what the norm makes of it.
    q, k, v
        the products with W_Q, W_K, W_V: (batch·seq, n_heads·d_k).
    q_normalized, k_normalized
        after QK-norm; q and k where there is none.
    raw_logits, logits
        q·k of the keys that take part, and scaled.
    head_output, output
        softmax(logits) v of all heads, and its product with W_O: (batch·seq, d_model).
    se
        the standard errors over trials in the same record; None where there were no trials.

    NaN is unknown.
    """

    input: float
    normalized: float
    q: float
    k: float
    v: float
    q_normalized: float
    k_normalized: float
    raw_logits: float
    logits: float
    head_output: float
    output: float
    se: AttentionLinks | None = None

    @property
    def std(self) -> AttentionLinks:
        """√E[x²] of each, with its standard error: the standard deviation over draws of the
        weights, about 0, where weights have mean 0."""
        roots = {name: _root(getattr(self, name)) for name in LINKS}
        if self.se is None:
            return _made(AttentionLinks, roots)
        errors = {
            name: getattr(self.se, name) / (2 * root) if root > 0 else math.nan
            for name, root in roots.items()
        }
        return _made(AttentionLinks, roots, _made(AttentionLinks, errors))


@dataclass(frozen=True, eq=False)
class AttentionMeans(Record):
    """Means over the softmax rows of a trial, and over trials; floats.

    lse, max_prob, entropy, sum_sq, jacobian_norm, logit_mean, logit_var, logit_max, effective_keys
        as of AttentionRows, over the rows without a NaN or +inf.
    entropy_share, keys_share, saturated_fraction
        entropy/ln keys, effective_keys/keys and the share of rows whose largest probability is 0.99
        or more, of those with more than one key.
    nonfinite_fraction
        the share of rows with a NaN or +inf among their logits.
    se
        the standard errors over trials in the same record; None where there were no trials.
    """

    lse: float = math.nan
    max_prob: float = math.nan
    entropy: float = math.nan
    sum_sq: float = math.nan
    jacobian_norm: float = math.nan
    logit_mean: float = math.nan
    logit_var: float = math.nan
    logit_max: float = math.nan
    effective_keys: float = math.nan
    entropy_share: float = math.nan
    keys_share: float = math.nan
    saturated_fraction: float = math.nan
    nonfinite_fraction: float = math.nan
    se: AttentionMeans | None = None


@dataclass(frozen=True, eq=False)
class ScaleGradient(Record):
    """Gradients by the scale α that multiplies q·k.

    second_moment
        E[(∂/∂α)²], a sum over all heads and rows, for a standard normal gradient of the output.
    any_key, best_key
        float64 (4,), ∂loss/∂ln α a row at logits of standard deviation 0.7, 1, 1.3 and 8, where the
        loss is −ln p of one key: any (the mean over all keys that take part), or that of the
        largest logit. Where it is positive, training makes the scale smaller.
    se
        the standard errors over trials in the same record.
    """

    second_moment: float
    any_key: Array
    best_key: Array
    se: ScaleGradient | None = None

    def __post_init__(self) -> None:
        for name in ("any_key", "best_key"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @classmethod
    def from_columns(cls, columns: Sequence[ExactSum]) -> ScaleGradient:
        """Means and standard errors of the columns, in the order of the fields."""

        def made(values: list[float], se: ScaleGradient | None = None) -> ScaleGradient:
            n = 1 + len(PULL_STDS)
            return cls(values[0], frozen(values[1:n]), frozen(values[n:]), se)

        errors = made([column.standard_error() for column in columns])
        return made([column.mean() for column in columns], errors)


@dataclass(frozen=True, eq=False)
class AttentionTheory(Record):
    """Predictions beside what is measured: second moments, and means over rows."""

    forward: AttentionLinks
    rows: AttentionMeans

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        sides = [(AttentionLinks, data["forward"]), (AttentionMeans, data["rows"])]
        return cls(
            *(
                _made(kind, {name: float(side[name]) for name in _names(kind)})
                for kind, side in sides
            )
        )


def _names(record: type[Record]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record) if f.name != "se")


def _made(record: Callable[..., R], values: Mapping[str, float], se: R | None = None) -> R:
    return record(**values, se=se)


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


LINKS, MEANS = map(_names, (AttentionLinks, AttentionMeans))
FORWARD_COLUMNS = len(LINKS) + len(MEANS)
ALL_COLUMNS = FORWARD_COLUMNS + len(LINKS) + 1 + 2 * len(PULL_STDS)


@dataclass(frozen=True, eq=False)
class AttentionPropagation(MonteCarlo):
    """What attention with random weights did to random tokens, over trials.

    spec
        what was run, as strings and numbers; ``propagate_attention(**spec, seed=seed, trials=...)``
        runs it again.
    seed, trials
        the seed of all streams; the trials it holds: sorted ranges that neither overlap nor touch.
    forward, rows
        AttentionLinks and AttentionMeans, means over trials with ``.se``.
    backward, scale_gradient
        the second moments of the gradients by what ``forward`` has, and those by the scale; None
        unless the backward pass was asked for.
    theory
        the same of independent logits in wide heads, where it is known.
    verdict, outcome
        one sentence, and its first word: comfortable, saturated, uniform or nonfinite.

    ``a + b`` merges disjoint trials of one specification and seed, exactly.
    """

    FORMAT: ClassVar[str] = "initcore.attention"
    THEORY: ClassVar[type[AttentionTheory]] = AttentionTheory

    theory: AttentionTheory = field(repr=False, compare=False)

    @cached_property
    def forward(self) -> AttentionLinks:
        """Second moments by link."""
        return _record(AttentionLinks, self.record.columns)

    @cached_property
    def rows(self) -> AttentionMeans:
        """Means over rows."""
        return _record(AttentionMeans, self.record.columns[len(LINKS) :])

    @cached_property
    def backward(self) -> AttentionLinks | None:
        """Second moments of the gradients by each link; that by the output is standard normal."""
        columns = self.record.columns[FORWARD_COLUMNS:]
        return _record(AttentionLinks, columns) if columns else None

    @cached_property
    def scale_gradient(self) -> ScaleGradient | None:
        """Gradients by the scale."""
        columns = self.record.columns[FORWARD_COLUMNS + len(LINKS) :]
        return ScaleGradient.from_columns(columns) if columns else None

    @property
    def sizes(self) -> Sizes:
        """What the scaling depended on."""
        return Sizes(*(self.spec[name] for name in Sizes._fields))

    @property
    def effect(self) -> Effect:
        """What the scaling did at these sizes."""
        return scaling(self.spec["scaling"]).effect(self.sizes)

    # Drawing again

    def weights(self, trial: int, which: str) -> NDArray[Any]:
        """The weight that was drawn in a trial: `which` is "q", "k", "v" (n_heads·d_k, d_model) or
        "o" (d_model, n_heads·d_k).

        It equals ``init(shape, seed=, name=f"attention.{which}.weight", trial=trial)``, where the
        scaling's factor is on W_Q's initializer. ValueError for a trial that this result does not
        hold.
        """
        trial = self._held(trial)
        if which not in WEIGHTS:
            raise ValueError(f"which must be one of {', '.join(WEIGHTS)}; got {which!r}")
        init, shape = weight_law(self.spec, self.effect, which)
        drawn: NDArray[Any] = initializer(init)(
            shape, seed=self.seed, name=f"attention.{which}.weight", trial=trial
        )
        return drawn

    # The verdict

    @property
    def outcome(self) -> str:
        """comfortable, saturated, uniform or nonfinite."""
        return self._judgement[0]

    @property
    def verdict(self) -> str:
        """The verdict in a sentence; ``outcome`` is its first word."""
        outcome, words = self._judgement
        return outcome + words

    @cached_property
    def _judgement(self) -> tuple[str, str]:
        rows = self.rows
        if rows.nonfinite_fraction > 0 or math.isnan(rows.max_prob):
            return "nonfinite", f": logits overflow in {share(rows.nonfinite_fraction)} of the rows"
        std = f"logits of standard deviation {number(_root(rows.logit_var), 3)} a row"
        if math.isnan(rows.keys_share):
            return "uniform", ": no row has more than one key"
        keys = f"{number(rows.effective_keys, 3)} effective keys"
        saturated = rows.saturated_fraction
        if rows.keys_share >= _UNIFORM_KEYS:
            return (
                "uniform",
                f": {std}, {share(rows.keys_share)} of the keys count: attention cannot choose",
            )
        even = self._even_prob
        way = (rows.max_prob - even) / (1 - even)
        if way >= _SATURATED_WAY or saturated >= _SATURATED_SHARE:
            return "saturated", (
                f": {std}, {keys}, a largest probability of {number(rows.max_prob, 2)} on average, "
                f"{share(saturated)} of the rows nearly one-hot"
            )
        return "comfortable", f": {std}, {keys}"

    @property
    def _even_prob(self) -> float:
        """The mean over rows of 1/keys: what max_prob would be if all keys were equally likely."""
        seq = self.sizes.seq
        return math.fsum(1 / n for n in range(1, seq + 1)) / seq if self.spec["causal"] else 1 / seq

    # Looking at it

    @property
    def label(self) -> str:
        """What tells it from others of a comparison."""
        return str(self.spec["scaling"])

    @property
    def title(self) -> str:
        """What was run."""
        return f"{self.label}: {self.setting}"

    @property
    def setting(self) -> str:
        """What was run, but for the scaling."""
        spec = self.spec
        init = spec["init"]
        words = [
            f"d_model {spec['d_model']}",
            f"{spec['n_heads']} heads of {spec['d_k']}",
            f"seq {spec['seq']}",
            *([f"batch {spec['batch']}"] if spec["batch"] > 1 else []),
            *(["causal"] if spec["causal"] else []),
            f"{spec['norm'] or 'no'} norm",
            f"x std {number(spec['x_std'])}",
            *([f"correlation {number(spec['correlation'])}"] if spec["correlation"] else []),
            ", ".join(init) if isinstance(init, tuple) else init,
            f"{self.n_trials} trials" if self.n_trials > 1 else "1 trial",
            f"seed {self.seed}",
        ]
        return ", ".join(words)

    def tables(self) -> list[list[list[str]]]:
        """Links, rows and, if there are any, gradients by the scale: tables with a heading."""
        std, predicted = self.forward.std, self.theory.forward.std
        assert std.se is not None
        links = [["", "std ± s.e.", "predicted"]]
        gradients = self.backward.std if self.backward else None
        if gradients is not None:
            links[0].append("gradient's std ± s.e.")
        for name in LINKS:
            if name.endswith("_normalized") and self.effect.norm is None:
                continue
            row = [
                _words(name),
                measured(getattr(std, name), getattr(std.se, name)),
                number(getattr(predicted, name)),
            ]
            if gradients is not None:
                row.append(measured(getattr(gradients, name), getattr(gradients.se, name)))
            links.append(row)
        if self.scale_gradient is not None:
            root = number(_root(self.scale_gradient.second_moment))
            links.append(["the scale itself", number(self.effect.logits), "-", root])
        rows = [["a row", "mean ± s.e.", "predicted"]]
        for name in MEANS[:-1]:
            value, se = getattr(self.rows, name), getattr(self.rows.se, name)
            rows.append(
                [_words(name), measured(value, se), number(getattr(self.theory.rows, name))]
            )
        tables = [links, rows]
        if self.scale_gradient is not None:
            tables.append(self._pulls(self.scale_gradient))
        return tables

    @staticmethod
    def _pulls(found: ScaleGradient) -> list[list[str]]:
        table = [["∂loss/∂ln scale at logit std", *(number(s, 2) for s in PULL_STDS)]]
        assert found.se is not None
        for words, values, errors in (
            ("asked for any key", found.any_key, found.se.any_key),
            ("asked for its best key", found.best_key, found.se.best_key),
        ):
            table.append([words, *map(measured, values.tolist(), errors.tolist())])
        return table

    def __str__(self) -> str:
        first, *others = self.tables()
        parts = [text_table(self.title, first, "")]
        parts += [text_table("", table, "") for table in others]
        return "\n\n".join(parts) + "\n\n" + self.verdict

    def _repr_html_(self) -> str:
        first, *others = self.tables()
        tables = [html_table(self.title, first, ""), *(html_table("", t, "") for t in others)]
        return "".join(tables) + html_table("", [[self.verdict]], "")

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw it as a comparison of one; see ``ScalingComparison.plot``."""
        from initcore import plot

        return plot.attention([self], path)

    # Files

    def to_dict(self) -> dict[str, Any]:
        """Everything, as strict JSON: non-finite numbers are strings, exact sums hexadecimal."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "spec": plain(self.spec),
            "seed": self.seed,
            "trials": [[held.start, held.stop] for held in self.trials],
            "verdict": self.verdict,
            "forward": self.forward.to_dict(),
            "rows": self.rows.to_dict(),
            "backward": plain(self.backward),
            "scale_gradient": plain(self.scale_gradient),
            "theory": self.theory.to_dict(),
            "record": self.record.to_dict(),
        }

    def _check(self) -> None:
        _check_spec(self)
        columns = ALL_COLUMNS if self.spec["backward"] else FORWARD_COLUMNS
        if len(self.record.columns) != columns or self.record.maxima.size:
            raise ValueError(f"{len(self.record.columns)} columns")


#: The weights of attention, in the order of a list of initializers.
WEIGHTS = ("q", "k", "v", "o")


def weight_law(spec: Mapping[str, Any], effect: Effect, which: str) -> tuple[str, tuple[int, int]]:
    """A weight's initializer, with the scaling's factor on W_Q's, and its shape."""
    init = spec["init"]
    text = init[WEIGHTS.index(which)] if isinstance(init, list | tuple) else init
    if which == "q":
        text = repr(initializer(text).scaled(effect.weight))
    inner = spec["n_heads"] * spec["d_k"]
    return text, ((spec["d_model"], inner) if which == "o" else (inner, spec["d_model"]))


def _check_spec(result: AttentionPropagation) -> None:
    """ValueError, or one of DAMAGED, for a specification that could not have been run."""
    spec, effect = result.spec, result.effect
    for size in (*result.sizes, spec["batch"]):
        if type(size) is not int or size < 1:
            raise ValueError(f"size {size!r}")
    if spec["norm"] not in (None, "rms", "layer"):
        raise ValueError(f"norm {spec['norm']!r}")
    if any(type(spec[name]) is not bool for name in ("causal", "backward")):
        raise ValueError("flags")
    if not (float(spec["x_std"]) >= 0 and 0 <= float(spec["correlation"]) <= 1):
        raise ValueError(f"x_std {spec['x_std']}, correlation {spec['correlation']}")
    for which in WEIGHTS:
        weight_law(spec, effect, which)


def _record(record: type[R], columns: Sequence[ExactSum]) -> R:
    """From the columns of the fields, which may be followed by others."""
    pairs = list(zip(_names(record), columns, strict=False))
    errors = {name: column.standard_error() for name, column in pairs}
    return _made(record, {name: column.mean() for name, column in pairs}, _made(record, errors))


def _words(name: str) -> str:
    return name.replace("_", " ")


@dataclass(frozen=True, eq=False)
class ScalingComparison(Saved, Sequence[AttentionPropagation]):
    """Several scalings with common random numbers, as a sequence of AttentionPropagation.

    seconds
        what one forward pass from q, k, v to the heads' output took, each scaling's, measured side
        by side in one thread of the machine that made it: what QK-norm costs. No part of what is
        equal.
    """

    FORMAT: ClassVar[str] = "initcore.attention.comparison"

    results: tuple[AttentionPropagation, ...]
    seconds: tuple[float, ...] = field(compare=False)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
        return self.results[index]

    def __iter__(self) -> Iterator[AttentionPropagation]:
        return iter(self.results)

    @property
    def reference(self) -> AttentionPropagation | None:
        """The first comfortable one, beside which gradients are told."""
        return next((result for result in self if result.outcome == "comfortable"), None)

    def table(self) -> list[list[str]]:
        """A heading, and a row a scaling: measured means and, beside each, the theory's.

        The last column is ``seconds`` beside the least of them.
        """
        heading = ["scaling", "logit var", "theory"]
        heading += ["entropy", "theory", "Σp²", "theory", "max p", "theory", "one-hot"]
        gradients = self[0].backward is not None
        heading += [*(["∂q std"] if gradients else []), "cost"]
        table = [heading]
        base = min(self.seconds)
        for result, seconds in zip(self, self.seconds, strict=True):
            row = [result.label]
            for name in ("logit_var", "entropy", "sum_sq", "max_prob"):
                row += [
                    number(getattr(side, name), 3) for side in (result.rows, result.theory.rows)
                ]
            row.append(share(result.rows.saturated_fraction))
            if result.backward is not None:
                row.append(number(_root(result.backward.q), 3))
            row.append(f"×{seconds / base:.2f}")
            table.append(row)
        return table

    def verdicts(self) -> list[str]:
        """A line a scaling: its verdict, and its gradient beside the first comfortable one's."""
        base, lines = self.reference, []
        for result in self:
            line = f"{result.label} {result.verdict}"
            if base is not None and base.backward and result.backward and result is not base:
                ratio = _root(result.backward.q / base.backward.q) if base.backward.q else math.nan
                line += f"; the gradient to q is {number(ratio, 2)} of {base.label}'s"
            lines.append(line)
        return lines

    def __str__(self) -> str:
        return text_table(self[0].setting, self.table(), "\n".join(self.verdicts()))

    def _repr_html_(self) -> str:
        return html_table(self[0].setting, self.table(), "\n".join(self.verdicts()))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw logit variance and entropy of all scalings; ``path`` also writes it.

        Needs the extra ``plot`` (matplotlib).
        """
        from initcore import plot

        return plot.attention(self.results, path)

    def to_dict(self) -> dict[str, Any]:
        """Every result's ``to_dict``, as strict JSON."""
        return {
            "format": self.FORMAT,
            "version": self.VERSION,
            "seconds": plain(self.seconds),
            "results": [result.to_dict() for result in self],
        }

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        results = tuple(AttentionPropagation.from_dict(result) for result in data["results"])
        seconds = tuple(float(value) for value in data["seconds"])
        if not results or len(seconds) != len(results):
            raise ValueError(f"{len(results)} results, {len(seconds)} seconds")
        return cls(results, seconds)
