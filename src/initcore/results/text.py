# SPDX-License-Identifier: BSD-3-Clause
"""Numbers and tables as a person reads them, in plain text and in a notebook."""

from __future__ import annotations

import math


def chosen_layers(n_layers: int) -> list[int]:
    """The layers worth a row, from 1: all of a few; else 1, 2, 5, 10, 20, 50, … and the last."""
    if n_layers <= 8:
        return list(range(1, n_layers + 1))
    series = (step * 10**power for power in range(len(str(n_layers))) for step in (1, 2, 5))
    return sorted({layer for layer in series if layer < n_layers} | {n_layers})


def number(value: float, digits: int = 4) -> str:
    """A number as a person reads it: a few digits, an exponent only where it must be."""
    value = float(value)
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits - 1}e}"
    digits = max(digits, len(str(int(abs(value)))))  # no exponent for want of digits
    return f"{value:#.{digits}g}".rstrip(".")


def measured(value: float, se: float) -> str:
    """For a column: ``2.003 ± 0.012``, the digits the same in every row."""
    if not se > 0:
        return number(value)
    if 1e-3 <= abs(value) < 1e4 and 1e-6 <= se < 1e-3:  # of two numbers, one way to write them
        return f"{number(value)} ± {se:.{1 - math.floor(math.log10(se))}f}"
    return f"{number(value)} ± {number(se, 2)}"


def plus_minus(value: float, se: float) -> str:
    """For a sentence: the value to the digit where its error starts."""
    if not (math.isfinite(se) and se > 0 and 1e-3 <= abs(value) < 1e4):
        return measured(value, se)
    decimals = min(max(1 - math.floor(math.log10(se)), 0), 9)
    return f"{value:.{decimals}f} ± {se:.{decimals}f}"


def share(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"


def wrapped(text: str) -> str:
    """A paragraph in lines of at most 100 columns, the later ones indented."""
    from textwrap import fill  # few need it

    return fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def text_table(title: str, rows: list[list[str]], footer: str) -> str:
    """A plain table: the first column and numbers to the right, two spaces between columns."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, sizes)).rstrip() for row in rows]
    return "\n".join(part for part in (title, *lines, footer) if part)


def html_table(title: str, rows: list[list[str]], footer: str) -> str:
    """The same table for a notebook."""
    from html import escape  # its table of entities is large, and few need it

    head, *body = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in [("th", rows[0]), *(("td", row) for row in rows[1:])]
    )
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    paragraphs = [
        "<br>".join(map(escape, text.split("\n"))) if text else "" for text in (title, footer)
    ]
    before, after = (f"<p>{text}</p>" if text else "" for text in paragraphs)
    return before + table + after
