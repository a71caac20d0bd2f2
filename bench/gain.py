# SPDX-License-Identifier: BSD-3-Clause
"""The gain of a function that is known by its values, by quadrature, beside AnyInit's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import initcore as ic

from . import peers
from .measure import MS, OURS, Case, Contender, Settings, faster, require

Array = np.ndarray[Any, np.dtype[Any]]
_NAME = "initcore_bench_silu"
# E φ² at unit input, and the σ at which E φ(σz)² = 1, of silu.
_KNOWN = {"second_moment": 1.67653247033, "fixed_point": 1.55875993007}


def cases(settings: Settings) -> Iterator[Case]:
    """See the package. AnyInit's gain is the fixed point: the same number is the first row."""
    for convention in ("fixed_point", "second_moment"):
        yield Case(
            f"gain-{convention.replace('_', '-')}",
            f"`gain` of a function (silu), {convention.replace('_', ' ')}",
            MS,
            partial(_gain, convention),
            (faster(100, "AnyInit"),),
            expected=("AnyInit",),
        )


def _silu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(0.5 * x))  # x/(1 + e^−x) without its overflow


def _gain(convention: str) -> list[Contender]:
    calls = {OURS: lambda: ic.gain(_silu, convention)}
    wanted = {OURS: _KNOWN[convention]}
    anyinit = peers.find("anyinit")
    if anyinit is not None:

        def theirs() -> float:
            # Registering again empties its cache of gains.
            anyinit.register_activation(_silu, name=_NAME, overwrite=True)
            return float(anyinit.gain(_NAME))

        calls["AnyInit"] = theirs
        wanted["AnyInit"] = _KNOWN["fixed_point"]
    for label, call in calls.items():
        error = abs(call() / wanted[label] - 1)
        require(error <= 1e-8, f"{label}: a gain is off by {error}")
    return [Contender(label, call) for label, call in calls.items()]
