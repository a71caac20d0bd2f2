# SPDX-License-Identifier: BSD-3-Clause
"""The engine: threads, executors, progress, interruption, memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import initcore as ic
from initcore.experiments import engine
from initcore.results.exact import Accumulator

CHAIN = {"widths": [9, 17, 5], "init": "kaiming_normal", "batch": 7, "seed": 3}


class Counting:
    """An experiment whose statistic is the trial's number, and that can fail at one."""

    def __init__(self, trial_seconds=1e-3, fail_at=None):
        self.trial_seconds = trial_seconds
        self.fail_at = fail_at

    def worker(self):
        return CountingWorker(self)


class CountingWorker:
    def __init__(self, experiment):
        self.experiment = experiment
        self.sums = Accumulator(1, 1, (0, 0))

    def run(self, start, stop, cancel):
        if self.experiment.fail_at in range(start, stop):
            raise RuntimeError("trial failed")
        numbers = np.arange(start, stop, dtype=np.float64)[:, np.newaxis]
        self.sums.add(numbers, numbers)
        return True

    def record(self):
        return self.sums.record()


@pytest.mark.parametrize("trial_seconds", [1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("trials", [range(1), range(5, 8), range(3000)])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_trial_runs_once(trials, threads, trial_seconds):
    record = engine.run(Counting(trial_seconds), trials, threads=threads)
    column = record.columns[0]
    assert column.finite == len(trials)
    assert column.total == sum(trials) << 1074
    assert record.maxima.tolist() == [trials[-1]]


def test_chunks_cover_the_trials_in_order():
    for size in (1, 10, 999):
        chunks = list(engine._chunks(range(7, 7 + size), 1e-4, 0.05, 8))
        assert [trial for chunk in chunks for trial in chunk] == list(range(7, 7 + size))
        assert len(chunks) >= min(8, size)


def test_results_do_not_depend_on_threads():
    """numba #8957, #2486."""
    one = ic.propagate(**CHAIN, trials=101, threads=1)
    for threads in (2, 3, 7, 16):
        assert ic.propagate(**CHAIN, trials=101, threads=threads).equals(one)


def test_results_do_not_depend_on_the_executor():
    one = ic.propagate(**CHAIN, trials=20, threads=1)
    with ThreadPoolExecutor(2) as executor:
        assert ic.propagate(**CHAIN, trials=20, executor=executor).equals(one)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert ic.propagate(**CHAIN, trials=20, executor=executor).equals(one)


def test_any_split_of_the_trials_adds_up():
    whole = ic.propagate(**CHAIN, trials=30)
    parts = [ic.propagate(**CHAIN, trials=r) for r in (range(20, 30), range(5), range(5, 20))]
    assert ((parts[0] + parts[1]) + parts[2]).equals(whole)
    assert (parts[0] + (parts[2] + parts[1])).equals(whole)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor])
def test_progress_in_the_calling_thread(executor):
    calls = []

    def progress(done, total):
        calls.append((done, total, threading.get_ident()))

    pool = executor and executor(2)
    engine.run(Counting(), range(500), threads=2, executor=pool, progress=progress)
    if pool:
        pool.shutdown()
    counts = [done for done, _, _ in calls]
    assert counts == sorted(set(counts))
    assert counts[-1] == 500
    assert {(total, thread) for _, total, thread in calls} == {(500, threading.get_ident())}


def test_progress_of_a_comparison_is_that_of_the_whole():
    calls = []
    ic.compare_inits(["ones", "zeros"], [3, 3], trials=4, progress=lambda *call: calls.append(call))
    assert calls[-1] == (8, 8)
    assert {total for _, total in calls} == {8}


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor])
def test_a_failing_trial_ends_the_run(executor):
    pool = executor and executor(2)
    with pytest.raises(RuntimeError, match="trial failed"):
        engine.run(Counting(fail_at=250), range(500), threads=2, executor=pool)
    if pool:
        pool.shutdown()


def test_a_failing_progress_stops_running_trials():
    class Worker(CountingWorker):
        def run(self, start, stop, cancel):
            if start == 0:
                return super().run(start, stop, cancel)
            while not cancel[0]:
                time.sleep(0.001)
            return False

    class Experiment(Counting):
        def worker(self):
            return Worker(self)

    def progress(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        engine.run(Experiment(), range(100), threads=2, progress=progress)


INTERRUPTED = """
import initcore as ic
print("running", flush=True)
try:
    ic.propagate({arguments}, threads=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("[64] * 21, trials=10**8", id="many trials"),
        pytest.param("[4096] * 201, batch=512, trials=1", id="one long trial"),
    ],
)
def test_ctrl_c_returns_within_a_second(arguments):
    script = INTERRUPTED.format(arguments=arguments)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "running\n"
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - start < 1
        assert process.wait() == 0


def peak_memory(**arguments):
    tracemalloc.start()
    try:
        # One worker: whether the peaks of two coincide is chance.
        ic.propagate(**arguments, threads=1)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_trials():
    chain = {"widths": [16] * 9, "batch": 8}
    peak_memory(**chain, trials=100)
    # Trials that are too few to fill a chunk take less.
    few, many = (peak_memory(**chain, trials=trials) for trials in (3_000, 15_000))
    assert many < few + 50_000


def test_no_weight_matrix_is_ever_stored():
    width = 4096
    assert peak_memory(widths=[width] * 3, trials=1) < width * width * 4 / 4
