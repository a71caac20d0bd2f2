# SPDX-License-Identifier: BSD-3-Clause
"""Figures: what is drawn, not how it looks."""

import subprocess
import sys
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

import initcore as ic

pytest.importorskip("matplotlib")

from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from initcore import plot


def propagate(init="kaiming_normal", layers=6, **options):
    return ic.propagate([8] * (layers + 1), init=init, **{"trials": 5, "batch": 4} | options)


def panel(figure, word):
    """The one with the word on its vertical axis."""
    (found,) = (axes for axes in figure.axes if word in axes.get_ylabel())
    return found


def lines(axes):
    """(measured, theory) of each result, in order."""
    drawn = [line for line in axes.lines if line.get_xdata().size > 1]
    return list(zip(drawn[::2], drawn[1::2], strict=True))


def bars(axes):
    """Of the error bars: layer, low, high."""
    (segments,) = (c.get_segments() for c in axes.collections if isinstance(c, LineCollection))
    return [(low[0], low[1], high[1]) for low, high in segments]


def bands(axes):
    """Of each shaded band, widest first: low and high by layer."""
    found = []
    for shade in (c for c in axes.collections if not isinstance(c, LineCollection)):
        corners = shade.get_paths()[0].vertices
        edges = [corners[corners[:, 0] == x, 1] for x in np.unique(corners[:, 0])]
        found.append(np.array([[edge.min(), edge.max()] for edge in edges]).T)
    return found


def labels(figure):
    return figure.axes[0].texts


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("word", ["pre-activation", "gradient by it"])
def test_a_second_moment_its_errors_its_theory_and_its_networks(word):
    result = propagate(trials=40, backward=True)
    stats, predicted = {
        "pre-activation": (result.pre, result.theory.pre),
        "gradient by it": (result.grad_pre, result.theory.grad_pre),
    }[word]
    axes = panel(plot.propagation(result), word)
    ((measured, theory),) = lines(axes)
    assert axes.get_yscale() == "log"
    assert np.array_equal(measured.get_xdata(), np.arange(1, 7))
    assert np.array_equal(measured.get_ydata(), stats.second_moment)
    assert np.array_equal(theory.get_ydata(), predicted.second_moment)
    assert theory.is_dashed()
    assert not measured.is_dashed()
    for layer, low, high in bars(axes):
        mean, se = (s.second_moment[int(layer) - 1] for s in (stats, stats.se))
        assert (low, high) == (max(mean - se, 0.1 * mean), mean + se)
    energies = np.exp(stats.log_energy_quantiles)
    wide, narrow = bands(axes)
    assert np.array_equal(wide, energies[[0, 4]])
    assert np.array_equal(narrow, energies[[1, 3]])
    low, high = axes.get_ylim()
    assert low < energies.min() < energies.max() < high


def test_networks_of_given_inputs(rng):
    """Twice as large, and four times the energy: the bands and the table's median go with it."""
    x = 2 * rng.choice([-1.0, 1.0], size=(3, 8))
    result = propagate("normal(std=0.2)", x=x, batch=3, trials=30)
    assert result.input_second_moment == 4
    wide, _ = bands(panel(result.plot(), "pre-activation"))
    energies = 4 * np.exp(result.pre.log_energy_quantiles)
    assert np.array_equal(wide, energies[[0, 4]])
    heading, first = result.tables()[0][1][:2]
    assert first[heading.index("median")] == f"{energies[2, 0]:.2g}"


def test_the_residual_stream_is_drawn():
    """With a norm before it h holds whatever the stream that branches add to does."""
    options = {"norm": "rms", "residual": 0.5, "backward": True, "layers": 20}
    result = propagate(**options)
    for figure in (result.plot(), plot.propagation([result, propagate(**options)])):
        for word, side in (("stream x", "post"), ("gradient by it", "grad_post")):
            axes = panel(figure, word)
            stream, theory = (getattr(of, side).second_moment for of in (result, result.theory))
            assert np.array_equal(axes.lines[0].get_ydata(), stream)
            assert np.array_equal(axes.lines[1].get_ydata(), theory)
            low, high = axes.get_ylim()
            assert low < stream.min() < stream.max() < high


def test_the_words_of_a_portrait():
    result = propagate(backward=True)
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert figure.get_suptitle() == result.title
    figure = ic.propagate(list(range(20, 60)), trials=2).plot()
    figure.draw_without_rendering()
    assert figure.get_suptitle().count("\n") > 1
    assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1
    figure = result.plot()
    forward, backward = panel(figure, "pre-activation"), panel(figure, "gradient by it")
    assert forward.get_title("left").startswith(f"forward: {result.outcome}, ×")
    assert backward.get_title("left").startswith(f"backward: {result.grad_outcome}, ×")
    assert legend(forward) == [
        "mean, ± s.e.", "infinite width", "middle 50 % of networks", "middle 90 % of networks",
    ]  # fmt: skip
    assert len(propagate(batch=1).plot().axes) == 2  # no cosine of one input


def test_shares_and_the_cosine():
    result = propagate(trials=20)
    figure = result.plot()
    zeros, dead = panel(figure, "share").lines
    assert legend(panel(figure, "share")) == ["x = 0", "dead units"]
    assert np.array_equal(zeros.get_ydata(), result.post.zero_fraction)
    assert np.array_equal(dead.get_ydata(), result.post.dead_fraction)
    cosine, _ = panel(figure, "cosine").lines
    assert np.array_equal(cosine.get_ydata(), result.pre.cosine)
    tanh = propagate("normal(std=1)", activation="tanh", batch=1)
    figure = tanh.plot()
    (saturated,) = panel(figure, "share").lines
    assert np.array_equal(saturated.get_ydata(), tanh.pre.saturated_fraction)
    assert len(propagate(activation="linear", batch=1).plot().axes) == 1


@pytest.mark.parametrize("std", [1, 1.4, 1.41, 1.6, 3])
def test_ticks_of_shares_say_where_they_are(std):
    """Up to an eighth they are 2.5 % apart, and not 2 or 3 %."""
    result = ic.propagate([64] * 2, activation="tanh", init=ic.normal(std / 8), trials=2)
    axis = panel(result.plot(), "share").yaxis
    ticks = axis.get_ticklocs()
    labels = axis.get_major_formatter().format_ticks(ticks)
    assert [float(label.rstrip("%")) for label in labels] == pytest.approx(100 * ticks)


def test_several_results_have_colours_and_labels_of_their_own():
    results = ic.compare_inits(["kaiming_normal", "kaiming_uniform", "zeros"], [8] * 7, trials=3)
    for figure in (plot.propagation(results), plot.propagation(list(results)), results.plot()):
        (axes,) = figure.axes
        pairs = lines(axes)
        assert len(pairs) == 3
        assert not bands(axes)
        assert len({to_hex(measured.get_color()) for measured, _ in pairs}) == 3
        texts = labels(figure)
        assert [text.get_text() for text in texts] == [result.label for result in results]
        for text, (measured, _) in zip(texts, pairs, strict=True):
            assert to_hex(text.get_color()) == to_hex(measured.get_color())


def test_gradients_of_several_results_stand_below():
    inits = ["kaiming_normal", "xavier_normal"]
    results = ic.compare_inits(inits, [8] * 7, trials=3, backward=True)
    figure = results.plot()
    for word, side in (("pre-activation", "pre"), ("gradient by it", "grad_pre")):
        for result, (measured, theory) in zip(results, lines(panel(figure, word)), strict=True):
            assert np.array_equal(measured.get_ydata(), getattr(result, side).second_moment)
            predicted = getattr(result.theory, side).second_moment
            assert np.array_equal(theory.get_ydata(), predicted)
    above, below = (
        [to_hex(measured.get_color()) for measured, _ in lines(axes)] for axes in figure.axes
    )
    assert above == below


def test_labels_of_equal_curves_do_not_touch():
    figure = plot.propagation([propagate()] * 4)
    figure.draw_without_rendering()
    boxes = sorted((t.get_window_extent() for t in labels(figure)), key=lambda box: box.y0)
    for below, above in pairwise(boxes):
        assert above.y0 > below.y1
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_overflow_and_zeros_leave_gaps_and_no_warning():
    options = {"layers": 20, "backward": True}
    results = [propagate("normal(std=1e6)", **options), propagate("zeros", **options)]
    everywhere = propagate("normal(std=1e12)", x=np.full((4, 8), 1e30))
    assert (everywhere.pre.nonfinite_fraction > 0).all()
    for figure in (plot.propagation(results), *(r.plot() for r in (*results, everywhere))):
        figure.draw_without_rendering()
    figure = plot.propagation(results)
    (overflowed, _), (zeros, _) = lines(figure.axes[0])
    bad = results[0].pre.nonfinite_fraction > 0
    assert bad.any()
    assert np.array_equal(np.isnan(overflowed.get_ydata()), bad)
    assert np.isnan(zeros.get_ydata()).all()
    assert len(labels(figure)) == 2
    figure = results[0].plot()
    (crossed,) = (m for m in panel(figure, "pre-activation").lines if m.get_marker() == "x")
    assert crossed.get_xdata() == np.flatnonzero(~bad)[-1] + 1
    shares = [line.get_ydata() for line in panel(figure, "share").lines]
    assert all(np.isnan(values[bad]).all() for values in shares)


def test_the_networks_of_an_overflow_are_not_the_rest():
    """Of trials that overflow there are no quantiles, so that those of the others would mislead."""
    result = ic.propagate([8] * 61, activation="linear", init="normal(std=8)", trials=20, batch=4)
    some = result.pre.overflow_trials > 0
    assert 0 < result.pre.overflow_trials[some][0] < 20
    (wide, narrow) = bands(panel(result.plot(), "pre-activation"))
    for band in (wide, narrow):
        assert band.shape[1] == np.count_nonzero(~some)


@pytest.mark.parametrize(
    "options", [{"trials": 1}, {"layers": 1}, {"layers": 1, "trials": 1, "init": "zeros"}]
)
def test_one_trial_and_one_layer(tmp_path, options):
    plot.propagation(propagate(**options), tmp_path / "one.svg")


def test_a_chain_that_holds_is_not_made_to_look_ragged():
    """Four times up and down of what is flat, with numbers on both axes."""
    figure = ic.propagate([256] * 6, residual=0, trials=1).plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    assert high / low == pytest.approx(16)
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(shown) >= 3
    assert all(label.get_text() for label in axes.get_yticklabels())
    assert axes.xaxis.get_tick_params()["labelbottom"]


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


def dots(axes, tick=False):
    """The points of a panel of lines, or the ticks of the theory, along its horizontal axis."""
    found = [c for c in axes.collections if isinstance(c, PathCollection)]
    return np.ma.filled(found[tick].get_offsets()[:, 0], np.nan)


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_scalings_have_a_line_each(tmp_path):
    results = ic.compare_scalings(["sqrt_dk", "none", "constant(0)"], d_model=16, seq=5, trials=2)
    figure = results.plot(tmp_path / "a.svg")
    left, right = figure.axes
    assert names(left) == [result.label for result in results]
    for tick, side in [(False, "rows"), (True, "theory")]:
        rows = [getattr(result, side) for result in results]
        expected = [getattr(one, "rows", one).logit_var ** 0.5 for one in rows]
        visible = [np.nan if value == 0 else value for value in expected]
        np.testing.assert_allclose(dots(left, tick), visible)
    np.testing.assert_allclose(dots(right), [result.rows.keys_share for result in results])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean", "theory"]
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<?xml")
    with pytest.raises(ValueError, match="path must end in"):
        results.plot(tmp_path / "a.txt")


@pytest.mark.parametrize("scaling", ["sqrt_dk", "qk_norm"])
def test_one_scaling_shows_every_link_and_its_gradient(scaling):
    options = {"d_model": 16, "seq": 5, "trials": 4, "scaling": scaling}
    result = ic.propagate_attention(**options, backward=True)
    forward, backward, rows = result.plot().axes
    links = [f.name for f in fields(result.forward) if f.name != "se"]
    if scaling == "sqrt_dk":
        links = [name for name in links if not name.endswith("_normalized")]
    assert names(forward) == names(backward) == [name.replace("_", " ") for name in links]
    for axes, side in [(forward, result.forward), (backward, result.backward)]:
        mean, se = (
            np.array([getattr(one, name) for name in links]) for one in (side.std, side.std.se)
        )
        np.testing.assert_allclose(dots(axes), mean)
        (bars,) = (c for c in axes.collections if isinstance(c, LineCollection))
        ends = np.array([path.vertices[:, 0] for path in bars.get_paths()])
        known = np.isfinite(se)
        np.testing.assert_allclose(ends[:, 1] - ends.mean(1), se[known], atol=1e-12)
    for axes, side in [(forward, result.theory.forward), (backward, result.theory.backward)]:
        predicted = [getattr(side.std, name) for name in links]
        np.testing.assert_allclose(dots(axes, tick=True), predicted)
    means = ["max_prob", "sum_sq", "jacobian_norm", "entropy_share", "keys_share"]
    shown = [getattr(result.rows, name) for name in [*means, "saturated_fraction"]]
    np.testing.assert_allclose(dots(rows), shown)
    np.testing.assert_allclose(dots(rows, tick=True)[1], result.theory.rows.sum_sq)


@pytest.mark.parametrize("options", [{"scaling": "constant(0)"}, {"x_std": 0.0}, {"seq": 1}])
def test_one_trial_of_attention_leaves_gaps_and_no_warning(tmp_path, options):
    options = {"d_model": 16, "seq": 5, "backward": True} | options
    result = ic.propagate_attention(**options, trials=1)
    figure = result.plot(tmp_path / "a.png")
    assert [len(axes.get_yticks()) for axes in figure.axes] == [9, 9, 6]
    assert len(ic.propagate_attention(**options | {"backward": False}, trials=1).plot().axes) == 2
