# SPDX-License-Identifier: BSD-3-Clause
"""Examples run, at tiny sizes, and draw their figures."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = {
    "glorot_bengio_2010": {"width": 20, "trials": 3},
    "he_2015": {"width": 16, "trials": 3},
    "schoenholz_2017": {"width": 20, "trials": 8, "w2s": (1.0, 2.0)},
    "gram_widths": {"widths": (8,), "n_layers": 3, "work": 10},
}


def test_every_example_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_it_draws_its_figure(tmp_path, name):
    path = tmp_path / "figure.png"
    numbers = importlib.import_module(f"examples.{name}").main(str(path), **TINY[name])
    assert len(numbers) > 0
    assert path.stat().st_size > 10_000
