# SPDX-License-Identifier: BSD-3-Clause
"""Attention by tiles beside torch with every logit in memory, and beside what the product and one
exponential a logit take at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core
from initcore.reference import attention as reference

from . import floors, peers
from .measure import MS, NS, OURS, Case, Contender, Settings, Unavailable, faster, require, share

Array = np.ndarray[Any, np.dtype[Any]]
D_K = 64
SCALE = 1 / math.sqrt(D_K)
D_MODEL, N_HEADS, TRIALS = 512, 8, 8
FLOOR = "FMA peak for q kᵀ + an exponential"
EXPERIMENT_FLOOR = "the draws + FMA peak for the products"
STATISTICS = [name for name in reference.STATISTICS if name != "keys"]


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    seq, threads = settings.sizes.rows, settings.threads
    for name, causal in [("attention", False), ("attention-causal", True)]:
        yield Case(
            name,
            f"statistics of {'causal ' * causal}attention, {seq}×{seq}, d_k {D_K}",
            NS,
            partial(_statistics, seq, causal, threads),
            (faster(5, "torch"), *([share(0.7, FLOOR)] if threads == 1 else [])),
            threads,
            ("torch",),
        )
    yield Case(
        "attention-experiment",
        f"{TRIALS} trials of attention with fresh weights and all statistics, d_model {D_MODEL}, "
        f"{N_HEADS} heads, seq {min(seq, 128)}",
        MS,
        partial(_experiment, min(seq, 128), threads),
        (faster(3, "torch"),),
        threads,
        ("torch",),
    )
    yield Case(
        "attention-backward",
        f"attention and its gradients, {seq}×{seq}, d_k {D_K}",
        MS,
        partial(_backward, seq, threads),
        (),
        threads,
        ("torch",),
    )


def _arrays(seq: int, count: int) -> list[Array]:
    random = np.random.default_rng(0)
    return [random.standard_normal((seq, D_K), np.float32) for _ in range(count)]


def _statistics(seq: int, causal: bool, threads: int) -> list[Contender]:
    q, k = _arrays(seq, 2)
    logits = seq * (seq + 1) / 2 if causal else seq**2

    def ours() -> Sequence[Array]:
        rows = ic.attention_stats(q, k, causal=causal, threads=threads)
        return [getattr(rows, name) for name in STATISTICS]

    calls: dict[str, Callable[[], Sequence[Array]]] = {OURS: ours}
    torch = peers.torch(threads)
    if torch is not None:
        calls["torch"] = _torch(torch, q, k, causal)
    exact = reference.attention_statistics(q[-8:].astype(float) @ k.T.astype(float), SCALE)[1]
    if causal:  # the last row alone sees every key
        exact = exact[-1:]
    for label, call in calls.items():
        for name, values, truth in zip(STATISTICS, call(), exact.T, strict=False):
            error = np.abs(values[-len(truth) :] - truth) / np.maximum(np.abs(truth), 1e-3)
            require(float(error.max()) <= 1e-3, f"{label}: {name} is off by {error.max()}")
    contenders = [Contender(label, call, logits) for label, call in calls.items()]
    if threads == 1:
        contenders += _floor(seq, logits)
    return contenders


def _floor(seq: int, logits: float) -> list[Contender]:
    """The product's flops at the fma peak, and elu of as many numbers, in cache."""
    try:
        product = floors.at_peak(2 * D_K * logits)
    except Unavailable:
        return []
    x = -np.abs(np.random.default_rng(0).standard_normal(min(seq * seq, 4096), np.float32))
    out, elu, activate = np.empty_like(x), ic.activation("elu"), _core.default().activate

    def call() -> None:
        product()
        for _ in range(round(logits / x.size)):
            activate(x, out, elu.kernel_id, elu.parameter, False)

    return [Contender(FLOOR, call, logits)]


def _torch(torch: Any, q: Array, k: Array, causal: bool) -> Callable[[], Sequence[Array]]:
    """The same statistics of a materialised softmax, in place where torch can."""
    queries, keys = torch.from_numpy(q), torch.from_numpy(k)
    seen = torch.ones((len(q), len(k)), dtype=torch.bool).tril() if causal else None

    def run() -> Sequence[Array]:
        with torch.no_grad():
            _, rows = _row_statistics(torch, (queries @ keys.T).mul_(SCALE), seen)
        return [row.numpy() for row in rows]

    return run


def _row_statistics(torch: Any, z: Any, seen: Any | None) -> tuple[Any, tuple[Any, ...]]:
    """p = softmax(z), and the STATISTICS of its rows; z is spent."""
    if seen is None:
        variance, mean = torch.var_mean(z, -1, correction=0)
        p = torch.softmax(z, -1)
    else:
        n = seen.sum(-1)
        mean = (z * seen).sum(-1) / n
        variance = (z - mean[..., None]).square_().mul_(seen).sum(-1) / n
        p = torch.softmax(z.masked_fill_(~seen, -math.inf), -1)
    largest, top = z.amax(-1), p.amax(-1)
    lse = largest - top.log()
    if seen is not None:
        z.masked_fill_(~seen, 0)
    entropy = lse - z.mul_(p).sum(-1)
    square = p * p
    squares, cubes = square.sum(-1), square.mul_(p).sum(-1)
    jacobian = (squares - 2 * cubes + squares * squares).sqrt()
    return p, (lse, top, entropy, squares, jacobian, mean, variance, largest)


def _backward(seq: int, threads: int) -> list[Contender]:
    arrays = _arrays(seq, 4)

    def ours() -> Sequence[Array]:
        output, _ = ic.attention(*arrays[:3], stats=False, threads=threads)
        return output, *ic.attention_backward(*arrays, threads=threads)[:3]

    calls: dict[str, Callable[[], Sequence[Array]]] = {OURS: ours}
    torch = peers.torch(threads)
    if torch is not None:
        calls["torch"] = _torch_backward(torch, *arrays)
        for a, b in zip(ours(), calls["torch"](), strict=True):
            error = float(np.abs(a - b).max() / np.abs(b).max())
            require(error <= 1e-4, f"torch's attention differs by {error}")
    return [Contender(label, call) for label, call in calls.items()]


def _torch_backward(torch: Any, *arrays: Array) -> Callable[[], Sequence[Array]]:
    """Its fused attention, which makes no statistics and no gradient by the scale."""
    attention = torch.nn.functional.scaled_dot_product_attention
    leaves = [torch.from_numpy(a)[None, None].requires_grad_() for a in arrays[:3]]
    gradient = torch.from_numpy(arrays[3])[None, None]

    def run() -> Sequence[Array]:
        output = attention(*leaves)
        found = torch.autograd.grad(output, leaves, gradient)
        return [x[0, 0].detach().numpy() for x in (output, *found)]

    return run


def _experiment(seq: int, threads: int) -> list[Contender]:
    """``propagate_attention`` beside torch with the same draws, products and statistics."""

    def ours() -> ic.AttentionPropagation:
        return ic.propagate_attention(
            d_model=D_MODEL, n_heads=N_HEADS, seq=seq, trials=TRIALS, threads=threads
        )

    result = ours()
    for name in ("q", "raw_logits", "logits"):
        moment, se = (getattr(side, name) for side in (result.forward, result.forward.se))
        off = abs(moment - getattr(result.theory.forward, name))
        require(off <= 7 * se, f"propagate_attention: {name} is off by {off / se} s.e.")
    contenders = [Contender(OURS, ours)]
    if threads == 1:
        contenders += _experiment_floor(seq)
    torch = peers.torch(threads)
    if torch is None:
        return contenders
    measure = _torch_trial(torch, seq)
    one = ic.propagate_attention(d_model=D_MODEL, n_heads=N_HEADS, seq=seq, trials=1)
    x = ic.normal()((seq, D_MODEL), seed=0, name="input")
    links, rows = measure(*(torch.from_numpy(a) for a in (x, *(one.weights(0, w) for w in "qkvo"))))
    expected = [getattr(one.forward, name) for name in _LINKS]
    expected += [getattr(one.rows, name) for name in STATISTICS]
    for name, value, truth in zip((*_LINKS, *STATISTICS), (*links, *rows), expected, strict=True):
        error = abs(float(value) - truth) / max(abs(truth), 1e-2)
        require(error <= 1e-3, f"torch: {name} is off by {error}")

    # As a careful user has it: arrays made once, one read of all statistics a trial.
    drawn = [torch.empty(shape) for shape in [(seq, D_MODEL), *[(D_MODEL, D_MODEL)] * 4]]
    stds = [1.0, *[D_MODEL**-0.5] * 4]

    def theirs() -> None:
        with torch.no_grad():
            for _ in range(TRIALS):
                for array, std in zip(drawn, stds, strict=True):
                    array.normal_(std=std)
                links, rows = measure(*drawn)
                torch.stack([*links, *rows]).tolist()

    return [*contenders, Contender("torch", theirs)]


def _experiment_floor(seq: int) -> list[Contender]:
    """The draws, and the flops of all products at the fma peak: nothing else of a trial."""
    try:
        product = floors.at_peak(TRIALS * (8 * seq * D_MODEL**2 + 4 * seq**2 * D_MODEL))
    except Unavailable:
        return []
    draw, weight = ic.normal(), np.empty((D_MODEL, D_MODEL), np.float32)

    def call() -> None:
        product()
        for i in range(4 * TRIALS):
            draw(weight.shape, seed=0, name=i, out=weight, threads=1)

    return [Contender(EXPERIMENT_FLOOR, call)]


_LINKS = ("input", "normalized", "q", "k", "v", "logits", "head_output", "output")


def _torch_trial(torch: Any, seq: int) -> Callable[..., tuple[list[Any], list[Any]]]:
    """Second moments by link, and the means of STATISTICS over rows."""

    def heads(x: Any) -> Any:
        return x.view(seq, N_HEADS, -1).transpose(0, 1)

    def run(x: Any, *weights: Any) -> tuple[list[Any], list[Any]]:
        normalized = torch.nn.functional.rms_norm(x, (D_MODEL,), eps=0.0)
        q, k, v = (normalized @ weight.T for weight in weights[:3])
        z = (heads(q) @ heads(k).transpose(1, 2)).mul_(SCALE)
        logits = z.square().mean()
        p, rows = _row_statistics(torch, z, None)
        output = (p @ heads(v)).transpose(0, 1).reshape(seq, -1)
        before, after = (x, normalized, q, k, v), (output, output @ weights[3].T)
        moments = [[link.square().mean() for link in links] for links in (before, after)]
        return [*moments[0], logits, *moments[1]], [row.mean() for row in rows]

    return run
