# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo over random attention: what do the scalings do to the softmax, and to gradients?"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.activations import activation
from initcore.experiments import engine
from initcore.experiments.arguments import (
    check_running,
    flag,
    positive,
    progress_part,
    refused,
    trial_range,
)
from initcore.experiments.chain import InitializerLike
from initcore.experiments.norms import Normalized, normalize
from initcore.initializers import Initializer, initializer, normal
from initcore.kernels.attention import attention, attention_backward, attention_stats
from initcore.kernels.chain import chain
from initcore.kernels.softmax import softmax, softmax_backward
from initcore.results.attention import (
    ALL_COLUMNS,
    FORWARD_COLUMNS,
    MEANS,
    PULL_STDS,
    WEIGHTS,
    AttentionPropagation,
    ScalingComparison,
    weight_law,
)
from initcore.results.attention_rows import AttentionRows
from initcore.results.exact import Accumulator, ExactRecord
from initcore.results.softmax_rows import exact_means
from initcore.scaling import Effect, Scaling, Sizes, scaling
from initcore.specifications import finite_number, non_negative_number
from initcore.streams import check_seed, resolve_threads, stream_id
from initcore.theory.attention import predict_attention

Real = NDArray[np.float32]
NORMS = ("rms", "layer")

_LINEAR = activation("linear")
# Heads are taken together up to so many multiplications: Ctrl-C waits for what was begun.
_TOGETHER = 6e7
# Logits that are held in memory at a time for the second moment of their gradient.
_BLOCK_LOGITS = 1 << 20
# QK-norm's cost is told from so many repeats, or as many as begin in this time.
_COST_REPEATS, _COST_SECONDS = 20, 1.0


class _Cancelled(Exception):
    """Raised within a trial that is to stop."""


@dataclass(frozen=True)
class AttentionExperiment:
    """Random attention: everything a trial depends on but its number."""

    d_model: int
    n_heads: int
    seq: int
    d_k: int
    batch: int
    scaling: str
    inits: tuple[str, ...]  # those of WEIGHTS
    norm: str | None
    x_std: float
    correlation: float
    causal: bool
    backward: bool
    seed: int
    effect: Effect  # the scaling's at these sizes

    @property
    def spec(self) -> dict[str, Any]:
        """What ``propagate_attention`` takes to run it again, but for the seed."""
        return {
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "seq": self.seq,
            "d_k": self.d_k,
            "batch": self.batch,
            "scaling": self.scaling,
            "init": self.inits[0] if len(set(self.inits)) == 1 else list(self.inits),
            "norm": self.norm,
            "x_std": self.x_std,
            "correlation": self.correlation,
            "causal": self.causal,
            "backward": self.backward,
        }

    @property
    def trial_seconds(self) -> float:
        """From draws, products and logits, on a current core."""
        tokens, weights = self.batch * self.seq, 4 * self.d_model * self.n_heads * self.d_k
        logits = tokens * self.seq * self.n_heads
        forward = weights * (tokens * 3e-11 + 1e-9) + logits * (self.d_k * 1e-10 + 2e-9)
        return 1e-3 + forward * (6 if self.backward else 1)

    def worker(self) -> AttentionWorker:
        """See ``engine.Experiment``."""
        return AttentionWorker(self)


class _Weight(NamedTuple):
    """How a weight is drawn."""

    name: str
    init: Initializer
    shape: tuple[int, int]
    stream: _core.Source | None  # None if it has no one law, and is drawn whole

    @classmethod
    def of(cls, experiment: AttentionExperiment, which: str) -> _Weight:
        text, shape = weight_law(experiment.spec, experiment.effect, which)
        name, init, stream = f"attention.{which}.weight", initializer(text), None
        with contextlib.suppress(ValueError):
            stream = stream_id(name), *astuple(init.distribution(shape, "float32"))
        return cls(name, init, shape, stream)

    def source(self, experiment: AttentionExperiment, trial: int) -> _core.Source:
        """Its stream, if it is multiplied once, so that it need not be kept; else the array."""
        if self.stream is not None and not experiment.backward:
            return self.stream
        drawn: NDArray[np.float32] = self.init(
            self.shape, seed=experiment.seed, name=self.name, trial=trial, threads=1
        )
        return drawn


class _Forward(NamedTuple):
    """A forward pass from q, k and v; heads are (batch·n_heads, seq, d_k)."""

    q: Normalized | None
    k: Normalized | None
    q_heads: Real
    k_heads: Real
    v_heads: Real
    output: Real  # (tokens, n_heads·d_k)
    rows: AttentionRows


class AttentionWorker:
    """See ``engine.Worker``."""

    def __init__(self, experiment: AttentionExperiment) -> None:
        self._kernels = _core.default()
        self._experiment = e = experiment
        self._tokens, self._inner = e.batch * e.seq, e.n_heads * e.d_k
        self._scratch = np.empty(0, np.uint8)
        self._cancel = np.zeros(1, np.int32)
        self._weights = [_Weight.of(e, which) for which in WEIGHTS]
        self._sums = Accumulator(ALL_COLUMNS if e.backward else FORWARD_COLUMNS, 0, (0, 0))

    def run(self, start: int, stop: int, cancel: engine.Cancel) -> bool:
        """See ``engine.Worker``."""
        self._cancel = cancel
        try:
            table = np.array([self._trial(trial) for trial in range(start, stop)])
        except _Cancelled:
            return False
        self._sums.add(table, np.empty((len(table), 0)))
        return True

    def record(self) -> ExactRecord:
        """See ``engine.Worker``."""
        return self._sums.record()

    # A trial

    def _trial(self, trial: int) -> list[float]:
        """The columns of ``AttentionPropagation.record``."""
        e = self._experiment
        x = self._input(trial)
        norm = None if e.norm is None else normalize(x, e.norm)
        normalized = x if norm is None else norm.y
        weights = [w.source(e, trial) for w in self._weights]
        (q, q2), (k, k2), (v, v2) = (
            self._product(trial, normalized, weight, self._inner) for weight in weights[:3]
        )
        run = self._attend(q, k, v)
        y2 = self._product(trial, run.output, weights[3], e.d_model)[1]
        rows, raw2, logits2 = self._rows(run)
        q_hat2, k_hat2 = (
            moment if hat is None else _second_moment(hat.y)
            for hat, moment in ((run.q, q2), (run.k, k2))
        )
        forward = [
            _second_moment(x),
            _second_moment(normalized),
            q2,
            k2,
            v2,
            q_hat2,
            k_hat2,
            raw2,
            logits2,
            _second_moment(run.output),
            y2,
        ]
        if not e.backward:
            return [*forward, *rows]
        return [*forward, *rows, *self._backward(trial, norm, weights, run)]

    def _input(self, trial: int) -> Real:
        """Tokens (batch·seq, d_model), those of a sequence with the given correlation."""
        e = self._experiment

        def draw(std: float, name: str, *shape: int) -> Real:
            drawn: Real = normal(std)(shape, seed=e.seed, name=name, trial=trial, threads=1)
            return drawn

        own = draw(e.x_std * math.sqrt(1 - e.correlation), "input", e.batch, e.seq, e.d_model)
        if e.correlation:
            shared = e.x_std * math.sqrt(e.correlation)
            own += draw(shared, "input.common", e.batch, 1, e.d_model)
        return own.reshape(self._tokens, e.d_model)

    def _product(self, trial: int, x: Real, weight: _core.Source, n_out: int) -> tuple[Real, float]:
        """x Wᵀ and its second moment."""
        spec = _core.Chain(
            "float32",
            self._experiment.seed,
            len(x),
            [x.shape[1], n_out],
            [(_LINEAR.kernel_id, _LINEAR.parameter, _LINEAR.saturation_threshold)],
            x,
            [weight],
            [None],
        )
        size = self._kernels.chain_workspace(spec)
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        y, state = np.empty((len(x), n_out), np.float32), np.zeros((1, 1, 2, _core.MOMENTS))
        if not self._kernels.chain(spec, trial, 1, state, y, self._scratch, self._cancel):
            raise _Cancelled
        return y, _of_state(state[0, 0, 0])

    def _attend(self, q: Real, k: Real, v: Real) -> _Forward:
        """From q, k and v (tokens, n_heads·d_k) to the heads' output."""
        e = self._experiment
        q_hat, k_hat = (
            None if e.effect.norm is None else normalize(one.reshape(-1, e.d_k), e.effect.norm)
            for one in (q, k)
        )
        q_heads, k_heads, v_heads = heads = [
            self._heads(one if hat is None else hat.y)
            for one, hat in ((q, q_hat), (k, k_hat), (v, None))
        ]
        found = [
            attention(
                *(one[piece] for one in heads), scale=e.effect.logits, causal=e.causal, threads=1
            )
            for piece in self._pieces()
        ]
        output = self._tokens_of(_joined([output for output, _ in found]))
        rows = _joined_rows([rows for _, rows in found])
        return _Forward(q_hat, k_hat, q_heads, k_heads, v_heads, output, rows)

    def _rows(self, run: _Forward) -> tuple[list[float], float, float]:
        """The columns of MEANS, and the second moments of raw and scaled logits."""
        rows, scale = run.rows, self._experiment.effect.logits
        means = _row_means(rows)
        logits2 = _logit_moment(rows)
        if scale:
            return means, logits2 / scale**2, logits2
        raw = [
            attention_stats(
                run.q_heads[piece],
                run.k_heads[piece],
                scale=1.0,
                causal=self._experiment.causal,
                threads=1,
            )
            for piece in self._pieces()
        ]
        return means, _logit_moment(_joined_rows(raw)), logits2

    def _heads(self, x: Real) -> Real:
        """(batch·n_heads, seq, d_k) of the tokens' (batch·seq, n_heads·d_k)."""
        e = self._experiment
        split = x.reshape(e.batch, e.seq, e.n_heads, e.d_k).swapaxes(1, 2)
        return np.ascontiguousarray(split).reshape(-1, e.seq, e.d_k)

    def _tokens_of(self, heads: Real) -> Real:
        """The inverse of ``_heads``."""
        e = self._experiment
        split = heads.reshape(e.batch, e.n_heads, e.seq, e.d_k).swapaxes(1, 2)
        return np.ascontiguousarray(split).reshape(self._tokens, self._inner)

    def _pieces(self) -> Iterator[slice]:
        """Heads that are taken together; raises between them when the trial is to stop."""
        e = self._experiment
        heads = e.batch * e.n_heads
        step = max(1, int(_TOGETHER / (e.seq**2 * (2 * e.d_k + 32))))
        for first in range(0, heads, step):
            if self._cancel[0]:
                raise _Cancelled
            yield slice(first, first + step)

    # Its backward pass

    def _backward(
        self, trial: int, norm: Normalized | None, weights: Sequence[Any], run: _Forward
    ) -> list[float]:
        """The columns of gradients, by each link and by the scale, from a standard normal one of
        the output."""
        e, scale = self._experiment, self._experiment.effect.logits
        dy: Real = normal()(
            (self._tokens, e.d_model), seed=e.seed, name="output_gradient", trial=trial, threads=1
        )
        w_o = np.ascontiguousarray(weights[3].T)
        dheads, dheads2 = self._product(trial, dy, w_o, self._inner)
        dout = self._heads(dheads)
        found = [
            attention_backward(
                *(one[piece] for one in (run.q_heads, run.k_heads, run.v_heads, dout)),
                scale=scale,
                causal=e.causal,
                threads=1,
            )
            for piece in self._pieces()
        ]
        hats = [self._tokens_of(_joined([one[i] for one in found])) for i in range(3)]
        dscale = math.fsum(one[3] for one in found)
        dq, dk = (
            hat if after is None else after.gradient(hat.reshape(-1, e.d_k)).reshape(hat.shape)
            for after, hat in zip((run.q, run.k), hats, strict=False)
        )
        joined = np.concatenate([dq, dk, hats[2]], axis=1)
        # Transposing them when they are joined takes five times as long.
        w_qkv = np.empty((e.d_model, 3 * self._inner), np.float32)
        np.concatenate([weight.T for weight in weights[:3]], axis=1, out=w_qkv)
        dnormalized, dnormalized2 = self._product(trial, joined, w_qkv, e.d_model)
        dx = dnormalized if norm is None else norm.gradient(dnormalized)
        dlogits2 = self._logit_gradient(run, dout)
        links = [
            _second_moment(dx),
            dnormalized2,
            *map(_second_moment, (dq, dk, hats[2])),
            *map(_second_moment, hats[:2]),
            dlogits2 * scale**2,
            dlogits2,
            dheads2,
            _second_moment(dy),
        ]
        return [*links, dscale**2, *self._pulls(run)]

    def _logit_gradient(self, run: _Forward, dout: Real) -> float:
        """The second moment of ∂/∂logits, p ⊙ (dp − Σ dp·p), over the keys that take part."""
        e = self._experiment
        product = functools.partial(chain, activation="linear", stats=False, threads=1)
        at_once = max(1, _BLOCK_LOGITS // e.seq**2)
        step = max(1, _BLOCK_LOGITS // e.seq)
        total, count = [], 0
        for head in range(0, len(dout), at_once):
            heads = slice(head, head + at_once)
            for first in range(0, e.seq, step):
                if self._cancel[0]:
                    raise _Cancelled
                last = min(first + step, e.seq)
                queries, keys = slice(first, last), slice(last if e.causal else e.seq)
                z, _ = product(run.q_heads[heads, queries], [run.k_heads[heads, keys]])
                p, _ = softmax(z, scale=e.effect.logits, causal=e.causal, threads=1)
                dp, _ = product(dout[heads, queries], [run.v_heads[heads, keys]])
                dz = softmax_backward(p, dp, threads=1)
                total.append(_second_moment(dz) * dz.size)
                # Entries above the diagonal are exactly 0, and no gradients.
                unseen = (last - first) * (last - first - 1) // 2 if e.causal else 0
                count += dz.size - len(dz) * unseen
        return math.fsum(total) / count

    def _pulls(self, run: _Forward) -> list[float]:
        """∂loss/∂ln scale a row at logits of PULL_STDS, the loss −ln p of any key, then of the best
        one: Σ p z − z_t."""
        e, scale = self._experiment, self._experiment.effect.logits
        variance = _mean(run.rows.logit_var) / scale**2 if scale else math.nan
        if not 0 < variance < math.inf:
            return [math.nan] * (2 * len(PULL_STDS))
        any_key, best_key = [], []
        for std in PULL_STDS:
            rows = _joined_rows(
                [
                    attention_stats(
                        run.q_heads[piece],
                        run.k_heads[piece],
                        scale=std / math.sqrt(variance),
                        causal=e.causal,
                        threads=1,
                    )
                    for piece in self._pieces()
                ]
            )
            expected = rows.lse - rows.entropy
            any_key.append(_mean(expected - rows.logit_mean))
            best_key.append(_mean(expected - rows.logit_max))
        return [*any_key, *best_key]


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _joined_rows(parts: Sequence[AttentionRows | None]) -> AttentionRows:
    rows = [part for part in parts if part is not None]
    if len(rows) == 1:
        return rows[0]
    names = AttentionRows.__dataclass_fields__
    return AttentionRows(**{name: _joined([getattr(r, name) for r in rows]) for name in names})


def _second_moment(x: Real) -> float:
    state = np.zeros(_core.MOMENTS)
    _core.default().moments(x.reshape(-1, x.shape[-1]), state)
    return _of_state(state)


def _of_state(state: NDArray[np.float64]) -> float:
    """The second moment, of a running state of the moments kernel."""
    count, mean, m2 = state[:3].tolist()
    return float(m2 / count + mean * mean)


def _mean(values: NDArray[Any]) -> float:
    """The mean of what is finite; correctly rounded, so that no order of terms matters."""
    finite = values[np.isfinite(values)]
    return math.fsum(finite.ravel().tolist()) / finite.size if finite.size else math.nan


def _row_means(rows: AttentionRows) -> list[float]:
    """The columns of MEANS."""
    several = rows.keys > 1
    with np.errstate(invalid="ignore", divide="ignore"):
        special = {
            "keys_share": np.where(several, rows.effective_keys / rows.keys, np.nan),
            "saturated_fraction": np.where(several, rows.saturated, np.nan),
            "nonfinite_fraction": np.isnan(rows.lse),
        }
        table = np.empty((rows.lse.size, len(MEANS)))
        for i, name in enumerate(MEANS):
            column = special[name] if name in special else getattr(rows, name)
            table[:, i] = column.reshape(-1)
    return exact_means(table)


def _logit_moment(rows: AttentionRows) -> float:
    """Over all logits that take part."""
    keys = float(np.sum(rows.keys))  # integers
    squares = rows.keys * (rows.logit_var + rows.logit_mean**2)
    return math.fsum(squares.ravel().tolist()) / keys if np.isfinite(squares).all() else math.nan


# The verbs


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

    ``scalings`` has at least one entry, each what ``propagate_attention`` takes as ``scaling``; the
    rest is as there. Returns the results in that order, and what each costs.
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
    workers = [experiment.worker() for experiment in experiments]
    first = experiments[0]
    shape = (first.batch * first.seq, first.n_heads * first.d_k)
    q, k, v = (normal()(shape, seed=0, name=name) for name in "qkv")
    least = [math.inf] * len(workers)
    begin = time.perf_counter()
    for _ in range(_COST_REPEATS):
        for i, worker in enumerate(workers):
            start = time.perf_counter()
            worker._attend(q, k, v)
            least[i] = min(least[i], time.perf_counter() - start)
        if time.perf_counter() - begin > _COST_SECONDS:
            break
    return tuple(least)


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
        accepted = f"one, or a list of {len(WEIGHTS)}, for W_Q, W_K, W_V and W_O"
        raise refused("init", init, accepted, is_value=True)
    share = non_negative_number("correlation", correlation)
    if share > 1:
        raise ValueError(f"correlation must be from 0 to 1; got {correlation!r}")
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
    finite_number("scaling", experiment.effect.logits)
    for which in WEIGHTS:  # a law that a shape does not admit is refused here
        text, shape = weight_law(experiment.spec, experiment.effect, which)
        initializer(text).std(shape)
    return experiment
