# SPDX-License-Identifier: BSD-3-Clause
"""Scalings: what each does at given sizes, their grammar, and one of the user's own."""

import math
import pickle

import pytest

import initcore as ic
from initcore.scaling import SCALINGS, Effect, Scaling, Sizes, scaling

SIZES = Sizes(d_model=512, n_heads=8, d_k=64, seq=128)


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("sqrt_dk", Effect(logits=1 / 8)),
        ("dk", Effect(logits=1 / 64)),
        ("sqrt_dmodel", Effect(logits=1 / math.sqrt(512))),
        ("learned", Effect(logits=1 / 8)),
        ("learned(0.3)", Effect(logits=0.3)),
        ("absorbed", Effect(weight=1 / 8)),
        ("none", Effect()),
        ("constant(0)", Effect(logits=0.0)),
        ("constant(c=-2)", Effect(logits=-2.0)),
        ("mup(64)", Effect(logits=1 / 8)),
        ("mup(base=16)", Effect(logits=4 / 64)),
        ("inverse_layer(3)", Effect(logits=1 / 32)),
        ("qk_norm", Effect(norm="rms", logits=1 / 8)),
        ("qk_norm(g=1)", Effect(norm="rms", logits=1.0)),
        # QKNorm's g₀ = log₂(L² − L) for sequences of length L
        ("qk_norm('l2')", Effect(norm="l2", logits=math.log2(128**2 - 128))),
        ("qk_norm('l2', 10)", Effect(norm="l2", logits=10.0)),
    ],
)
def test_effects_at_d_k_64(text, effect):
    assert scaling(text).effect(SIZES) == effect


def test_absorbed_in_a_unit_variance_product_is_t5s_std():
    """T5 draws W_Q with std (d_model·d_k)^−½ (transformers #18284: .0055242717 at 512, 64)."""
    weight = ic.scaling.absorbed().effect(SIZES).weight
    init = ic.lecun_normal().scaled(weight)
    assert init.std((512, 512)) == pytest.approx(0.0055242717, rel=1e-8)


@pytest.mark.parametrize("make", SCALINGS.values(), ids=SCALINGS)
def test_repr_pastes_back_and_pickles(make):
    needed = {"constant": (0.25,), "mup": (64,), "inverse_layer": (2,)}
    made = make(*needed.get(make.__name__, ()))
    assert isinstance(made, Scaling)
    assert scaling(repr(made)) == made
    assert eval(repr(made), dict(SCALINGS)) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert make.__doc__


def test_equal_values_have_one_spelling():
    assert repr(ic.scaling.learned(alpha=None)) == "learned()"
    assert ic.scaling.constant(2) == ic.scaling.constant(c=2.0)
    assert repr(ic.scaling.qk_norm("rms", g=0.5)) == "qk_norm(g=0.5)"


def test_a_user_adds_one_in_five_lines():
    """Gemma 2 27B divides by √(d_model/n_heads) = 12 while its d_k is 128."""
    try:

        @ic.scaling.define
        def gemma2_27b(sizes, power=0.5):
            return Effect(logits=(sizes.d_model / sizes.n_heads) ** -power)

        made = scaling("gemma2_27b")
        assert made == gemma2_27b()
        assert made.effect(Sizes(4608, 32, 128, 8)).logits == pytest.approx(1 / 12)
        result = ic.propagate_attention(
            d_model=16, n_heads=2, d_k=4, seq=3, scaling=gemma2_27b(power=1), trials=2
        )
        assert result.spec["scaling"] == "gemma2_27b(power=1)"
        assert result.forward.logits == pytest.approx(result.forward.raw_logits / 64)
    finally:
        SCALINGS.pop("gemma2_27b", None)


def test_a_built_in_keeps_its_law():
    """Results of two laws under one name would add up."""

    def sqrt_dk(sizes):
        return Effect(logits=1.0)

    with pytest.raises(ValueError, match=r"built-in scaling \(sqrt_dk, dk, .*got 'sqrt_dk'"):
        ic.scaling.define(sqrt_dk)
    assert scaling("sqrt_dk").effect(SIZES) == Effect(logits=1 / 8)


def test_a_scaling_of_ones_own_may_be_defined_again():
    try:
        for factor in (2.0, 3.0):

            def of_my_own(sizes, factor=factor):
                return Effect(logits=factor)

            ic.scaling.define(of_my_own)
            assert scaling("of_my_own").effect(SIZES) == Effect(logits=factor)
    finally:
        SCALINGS.pop("of_my_own", None)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ("sqrt", ValueError, "scaling must be one of sqrt_dk, dk, .*got 'sqrt'"),
        (3, TypeError, "scaling must be a specification .* got 3"),
        ("sqrt_dk.scaled(2)", ValueError, "scaling must be one of"),
        ("learned(beta=1)", ValueError, "learned takes alpha"),
        ("constant", ValueError, "constant takes c"),
        ("sqrt_dk(1)", ValueError, "sqrt_dk takes no arguments"),
        ("constant('a')", TypeError, "c must be a finite real number, got 'a'"),
        ("learned(1e999)", ValueError, "alpha must be a finite real number"),
        ("mup(0)", ValueError, "base must be positive, got 0"),
        ("mup(1.5)", TypeError, "base must be an integer, got 1.5"),
        ("inverse_layer(-1)", ValueError, "layer must not be negative, got -1"),
        ("qk_norm('max')", ValueError, "norm must be 'rms' or 'l2' or None, got 'max'"),
    ],
)
def test_what_is_no_scaling_is_refused(spec, error, words):
    with pytest.raises(error, match=words):
        scaling(spec)
