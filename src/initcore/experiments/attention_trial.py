# SPDX-License-Identifier: BSD-3-Clause
"""What a trial of random attention is: x → norm → q, k, v → heads → softmax → output, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.activations import activation
from initcore.experiments import engine
from initcore.experiments.norms import Normalized, normalize
from initcore.initializers import initializer, normal
from initcore.kernels.attention import rounded_sum
from initcore.results.attention import WEIGHTS, weight_law
from initcore.results.attention_links import ALL_COLUMNS, FORWARD_COLUMNS, MEANS, PULL_STDS
from initcore.results.attention_rows import AttentionRows
from initcore.results.exact import Accumulator, ExactRecord
from initcore.results.softmax_rows import exact_means
from initcore.scaling import Effect
from initcore.streams import stream_id

Real = NDArray[np.float32]
Wide = NDArray[np.float64]

_LINEAR = activation("linear").kernel_words
# Rows whose largest probability reaches this are counted as saturated.
_SATURATION = 0.99


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
        return 1e-3 + forward * (4 if self.backward else 1)

    def worker(self) -> AttentionWorker:
        """See ``engine.Experiment``."""
        return AttentionWorker(self)


class _Projection:
    """y = x Wᵀ and, on the way back, dx = dy W, of a weight that every trial draws.

    x (tokens, n_in) is an array that each trial fills. A weight with a law is drawn slab by slab,
    and kept for the way back where there is one; another is drawn whole.
    """

    def __init__(self, experiment: AttentionExperiment, which: str, x: Real) -> None:
        text, shape = weight_law(experiment.spec, experiment.effect, which)
        self._name, self._init = f"attention.{which}.weight", initializer(text)
        self._seed, self._n_in = experiment.seed, shape[1]
        self._whole: Real | None = None
        source: _core.Source
        try:
            law = astuple(self._init.distribution(shape, "float32"))
        except ValueError:
            source = self._whole = np.empty(shape, np.float32)
        else:
            source = (stream_id(self._name), *law)
        self.y = np.empty((len(x), shape[0]), np.float32)
        self._dy, self._dx = (
            np.empty_like(like) if experiment.backward else None for like in (self.y, x)
        )
        self._chain = _core.Chain(
            "float32",
            experiment.seed,
            len(x),
            [shape[1], shape[0]],
            [_LINEAR],
            x,
            [source],
            [None],
            self._dy,
        )
        self._out = _core.Gradients("float32", self._dx, [None], [None])
        self._kernels = _core.default()
        self._workspace = np.empty(0, np.uint8)

    def share(self, workspace: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Works in this scratch if it is large enough, else in more, and returns what it took."""
        size = self._kernels.chain_workspace(self._chain)
        self._workspace = workspace if workspace.size >= size else np.empty(size, np.uint8)
        return self._workspace

    def forward(self, trial: int, cancel: engine.Cancel) -> Real:
        """y, which the next trial overwrites."""
        if self._whole is not None:
            self._init(
                self._whole.shape,
                seed=self._seed,
                name=self._name,
                trial=trial,
                out=self._whole,
                threads=1,
            )
        if not self._kernels.chain(self._chain, trial, 1, None, self.y, self._workspace, cancel):
            raise _Cancelled
        return self.y

    def backward(self, trial: int, dy: Real, cancel: engine.Cancel) -> Real:
        """dx, after ``forward`` of the same trial; the next one overwrites it."""
        assert self._dx is not None
        assert self._dy is not None
        self._dy[...] = dy
        both = self._workspace, self._workspace
        self._kernels.chain_output_gradient(self._chain, trial, None, None, *both)
        if not self._kernels.chain_backward_columns(
            self._chain, trial, 0, 0, self._n_in, None, None, None, self._out, *both, cancel
        ):
            raise _Cancelled
        return self._dx


class Attended(NamedTuple):
    """A forward pass from q, k and v; heads are (batch·n_heads, seq, d_k)."""

    q: Normalized | None
    k: Normalized | None
    q_heads: Real
    k_heads: Real
    spec: _core.Attention
    output: Real  # (batch·n_heads·seq, d_k)
    statistics: Wide  # of those rows, as the kernel has them


class Attention:
    """From q, k and v to the heads' output and its statistics, and back."""

    def __init__(self, experiment: AttentionExperiment) -> None:
        self._experiment = e = experiment
        self._kernels = _core.default()
        heads = e.batch * e.n_heads
        self._rows = heads * e.seq
        self._index = np.repeat(np.arange(heads)[:, None], 3, axis=1)

    def heads(self, x: Real) -> Real:
        """(batch·n_heads, seq, d_k) of the tokens' (batch·seq, n_heads·d_k)."""
        e = self._experiment
        split = x.reshape(e.batch, e.seq, e.n_heads, e.d_k).swapaxes(1, 2)
        return np.ascontiguousarray(split).reshape(-1, e.seq, e.d_k)

    def tokens(self, heads: Real) -> Real:
        """The inverse of ``heads``."""
        e = self._experiment
        split = heads.reshape(e.batch, e.n_heads, e.seq, e.d_k).swapaxes(1, 2)
        return split.reshape(e.batch * e.seq, e.n_heads * e.d_k)

    def forward(self, q: Real, k: Real, v: Real, cancel: engine.Cancel) -> Attended:
        """Of q, k and v (tokens, n_heads·d_k)."""
        d_k, effect = self._experiment.d_k, self._experiment.effect
        q_heads, k_heads, v_heads = map(self.heads, (q, k, v))
        q_hat = k_hat = None
        if effect.norm is not None:
            q_hat, k_hat = (
                normalize(heads.reshape(-1, d_k), effect.norm) for heads in (q_heads, k_heads)
            )
            q_heads, k_heads = q_hat.y.reshape(q_heads.shape), k_hat.y.reshape(k_heads.shape)
        output = np.empty((self._rows, d_k), np.float32)
        spec, statistics = self._run(q_heads, k_heads, effect.logits, cancel, v_heads, output)
        return Attended(q_hat, k_hat, q_heads, k_heads, spec, output, statistics)

    def statistics(self, run: Attended, scale: float, cancel: engine.Cancel) -> Wide:
        """Of the rows with another scale."""
        return self._run(run.q_heads, run.k_heads, scale, cancel)[1]

    def _run(
        self,
        q: Real,
        k: Real,
        scale: float,
        cancel: engine.Cancel,
        v: Real | None = None,
        output: Real | None = None,
    ) -> tuple[_core.Attention, Wide]:
        causal = self._experiment.causal
        spec = _core.Attention(q, k, self._index, scale=scale, causal=causal, v=v)
        statistics = np.empty((self._rows, _core.ATTENTION_STATISTICS))
        workspace = np.empty(self._kernels.attention_workspace(spec), np.uint8)
        if not self._kernels.attention(spec, 0, statistics, output, workspace, cancel):
            raise _Cancelled
        return spec, statistics

    def backward(
        self, run: Attended, dout: Real, cancel: engine.Cancel
    ) -> tuple[Real, Real, Real, Wide]:
        """dq, dk, dv (batch·n_heads·seq, d_k), after QK-norm, of dout (batch·n_heads, seq, d_k);
        and the kernel's sums of q's rows."""
        kernels, shape = self._kernels, run.output.shape
        prepared = np.empty((self._rows, 3), np.float32)
        kernels.attention_prepare(
            run.spec, run.statistics, run.output, dout.reshape(shape), prepared
        )
        heads = len(dout)
        begin, users = np.arange(heads + 1), np.arange(heads)
        gradient = _core.AttentionGradient(
            run.spec, dout, prepared.reshape(heads, -1, 3), begin, users, begin, users
        )
        dq, dk, dv = np.empty((3, *shape), np.float32)
        sums = np.empty((self._rows, _core.GRADIENT_SUMS))
        workspace = np.empty(kernels.attention_backward_workspace(gradient), np.uint8)
        for dx, by_v, by_rows in ((dq, None, sums), (dk, dv, None)):
            if not kernels.attention_backward(gradient, 0, dx, by_v, by_rows, workspace, cancel):
                raise _Cancelled
        return dq, dk, dv, sums


class AttentionWorker:
    """See ``engine.Worker``."""

    def __init__(self, experiment: AttentionExperiment) -> None:
        self._experiment = e = experiment
        self._cancel = np.zeros(1, np.int32)
        self._attention = Attention(e)
        tokens = e.batch * e.seq
        self._normalized = np.empty((tokens, e.d_model), np.float32)
        self._head_output = np.empty((tokens, e.n_heads * e.d_k), np.float32)
        self._projections = [_Projection(e, which, self._normalized) for which in WEIGHTS[:3]]
        self._last = _Projection(e, WEIGHTS[3], self._head_output)
        nothing = scratch = np.empty(0, np.uint8)
        for projection in (*self._projections, self._last):
            # What is kept for the way back is each one's own; else one scratch stays in cache.
            scratch = projection.share(nothing if e.backward else scratch)
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

    def _trial(self, trial: int) -> list[float]:
        """The columns of ``AttentionPropagation.record``."""
        e = self._experiment
        x = self._input(trial)
        norm = None if e.norm is None else normalize(x, e.norm)
        self._normalized[...] = x if norm is None else norm.y
        q, k, v = (p.forward(trial, self._cancel) for p in self._projections)
        run = self._attention.forward(q, k, v, self._cancel)
        self._head_output[...] = self._attention.tokens(run.output)
        output = self._last.forward(trial, self._cancel)
        means, raw2, logits2 = self._rows(run)
        moments = list(map(_second_moment, (x, self._normalized, q, k, v)))
        hats = [
            moment if hat is None else _second_moment(hat.y)
            for moment, hat in zip(moments[2:4], (run.q, run.k), strict=True)
        ]
        columns = [
            *moments,
            *hats,
            raw2,
            logits2,
            *map(_second_moment, (self._head_output, output)),
            *means,
        ]
        if e.backward:
            columns += [*self._backward(trial, norm, run), *self._pulls(run, means)]
        return columns

    def _input(self, trial: int) -> Real:
        """Tokens (batch·seq, d_model), those of a sequence with the given correlation."""
        e = self._experiment

        def draw(std: float, name: str, rows: int) -> Real:
            shape = e.batch, rows, e.d_model
            drawn: Real = normal(std)(shape, seed=e.seed, name=name, trial=trial, threads=1)
            return drawn

        tokens = draw(e.x_std * math.sqrt(1 - e.correlation), "input", e.seq)
        if e.correlation:
            tokens += draw(e.x_std * math.sqrt(e.correlation), "input.common", 1)
        return tokens.reshape(-1, e.d_model)

    def _rows(self, run: Attended) -> tuple[list[float], float, float]:
        """The columns of MEANS, and the second moments of raw and scaled logits."""
        scale = self._experiment.effect.logits
        means, logits2 = _row_means(run.statistics)
        if scale:
            return means, logits2 / scale**2, logits2
        raw = self._attention.statistics(run, 1.0, self._cancel)
        return means, _row_means(raw)[1], logits2

    def _backward(self, trial: int, norm: Normalized | None, run: Attended) -> list[float]:
        """The columns of gradients, by each link and by the scale, from a standard normal one of
        the output."""
        e, scale, last = self._experiment, self._experiment.effect.logits, self._last
        dy: Real = normal()(
            last.y.shape, seed=e.seed, name="output_gradient", trial=trial, threads=1
        )
        dheads = last.backward(trial, dy, self._cancel)
        dq_hat, dk_hat, dv, sums = self._attention.backward(
            run, self._attention.heads(dheads), self._cancel
        )
        dq, dk = (
            hat if after is None else after.gradient(hat)
            for after, hat in ((run.q, dq_hat), (run.k, dk_hat))
        )
        by_q, by_k, by_v = (
            projection.backward(trial, self._attention.tokens(by_heads), self._cancel)
            for projection, by_heads in zip(self._projections, (dq, dk, dv), strict=True)
        )
        dnormalized = by_q + by_k
        dnormalized += by_v
        dx = dnormalized if norm is None else norm.gradient(dnormalized)
        dscale, squares = (rounded_sum(sums[:, i]) for i in (_core.BY_SCALE, _core.LOGIT_SQUARES))
        dlogits2 = squares / float(np.sum(run.statistics[:, _core.KEYS]))
        return [
            *map(_second_moment, (dx, dnormalized, dq, dk, dv, dq_hat, dk_hat)),
            dlogits2 * scale**2,
            dlogits2,
            *map(_second_moment, (dheads, dy)),
            dscale**2,
        ]

    def _pulls(self, run: Attended, means: Sequence[float]) -> list[float]:
        """∂loss/∂ln scale a row at logits of PULL_STDS, the loss −ln p of any key, then of the best
        one: Σ p z − z_t."""
        scale = self._experiment.effect.logits
        variance = means[MEANS.index("logit_var")] / scale**2 if scale else math.nan
        if not 0 < variance < math.inf:
            return [math.nan] * (2 * len(PULL_STDS))
        table = np.empty((len(run.statistics), 2 * len(PULL_STDS)))
        for i, std in enumerate(PULL_STDS):
            statistics = self._attention.statistics(run, std / math.sqrt(variance), self._cancel)
            rows = AttentionRows.from_statistics(statistics, _SATURATION)
            expected = rows.lse - rows.entropy
            table[:, i] = expected - rows.logit_mean
            table[:, len(PULL_STDS) + i] = expected - rows.logit_max
        return exact_means(table)


def _second_moment(x: Real) -> float:
    state = np.zeros(_core.MOMENTS)
    _core.default().moments(x.reshape(-1, x.shape[-1]), state)
    count, mean, m2 = state[:3].tolist()
    return float(m2 / count + mean * mean)


def _row_means(statistics: Wide) -> tuple[list[float], float]:
    """The columns of MEANS, and the second moment of all logits that take part."""
    rows = AttentionRows.from_statistics(statistics, _SATURATION)
    several = rows.keys > 1
    with np.errstate(invalid="ignore", divide="ignore"):
        special = {
            "keys_share": np.where(several, rows.effective_keys / rows.keys, np.nan),
            "saturated_fraction": np.where(several, rows.saturated, np.nan),
            "nonfinite_fraction": np.isnan(rows.lse),
        }
        columns = [special[name] if name in special else getattr(rows, name) for name in MEANS]
        squares = rows.keys * (rows.logit_var + rows.logit_mean**2)
        *means, keys, total = exact_means(np.stack([*columns, rows.keys, squares], axis=1))
    return means, total / keys if np.isfinite(squares).all() else math.nan
