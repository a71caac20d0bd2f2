# SPDX-License-Identifier: BSD-3-Clause
"""``initcore theory``: what it shows, what it writes, and how it says no."""

import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from initcore.cli import main
from initcore.theory import critical, fixed_point


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of ``initcore theory``."""
    capsys.readouterr()
    code = main(["theory", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_edge_of_chaos_without_a_sigma_w2(capsys):
    code, out, err = run(capsys, "tanh", "--sigma-b2", 0.05)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["tanh,", "σ_w²", "=", "1.76095464,", "σ_b²", "=", "0.05"]
    assert lines[1] == ["q*", "0.5700478816", "stable"]
    assert lines[2][:2] == ["χ", "1.000000000"]
    assert "the edge of chaos" in out
    assert "σ_w² = 1.760954640 (gain 1.327009661), q* = 0.5700478816" in out


@pytest.mark.parametrize(
    ("arguments", "q", "words"),
    [
        (("tanh", "--sigma-w2", 3, "--sigma-b2", 0.05), "1.428008462", "chaos: gradients explode"),
        (("tanh", "--sigma-w2", 0.5), "0", "the signal dies out"),
        (("gelu", "--sigma-w2", 3), "inf", "the signal grows without bound"),
        (("relu",), "1.000000000", "on the margin: every q is a fixed point, where it stays"),
        (("tanh",), "0", "the signal dies out"),
        (("relu", "--sigma-w2", 1.9, "--sigma-b2", 0.1), "2.000000000", "order: gradients vanish"),
    ],
)
def test_where_a_chain_settles(capsys, arguments, q, words):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["q*", q]
    assert words in out


def test_a_scale_that_grows_is_called_so(capsys):
    _, out, _ = run(capsys, "tanh", "--sigma-w2", 3, "--sigma-b2", 0.05)
    assert "a deviation from q* shrinks by e" in out
    assert "ξ_c        5.270  layers over which a small difference grows by e" in out
    _, out, _ = run(capsys, "relu2", "--sigma-w2", 3)
    assert out.count("grows by e") == 2
    _, out, _ = run(capsys, "relu")
    assert "shrinks by e" not in out
    assert out.count("neither shrinks nor grows") == 2


@pytest.mark.parametrize(
    ("arguments", "q", "slope", "goes"),
    [
        (("gelu", "--sigma-b2", 0.05), "0.7220357669", "×1.085", "grows without bound, χ = 1.15"),
        (("gelu_tanh", "--sigma-b2", 0.05), "0.7222910566", "×1.085", "grows without bound"),
        (("silu", "--sigma-b2", 0.1), "1.551914984", "×1.091", "settles at q = 0.3961427178"),
        (("mish", "--sigma-b2", 0.01), "0.2631564006", "×1.036", "grows without bound"),
        (("gelu",), "0", "drifts", "grows without bound, χ = 2.0"),
    ],
)
def test_an_edge_that_a_chain_leaves(capsys, arguments, q, slope, goes):
    """The default is the edge: q* and χ = 1 are its own, and it is said where a chain goes."""
    _, out, _ = run(capsys, *arguments)
    lines = out.splitlines()
    assert lines[1].split()[1].startswith(q)
    assert slope in lines[1]
    assert lines[2].split()[:2] == ["χ", "1.000000000"]
    assert lines[5].startswith("from q = 1 a chain goes elsewhere: ")
    assert goes in lines[5]
    assert f"q* = {q}" in lines[6]


def test_elsewhere_too_the_edge_is_said_to_be_left(capsys):
    for arguments, left in ((("gelu", "--sigma-w2", 1), True), (("tanh", "--sigma-w2", 1), False)):
        _, out, _ = run(capsys, *arguments, "--sigma-b2", 0.05)
        assert ("from q = 1 a chain goes elsewhere there" in out) is left


def test_no_edge_is_said_beside_a_fixed_point_and_refused_without(capsys):
    code, out, _ = run(capsys, "relu", "--sigma-w2", 1.9, "--sigma-b2", 0.1)
    assert code == 0
    assert out.rstrip().endswith("edge of chaos at σ_b² = 0.1: none")
    code, out, err = run(capsys, "relu", "--sigma-b2", 0.1)
    assert (code, out) == (2, "")
    assert "'--sigma-w2': it must be given: activation relu has no edge of chaos" in err


def test_the_file_holds_what_the_library_says(tmp_path, capsys):
    path = tmp_path / "theory.json"
    code, _, _ = run(capsys, "leaky_relu(0.2)", "--sigma-w2", 1.5, "--json", path)
    assert code == 0
    assert json.loads(path.read_text()) == {
        "format": "initcore.theory",
        "version": 1,
        "activation": "leaky_relu(0.2)",
        "sigma_w2": 1.5,
        "sigma_b2": 0.0,
        "fixed_point": fixed_point("leaky_relu(0.2)", 1.5, 0).to_dict(),
        "critical": critical("leaky_relu(0.2)")._asdict(),
        "critical_point": fixed_point("leaky_relu(0.2)", 25 / 13, q=1).to_dict(),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("swish",), "'NAME': activation must be one of"),
        (("tanh", "--sigma-w2", -1), "'--sigma-w2': sigma_w2 must not be negative"),
        (("tanh", "--sigma-b2", -1), "'--sigma-b2': sigma_b2 must not be negative"),
        (("tanh", "--sigma-b2", "inf", "--sigma-w2", 1), "'--sigma-b2': sigma_b2 must be a finite"),
        (("tanh", "--sigma-w2", "nan"), "'--sigma-w2': sigma_w2 must be a finite"),
        (("tanh", "--json", "/nowhere/a.json"), "'--json'"),
        ((), "Missing argument 'NAME'"),
    ],
)
def test_bad_arguments(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
