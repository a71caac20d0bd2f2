# SPDX-License-Identifier: BSD-3-Clause
"""propagate and compare_inits: what chains with known answers do, verdicts, arguments."""

import math
import pickle
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

import initcore as ic
from initcore.results.layers import QUANTILES
from initcore.results.text import measured, number


def near(measured, se, expected, sigmas=5.0):
    """Whether a mean over trials agrees with an expectation."""
    return abs(measured - expected) <= sigmas * se


class TestKnownChains:
    @pytest.mark.parametrize("std", [5.0, 0.2])
    def test_linear_chain_multiplies_its_std(self, std):
        """Std 5 per layer for 10 layers is 5^10 = 9 765 625; 0.2^10 = 1.024e-7."""
        n = 64
        result = ic.propagate(
            [n] * 11, activation="linear", init=f"normal(std={std / math.sqrt(n)})", trials=200
        )
        moment, se = result.pre.second_moment, result.pre.se.second_moment
        for layer in range(10):
            assert near(moment[layer], se[layer], std ** (2 * (layer + 1)))
        assert near(result.factor, result.factor_se, std**2)
        assert math.sqrt(moment[9]) == pytest.approx(std**10, rel=0.2)
        np.testing.assert_allclose(result.theory.pre.second_moment[9], std**20, rtol=1e-6)

    def test_relu_after_kaiming_conserves_the_second_moment_not_the_variance(self):
        """discuss.pytorch 187362, stats.stackexchange 138035."""
        result = ic.propagate([512, 512], init="kaiming_normal", trials=100)
        x, se = result.post, result.post.se
        assert near(x.second_moment[0], se.second_moment[0], 1)
        # The mean and the variance of finite layers are off by a few parts in 4 n.
        assert near(x.mean[0], se.mean[0] + 4e-4, 0.5641895835, 4)
        assert near(x.variance[0], se.variance[0] + 4e-4, 0.6816901138, 4)
        assert near(x.zero_fraction[0], se.zero_fraction[0], 0.5)
        assert near(result.pre.second_moment[0], result.pre.se.second_moment[0], 2)

    def test_bias_adds_its_variance(self):
        result = ic.propagate([32, 32], activation="linear", init="zeros", bias="normal(std=3)")
        assert near(result.pre.second_moment[0], result.pre.se.second_moment[0], 9)

    def test_float64(self):
        single, double = (ic.propagate([32] * 4, trials=50, dtype=t) for t in ("float32", float))
        assert double.spec["dtype"] == "float64"
        assert not np.array_equal(single.pre.second_moment, double.pre.second_moment)
        for result in (single, double):
            assert near(result.pre.second_moment[2], result.pre.se.second_moment[2], 2)

    def test_the_last_layer_may_have_its_own_activation(self):
        result = ic.propagate([16] * 4, last="linear", trials=5)
        assert result.spec["activation"] == ("relu", "relu", "linear")
        assert result.post.zero_fraction[1] > 0.2
        assert result.post.zero_fraction[2] == 0

    def test_a_list_a_layer(self):
        result = ic.propagate(
            [16, 8, 4],
            activation=["tanh", "relu"],
            init=["ones", ic.zeros()],
            bias=[None, "constant(2)"],
            trials=3,
        )
        assert result.spec["init"] == ("ones()", "zeros()")
        assert result.post.abs_max[0] <= 1
        assert result.post.mean[1] == 2
        assert result.post.variance[1] == 0
        assert result.pre.se.mean[1] == 0


class TestVerdicts:
    """Kinds of chain whose answers are known."""

    CHAIN: ClassVar = {"widths": [64] * 31, "batch": 16}

    def test_kaiming_relu_holds(self):
        result = ic.propagate(**self.CHAIN, init="kaiming_normal")
        assert result.outcome == "holds"
        assert near(result.factor, result.factor_se, 1, 3)
        assert result.verdict.startswith("holds: E[h²] ×")
        assert "(layers 15 to 30)" in result.verdict
        assert "would hold" not in result.verdict

    def test_xavier_relu_halves(self):
        result = ic.propagate(**self.CHAIN, init="xavier_normal")
        assert result.outcome == "decays"
        assert near(result.factor, result.factor_se, 1 / 2, 3)
        assert ".scaled(1.414) would hold, a gain of 1.414" in result.verdict
        held = ic.propagate(**self.CHAIN, init="xavier_normal().scaled(1.414213562)")
        assert held.outcome == "holds"

    def test_torch_linear_relu_loses_a_factor_of_six(self):
        result = ic.propagate(**self.CHAIN, init="torch_linear")
        assert result.outcome == "decays"
        assert near(result.factor, result.factor_se, 1 / 6, 3)
        assert ".scaled(2.449) would hold, a gain of 1.414" in result.verdict

    def test_kaiming_scaled_explodes(self):
        result = ic.propagate(**self.CHAIN, init="kaiming_normal().scaled(1.5)")
        assert result.outcome == "explodes"
        assert near(result.factor, result.factor_se, 2.25, 3)
        assert ".scaled(0.6667) would hold" in result.verdict

    def test_kaiming_scaled_overflows_when_deep(self):
        # 2.25^l passes the square of float32's largest number near layer 218; in narrow layers,
        # whose energy wanders, some trials are earlier and some later.
        result = ic.propagate([32] * 301, init="kaiming_normal().scaled(1.5)", batch=4, trials=20)
        assert result.outcome == "overflows"
        first = int(np.flatnonzero(result.pre.nonfinite_fraction > 0)[0]) + 1
        assert 180 < first < 230
        assert f"overflows float32 at layer {first} (" in result.verdict
        assert "of 20 trials)" in result.verdict
        assert np.isnan(result.pre.second_moment[-1])
        double = ic.propagate(**{**result.spec, "dtype": "float64"}, trials=20)
        assert double.outcome == "explodes"

    def test_tanh_holds_once_it_has_settled(self):
        result = ic.propagate(
            **self.CHAIN, activation="tanh", init="xavier_normal(gain=1.6666666666666667)"
        )
        assert result.pre.second_moment[0] > 2 * result.pre.second_moment[-1]
        assert result.outcome == "holds"
        assert math.sqrt(result.post.second_moment[-1]) == pytest.approx(0.651347, rel=0.02)

    def test_linear_decays(self):
        result = ic.propagate([64] * 11, activation="linear", init="normal(std=0.025)")
        assert result.outcome == "decays"
        assert near(result.factor, result.factor_se, 0.04, 3)
        assert ".scaled(5) would hold, a gain of 1" in result.verdict

    def test_underflow_vanishes(self):
        result = ic.propagate([64] * 131, init="torch_linear", trials=10, batch=8)
        assert result.outcome == "vanishes"
        first = int(np.flatnonzero(result.pre.abs_max == 0)[0]) + 1
        assert f"exactly 0 from layer {first}," in result.verdict
        assert near(result.factor, result.factor_se, 1 / 6)
        zeros = ic.propagate([4] * 3, init="zeros", trials=2)
        assert zeros.verdict == "vanishes: exactly 0 from layer 1"

    def test_large_weights_saturate_bounded_activations_alone(self):
        chain = {"widths": [64] * 6, "init": "normal(std=1)", "trials": 20}
        result = ic.propagate(**chain, activation="tanh")
        assert result.outcome == "saturates"
        assert "% of layer 5; a gain of 1.593 would hold E[h²] at 1" in result.verdict
        assert "% of layer 4;" in ic.propagate(**chain, activation="tanh", last="linear").verdict
        assert ic.propagate(**chain, activation="relu").outcome == "explodes"

    def test_a_scale_is_advised_where_the_activation_lets_it_through(self):
        chain = {"widths": [64] * 11, "init": "normal(std=0.01)", "trials": 20}
        assert ".scaled(" not in ic.propagate(**chain, activation="tanh").verdict
        assert ".scaled(" in ic.propagate(**chain, activation="leaky_relu(0.2)").verdict
        assert ".scaled(" not in ic.propagate(**chain, bias="normal(std=0.1)").verdict

    def test_a_scale_is_advised_for_either_direction(self):
        """Where a chain narrows by half a layer, fan_in and fan_out are √2 apart."""
        chain = {"widths": [256, 128, 64, 32, 16], "init": "xavier_normal", "backward": True}
        result = ic.propagate(**chain, trials=40)
        forward, backward = result.verdict.split("; gradient ")
        # 2 fan_in / (fan_in + fan_out) = 4/3, of which relu leaves half; backward it is 2/3.
        assert f"; .scaled({1.5**0.5:.4g}) would hold" in forward
        assert f"; .scaled({3**0.5:.4g}) would hold" in backward
        assert "a gain of" not in result.verdict

    def test_gains_are_advised_where_there_is_no_such_scale(self):
        """At E[h²] = 1 tanh holds forward with σ_w² = 1/E φ², backward with 1/E φ′², and both on
        the edge of chaos, where biases make up the difference."""
        chain = {"widths": [200] * 21, "activation": "tanh", "trials": 60, "batch": 8}
        result = ic.propagate(**chain, init="lecun_normal", backward=True)
        forward, backward = result.verdict.split("; gradient ")
        assert forward.endswith("; a gain of 1.593 would hold E[h²] at 1")
        assert backward.endswith(
            "; at E[h²] = 1 it would hold with a gain of 1.467, E[h²] with 1.593 "
            "(σ_w² ×1.178 apart), both with 1.467 and biases of std 0.3885"
        )
        edge = ic.theory.edge_of_chaos("tanh", 1.0)
        assert [f"{v**0.5:.4g}" for v in edge] == ["1.467", "0.3885"]
        held = ic.propagate(**chain, init="lecun_normal().scaled(1.593)", backward=True)
        assert held.outcome == "holds"
        assert held.pre.second_moment[-1] == pytest.approx(1, abs=0.05)
        assert held.grad_outcome == "explodes"
        # 10 layers down from where E[h²] has come to 1
        both = ic.propagate(
            **chain, init="lecun_normal().scaled(1.467)", bias="normal(0.3885)", backward=True
        )
        assert both.outcome == "holds"
        assert both.pre.second_moment[-1] == pytest.approx(1, abs=0.05)
        for passed, bound in ((both, 0.02), (held, 0.02)):
            top, below = passed.grad_pre.second_moment[[18, 8]]
            factor = (below / top) ** 0.1
            assert factor == pytest.approx(1 if passed is both else 1.178, abs=bound)

    def test_a_gain_that_would_not_stay_is_said_not_to(self):
        """gelu's E[h²] = 1 is a fixed point from which every deviation grows."""
        result = ic.propagate([400] * 4, activation="gelu", init="lecun_normal", trials=30)
        assert result.outcome == "decays"
        wanted = "; a gain of 1.534 would hold E[h²] at 1, but deviations would grow ×1.144 a layer"
        assert result.verdict.endswith(wanted)

    def test_inputs_that_become_alike_are_said_to(self):
        """sigmoid: c′ = (σ_w² E φ(√q u) φ(√q v))/(σ_w² E φ²) brings them together in a few layers;
        tanh without biases keeps them apart, and one input is like no other."""
        chain = {"widths": [300] * 7, "init": "lecun_normal", "trials": 20}
        q, c, cosines = 1.0, 0.0, [0.0]
        for _ in range(5):
            c = ic.theory.correlation_map("sigmoid", c, 1.0, 0.0, q)
            q = ic.theory.predict([300, 300, 300], activation="sigmoid", init="lecun_normal",
                                  input_second_moment=q).post.second_moment[0]  # fmt: skip
            cosines.append(c)
        first = next(layer for layer, c in enumerate(cosines, 1) if c > 0.99)
        assert 1 < first < 6
        words = f"; inputs are alike from layer {first}: mean cosine of h above 0.99"
        assert ic.propagate(**chain, activation="sigmoid", batch=2).verdict.endswith(words)
        for alone in ({"activation": "tanh"}, {"activation": "sigmoid", "batch": 1}):
            assert "alike" not in ic.propagate(**chain, **alone).verdict

    def test_too_little_to_judge(self):
        one_trial = ic.propagate([16] * 6, trials=1)
        assert one_trial.outcome == "undecided"
        assert one_trial.verdict.endswith("one trial has no standard error")
        assert np.isnan(one_trial.pre.se.second_moment).all()
        one_layer = ic.propagate([16, 16], trials=5)
        assert one_layer.outcome == "undecided"
        assert math.isnan(one_layer.factor)

    def test_a_few_even_trials_are_enough(self):
        """lecun_normal halves E[h²] a ReLU layer; width 512 makes five trials all but alike."""
        result = ic.propagate([512] * 9, init="lecun_normal", trials=5)
        assert result.outcome == "decays"
        assert result.factor == pytest.approx(0.5, abs=0.05)
        scaled = ic.propagate([256] * 21, init="kaiming_normal().scaled(0.96)", trials=20)
        assert scaled.outcome == "decays"  # ×0.96² = 0.92 a layer, nearer 1 than a gross factor

    def test_a_few_uneven_trials_are_not(self):
        """ln E[h²] of 12 wide linear layers walks by 2/12 a layer, though its mean holds: twenty
        trials that a few of them rule never say otherwise."""
        chain = {"widths": [12] * 21, "activation": "linear", "init": "lecun_normal", "batch": 2}
        outcomes = {
            ic.propagate(**chain, seed=5, trials=range(20 * i, 20 * i + 20)).outcome
            for i in range(60)
        }
        assert outcomes == {"holds", "undecided"}


class TestStream:
    """Behind a norm E[h²] tells nothing, and past a residual branch the stream goes by."""

    CHAIN: ClassVar[dict[str, Any]] = {"widths": [32] * 21, "batch": 4, "trials": 30}

    def test_rezero_holds_exactly(self):
        result = ic.propagate(**self.CHAIN, residual=0, backward=True)
        assert (result.factor, result.factor_se) == (1, 0)
        assert (result.grad_factor, result.grad_factor_se) == (1, 0)
        assert result.verdict.startswith("holds: E[x²] ×1.000 a layer")
        assert "; gradient holds: E[(∂/∂x)²] ×1.000 a layer" in result.verdict

    def test_what_grows_behind_a_norm_is_seen(self):
        """h = W x, x + 1·h doubles E[x²] a layer (W of variance 1/n), and the gradient by x; the
        norm of the last layer makes E[h²] there 1."""
        result = ic.propagate(
            **self.CHAIN, activation="linear", init="lecun_normal", residual=1, backward=True,
            norm=[None] * 19 + ["rms"],
        )  # fmt: skip
        assert (result.outcome, result.grad_outcome) == ("explodes", "explodes")
        assert abs(result.grad_factor - 2 ** (8 / 9)) < 5 * result.grad_factor_se + 0.1

    def test_the_standard_error_has_the_covariance(self):
        """That of the ratio of means over trials, by the delta method from single trials."""
        chain = self.CHAIN | {"norm": "rms", "residual": 0.5, "backward": True}
        ones = [ic.propagate(**chain | {"trials": range(i, i + 1)}) for i in range(30)]
        whole = ic.propagate(**chain)
        for side, path, factor, se in (
            ("post", (9, 19), whole.factor, whole.factor_se),
            ("grad_post", (10, 0), whole.grad_factor, whole.grad_factor_se),
        ):
            a, b = (np.array([getattr(o, side).second_moment[at] for o in ones]) for at in path)
            spread = np.sqrt(30 / 29 * np.sum((a / a.sum() - b / b.sum()) ** 2))
            assert factor == pytest.approx((b.mean() / a.mean()) ** 0.1, rel=1e-9)
            assert se == pytest.approx(factor * spread / 10, rel=1e-9)

    def test_its_table_and_its_shares(self):
        result = ic.propagate(**self.CHAIN, norm="rms", residual=[None] + [0.5] * 19, backward=True)
        (_, up), (_, down) = result.tables()
        assert up[0][:3] == ["layer", "E[x²] ± s.e.", "theory"]
        assert float(up[1][2]) == pytest.approx(result.theory.post.second_moment[0], rel=1e-3)
        assert down[0][:3] == ["layer", "E[(∂/∂x)²] ± s.e.", "theory"]
        assert "residual none, 0.5," in result.title
        assert "saturated" not in ic.propagate(**self.CHAIN, residual=0.5).tables()[0][1][0]
        bounded = ic.propagate(**self.CHAIN, residual=0.5, activation="tanh")
        assert "saturated" in bounded.tables()[0][1][0]

    def test_it_stops_at_what_is_judged(self):
        """ReZero's E[x²] is that of the inputs, E[h²] behind it another's of the same width."""
        result = ic.propagate(**self.CHAIN | {"trials": 512}, residual=0, rtol=0.02)
        assert result.n_trials < 512
        end = result.post
        assert end.se.second_moment[-1] <= 0.02 * end.second_moment[-1]
        half = ic.propagate(**self.CHAIN | {"trials": result.n_trials // 2}, residual=0).post
        assert half.se.second_moment[-1] > 0.02 * half.second_moment[-1]


def test_titles_name_trials_that_do_not_begin_at_0():
    chain = {"widths": [4, 4], "batch": 2}
    assert ", trials 20 to 39," in ic.propagate(**chain, trials=range(20, 40)).title
    assert ", 20 trials," in ic.propagate(**chain, trials=20).title


@pytest.mark.parametrize("init", [lambda shape: np.ones(shape), lambda *, seed: seed])
def test_a_function_of_another_signature_is_refused(init):
    with pytest.raises(TypeError, match=r"init: .*called with \(seed, trial, layer, shape\); got "):
        ic.propagate([4, 4], init=init)


class TestBackward:
    """Gradients with known answers, from a standard normal one by the last layer's x."""

    def test_a_linear_chain_multiplies_by_the_outputs_variance(self):
        """n_out σ² a layer, also where widths differ; E[dW²] = batch E[dh²] E[x²]."""
        widths, std, batch = [30, 60, 20, 40], 0.2, 8
        result = ic.propagate(
            widths, activation="linear", init=f"normal(std={std})", batch=batch, backward=True,
            trials=400,
        )  # fmt: skip
        down = {3: 1.0, 2: 40 * std**2, 1: 20 * 40 * std**4}
        up = {1: 1.0, 2: 30 * std**2, 3: 30 * 60 * std**4}
        for layer, gradient in down.items():
            for side in (result.grad_pre, result.grad_post):
                at = side.second_moment[layer - 1], side.se.second_moment[layer - 1]
                assert near(*at, gradient)
                assert near(side.mean[layer - 1], side.se.mean[layer - 1], 0)
            weight = result.grad_weight
            expected = batch * gradient * up[layer]
            assert near(
                weight.second_moment[layer - 1], weight.se.second_moment[layer - 1], expected
            )
            assert result.theory.grad_pre.second_moment[layer - 1] == pytest.approx(gradient)
            assert result.theory.grad_post.second_moment[layer - 1] == pytest.approx(gradient)
            assert result.theory.grad_weight.second_moment[layer - 1] == pytest.approx(expected)
        assert np.isnan(result.grad_weight.mean).all()
        assert np.isnan(result.grad_weight.abs_max).all()

    def test_kaiming_relu_holds_both_ways(self):
        """He et al. 2015: in layers of equal width; half of a gradient stops at each relu."""
        result = ic.propagate([64] * 31, init="kaiming_normal", batch=16, backward=True)
        assert result.outcome == result.grad_outcome == "holds"
        assert near(result.grad_factor, result.grad_factor_se, 1, 3)
        assert "; gradient holds: E[(∂/∂h)²] ×" in result.verdict
        assert "(layers 16 to 1)" in result.verdict
        zeros = result.grad_pre
        assert near(zeros.zero_fraction[29], zeros.se.zero_fraction[29], 0.5)
        assert near(zeros.second_moment[29], zeros.se.second_moment[29], 0.5)
        assert np.isnan(zeros.saturated_fraction).all()

    def test_xavier_relu_halves_both_ways(self):
        result = ic.propagate([64] * 31, init="xavier_normal", batch=16, backward=True)
        assert result.grad_outcome == "decays"
        assert near(result.grad_factor, result.grad_factor_se, 1 / 2, 3)

    def test_fan_in_holds_forward_and_fan_out_backward(self):
        """Where a chain narrows by half a layer the two differ by the factor of the widths."""
        widths = [256, 128, 64, 32, 16]
        fan_in, fan_out = ic.compare_inits(
            ["kaiming_normal", "kaiming_normal(mode='fan_out')"], widths, batch=8, backward=True
        )
        assert (fan_in.outcome, fan_in.grad_outcome) == ("holds", "decays")
        assert near(fan_in.grad_factor, fan_in.grad_factor_se, 1 / 2, 3)
        assert (fan_out.outcome, fan_out.grad_outcome) == ("explodes", "holds")
        assert near(fan_out.factor, fan_out.factor_se, 2, 3)

    @pytest.mark.parametrize("name", ["tanh", "gelu", "selu", "leaky_relu(0.2)"])
    def test_wide_layers_meet_the_theory(self, name):
        """E φ′(h)² σ² n_out a layer, to a few parts in the width."""
        result = ic.propagate(
            [200] * 4, activation=name, init="lecun_normal", bias="normal(0.3)", batch=4,
            trials=100, backward=True,
        )  # fmt: skip
        for side in ("grad_pre", "grad_post", "grad_weight"):
            measured, predicted = getattr(result, side), getattr(result.theory, side)
            limits = 5 * measured.se.second_moment + 0.02 * predicted.second_moment
            assert np.all(np.abs(measured.second_moment - predicted.second_moment) <= limits)

    def test_the_forward_pass_does_not_know_of_it(self):
        one, both = (ic.propagate([20, 30, 9], trials=4, backward=b) for b in (False, True))
        assert one.pre.equals(both.pre)
        assert one.post.equals(both.post)
        assert one.grad_pre is one.grad_post is one.grad_weight is None
        assert one.theory.grad_pre is None
        assert one.grad_outcome == "absent"
        assert math.isnan(one.grad_factor)
        assert "gradient" not in str(one)
        with pytest.raises(ValueError, match="different backward"):
            one + ic.propagate([20, 30, 9], trials=range(4, 6), backward=True)

    def test_the_streams_reproduce_the_measurement(self):
        """∂/∂x at the top is the stream `output_gradient`; what comes out is `chain_backward`'s."""
        result = ic.propagate(
            [7, 5, 3], activation="gelu", batch=6, trials=range(11, 12), backward=True
        )
        draw = {"seed": 0, "trial": 11}
        x = ic.normal()((6, 7), name="input", **draw)
        dy = ic.normal()((6, 3), name="output_gradient", **draw)
        weights = [result.weights(11, layer) for layer in range(2)]
        _, dweights, _ = ic.chain_backward(x, weights, dy, activation="gelu")
        for layer, dw in enumerate(dweights):
            expected = np.mean(dw.astype(np.float64) ** 2)
            assert result.grad_weight.second_moment[layer] == pytest.approx(expected, rel=1e-13)
        top = ic.moments(dy)
        for field in ("mean", "second_moment", "variance", "abs_max", "zero_fraction"):
            assert getattr(result.grad_post, field)[1] == getattr(top, field)

    def test_trials_merge_and_files_keep_every_bit(self, tmp_path):
        chain = {"widths": [20, 30, 9], "activation": "tanh", "backward": True}
        whole = ic.propagate(**chain, trials=9)
        parts = [ic.propagate(**chain, trials=r) for r in (range(4), range(4, 9))]
        parts[0].save(tmp_path / "part.json")
        total = parts[1] + ic.Propagation.load(tmp_path / "part.json")
        for result in (total, pickle.loads(pickle.dumps(whole))):
            assert result.equals(whole)
            assert (result.verdict, result.grad_factor) == (whole.verdict, whole.grad_factor)
            for side in ("grad_pre", "grad_post", "grad_weight"):
                assert getattr(result, side).equals(getattr(whole, side))
        again = ic.propagate(**whole.spec, seed=whole.seed, trials=whole.trials[0], threads=2)
        assert again.equals(whole)
        data = whole.to_dict()
        assert data["grad_weight"]["second_moment"] == whole.grad_weight.second_moment.tolist()
        for change in ({"cross": data["record"]["cross"][:1]}, {"maxima": [1.0] * 4}):
            with pytest.raises(ValueError, match="damaged"):
                ic.Propagation.from_dict({**data, "record": {**data["record"], **change}})
        with pytest.raises(ValueError, match="damaged"):
            ic.Propagation.from_dict({**data, "spec": {**data["spec"], "backward": 1}})

    def test_the_standard_error_of_the_factor(self):
        """The delta method over the very trials, from the middle layer to the first."""
        trials = [ic.propagate([16] * 6, trials=range(t, t + 1), backward=True) for t in range(20)]
        whole = sum(trials[1:], trials[0])
        from_, to = (
            np.array([one.grad_pre.second_moment[layer] for one in trials]) for layer in (3, 0)
        )
        factor = (to.mean() / from_.mean()) ** (1 / 3)
        influence = to / to.mean() - from_ / from_.mean()
        assert whole.grad_factor == pytest.approx(factor, rel=1e-11)
        assert whole.grad_factor_se == pytest.approx(
            factor * influence.std(ddof=1) / math.sqrt(20) / 3, rel=1e-10
        )

    def test_a_gradient_that_overflows_or_vanishes_is_said_to(self):
        chain = {"activation": "linear", "batch": 4, "trials": 3, "backward": True}
        result = ic.propagate([8] * 41, init="normal(std=10)", **chain)
        assert result.grad_outcome == "overflows"
        layers = np.flatnonzero(~np.isfinite(result.grad_weight.second_moment)) + 1
        assert f"gradient overflows float32 at layer {layers[-1]} (" in result.verdict
        result = ic.propagate([8] * 5, init=["ones", "ones", "zeros", "ones"], **chain)
        assert result.grad_outcome == "vanishes"
        assert "gradient vanishes: exactly 0 from layer 2" in result.verdict

    def test_a_table_of_its_own(self):
        result = ic.propagate([8] * 3, trials=3, backward=True)
        assert "∂" not in str(replace(result, spec={**result.spec, "backward": False}))
        caption = "backward, from a standard normal gradient by the last x:"
        lines = str(result).splitlines()
        row = " ".join(lines[lines.index(caption) + 2].split())
        for stats in (result.grad_pre, result.grad_weight):
            assert measured(stats.second_moment[0], stats.se.second_moment[0]) in row
        for stats in (result.grad_post, result.theory.grad_pre, result.theory.grad_weight):
            assert f" {number(stats.second_moment[0])}" in row


class TestLogEnergy:
    def test_relu_networks_have_the_exact_finite_width_law(self):
        """Of one input, ln(energy / input energy): mean and variance at every depth, forward, and
        backward by x, where each layer multiplies the gradient likewise (Hanin & Nica 2019)."""
        widths, trials = [32] * 9, 3000
        result = ic.propagate(widths, batch=1, trials=trials, backward=True)
        for layer in (1, 4, 8):
            law = ic.theory.log_energy("relu", widths[: layer + 1])
            stats, at = result.post, layer - 1
            assert near(stats.log_energy_mean[at], stats.se.log_energy_mean[at], law.mean)
            assert near(stats.log_energy_var[at], stats.se.log_energy_var[at], law.var)
            low, *_, high = stats.log_energy_quantiles[:, at]
            assert high - low == pytest.approx(2 * 1.645 * math.sqrt(law.var), rel=0.15)
            # of a law that is normal but for a part in the width
            normal = law.var * math.sqrt(2 / trials)
            assert stats.se.log_energy_var[at] == pytest.approx(normal, rel=0.2)
        top = result.grad_post
        assert top.log_energy_mean[7] == top.log_energy_var[7] == 0
        assert top.log_energy_quantiles[2, 7] < 1 / 32
        assert np.all(np.diff(top.log_energy_var) < 0)
        assert result.pre.dead_trials.tolist() == [0] * 8

    def test_the_quantiles_are_those_of_the_trials(self):
        trials = [ic.propagate([8] * 4, trials=range(t, t + 1)) for t in range(25)]
        whole = sum(trials[1:], trials[0])
        logs = [one.pre.log_energy_mean[2] for one in trials]
        assert whole.pre.log_energy_mean[2] == pytest.approx(np.mean(logs), rel=1e-14)
        assert whole.pre.log_energy_var[2] == pytest.approx(np.var(logs, ddof=1), rel=1e-12)
        for row, fraction in enumerate((0.05, 0.25, 0.5, 0.75, 0.95)):
            found = whole.pre.log_energy_quantiles[row, 2]
            beside = [np.quantile(logs, fraction, method=m) for m in ("lower", "higher")]
            assert beside[0] - 0.05 <= found <= beside[1] + 0.05

    @pytest.mark.parametrize("method", ["dense", "gram"])
    def test_of_weights_it_is_relative_to_the_gradient_that_enters(self, method):
        """ln(E[(∂/∂W)²] / E[(∂/∂x_L)²]), from the two of each trial; merged, the same."""
        chain = {"widths": [6, 8, 5], "batch": 3, "backward": True, "method": method}
        trials = [ic.propagate(**chain, trials=range(t, t + 1)) for t in range(30)]
        whole = sum(trials[1:], trials[0])
        assert whole.equals(ic.propagate(**chain, trials=30))
        logs = np.log([
            one.grad_weight.second_moment / one.grad_post.second_moment[-1] for one in trials
        ])  # fmt: skip
        stats = whole.grad_weight
        np.testing.assert_allclose(stats.log_energy_mean, logs.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(stats.log_energy_var, logs.var(axis=0, ddof=1), rtol=1e-12)
        np.testing.assert_allclose(
            stats.se.log_energy_mean, logs.std(axis=0, ddof=1) / math.sqrt(30), rtol=1e-12
        )
        fourth = np.mean((logs - logs.mean(axis=0)) ** 4, axis=0)
        spread = (fourth - 27 / 29 * logs.var(axis=0, ddof=1) ** 2) / 30
        np.testing.assert_allclose(stats.se.log_energy_var, np.sqrt(spread), rtol=1e-11)
        lower, higher = (
            np.quantile(logs, QUANTILES, axis=0, method=m) for m in ("lower", "higher")
        )
        assert np.all(lower - 1 / 32 <= stats.log_energy_quantiles)
        assert np.all(stats.log_energy_quantiles <= higher + 1 / 32)
        assert np.isfinite(stats.se.log_energy_quantiles).all()
        assert stats.dead_trials.tolist() == stats.overflow_trials.tolist() == [0, 0]

    def test_of_weights_dead_and_overflowed_trials_are_counted_apart(self):
        """Where x or the gradient is 0 in all the batch, ∂/∂W is; where one is not finite, too."""
        result = ic.propagate([2] * 4, batch=1, trials=200, backward=True)
        dead, by_h = result.grad_weight.dead_trials, result.grad_pre.dead_trials
        below = [0, *result.post.dead_trials[:-1]]
        assert np.all(np.maximum(below, by_h) <= dead)
        assert np.all(dead <= np.add(below, by_h))
        assert 0 < dead[0] < 200
        assert np.isfinite(result.grad_weight.log_energy_mean).all()
        result = ic.propagate([8] * 4, init="normal(std=1e20)", trials=4, backward=True)
        assert result.grad_weight.overflow_trials.tolist() == [4, 4, 4]
        assert np.isnan(result.grad_weight.log_energy_mean).all()
        assert np.isnan(result.grad_weight.se.log_energy_quantiles).all()

    @pytest.mark.parametrize("trials", [1, 2])
    def test_one_trial_has_no_standard_error(self, trials):
        result = ic.propagate([8] * 3, trials=trials, backward=True)
        for side in ("pre", "post", "grad_pre", "grad_post", "grad_weight"):
            se = getattr(result, side).se
            assert np.isnan(se.log_energy_var).all() == (trials == 1)
            assert np.isnan(se.log_energy_quantiles[2]).all() == (trials == 1)
            assert np.isnan(se.log_energy_quantiles[[0, 1, 3, 4]]).all() == (trials < 4)

    def test_it_is_relative_to_the_input(self):
        """A linear layer of ones after inputs of its own: units agree, so ln of Σ² over energy."""
        result = ic.propagate([1, 3], init="constant(2)", activation="linear", trials=5)
        for stats in (result.pre, result.post):
            assert stats.log_energy_mean[0] == pytest.approx(math.log(4), rel=1e-13)
            assert stats.log_energy_var[0] < 1e-26

    def test_dead_and_overflowed_trials_are_counted_apart(self):
        # both of two units are off in a quarter of the layers that are still alive
        trials, alive = 400, 0.75 ** np.arange(1, 6)
        result = ic.propagate([2] * 6, batch=1, trials=trials)
        dead = result.post.dead_trials
        limits = 5 * np.sqrt(trials * alive * (1 - alive))
        assert np.all(np.abs(dead - trials * (1 - alive)) <= limits)
        assert np.all(result.post.overflow_trials == 0)
        assert np.isfinite(result.post.log_energy_mean).all()
        result = ic.propagate([8] * 3, init="normal(std=1e30)", trials=4)
        assert result.pre.overflow_trials.tolist() == [0, 4]
        assert np.isnan(result.pre.log_energy_quantiles[:, 1]).all()

    def test_files_and_sums_keep_every_bit(self, tmp_path):
        whole = ic.propagate([5] * 3, trials=9, backward=True)
        parts = [ic.propagate([5] * 3, trials=r, backward=True) for r in (range(4), range(4, 9))]
        parts[1].save(tmp_path / "part.json")
        total = ic.Propagation.load(tmp_path / "part.json") + parts[0]
        assert total.equals(whole)
        for side in ("pre", "post", "grad_pre", "grad_post"):
            assert getattr(total, side).equals(getattr(whole, side))


class TestAlike:
    def test_inputs_of_relu_layers_become_alike(self):
        """Independent rows have cosine 0 in the first h, and the arc-cosine kernel's after relu:
        1/π for φ = relu at c = 0 (Cho & Saul 2009)."""
        result = ic.propagate([400] * 4, batch=8, trials=100, backward=True)
        pre, post, gradient = result.pre, result.post, result.grad_post
        assert near(pre.cosine[0], pre.se.cosine[0], 0)
        assert near(post.cosine[0], post.se.cosine[0] + 1e-3, 1 / math.pi)
        assert np.all(np.diff(pre.cosine) > 0.1)
        assert near(gradient.cosine[2], gradient.se.cosine[2], 0)
        one = ic.propagate([4, 4], batch=1, trials=3)
        assert np.isnan(one.pre.cosine).all()

    def test_a_normal_layer_has_kurtosis_3(self):
        """Given the inputs a unit is normal; over batch and units E m4/m2² is 3 but for the spread
        of the inputs' norms, a few parts in the width."""
        result = ic.propagate([512, 512], batch=16, trials=100)
        assert near(result.pre.kurtosis[0], result.pre.se.kurtosis[0] + 0.02, 3)
        assert near(result.pre.batch_variance[0], result.pre.se.batch_variance[0], 2 * 15 / 16)
        assert result.pre.dead_fraction[0] == 0

    def test_dead_units_are_counted(self):
        """relu of a bias of −1 alone: every unit is dead, none is before φ."""
        result = ic.propagate([4, 4], init="zeros", bias="constant(-1)", trials=2)
        assert result.post.dead_fraction.tolist() == [1]
        assert result.pre.dead_fraction.tolist() == [0]
        result = ic.propagate([4, 4], init="zeros", bias="constant(70000)", trials=2)
        assert result.pre.float16_overflow_fraction.tolist() == [1]
        assert result.pre.cosine.tolist() == [1]


class TestResults:
    def test_spec_runs_it_again(self):
        result = ic.propagate([9, 17, 5], bias="zeros", last="linear", seed=2**64 - 1, trials=7)
        again = ic.propagate(**result.spec, seed=result.seed, trials=result.trials[0])
        assert again.equals(result)

    def test_a_loaded_result_continues(self, tmp_path):
        ic.propagate([8] * 3, trials=6).save(tmp_path / "chain.json")
        loaded = ic.Propagation.load(tmp_path / "chain.json")
        more = ic.propagate(**loaded.spec, seed=loaded.seed, trials=range(6, 10))
        assert (loaded + more).equals(ic.propagate([8] * 3, trials=10))

    def test_seeds_and_trials_differ(self):
        a, b = (ic.propagate([8] * 3, trials=2, seed=seed) for seed in (0, 1))
        c = ic.propagate([8] * 3, trials=range(2, 4))
        moments = {tuple(result.pre.second_moment) for result in (a, b, c)}
        assert len(moments) == 3

    def test_weights_are_those_that_were_drawn(self):
        result = ic.propagate(
            [7, 5, 3], init=["kaiming_normal", "xavier_uniform"], trials=4, seed=9
        )
        for trial in (0, 3):
            for layer, shape in enumerate([(5, 7), (3, 5)]):
                init = ic.initializer(result.spec["init"][layer])
                expected = init(shape, seed=9, name=f"layers.{layer}.weight", trial=trial)
                assert np.array_equal(result.weights(trial, layer), expected)

    def test_weights_reproduce_the_measurement(self):
        result = ic.propagate([7, 5, 3], bias="normal(std=0.5)", batch=6, trials=range(11, 12))
        draw = {"seed": 0, "trial": 11}
        x = ic.normal()((6, 7), name="input", **draw)
        biases = [
            ic.normal(0.5)((n,), name=f"layers.{i}.bias", **draw) for i, n in enumerate((5, 3))
        ]
        _, layers = ic.chain(
            x, [result.weights(11, i) for i in range(2)], biases, activation="relu"
        )
        assert np.array_equal(layers.pre.second_moment, result.pre.second_moment)
        assert np.array_equal(layers.post.mean, result.post.mean)

    def test_weights_of_what_it_does_not_hold_are_refused(self):
        result = ic.propagate([7, 5, 3], trials=range(2, 4))
        with pytest.raises(ValueError, match="trials 2 to 3; got 4"):
            result.weights(4, 0)
        with pytest.raises(ValueError, match="layer must be from 0 to 1; got -1"):
            result.weights(2, -1)

    @pytest.mark.parametrize("index", [None, 0.0, True, "0", np.array([0])])
    def test_indices_of_weights_are_integers(self, index):
        result = ic.propagate([7, 5, 3], trials=1)
        with pytest.raises(TypeError, match="trial must be an integer"):
            result.weights(index, 0)
        with pytest.raises(TypeError, match="layer must be an integer"):
            result.weights(0, index)
        assert result.weights(np.uint8(0), np.int64(1)).shape == (3, 5)

    def test_comparison_has_common_random_numbers(self):
        comparison = ic.compare_inits(
            ["kaiming_normal", ic.kaiming_normal().scaled(2), ["ones", "zeros"]], [16] * 3, trials=5
        )
        single, double, _ = comparison
        assert single.equals(ic.propagate([16] * 3, trials=5))
        # A power of two scales every float exactly, so that common numbers show to the bit.
        assert np.array_equal(double.pre.second_moment, [4, 16] * single.pre.second_moment)
        lines = str(comparison).splitlines()
        assert "kaiming_normal().scaled(2" in lines[1]
        assert sum(line.startswith("kaiming_normal() ") for line in lines) == 1
        assert "<table>" in comparison._repr_html_()


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"widths": [3]}, ValueError, "widths must be a sequence of two or more"),
            ({"widths": 3}, TypeError, "widths must be a sequence"),
            ({"widths": "33"}, TypeError, "widths must be a sequence"),
            ({"widths": [3, 0]}, ValueError, r"widths\[1\] must be a positive integer; got 0"),
            ({"widths": [3, 2.0]}, TypeError, r"widths\[1\] must be a positive integer; got 2.0"),
            ({"widths": [True, 2]}, TypeError, r"widths\[0\]"),
            ({"widths": {3, 4}}, TypeError, "widths must be a sequence"),
            ({"widths": {3: 4, 4: 3}}, TypeError, "widths must be a sequence"),
            ({"widths": b"33"}, TypeError, "widths must be a sequence"),
            ({"widths": np.array(3)}, ValueError, "widths must be a sequence"),
            ({"widths": np.array([[3, 4]])}, ValueError, "widths must be a sequence"),
            ({"widths": np.array([3.0, 4.0])}, TypeError, r"widths\[0\]"),
            ({"batch": np.array([3])}, TypeError, r"batch must be a positive integer; got array"),
            ({"batch": np.True_}, TypeError, "batch"),
            ({"batch": "3"}, TypeError, "batch"),
            ({"batch": 0}, ValueError, "batch must be a positive integer; got 0"),
            ({"batch": 2.0}, TypeError, "batch must be a positive integer; got 2.0"),
            ({"trials": 0}, ValueError, "trials must be a positive integer; got 0"),
            ({"trials": 1.5}, TypeError, "trials"),
            ({"trials": True}, TypeError, "trials"),
            ({"trials": range(0)}, ValueError, "trials must be a range"),
            ({"trials": range(0, 4, 2)}, ValueError, "trials must be a range"),
            ({"trials": range(-1, 4)}, ValueError, "trials must be a range"),
            ({"trials": np.arange(3)}, TypeError, "trials must be a positive integer; got array"),
            ({"trials": "3"}, TypeError, "trials"),
            ({"trials": math.nan}, TypeError, "trials"),
            ({"trials": range(3, 0, -1)}, ValueError, "trials must be a range .* range"),
            ({"trials": range(2**63, 2**63 + 2)}, ValueError, "trials must be a range"),
            ({"method": np.array(["dense"])}, TypeError, "method must be 'dense' or 'gram'"),
            ({"method": "Dense"}, ValueError, "method must be 'dense' or 'gram'; got 'Dense'"),
            ({"method": None}, TypeError, "method must be"),
            ({"seed": -1}, ValueError, "seed"),
            ({"seed": None}, TypeError, "seed"),
            ({"dtype": "float16"}, TypeError, "dtype must be float32 or float64; got 'float16'"),
            ({"dtype": None}, TypeError, "dtype"),
            ({"activation": "rleu"}, ValueError, "^activation must be one of .*rleu"),
            ({"activation": 3}, TypeError, "activation"),
            ({"activation": ["relu"]}, ValueError, "activation must be one value, or a list of 2"),
            ({"last": "rleu"}, ValueError, "last: .*rleu"),
            ({"init": "kaiming"}, ValueError, "init: .*kaiming"),
            ({"init": ["ones", "onse"]}, ValueError, r"init\[1\]: .*onse"),
            ({"init": ["ones"] * 3}, ValueError, "init must be one value, or a list of 2"),
            ({"init": None}, TypeError, "init"),
            ({"init": "normal(std=-1)"}, ValueError, "init"),
            ({"init": "dirac"}, ValueError, "init of layer 0: shape must have 3 to 5 axes"),
            ({"init": ["ones", "normal(1e99)"]}, ValueError, "init of layer 1: .*must be finite"),
            ({"init": np.ones((3, 3))}, TypeError, "init: .*got array"),
            ({"init": {"ones"}}, TypeError, "init: .*got {'ones'}"),
            ({"init": b"ones"}, TypeError, "init: .*got b'ones'"),
            ({"bias": "orthogonal"}, ValueError, "bias of layer 0: shape must have two axes"),
            ({"bias": [None, "constant(1e99)"]}, ValueError, "bias of layer 1: .*must be finite"),
            ({"bias": lambda *_: 0}, TypeError, "bias: "),
            ({"bias": np.zeros(3)}, TypeError, "bias: .*got array"),
            ({"bias": "zero"}, ValueError, "bias: .*zero"),
            ({"bias": [None]}, ValueError, "bias must be one value, or a list of 2"),
            ({"norm": "batch"}, ValueError, "^norm must be None or one of rms, layer, got 'batch'"),
            ({"norm": 1}, TypeError, "norm must be None or one of rms, layer, got 1"),
            ({"norm": ["rms"]}, ValueError, "norm must be one value, or a list of 2"),
            ({"residual": "1/L"}, ValueError, r"residual must be .*'1/sqrt\(L\)', got '1/L'"),
            ({"residual": math.nan}, ValueError, "^residual must be a finite real number, got nan"),
            ({"residual": 1j}, TypeError, "residual must be a finite real number"),
            ({"residual": [1.0, "x"]}, ValueError, r"^residual\[1\] must be None.*'x'"),
            ({"residual": np.ones(3)}, ValueError, "residual must be one value, or a list of 2"),
            ({"norm": ["rms", "l2"]}, ValueError, r"^norm\[1\] must be None or one of"),
            ({"residual": [1.0] * 3}, ValueError, "residual must be one value, or a list of 2"),
            ({"widths": [3, 3, 4], "residual": 1}, ValueError, "residual: layer 1 .* 3 and 4"),
            ({"threads": 0}, ValueError, "threads"),
            ({"executor": 3}, TypeError, "executor"),
            ({"progress": 3}, TypeError, "progress"),
            ({"backward": 1}, TypeError, "backward must be True or False; got 1"),
            ({"backward": None}, TypeError, "backward"),
        ],
    )
    def test_refused_before_anything_runs(self, change, error, words):
        arguments = {"widths": [3, 3, 3], "trials": 10**15, **change}
        with pytest.raises(error, match=words):
            ic.propagate(**arguments)

    @pytest.mark.parametrize(
        ("inits", "error"),
        [("ones", TypeError), ([], ValueError), (None, TypeError), (["onse"], ValueError)],
    )
    def test_inits_of_a_comparison(self, inits, error):
        with pytest.raises(error, match="init"):
            ic.compare_inits(inits, [3, 3], trials=10**15)

    def test_numpy_integers_and_arrays(self):
        plain = ic.propagate([4, 3], batch=2, trials=3, seed=1)
        given = ic.propagate(
            np.array([4, 3]), batch=np.int8(2), trials=np.uint16(3), seed=np.uint64(1)
        )
        assert given.equals(plain)
        assert given.to_dict() == plain.to_dict()

    def test_residuals_of_numpy(self):
        chain = {"widths": [3, 3, 3], "trials": 2}
        for given, plain in (
            (np.array([0.5, 1]), [0.5, 1.0]),
            (np.True_, True),
            (np.False_, None),
            (np.array([True, False]), [True, None]),
            (np.float32(0.5), 0.5),
        ):
            same = ic.propagate(**chain, residual=given)
            assert same.equals(ic.propagate(**chain, residual=plain))


class TestCalibration:
    """Kaiming's E[h²] holds exactly under ReLU, however narrow, deep or briefly sampled a chain."""

    @pytest.mark.parametrize(
        ("width", "layers", "batch", "trials"),
        [(32, 50, 32, 100), (16, 100, 8, 100), (64, 50, 1, 100), (32, 10, 16, 2), (32, 10, 16, 10)],
    )
    def test_a_chain_that_holds_is_seldom_said_not_to(self, width, layers, batch, trials):
        seeds = 60 if ic.isa() != "portable" else 6  # slow there, and the bits are the same
        outcomes = [
            ic.propagate([width] * (layers + 1), batch=batch, trials=trials, seed=seed).outcome
            for seed in range(seeds)
        ]
        assert sum(outcome in ("decays", "explodes") for outcome in outcomes) <= 2

    def test_a_gross_factor_needs_no_many_trials(self):
        result = ic.propagate([32] * 31, init="xavier_normal", trials=10)
        assert result.outcome == "decays"


class TestNormsAndResidualBranches:
    """h = W norm(x) + b, x ← φ(h) or x + m φ(h)."""

    LINEAR: ClassVar = {"widths": [24] * 9, "activation": "linear", "batch": 8, "trials": 200}

    @pytest.mark.parametrize("method", ["dense", "gram"])
    def test_two_worlds(self, method):
        """Branches of variance v: where each sees the stream it multiplies it by 1 + v, behind a
        norm each adds v to it, 1/√L of each in all v. Exact at any width."""
        v, layer = 0.3, np.arange(1, 9)
        init = f"normal(std={math.sqrt(v / 24)})"
        for shape, expected in (
            ({"residual": True}, (1 + v) ** layer),
            ({"residual": 1.0, "norm": "rms"}, 1 + v * layer),
            ({"residual": "1/sqrt(L)", "norm": "rms"}, 1 + v * layer / 8),
            ({"residual": 8**-0.5}, (1 + v / 8) ** layer),
        ):
            result = ic.propagate(**self.LINEAR, init=init, method=method, **shape)
            at = zip(result.post.second_moment, result.post.se.second_moment, expected, strict=True)
            assert all(near(*one) for one in at)
            np.testing.assert_allclose(result.theory.post.second_moment, expected, rtol=1e-12)
            seen = expected if "norm" in shape else None
            if seen is not None:  # every h has the same energy, however loud the stream
                sizes = result.pre.second_moment, result.pre.se.second_moment
                assert all(near(*one, v) for one in zip(*sizes, strict=True))

    @pytest.mark.parametrize("method", ["dense", "gram"])
    def test_gradients_of_the_two_worlds(self, method):
        """Downwards, too: (1 + v)^(layers above) of ∂/∂x without a norm."""
        v = 0.3
        init = f"normal(std={math.sqrt(v / 24)})"
        result = ic.propagate(**self.LINEAR, init=init, method=method, residual=1, backward=True)
        above = np.arange(7, -1, -1)
        for side, expected in (
            (result.grad_post, (1 + v) ** above),
            (result.grad_pre, (1 + v) ** above),
            (result.grad_weight, 8 * (1 + v) ** (above + np.arange(8))),
        ):
            at = zip(side.second_moment, side.se.second_moment, expected, strict=True)
            assert all(near(*one) for one in at)

    @pytest.mark.parametrize("method", ["dense", "gram"])
    @pytest.mark.parametrize("norm", ["rms", "layer"])
    def test_a_norm_divides_gradients_by_what_it_divided(self, norm, method):
        """σ_g²/σ_x², of rows of n independent normals exactly (1 − 1/n) E σ_x⁻² σ_g² (rms) and
        (1 − 2/n) of it (layer), where E n/χ²_k = n/(k − 2)."""
        n, sigma = 20, 3.0
        result = ic.propagate(
            [n, n, n], activation="linear", norm=[None, norm], batch=4, trials=2000,
            init=[f"normal(std={sigma / math.sqrt(n)})", f"normal(std={0.5 / math.sqrt(n)})"],
            backward=True, method=method,
        )  # fmt: skip
        lost, degrees = (1, n) if norm == "rms" else (2, n - 1)
        exact = 0.25 * (1 - lost / n) * n / (n - 2) * n / (degrees - 2) / sigma**2
        gradient = result.grad_post
        assert near(gradient.second_moment[0], gradient.se.second_moment[0], exact)
        assert result.theory.grad_post.second_moment[0] == pytest.approx(0.25 / sigma**2)

    @pytest.mark.parametrize(
        ("name", "norm", "residual"),
        [
            ("gelu", "layer", "1/sqrt(L)"), ("tanh", "rms", 0.5), ("relu", "layer", None),
            ("tanh", None, [None, 0.7, 0.7]),
        ],
    )  # fmt: skip
    def test_wide_layers_meet_the_theory(self, name, norm, residual):
        """Forward and backward, to a few parts in the width."""
        result = ic.propagate(
            [200] * 4, activation=name, init="lecun_normal", bias="normal(0.3)", batch=4,
            trials=100, backward=True, norm=norm, residual=residual,
        )  # fmt: skip
        for side in ("pre", "post", "grad_pre", "grad_post", "grad_weight"):
            measured, predicted = getattr(result, side), getattr(result.theory, side)
            limits = 5 * measured.se.second_moment + 0.02 * predicted.second_moment
            assert np.all(np.abs(measured.second_moment - predicted.second_moment) <= limits)

    def test_a_branch_of_zero_leaves_the_input_as_it_is(self):
        """ReZero's start: every x has the input's statistics and every ∂/∂x the last one's, bit for
        bit, and no weight has a gradient."""
        result = ic.propagate(
            [30] * 4, norm="layer", residual=0, trials=range(5, 6), batch=6, backward=True
        )
        x, dy = (
            ic.moments(ic.normal()((6, 30), name=name, seed=0, trial=5))
            for name in ("input", "output_gradient")
        )
        for side, top in ((result.post, x), (result.grad_post, dy)):
            for field in ("mean", "second_moment", "variance", "abs_max", "kurtosis"):
                assert set(getattr(side, field)) == {float(getattr(top, field))}
        assert not result.grad_weight.second_moment.any()

    def test_the_drawn_weights_reproduce_the_measurement(self):
        """NumPy on `weights` of a trial, float64."""
        result = ic.propagate(
            [20] * 4, activation="tanh", norm=["layer", None, "rms"], residual=[None, 0.5, 1],
            bias="normal(0.2)", batch=6, trials=range(3, 4), dtype="float64",
        )  # fmt: skip
        draw = {"seed": 0, "trial": 3, "dtype": "float64"}
        x = ic.normal()((6, 20), name="input", **draw)
        for layer, (norm, m) in enumerate(zip(["layer", None, "rms"], [None, 0.5, 1], strict=True)):
            centred = x - x.mean(axis=1, keepdims=True) if norm == "layer" else x
            scale = np.sqrt((centred**2).mean(axis=1, keepdims=True)) if norm else 1
            bias = ic.normal(0.2)(20, name=f"layers.{layer}.bias", **draw)
            h = centred / scale @ result.weights(3, layer).T + bias
            x = np.tanh(h) if m is None else x + m * np.tanh(h)
            for side, values in ((result.pre, h), (result.post, x)):
                assert side.second_moment[layer] == pytest.approx(np.mean(values**2), rel=1e-13)
                assert side.mean[layer] == pytest.approx(values.mean(), rel=1e-12)

    @pytest.mark.parametrize("backward", [False, True])
    def test_threads_and_files_keep_every_bit(self, always_shared, tmp_path, backward):
        chain = {
            "widths": [30, 30, 30, 8], "norm": ["rms", None, "layer"], "bias": "normal(0.1)",
            "residual": [0.25, "1/sqrt(L)", None], "backward": backward,
        }  # fmt: skip
        whole = ic.propagate(**chain, trials=3, threads=1)
        assert whole.spec["norm"] == ("rms", None, "layer")
        assert whole.spec["residual"] == (0.25, 1 / math.sqrt(3), None)
        for threads in (2, 3, 7):
            assert ic.propagate(**chain, trials=range(3), threads=threads).equals(whole)
        whole.save(tmp_path / "whole.json")
        again = ic.Propagation.load(tmp_path / "whole.json")
        assert again.equals(whole)
        assert ic.propagate(**again.spec, trials=3).equals(whole)
        assert again.title == whole.title
        data = whole.to_dict()
        for change in (
            {"norm": "batch"}, {"norm": ["rms"] * 2}, {"norm": 1}, {"residual": "1/sqrt(L)"},
            {"residual": True}, {"residual": 1.0}, {"residual": [1.0, math.inf, None]},
        ):  # fmt: skip
            with pytest.raises(ValueError, match="damaged"):
                ic.Propagation.from_dict({**data, "spec": {**data["spec"], **change}})
        plain = ic.propagate(**{**chain, "norm": None}, trials=range(3, 4))
        with pytest.raises(ValueError, match="different norm"):
            whole + plain

    def test_no_scale_is_advised_where_scales_do_not_pass(self):
        """Weights behind a norm, or beside a branch, do not multiply the stream."""
        chain = {"widths": [64] * 11, "init": "normal(std=0.3)", "trials": 20}
        assert ".scaled(" in ic.propagate(**chain).verdict
        for shape in ({"norm": "rms"}, {"residual": 1}):
            assert ".scaled(" not in ic.propagate(**chain, **shape).verdict

    def test_comparisons_share_them(self):
        results = ic.compare_inits(["zeros", "ones"], [8] * 3, norm="rms", residual=1, trials=2)
        for result in results:
            assert (result.spec["norm"], result.spec["residual"]) == ("rms", 1.0)
            assert "norm rms, residual 1," in result.title
        assert len(set(results[0].post.mean)) == 1


class TestFrozen:
    def test_the_specification_cannot_be_changed(self):
        result = ic.propagate([4, 4, 4], trials=2, activation=["relu", "tanh"])
        with pytest.raises(TypeError):
            result.spec["init"] = "zeros"
        widths = result.to_dict()["spec"]["widths"]
        widths.append(7)
        assert result.n_layers == 2
        assert pickle.loads(pickle.dumps(result)).equals(result)


class TestSizes:
    """Sizes that no memory holds are refused in a line; nothing wraps around."""

    @pytest.mark.parametrize(
        ("widths", "keywords"),
        [
            ([2, 2], {"batch": 2**61}),
            ([2, 2], {"batch": 2**64}),
            ([2**60 - 1, 1], {"batch": 1}),
            ([2**62, 1], {}),
            ([2**70, 1], {}),
            ([2, 2], {"trials": 2**63}),
            ([2, 2], {"trials": 2**70}),
        ],
    )
    def test_too_large(self, widths, keywords):
        with pytest.raises((ValueError, MemoryError), match=r"widths|batch|trials"):
            ic.propagate(widths, **{"trials": 1, **keywords})


@pytest.mark.parametrize("backward", [False, True])
def test_what_no_memory_holds_is_said_in_bytes(backward):
    with pytest.raises(
        MemoryError, match=rf"widths up to {2**30} and batch {2**20} need \d+ bytes"
    ):
        ic.propagate([2**30, 1], batch=2**20, trials=2, backward=backward)


def test_an_overflow_of_the_second_moment_alone_is_told_apart():
    result = ic.propagate([8] * 7, init="normal(std=1e30)", trials=2, dtype="float64")
    assert result.outcome == "overflows"
    assert "second moment alone" in result.verdict


@pytest.mark.parametrize(("dtype", "std"), [("float32", 1e30), ("float64", 1e90)])
def test_a_table_says_overflow_wherever_a_trial_did(dtype, std):
    """By entries or by squares alone; gradients by W, of which no entries are counted, too."""
    init = ic.normal(std)
    result = ic.propagate([8] * 4, init=init, last="linear", trials=3, dtype=dtype, backward=True)
    (_, (_, *forward)), (_, (names, *backward)) = result.tables()
    by_weight = names.index("E[(∂/∂W)²] ± s.e.")
    for rows, at, stats in (
        (forward, 1, result.pre),
        (backward, 1, result.grad_pre),
        (backward, by_weight, result.grad_weight),
    ):
        overflows = stats.overflow_trials > 0
        assert overflows.any()
        assert [row[at] == "overflow" for row in rows] == overflows.tolist()


def test_inputs_of_zero_leave_the_energy_that_biases_give():
    """Where nothing enters there is no ratio to it, and nothing has overflowed."""
    result = ic.propagate([8] * 4, x=np.zeros((4, 8)), bias="normal(std=1)", trials=10)
    assert not result.pre.overflow_trials.any()
    assert np.isfinite(result.pre.log_energy_mean).all()
    assert "overflow" not in str(result)


def test_what_saturates_early_may_yet_explode():
    """The last layers alone can be what saturation is about."""
    early = ic.propagate(
        [64] * 11, init="normal(std=5)", activation=["tanh"] + ["relu"] * 9, trials=20
    )
    assert early.outcome == "explodes"
    late = ic.propagate([64] * 5, init="normal(std=5)", activation="tanh", trials=20)
    assert late.outcome == "saturates"


def test_a_multiplier_that_the_dtype_does_not_hold_is_refused():
    with pytest.raises(
        ValueError, match=r"residual of layer 1 must be .* float32 holds; got -1e\+39"
    ):
        ic.propagate([4] * 3, residual=[1.0, -1e39])
    ic.propagate([4] * 3, residual=[1.0, -1e39], dtype="float64", trials=1)
