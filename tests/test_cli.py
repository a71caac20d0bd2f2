# SPDX-License-Identifier: BSD-3-Clause
"""The command line: what it shows, what it writes, and how it says no."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

import initcore as ic
from initcore.cli import main
from initcore.results.comparison import Comparison
from initcore.results.propagation import Propagation
from initcore.results.text import number

SMALL = ["--width", "16", "--layers", "4", "--batch", "8", "--trials", "6"]


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of a command line."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments):
    """The one line on standard error with which a command line is refused."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("initcore: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


# --- propagate -------------------------------------------------------------------------------


def test_propagate_backward(capsys, tmp_path):
    """A column and a verdict of the gradient; the file runs it again."""
    path = tmp_path / "both.json"
    options = (*SMALL, "--init", "kaiming_normal", "--backward", "--json", path)
    code, out, _ = run(capsys, "propagate", *options)
    result = ic.Propagation.load(path)
    assert code == 0
    assert result.spec["backward"]
    assert "E[(∂/∂h)²]" in out
    assert number(result.grad_pre.second_moment[0]) in out
    assert result.verdict in out
    assert "; gradient " in result.verdict
    _, without, _ = run(capsys, "propagate", *SMALL, "--init", "kaiming_normal")
    assert "∂" not in without
    assert "gradient" not in without


def test_propagate_with_norms_and_branches(capsys, tmp_path):
    """A number, 1/sqrt(L) or one a layer, as in Python."""
    path = tmp_path / "run.json"
    options = [*SMALL, "--init", "kaiming_normal", "--norm", "layer", "--json", path]
    for text, value in (("1", 1), ("1/sqrt(L)", 0.5), ("0.5,none,1e-1,0", [0.5, None, 0.1, 0])):
        code, out, _ = run(capsys, "propagate", *options, "--residual", text)
        assert code == 0
        expected = ic.propagate([16] * 5, batch=8, trials=6, norm="layer", residual=value)
        assert ic.Propagation.load(path).equals(expected)
        assert "norm layer, residual" in out
    for text in ("one", "1,,2", "nan"):
        assert "--residual" in refused(capsys, "propagate", *SMALL, "--residual", text)
    assert "residual" in refused(capsys, "propagate", *SMALL, "--residual", "1,1")
    assert "--norm" in refused(capsys, "propagate", *SMALL, "--norm", "batch")


def test_propagate_by_gram(capsys, tmp_path):
    """Named in the title; weights that are not Gaussian are refused in a line, by the option."""
    path = tmp_path / "gram.json"
    options = (*SMALL, "--method", "gram", "--init")
    code, out, _ = run(capsys, "propagate", *options, "xavier_normal,kaiming_normal")
    assert code == 0
    assert "by gram" in out
    code, out, _ = run(capsys, "propagate", *options, "kaiming_normal", "--json", path)
    assert code == 0
    assert ic.Propagation.load(path).method == "gram"
    code, out, err = run(capsys, "propagate", *options, "torch_linear")
    assert (code, out) == (2, "")
    assert "init of layer 0 must be normal" in " ".join(err.split())
    assert "use method='dense'" in " ".join(err.split())


def test_propagate_correlated_inputs(capsys, tmp_path):
    path = tmp_path / "alike.json"
    options = (*SMALL, "--init", "kaiming_normal", "--correlation", "0.5", "--json", path)
    code, out, _ = run(capsys, "propagate", *options)
    assert code == 0
    assert "correlation 0.5" in out
    assert ic.Propagation.load(path).spec["correlation"] == 0.5
    assert run(capsys, "propagate", *SMALL, "--correlation", "-0.5")[0] == 2


def test_propagate_until_it_is_known_well_enough(capsys, tmp_path):
    path = tmp_path / "early.json"
    options = (*SMALL, "--init", "kaiming_normal", "--trials", 500, "--json", path)
    code, out, _ = run(capsys, "propagate", *options, "--rtol", "0.5")
    assert code == 0
    assert ic.Propagation.load(path).n_trials == 8
    assert "8 trials" in out
    assert run(capsys, "propagate", *options, "--rtol", "0")[0] == 2


def test_without_options_it_compares_four_initializers(monkeypatch, capsys):
    module = importlib.import_module("initcore.cli.propagate")
    asked = {}

    def compare(inits, widths, **options):
        asked.update(inits=list(map(str, inits)), widths=widths, **options)
        options.update(trials=2, batch=4)
        return ic.compare_inits(inits, [8] * 51, **options)

    monkeypatch.setattr(module, "compare_inits", compare)
    code, out, err = run(capsys, "propagate")
    assert (code, err) == (0, "")
    assert asked["inits"] == [
        "kaiming_normal().scaled(1.5)", "xavier_normal()", "kaiming_normal()", "torch_linear()",
    ]  # fmt: skip
    assert asked["widths"] == [512] * 51
    assert (str(asked["activation"]), asked["bias"], asked["dtype"]) == ("relu", None, "float32")
    assert (asked["batch"], asked["trials"], asked["seed"]) == (32, 100, 0)
    rows = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert rows.count("layer") == 4
    assert [row for row in rows if row.isdigit()][1:7] == ["1", "2", "5", "10", "20", "50"]


def test_the_table_holds_what_the_library_measures(capsys):
    code, out, _ = run(capsys, "propagate", *SMALL, "--init", "kaiming_normal", "--seed", 3)
    result = ic.propagate([16] * 5, batch=8, trials=6, seed=3)
    assert code == 0
    assert result.label in out
    assert out.rstrip().endswith(result.verdict)
    for _, rows in result.tables():
        for row in rows:
            assert " ".join(row) in " ".join(out.split())


def test_saturation_is_shown_where_nothing_is_zero(capsys):
    _, out, _ = run(capsys, "propagate", *SMALL, "--activation", "tanh", "--init", "normal(std=3)")
    assert "saturated" in out
    assert "x = 0" not in out


def test_overflow_is_named(capsys):
    arguments = ["--layers", 30, "--width", 8, "--trials", 2, "--init", "normal(std=1e6)"]
    code, out, _ = run(capsys, "propagate", *arguments)
    assert code == 0
    assert "overflow " in out
    assert "overflows float32 at layer" in out


def test_a_comparison_splits_at_top_level_commas(capsys):
    inits = "uniform(-0.5, 0.5), kaiming_normal(mode='fan_out').scaled(1.5),zeros"
    code, out, _ = run(capsys, "propagate", *SMALL, "--init", inits, "--quiet")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 3
    for line, name in zip(lines, ("uniform(", "kaiming_normal(", "zeros("), strict=True):
        assert line.startswith(name)


def test_widths_bias_dtype_and_threads_reach_the_library(tmp_path, capsys):
    path = tmp_path / "a.json"
    options = ["--widths", "7,5,3", "--bias", "normal(std=0.1)", "--dtype", "float64"]
    options += ["--activation", "leaky_relu(0.2)", "--init", "xavier_uniform", "--threads", 1]
    code, _, _ = run(capsys, "propagate", *options, "--trials", 3, "--batch", 4, "--json", path)
    expected = ic.propagate(
        [7, 5, 3], activation="leaky_relu(0.2)", init="xavier_uniform", bias="normal(std=0.1)",
        dtype="float64", trials=3, batch=4,
    )  # fmt: skip
    assert code == 0
    assert Propagation.load(path).equals(expected)


def test_json_of_a_comparison(tmp_path, capsys):
    path = tmp_path / "many.json"
    inits = ["kaiming_normal", "zeros"]
    code, _, _ = run(capsys, "propagate", *SMALL, "--init", ",".join(inits), "--json", path)
    assert code == 0
    assert Comparison.load(path).equals(
        ic.compare_inits(inits, [16] * 5, batch=8, trials=6, seed=0)
    )
    assert [file.name for file in tmp_path.iterdir()] == ["many.json"]


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_plot_writes_the_kind_its_suffix_names(tmp_path, capsys, suffix, magic):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chain{suffix}"
    code, _, _ = run(capsys, "propagate", *SMALL, "--plot", path, "--quiet")
    assert code == 0
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--width", "0"], ["--width", "1"]),
        (["--width", "many"], ["--width", "integer"]),
        (["--layers", "0"], ["--layers", "1"]),
        (["--batch", "0"], ["--batch", "1"]),
        (["--trials", "-3"], ["--trials", "1"]),
        (["--widths", "512"], ["--widths", "two or more", "512"]),
        (["--widths", "5,,6"], ["--widths", "positive integers"]),
        (["--widths", "5,0"], ["--widths", "positive integers"]),
        (["--widths", "5,6", "--layers", "2"], ["--widths", "--layers"]),
        (["--activation", "rleu"], ["--activation", "rleu", "leaky_relu"]),
        (["--activation", "leaky_relu(nan)"], ["--activation"]),
        (["--init", "kaiming"], ["--init", "kaiming_normal"]),
        (["--init", "kaiming_normal,"], ["--init", "empty"]),
        (["--init", "normal(std=-1)"], ["--init", "std"]),
        (["--init", "__import__('os').getcwd()"], ["--init"]),
        (["--bias", "normal(std=inf)"], ["--bias"]),
        (["--seed", "-1"], ["--seed", "2**64"]),
        (["--seed", str(2**64)], ["--seed", "2**64"]),
        (["--seed", "1.5"], ["--seed", "integer"]),
        (["--threads", "0"], ["--threads", "1"]),
        (["--dtype", "float16"], ["--dtype", "float32", "float64"]),
        (["--plot", "chain.gif"], ["--plot", ".png", ".svg", ".pdf"]),
        (["--plot", "no/such/directory/chain.png"], ["--plot", "does not exist"]),
        (["--json", "."], ["--json", "directory"]),
        (["--json", "no/such/directory/a.json"], ["--json", "does not exist"]),
        (["--trials"], ["--trials"]),
        (["--trails", "3"], ["--trails", "--help"]),
        (["relu"], ["relu", "--help"]),
    ],
)
def test_bad_options_are_named(capsys, monkeypatch, options, words):
    def never(*_, **__):
        raise AssertionError("it ran")

    monkeypatch.setattr(importlib.import_module("initcore.cli.propagate"), "compare_inits", never)
    message = refused(capsys, "propagate", *options)
    for word in words:
        assert word in message


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write anywhere")
def test_an_unwritable_file_is_found_before_the_run(tmp_path, capsys):
    path = tmp_path / "a.json"
    path.touch(mode=0o400)
    assert "permission" in refused(capsys, "propagate", "--json", path)


def test_too_large_a_network_is_refused_in_a_line(capsys, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(
        importlib.import_module("initcore.cli.propagate"), "compare_inits", exhausted
    )
    assert "memory" in refused(capsys, "propagate")


# --- the rest of the command line ------------------------------------------------------------


def test_help_and_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"initcore {ic.__version__} ({ic.isa()})\n")
    for arguments in ([], ["--help"], ["-h"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        for command in ("propagate", "verify", "gain", "chain"):
            assert command in out


def test_an_unknown_command(capsys):
    assert "No such command 'propagat'" in refused(capsys, "propagat")


def test_python_m_initcore():
    done = subprocess.run(
        [sys.executable, "-m", "initcore", "gain", "relu"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "1.41421356" in done.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("typer", ["gain"], "initcore[cli]"),
        ("rich", ["gain"], "initcore[cli]"),
        ("matplotlib", ["propagate", "--plot", "a.png"], "initcore[plot]"),
    ],
)
def test_a_missing_extra_names_the_pip_command(module, arguments, extra):
    code = f"import sys; sys.modules[{module!r}] = None\n"
    code += f"from initcore.cli import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"pip install '{extra}'" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals and terminals of POSIX")
def test_ctrl_c_ends_a_run_within_a_second():
    import pty

    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "initcore", "propagate", "--trials", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end) as process:
        os.close(end)
        shown = b""
        while b"propagating" not in shown:  # the progress bar: it runs
            shown += os.read(terminal, 1024)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert process.wait(timeout=30) == 130
        assert time.monotonic() - start < 1
    try:
        while more := os.read(terminal, 1024):
            shown += more
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    assert b"Traceback" not in shown


# --- gain ------------------------------------------------------------------------------------


def test_gains_of_the_textbook(capsys):
    code, out, _ = run(capsys, "gain", "relu", "tanh", "gelu", "leaky_relu(0.2)")
    heading, *lines = out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert code == 0
    assert heading.split() == [
        "activation", "second_moment", "variance", "backward", "fixed_point", "torch",
    ]  # fmt: skip
    expected = {
        "relu": [1.41421356237, 1.71285855045, 1.41421356237, 1.41421356237, 1.41421356237],
        "tanh": [1.59253741972, 1.59253741972, 1.46741359163, None, 5 / 3],
        "gelu": [1.53353044120, 1.70092624336, 1.48111441271, 1.46801126055, None],
        "leaky_relu(0.2)": [1.38675049056, 1.54646006036, *[1.38675049056] * 3],
    }
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        for cell, value in zip(rows[name], values, strict=True):
            if value is None:
                assert cell == "-"
            else:
                assert float(cell) == pytest.approx(value, rel=1e-10)


def test_gains_of_every_built_in(capsys):
    _, out, _ = run(capsys, "gain", "--convention", "torch,backward")
    heading, *lines = out.splitlines()
    assert heading.split() == ["activation", "torch", "backward"]
    assert len(lines) == 18


def test_bad_gains_are_named(capsys):
    assert "leaky_relu" in refused(capsys, "gain", "rleu")
    message = refused(capsys, "gain", "relu", "--convention", "pytorch")
    assert "--convention" in message
    assert "second_moment" in message


# --- chain -----------------------------------------------------------------------------------


@pytest.fixture
def layers(rng):
    return {
        "fc1.weight": rng.normal(size=(12, 7)).astype("float32"),
        "fc1.bias": rng.normal(size=12).astype("float32"),
        "fc2.weight": rng.normal(size=(5, 12)).astype("float32"),
    }


def saved(tmp_path, arrays):
    path = tmp_path / "W.npz"
    np.savez(path, **arrays)
    return path


def test_chain_shows_each_layer_by_name(tmp_path, capsys, layers, rng):
    x = rng.normal(size=(9, 7)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    _, expected = ic.chain(
        x, [layers["fc1.weight"], layers["fc2.weight"]], [layers["fc1.bias"], None],
        activation="relu", last="linear",
    )  # fmt: skip
    path = tmp_path / "c.json"
    code, out, _ = run(
        capsys, "chain", "--weights", saved(tmp_path, layers), "--input", tmp_path / "x.npy",
        "--last", "linear", "--json", path,
    )  # fmt: skip
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0
    for index, name in enumerate(("fc1.weight", "fc2.weight")):
        assert float(rows[name][0]) == pytest.approx(expected.pre.second_moment[index], rel=1e-3)
    data = json.loads(path.read_text())
    assert (data["format"], data["layers"]) == ("initcore.chain", ["fc1.weight", "fc2.weight"])
    assert data["post"] == expected.post.to_dict()


def test_chain_draws_its_input_without_one(tmp_path, capsys, layers):
    path = tmp_path / "c.json"
    options = ["--batch", 6, "--seed", 4, "--activation", "tanh,relu"]
    weights = saved(tmp_path, layers)
    assert run(capsys, "chain", "--weights", weights, *options, "--json", path)[0] == 0
    x = ic.normal()((6, 7), seed=4, name="input")
    _, expected = ic.chain(
        x, [layers["fc1.weight"], layers["fc2.weight"]], [layers["fc1.bias"], None],
        activation=["tanh", "relu"],
    )  # fmt: skip
    assert json.loads(path.read_text())["pre"] == expected.pre.to_dict()


def test_a_bias_finds_its_weight_by_name(tmp_path, capsys):
    """All weights, then all biases: attached by what their names share."""
    eye = np.eye(3)
    path = saved(tmp_path, {"W1": eye, "W2": eye, "b1": np.full(3, 4.0), "b2": np.zeros(3)})
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((2, 3)))
    _, out, _ = run(capsys, "chain", "--weights", path, "--input", x)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert (rows["W1"][-1], rows["W2"][-1]) == ("4.000", "4.000")


W, B = np.zeros((5, 7)), np.zeros(5)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"fc1.weight": np.zeros((512, 784)), "fc2.weight": np.zeros((10, 300))},
            ["fc2.weight is (10, 300) but fc1.weight gives 512 outputs"],
        ),
        ({"fc1.weight": W, "fc1.bias": np.zeros(4)}, ["fc1.bias has 4", "fc1.weight", "5"]),
        ({"fc1.bias": B, "fc1.weight": W}, ["fc1.bias", "no weight"]),
        ({"W": W, "b": B, "bias": B}, ["bias", "second bias of W"]),
        ({"W": W, "norm.gamma": B}, ["norm.gamma", "(5,)"]),
        ({"conv": np.zeros((3, 3, 2, 2))}, ["conv", "(3, 3, 2, 2)"]),
        ({"W": np.zeros((5, 7), int)}, ["W is int64", "float32"]),
        ({"W": np.array([[{}]])}, ["W cannot be read"]),
        ({"W": np.zeros((0, 7))}, ["W is (0, 7)"]),
        ({}, ["no matrix"]),
    ],
)
def test_wrong_arrays_are_named(tmp_path, capsys, arrays, words):
    message = refused(capsys, "chain", "--weights", saved(tmp_path, arrays))
    for word in ["--weights", *words]:
        assert word in message


def test_wrong_files_and_options_of_chain(tmp_path, capsys, layers):
    weights, x = saved(tmp_path, layers), tmp_path / "x.npy"
    text = tmp_path / "notes.txt"
    text.write_text("no arrays")
    np.save(x, np.zeros((2, 8)))
    for options, words in [
        (["--weights", tmp_path / "none.npz"], ["--weights", "none.npz"]),
        (["--weights", text], ["--weights", "notes.txt"]),
        (["--weights", x], ["--weights", ".npz"]),
        (["--weights", weights, "--input", weights], ["--input", ".npy"]),
        (["--weights", weights, "--input", x], ["--input", "(2, 8)", "fc1.weight", "7"]),
        (["--weights", weights, "--input", x, "--batch", 3], ["--batch", "--input"]),
        (["--weights", weights, "--activation", "relu,relu,relu"], ["--activation", "2 layers"]),
        (["--weights", weights, "--last", "foo"], ["--last", "relu"]),
        ([], ["--weights"]),
    ]:
        message = refused(capsys, "chain", *options)
        for word in words:
            assert word in message


# --- verify ----------------------------------------------------------------------------------


def test_verify_finds_every_kernel_within_its_tolerance(capsys):
    from initcore import _core

    code, out, err = run(capsys, "verify")
    assert (code, err) == (0, ""), out
    assert "within tolerance" in out.splitlines()[-1]
    kernels = ["philox", "uniform", "normal", "gelu", "gelu'", "product", "chain", "moments"]
    for kernel in [*kernels, "softmax", "softmax statistics", "softmax backward", "exact sums"]:
        for isa in _core.available():
            assert any(line.startswith(kernel) and f" {isa} " in line for line in out.splitlines())


def test_verify_fails_where_a_kernel_is_off_by_one_bit(monkeypatch, capsys):
    module = importlib.import_module("initcore.cli.verify")
    check = next(check for check in module.every_check() if check.kernel == "uniform")

    def nudged():
        expected = check.expected()
        expected[17] = np.nextafter(expected[17], expected.dtype.type(2))
        return expected

    monkeypatch.setattr(module, "every_check", lambda: [check, replace(check, expected=nudged)])
    code, out, _ = run(capsys, "verify")
    assert code == 1
    assert "uniform, float32" in out
    assert "out of tolerance" in out.splitlines()[-1]


def test_a_closed_pipe_costs_no_files(tmp_path):
    """Results are saved before they are shown."""
    path = tmp_path / "run.json"
    command = [sys.executable, "-m", "initcore", "propagate", "--width", "8", "--layers", "30"]
    process = subprocess.Popen(
        [*command, "--trials", "3", "--json", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdout.close()
    process.wait(60)
    assert path.exists()


@pytest.mark.parametrize(
    "options",
    [["--widths", "1,144115188075855872"], ["--widths", "1152921504606846975,1"],
     ["--width", "2", "--layers", "1", "--batch", "2305843009213693952"],
     ["--width", "2", "--layers", "1", "--trials", "99999999999999999999"],
     ["--width", "99999999999999999999", "--layers", "1"]],
)  # fmt: skip
def test_huge_sizes_are_a_line_and_no_crash(options):
    ran = subprocess.run(
        [sys.executable, "-m", "initcore", "propagate", "--trials", "1", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
