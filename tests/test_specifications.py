# SPDX-License-Identifier: BSD-3-Clause
"""The grammar of specifications, and the checks of single arguments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from initcore.specifications import (
    finite_number,
    integer,
    non_negative_number,
    parse,
    spell,
    split_top_level,
)


def test_name_call_and_scaling():
    assert parse("relu").name == "relu"
    call = parse(
        " f(0.2, 'a', mode='fan_out', axes=(1, 2), none=None, n=-1).scaled(1.5).scaled(2) "
    )
    assert (call.name, call.args, call.factors) == ("f", (0.2, "a"), (1.5, 2))
    assert call.kwargs == {"mode": "fan_out", "axes": (1, 2), "none": None, "n": -1}
    assert parse("f.scaled(2)").factors == (2,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relu(",
        "1",
        "relu relu",
        "f(x)",
        "f(sqrt(5))",
        "f(1)(2)",
        "f(**{'a': 1})",
        "f(*[1])",
        "f.other(1)",
        "f.scaled()",
        "f.scaled(1, 2)",
        "f.scaled(f=1)",
        "f.scaled",
        "__import__('os').system('true')",
        "f(1); g(2)",
        "f\x00",
        "(" * 300 + ")" * 300,
    ],
)
def test_outside_the_grammar(text):
    with pytest.raises(ValueError, match="specification"):
        parse(text)


def test_split_at_top_level_commas():
    assert split_top_level("relu") == ["relu"]
    assert split_top_level("uniform(-1, 1), g(a=(1, 2)),h('x,y')") == [
        "uniform(-1, 1)",
        "g(a=(1, 2))",
        "h('x,y')",
    ]
    for text in ("", "a,", ",a", "a,,b"):
        with pytest.raises(ValueError, match="empty item"):
            split_top_level(text)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**18), 10**18))
def test_numbers_paste_back(number):
    (back,) = parse(f"f({spell(number)})").args
    assert back == number


def test_one_spelling_for_one_value():
    assert spell(2) == spell(2.0) == spell(np.float32(2.0)) == spell(np.int64(2)) == "2"
    assert spell(0.1) == "0.1"
    assert spell([1, 2]) == spell((1, 2)) == "(1, 2)"
    assert spell((1,)) == "(1,)"
    assert spell("fan_out") == spell(np.str_("fan_out")) == "'fan_out'"
    assert spell(None) == "None"


def test_numbers_are_finite_and_real():
    for good in (1, 1.5, np.float32(0.5), np.int8(3)):
        assert finite_number("x", good) == float(good)
    assert str(finite_number("x", -0.0)) == "0.0"
    for kind in (True, np.True_, "1", None, 1j, [1.0]):
        with pytest.raises(TypeError, match="x must be a finite real number"):
            finite_number("x", kind)
    for value in (float("nan"), float("inf"), np.float32("-inf"), 10**400):
        with pytest.raises(ValueError, match="x must be a finite real number"):
            finite_number("x", value)
    with pytest.raises(ValueError, match="x must not be negative, got -1"):
        non_negative_number("x", -1)


def test_integers_are_integers():
    assert integer("n", np.uint8(3)) == 3
    for kind in (True, np.True_, 1.0, "1", None):
        with pytest.raises(TypeError, match="n must be an integer"):
            integer("n", kind)


@pytest.mark.parametrize("text", ["normal(std=1, std=2)", "leaky_relu(slope=1, slope=2)"])
def test_an_argument_given_twice_is_refused(text):
    with pytest.raises(ValueError, match="twice"):
        parse(text)


def test_a_long_text_is_not_repeated_whole():
    with pytest.raises(ValueError, match="specification") as caught:
        parse("(" * 100_000)
    assert len(str(caught.value)) < 1000
