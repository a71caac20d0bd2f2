# SPDX-License-Identifier: BSD-3-Clause
"""Chains of layers: over given weights against the fma peak, over fresh ones against the peers.

initcore keeps every statistic of every layer. The peers of the Monte Carlo rows keep one number a
trial, the second moment at the end: less than the experiment needs, so the comparison favours them.
Beside them stands torch with the same statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core

from . import floors, peers
from .measure import (
    GFLOPS,
    OURS,
    Case,
    Contender,
    Settings,
    Unavailable,
    beside,
    faster,
    fastest,
    require,
    share,
)

Array = np.ndarray[Any, np.dtype[Any]]

RIVALS = ("NumPy", "torch", "JAX")
SAME = "torch + statistics"
ROOFLINE = "draws + products at peak"
_PEAK_SHARE = {512: 0.92, 64: 0.75}
_FRESH_RATIOS = {(64, 64): 5.0, (128, 128): 3.5, (256, 256): 2.7, (512, 512): 1.45, (512, 32): 3.0}
_GRAM = (512, 32)
# How many trials a peer multiplies at once: each tries these, and keeps its best.
_CHUNKS = (1, 4, 16, 64)


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    layers, threads = settings.sizes.layers, settings.threads
    for width, batch in settings.sizes.dense:
        targets = [share(_PEAK_SHARE.get(width, 0.0), floors.PEAK)] if threads == 1 else []
        yield Case(
            f"chain-{width}",
            f"chain, given weights, {width} wide, batch {batch}, {layers} layers, "
            "ReLU + statistics",
            GFLOPS,
            partial(_given, width, batch, layers, threads),
            tuple(targets),
            threads,
            ("NumPy", "torch"),
        )
    for width, batch, trials in settings.sizes.fresh:
        yield Case(
            f"fresh-{width}x{batch}",
            f"Monte Carlo, fresh normal weights, {width}×{batch}, {layers} layers, {trials} trials",
            GFLOPS,
            partial(_fresh, width, batch, layers, trials, threads, "dense"),
            (faster(_FRESH_RATIOS.get((width, batch), 1.0), *RIVALS), beside(SAME)),
            threads,
            RIVALS,
        )
        yield Case(
            f"backward-{width}x{batch}",
            f"the same, {width}×{batch}, and the gradients of everything",
            GFLOPS,
            partial(_backward, width, batch, layers, trials, threads),
            (faster(_FRESH_RATIOS.get((width, batch), 1.0), "torch"),),
            threads,
            ("torch",),
        )
    width, batch, trials = next(
        (case for case in settings.sizes.fresh if case[:2] == _GRAM), settings.sizes.fresh[-1]
    )
    yield Case(
        f"gram-{width}x{batch}",
        f'the same, {width}×{batch}, by method="gram"',
        GFLOPS,
        partial(_fresh, width, batch, layers, trials, threads, "gram"),
        (faster(20, *RIVALS), beside(SAME)),
        threads,
        RIVALS,
    )


def _flops(width: int, batch: int, layers: int) -> float:
    return 2.0 * width * width * batch * layers


# --- given weights --------------------------------------------------------------------------------


def _given(width: int, batch: int, layers: int, threads: int) -> list[Contender]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((batch, width), np.float32)
    weights = [
        generator.standard_normal((width, width), np.float32) * np.float32(math.sqrt(2 / width))
        for _ in range(layers)
    ]
    exact = x.astype(np.float64)
    for weight in weights:
        exact = np.maximum(exact @ weight.T.astype(np.float64), 0)

    def close(label: str, y: Array) -> None:
        error = float(np.abs(y - exact).max() / np.abs(exact).max())
        require(error <= 1e-4, f"{label}: a chain is off by {error} of its largest entry")

    def ours() -> Array:
        return ic.chain(x, weights, activation="relu", threads=threads)[0]

    h, a = np.empty((batch, width), np.float32), np.empty((batch, width), np.float32)

    def numpy() -> Array:
        y = x
        for weight in weights:
            np.matmul(y, weight.T, out=h)
            y = np.maximum(h, 0, out=a)
        return y

    calls: dict[str, Callable[[], Array]] = {OURS: ours, "NumPy": numpy}
    if (torch := peers.torch(threads)) is not None:
        calls["torch"] = _torch_given(torch, x, weights)
    for label, call in calls.items():
        close(label, call())
    flops = _flops(width, batch, layers)
    contenders = [Contender(label, call, flops) for label, call in calls.items()]
    if threads == 1:
        contenders.append(Contender("kernel alone", _kernel(x, weights), flops))
        contenders += floors.peak()
    return contenders


def _torch_given(torch: Any, x: Array, weights: list[Array]) -> Callable[[], Array]:
    matrices = [torch.from_numpy(weight).T for weight in weights]
    start, buffers = torch.from_numpy(x), [torch.empty(x.shape) for _ in range(2)]

    def run() -> Array:
        y = start
        with torch.no_grad():
            for i, matrix in enumerate(matrices):
                y = torch.mm(y, matrix, out=buffers[i % 2]).relu_()
        values: Array = y.numpy()
        return values

    return run


def _kernel(x: Array, weights: list[Array]) -> Callable[[], object]:
    """The same chain without the Python around the kernel."""
    (batch, width), layers = x.shape, len(weights)
    relu, kernels = ic.activation("relu"), _core.default()
    table = [(relu.kernel_id, relu.parameter or 0.0, relu.saturation_threshold)] * layers
    spec = _core.Chain(
        "float32", 0, batch, [width] * (layers + 1), table, x, weights, [None] * layers
    )
    workspace = np.empty(kernels.chain_workspace(spec), np.uint8)
    states, y = np.zeros((1, layers, 2, _core.MOMENTS)), np.empty_like(x)
    cancel = np.zeros(1, np.int32)
    return lambda: kernels.chain(spec, 0, 1, states, y, workspace, cancel)


# --- fresh weights --------------------------------------------------------------------------------


def _fresh(
    width: int, batch: int, layers: int, trials: int, threads: int, method: str
) -> list[Contender]:
    widths = [width] * (layers + 1)

    def ours() -> ic.Propagation:
        return ic.propagate(
            widths,
            batch=batch,
            trials=trials,
            init="kaiming_normal",
            threads=threads,
            method=method,
        )

    if method == "dense":
        _check_trial(widths, batch)
    else:
        _check_energy(OURS, width, layers, ours().pre.second_moment[-1:])
    flops = _flops(width, batch, layers)
    contenders = [Contender(OURS, ours, flops * trials)]
    shape = (width, batch, layers)
    makers: dict[str, Callable[..., Iterator[Run]]] = {"NumPy": _numpy_fresh}
    if peers.torch(threads) is not None:
        makers["torch"] = _torch_fresh
        makers[SAME] = partial(_torch_fresh, statistics=True)
        _check_statistics()
    if peers.jax() is not None:
        makers["JAX"] = _jax_fresh
    for label, make in makers.items():
        chunks = [chunk for chunk in _CHUNKS if trials % chunk == 0]
        runs = [run for chunk in chunks for run in make(*shape, chunk)]
        for run in runs:
            _check_energy(label, width, layers, run())
        best = fastest([Contender(label, run, flops * len(run())) for run in runs])
        repeat = round(trials * flops / best.work)
        contenders.append(Contender(label, partial(_times, best.call, repeat), flops * trials))
    if method == "dense" and threads == 1:
        contenders += _roofline(width, layers, trials, flops)
    return contenders


def _backward(width: int, batch: int, layers: int, trials: int, threads: int) -> list[Contender]:
    """Forward and backward: three products a layer, the first layer's inputs have no gradient."""
    widths = [width] * (layers + 1)

    def ours() -> ic.Propagation:
        return ic.propagate(widths, batch=batch, trials=trials, threads=threads, backward=True)

    by_weight = ours().grad_weight
    assert by_weight is not None
    _check_energy(OURS, width, layers, by_weight.second_moment[:1], batch / 2)
    flops = _flops(width, batch, 3 * layers - 1)
    contenders = [Contender(OURS, ours, flops * trials)]
    if peers.torch(threads) is not None:
        chunks = [chunk for chunk in _CHUNKS if trials % chunk == 0]
        runs = [_torch_backward(width, batch, layers, chunk) for chunk in chunks]
        for run in runs:
            _check_energy("torch", width, layers, run(), batch / 2)
        best = fastest([Contender("torch", run, flops * len(run())) for run in runs])
        repeat = round(trials * flops / best.work)
        contenders.append(Contender("torch", partial(_times, best.call, repeat), flops * trials))
    return contenders


def _roofline(width: int, layers: int, trials: int, flops: float) -> list[Contender]:
    """What no chain with drawn weights can beat: the draws in cache, and the products at peak."""
    try:
        products = floors.at_peak(flops * trials)
    except Unavailable:
        return []
    draw, rows = _core.default().draw, np.empty(min(width * width, 1 << 14), np.float32)
    repeats = width * width * layers * trials // rows.size

    def run() -> None:
        for _ in range(repeats):
            draw(rows, 0, 0, 0, _core.NORMAL, 0.1, 0.0, 0.0, 0.0)
        products()

    return [Contender(ROOFLINE, run, flops * trials)]


def _times(call: Callable[[], object], number: int) -> None:
    for _ in range(number):
        call()


def _check_trial(widths: list[int], batch: int) -> None:
    """The first trial again, from the tensors that its names give, in float64."""
    x = ic.normal()((batch, widths[0]), seed=0, name="input").astype(np.float64)
    h = x
    for layer, (n_in, n_out) in enumerate(pairwise(widths)):
        weight = ic.kaiming_normal()((n_out, n_in), seed=0, name=f"layers.{layer}.weight")
        h = x @ weight.T.astype(np.float64)
        x = np.maximum(h, 0)
    result = ic.propagate(widths, batch=batch, trials=1, init="kaiming_normal")
    error = abs(result.pre.second_moment[-1] / np.mean(h * h) - 1)
    require(error <= 1e-4, f"propagate: the last second moment is off by {error}")


def _check_energy(
    label: str, width: int, layers: int, energies: Array, expected: float = 2.0
) -> None:
    """He's initializer conserves E[h²] = 2; its logarithm has mean −v/2 and variance v ≈ 5L/n. So
    does it the gradient by h, ½, which makes that by a weight batch/2 where inputs are independent.

    The allowance for a single trial is six standard deviations; a std wrong by a factor would be
    off by that factor to the power 2L.
    """
    variance = 5 * layers / width
    mean = float(np.mean(np.log(energies / expected)))
    error = abs(mean + variance / 2)
    limit = 6 * math.sqrt(variance / len(energies)) + 0.5
    require(error <= limit, f"{label}: the log energy is off by {error}, {limit} is allowed")


Run = Callable[[], Array]


def _numpy_fresh(width: int, batch: int, layers: int, chunk: int) -> Iterator[Run]:
    """Draws in place, batched matmul into buffers, the std put on the smaller operand."""
    generator = np.random.default_rng(0)
    std = np.float32(math.sqrt(2 / width))
    w = np.empty((chunk, width, width), np.float32)
    x, h = np.empty((chunk, batch, width), np.float32), np.empty((chunk, batch, width), np.float32)

    def run() -> Array:
        generator.standard_normal(out=x, dtype=np.float32)
        for layer in range(layers):
            generator.standard_normal(out=w, dtype=np.float32)
            if layer:
                np.maximum(h, 0, out=x)
            np.multiply(x, std, out=x)
            np.matmul(x, w.transpose(0, 2, 1), out=h)
        flat = h.reshape(chunk, -1)
        return np.einsum("ti,ti->t", flat, flat) / np.float32(flat.shape[1])

    yield run


def _torch_fresh(
    width: int, batch: int, layers: int, chunk: int, statistics: bool = False
) -> Iterator[Run]:
    """normal_ in place, bmm (mm for one trial) into a buffer, ReLU in place."""
    torch = peers.find("torch")
    assert torch is not None
    std = math.sqrt(2 / width)
    w = torch.empty(chunk, width, width)
    buffers = [torch.empty(chunk, batch, width) for _ in range(2)]
    scratch = torch.empty(chunk, batch, width)

    def run() -> Array:
        kept = []
        with torch.no_grad():
            x, h = buffers
            x.normal_()
            for layer in range(layers):
                if layer:
                    x, h = h.relu_(), x
                    if statistics:
                        kept.append(_torch_statistics(torch, x, scratch))
                w.normal_(0.0, std)
                if chunk == 1:
                    torch.mm(x[0], w[0].T, out=h[0])
                else:
                    torch.bmm(x, w.transpose(1, 2), out=h)
                if statistics:
                    kept.append(_torch_statistics(torch, h, scratch))
            if statistics:
                kept.append(_torch_statistics(torch, h.relu(), scratch))
                energies: Array = torch.stack(kept).numpy()[-2, 1]
            else:
                energies = h.square().mean(dim=(1, 2)).numpy()
        return energies

    yield run


def _torch_backward(width: int, batch: int, layers: int, chunk: int) -> Run:
    """autograd over bmm and relu, weights drawn in place; it keeps a number a trial, the second
    moment of the first weight's gradient."""
    torch = peers.find("torch")
    assert torch is not None
    std = math.sqrt(2 / width)
    weights = [torch.empty(chunk, width, width, requires_grad=True) for _ in range(layers)]
    x, top = torch.empty(chunk, batch, width), torch.empty(chunk, batch, width)

    def run() -> Array:
        with torch.no_grad():
            for w in weights:
                w.normal_(0.0, std)
                w.grad = None  # what backward writes is then not added to
            x.normal_()
            top.normal_()
        y = x
        for w in weights:
            y = torch.bmm(y, w.transpose(1, 2)).relu_()
        y.backward(top)
        values: Array = weights[0].grad.square().mean(dim=(1, 2)).numpy()
        return values

    return run


# What LayerStats has of a trial, in the order of the function below. Of ReLU, what is saturated
# before it is what is zero after it, which is there already.
_STATISTICS = (
    "mean", "second_moment", "variance", "kurtosis", "batch_variance", "abs_max", "zero_fraction",
    "nonfinite_fraction", "float16_overflow_fraction", "dead_fraction", "cosine",
)  # fmt: skip


def _torch_statistics(torch: Any, x: Any, scratch: Any) -> Any:
    """Of x (trials, batch, units) what initcore keeps, (statistics, trials): reductions over the
    batch first, one temporary of x's size, which is given, and no look for what is not finite
    where the mean is."""
    trials, batch, units = x.shape
    of_units = x.mean(1)
    mean = of_units.mean(1)
    high, low = x.amax(1), x.amin(1)
    abs_max = torch.maximum(high.amax(1), -low.amin(1))
    torch.sub(x, mean[:, None, None], out=scratch).square_()
    variance = scratch.mean((1, 2))
    fourth = torch.linalg.vector_norm(scratch, dim=(1, 2)).square() / (batch * units)
    between = (of_units - mean[:, None]).square().mean(1)
    zeros = 1 - torch.count_nonzero(x, dim=(1, 2)) / (batch * units)
    dead = ((high == 0) & (low == 0)).float().mean(1)
    norms = torch.linalg.vector_norm(x, dim=2)
    alive = norms > 0
    scales = torch.where(alive, 1 / norms, 0.0)
    rows = alive.sum(1)
    sums = torch.bmm(scales[:, None], x).square().sum((1, 2))
    cosine = (sums - rows) / (rows * (rows - 1))
    nonfinite = overflows = torch.zeros(trials)
    if not mean.isfinite().all():
        nonfinite = (~x.isfinite()).float().mean((1, 2))
    if not (abs_max < 65520).all():
        overflows = (x.abs() >= 65520).float().mean((1, 2))
    second_moment, kurtosis = variance + mean * mean, fourth / (variance * variance)
    return torch.stack([
        mean, second_moment, variance, kurtosis, variance - between, abs_max, zeros, nonfinite,
        overflows, dead, cosine,
    ])  # fmt: skip


def _check_statistics() -> None:
    """torch's against initcore's, before and after ReLU, with a dead unit and an overflow."""
    torch = peers.find("torch")
    assert torch is not None
    generator = np.random.default_rng(0)
    h = generator.standard_normal((2, 9, 33), np.float32)
    h[:, :, 0], h[0, 0, 1] = -1, 7e4
    _, layers = ic.chain(h, [np.eye(33, dtype=np.float32)], activation="relu", threads=1)
    assert layers is not None
    for x, found in ((h, layers.pre), (np.maximum(h, 0), layers.post)):
        given = torch.from_numpy(x)
        values = _torch_statistics(torch, given, torch.empty_like(given)).numpy()
        for name, row in zip(_STATISTICS, values, strict=True):
            close = np.allclose(row, getattr(found, name)[:, 0], rtol=1e-4, atol=1e-6)
            require(close, f"torch: {name} is {row}, not {getattr(found, name)[:, 0]}")


def _jax_fresh(width: int, batch: int, layers: int, chunk: int) -> Iterator[Run]:
    """A jitted vmap over trials of a scan over layers, with either of JAX's generators."""
    found = peers.jax()
    assert found is not None
    jax, jnp = found
    std = math.sqrt(2 / width)

    def trial(key: Any) -> Any:
        first, rest = jax.random.split(key)

        def layer(h: Any, key: Any) -> tuple[Any, None]:
            w = std * jax.random.normal(key, (width, width))
            return jnp.maximum(h, 0) @ w.T, None

        x = jax.random.normal(first, (batch, width))
        start, *others = jax.random.split(rest, layers)
        h = x @ (std * jax.random.normal(start, (width, width))).T
        if others:
            h, _ = jax.lax.scan(layer, h, jnp.stack(others))
        return jnp.mean(h * h)

    compiled = jax.jit(jax.vmap(trial))
    for generator in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(0, impl=generator), chunk)
        yield partial(lambda keys: np.asarray(compiled(keys).block_until_ready()), keys)
