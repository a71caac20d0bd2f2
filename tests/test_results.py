# SPDX-License-Identifier: BSD-3-Clause
"""Records: exact sums over trials, merging, files, text."""

import itertools
import json
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from initcore._core import MOMENTS
from initcore.reference.exact_sum import exact_sums
from initcore.results import arithmetic, text
from initcore.results.chain_record import ChainAccumulator
from initcore.results.comparison import Comparison
from initcore.results.exact import Accumulator
from initcore.results.layers import FIELDS, QUANTILES, ChainLayers, LayerStats
from initcore.results.propagation import Propagation
from initcore.results.softmax_rows import SoftmaxRows

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
# Huge, tiny and ordinary together: any rounding of a partial sum would show.
extreme = st.builds(
    math.copysign,
    st.one_of(st.sampled_from([1e-300, 5e-324, 1.0, 1 / 3, 1e300]), finite.map(abs)),
    st.sampled_from([1.0, -1.0]),
)
# Logarithms of doubles and their differences; some all but equal.
LOGARITHMS = st.one_of(
    st.floats(2**-40, 1500).map(lambda x: -x),
    st.floats(2**-40, 1500),
    st.integers(-8, 8).map(lambda k: 0.7 + k * 2**-53),
    st.sampled_from([0.0, -(2.0**-53), 3 * 2.0**-106, 745.1332191019411]),
)
SPEC = {
    "widths": [4, 3, 2],
    "activation": "relu",
    "init": "kaiming_normal()",
    "bias": None,
    "norm": None,
    "residual": None,
    "x": None,
    "batch": 8,
    "correlation": 0.0,
    "dtype": "float64",
    "backward": False,
    "method": "dense",
}


def column_sums(values):
    accumulator = Accumulator(1, 1, (0, 0))
    table = np.array(values, np.float64)[:, np.newaxis]
    accumulator.add(table, table)
    return accumulator.record().columns[0]


def states_of(means, n_layers=2):
    """States (trials, L, 2, MOMENTS) with the given values as means and as little else."""
    states = np.zeros((len(means), n_layers, 2, MOMENTS))
    values = np.array(means, np.float64)[:, np.newaxis, np.newaxis]
    states[..., 0] = 24
    states[..., 1] = values
    states[..., 2] = np.abs(values)
    states[..., 3] = np.abs(values)
    states[..., 4] = 3
    states[..., 5] = 6
    return states


def chain_result(states, start=0, **changes):
    accumulator = ChainAccumulator(states.shape[1])
    inputs = np.zeros((len(states), MOMENTS))
    inputs[:, :3] = 1, 1, 0  # of energy 1
    accumulator.add_states(states, inputs)
    stats = LayerStats(*np.ones((3, states.shape[1])))
    return Propagation(
        spec={**SPEC, **changes},
        seed=7,
        trials=(range(start, start + len(states)),),
        record=accumulator.record(),
        theory=ChainLayers(stats, stats),
    )


def bits(result):
    arrays = [
        getattr(stats, name)
        for side in (result.pre, result.post)
        for stats in (side, side.se)
        for name in FIELDS
    ]
    return [array.tobytes() for array in arrays], result.verdict, result.factor, result.factor_se


class TestExactSums:
    @given(st.lists(st.one_of(extreme, st.sampled_from([math.nan, math.inf, -math.inf]))))
    def test_against_the_reference(self, values):
        assert tuple(column_sums(values)) == exact_sums(values)

    @given(st.lists(extreme, min_size=1))
    def test_mean_is_correctly_rounded(self, values):
        exact = sum(map(Fraction, values), Fraction()) / len(values)
        assert column_sums(values).mean() == float(exact)

    @given(st.lists(extreme, min_size=2))
    def test_standard_error_is_correctly_rounded(self, values):
        n = len(values)
        exact = list(map(Fraction, values))
        mean = sum(exact, Fraction()) / n
        square = sum((x - mean) ** 2 for x in exact) / (n - 1) / n
        with localcontext() as context:
            context.prec, context.Emin, context.Emax = 60, -9999, 9999
            root = (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()
        assert column_sums(values).standard_error() == pytest.approx(float(root), rel=0, abs=0)

    def test_known_values(self):
        sums = column_sums([1.0, 2.0, 3.0, 4.0, math.nan, math.inf])
        assert (sums.finite, sums.nonfinite, sums.mean()) == (4, 2, 2.5)
        assert sums.standard_error() == math.sqrt(5 / 12)

    def test_too_few_trials_are_nan(self):
        assert math.isnan(column_sums([math.nan]).mean())
        assert math.isnan(column_sums([1.0]).standard_error())

    @given(st.integers(-(10**600), 10**600))
    def test_hexadecimal_round_trip(self, value):
        text = arithmetic.to_hex(value, -1074)
        assert arithmetic.from_hex(text, -1074) == value

    def test_hexadecimal_is_a_number_in_units_of_one(self):
        for value in (1.0, -3.5, 5e-324, 1e300, 0.0):
            assert float.fromhex(arithmetic.to_hex(arithmetic.units(value), -1074)) == value


class TestLogarithms:
    def test_the_portable_logarithm(self, rng):
        x = np.concatenate([np.exp(rng.uniform(-740, 709, 2000)), 1 + rng.normal(size=500) / 100])
        exact_log = np.array([math.log(v) for v in x])
        assert np.all(
            np.abs(arithmetic.portable_log(x) - exact_log) <= 4 * np.spacing(abs(exact_log))
        )
        edges = arithmetic.portable_log(np.array([1.0, 0.0, np.inf, np.nan, 5e-324]))
        assert edges[0] == 0
        assert edges[1:3].tolist() == [-np.inf, np.inf]
        assert np.isnan(edges[3])
        assert edges[4] == pytest.approx(-1074 * math.log(2), rel=1e-15)

    def histogram(self, values):
        return self.kept(np.array(values, float)[:, np.newaxis])[1][0]

    def kept(self, logs):
        """The exact sums and the histograms of the columns of logs (trials, m)."""
        m = logs.shape[1]
        accumulator = Accumulator(m, m, n_histograms=m)
        accumulator.add(np.where(np.isfinite(logs), logs, np.nan), np.abs(logs))
        accumulator.count(logs)
        record = accumulator.record()
        return record.columns, record.histograms

    def test_quantiles_are_known_to_the_width_of_a_bin(self, rng):
        values = rng.normal(size=999) * 3
        fractions = (0.05, 0.25, 0.5, 0.75, 0.95)
        found = self.histogram(values).quantiles(fractions)
        for fraction, quantile in zip(fractions, found, strict=True):
            low, high = (
                np.quantile(values, max(0, fraction + shift), method=method)
                for shift, method in ((-1e-3, "lower"), (1e-3, "higher"))
            )
            assert low - 1 / 32 <= quantile <= high + 1 / 32

    def test_what_has_no_logarithm_is_counted_apart(self):
        found = self.histogram([-math.inf, 0.5, math.nan, math.inf, 0.5, -0.001])
        assert found[:3] == (1, 2, ((-1, 1), (16, 2)))
        assert (found + self.histogram([0.51]))[:3] == (1, 2, ((-1, 1), (16, 3)))
        assert all(map(math.isnan, self.histogram([math.inf]).quantiles((0.5,))))

    @given(st.lists(LOGARITHMS, min_size=1, max_size=20), st.integers(0, 20))
    def test_higher_powers_are_exact_however_they_are_split(self, values, cut):
        found = self.histogram(values)
        exact_values = list(map(Fraction, values))
        assert Fraction(found.cubes, 2**1074) == sum(x**3 for x in exact_values)
        assert Fraction(found.fourths, 2**2148) == sum(x**4 for x in exact_values)
        parts = [part for part in (values[:cut], values[cut:]) if part]
        first, *others = (self.histogram([*part, math.inf]) for part in parts)
        merged = first + others[0] if others else first
        assert merged == found._replace(overflowed=len(parts))

    @given(st.lists(LOGARITHMS, min_size=2, max_size=20))
    def test_the_variance_has_the_standard_error_of_its_definition(self, values):
        """√((m₄ − (T − 3)/(T − 1) s⁴)/T), also where the values agree to their last bits."""
        (sums,), (counted,) = self.kept(np.array(values)[:, np.newaxis])
        exact_values, n = list(map(Fraction, values)), len(values)
        mean = sum(exact_values) / n
        square, fourth = (sum((x - mean) ** k for x in exact_values) for k in (2, 4))
        expected = (fourth / n - Fraction(n - 3, n - 1) * (square / (n - 1)) ** 2) / n
        with localcontext() as context:
            context.prec, context.Emin, context.Emax = 60, -9999, 9999
            root = (Decimal(expected.numerator) / Decimal(expected.denominator)).sqrt()
        assert counted.variance_error(sums) == float(root)
        counted.check(sums)

    @pytest.mark.parametrize(
        ("law", "fourth"),
        [
            (lambda rng, size: rng.normal(size=size), 3),
            (lambda rng, size: rng.exponential(size=size) - 1, 9),
            (lambda rng, size: rng.uniform(-(3**0.5), 3**0.5, size=size), 1.8),
        ],
        ids=["normal", "exponential", "uniform"],
    )
    @pytest.mark.parametrize(("mean", "std"), [(0.0, 2.0), (-30.0, 1e-6)])
    def test_variances_scatter_as_their_standard_errors_say(self, rng, law, fourth, mean, std):
        """500 samples of 200 of known laws, wide and far below a bin: the mean of the squared
        errors is Var(s²) = (μ₄ − (T − 3)/(T − 1) σ⁴)/T, and that of (s² − σ²)² as well."""
        samples, n = 500, 200
        logs = mean + std * law(rng, (n, samples))
        columns, histograms = self.kept(logs)
        variances = np.array([column.variance() for column in columns]) / std**2
        errors = [h.variance_error(c) for h, c in zip(histograms, columns, strict=True)]
        squares = (np.array(errors) / std**2) ** 2
        expected = (fourth - (n - 3) / (n - 1)) / n
        # m₄ and s⁴ are off by O(1/T) of themselves: of the exponential's, by a tenth
        limit = 5 * squares.std(ddof=1) / math.sqrt(samples) + 0.1 * expected
        assert abs(squares.mean() - expected) <= limit
        scatter = (variances - 1) ** 2
        limit = 5 * scatter.std(ddof=1) / math.sqrt(samples)
        assert abs(scatter.mean() - expected) <= limit

    @pytest.mark.parametrize("law", ["normal", "exponential"])
    def test_quantiles_scatter_as_their_standard_errors_say(self, rng, law):
        """500 samples of 400 of known laws, much wider than a bin: 95.4 % of the quantiles lie
        within two standard errors of the law's, and the errors are √(p(1 − p)/T) over the density
        there."""
        samples, n, wide = 500, 400, 40.0
        if law == "normal":
            logs = wide * rng.normal(size=(n, samples))
            known = wide * np.array([-1.6448536, -0.6744898, 0, 0.6744898, 1.6448536])
            density = np.exp(-((known / wide) ** 2) / 2) / math.sqrt(2 * math.pi) / wide
        else:
            logs = wide * rng.exponential(size=(n, samples))
            known, density = (
                -wide * np.log1p(-np.array(QUANTILES)),
                (1 - np.array(QUANTILES)) / wide,
            )
        histograms = self.kept(logs)[1]
        found = np.array([h.quantiles(QUANTILES) for h in histograms])
        errors = np.array([h.quantile_errors(QUANTILES) for h in histograms])
        share = 0.9545  # of a normal; √(0.0455 · 0.9545/500) = 0.0093
        covered = np.mean(np.abs(found - known) <= 2 * errors, axis=0)
        assert np.all(np.abs(covered - share) <= 5 * 0.0093)
        expected = np.sqrt(np.array(QUANTILES) * (1 - np.array(QUANTILES)) / n) / density
        # The density changes over the interval: in the tails, by a few per cent.
        limit = 5 * errors.std(axis=0, ddof=1) / math.sqrt(samples) + 0.04 * expected
        assert np.all(np.abs(errors.mean(axis=0) - expected) <= limit)

    def test_a_quantile_has_no_error_where_its_tail_has_no_trials(self):
        """p ± √(p(1 − p)/T) leaves (0, 1) for T < (1 − p)/p: 20 trials for 5 %, 4 for a quarter."""
        for n, known in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (18, 3), (20, 5)):
            errors = self.histogram(np.linspace(-1, 1, n)).quantile_errors(QUANTILES)
            assert np.isfinite(errors).tolist() == [
                min(p, 1 - p) > math.sqrt(p * (1 - p) / n) if n else False for p in QUANTILES
            ]
            assert np.isfinite(errors).sum() == known

    def test_what_has_no_logarithm_does_not_count_in_errors(self):
        values = [0.5, 1.25, -3.0, 0.75]
        (sums, *_), (counted, *_) = self.kept(np.array(values)[:, np.newaxis])
        odd = [*values, -math.inf, math.nan, math.inf]
        (found, *_), (others, *_) = self.kept(np.array(odd)[:, np.newaxis])
        assert others.variance_error(found) == counted.variance_error(sums) > 0
        assert others.quantile_errors((0.5,)) == counted.quantile_errors((0.5,))
        (one, *_), (alone, *_) = self.kept(np.array([[2.0], [math.nan]]))
        assert math.isnan(alone.variance_error(one))


class TestMerging:
    @given(st.lists(extreme, min_size=3, max_size=12), st.data())
    def test_associative_to_the_bit_also_through_files(self, tmp_path_factory, values, data):
        states = states_of(values)
        cut = sorted(data.draw(st.sets(st.integers(1, len(values) - 1), min_size=2, max_size=2)))
        edges = [0, *cut, len(values)]
        pairs = itertools.pairwise(edges)
        parts = [chain_result(states[i:j], start=i) for i, j in pairs]
        whole = chain_result(states)
        path = tmp_path_factory.mktemp("merge") / "part.json"

        def stored(result):
            result.save(path)
            return Propagation.load(path)

        for keep in (lambda result: result, stored):
            a, b, c = map(keep, parts)
            for total in ((a + b) + c, a + keep(b + c), keep(c + a) + b):
                assert keep(total).equals(whole)
                assert bits(keep(total)) == bits(whole)

    def test_trials_are_sorted_disjoint_ranges(self):
        states = states_of([1.0, 2.0])
        a, b, c = (chain_result(states, start=start) for start in (0, 2, 10))
        assert (c + a).trials == (range(2), range(10, 12))
        assert (a + b).trials == (range(4),)
        assert (c + a + b).n_trials == 6

    def test_overlapping_trials_are_refused(self):
        a, b = (chain_result(states_of([1.0] * 4), start=start) for start in (0, 3))
        with pytest.raises(ValueError, match=r"common cannot be added: trial 3$"):
            a + b
        with pytest.raises(ValueError, match="trials 0 to 3"):
            a + a

    @pytest.mark.parametrize(
        ("name", "value"),
        [("init", "xavier_normal()"), ("batch", 9), ("widths", [5, 3, 2]), ("dtype", "float32")],
    )
    def test_other_specifications_are_refused(self, name, value):
        a = chain_result(states_of([1.0]))
        b = chain_result(states_of([1.0]), start=1, **{name: value})
        with pytest.raises(ValueError, match=f"different {name}"):
            a + b

    def test_other_seeds_methods_and_types_are_refused(self):
        a, b = (chain_result(states_of([1.0]), start=start) for start in (0, 1))
        kept = (b.spec, b.seed, b.trials, b.record, b.theory)
        with pytest.raises(ValueError, match=r"different method .* 'dense' and 'gram'"):
            a + Propagation({**b.spec, "method": "gram"}, *kept[1:])
        with pytest.raises(ValueError, match=r"different seed .* 7 and 8"):
            a + Propagation(b.spec, 8, *kept[2:])
        with pytest.raises(TypeError):
            a + 1

    def test_not_finite_trials_are_left_out_of_means_and_counted(self):
        result = chain_result(states_of([1.0, math.inf, 3.0, math.nan]))
        assert result.pre.mean.tolist() == [2.0, 2.0]
        assert result.pre.se.mean.tolist() == [1.0, 1.0]
        assert result.outcome == "overflows"
        assert "float64 at layer 1 (2 of 4 trials)" in result.verdict

    def test_abs_max_is_the_largest_over_trials(self):
        result = chain_result(states_of([1.0, -7.0, 3.0]))
        assert result.pre.abs_max.tolist() == [7.0, 7.0]
        assert np.isnan(result.pre.se.abs_max).all()


class TestFactor:
    def test_delta_method_keeps_the_covariance(self):
        # Layer 2 is a multiple of layer 1 in every trial: their ratio has no error at all.
        means = np.array([1.0, 2.0, 4.0, 9.0])
        states = np.stack([states_of(means, 1), states_of(2 * means, 1)], axis=1)[:, :, 0]
        states[..., 2] = 0
        result = chain_result(states)
        assert (result.factor, result.factor_se) == (4.0, 0.0)
        assert result.outcome == "explodes"

    def test_standard_error_against_a_direct_computation(self, rng):
        trials, layers = 50, 5
        states = np.zeros((trials, layers, 2, MOMENTS))
        states[..., 0] = 1
        states[..., 1] = np.exp(rng.normal(size=(trials, layers, 1)).cumsum(axis=1) / 10)
        result = chain_result(states, widths=[4] * (layers + 1))
        a, b = (states[:, layer, 0, 1] ** 2 for layer in (1, 4))
        influence = b / b.mean() - a / a.mean()
        factor = (b.mean() / a.mean()) ** (1 / 3)
        assert result.factor == pytest.approx(factor, rel=1e-12)
        assert result.factor_se == pytest.approx(
            factor * influence.std(ddof=1) / math.sqrt(trials) / 3, rel=1e-12
        )

    def test_second_moments_whose_products_underflow(self):
        means = np.array([1.0, 2.0, 4.0]) * 1e-100
        states = np.stack([states_of(means, 1), states_of(2 * means, 1)], axis=1)[:, :, 0]
        states[..., 2] = 0
        result = chain_result(states)
        assert result.factor == pytest.approx(4.0, rel=1e-12)
        assert result.factor_se == pytest.approx(0.0, abs=1e-9)


class TestRecords:
    def test_arrays_are_read_only_also_after_pickling(self):
        result = chain_result(states_of([1.0, 2.0]))
        again = pickle.loads(pickle.dumps(result))
        assert again.equals(result)
        for one in (result, again):
            for array in (
                one.pre.mean,
                one.post.se.variance,
                one.record.maxima,
                one.theory.pre.mean,
            ):
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0

    def test_constructors_copy(self):
        values = np.zeros(3)
        stats = LayerStats(values, values, values)
        values += 1
        assert stats.mean.tolist() == [0, 0, 0]

    def test_equals_is_bitwise_with_nan_equal(self):
        def stats(value):
            return LayerStats(*np.full((3, 2), value))

        assert stats(np.nan).equals(stats(-np.nan))
        assert not stats(0.0).equals(stats(-0.0))
        assert not stats(1.0).equals(stats(np.nextafter(1.0, 2.0)))
        assert not stats(1.0).equals(ChainLayers(stats(1.0), stats(1.0)))
        assert stats(1.0) != stats(1.0)

    def test_unknown_fields_are_nan(self):
        stats = LayerStats(*np.ones((3, 4, 2)))
        assert stats.saturated_fraction.shape == (4, 2)
        assert np.isnan(stats.saturated_fraction).all()
        assert stats.se is None

    def test_from_states(self):
        # 4, -4, 0, 0 with one saturated entry
        state = np.array([4.0, 0.0, 32.0, 4.0, 2.0, 1.0, 0.0, 0.0, 512.0, 16.0, 2.0, 3.0, 0.25])
        stats = LayerStats.from_states(np.stack([state, state]))
        assert stats.mean.tolist() == [0, 0]
        assert stats.second_moment[0] == stats.variance[0] == 8
        assert (stats.abs_max[0], stats.zero_fraction[0], stats.saturated_fraction[0]) == (
            4,
            0.5,
            0.25,
        )
        assert (stats.kurtosis[0], stats.batch_variance[0]) == (2, 4)
        assert (stats.dead_fraction[0], stats.float16_overflow_fraction[0]) == (0.5, 0.75)
        assert stats.cosine[0] == 0.25
        assert LayerStats.from_states(state).mean.shape == ()
        post = LayerStats.from_states(state, activation=True)
        assert np.isnan(post.saturated_fraction)

    def test_from_states_of_nothing_or_of_overflow_is_silent(self):
        stats = LayerStats.from_states(np.zeros((2, MOMENTS)))
        assert np.isnan([stats.mean, stats.variance, stats.zero_fraction]).all()
        unknown = [math.nan] * 3
        overflowed = LayerStats.from_states(
            [4, math.inf, math.nan, math.inf, 0, 0, 1, *unknown, 0, 1, math.nan]
        )
        assert np.isnan(overflowed.second_moment)
        assert overflowed.nonfinite_fraction == 0.25


class TestFiles:
    def test_round_trip(self, tmp_path):
        result = chain_result(states_of([1e-300, 1 / 3, 1e300, math.nan]))
        result.save(tmp_path / "chain.json")
        again = Propagation.load(tmp_path / "chain.json")
        assert again.equals(result)
        assert bits(again) == bits(result)
        assert str(again) == str(result)
        assert [path.name for path in tmp_path.iterdir()] == ["chain.json"]

    def test_strict_json(self):
        def refuse(constant):
            raise AssertionError(constant)

        text = json.dumps(chain_result(states_of([math.inf])).to_dict(), allow_nan=False)
        data = json.loads(text, parse_constant=refuse)
        assert data["pre"]["second_moment"] == ["NaN", "NaN"]
        assert data["pre"]["abs_max"] == ["Infinity", "Infinity"]
        assert (data["format"], data["version"]) == ("initcore.propagation", 2)

    def test_comparison_round_trip(self, tmp_path):
        a, b = chain_result(states_of([1.0])), chain_result(states_of([2.0]), init="ones()")
        comparison = Comparison((a, b))
        comparison.save(tmp_path / "both.json")
        again = Comparison.load(tmp_path / "both.json")
        assert again.equals(comparison)
        assert len(again) == 2
        assert [result.label for result in again] == ["kaiming_normal()", "ones()"]
        assert again[1].equals(b)

    @pytest.mark.parametrize(
        "change",
        [{"format": "initcore.attention"}, {"version": 3}, {"record": {}}, {"trials": [1]}],
    )
    def test_other_or_damaged_data_is_refused(self, change):
        data = chain_result(states_of([1.0])).to_dict()
        with pytest.raises(ValueError, match=r"initcore\.propagation"):
            Propagation.from_dict({**data, **change})

    @pytest.mark.parametrize("kind", [Propagation, Comparison])
    def test_an_older_file_is_refused_by_its_version(self, kind):
        """Version 1 had no higher powers of logarithms, and no logarithm of weights' gradients."""
        result = chain_result(states_of([1.0]))
        data = (result if kind is Propagation else Comparison((result,))).to_dict()
        with pytest.raises(ValueError, match=rf"'{kind.FORMAT}', version 2 is needed; got .*, 1$"):
            kind.from_dict({**data, "version": 1})

    def test_columns_that_do_not_fit_the_widths_are_refused(self):
        data = chain_result(states_of([1.0])).to_dict()
        data["record"]["columns"].pop()
        with pytest.raises(ValueError, match="damaged"):
            Propagation.from_dict(data)

    @pytest.mark.parametrize("text", ["", "[]", "{", "3"])
    def test_other_files_are_refused(self, tmp_path, text):
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"JSON|format"):
            Propagation.load(path)

    def test_a_failed_save_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "chain.json"
        result = chain_result(states_of([1.0]))
        result.save(path)
        before = path.read_bytes()

        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr("pathlib.Path.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            result.save(path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_a_missing_directory_is_named(self, tmp_path):
        path = tmp_path / "missing" / "chain.json"
        with pytest.raises(FileNotFoundError) as caught:
            chain_result(states_of([1.0])).save(path)
        assert caught.value.filename == str(path)


class TestText:
    def test_a_comparison_says_what_its_columns_are(self):
        lines = str(Comparison((chain_result(states_of([1.0, 2.0])),) * 2)).splitlines()
        heading = next(i for i, line in enumerate(lines) if line.split()[0] == "layer")
        assert " ".join(lines[:heading]).endswith("; E[h²] ± s.e.:")

    def test_table_of_a_chain(self):
        text = str(chain_result(states_of([1.0, 1.5])))
        lines = text.splitlines()
        assert lines[0].startswith("kaiming_normal(): 2 layers, widths 4, 3, 2, relu, batch 8")
        assert lines[2].split("  ")[:3] == ["layer", "E[h²] ± s.e.", "theory"]
        assert lines[1] == "theory is that of infinite width:"
        assert lines[3].split()[0] == "1"
        assert lines[-1].startswith("holds: E[h²] ×")

    def test_the_widest_table_and_the_longest_sentence_fit_100_columns(self):
        """Of what is so small that every number has an exponent; with medians, gradients, shares,
        dead and overflowed trials."""
        tiny = states_of([0.0, 1e-40, 1e-50, 1e-60], n_layers=120)
        tiny[..., 12] = -0.5  # the cosine
        tiny[..., 4], tiny[..., 10] = 24, 12  # zeros, entries of dead units
        accumulator = ChainAccumulator(120, backward=True)
        inputs = np.zeros((4, MOMENTS))
        inputs[:, :3] = 1, 1, 0
        accumulator.add_states(tiny, inputs, np.concatenate([tiny, tiny[:, :, :1]], axis=2))
        stats = LayerStats(*np.full((3, 120), 1.2345e-101))
        changes = {"widths": [1000] * 121, "batch": 8, "backward": True}
        result = Propagation(
            spec={**SPEC, **changes, "init": ["kaiming_normal(mode='fan_out').scaled(2)"] * 120},
            seed=7,
            trials=(range(4),),
            record=accumulator.record(),
            theory=ChainLayers(stats, stats, stats, stats, stats),
        )
        lines = str(result).splitlines()
        assert max(map(len, lines)) <= 100
        text = " ".join(str(result).split())
        for words in (
            "E[h²] ± s.e. theory median cosine E[x²] mean x x = 0 dead units",
            "E[(∂/∂h)²] ± s.e. theory median E[(∂/∂x)²] E[(∂/∂W)²] ± s.e. theory",
            "median: half of the networks lie below it",
            "h is 0 in 1 of 4 trials by layer 120, the first at layer 1: the mean counts them",
            "the gradient by h is 0 in 1 of 4 trials by layer 1, the first at layer 120",
        ):
            assert words in text
            assert words.split(" ± ")[0] in result._repr_html_()

    def test_chosen_layers(self):
        assert text.chosen_layers(8) == list(range(1, 9))
        assert text.chosen_layers(50) == [1, 2, 5, 10, 20, 50]
        assert text.chosen_layers(51)[-2:] == [50, 51]

    def test_trials_that_overflow_are_said_to(self):
        result = chain_result(states_of([1.0, math.inf, 1.0, 2.0]))
        words = "h overflows in 1 of 4 trials by layer 2, the first at layer 1"
        assert words in result.notes()
        assert words in str(result)

    def test_html_is_escaped(self):
        result = chain_result(states_of([1.0]), init="<b>")
        assert "<b>" not in result._repr_html_()
        assert "&lt;b&gt;" in result._repr_html_()
        assert "&lt;b&gt;" in Comparison((result,))._repr_html_()

    def test_arrays_of_trials_and_of_no_layers(self):
        stats = LayerStats.from_states(np.ones((3, 2, MOMENTS)))
        assert len(str(ChainLayers(stats, stats)).splitlines()) == 3
        assert len(str(LayerStats.from_states(np.ones(MOMENTS))).splitlines()) == 2

    def test_numbers(self):
        assert [text.number(x) for x in (0, 2, 0.5, 1234.5, 1e-9, -2e30, math.nan)] == [
            "0", "2.000", "0.5000", "1234", "1.000e-09", "-2.000e+30", "-",
        ]  # fmt: skip
        assert [text.number(x, 2) for x in (235.3, 2.353, 0.2353, 2.4e4)] == [
            "235", "2.4", "0.24", "2.4e+04",
        ]  # fmt: skip
        assert text.measured(0.02691, 2.9e-4) == "0.02691 ± 0.00029"
        assert text.measured(1234.5, 120.0) == "1234 ± 120"
        assert text.measured(2.691e-7, 2.9e-9) == "2.691e-07 ± 2.9e-09"
        assert text.measured(0.5, 3e-8) == "0.5000 ± 3.0e-08"
        assert text.measured(0.5, math.nan) == text.measured(0.5, 0.0) == "0.5000"
        assert text.plus_minus(2.0, 0.0123) == "2.000 ± 0.012"
        assert text.plus_minus(1e-20, 1e-22) == "1.000e-20 ± 1.0e-22"


class TestSoftmaxRows:
    NAN = math.nan

    def rows(self):
        statistics = [
            [1.0, 0.5, 0.7, 0.5, 0.5],
            [3.0, 0.995, 0.1, 0.99, 0.1],
            [-math.inf, self.NAN, self.NAN, self.NAN, self.NAN],
            [self.NAN] * 5,
        ]
        return SoftmaxRows.from_statistics(np.reshape(statistics, (2, 2, 5)), 0.99)

    def test_summary_leaves_masked_and_non_finite_rows_out(self):
        summary = self.rows().summary()
        assert (summary.rows, summary.masked_rows, summary.nonfinite_rows) == (4, 1, 1)
        assert summary.saturated_rows == 1
        assert (summary.lse, summary.max_prob) == (2.0, (0.5 + 0.995) / 2)
        assert "4 rows, 1 masked, 1 nonfinite, 1 saturated" in str(self.rows())

    def test_shapes_and_dtypes(self):
        rows = self.rows()
        assert rows.entropy.shape == rows.saturated.shape == (2, 2)
        assert rows.saturated.dtype == np.bool_
        assert not rows.lse.flags.writeable

    def test_summary_of_no_rows(self):
        summary = SoftmaxRows.from_statistics(np.empty((0, 5)), 0.99).summary()
        assert summary.rows == summary.saturated_rows == 0
        assert math.isnan(summary.entropy)
        assert json.dumps(summary.to_dict(), allow_nan=False)

    def test_one_row(self):
        one = SoftmaxRows.from_statistics([1.0, 0.5, 0.7, 0.5, 0.5], 0.5)
        assert one.lse.shape == ()
        assert one.saturated
        assert one.summary().rows == 1


class TestDamagedFiles:
    """Whatever is wrong with the data, ValueError says so; nothing wrong is loaded."""

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.update(trials=[[0, 1000]]),
            lambda d: d.update(trials=[[0, 2], [1, 4]]),
            lambda d: d.update(trials=[[3, 1]]),
            lambda d: d.update(trials=[]),
            lambda d: d.update(seed=-1),
            lambda d: d["spec"].pop("dtype"),
            lambda d: d["spec"].update(dtype="S4"),
            lambda d: d["spec"].update(init="unknown"),
            lambda d: d["spec"].update(activation=["relu"]),
            lambda d: d["spec"].update(widths=["4", 4, 4]),
            lambda d: d["spec"].update(widths=[4, -4, 4]),
            lambda d: d["record"]["columns"][0].__setitem__(0, -3),
            lambda d: d["record"]["columns"][0].__setitem__(0, 2),
            lambda d: d["record"]["columns"][0].__setitem__(2, None),
            lambda d: d["record"]["columns"][0].__setitem__(3, "0x0p0"),
            lambda d: d["record"]["columns"].pop(),
            lambda d: d["record"].update(cross=[1]),
            lambda d: d["record"]["histograms"].pop(),
            lambda d: d["record"]["histograms"][0].__setitem__(0, 1),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[3, 5], [4, -1]]),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[4, 2], [3, 2]]),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[0.5, 4]]),
            lambda d: d["record"].update(cross=[1, "0x1p999999999999"]),
            lambda d: d["spec"].update(widths=[2**32, 4, 4]),
            lambda d: d["spec"].update(batch=2**32),
            lambda d: d["spec"].update(correlation=True),
            lambda d: d["spec"].update(correlation="0.5"),
            lambda d: d["record"]["maxima"].__setitem__(0, None),
            lambda d: d["record"]["maxima"].__setitem__(1, "NaN"),
            lambda d: d["record"]["maxima"].__setitem__(1, -1.0),
            lambda d: d["record"]["maxima"].__setitem__(2, True),
            lambda d: d["record"]["maxima"].__setitem__(3, "1.5"),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[10**6, 4]]),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[-(10**400), 4]]),
            lambda d: d["record"]["histograms"][0].__setitem__(2, [[3, 5]]),
            lambda d: d["record"]["histograms"][0].__setitem__(slice(0, 3), [1, 0, [[3, 3]]]),
            lambda d: d["record"]["histograms"][0].__setitem__(3, "0x1p9"),
            lambda d: d["record"]["histograms"][0].__setitem__(3, "-0x1p9"),
            lambda d: d["record"]["histograms"][0].__setitem__(3, None),
            lambda d: d["record"]["histograms"][0].__setitem__(4, "0x1p-40"),
            lambda d: d["record"]["histograms"][0].__setitem__(4, "-0x1p0"),
            lambda d: d["record"]["histograms"][0].pop(),
            lambda d: d["record"]["cross"].__setitem__(0, [4, "0x0p0"]),
            lambda d: d["record"]["cross"].__setitem__(0, [4, "0x1p0"]),
            lambda d: d["record"]["cross"].__setitem__(0, [4, "0x1p99"]),
            lambda d: d["record"]["cross"].__setitem__(0, [0, "0x0p0"]),
            lambda d: d.pop("theory"),
        ],
    )
    def test_is_refused(self, change):
        data = ic.propagate([4, 4, 4], trials=4).to_dict()
        Propagation.from_dict(data)
        change(data)
        with pytest.raises(ValueError, match="damaged"):
            Propagation.from_dict(data)

    @pytest.mark.parametrize(
        "change",
        [
            {"x": [[None, 1.0]]},
            {"x": [[True, 1.0]]},
            {"x": [["1", 1.0]]},
            {"x": [["NaN", 1.0]]},
            {"x": [[1.0, 1.0]] * 2},
            {"batch": 2},
            {"correlation": 0.5},
        ],
    )
    def test_of_given_inputs(self, change):
        data = ic.propagate([2, 3], x=[[0.5, 1.0]], trials=2).to_dict()
        assert Propagation.from_dict(data).to_dict() == data
        with pytest.raises(ValueError, match="damaged"):
            Propagation.from_dict({**data, "spec": {**data["spec"], **change}})

    @pytest.mark.parametrize("init", ["kaiming_normal", "zeros", "normal(1e19)", "normal(1e30)"])
    def test_what_overflows_or_vanishes_is_whole(self, init):
        for backward in (False, True):
            result = ic.propagate([4] * 7, init=init, trials=5, backward=backward)
            assert Propagation.from_dict(result.to_dict()).equals(result)

    @pytest.mark.parametrize("results", [None, [], 5, [{}], [[]]])
    def test_a_comparison_too(self, results):
        data = {"format": "initcore.comparison", "version": 2, "results": results}
        with pytest.raises(ValueError, match=r"damaged|format"):
            Comparison.from_dict(data)

    @pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"\xff\xfe", b"{"])
    def test_what_is_no_json(self, tmp_path, text):
        path = tmp_path / "run.json"
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"run\.json"):
            Propagation.load(path)


class TestSaving:
    def test_threads_may_save_to_one_path(self, tmp_path):
        result = ic.propagate([4, 4], trials=2)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: result.save(tmp_path / "same.json"), range(60)))
        assert Propagation.load(tmp_path / "same.json").equals(result)
        assert [path.name for path in tmp_path.iterdir()] == ["same.json"]

    def test_a_link_is_followed_and_the_mode_kept(self, tmp_path):
        result = ic.propagate([4, 4], trials=2)
        real, link = tmp_path / "real.json", tmp_path / "link.json"
        real.write_text("before")
        real.chmod(0o600)
        link.symlink_to(real)
        result.save(link)
        assert link.is_symlink()
        assert Propagation.load(real).equals(result)
        assert real.stat().st_mode & 0o777 == 0o600

    def test_a_device_is_written_to(self):
        ic.propagate([4, 4], trials=2).save(os.devnull)
        assert not os.path.isfile(os.devnull)

    def test_a_long_name(self, tmp_path):
        path = tmp_path / ("n" * 250 + ".json")
        ic.propagate([4, 4], trials=2).save(path)
        assert path.exists()
