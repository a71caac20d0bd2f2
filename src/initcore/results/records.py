# SPDX-License-Identifier: BSD-3-Clause
"""What all records share: equality by bits, strict JSON, files."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def frozen(values: ArrayLike, dtype: Any = np.float64) -> NDArray[Any]:
    """A read-only array in C order: the array itself if nobody can write to it, else a copy."""
    if isinstance(values, np.ndarray) and values.dtype == dtype and values.flags.c_contiguous:
        owner = values if values.base is None else values.base
        if isinstance(owner, np.ndarray) and not (owner.flags.writeable or values.flags.writeable):
            return values
    array = np.array(values, dtype=dtype, order="C")
    array.setflags(write=False)
    return array


def same_bits(a: object, b: object) -> bool:
    """Equality by bits, where every NaN equals every NaN."""
    if isinstance(a, Record):
        return a.equals(b)
    if isinstance(a, float | np.ndarray) and isinstance(b, float | np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if x.dtype.kind == "f":
            bits = f"i{x.dtype.itemsize}"
            x, y = (np.where(np.isnan(v), x.dtype.type(np.nan), v).view(bits) for v in (x, y))
        return bool(np.array_equal(x, y))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return False
    return bool(a == b)


def plain(value: object) -> Any:
    """A value as strict JSON has it: lists and dicts, non-finite numbers as strings."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, MappingProxyType):
        return {key: plain(item) for key, item in value.items()}
    return value


def check_numbers(values: Iterable[object], *strings: str) -> None:
    """ValueError for values of JSON that are neither finite numbers nor one of these strings.

    An array would take null for NaN, true for 1 and "1" for 1.
    """
    for value in values:
        if value in strings:
            continue
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise ValueError(f"{value!r} is no number")


@dataclass(frozen=True, eq=False)
class Record:
    """A frozen dataclass that compares by ``equals``, pickles, and knows its ``to_dict``."""

    def equals(self, other: object) -> bool:
        """True when ``other`` is of the same type and every field that counts has the same bits.

        All NaNs are equal; what is predicted does not count.
        """
        return type(self) is type(other) and all(
            same_bits(getattr(self, f.name), getattr(other, f.name))
            for f in fields(self)
            if f.compare
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as strict JSON has them: nested lists, non-finite numbers as strings."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor, because a plain unpickling would leave the arrays writable.
        values = (getattr(self, f.name) for f in fields(self))
        # A mapping proxy does not pickle; the constructor makes it again.
        return type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)


def check_format(data: Any, name: str, version: int) -> None:
    """ValueError unless the data of a file says that it is of this format and version."""
    found = (data.get("format"), data.get("version")) if isinstance(data, dict) else (None, None)
    if found != (name, version):
        raise ValueError(
            f"format {name!r}, version {version} is needed; got {found[0]!r}, {found[1]!r}"
        )


def save(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Write JSON beside the file, then put it in its place: a reader never sees half of it.

    A link is followed, a file keeps its mode, and a device or a pipe is written to.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False) + "\n"
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such directory to write in", os.fspath(path))
    draft = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if target.exists():
            draft.chmod(target.stat().st_mode & 0o7777)
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """The data of a file of ``save``; ValueError where it is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not a JSON file: {error}") from error


DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def damaged(name: str, error: object) -> ValueError:
    """What is raised for data that claims a format and breaks it."""
    return ValueError(f"damaged {name} data: {error!r}")
