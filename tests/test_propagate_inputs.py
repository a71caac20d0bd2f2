# SPDX-License-Identifier: BSD-3-Clause
"""What goes into the chains of propagate: correlated inputs, the user's own, and own weights."""

import json
import math
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import initcore as ic
from chains import drawn_by_hand
from initcore import _core
from initcore.experiments.chain_arguments import chain_experiment
from initcore.reference.sampling import NORMAL, stream_id
from kernel_calls import INFINITE, layer_codes, moments, run_chain, run_gram, same_bits


def normal_source(name, std):
    return stream_id(name), NORMAL, std, 0.0, *INFINITE


class TestKernel:
    """x_b = √(1 − c) own_b + √c common, each product and the sum rounded once."""

    OWN, COMMON = normal_source("input", math.sqrt(0.7)), normal_source("input.common", 0.3**0.5)

    def inputs(self, kernels, dtype, batch, n, trial):
        own = drawn_by_hand(kernels, self.OWN, (batch, n), 3, trial, dtype)
        return own + drawn_by_hand(kernels, self.COMMON, (n,), 3, trial, dtype)

    @pytest.mark.parametrize("batch", [1, 7, 16, 17, 65])
    def test_every_row_is_its_own_and_the_common_one(self, every_isa, batch, dtype):
        n = 37
        weights = [np.eye(n, dtype=dtype)]
        spec = (
            dtype.name, 3, batch, [n, n], layer_codes(["linear"]), self.OWN, weights, [None], None,
            None, None, self.COMMON,
        )  # fmt: skip
        for kernels in every_isa:
            _, y = run_chain(kernels, spec, trial=5, y_shape=(batch, n))
            assert same_bits(y, self.inputs(kernels, dtype, batch, n, 5))

    @pytest.mark.parametrize(("batch", "n"), [(3, 60000), (33, 1000), (1, 1)])
    def test_dense_and_gram_have_the_same_inputs(self, every_isa, batch, n, dtype):
        weights = [normal_source("w", 0.1)]
        spec = (
            dtype.name, 3, batch, [n, 2], layer_codes(["linear"]), self.OWN, weights, [None], None,
            None, None, self.COMMON,
        )  # fmt: skip
        for kernels in every_isa:
            built = _core.Chain(*spec)
            workspace = np.empty(kernels.chain_workspace(built), np.uint8)
            by_chain, by_gram = np.full((2, 1, _core.MOMENTS), np.nan)
            kernels.chain_input(built, 4, workspace, by_chain[0])
            run_gram(kernels, spec, trial=4, inputs=by_gram)
            expected = moments(kernels, self.inputs(kernels, dtype, batch, n, 4).T)
            assert same_bits(by_chain[0], expected)
            assert same_bits(by_gram[0], expected)


class TestCorrelation:
    def test_the_streams_reproduce_the_measurement(self):
        result = ic.propagate(
            [7, 5, 3], batch=6, correlation=0.25, trials=range(11, 12), backward=True
        )
        draw = {"seed": 0, "trial": 11}
        x = ic.normal(math.sqrt(0.75))((6, 7), name="input", **draw)
        x += ic.normal(0.5)((7,), name="input.common", **draw)
        _, layers = ic.chain(x, [result.weights(11, i) for i in range(2)], activation="relu")
        assert np.array_equal(layers.pre.second_moment, result.pre.second_moment)
        assert np.array_equal(layers.post.cosine, result.post.cosine)
        shared = ic.propagate(**result.spec, trials=range(11, 12), threads=3)
        assert shared.equals(result)

    @pytest.mark.parametrize("correlation", [0.0, 0.3, 0.95])
    def test_layers_have_the_cosines_of_the_wide_limit(self, correlation):
        """Measured at width 400, where a mean cosine is off by a few parts in the width."""
        result = ic.propagate(
            [400] * 6, activation="tanh", init="normal(0.07)", bias="normal(0.2)", batch=8,
            correlation=correlation, trials=50,
        )  # fmt: skip
        for side in ("pre", "post"):
            measured, predicted = getattr(result, side), getattr(result.theory, side)
            limits = 5 * measured.se.cosine + 0.006
            assert np.all(np.abs(measured.cosine - predicted.cosine) <= limits)
        first = result.theory.pre
        assert first.cosine[0] == pytest.approx(
            (400 * 0.07**2 * correlation + 0.04) / (400 * 0.07**2 + 0.04), rel=1e-14
        )

    @pytest.mark.parametrize("norm", [None, "rms", "layer"])
    def test_residual_streams_have_those_of_the_wide_limit(self, norm):
        result = ic.propagate(
            [300] * 6, activation="gelu", norm=norm, residual=0.7, batch=8, correlation=0.4,
            bias="normal(0.2)", trials=50,
        )  # fmt: skip
        for side in ("pre", "post"):
            measured, predicted = getattr(result, side), getattr(result.theory, side)
            limits = 5 * measured.se.cosine + 0.006
            assert np.all(np.abs(measured.cosine - predicted.cosine) <= limits)

    @pytest.mark.parametrize("method", ["dense", "gram"])
    def test_of_one_all_rows_are_equal(self, method):
        result = ic.propagate([30] * 4, batch=5, correlation=1, method=method, trials=3)
        assert np.all(result.pre.batch_variance == 0)
        assert result.theory.pre.cosine.tolist() == [1] * 3

    def test_inputs_keep_their_second_moment(self):
        result = ic.propagate([500, 2], init="normal(1)", correlation=0.6, batch=2, trials=400)
        h = result.pre
        assert abs(h.second_moment[0] - 500) <= 5 * h.se.second_moment[0]

    @pytest.mark.parametrize(
        ("value", "error"),
        [(-0.01, ValueError), (1.001, ValueError), (np.nan, ValueError), ("0.5", TypeError),
         (None, TypeError), (True, TypeError), (0.5j, TypeError), ([0.5], TypeError)],
    )  # fmt: skip
    def test_refused(self, value, error):
        for run in (lambda **k: ic.propagate([3, 3], **k), lambda **k: ic.compare_inits(
            ["ones"], [3, 3], **k)):  # fmt: skip
            with pytest.raises(error, match="correlation must be"):
                run(correlation=value, trials=10**15)

    def test_files_and_merging(self, tmp_path):
        whole = ic.propagate([5, 4], correlation=0.1, trials=6)
        whole.save(tmp_path / "chain.json")
        loaded = ic.Propagation.load(tmp_path / "chain.json")
        assert loaded.equals(whole)
        assert loaded.spec["correlation"] == 0.1
        assert "correlation 0.1" in str(whole)
        with pytest.raises(ValueError, match="different correlation"):
            whole + ic.propagate([5, 4], correlation=0.2, trials=range(6, 8))
        data = whole.to_dict()
        for damage in (-0.1, "x", None):
            with pytest.raises(ValueError, match="damaged"):
                ic.Propagation.from_dict({**data, "spec": {**data["spec"], "correlation": damage}})


class TestOwnInputs:
    CHAIN = {"activation": "gelu", "init": "normal(0.4)", "bias": "normal(0.1)"}  # noqa: RUF012

    def test_every_trial_has_them(self, rng):
        x = rng.normal(size=(6, 7)).astype(np.float32)
        result = ic.propagate([7, 5, 3], x=x, bias="zeros", backward=True, trials=2)
        energies = []
        for trial in range(2):
            weights = [result.weights(trial, layer) for layer in range(2)]
            _, layers = ic.chain(x, weights, activation="relu")
            energies.append(layers.post.second_moment)
        assert result.post.second_moment == pytest.approx(np.mean(energies, axis=0), rel=1e-15)
        assert result.spec["batch"] == 6
        assert "6 given inputs" in str(result)
        for again in (
            ic.propagate(**result.spec, trials=2, threads=2),
            ic.propagate([7, 5, 3], x=x.tolist(), batch=6, bias="zeros", backward=True, trials=2),
            ic.compare_inits(
                ["kaiming_normal"], [7, 5, 3], x=x, bias="zeros", backward=True, trials=2
            )[0],
        ):
            assert again.equals(result)

    def test_dense_and_gram_agree(self, rng):
        x = rng.normal(size=(4, 60)) + 1.0
        results = [
            ic.propagate([60, 50, 40], x=x, **self.CHAIN, method=method, trials=400, backward=True)
            for method in ("dense", "gram")
        ]
        for side in ("pre", "post", "grad_pre"):
            for name in ("second_moment", "batch_variance", "kurtosis"):
                dense, gram = (getattr(result, side) for result in results)
                apart = np.abs(getattr(dense, name) - getattr(gram, name))
                limits = 5 * np.hypot(getattr(dense.se, name), getattr(gram.se, name))
                assert np.all(apart <= limits)

    def test_theory_starts_from_them(self, rng):
        """Two rows with second moment 4 and cosine 1/2: relu's arc-cosine kernel a layer on."""
        x = np.zeros((2, 100))
        x[0, 0], x[1, :2] = 20, (10, math.sqrt(300))
        result = ic.propagate([100, 300, 300], x=x, dtype=float, trials=100)
        theory = result.theory
        assert theory.pre.second_moment[0] == pytest.approx(8, rel=1e-14)
        assert theory.pre.cosine[0] == pytest.approx(0.5, rel=1e-14)
        angle = (math.sqrt(0.75) + (math.pi - math.acos(0.5)) / 2) / math.pi
        assert theory.post.cosine[0] == pytest.approx(angle, rel=1e-14)
        for measured, predicted in ((result.pre, theory.pre), (result.post, theory.post)):
            limits = 5 * measured.se.cosine + 0.01
            assert np.all(np.abs(measured.cosine - predicted.cosine) <= limits)
        wide = ic.propagate([100, 9], x=rng.normal(3, 1, (50, 100)), trials=2)
        assert wide.theory.pre.second_moment[0] == pytest.approx(20, rel=0.02)
        alone = ic.propagate([100, 9], x=x[:1], dtype=float, trials=2)
        assert np.isnan(alone.theory.pre.cosine[0])
        assert alone.theory.pre.second_moment[0] == pytest.approx(8, rel=1e-14)

    def test_specification_keeps_every_bit(self, rng, tmp_path):
        for dtype in ("float32", "float64"):
            x = rng.normal(size=(3, 4)).astype(dtype)
            x[0], x[1, 0] = (1.5, 2.0**-30, -7.0, -0.0), 1e-310
            whole = ic.propagate([4, 2], x=x, dtype=dtype, trials=5)
            assert whole.spec["x"].dtype == dtype
            assert same_bits(whole.spec["x"], x)
            x[2] = 7  # the result keeps what was given
            assert not np.any(whole.spec["x"] == 7)
            with pytest.raises(ValueError, match="read-only"):
                whole.spec["x"][0, 0] = 1
            whole.save(tmp_path / "chain.json")
            loaded = ic.Propagation.load(tmp_path / "chain.json")
            for copy in (loaded, pickle.loads(pickle.dumps(whole))):
                assert copy.equals(whole)
                assert same_bits(copy.spec["x"], whole.spec["x"])
            more = ic.propagate(**loaded.spec, seed=loaded.seed, trials=range(5, 7))
            assert (more + whole).equals(ic.propagate(**whole.spec, trials=7))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
    def test_inputs_that_are_not_finite_are_refused(self, value):
        x = np.ones((3, 4))
        x[1, 2] = value
        with pytest.raises(ValueError, match=r"x must be finite in float32; got .* at x\[1, 2\]"):
            ic.propagate([4, 2], x=x)

    def test_other_inputs_are_another_specification(self):
        x = np.ones((2, 3))
        one = ic.propagate([3, 2], x=x, trials=2)
        for changed, name in ((2 * x, "x"), (x[:1], "batch"), (None, "batch")):
            other = ic.propagate([3, 2], x=changed, trials=range(2, 4))
            assert not other.equals(one)
            with pytest.raises(ValueError, match=f"results with different {name} cannot"):
                one + other

    def test_results_of_other_inputs_say_what_differs(self):
        x = np.ones((40, 40))
        one = ic.propagate([40, 2], x=x, trials=2)
        with pytest.raises(ValueError, match=r"^results with different x cannot be added$"):
            one + ic.propagate([40, 2], x=2 * x, trials=range(2, 4))
        with pytest.raises(ValueError, match=r"different dtype .* 'float32' and 'float64'"):
            one + ic.propagate([40, 2], x=x, dtype="float64", trials=range(2, 4))

    def test_any_layout_and_kind(self, rng):
        x = rng.integers(-3, 4, size=(5, 6))
        whole = ic.propagate([6, 4], x=x, trials=2)
        frozen = x.astype(np.float32)
        frozen.flags.writeable = False
        for same in (
            x.astype(np.int8), x.astype(">f8"), x.astype(np.float16), np.asfortranarray(x),
            np.repeat(x, 2, axis=1)[:, ::2], x[::-1, ::-1].copy()[::-1, ::-1], frozen, x.tolist(),
        ):  # fmt: skip
            assert ic.propagate([6, 4], x=same, trials=2).equals(whole)

    def test_tasks_of_an_executor_have_them(self, rng):
        x = rng.normal(size=(5, 6))
        with ThreadPoolExecutor(2) as executor:
            for method in ("dense", "gram"):
                here, there = (
                    ic.propagate([6, 4], x=x, trials=40, method=method, executor=e)
                    for e in (None, executor)
                )
                assert here.equals(there)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"x": np.ones((2, 4))}, ValueError, r"x must be an array \(batch, 3\).*\(2, 4\)"),
            ({"x": np.ones(3)}, ValueError, r"x must be an array \(batch, 3\).*\(3,\)"),
            ({"x": np.ones((1, 2, 3))}, ValueError, "x must be"),
            ({"x": np.ones((0, 3))}, ValueError, "one row or more"),
            ({"x": 1.0}, ValueError, "x must be"),
            ({"x": [[1, 2, 3], [4]]}, ValueError, "x is no rectangular array"),
            ({"x": np.ones((2, 3)) * 1j}, TypeError, "x has dtype complex128"),
            ({"x": np.ma.ones((2, 3))}, TypeError, "x is a masked array"),
            ({"x": [["a", "b", "c"]]}, TypeError, "x has dtype"),
            ({"x": "relu"}, TypeError, "x has dtype"),
            ({"x": np.ones((2, 3), object)}, TypeError, "x has dtype object"),
            (
                {"x": np.ones((2, 3)), "batch": 3},
                ValueError,
                "left out, or 2, the rows of x; got 3",
            ),
            ({"x": np.ones((2, 3)), "batch": 2.0}, TypeError, "batch must be a positive integer"),
            ({"x": np.ones((2, 3)), "correlation": 0.1}, ValueError, "correlation must be left"),
        ],
    )
    def test_refused(self, change, error, words):
        with pytest.raises(error, match=words):
            ic.propagate([3, 3], trials=10**15, **change)

    def test_damaged_files(self):
        data = ic.propagate([3, 2], x=np.ones((2, 3)), trials=2).to_dict()
        for damage in ([[1, 2, 3]], [[1, 2], [3, 4]], [[1, 2, 3], [4]], [["x"] * 3] * 2, 3, "x"):
            text = json.dumps({**data, "spec": {**data["spec"], "x": damage}})
            with pytest.raises(ValueError, match="damaged"):
                ic.Propagation.from_dict(json.loads(text))


def orthogonal(seed, trial, layer, shape):
    return ic.orthogonal()(shape, seed=seed, name=f"layers.{layer}.weight", trial=trial)


def kaiming(seed, trial, layer, shape):
    return ic.kaiming_normal()(shape, seed=seed, name=f"layers.{layer}.weight", trial=trial)


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, seed, trial, layer, shape):
        return self.factor * kaiming(seed, trial, layer, shape)


def same_measurements(a, b):
    return all(getattr(a, side).equals(getattr(b, side)) for side in ("pre", "post")) and (
        a.grad_weight is None or a.grad_weight.equals(b.grad_weight)
    )


class TestFunctions:
    CHAIN = {"widths": [20, 30, 9], "bias": "normal(0.1)", "trials": 6}  # noqa: RUF012

    @pytest.mark.parametrize("backward", [False, True])
    def test_what_an_initializer_does_a_function_can(self, backward, always_shared):
        """The same weights give the same bits: in one thread, in several, and in several that
        share a trial."""
        named = ic.propagate(**self.CHAIN, backward=backward, threads=1)
        for threads, trials in ((1, 6), (2, 6), (7, 6)):
            chain = {**self.CHAIN, "trials": trials, "backward": backward, "threads": threads}
            result = ic.propagate(**chain, init=kaiming)
            assert same_measurements(result, named)
        mixed = ic.propagate(**self.CHAIN, init=["kaiming_normal", kaiming], backward=backward)
        assert same_measurements(mixed, named)
        assert mixed.spec["init"] == ("kaiming_normal()", f"{__name__}.kaiming")

    def test_it_is_called_once_a_trial_and_layer_with_the_seed(self):
        calls = []

        def recorded(seed, trial, layer, shape):
            calls.append((seed, trial, layer, shape))
            return np.ones(shape)

        ic.propagate([3, 4, 2], init=recorded, trials=range(5, 8), seed=9, threads=2)
        assert sorted(calls) == [
            (9, trial, layer, shape)
            for trial in range(5, 8)
            for layer, shape in enumerate([(4, 3), (2, 4)])
        ]

    def test_the_result_names_it_and_has_its_weights(self, tmp_path):
        result = ic.propagate(**self.CHAIN, init=Scaled(0.5))
        assert result.spec["init"] == f"{__name__}.Scaled"
        assert result.label == f"{__name__}.Scaled"
        expected = np.float32(0.5) * kaiming(0, 3, 1, (9, 30))
        assert same_bits(result.weights(3, 1), expected)
        assert np.isnan(result.theory.pre.second_moment).all()
        assert str(result)
        result.save(tmp_path / "chain.json")
        loaded = ic.Propagation.load(tmp_path / "chain.json")
        for other in (loaded, pickle.loads(pickle.dumps(result))):
            assert other.equals(result)
            with pytest.raises(ValueError, match=r"layer 1 came from the function .*Scaled"):
                other.weights(3, 1)
        with pytest.raises(ValueError, match=r"init: .*Scaled names a function"):
            ic.propagate(**loaded.spec)
        more = ic.propagate(**{**loaded.spec, "init": Scaled(0.5)}, trials=range(6, 8))
        for total in (loaded + more, more + loaded):
            assert same_bits(total.weights(3, 1), expected)
        mixed = ic.propagate(**self.CHAIN, init=["ones", kaiming])
        assert same_bits(mixed.weights(0, 0), np.ones((30, 20), np.float32))

    def test_theory_is_known_up_to_it(self):
        result = ic.propagate([20] * 4, init=["kaiming_normal", kaiming, "ones"], backward=True)
        assert result.theory.pre.second_moment[0] == pytest.approx(2)
        assert np.isnan(result.theory.pre.second_moment[1:]).all()
        assert np.isnan(result.theory.grad_pre.second_moment[:2]).all()

    def test_any_real_array_will_do(self):
        half = ic.propagate([3, 4], init=lambda *_: np.full((4, 3), 0.5, np.float16), trials=2)
        for value in (np.full((4, 3), 0.5), [[0.5] * 3] * 4, np.full((3, 4), 0.5, ">f4").T):
            again = ic.propagate([3, 4], init=lambda *_, value=value: value, trials=2)
            assert same_measurements(again, half)

    def test_orthogonal_layers_keep_every_norm(self):
        x = np.ones((2, 16))
        result = ic.propagate(
            [16] * 9, x=x, activation="linear", init=orthogonal, dtype=float, trials=3
        )
        assert result.post.second_moment == pytest.approx([1] * 8, rel=1e-5)

    @pytest.mark.parametrize("name", ["orthogonal", "sparse(0.5)", "identity"])
    def test_structures_are_drawn_whole(self, name):
        """Initializers without a law an entry: their weights are those of their stream."""
        chain = {"widths": [12, 12, 12], "trials": 4, "seed": 3, "threads": 2, "backward": True}
        result = ic.propagate(**chain, init=name)

        def draw(seed, trial, layer, shape):
            init = ic.initializer(name)
            return init(shape, seed=seed, name=f"layers.{layer}.weight", trial=trial)

        assert same_measurements(result, ic.propagate(**chain, init=draw))
        assert same_bits(result.weights(2, 1), draw(3, 2, 1, (12, 12)))
        again = ic.propagate(**result.spec, seed=3, trials=4)
        assert again.equals(result)
        with pytest.raises(ValueError, match="init of layer 0 must be normal"):
            ic.propagate([4, 4], init=name, method="gram")

    def test_theory_of_orthogonal_layers_is_that_of_normal_ones(self):
        chain = {"widths": [200] * 4, "activation": "tanh", "batch": 8, "trials": 30}
        result = ic.propagate(**chain, init="orthogonal(gain=1.2)", backward=True)
        for side in ("pre", "post", "grad_pre"):
            measured, predicted = getattr(result, side), getattr(result.theory, side)
            apart = np.abs(measured.second_moment - predicted.second_moment)
            assert np.all(apart <= 5 * measured.se.second_moment + 0.01)
        identity = ic.propagate([5, 5], init="identity", trials=2)
        assert np.isnan(identity.theory.pre.second_moment).all()

    def test_executors(self):
        here = ic.propagate(**self.CHAIN, init=kaiming)
        with ThreadPoolExecutor(2) as executor:
            assert ic.propagate(**self.CHAIN, init=kaiming, executor=executor).equals(here)
            local = ic.propagate(**self.CHAIN, init=lambda *call: kaiming(*call), executor=executor)
            assert same_measurements(local, here)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            assert ic.propagate(**self.CHAIN, init=kaiming, executor=executor).equals(here)
            with pytest.raises(TypeError, match=r"init: .*lambda.* cannot be sent"):
                ic.propagate(**self.CHAIN, init=lambda *call: kaiming(*call), executor=executor)

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize(
        ("value", "error", "words"),
        [
            (np.ones((3, 4)), ValueError, r"layer 0 in trial \d has shape \(3, 4\): \(4, 3\)"),
            (1.0, ValueError, r"has shape \(\): \(4, 3\)"),
            (None, TypeError, "what init gave for layer 0 in trial . has dtype object"),
            (np.ones((4, 3)) * 1j, TypeError, "has dtype complex128"),
            (np.ma.ones((4, 3)), TypeError, "is a masked array"),
            ([[1, 2], [3]], ValueError, "is no rectangular array"),
            (np.full((4, 3), np.nan), ValueError, "init gave for layer 0 in trial . is not finite"),
            ([[0, 0, np.inf]] * 4, ValueError, "is not finite in float32"),
            (np.full((4, 3), -1e39), ValueError, "is not finite in float32"),
        ],
    )
    def test_what_it_gives_is_checked(self, value, error, words, threads):
        with pytest.raises(error, match=words):
            ic.propagate([3, 4], init=lambda *_: value, trials=4, threads=threads)

    def test_other_functions_of_one_name_are_not_merged(self):
        """The weights of a sum are those of one function."""
        half, other = (lambda *call, by=by: by * kaiming(*call) for by in (0.5, 2.0))
        a = ic.propagate([3, 4], init=half, trials=2)
        b = ic.propagate([3, 4], init=other, trials=range(2, 4))
        for one, another in ((a, b), (b, a)):
            with pytest.raises(ValueError, match=r"different init .*<lambda> is the name of diff"):
                one + another
        same = a + ic.propagate([3, 4], init=half, trials=range(2, 4))
        assert same_bits(same.weights(3, 0), np.float32(0.5) * kaiming(0, 3, 0, (4, 3)))
        loaded = ic.Propagation.from_dict(a.to_dict())
        for total in (loaded + b, b + loaded):
            with pytest.raises(ValueError, match="different init"):
                total + ic.propagate([3, 4], init=half, trials=range(4, 6))
        methods = Scaled(0.5)
        parts = [
            ic.propagate([3, 4], init=methods.__call__, trials=t) for t in (2, range(2, 4))
        ]  # a bound method is another object each time, and equal
        assert sum(parts[1:], parts[0]).n_trials == 4

    def test_it_is_not_called_again_once_a_trial_is_cancelled(self):
        """Ctrl-C waits for one call of a function, not for those of a trial."""
        cancel, calls = np.zeros(1, np.int32), []

        def stopping(seed, trial, layer, shape):
            calls.append(layer)
            cancel[0] = layer == 1
            return np.ones(shape)

        experiment = chain_experiment(
            [3] * 9, "relu", stopping, None, None, None, None, None, None, 0.0, 0, "float32",
            False, "dense",
        )  # fmt: skip
        assert not experiment.worker().run(0, 4, cancel)
        assert calls == [0, 1]

    def test_its_own_errors_come_through(self):
        def faulty(seed, trial, layer, shape):
            raise KeyError(trial)

        with pytest.raises(KeyError, match="7"):
            ic.propagate([3, 4], init=faulty, trials=range(7, 8))

    def test_gram_has_no_weights_to_give(self):
        with pytest.raises(ValueError, match=r"init of layer 1 must be normal.*kaiming: use meth"):
            ic.propagate([3, 4, 4], init=["normal(1)", kaiming], method="gram", trials=10**15)


@pytest.mark.parametrize("sizes", [(1, [1, 1]), (7, [65, 7, 1]), (65, [1, 65, 7]), (1, [7, 65])])
@pytest.mark.parametrize("method", ["dense", "gram"])
def test_all_of_it_at_all_sizes(rng, sizes, method):
    """Correlated or own inputs, both ways, at the edges of a vector and of a panel."""
    batch, widths = sizes
    shared = {"method": method, "backward": True, "bias": "normal(0.1)", "trials": 20, "rtol": 0.4}
    x = rng.normal(size=(batch, widths[0]))
    for change in ({"correlation": 0.5, "batch": batch}, {"correlation": 1e-300}, {"x": x}):
        result = ic.propagate(widths, **shared, **change)
        for side in (result.pre, result.post, result.grad_pre, result.grad_weight):
            assert np.isfinite(side.second_moment).all()
        assert result.n_trials in (8, 16, 20)
        assert ic.propagate(**{**result.spec, **shared}, threads=3).equals(result)
