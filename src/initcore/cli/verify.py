# SPDX-License-Identifier: BSD-3-Clause
"""``initcore verify``: the kernels against the reference, on this machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import typer
from numpy.typing import ArrayLike, NDArray
from rich.table import Table
from rich.text import Text

from initcore import _core, reference
from initcore._core import Kernels
from initcore.activations import ACTIVATIONS, Activation
from initcore.architecture import NORMS
from initcore.cli.common import console, progress_bar
from initcore.reference import (
    activations,
    attention,
    backward,
    chain,
    exact_sum,
    matmul,
    moments,
    philox,
    sampling,
    softmax,
)
from initcore.reference.tolerances import (
    ACTIVATION_ULPS,
    ATTENTION_BACKWARD_UNITS,
    ATTENTION_UNITS,
    BACKWARD_UNITS,
    NORMAL_FLOOR,
    NORMAL_ULPS,
    SOFTMAX_UNITS,
    TRUNCATED_FLOOR,
    TRUNCATED_ULPS,
    activation_floor,
)
from initcore.truncation import truncation

Array = NDArray[Any]

SEED = 2026
STREAM = sampling.stream_id("initcore verify")

DTYPES = ("float32", "float64")
HALVES = {"float16": _core.FLOAT16, "bfloat16": _core.BFLOAT16}


@dataclass(frozen=True)
class Check:
    """A kernel in one dtype: what it gives, what the reference gives, how far apart they may be.

    ``product`` and ``expected`` return whatever ``distance`` compares; ``unit`` is "ulp" for
    distances in units in the last place and "u" for relative ones in units of eps/2.
    """

    kernel: str
    dtype: str
    product: Callable[[Kernels], Any]
    expected: Callable[[], Any]
    distance: Callable[[Any, Any], float]
    tolerance: float
    unit: str = "ulp"


class Finding(NamedTuple):
    """A check on one instruction set: worst error, and times in seconds of a call."""

    check: Check
    isa: str
    error: float
    product_seconds: float
    reference_seconds: float

    @property
    def within(self) -> bool:
        """Whether the error is within the tolerance; a NaN is not."""
        return self.error <= self.check.tolerance


def verify() -> None:
    """Compare every kernel with its reference on this machine: error, tolerance, speed-up.

    The reference is NumPy alone, written from the formulas. A row is a kernel on one instruction
    set. Exits with 1 when an error exceeds its tolerance.
    """
    checks = list(every_check())
    available = _core.available()
    findings: list[Finding] = []
    with progress_bar("verifying", hidden=False) as report:
        for done, check in enumerate(checks):
            if report is not None:
                report(done, len(checks))
            findings += run(check, available)

    out = console()
    out.print(f"{platform.machine()} {platform.system()}, instruction sets: {', '.join(available)}")
    out.print(_table(findings))
    wrong = [finding for finding in findings if not finding.within]
    for finding in wrong:
        check = finding.check
        out.print(f"{check.kernel}, {check.dtype}, {finding.isa}: {_error(finding)}", style="red")
    if wrong:
        out.print(f"{len(wrong)} of {len(findings)} comparisons are out of tolerance.")
        raise typer.Exit(1)
    out.print(f"All {len(findings)} comparisons are within tolerance.")


def run(check: Check, available: dict[str, Kernels]) -> list[Finding]:
    """One finding for each instruction set."""
    start = time.perf_counter()
    expected = check.expected()
    reference_seconds = time.perf_counter() - start
    findings = []
    for isa, kernels in available.items():
        error = check.distance(check.product(kernels), expected)
        seconds = _seconds(partial(check.product, kernels))
        findings.append(Finding(check, isa, error, seconds, reference_seconds))
    return findings


def _seconds(call: Callable[[], object]) -> float:
    """The shortest of several calls: at least three, and for two milliseconds."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < 2e-3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("kernel", no_wrap=True)
    table.add_column("isa", no_wrap=True)
    for dtype in DTYPES:
        table.add_column(dtype, justify="right", no_wrap=True)
        table.add_column("speed-up", justify="right", no_wrap=True)
    rows: dict[tuple[str, str], dict[str, Finding]] = {}
    for finding in findings:
        rows.setdefault((finding.check.kernel, finding.isa), {})[finding.check.dtype] = finding
    for (kernel, isa), row in rows.items():
        cells: list[Text | str] = [kernel, isa]
        for dtype in DTYPES:
            cells += _cells(row[dtype]) if dtype in row else ["", ""]
        table.add_row(*cells)
    return table


def _cells(finding: Finding) -> list[Text | str]:
    ratio = finding.reference_seconds / finding.product_seconds
    return [
        Text(_error(finding), style="" if finding.within else "bold red"),
        f"x{ratio:.3g}" if ratio < 1000 else f"x{ratio:.0f}",
    ]


def _error(finding: Finding) -> str:
    check = finding.check
    if check.tolerance == finding.error == 0:
        return "same bits"
    sign = "<=" if finding.within else ">"
    return f"{finding.error:.3g} {sign} {check.tolerance:.3g} {check.unit}"


# The checks: sizes that leave remainders in every loop, values of every kind.

N = 8191
FIRST = 61
ROWS, COLUMNS = 37, 131
BATCH, WIDTHS = 35, (67, 45, 83)
HEAD, VALUES = 19, 21


def every_check() -> Iterator[Check]:
    """All kernels in all their dtypes."""
    yield _philox()
    for dtype in DTYPES:
        yield _uniform(dtype)
        yield _normal(dtype)
        yield from map(partial(_truncated_normal, dtype), ((-2.0, 2.0), (5.0, 9.0)))
        for phi in ACTIVATIONS.values():
            for derivative in (False, True):
                yield _activation(phi, dtype, derivative)
        yield _product(dtype)
        yield _chain(dtype)
        plain = [None] * (len(WIDTHS) - 1)
        yield _chain_backward("chain backward", dtype, WIDTHS, plain, plain)
        square = [WIDTHS[0]] * 3
        yield _chain_backward("norms, branches", dtype, square, ["rms", "layer"], [0.5, 1.0])
        yield _moments(dtype)
        yield from _softmax(dtype)
        yield _softmax_backward(dtype)
        yield from _attention(dtype)
        yield _attention_backward(dtype)
    for half in HALVES:
        yield _half(half)
    yield _exact_sums()


def _worst_ulps(floor: ArrayLike = 0.0) -> Callable[[Any, Any], float]:
    return lambda value, exact: float(np.max(reference.ulps(value, exact, floor)))


def _philox() -> Check:
    counter = (2**32 - 100) | STREAM << 64  # the block number carries into its second word

    def product(kernels: Kernels) -> Array:
        out = np.empty((N, 4), np.uint32)
        kernels.philox(counter, SEED, out)
        return out

    return Check(
        "philox",
        "float32",
        product,
        lambda: philox.blocks(2**32 - 100, STREAM, SEED, N),
        lambda words, expected: float(np.count_nonzero(words != expected)),
        0.0,
    )


def _unit_draw(kernels: Kernels, kind: int, dtype: str) -> Array:
    out = np.empty(N, dtype)
    kernels.draw(out, FIRST, SEED, STREAM, kind, 1.0, 0.0, -1.0, 1.0)
    return out


def _uniform(dtype: str) -> Check:
    return Check(
        "uniform",
        dtype,
        lambda kernels: _unit_draw(kernels, _core.UNIFORM, dtype),
        lambda: sampling.uniform(FIRST, N, SEED, STREAM, dtype),
        _worst_ulps(),
        0.0,
    )


def _normal(dtype: str) -> Check:
    return Check(
        "normal",
        dtype,
        lambda kernels: _unit_draw(kernels, _core.NORMAL, dtype),
        lambda: sampling.normal(FIRST, N, SEED, STREAM, dtype),
        _worst_ulps(NORMAL_FLOOR),
        NORMAL_ULPS[dtype],
    )


def _truncated_normal(dtype: str, interval: tuple[float, float]) -> Check:
    n = N // 32  # decimal arithmetic takes its time

    def product(kernels: Kernels) -> Array:
        out = np.empty(n, dtype)
        law = (_core.TRUNCATED_NORMAL, 1.0, 0.0, *interval, truncation(*interval))
        kernels.draw(out, FIRST, SEED, STREAM, *law)
        return out

    return Check(
        "truncated to {:g}, {:g}".format(*interval),
        dtype,
        product,
        lambda: sampling.truncated_normal(FIRST, n, SEED, STREAM, interval, dtype),
        _worst_ulps(TRUNCATED_FLOOR),
        TRUNCATED_ULPS[dtype],
    )


def _half(half: str) -> Check:
    law = (_core.UNIFORM, 3.0, 0.0, -2.5, 2.5)

    def product(kernels: Kernels) -> Array:
        out = np.empty(N, np.uint16)
        kernels.draw(out, FIRST, SEED, STREAM, *law, half=HALVES[half])
        return out

    return Check(
        f"uniform {half}",
        "float32",
        product,
        lambda: sampling.draw(FIRST, N, SEED, STREAM, *law, half),
        lambda bits, expected: float(np.count_nonzero(bits != expected)),
        0.0,
    )


def _activation(phi: Activation, dtype: str, derivative: bool) -> Check:
    x = _arguments(dtype)
    name = phi.name + ("'" if derivative else "")

    def product(kernels: Kernels) -> Array:
        out = np.empty_like(x)
        kernels.activate(x, out, phi.kernel_id, phi.parameter, derivative)
        return out

    return Check(
        name,
        dtype,
        product,
        lambda: activations.activate(x, phi.name, phi.parameter, derivative),
        _worst_ulps(activation_floor(phi.name, x, derivative=derivative)),
        ACTIVATION_ULPS[phi.name][derivative],
    )


def _arguments(dtype: str) -> Array:
    """Where activations bend, where they are small or flat, and what is not a number."""
    random = np.random.default_rng(SEED)
    near = 3 * random.standard_normal(N // 2)
    sizes = 10.0 ** random.uniform(-30, 4, N // 2)
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, np.inf, -np.inf, np.nan]
    return np.concatenate([near, sizes, -sizes, special]).astype(dtype)


def _stored(dtype: str, widths: Sequence[int] = WIDTHS) -> tuple[Array, list[Array], list[Array]]:
    random = np.random.default_rng(SEED)
    x = random.standard_normal((BATCH, widths[0])).astype(dtype)
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [(random.standard_normal(shape) / 6).astype(dtype) for shape in shapes]
    return x, weights, [random.standard_normal(n).astype(dtype) for n in widths[1:]]


def _run_chain(
    kernels: Kernels, spec: _core.Chain, n_layers: int, n_out: int
) -> tuple[Array, Array]:
    states = np.zeros((1, n_layers, 2, len(moments.FIELDS)))
    y = np.empty((BATCH, n_out), spec.dtype)
    workspace = np.empty(kernels.chain_workspace(spec), np.uint8)
    kernels.chain(spec, 0, 1, states, y, workspace, np.zeros(1, np.int32))
    return y, states[0]


def _product(dtype: str) -> Check:
    x, (weight, _), (bias, _) = _stored(dtype)
    linear = [(ACTIVATIONS["linear"].kernel_id, 0.0, np.nan)]
    spec = _core.Chain(dtype, 0, BATCH, WIDTHS[:2], linear, x, [weight], [bias])
    return Check(
        "product",
        dtype,
        lambda kernels: _run_chain(kernels, spec, 1, WIDTHS[1])[0],
        lambda: matmul.matmul(x, weight, bias),
        _worst_ulps(),
        0.0,
    )


def _chain(dtype: str) -> Check:
    """Drawn weights and stored biases, ReLU: nothing in it but fma, so the bits are the same."""
    x, _, biases = _stored(dtype)
    relu = ACTIVATIONS["relu"]
    bound = 0.25
    law = (_core.UNIFORM, bound, 0.0, -bound, bound)
    shapes = list(zip(WIDTHS[1:], WIDTHS[:-1], strict=True))
    layers = [(relu.kernel_id, 0.0, relu.saturation_threshold)] * len(shapes)
    drawn = [(STREAM + number, *law) for number in range(len(shapes))]
    spec = _core.Chain(dtype, SEED, BATCH, WIDTHS, layers, x, drawn, biases)

    def expected() -> tuple[Array, Array]:
        weights = [
            sampling.draw(0, rows * columns, SEED, stream, *law, dtype).reshape(rows, columns)
            for (rows, columns), (stream, *_) in zip(shapes, drawn, strict=True)
        ]
        thresholds = [relu.saturation_threshold] * len(shapes)
        return chain.chain(x, weights, biases, [("relu", None)] * len(shapes), thresholds)

    def distance(value: tuple[Array, Array], exact: tuple[Array, Array]) -> float:
        return max(map(_worst_ulps(), value, exact))

    return Check(
        "chain",
        dtype,
        lambda kernels: _run_chain(kernels, spec, len(shapes), WIDTHS[-1]),
        expected,
        distance,
        0.0,
    )


def _chain_backward(
    name: str,
    dtype: str,
    widths: Sequence[int],
    norms: Sequence[str | None],
    residuals: Sequence[float | None],
) -> Check:
    """Stored arrays, ReLU: nothing in it but fma, sums, products, quotients and roots."""
    x, weights, biases = _stored(dtype, widths)
    dy = np.random.default_rng(SEED + 1).standard_normal((BATCH, widths[-1])).astype(dtype)
    layers = [(ACTIVATIONS["relu"].kernel_id, 0.0, np.nan)] * len(weights)
    kinds = [0 if norm is None else NORMS[norm] for norm in norms]
    spec = _core.Chain(dtype, 0, BATCH, widths, layers, x, weights, biases, dy, kinds, residuals)

    def product(kernels: Kernels) -> list[Array]:
        arrays = [np.empty_like(array) for array in (x, *weights, *biases)]
        dw, db = arrays[1 : len(weights) + 1], arrays[len(weights) + 1 :]
        states = np.zeros((1, len(weights), 3, len(moments.FIELDS)))
        workspace = np.empty(kernels.chain_workspace(spec), np.uint8)
        out = _core.Gradients(dtype, arrays[0], dw, db)
        cancel = np.zeros(1, np.int32)
        kernels.chain_backward(spec, 0, 1, None, states, out, workspace, cancel)
        return [*arrays, states[0]]

    def expected() -> list[Array]:
        names = [("relu", None)] * len(weights)
        dx, dw, db, states = backward.chain_backward(
            x, weights, dy, biases, names, norms, residuals
        )
        return [dx, *dw, *db, states]

    return Check(
        name,
        dtype,
        product,
        expected,
        lambda value, exact: max(map(_worst_ulps(), value, exact)),
        0.0,
    )


def _moments(dtype: str) -> Check:
    random = np.random.default_rng(SEED)
    x = (1.0 + random.standard_normal((COLUMNS, ROWS))).astype(dtype)

    def product(kernels: Kernels) -> Array:
        state = np.zeros(len(moments.FIELDS))
        kernels.moments(x, state)
        return state

    return Check("moments", dtype, product, lambda: moments.moments(x), _worst_ulps(), 0.0)


def _softmax(dtype: str) -> Iterator[Check]:
    """Causal rows, the first of them with nothing to look at."""
    random = np.random.default_rng(SEED)
    z = (4 * random.standard_normal((COLUMNS + 1, COLUMNS))).astype(dtype)
    scale = 0.5

    def product(kernels: Kernels) -> tuple[Array, Array]:
        p = np.empty_like(z)
        statistics = np.empty((len(z), _core.ROW_STATISTICS))
        kernels.softmax(z, p, statistics, 0, scale, 0.0, None, None, None, len(z))
        return p, statistics

    def expected() -> tuple[Array, Array]:
        return softmax.softmax(*softmax.logits(z, scale, causal=True))

    tolerance = SOFTMAX_UNITS * (1 + scale * float(np.max(np.abs(z))))
    # The first statistic, a logarithm, may be small by cancellation.
    floors = {"softmax": np.zeros(1), "softmax statistics": np.eye(1, _core.ROW_STATISTICS)}
    for part, (kernel, floor) in enumerate(floors.items()):
        distance = partial(_worst_units, part, floor, _half_eps(dtype))
        yield Check(kernel, dtype, product, expected, distance, tolerance, "u")


def _half_eps(dtype: str) -> float:
    return float(np.finfo(dtype).eps) / 2


def _worst_units(
    part: int, floor: Array, unit: float, values: tuple[Array, ...], exacts: tuple[Array, ...]
) -> float:
    """The worst error of one part relative to the larger of |exact| and ``floor``, in ``unit``s.

    Infinite where one of the two is not a number and the other is.
    """
    value, exact = values[part], exacts[part]
    same = (value == exact) | (np.isnan(value) & np.isnan(exact))
    with np.errstate(all="ignore"):
        error = np.abs(value - exact) / np.maximum(np.abs(exact), floor) / unit
    return float(np.max(np.where(same, 0, np.where(np.isnan(error), np.inf, error))))


def _softmax_backward(dtype: str) -> Check:
    random = np.random.default_rng(SEED)
    logits = 2 * random.standard_normal((ROWS, COLUMNS))
    p = softmax.softmax(logits.astype(np.longdouble))[0].astype(dtype)
    dp = random.standard_normal((ROWS, COLUMNS)).astype(dtype)
    scale = 0.125
    # The difference cancels: an error counts relative to the sizes of its terms.
    terms = np.abs(dp) + np.sum(np.abs(dp * p), axis=1, keepdims=True)

    def product(kernels: Kernels) -> Array:
        dz: Array = np.empty(p.shape, dtype)
        kernels.softmax_backward(p, dp, dz, scale)
        return dz

    return Check(
        "softmax backward",
        dtype,
        product,
        lambda: softmax.softmax_backward(p, dp, scale),
        lambda dz, exact: float(
            np.max(np.abs(dz - exact) / (scale * p * terms)) / _half_eps(dtype)
        ),
        BACKWARD_UNITS,
        "u",
    )


def _heads(dtype: str) -> tuple[Array, Array, Array, Array]:
    """q, k, v and a gradient by the output of one head, over more than one block of keys; the
    first query has nothing to look at."""
    random = np.random.default_rng(SEED)
    shapes = (COLUMNS + 1, HEAD), (COLUMNS, HEAD), (COLUMNS, VALUES), (COLUMNS + 1, VALUES)
    q, k, v, dout = (random.standard_normal((1, *shape)).astype(dtype) for shape in shapes)
    return 2 * q, k, v, dout


ONE_HEAD = np.zeros((1, 3), np.int64)
ATTENTION_SCALE = 0.25


def _run_attention(kernels: Kernels, spec: _core.Attention, like: Array) -> tuple[Array, Array]:
    statistics = np.empty((len(like), _core.ATTENTION_STATISTICS))
    output = np.empty_like(like)
    workspace = np.empty(kernels.attention_workspace(spec), np.uint8)
    kernels.attention(spec, 0, statistics, output, workspace, np.zeros(1, np.int32))
    return output, statistics


def _attention(dtype: str) -> Iterator[Check]:
    q, k, v, dout = _heads(dtype)
    products = matmul.matmul(q[0], k[0])
    scale = ATTENTION_SCALE
    spec = _core.Attention(q, k, ONE_HEAD, scale=scale, causal=True, v=v)

    def expected() -> tuple[Array, Array]:
        p, statistics = attention.attention_statistics(products, scale, causal=True)
        return attention.weigh(p, v[0]), statistics

    # An output is a sum that may cancel; and so may a logarithm and what logits alone make.
    p, _ = attention.attention_statistics(products, scale, causal=True)
    terms = attention.weigh(p, np.abs(v[0]))
    small = [name == "lse" or name.startswith("logit_") for name in attention.STATISTICS]
    floors = {"attention": terms, "attention statistics": np.array(small, float)}
    for part, (kernel, floor) in enumerate(floors.items()):
        yield Check(
            kernel,
            dtype,
            lambda kernels: _run_attention(kernels, spec, dout[0]),
            expected,
            partial(_worst_units, part, floor, _half_eps(dtype)),
            ATTENTION_UNITS * (1 + scale * float(np.max(np.abs(products)))),
            "u",
        )


def _attention_backward(dtype: str) -> Check:
    q, k, v, dout = _heads(dtype)
    scale = ATTENTION_SCALE
    forward = _core.Attention(q, k, ONE_HEAD, scale=scale, causal=True, v=v)
    begin, users = np.array([0, 1]), np.zeros(1, np.int64)

    def product(kernels: Kernels) -> tuple[Array, ...]:
        output, statistics = _run_attention(kernels, forward, dout[0])
        prepared = np.empty((1, len(output), 3), dtype)
        kernels.attention_prepare(forward, statistics, output, dout[0], prepared[0])
        spec = _core.AttentionGradient(forward, dout, prepared, begin, users, begin, users)
        workspace = np.empty(kernels.attention_backward_workspace(spec), np.uint8)
        dq, dk, dv = (np.empty_like(array[0]) for array in (q, k, v))
        sums, cancel = np.empty((len(dq), _core.GRADIENT_SUMS)), np.zeros(1, np.int32)
        kernels.attention_backward(spec, 0, dq, None, sums, workspace, cancel)
        kernels.attention_backward(spec, 0, dk, dv, None, workspace, cancel)
        return dq, dk, dv, np.array([np.sum(sums[:, _core.BY_SCALE])])

    def distance(values: tuple[Array, ...], exacts: tuple[Array, ...]) -> float:
        errors = [
            np.max(np.abs(value - exact)) / np.max(np.abs(exact))
            for value, exact in zip(values, exacts, strict=True)
        ]
        return float(max(errors)) / _half_eps(dtype)

    return Check(
        "attention backward",
        dtype,
        product,
        lambda: attention.attention_backward(q[0], k[0], v[0], dout[0], scale, causal=True),
        distance,
        ATTENTION_BACKWARD_UNITS * (1 + scale * float(np.max(np.abs(q[0] @ k[0].T)))),
        "u",
    )


def _exact_sums() -> Check:
    random = np.random.default_rng(SEED)
    x = random.standard_normal((ROWS, COLUMNS)) * 10.0 ** random.uniform(-300, 300, (ROWS, COLUMNS))
    x[::5, ::7] = np.inf
    x[1::5, ::7] = np.nan

    def product(kernels: Kernels) -> list[tuple[int, int, int, int]]:
        accumulators = np.zeros((COLUMNS, _core.EXACT_WORDS), np.int64)
        kernels.exact_add(accumulators, x)
        return kernels.exact_values(accumulators)

    return Check(
        "exact sums",
        "float64",
        product,
        lambda: [exact_sum.exact_sums(column) for column in x.T],
        lambda value, exact: float(sum(a != b for a, b in zip(value, exact, strict=True))),
        0.0,
    )
