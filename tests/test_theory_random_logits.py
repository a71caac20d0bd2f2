# SPDX-License-Identifier: BSD-3-Clause
"""The softmax of independent normal logits: published values, two logits exactly, simulation."""

import math

import mpmath as mp
import numpy as np
import pytest

from initcore import activation
from initcore.theory import freezing_std, saturated_share, saturation_std, softmax


@pytest.mark.parametrize(
    ("std", "sum_sq", "entropy", "max_prob"),
    [
        (1, 0.0201917, 4.365642, None),
        (2, 0.109864, 3.193970, 0.239369),
        (4, 0.404426, 1.547036, 0.547449),
    ],
)
def test_128_logits(std, sum_sq, entropy, max_prob):
    found = softmax(n=128, std=std)
    assert found.sum_sq == pytest.approx(sum_sq, rel=5e-6)
    assert found.entropy == pytest.approx(entropy, abs=6e-7)
    if max_prob is not None:
        # published to six digits, the last of them rounded differently
        assert found.max_prob == pytest.approx(max_prob, rel=5e-5)


@pytest.mark.parametrize("std", [1e-4, 0.1, 0.399, 0.4, 1.0, 5.0, 30.0, 100.0])
def test_two_logits(std):
    """Their difference is N(0, 2 std²), and everything a function of it."""
    spread = mp.sqrt(2) * std

    def mean(function):
        ends = sorted({0.0, *(min(x / float(spread), 12) for x in (1, 3, 10, 40)), 1, 3, 6, 12})
        return 2 * mp.quad(lambda z: function(spread * z) * mp.npdf(z), ends)

    def larger(x):
        return 1 / (1 + mp.exp(-x))

    def entropy(x):
        return mp.log1p(mp.exp(-x)) + x * mp.exp(-x) / (1 + mp.exp(-x))

    found = softmax(2, std)
    expected = mean(lambda x: larger(x) ** 2 + larger(-x) ** 2)
    assert found.sum_sq == pytest.approx(float(expected), rel=1e-13)
    assert found.entropy == pytest.approx(float(mean(entropy)), rel=1e-10)
    assert found.max_prob == pytest.approx(float(mean(larger)), rel=1e-13)
    jacobian_sq = mean(lambda x: (2 * larger(x) * larger(-x)) ** 2)  # p(1 − p) in four places
    assert found.jacobian_sq == pytest.approx(float(jacobian_sq), abs=1e-11)
    for threshold in (0.5, 0.6, 0.9, 0.99, 0.999999):
        share = math.erfc(math.log(threshold / (1 - threshold)) / (2 * std))
        assert saturated_share(2, std, threshold) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("std", [0.3, 1.0, 4.0, 30.0])
def test_three_logits_saturate(std):
    """p_1 > t means e^(s z_3) < r e^(s z_1) − e^(s z_2), r = 1/t − 1; no two exceed 1/2."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    erf = activation("erf")
    for threshold in (0.5, 0.7, 0.99):
        r = 1 / threshold - 1
        # x = ln r − s(z_2 − z_1) > 0: fine panels where the difference nearly vanishes
        ends = np.concatenate([[0], 2.0 ** np.arange(-40, 0), np.arange(1, 20)])
        ends = np.concatenate([ends, np.arange(20, 14 * std + 40, max(1, std / 2))])
        half = np.diff(ends)[:, None] / 2
        x = (ends[:-1, None] + half * (1 + nodes)).ravel()
        dx = (half * weights).ravel()
        z1 = np.arange(-10, 10, 0.05)[:, None]
        z2 = z1 + (math.log(r) - x) / std
        z3 = z1 + (math.log(r) + np.log(-np.expm1(-x))) / std
        below = (1 + erf(z3 / math.sqrt(2))) / 2
        density = np.exp(-(z1**2 + z2**2) / 2) / (2 * math.pi)
        share = 3 * 0.05 * float(np.sum(density * below * dx)) / std
        assert saturated_share(3, std, threshold) == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("n", [2, 10, 1000, 10**6])
def test_small_std(n):
    """E Σp² = (1 + s² (1 − 1/n))/n + O(s⁴), E H = ln n − s² (1 − 1/n)/2 + O(s⁴)."""
    s = 1e-3
    found = softmax(n, s)
    assert n * found.sum_sq - 1 == pytest.approx(s * s * (1 - 1 / n), rel=1e-5)
    assert math.log(n) - found.entropy == pytest.approx(s * s * (1 - 1 / n) / 2, rel=1e-5)
    # ∂ max p/∂z is p(1 − p): the largest of n normals is what counts.
    z = np.linspace(-10, 10, 20001)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    density = n * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * below ** (n - 1)
    largest = float(np.sum(z * density) * (z[1] - z[0]))
    assert n * found.max_prob - 1 == pytest.approx(s * largest, rel=s * largest)


@pytest.mark.parametrize(("n", "std"), [(3, 1.0), (50, 3.0), (700, 0.7), (700, 8.0)])
def test_within_five_standard_errors_of_simulation(n, std, rng):
    trials = 200_000 // n
    logits = std * rng.standard_normal((trials, n))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    found = softmax(n, std)
    measured = {
        "sum_sq": np.sum(p * p, axis=1),
        "entropy": -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1),
        "max_prob": p.max(axis=1),
        "jacobian_sq": np.sum(p * p - 2 * p**3, axis=1) + np.sum(p * p, axis=1) ** 2,
    }
    for name, values in measured.items():
        error = values.std(ddof=1) / math.sqrt(trials)
        assert abs(values.mean() - getattr(found, name)) < 5 * error, name
    for threshold in (0.5, 0.8):
        share = saturated_share(n, std, threshold)
        error = math.sqrt(share * (1 - share) / trials)
        assert abs(np.mean(p.max(axis=1) > threshold) - share) <= 5 * error


def test_bounds_that_hold_for_every_row():
    """1/Σp² ≤ e^H and Σp² ≤ max p ≤ √Σp², and both ends of the range of std."""
    for n in (2, 64, 10**6, 10**12):
        before = softmax(n, 0)
        assert (before.sum_sq, before.entropy, before.max_prob) == (1 / n, math.log(n), 1 / n)
        near = softmax(n, 1e-8).jacobian_sq
        assert before.jacobian_sq == pytest.approx(1 / n - 1 / n**2, rel=1e-13)
        assert near == pytest.approx(before.jacobian_sq, rel=1e-10)
        for std in (1e-8, 0.5, 3.0, 9.0, 30.0, 100.0):
            found = softmax(n, std)
            assert found.sum_sq < found.max_prob < math.sqrt(found.sum_sq) + 1e-15
            assert found.sum_sq >= before.sum_sq * (1 - 1e-13)
            assert found.entropy <= before.entropy + 1e-13
            before = found
    one = softmax(1, 3.0)
    assert (one.sum_sq, one.entropy, one.max_prob, one.jacobian_sq) == (1.0, 0.0, 1.0, 0.0)


def test_freezing():
    """Beyond √(2 ln n) a few keys carry a row of any length; below it they become many."""
    assert freezing_std(128) == pytest.approx(math.sqrt(2 * math.log(128)), rel=1e-15)
    assert freezing_std(1) == 0.0
    for share, grows in ((0.4, True), (2.5, False)):
        keys = [1 / softmax(n, share * freezing_std(n)).sum_sq for n in (10**2, 10**4, 10**6)]
        assert (keys[2] > 10 * keys[0]) is grows
    # The random energy model's limit: E Σp² = 1 − (freezing std)/std.
    errors = [abs(softmax(n, 2 * freezing_std(n)).sum_sq - 0.5) for n in (10, 10**3, 10**6, 10**12)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.03


def test_saturation_std_inverts_the_share():
    assert saturation_std(2, 0.5) == pytest.approx(math.log(99) / 2 / 0.4769362762044699, rel=1e-8)
    for n, share, threshold in ((128, 0.5, 0.99), (128, 0.01, 0.5), (10**6, 0.7, 0.9)):
        std = saturation_std(n, share, threshold)
        assert saturated_share(n, std, threshold) == pytest.approx(share, abs=1e-8)
    assert saturated_share(128, 0) == 0.0
    assert saturated_share(128, 1e-3, 0.5) == pytest.approx(0.0, abs=1e-12)


def test_what_a_person_reads():
    assert str(softmax(128, 2)) == "E Σp² = 0.1098640, E H = 3.193970, E max p = 0.2393769"
    expected = {"sum_sq": 0.25, "entropy": math.log(4), "max_prob": 0.25, "jacobian_sq": 0.1875}
    assert softmax(4, 0).to_dict() == expected


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: softmax(0, 1), ValueError, "n must be from 1 to"),
        (lambda: softmax(10**13, 1), ValueError, "n must be from 1 to"),
        (lambda: softmax(2.0, 1), TypeError, "n must be an integer"),
        (lambda: softmax(True, 1), TypeError, "n must be an integer"),
        (lambda: softmax(2, -1), ValueError, "std must not be negative, got -1"),
        (lambda: softmax(2, 101), ValueError, "std must be at most 100, got 101"),
        (lambda: softmax(2, math.inf), ValueError, "std must be a finite"),
        (lambda: freezing_std(0), ValueError, "n must be from 1 to"),
        (lambda: saturated_share(1, 1), ValueError, "n must be from 2 to"),
        (lambda: saturated_share(4, 1, 0.4), ValueError, "threshold must be from 0.5"),
        (lambda: saturated_share(4, 1, 1.0), ValueError, "threshold must be from 0.5"),
        (lambda: saturation_std(4, 0.0), ValueError, "share must be between 0 and 1"),
        (lambda: saturation_std(4, 1.0), ValueError, "share must be between 0 and 1"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
