# SPDX-License-Identifier: BSD-3-Clause
"""``initcore attention``: what it shows, what it writes, and how it says no."""

import importlib
import json

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import initcore as ic
from initcore.cli import main

SMALL = ["--d-model", "16", "--heads", "2", "--seq", "6", "--trials", "3"]


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of a command line."""
    capsys.readouterr()
    code = main(["attention", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_without_options_it_compares_seven_scalings(monkeypatch, capsys):
    module = importlib.import_module("initcore.cli.attention")
    asked = {}

    def compare(scalings, **options):
        asked.update(scalings=list(map(str, scalings)), **options)
        return ic.compare_scalings(scalings, **options | {"d_model": 16, "seq": 5, "trials": 2})

    monkeypatch.setattr(module, "compare_scalings", compare)
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    names = ["sqrt_dk", "dk", "sqrt_dmodel", "absorbed", "learned", "qk_norm", "none"]
    assert asked["scalings"] == [f"{name}()" for name in names]
    sizes = [asked[name] for name in ("d_model", "n_heads", "seq", "d_k", "batch", "trials")]
    assert sizes == [512, 8, 128, None, 1, 50]
    assert (asked["norm"], asked["causal"], asked["backward"]) == ("rms", False, False)
    for name in names:  # a row and a verdict each
        assert sum(line.split()[:1] == [f"{name}()"] for line in out.splitlines()) == 2


def test_the_table_holds_what_the_library_measures(capsys):
    code, out, _ = run(capsys, *SMALL, "--scaling", "sqrt_dk,constant(c=2)", "--causal")
    assert code == 0
    result = ic.propagate_attention(
        d_model=16, n_heads=2, seq=6, trials=3, scaling="constant(c=2)", causal=True
    )
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["constant(c=2)"])
    shown = [float(cell) for cell in row[1:9]]
    names = ("logit_var", "entropy", "sum_sq", "max_prob")
    expected = [getattr(side, name) for name in names for side in (result.rows, result.theory.rows)]
    np.testing.assert_allclose(shown, expected, rtol=6e-3)
    assert result.verdict in out


def test_every_option_reaches_the_experiment(capsys, tmp_path):
    file = tmp_path / "a.json"
    code, out, _ = run(
        capsys, *SMALL, "--d-k", 5, "--batch", 2, "--scaling", "qk_norm('l2', g=3)",
        "--norm", "none", "--init", "xavier_normal, xavier_uniform, orthogonal, zeros",
        "--x-std", 1.5, "--correlation", 0.25, "--causal", "--backward", "--seed", 7,
        "--json", file,
    )  # fmt: skip
    assert code == 0
    assert "∂loss/∂ln scale" in out
    result = ic.propagate_attention(
        d_model=16, n_heads=2, seq=6, trials=3, d_k=5, batch=2, scaling="qk_norm('l2', g=3)",
        norm=None, init=["xavier_normal", "xavier_uniform", "orthogonal", "zeros"], x_std=1.5,
        correlation=0.25, causal=True, backward=True, seed=7,
    )  # fmt: skip
    assert ic.AttentionPropagation.load(file).equals(result)


def test_files(capsys, tmp_path):
    file, picture = tmp_path / "a.json", tmp_path / "a.png"
    code, out, _ = run(
        capsys, *SMALL, "--scaling", "dk,none", "--json", file, "--plot", picture, "--quiet"
    )
    assert code == 0
    assert len(out.splitlines()) == 2
    loaded = ic.ScalingComparison.load(file)
    assert [result.label for result in loaded] == ["dk()", "none()"]
    assert json.loads(file.read_text("utf-8"))["format"] == "initcore.attention.comparison"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scaling", "sqrt"], "'--scaling': scaling must be one of sqrt_dk, dk"),
        (["--scaling", "dk,none,dk()"], "scalings must differ from each other, got dk()"),
        (["--scaling", "dk,,none"], "'--scaling': the comma-separated list"),
        (["--init", "normal,normal"], "'--init': it must be one or four"),
        (["--heads", "3"], "'--heads': 3 does not divide --d-model 512: give --d-k"),
        (["--norm", "batch"], "'--norm'"),
        (["--x-std", "-1"], "'--x-std': x_std must not be negative"),
        (["--correlation", "2"], "'--correlation'"),
        (["--seed", "-1"], "'--seed': seed=-1"),
        (["--plot", "a.txt"], "'--plot': path must end in"),
        (["--json", "no/such/a.json"], "'--json': the directory"),
        (["--seq", "0"], "'--seq'"),
    ],
)
def test_refusals(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
