# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo over random chains: does the signal stay alive through the layers?"""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from initcore import _core, architecture, theory
from initcore.activations import Activation, activation
from initcore.experiments import engine
from initcore.experiments.arguments import (
    check_running,
    flag,
    number,
    positive,
    progress_part,
    refused,
    trial_range,
)
from initcore.initializers import Initializer, initializer, normal
from initcore.kernels.arrays import check_array, contiguous
from initcore.kernels.chain import run_shared, run_shared_backward, share_trials
from initcore.laws import Constant, Law, Normal
from initcore.results.exact import ExactRecord
from initcore.results.propagation import (
    ChainAccumulator,
    Comparison,
    Propagation,
    function_name,
    has_stream,
    is_function_name,
    settled,
)
from initcore.results.records import frozen
from initcore.streams import check_seed, resolve_threads, stream_id
from initcore.structures import Moments

T = TypeVar("T")
ActivationLike = str | Activation
InitializerLike = str | Initializer
MultiplierLike = float | bool | str  # of a residual branch
# (seed, trial, layer, shape) -> the weight
WeightFunction = Callable[[int, int, int, tuple[int, int]], ArrayLike]

DTYPES = ("float32", "float64")
METHODS = ("dense", "gram")

# Trials after which it is first looked whether they are enough: a standard error from fewer is as
# good as none.
_FIRST_LOOK = 8


@dataclass(frozen=True, eq=False)
class ChainExperiment:
    """Random chains: everything a trial depends on but its number. Lists have an entry a layer."""

    widths: tuple[int, ...]
    activations: tuple[str, ...]
    inits: tuple[str | WeightFunction, ...]
    biases: tuple[str | None, ...]
    norms: tuple[str | None, ...]
    residuals: tuple[float | None, ...]  # multipliers of the branches
    batch: int
    dtype: str
    seed: int
    backward: bool = False
    method: str = "dense"
    x: NDArray[Any] | None = None  # (batch, widths[0]) of the dtype, the inputs of every trial
    correlation: float = 0.0  # of drawn inputs
    trial_threads: int = 1  # how many share one trial; nothing but time depends on it

    @property
    def spec(self) -> dict[str, Any]:
        """What ``propagate`` takes to run it again, but for the seed; equal layers as one entry."""
        return {
            "widths": list(self.widths),
            "activation": _collapse(self.activations),
            "init": _collapse(tuple(map(_name, self.inits))),
            "bias": _collapse(self.biases),
            "x": self.x,
            "norm": _collapse(self.norms),
            "residual": _collapse(self.residuals),
            "batch": self.batch,
            "correlation": self.correlation,
            "dtype": self.dtype,
            "backward": self.backward,
            "method": self.method,
        }

    @property
    def functions(self) -> tuple[WeightFunction, ...]:
        """What draws weights but is no initializer."""
        return tuple(init for init in self.inits if not isinstance(init, str))

    @cached_property
    def whole(self) -> tuple[bool, ...]:
        """Of each layer, whether its weight is drawn whole: by a function, or as a structure."""

        @cache  # most layers are alike
        def is_structure(init: str, n_in: int, n_out: int) -> bool:
            return isinstance(initializer(init).laws((n_out, n_in))[0], Moments)

        found = []
        for layer, (init, pair) in enumerate(zip(self.inits, pairwise(self.widths), strict=True)):
            with _named(f"init of layer {layer}"):
                found.append(not isinstance(init, str) or is_structure(init, *pair))
        return tuple(found)

    def whole_weight(self, trial: int, layer: int) -> NDArray[Any]:
        """The weight of a layer that is drawn whole, in the dtype; of a function, checked."""
        init, (n_in, n_out) = self.inits[layer], self.widths[layer : layer + 2]
        if isinstance(init, str):
            name = f"layers.{layer}.weight"
            drawn: NDArray[Any] = initializer(init)(
                (n_out, n_in), seed=self.seed, name=name, trial=trial, dtype=self.dtype, threads=1
            )
            return drawn
        what = f"what init gave for layer {layer} in trial {trial}"
        array = check_array(what, init(self.seed, trial, layer, (n_out, n_in)))
        if array.shape != (n_out, n_in):
            raise ValueError(f"{what} has shape {array.shape}: {(n_out, n_in)} is accepted")
        weight = contiguous(array, np.dtype(self.dtype))
        if not np.isfinite(weight).all():
            raise ValueError(
                f"{what} is not finite in {self.dtype}: an array of finite numbers is accepted"
            )
        return weight

    @property
    def trial_seconds(self) -> float:
        """From the flops of the products, the draws, and the activations, on a current core."""
        lanes = self.batch + 16
        if self.method == "gram":
            passes = 4 if self.backward else 1
            return passes * (
                sum(self.widths) * lanes * (lanes * 3e-11 + 1e-9)
                + len(self.widths) * (1e-6 + self.batch**3 * 1e-10)
            )
        pairs = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        weights = sum(n_in * n_out for n_in, n_out in pairs)
        outputs = sum(self.widths) * lanes
        passes = 3 if self.backward else 1  # the products; what is drawn twice is not told apart
        return weights * (passes * lanes * 4e-11 + 1e-9) + passes * (
            outputs * 3e-9 + len(pairs) * 1e-6
        )

    def worker(self) -> ChainWorker:
        """See ``engine.Experiment``."""
        return ChainWorker(self)

    def chain(self, trial: int | None = None, cancel: engine.Cancel | None = None) -> _core.Chain:
        """What the kernels run. By "gram", a weight's stream is that of what is drawn instead.

        It is that of all trials, but where weights are drawn whole: those are a trial's, or zeros.
        Raises Cancelled between two of them once ``cancel[0]`` is set: a function may be slow.
        """
        weight = "gram" if self.method == "gram" else "weight"
        pairs = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        common = math.sqrt(self.correlation)

        @cache  # most layers are alike
        def law(init: InitializerLike, *shape: int, **fans: int) -> tuple[Any, ...]:
            return astuple(initializer(init).distribution(shape, self.dtype, **fans))

        def source(name: str, init: InitializerLike, *shape: int, **fans: int) -> _core.Source:
            return stream_id(name), *law(init, *shape, **fans)

        def bias_source(layer: int, n_in: int, n_out: int) -> _core.Source | None:
            init = self.biases[layer]
            if init is None:
                return None
            with _named(f"bias of layer {layer}"):
                return source(f"layers.{layer}.bias", init, n_out, fan_in=n_in, fan_out=n_out)

        def weight_source(layer: int, n_in: int, n_out: int) -> _core.Source:
            init = self.inits[layer]
            if isinstance(init, str) and not self.whole[layer]:
                with _named(f"init of layer {layer}"):
                    return source(f"layers.{layer}.{weight}", init, n_out, n_in)
            if trial is None:
                return np.broadcast_to(np.zeros((), self.dtype), (n_out, n_in))
            if cancel is not None and cancel[0]:
                raise engine.Cancelled
            return self.whole_weight(trial, layer)

        return _core.Chain(
            self.dtype,
            self.seed,
            self.batch,
            self.widths,
            [
                (phi.kernel_id, phi.parameter, phi.saturation_threshold)
                for phi in map(activation, self.activations)
            ],
            source("input", normal(math.sqrt(1 - self.correlation)), self.batch, self.widths[0])
            if self.x is None
            else self.x,
            [weight_source(layer, *pair) for layer, pair in enumerate(pairs)],
            [bias_source(layer, *pair) for layer, pair in enumerate(pairs)],
            source("output_gradient", normal(), self.batch, self.widths[-1])
            if self.backward
            else None,
            [0 if norm is None else architecture.NORMS[norm] for norm in self.norms],
            self.residuals,
            common=source("input.common", normal(common), self.widths[0])
            if np.dtype(self.dtype).type(common)  # that of 1e-99 is nothing in float32
            else None,
        )


def _too_large(experiment: ChainExperiment, n_bytes: int) -> MemoryError:
    return MemoryError(
        f"widths up to {max(experiment.widths)} and batch {experiment.batch} need {n_bytes} bytes"
    )


class ChainWorker:
    """See ``engine.Worker``."""

    def __init__(self, experiment: ChainExperiment) -> None:
        self._kernels = _core.default()
        self._chain = experiment.chain()
        self._experiment = experiment
        self._n_layers = len(experiment.inits)
        self._gradient_streams = gradient_streams(self._n_layers)
        if experiment.method == "gram":
            size = self._kernels.gram_workspace(self._chain)
        else:
            size = self._kernels.chain_workspace(self._chain)
        threads = range(experiment.trial_threads)
        try:
            self._workspaces = [np.empty(size, np.uint8) for _ in threads]
        except (MemoryError, ValueError):  # a ValueError from 2^63 on
            raise _too_large(experiment, size * len(threads)) from None
        self._sums = ChainAccumulator(
            self._n_layers, backward=experiment.backward, stream=has_stream(experiment.spec)
        )

    def run(self, start: int, stop: int, cancel: engine.Cancel) -> bool:
        """See ``engine.Worker``."""
        n_trials, n_layers, backward = stop - start, self._n_layers, self._experiment.backward
        states = np.zeros((n_trials, n_layers, 2, _core.MOMENTS))
        gradients = np.zeros((n_trials, n_layers, 3, _core.MOMENTS)) if backward else None
        inputs = np.zeros((n_trials, _core.MOMENTS))
        if any(self._experiment.whole):
            try:
                finished = all(
                    self._run(
                        self._experiment.chain(start + i, cancel),
                        start + i,
                        states[i : i + 1],
                        None if gradients is None else gradients[i : i + 1],
                        inputs[i : i + 1],
                        cancel,
                    )
                    for i in range(n_trials)
                )
            except engine.Cancelled:
                return False
        else:
            finished = self._run(self._chain, start, states, gradients, inputs, cancel)
        if finished:
            self._sums.add_states(states, inputs, gradients)
        return finished

    def _run(
        self,
        chain: _core.Chain,
        start: int,
        states: NDArray[np.float64],
        gradients: NDArray[np.float64] | None,
        inputs: NDArray[np.float64],
        cancel: engine.Cancel,
    ) -> bool:
        """Trials start, start + 1, ..., one for each of `states`; False when cancelled."""
        kernels, n_trials, workspace = self._kernels, len(states), self._workspaces[0]
        if self._experiment.method == "gram":
            return kernels.gram(
                chain, self._gradient_streams, start, n_trials, states, gradients, workspace,
                cancel, inputs,
            )  # fmt: skip
        if len(self._workspaces) > 1:
            return all(
                self._share(
                    chain,
                    start + i,
                    states[i],
                    None if gradients is None else gradients[i],
                    inputs[i],
                    cancel,
                )
                for i in range(n_trials)
            )
        if gradients is None:
            return kernels.chain(chain, start, n_trials, states, None, workspace, cancel, inputs)
        return kernels.chain_backward(
            chain, start, n_trials, states, gradients, None, workspace, cancel, inputs
        )

    def _share(
        self,
        chain: _core.Chain,
        trial: int,
        state: NDArray[np.float64],
        gradients: NDArray[np.float64] | None,
        input_state: NDArray[np.float64],
        cancel: engine.Cancel,
    ) -> bool:
        """One trial in all threads."""
        of = (self._kernels, chain, self._experiment.widths, self._experiment.batch, trial)
        if gradients is None:
            return run_shared(*of, state, None, self._workspaces, cancel, input_state)
        states = (state, gradients, None)
        return run_shared_backward(*of, *states, self._workspaces, cancel, input_state)

    def record(self) -> ExactRecord:
        """See ``engine.Worker``."""
        return self._sums.record()


def gradient_streams(n_layers: int) -> NDArray[np.uint64]:
    """Of each layer, the stream of what a backward pass by "gram" draws."""
    names = (f"layers.{layer}.gram_gradient" for layer in range(n_layers))
    return np.array([stream_id(name) for name in names], np.uint64)


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
    experiment = _experiment(
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
    return _propagate(experiment, trial_range(trials), _relative(rtol), threads, executor, progress)


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
        _experiment(
            widths, activation, init, bias, last, norm, residual, x, batch, correlation, seed,
            dtype, backward, method,
        )
        for init in inits
    ]  # fmt: skip
    numbers, rtol = trial_range(trials), _relative(rtol)
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
    predicted = theory.predict(
        experiment.widths,
        activation=list(experiment.activations),
        init=list(experiment.inits),
        bias=None if set(experiment.biases) == {None} else list(experiment.biases),
        norm=list(experiment.norms),
        residual=list(experiment.residuals),
        x=experiment.x,
        batch=experiment.batch,
        correlation=experiment.correlation,
        backward=experiment.backward,
    )
    record: ExactRecord | None = None
    for stage in _stages(trials, rtol):
        report = _after(progress, len(trials[: stage.start - trials.start]), len(trials))
        part = _run(experiment, stage, threads, executor, report)
        record = part if record is None else record + part
        held = range(trials.start, stage.stop)
        n_layers = len(experiment.inits)
        kind = {"backward": experiment.backward, "stream": has_stream(experiment.spec)}
        if rtol is not None and settled(record, n_layers, rtol, **kind):
            break
    assert record is not None
    return Propagation(
        spec=experiment.spec,
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
        _check_sendable(experiment, error)
        raise


# ---------------------------------------------------------------------------------------------
# Arguments


def _relative(rtol: Any) -> float | None:
    """A positive number, or None."""
    if rtol is None:
        return None
    value = number("rtol", rtol, accepted := "a positive number or None")
    if value <= 0:
        raise refused("rtol", rtol, accepted, is_value=True)
    return value


def _dtype(dtype: DTypeLike) -> str:
    accepted = " or ".join(DTYPES)
    try:
        name = np.dtype(dtype).name if dtype is not None else ""
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise refused("dtype", dtype, accepted)
    return name


def _method(method: object) -> str:
    if not isinstance(method, str) or method not in METHODS:
        accepted = " or ".join(map(repr, METHODS))
        raise refused("method", method, accepted, is_value=isinstance(method, str))
    return method


def _law(init: str | WeightFunction, shape: tuple[int, ...], **fans: int) -> Law | None:
    """The one law of an initializer's entries; None where it has none."""
    if not isinstance(init, str):
        return None
    try:
        return initializer(init).law(shape, **fans)
    except ValueError:
        return None


def _check_gaussian(experiment: ChainExperiment) -> None:
    """ValueError where "gram" would not have the law of the weights and biases."""
    layers = zip(pairwise(experiment.widths), experiment.inits, experiment.biases, strict=True)
    checked = set()  # most layers are alike
    for layer, kind in enumerate(layers):
        if kind in checked:
            continue
        checked.add(kind)
        (n_in, n_out), init, bias = kind
        law = _law(init, (n_out, n_in))
        if not isinstance(law, Normal) or law.mean:
            raise ValueError(
                f"init of layer {layer} must be normal with mean 0 for method='gram', which draws "
                f"what Gaussian weights do and not the weights; got {_name(init)}: use "
                "method='dense'"
            )
        if bias is None:
            continue
        law = _law(bias, (n_out,), fan_in=n_in, fan_out=n_out)
        if not isinstance(law, Normal | Constant):
            raise ValueError(
                f"bias of layer {layer} must be normal or constant for method='gram', which draws "
                f"what Gaussian biases do and not the biases; got {bias}: use method='dense'"
            )


def _each(argument: str, value: Any, n_layers: int, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """One entry for all layers, or a list of one a layer, parsed."""
    if not isinstance(value, list | tuple):
        return (_parsed(argument, value, parse),) * n_layers
    if len(value) != n_layers:
        accepted = f"one, or a list of {n_layers}, one a layer"
        raise refused(argument, value, accepted, is_value=True)
    return tuple(_parsed(f"{argument}[{i}]", entry, parse) for i, entry in enumerate(value))


def _init(init: Any) -> str | WeightFunction:
    """The specification of an initializer in full, or a function as it is."""
    if callable(init) and not isinstance(init, Initializer):
        _check_signature(init)
        return init  # type: ignore[no-any-return]
    if isinstance(init, str) and is_function_name(init):
        raise ValueError(f"{init} names a function: the function itself is accepted")
    return repr(initializer(init))


def _check_signature(function: Callable[..., Any]) -> None:
    """TypeError for a function that does not take what it is called with."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return
    try:
        signature.bind(0, 0, 0, (1, 1))
    except TypeError as error:
        raise TypeError(
            "a function is called with (seed, trial, layer, shape); got "
            f"{function_name(function)}{signature}: {error}"
        ) from None


def _name(init: str | WeightFunction) -> str:
    """What a specification says of an initializer."""
    return init if isinstance(init, str) else function_name(init)


def _check_sendable(experiment: ChainExperiment, error: Exception) -> None:
    """TypeError where it is for a function that does not pickle that a task could not be sent."""
    for function in experiment.functions:
        try:
            pickle.dumps(function)
        except Exception as reason:
            if str(reason) == str(error):
                raise TypeError(
                    f"init: {function_name(function)} cannot be sent to the executor's processes, "
                    f"which takes a function at the top of a module; {error}"
                ) from error


@contextmanager
def _named(argument: str) -> Iterator[None]:
    """Errors of what is checked in here say of which argument, once."""
    try:
        yield
    except (ValueError, TypeError) as error:
        name, words = argument.partition("[")[0], str(error)
        rest = words.removeprefix(f"{name} must ")
        text = f"{argument}: {words}" if rest == words else f"{argument} must {rest}"
        raise type(error)(text) from error


def _parsed(argument: str, value: Any, parse: Callable[[Any], T]) -> T:
    with _named(argument):
        return parse(value)


def _collapse(entries: tuple[Any, ...]) -> Any:
    return entries[0] if len(set(entries)) == 1 else list(entries)


def _inputs(x: Any, n_in: int, batch: Any, dtype: str) -> tuple[NDArray[Any] | None, int]:
    """The inputs of every trial, if they are given, and how many they are."""
    if x is None:
        return None, 32 if batch is None else positive("batch", batch)
    array = check_array("x", x)
    if array.ndim != 2 or array.shape[1] != n_in or not 1 <= len(array) < 2**32:
        raise ValueError(f"x must be an array (batch, {n_in}) of one row or more; got shape "
                         f"{array.shape}")  # fmt: skip
    if batch is not None and positive("batch", batch) != len(array):
        accepted = f"left out, or {len(array)}, the rows of x"
        raise refused("batch", batch, accepted, is_value=True)
    inputs = frozen(contiguous(array, np.dtype(dtype)), dtype)
    bad = np.argwhere(~np.isfinite(inputs))
    if bad.size:
        row, column = bad[0]
        raise ValueError(f"x must be finite in {dtype}; got {array[row, column]} at x[{row}, "
                         f"{column}]")  # fmt: skip
    return inputs, len(array)


def _correlation(correlation: Any, x: Any) -> float:
    """From 0 to 1, and 0 where the inputs are given."""
    accepted = "a number from 0 to 1 (√c common + √(1 − c) own has no other)"
    value = number("correlation", correlation, accepted)
    if not 0 <= value <= 1:
        raise refused("correlation", correlation, accepted, is_value=True)
    if value and x is not None:
        raise refused("correlation", correlation, "left out where x is given", is_value=True)
    return value


def _experiment(
    widths: Any,
    phi: Any,
    init: Any,
    bias: Any,
    last: Any,
    norm: Any,
    residual: Any,
    x: Any,
    batch: Any,
    correlation: Any,
    seed: Any,
    dtype: Any,
    backward: Any,
    method: Any,
) -> ChainExperiment:
    """The arguments of ``propagate``, checked, in their plainest form."""
    accepted = "a sequence of two or more positive integers"
    if isinstance(widths, np.ndarray) and widths.ndim != 1:
        raise refused("widths", widths, accepted, is_value=True)
    if not isinstance(widths, Sequence | np.ndarray) or isinstance(widths, str | bytes):
        raise refused("widths", widths, accepted)
    if len(widths) < 2:
        raise refused("widths", widths, accepted, is_value=True)
    sizes = tuple(positive(f"widths[{i}]", width) for i, width in enumerate(widths))
    n_layers = len(sizes) - 1
    activations = _each("activation", phi, n_layers, lambda entry: str(activation(entry)))
    if last is not None:
        activations = (*activations[:-1], _parsed("last", last, lambda one: str(activation(one))))
    dtype = _dtype(dtype)
    inputs, batch = _inputs(x, sizes[0], batch, dtype)
    if isinstance(residual, np.ndarray) and residual.ndim == 1:
        residual = residual.tolist()
    experiment = ChainExperiment(
        sizes,
        activations,
        _each("init", init, n_layers, _init),
        _each("bias", bias, n_layers, lambda one: None if one is None else repr(initializer(one))),
        _each("norm", norm, n_layers, architecture.norm),
        _each("residual", residual, n_layers, lambda m: architecture.multiplier(m, n_layers)),
        batch,
        dtype,
        check_seed(seed),
        flag("backward", backward),
        _method(method),
        inputs,
        _correlation(correlation, x),
    )
    architecture.check_residuals(experiment.residuals, sizes)
    if experiment.method == "gram":
        _check_gaussian(experiment)
    features = 2 * sum(sizes) + 4 * max(sizes) if backward else 3 * max(sizes)
    if experiment.method == "gram":  # Gram matrices and factors
        features += (experiment.batch + 16) * (n_layers + 9)
    panels = 8 * (experiment.batch + 16) * (features + 34 * len(sizes))
    if panels >= 2**60:
        raise _too_large(experiment, panels)
    experiment.chain()  # a law that a shape does not admit is refused here
    return experiment
