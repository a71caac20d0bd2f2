# SPDX-License-Identifier: BSD-3-Clause
"""``initcore draw``: a tensor into a file."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import typer

from initcore.cli.common import (
    Seed,
    Threads,
    check_output,
    checked_seed,
    checked_threads,
    console,
    option,
    progress_bar,
)
from initcore.dtypes import DTYPES, find_dtype
from initcore.initializers import initializer
from initcore.streams import Shard, blocks, stream_id
from initcore.structures import Whole

# Two buffers of this size are all that a draw needs, whatever the size of the file.
_BUFFER_BYTES = 1 << 24


def draw(
    out: Annotated[
        Path,
        typer.Option(metavar="FILE.npy", help="Write the tensor to this file, NumPy's format."),
    ],
    shape: Annotated[str, typer.Option(metavar="N,...", help="The sizes of the tensor.")],
    init: Annotated[
        str, typer.Option(metavar="SPEC", help="As in Python: \"kaiming_normal(mode='fan_out')\".")
    ] = "kaiming_normal",
    seed: Seed = 0,
    name: Annotated[
        str | None,
        typer.Option(
            help="What the tensor is called: tensors of one seed and one name are equal.",
            show_default="the file's name without .npy",
        ),
    ] = None,
    trial: Annotated[int, typer.Option(help="The number of an independent repetition.")] = 0,
    dtype: Annotated[str, typer.Option(help=f"{', '.join(DTYPES)}.")] = "float32",
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="START:STOP:STEP,...",
            help='Draw this piece of the tensor only, such as "0:1024,:".',
        ),
    ] = None,
    threads: Threads = None,
) -> None:
    """Draw a tensor into a file: the same bits on every machine, for every number of threads.

    A file grows under a hidden name, ending in .part, beside the one that it replaces when it is
    whole. Memory stays bounded; but orthogonal, delta_orthogonal and sparse can only be drawn in
    one piece, and the last bits of the first two may differ between machines.
    NumPy stores bfloat16 as two bytes: numpy.load(FILE).view(ml_dtypes.bfloat16).
    """
    with option("--out"):
        if out.suffix != ".npy":
            raise ValueError(f"{str(out)!r} is not a name and .npy")
    check_output("--out", out)
    with option("--init"):
        chosen = initializer(init)
    with option("--shape"):
        sizes = tuple(_integer(size) for size in shape.split(","))
        chosen.std(sizes)
    with option("--shard"):
        if shard is not None and name is None:
            raise ValueError("a shard needs the --name of its tensor, the same for all shards")
        slices = None if shard is None else tuple(map(_slice, shard.split(",")))
        piece = Shard.of(sizes, slices)
    with option("--dtype"):
        numpy_dtype = find_dtype(dtype).numpy
    name = out.stem if name is None else name
    with option("--name"):
        stream_id(name)
    with option("--trial"):
        stream_id(name, trial)
    keywords: dict[str, Any] = {
        "seed": checked_seed(seed),
        "name": name,
        "trial": trial,
        "dtype": numpy_dtype,
        "threads": checked_threads(threads),
    }
    drawn_whole = isinstance(chosen.rule, Whole)
    with option("--init"):
        if not drawn_whole:  # nothing of it: what cannot be drawn says so before there is a file
            chosen(sizes, shard=(slice(0),) * len(sizes), **keywords)
        elif slices is not None:
            chosen(sizes, shard=slices, **keywords)

    with option("--out"):
        needed = math.prod(piece.sizes) * numpy_dtype.itemsize
        free = shutil.disk_usage(out.parent).free
        if needed > free:
            raise OSError(f"{needed:,} bytes are needed in {str(out.parent)!r}, {free:,} are free")
    with _whole_file(out) as file, progress_bar("drawing", hidden=False) as report:
        header = {"descr": np.lib.format.dtype_to_descr(numpy_dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": piece.sizes})
        if drawn_whole:
            file.write(chosen(sizes, **keywords).reshape(-1).view(np.uint8).data)
        else:
            _stream(partial(chosen, sizes, **keywords), piece, numpy_dtype, file, report)
    what = "×".join(map(str, piece.sizes))
    of = "" if slices is None else f" of {'×'.join(map(str, sizes))}"
    console().print(f"{out}: {what}{of}, {dtype}, {chosen}, seed {seed}, name {name!r}")


def _slice(text: str) -> slice:
    bounds = text.split(":")
    if not 2 <= len(bounds) <= 3:
        raise ValueError(f"{text!r} is not START:STOP or START:STOP:STEP; each may be left out")
    return slice(*(_integer(bound) if bound.strip() else None for bound in bounds))


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an integer") from None


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers send, leaves as little behind as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that bears the name only when it is whole: until then it has another, in the same
    directory, and if the writing fails it goes."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with _terminated_as_interrupted(), part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a name must not be had by what a crash could still undo
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _stream(
    draw_piece: Callable[..., object],
    piece: Shard,
    dtype: np.dtype[Any],
    file: IO[bytes],
    report: Callable[[int, int], None] | None,
) -> None:
    """Draw into one of two buffers while the other is written."""
    limit = _BUFFER_BYTES // dtype.itemsize
    buffers = np.empty((2, limit), dtype)
    total, done = math.prod(piece.sizes), 0
    with ThreadPoolExecutor(1) as writer:
        written: Future[int] | None = None
        for number, (_, size, index) in enumerate(blocks(piece.sizes, limit)):
            buffer = buffers[number % 2][:size]
            part = piece.part(index)
            draw_piece(shard=part.slices, out=buffer.reshape(part.sizes))
            if written is not None:
                written.result()
            written = writer.submit(file.write, buffer.view(np.uint8).data)
            done += size
            if report is not None:
                report(done, total)
        if written is not None:
            written.result()
