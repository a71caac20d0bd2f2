# SPDX-License-Identifier: BSD-3-Clause
"""The arguments that experiments have in common, checked."""

from __future__ import annotations

import operator
from concurrent.futures import Executor

import numpy as np

from initcore.experiments.engine import Progress
from initcore.specifications import finite_number


def refused(argument: str, value: object, accepted: str, is_value: bool = False) -> Exception:
    """The error of an argument: a ValueError if only its value is at fault, else a TypeError."""
    return (ValueError if is_value else TypeError)(f"{argument} must be {accepted}; got {value!r}")


def positive(argument: str, value: object, below: int = 2**32) -> int:
    """A positive integer as an int; TypeError or ValueError for others."""
    accepted = "a positive integer"
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        integer = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refused(argument, value, accepted) from None
    if integer >= below:
        accepted += f" below 2**{below.bit_length() - 1}"
    if not 1 <= integer < below:
        raise refused(argument, value, accepted, is_value=True)
    return integer


def number(argument: str, value: object, accepted: str) -> float:
    """A finite number as a float; TypeError or ValueError, saying what is accepted, for others."""
    try:
        return finite_number(argument, value)
    except (TypeError, ValueError) as error:
        is_value = isinstance(error, ValueError)
        raise refused(argument, value, accepted, is_value) from None


def flag(argument: str, value: object) -> bool:
    """A bool; TypeError for others."""
    if not isinstance(value, bool | np.bool_):
        raise refused(argument, value, "True or False")
    return bool(value)


def trial_range(trials: int | range) -> range:
    """The trials from 0 for a number of them, or a range with step 1 as it is."""
    if not isinstance(trials, range):
        return range(positive("trials", trials, 2**63))
    if trials.step != 1 or trials.start < 0 or trials.stop >= 2**63 or not trials:
        accepted = "a range of one or more trials with step 1, from 0 up to below 2**63"
        raise refused("trials", trials, accepted, is_value=True)
    return trials


def progress_part(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """The progress of one of several equal parts, as progress of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, parts * total)


def check_running(executor: Executor | None, progress: Progress | None) -> None:
    """TypeError for what can neither run trials nor be told of them."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise refused("executor", executor, "a concurrent.futures.Executor or None")
    if progress is not None and not callable(progress):
        raise refused("progress", progress, "a function (done, total) or None")
