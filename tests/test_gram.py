# SPDX-License-Identifier: BSD-3-Clause
"""Chains without weights: the reference, the same law as with weights, deficient Gram matrices."""

import math

import numpy as np
import pytest

import initcore as ic
from gram_calls import (
    COUNT,
    M2,
    MEAN,
    NONFINITE,
    SHAPES,
    STREAMS,
    ZEROS,
    assert_close,
    drawn_for,
    gram_spec,
    source,
)
from initcore import _core
from initcore.reference import gram as reference
from initcore.reference.moments import COSINE
from initcore.streams import stream_id
from kernel_calls import layer_codes, run_backward, run_gram, same_bits


def expected(x, widths, names, *rest, backward=False):
    """What the reference says of trial 0 of `gram_spec`."""
    chain, others = drawn_for(x, widths, names, *rest, backward=backward)
    return reference.gram(*chain, [0.05] * len(names), *others)


BIASES = {
    "none": [(0.3, None, None), (0.4, None, None), (0.5, None, None)],
    "normal": [(0.3, 0.2, 0.0), (0.4, 0.5, -0.3), (0.5, None, None)],
    "constant": [(0.3, None, None), (0.4, 0.0, 0.7), (0.5, 0.0, -0.2)],
}


def assert_reference(every_isa, case, dtype):
    """Both passes are the reference's on every instruction set, and the same bits; so is the
    forward pass alone."""
    states, gradients = expected(*case, backward=True)
    answers = [run_gram(k, gram_spec(*case, backward=True), STREAMS) for k in every_isa]
    for got, got_gradients in answers:
        assert_close(got[0], states, dtype)
        assert_close(got_gradients[0, :, :2], gradients[:, :2], dtype)
        np.testing.assert_allclose(
            got_gradients[0, :, 2], gradients[:, 2], rtol=2e-4 if dtype == "float32" else 1e-9
        )
        assert same_bits(got, answers[0][0])
        assert same_bits(got_gradients, answers[0][1])
    forward, _ = run_gram(every_isa[0], gram_spec(*case))
    assert same_bits(forward, answers[0][0])


class TestReference:
    @pytest.mark.parametrize("bias", BIASES)
    @pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 33, 50])
    def test_chains(self, every_isa, rng, dtype, batch, bias):
        """Forward and backward, batches around a panel and beyond the narrowest layer."""
        x = rng.normal(size=(batch, 21)).astype(dtype)
        case = x, [21, 40, 17, 30], ["tanh", "relu", "gelu"], BIASES[bias]
        assert_reference(every_isa, case, dtype)

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("batch", [1, 17, 33])
    def test_norms_and_residual_branches(self, every_isa, rng, dtype, batch, shape):
        """Forward and backward, every kind of layer above every other."""
        x = rng.normal(0.2, 0.6, size=(batch, 24)).astype(dtype)
        x[0] = 0
        case = x, [24] * 4, ["tanh", "relu", "gelu"], BIASES["normal"], *shape
        assert_reference(every_isa, case, dtype)

    @pytest.mark.parametrize("kind", ["equal", "proportional", "zero", "all zero", "spread"])
    def test_deficient_inputs(self, every_isa, rng, dtype, kind):
        """Rows that are equal, multiples of each other, zero, or of lengths 10^±12 apart."""
        x = rng.normal(size=(20, 30)).astype(dtype)
        if kind == "equal":
            x[5:] = x[:3].repeat(5, axis=0)
        elif kind == "proportional":
            x[5:] = x[:3].repeat(5, axis=0) * 2.0 ** np.arange(15)[:, None] * (-1) ** 5
        elif kind == "zero":
            x[[0, 7]] = 0
        elif kind == "all zero":
            x[:] = 0
        else:
            x *= (10.0 ** np.linspace(-12, 12, 20))[:, None].astype(dtype)
        case = x, [30, 40, 25], ["linear", "relu"], [(0.3, None, None)] * 2
        states, gradients = expected(*case, backward=True)
        answers = [run_gram(k, gram_spec(*case, backward=True), STREAMS[:2]) for k in every_isa]
        for got, got_gradients in answers:
            assert_close(got[0], states, dtype)
            assert_close(got_gradients[0, :, :2], gradients[:, :2], dtype)
            assert same_bits(got, answers[0][0])
            assert same_bits(got_gradients, answers[0][1])
        if kind == "all zero":
            assert np.all(states[..., ZEROS] == states[..., COUNT])

    def test_the_factor(self, rng):
        """L Lᵀ is the matrix, and the pivots' rows are triangular."""
        b = rng.normal(size=(12, 5))
        b[3], b[4] = 0, -7 * b[8]
        left, pivots = reference.factor(b @ b.T)
        assert left.shape == (12, 5)
        np.testing.assert_allclose(left @ left.T, b @ b.T, atol=1e-12 * np.max(b @ b.T))
        np.testing.assert_array_equal(np.triu(left[pivots], 1), 0)
        assert np.all(left[3] == 0)

    def test_many_units_go_by_in_blocks(self, every_isa, rng):
        x = rng.normal(size=(60, 1000)).astype(np.float32)
        case = x, [1000, 900, 1100], ["relu", "tanh"], [(0.04, 0.1, 0.2)] * 2
        states, gradients = expected(*case, backward=True)
        answers = [run_gram(k, gram_spec(*case, backward=True), STREAMS[:2]) for k in every_isa]
        for got, got_gradients in answers:
            np.testing.assert_allclose(got[0, ..., M2], states[..., M2], rtol=1e-5)
            np.testing.assert_allclose(got_gradients[0, ..., M2], gradients[..., M2], rtol=1e-5)
            assert same_bits(got, answers[0][0])
            assert same_bits(got_gradients, answers[0][1])


def second_moments(states):
    """E[x²] of states (..., MOMENTS)."""
    return states[..., M2] / states[..., COUNT] + states[..., MEAN] ** 2


def assert_same_law(a, b):
    """Two-sample tests at 5 σ: the means of each statistic over trials, of its squared deviation
    and of the product of that with the last one's; a and b (trials, statistics)."""
    middle = (a.mean(axis=0) + b.mean(axis=0)) / 2
    u, v = a - middle, b - middle
    for x, y in ((u, v), (u**2, v**2), (u * u[:, -1:], v * v[:, -1:])):
        error = np.sqrt(x.var(axis=0) / len(x) + y.var(axis=0) / len(y))
        assert np.all(np.abs(x.mean(axis=0) - y.mean(axis=0)) <= 5 * error)


class TestLaw:
    """Trials by either method are draws from one law."""

    TRIALS = 4000

    def both(self, x, widths, names, laws, *shape):
        """(forward states, gradient states), (trials, layers, ., fields), of dense and of gram."""
        kernels = _core.default()
        dense = gram_spec(x, widths, names, laws, *shape, backward=True)
        gram = gram_spec(x, widths, names, laws, *shape, backward=True, weights=[
            source(30 + i, sigma) for i, (sigma, _, _) in enumerate(laws)
        ])  # fmt: skip
        # trial t adds t to each stream: far apart, they share none
        far = [1 << 40 | i << 36 for i in range(len(laws))]
        gram[6][:] = [(stream + (i + 9 << 36), *law) for i, (stream, *law) in enumerate(gram[6])]
        dense[6][:] = [(stream + (i + 1 << 36), *law) for i, (stream, *law) in enumerate(dense[6])]
        dense[7][:] = [
            bias and (bias[0] + (i + 20 << 36), *bias[1:]) for i, bias in enumerate(dense[7])
        ]
        return (
            run_backward(kernels, dense, n_trials=self.TRIALS),
            run_gram(kernels, gram, far, trial=self.TRIALS, n_trials=self.TRIALS),
        )

    @pytest.mark.parametrize(
        ("batch", "widths", "names", "laws", "shape"),
        [
            (1, [9, 12, 16, 8], ["relu"] * 3, [(0.4, None, None)] * 3, ()),
            (1, [9, 12, 10, 11], ["tanh", "linear", "gelu"], BIASES["normal"], ()),
            (1, [9, 9, 9, 9], ["tanh", "linear", "gelu"], BIASES["normal"],
             (["rms", "layer", None], [0.5, None, 1.0])),
            (6, [9, 12, 16, 8], ["relu"] * 3, [(0.4, 0.1, 0.1)] * 3, ()),
            (20, [9, 12, 10, 11], ["tanh", "linear", "gelu"], BIASES["normal"], ()),
            (18, [3, 4, 5, 1], ["tanh"] * 3, [(0.9, None, None)] * 3, ()),
            (6, [9, 9, 9, 8], ["relu"] * 3, [(0.4, None, None)] * 3,
             (["rms", "layer", "layer"], [0.5, 1.0, None])),
            (14, [9, 9, 9, 9], ["tanh", "linear", "gelu"], BIASES["normal"],
             ([None, "rms", None], [1.0, None, 0.7])),
        ],
    )  # fmt: skip
    def test_dense_and_gram(self, rng, batch, widths, names, laws, shape):
        """Log energies and means of h, x and all gradients, their rows' cosines but of weights, and
        how they vary together; a batch beyond the width, too, where every Gram matrix is
        deficient."""
        x = rng.normal(size=(batch, widths[0])).astype(np.float32)
        x[-1] = x[0]
        tables = []
        for states, gradients in self.both(x, widths, names, laws, *shape):
            columns = (*states.transpose(1, 2, 0, 3).reshape(6, -1, _core.MOMENTS),
                       *gradients.transpose(1, 2, 0, 3).reshape(9, -1, _core.MOMENTS))  # fmt: skip
            energies = np.array([second_moments(column) for column in columns])
            alive = energies.min(axis=0) > 0
            means = np.array([column[:, MEAN] for column in columns])
            cosines = np.vstack([
                states[..., COSINE].reshape(-1, 6).T, gradients[:, :, :2, COSINE].reshape(-1, 6).T
            ])  # fmt: skip
            if batch == 1:
                assert np.isnan(cosines).all()
                cosines = cosines[:0]
            known = alive & np.isfinite(cosines).all(axis=0)
            assert np.mean(known) > 0.5
            tables.append(np.vstack([
                cosines[:, known], means[:, known], np.log(energies[:, known])
            ]).T)  # fmt: skip
        assert_same_law(*tables)

    def test_how_inputs_stay_apart(self, rng):
        """A last layer of one unit has the mean over the batch and the variance about it that the
        cosines of the inputs give it."""
        x = rng.normal(size=(5, 8)).astype(np.float32)
        x[1] = x[0] + 0.1 * x[1]
        (dense, _), (gram, _) = self.both(x, [8, 10, 1], ["tanh"] * 2, [(0.5, None, None)] * 2)
        tables = [
            np.array([states[:, -1, 0, MEAN] ** 2, states[:, -1, 0, M2]]).T
            for states in (dense, gram)
        ]
        assert_same_law(*tables)

    @pytest.mark.parametrize(("batch", "n"), [(3, 300), (1, 5000)])
    def test_moments_of_the_input_are_those_of_its_stream(self, every_isa, batch, n):
        spec = gram_spec(np.ones((batch, n)), [n, 5], ["relu"], [(1.0, None, None)])
        spec = (*spec[:5], source(9, 1.5), *spec[6:])  # drawn, as by the dense chain
        chain = _core.Chain(*spec)
        for kernels in every_isa:
            by_gram, by_chain = np.full((2, 1, _core.MOMENTS), np.nan)
            run_gram(kernels, spec, trial=4, inputs=by_gram)
            workspace = np.empty(kernels.chain_workspace(chain), np.uint8)
            kernels.chain_input(chain, 4, workspace, by_chain[0])
            assert same_bits(by_gram, by_chain)

    def test_a_first_layer_of_one_unit_is_the_gaussian(self, rng):
        """E (mean h)² = 1ᵀA1/B² and E Σ(h − mean h)² = tr A − 1ᵀA1/B, A = σ²XXᵀ + β²."""
        x = rng.normal(size=(5, 8))
        x[3] = x[1]
        a = 0.25 * x @ x.T + 0.09
        states, _ = run_gram(
            _core.default(), gram_spec(x, [8, 1], ["linear"], [(0.5, 0.3, 0.0)]), n_trials=20000
        )
        for values, want in (
            (states[:, 0, 0, MEAN] ** 2, a.mean()),
            (states[:, 0, 0, M2], np.trace(a) - 5 * a.mean()),
        ):
            assert abs(values.mean() - want) <= 5 * values.std() / math.sqrt(len(values))

    @pytest.mark.parametrize(("name", "second", "slope"), [("relu", 0.5, 0.0), ("linear", 1, 1)])
    @pytest.mark.parametrize("n", [16, 100])
    def test_the_variance_of_finite_width(self, name, second, slope, n):
        """At batch 1 the log-energy has the law of ln Π (1/n) Σ φ(z)²/E φ², exactly; a layer's
        relative variance is (E φ⁴/(E φ²)² − 1)/n: 5/n for relu, 2/n for linear."""
        layers, trials = 4, 20000
        x = np.ones((1, 7))
        laws = [(1 / math.sqrt(second * fan), None, None) for fan in (7, n, n, n)]
        spec = gram_spec(x, [7] + [n] * layers, [name] * layers, laws)
        # neither streams of one trial nor of the next may coincide
        spec[6][:] = [(stream + (i << 32), *law) for i, (stream, *law) in enumerate(spec[6])]
        states, _ = run_gram(_core.default(), spec, n_trials=trials)
        energies = second_moments(states[:, :, 1])
        first = energies[:, 0]
        v = 5 if name == "relu" else 2
        spread = (first - 1) ** 2
        assert abs(first.mean() - 1) <= 5 * math.sqrt(v / n / trials)
        assert abs(spread.mean() - v / n) <= 5 * spread.std() / math.sqrt(trials)
        logs = np.log(energies[:, -1][energies[:, -1] > 0])
        law = ic.theory.log_energy(name, [7] + [n] * layers)
        assert abs(logs.mean() - law.mean) <= 5 * math.sqrt(law.var / len(logs))
        squares = (logs - law.mean) ** 2
        assert abs(squares.mean() - law.var) <= 5 * squares.std() / math.sqrt(len(logs))


class TestKernel:
    def test_rows_that_overflow_leave_the_others_alone(self, kernels, rng, dtype):
        """An infinite and a NaN input give two rows that are not finite, forward and backward."""
        x = rng.normal(size=(20, 30)).astype(dtype)
        x[3, 5], x[17, 0] = np.inf, np.nan
        case = x, [30, 8, 9], ["linear"] * 2, [(0.3, None, None)] * 2
        states, gradients = run_gram(kernels, gram_spec(*case, backward=True), STREAMS[:2])
        assert np.all(states[0, 0, :, NONFINITE] == 2 * 8)
        assert np.all(states[0, 1, :, NONFINITE] == 2 * 9)
        assert gradients[0, :, :2, NONFINITE].tolist() == [[2 * 8, 2 * 8], [0, 2 * 9]]
        only = np.full((1, 30), np.inf, dtype)
        states, _ = run_gram(kernels, gram_spec(only, *case[1:]))
        assert np.all(states[0, :, 0, NONFINITE] == [8, 9])

    def test_cosines_of_known_rows(self, kernels, dtype):
        """x, 2x and −x, forward: of the three pairs one has cosine 1 and two −1; a zero row is left
        out, of h and gradients, and with it alone there is no pair. Below another layer, the
        activations' come from its Gram matrix."""
        x = np.linspace(1, 2, 9).astype(dtype) * np.array([[1], [0], [2], [-1]], dtype)
        for rows, want in ((x, -1 / 3), (x[:3], 1), (x[:2], np.nan), (x[:1], np.nan)):
            for n in (1, 2):
                case = rows, [9, 40, 5][: n + 1], ["linear"] * n, [(0.3, None, None)] * n
                states, _ = run_gram(kernels, gram_spec(*case))
                assert states[0, 0, :, COSINE] == pytest.approx([want] * 2, abs=1e-6, nan_ok=True)
        # relu' of a zero row is 0: no gradient reaches its pre-activations
        case = x[:2], [9, 40], ["relu"], [(0.3, None, None)]
        _, gradients = run_gram(kernels, gram_spec(*case, backward=True), STREAMS[:1])
        assert np.isfinite(gradients[0, 0, 0, COSINE])
        assert np.isnan(gradients[0, 0, 1, COSINE])

    def test_cancelled(self, kernels):
        spec = gram_spec(np.ones((3, 4)), [4, 5], ["relu"], [(1.0, None, None)])
        chain = _core.Chain(*spec)
        workspace = np.empty(kernels.gram_workspace(chain), np.uint8)
        states = np.zeros((1, 1, 2, _core.MOMENTS))
        stop = np.ones(1, np.int32)
        streams = np.zeros(1, np.uint64)
        assert not kernels.gram(chain, streams, 0, 1, states, None, workspace, stop)


class TestPropagate:
    CHAIN = {"widths": [40, 60, 30], "batch": 20, "trials": 64, "method": "gram"}  # noqa: RUF012

    def test_threads_change_no_bit(self):
        results = [ic.propagate(**self.CHAIN, backward=True, threads=n) for n in (1, 2, 3)]
        assert results[0].method == results[0].spec["method"] == "gram"
        for other in results[1:]:
            assert other.equals(results[0])
        first, last = (
            ic.propagate(**{**self.CHAIN, "trials": t}, backward=True)
            for t in (range(30), range(30, 64))
        )
        assert (last + first).equals(results[0])

    def test_the_streams_by_their_names(self):
        """Trial 3 of a seed, from sources that are named one by one."""
        names = ("input", "layers.0.gram", "layers.1.gram", "output_gradient")
        x, *weights, top = (source(stream_id(name), 1.0) for name in names)
        spec = (
            "float32", 5, 20, [40, 60, 30], layer_codes(["relu"] * 2, [0.05] * 2), x,
            [(*weights[0][:2], 0.25, *weights[0][3:]), (*weights[1][:2], 0.5, *weights[1][3:])],
            [None, None], top,
        )  # fmt: skip
        gradient_streams = [stream_id(f"layers.{layer}.gram_gradient") for layer in (0, 1)]
        states, gradients = run_gram(_core.default(), spec, gradient_streams, trial=3)
        result = ic.propagate(
            **{**self.CHAIN, "trials": range(3, 4)}, init=["normal(std=0.25)", "normal(std=0.5)"],
            backward=True, seed=5,
        )  # fmt: skip
        assert result.pre.mean.tolist() == states[0, :, 0, MEAN].tolist()
        assert result.grad_post.mean.tolist() == gradients[0, :, 0, MEAN].tolist()

    def test_it_runs_again_from_a_file(self, tmp_path):
        result = ic.propagate(**self.CHAIN)
        result.save(tmp_path / "gram.json")
        again = ic.Propagation.load(tmp_path / "gram.json")
        assert again.equals(result)
        assert ic.propagate(**again.spec, seed=again.seed, trials=64).equals(result)
        assert "by gram" in str(result)
        data = result.to_dict()
        with pytest.raises(ValueError, match="damaged"):
            ic.Propagation.from_dict({**data, "spec": {**data["spec"], "method": "grim"}})

    def test_methods_are_not_added(self):
        dense = ic.propagate(**{**self.CHAIN, "method": "dense", "trials": range(64, 70)})
        with pytest.raises(
            ValueError, match="different method cannot be added: 'gram' and 'dense'"
        ):
            ic.propagate(**self.CHAIN) + dense

    def test_it_has_no_weights(self):
        with pytest.raises(ValueError, match=r"method='gram' draws .* never a weight"):
            ic.propagate(**self.CHAIN).weights(0, 0)

    def test_the_inputs_are_those_of_dense(self):
        """A first layer of one unit and σ: its mean square is σ² times the inputs' energy."""
        x = ic.normal()((3, 500), seed=4, name="input").astype(np.float64)
        result = ic.propagate(
            [500, 40000], batch=3, seed=4, trials=1, init="normal(std=1)", activation="linear",
            method="gram",
        )  # fmt: skip
        energy = np.mean(np.sum(x * x, axis=1))
        error = math.sqrt(2 / 40000) * energy  # of three independent rows less, of one no more
        assert abs(result.pre.second_moment[0] - energy) <= 5 * error

    def test_compared(self):
        both = ic.compare_inits(
            ["kaiming_normal", "xavier_normal"], [30] * 9, batch=4, method="gram", backward=True
        )
        assert [result.method for result in both] == ["gram", "gram"]
        assert both[1].outcome == "decays"
        assert both[0].grad_outcome == "holds"
        ratio = both[1].pre.second_moment / both[0].pre.second_moment
        np.testing.assert_allclose(ratio, 0.5 ** np.arange(1, 9), rtol=1e-4)

    @pytest.mark.parametrize(
        ("init", "words"),
        [
            ("xavier_uniform", "init of layer 0 must be normal with mean 0 .*uniform.*'dense'"),
            (["kaiming_normal", "torch_linear"], "init of layer 1 must be normal"),
            ("normal(std=1, mean=0.5)", "must be normal with mean 0"),
            ("truncated_normal", "must be normal"),
            ("orthogonal", "must be normal with mean 0 .*orthogonal.*'dense'"),
        ],
    )
    def test_weights_that_are_not_gaussian_are_refused(self, init, words):
        with pytest.raises(ValueError, match=words):
            ic.propagate([8, 8, 8], init=init, method="gram", trials=10**15)

    def test_biases_that_are_not_gaussian_are_refused(self):
        with pytest.raises(ValueError, match="bias of layer 1 must be normal or constant"):
            ic.propagate([8] * 3, bias=[None, "torch_linear"], method="gram", trials=10**15)

    @pytest.mark.parametrize(
        ("method", "error"), [("Gram", ValueError), (None, TypeError), (1, TypeError)]
    )
    def test_other_methods(self, method, error):
        with pytest.raises(error, match="method must be 'dense' or 'gram'; got"):
            ic.propagate([8, 8], method=method, trials=10**15)

    def test_sizes_that_no_memory_holds(self):
        with pytest.raises(MemoryError, match="widths up to 2 and batch"):
            ic.propagate([2, 2], batch=2**31, trials=1, method="gram")


def test_widths_differ(kernels):
    """n_out σ² a layer for the gradient of a linear chain, n_in σ² forward."""
    widths, std, trials = [30, 60, 20, 40], 0.2, 2000
    x = np.ones((8, 30))
    laws = [(std, None, None)] * 3
    trials = trials if kernels.isa != "portable" else 200  # slow there
    spec = gram_spec(x, widths, ["linear"] * 3, laws, backward=True)
    spec[6][:] = [(stream + (i << 32), *law) for i, (stream, *law) in enumerate(spec[6])]
    states, gradients = run_gram(
        kernels, (*spec[:8], source(5 << 32, 1.0)), [7 << 32, 8 << 32, 9 << 32], n_trials=trials
    )
    up, down = second_moments(states[:, :, 0]), second_moments(gradients[:, :, 1])
    ends = [(up[:, 0], 30 * std**2), (down[:, 2], 1.0)]
    ends += [(up[:, 2], 30 * 60 * 20 * std**6), (down[:, 0], 40 * 20 * std**4)]
    for values, want in ends:
        assert abs(values.mean() - want) <= 5 * values.std() / math.sqrt(trials)
