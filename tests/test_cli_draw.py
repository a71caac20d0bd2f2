# SPDX-License-Identifier: BSD-3-Clause
"""``initcore draw``: the file is the tensor that Python draws, whole or not there at all."""

import re
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command line needs initcore[cli]")

import initcore as ic
from initcore.cli import draw as module
from initcore.cli import main
from initcore.dtypes import find_dtype


def draw(path, *arguments):
    assert main(["draw", "--out", str(path), *arguments]) == 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return np.load(path)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("buffer", [1 << 24, 200])
def test_the_file_is_the_tensor(tmp_path, monkeypatch, dtype, buffer):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(module, "_BUFFER_BYTES", buffer)
    path = tmp_path / "fc1.weight.npy"
    init = "kaiming_normal(mode='fan_out').scaled(2)"
    found = draw(path, "--init", init, "--shape", "7,5,3", "--seed", "9", "--dtype", dtype)
    expected = ic.initializer(init)((7, 5, 3), seed=9, name="fc1.weight", dtype=dtype)
    # NumPy's own format has no bfloat16: its bits come back as two bytes
    assert np.array_equal(found.view(find_dtype(dtype).numpy), expected)


@pytest.mark.parametrize("buffer", [1 << 24, 64])
def test_a_shard_name_and_trial(tmp_path, monkeypatch, buffer):
    monkeypatch.setattr(module, "_BUFFER_BYTES", buffer)
    init = "xavier_normal(parts=(3, 7))"
    words = ("--name", "q", "--trial", "2", "--threads", "1")
    found = draw(
        tmp_path / "a.npy", "--init", init, "--shape", "10,30", "--shard", "1::2,:", *words
    )
    expected = ic.initializer(init)((10, 30), seed=0, name="q", trial=2)
    assert np.array_equal(found, expected[1::2])


@pytest.mark.parametrize("init", ["orthogonal(gain=2)", "sparse(sparsity=0.5)", "identity()"])
def test_structures(tmp_path, init):
    found = draw(tmp_path / "w.npy", "--init", init, "--shape", "6,4")
    assert np.array_equal(found, ic.initializer(init)((6, 4), seed=0, name="w"))


def test_empty_tensors(tmp_path):
    assert draw(tmp_path / "w.npy", "--shape", "0,5").shape == (0, 5)
    assert draw(tmp_path / "w.npy", "--shape", "3,5", "--name", "w", "--shard", "3:,:").shape == (
        0,
        5,
    )


def test_memory_is_that_of_two_buffers(tmp_path):
    tracemalloc.start()
    assert main(["draw", "--out", str(tmp_path / "w.npy"), "--shape", "4096,6144"]) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "w.npy").stat().st_size > 4 * 4096 * 6144
    assert peak < 2.5 * module._BUFFER_BYTES


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt, MemoryError]
)
def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch, failure):
    path = tmp_path / "w.npy"
    before = draw(path, "--shape", "3,3")

    @contextmanager
    def failing(path):
        with whole_file(path) as file, mock.patch.object(module, "_BUFFER_BYTES", 100):
            file.write(b"the header")
            yield SimpleNamespace(write=mock.Mock(side_effect=[10, 10, failure]))

    whole_file = module._whole_file
    monkeypatch.setattr(module, "_whole_file", failing)
    assert main(["draw", "--out", str(path), "--shape", "40,40"]) != 0
    assert [p.name for p in tmp_path.iterdir()] == ["w.npy"]
    assert np.array_equal(np.load(path), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "4"), "--shape.*has no fans"),
        (("--shape", "4,x"), "--shape.*'x' is not an integer"),
        (("--shape", "4,4", "--name", "w", "--shard", "0:x"), "--shard.*'x' is not an integer"),
        (("--shape", "4,4", "--name", "\udc80"), "--name.*UTF-8"),
        (("--shape", "4,4", "--init", "embedding(padding_idx=7)"), "--init.*padding_idx.*got 7"),
        (("--shape", "4,-4"), "--shape.*negative"),
        (("--shape", "4,4", "--dtype", "int8"), "--dtype.*float32, float64, float16, bfloat16"),
        (("--shape", "4,4", "--seed", "-1"), "--seed"),
        (("--shape", "4,4", "--trial", "-1"), "--trial"),
        (("--shape", "4,4", "--threads", "0"), "--threads"),
        (("--shape", "4,4", "--shard", ":2"), "--shard.*needs the --name"),
        (("--shape", "1000000,1000000000"), "--out.*bytes are needed"),
        (("--shape", "4,4", "--name", "w", "--shard", "0:2,3"), "--shard.*START:STOP"),
        (("--shape", "4,4", "--name", "w", "--shard", "::-1"), "--shard.*positive"),
        (("--shape", "4,4", "--name", "w", "--shard", ":,:,:"), "--shard.*has 2"),
        (("--shape", "4,4", "--init", "normal(1e38)"), "--init.*finite in float32"),
        (("--shape", "4,4", "--init", "nothing"), "--init.*one of normal"),
        (
            ("--shape", "4,4", "--init", "orthogonal", "--name", "w", "--shard", ":2"),
            "--init.*drawn whole",
        ),
    ],
)
def test_bad_usage_leaves_no_file(tmp_path, capfd, arguments, message):
    assert main(["draw", "--out", str(tmp_path / "w.npy"), *arguments]) == 2
    error = " ".join(capfd.readouterr().err.split())
    assert error.startswith("initcore: Invalid value")
    assert re.search(message, error)
    assert not list(tmp_path.iterdir())


def test_the_file_must_be_numpys(tmp_path, capfd):
    assert main(["draw", "--out", str(tmp_path / "w.bin"), "--shape", "4,4"]) == 2
    assert "is not a name and .npy" in " ".join(capfd.readouterr().err.split())
    assert main(["draw", "--out", str(tmp_path / "no" / "w.npy"), "--shape", "4,4"]) == 2
    assert "does not exist" in " ".join(capfd.readouterr().err.split())
