# SPDX-License-Identifier: BSD-3-Clause
"""Figures of results (extra ``plot``).

Every function builds its own ``matplotlib.figure.Figure``: no pyplot, no display, no global state,
so that it works the same in a script, a notebook, a thread and on a machine without a screen.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initcore.results.attention import AttentionPropagation
from initcore.results.chain_record import has_stream
from initcore.results.layers import QUANTILES, LayerStats, visible_shares
from initcore.results.propagation import Propagation
from initcore.results.text import plus_minus

try:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import (
        FormatStrFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
        PercentFormatter,
    )
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "plots need matplotlib: pip install 'initcore[plot]'", name=missing.name
    ) from missing

__all__ = ["SUFFIXES", "attention", "check_path", "propagation"]

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito: told apart with every kind of colour vision. Their yellow is too light for a line.
_PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_THEORY = "0.1"
_MEASURED: dict[str, Any] = {"linewidth": 1.8}
_PREDICTED: dict[str, Any] = {"color": _THEORY, "linewidth": 0.9, "linestyle": (0, (4, 3))}
_OPACITIES = (0.15, 0.25)  # of the wider and, upon it, of the narrower band
_LABEL_SIZE = 9.0  # points
_LABEL_GAP = 0.06  # of the axes' height, a little more than a line of labels takes


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a figure, its suffix checked: ValueError unless it is one of ``SUFFIXES``."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"path must end in {', '.join(SUFFIXES)}; got {str(path)!r}")
    return path


def propagation(
    results: Propagation | Sequence[Propagation], path: str | os.PathLike[str] | None = None
) -> Figure:
    """What chains do, by layer (from 1): a portrait of one result, or several compared.

    One result: the second moment of the pre-activation h, or of x where layers have a norm or a
    residual branch, on a logarithmic axis, its mean over trials with standard errors and the
    infinite-width prediction dashed, over bands that hold the middle 50 and 90 % of the networks.
    The bands are quantiles of its ratio to the second moment of a trial's input, times that of
    given inputs, or 1, which drawn ones have on average. Beside it the same of the gradient by h
    (or x) where there is a backward pass, over what enters at the top. Below, the shares of zeros
    or else of saturated pre-activations, and of dead units, where there are any; and the mean
    cosine of two inputs' pre-activations where there are two.

    Several: their second moments without bands, and below them those of the gradients.

    What is zero or overflows leaves a gap in a logarithmic axis; a cross marks where a curve ends
    early. ``path`` (.png, .svg or .pdf) also writes the figure. Returns the Figure.
    """
    if path is not None:
        path = check_path(path)
    curves = [results] if isinstance(results, Propagation) else list(results)
    if not curves:
        raise ValueError("results must hold at least one Propagation; got an empty sequence")
    figure = _portrait(curves[0]) if len(curves) == 1 else _compared(curves)
    if path is not None:
        figure.savefig(path, dpi=200)
    return figure


def attention(
    results: Sequence[AttentionPropagation], path: str | os.PathLike[str] | None = None
) -> Figure:
    """What scalings do to attention: a portrait of one result, or several compared.

    One result: the standard deviation √E[x²] of every link of the chain, from the input down to the
    output, on a logarithmic axis, and beside it the same of the gradients where there is a backward
    pass. Below, means over the softmax rows, all from 0 to 1.

    Several, a line each: on the left the logits' standard deviation in a row, on a logarithmic
    axis; on the right how many keys a row looks at, 1/Σp² as a share of the keys.

    Points are means over trials, with standard errors in a portrait; a black bar is the theory,
    where it is known. A line without a point has none to show.

    ``path`` (.png, .svg or .pdf) also writes the figure. Returns the Figure.
    """
    if path is not None:
        path = check_path(path)
    figure = _attention_portrait(results[0]) if len(results) == 1 else _scalings(results)
    if path is not None:
        figure.savefig(path, dpi=200)
    return figure


# Attention

# Means over rows that lie between 0 and 1, and what they are called.
_ROW_SHARES = {
    "max_prob": "largest p",
    "sum_sq": "Σp²",
    "jacobian_norm": "‖diag p − p pᵀ‖",
    "entropy_share": "entropy / ln keys",
    "keys_share": "effective keys / keys",
    "saturated_fraction": "rows with a p of 0.99",
}


def _attention_portrait(result: AttentionPropagation) -> Figure:
    """Every link, forward and back, and the rows of the softmax."""
    top, links = ["forward", "backward"][: 1 + (result.backward is not None)], result.links
    figure = Figure(figsize=(3.2 + 2.6 * len(top), 5.9), layout="constrained")
    layout: list[Any] = [top, ["rows"] * len(top)]
    panels = figure.subplot_mosaic(layout, height_ratios=(len(links), len(_ROW_SHARES) + 1))
    sides = [(result.forward, result.theory.forward)]
    if result.backward is not None:
        sides.append((result.backward, result.theory.backward))
    words = ["standard deviation", "standard deviation of the gradient"]
    for i, name in enumerate(top):
        axes = panels[name]
        axes.set_xscale("log")
        found, predicted = (side.std for side in sides[i])
        shown = _dots(axes, found, predicted, links, _PALETTE[1 - i])
        _decades(axes, shown)
        _lines(axes, [link.replace("_", " ") for link in links])
        axes.set_xlabel(words[i])
        axes.set_title(name, loc="left", fontsize=_LABEL_SIZE)
    axes, rows = panels["rows"], result.theory.rows
    _dots(axes, result.rows, rows, list(_ROW_SHARES), _PALETTE[2])
    _lines(axes, list(_ROW_SHARES.values()))
    axes.set_xlim(-0.02, 1.03)
    axes.set_xlabel("mean over the softmax rows")
    axes.set_title(result.outcome, loc="left", fontsize=_LABEL_SIZE)
    _attention_key(figure, "mean, ± s.e.")
    title = _fitting(result.title, figure.get_figwidth())
    figure.suptitle(title, x=0.01, ha="left", fontsize=_LABEL_SIZE, color="0.3")
    return figure


def _dots(
    axes: Axes, found: Any, predicted: Any, names: Sequence[str], colour: str
) -> NDArray[np.float64]:
    """These fields of a record, a line each, with standard errors and predictions; what shows."""
    mean, se, theory = (
        np.array([getattr(side, name) for name in names]) for side in (found, found.se, predicted)
    )
    if axes.get_xscale() == "log":
        mean, theory = _visible(mean), _visible(theory)
    places = np.arange(len(names))
    # A logarithmic axis has no room for 0: a bar that would reach it stops at mean / 10.
    low = np.maximum(mean - se, 0.1 * mean)
    barred = np.isfinite(low) & np.isfinite(mean + se)
    axes.hlines(places[barred], low[barred], (mean + se)[barred], color=colour, linewidth=1.8)
    axes.scatter(mean, places, c=colour, s=26, zorder=3)
    axes.scatter(theory, places, marker="|", c=_THEORY, s=120, zorder=4)
    return mean


def _decades(axes: Axes, values: NDArray[np.float64]) -> None:
    """Whole decades, which are what is labelled, around the values."""
    axes.xaxis.set_minor_formatter(NullFormatter())
    shown = values[np.isfinite(values)]
    if shown.size:
        decades = np.floor(np.log10(0.9 * shown.min())), np.ceil(np.log10(1.1 * shown.max()))
        axes.set_xlim(*(10.0 ** np.clip(decades, -307, 308)))


def _lines(axes: Axes, labels: list[str]) -> None:
    """A line a label, the first on top."""
    axes.set_yticks(np.arange(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _attention_key(figure: Figure, points: str) -> None:
    mark: dict[str, Any] = {"linestyle": "none"}
    handles = [
        Line2D([], [], color="0.5", marker="o", markersize=5, label=points, **mark),
        Line2D([], [], color=_THEORY, marker="|", markersize=11, label="theory", **mark),
    ]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=2, frameon=False, fontsize=_LABEL_SIZE
    )


def _scalings(results: Sequence[AttentionPropagation]) -> Figure:
    """The logits and the keys that count, of several scalings."""
    labels = [result.label for result in results]
    figure = Figure(figsize=(7.2, 1.8 + 0.3 * len(labels)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(labels))
    colours = [_PALETTE[number % len(_PALETTE)] for number in range(len(labels))]
    std, predicted, keys = (
        _visible(np.array(values))
        for values in (
            [result.rows.logit_var**0.5 for result in results],
            [result.theory.rows.logit_var**0.5 for result in results],
            [result.rows.keys_share for result in results],
        )
    )
    left.scatter(std, places, c=colours, s=36, zorder=3)
    left.scatter(predicted, places, marker="|", c=_THEORY, s=120, zorder=4)
    left.set_xscale("log")
    _decades(left, std)
    left.set_xlabel("standard deviation of a row's logits")
    right.scatter(keys, places, c=colours, s=36, zorder=3)
    right.set_xlim(0, 1.03)
    right.set_xlabel("effective keys, as a share of all")
    for axes in (left, right):
        _lines(axes, labels)
    right.tick_params(axis="y", length=0)
    _attention_key(figure, "mean")
    figure.suptitle(results[0].setting, x=0.01, ha="left", fontsize=_LABEL_SIZE, color="0.3")
    return figure


# Chains


class _Signal(NamedTuple):
    """A second moment by layer, and what is said about it."""

    name: str
    quantity: str
    stats: LayerStats
    entering: float  # the second moment that log energies are relative to
    predicted: LayerStats | None
    verdict: str


def _signals(result: Propagation) -> list[_Signal]:
    """What travels up the layers and, where there is a backward pass, down."""
    stream = has_stream(result.spec)
    signals = [
        _Signal(
            "forward",
            f"second moment of the {'stream x' if stream else 'pre-activation'}",
            result.post if stream else result.pre,
            result.input_second_moment,
            result.theory.post if stream else result.theory.pre,
            _fitted(result.outcome, result.factor, result.factor_se),
        )
    ]
    by_it = result.grad_post if stream else result.grad_pre
    if by_it is not None:
        signals.append(
            _Signal(
                "backward",
                "second moment of the gradient by it",
                by_it,
                1.0,
                result.theory.grad_post if stream else result.theory.grad_pre,
                _fitted(result.grad_outcome, result.grad_factor, result.grad_factor_se),
            )
        )
    return signals


def _fitted(outcome: str, factor: float, se: float) -> str:
    return outcome if math.isnan(factor) else f"{outcome}, ×{plus_minus(factor, se)} a layer"


def _portrait(result: Propagation) -> Figure:
    """All that is worth a look in one result."""
    signals, shares = _signals(result), visible_shares(result.layers, result.bounded)
    rows = [[signal.name for signal in signals], ["shares"] if shares else []]
    if np.isfinite(result.pre.cosine).any():
        rows[1].append("cosine")
    rows = [row for row in rows if row]
    columns = math.lcm(*map(len, rows))
    figure = Figure(figsize=(2.8 + 2.6 * columns, 1.3 + 2.3 * len(rows)), layout="constrained")
    panels = figure.subplot_mosaic(
        [np.repeat(row, columns // len(row)).tolist() for row in rows],
        height_ratios=(4, 3)[: len(rows)],
        sharex=True,
    )
    for signal, colour in zip(signals, (_PALETTE[1], _PALETTE[0]), strict=False):
        axes = panels[signal.name]
        bands = _bands(signal) if result.n_trials > 1 else []
        for band, opacity in zip(bands, _OPACITIES, strict=False):
            axes.fill_between(_layers(signal.stats), *band, color=colour, alpha=opacity, lw=0)
        _curve(axes, signal, colour)
        _log_scale(axes, [_mean(signal.stats), *(end for band in bands for end in band)])
        _words(axes, signal.quantity, f"{signal.name}: {signal.verdict}")
    for (name, values), colour in zip(shares.items(), _PALETTE[2:4], strict=False):
        panels["shares"].plot(_layers(result.pre), values, color=colour, label=name, **_MEASURED)
    if shares:
        axes = panels["shares"]
        largest = max(map(np.nanmax, shares.values()))
        axes.set_ylim(0.0, float(np.clip(1.15 * largest, 0.1, 1.03)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(frameon=False, fontsize=_LABEL_SIZE)
        _words(axes, "share")
    if "cosine" in panels:
        axes, cosine = panels["cosine"], result.pre.cosine
        se = np.nan if result.pre.se is None else result.pre.se.cosine
        _error_bars(axes, cosine, cosine - se, cosine + se, _PALETTE[5])
        axes.plot(_layers(result.pre), cosine, color=_PALETTE[5], **_MEASURED)
        axes.plot(_layers(result.pre), result.theory.pre.cosine, **_PREDICTED)
        axes.set_ylim(min(-0.05, 1.1 * np.nanmin(cosine)), 1.05)
        _words(axes, "cosine of two inputs' h")
    for axes in panels.values():
        _frame(axes, result.n_layers)
        axes.tick_params(labelbottom=True)
    for name in rows[-1]:
        panels[name].set_xlabel("layer")
    _key(panels["forward"], signals, bands=bool(bands))
    title = _fitting(result.title, figure.get_figwidth())
    figure.suptitle(title, x=0.01, ha="left", fontsize=_LABEL_SIZE, color="0.3")
    return figure


def _compared(curves: list[Propagation]) -> Figure:
    """The second moments of several results, in a panel a direction."""
    labels = [result.label for result in curves]
    backward = any(result.grad_pre is not None for result in curves)
    # Labels stand at the right of the axes, so the longest decides how much room they need.
    size = (5.6 + 0.075 * max(map(len, labels)), 6.4 if backward else 3.8)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1 + backward, sharex=True, squeeze=False)[:, 0]
    n_layers = max(result.n_layers for result in curves)
    heights: list[list[NDArray[np.float64]]] = [[] for _ in panels]
    colours = [_PALETTE[number % len(_PALETTE)] for number in range(len(curves))]
    for result, colour in zip(curves, colours, strict=True):
        for axes, shown, signal in zip(panels, heights, _signals(result), strict=False):
            _curve(axes, signal, colour)
            shown.append(_mean(signal.stats))
            _words(axes, signal.quantity)
    for axes, shown in zip(panels, heights, strict=True):
        _log_scale(axes, shown)
        _frame(axes, n_layers)
    panels[-1].set_xlabel("layer")
    _key(panels[0], [signal for result in curves for signal in _signals(result)])
    settings = {result.title.removeprefix(f"{result.label}: ") for result in curves}
    if len(settings) == 1:
        title = _fitting(settings.pop(), figure.get_figwidth() - 0.7)
        panels[0].set_title(title, loc="left", fontsize=_LABEL_SIZE, color="0.3")
    anchors = [_last(_mean(_signals(result)[0].stats)) for result in curves]
    for label, colour, height in zip(labels, colours, _spread(panels[0], anchors), strict=True):
        panels[0].annotate(
            label,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=_LABEL_SIZE,
            color=colour,
            annotation_clip=False,
        )
    return figure


def _curve(axes: Axes, signal: _Signal, colour: str) -> None:
    """A second moment, its standard errors, its prediction, and a cross where it ends early."""
    mean, layers = _mean(signal.stats), _layers(signal.stats)
    if signal.stats.se is not None:
        se = signal.stats.se.second_moment
        # A logarithmic axis has no room for 0: a bar that would reach it stops at mean / 10.
        with np.errstate(over="ignore"):
            _error_bars(axes, mean, np.maximum(mean - se, 0.1 * mean), mean + se, colour)
    axes.plot(layers, mean, color=colour, **_MEASURED)
    if signal.predicted is not None:
        # Dark, so that it shows on the very curve that it predicts.
        axes.plot(layers, _visible(signal.predicted.second_moment), **_PREDICTED)
    shown = layers[np.isfinite(mean)]
    if not shown.size:
        return
    end, goal = (shown[-1], layers[-1]) if signal.name == "forward" else (shown[0], 1)
    if mean.size == 1 or end != goal:
        marker = "o" if mean.size == 1 else "x"
        axes.plot(end, mean[end - 1], color=colour, marker=marker, markersize=5)


def _error_bars(
    axes: Axes,
    centre: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    colour: str,
) -> None:
    """Bars at some ten of the layers: at all of many they would be a band."""
    at = np.arange(centre.size)[:: -(-centre.size // 12)]
    at = at[np.isfinite(centre[at]) & np.isfinite(low[at]) & np.isfinite(high[at])]
    axes.vlines(at + 1, low[at], high[at], color=colour, linewidth=1.1)


def _bands(signal: _Signal) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Between which energies the middle 90 and 50 % of the networks lie: none where a network
    overflows, for then the quantiles are of the others alone."""
    stats = signal.stats
    with np.errstate(over="ignore"):
        energies = signal.entering * np.exp(stats.log_energy_quantiles)
    energies = _visible(np.where(stats.overflow_trials > 0, np.nan, energies))
    return [(energies[i], energies[-1 - i]) for i in range(len(QUANTILES) // 2)]


def _layers(stats: LayerStats) -> NDArray[np.int_]:
    return np.arange(1, stats.second_moment.size + 1)


def _mean(stats: LayerStats) -> NDArray[np.float64]:
    """The second moments; NaN too where some entries overflowed: the mean of the rest would lie."""
    overflowed = stats.nonfinite_fraction > 0
    return np.where(overflowed, np.nan, _visible(stats.second_moment))


def _last(mean: NDArray[np.float64]) -> float:
    """The last that is shown; NaN if none is."""
    shown = mean[np.isfinite(mean)]
    return float(shown[-1]) if shown.size else math.nan


def _visible(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values a logarithmic axis can show; NaN, which leaves a gap, for the others."""
    shown = np.isfinite(values) & (values > 0)
    return np.where(shown, values, np.nan)


def _log_scale(axes: Axes, shown: Sequence[NDArray[np.float64]]) -> None:
    """A logarithmic axis that holds what is shown."""
    axes.set_yscale("log")
    heights = np.concatenate(shown)
    heights = heights[np.isfinite(heights)]
    low, high = (np.log10(heights.min()), np.log10(heights.max())) if heights.size else (0.0, 0.0)
    # At least a factor of 4 either way, or a chain that holds would look as ragged as one that does
    # not; and more than powers of 10 to read it by.
    margin = max(0.06 * (high - low), np.log10(4.0) - (high - low) / 2)
    if high - low + 2 * margin < 2:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(10.0 ** max(low - margin, -307.0), 10.0 ** min(high + margin, 308.0))


def _words(axes: Axes, quantity: str, title: str = "") -> None:
    axes.set_ylabel(quantity)
    axes.set_title(title, loc="left", fontsize=_LABEL_SIZE)


def _frame(axes: Axes, n_layers: int) -> None:
    axes.set_xlim((1, n_layers) if n_layers > 1 else (0.5, 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _fitting(text: str, inches: float) -> str:
    """In as many lines of labels as it takes."""
    return textwrap.fill(text, max(int(inches / 0.068), 20))


def _key(axes: Axes, signals: Sequence[_Signal], *, bands: bool = False) -> None:
    """The key to the kinds of line, and of band."""
    handles: list[Artist] = [
        Line2D([], [], color="0.5", label="mean, ± s.e.", **_MEASURED),
        Line2D([], [], label="infinite width", **_PREDICTED),
    ]
    if bands:
        handles += [
            Patch(color="0.4", alpha=alpha, linewidth=0, label=f"middle {share} % of networks")
            for share, alpha in ((50, sum(_OPACITIES)), (90, _OPACITIES[0]))
        ]
    axes.legend(handles=handles, loc="best", frameon=False, fontsize=_LABEL_SIZE)


def _spread(axes: Axes, anchors: list[float]) -> list[float]:
    """Heights of the labels, in axes fractions: beside their curves, but never touching.

    The nearest heights at least ``_LABEL_GAP`` apart, by least squares (adjacent violators pooled).
    """
    low, high = np.log10(axes.get_ylim())
    wanted = [0.0 if math.isnan(y) else float((np.log10(y) - low) / (high - low)) for y in anchors]
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    blocks: list[tuple[float, int]] = []  # mean of (wanted height - rank * gap), number of labels
    for rank, number in enumerate(order):
        mean, size = wanted[number] - rank * _LABEL_GAP, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (other * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    offsets = [mean for mean, size in blocks for _ in range(size)]
    heights = {number: offsets[rank] + rank * _LABEL_GAP for rank, number in enumerate(order)}
    return [heights[number] for number in range(len(anchors))]
