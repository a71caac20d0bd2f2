# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo over random attention: what do the scalings do to the softmax, and to gradients?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from initcore.experiments import engine
from initcore.experiments.arguments import (
    check_running,
    flag,
    positive,
    progress_part,
    refused,
    trial_range,
)
from initcore.experiments.attention_trial import Attention, AttentionExperiment
from initcore.experiments.chain import InitializerLike
from initcore.initializers import initializer, normal
from initcore.kernels.arrays import FLOAT32, check_finite_in
from initcore.results.attention import (
    WEIGHTS,
    AttentionPropagation,
    weight_law,
)
from initcore.results.scaling_comparison import ScalingComparison
from initcore.scaling import Scaling, Sizes, scaling
from initcore.specifications import finite_number, non_negative_number
from initcore.streams import check_seed, parallel, resolve_threads
from initcore.theory.attention import predict_attention

NORMS = ("rms", "layer")

# QK-norm's cost is told from so many repeats, or as many as begin in this time.
_COST_REPEATS, _COST_SECONDS = 20, 1.0


def propagate_attention(
    *,
    d_model: int = 512,
    n_heads: int = 8,
    seq: int = 128,
    d_k: int | None = None,
    batch: int = 1,
    scaling: str | Scaling = "sqrt_dk",
    init: InitializerLike | Sequence[InitializerLike] = "xavier_normal",
    norm: str | None = "rms",
    x_std: float = 1.0,
    correlation: float = 0.0,
    causal: bool = False,
    trials: int | range = 50,
    seed: int = 0,
    backward: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: engine.Progress | None = None,
) -> AttentionPropagation:
    """Send random tokens through attention with freshly drawn weights, and measure every link.

    A trial draws tokens x and W_Q, W_K, W_V, W_O, all in float32: x → norm → q, k, v → heads →
    scaling → softmax → heads' output → W_O.

    Parameters
    ----------
    d_model, n_heads, seq, batch
        x is (batch, seq, d_model), as many sequences a trial.
    d_k
        of a head's q, k and v; None is d_model/n_heads.
    scaling
        what stands between q, k and the softmax: see ``ic.scaling``.
    init
        one initializer, or a list of four: of W_Q, W_K and W_V (n_heads·d_k, d_model), and of W_O
        (d_model, n_heads·d_k).
    norm
        of x, before the products: "rms", "layer" or None. Without gains, and without ε.
    x_std, correlation
        x is normal with this standard deviation, and any two tokens of a sequence have this
        correlation, from 0 to 1.
    causal
        a key takes part if it is not after its query.
    trials
        How many, or a range with step 1: ``range(50, 100)`` continues a run of 50, whose result it
        can be added to.
    seed
        From 0 to 2^64 − 1. A trial depends on what is above, the seed and its number alone.
    backward
        the gradients too, from a standard normal one of the output; and what a row that is asked
        for one key says to the scale.
    threads, executor, progress
        as of ``propagate``; they never change a result.

    Raises ValueError for values and TypeError for kinds that are not accepted, before it runs.
    """
    experiment = _experiment(
        d_model,
        n_heads,
        seq,
        d_k,
        batch,
        scaling,
        init,
        norm,
        x_std,
        correlation,
        causal,
        seed,
        backward,
    )
    return _propagate(experiment, trial_range(trials), threads, executor, progress)


def compare_scalings(
    scalings: Sequence[str | Scaling],
    *,
    d_model: int = 512,
    n_heads: int = 8,
    seq: int = 128,
    d_k: int | None = None,
    batch: int = 1,
    init: InitializerLike | Sequence[InitializerLike] = "xavier_normal",
    norm: str | None = "rms",
    x_std: float = 1.0,
    correlation: float = 0.0,
    causal: bool = False,
    trials: int | range = 50,
    seed: int = 0,
    backward: bool = False,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: engine.Progress | None = None,
) -> ScalingComparison:
    """``propagate_attention`` for several scalings, with common random numbers.

    ``scalings`` has at least one entry and none twice, each what ``propagate_attention`` takes as
    ``scaling``; the rest is as there. Returns the results in that order, and what each costs.
    """
    if not isinstance(scalings, list | tuple) or not scalings:
        accepted = "a list of one or more scalings"
        raise refused("scalings", scalings, accepted, is_value=isinstance(scalings, list | tuple))
    experiments = [
        _experiment(
            d_model,
            n_heads,
            seq,
            d_k,
            batch,
            one,
            init,
            norm,
            x_std,
            correlation,
            causal,
            seed,
            backward,
        )
        for one in scalings
    ]
    names = [experiment.scaling for experiment in experiments]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"scalings must differ from each other, got {', '.join(twice)} repeatedly")
    numbers = trial_range(trials)
    results = tuple(
        _propagate(
            experiment, numbers, threads, executor, progress_part(progress, i, len(experiments))
        )
        for i, experiment in enumerate(experiments)
    )
    return ScalingComparison(results, _costs(experiments))


def _costs(experiments: Sequence[AttentionExperiment]) -> tuple[float, ...]:
    """Seconds from q, k and v to the heads' output, the least of repeats that take turns."""
    first, cancel = experiments[0], np.zeros(1, np.int32)
    shape = (first.batch * first.seq, first.n_heads * first.d_k)
    q, k, v = (normal()(shape, seed=0, name=name) for name in "qkv")

    def measure() -> tuple[float, ...]:
        parts = [Attention(experiment) for experiment in experiments]
        least = [math.inf] * len(parts)
        begin = time.perf_counter()
        for _ in range(_COST_REPEATS):
            for i, part in enumerate(parts):
                start = time.perf_counter()
                part.forward(q, k, v, cancel)
                least[i] = min(least[i], time.perf_counter() - start)
            if time.perf_counter() - begin > _COST_SECONDS:
                break
        return tuple(least)

    return parallel(measure, [()], 1, cancel)[0]


def _propagate(
    experiment: AttentionExperiment,
    trials: range,
    threads: int | None,
    executor: Executor | None,
    progress: engine.Progress | None,
) -> AttentionPropagation:
    threads = resolve_threads(threads)
    check_running(executor, progress)
    predicted = predict_attention(experiment.spec, experiment.effect)
    record = engine.run(experiment, trials, threads=threads, executor=executor, progress=progress)
    return AttentionPropagation(
        spec=experiment.spec,
        seed=experiment.seed,
        trials=(trials,),
        record=record,
        theory=predicted,
    )


def _experiment(
    d_model: Any,
    n_heads: Any,
    seq: Any,
    d_k: Any,
    batch: Any,
    scale: Any,
    init: Any,
    norm: Any,
    x_std: Any,
    correlation: Any,
    causal: Any,
    seed: Any,
    backward: Any,
) -> AttentionExperiment:
    """The arguments of ``propagate_attention``, checked, in their plainest form."""
    sizes = {"d_model": d_model, "n_heads": n_heads, "seq": seq, "batch": batch}
    checked = {name: positive(name, value) for name, value in sizes.items()}
    if d_k is None:
        checked["d_k"], rest = divmod(checked["d_model"], checked["n_heads"])
        if rest:
            raise ValueError(
                f"n_heads must divide d_model unless d_k is given; got {n_heads} and {d_model}"
            )
    else:
        checked["d_k"] = positive("d_k", d_k)
    if norm is not None and norm not in NORMS:
        accepted = f"{', '.join(map(repr, NORMS))} or None"
        raise refused("norm", norm, accepted, is_value=isinstance(norm, str))
    inits = list(init) if isinstance(init, list | tuple) else [init] * len(WEIGHTS)
    if len(inits) != len(WEIGHTS):
        accepted = f"one value, or a list of {len(WEIGHTS)}, for W_Q, W_K, W_V and W_O"
        raise refused("init", init, accepted, is_value=True)
    share = finite_number("correlation", correlation)
    if not 0 <= share <= 1:
        raise refused("correlation", correlation, "from 0 to 1", is_value=True)
    chosen = scaling(scale)
    experiment = AttentionExperiment(
        **checked,
        scaling=repr(chosen),
        effect=chosen.effect(Sizes(*(checked[name] for name in Sizes._fields))),
        inits=tuple(repr(initializer(one)) for one in inits),
        norm=norm,
        x_std=non_negative_number("x_std", x_std),
        correlation=share,
        causal=flag("causal", causal),
        backward=flag("backward", backward),
        seed=check_seed(seed),
    )
    try:
        check_finite_in(FLOAT32, experiment.effect.logits)
    except ValueError as error:
        raise ValueError(f"scaling {chosen!r}: {error}") from None
    for which in WEIGHTS:  # a law that a shape does not admit is refused here
        text, shape = weight_law(experiment.spec, experiment.effect, which)
        initializer(text).std(shape)
    return experiment
