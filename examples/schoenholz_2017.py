# SPDX-License-Identifier: BSD-3-Clause
"""Schoenholz et al. 2017, figures 2 and 5: how deep signals and gradients reach in tanh networks of
σ_b² = 0.05, on either side of the edge of chaos.

    python examples/schoenholz_2017.py schoenholz.png

Two nearly parallel inputs come together (order) or part (chaos) by a factor χ a layer, gradients
change by χ on their way back: both over |ξ_c| = 1/|ln χ| layers. E[h²] settles over ξ_q layers.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import initcore as ic

B2, W2S = 0.05, (0.9, 1.2, 1.5, 1.65, 1.9, 2.2, 3.0, 4.0)
FIRST, LAST = 7, 17  # indices of layers between which rates are taken, once E[h²] has settled


def scale(stats: ic.LayerStats, name: str, limit: float) -> tuple[float, float]:
    """Layers over which a statistic goes to its limit, or from it, by e; and the standard error."""
    ends = np.abs(getattr(stats, name)[[FIRST, LAST]] - limit)
    error = np.hypot(*(getattr(stats.se, name)[[FIRST, LAST]] / ends)) / (LAST - FIRST)
    rate = np.log(ends[1] / ends[0]) / (LAST - FIRST)
    return 1 / abs(rate), error / rate**2


def main(
    path: str, width: int = 300, trials: int = 120, w2s: tuple[float, ...] = W2S
) -> np.ndarray:
    """Draw the figure; by σ_w² the scales of cosine, gradient and E[h²], and standard errors."""
    rows = []
    for w2 in w2s:
        options = {
            "activation": "tanh", "init": f"lecun_normal().scaled({w2**0.5!r})",
            "bias": f"normal(std={B2**0.5!r})", "dtype": "float64",
        }  # fmt: skip
        apart = {"batch": 2, "correlation": 1 - 1e-6, "backward": True, "trials": trials}
        result = ic.propagate([width] * 20, **apart, **options)
        scales = [scale(result.pre, "cosine", 1.0), scale(result.grad_pre, "second_moment", 0.0)]
        # The same networks for inputs 1 % apart in energy, about q*: their noise is common.
        energy = (ic.theory.fixed_point("tanh", w2, B2).q - B2) / w2
        x = ic.normal(energy**0.5)((64, width), seed=0, name="x", dtype="float64")
        rates = []
        for group in (range(start, start + trials // 4) for start in range(0, trials, trials // 4)):
            low, high = (
                ic.propagate([width] * 4, x=x * s, trials=group, **options).pre.second_moment
                for s in (1.0, 1.005)
            )
            rates.append(np.log((high - low)[0] / (high - low)[2]) / 2)
        rows.append(
            [
                *scales,
                (
                    1 / np.mean(rates),
                    np.std(rates, ddof=1) / len(rates) ** 0.5 / np.mean(rates) ** 2,
                ),
            ]
        )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    fine = np.linspace(w2s[0], w2s[-1], 400)
    points = [ic.theory.fixed_point("tanh", w2, B2) for w2 in fine]
    axes.plot(fine, [abs(point.xi_c) for point in points], "k--", linewidth=0.9, label="theory")
    axes.plot(fine, [point.xi_q for point in points], "k--", linewidth=0.9)
    looks = {"|ξ_c| of 1 − cosine": "oC0", "|ξ_c| of gradients": "sC1", "ξ_q of E[h²]": "^C2"}
    for (label, look), column in zip(looks.items(), np.moveaxis(np.array(rows), 1, 0), strict=True):
        axes.errorbar(w2s, *column.T, fmt=look, markersize=5, label=label)
    axes.axvline(ic.theory.critical("tanh", B2).sigma_w2, color="0.8", zorder=0)
    axes.set(xlabel="σ_w²  (order | chaos)", ylabel="layers", yscale="log", ylim=(0.5, 100))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)
    return np.array(rows)


if __name__ == "__main__":
    print("σ_w²   |ξ_c| of 1 − cosine   |ξ_c| of gradients   ξ_q of E[h²]")
    for w2, row in zip(W2S, main(*(sys.argv[1:] or ["schoenholz_2017.png"])), strict=True):
        print(f"{w2:4}", *(f"{value:12.3f} ± {error:.3f}" for value, error in row))
