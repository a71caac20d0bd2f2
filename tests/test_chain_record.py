# SPDX-License-Identifier: BSD-3-Clause
"""What is kept of a chain's trials: every field of every side, mean and standard error, by a loop
over trials in NumPy that is written from the definitions."""

import math

import numpy as np
import pytest

import initcore as ic
from initcore.results.layers import FIELDS, QUANTILES

SIDES = ("pre", "post", "grad_pre", "grad_post", "grad_weight")
AVERAGED = (
    "mean", "second_moment", "variance", "kurtosis", "batch_variance", "zero_fraction",
    "saturated_fraction", "nonfinite_fraction", "float16_overflow_fraction", "dead_fraction",
    "cosine",
)  # fmt: skip

ACTIVATIONS = {
    "relu": (lambda h: np.maximum(h, 0), lambda h: (h > 0).astype(float)),
    "tanh": (np.tanh, lambda h: np.cosh(h) ** -2.0),
}


def cosine(x):
    """The mean over pairs of rows, one after another."""
    rows = [row / np.linalg.norm(row) for row in x if row.any()]
    pairs = [a @ b for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    return np.mean(pairs) if pairs else np.nan


def fields(x, slope=None):
    """Those of one trial; of pre-activations with the slope of φ, whose largest is 1."""
    mean = x.mean()
    centred = x - mean
    variance = np.mean(centred**2)
    return {
        "mean": mean,
        "second_moment": np.mean(x**2),
        "variance": variance,
        "kurtosis": np.mean(centred**4) / variance**2 if variance else np.nan,
        "batch_variance": np.mean([unit.var() for unit in x.T]),
        "zero_fraction": np.mean(x == 0),
        "saturated_fraction": np.nan if slope is None else np.mean(np.abs(slope) < 0.05),
        "nonfinite_fraction": np.mean(~np.isfinite(x)),
        "float16_overflow_fraction": np.mean(np.abs(x) >= 65520),
        "dead_fraction": np.mean([not unit.any() for unit in x.T]),
        "cosine": cosine(x),
        "abs_max": np.abs(x).max(),
    }


def laplace(seed, trial, layer, shape):
    """Weights of a law that no initializer has."""
    return np.random.default_rng([seed, trial, layer]).laplace(size=shape)


def loop(result, given, init):
    """{side: [[fields of a layer] of a trial]}, and the second moments that enter in each trial."""
    spec = result.spec
    phi, slope = ACTIVATIONS[spec["activation"]]
    widths, batch, n_layers = spec["widths"], spec["batch"], result.n_layers
    found, entered = {side: [] for side in SIDES}, []
    for trial in range(result.n_trials):
        draw = {"seed": result.seed, "trial": trial, "dtype": "float64"}
        c = spec["correlation"]
        x = given
        if given is None:
            x = ic.normal(math.sqrt(1 - c))((batch, widths[0]), name="input", **draw)
        if c:
            x = x + ic.normal(math.sqrt(c))((widths[0],), name="input.common", **draw)
        weights = [
            init(result.seed, trial, layer, (widths[layer + 1], widths[layer]))
            if callable(init)
            else result.weights(trial, layer)
            for layer in range(n_layers)
        ]
        energy, inputs, hs = np.mean(x**2), [], []
        for w in weights:
            inputs.append(x)
            hs.append(x @ w.T)
            x = phi(hs[-1])
        dx = ic.normal()((batch, widths[-1]), name="output_gradient", **draw)
        entered.append((energy, np.mean(dx**2)))
        rows = {side: [None] * n_layers for side in SIDES}
        for layer in reversed(range(n_layers)):
            h = hs[layer]
            dh = dx * slope(h)
            rows["pre"][layer] = fields(h, slope(h))
            rows["post"][layer] = fields(phi(h))
            rows["grad_post"][layer] = fields(dx)
            rows["grad_pre"][layer] = fields(dh)
            rows["grad_weight"][layer] = {"second_moment": np.mean((dh.T @ inputs[layer]) ** 2)}
            dx = dh @ weights[layer]
        for side in SIDES:
            found[side].append(rows[side])
    return found, np.array(entered)


def check(values, mean, se):
    """A mean over the trials where there is a value, and std (ddof 1)/√T of them."""
    known = values[np.isfinite(values)]
    expected = known.mean() if known.size else np.nan
    size = np.abs(known).max(initial=1e-300)
    np.testing.assert_allclose(mean, expected, rtol=1e-10, atol=1e-13 * size)
    expected = known.std(ddof=1) / math.sqrt(known.size) if known.size > 1 else np.nan
    np.testing.assert_allclose(se, expected, rtol=1e-9, atol=1e-13 * size)


def check_logs(logs, stats, layer):
    known = logs[np.isfinite(logs)]
    n = known.size
    assert stats.dead_trials[layer] == np.sum(logs == -np.inf)
    assert stats.overflow_trials[layer] == 0
    check(logs, stats.log_energy_mean[layer], stats.se.log_energy_mean[layer])
    variance = known.var(ddof=1)
    np.testing.assert_allclose(stats.log_energy_var[layer], variance, rtol=1e-9, atol=1e-25)
    fourth = np.mean((known - known.mean()) ** 4)
    error = math.sqrt((fourth - (n - 3) / (n - 1) * variance**2) / n)
    np.testing.assert_allclose(stats.se.log_energy_var[layer], error, rtol=1e-8, atol=1e-25)
    places = np.floor(32 * known)

    def at(rank):
        """As if the values of a bin of 1/32 were spread evenly over it."""
        k = np.sort(places)[math.ceil(rank) - 1]
        return (k + (rank - np.sum(places < k)) / np.sum(places == k)) / 32

    for i, p in enumerate(QUANTILES):
        spread = math.sqrt(n * p * (1 - p))
        low, high = n * p - spread, n * p + spread
        error = (at(high) - at(low)) / 2 if low > 0 and high < n else np.nan
        np.testing.assert_allclose(stats.log_energy_quantiles[i, layer], at(n * p), rtol=1e-12)
        np.testing.assert_allclose(stats.se.log_energy_quantiles[i, layer], error, rtol=1e-9)


@pytest.mark.parametrize(
    "chain",
    [
        {"batch": 32, "activation": "tanh", "init": "normal(std=1)"},
        {"batch": 1, "activation": "tanh", "init": "normal(std=1)"},
        {"batch": 4, "activation": "relu", "init": "normal(std=40)"},  # dead rows, units, networks
        {"batch": 1, "activation": "relu", "init": "kaiming_normal"},
        {"batch": 8, "activation": "relu", "init": "kaiming_normal", "correlation": 0.7},
        {"activation": "tanh", "x": np.linspace(-2, 3, 15).reshape(3, 5)},
        {"batch": 2, "activation": "relu", "widths": [5, 2, 2, 3]},  # networks that die
        {"batch": 4, "activation": "tanh", "init": laplace},
    ],
    ids=[
        "tanh",
        "tanh, batch 1",
        "relu",
        "relu, batch 1",
        "correlated",
        "own inputs",
        "dead",
        "own weights",
    ],
)
def test_every_field_of_every_side_is_what_its_definition_says(chain):
    chain = {"widths": [5, 4, 3, 6], **chain}
    result = ic.propagate(**chain, trials=40, dtype="float64", backward=True)
    found, entered = loop(result, chain.get("x"), chain.get("init"))
    for side in SIDES:
        stats = getattr(result, side)
        for layer in range(3):
            trials = [trial[layer] for trial in found[side]]
            for name in AVERAGED:
                values = np.array([trial.get(name, np.nan) for trial in trials])
                check(values, getattr(stats, name)[layer], getattr(stats.se, name)[layer])
            largest = max(trial.get("abs_max", np.nan) for trial in trials)
            np.testing.assert_allclose(stats.abs_max[layer], largest, rtol=1e-12)
            with np.errstate(divide="ignore"):
                logs = np.log([trial["second_moment"] for trial in trials])
            check_logs(logs - np.log(entered[:, int("grad" in side)]), stats, layer)


@pytest.mark.parametrize("method", ["dense", "gram"])
@pytest.mark.parametrize("batch", [1, 32])
def test_nothing_is_unknown_that_a_trial_knows(method, batch):
    """NaN are the cosine of one input, what is saturated but h, all of ∂/∂W but its second moment
    and log energy; and the standard errors of a maximum and of counts."""
    result = ic.propagate([20, 30, 10], batch=batch, method=method, trials=25, backward=True)
    for side in SIDES:
        stats = getattr(result, side)
        unknown = set() if batch > 1 else {"cosine"}
        if side != "pre":
            unknown.add("saturated_fraction")
        if side == "grad_weight":
            unknown |= {*AVERAGED, "abs_max"} - {"second_moment"}
        counts = {"abs_max", "dead_trials", "overflow_trials"}
        for name in (*FIELDS, "log_energy_quantiles"):
            values, errors = getattr(stats, name), getattr(stats.se, name)
            assert np.isnan(values).tolist() == np.full(values.shape, name in unknown).tolist()
            known = np.full(values.shape, name in unknown | counts)
            assert np.isnan(errors).tolist() == known.tolist(), name


@pytest.mark.parametrize("batch", [1, 6])
def test_gram_averages_its_trials(batch):
    """Each alone, and all together: means, and their standard errors."""
    chain = {"widths": [5, 4, 3], "batch": batch, "method": "gram", "backward": True}
    whole = ic.propagate(**chain, trials=15)
    alone = [ic.propagate(**chain, trials=range(t, t + 1)) for t in range(15)]
    for side in SIDES:
        stats = getattr(whole, side)
        for name in (*AVERAGED, "log_energy_mean"):
            values = np.array([getattr(getattr(one, side), name) for one in alone])
            for layer in range(2):
                at = getattr(stats, name)[layer], getattr(stats.se, name)[layer]
                check(values[:, layer], *at)
