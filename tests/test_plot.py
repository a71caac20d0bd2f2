# SPDX-License-Identifier: BSD-3-Clause
"""The figure of a propagation."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

import initcore as ic

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from initcore import plot


def propagate(init="kaiming_normal", layers=6, **options):
    return ic.propagate([8] * (layers + 1), init=init, **{"trials": 5, "batch": 4} | options)


def lines(figure):
    """(measured, theory) of each result, in order."""
    drawn = [line for line in figure.axes[0].lines if line.get_xdata().size > 1]
    return list(zip(drawn[::2], drawn[1::2], strict=True))


def labels(figure):
    return figure.axes[0].texts


def test_a_result_its_error_and_its_theory():
    result = propagate()
    figure = plot.propagation(result)
    assert isinstance(figure, Figure)
    axes = figure.axes[0]
    ((measured, theory),) = lines(figure)
    assert axes.get_yscale() == "log"
    assert np.array_equal(measured.get_xdata(), np.arange(1, 7))
    assert np.array_equal(measured.get_ydata(), result.pre.second_moment)
    assert np.array_equal(theory.get_ydata(), result.theory.pre.second_moment)
    assert theory.is_dashed()
    assert not measured.is_dashed()
    (band,) = axes.collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == np.max(result.pre.second_moment + result.pre.se.second_moment)
    assert [text.get_text() for text in labels(figure)] == [result.label]


def test_a_backward_pass_is_dotted_beside_its_theory():
    result = propagate(backward=True)
    figure = plot.propagation(result)
    (measured, _), (gradient, theory) = lines(figure)
    assert np.array_equal(gradient.get_ydata(), result.grad_pre.second_moment)
    assert np.array_equal(theory.get_ydata(), result.theory.grad_pre.second_moment)
    assert gradient.get_linestyle() == ":"
    assert to_hex(gradient.get_color()) == to_hex(measured.get_color())
    low, high = figure.axes[0].get_ylim()
    assert low < min(gradient.get_ydata()) < max(measured.get_ydata()) < high
    assert "gradient by it" in [t.get_text() for t in figure.axes[0].get_legend().get_texts()]


def test_several_results_have_colours_and_labels_of_their_own():
    results = ic.compare_inits(["kaiming_normal", "kaiming_uniform", "zeros"], [8] * 7, trials=3)
    for figure in (plot.propagation(results), plot.propagation(list(results)), results.plot()):
        pairs = lines(figure)
        assert len(pairs) == 3
        assert len({to_hex(measured.get_color()) for measured, _ in pairs}) == 3
        texts = labels(figure)
        assert [text.get_text() for text in texts] == [result.label for result in results]
        for text, (measured, _) in zip(texts, pairs, strict=True):
            assert to_hex(text.get_color()) == to_hex(measured.get_color())


def test_labels_of_equal_curves_do_not_touch():
    figure = plot.propagation([propagate()] * 4)
    figure.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in labels(figure)), key=lambda box: box.y0)
    for below, above in pairwise(boxes):
        assert above.y0 > below.y1
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_overflow_and_zeros_leave_gaps_and_no_warning(tmp_path):
    results = [propagate("normal(std=1e6)", layers=20), propagate("zeros", layers=20)]
    figure = plot.propagation(results, tmp_path / "gaps.png")
    (overflowed, _), (zeros, _) = lines(figure)
    bad = results[0].pre.nonfinite_fraction > 0
    assert bad.any()
    assert np.array_equal(np.isnan(overflowed.get_ydata()), bad)
    assert np.isnan(zeros.get_ydata()).all()
    assert len(labels(figure)) == 2


@pytest.mark.parametrize(
    "options", [{"trials": 1}, {"layers": 1}, {"layers": 1, "trials": 1, "init": "zeros"}]
)
def test_one_trial_and_one_layer(tmp_path, options):
    plot.propagation(propagate(**options), tmp_path / "one.svg")


def test_a_chain_that_holds_is_not_made_to_look_ragged():
    low, high = plot.propagation(propagate(layers=2, trials=50)).axes[0].get_ylim()
    assert high / low > 99


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_path_writes_the_file(tmp_path, suffix):
    path = tmp_path / f"chain{suffix}"
    assert isinstance(propagate().plot(path), Figure)
    assert path.stat().st_size > 1000


def test_a_png_can_be_read_again(tmp_path):
    from matplotlib.image import imread

    path = tmp_path / "chain.png"
    plot.propagation(propagate(), path)
    height, width, _ = imread(path).shape
    assert height > 500
    assert width > height


@pytest.mark.parametrize("name", ["chain.gif", "chain", "chain.png.txt"])
def test_bad_suffixes_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"path must end in \.png, \.svg, \.pdf"):
        plot.propagation(propagate(), tmp_path / name)


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="results"):
        plot.propagation([])


def test_no_pyplot_and_no_global_state():
    code = "import sys, initcore.plot; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_initcore_does_not_import_matplotlib():
    code = "import sys, initcore; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_scalings_have_a_line_each(tmp_path):
    results = ic.compare_scalings(["sqrt_dk", "none", "constant(0)"], d_model=16, seq=5, trials=2)
    for figure in (results.plot(tmp_path / "a.svg"), results[0].plot()):
        left, right = figure.axes
        measured, theory = left.collections
        shown = [result.rows.logit_var**0.5 for result in results][: len(measured.get_offsets())]
        at = np.ma.filled(measured.get_offsets()[:, 0], np.nan)
        visible = [np.nan if value == 0 else value for value in shown]
        np.testing.assert_allclose(at, visible)
        predicted = np.ma.filled(theory.get_offsets()[:, 0], np.nan)
        np.testing.assert_allclose(predicted[0], results[0].theory.rows.logit_var ** 0.5)
        keys = np.ma.filled(right.collections[0].get_offsets()[:, 0], np.nan)
        np.testing.assert_allclose(keys[0], results[0].rows.keys_share)
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<?xml")
    with pytest.raises(ValueError, match="path must end in"):
        results.plot(tmp_path / "a.txt")
