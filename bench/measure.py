# SPDX-License-Identifier: BSD-3-Clause
"""Cases, and how they are timed: contenders interleaved, round after round, in one process.

A ratio is the median of the rounds' ratios, so a machine that slows down for a while slows both.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OURS = "initcore"

# A sample shorter than this is mostly the clock's own noise: short calls are repeated within one.
_SAMPLE_SECONDS = 1e-3
# How far from what it was given the CPUs that a contender kept busy may be.
_CPU_TOLERANCE = 0.1


class Unavailable(Exception):
    """A peer or a tool is missing; the message says how to install it."""


@dataclass(frozen=True)
class Sizes:
    """How large the cases are; TINY is for the tests, whose point is that everything runs."""

    elements: int
    rows: int
    columns: int
    layers: int
    dense: tuple[tuple[int, int], ...]  # (width, batch) of chains with given weights
    fresh: tuple[tuple[int, int, int], ...]  # (width, batch, trials) of Monte Carlo chains
    growth: tuple[int, ...]  # factors


FULL = Sizes(
    elements=1 << 24,
    rows=4096,
    columns=1024,
    layers=20,
    dense=((512, 512), (64, 64)),
    fresh=((64, 64, 256), (128, 128, 64), (256, 256, 16), (512, 512, 4), (512, 32, 16)),
    growth=(1, 2, 4, 8, 16),
)
TINY = Sizes(
    elements=1 << 13,
    rows=16,
    columns=48,
    layers=3,
    dense=((24, 20), (16, 16)),
    fresh=((16, 16, 8), (16, 4, 8)),
    growth=(1, 2),
)


@dataclass(frozen=True)
class Settings:
    """What every module's `cases` is given."""

    threads: int = 1
    sizes: Sizes = FULL


@dataclass(frozen=True)
class Contender:
    """Something to call, and how much work a call does, in the case's unit of work."""

    label: str
    call: Callable[[], object]
    work: float = 1.0


@dataclass(frozen=True)
class Unit:
    """How seconds for one unit of work are shown."""

    name: str
    scale: float
    is_rate: bool = False

    def value(self, seconds: float) -> float:
        """Seconds a unit of work, as this unit has it."""
        return self.scale / seconds if self.is_rate else self.scale * seconds


NS = Unit("ns/element", 1e9)
US = Unit("µs", 1e6)
MS = Unit("ms", 1e3)
GFLOPS = Unit("GFLOP/s", 1e-9, is_rate=True)
GBYTES = Unit("GB/s", 1e-9, is_rate=True)


@dataclass(frozen=True)
class Timing:
    """One contender: seconds for a unit of work, round by round, and the CPUs it kept busy."""

    seconds: tuple[float, ...]
    cpus: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.seconds) < 2:
            return math.nan
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / 2 / self.median

    def remark(self, threads: int) -> str:
        """What makes the time unfair: more CPUs than `threads`, or less than one. Else nothing.

        A contender that is given several threads and uses one is not starved: some draw so.
        """
        if self.cpus > threads * (1 + _CPU_TOLERANCE):
            return f"⚠ used {self.cpus:.2g} CPUs"
        if self.cpus < 1 - _CPU_TOLERANCE:
            return f"⚠ starved: {self.cpus:.2g} CPUs"
        return ""


@dataclass(frozen=True)
class Target:
    """A limit on a comparison of ours with others: with the fastest of those that ran; without a
    limit it is only shown. Against nobody it is one on our own time."""

    kind: str
    limit: float | None
    against: tuple[str, ...]

    def measure(self, timings: Mapping[str, Timing]) -> float | None:
        """None where ours or all the others are missing."""
        if OURS not in timings:
            return None
        if self.kind == "within":
            return timings[OURS].median
        compare = _COMPARISONS[self.kind]
        ours = timings[OURS].seconds
        values = [
            statistics.median(map(compare, ours, timings[label].seconds))
            for label in self.against
            if label in timings
        ]
        if not values:
            return None
        return min(values) if self.is_lower_limit else max(values)

    def is_met(self, value: float) -> bool:
        """A NaN meets nothing, and what has no limit is always met."""
        if self.limit is None:
            return True
        return value >= self.limit if self.is_lower_limit else value <= self.limit

    @property
    def is_lower_limit(self) -> bool:
        return self.kind in ("faster", "share")

    def show(self, value: float) -> str:
        match self.kind:
            case "share":
                return f"{100 * value:.0f} %"
            case "extra" | "within":
                milli = self.limit is not None and self.limit >= 1e-3
                return f"{value * (1e3 if milli else 1e6):.3g} {'ms' if milli else 'µs'}"
            case _:
                return f"{value:.3g}×"

    def __str__(self) -> str:
        if self.limit is None:
            return f"beside {', '.join(self.against)}"
        sign = "≥" if self.is_lower_limit else "≤"
        prefix = "+ " if self.kind == "extra" else ""
        of = {"share": "of ", "time": "the time of ", "extra": "over "}.get(self.kind, "")
        best = "the best of " if len(self.against) > 1 else ""
        others = f" {of}{best}{', '.join(self.against)}" if self.against else ""
        return f"{prefix}{sign} {self.show(self.limit)}{others}"


_COMPARISONS: dict[str, Callable[[float, float], float]] = {
    "faster": lambda ours, theirs: theirs / ours,
    "share": lambda ours, theirs: theirs / ours,
    "time": lambda ours, theirs: ours / theirs,
    "extra": lambda ours, theirs: ours - theirs,
}


def faster(limit: float, *against: str) -> Target:
    """At least `limit` times as fast as the fastest of these."""
    return Target("faster", limit, against)


def beside(*others: str) -> Target:
    """How many times as fast as the fastest of these, whatever that is."""
    return Target("faster", None, others)


def share(limit: float, floor: str) -> Target:
    """At least this share of a floor's rate."""
    return Target("share", limit, (floor,))


def takes(limit: float, other: str) -> Target:
    """At most `limit` times the time of another."""
    return Target("time", limit, (other,))


def extra(seconds: float, other: str) -> Target:
    """At most so many seconds more than another."""
    return Target("extra", seconds, (other,))


def within(seconds: float) -> Target:
    """At most so many seconds, whatever the machine."""
    return Target("within", seconds, ())


@dataclass(frozen=True)
class Case:
    """A row of the table.

    `setup` builds the contenders, checks that each of them computes what it should, and returns
    them; a contender that is missing is simply not among them.
    """

    name: str
    work: str
    unit: Unit
    setup: Callable[[], Sequence[Contender]]
    targets: tuple[Target, ...] = ()
    threads: int = 1
    expected: tuple[str, ...] = ()  # peers that have a column even where they are not installed
    rounds: int | None = None  # fewer than asked for, where a round is long


@dataclass(frozen=True)
class Result:
    """A case, timed; `note` says why it was not."""

    case: Case
    timings: dict[str, Timing] = field(default_factory=dict)
    note: str = ""

    def shown(self, label: str) -> str:
        """A contender's median in the case's unit, its spread, and what makes it unfair."""
        unit, timing = self.case.unit, self.timings[label]
        spread = "" if math.isnan(timing.spread) else f" ±{100 * timing.spread:.0f} %"
        remark = timing.remark(self.case.threads)
        text = f"{unit.value(timing.median):.3g} {unit.name}{spread}"
        return f"{text} ({remark})" if remark else text


def run(case: Case, rounds: int) -> Result:
    """Times a case's contenders, interleaved."""
    try:
        contenders = case.setup()
    except Unavailable as error:
        return Result(case, note=str(error))
    return Result(case, interleave(contenders, min(rounds, case.rounds or rounds)))


def interleave(contenders: Sequence[Contender], rounds: int) -> dict[str, Timing]:
    """Every contender once a round, each round beginning with another one."""
    repeats = [_repeats(contender) for contender in contenders]
    seconds: list[list[float]] = [[] for _ in contenders]
    busy, total = [0.0] * len(contenders), [0.0] * len(contenders)
    for turn in range(rounds):
        for i in range(len(contenders)):
            j = (i + turn) % len(contenders)
            call, number = contenders[j].call, repeats[j]
            cpu = _cpu_seconds()
            start = time.perf_counter()
            for _ in range(number):
                call()
            elapsed = time.perf_counter() - start
            busy[j] += _cpu_seconds() - cpu
            total[j] += elapsed
            seconds[j].append(elapsed / number / contenders[j].work)
    return {
        contender.label: Timing(tuple(times), cpu / elapsed)
        for contender, times, cpu, elapsed in zip(contenders, seconds, busy, total, strict=True)
    }


def _cpu_seconds() -> float:
    """CPU time of all threads of this process, and of the processes it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _repeats(contender: Contender) -> int:
    contender.call()
    start = time.perf_counter()
    contender.call()
    elapsed = time.perf_counter() - start
    return max(1, math.ceil(_SAMPLE_SECONDS / max(elapsed, 1e-9)))


def fastest(candidates: Sequence[Contender]) -> Contender:
    """The one that does a unit of work soonest: how a peer's own free choices are made."""
    timings = []
    for candidate in candidates:
        candidate.call()
        start = time.perf_counter()
        candidate.call()
        timings.append((time.perf_counter() - start) / candidate.work)
    return candidates[timings.index(min(timings))]


def require(condition: bool, what: str) -> None:
    """Nothing is timed that computes something else."""
    if not condition:
        raise AssertionError(f"bench: {what}")
