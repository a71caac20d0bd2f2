# SPDX-License-Identifier: BSD-3-Clause
"""The bench: every case runs, checks what it times, and is reported. No time is looked at."""

import importlib
import json
import math

import pytest

from bench import attention, chain, floors, gain, growth, report, sampling, softmax, startup
from bench.measure import OURS, TINY, Result, Settings, Timing, faster, run, share, takes

SETTINGS = Settings(sizes=TINY)
CASES = [
    case
    for module in (floors, sampling, chain, softmax, attention, gain, growth, startup)
    for case in module.cases(SETTINGS)
]


@pytest.mark.filterwarnings("ignore")  # the peers have their own
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_case_runs_and_is_reported(case):
    result = run(case, rounds=1)
    assert result.timings or result.note
    assert all(len(row) == len(report.HEADINGS) for row in report.rows([result]))
    data = json.loads(report.to_json([result], report.machine(), 1))
    assert data["cases"][0]["name"] == case.name


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


def test_the_table_goes_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_page(page, "new")
    assert page.read_text() == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="bench: begin"):
        report.write_page(page, "new")


def test_the_chart_is_drawn(tmp_path):
    timings = {OURS: Timing((1.0,), 1), "NumPy": Timing((2.0,), 1)}
    report.chart([Result(CASES[0], timings)], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_a_table(capsys):
    command = importlib.import_module("bench.__main__")
    assert command.main(["--only", "floor-philox", "--rounds", "1"]) == 0
    assert "floor-philox" in capsys.readouterr().out
