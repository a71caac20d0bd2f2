# SPDX-License-Identifier: BSD-3-Clause
"""What a verdict says would hold, run: chains with the advised values hold."""

import math
import re

import numpy as np
import pytest

import initcore as ic

NUMBER = r"([0-9.e+-]*[0-9])"


def sentences(result):
    """The verdict's forward half and its gradient's."""
    forward, backward = result.verdict.split("; gradient ")
    return forward, backward


def found(pattern, words):
    """The numbers of a sentence, which has them."""
    match = re.search(pattern.replace("#", NUMBER), words)
    assert match, words
    return [float(number) for number in match.groups()]


def gaussian(function, mean=0.0, variance=1.0):
    """E f(h) over h ~ N(mean, variance), by NumPy's Gauss-Legendre nodes on either side of 0."""
    std = math.sqrt(variance)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    kink, total = -mean / std, 0.0
    for left, right in ((-12, kink), (kink, 12)):
        z = left + (right - left) * (nodes + 1) / 2
        density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        values = np.array([function(mean + std * node) for node in z])
        total += (right - left) / 2 * float(weights @ (density * values))
    return total


def inputs(second_moment, n, rows=8):
    """Inputs of exactly that second moment a row."""
    x = np.random.default_rng(0).normal(size=(rows, n))
    return x * np.sqrt(second_moment / np.mean(x**2, axis=1, keepdims=True))


def gained(value, mode="fan_in"):
    return ic.variance_scaling(value**2, mode, "normal")


def holds(values, errors, at, rel):
    """At every layer, within five standard errors and what finite widths are allowed."""
    assert np.all(np.abs(values - at) <= 5 * errors + rel * at), (values, errors)


class TestBiases:
    """σ_w² = (q − Var b)/E φ² holds E[h²] = q, 1/E φ′² the gradient, the edge of chaos both."""

    CHAIN = {"widths": [200] * 13, "batch": 8, "trials": 60, "backward": True}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("activation", "init", "bias", "mean", "variance"),
        [
            ("relu", "kaiming_normal().scaled(1.2)", "normal(std=0.5)", 0.0, 0.25),
            ("relu", "kaiming_normal().scaled(1.2)", "constant(0.5)", 0.5, 0.0),
            ("gelu", "lecun_normal().scaled(2)", "normal(std=0.4)", 0.0, 0.16),
            ("tanh", "lecun_normal().scaled(0.5)", "torch_linear", 0.0, 1 / 600),
            ("relu", "kaiming_normal", "normal(std=2)", 0.0, 4.0),
        ],
    )
    def test_forward(self, activation, init, bias, mean, variance):
        chain = {**self.CHAIN, "activation": activation, "bias": bias, "backward": False}
        words = ic.propagate(**chain, init=init).verdict
        gain, level = found("; a gain of # would hold E\\[h²\\] at #", words)
        assert level == (1 if mean**2 + variance < 1 else 2 * (mean**2 + variance))
        phi = ic.activation(activation)
        energy = gaussian(lambda h: float(phi(h)) ** 2, mean, level - mean**2)
        assert gain == pytest.approx(math.sqrt((level - mean**2 - variance) / energy), rel=1e-3)
        # From inputs of the energy that all layers will have.
        held = ic.propagate(**{**chain, "batch": None}, init=gained(gain), x=inputs(energy, 200))
        assert held.outcome == "holds"
        holds(held.pre.second_moment, held.pre.se.second_moment, level, 0.02)

    @pytest.mark.parametrize(
        ("activation", "bias"),
        [("tanh", "normal(std=0.3)"), ("tanh", "normal(std=1.2)"), ("selu", "normal(std=0.3)")],
    )
    def test_both(self, activation, bias):
        chain = {**self.CHAIN, "activation": activation, "bias": bias, "trials": 100}
        _, backward = sentences(ic.propagate(**chain, init="lecun_normal().scaled(0.8)"))
        gain, level = found(", both with #, where E\\[h²\\] settles at #", backward)
        biases = ic.initializer(bias).std((1,)) ** 2
        x = inputs((level - biases) / gain**2, 200)
        held = ic.propagate(**{**chain, "batch": None}, init=gained(gain), x=x)
        holds(held.pre.second_moment, held.pre.se.second_moment, level, 0.02)
        assert held.outcome == held.grad_outcome == "holds"
        assert abs(held.grad_factor - 1) < 5 * held.grad_factor_se
        # It is where chains go that start elsewhere.
        came = ic.propagate(**chain, init=gained(gain)).pre
        assert abs(came.second_moment[-1] - level) < 5 * came.se.second_moment[-1] + 0.1 * level

    def test_what_is_followed_is_not_given_again(self):
        """With the critical gain a gradient shrinks on the layers that E[h²] = 1.2 takes to settle,
        and on no other."""
        chain = {**self.CHAIN, "activation": "tanh", "bias": "normal(std=0.3885)", "trials": 100}
        came = ic.propagate(**chain, init=gained(1.467))
        assert came.grad_outcome == "decays"
        level, entering = found(
            "holds where E\\[h²\\] has settled at #, in every layer for inputs of E\\[x²\\] = #",
            sentences(came)[1],
        )
        assert "gain" not in came.verdict
        held = ic.propagate(**{**chain, "batch": None}, init=gained(1.467), x=inputs(entering, 200))
        holds(held.pre.second_moment, held.pre.se.second_moment, level, 0.02)
        assert held.outcome == held.grad_outcome == "holds"

    @pytest.mark.parametrize(
        ("activation", "bias", "mean", "variance"),
        [("relu", "normal(std=0.5)", 0, 0.25), ("gelu", "constant(0.5)", 0.5, 0)],
    )
    def test_backward(self, activation, bias, mean, variance):
        """Where an edge of chaos does not exist (relu: q grows by Var b a layer) or biases have a
        mean, a layer at E[h²] = 1 alone is what the sentence is about."""
        chain = {**self.CHAIN, "activation": activation, "bias": bias}
        _, words = sentences(ic.propagate(**chain, init="lecun_normal"))
        pattern = (
            "at E\\[h²\\] = # it would hold with a gain of #, E\\[h²\\] with # \\(σ_w² ×# apart"
        )
        level, down, up, apart = found(pattern, words)
        assert "both" not in words
        assert (level, apart) == (1, pytest.approx((up / down) ** 2, rel=2e-3))
        for gain, factor in ((down, 1), (up, apart)):
            layers = {
                "widths": [200] * 3,
                "init": ["lecun_normal", gained(gain)],
                "x": inputs(1 - mean**2 - variance, 200),
            }
            step = ic.propagate(**{**chain, **layers, "batch": None, "trials": 200})
            holds(step.pre.second_moment[:1], step.pre.se.second_moment[:1], 1, 0)
            assert abs(step.grad_factor - factor) < 5 * step.grad_factor_se

    @pytest.mark.parametrize(("std", "layers"), [(0.1, 20), (0.3, 16)])
    def test_a_level_that_is_far_away_is_said_to_be(self, std, layers):
        """With φ homogeneous, E[h²] = v becomes (1 − s²) v + s²: what is not 1 shrinks by 1 − s² a
        layer, which leaves more than e⁻² over 20 layers at s² = 0.01, over 16 at 0.09, not 40."""
        chain = {"batch": 4, "activation": "relu", "bias": f"normal(std={std})", "trials": 200}
        chain |= {"init": "lecun_normal().scaled(2)", "method": "gram"}
        verdict = ic.propagate([800] * (layers + 1), **chain).verdict
        pattern = "gain of # would hold E\\[h²\\] at 1, but deviations would shrink ×# a layer"
        gain, slope = found(pattern, verdict)
        assert slope == pytest.approx(1 - std**2, abs=1e-4)
        held = ic.propagate([800] * (layers + 1), **{**chain, "init": gained(gain)}).pre
        away = held.second_moment[[0, -1]] - 1  # E[h²] is 2 − s² in the first layer
        error = held.se.second_moment[-1]
        assert abs(away[1] - away[0] * slope ** (layers - 1)) < 5 * error
        near = ic.propagate([100] * 41, **{**chain, "bias": "normal(std=0.3)", "trials": 20})
        assert "would hold E[h²] at 1" in near.verdict
        assert "deviations" not in near.verdict

    def test_biases_of_zero_are_none(self):
        chain = {**self.CHAIN, "activation": "relu", "init": "xavier_normal"}
        assert ".scaled(1.414) would hold" in ic.propagate(**chain, bias="zeros").verdict

    def test_no_edge_is_advised_that_a_chain_would_not_come_to(self):
        """gelu's, at Var b = 2.25, is hundreds of layers away, and near Var b = 0 it repels; from
        silu's at Var b = 0.1 a chain goes down to another fixed point."""
        chain = {**self.CHAIN, "widths": [200] * 17, "init": "lecun_normal"}
        for activation, std in (("gelu", 1.5), ("gelu", 0.1), ("silu", 0.1**0.5)):
            bias = f"normal(std={std})"
            verdict = ic.propagate(**chain, activation=activation, bias=bias).verdict
            assert "apart)" in verdict
            assert "both" not in verdict


def test_finite_width_does_not_silence_advice():
    """So many trials tell the gradient's factor from that of infinite width: by 1/n, not by what
    there is to say."""
    chain = {"widths": [100] * 21, "activation": "tanh", "batch": 1, "backward": True}
    result = ic.propagate(**chain, init="lecun_normal().scaled(1.593)", trials=8000, method="gram")
    ends = result.theory.grad_pre.second_moment[[0, 10]]
    expected = (ends[0] / ends[1]) ** (1 / 10)
    assert abs(result.grad_factor - expected) > 3 * result.grad_factor_se
    assert "; at E[h²] = 1 it would hold with a gain of 1.467" in result.verdict


class TestNorms:
    """Behind a norm E[h²] is σ_w² + E b², and the gradient by x has the factor σ_w² E φ′²/E φ² or
    σ_w² E φ′²/Var φ a layer."""

    CHAIN = {"widths": [300] * 17, "batch": 4, "trials": 60, "backward": True}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("activation", "norm", "init", "bias"),
        [
            ("tanh", "rms", "lecun_normal().scaled(1.5)", None),
            ("gelu", "layer", "kaiming_normal", None),
            ("relu", "rms", "lecun_normal", "normal(std=0.5)"),
        ],
    )
    def test_a_gain_that_keeps_the_gradient_within_a_factor(self, activation, norm, init, bias):
        chain = {**self.CHAIN, "activation": activation, "norm": norm, "bias": bias}
        before = ic.propagate(**chain, init=init)
        words = "; a gain of # would keep it within ×2 over 16 layers, E\\[x²\\] holds with any"
        (gain,) = found(words, sentences(before)[1])
        held = ic.propagate(**chain, init=gained(gain))
        error = 5 * held.grad_factor_se + 0.2 / 300
        bound = 1.98 ** (1 / 16)  # and rounded
        phi, q = ic.activation(activation), gain**2 + (0.25 if bias else 0)
        scale = gaussian(lambda h: float(phi(h)) ** 2, variance=q)
        if norm == "layer":
            scale -= gaussian(lambda h: float(phi(h)), variance=q) ** 2
        slope = gaussian(lambda h: float(phi.derivative(h)) ** 2, variance=q)
        growth = abs(math.log(gain**2 * slope / scale))
        assert 0.97 < growth / math.log(2) * 16 <= 1
        assert min(abs(held.grad_factor - f) for f in (bound, 1 / bound)) < error
        for result in (before, held):
            energy = result.post.second_moment
            holds(energy, result.post.se.second_moment, energy[0], 0.01)

    @pytest.mark.parametrize("activation", ["tanh", "selu"])
    def test_a_gain_that_holds_the_gradient(self, activation):
        """Biases that all inputs share take from it what the curvature of φ adds."""
        chain = {
            **self.CHAIN, "activation": activation, "norm": "rms", "bias": "normal(std=0.4)"
        }  # fmt: skip
        before = ic.propagate(**chain, init="lecun_normal().scaled(2)")
        (gain,) = found("; a gain of # would hold it, E\\[x²\\] holds", sentences(before)[1])
        held = ic.propagate(**chain, init=gained(gain))
        assert held.outcome == held.grad_outcome == "holds"
        assert abs(held.grad_factor - 1) < 5 * held.grad_factor_se

    @pytest.mark.parametrize("gain", [0.5, 1.0, 3.0])
    def test_where_no_gain_changes_it(self, gain):
        """relu: E φ′² σ_w²/Var φ = (1/2)/(1/2 − 1/2π) whatever σ_w²."""
        result = ic.propagate(**self.CHAIN, norm="layer", init=gained(gain))
        assert result.verdict.endswith("; behind a norm no gain changes that")
        factor = math.pi / (math.pi - 1)
        assert abs(result.grad_factor - factor) < 5 * result.grad_factor_se + 3 / 300

    def test_what_finite_widths_add_silences_nothing(self):
        """Of 128 units a norm's mean and variance are estimates: a correction of order 1/n."""
        chain = {"widths": [128] * 13, "norm": "layer", "backward": True, "trials": 400, "batch": 2}
        result = ic.propagate(**chain)
        factor = math.pi / (math.pi - 1)
        assert 3 * result.grad_factor_se < abs(result.grad_factor - factor) < 0.1 * (factor - 1)
        assert result.verdict.endswith("; behind a norm no gain changes that")

    def test_a_gain_for_all_layers_where_they_have_each_its_own(self):
        """Xavier's, of layers that narrow by other factors each."""
        chain = {"widths": [512, 512, 256, 256, 64, 64, 256], "norm": "rms", "trials": 60}
        before = ic.propagate(**chain, activation="tanh", init="xavier_normal")
        assert before.outcome != "holds"
        words = "; a gain of # over √fan_in would hold E\\[h²\\] at #, and E\\[x²\\] with it"
        gain, level = found(words, before.verdict)
        held = ic.propagate(**chain, activation="tanh", init=gained(gain))
        assert held.outcome == "holds"
        holds(held.pre.second_moment, held.pre.se.second_moment, level, 0)

    @pytest.mark.parametrize("gain", [0.2, 0.4])
    def test_a_gain_that_keeps_the_gradient_is_left_alone(self, gain):
        """tanh: seen to grow, by less than two over all layers; larger gains do worse."""
        chain = {**self.CHAIN, "trials": 400, "batch": 2, "widths": [200] * 17}
        result = ic.propagate(**chain, activation="tanh", norm="rms", init=gained(gain))
        assert result.grad_outcome == "explodes"
        assert result.grad_post.second_moment[0] < 2
        assert "gain" not in result.verdict

    def test_a_gain_that_would_saturate_is_not_advised(self):
        """sigmoid: σ_w² E φ′² = E φ² at σ_w = 6.9, where more than half of h are beyond ±4.4."""
        result = ic.propagate(**self.CHAIN, activation="sigmoid", norm="rms", init="lecun_normal")
        assert result.grad_outcome == "decays"
        assert "gain" not in result.verdict


class TestBranches:
    """The multiplier of all branches with which a signal doubles from the first layer to the last,
    or from the last to the first."""

    CHAIN = {"widths": [200] * 17, "batch": 4, "trials": 60, "backward": True}  # noqa: RUF012

    @pytest.mark.parametrize(
        "chain",
        [
            {"activation": "tanh", "init": "lecun_normal"},
            {"activation": "relu", "init": "kaiming_normal", "norm": "rms"},
            {"activation": "gelu", "init": "kaiming_normal", "norm": "layer",
             "bias": "normal(std=0.2)"},
        ],
    )  # fmt: skip
    def test_growth_is_kept(self, chain):
        chain = {**self.CHAIN, **chain}
        before = ic.propagate(**chain, residual=1)
        assert before.outcome == before.grad_outcome == "explodes"
        by_depth = ic.propagate(**chain, residual="1/sqrt(L)")
        pattern = "; residual=# would keep it within ×2 over all layers, 1/sqrt\\(L\\) within ×#"
        for down, words in enumerate(sentences(before)):
            multiplier, grown = found(pattern, words)
            kept = ic.propagate(**chain, residual=multiplier)
            for result, growth in ((kept, 2), (by_depth, grown)):
                stats = result.grad_post if down else result.post
                first, last = (-1, 0) if down else (0, -1)
                error = stats.se.second_moment[last] / stats.second_moment[first]
                ratio = stats.second_moment[last] / stats.second_moment[first]
                assert abs(ratio - growth) < 5 * error + 0.02 * growth

    def test_branches_that_keep_it_are_left_alone(self):
        """tanh with 1/sqrt(L): E[x²] grows by less than half."""
        chain = {**self.CHAIN, "activation": "tanh", "init": "lecun_normal"}
        result = ic.propagate(**chain, residual="1/sqrt(L)")
        assert result.outcome == "explodes"
        assert "residual" not in result.verdict

    def test_a_mean_that_adds_up_is_counted(self):
        """E φ > 0: means add up in step, and E[x²] grows with L·m, not with L·m²."""
        (large, _), (small, _) = (
            found("residual=# would .*within ×#", ic.propagate(
                [100] * (n + 1), norm="rms", residual=1, trials=20, batch=2).verdict)
            for n in (8, 32)
        )  # fmt: skip
        assert 3 < large / small < 5

    def test_inputs_that_branches_cancel(self):
        """E[x²] of inputs of -3 falls, where E φ > 0 adds up to less than 6."""
        chain = {"widths": [100] * 9, "x": np.full((2, 100), -3.0), "trials": 40}
        (_, within) = found(
            "; residual=# would .*, 1/sqrt\\(L\\) within ×#",
            ic.propagate(**chain, residual=1).verdict,
        )
        energy = ic.propagate(**chain, residual="1/sqrt(L)").post
        ratio = energy.second_moment[0] / energy.second_moment[-1]
        error = ratio * energy.se.second_moment[-1] / energy.second_moment[-1]
        assert abs(within - ratio) < 5 * error + 0.02 * ratio
        assert within > 1

    def test_inputs_of_zero(self):
        """Nothing is small beside them."""
        result = ic.propagate(
            [50] * 5, x=np.zeros((2, 50)), bias="normal(std=1)", residual=1, trials=20
        )
        assert result.outcome == "explodes"
        assert "residual" not in result.verdict

    def test_functions_for_weights(self):
        """No law is known of them: growth beside a multiplier of 0 is, but not with another."""
        result = ic.propagate(
            [50] * 9,
            init=[_eye, *["kaiming_normal"] * 7],
            residual=[0.0, *[1.0] * 7],
            trials=20,
            batch=2,
        )
        assert result.outcome == "explodes"
        assert "residual" not in result.verdict


def _eye(seed, trial, layer, shape):
    return np.eye(*shape)


class TestWidths:
    """A gain over √fan_in holds E[h²], one over √fan_out the gradient."""

    def test_both_directions(self):
        widths = [400, 200, 100, 200, 100, 50]
        chain = {"activation": "tanh", "trials": 60, "backward": True}
        forward, backward = sentences(ic.propagate(widths, **chain, init="lecun_normal"))
        (up,) = found("; a gain of # over √fan_in would hold E\\[h²\\] at 1$", forward)
        energy = gaussian(lambda h: math.tanh(h) ** 2)
        held = ic.propagate(widths, **chain, init=gained(up), x=inputs(energy, 400))
        holds(held.pre.second_moment, held.pre.se.second_moment, 1, 0.02)
        down, same, apart = found(
            "; at E\\[h²\\] = 1 it would hold with a gain of # over √fan_out, E\\[h²\\] with # "
            "over √fan_in \\(variances ×# fan_out/fan_in apart\\)$",
            backward,
        )
        assert same == up
        for n_in, n_out in ((200, 100), (100, 300)):
            for weights, factor in (
                (gained(down, "fan_out"), 1),
                (gained(up), apart * n_out / n_in),
            ):
                x = inputs(1, n_in)
                init = ["lecun_normal", weights]
                step = ic.propagate([n_in, n_in, n_out], **{**chain, "trials": 200}, init=init, x=x)
                assert abs(step.grad_factor - factor) < 5 * step.grad_factor_se


def test_nothing_is_advised_where_layers_are_not_alike():
    chain = {"widths": [64] * 9, "trials": 20, "backward": True, "init": "normal(std=0.3)"}
    for each in (
        {"norm": ["rms"] + [None] * 7},
        {"bias": ["ones"] + ["zeros"] * 7},
        {"residual": [None] + [1.0] * 7},
        {"activation": ["relu", "tanh"] * 4},
    ):
        verdict = ic.propagate(**chain, **each).verdict
        assert "would" not in verdict
