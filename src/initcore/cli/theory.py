# SPDX-License-Identifier: BSD-3-Clause
"""``initcore theory``: where a wide chain of an activation settles, and how close to the edge."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.table import Table

from initcore.activations import activation as activation_of
from initcore.cli.common import JsonFile, check_output, console, option
from initcore.results.records import plain, save
from initcore.results.text import number
from initcore.specifications import non_negative_number
from initcore.theory import Critical, FixedPoint, critical, fixed_point
from initcore.theory.expectations import nonlinearity


def theory(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help='An activation: tanh, "leaky_relu(0.2)".')
    ],
    sigma_w2: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="n_in Var(W), gain squared.", show_default="the edge of chaos"
        ),
    ] = None,
    sigma_b2: Annotated[float, typer.Option(metavar="X", help="Var(b) of the biases.")] = 0.0,
    json_file: JsonFile = None,
) -> None:
    """Show the fixed point of a wide chain, its depth scales, and the edge of chaos.

    q* is where the second moment of the pre-activations settles, from 1. chi is the factor a layer
    of gradients and of small differences between inputs there: below 1 both vanish (order), above 1
    both explode (chaos). xi_q and xi_c are the depths, in layers, over which a deviation from q*
    and a small difference between inputs shrink, or grow, by e. Without --sigma-w2, q* is that of
    the edge of chaos; a chain leaves it where it is unstable, and it is said where to.
    """
    with option("NAME"):
        phi = activation_of(name)
    check_output("--json", json_file)
    edge: Critical | None = None
    with option("--sigma-b2"):
        non_negative_number("sigma_b2", sigma_b2)
    with option("--sigma-w2"):
        try:
            edge = critical(phi, sigma_b2)
        except ValueError as error:
            if sigma_w2 is None:  # otherwise there is a fixed point to show all the same
                raise ValueError(f"it must be given: {error}") from error
    at = edge.sigma_w2 if sigma_w2 is None and edge else sigma_w2
    assert at is not None
    with option("--sigma-w2"):
        found = fixed_point(phi, at, sigma_b2)
    at_edge = edge and fixed_point(phi, edge.sigma_w2, sigma_b2, q=edge.q)

    if json_file is not None:
        record = {
            "format": "initcore.theory",
            "version": 1,
            "activation": str(phi),
            "sigma_w2": at,
            "sigma_b2": sigma_b2,
            "fixed_point": found.to_dict(),
            "critical": None if edge is None else plain(edge._asdict()),
            "critical_point": at_edge and at_edge.to_dict(),
        }
        with option("--json"):
            save(json_file, record)
    out = console()
    shown = at_edge if sigma_w2 is None and at_edge else found
    if shown.stable:
        settles = "stable"
    elif nonlinearity(phi).homogeneous_slope is not None and sigma_b2 == 0.0:
        settles = "on the margin: every q is a fixed point, where it stays"
    elif shown.xi_q < 0.0:
        settles = f"unstable: a deviation grows ×{number(math.exp(-1.0 / shown.xi_q))} a layer"
    else:
        settles = "on the margin: q drifts"
    reached = _same(shown.q, found.q)
    if reached and not 0.0 < found.q < math.inf:
        settles = _goes(found)
    out.print(_table(f"{phi}, σ_w² = {at:.9g}, σ_b² = {sigma_b2:.9g}", shown, settles))
    if not reached:
        out.print(f"from q = 1 a chain goes elsewhere: {_goes(found)}, χ = {number(found.chi, 10)}")
    out.print(_edge_line(edge, sigma_b2))
    if edge and reached and not _same(edge.q, fixed_point(phi, edge.sigma_w2, sigma_b2).q):
        out.print("  from q = 1 a chain goes elsewhere there")


def _same(a: float, b: float) -> bool:
    """Whether two ways to a fixed point came to one."""
    return math.isclose(a, b, rel_tol=1e-6)


def _goes(found: FixedPoint) -> str:
    if found.q == math.inf:
        return "the signal grows without bound"
    if found.q == 0.0:
        return "the signal dies out"
    return f"it settles at q = {number(found.q, 10)}"


def _table(title: str, found: FixedPoint, settles: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False,
        show_header=False,
    )  # fmt: skip
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    if abs(found.xi_c) == math.inf:
        phase = "the edge of chaos: gradients and differences between inputs keep their size"
    elif found.chi < 1.0:
        phase = "order: gradients vanish, inputs become alike"
    else:
        phase = "chaos: gradients explode, inputs become unlike"
    table.add_row("q*", number(found.q, 10), settles)
    table.add_row("χ", number(found.chi, 10), phase)
    _scale_row(table, "ξ_q", "a deviation from q*", found.xi_q, found.q == math.inf)
    _scale_row(table, "ξ_c", "a small difference", found.xi_c, found.chi > 1.0)
    return table


def _scale_row(table: Table, name: str, what: str, scale: float, grows: bool) -> None:
    if scale == math.inf:
        words = f"{what} neither shrinks nor grows by a factor a layer"
    else:
        words = f"layers over which {what} {'grows' if grows or scale < 0.0 else 'shrinks'} by e"
    table.add_row(name, number(abs(scale)), words)


def _edge_line(edge: Critical | None, sigma_b2: float) -> str:
    at = f"edge of chaos at σ_b² = {sigma_b2:.9g}: "
    if edge is None:
        return at + "none"
    gain = number(math.sqrt(edge.sigma_w2), 10)
    return at + f"σ_w² = {number(edge.sigma_w2, 10)} (gain {gain}), q* = {number(edge.q, 10)}"
