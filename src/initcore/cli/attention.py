# SPDX-License-Identifier: BSD-3-Clause
"""``initcore attention``: what the scalings do to the softmax, for the sizes of a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from initcore.cli.common import (
    JsonFile,
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
from initcore.experiments.attention import compare_scalings
from initcore.initializers import initializer
from initcore.results.scaling_comparison import ScalingComparison
from initcore.results.text import text_table
from initcore.scaling import scaling as scaling_of
from initcore.specifications import non_negative_number, split_top_level

COMPARISON = "sqrt_dk, dk, sqrt_dmodel, absorbed, learned, qk_norm, none"


class Norm(StrEnum):
    """What may stand before the products."""

    rms = "rms"
    layer = "layer"
    none = "none"


def attention(
    d_model: Annotated[int, typer.Option(min=1, help="Features of a token.")] = 512,
    heads: Annotated[int, typer.Option(min=1, help="Number of heads.")] = 8,
    seq: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 128,
    d_k: Annotated[
        int | None,
        typer.Option(min=1, help="Features of a head.", show_default="d_model/heads"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences a trial.")] = 1,
    scaling: Annotated[
        str, typer.Option(metavar="SCALING,...", help="Scaling; several are compared.")
    ] = COMPARISON,
    init: Annotated[
        str,
        typer.Option(metavar="INIT,...", help="Initializer of the weights, or four: q, k, v, o."),
    ] = "xavier_normal",
    norm: Annotated[Norm, typer.Option(help="Norm of the tokens.")] = Norm.rms,
    x_std: Annotated[
        float, typer.Option(metavar="X", help="Standard deviation of the tokens.")
    ] = 1.0,
    correlation: Annotated[
        float, typer.Option(metavar="X", min=0, max=1, help="Of any two tokens of a sequence.")
    ] = 0.0,
    causal: Annotated[bool, typer.Option("--causal", help="No key after its query.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="The gradients, too.")] = False,
    trials: Annotated[int, typer.Option(min=1, help="Independent draws of everything.")] = 50,
    seed: Seed = 0,
    threads: Threads = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what is measured: .png, .svg or .pdf."),
    ] = None,
    json_file: JsonFile = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the verdicts.")] = False,
) -> None:
    """Send random tokens through attention with fresh weights, and measure its softmax.

    Each scaling gets a row, the theory of independent logits beside what is measured, and a
    verdict: comfortable, saturated or uniform. One alone gets every link of the chain, and of the
    gradients. "logit var" is the variance within a row, "effective keys" the mean of 1/Σp², and
    the scale's gradient sums over all heads and rows.

    Scalings are written as in Python: sqrt_dk, "constant(0.1)", "qk_norm('l2', g=10)", "mup(64)".
    """
    with option("--scaling"):
        scalings = [scaling_of(spec) for spec in split_top_level(scaling)]
    with option("--init"):
        inits = [initializer(spec) for spec in split_top_level(init)]
        if len(inits) not in (1, 4):
            raise ValueError(f"it must be one or four, for q, k, v and o; got {len(inits)}")
    if d_k is None and d_model % heads:
        with option("--heads"):
            raise ValueError(f"{heads} does not divide --d-model {d_model}: give --d-k")
    with option("--x-std"):
        non_negative_number("x_std", x_std)
    seed, threads = checked_seed(seed), checked_threads(threads)
    check_results_files(json_file, plot)

    with progress_bar("attending", hidden=quiet) as progress:
        results = compare_scalings(
            scalings,
            d_model=d_model,
            n_heads=heads,
            seq=seq,
            d_k=d_k,
            batch=batch,
            init=inits if len(inits) > 1 else inits[0],
            norm=None if norm is Norm.none else str(norm),
            x_std=x_std,
            correlation=correlation,
            causal=causal,
            backward=backward,
            trials=trials,
            seed=seed,
            threads=threads,
            progress=progress,
        )

    write_results_files(results, json_file, plot)
    _show(results, quiet)  # last: a closed pipe must not cost the files


def _show(results: ScalingComparison, quiet: bool) -> None:
    out = console()
    if not quiet:
        first = results[0]
        tables = [results.table()] if len(results) > 1 else first.tables()
        for i, table in enumerate(tables):
            out.print(text_table("" if i else first.setting, table, ""), soft_wrap=True)
            out.print()
    for result, words in zip(results, results.verdicts(), strict=True):
        rest = words.removeprefix(result.label)
        out.print(Text.assemble((result.label, "bold"), rest), soft_wrap=True)
