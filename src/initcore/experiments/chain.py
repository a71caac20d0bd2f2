# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo over random chains: does the signal stay alive through the layers?"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from numpy.typing import ArrayLike, DTypeLike

from initcore import theory
from initcore.activations import Activation
from initcore.experiments import engine
from initcore.experiments.arguments import check_running, progress_part, refused, trial_range
from initcore.experiments.chain_arguments import chain_experiment, check_sendable, relative
from initcore.experiments.chain_trial import ChainExperiment, WeightFunction
from initcore.initializers import Initializer
from initcore.kernels.chain import share_trials
from initcore.results.chain_record import settled
from initcore.results.chain_spec import arguments_of_theory
from initcore.results.comparison import Comparison
from initcore.results.exact import ExactRecord
from initcore.results.propagation import Propagation
from initcore.streams import resolve_threads

ActivationLike = str | Activation
InitializerLike = str | Initializer
MultiplierLike = float | bool | str  # of a residual branch

# Trials after which it is first looked whether they are enough: a standard error from fewer is as
# good as none.
_FIRST_LOOK = 8


def propagate(
    widths: Sequence[int],
    *,
    activation: ActivationLike | Sequence[ActivationLike] = "relu",
    init: InitializerLike
    | WeightFunction
    | Sequence[InitializerLike | WeightFunction] = "kaiming_normal",
    bias: InitializerLike | Sequence[InitializerLike | None] | None = None,
    last: ActivationLike | None = None,
    x: ArrayLike | None = None,
    batch: int | None = None,
    correlation: float = 0.0,
    norm: str | Sequence[str | None] | None = None,
    residual: MultiplierLike | Sequence[MultiplierLike | None] | None = None,
    trials: int | range = 100,
    rtol: float | None = None,
    seed: int = 0,
    backward: bool = False,
    method: str = "dense",
    dtype: DTypeLike = "float32",
    threads: int | None = None,
    executor: Executor | None = None,
    progress: engine.Progress | None = None,
) -> Propagation:
    """Send inputs through chains of freshly drawn layers, and measure every layer.

    A trial draws all weights and, unless ``x`` is given, a batch of standard normal inputs; a layer
    is h = norm(x) Wᵀ + b, then x ← φ(h) or, with ``residual=m``, x ← x + m φ(h).

    Parameters
    ----------
    widths
        n_0, ..., n_L: the inputs of the first layer, then the outputs of each of the L layers.
    activation, init, bias
        One for all layers, or a list of L; ``bias`` (or an entry of it) None is no bias. ``init``
        (or an entry of it) may also be a function (seed, trial, layer, shape) → weight, an array of
        that shape, (n_out, n_in), in whatever way it is drawn; layers count from 0. It is called
        once a trial and layer, by whichever thread, or process of the executor, runs the trial, so
        it should depend on its arguments alone. A specification has its name, "module.qualname",
        and predictions end where it begins.
    last
        The last layer's activation, if it is another.
    x
        The inputs of every trial, (batch, n_0): what :func:`initcore.chain` takes, converted to
        ``dtype``. None draws standard normal inputs, others in every trial.
    batch
        Inputs a trial; None is 32, or the rows of ``x``.
    correlation
        Of any two drawn inputs, from 0 to 1: x_b = √(1 − c) own_b + √c common, own_b the stream
        ``input`` and common, one row a trial, the stream ``input.common``. Below −1/(batch − 1) no
        inputs have it, and between that and 0 no common row makes it.
    norm
        What the weights see of each input x (a row of the batch): None, x itself; "rms",
        x/√mean x²; "layer", (x − mean x)/√mean (x − mean x)²; or a list of L. There is no gain,
        bias or epsilon: a row whose root is 0 becomes zeros, and no gradient passes it.
    residual
        None, or the multiplier m of the branch that is added to x: a number, True for 1,
        "1/sqrt(L)", or 0, as ReZero starts, where x passes bit for bit; or a list of L. Such a
        layer is as wide as its input, and its x, in ``post`` and ``grad_post``, is the sum.
    trials
        How many, or a range with step 1: ``range(200, 400)`` continues a run of 200, whose result
        it can be added to.
    rtol
        Stop early, once the standard error of E[h²] of the last layer (and of the gradient by h of
        the first; with a norm or a residual branch, of E[x²] and the gradient by x) is at most this
        share of its mean. That is looked at after 8, 16, 32, … trials,
        whoever runs them, so that where it stops is as repeatable as the rest; the result's
        ``trials`` say where. Such results can be added to others; that they stopped where the error
        looked small makes it look smaller than it is, the less the more trials there are.
    seed
        From 0 to 2^64 − 1. A trial depends on what is above, the seed and its number alone.
    backward
        Whether a backward pass follows, from a standard normal gradient by the last layer's x: the
        result then has ``grad_pre``, ``grad_post`` and ``grad_weight``, too.
    method
        "dense" draws every weight. "gram" draws none: given a layer's inputs X, pre-activations by
        Gaussian weights are exactly N(0, σ²XXᵀ) a unit, and are drawn from a factor of that. The
        law of everything is the same, the trials are others; time and memory grow with the widths
        and not with their products. For normal weights of mean 0, and no biases, normal or constant
        ones. Inputs at an angle below 2^-20 count as parallel.
    dtype
        float32 or float64: what the chain computes in. Statistics are float64.
    threads
        Threads of this process; None is every CPU it may use. They never change a result.
    executor
        A ``concurrent.futures.Executor`` to run on instead: other processes, other machines.
    progress
        Called in this thread as ``progress(done, total)``.

    Raises ValueError for values and TypeError for kinds that are not accepted, before it runs.
    """
    experiment = chain_experiment(
        widths,
        activation,
        init,
        bias,
        last,
        norm,
        residual,
        x,
        batch,
        correlation,
        seed,
        dtype,
        backward,
        method,
    )
    return _propagate(experiment, trial_range(trials), relative(rtol), threads, executor, progress)


def compare_inits(
    inits: Sequence[InitializerLike | WeightFunction | Sequence[InitializerLike | WeightFunction]],
    widths: Sequence[int],
    *,
    activation: ActivationLike | Sequence[ActivationLike] = "relu",
    bias: InitializerLike | Sequence[InitializerLike | None] | None = None,
    last: ActivationLike | None = None,
    x: ArrayLike | None = None,
    batch: int | None = None,
    correlation: float = 0.0,
    norm: str | Sequence[str | None] | None = None,
    residual: MultiplierLike | Sequence[MultiplierLike | None] | None = None,
    trials: int | range = 100,
    rtol: float | None = None,
    seed: int = 0,
    backward: bool = False,
    method: str = "dense",
    dtype: DTypeLike = "float32",
    threads: int | None = None,
    executor: Executor | None = None,
    progress: engine.Progress | None = None,
) -> Comparison:
    """``propagate`` for several initializers, with common random numbers.

    ``inits`` has at least one entry, each what ``propagate`` takes as ``init``; the rest is as
    there; with ``rtol`` each has as many trials as it takes. Returns the results in that order.
    """
    if not isinstance(inits, list | tuple) or not inits:
        accepted = "a list of one or more initializers"
        raise refused("inits", inits, accepted, is_value=isinstance(inits, list | tuple))
    experiments = [
        chain_experiment(
            widths, activation, init, bias, last, norm, residual, x, batch, correlation, seed,
            dtype, backward, method,
        )
        for init in inits
    ]  # fmt: skip
    numbers, rtol = trial_range(trials), relative(rtol)
    return Comparison(
        tuple(
            _propagate(
                experiment,
                numbers,
                rtol,
                threads,
                executor,
                progress_part(progress, i, len(experiments)),
            )
            for i, experiment in enumerate(experiments)
        )
    )


def _propagate(
    experiment: ChainExperiment,
    trials: range,
    rtol: float | None,
    threads: int | None,
    executor: Executor | None,
    progress: engine.Progress | None,
) -> Propagation:
    threads = resolve_threads(threads)
    check_running(executor, progress)
    spec = experiment.spec
    # A specification has the names of functions, which no initializers are.
    known = {**arguments_of_theory(spec), "init": list(experiment.inits)}
    predicted = theory.predict(**known, backward=experiment.backward)
    record: ExactRecord | None = None
    for stage in _stages(trials, rtol):
        report = _after(progress, len(trials[: stage.start - trials.start]), len(trials))
        part = _run(experiment, stage, threads, executor, report)
        record = part if record is None else record + part
        held = range(trials.start, stage.stop)
        if rtol is not None and settled(spec, record, rtol):
            break
    assert record is not None
    return Propagation(
        spec=spec,
        seed=experiment.seed,
        trials=(held,),
        record=record,
        theory=predicted,
        given_weight=experiment.whole_weight if experiment.functions else None,
        functions=experiment.functions,
    )


def _stages(trials: range, rtol: float | None) -> Iterator[range]:
    """The trials, up to where it is looked whether they are enough: at 2^k of them."""
    first, last = 0, len(trials) if rtol is None else _FIRST_LOOK
    while first < len(trials):
        yield trials[first:last]
        first, last = last, 2 * last


def _after(progress: engine.Progress | None, before: int, total: int) -> engine.Progress | None:
    """The progress of a stage, `before` trials in, as progress of all."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _run(
    experiment: ChainExperiment,
    trials: range,
    threads: int,
    executor: Executor | None,
    progress: engine.Progress | None,
) -> ExactRecord:
    shareable = executor is None and experiment.method == "dense"
    if shareable and share_trials(len(trials), experiment.widths, experiment.batch, threads):
        experiment, threads = replace(experiment, trial_threads=threads), 1
    try:
        return engine.run(experiment, trials, threads=threads, executor=executor, progress=progress)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        check_sendable(experiment, error)
        raise
