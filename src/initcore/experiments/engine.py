# SPDX-License-Identifier: BSD-3-Clause
"""Runs the trials of an experiment in threads, or on any executor, and merges their records.

A record is exact, so it depends neither on how trials are cut into chunks nor on who runs which. A
worker keeps its sums from chunk to chunk: memory does not grow with trials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    wait,
)
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from initcore.results.exact import ExactRecord
from initcore.streams import parallel

Cancel = NDArray[np.int32]
Progress = Callable[[int, int], object]

# Chunks of this length are short enough for a live progress bar and an even load; a task of an
# executor also has to make up for its journey. A chunk of very short trials is bounded by memory.
_THREAD_SECONDS = 0.05
_EXECUTOR_SECONDS = 0.5
_CHUNK_TRIALS = 256
# An executor may have hundreds of workers, and does not say how many.
_EXECUTOR_TASKS = 256
# How often the calling thread wakes up; a wait without end cannot be interrupted on Windows.
_POLL_SECONDS = 0.05


class Cancelled(Exception):
    """Raised within a trial that is to stop, for its worker to catch."""


class Worker(Protocol):
    """Runs trials and sums them up, for one thread."""

    def run(self, start: int, stop: int, cancel: Cancel) -> bool:
        """Run and add trials start, ..., stop − 1; False when ``cancel[0]`` stopped them."""

    def record(self) -> ExactRecord:
        """The record of all trials it ran."""


class Experiment(Protocol):
    """What the engine runs: picklable, and all that its trials depend on but their numbers."""

    @property
    def trial_seconds(self) -> float:
        """About how long one trial takes on one thread; it decides the size of chunks alone."""

    def worker(self) -> Worker:
        """A new worker, with its own workspace."""


def run(
    experiment: Experiment,
    trials: range,
    *,
    threads: int,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ExactRecord:
    """The record of an experiment's trials, of which there is at least one.

    They run in ``threads`` threads of this process, or on ``executor``, which receives picklable
    tasks. ``progress(done, total)`` is called in the calling thread, in trials. When it, a trial or
    Ctrl-C raises, what has not begun is dropped, what runs is told to stop (on an executor it is
    left to finish alone), and the exception goes on.
    """
    report = progress or (lambda done, total: None)
    if executor is None:
        return _run_in_threads(experiment, trials, threads, report)
    return _run_on_executor(experiment, trials, executor, report)


def _run_in_threads(
    experiment: Experiment, trials: range, threads: int, progress: Progress
) -> ExactRecord:
    share = 4 * threads if threads > 1 else 1  # of several, none should wait long for the last
    chunks = _chunks(trials, experiment.trial_seconds, _THREAD_SECONDS, share)
    lock = threading.Lock()
    cancel = np.zeros(1, np.int32)
    done = 0

    def work() -> ExactRecord:
        nonlocal done
        worker = experiment.worker()
        while True:
            with lock:
                chunk = next(chunks, None)
            if chunk is None or not worker.run(chunk.start, chunk.stop, cancel):
                return worker.record()
            with lock:
                done += len(chunk)

    reported = 0

    def report() -> None:
        nonlocal reported
        if done != reported:
            reported = done
            progress(reported, len(trials))

    workers = min(threads, len(trials))
    records = parallel(work, [()] * workers, workers, cancel, report)
    report()
    return _merge(records)


def _run_on_executor(
    experiment: Experiment, trials: range, executor: Executor, progress: Progress
) -> ExactRecord:
    chunks = _chunks(trials, experiment.trial_seconds, _EXECUTOR_SECONDS, _EXECUTOR_TASKS)
    running: dict[Future[ExactRecord], int] = {}
    merged: list[ExactRecord] = []
    done = 0
    try:
        while True:
            while len(running) < _EXECUTOR_TASKS and (chunk := next(chunks, None)):
                running[executor.submit(_task, experiment, chunk.start, chunk.stop)] = len(chunk)
            if not running:
                return merged[0]
            ended, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
            for future in ended:
                merged = [_merge([*merged, future.result()])]
                done += running.pop(future)
            if ended:
                progress(done, len(trials))
    except BaseException:
        for future in running:
            future.cancel()
        raise


def _task(experiment: Experiment, start: int, stop: int) -> ExactRecord:
    """What an executor runs, where nobody tells it to stop."""
    worker = experiment.worker()
    worker.run(start, stop, np.zeros(1, np.int32))
    return worker.record()


def _merge(records: list[ExactRecord]) -> ExactRecord:
    first, *others = records
    for other in others:
        first = first + other
    return first


def _chunks(
    trials: range, trial_seconds: float, seconds: float, share: int
) -> Generator[range, None, None]:
    """The trials in pieces of about ``seconds``, at least ``share`` of them if trials suffice."""
    size = min(int(seconds / trial_seconds), len(trials) // share, _CHUNK_TRIALS)
    size = max(size, 1)
    for first in range(0, len(trials), size):
        yield trials[first : first + size]
