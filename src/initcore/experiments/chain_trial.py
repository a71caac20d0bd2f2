# SPDX-License-Identifier: BSD-3-Clause
"""What a trial of a random chain is: x → norm → W x + b → φ → (+ x), layer by layer, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initcore import _core, architecture
from initcore.activations import activation
from initcore.experiments import engine
from initcore.initializers import Initializer, initializer, normal
from initcore.kernels.arrays import check_array, contiguous
from initcore.kernels.chain import run_shared, run_shared_backward
from initcore.results.chain_record import ChainAccumulator, has_stream
from initcore.results.chain_spec import function_name
from initcore.results.exact import ExactRecord
from initcore.specifications import named
from initcore.streams import stream_id
from initcore.structures import Moments

# (seed, trial, layer, shape) -> the weight
WeightFunction = Callable[[int, int, int, tuple[int, int]], ArrayLike]


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
            "init": _collapse(tuple(map(init_name, self.inits))),
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
            with named(f"init of layer {layer}"):
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
        pairs = list(pairwise(self.widths))
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
        pairs = list(pairwise(self.widths))
        common = math.sqrt(self.correlation)

        @cache  # most layers are alike
        def law(init: str | Initializer, *shape: int, **fans: int) -> tuple[Any, ...]:
            return astuple(initializer(init).distribution(shape, self.dtype, **fans))

        def source(name: str, init: str | Initializer, *shape: int, **fans: int) -> _core.Source:
            return stream_id(name), *law(init, *shape, **fans)

        def bias_source(layer: int, n_in: int, n_out: int) -> _core.Source | None:
            init = self.biases[layer]
            if init is None:
                return None
            with named(f"bias of layer {layer}"):
                return source(f"layers.{layer}.bias", init, n_out, fan_in=n_in, fan_out=n_out)

        def weight_source(layer: int, n_in: int, n_out: int) -> _core.Source:
            init = self.inits[layer]
            if isinstance(init, str) and not self.whole[layer]:
                with named(f"init of layer {layer}"):
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


def too_large(experiment: ChainExperiment, n_bytes: int) -> MemoryError:
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
            raise too_large(experiment, size * len(threads)) from None
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


def init_name(init: str | WeightFunction) -> str:
    """What a specification says of an initializer."""
    return init if isinstance(init, str) else function_name(init)


def _collapse(entries: tuple[Any, ...]) -> Any:
    return entries[0] if len(set(entries)) == 1 else list(entries)
