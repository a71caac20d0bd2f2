# SPDX-License-Identifier: BSD-3-Clause
"""Glorot & Bengio 2010, figures 6, 7 and 9: five hidden tanh layers of 1000 units, initialised by
the "standard" U(±1/√n) and by the normalised U(±√6/√(n + n)).

    python examples/glorot_bengio_2010.py glorot.png

The standard rule has n Var(W) = 1/3, so that Wᵀ shrinks the root mean square of a gradient by 1/√3:
activations shrink on the way up and gradients by h on the way down, while the gradients by W, a
product of the two, are about as large in every layer.
"""

import sys

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import initcore as ic

RULES = {"standard": "torch_linear", "normalised": "xavier_uniform"}


def main(path: str, width: int = 1000, trials: int = 40) -> dict[str, ic.Propagation]:
    """Draw the figure; the result of each rule."""
    results = {
        name: ic.propagate(
            [width] * 6, activation="tanh", init=init, batch=10, trials=trials, backward=True
        )
        for name, init in RULES.items()
    }
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = {
        "post": "activation x", "grad_pre": "gradient by h", "grad_weight": "gradient by W",
    }  # fmt: skip
    for axes, (side, title) in zip(panels, titles.items(), strict=True):
        for (name, result), colour in zip(results.items(), ("#D55E00", "#0072B2"), strict=True):
            measured, theory = getattr(result, side), getattr(result.theory, side)
            layers, std = np.arange(1, 6), np.sqrt(measured.second_moment)
            axes.errorbar(layers, std, measured.se.second_moment / (2 * std), color=colour,
                          marker="o", markersize=4, label=name)  # fmt: skip
            axes.plot(layers, np.sqrt(theory.second_moment), "k--", linewidth=0.9, zorder=3)
        axes.set(title=title, xlabel="hidden layer", yscale="log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(color="0.93")
    panels[0].set_ylabel("root mean square")
    panels[0].legend(frameon=False, title="dashed: infinite width", alignment="left")
    figure.savefig(path, dpi=200)
    return results


if __name__ == "__main__":
    for name, result in main(*(sys.argv[1:] or ["glorot_bengio_2010.png"])).items():
        down = (result.grad_post.second_moment[:-1] / result.grad_pre.second_moment[1:]) ** 0.5
        print(f"{name}, RMS: Wᵀ changes a gradient ×{down.mean():.4f}; by layer,")
        for side in ("post", "grad_pre", "grad_weight"):
            print(f"  {side:12}", *(f"{v**0.5:10.5f}" for v in getattr(result, side).second_moment))
