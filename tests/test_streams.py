# SPDX-License-Identifier: BSD-3-Clause
"""Seeds, names, threads and outputs: the laws of initcore.streams."""

import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import initcore as ic
from initcore import _core, streams


def draw(shape, **keywords):
    return ic.normal()(shape, **{"seed": 7, "name": "w", **keywords})


class TestNames:
    def test_a_name_is_hashed_by_blake2b(self):
        digest = hashlib.blake2b("naïve.weight".encode(), digest_size=8).digest()
        assert streams.stream_id("naïve.weight") == int.from_bytes(digest, "little")

    def test_an_integer_name_is_hashed_from_its_bytes(self):
        digest = hashlib.blake2b(
            (2**63 + 5).to_bytes(8, "little"), digest_size=8, person=b"int"
        ).digest()
        assert streams.stream_id(2**63 + 5) == int.from_bytes(digest, "little")
        assert streams.stream_id(np.uint64(2**63 + 5)) == streams.stream_id(2**63 + 5)
        assert streams.stream_id(5) != streams.stream_id("5")

    def test_trials_are_consecutive_streams_modulo_2_to_64(self):
        first = streams.stream_id("a")
        assert streams.stream_id("a", 3) == (first + 3) % 2**64
        assert streams.stream_id("a", 2**64 - 1) == (first - 1) % 2**64

    @pytest.mark.parametrize("name", [None, 1.5, b"w", ("w",), True, np.bool_(True)])
    def test_other_kinds_of_name_are_refused(self, name):
        with pytest.raises(TypeError, match="name="):
            draw(3, name=name)

    @pytest.mark.parametrize("name", [-1, 2**64])
    def test_integer_names_out_of_range_are_refused(self, name):
        with pytest.raises(ValueError, match=r"name=.*2\*\*64"):
            draw(3, name=name)

    def test_text_that_utf8_cannot_encode_is_refused(self):
        with pytest.raises(ValueError, match="UTF-8"):
            draw(3, name="\ud800")


class TestSeeds:
    """Never truncated, never guessed: two seeds that look alike must not be one."""

    @pytest.mark.parametrize("seed", [None, True, 1.0, "1", np.float64(1), np.bool_(0), [1]])
    def test_other_kinds_are_refused(self, seed):
        with pytest.raises(TypeError, match="seed="):
            draw(3, seed=seed)

    @pytest.mark.parametrize("seed", [-1, 2**64, np.int64(-5)])
    def test_out_of_range_is_refused(self, seed):
        with pytest.raises(ValueError, match=r"seed=.*2\*\*64"):
            draw(3, seed=seed)

    def test_all_64_bits_count(self):
        seeds = [0, 1, 2**32, 2**63, 2**64 - 1, np.uint64(2**64 - 2)]
        assert len({draw(4, seed=s).tobytes() for s in seeds}) == len(seeds)

    def test_seed_trial_and_name_each_give_other_numbers(self):
        one = draw(100)
        for other in (draw(100, seed=8), draw(100, trial=1), draw(100, name="v")):
            assert not np.any(one == other)


class TestThreads:
    def test_values_do_not_depend_on_the_thread_count(self):
        """numba #8957."""
        n = 1_000_003
        one = draw(n, threads=1)
        for threads in (2, 3, 7, 16):
            assert np.array_equal(one, draw(n, threads=threads))

    @pytest.mark.parametrize("threads", [0, -1, 1025])
    def test_out_of_range_is_refused(self, threads):
        with pytest.raises(ValueError, match="threads="):
            draw(3, threads=threads)

    @pytest.mark.parametrize("threads", [1.5, "2", True])
    def test_other_kinds_are_refused(self, threads):
        with pytest.raises(TypeError, match="threads="):
            draw(3, threads=threads)

    @pytest.mark.parametrize("text", ["0", "many", "-1", "1.5"])
    def test_a_bad_environment_variable_names_itself(self, monkeypatch, text):
        monkeypatch.setenv("INITCORE_NUM_THREADS", text)
        with pytest.raises(ValueError, match="INITCORE_NUM_THREADS"):
            draw(3)

    def test_the_environment_variable_is_the_default(self, monkeypatch):
        monkeypatch.setenv("INITCORE_NUM_THREADS", "3")
        assert streams.resolve_threads(None) == 3
        assert streams.resolve_threads(2) == 2

    def test_results_come_in_order(self):
        assert streams.parallel(lambda i: i * i, [(i,) for i in range(50)], 7) == [
            i * i for i in range(50)
        ]

    def test_an_exception_drops_what_has_not_begun_and_waits_for_the_rest(self):
        running = []
        started = threading.Event()

        def task(i):
            if i == 1:
                started.wait(5)
                raise KeyError(i)
            running.append(i)
            started.set()
            running.remove(i)

        cancel = np.zeros(1, np.int32)
        with pytest.raises(KeyError):
            streams.parallel(task, [(i,) for i in range(2)], 2, cancel)
        assert cancel[0] == 1
        assert not running

    @pytest.mark.parametrize("cancellable", [False, True])
    def test_the_first_exception_drops_the_queue(self, cancellable):
        """Also one that a helper thread raises."""
        ran, main = [], threading.get_ident()

        def task(i):
            ran.append(i)
            if threading.get_ident() != main:
                raise KeyError(i)
            time.sleep(0.01)

        cancel = np.zeros(1, np.int32) if cancellable else None
        with pytest.raises(KeyError):
            streams.parallel(task, [(i,) for i in range(200)], 3, cancel)
        assert len(ran) < 100
        assert cancel is None or cancel[0] == 1

    def test_work_goes_on_when_the_main_thread_has_ended(self):
        program = (
            "import threading, time, initcore as ic\n"
            "def work():\n"
            "    time.sleep(0.5)\n"
            "    a = ic.normal()(1 << 21, seed=0, name='x', threads=2)\n"
            "    r = ic.propagate([8, 8], trials=4, threads=2)\n"
            "    print('done', a.size, r.n_trials)\n"
            "threading.Thread(target=work).start()\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.stdout.split() == ["done", str(1 << 21), "4"], ran.stderr

    def test_tasks_may_use_the_pool_themselves(self):
        def outer(i):
            return sum(streams.parallel(lambda j: i * j, [(j,) for j in range(8)], 4))

        assert streams.parallel(outer, [(i,) for i in range(16)], 8) == [28 * i for i in range(16)]

    def test_many_callers_at_once(self):
        expected = draw(200_000).tobytes()
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(draw, 200_000, threads=3) for _ in range(24)]
            assert {future.result().tobytes() for future in futures} == {expected}

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_forked_child_has_a_pool_of_its_own(self):
        expected = draw(300_000, threads=4).tobytes()
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def child():
            sender.send_bytes(hashlib.sha256(draw(300_000, threads=4).tobytes()).digest())

        process = context.Process(target=child)
        process.start()
        try:
            assert receiver.poll(30), "the child hangs"
            assert receiver.recv_bytes() == hashlib.sha256(expected).digest()
        finally:
            process.kill()
            process.join()


class TestBlocks:
    @pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (7, 3), (2, 3, 5, 7), (1, 1, 9)])
    @pytest.mark.parametrize("limit", [1, 2, 4, 10, 1000])
    def test_every_element_once_in_order(self, shape, limit):
        order = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        seen = []
        for first, size, index in streams.blocks(shape, limit):
            part = order[index].ravel()
            assert part.size == size <= max(limit, 1)
            assert part[0] == first
            seen += part.tolist()
        assert seen == list(range(order.size))


class TestOutputs:
    """numpy #18704, cupy #4903: correct in logical order, or refused before any write."""

    @pytest.mark.parametrize(
        "view",
        [
            lambda a: a,
            lambda a: a.T,
            lambda a: a[::-1],
            lambda a: a[::3, 1::2],
            lambda a: a[:, ::-2].T,
            lambda a: np.moveaxis(a.reshape(24, 5, 10), 0, 2),
            lambda a: np.asfortranarray(a),
            lambda a: a.reshape(-1)[1:].view(np.uint8)[2:-2].view(np.float32),
        ],
    )
    def test_any_layout_takes_the_same_numbers(self, view):
        out = view(np.zeros((24, 50), np.float32))
        assert ic.normal()(out.shape, seed=7, name="w", out=out) is out
        assert np.array_equal(out, draw(out.shape))

    def test_large_strided_outputs_go_through_bounded_scratch(self):
        out = np.zeros((1500, 1500), np.float32).T
        ic.normal()(out.shape, seed=7, name="w", out=out)
        assert np.array_equal(out, draw(out.shape))

    def test_a_zero_dimensional_output(self):
        out = np.zeros((), np.float64)
        ic.normal()((), seed=7, name="w", out=out)
        assert out == draw(1, dtype="float64")[0]

    @pytest.mark.parametrize(
        ("out", "error", "match"),
        [
            (np.zeros(4, np.int32), TypeError, "int32"),
            (np.zeros(4, ">f4"), TypeError, "float32"),
            (np.zeros(5, np.float32), ValueError, r"\(5,\).*\(4,\)"),
            (np.ma.zeros(4, np.float32), TypeError, "masked"),
            ([0.0] * 4, TypeError, "list"),
            (np.broadcast_to(np.float32(0), 4), ValueError, "read-only"),
            (np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4,), (0,)), ValueError,
             "overlaps"),
            (np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (4,), (2,)), ValueError,
             "overlaps"),
        ],
    )  # fmt: skip
    def test_what_cannot_take_the_result_is_refused(self, out, error, match):
        before = np.array(out, copy=True)
        with pytest.raises(error, match=match):
            ic.normal()(4, seed=7, name="w", out=out)
        assert np.array_equal(before, np.array(out))

    def test_dtype_must_agree_with_out(self):
        with pytest.raises(TypeError, match="dtype"):
            ic.normal()(4, seed=7, name="w", out=np.zeros(4, np.float32), dtype="float64")


def test_a_matrix_is_an_output_too():
    with pytest.warns(PendingDeprecationWarning):
        out = np.matrix(np.zeros((2, 3), np.float32))
    assert ic.normal()((2, 3), seed=7, name="w", out=out) is out
    assert np.array_equal(np.asarray(out), draw((2, 3)))


def test_an_unknown_instruction_set_is_refused():
    ran = subprocess.run(
        [sys.executable, "-m", "initcore", "propagate"],
        env={**os.environ, "INITCORE_ISA": "sse9"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "INITCORE_ISA='sse9'" in ran.stderr


def test_the_forced_instruction_set_is_used():
    wanted = os.environ.get("INITCORE_ISA")
    assert ic.isa() == (wanted or next(iter(_core.available())))
    assert "portable" in _core.available()


def test_a_thread_that_could_not_be_started_is_waited_for(monkeypatch):
    """The pool keeps the work of a thread it could not start: another may do it, late."""
    lost, begun, go_on = [], threading.Event(), threading.Event()

    class Pool:
        def submit(self, work):
            thread = threading.Thread(target=work)
            lost.append(thread)
            thread.start()
            begun.wait(10)
            raise RuntimeError("can't start new thread")

    def task(i):
        if threading.current_thread() in lost:
            begun.set()
            go_on.wait(10)
        else:
            begun.wait(10)
            threading.Timer(0.2, go_on.set).start()
        return i

    monkeypatch.setattr(streams, "_get_pool", Pool)
    tasks = [(i,) for i in range(5)]
    assert streams.parallel(task, tasks, 2) == list(range(5))


def test_work_that_comes_too_late_does_nothing(monkeypatch):
    late = []

    class Pool:
        def submit(self, work):
            late.append(work)
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(streams, "_get_pool", Pool)
    calls = []
    streams.parallel(calls.append, [(i,) for i in range(3)], 2)
    late[0]()
    assert calls == [0, 1, 2]
