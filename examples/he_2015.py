# SPDX-License-Identifier: BSD-3-Clause
"""He et al. 2015, figures 2 and 3: ReLU layers, 22 and 30 of them, under Kaiming's and Xavier's
initialisation.

    python examples/he_2015.py he.png

Xavier's rule forgets that ReLU stops half of the signal: a factor 1/2 a layer is 2⁻²¹ from the
first layer to the last of one network and 2⁻²⁹ of the other, which did not train, forward and
backward alike.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import initcore as ic

INITS = {"kaiming_normal": "#0072B2", "xavier_normal": "#D55E00"}


def main(path: str, width: int = 512, trials: int = 50) -> dict[int, ic.Comparison]:
    """Draw the figure; the results of both rules by the number of layers."""
    results = {
        n_layers: ic.compare_inits(
            list(INITS), [width] * (n_layers + 1), batch=16, trials=trials, backward=True
        )
        for n_layers in (22, 30)
    }
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, (n_layers, pair) in zip(panels, results.items(), strict=True):
        layers = np.arange(1, n_layers + 1)
        for axes, side, title in zip(row, ("pre", "grad_pre"), ("h", "∂/∂h"), strict=True):
            for result, (name, colour) in zip(pair, INITS.items(), strict=True):
                measured, theory = getattr(result, side), getattr(result.theory, side)
                axes.errorbar(layers, measured.second_moment, measured.se.second_moment, fmt="o",
                              color=colour, markersize=3.5, label=name)  # fmt: skip
                axes.plot(layers, theory.second_moment, "k--", linewidth=0.9, zorder=3)
            axes.set_title(f"{n_layers} layers: second moment of {title}", size=10)
            axes.set(xlim=(0, 31), yscale="log")
            axes.grid(axis="y", color="0.9")
    for axes in panels[1]:
        axes.set_xlabel("layer")
    panels[0][0].legend(frameon=False, title="dashed: infinite width", alignment="left")
    figure.savefig(path, dpi=200)
    return results


if __name__ == "__main__":
    for n_layers, pair in main(*(sys.argv[1:] or ["he_2015.png"])).items():
        for result in pair:
            energies, gradients = result.pre.second_moment, result.grad_pre.second_moment
            up, down = energies[-1] / energies[0], gradients[0] / gradients[-1]
            print(f"{n_layers} layers, {result.label}: "
                  f"E[h²] ×{result.factor:.4f} ± {result.factor_se:.4f} a layer, "
                  f"×{up:.3g} from layer 1 to {n_layers}; gradient "
                  f"×{result.grad_factor:.4f} ± {result.grad_factor_se:.4f}, "
                  f"×{down:.3g} from layer {n_layers} to 1")  # fmt: skip
