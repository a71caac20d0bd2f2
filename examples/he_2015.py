# SPDX-License-Identifier: BSD-3-Clause
"""He et al. 2015, figures 2 and 3: ReLU layers, 22 and 30 of them, under Kaiming's and Xavier's
initialisation.

    python examples/he_2015.py he.png

Xavier's rule forgets that ReLU stops half of the signal: a factor 1/2 a layer is 2⁻²² over one
network and 2⁻³⁰, which did not train, over the other, forward and backward alike.
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
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, side, title in zip(panels, ("pre", "grad_pre"), ("h", "∂/∂h"), strict=True):
        for (n_layers, pair), style in zip(results.items(), ("--", "-"), strict=True):
            for result, (name, colour) in zip(pair, INITS.items(), strict=True):
                values = getattr(result, side).second_moment
                axes.plot(np.arange(1, n_layers + 1), values, style, color=colour, linewidth=1.6,
                          label=f"{name}, {n_layers} layers")  # fmt: skip
        axes.set(title=f"second moment of {title}", xlabel="layer", yscale="log", xlim=(1, 30))
        axes.title.set_size(10)
        axes.grid(axis="y", color="0.9")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=200)
    return results


if __name__ == "__main__":
    for n_layers, pair in main(*(sys.argv[1:] or ["he_2015.png"])).items():
        for result in pair:
            energies, gradients = result.pre.second_moment, result.grad_pre.second_moment
            print(f"{n_layers} layers, {result.label}: "
                  f"E[h²] ×{result.factor:.4f} ± {result.factor_se:.4f} a layer, "
                  f"{energies[-1] / energies[0]:.3g} in all; gradient "
                  f"×{result.grad_factor:.4f} ± {result.grad_factor_se:.4f}, "
                  f"{gradients[0] / gradients[-1]:.3g} in all")  # fmt: skip
