# SPDX-License-Identifier: BSD-3-Clause
"""propagate(rtol=): where it stops, and that nothing but the trials' numbers decides it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import initcore as ic

CHAIN = {"widths": [32] * 6, "batch": 4}


def relative_error(side, layer):
    return side.se.second_moment[layer] / side.second_moment[layer]


@pytest.mark.parametrize("method", ["dense", "gram"])
@pytest.mark.parametrize("backward", [False, True])
def test_it_stops_at_the_first_power_of_two_that_is_enough(method, backward):
    rtol = 0.05
    chain = {**CHAIN, "method": method, "backward": backward}
    result = ic.propagate(**chain, trials=4096, rtol=rtol)
    n = result.n_trials
    assert n in (64, 128, 256, 512)
    for trials in (n // 4, n // 2, n):
        so_far = ic.propagate(**chain, trials=trials)
        errors = [relative_error(so_far.pre, -1)]
        errors += [relative_error(so_far.grad_pre, 0)] if backward else []
        assert (max(errors) <= rtol) == (trials == n)
    assert so_far.equals(result)


def test_a_gradient_may_need_more():
    """E[h²] is over 1000 units, the gradient by the first layer's over 8."""
    chain = {"widths": [8, 8, 1000], "activation": "linear", "init": ["zeros", "normal(0.3)"]}
    chain |= {"bias": ["ones", "zeros"], "batch": 1, "trials": 200, "rtol": 0.1}
    assert ic.propagate(**chain).n_trials == 8
    both = ic.propagate(**chain, backward=True)
    assert 8 < both.n_trials < 200
    assert relative_error(both.pre, -1) <= 0.1
    assert relative_error(both.grad_pre, 0) <= 0.1


def test_who_runs_the_trials_does_not_matter(always_shared):
    expected = ic.propagate(**CHAIN, trials=range(5, 1000), rtol=0.1, threads=1)
    first, last = expected.trials[0].start, expected.trials[0].stop
    assert first == 5
    assert last - first in (32, 64, 128)
    for threads in (2, 5, 17):
        assert ic.propagate(**CHAIN, trials=range(5, 1000), rtol=0.1, threads=threads).equals(
            expected
        )
    with ThreadPoolExecutor(2) as executor:
        again = ic.propagate(**CHAIN, trials=range(5, 1000), rtol=0.1, executor=executor)
    assert again.equals(expected)


def test_trials_are_a_limit():
    for trials in (1, 3, 8, 9, 20):
        result = ic.propagate(**CHAIN, trials=trials, rtol=1e-9)
        assert result.equals(ic.propagate(**CHAIN, trials=trials))


def test_what_stopped_early_continues():
    early = ic.propagate(**CHAIN, trials=1000, rtol=0.3)
    more = ic.propagate(**early.spec, seed=early.seed, trials=range(early.n_trials, 50))
    assert (early + more).equals(ic.propagate(**CHAIN, trials=50))
    assert "rtol" not in early.spec


def test_trials_that_overflow_are_not_enough():
    """No finite trial, no error: it goes to the end."""
    result = ic.propagate([8] * 3, init="normal(std=1e30)", trials=20, rtol=0.5)
    assert result.n_trials == 20
    dead = ic.propagate([8] * 3, init="zeros", trials=20, rtol=0.5)
    assert dead.n_trials == 8


def test_each_of_a_comparison_has_what_it_takes():
    inits = ["kaiming_normal", "normal(std=1)"]
    chain = {"widths": [16] * 4, "activation": "tanh", "batch": 4, "trials": 512, "rtol": 0.03}
    comparison = ic.compare_inits(inits, **chain)
    counts = [result.n_trials for result in comparison]
    assert counts[0] > counts[1]
    assert f"{counts[1]} to {counts[0]} trials" in str(comparison)
    for init, result in zip(inits, comparison, strict=True):
        assert result.equals(ic.propagate(init=init, **chain))


def test_progress_counts_in_all_trials():
    seen = []
    result = ic.propagate(
        **CHAIN, trials=300, rtol=0.2, progress=lambda *done: seen.append(done), threads=2
    )
    assert {total for _, total in seen} == {300}
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-1] == result.n_trials


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-0.1, ValueError), (np.nan, ValueError), (np.inf, ValueError),
     ("0.1", TypeError), (True, TypeError), ([0.1], TypeError)],
)  # fmt: skip
def test_refused(value, error):
    for run in (ic.propagate, lambda *a, **k: ic.compare_inits(["ones"], *a, **k)):
        with pytest.raises(error, match="rtol must be"):
            run([3, 3], rtol=value, trials=10**15)
