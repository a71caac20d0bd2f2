# SPDX-License-Identifier: BSD-3-Clause
"""One network of finite width: exact laws by digamma functions, and simulated networks."""

import math

import mpmath as mp
import numpy as np
import pytest

from initcore.theory import jacobian, log_energy


def log_chi_square(k, n):
    """Mean and second moment of ln(χ²_k/n)."""
    mean = mp.digamma(mp.mpf(k) / 2) + mp.log(mp.mpf(2) / n)
    return mean, mean**2 + mp.psi(1, mp.mpf(k) / 2)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 1000, 10**6])
def test_linear_layers_are_chi_square(n):
    mean, second = log_chi_square(n, n)
    found = log_energy("linear", [5, n, n, n])
    assert found.mean == pytest.approx(float(3 * mean), rel=1e-9, abs=1e-14)
    assert found.var == pytest.approx(float(3 * (second - mean**2)), rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, 300])
def test_relu_layers_are_chi_square_given_how_many_units_live(n):
    """Given that some unit lives; E S is n/2."""
    lives = [mp.binomial(n, k) / (mp.mpf(2) ** n - 1) for k in range(1, n + 1)]
    moments = [log_chi_square(k, mp.mpf(n) / 2) for k in range(1, n + 1)]
    mean = sum(w * first for w, (first, _) in zip(lives, moments, strict=True))
    second = sum(w * square for w, (_, square) in zip(lives, moments, strict=True))
    found = log_energy("relu", [5, n])
    assert found.mean == pytest.approx(float(mean), rel=1e-12)
    assert found.var == pytest.approx(float(second - mean**2), rel=1e-12)


def test_first_order_in_one_over_n():
    """v/n a layer, v = E φ⁴/(E φ²)² − 1: 2 for linear, 5 for relu, 3(1 + a⁴)·2/(1 + a²)² − 1."""
    n, depth = 10**5, 40
    for name, v in (
        ("linear", 2),
        ("relu", 5),
        ("leaky_relu(0.2)", 6 * (1 + 0.2**4) / (1 + 0.2**2) ** 2 - 1),
    ):
        found = log_energy(name, [n] * (depth + 1))
        assert found.var == pytest.approx(depth * v / n, rel=2e-4)
        assert found.mean == pytest.approx(-depth * v / n / 2, rel=2e-4)
    assert log_energy("leaky_relu(1)", [3, 7]) == pytest.approx(log_energy("linear", [3, 7]))
    assert log_energy("leaky_relu(-1)", [3, 7]) == pytest.approx(log_energy("linear", [3, 7]))
    # above and below change places
    steep, flat = (log_energy(f"leaky_relu({slope})", [3, 7]) for slope in (1e8, 1e-8))
    assert steep == pytest.approx(flat, rel=1e-9)


def test_widths_may_differ():
    whole = log_energy("relu", [8, 16, 5, 16])
    parts = [log_energy("relu", [8, n]) for n in (16, 5, 16)]
    assert whole.mean == pytest.approx(sum(part.mean for part in parts), rel=1e-14)
    assert whole.var == pytest.approx(sum(part.var for part in parts), rel=1e-14)
    assert whole == log_energy("relu", [10**6, 16, 5, 16])


def simulated(phi, widths, gains, trials, rng):
    """ln ‖x_L‖²/n_L of networks that live: n_in Var(W) = gain², an input of energy 1."""
    x = np.ones((trials, widths[0], 1))
    for n_in, n_out, gain in zip(widths[:-1], widths[1:], gains, strict=True):
        x = phi(gain / math.sqrt(n_in) * rng.standard_normal((trials, n_out, n_in)) @ x)
    energy = np.mean(x * x, axis=(1, 2))
    return np.log(energy[energy > 0])


def assert_five_standard_errors(logs, found, mean_bias=0.0, var_bias=0.0):
    trials = logs.size
    error = logs.std(ddof=1) / math.sqrt(trials)
    assert abs(logs.mean() - found.mean) < 5 * error + mean_bias
    deviations = (logs - logs.mean()) ** 2
    error = deviations.std(ddof=1) / math.sqrt(trials)
    assert abs(logs.var(ddof=1) - found.var) < 5 * error + var_bias


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_narrow_networks_within_five_standard_errors(slope, rng):
    widths = [6, 12, 16, 16, 9]

    def phi(x):
        return np.where(x > 0, x, slope * x)

    gain = math.sqrt(2 / (1 + slope**2))
    logs = simulated(phi, widths, [gain] * 4, 20_000, rng)
    name = f"leaky_relu({slope})" if slope else "relu"
    assert_five_standard_errors(logs, log_energy(name, widths))


def test_other_activations_to_first_order(rng):
    """tanh around q = 1; what the next order adds is of relative size 1/n."""
    n, depth = 48, 4
    second_moment = 0.3942944904  # E tanh(z)²
    gains = [1.0] + [1 / math.sqrt(second_moment)] * (depth - 1)
    logs = simulated(np.tanh, [n] * (depth + 1), gains, 4_000, rng) - math.log(second_moment)
    found = log_energy("tanh", [n] * (depth + 1))
    assert_five_standard_errors(logs, found, 3 / n * abs(found.mean), 3 / n * found.var)
    assert log_energy(np.tanh, [n] * (depth + 1)) == pytest.approx(found, rel=1e-10)


def test_other_activations_start_from_the_noise_of_a_layer():
    """One layer of sin at q: E sin⁴ = 3/8 − e^(−2q)/2 + e^(−8q)/8, E sin² = (1 − e^(−2q))/2."""
    for q in (0.3, 1.0, 200.0):
        second = (1 - math.exp(-2 * q)) / 2
        fourth = 3 / 8 - math.exp(-2 * q) / 2 + math.exp(-8 * q) / 8
        noise = (fourth / second**2 - 1) / 50
        assert log_energy("sin", [9, 50], q=q) == pytest.approx((-noise / 2, noise), rel=1e-11)
        # ln E sin² has the slope s and the curvature s₂ in ln q
        s = q * math.exp(-2 * q) / second
        s2 = s * (1 - 2 * q) - s * s
        two = log_energy("sin", [9, 50, 50], q=q)
        assert two.var == pytest.approx(noise * (1 + s * s), rel=1e-9)
        assert two.mean == pytest.approx(-noise / 2 * (1 + s) + s2 * noise / 2, rel=1e-9)


# --- Jacobian --------------------------------------------------------------------------------


def test_jacobian_in_closed_form():
    for depth in (1, 10, 50):
        assert jacobian("relu", depth) == pytest.approx((1, 2 * depth), rel=1e-13)
        assert jacobian("relu", depth, orthogonal=True) == pytest.approx((1, depth), rel=1e-13)
        assert jacobian("linear", depth) == pytest.approx((1, depth), rel=1e-13)
        assert jacobian("linear", depth, orthogonal=True) == pytest.approx((1, 0), abs=1e-12)
    # hardtanh: φ′ is 1 with probability erf(1/√(2q)), else 0
    share = math.erf(1 / math.sqrt(2 * 0.7))
    found = jacobian("hardtanh", 3, orthogonal=True, q=0.7)
    assert found.var == pytest.approx(3 * (1 / share - 1), rel=1e-12)
    # erf: E φ′^2k = (4/π)^k (1 + 4kq)^(−1/2)
    q = 0.5
    ratio = (1 + 4 * q) / math.sqrt(1 + 8 * q)
    assert jacobian("erf", 7, q=q).var == pytest.approx(7 * ratio, rel=1e-12)
    assert jacobian(np.tanh, 7) == pytest.approx(jacobian("tanh", 7), rel=1e-9)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_jacobian_of_simulated_relu_networks(orthogonal, rng):
    """Mean and variance of squared singular values: tr(JᵀJ)/n and tr(JᵀJ)²/n."""
    n, depth, trials = 128, 3, 12
    means, squares = [], []
    for _ in range(trials):
        jacobian_matrix = np.eye(n)
        x = rng.standard_normal(n)
        for _ in range(depth):
            w = rng.standard_normal((n, n))
            w = np.linalg.qr(w)[0] if orthogonal else w / math.sqrt(n)
            h = math.sqrt(2) * w @ x
            x = np.maximum(h, 0)
            jacobian_matrix = math.sqrt(2) * (h > 0)[:, None] * (w @ jacobian_matrix)
        gram = jacobian_matrix.T @ jacobian_matrix
        means.append(np.trace(gram) / n)
        squares.append(np.sum(gram * gram) / n)
    expected = jacobian("relu", depth, orthogonal)
    for values, target in ((means, expected.mean), (squares, expected.var + expected.mean**2)):
        error = np.std(values, ddof=1) / math.sqrt(trials)
        assert abs(np.mean(values) - target) < 5 * error


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: log_energy("relu", [4]), ValueError, "widths must be two or more"),
        (lambda: log_energy("relu", [4, 0]), ValueError, "widths must be two or more positive"),
        (lambda: log_energy("relu", [4, 2.0]), TypeError, "widths must be an integer"),
        (lambda: log_energy("swish", [4, 4]), ValueError, "activation must be one of"),
        (lambda: log_energy("tanh", [4, 4], q=0), ValueError, "q must be positive, got 0"),
        (lambda: log_energy(np.zeros_like, [4, 4]), ValueError, "has no energy at q"),
        (lambda: jacobian("relu", 0), ValueError, "n_layers must be a positive integer"),
        (lambda: jacobian("relu", 1.5), TypeError, "n_layers must be an integer"),
        (lambda: jacobian("relu", 3, orthogonal=2), TypeError, "orthogonal must be True or False"),
        (lambda: jacobian("relu", 3, q=-1), ValueError, "q must not be negative"),
        (lambda: jacobian(np.zeros_like, 3), ValueError, "no edge of chaos at q"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
