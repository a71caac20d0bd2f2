# SPDX-License-Identifier: BSD-3-Clause
"""``initcore propagate``: what deep chains with freshly drawn weights do to the signal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from initcore.activations import activation as activation_of
from initcore.architecture import BY_DEPTH, multiplier
from initcore.cli.common import (
    Dtype,
    JsonFile,
    Method,
    Norm,
    Seed,
    Threads,
    check_results_files,
    checked_seed,
    checked_threads,
    console,
    option,
    progress_bar,
    write_results_files,
)
from initcore.experiments.chain import compare_inits
from initcore.initializers import initializer
from initcore.results.comparison import Comparison
from initcore.results.text import text_table
from initcore.specifications import split_top_level

DEFAULT_WIDTH = 512
DEFAULT_LAYERS = 50
COMPARISON = "kaiming_normal().scaled(1.5), xavier_normal, kaiming_normal, torch_linear"


def propagate(
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Units of every layer.", show_default=str(DEFAULT_WIDTH)),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of layers.", show_default=str(DEFAULT_LAYERS)),
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Units from the input to the last layer, such as 784,512,256."
        ),
    ] = None,
    activation: Annotated[
        str, typer.Option(metavar="NAME", help='Activation, such as tanh or "leaky_relu(0.2)".')
    ] = "relu",
    init: Annotated[
        str,
        typer.Option(metavar="INIT,...", help="Initializer of the weights; several are compared."),
    ] = COMPARISON,
    bias: Annotated[
        str | None,
        typer.Option(metavar="INIT", help="Initializer of the biases.", show_default="no bias"),
    ] = None,
    norm: Annotated[
        Norm | None,
        typer.Option(help="What every layer's input goes through.", show_default="no norm"),
    ] = None,
    residual: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help='Add x to m activation(h): a number, 1/sqrt(L), or a list with a "none" or number '
            "a layer.",
            show_default="no branch",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Standard normal inputs a trial.")] = 32,
    correlation: Annotated[
        float, typer.Option(metavar="X", min=0, max=1, help="Of any two inputs.")
    ] = 0.0,
    trials: Annotated[int, typer.Option(min=1, help="Independent draws of everything.")] = 100,
    rtol: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Fewer trials, once the relative error of the last layer's second moment is X.",
            show_default="all trials",
        ),
    ] = None,
    backward: Annotated[
        bool,
        typer.Option("--backward", help="Send a standard normal gradient back down, too."),
    ] = False,
    method: Annotated[
        Method, typer.Option(help="Draw every weight, or what Gaussian weights do and none.")
    ] = Method.dense,
    seed: Seed = 0,
    dtype: Annotated[Dtype, typer.Option(help="What the chain computes in.")] = Dtype.float32,
    threads: Threads = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what was measured: .png, .svg or .pdf."),
    ] = None,
    json_file: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the verdicts.")] = False,
) -> None:
    """Send signals through deep chains with fresh weights, and measure whether they stay alive.

    Without options: ReLU, 50 layers, 512 wide, and four initializers to compare.

    Each gets a verdict: holds, decays, explodes, overflows, vanishes, saturates or, where too few
    trials carry the mean, undecided; with a norm or a residual branch it is of x and not of h.

    A layer is h = W norm(x) + b, then x = activation(h) or x + m activation(h). Initializers are
    written as in Python: kaiming_normal, "normal(std=0.05)", "xavier_uniform(gain=1.6).scaled(2)".
    """
    sizes = _widths(width, layers, widths)
    with option("--activation"):
        phi = activation_of(activation)
    with option("--init"):
        inits = [initializer(spec) for spec in split_top_level(init)]
    with option("--bias"):
        bias_init = None if bias is None else initializer(bias)
    with option("--residual"):
        multipliers = None if residual is None else _multipliers(residual, len(sizes) - 1)
    seed, threads = checked_seed(seed), checked_threads(threads)
    check_results_files(json_file, plot)

    with progress_bar("propagating", hidden=quiet) as progress:
        results = compare_inits(
            inits,
            sizes,
            activation=phi,
            bias=bias_init,
            norm=None if norm is None else str(norm),
            residual=multipliers,
            batch=batch,
            correlation=correlation,
            trials=trials,
            rtol=rtol,
            seed=seed,
            backward=backward,
            method=str(method),
            dtype=str(dtype),
            threads=threads,
            progress=progress,
        )

    write_results_files(results, json_file, plot)
    _show(results, quiet)  # last: a closed pipe must not cost the files


def _show(results: Comparison, quiet: bool) -> None:
    out = console()
    if not quiet:
        out.print(results.title)
        for result in results:
            out.print(Text(result.label, "bold"))
            for caption, rows in result.tables():
                out.print(text_table(caption, rows, ""), soft_wrap=True)
                out.print()
            notes = result.notes()
            if notes:
                out.print("\n".join(notes), soft_wrap=True)
                out.print()
    for result in results:
        out.print(Text.assemble((result.label, "bold"), " ", result.verdict), soft_wrap=True)


def _multipliers(text: str, n_layers: int) -> float | list[float | None] | None:
    items = [_multiplier(item, n_layers) for item in split_top_level(text)]
    return items[0] if len(items) == 1 else items


def _multiplier(text: str, n_layers: int) -> float | None:
    if text == "none":
        return None
    try:
        return multiplier(text if "L" in text else float(text), n_layers)
    except ValueError:
        accepted = f"a finite number, {BY_DEPTH} or none, or a list of these, one a layer"
        raise ValueError(f"{text!r} must be {accepted}") from None


def _widths(width: int | None, layers: int | None, widths: str | None) -> list[int]:
    if widths is None:
        return [width or DEFAULT_WIDTH] * ((layers or DEFAULT_LAYERS) + 1)
    with option("--widths"):
        if width is not None or layers is not None:
            raise ValueError("it already gives the layers: leave out --width and --layers")
        sizes = [int(text) if text.strip().isdecimal() else 0 for text in widths.split(",")]
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"{widths!r} must be two or more positive integers: 784,512,256")
    return sizes
