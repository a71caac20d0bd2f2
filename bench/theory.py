# SPDX-License-Identifier: BSD-3-Clause
"""The wide limit of a deep chain, of which no layer sees the same second moment as another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import initcore as ic

from .measure import MS, OURS, Case, Contender, Settings, require, within

_LAYERS = 100
_SECONDS = 20e-3
# In closed form; smooth; with a kink where every Gaussian is cut; with kinks elsewhere.
_ACTIVATIONS = ("relu", "tanh", "gelu", "softsign", "hardswish")


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    for name in _ACTIVATIONS:
        yield Case(
            f"theory-{name}",
            f"`theory.predict`, {_LAYERS} residual layers of {name}, cosines and gradients",
            MS,
            partial(_predict, name),
            (within(_SECONDS),),
        )


def _predict(name: str) -> list[Contender]:
    def call() -> ic.theory.Prediction:
        return ic.theory.predict(
            [512] * (_LAYERS + 1),
            activation=name,
            init="lecun_normal",
            residual="1/sqrt(L)",
            correlation=0.5,
            backward=True,
        )

    found = call()
    # q is 1 at first, and a layer adds m² E φ(z)², by the table of gains.
    first = 1 + 1 / ic.gain(name) ** 2 / _LAYERS
    off = abs(found.post.second_moment[0] / first - 1)
    require(off < 1e-12, f"{OURS}: the second moment is off by {off}")
    require(len(set(found.pre.second_moment)) == _LAYERS, f"{OURS}: layers repeat")
    return [Contender(OURS, call)]
