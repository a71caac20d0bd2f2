# SPDX-License-Identifier: BSD-3-Clause
"""Scalings side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from initcore.results.attention import AttentionPropagation
from initcore.results.attention_links import root
from initcore.results.monte_carlo import Saved
from initcore.results.records import plain
from initcore.results.text import html_table, number, share, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
                row.append(number(root(result.backward.q), 3))
            row.append(f"×{seconds / base:.2f}")
            table.append(row)
        return table

    def verdicts(self) -> list[str]:
        """A line a scaling: its verdict, and its gradient beside the first comfortable one's."""
        base, lines = self.reference, []
        for result in self:
            line = f"{result.label} {result.verdict}"
            if base is not None and base.backward and result.backward and result is not base:
                ratio = root(result.backward.q / base.backward.q) if base.backward.q else math.nan
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
