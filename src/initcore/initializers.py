# SPDX-License-Identifier: BSD-3-Clause
"""Fans, gains, and initializers: values that know the law of a tensor's entries, and draw them.

A *law* (`Normal`, `Uniform`, `Constant`) is a distribution of numbers. A *rule* gives a shape its
law: it is a law itself, or `FanScaled`, whose standard deviation depends on the fans. An
`Initializer` is a rule, a factor and the call that spells it; the functions at the end of this file
make them.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, cast

import numpy as np
import numpy.typing as npt

from initcore import _core, fixed_points, quadrature, streams
from initcore.activations import ACTIVATIONS, Activation
from initcore.activations import activation as find_activation
from initcore.specifications import finite_number, integer, non_negative_number, parse, spell

P = ParamSpec("P")
Shape = int | Sequence[int]
Axes = int | Sequence[int]
Array = npt.NDArray[Any]

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
MODES = ("fan_in", "fan_out", "fan_avg", "fan_geo_avg")
DISTRIBUTIONS = ("normal", "uniform")
CONVENTIONS = ("second_moment", "variance", "backward", "fixed_point", "torch")


# Fans


def _integers(argument: str, value: object) -> tuple[int, ...]:
    try:
        entries = tuple(cast(Sequence[object], value))
    except TypeError:
        entries = (value,)
    return tuple(integer(argument, entry) for entry in entries)


def _shape(shape: Shape) -> tuple[int, ...]:
    sizes = _integers("shape", shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must not have negative sizes, got {shape!r}")
    return sizes


def fans(
    shape: Shape, *, in_axis: Axes | None = None, out_axis: Axes | None = None
) -> tuple[int, int]:
    """(fan_in, fan_out): the inputs an output sums over, and the outputs an input reaches.

    Parameters
    ----------
    shape
        Two axes or more; (out, in, \\*kernel) unless the axes are given.
    in_axis, out_axis
        The axis or axes of the inputs, and of the outputs; the others are the kernel's. With two
        axes in all, one of the arguments is enough.

    Raises ValueError for fewer than two axes and for axes that do not exist or that overlap.
    """
    shape = _shape(shape)
    if len(shape) < 2:
        raise ValueError(
            f"shape {shape} has no fans: give it two axes or more, (out, in, *kernel), "
            "or the initializer explicit ones, fan_in= and fan_out="
        )
    given = f"in_axis={in_axis!r}, out_axis={out_axis!r} for shape {shape}"
    if in_axis is None and out_axis is None:
        in_axis, out_axis = 1, 0
    elif (in_axis is None or out_axis is None) and len(shape) > 2:
        raise ValueError(
            f"in_axis and out_axis must both be given for more than two axes, got {given}"
        )
    axes = range(len(shape))
    try:
        ins, outs = (
            None if value is None else {axes[axis] for axis in _integers(argument, value)}
            for argument, value in (("in_axis", in_axis), ("out_axis", out_axis))
        )
    except IndexError:
        raise ValueError(f"in_axis and out_axis must be axes of the shape, got {given}") from None
    ins = set(axes) - (outs or set()) if ins is None else ins
    outs = set(axes) - ins if outs is None else outs
    if not ins or not outs or ins & outs:
        raise ValueError(f"in_axis and out_axis must be different axes, got {given}")
    kernel = math.prod(shape[axis] for axis in axes if axis not in ins | outs)
    fan_in, fan_out = (kernel * math.prod(shape[axis] for axis in chosen) for chosen in (ins, outs))
    return fan_in, fan_out


# Gains

# second_moment, variance, backward and fixed_point of each activation with its default parameter;
# those of linear, relu and leaky_relu have closed forms. None: there is no fixed point.
# tools/derive_gains.py: begin
_GAINS: dict[str, tuple[float, float, float, float | None]] = {
    "tanh": (1.5925374197228315, 1.5925374197228315, 1.467413591630795, None),
    "sigmoid": (1.8462285453386054, 4.801313372039962, 4.722646085937974, None),
    "elu": (1.2451983007007066, 1.2708434178501964, 1.223428557552621, 1.2779600754047147),
    "selu": (1.0, 1.0, 0.9660257769739011, 1.0),
    "gelu": (1.5335304411955353, 1.7009262433633332, 1.4811144127083482, 1.4680112605467932),
    "gelu_tanh": (1.533580521666147, 1.7009165616954505, 1.4811680580933506, 1.467960758246148),
    "silu": (1.676532470331091, 1.787187222100442, 1.6233202579524972, 1.5587599300694919),
    "mish": (1.486847581273208, 1.5920253810994462, 1.4447552325473194, 1.4514912399603466),
    "softplus": (1.0418668355353018, 1.9191259801076563, 1.8462285453386054, 1.0831218815076133),
    "softsign": (2.3375333631085398, 2.3375333631085398, 2.095780608943311, None),
    "erf": (1.4671669504891387, 1.4671669504891387, 1.3252183528612111, None),
    "sin": (1.5208666231788148, 1.5208666231788148, 1.327250600284575, None),
    "hardtanh": (1.3920361404483097, 1.3920361404483097, 1.2102870624325224, None),
    "hardswish": (1.7366572127665416, 1.8138714738131827, 1.6700763674413823, 1.5671838351787897),
    "relu2": (0.816496580927726, 0.8944271909999159, 0.7071067811865476, 0.9036020036098449),
}
# tools/derive_gains.py: end

# torch.nn.init.calculate_gain; leaky_relu's depends on the slope.
_TORCH_GAINS = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}
_IN_TORCH = f"{', '.join(_TORCH_GAINS)} and leaky_relu"


def gain(
    activation: str | Activation | Callable[[npt.NDArray[np.float64]], Any],
    convention: str = "second_moment",
    *,
    kinks: Sequence[float] = (),
) -> float:
    """The factor by which weights of standard deviation gain/√fan make up for an activation φ.

    Parameters
    ----------
    activation
        A specification such as ``"leaky_relu(0.2)"``, an :class:`Activation`, or a function that
        maps a float64 array (n,) to an array (n,).
    convention
        With z ~ N(0, 1): ``second_moment`` 1/√E[φ(z)²], ``variance`` 1/√Var φ(z), ``backward``
        1/√E[φ′(z)²], ``fixed_point`` the σ with E[φ(σz)²] = 1, at which a deep chain of this gain
        settles with activations of second moment 1, and ``torch`` what torch.nn.init.calculate_gain
        has for the few it knows.
    kinks
        The points where a function, or a derivative of it, jumps. With them its gain has 12 digits.

    Built-in activations with their default parameter, and leaky_relu with any, have full precision;
    the gains of others, by quadrature, are rounded to 12 digits, so that weights drawn with them
    are the same on every machine.

    Raises ValueError for an unknown name, where there is no fixed point, for an activation torch
    does not have, and for a function that is constant (variance, backward) or whose expectation is
    not finite.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
    if callable(activation) and not isinstance(activation, Activation):
        if convention == "torch":
            raise ValueError(f"convention 'torch' has a gain for {_IN_TORCH}, not for a function")
        kinks = tuple(finite_number("kinks", kink) for kink in kinks)
        slope = functools.partial(quadrature.gaussian_squared_slope, activation, kinks)
        return _quadrature_gain(activation, convention, kinks, slope)
    known = find_activation(activation)
    if len(kinks):
        raise ValueError(f"kinks= is for functions, {known} knows its own; got {kinks!r}")
    if convention == "torch" and known.name in _TORCH_GAINS:
        return _TORCH_GAINS[known.name]
    if convention == "torch" and known.name != "leaky_relu":
        raise ValueError(f"convention 'torch' has a gain for {_IN_TORCH}, not for {known}")
    if known.name in ("linear", "relu", "leaky_relu"):
        negative_slope = {"linear": 1.0, "relu": 0.0}.get(known.name, known.parameter)
        return _piecewise_linear_gain(negative_slope, convention)
    if known == ACTIVATIONS[known.name]:
        value = _GAINS[known.name][CONVENTIONS.index(convention)]
        if value is None:
            raise ValueError(_no_fixed_point(known))
        return value

    def squared_slope() -> float:
        return quadrature.gaussian_mean(lambda x: known.derivative(x) ** 2, 1.0, known.kinks)

    return _quadrature_gain(known, convention, known.kinks, squared_slope)


def _no_fixed_point(function: object) -> str:
    return f"activation {function} has no fixed point: at no sigma is E φ(sigma z)² = 1"


def _piecewise_linear_gain(slope: float, convention: str) -> float:
    """The gain of slope·x below 0 and x above: for all conventions the same, but for `variance`."""
    larger = max(1.0, abs(slope))  # whose square might overflow
    above, below = 1.0 / larger, slope / larger
    square = above * above + below * below
    if convention == "variance":
        return 1.0 / math.sqrt(square * (0.5 - 0.5 / math.pi) + above * below / math.pi) / larger
    return math.sqrt(2.0 / square) / larger


def _quadrature_gain(
    function: quadrature.Function,
    convention: str,
    kinks: Sequence[float],
    squared_slope: Callable[[], float],
) -> float:
    if convention == "fixed_point":
        return _rounded(_fixed_point(function, kinks))
    if convention == "backward":
        expectation = squared_slope()
    else:
        moments = quadrature.gaussian_moments(function, 1.0, kinks)
        expectation = moments.second_moment
        if convention == "variance":
            # A constant has the variance of its rounding errors.
            expectation = moments.variance if moments.variance > 1e-24 * expectation else 0.0
    if not 0.0 < expectation < math.inf:
        raise ValueError(
            f"activation {function} has no {convention} gain: "
            f"its expectation must be positive and finite, it is {expectation}"
        )
    return _rounded(1.0 / math.sqrt(expectation))


def _rounded(value: float) -> float:
    return float(f"{value:.12g}")


def _fixed_point(function: quadrature.Function, kinks: Sequence[float]) -> float:
    sigma = fixed_points.fixed_point(function, kinks)
    if sigma is None:
        raise ValueError(_no_fixed_point(function))
    return sigma


# Laws

# Each has std, mean, bound (the largest |value|), scaled(f), and distribution(dtype): what the
# kernel draws.


def _rounded_to(dtype: np.dtype[Any], what: str, value: float) -> float:
    with np.errstate(over="ignore"):
        result = float(dtype.type(value))
    if not math.isfinite(result):
        raise ValueError(f"{what} must be finite in {dtype}, got {value!r}")
    return result


@dataclass(frozen=True)
class Constant:
    """One number."""

    value: float

    @property
    def mean(self) -> float:
        return self.value

    @property
    def std(self) -> float:
        return 0.0

    @property
    def bound(self) -> float:
        return abs(self.value)

    def scaled(self, factor: float) -> Constant:
        return Constant(self.value * factor)

    def distribution(self, dtype: np.dtype[Any]) -> streams.Distribution:
        value = _rounded_to(dtype, "the value", self.value)
        return streams.Distribution(_core.CONSTANT, shift=value)


@dataclass(frozen=True)
class Normal:
    """N(mean, std²)."""

    std: float
    mean: float = 0.0

    @property
    def bound(self) -> float:
        return math.inf if self.std else abs(self.mean)

    def scaled(self, factor: float) -> Normal:
        return Normal(self.std * factor, self.mean * factor)

    def distribution(self, dtype: np.dtype[Any]) -> streams.Distribution:
        std = _rounded_to(dtype, "the standard deviation", self.std)
        mean = _rounded_to(dtype, "the mean", self.mean)
        return streams.Distribution(_core.NORMAL, std, mean)


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high), open if it is symmetric; a point if low = high (a factor of zero)."""

    low: float
    high: float

    # Halves first: high − low may overflow.
    @property
    def mean(self) -> float:
        return self.high / 2.0 + self.low / 2.0

    @property
    def half_range(self) -> float:
        return self.high / 2.0 - self.low / 2.0

    @property
    def std(self) -> float:
        return self.half_range / math.sqrt(3.0)

    @property
    def bound(self) -> float:
        return max(abs(self.low), abs(self.high))

    def scaled(self, factor: float) -> Uniform:
        return Uniform(self.low * factor, self.high * factor)

    def distribution(self, dtype: np.dtype[Any]) -> streams.Distribution:
        if self.low == self.high:
            return Constant(self.mean).distribution(dtype)
        # Below both high and high rounded to the dtype, whichever a person compares with.
        high = dtype.type(_rounded_to(dtype, "the upper end", self.high))
        last = float(np.nextafter(high, dtype.type(-math.inf)))
        if self.low == -self.high:
            # s·a in the dtype never reaches a but by underflow: the kernel's |s| ≤ 1 − 2⁻²⁴ (2⁻⁵³)
            # rounds away from 1.
            first = -last
        else:
            low = dtype.type(_rounded_to(dtype, "the lower end", self.low))
            first = float(low)
            if first < self.low:
                first = float(np.nextafter(low, dtype.type(math.inf)))
        if first > last:
            raise ValueError(
                f"the range [{self.low!r}, {self.high!r}) must have a value in {dtype}"
            )
        return streams.Distribution(
            _core.UNIFORM,
            _rounded_to(dtype, "the range", self.half_range),
            _rounded_to(dtype, "the middle", self.mean),
            first,
            last,
        )


Law = Constant | Normal | Uniform


@dataclass(frozen=True)
class FanScaled:
    """A law of mean zero and standard deviation gain/√fan.

    The fans are, in this order, those given here, those given with the shape, and those of the
    shape.
    """

    gain: float
    mode: str
    distribution: str
    in_axis: tuple[int, ...] | None
    out_axis: tuple[int, ...] | None
    fan_in: int | None
    fan_out: int | None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"distribution must be one of {', '.join(DISTRIBUTIONS)}, got {self.distribution!r}"
            )

    def law(self, shape: tuple[int, ...], fan_in: int | None, fan_out: int | None) -> Law:
        # An empty tensor has a fan of zero and nothing to draw; any law will do.
        std = self.gain / math.sqrt(max(self._fan(shape, fan_in, fan_out), 1.0))
        if self.distribution == "normal":
            return Normal(std)
        return Uniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std)

    def _fan(self, shape: tuple[int, ...], fan_in: int | None, fan_out: int | None) -> float:
        def side(index: int) -> int:
            # The shape is asked last, and only for a fan that the mode needs.
            for given in ((self.fan_in, self.fan_out), (fan_in, fan_out)):
                fan = given[index]
                if fan is not None:
                    return fan
            return fans(shape, in_axis=self.in_axis, out_axis=self.out_axis)[index]

        match self.mode:
            case "fan_in":
                return side(0)
            case "fan_out":
                return side(1)
            case "fan_avg":
                return (side(0) + side(1)) / 2
            case _:
                return math.sqrt(side(0) * side(1))


Rule = Law | FanScaled


# Initializers


@dataclass(frozen=True, repr=False)
class Initializer:
    """The law of a tensor's entries, given its shape. Calling it draws the tensor.

    Made by the functions of this module, such as ``kaiming_normal()``. A value: picklable, equal to
    another of the same rule and factor however they were written, and its repr is the specification
    that makes it again.
    """

    rule: Rule
    call: str = field(compare=False)
    factor: float = 1.0

    def __repr__(self) -> str:
        return self.call if self.factor == 1.0 else f"{self.call}.scaled({spell(self.factor)})"

    def scaled(self, factor: float) -> Initializer:
        """This initializer with every value multiplied by `factor`.

        So is the standard deviation, and a bound, a mean, a constant. Raises ValueError for a
        factor that is negative or not finite.
        """
        factor = non_negative_number("factor", factor)
        return replace(
            self, factor=finite_number("the product of the factors", self.factor * factor)
        )

    def law(self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None) -> Law:
        """The law of the entries of a tensor: `mean`, `std` and `bound`.

        `fan_in` and `fan_out` are for a tensor whose shape has no fans, a bias, and give way to the
        initializer's own.
        """
        sizes, rule = _shape(shape), self.rule
        law = rule.law(sizes, fan_in, fan_out) if isinstance(rule, FanScaled) else rule
        return law.scaled(self.factor)

    def std(self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None) -> float:
        """The exact standard deviation of the entries; the fans as in :meth:`law`."""
        return self.law(shape, fan_in=fan_in, fan_out=fan_out).std

    def bound(
        self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None
    ) -> float:
        """What no |entry| exceeds, infinity for a normal; the fans as in :meth:`law`."""
        return self.law(shape, fan_in=fan_in, fan_out=fan_out).bound

    def distribution(
        self,
        shape: Shape,
        dtype: npt.DTypeLike,
        *,
        fan_in: int | None = None,
        fan_out: int | None = None,
    ) -> streams.Distribution:
        """What the kernels draw: the law with its parameters rounded once to float32 or float64.

        Raises ValueError where a parameter overflows the dtype or a range has no value in it.
        """
        return _distribution(self, _shape(shape), _dtype(dtype), fan_in, fan_out)

    def __call__(
        self,
        shape: Shape,
        *,
        seed: int,
        name: str | int,
        trial: int = 0,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        threads: int | None = None,
    ) -> Array:
        """Draw a tensor: the same bits on every machine and with every number of threads.

        Parameters
        ----------
        shape
            A size or a sequence of sizes.
        seed
            An integer in [0, 2⁶⁴).
        name
            What the tensor is called, a string or an integer in [0, 2⁶⁴): with a seed, it chooses
            the random numbers.
        trial
            The number of an independent repetition.
        dtype
            float32 or float64; None is that of `out`, else float32. The two draw different numbers.
        out
            The array to fill, of this shape; it is returned.
        threads
            None uses the CPUs this process may use.

        Raises ValueError and TypeError, before anything is written, for arguments that do not fit.
        """
        sizes = _shape(shape)
        seed = streams.check_seed(seed)
        stream = streams.stream_id(name, trial)
        threads = streams.resolve_threads(threads)
        dtypes = DTYPES if dtype is None else (_dtype(dtype),)
        if out is not None:
            out = streams.check_output(out, sizes, dtypes)
        distribution = self.distribution(sizes, dtypes[0] if out is None else out.dtype)
        array = np.empty(sizes, dtypes[0]) if out is None else out
        streams.fill(array, distribution, seed=seed, stream=stream, threads=threads)
        return array


@functools.lru_cache(maxsize=1024)  # a model's tensors have few shapes, and a small draw is short
def _distribution(
    init: Initializer,
    sizes: tuple[int, ...],
    dtype: np.dtype[Any],
    fan_in: int | None,
    fan_out: int | None,
) -> streams.Distribution:
    return init.law(sizes, fan_in=fan_in, fan_out=fan_out).distribution(dtype)


def _dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        result = np.dtype(dtype)
        if dtype is not None and result in DTYPES:
            return result
    except TypeError:
        pass
    raise TypeError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype!r}")


#: The functions that make initializers, by the names specifications have for them.
INITIALIZERS: dict[str, Callable[..., Initializer]] = {}


def _initializer(make_rule: Callable[P, Rule]) -> Callable[P, Initializer]:
    """Make a function that returns a rule one that returns an initializer, which knows the call."""
    signature = inspect.signature(make_rule)

    @functools.wraps(make_rule)
    def make(*args: P.args, **kwargs: P.kwargs) -> Initializer:
        rule = make_rule(*args, **kwargs)
        arguments = ", ".join(
            f"{name}={literal}"
            for name, value in signature.bind(*args, **kwargs).arguments.items()
            if (literal := _literal(value)) != _literal(signature.parameters[name].default)
        )
        return Initializer(rule, f"{make_rule.__name__}({arguments})")

    make.__signature__ = signature.replace(return_annotation="Initializer")  # type: ignore[attr-defined]
    INITIALIZERS[make_rule.__name__] = make
    return make


def _literal(value: object) -> str:
    if isinstance(value, Activation):
        value = str(value)
    return spell(value.tolist() if isinstance(value, np.ndarray) else value)


def _fan_scaled(
    gain: float,
    mode: str,
    distribution: str,
    in_axis: Axes | None,
    out_axis: Axes | None,
    fan_in: int | None,
    fan_out: int | None,
) -> FanScaled:
    def axes(argument: str, value: Axes | None) -> tuple[int, ...] | None:
        return None if value is None else _integers(argument, value)

    def fan(argument: str, value: int | None) -> int | None:
        if value is not None and integer(argument, value) < 1:
            raise ValueError(f"{argument} must be at least 1, got {value!r}")
        return None if value is None else integer(argument, value)

    return FanScaled(
        gain,
        mode,
        distribution,
        axes("in_axis", in_axis),
        axes("out_axis", out_axis),
        fan("fan_in", fan_in),
        fan("fan_out", fan_out),
    )


def _chosen_gain(
    number: float | None,
    nonlinearity: str | Activation | None,
    a: float | None,
    convention: str,
    default: str,
) -> float:
    """The gain that the keywords of an initializer ask for."""
    if number is not None:
        if nonlinearity is not None or a is not None or convention != CONVENTIONS[0]:
            raise ValueError("gain= must be given alone, without nonlinearity=, a= or convention=")
        return non_negative_number("gain", number)
    if a is not None:
        slope = finite_number("a", a)
        if nonlinearity not in (None, "leaky_relu") and not (
            nonlinearity == "relu" and slope == 0.0
        ):
            raise ValueError(
                f"a= must be given with leaky_relu alone, got nonlinearity={nonlinearity!r}"
            )
        nonlinearity = replace(ACTIVATIONS["leaky_relu"], parameter=slope)
    return gain(find_activation(nonlinearity or default), convention)


@_initializer
def normal(std: float = 1.0, mean: float = 0.0) -> Rule:
    """N(mean, std²)."""
    return Normal(non_negative_number("std", std), finite_number("mean", mean))


@_initializer
def uniform(low: float, high: float) -> Rule:
    """Uniform on [low, high); on (low, high) if low = −high."""
    law = Uniform(finite_number("low", low), finite_number("high", high))
    if not law.low < law.high:
        raise ValueError(f"low must be less than high, got low={low!r}, high={high!r}")
    return law


@_initializer
def constant(value: float) -> Rule:
    """Every entry is `value`."""
    return Constant(finite_number("value", value) + 0.0)  # -0 is 0


@_initializer
def zeros() -> Rule:
    """Every entry is 0."""
    return Constant(0.0)


@_initializer
def ones() -> Rule:
    """Every entry is 1."""
    return Constant(1.0)


@_initializer
def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    *,
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
    fan_out: int | None = None,
) -> Rule:
    """Mean 0 and variance scale/fan.

    Parameters
    ----------
    scale
        The variance times the fan, not negative.
    mode
        The fan: ``fan_in``, ``fan_out``, ``fan_avg`` (their arithmetic mean) or ``fan_geo_avg``
        (their geometric mean).
    distribution
        ``normal``, or ``uniform``, whose bound is √3 standard deviations.
    in_axis, out_axis
        The layout of the tensor, as :func:`fans` takes it.
    fan_in, fan_out
        Fans to use instead of the shape's.
    """
    gain = math.sqrt(non_negative_number("scale", scale))
    return _fan_scaled(gain, mode, distribution, in_axis, out_axis, fan_in, fan_out)


@_initializer
def xavier_normal(
    gain: float | None = None,
    *,
    nonlinearity: str | Activation | None = None,
    convention: str = "second_moment",
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
    fan_out: int | None = None,
) -> Rule:
    """N(0, gain²·2/(fan_in + fan_out)), after Glorot and Bengio (2010).

    Parameters
    ----------
    gain
        A number, 1 if nothing is said.
    nonlinearity, convention
        An activation, whose gain in this convention (see :func:`gain`) is used.
    in_axis, out_axis, fan_in, fan_out
        As :func:`variance_scaling` takes them.
    """
    number = _chosen_gain(gain, nonlinearity, None, convention, "linear")
    return _fan_scaled(number, "fan_avg", "normal", in_axis, out_axis, fan_in, fan_out)


@_initializer
def xavier_uniform(
    gain: float | None = None,
    *,
    nonlinearity: str | Activation | None = None,
    convention: str = "second_moment",
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
    fan_out: int | None = None,
) -> Rule:
    """As :func:`xavier_normal`, uniform within gain·√(6/(fan_in + fan_out))."""
    number = _chosen_gain(gain, nonlinearity, None, convention, "linear")
    return _fan_scaled(number, "fan_avg", "uniform", in_axis, out_axis, fan_in, fan_out)


@_initializer
def kaiming_normal(
    *,
    nonlinearity: str | Activation | None = None,
    mode: str = "fan_in",
    a: float | None = None,
    gain: float | None = None,
    convention: str = "second_moment",
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
    fan_out: int | None = None,
) -> Rule:
    """N(0, gain²/fan), after He et al. (2015).

    Parameters
    ----------
    nonlinearity, convention
        An activation, relu (gain √2) if nothing is said, and the convention of its gain, see
        :func:`gain`.
    mode
        The fan, as in :func:`variance_scaling`.
    a
        The negative slope of leaky_relu, PyTorch's name for it: ``a=0.2`` is
        ``nonlinearity="leaky_relu(0.2)"``.
    gain
        A number instead.
    in_axis, out_axis, fan_in, fan_out
        As :func:`variance_scaling` takes them.
    """
    number = _chosen_gain(gain, nonlinearity, a, convention, "relu")
    return _fan_scaled(number, mode, "normal", in_axis, out_axis, fan_in, fan_out)


@_initializer
def kaiming_uniform(
    *,
    nonlinearity: str | Activation | None = None,
    mode: str = "fan_in",
    a: float | None = None,
    gain: float | None = None,
    convention: str = "second_moment",
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
    fan_out: int | None = None,
) -> Rule:
    """As :func:`kaiming_normal`, uniform within √3·gain/√fan."""
    number = _chosen_gain(gain, nonlinearity, a, convention, "relu")
    return _fan_scaled(number, mode, "uniform", in_axis, out_axis, fan_in, fan_out)


@_initializer
def lecun_normal(
    *,
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
) -> Rule:
    """N(0, 1/fan_in), after LeCun et al. (1998); the layout as in :func:`variance_scaling`."""
    return _fan_scaled(1.0, "fan_in", "normal", in_axis, out_axis, fan_in, None)


@_initializer
def lecun_uniform(
    *,
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
) -> Rule:
    """As :func:`lecun_normal`, uniform within √(3/fan_in)."""
    return _fan_scaled(1.0, "fan_in", "uniform", in_axis, out_axis, fan_in, None)


@_initializer
def torch_linear(
    *,
    in_axis: Axes | None = None,
    out_axis: Axes | None = None,
    fan_in: int | None = None,
) -> Rule:
    """Uniform within 1/√fan_in: PyTorch's default for weights and biases, linear and convolution.

    PyTorch spells it kaiming_uniform(a=√5). The layout is as in :func:`variance_scaling`.
    """
    return _fan_scaled(1.0 / math.sqrt(3.0), "fan_in", "uniform", in_axis, out_axis, fan_in, None)


glorot_normal = INITIALIZERS["glorot_normal"] = xavier_normal
glorot_uniform = INITIALIZERS["glorot_uniform"] = xavier_uniform
he_normal = INITIALIZERS["he_normal"] = kaiming_normal
he_uniform = INITIALIZERS["he_uniform"] = kaiming_uniform


def initializer(spec: str | Initializer) -> Initializer:
    """The initializer of a specification, such as ``"kaiming_normal(mode='fan_out').scaled(1.5)"``.

    An :class:`Initializer` is returned as it is. Raises ValueError for names and arguments that do
    not exist, TypeError for what is no specification.
    """
    if isinstance(spec, Initializer):
        return spec
    if not isinstance(spec, str):
        raise TypeError(
            f"initializer must be a specification such as 'kaiming_normal', got {spec!r}"
        )
    return _from_text(spec)


@functools.lru_cache(maxsize=256)  # a deep chain asks for the same few, layer after layer
def _from_text(spec: str) -> Initializer:
    call = parse(spec)
    if call.name not in INITIALIZERS:
        raise ValueError(f"initializer must be one of {', '.join(INITIALIZERS)}, got {spec!r}")
    make = INITIALIZERS[call.name]
    signature = inspect.signature(make)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "no arguments"
        raise ValueError(f"initializer {spec!r}: {error}; {call.name} takes {accepted}") from None
    result = make(*call.args, **call.kwargs)
    for factor in call.factors:
        result = result.scaled(cast(float, factor))
    return result
