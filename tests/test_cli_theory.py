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
        (("relu",), "1.000000000", "on the margin"),
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
    assert "a small difference grows by e" in out


def test_no_edge_is_said_beside_a_fixed_point_and_refused_without(capsys):
    code, out, _ = run(capsys, "relu", "--sigma-w2", 1.9, "--sigma-b2", 0.1)
    assert code == 0
    assert out.rstrip().endswith("edge of chaos at σ_b² = 0.1: none")
    code, out, err = run(capsys, "relu", "--sigma-b2", 0.1)
    assert (code, out) == (2, "")
    assert "relu has no edge of chaos at sigma_b2 = 0.1" in err


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
        "critical": critical("leaky_relu(0.2)", 0)._asdict(),
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
