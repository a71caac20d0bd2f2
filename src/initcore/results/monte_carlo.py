# SPDX-License-Identifier: BSD-3-Clause
"""What results of Monte Carlo share: trials that merge exactly, and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from initcore.results.exact import ExactRecord
from initcore.results.records import (
    DAMAGED,
    Record,
    check_format,
    damaged,
    load,
    same_bits,
    save,
)
from initcore.specifications import integer
from initcore.streams import check_seed


@dataclass(frozen=True, eq=False)
class Saved(Record, ABC):
    """A record with a file format: its name and version, and how `_read` makes the record of it."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    @classmethod
    @abstractmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        """The record of the data; one of DAMAGED where that breaks the format."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``; ValueError where the data is of another format or damaged."""
        check_format(data, cls.FORMAT, cls.VERSION)
        try:
            return cls._read(data)
        except DAMAGED as error:
            raise damaged(cls.FORMAT, error) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, from which ``load`` gives back the same bits. All of it or nothing."""
        save(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of ``save``; ValueError where it is of another format, version or damaged."""
        return cls.from_dict(load(path))


@dataclass(frozen=True, eq=False)
class MonteCarlo(Saved):
    """Trials of one specification and seed: their exact sums, and the theory beside them."""

    THEORY: ClassVar[Any]  # the record that `theory` is

    spec: Mapping[str, Any]
    seed: int
    trials: tuple[range, ...]
    record: ExactRecord = field(repr=False)
    # Quadratures differ in the last bits between machines, so theory is no part of what is equal.
    theory: Any = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        entries = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.spec.items()
        }
        object.__setattr__(self, "spec", MappingProxyType(entries))

    @property
    def n_trials(self) -> int:
        """The number of trials."""
        return sum(map(len, self.trials))

    def __add__(self, other: object) -> Self:
        """Both's trials in one result, the same bits in whatever order results are added.

        ValueError, naming what differs, for another specification or seed, and for trials that both
        hold.
        """
        if not isinstance(other, type(self)):
            return NotImplemented
        mine, others = ({**r.spec, "seed": r.seed} for r in (self, other))
        pairs = {name: (mine.get(name), others.get(name)) for name in mine | others}
        differing = [name for name, pair in pairs.items() if not same_bits(*pair)]
        if differing:
            # An array is another one with another dtype or length, and would be a page: named last.
            arrays = {n for n in differing if any(isinstance(v, np.ndarray) for v in pairs[n])}
            name = min(differing, key=arrays.__contains__)
            values = "" if name in arrays else ": {!r} and {!r}".format(*pairs[name])
            raise ValueError(f"results with different {name} cannot be added{values}")
        trials = merge_trials(self.trials, other.trials)
        return type(self)(self.spec, self.seed, trials, self.record + other.record, self.theory)

    def _held(self, trial: int) -> int:
        """The number of a trial that this result holds; ValueError for another."""
        trial = integer("trial", trial)
        if not any(trial in held for held in self.trials):
            raise ValueError(f"trial must be one of {trials_text(self.trials)}; got {trial}")
        return trial

    @abstractmethod
    def _check(self) -> None:
        """One of DAMAGED for a specification that could not have been run, or another's sums."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        result = cls(
            spec=data["spec"],
            seed=check_seed(data["seed"]),
            trials=tuple(range(start, stop) for start, stop in data["trials"]),
            record=ExactRecord.from_dict(data["record"]),
            theory=cls.THEORY.from_dict(data["theory"]),
        )
        if not all(0 <= held.start < held.stop <= 2**64 for held in result.trials):
            raise ValueError(f"trials {data['trials']}")
        if merge_trials(result.trials) != result.trials:
            raise ValueError(f"trials {data['trials']} in no order")
        result._check()
        if result.record.n_trials != result.n_trials:
            raise ValueError(f"sums of {result.record.n_trials} trials, not {result.n_trials}")
        return result


def merge_trials(*groups: Sequence[range]) -> tuple[range, ...]:
    """The trials of all groups as sorted ranges that neither overlap nor touch.

    ValueError where two ranges have a trial in common.
    """
    merged: list[range] = []
    for held in sorted((r for group in groups for r in group), key=lambda r: r.start):
        if merged and held.start < merged[-1].stop:
            shared = range(held.start, min(held.stop, merged[-1].stop))
            both = trials_text([shared])
            raise ValueError(f"results with trials in common cannot be added: {both}")
        if merged and held.start == merged[-1].stop:
            merged[-1] = range(merged[-1].start, held.stop)
        else:
            merged.append(held)
    return tuple(merged)


def trials_text(trials: Sequence[range]) -> str:
    """Which they are, as a person reads it."""
    return ", ".join(
        f"trial {held.start}" if len(held) == 1 else f"trials {held.start} to {held.stop - 1}"
        for held in trials
    )
