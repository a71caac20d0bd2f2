# SPDX-License-Identifier: BSD-3-Clause
"""Streams of random numbers, and the threads that fill arrays from them.

A stream belongs to one seed and one name (and trial). Element i of a stream is a pure function of
(seed, stream, i): no shape, stride, thread count or instruction set enters.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _core
from .dtypes import Dtype, find_dtype

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_WORD = 2**64
# A task of this many elements takes a few milliseconds: short enough for Ctrl-C, long enough to
# hide what it costs to hand it to a thread. A multiple of every tile.
_TASK_ELEMENTS = 1 << 20
_SMALL_ELEMENTS = 1 << 16
_TILE = 64  # elements of the largest tile
_SCRATCH_ELEMENTS = 1 << 18
_MAX_THREADS = 1024


@dataclass(frozen=True)
class Distribution:
    """How the words of a stream become values: fma(unit, scale, shift) in the dtype.

    `kind` is CONSTANT (the value is `shift`), UNIFORM (unit on (−1, 1)), NORMAL (a standard normal
    unit) or TRUNCATED_NORMAL (that on the interval of `truncation`); uniforms and truncated normals
    are then clamped to [low, high], both in the dtype.
    """

    kind: int
    scale: float = 0.0
    shift: float = 0.0
    low: float = -np.inf
    high: float = np.inf
    truncation: tuple[float, ...] = ()

    @cached_property
    def words(self) -> tuple[Any, ...]:
        """What a kernel's draw takes after seed and stream."""
        return self.kind, self.scale, self.shift, self.low, self.high, self.truncation


# --- seeds, names, trials -------------------------------------------------------------------------


def _check_word(argument: str, value: object) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{argument}={value!r}: an integer in [0, 2**64) is accepted, not a bool")
    try:
        word = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{argument}={value!r}: an integer in [0, 2**64) is accepted") from None
    if not 0 <= word < _WORD:
        raise ValueError(f"{argument}={value!r}: an integer in [0, 2**64) is accepted")
    return word


def check_seed(seed: object) -> int:
    """The seed as an int in [0, 2^64); anything else is refused, never truncated."""
    return _check_word("seed", seed)


def _hash(data: bytes, person: bytes = b"") -> int:
    from hashlib import blake2b  # it loads OpenSSL

    return int.from_bytes(blake2b(data, digest_size=8, person=person).digest(), "little")


@lru_cache(maxsize=4096)
def _hash_name(name: str) -> int:
    try:
        return _hash(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"name={name!r}: text that UTF-8 can encode is accepted") from None


def stream_id(name: object, trial: object = 0) -> int:
    """The stream of a name: (H(name) + trial) mod 2^64.

    H is the first 8 bytes, little-endian, of BLAKE2b with digest_size=8 over the name in UTF-8; an
    integer name in [0, 2^64) is hashed from its 8 little-endian bytes with person=b"int".
    """
    if isinstance(name, str):
        hashed = _hash_name(name)
    else:
        try:
            word = _check_word("name", name)
        except TypeError:
            raise TypeError(
                f"name={name!r}: a str, or an integer in [0, 2**64), is accepted"
            ) from None
        hashed = _hash(word.to_bytes(8, "little"), b"int")
    return (hashed + _check_word("trial", trial)) % _WORD


# --- threads --------------------------------------------------------------------------------------

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _forget_pool() -> None:
    # a forked child has the executor's bookkeeping but none of its threads
    global _pool, _pool_lock
    _pool = None
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _get_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:  # threads start only as they are needed
            from concurrent.futures import ThreadPoolExecutor  # slow: it loads logging

            _pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="initcore")
        return _pool


def resolve_threads(threads: object, n_tasks: int = _MAX_THREADS) -> int:
    """The number of threads to use: `threads`, INITCORE_NUM_THREADS, or the CPUs we may use (which
    takes a system call, and one task needs no more than one)."""
    source = "threads"
    if threads is None:
        text = os.environ.get("INITCORE_NUM_THREADS")
        if not text:
            if n_tasks <= 1:
                return 1
            if hasattr(os, "sched_getaffinity"):
                return len(os.sched_getaffinity(0))
            return os.cpu_count() or 1
        source, threads = "INITCORE_NUM_THREADS", int(text) if text.isdecimal() else text
    rule = f"{source}={threads!r}: an integer from 1 to {_MAX_THREADS} is accepted"
    if isinstance(threads, (bool, np.bool_)):
        raise TypeError(rule)
    try:
        number = operator.index(threads)  # type: ignore[arg-type]
    except TypeError:
        raise (TypeError if source == "threads" else ValueError)(rule) from None
    if not 1 <= number <= _MAX_THREADS:
        raise ValueError(rule)
    return number


def parallel(
    function: Callable[..., T],
    tasks: Sequence[tuple[Any, ...]],
    threads: int,
    cancel: npt.NDArray[np.int32] | None = None,
    report: Callable[[], object] = lambda: None,
) -> list[T]:
    """[function(*task) for task in tasks], over `threads` threads.

    Without `cancel` this thread is the first of them, and Ctrl-C waits for the task it is in. With
    `cancel`, a flag that long tasks poll, this thread only waits, so that Ctrl-C finds it, and
    calls `report` now and then. The
    first exception of any thread drops the tasks that have not begun, sets `cancel`, waits for
    those that have, and is raised here.
    """
    if cancel is None and (threads == 1 or len(tasks) <= 1):
        return [function(*task) for task in tasks]
    from concurrent.futures import wait

    results: list[Any] = [None] * len(tasks)
    queue = deque(enumerate(tasks))
    failures: list[BaseException] = []
    # A thread that could not be started leaves its `work` in the pool, where another may find it
    # late: so those at work are counted, and none begins when this function is done.
    state = threading.Condition()
    at_work, closed = 0, False

    def stop() -> None:
        queue.clear()
        if cancel is not None:
            cancel[0] = 1

    def work() -> None:
        nonlocal at_work
        with state:
            if closed:
                return
            at_work += 1
        try:
            while True:
                try:
                    index, task = queue.popleft()
                except IndexError:
                    return
                results[index] = function(*task)
        except BaseException as error:
            failures.append(error)
            stop()
            raise
        finally:
            with state:
                at_work -= 1
                state.notify_all()

    helpers: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(tasks)) - (cancel is None)):
            try:
                helpers.append(_get_pool().submit(work))
            except RuntimeError:  # no new threads: a limit, or the interpreter is shutting down
                break
        if cancel is None or not helpers:
            work()
        while wait(helpers, 0.05).not_done:
            report()
    except BaseException:
        stop()
        raise
    finally:
        wait(helpers)
        with state:
            closed = True
            state.wait_for(lambda: at_work == 0)
    if failures:
        raise failures[0]
    return results


# --- arrays ---------------------------------------------------------------------------------------


def blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Cuts an index space of `shape` into pieces contiguous in C order, at most `limit` long.

    Yields (first, size, index) a piece: its first logical index, its length, and the index that
    takes it out of an array of that shape.
    """
    size = prod(shape)
    if size <= limit or not shape:
        if size:
            yield 0, size, (...,)
        return
    inner = prod(shape[1:])
    if inner > limit:
        for i in range(shape[0]):
            for first, length, index in blocks(shape[1:], limit):
                yield i * inner + first, length, (i, *index)
        return
    rows = limit // inner
    for i in range(0, shape[0], rows):
        yield i * inner, (min(i + rows, shape[0]) - i) * inner, (slice(i, i + rows),)


def _overlaps_itself(array: npt.NDArray[Any]) -> bool:
    """Whether two indices may share memory (no view made by slicing and transposing does)."""
    if array.flags.c_contiguous:
        return False
    reach = array.itemsize
    for stride, length in sorted(
        (abs(stride), length) for stride, length in zip(array.strides, array.shape, strict=True)
    ):
        if length > 1:
            if stride < reach:
                return True
            reach += stride * (length - 1)
    return False


def check_output(
    out: object, shape: tuple[int, ...], dtypes: Collection[Dtype]
) -> npt.NDArray[Any]:
    """`out` if it can take a result of `shape` in one of `dtypes`, else a clear error."""
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(
            f"out={type(out).__name__}: a NumPy array of {_names(dtypes)} is accepted "
            "(no masked array)"
        )
    try:
        accepted = find_dtype(out.dtype) in dtypes
    except TypeError:
        accepted = False
    if not accepted:
        raise TypeError(f"out has dtype {out.dtype}: {_names(dtypes)}, native-endian, is accepted")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}: {shape} is accepted")
    if not out.flags.writeable:
        raise ValueError("out is read-only: a writeable array is accepted")
    if _overlaps_itself(out):
        raise ValueError("out overlaps itself in memory: distinct elements are accepted")
    return out


def _names(dtypes: Collection[Dtype]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)


# --- tensors and their shards ---------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """A rectangular piece of a global tensor: the indices that it takes on each axis."""

    shape: tuple[int, ...]  # the tensor's
    ranges: tuple[range, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], shard: object = None) -> Shard:
        """The piece that a tuple of slices takes out of the tensor; all of it for None.

        Axes beyond the tuple are taken whole. Raises TypeError for other indices than slices,
        ValueError for a step that is not positive and for more slices than axes.
        """
        if prod(shape) >= _WORD // 2:
            raise ValueError(f"shape {shape}: fewer than 2**63 elements are accepted")
        if shard is None:
            return cls(shape, tuple(map(range, shape)))
        slices = shard if isinstance(shard, tuple) else (shard,)
        rule = f"shard={shard!r}: a tuple of slices with positive steps, one an axis, is accepted"
        if not all(isinstance(part, slice) for part in slices):
            raise TypeError(rule)
        if len(slices) > len(shape):
            raise ValueError(f"{rule}; the shape {shape} has {len(shape)}")
        ranges = []
        for size, part in zip(shape, [*slices, *[slice(None)] * len(shape)], strict=False):
            try:
                chosen = range(size)[part]
            except TypeError:
                raise TypeError(rule) from None
            except ValueError:  # a step of 0
                chosen = range(0, 0, -1)
            if chosen.step < 1:
                raise ValueError(rule)
            ranges.append(chosen)
        return cls(shape, tuple(ranges))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the piece."""
        return tuple(map(len, self.ranges))

    @property
    def slices(self) -> tuple[slice, ...]:
        """What takes the piece out of the tensor."""
        return tuple(slice(chosen.start, chosen.stop, chosen.step) for chosen in self.ranges)

    def part(self, index: tuple[Any, ...]) -> Shard:
        """The smaller piece that an index of :func:`blocks` takes out of this one; an integer of
        the index takes a range of one."""
        index = () if index == (...,) else index
        chosen = [
            where[at] if isinstance(at, slice) else where[at : at + 1]
            for where, at in zip(self.ranges, index, strict=False)
        ]
        return Shard(self.shape, (*chosen, *self.ranges[len(chosen) :]))

    def places(self, indices: Sequence[npt.NDArray[np.int64]]) -> tuple[npt.NDArray[np.int64], ...]:
        """Where the piece has elements of the tensor, given an array of their indices an axis;
        those it has not are left out."""
        inside = np.ones(indices[0].shape, bool)
        for chosen, index in zip(self.ranges, indices, strict=True):
            inside &= (index >= chosen.start) & (index < chosen.stop)
            inside &= (index - chosen.start) % chosen.step == 0
        return tuple(
            (index[inside] - chosen.start) // chosen.step
            for chosen, index in zip(self.ranges, indices, strict=True)
        )

    def runs(self) -> tuple[int, list[tuple[int, int]]]:
        """The logical index of the piece's first element in the tensor; and (count, stride) of each
        of its axes, those that go on at one stride having become one."""
        first, stride = 0, 1
        runs: list[tuple[int, int]] = []
        for size, chosen in zip(reversed(self.shape), reversed(self.ranges), strict=True):
            first += chosen.start * stride
            count, step = len(chosen), chosen.step * stride
            if runs and step == runs[0][0] * runs[0][1]:
                runs[0] = (count * runs[0][0], runs[0][1])
            elif count != 1:
                runs.insert(0, (count, step))
            stride *= size
        return first, runs

    def span(self, axis: int, start: int, stop: int) -> tuple[slice, Shard]:
        """What the piece has of indices start … stop − 1 of an axis: which of its own indices they
        are, and the smaller piece."""
        chosen = self.ranges[axis]
        first, last = (
            min(max(-((chosen.start - end) // chosen.step), 0), len(chosen))
            for end in (start, stop)
        )
        ranges = (*self.ranges[:axis], chosen[first:last], *self.ranges[axis + 1 :])
        return slice(first, last), Shard(self.shape, ranges)


def n_tasks(shape: tuple[int, ...]) -> int:
    """How many threads can help to fill so large an array."""
    return -(-prod(shape) // _TASK_ELEMENTS)


def fill(
    out: npt.NDArray[Any],
    distribution: Distribution,
    *,
    seed: int,
    stream: int,
    threads: int,
    shard: Shard | None = None,
) -> None:
    """The elements of `out`, of any memory layout, become those of the stream that have the same
    logical C-order index in the global tensor, of which `out` is a shard, or the whole."""
    draw = _core.default().draw
    half = find_dtype(out.dtype).half
    words = (seed, stream, *distribution.words)
    out = np.asarray(out)  # a matrix would stay one
    contiguous = out.flags.c_contiguous and out.flags.aligned
    if contiguous:
        flat = out.reshape(-1)
        flat = flat.view(np.uint16) if half else flat
        if shard is None and out.size <= _SMALL_ELEMENTS:
            draw(flat, 0, *words, half=half)
            return
    whole = Shard.of(out.shape) if shard is None else shard

    def task(first: int, size: int, index: tuple[Any, ...]) -> None:
        target = flat[first : first + size] if contiguous else out[index]
        buffer = target if contiguous else np.empty(size, np.uint16 if half else out.dtype)
        start, runs = whole.part(index).runs()
        _draw_runs(draw, buffer, start, runs, words, half)
        if not contiguous:
            target[...] = buffer.view(out.dtype).reshape(target.shape)

    parallel(task, list(blocks(out.shape, _TASK_ELEMENTS)), threads)


def _draw_runs(
    draw: Callable[..., None],
    buffer: npt.NDArray[Any],
    first: int,
    runs: list[tuple[int, int]],
    words: tuple[Any, ...],
    half: int,
) -> None:
    """The elements first + Σ i·stride of a stream, i < count for each of the runs, in C order.

    An element alone costs its tile. So the innermost runs that leave out less than that are drawn
    with what lies between, the run around them by rows, and those around that one by one.
    """
    inner, span, taken = len(runs), 1, 1
    while inner:
        count, stride = runs[inner - 1]
        longer = (count - 1) * stride + span
        if longer > _TILE * count * taken:
            break
        inner, span, taken = inner - 1, longer, count * taken
    if inner == 0:
        runs, inner = [(1, 0), *runs], 1
    (rows, stride), rest = runs[0], runs[1:]
    if inner > 1:
        for row, piece in enumerate(buffer.reshape(rows, -1)):
            _draw_runs(draw, piece, first + row * stride, rest, words, half)
    elif span == taken:
        draw(buffer.reshape(rows, span), first, *words, stride=stride, half=half)
    elif span > _SCRATCH_ELEMENTS:
        (count, step), more = rest[0], rest[1:]
        at_once = max(_SCRATCH_ELEMENTS // step, 1)
        for row, piece in enumerate(buffer.reshape(rows, count, -1)):
            for i in range(0, count, at_once):
                part = piece[i : i + at_once]
                start = first + row * stride + i * step
                _draw_runs(draw, part.reshape(-1), start, [(len(part), step), *more], words, half)
    else:
        shape = [count for count, _ in rest]
        at_once = _SCRATCH_ELEMENTS // span
        pieces = buffer.reshape(rows, *shape)
        for row in range(0, rows, at_once):
            piece = pieces[row : row + at_once]
            scratch = np.empty((len(piece), span), buffer.dtype)
            draw(scratch, first + row * stride, *words, stride=stride, half=half)
            steps = [scratch.itemsize * step for step in (span, *(step for _, step in rest))]
            piece[...] = np.lib.stride_tricks.as_strided(scratch, piece.shape, steps)
