# SPDX-License-Identifier: BSD-3-Clause
"""`python -m bench`: runs the cases, prints the table; `--help` has the rest."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import peers

ROUNDS, QUICK_ROUNDS = 21, 5


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: a positive integer is accepted")
    return number


def main(arguments: list[str] | None = None) -> int:
    """Times the product beside its peers and the machine's floors; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="cases whose name begins so")
    parser.add_argument("--threads", type=_positive, default=1)
    parser.add_argument("--rounds", type=_positive, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    options = parser.parse_args(arguments)
    if options.write and options.only:
        parser.error("--write needs every case: --only is not accepted beside it")

    peers.limit_threads(options.threads)  # before NumPy is imported
    from rich.console import Console
    from rich.table import Table

    from . import (
        attention,
        chain,
        floors,
        gain,
        growth,
        report,
        sampling,
        softmax,
        startup,
        theory,
    )
    from .measure import Settings, run

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    found = report.machine()
    console.print(report.heading(found))
    for warning in peers.warnings():
        console.print(f"warning: {warning}", style="yellow")
    for name, how in peers.missing().items():
        console.print(f"{name} is not installed: {how}")

    settings = Settings(threads=options.threads)
    modules = [floors, sampling, chain, softmax, attention, gain, theory, startup, growth]
    rounds = min(options.rounds, QUICK_ROUNDS) if options.quick else options.rounds
    cases = [
        case
        for module in modules
        for case in module.cases(settings)
        if case.name.startswith(options.only or "")
    ]
    if not cases:
        parser.error(f"--only {options.only}: no case has a name that begins so")
    results = []
    for case in cases:
        if sys.stderr.isatty():
            print(f"\r{case.name}\033[K", end="", file=sys.stderr, flush=True)
        results.append(run(case, rounds))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    compared = [r for r in results if not r.case.name.startswith(growth.NAME)]
    rows = list(report.rows(compared))
    tables = {"bench": [report.HEADINGS, *rows], growth.NAME: list(growth.table(results))}
    for heading, *lines in tables.values():
        if lines:
            table = Table(*heading, box=None, pad_edge=False)
            for line in lines:
                table.add_row(*line)
            console.print(table)
    if any(timing.remark(r.case.threads) for r in results for timing in r.timings.values()):
        console.print(f"warning: {report.UNFAIR}", style="yellow")
    if options.json:
        options.json.write_text(report.to_json(results, found, rounds), encoding="utf-8")
    if options.chart:
        report.chart(results, options.chart)
    if options.write:
        captions = {
            "bench": f"{report.heading(found)}. Medians of {rounds} interleaved rounds.",
            growth.NAME: f"{growth.CAPTION}.",
        }
        sections = {n: f"{captions[n]}\n\n{report.markdown(t)}" for n, t in tables.items()}
        report.write_page(options.write, sections)
    return int(any(row[-1].startswith("missed") for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
