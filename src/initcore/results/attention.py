# SPDX-License-Identifier: BSD-3-Clause
"""What random attention did over trials: every link of its chain, its rows, its gradients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from initcore.initializers import initializer
from initcore.results.attention_links import (
    ALL_COLUMNS,
    FORWARD_COLUMNS,
    LINKS,
    MEANS,
    PULL_STDS,
    AttentionLinks,
    AttentionMeans,
    AttentionTheory,
    ScaleGradient,
    record_of,
    root,
)
from initcore.results.monte_carlo import MonteCarlo
from initcore.results.records import plain
from initcore.results.text import html_table, measured, number, share, text_table
from initcore.scaling import Effect, Sizes, scaling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The largest probability half way from uniform to one-hot, whatever the number of keys, or a tenth
# of the rows with no gradient to speak of.
_SATURATED_WAY, _SATURATED_SHARE = 0.5, 0.1
# 1/Σp² as a share of the keys: e^(−s²) for logits of standard deviation s, so below s = 0.32.
_UNIFORM_KEYS = 0.9


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
        return record_of(AttentionLinks, self.record.columns)

    @cached_property
    def rows(self) -> AttentionMeans:
        """Means over rows."""
        return record_of(AttentionMeans, self.record.columns[len(LINKS) :])

    @cached_property
    def backward(self) -> AttentionLinks | None:
        """Second moments of the gradients by each link; that by the output is standard normal."""
        columns = self.record.columns[FORWARD_COLUMNS:]
        return record_of(AttentionLinks, columns) if columns else None

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
        std = f"logits of standard deviation {number(root(rows.logit_var), 3)} a row"
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
    def links(self) -> tuple[str, ...]:
        """The fields of ``forward`` in the order of the chain, without those of a QK-norm that
        there is not."""
        normalized = self.effect.norm is not None
        return tuple(name for name in LINKS if normalized or not name.endswith("_normalized"))

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
        tables = [self._links(), self._means()]
        if self.scale_gradient is not None:
            tables += [self._scale(self.scale_gradient), self._pulls(self.scale_gradient)]
        return tables

    def _links(self) -> list[list[str]]:
        heading, sides = ["", "std ± s.e.", "predicted"], [(self.forward, self.theory.forward)]
        if self.backward is not None:
            heading += ["gradient's std ± s.e.", "predicted"]
            sides.append((self.backward, self.theory.backward))
        table, roots = [heading], [(found.std, theory.std) for found, theory in sides]
        for name in self.links:
            row = [_words(name)]
            for std, predicted in roots:
                row.append(measured(getattr(std, name), getattr(std.se, name)))
                row.append(number(getattr(predicted, name)))
            table.append(row)
        return table

    def _means(self) -> list[list[str]]:
        table = [["a row", "mean ± s.e.", "predicted"]]
        for name in MEANS[:-1]:  # not nonfinite_fraction, of which the verdict tells
            value, se = getattr(self.rows, name), getattr(self.rows.se, name)
            predicted = number(getattr(self.theory.rows, name))
            table.append([_words(name), measured(value, se), predicted])
        return table

    def _scale(self, found: ScaleGradient) -> list[list[str]]:
        assert found.se is not None
        std = root(found.second_moment)
        se = found.se.second_moment / (2 * std) if std > 0 else math.nan
        heading = ["the scale of q·k", "value", "gradient's std ± s.e."]
        return [heading, ["", number(self.effect.logits), measured(std, se)]]

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
        """Draw every link and the softmax rows, and the gradients if there are any; ``path`` also
        writes it.

        Needs the extra ``plot`` (matplotlib).
        """
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
        if len(self.record.columns) != columns or self.record.maxima.size or self.record.cross:
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


def _words(name: str) -> str:
    return name.replace("_", " ")
