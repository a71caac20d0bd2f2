# SPDX-License-Identifier: BSD-3-Clause
"""The one table of activations: name, kernel id, parameter, kinks, and the largest slope."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from initcore import _core
from initcore.specifications import finite_number, parse, spell

# A pre-activation is saturated where |φ′(h)| is below this share of max|φ′|.
_SATURATED_SHARE = 0.05

# tools/derive_gains.py: begin
_MAX_SLOPE_GELU = 1.1289041451851547
_MAX_SLOPE_GELU_TANH = 1.1289930686587717
_MAX_SLOPE_SILU = 1.099839320128867
_MAX_SLOPE_MISH = 1.088498161251728
_MAX_SLOPE_SELU = 1.7580993408473768
_MAX_SLOPE_ERF = 1.1283791670955126
# tools/derive_gains.py: end


@dataclass(frozen=True, repr=False)
class Activation:
    """An activation φ: a value that evaluates φ and φ′ and spells itself as a specification.

    Attributes
    ----------
    name
        Its name in the table and in specifications.
    kernel_id
        The number by which the C kernels know it.
    max_derivative
        The largest |φ′|, infinite where φ′ is unbounded.
    kinks
        Where φ or one of its derivatives jumps: quadratures split there.
    parameter_name, parameter
        The name of its one parameter, None if it has none, and its value.
    """

    name: str
    kernel_id: int
    max_derivative: float
    kinks: tuple[float, ...] = ()
    parameter_name: str | None = None
    parameter: float = 0.0

    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """φ(x) elementwise, in the dtype of x if that is float32 or float64, else in float64."""
        return self._evaluate(x, derivative=False)

    def derivative(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """φ′(x) elementwise, in the dtype of x if that is float32 or float64, else in float64.

        At a kink: relu 0, leaky_relu its slope, elu alpha, selu λα, hardtanh 0, hardswish 0 at −3
        and 1 at 3.
        """
        return self._evaluate(x, derivative=True)

    def _evaluate(self, x: npt.ArrayLike, *, derivative: bool) -> npt.NDArray[Any]:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError("x must be an array without a mask, got a masked array")
        array = np.asarray(x)
        if array.dtype.kind not in "iuf":
            raise TypeError(f"x must be an array of real numbers, got dtype {array.dtype}")
        single = array.dtype.kind == "f" and array.dtype.itemsize == 4
        values = np.require(array, np.float32 if single else np.float64, ["C", "A"]).ravel()
        out = np.empty_like(values)
        _core.default().activate(values, out, self.kernel_id, self.parameter, derivative)
        result: npt.NDArray[Any] = out.reshape(array.shape)[()]
        return result

    @property
    def saturation_threshold(self) -> float:
        """A pre-activation h is saturated where |φ′(h)| is below this; NaN if φ′ is unbounded."""
        return (
            _SATURATED_SHARE * self.max_derivative
            if math.isfinite(self.max_derivative)
            else math.nan
        )

    @functools.cached_property
    def kernel_words(self) -> tuple[int, float, float]:
        """What the kernels take for it: its number, its parameter and the saturation threshold."""
        return self.kernel_id, self.parameter, self.saturation_threshold

    def __str__(self) -> str:
        """The specification, without a parameter that has its default."""
        if self.parameter == ACTIVATIONS[self.name].parameter:
            return self.name
        return f"{self.name}({spell(self.parameter)})"

    def __repr__(self) -> str:
        return f"activation({str(self)!r})"


#: Every activation by name, with its default parameter.
ACTIVATIONS: dict[str, Activation] = {
    entry.name: entry
    for entry in (
        Activation("linear", 0, 1.0),
        Activation("relu", 1, 1.0, (0.0,)),
        Activation("leaky_relu", 2, 1.0, (0.0,), "slope", 0.01),
        Activation("tanh", 3, 1.0),
        Activation("sigmoid", 4, 0.25),
        Activation("elu", 5, 1.0, (0.0,), "alpha", 1.0),
        Activation("selu", 6, _MAX_SLOPE_SELU, (0.0,)),
        Activation("gelu", 7, _MAX_SLOPE_GELU),
        Activation("gelu_tanh", 8, _MAX_SLOPE_GELU_TANH),
        Activation("silu", 9, _MAX_SLOPE_SILU),
        Activation("mish", 10, _MAX_SLOPE_MISH),
        Activation("softplus", 11, 1.0),
        Activation("softsign", 12, 1.0, (0.0,)),
        Activation("erf", 13, _MAX_SLOPE_ERF),
        Activation("sin", 14, 1.0),
        Activation("hardtanh", 15, 1.0, (-1.0, 1.0)),
        Activation("hardswish", 16, 1.5, (-3.0, 3.0)),
        Activation("relu2", 17, math.inf, (0.0,)),
    )
}


def activation(spec: str | Activation) -> Activation:
    """The activation of a specification: ``"gelu"``, ``"leaky_relu(0.2)"``, ``"elu(alpha=0.5)"``.

    An :class:`Activation` is returned as it is. A parameter is any finite number. Raises ValueError
    for a name or a parameter that does not exist, TypeError for what is no specification.
    """
    if isinstance(spec, Activation):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"activation must be a specification such as 'relu', got {spec!r}")
    return _from_text(spec)


@functools.lru_cache(maxsize=256)  # a deep chain asks for the same few, layer after layer
def _from_text(spec: str) -> Activation:
    call = parse(spec)
    if call.name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {spec!r}")
    if call.factors:
        raise ValueError(f"activation {spec!r}: an activation cannot be scaled")
    entry = ACTIVATIONS[call.name]
    if not call.args and not call.kwargs:
        return entry
    if entry.parameter_name is None:
        raise ValueError(f"activation {spec!r}: {entry.name} takes no parameter")
    given = [*call.args, *call.kwargs.values()]
    if len(given) != 1 or not call.kwargs.keys() <= {entry.parameter_name}:
        raise ValueError(
            f"activation {spec!r}: {entry.name} takes one parameter, {entry.parameter_name}"
        )
    parameter = finite_number(f"{entry.parameter_name} of {entry.name}", given[0])
    # On the negative side leaky_relu has the slope itself, elu at most alpha.
    return replace(entry, parameter=parameter, max_derivative=max(1.0, abs(parameter)))
