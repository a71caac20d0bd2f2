# SPDX-License-Identifier: BSD-3-Clause
"""The one grammar of activations and initializers, in Python, on the command line and in JSON.

A specification is a name or a call with literal arguments, and optional scalings after it::

    relu    leaky_relu(0.2)    normal(std=0.02)    kaiming_normal(mode='fan_out').scaled(1.5)
"""

from __future__ import annotations

import ast
import math
import numbers
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Specification:
    """A parsed specification: a call, and the factors of the ``.scaled(f)`` that follow it."""

    name: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    factors: tuple[object, ...]


def parse(text: str) -> Specification:
    """Parse one specification; nothing is looked up or evaluated but literals.

    Raises ValueError for text outside the grammar.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        factors: list[object] = []
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr != "scaled" or len(node.args) != 1 or node.keywords:
                raise ValueError("only .scaled(f) may follow the call")
            factors.insert(0, _literal(node.args[0]))
            node = node.func.value
        args: tuple[object, ...] = ()
        kwargs: dict[str, object] = {}
        if isinstance(node, ast.Call):
            args = tuple(map(_literal, node.args))
            for keyword in node.keywords:
                if keyword.arg is None:
                    raise ValueError("** is not in the grammar")
                if keyword.arg in kwargs:
                    raise ValueError(f"{keyword.arg} is given twice")
                kwargs[keyword.arg] = _literal(keyword.value)
            node = node.func
        if not isinstance(node, ast.Name):
            raise ValueError("it does not start with a name")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"cannot read the specification {text[:200]!r} ({error}): it must be a name or a call "
            "with literal arguments, such as relu, leaky_relu(0.2) or "
            "kaiming_normal(mode='fan_out').scaled(1.5)"
        ) from error
    return Specification(node.id, args, kwargs, tuple(factors))


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is no literal: 1.6667 is one, 5/3 is not") from None


def split_top_level(text: str) -> list[str]:
    """Split a list at the commas outside brackets and quotes, and strip the items.

    ``"uniform(-1, 1), relu"`` gives ``["uniform(-1, 1)", "relu"]``. An empty item is a ValueError.
    """
    items = [""]
    closing: list[str] = []
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in _BRACKETS:
            closing.append(_BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            items.append("")
            continue
        items[-1] += character
    items = [item.strip() for item in items]
    if not all(items):
        raise ValueError(f"the comma-separated list {text!r} has an empty item")
    return items


def spell(value: object) -> str:
    """The literal that stands for an argument: numbers equal in value have one spelling."""
    if isinstance(value, list | tuple | range):
        return f"({', '.join(map(spell, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if math.isinf(number):  # a literal that overflows: the grammar has no names
            return "1e999" if number > 0.0 else "-1e999"
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return repr(str(value)) if isinstance(value, str) else repr(value)


def integer(argument: str, value: object) -> int:
    """The value as an int, NumPy's integers too; a TypeError for anything else, even a bool."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{argument} must be an integer, got {value!r}") from None


def finite_number(argument: str, value: object) -> float:
    """The value as a float; TypeError for what is no real number, ValueError for NaN and ±inf."""
    # A bool is a number to Python, and a slip as a slope, a gain or a standard deviation.
    # NumPy's own bool is not registered as a Real, its other scalars are.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a finite real number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{argument} must be a finite real number, got {value!r}")
    return number + 0.0  # a negative zero becomes zero: equal values are equal bits


def non_negative_number(argument: str, value: object) -> float:
    """As :func:`finite_number`; ValueError too for a value below zero."""
    number = finite_number(argument, value)
    if number < 0.0:
        raise ValueError(f"{argument} must not be negative, got {value!r}")
    return number


@contextmanager
def named(argument: str) -> Iterator[None]:
    """Errors of what is checked in here say of which argument, once."""
    try:
        yield
    except (ValueError, TypeError) as error:
        name, words = argument.partition("[")[0], str(error)
        rest = words.removeprefix(f"{name} must ")
        text = f"{argument}: {words}" if rest == words else f"{argument} must {rest}"
        raise type(error)(text) from error
