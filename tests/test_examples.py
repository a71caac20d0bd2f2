# SPDX-License-Identifier: BSD-3-Clause
"""Examples run, at tiny sizes, draw their figures, and return the numbers that they draw."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import initcore as ic

pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, path, **tiny):
    numbers = importlib.import_module(f"examples.{name}").main(str(path), **tiny)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
    return numbers


def test_every_example_is_run_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested - {"every_example_is_run_here"}


def test_glorot_bengio_2010(tmp_path):
    """A gradient passes a layer's weights with n Var(W): 1/3, and 1 of the normalised rule."""
    results = run("glorot_bengio_2010", tmp_path / "figure.png", width=20, trials=60)
    assert list(results) == ["standard", "normalised"]
    for result, transport in zip(results.values(), (1 / 3, 1), strict=True):
        by_x, by_h = result.grad_post, result.grad_pre
        ratio = by_x.second_moment[:-1] / by_h.second_moment[1:]
        error = np.hypot(
            by_x.se.second_moment[:-1] / by_x.second_moment[:-1],
            by_h.se.second_moment[1:] / by_h.second_moment[1:],
        )
        # The slope of a layer knows of its weights, to a part in the width.
        assert np.all(np.abs(np.log(ratio / transport)) <= 5 * error + 2 / 20)


def test_he_2015(tmp_path):
    """Of the same random numbers, those of Xavier's rule are √2 smaller: half a layer, exactly."""
    results = run("he_2015", tmp_path / "figure.png", width=16, trials=3)
    assert list(results) == [22, 30]
    for n_layers, (kaiming, xavier) in results.items():
        ratio = xavier.pre.second_moment / kaiming.pre.second_moment
        np.testing.assert_allclose(ratio, 0.5 ** np.arange(1, n_layers + 1), rtol=1e-3)


def test_schoenholz_2017(tmp_path):
    """Depth scales within five standard errors, a tenth more for the width of 40."""
    w2s = (1.0, 2.5)
    scales = run("schoenholz_2017", tmp_path / "figure.png", width=40, trials=40, w2s=w2s)
    assert scales.shape == (2, 3, 2)  # by σ_w² and statistic, with errors
    points = [ic.theory.fixed_point("tanh", w2, 0.05) for w2 in w2s]
    known = [[abs(point.xi_c), abs(point.xi_c), point.xi_q] for point in points]
    found, errors = np.moveaxis(scales, -1, 0)
    assert np.all(np.abs(found - known) <= 5 * errors + np.multiply(0.1, known))
    assert np.all(errors < np.multiply(0.3, known))


def test_gram_widths(tmp_path):
    """The variance of the log energy of a width is that of its exact law."""
    (variance,) = run("gram_widths", tmp_path / "figure.png", widths=(16,), n_layers=3, work=16000)
    law = ic.theory.log_energy("relu", [16] * 4)
    assert abs(variance / law.var - 1) <= 5 * (2 / 1000) ** 0.5  # of 1000 networks, all but normal
