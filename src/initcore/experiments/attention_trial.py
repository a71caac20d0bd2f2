# SPDX-License-Identifier: BSD-3-Clause
"""What a trial of random attention is: x → norm → q, k, v → heads → softmax → output, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.activations import activation
from initcore.experiments import engine
from initcore.experiments.norms import Norm
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

    x (tokens, n_in) is an array that each trial fills, and so is dy (tokens, n_out). A weight with
    a law is drawn slab by slab, and kept for the way back where there is one; another is drawn
    whole.
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
        self.y: Real = np.empty((len(x), shape[0]), np.float32)
        # without a way back of no size
        back = slice(None if experiment.backward else 0)
        self.dy: Real = np.empty_like(self.y[back])
        self.dx: Real = np.empty_like(x[back])
        self._chain = _core.Chain(
            "float32",
            experiment.seed,
            len(x),
            [shape[1], shape[0]],
            [_LINEAR],
            x,
            [source],
            [None],
            self.dy if experiment.backward else None,
        )
        self._out = _core.Gradients("float32", self.dx, [None], [None])
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
            raise engine.Cancelled
        return self.y

    def backward(self, trial: int, cancel: engine.Cancel) -> Real:
        """dx of what is in dy, after ``forward`` of the same trial; the next one overwrites it."""
        both = self._workspace, self._workspace
        self._kernels.chain_output_gradient(self._chain, trial, None, None, *both)
        if not self._kernels.chain_backward_columns(
            self._chain, trial, 0, 0, self._n_in, None, None, None, self._out, *both, cancel
        ):
            raise engine.Cancelled
        return self.dx


class Attention:
    """From q, k and v to the heads' output and its statistics, and back.

    q and k are those after QK-norm, (batch·n_heads, seq, d_k) as v; output (batch·n_heads, seq,
    d_k); statistics (batch·n_heads·seq, ATTENTION_STATISTICS). Each call overwrites them.
    """

    def __init__(self, experiment: AttentionExperiment) -> None:
        self._experiment = e = experiment
        self._kernels = _core.default()
        heads = e.batch * e.n_heads
        shape, rows = (heads, e.seq, e.d_k), heads * e.seq
        self._raw_q, self._raw_k, self._v = self.q, self.k, _ = np.empty((3, *shape), np.float32)
        self.q_norm = self.k_norm = None
        if e.effect.norm is not None:
            self.q_norm, self.k_norm = (Norm(rows, e.d_k, e.effect.norm) for _ in "qk")
            self.q, self.k = (norm.y.reshape(shape) for norm in (self.q_norm, self.k_norm))
        self._index = np.repeat(np.arange(heads)[:, None], 3, axis=1)
        self._spec = self._scaled(e.effect.logits, self._v)
        self._workspace = np.empty(self._kernels.attention_workspace(self._spec), np.uint8)
        self.output: Real = np.empty(shape, np.float32)
        self.statistics = np.empty((rows, _core.ATTENTION_STATISTICS))
        if e.backward:
            self._dout, self._dq, self._dk, self._dv = np.empty((4, *shape), np.float32)
            self._prepared = np.empty((heads, e.seq, 3), np.float32)
            self.gradient_sums = np.empty((rows, _core.GRADIENT_SUMS))
            begin, users = np.arange(heads + 1), np.arange(heads)
            self._gradient = _core.AttentionGradient(
                self._spec, self._dout, self._prepared, begin, users, begin, users
            )
            size = self._kernels.attention_backward_workspace(self._gradient)
            self._backward_workspace = np.empty(size, np.uint8)

    def _scaled(self, scale: float, v: Real | None = None) -> _core.Attention:
        causal = self._experiment.causal
        return _core.Attention(self.q, self.k, self._index, scale=scale, causal=causal, v=v)

    def _run(
        self, spec: _core.Attention, statistics: Wide, output: Real | None, cancel: engine.Cancel
    ) -> None:
        if not self._kernels.attention(spec, 0, statistics, output, self._workspace, cancel):
            raise engine.Cancelled

    def forward(self, q: Real, k: Real, v: Real, cancel: engine.Cancel) -> None:
        """Of q, k and v (tokens, n_heads·d_k)."""
        for tokens, heads in ((q, self._raw_q), (k, self._raw_k), (v, self._v)):
            self._to_heads(tokens, heads)
        for norm, heads in ((self.q_norm, self._raw_q), (self.k_norm, self._raw_k)):
            if norm is not None:
                norm.forward(_rows(heads), cancel)
        self._run(self._spec, self.statistics, _rows(self.output), cancel)

    def statistics_at(self, scale: float, cancel: engine.Cancel) -> Wide:
        """Of the same rows with another scale."""
        statistics = np.empty_like(self.statistics)
        self._run(self._scaled(scale), statistics, None, cancel)
        return statistics

    def backward(self, dheads: Real, cancel: engine.Cancel) -> tuple[Real, Real, Real]:
        """dq and dk after QK-norm, and dv, as q is, of dheads (tokens, n_heads·d_k); fills
        gradient_sums, by row of q."""
        self._to_heads(dheads, self._dout)
        self._kernels.attention_prepare(
            self._spec,
            self.statistics,
            _rows(self.output),
            _rows(self._dout),
            _rows(self._prepared),
        )
        dq, dk, dv = self._dq, self._dk, self._dv
        kernel, workspace = self._kernels.attention_backward, self._backward_workspace
        by_rows = self.gradient_sums
        if not (
            kernel(self._gradient, 0, _rows(dq), None, by_rows, workspace, cancel)
            and kernel(self._gradient, 0, _rows(dk), _rows(dv), None, workspace, cancel)
        ):
            raise engine.Cancelled
        return dq, dk, dv

    def _to_heads(self, tokens: Real, heads: Real) -> None:
        """(batch·n_heads, seq, d_k) of the tokens' (batch·seq, n_heads·d_k)."""
        e = self._experiment
        split = tokens.reshape(e.batch, e.seq, e.n_heads, e.d_k)
        heads.reshape(e.batch, e.n_heads, e.seq, e.d_k)[...] = split.swapaxes(1, 2)

    def to_tokens(self, heads: Real, tokens: Real) -> None:
        """The other way."""
        e = self._experiment
        split = heads.reshape(e.batch, e.n_heads, e.seq, e.d_k)
        tokens.reshape(e.batch, e.seq, e.n_heads, e.d_k)[...] = split.swapaxes(1, 2)


class AttentionWorker:
    """See ``engine.Worker``. What a trial fills is made once: fresh memory would cost a fifth."""

    def __init__(self, experiment: AttentionExperiment) -> None:
        self._experiment = e = experiment
        self._cancel = np.zeros(1, np.int32)
        self._attention = Attention(e)
        shape = e.batch * e.seq, e.d_model
        self._x: Real = np.empty(shape, np.float32)
        self._norm = None if e.norm is None else Norm(*shape, e.norm)
        self._normalized = self._x if self._norm is None else self._norm.y
        self._head_output: Real = np.empty((shape[0], e.n_heads * e.d_k), np.float32)
        self._projections = [_Projection(e, which, self._normalized) for which in WEIGHTS[:3]]
        self._last = _Projection(e, WEIGHTS[3], self._head_output)
        nothing = scratch = np.empty(0, np.uint8)
        for projection in (*self._projections, self._last):
            # What is kept for the way back is each one's own; else one scratch stays in cache.
            scratch = projection.share(nothing if e.backward else scratch)
        self._sums = Accumulator(ALL_COLUMNS if e.backward else FORWARD_COLUMNS, 0)

    def run(self, start: int, stop: int, cancel: engine.Cancel) -> bool:
        """See ``engine.Worker``."""
        self._cancel = cancel
        try:
            table = np.array([self._trial(trial) for trial in range(start, stop)])
        except engine.Cancelled:
            return False
        self._sums.add(table, np.empty((len(table), 0)))
        return True

    def record(self) -> ExactRecord:
        """See ``engine.Worker``."""
        return self._sums.record()

    def _trial(self, trial: int) -> list[float]:
        """The columns of ``AttentionPropagation.record``."""
        heads = self._attention
        self._draw_input(trial)
        if self._norm is not None:
            self._norm.forward(self._x, self._cancel)
        q, k, v = (p.forward(trial, self._cancel) for p in self._projections)
        heads.forward(q, k, v, self._cancel)
        heads.to_tokens(heads.output, self._head_output)
        output = self._last.forward(trial, self._cancel)
        means, raw2, logits2 = self._rows()
        moments = list(map(_second_moment, (self._x, self._normalized, q, k, v)))
        hats = [
            moment if norm is None else _second_moment(norm.y)
            for moment, norm in zip(moments[2:4], (heads.q_norm, heads.k_norm), strict=True)
        ]
        columns = [
            *moments,
            *hats,
            raw2,
            logits2,
            *map(_second_moment, (self._head_output, output)),
            *means,
        ]
        if self._experiment.backward:
            columns += [*self._backward(trial), *self._pulls(means)]
        return columns

    def _draw_input(self, trial: int) -> None:
        """Tokens (batch·seq, d_model), those of a sequence with the given correlation."""
        e = self._experiment
        draw: dict[str, Any] = {"seed": e.seed, "trial": trial, "threads": 1}
        tokens = self._x.reshape(e.batch, e.seq, e.d_model)
        own = normal(e.x_std * math.sqrt(1 - e.correlation))
        own(tokens.shape, name="input", out=tokens, **draw)
        if e.correlation:
            common = normal(e.x_std * math.sqrt(e.correlation))
            tokens += common((e.batch, 1, e.d_model), name="input.common", **draw)

    def _rows(self) -> tuple[list[float], float, float]:
        """The columns of MEANS, and the second moments of raw and scaled logits."""
        scale = self._experiment.effect.logits
        means, logits2 = _row_means(self._attention.statistics)
        if scale:
            return means, logits2 / scale**2, logits2
        raw = self._attention.statistics_at(1.0, self._cancel)
        return means, _row_means(raw)[1], logits2

    def _backward(self, trial: int) -> list[float]:
        """The columns of gradients, by each link and by the scale, from a standard normal one of
        the output."""
        e, heads, last = self._experiment, self._attention, self._last
        dy = last.dy
        normal()(dy.shape, seed=e.seed, name="output_gradient", trial=trial, out=dy, threads=1)
        dheads = last.backward(trial, self._cancel)
        gradients = heads.backward(dheads, self._cancel)
        dq_hat2, dk_hat2 = map(_second_moment, gradients[:2])
        for norm, gradient in zip((heads.q_norm, heads.k_norm), gradients, strict=False):
            if norm is not None:
                norm.backward(_rows(gradient), self._cancel)
        for projection, gradient in zip(self._projections, gradients, strict=True):
            heads.to_tokens(gradient, projection.dy)
        dx, *others = (p.backward(trial, self._cancel) for p in self._projections)
        for other in others:
            dx += other
        dnormalized2 = _second_moment(dx)
        if self._norm is not None:
            self._norm.backward(dx, self._cancel)
        dscale, squares = (
            rounded_sum(heads.gradient_sums[:, i]) for i in (_core.BY_SCALE, _core.LOGIT_SQUARES)
        )
        dlogits2 = squares / float(np.sum(heads.statistics[:, _core.KEYS]))
        return [
            _second_moment(dx),
            dnormalized2,
            *map(_second_moment, gradients),
            dq_hat2,
            dk_hat2,
            dlogits2 * e.effect.logits**2,
            dlogits2,
            *map(_second_moment, (dheads, dy)),
            dscale**2,
        ]

    def _pulls(self, means: Sequence[float]) -> list[float]:
        """∂loss/∂ln scale a row at logits of PULL_STDS, the loss −ln p of any key, then of the best
        one: Σ p z − z_t."""
        scale = self._experiment.effect.logits
        variance = means[MEANS.index("logit_var")] / scale**2 if scale else math.nan
        if not 0 < variance < math.inf:
            return [math.nan] * (2 * len(PULL_STDS))
        table = np.empty((len(self._attention.statistics), 2 * len(PULL_STDS)))
        for i, std in enumerate(PULL_STDS):
            scaled = std / math.sqrt(variance)
            statistics = self._attention.statistics_at(scaled, self._cancel)
            rows = AttentionRows.from_statistics(statistics, _SATURATION)
            expected = rows.lse - rows.entropy
            table[:, i] = expected - rows.logit_mean
            table[:, len(PULL_STDS) + i] = expected - rows.logit_max
        return exact_means(table)


def _rows(x: Real) -> Real:
    return x.reshape(-1, x.shape[-1])


def _second_moment(x: Real) -> float:
    state = np.zeros(_core.MOMENTS)
    _core.default().moments(_rows(x), state)
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
