# SPDX-License-Identifier: BSD-3-Clause
"""``initcore chain``: what a person's own weights do to the signal."""

from __future__ import annotations

import lzma
import re
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from initcore.activations import activation as activation_of
from initcore.cli.common import JsonFile, Seed, check_output, checked_seed, console, option
from initcore.initializers import normal
from initcore.kernels.chain import chain as chain_of
from initcore.results.layers import layer_table
from initcore.results.records import save
from initcore.results.text import text_table
from initcore.specifications import split_top_level

# What a damaged, encrypted or foreign member of an archive makes NumPy and zipfile raise.
_UNREADABLE = (
    ValueError,
    EOFError,
    RuntimeError,
    SyntaxError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)

_BIAS_WORDS = {"b", "bias", "biases"}
_KIND_WORDS = {"w", "weight", "weights", "kernel"} | _BIAS_WORDS


@dataclass
class Layer:
    """A weight (out, in) by its name in the file, and the bias (out,) that follows it, if any."""

    name: str
    weight: NDArray[Any]
    bias: NDArray[Any] | None = None


def chain(
    weights: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="An .npz of weights (out, in) and biases (out,), in layer order."
        ),
    ],
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="An .npy of inputs (batch, in).",
            show_default="standard normal rows",
        ),
    ] = None,
    activation: Annotated[
        str,
        typer.Option(metavar="NAME", help="Activation; several, comma-separated: one a layer."),
    ] = "relu",
    last: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The last layer's activation.", show_default="as --activation"
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to draw without --input.", show_default="32"),
    ] = None,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Send a signal through the weights of a file, layer by layer.

    A layer is h = W x + b, then x = activation(h). Arrays are taken in the order of the file: a
    matrix is the weight of the next layer, a vector the bias of the weight before it.
    """
    with option("--weights"):
        layers = read_layers(weights)
    n_in = layers[0].weight.shape[1]
    with option("--activation"):
        phi = [activation_of(spec) for spec in split_top_level(activation)]
        if len(phi) not in (1, len(layers)):
            counts = f"{len(phi)} activations for {len(layers)} layers"
            raise ValueError(f"{counts}: give one, or one a layer")
    with option("--last"):
        phi_last = None if last is None else activation_of(last)
    check_output("--json", json_file)

    if input_file is not None:
        with option("--batch"):
            if batch is not None:
                raise ValueError("the rows are those of --input: leave it out")
        with option("--input"):
            x = read_input(input_file, layers[0])
    else:
        wide = any(layer.weight.dtype == np.float64 for layer in layers)
        x = normal()(
            (batch or 32, n_in),
            seed=checked_seed(seed),
            name="input",
            dtype="float64" if wide else "float32",
        )

    _, measured = chain_of(
        x,
        [layer.weight for layer in layers],
        [layer.bias for layer in layers],
        activation=phi[0] if len(phi) == 1 else phi,
        last=phi_last,
    )
    assert measured is not None  # statistics are on by default
    names = [layer.name for layer in layers]
    title = f"{weights.name}: {len(layers)} layers, {activation}, batch {len(x)}"
    if json_file is not None:
        record = {"format": "initcore.chain", "version": 1, "layers": names, **measured.to_dict()}
        with option("--json"):
            save(json_file, record)
    console().print(text_table(title, layer_table(measured, names=names), ""), soft_wrap=True)


def read_layers(path: Path) -> list[Layer]:
    """The layers of an .npz file in file order, their kinds and shapes checked by name."""
    archive = _load(path)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError(f"{str(path)!r} holds one array; an .npz file (numpy.savez) is needed")
    layers: list[Layer] = []
    if len(set(archive.files)) != len(archive.files):
        raise ValueError(f"{str(path)!r} holds two arrays of one name")
    with archive:
        for name in archive.files:
            try:
                array = archive[name]
            except _UNREADABLE as error:
                raise ValueError(f"{name} cannot be read: {error}") from error
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is no array")
            _check_dtype(name, array)
            if array.ndim == 2:
                _add_weight(layers, name, array)
            elif array.ndim == 1 and _is_bias(name):
                _add_bias(layers, name, array)
            else:
                raise ValueError(
                    f"{name} has shape {array.shape}; weights are matrices (out, in), biases are "
                    "vectors with a name such as fc1.bias or b1"
                )
    if not layers:
        raise ValueError(f"{str(path)!r} holds no matrix (out, in)")
    return layers


def read_input(path: Path, first: Layer) -> NDArray[Any]:
    """Rows (batch, in) of an .npy file, checked against the first layer."""
    x = _load(path)
    if not isinstance(x, np.ndarray):
        raise ValueError(f"{str(path)!r} holds several arrays; an .npy file (numpy.save) is needed")
    _check_dtype(path.name, x)
    n_in = first.weight.shape[1]
    if x.ndim != 2 or x.shape[1] != n_in or not x.size:
        raise ValueError(
            f"{path.name} has shape {x.shape} but {first.name} takes {n_in} inputs: "
            f"(batch, {n_in}) is needed"
        )
    return x


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise ValueError(f"{str(path)!r} is not a file of NumPy arrays") from error


def _words(name: str) -> list[str]:
    """``"encoder.fc1_bias"`` -> encoder, fc, 1, bias."""
    return re.findall("[a-z]+|[0-9]+", name.lower())


def _is_bias(name: str) -> bool:
    letters = [word for word in _words(name) if word.isalpha()]
    return bool(letters) and letters[-1] in _BIAS_WORDS


def _stem(name: str) -> list[str]:
    """What a weight and its bias share: fc, 1 of ``fc1.weight`` and ``fc1.bias``."""
    return [word for word in _words(name) if word not in _KIND_WORDS]


def _check_dtype(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise TypeError(f"{name} is {array.dtype}; float16, float32 or float64 is needed")


def _add_weight(layers: list[Layer], name: str, weight: NDArray[Any]) -> None:
    if not weight.size:
        raise ValueError(f"{name} is {weight.shape}: a layer needs inputs and outputs")
    if layers and weight.shape[1] != len(layers[-1].weight):
        outputs = len(layers[-1].weight)
        raise ValueError(
            f"{name} is {weight.shape} but {layers[-1].name} gives {outputs} outputs: "
            f"(out, {outputs}) is needed"
        )
    layers.append(Layer(name, weight))


def _add_bias(layers: list[Layer], name: str, bias: NDArray[Any]) -> None:
    """To the weight of the same stem, wherever the file has it; else to the weight before."""
    if not layers:
        raise ValueError(f"{name} is a bias but no weight comes before it")
    akin = [layer for layer in layers if _stem(layer.name) == _stem(name)]
    layer = akin[0] if len(akin) == 1 else layers[-1]
    if layer.bias is not None:
        raise ValueError(f"{name} would be a second bias of {layer.name}")
    if len(bias) != len(layer.weight):
        raise ValueError(
            f"{name} has {len(bias)} values but {layer.name} gives {len(layer.weight)} outputs"
        )
    layer.bias = bias
