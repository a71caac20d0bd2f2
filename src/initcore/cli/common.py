# SPDX-License-Identifier: BSD-3-Clause
"""What the commands share: options, consoles, progress, output files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from initcore.streams import check_seed, resolve_threads


class Dtype(StrEnum):
    """The dtypes a chain computes in."""

    float32 = "float32"
    float64 = "float64"


class Method(StrEnum):
    """How the trials of a chain are drawn."""

    dense = "dense"
    gram = "gram"


class Norm(StrEnum):
    """The norms of a layer's input."""

    rms = "rms"
    layer = "layer"


JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write everything measured to this file."),
]
Seed = Annotated[int, typer.Option(help="An integer from 0 to 2^64 - 1.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads to use; they never change a result.", show_default="every CPU available"
    ),
]


@contextmanager
def option(name: str) -> Iterator[None]:
    """Turn what the library says about a value into a usage error that names the option."""
    try:
        yield
    except (ValueError, TypeError, IndexError, OSError, ModuleNotFoundError) as error:
        raise typer.BadParameter(str(error), param_hint=f"'{name}'") from error


def checked_seed(seed: int) -> int:
    """``--seed``, checked."""
    with option("--seed"):
        return check_seed(seed)


def checked_threads(threads: int | None) -> int:
    """``--threads``, checked; the number of threads to use."""
    with option("--threads"):
        return resolve_threads(threads)


def check_output(name: str, path: Path | None) -> None:
    """Find out before a run, not after it, that the file of an option cannot be written."""
    if path is None:
        return
    with option(name):
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a directory; a file name is needed")
        if not path.parent.is_dir():
            raise ValueError(f"the directory {str(path.parent)!r} does not exist")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{str(path)!r} cannot be written: permission denied")


class Results(Protocol):
    """A comparison, which a file or a figure may be asked of."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...
    def save(self, path: Path) -> None: ...
    def plot(self, path: Path) -> object: ...


def check_results_files(json_file: Path | None, plot: Path | None) -> None:
    """Find out before a run whether ``--json`` and ``--plot`` can be written."""
    check_output("--json", json_file)
    check_output("--plot", plot)
    if plot is not None:
        with option("--plot"):
            from initcore.plot import check_path

            check_path(plot)


def write_results_files(results: Results, json_file: Path | None, plot: Path | None) -> None:
    """What ``--json`` and ``--plot`` ask for. A comparison of one is a plain result in the file."""
    if json_file is not None:
        with option("--json"):
            (results if len(results) > 1 else results[0]).save(json_file)
    if plot is not None:
        with option("--plot"):
            results.plot(plot)


def console() -> Console:
    """Standard output; at least 100 columns wide where there is no terminal to fit."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = max(out.width, 100)
    return out


@contextmanager
def progress_bar(words: str, *, hidden: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, ``report(done, total)``; None where nobody would see it."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn(words), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
