# SPDX-License-Identifier: BSD-3-Clause
"""propagate_attention and compare_scalings: known laws, gradients, bits, merging, arguments."""

import itertools
import math
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import initcore as ic
from initcore.experiments.attention import _experiment
from initcore.experiments.attention_trial import Attention
from initcore.experiments.norms import Norm
from initcore.results.attention import WEIGHTS
from initcore.results.attention_links import LINKS, MEANS, PULL_STDS

GO = np.zeros(1, np.int32)  # a flag that nobody sets
SMALL = {"d_model": 32, "n_heads": 2, "seq": 9}


def near(measured, se, expected, sigmas=5.0):
    """Whether a mean over trials agrees with an expectation."""
    return abs(measured - expected) <= sigmas * se


def run(**arguments):
    return ic.propagate_attention(**{**SMALL, "trials": 3, **arguments})


class TestKnownLaws:
    """Logit variances for q and k of variance 1: none d_k; 1/√d_k → 1; 1/d_k → 1/d_k; 1/√d_model →
    d_k/d_model; absorbed → 1; RMS-normed q and k without a scale → d_k; of unit length → g²/d_k."""

    @pytest.mark.parametrize(
        ("scaling", "variance"),
        [
            ("none", 32),
            ("sqrt_dk", 1),
            ("dk", 1 / 32),
            ("sqrt_dmodel", 32 / 128),
            ("absorbed", 1),
            ("qk_norm(g=1)", 32),
            ("qk_norm", 1),
            ("qk_norm('l2', g=10)", 100 / 32),
            ("mup(base=8)", 8 / 32),
            ("inverse_layer(1)", 1 / 4),
        ],
    )
    def test_logit_variance(self, scaling, variance):
        result = ic.propagate_attention(
            d_model=128, n_heads=4, seq=32, scaling=scaling, trials=60, seed=1
        )
        forward, se = result.forward, result.forward.se
        for name in LINKS[:-2]:
            predicted = getattr(result.theory.forward, name)
            # float32 rounds what a norm makes exactly 1
            assert near(getattr(forward, name), getattr(se, name) + 1e-7 * predicted, predicted)
        assert near(forward.logits, se.logits, variance)
        assert result.theory.forward.logits == pytest.approx(variance)
        rows = result.rows
        assert near(rows.logit_var, rows.se.logit_var, variance * (1 - 1 / 32))

    @pytest.mark.parametrize("d_k", [32, 64, 128])
    def test_std_of_raw_logits(self, d_k):
        """5.66, 8.00, 11.31 at d_k 32, 64, 128."""
        result = ic.propagate_attention(d_model=d_k, n_heads=1, seq=16, trials=60)
        std = result.forward.std
        assert near(std.raw_logits, std.se.raw_logits, math.sqrt(d_k))

    def test_rows_are_those_of_independent_logits(self):
        """128 logits of std 1: E Σp² .0201917, E H 4.365642, E max p .0685; of std 2: .109864,
        3.193970, .239369. Wide heads of independent tokens come close."""
        for scale, sum_sq, entropy, max_prob in [
            (1, 0.0201917, 4.365642, 0.0685439),
            (2, 0.109864, 3.193970, 0.239369),
        ]:
            result = ic.propagate_attention(
                d_model=1024,
                n_heads=2,
                seq=128,
                scaling=f"constant({scale / math.sqrt(512)})",
                trials=10,
            )
            assert result.rows.sum_sq == pytest.approx(sum_sq, rel=0.02)
            assert result.rows.entropy == pytest.approx(entropy, rel=0.005)
            assert result.rows.max_prob == pytest.approx(max_prob, rel=0.02)
            theory = result.theory.rows
            assert theory.entropy == pytest.approx(entropy, rel=0.003)
            assert theory.sum_sq == pytest.approx(sum_sq, rel=0.02)

    def test_a_causal_row_averages_over_its_number_of_keys(self):
        from initcore import theory

        result = ic.propagate_attention(d_model=64, n_heads=1, seq=20, causal=True, trials=2)
        degrees = 64
        assert result.theory.rows.logit_var == pytest.approx(1 - np.mean(1 / np.arange(1, 21)))
        expected = np.mean([theory.softmax(n, 1.0).entropy for n in range(1, 21)])
        assert result.theory.rows.entropy == pytest.approx(expected, rel=1 / degrees)
        fine = ic.propagate_attention(**SMALL | {"seq": 8}, causal=True, trials=1)  # no nodes
        coarse = ic.propagate_attention(**SMALL | {"seq": 40}, causal=True, trials=1)
        for rows, seq in [(fine.theory.rows, 8), (coarse.theory.rows, 40)]:
            points = [(1 + s * math.sqrt(2 / 16 + 1 / 64) + 1 / 8) for s in (-1, 1)]
            high = (1 - points[0]) / (points[1] - points[0])
            means = [
                np.mean([theory.softmax(n, math.sqrt(p)).sum_sq for n in range(1, seq + 1)])
                for p in points
            ]
            assert rows.sum_sq == pytest.approx((1 - high) * means[0] + high * means[1], rel=1e-5)

    def test_correlated_tokens_share_a_part_that_cancels(self):
        result = ic.propagate_attention(
            d_model=64, n_heads=2, seq=16, norm=None, correlation=0.6, trials=150
        )
        assert near(result.forward.input, result.forward.se.input, 1)
        logits = result.theory.forward.logits
        assert logits == pytest.approx(1 + 2 * (1 / 16 + 15 / 16 * 0.36) / 64)
        assert near(result.forward.logits, result.forward.se.logits, logits)
        rows = result.rows
        assert near(rows.logit_var, rows.se.logit_var, 0.4 * 15 / 16)
        # Identical tokens leave a softmax nothing to choose, and come out as they are.
        same = ic.propagate_attention(**SMALL, correlation=1, trials=20, scaling="none")
        assert same.rows.keys_share == pytest.approx(1, rel=1e-5)
        assert same.outcome == "uniform"

    def test_ablations(self):
        """Without the norm the input's scale reaches the logits by its fourth power in E[z²]; with
        it, it does not; and another initializer is another scale."""
        for x_std in (0.7, 1.3):
            bare = ic.propagate_attention(**SMALL, x_std=x_std, norm=None, trials=200)
            assert near(bare.forward.logits, bare.forward.se.logits, x_std**4)
            normed = ic.propagate_attention(**SMALL, x_std=x_std, trials=200)
            assert near(normed.forward.logits, normed.forward.se.logits, 1)
        wide = ic.propagate_attention(**SMALL, init="kaiming_normal", trials=200)
        assert near(wide.forward.logits, wide.forward.se.logits, 4)
        torch = run(init=["xavier_uniform", "xavier_uniform", "orthogonal", "torch_linear"])
        assert torch.spec["init"][2] == "orthogonal()"
        assert torch.theory.forward.q == pytest.approx(1)
        assert torch.theory.forward.v == pytest.approx(1)
        assert torch.forward.v == pytest.approx(1, rel=1e-5)  # orthogonal and of fixed length

    def test_verdicts(self):
        sizes = {"d_model": 128, "n_heads": 2, "seq": 64, "trials": 4}
        words = {
            scaling: ic.propagate_attention(**sizes, scaling=scaling).verdict
            for scaling in ("sqrt_dk", "none", "dk")
        }
        assert words["sqrt_dk"].startswith("comfortable: logits of standard deviation ")
        assert words["none"].startswith("saturated: ")
        assert words["none"].endswith(" of the rows nearly one-hot")
        assert words["dk"].startswith("uniform: ")
        assert words["dk"].endswith("attention cannot choose")
        for causal in (False, True):  # two keys, of which one always has a half or more
            two = ic.propagate_attention(**SMALL | {"seq": 2}, trials=200, causal=causal)
            assert two.outcome == "comfortable"
            assert two.rows.max_prob > 0.5
        alone = run(seq=1)
        assert alone.verdict == "uniform: no row has more than one key"
        assert (alone.rows.max_prob, alone.rows.entropy) == (1, 0)
        overflow = run(init="normal(std=1e30)")
        assert overflow.outcome == "nonfinite"
        assert overflow.rows.nonfinite_fraction == 1


class TestStopping:
    """A trial of many seconds must not be waited for."""

    @pytest.mark.parametrize("where", ["forward", "statistics_at", "backward"])
    def test_nothing_is_run_after_the_flag(self, monkeypatch, where):
        """It is set as the heads begin; the kernel that follows ends, and the trial with it."""
        cancel = np.zeros(1, np.int32)
        original = getattr(Attention, where)

        def stop(self, *arguments):
            cancel[0] = 1
            original(self, *arguments)
            raise AssertionError("the kernel did not stop")

        monkeypatch.setattr(Attention, where, stop)
        experiment = _experiment(
            32, 2, 9, None, 1, "sqrt_dk", "xavier_normal", "rms", 1.0, 0.0, False, 0, True
        )
        worker = experiment.worker()
        assert worker.run(0, 2, cancel) is False
        assert worker.record().columns[0].finite == 0

    def test_products_stop(self):
        experiment = _experiment(
            32, 2, 9, None, 1, "sqrt_dk", "xavier_normal", "rms", 1.0, 0.0, False, 0, True
        )
        assert experiment.worker().run(0, 1, np.ones(1, np.int32)) is False


class TestSameBits:
    def test_absorbed_equals_sqrt_dk(self):
        """The same bits where √d_k is a power of two, to rounding elsewhere."""
        for d_k, exact in [(16, True), (64, True), (32, False), (24, False)]:
            a, b = (
                run(d_k=d_k, scaling=scaling, causal=True) for scaling in ("sqrt_dk", "absorbed")
            )
            for record_a, record_b, names in [
                (a.forward, b.forward, LINKS),
                (a.rows, b.rows, MEANS),
            ]:
                for name in names:
                    x, y = getattr(record_a, name), getattr(record_b, name)
                    if name in ("q", "q_normalized", "raw_logits"):
                        assert y * d_k == pytest.approx(x, rel=1e-6)
                    elif exact:
                        assert x == y, name
                    else:
                        assert x == pytest.approx(y, rel=1e-5), name

    @pytest.mark.parametrize("backward", [False, True])
    def test_splits_threads_and_executors(self, backward):
        whole = run(trials=7, backward=backward, causal=True)
        for threads in (1, 2, 3):
            assert run(trials=7, backward=backward, causal=True, threads=threads).equals(whole)
        parts = [
            run(trials=range(*cut), backward=backward, causal=True)
            for cut in itertools.pairwise([0, 1, 5, 7])
        ]
        assert sum(parts[2:] + parts[:1], parts[1]).equals(whole)
        with ThreadPoolExecutor(2) as pool:
            assert run(trials=7, backward=backward, causal=True, executor=pool).equals(whole)

    def test_processes(self):
        with ProcessPoolExecutor(1) as pool:
            assert run(executor=pool).equals(run())

    def test_backward_changes_nothing_forward(self):
        """Weights as streams and as arrays multiply to the same bits."""
        forward, both = run(), run(backward=True)
        assert forward.forward.equals(both.forward)
        assert forward.rows.equals(both.rows)
        assert forward.backward is None
        assert forward.scale_gradient is None

    def test_every_instruction_set(self):
        """Draws, products, norms, softmax: no link leaves what is the same on all of them."""
        import os
        import subprocess
        import sys

        from initcore import _core

        code = (
            "import hashlib, initcore as ic\n"
            "r = ic.propagate_attention(d_model=24, n_heads=3, seq=17, norm='layer', "
            "scaling='qk_norm', causal=True, correlation=.3, backward=True, trials=2)\n"
            "print(hashlib.sha256(repr(r.record.to_dict()).encode()).hexdigest())"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "INITCORE_ISA": isa},
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
            for isa in _core.available()
        }
        assert len(digests) == 1

    def test_weights_are_those_that_were_drawn(self):
        result = run(scaling="absorbed", init="xavier_uniform", seed=5)
        q = ic.xavier_uniform().scaled(1 / 4)((32, 32), seed=5, name="attention.q.weight", trial=2)
        assert np.array_equal(result.weights(2, "q"), q)
        x = ic.normal()((9, 32), seed=5, name="input", trial=2)
        normed = Norm(9, 32, "rms").forward(x, GO)
        y, _ = ic.chain(normed, [q], activation="linear")
        one = run(scaling="absorbed", init="xavier_uniform", seed=5, trials=range(2, 3))
        assert one.forward.q == pytest.approx(float(ic.moments(y).second_moment), rel=1e-13)
        with pytest.raises(ValueError, match="trial must be one of"):
            result.weights(3, "q")
        with pytest.raises(ValueError, match="which must be one of q, k, v, o; got 'w'"):
            result.weights(0, "w")


def reference(result, trial=0):
    """A trial in float64 from the formulas: a function from noise added at links to (loss,
    values)."""
    spec, effect = result.spec, result.effect
    shape = (spec["batch"], spec["seq"], spec["d_model"])
    draw = {"seed": result.seed, "trial": trial}
    c = spec["correlation"]
    x = ic.normal(spec["x_std"] * math.sqrt(1 - c))(shape, name="input", **draw).astype(float)
    if c:
        common = (shape[0], 1, shape[2])
        x += ic.normal(spec["x_std"] * math.sqrt(c))(common, name="input.common", **draw)
    weights = [result.weights(trial, which).astype(float) for which in WEIGHTS]
    gradient = ic.normal()((shape[0] * shape[1], shape[2]), name="output_gradient", **draw)

    def norm(x, kind):
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        total = np.mean if kind != "l2" else np.sum
        return x if kind is None else x / np.sqrt(total(x * x, axis=-1, keepdims=True))

    def heads(x):
        return x.reshape(*x.shape[:2], spec["n_heads"], -1).swapaxes(1, 2)

    def forward(scale=effect.logits, **noise):
        values = {}

        def link(name, value):
            values[name] = value + noise.get(name, 0.0)
            return values[name]

        y = link("normalized", norm(link("input", x), spec["norm"]))
        q, k, v = (link(n, y @ w.T) for n, w in zip("qkv", weights, strict=False))
        q, k, v = heads(q), heads(k), heads(v)
        q = link("q_normalized", norm(q, effect.norm))
        k = link("k_normalized", norm(k, effect.norm))
        z = link("logits", scale * link("raw_logits", q @ k.swapaxes(-1, -2)))
        seen = np.tril(np.ones(z.shape[-2:], bool)) if spec["causal"] else np.True_
        e = np.where(seen, np.exp(z - np.max(z, -1, keepdims=True, where=seen, initial=-1e9)), 0)
        values["p"] = p = e / e.sum(-1, keepdims=True)
        o = link("head_output", (p @ v).swapaxes(1, 2).reshape(*shape[:2], -1))
        output = link("output", o @ weights[3].T)
        values["seen"] = np.broadcast_to(seen, z.shape)
        return float(np.sum(output.reshape(gradient.shape) * gradient)), values

    return forward


CASES = [
    {},
    {"causal": True, "norm": "layer", "scaling": "qk_norm", "batch": 2},
    {"norm": None, "scaling": "qk_norm('l2', g=3)", "correlation": 0.4, "x_std": 1.5},
    {"causal": True, "scaling": "absorbed", "init": "orthogonal", "d_k": 5},
]


class TestOneTrial:
    """Beside float64 from the formulas, and central differences."""

    @pytest.mark.parametrize("case", CASES)
    def test_forward(self, case):
        result = run(d_model=12, seq=5, trials=1, **case)
        _, values = reference(result)()
        for name in LINKS:
            value = values[name]
            if "logits" in name:
                value = value[values["seen"]]
            assert getattr(result.forward, name) == pytest.approx(np.mean(value**2), rel=1e-5)
        p, z = values["p"], values["logits"]
        n = values["seen"].sum(-1)
        mean = np.where(values["seen"], z, 0).sum(-1) / n
        spread = np.where(values["seen"], z - mean[..., None], 0)
        assert result.rows.max_prob == pytest.approx(p.max(-1).mean(), rel=1e-5)
        assert result.rows.sum_sq == pytest.approx((p * p).sum(-1).mean(), rel=1e-5)
        assert result.rows.logit_var == pytest.approx(((spread**2).sum(-1) / n).mean(), rel=1e-5)
        entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
        assert result.rows.entropy == pytest.approx(entropy.mean(), rel=1e-5)
        share = (1 / (p * p).sum(-1) / n)[n > 1]
        assert result.rows.keys_share == pytest.approx(share.mean(), rel=1e-5)

    @pytest.mark.parametrize("case", CASES)
    def test_gradients_are_central_differences(self, case):
        result = run(d_model=12, seq=4, trials=1, backward=True, **case)
        forward = reference(result)
        values = forward()[1]
        for name in LINKS:
            shape = values[name].shape
            gradient = np.empty(shape)
            for index in np.ndindex(shape):
                noise = np.zeros(shape)
                noise[index] = 1e-5
                gradient[index] = (
                    forward(**{name: noise})[0] - forward(**{name: -noise})[0]
                ) / 2e-5
            if "logits" in name:
                gradient = gradient[values["seen"]]
            expected = np.mean(gradient**2)
            assert getattr(result.backward, name) == pytest.approx(expected, rel=2e-4), name
        scale, step = result.effect.logits, 1e-5
        slope = (forward(scale + step)[0] - forward(scale - step)[0]) / (2 * step)
        assert result.scale_gradient.second_moment == pytest.approx(slope**2, rel=2e-4)

    def test_the_pull_is_the_slope_of_the_loss(self):
        """−ln p of one key a row, by ln scale, where the rows' mean logit variance is s²."""
        result = run(d_model=12, seq=5, trials=1, backward=True)
        forward = reference(result)
        z = forward()[1]["logits"]
        z = (z / np.sqrt(z.var(-1).mean())).reshape(-1, 5)

        def loss(scale, best):
            scaled = scale * z
            log_p = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
            return -np.mean(log_p.max(-1) if best else log_p.mean(-1))

        pulls = [*result.scale_gradient.any_key, *result.scale_gradient.best_key]
        for pull, (best, std) in zip(
            pulls, itertools.product([False, True], PULL_STDS), strict=True
        ):
            slope = (loss(std * 1.0001, best) - loss(std / 1.0001, best)) / (2 * math.log(1.0001))
            assert pull == pytest.approx(slope, rel=1e-4)


class TestGradients:
    def test_what_any_key_says_to_the_scale(self):
        """E[Σ p z] = s²(1 − E Σp²) for independent logits (Stein): positive at every scale, so
        that training on keys at random makes the scale smaller; on the best key it does not."""
        from initcore import theory

        result = ic.propagate_attention(
            d_model=256, n_heads=2, seq=64, trials=20, backward=True, scaling="dk"
        )
        found = result.scale_gradient
        for pull, s in zip(found.any_key, PULL_STDS, strict=True):
            law = s**2 * 64 / 63 * (1 - theory.softmax(64, s * math.sqrt(64 / 63)).sum_sq)
            assert pull == pytest.approx(law, rel=0.05)
        assert (found.best_key < 0).all()
        # A saturated row that is right hardly pushes; one that is wrong pushes hard.
        assert abs(found.best_key[3]) < 0.5 * abs(found.best_key[1])
        assert found.any_key[3] > 10 * found.any_key[1]

    @pytest.mark.parametrize(
        "case", [{}, {"scaling": "none"}, {"causal": True, "norm": None, "correlation": 0.3}]
    )
    def test_the_theory_of_the_gradients(self, case):
        """By the heads' output d_model·Var(W_O), exactly; by v that times E Σp², and by a row's
        logits d_k·E[v²]·E‖J‖² times that, of independent logits, which wide heads nearly have."""
        result = ic.propagate_attention(
            d_model=512, n_heads=2, seq=8, init="kaiming_normal", trials=40, backward=True, **case
        )
        found, predicted = result.backward, result.theory.backward
        assert (predicted.output, predicted.head_output) == (1, pytest.approx(2))
        for name, error in [("output", 0), ("head_output", 0), ("v", 0.02), ("logits", 0.03),
                            ("raw_logits", 0.03)]:  # fmt: skip
            value, se, expected = (getattr(one, name) for one in (found, found.se, predicted))
            assert near(value, se + error * expected / 5, expected), name
        assert math.isnan(predicted.q)

    def test_the_theory_of_a_rows_gradient(self):
        """d_k·Var(∂/∂head_output)·E[v²]·E‖J‖²/keys, where all rows have one law."""
        from initcore import theory

        result = run(scaling="qk_norm(g=0.5)", init="kaiming_normal", backward=True)
        row = theory.softmax(9, 0.5 * math.sqrt(16))
        assert result.theory.backward.v == pytest.approx(2 * row.sum_sq)
        assert result.theory.backward.logits == pytest.approx(16 * 2 * 2 * row.jacobian_sq / 9)
        assert result.theory.backward.raw_logits == pytest.approx(
            result.theory.backward.logits * 0.25
        )

    def test_saturation_starves_the_logits(self):
        comfortable, saturated = (
            ic.propagate_attention(
                d_model=256, n_heads=1, seq=64, trials=5, backward=True, scaling=scaling
            )
            for scaling in ("sqrt_dk", "constant(4)")
        )
        for result in (comfortable, saturated):
            assert near(result.backward.output, result.backward.se.output, 1)
            # d_model·Var(W_O) = 1
            assert near(result.backward.head_output, result.backward.se.head_output, 1)
        # A row's ∂/∂logits is J·dp with dp white, of variance d_k·1·1: Σ (∂/∂logits)² = d_k ‖J‖².
        # Flat rows are all alike, so that E ‖J‖² is hardly more than (E ‖J‖)².
        norm_sq = comfortable.rows.jacobian_norm**2
        assert 1 < 64 * comfortable.backward.logits / (256 * norm_sq) < 1.1
        assert saturated.backward.logits < 0.3 * comfortable.backward.logits * 64 / 4

    def test_norms_divide_the_gradient_by_their_input(self):
        """Backward, a norm multiplies the variance by σ_g²/σ_x²."""
        one, four = (run(x_std=x_std, backward=True, trials=4) for x_std in (1, 4))
        assert one.backward.normalized == pytest.approx(four.backward.normalized, rel=1e-4)
        assert one.backward.input == pytest.approx(16 * four.backward.input, rel=1e-4)

    def test_zero_vectors(self):
        """A zero vector stays zero under a norm, and passes no gradient (x-transformers #190)."""
        for kind in ("rms", "l2", "layer"):
            norm = Norm(2, 4, kind)
            assert not norm.forward(np.zeros((2, 4), np.float32), GO).any()
            assert not norm.backward(np.ones((2, 4), np.float32), GO).any()
        result = run(
            init=["zeros", "xavier_normal", "xavier_normal", "xavier_normal"],
            scaling="qk_norm",
            backward=True,
        )
        assert result.forward.logits == 0
        assert result.backward.q == 0
        assert result.outcome == "uniform"
        assert run(x_std=0, backward=True).forward.output == 0

    def test_a_scale_of_zero_is_a_number(self):
        result = run(scaling="constant(0)", backward=True)
        assert result.forward.logits == 0
        assert result.forward.raw_logits > 1
        assert result.backward.q == 0
        assert result.scale_gradient.second_moment > 0
        assert np.isnan(result.scale_gradient.any_key).all()


def test_unit_queries_and_keys_meet_at_g():
    """x-transformers #190: unit q = k, d_k 64, scale 10: logit 10."""
    x = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    unit = Norm(6, 64, "l2").forward(x, GO)
    rows = ic.attention_stats(unit, unit, scale=10.0)
    np.testing.assert_allclose(rows.logit_max, 10, rtol=1e-6)


class TestResults:
    @pytest.mark.parametrize("backward", [False, True])
    def test_files(self, tmp_path, backward):
        result = run(backward=backward, scaling="qk_norm", norm=None)
        result.save(tmp_path / "a.json")
        loaded = ic.AttentionPropagation.load(tmp_path / "a.json")
        assert loaded.equals(result)
        assert str(loaded) == str(result)
        again = ic.propagate_attention(**loaded.spec, seed=loaded.seed, trials=loaded.trials[0])
        assert again.equals(result)
        more = ic.propagate_attention(**loaded.spec, seed=loaded.seed, trials=range(3, 5))
        assert (loaded + more).equals(
            run(backward=backward, scaling="qk_norm", norm=None, trials=5)
        )
        assert pickle.loads(pickle.dumps(result)).equals(result)

    def test_damaged_files_are_refused(self):
        data = run().to_dict()
        damages = [
            {"spec": {**data["spec"], "d_k": -1}},
            {"spec": {**data["spec"], "backward": True}},
            {"spec": {**data["spec"], "scaling": "sqrt"}},
            {"spec": {**data["spec"], "norm": "max"}},
            {"trials": [[0, 2]]},
            {"theory": {}},
        ]
        for damage in damages:
            with pytest.raises(ValueError, match=r"damaged initcore\.attention data"):
                ic.AttentionPropagation.from_dict({**data, **damage})
        with pytest.raises(ValueError, match=r"format 'initcore\.attention'"):
            ic.AttentionPropagation.from_dict({**data, "version": 9})

    def test_what_cannot_be_added(self):
        result = run()
        with pytest.raises(ValueError, match="different scaling cannot be added"):
            result + run(scaling="dk", trials=range(3, 4))
        with pytest.raises(ValueError, match="trials in common"):
            result + run()
        with pytest.raises(ValueError, match="different seed"):
            result + replace(run(trials=range(3, 4)), seed=1)
        with pytest.raises(TypeError):
            result + 1

    def test_text(self):
        result = run(backward=True, scaling="qk_norm")
        text = str(result)
        assert text.startswith("qk_norm(): d_model 32, 2 heads of 16, seq 9, rms norm, ")
        assert text.endswith(result.verdict)
        for words in ("q normalized", "logit var", "asked for any key", "gradient's std"):
            assert words in text
            assert words.replace("'", "&#x27;") in result._repr_html_()
        assert "q normalized" not in str(run())
        std = math.sqrt(result.scale_gradient.second_moment)
        error = result.scale_gradient.se.second_moment / (2 * std)
        heading, (_, value, gradient) = result.tables()[2]
        assert heading == ["the scale of q·k", "value", "gradient's std ± s.e."]
        assert float(value) == result.effect.logits == 0.25
        shown = [float(part) for part in gradient.split(" ± ")]
        np.testing.assert_allclose(shown, [std, error], rtol=0.05)
        one = str(run(trials=1))
        assert "±" not in one.replace("± s.e.", "")


class TestComparison:
    def compare(self, *scalings, **arguments):
        return ic.compare_scalings(scalings, **{**SMALL, "trials": 3, **arguments})

    def test_common_random_numbers(self):
        comparison = self.compare("sqrt_dk", ic.scaling.dk(), seed=4)
        assert comparison[0].equals(run(seed=4))
        # The scale is 1/√16 and 1/16: raw logits are the same numbers.
        a, b = (result.forward for result in comparison)
        assert a.q == b.q
        assert a.raw_logits == pytest.approx(b.raw_logits, rel=1e-6)

    def test_table_and_verdicts(self):
        comparison = self.compare(
            "sqrt_dk", "none", "constant(0)", d_model=128, seq=32, backward=True
        )
        heading, *rows = comparison.table()
        assert heading[:3] == ["scaling", "logit var", "theory"]
        assert [row[0] for row in rows] == ["sqrt_dk()", "none()", "constant(c=0)"]
        assert {len(row) for row in rows} == {len(heading)}
        assert comparison.reference is comparison[0]
        first, second, third = comparison.verdicts()
        assert "the gradient" not in first
        ratio = math.sqrt(comparison[1].backward.q / comparison[0].backward.q)
        assert f"the gradient to q is {ratio:.2g}" in second
        assert third.endswith("the gradient to q is 0 of sqrt_dk()'s")
        assert str(comparison).splitlines()[0] == comparison[0].setting
        assert "<table>" in comparison._repr_html_()

    def test_costs_are_shown_beside_the_least(self):
        comparison = self.compare("none", "qk_norm")
        assert len(comparison.seconds) == 2
        assert min(comparison.seconds) > 0
        slow = type(comparison)(comparison.results, (3.0, 1.25))
        assert [row[-1] for row in slow.table()[1:]] == ["×2.40", "×1.00"]
        assert slow.equals(comparison)  # what it took is no part of what was found

    def test_files(self, tmp_path):
        comparison = self.compare("sqrt_dk", "learned(2)")
        comparison.save(tmp_path / "a.json")
        loaded = ic.ScalingComparison.load(tmp_path / "a.json")
        assert loaded.equals(comparison)
        assert loaded.seconds == comparison.seconds
        for damage in ({"results": []}, {"seconds": [1.0]}, {"results": [{}]}):
            with pytest.raises(ValueError, match="initcore"):
                ic.ScalingComparison.from_dict({**comparison.to_dict(), **damage})

    def test_progress_counts_all_of_it(self):
        seen = []
        self.compare("dk", "none", progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (6, 6)
        assert sorted(seen) == seen

    def test_the_same_one_twice_is_refused(self):
        words = r"scalings must differ from each other, got dk\(\), learned\(\) repeatedly"
        with pytest.raises(ValueError, match=words):
            self.compare("dk", "learned", ic.scaling.dk(), "none", "learned(None)")

    @pytest.mark.parametrize("scalings", [[], "dk", None])
    def test_what_is_no_list(self, scalings):
        with pytest.raises((ValueError, TypeError), match="scalings must be a list"):
            ic.compare_scalings(scalings, **SMALL)


class TestArguments:
    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"d_model": 0}, ValueError, "d_model must be a positive integer; got 0"),
            ({"n_heads": 3}, ValueError, "n_heads must divide d_model unless d_k is given; got 3"),
            ({"n_heads": 1.5}, TypeError, "n_heads must be a positive integer; got 1.5"),
            ({"seq": -1}, ValueError, "seq"),
            ({"batch": True}, TypeError, "batch"),
            ({"d_k": 0}, ValueError, "d_k must be a positive integer"),
            ({"scaling": "sqrt"}, ValueError, "scaling must be one of"),
            ({"scaling": None}, TypeError, "scaling must be a specification"),
            ({"init": "no"}, ValueError, "initializer must be one of"),
            ({"init": ["zeros"] * 3}, ValueError, "init must be one value, or a list of 4"),
            ({"init": "dirac"}, ValueError, "dirac"),
            ({"norm": "batch"}, ValueError, "norm must be 'rms', 'layer' or None; got 'batch'"),
            ({"norm": 1}, TypeError, "norm must be"),
            ({"x_std": -1}, ValueError, "x_std must not be negative, got -1"),
            ({"x_std": math.nan}, ValueError, "x_std"),
            ({"correlation": -0.1}, ValueError, "correlation must be from 0 to 1; got -0.1"),
            (
                {"scaling": "constant(1e300)"},
                ValueError,
                r"scaling constant\(c=1e\+300\): scale=1e",
            ),
            ({"scaling": "learned(1e-300)"}, ValueError, "a number that float32 can hold"),
            ({"correlation": 1.1}, ValueError, "correlation must be from 0 to 1; got 1.1"),
            ({"causal": 1}, TypeError, "causal must be True or False; got 1"),
            ({"backward": "yes"}, TypeError, "backward must be True or False"),
            ({"trials": 0}, ValueError, "trials must be a positive integer"),
            ({"trials": range(4, 2)}, ValueError, "trials must be a range"),
            ({"seed": -1}, ValueError, "seed"),
            ({"threads": 0}, ValueError, "threads"),
            ({"executor": 3}, TypeError, "executor must be"),
            ({"progress": 3}, TypeError, "progress must be"),
        ],
    )
    def test_refusals(self, change, error, words):
        with pytest.raises(error, match=words):
            run(**change)

    def test_keywords_only(self):
        with pytest.raises(TypeError):
            ic.propagate_attention(512)

    def test_it_stops_within_a_trial(self):
        def progress(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(trials=10000, threads=2, progress=progress)
