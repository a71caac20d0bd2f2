# SPDX-License-Identifier: BSD-3-Clause
"""``initcore gain``: the table of gains."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from initcore.activations import ACTIVATIONS, Activation, activation
from initcore.cli.common import console, option
from initcore.gains import gain as gain_of
from initcore.specifications import split_top_level

CONVENTIONS = ("second_moment", "variance", "backward", "fixed_point", "torch")


def gain(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help='Activations, such as gelu or "leaky_relu(0.2)".',
            show_default="every built-in",
        ),
    ] = None,
    convention: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="The conventions to show."),
    ] = ",".join(CONVENTIONS),
) -> None:
    """Show the gain of each activation, in each convention.

    Weights of standard deviation gain / sqrt(fan_in) keep, for a standard normal pre-activation:
    second_moment, that of the activation at 1; variance, its variance at 1; backward, the gradient.
    fixed_point is the gain at which a deep chain settles with activations of second moment 1;
    torch is what torch.nn.init.calculate_gain returns. A dash: there is none.
    """
    with option("NAME"):
        chosen = [activation(name) for name in (names or ACTIVATIONS)]
    with option("--convention"):
        columns = split_top_level(convention)
        for name in columns:
            if name not in CONVENTIONS:
                raise ValueError(f"{name!r} is not one of {', '.join(CONVENTIONS)}")

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("activation", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for one in chosen:
        table.add_row(str(one), *(_text(one, name) for name in columns))
    console().print(table)


def _text(one: Activation, convention: str) -> str:
    try:
        return f"{gain_of(one, convention):#.11g}"
    except ValueError:  # no fixed point, or an activation torch has no gain for
        return "-"
