# SPDX-License-Identifier: BSD-3-Clause
"""Figures of results (extra ``plot``).

Every function builds its own ``matplotlib.figure.Figure``: no pyplot, no display, no global state,
so that it works the same in a script, a notebook, a thread and on a machine without a screen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from initcore.results.attention import AttentionPropagation
from initcore.results.layers import LayerStats
from initcore.results.propagation import Propagation

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, NullFormatter
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "plots need matplotlib: pip install 'initcore[plot]'", name=missing.name
    ) from missing

__all__ = ["SUFFIXES", "attention", "check_path", "propagation"]

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito: told apart with every kind of colour vision. Their yellow is too light for a line.
_PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_THEORY = "0.1"
_DASHED = (0, (4, 3))
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
    """Second moment of the pre-activation by layer, for one result or several side by side.

    Layers (from 1) run along the horizontal axis, E[h²] along a logarithmic one, with a band of one
    standard error over trials and the infinite-width prediction dashed; dotted, that of the
    gradient by h where there is a backward pass. A layer that is zero or overflows leaves a gap; a
    cross marks the last layer of a curve that ends early.

    ``path`` (.png, .svg or .pdf) also writes the figure. Returns the Figure.
    """
    if path is not None:
        path = check_path(path)
    curves = [results] if isinstance(results, Propagation) else list(results)
    if not curves:
        raise ValueError("results must hold at least one Propagation; got an empty sequence")

    labels = [result.label for result in curves]
    # Labels stand at the right of the axes, so the longest decides how much room they need.
    figure = Figure(figsize=(5.6 + 0.075 * max(map(len, labels)), 3.8), layout="constrained")
    axes = figure.subplots()
    colours = [_PALETTE[number % len(_PALETTE)] for number in range(len(curves))]
    anchors = [_curve(axes, *curve) for curve in zip(curves, colours, strict=True)]
    _frame(axes, curves)
    heights = _spread(axes, anchors)
    for label, colour, height in zip(labels, colours, heights, strict=True):
        axes.annotate(
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
    if path is not None:
        figure.savefig(path, dpi=200)
    return figure


def attention(
    results: Sequence[AttentionPropagation], path: str | os.PathLike[str] | None = None
) -> Figure:
    """What one or several scalings do to the softmax rows, a line each, theory as a bar.

    On the left the logits' standard deviation in a row, on a logarithmic axis; on the right how
    many keys a row looks at, 1/Σp² as a share of the keys. A line without a point has none to show.

    ``path`` (.png, .svg or .pdf) also writes the figure. Returns the Figure.
    """
    if path is not None:
        path = check_path(path)
    labels = [result.label for result in results]
    figure = Figure(figsize=(7.2, 1.5 + 0.3 * len(labels)), layout="constrained")
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
    left.xaxis.set_minor_formatter(NullFormatter())
    shown = std[np.isfinite(std)]
    if shown.size:  # whole decades, which are what is labelled
        decades = np.floor(np.log10(0.9 * shown.min())), np.ceil(np.log10(1.1 * shown.max()))
        left.set_xlim(*(10.0 ** np.clip(decades, -307, 308)))
    left.set_xlabel("standard deviation of a row's logits")
    left.set_yticks(places, labels)
    left.invert_yaxis()
    right.scatter(keys, places, c=colours, s=36, zorder=3)
    right.set_xlim(0, 1.03)
    right.set_xlabel("effective keys, as a share of all")
    right.tick_params(axis="y", length=0)
    for axes in (left, right):
        axes.grid(axis="x", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(results[0].setting, x=0.01, ha="left", fontsize=_LABEL_SIZE, color="0.3")
    if path is not None:
        figure.savefig(path, dpi=200)
    return figure


def _curve(axes: Axes, result: Propagation, colour: str) -> float:
    """Draw one result; return the last second moment shown (NaN if none), its label's place."""
    mean = _mean(result.pre)
    layers = np.arange(1, mean.size + 1)
    sides: list[tuple[LayerStats, LayerStats | None, str]] = [(result.pre, result.theory.pre, "-")]
    if result.grad_pre is not None:
        sides.append((result.grad_pre, result.theory.grad_pre, ":"))
    for stats, predicted, style in sides:
        centre = _mean(stats)
        if stats.se is not None:
            error = np.nan_to_num(stats.se.second_moment, nan=0.0, posinf=0.0)
            # A logarithmic axis has no room for 0: a band that would reach it stops at mean / 10.
            lower = np.maximum(centre - error, 0.1 * centre)
            with np.errstate(over="ignore"):
                upper = _visible(centre + error)
            axes.fill_between(layers, lower, upper, color=colour, alpha=0.2, linewidth=0)
        axes.plot(layers, centre, color=colour, linewidth=1.8, linestyle=style)
        if predicted is not None:
            # Dark, so that it shows on the very curve that it predicts.
            theory = _visible(predicted.second_moment)
            axes.plot(layers, theory, color=_THEORY, linewidth=0.9, linestyle=_DASHED)
    shown = np.flatnonzero(np.isfinite(mean))
    if not shown.size:
        return math.nan
    last = shown[-1]
    if last + 1 < mean.size or mean.size == 1:
        marker = "o" if mean.size == 1 else "x"
        axes.plot(layers[last], mean[last], color=colour, marker=marker, markersize=5)
    return float(mean[last])


def _mean(stats: LayerStats) -> NDArray[np.float64]:
    """The second moments; NaN too where some entries overflowed: the mean of the rest would lie."""
    overflowed = stats.nonfinite_fraction > 0
    return np.where(overflowed, np.nan, _visible(stats.second_moment))


def _visible(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values a logarithmic axis can show; NaN, which leaves a gap, for the others."""
    shown = np.isfinite(values) & (values > 0)
    return np.where(shown, values, np.nan)


def _frame(axes: Axes, curves: list[Propagation]) -> None:
    """Axes, their limits and words, and the key to the kinds of line."""
    axes.set_yscale("log")
    gradients = [result.grad_pre for result in curves if result.grad_pre is not None]
    heights = np.concatenate([_mean(stats) for stats in [*(r.pre for r in curves), *gradients]])
    heights = heights[np.isfinite(heights)]
    if heights.size:
        # At least two decades, or a chain that holds would look as ragged as one that does not.
        low, high = np.log10(heights.min()), np.log10(heights.max())
        margin = max(0.06 * (high - low), (2.0 - (high - low)) / 2)
        axes.set_ylim(10.0 ** max(low - margin, -307.0), 10.0 ** min(high + margin, 308.0))
    n_layers = max(result.pre.second_moment.size for result in curves)
    axes.set_xlim((1, n_layers) if n_layers > 1 else (0.5, 1.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_ylabel("second moment of the pre-activation")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    setting = {result.title.removeprefix(f"{result.label}: ") for result in curves}
    if len(setting) == 1:
        axes.set_title(setting.pop(), loc="left", fontsize=_LABEL_SIZE, color="0.3")
    measured = Line2D([], [], color="0.5", linewidth=1.8, label="measured, ± s.e.")
    theory = Line2D([], [], color=_THEORY, linewidth=0.9, linestyle=_DASHED, label="infinite width")
    handles = [measured, theory]
    if gradients:
        handles.append(
            Line2D([], [], color="0.5", linewidth=1.8, linestyle=":", label="gradient by it")
        )
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
