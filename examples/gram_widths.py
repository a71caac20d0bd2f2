# SPDX-License-Identifier: BSD-3-Clause
"""Widths whose weights would not fit: 100 ReLU layers of a million units by method="gram".

    python examples/gram_widths.py widths.png

A layer of 10⁶ × 10⁶ weights would take 4 terabytes; given its inputs, a Gaussian layer's outputs
need none of them. Drawn: the spread of ln E[x²] over networks, of one input, against the width,
beside its exact law (Hanin & Nica 2019), about 5 layers/width. The last width has four trials
and a wide interval. Printed: the time of a trial and the peak memory, of each width.
"""

import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from matplotlib.figure import Figure

import initcore as ic

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None


def peak_megabytes() -> float:
    """The peak memory of this process so far; NaN where the system does not say."""
    if resource is None:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, else kilobytes


def propagate(width: int, n_layers: int, batch: int, trials: int) -> tuple[float, float, float]:
    """Variance of ln E[x²] over trials; seconds; peak memory of this process in megabytes."""
    start = time.perf_counter()
    result = ic.propagate([width] * (n_layers + 1), batch=batch, trials=trials, method="gram")
    seconds = time.perf_counter() - start
    return float(result.post.log_energy_var[-1]), seconds, peak_megabytes()


def interval(degrees: int) -> np.ndarray:
    """How far below and above a variance, in its units, the true one is with probability 68 %: from
    the χ² law of that of normal numbers, by Wilson and Hilferty's approximation."""
    spread = 2 / (9 * degrees)
    return np.abs(1 / (1 - spread + np.array([1, -1]) * spread**0.5) ** 3 - 1)


def main(path: str, widths: tuple[int, ...] = (64, 1024, 16384, 65536, 10**6), n_layers: int = 100,
         work: int = 10**6) -> list[float]:  # fmt: skip
    """Print what each width took and draw the figure; the variances at batch 1.

    ``work`` is the number of units, in all trials, of which the number of trials follows.
    """
    variances, errors = [], []
    for width, batch in [*((width, 1) for width in widths), (min(65536, widths[-1]), 32)]:
        trials = min(max(work // width // batch, 4), 2000)
        # A process of its own, so that its peak is that of this width.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            variance, seconds, memory = pool.submit(
                propagate, width, n_layers, batch, trials
            ).result()
        print(f"width {width:8}, {n_layers} layers, batch {batch:2}: "
              f"{seconds / trials:7.3f} s a trial, {memory:5.0f} MB at most")  # fmt: skip
        if batch == 1:
            variances.append(variance)
            errors.append(variance * interval(trials - 1))
    theory = [ic.theory.log_energy("relu", [width] * (n_layers + 1)).var for width in widths]
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(widths, variances, np.transpose(errors), fmt="o", color="#0072B2",
                  label="gram, 68 % interval")  # fmt: skip
    axes.plot(widths, theory, "k--", linewidth=0.9, label="exact law")
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel="variance of ln E[x²]")
    axes.legend(frameon=False, title=f"{n_layers} ReLU layers, one input", alignment="left")
    figure.savefig(path, dpi=200)
    return variances


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["gram_widths.png"]))
