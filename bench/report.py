# SPDX-License-Identifier: BSD-3-Clause
"""What was measured, for people and for programs: a table, JSON, a chart, a page of docs."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import initcore as ic
from initcore import _core

from . import peers
from .measure import OURS, Result

UNFAIR = "⚠ where a contender used more CPUs than its threads, or had less than one: run it again"


def machine() -> dict[str, Any]:
    """The processor, what was compiled and what took part."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"model name\s*: (.*)", cpuinfo.read_text())):
        model = found[1]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": model,
        "cpus": cpus,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "isa": ic.isa(),
        "isas": list(_core.available()),
        "versions": {"initcore": ic.__version__, **peers.versions()},
    }


def heading(found: dict[str, Any]) -> str:
    """The machine in a line."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"{found['processor']}, {found['cpus']} CPUs, {found['system']}, "
        f"Python {found['python']}, {found['isa']}; {versions}"
    )


HEADINGS = ("case", "work", "threads", OURS, "others", "target", "measured", "")


def rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """A row a target of a case, or one for a case without."""
    for result in results:
        case = result.case
        ours = result.shown(OURS) if OURS in result.timings else result.note
        others = [f"{label} {result.shown(label)}" for label in result.timings if label != OURS]
        others += [f"{label} –" for label in case.expected if label not in result.timings]
        first = (case.name, case.work, str(case.threads), ours, ", ".join(others))
        unfair = any(timing.remark(case.threads) for timing in result.timings.values())
        if not case.targets or not result.timings:
            yield (*first, "", "", "⚠" if unfair else "")
        for target in case.targets if result.timings else ():
            value = target.measure(result.timings)
            measured = "–" if value is None else target.show(value)
            judged = value is not None and target.limit is not None
            verdict = "" if not judged else "met" if target.is_met(value) else "missed"
            yield (*first, str(target), measured, f"{verdict} ⚠".strip() if unfair else verdict)
            first = ("", "", "", "", "")


def to_json(results: Sequence[Result], found: dict[str, Any], rounds: int) -> str:
    """Everything, a version first."""
    cases = [
        {
            "name": result.case.name,
            "work": result.case.work,
            "threads": result.case.threads,
            "unit": result.case.unit.name,
            "note": result.note,
            "seconds": {label: timing.seconds for label, timing in result.timings.items()},
            "cpus": {label: timing.cpus for label, timing in result.timings.items()},
            "targets": [
                {"target": str(target), "measured": target.measure(result.timings)}
                for target in result.case.targets
            ],
        }
        for result in results
    ]
    data = {"format": "initcore.bench", "version": 1, "machine": found, "rounds": rounds}
    return json.dumps({**data, "cases": cases}, indent=1, ensure_ascii=False) + "\n"


def markdown(table: Iterable[tuple[str, ...]]) -> str:
    """A table, its heading first, as a page of docs has it."""
    heading, *lines = (f"| {' | '.join(row)} |" for row in table)
    return "\n".join([heading, "|" + "---|" * (heading.count("|") - 1), *lines])


def write_page(path: Path, sections: Mapping[str, str]) -> None:
    """Puts each text between the page's two marks of that name; ValueError where it has none."""
    page = path.read_text(encoding="utf-8")
    for name, text in sections.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{path} has no {begin} … {end}")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    path.write_text(page, encoding="utf-8")


def chart(results: Sequence[Result], path: Path) -> None:
    """How many times as fast as each other contender, on a logarithmic axis."""
    from matplotlib.figure import Figure

    timed = [r for r in results if OURS in r.timings and len(r.timings) > 1]
    figure = Figure(figsize=(8, 1 + 0.35 * max(len(timed), 1)), layout="constrained")
    axes = figure.subplots()
    labels = sorted({label for r in timed for label in r.timings} - {OURS})
    for i, label in enumerate(labels):
        points = [
            (row, float(np.median(np.divide(r.timings[label].seconds, r.timings[OURS].seconds))))
            for row, r in enumerate(timed)
            if label in r.timings
        ]
        axes.plot([x for _, x in points], [y for y, _ in points], "os^Dvx*P"[i % 8], label=label)
    axes.set_xscale("log")
    axes.axvline(1, color="0.6", linewidth=1)
    axes.set_yticks(range(len(timed)), [r.case.name for r in timed])
    axes.invert_yaxis()
    axes.set_xlabel(f"time of the other / time of {OURS}")
    axes.legend(frameon=False)
    figure.savefig(path)
