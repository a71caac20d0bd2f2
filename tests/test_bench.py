# SPDX-License-Identifier: BSD-3-Clause
"""The bench: every case runs, checks what it times, and is reported. No time is looked at."""

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import (
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
from bench.measure import (
    MS,
    OURS,
    TINY,
    Case,
    Contender,
    Result,
    Settings,
    Timing,
    beside,
    faster,
    run,
    share,
    takes,
    within,
)

MODULES = (floors, sampling, chain, softmax, attention, gain, theory, growth, startup)
CASES = [case for module in MODULES for case in module.cases(Settings(sizes=TINY))]
ROOT = Path(__file__).parents[1]
PATHS = [path for path in [os.environ.get("PYTHONPATH")] if path]

# The peers start threads, and hook into forks, for good: a process of their own has them.
RUN_ALL = """
import json, sys, traceback
import test_bench as t
found = {}
for case in t.CASES:
    try:
        result = t.run(case, rounds=1)
        rows = list(t.report.rows([result]))
        found[case.name] = [rows, json.loads(t.report.to_json([result], t.report.machine(), 1))]
    except Exception:
        found[case.name] = traceback.format_exc()
json.dump(found, sys.stdout)
"""


def in_a_process(*arguments):
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *PATHS])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def outcomes():
    """By case: the rows of its table and its JSON, or what went wrong."""
    return json.loads(in_a_process("-c", RUN_ALL))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_case_runs_and_is_reported(case, outcomes):
    outcome = outcomes[case.name]
    assert not isinstance(outcome, str), outcome
    rows, data = outcome
    assert all(len(row) == len(report.HEADINGS) for row in rows)
    (found,) = data["cases"]
    assert found["name"] == case.name
    assert found["seconds"] or found["note"]


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_target_is_the_median_of_ratios_against_the_fastest():
    timings = {
        OURS: Timing((1.0, 2.0, 4.0), 1),
        "a": Timing((3.0, 8.0, 8.0), 1),
        "b": Timing((9.0, 9.0, 9.0), 1),
    }
    assert faster(2, "a", "b").measure(timings) == 3
    assert takes(2, "a").measure(timings) == pytest.approx(1 / 3)
    assert share(0.5, "b").measure(timings) == 4.5
    assert faster(2, "absent").measure(timings) is None
    assert faster(3, "a").is_met(3.0)
    assert not faster(3, "a").is_met(math.nan)


def test_a_limit_on_our_own_time():
    timings = {OURS: Timing((0.01, 0.03, 0.02), 1)}
    case = Case("name", "work", MS, list, (within(0.025),))
    ((*_, target, measured, verdict),) = report.rows([Result(case, timings)])
    assert (target, measured, verdict) == ("≤ 25 ms", "20 ms", "met")
    assert not within(0.015).is_met(within(0.015).measure(timings))


def test_a_ratio_without_a_limit_is_shown_and_not_judged():
    timings = {OURS: Timing((1.0,), 1), "a": Timing((0.5,), 1)}
    case = Case("name", "work", MS, list, (beside("a"),))
    ((*_, target, measured, verdict),) = report.rows([Result(case, timings)])
    assert (target, measured, verdict) == ("beside a", "0.5×", "")


def test_a_contender_that_had_no_cpu_is_marked():
    case = Case("nap", "sleeps", MS, lambda: [Contender(OURS, lambda: time.sleep(0.01))])
    result = run(case, rounds=2)
    assert result.timings[OURS].cpus < 0.5
    (row,) = report.rows([result])
    assert "starved" in row[3]
    assert row[-1] == "⚠"


def test_a_contender_that_took_cpus_it_was_not_given_is_marked():
    assert Timing((1.0,), 1.9).remark(threads=1) == "⚠ used 1.9 CPUs"
    assert Timing((1.0,), 1.9).remark(threads=2) == ""
    assert Timing((1.0,), 1.0).remark(threads=2) == ""
    case = dataclasses.replace(CASES[0], targets=(faster(2, "a"),))
    timings = {OURS: Timing((1.0,), 1.0), "a": Timing((3.0,), 1.9)}
    (row,) = report.rows([Result(case, timings)])
    assert row[-1] == "met ⚠"


def test_tables_go_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    text = "a\n<!-- x: begin -->\n{}\n<!-- x: end -->\nb\n<!-- y: begin -->\n{}\n<!-- y: end -->\n"
    page.write_text(text.format("old", "old"))
    report.write_page(page, {"y": "new y", "x": "new x"})
    assert page.read_text() == text.format("new x", "new y")
    with pytest.raises(ValueError, match="<!-- z: begin -->"):
        report.write_page(page, {"x": "newer", "z": "new"})
    assert page.read_text() == text.format("new x", "new y")


def test_the_page_has_the_marks():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name in ("bench", growth.NAME):
        assert page.count(f"<!-- {name}: begin -->") == page.count(f"<!-- {name}: end -->") == 1


def test_growth_is_told_by_ratios():
    cases = {case.name: case for case in growth.cases(Settings(sizes=TINY))}
    times = {"growth-width-64": 0.002, "growth-width-128": 0.008, "growth-trials-64": 0.004}
    results = [Result(cases[name], {OURS: Timing((t,), 1)}) for name, t in times.items()]
    assert list(growth.table(results)) == [
        ("axis", "×1", "×2"),
        ("width (64)", "2 ms, 1×", "8 ms, 4×"),
        ("trials (32)", "", "4 ms"),
    ]
    assert report.markdown(growth.table(results)).splitlines()[:2] == [
        "| axis | ×1 | ×2 |",
        "|---|---|---|",
    ]


def test_the_chart_is_drawn(tmp_path):
    timings = {OURS: Timing((1.0,), 1), "NumPy": Timing((2.0,), 1)}
    report.chart([Result(CASES[0], timings)], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_a_table():
    out = in_a_process("-m", "bench", "--only", "floor-philox", "--rounds", "1")
    assert "floor-philox" in out


def test_a_part_is_not_written_over_the_whole(capsys):
    command = importlib.import_module("bench.__main__")
    with pytest.raises(SystemExit):
        command.main(["--only", "gain", "--write", "page.md"])
    assert "--only" in capsys.readouterr().err
