# SPDX-License-Identifier: BSD-3-Clause
"""What papers found, measured to five standard errors: the claims of examples/ at a lower cost."""

import math

import numpy as np
import pytest

import initcore as ic

WIDTH = 200


def change(start, end):
    """ln(end / start) of means and their standard errors, and its own if the two were independent:
    layers are positively correlated, so it is too large rather than too small."""
    (a, a_se), (b, b_se) = start, end
    return np.log(b / a), np.hypot(a_se / a, b_se / b)


def moments(stats, layer):
    """E[·²] of a layer, or of a slice of them, and its standard error; layers count from 1."""
    picked = slice(*(i - 1 for i in layer)) if isinstance(layer, tuple) else layer - 1
    return stats.second_moment[picked], stats.se.second_moment[picked]


@pytest.fixture(scope="module")
def five_layers():
    inits = ["torch_linear", "xavier_uniform"]
    chain = {"activation": "tanh", "batch": 10, "trials": 200, "backward": True}
    return ic.compare_inits(inits, [WIDTH] * 6, **chain)


@pytest.fixture(scope="module", params=[22, 30])
def many_layers(request):
    inits = ["kaiming_normal", "xavier_normal"]
    chain = {"batch": 8, "trials": 60, "backward": True}
    return ic.compare_inits(inits, [WIDTH] * (request.param + 1), **chain)


class TestGlorotBengio2010:
    """Five hidden tanh layers: the standard U(±1/√n) against the normalised U(±√6/√(n + n))."""

    @pytest.mark.parametrize(("rule", "transport"), [(0, 1 / 3), (1, 1.0)])
    def test_a_gradient_passes_the_weights_with_n_var_w(self, five_layers, rule, transport):
        """From ∂/∂h of a layer to ∂/∂x of the one below: 1/3 by the standard rule, 1 by the
        normalised one. (A layer's φ′ knows of its W: to a part in the width.)"""
        result = five_layers[rule]
        log, error = change(moments(result.grad_pre, (2, 6)), moments(result.grad_post, (1, 5)))
        assert np.all(np.abs(log - math.log(transport)) < 5 * error + 2 / WIDTH)

    @pytest.mark.parametrize(("rule", "transport"), [(0, 1 / 3), (1, 1.0)])
    def test_tanh_takes_the_rest(self, five_layers, rule, transport):
        """∂/∂h a layer down: n Var(W) E φ′(h)², where E φ′² is 0.464 at E[h²] = 1 and 1 at 0. So a
        standard layer comes to pass 1/3, and a normalised one nearly all."""
        result = five_layers[rule]
        predicted = result.theory.grad_pre.second_moment
        slopes = predicted[:-1] / predicted[1:] / transport
        assert np.all(np.diff(slopes) > 0)
        assert 0.46 < slopes[0] < slopes[-1] < 1
        log, error = change(moments(result.grad_pre, (2, 6)), moments(result.grad_pre, (1, 5)))
        assert np.all(np.abs(log - np.log(transport * slopes)) < 5 * error + 3 / WIDTH)

    def test_standard_gradients_by_weights_are_even(self, five_layers):
        """∂/∂h shrinks by 100 over the five layers, but ∂/∂W, a product with an x that shrinks on
        its way up, by less than a tenth."""
        standard = five_layers[0]
        by_h, by_w = standard.grad_pre.second_moment, standard.grad_weight.second_moment
        assert by_h[-1] / by_h[0] > 100
        assert by_w.max() / by_w.min() < 1.1


class TestHe2015:
    """22 and 30 ReLU layers."""

    @pytest.mark.parametrize("side", ["pre", "grad_pre"])
    def test_kaiming_holds_and_xavier_halves(self, many_layers, side):
        """Over all layers: 1, and 2^-(L-1), which is 1.9e-9 of 30."""
        for result, factor in zip(many_layers, (1, 1 / 2), strict=True):
            stats, n_layers = getattr(result, side), result.n_layers
            ends = (1, n_layers) if side == "pre" else (n_layers, 1)
            log, error = change(*(moments(stats, layer) for layer in ends))
            assert abs(log - (n_layers - 1) * math.log(factor)) < 5 * error
            assert 5 * error < 0.6  # 3 % a layer, where the rules are a factor 2 apart

    @pytest.mark.parametrize("side", ["pre", "grad_pre"])
    def test_a_network_loses_exactly_half_a_layer(self, many_layers, side):
        """The same random numbers, √2 smaller: xavier's layer l has 2^-l of kaiming's, the gradient
        as many halves as there are weights above. The rest is float32's rounding, which may turn a
        relu over."""
        kaiming, xavier = (getattr(result, side).second_moment for result in many_layers)
        layers = np.arange(1, kaiming.size + 1)
        halves = layers if side == "pre" else kaiming.size - layers
        np.testing.assert_allclose(xavier / kaiming, 0.5**halves, rtol=1e-3)


class TestSchoenholz2017:
    """tanh, σ_b² = 0.05: order below σ_w² = 1.761, chaos above."""

    B2 = 0.05

    def propagate(self, w2, n_layers=18, trials=40, **options):
        return ic.propagate(
            [WIDTH] * (n_layers + 1), activation="tanh", dtype="float64", trials=trials,
            init=f"lecun_normal().scaled({w2**0.5!r})", bias=f"normal(std={self.B2**0.5!r})",
            **options,
        )  # fmt: skip

    @pytest.mark.parametrize("w2", [1.0, 1.5, 2.5])
    def test_close_inputs_and_gradients_change_by_chi(self, w2):
        """1 − cosine of two nearly parallel inputs upwards, ∂/∂h downwards: χ a layer, and
        ξ_c = −1/ln χ is the depth over which they live; E[h²] has settled by layer 8."""
        point = ic.theory.fixed_point("tanh", w2, self.B2)
        result = self.propagate(w2, batch=2, correlation=1 - 1e-6, backward=True)
        apart, se = 1 - result.pre.cosine, result.pre.se.cosine
        log, error = change((apart[7], se[7]), (apart[17], se[17]))
        assert abs(log - 10 * math.log(point.chi)) < 5 * error
        assert -10 / log == pytest.approx(point.xi_c, rel=0.15)
        log, error = change(moments(result.grad_pre, 18), moments(result.grad_pre, 8))
        assert abs(log - 10 * math.log(point.chi)) < 5 * error
        assert -10 / log == pytest.approx(point.xi_c, rel=0.15)

    @pytest.mark.parametrize("w2", [1.0, 1.5, 2.5])
    def test_energies_settle_over_xi_q(self, w2):
        """The same networks for inputs 1 % apart in energy, about q*, so that the noise of both is
        one: the difference goes by exp(−1/ξ_q) a layer. Its error from ten groups of trials."""
        point = ic.theory.fixed_point("tanh", w2, self.B2)
        std = ((point.q - self.B2) / w2) ** 0.5
        x = ic.normal(std)((64, WIDTH), seed=0, name="x", dtype="float64")
        rates = []
        for start in range(0, 100, 10):
            chain = {"n_layers": 3, "trials": range(start, start + 10)}
            low, high = (self.propagate(w2, x=x * s, **chain).pre for s in (1.0, 1.005))
            gaps = high.second_moment - low.second_moment
            rates.append(math.log(gaps[0] / gaps[2]) / 2)
        error = np.std(rates, ddof=1) / math.sqrt(10)
        assert abs(np.mean(rates) - 1 / point.xi_q) < 5 * error
        assert 5 * error < 0.2 / point.xi_q
