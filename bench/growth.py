# SPDX-License-Identifier: BSD-3-Clause
"""How the cost of an experiment grows with width, depth, batch, trials and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import initcore as ic

from .measure import GFLOPS, OURS, Case, Contender, Settings, require

_BASE = {"width": 64, "layers": 10, "batch": 64, "trials": 32, "threads": 1}
AXES = tuple(_BASE)


def cases(settings: Settings) -> Iterator[Case]:
    """One case a point; a factor of an axis at a time, from the base."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for axis in AXES:
        for factor in settings.sizes.growth:
            point = _BASE | {axis: _BASE[axis] * factor}
            if axis != "threads":
                point["threads"] = settings.threads
            elif factor > (cpus or 1):
                continue
            text = ", ".join(f"{name} {value}" for name, value in point.items())
            yield Case(
                f"growth-{axis}-{point[axis]}",
                text,
                GFLOPS,
                partial(_propagate, **point),
                threads=point["threads"],
                rounds=7,
            )


def _propagate(width: int, layers: int, batch: int, trials: int, threads: int) -> list[Contender]:
    widths = [width] * (layers + 1)

    def call() -> ic.Propagation:
        return ic.propagate(widths, batch=batch, trials=trials, threads=threads)

    require(call().record.equals(call().record), "an experiment repeated differs")
    return [Contender(OURS, call, 2.0 * width * width * batch * layers * trials)]
