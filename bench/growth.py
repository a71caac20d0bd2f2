# SPDX-License-Identifier: BSD-3-Clause
"""How the cost of an experiment grows with width, depth, batch, trials and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

import initcore as ic

from .measure import FULL, MS, OURS, Case, Contender, Result, Settings, require

NAME = "growth"
_BASE = {"width": 64, "layers": 10, "batch": 64, "trials": 32, "threads": 1}
CAPTION = "`propagate` from " + ", ".join(f"{name} {value}" for name, value in _BASE.items())


def _name(axis: str, factor: int) -> str:
    return f"{NAME}-{axis}-{_BASE[axis] * factor}"


def cases(settings: Settings) -> Iterator[Case]:
    """One case a point; a factor of an axis at a time, from the base."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for axis in _BASE:
        for factor in settings.sizes.growth:
            point = _BASE | {axis: _BASE[axis] * factor}
            if axis != "threads":
                point["threads"] = settings.threads
            elif factor > (cpus or 1):
                continue
            text = ", ".join(f"{name} {value}" for name, value in point.items())
            yield Case(
                _name(axis, factor),
                text,
                MS,
                partial(_propagate, **point),
                threads=point["threads"],
                rounds=7,
            )


def _propagate(width: int, layers: int, batch: int, trials: int, threads: int) -> list[Contender]:
    widths = [width] * (layers + 1)

    def call() -> ic.Propagation:
        return ic.propagate(widths, batch=batch, trials=trials, threads=threads)

    require(call().record.equals(call().record), "an experiment repeated differs")
    return [Contender(OURS, call)]


def table(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """A heading and a row an axis: the time at each point, and its ratio to the base's."""
    found = {result.case.name: result for result in results if OURS in result.timings}
    factors = [f for f in FULL.growth if any(_name(axis, f) in found for axis in _BASE)]
    yield ("axis", *(f"×{factor}" for factor in factors))
    for axis, value in _BASE.items():
        cells = []
        for factor in factors:
            result = found.get(_name(axis, factor))
            base = found.get(_name(axis, 1))
            cell = "" if result is None else result.shown(OURS)
            if result and base:
                ratio = result.timings[OURS].median / base.timings[OURS].median
                cell += f", {ratio:.3g}×"
            cells.append(cell)
        if any(cells):
            yield (f"{axis} ({value})", *cells)
