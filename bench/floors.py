# SPDX-License-Identifier: BSD-3-Clause
"""What the machine can do: fma peak, memory bandwidth, and random words alone."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from initcore import _core

from .measure import GBYTES, GFLOPS, NS, Case, Contender, Settings, Unavailable, require

PEAK = "FMA peak"
_STEPS = 1 << 18


@functools.cache
def _library() -> ctypes.CDLL:
    """peak.c, compiled for this very machine."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        raise Unavailable(f"no C compiler ({command[0]}): the fma peak is not measured")
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "peak.so"
        source = Path(__file__).with_name("peak.c")
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        try:
            subprocess.run(
                [*command, *flags, str(source), "-o", str(target)],
                check=True,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"peak.c does not compile: {error.stderr.strip()}") from None
        library = ctypes.CDLL(str(target))
    library.fma_peak.restype = ctypes.c_double
    library.fma_peak.argtypes = [ctypes.c_size_t, ctypes.POINTER(ctypes.c_float)]
    return library


def peak() -> list[Contender]:
    """The fma peak of one core as a contender whose work is flops; empty without a compiler."""
    try:
        library = _library()
    except Unavailable:
        return []
    out = ctypes.c_float()
    flops = library.fma_peak(_STEPS, ctypes.byref(out))
    require(bool(np.isfinite(out.value)), f"the fma chains ended at {out.value}")
    return [Contender(PEAK, lambda: library.fma_peak(_STEPS, ctypes.byref(out)), flops)]


def at_peak(flops: float) -> Callable[[], object]:
    """A call that does so many flops at the peak of one core; Unavailable without a compiler."""
    library, out = _library(), ctypes.c_float()
    steps = round(flops / library.fma_peak(1, ctypes.byref(out)))
    return lambda: library.fma_peak(steps, ctypes.byref(out))


def cases(settings: Settings) -> Iterator[Case]:
    """The floors, each a case of one contender; all of one thread."""
    n = settings.sizes.elements

    def fma() -> list[Contender]:
        _library()  # says what is wrong
        return peak()

    def copy() -> list[Contender]:
        source, target = np.ones(n, np.float32), np.zeros(n, np.float32)
        np.copyto(target, source)
        require(bool(target.all()), "a copy did not copy")
        return [Contender("machine", lambda: np.copyto(target, source), 2.0 * target.nbytes)]

    def write() -> list[Contender]:
        target = np.zeros(n, np.float32)
        return [Contender("machine", lambda: target.fill(1.0), float(target.nbytes))]

    def philox() -> list[Contender]:
        # Blocks that stay in cache: the generator, not the memory.
        blocks = np.empty((4096, 4), np.uint32)
        kernels = _core.default()
        kernels.philox(0, 0, blocks)
        known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's answer for zeros
        require(blocks[0].tolist() == known, "Philox gives other words than Random123")
        return [Contender("machine", lambda: kernels.philox(0, 0, blocks), float(blocks.size))]

    yield Case("floor-fma", "fused multiply-add in registers, 1 core", GFLOPS, fma)
    yield Case("floor-copy", f"memory copy, {n} float32, bytes read + written", GBYTES, copy)
    yield Case("floor-write", f"memory write, {n} float32", GBYTES, write)
    yield Case("floor-philox", "Philox words through `_core.philox`, in cache", NS, philox)
