# SPDX-License-Identifier: BSD-3-Clause
"""The draws' randomness, tested longer than a test suite may: the tables of docs/randomness.md.

    python -m tools.randomness                    10^9 draws of every law and dtype
    python -m tools.randomness --draws 1e10 --only "normal float32"
    python -m tools.randomness --battery Crush    TestU01 on the words of Philox
    python -m tools.randomness --battery SmallCrush --only seeds

Exit code 1 if a check failed. OPENBLAS_NUM_THREADS=1 keeps NumPy's products from waiting for busy
CPUs. TestU01 is Debian's libtestu01-0-dev (non-free); CPATH, LIBRARY_PATH and LD_LIBRARY_PATH find
a copy elsewhere.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from initcore import _core

from .draw_statistics import (
    BLOCK,
    DTYPES,
    FIRSTS,
    LAWS,
    LIMIT,
    TAILS,
    TILE,
    Check,
    Law,
    first_draws,
    measure,
    stream_draws,
)

try:
    from rich.progress import track
except ImportError:

    def track(sequence: Iterable[Any], **_: Any) -> Iterable[Any]:  # type: ignore[misc]
        return sequence


# --- laws -----------------------------------------------------------------------------------------

HEADER = """\
| law | dtype | cells | bits | moments | beyond 4, 5, 6 σ (expected) | positions | pairs | \
correlations | seeds | streams |
|---|---|---|---|---|---|---|---|---|---|---|"""


def worst(checks: Iterable[Check], test: str = "") -> str:
    """The score of the largest size."""
    scores = [check.score for check in checks if check.test == test or not test]
    return f"{max(scores, key=abs):+.1f}" if scores else "–"


def row(law: Law, dtype: str, stream: list[Check], seeds: list[Check], streams: list[Check]) -> str:
    tails = dict.fromkeys(TAILS, "–")
    for check in stream:  # the last one of each is that of both sides, if there are two
        if check.test == "tails":
            expected = f"{check.expected:.{2 * (check.expected < 100)}f}"
            tails[abs(float(check.what.split()[-1]))] = f"{check.observed:.0f} ({expected})"
    uneven = "".join(f"{c.observed:.0e} rms" for c in stream if c.test == "unevenness")
    columns = [
        law.name,
        dtype,
        worst(stream, "law"),
        uneven or worst(stream, "digits"),
        worst(stream, "moments"),
        ", ".join(tails.values()),
        worst(stream, "positions"),
        worst(stream, "pairs"),
        worst(stream, "correlation"),
        worst(seeds),
        worst(streams),
    ]
    return "| " + " | ".join(columns) + " |"


def laws(draws: int, only: str) -> bool:
    """Whether all checks passed."""
    jobs = [(law, dtype) for law in LAWS for dtype in DTYPES if only in f"{law.name} {dtype}"]
    print(HEADER, flush=True)
    failed, count = [], 0
    for law, dtype in jobs:
        found = []
        for name, blocks, n in (
            ("stream", stream_draws(law, dtype, draws), draws),
            ("seeds", first_draws(law, dtype, "seeds"), FIRSTS * TILE),
            ("streams", first_draws(law, dtype, "streams"), FIRSTS * TILE),
        ):
            bar = track(
                blocks, total=-(-n // BLOCK), description=f"{law.name} {dtype}, {name}",
                transient=True, disable=not sys.stdout.isatty(),
            )  # fmt: skip
            checks = measure(law, dtype, iter(bar))
            count += len(checks)
            failed += [f"{law.name} {dtype}, {name}: {c}" for c in checks if not c.passed]
            found.append(checks)
        print(row(law, dtype, *found), flush=True)
    print(f"\n{count} checks, {len(failed)} beyond {LIMIT:g}", *failed, sep="\n")
    return not failed


# --- words ----------------------------------------------------------------------------------------

SEED, STREAM, NEIGHBOURS = 20240229, 1, 16
WORDS = ("words", "streams", "seeds")


def words(of: str) -> Iterator[NDArray[np.uint32]]:
    """The words of a stream in the order in which draws use them; or those of 16 neighbouring
    streams or seeds in turn."""
    neighbours = 1 if of == "words" else NEIGHBOURS
    blocks = np.empty((neighbours, (1 << 16) // neighbours, 4), np.uint32)
    first = 0
    while True:
        for i, out in enumerate(blocks):
            stream, seed = STREAM + i * (of == "streams"), SEED + i * (of == "seeds")
            _core.default().philox(first | stream << 64, seed, out)
        first += blocks.shape[1]
        tiles = blocks.reshape(neighbours, -1, 16, 4)
        yield np.ascontiguousarray(tiles.transpose(1, 3, 2, 0)).reshape(-1)


def pour(chunks: Iterator[NDArray[np.uint32]], pipe: IO[bytes]) -> None:
    """Until the reader has had enough."""
    try:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while view:
                view = view[pipe.write(view) :]
        pipe.close()
    except BrokenPipeError:
        pass


def battery(name: str, only: str) -> bool | None:
    """Whether all p-values were possible; None without TestU01."""
    source = Path(__file__).with_name("testu01.c")
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "testu01")
        libraries = ["-ltestu01", "-ltestu01probdist", "-ltestu01mylib", "-lm"]
        built = subprocess.run(
            [os.environ.get("CC", "cc"), "-O2", "-o", program, source, *libraries],
            capture_output=True,
            text=True,
        )
        if built.returncode:
            print("not run: TestU01 is not here (Debian: libtestu01-0-dev, non-free)")
            print(built.stderr.partition("\n")[0])
            return None
        passed = True
        for of in WORDS:
            if only in of:
                print(f"{name}, {of}", flush=True)
                with subprocess.Popen([program, name], stdin=subprocess.PIPE, bufsize=0) as process:
                    assert process.stdin is not None
                    pour(words(of), process.stdin)
                passed &= process.returncode == 0
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.randomness", description="Long tests of the draws' randomness."
    )
    parser.add_argument("--draws", type=float, default=1e9, help="of each law and dtype")
    parser.add_argument("--only", default="", help="the jobs whose name contains this")
    parser.add_argument("--battery", choices=("SmallCrush", "Crush", "BigCrush"))
    arguments = parser.parse_args()
    names = WORDS if arguments.battery else [f"{law.name} {d}" for law in LAWS for d in DTYPES]
    if not any(arguments.only in name for name in names):
        parser.error(f"--only {arguments.only!r} is in none of {', '.join(names)}")
    if arguments.battery:
        passed = battery(arguments.battery, arguments.only)
    else:
        passed = laws(int(arguments.draws), arguments.only)
    sys.exit(2 if passed is None else not passed)


if __name__ == "__main__":
    main()
