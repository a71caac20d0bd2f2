# SPDX-License-Identifier: BSD-3-Clause
"""The table of chosen layers that ``propagate`` and ``chain`` show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from initcore.results.layers import ChainLayers, LayerStats
from initcore.results.text import chosen_layers, number


def layer_table(
    title: str,
    layers: ChainLayers,
    *,
    theory: ChainLayers | None = None,
    names: Sequence[str] | None = None,
) -> Table:
    """A row a chosen layer: its pre-activation h first, then its activation x.

    ``theory`` adds the predicted second moment of h; ``names`` stand in for the layers' numbers,
    and then no layer is left out. Then the share of zeros among x where there are any, otherwise
    the share of saturated h, and the gradient by h where there is one.
    """
    pre, post, gradient = layers.pre, layers.post, layers.grad_pre
    zeros = bool(np.any(post.zero_fraction > 0))
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("layer", justify="left" if names else "right", no_wrap=True)
    headings = ["E[h²]"]
    headings += [] if pre.se is None else ["± s.e."]
    headings += [] if theory is None else ["predicted q"]
    headings += ["E[x²]", "mean x", "var x", "x = 0" if zeros else "saturated"]
    if gradient is not None:
        headings += ["E[(∂/∂h)²]"]
        headings += [] if gradient.se is None else ["± s.e."]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)

    n_layers = pre.second_moment.size
    shares = post.zero_fraction if zeros else pre.saturated_fraction
    for layer in range(1, n_layers + 1) if names else chosen_layers(n_layers):
        index = layer - 1
        cells = [names[index] if names else str(layer), _cell(pre, "second_moment", index)]
        if pre.se is not None:
            large = 100 <= pre.se.second_moment[index] < 1e4  # no exponent for want of digits
            cells.append(_cell(pre.se, "second_moment", index, digits=4 if large else 2))
        if theory is not None:
            cells.append(_cell(theory.pre, "second_moment", index))
        cells += [_cell(post, name, index) for name in ("second_moment", "mean", "variance")]
        cells.append("-" if np.isnan(shares[index]) else f"{100 * shares[index]:.1f} %")
        if gradient is not None:
            cells.append(_cell(gradient, "second_moment", index))
            if gradient.se is not None:
                cells.append(_cell(gradient.se, "second_moment", index, digits=2))
        table.add_row(*cells)
    return table


def _cell(stats: LayerStats, name: str, index: int, digits: int = 4) -> str:
    # What is left where some entries overflowed is no statistic of the layer.
    if stats.nonfinite_fraction[index] > 0:
        return "overflow"
    return number(getattr(stats, name)[index], digits)
