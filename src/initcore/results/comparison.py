# SPDX-License-Identifier: BSD-3-Clause
"""Several initializers on common random numbers, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from initcore.results.chain_record import second_moment
from initcore.results.monte_carlo import Saved
from initcore.results.propagation import Propagation, setting
from initcore.results.text import chosen_layers, html_table, measured, text_table, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
            sums = [second_moment(result.record, self[0].n_layers, side, layer) for result in self]
            rows.append([str(layer), *(measured(s.mean(), s.standard_error()) for s in sums)])
        return rows

    @property
    def title(self) -> str:
        """A line that says what was run, but for the initializers."""
        return setting(*self)

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
