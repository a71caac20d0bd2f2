# SPDX-License-Identifier: BSD-3-Clause
"""Initializers: values that know the law of a tensor's entries, and draw them.

A *rule* says what a tensor of a given shape is drawn from: a law (see laws.py), `FanScaled`, a law
whose standard deviation depends on the fans, `Embedding`, or a structure (see structures.py). An
`Initializer` is a rule, a factor and the call that spells it; the functions at the end of this file
make them.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, Unpack, cast

import numpy as np
import numpy.typing as npt

from initcore import streams
from initcore.activations import ACTIVATIONS, Activation
from initcore.activations import activation as find_activation
from initcore.dtypes import DTYPES, FLOAT32, Dtype, find_dtype
from initcore.gains import CONVENTIONS, gain
from initcore.laws import Constant, Law, Normal, Pieces, TruncatedNormal, Uniform
from initcore.layouts import Axes, Layout, LayoutOptions, Shape, check_shape, positive
from initcore.specifications import finite_number, integer, non_negative_number, parse, spell
from initcore.streams import Shard
from initcore.structures import (
    DeltaOrthogonal,
    Dirac,
    Identity,
    Moments,
    Orthogonal,
    Pattern,
    Source,
    Sparse,
    Whole,
)
from initcore.truncation import check_interval, moments

P = ParamSpec("P")
Array = npt.NDArray[Any]

MODES = ("fan_in", "fan_out", "fan_avg", "fan_geo_avg")
DISTRIBUTIONS = ("normal", "uniform", "truncated_normal")
# Bounds this many standard deviations away truncate less than one in 10⁸ of a normal.
_FAR = 6.0


# Rules


@dataclass(frozen=True)
class FanScaled:
    """A law of mean zero and standard deviation gain/√fan.

    The fans are, in this order, those given here, those given with the shape, and those of the
    shape. Parts of given sizes have each its own.
    """

    gain: float
    mode: str
    distribution: str
    layout: Layout
    fan_in: int | None
    fan_out: int | None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"distribution must be one of {', '.join(DISTRIBUTIONS)}, got {self.distribution!r}"
            )

    def laws(
        self, shape: tuple[int, ...], fan_in: int | None, fan_out: int | None
    ) -> tuple[Law, ...]:
        """That of each part, or the one there is."""

        def law(part: int) -> Law:
            # An empty tensor has a fan of zero and nothing to draw; any law will do.
            fan = self._fan(shape, part, fan_in, fan_out)
            return _centred(self.distribution, self.gain / math.sqrt(max(fan, 1.0)))

        parts = self.layout.parts
        return tuple(map(law, range(1 if isinstance(parts, int) else len(parts))))

    def _fan(
        self, shape: tuple[int, ...], part: int, fan_in: int | None, fan_out: int | None
    ) -> float:
        def side(index: int) -> int:
            # The shape is asked last, and only for a fan that the mode needs.
            for given in ((self.fan_in, self.fan_out), (fan_in, fan_out)):
                fan = given[index]
                if fan is not None:
                    return fan
            return self.layout.fans(shape)[part][index]

        match self.mode:
            case "fan_in":
                return side(0)
            case "fan_out":
                return side(1)
            case "fan_avg":
                return (side(0) + side(1)) / 2
            case _:
                return math.sqrt(side(0) * side(1))

    def pieces(self, shape: tuple[int, ...]) -> Pieces:
        spans = tuple(self.layout.spans(shape))
        axis = self.layout.part_axis(shape) if spans else 0
        return Pieces(self.laws(shape, None, None), axis, spans)


def _centred(distribution: str, std: float) -> Law:
    """The law of mean zero and this standard deviation; a truncated normal's cut is 2."""
    match distribution:
        case "normal":
            return Normal(std)
        case "uniform":
            return Uniform(-math.sqrt(3.0) * std, math.sqrt(3.0) * std)
        case _:
            return _cut_normal(std / moments(-2.0, 2.0)[1], 0.0, 2.0)


def _cut_normal(parent_std: float, mean: float, cut: float) -> Law:
    if parent_std == 0.0:
        return Constant(mean)
    reach = cut * parent_std
    return TruncatedNormal(parent_std, mean, mean - reach, mean + reach, -cut, cut)


@dataclass(frozen=True)
class Embedding:
    """Rows N(0, std²), one of them zero."""

    std: float
    padding_idx: int

    def _row(self, shape: tuple[int, ...]) -> int:
        n_rows = shape[0] if shape else 0
        if not -n_rows <= self.padding_idx < n_rows:
            raise IndexError(
                f"padding_idx must be a row of the shape, {-n_rows} to {n_rows - 1} for {shape}, "
                f"got {self.padding_idx}"
            )
        return self.padding_idx % n_rows

    def laws(self, *_: object) -> tuple[Law, ...]:
        """That of the rows but the padding's."""
        return (Normal(self.std),)

    def pieces(self, shape: tuple[int, ...]) -> Pieces:
        row, drawn = self._row(shape), Normal(self.std)
        spans = (0, row), (row, row + 1), (row + 1, shape[0])
        return Pieces((drawn, Constant(0.0), drawn), 0, spans)


@dataclass(frozen=True)
class Same:
    """One law, whatever the shape."""

    law: Law

    def laws(self, *_: object) -> tuple[Law, ...]:
        return (self.law,)

    def pieces(self, _: tuple[int, ...]) -> Pieces:
        return Pieces((self.law,))


Rule = Same | FanScaled | Embedding | Pattern | Whole
Entries = Law | Moments


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

    def laws(
        self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None
    ) -> tuple[Entries, ...]:
        """The law of the entries of each part of a tensor, with its `mean`, `std` and `bound`: one
        law, unless the initializer has `parts` of given sizes.

        `fan_in` and `fan_out` are for a tensor whose shape has no fans, a bias, and give way to the
        initializer's own. The law of an embedding is that of its rows but the padding's. Structures
        such as orthogonal have only the mean, standard deviation and bound over all entries.
        """
        laws: tuple[Entries, ...] = self.rule.laws(check_shape(shape), fan_in, fan_out)
        return tuple(law.scaled(self.factor) for law in laws)

    def std(
        self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None
    ) -> float | tuple[float, ...]:
        """The exact standard deviation of the entries, one a part where :meth:`laws` has several;
        the fans as there."""
        return self._each("std", shape, fan_in, fan_out)

    def bound(
        self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None
    ) -> float | tuple[float, ...]:
        """What no |entry| exceeds, infinity for a normal; parts and fans as in :meth:`std`."""
        return self._each("bound", shape, fan_in, fan_out)

    def _each(
        self, name: str, shape: Shape, fan_in: int | None, fan_out: int | None
    ) -> float | tuple[float, ...]:
        values = tuple(
            getattr(law, name) for law in self.laws(shape, fan_in=fan_in, fan_out=fan_out)
        )
        return values if len(values) > 1 else cast(float, values[0])

    def law(self, shape: Shape, *, fan_in: int | None = None, fan_out: int | None = None) -> Law:
        """The one law that all entries of a tensor are drawn from, independently of each other.

        The fans as in :meth:`laws`. Raises ValueError for an initializer that has none: structures,
        parts of several sizes, an embedding with a padding row.
        """
        laws = self.laws(shape, fan_in=fan_in, fan_out=fan_out)
        if isinstance(laws[0], Moments) or len(laws) > 1 or isinstance(self.rule, Embedding):
            raise ValueError(
                f"initializer {self} has no one law for all entries: normal, uniform, "
                "truncated_normal, constant and those scaled by the fans have one"
            )
        return laws[0]

    def distribution(
        self,
        shape: Shape,
        dtype: npt.DTypeLike,
        *,
        fan_in: int | None = None,
        fan_out: int | None = None,
    ) -> streams.Distribution:
        """What the kernels draw: :meth:`law`, its parameters rounded once to the dtype.

        Raises ValueError where there is no one law, where a parameter overflows the dtype, or a
        range has no value in it.
        """
        law = self.law(shape, fan_in=fan_in, fan_out=fan_out)
        return law.distribution(find_dtype(dtype))

    def __call__(
        self,
        shape: Shape,
        *,
        seed: int,
        name: str | int,
        trial: int = 0,
        dtype: npt.DTypeLike | None = None,
        out: Array | None = None,
        shard: tuple[slice, ...] | None = None,
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
            What the tensor is called, a string or an integer in [0, 2⁶⁴), 7 not being "7": with a
            seed, it chooses the random numbers.
        trial
            The number of an independent repetition.
        dtype
            float32, float64, float16 or bfloat16; None is that of `out`, else float32. float32 and
            float64 draw different numbers (but of what is drawn whole, which is rounded float64),
            the halves are float32's, rounded.
        out
            The array to fill, of this shape or the shard's; it is returned.
        shard
            Slices, one an axis, of the tensor: only that piece is drawn, the bits being those of
            the whole. Orthogonal, delta_orthogonal and sparse tensors can only be drawn whole.
        threads
            None uses the CPUs this process may use.

        Raises ValueError, TypeError and IndexError, before anything is written, for arguments that
        do not fit.
        """
        sizes = check_shape(shape)
        numbers = {
            "seed": streams.check_seed(seed),
            "stream": streams.stream_id(name, trial),
            "threads": streams.resolve_threads(threads, streams.n_tasks(sizes)),
        }
        piece = None if shard is None else Shard.of(sizes, shard)
        local = sizes if piece is None else piece.sizes
        found = None if dtype is None else find_dtype(dtype)
        if out is not None:
            accepted = DTYPES.values() if found is None else (found,)
            out = streams.check_output(out, local, accepted)
            found = find_dtype(out.dtype)
        format_ = found or FLOAT32
        if isinstance(self.rule, Whole):
            return self._write_whole(self.rule, sizes, piece, format_, Source(**numbers), out)
        pieces, distributions = _plan(self, sizes, format_)
        ones: tuple[npt.NDArray[np.int64], ...] | None = None
        if isinstance(self.rule, Pattern):
            one = Constant(self.factor).distribution(format_).shift
            where = piece or Shard.of(sizes)
            chosen = where.ranges[0]
            rows = chosen.start + chosen.step * np.arange(len(chosen) if math.prod(local) else 0)
            ones = where.places(self.rule.ones(sizes, rows))
        array = np.empty(local, format_.numpy) if out is None else out
        if not pieces.spans:
            streams.fill(array, distributions[0], shard=piece, **numbers)
        for (start, stop), distribution in zip(pieces.spans, distributions, strict=False):
            index, part = (piece or Shard.of(sizes)).span(pieces.axis, start, stop)
            target = array[(slice(None),) * pieces.axis + (index,)]
            streams.fill(target, distribution, shard=part, **numbers)
        if ones is not None:
            array[ones] = one
        return array

    def _write_whole(
        self,
        rule: Whole,
        sizes: tuple[int, ...],
        piece: Shard | None,
        dtype: Dtype,
        source: Source,
        out: Array | None,
    ) -> Array:
        if piece is not None:
            raise ValueError(
                f"shard= is for initializers that draw entry by entry, {self} is drawn whole"
            )
        entries: Array = rule.draw(sizes, source)
        if self.factor != 1.0:
            entries *= self.factor
        if dtype.half:
            entries = entries.astype(np.float32)
        largest = max(np.max(entries, initial=0.0), -np.min(entries, initial=0.0))
        if not math.isfinite(dtype.round(float(largest))):
            raise ValueError(
                f"the largest entry of {self} must be finite in {dtype.name}, it is {largest}"
            )
        if out is None:
            return entries.astype(dtype.numpy, order="C", copy=False)
        out[...] = entries
        return out


@functools.lru_cache(maxsize=1024)  # a model's tensors have few shapes, and a small draw is short
def _plan(
    init: Initializer, sizes: tuple[int, ...], dtype: Dtype
) -> tuple[Pieces, tuple[streams.Distribution, ...]]:
    """What a tensor is drawn from, piece by piece."""
    pieces = cast(FanScaled, init.rule).pieces(sizes)
    laws = (law.scaled(init.factor) for law in pieces.laws)
    return pieces, tuple(law.distribution(dtype) for law in laws)


#: The functions that make initializers, by the names specifications have for them.
INITIALIZERS: dict[str, Callable[..., Initializer]] = {}


def _initializer(make_rule: Callable[P, Rule | Law]) -> Callable[P, Initializer]:
    """Make a function that returns a rule one that returns an initializer, which knows the call."""
    signature = _with_layout(inspect.signature(make_rule))

    def build(*args: P.args, **kwargs: P.kwargs) -> Initializer:
        bound = _bind(make_rule.__name__, signature, *args, **kwargs)
        made = make_rule(*args, **kwargs)
        rule = Same(made) if isinstance(made, Law) else made
        arguments = ", ".join(
            f"{name}={literal}"
            for name, value in bound.arguments.items()
            if (literal := _literal(value)) != _literal(signature.parameters[name].default)
        )
        return Initializer(rule, f"{make_rule.__name__}({arguments})")

    default = functools.cache(build)  # the most frequent call, and values can be shared

    @functools.wraps(make_rule)
    def make(*args: P.args, **kwargs: P.kwargs) -> Initializer:
        return build(*args, **kwargs) if args or kwargs else default()

    make.__signature__ = signature.replace(return_annotation="Initializer")  # type: ignore[attr-defined]
    INITIALIZERS[make_rule.__name__] = make
    return make


def _bind(
    name: str, signature: inspect.Signature, *args: object, **kwargs: object
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        accepted = ", ".join(signature.parameters) or "no arguments"
        raise TypeError(
            f"{name}: {error}; {name} takes {accepted}, and what it returns takes a shape: "
            f"{name}(…)(shape, seed=…, name=…)"
        ) from None


def _with_layout(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the keywords of a layout in the place of ``**layout``."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        parameters[-1:] = inspect.signature(Layout.of).parameters.values()
    return signature.replace(parameters=parameters)


def _literal(value: object) -> str:
    if isinstance(value, Activation):
        value = str(value)
    return spell(value.tolist() if isinstance(value, np.ndarray) else value)


def _fan_scaled(
    gain: float,
    mode: str,
    distribution: str,
    fan_in: int | None,
    fan_out: int | None,
    layout: LayoutOptions,
) -> FanScaled:
    return FanScaled(
        gain,
        mode,
        distribution,
        Layout.of(**layout),
        None if fan_in is None else positive("fan_in", fan_in),
        None if fan_out is None else positive("fan_out", fan_out),
    )


def _normal_or_truncated(distribution: str) -> str:
    if distribution not in ("normal", "truncated_normal"):
        raise ValueError(f"distribution must be normal or truncated_normal, got {distribution!r}")
    return distribution


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
def normal(std: float = 1.0, mean: float = 0.0) -> Rule | Law:
    """N(mean, std²); std comes first, with 0 for it every entry is the mean."""
    return Normal(non_negative_number("std", std), finite_number("mean", mean))


@_initializer
def uniform(low: float, high: float) -> Rule | Law:
    """Uniform on [low, high); on (low, high) if low = −high."""
    law = Uniform(finite_number("low", low), finite_number("high", high))
    if not law.low < law.high:
        raise ValueError(f"low must be less than high, got low={low!r}, high={high!r}")
    return law


@_initializer
def constant(value: float) -> Rule | Law:
    """Every entry is `value`."""
    return Constant(finite_number("value", value) + 0.0)  # -0 is 0


@_initializer
def zeros() -> Rule | Law:
    """Every entry is 0."""
    return Constant(0.0)


@_initializer
def ones() -> Rule | Law:
    """Every entry is 1."""
    return Constant(1.0)


@_initializer
def truncated_normal(
    std: float = 1.0,
    mean: float = 0.0,
    *,
    cut: float = 2.0,
    bounds: tuple[float, float] | None = None,
    corrected: bool = True,
) -> Rule | Law:
    """A normal without its tails.

    Parameters
    ----------
    std, mean
        The standard deviation of the result, and its mean. With ``corrected=False``, or bounds,
        those of the parent, the normal that is truncated.
    cut
        The parent is truncated at ±cut parent standard deviations from its mean.
    bounds
        (low, high) instead: the values between which the parent is truncated, either may be
        infinite. A warning says so when they truncate nothing.
    corrected
        Whether the parent is made wider, so that the result has standard deviation `std`: by
        1/0.8796… for a cut of 2, as variance_scaling does in Keras and JAX. What they call
        truncated_normal does not, nor does PyTorch's trunc_normal_: ``corrected=False``.

    No value lies at or beyond a bound. Raises ValueError for a cut that is not positive, and for
    bounds that leave no interval or one that begins beyond 37 standard deviations from the mean.
    """
    std, mean = non_negative_number("std", std), finite_number("mean", mean)
    cut = finite_number("cut", cut)
    if not isinstance(corrected, bool):
        raise TypeError(f"corrected must be True or False, got {corrected!r}")
    if cut <= 0.0:
        raise ValueError(f"cut must be positive, got {cut!r}")
    if bounds is None:
        return _cut_normal(std / moments(-cut, cut)[1] if corrected else std, mean, cut)
    if cut != 2.0:
        raise ValueError(f"cut= and bounds= exclude each other, got {cut!r} and {bounds!r}")
    low, high = _bounds(bounds)
    if std == 0.0:
        raise ValueError(f"std must be positive with bounds=, got {std!r}")
    a, b = (low - mean) / std, (high - mean) / std
    try:
        check_interval(a, b)
    except ValueError as error:
        raise ValueError(
            f"bounds={bounds!r} of a normal with std {std!r} and mean {mean!r}: {error}"
        ) from None
    nearest = min(-a, b)
    if nearest > _FAR:
        warnings.warn(
            f"bounds={bounds!r} truncate nothing: they are absolute, and the nearer lies "
            f"{nearest:.4g} standard deviations from the mean",
            UserWarning,
            stacklevel=3,
        )
    return TruncatedNormal(std, mean, low, high, a, b)


def _bounds(bounds: object) -> tuple[float, float]:
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise TypeError(f"bounds must be two numbers (low, high), got {bounds!r}")
    low, high = (
        bound if bound in (-math.inf, math.inf) else finite_number("bounds", bound)
        for bound in bounds
    )
    if not low < high:
        raise ValueError(f"bounds must be (low, high) with low < high, got {bounds!r}")
    return low, high


@_initializer
def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    *,
    fan_in: int | None = None,
    fan_out: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
    """Mean 0 and variance scale/fan.

    Parameters
    ----------
    scale
        The variance times the fan, not negative.
    mode
        The fan: ``fan_in``, ``fan_out``, ``fan_avg`` (their arithmetic mean) or ``fan_geo_avg``
        (their geometric mean).
    distribution
        ``normal``, ``uniform``, whose bound is √3 standard deviations, or ``truncated_normal``, cut
        at 2 standard deviations of its parent, its own corrected.
    fan_in, fan_out
        Fans to use instead of the shape's.
    in_axis, out_axis, batch_axis, groups, parts, transposed
        The layout of the tensor, as :func:`fans` takes it.
    """
    gain = math.sqrt(non_negative_number("scale", scale))
    return _fan_scaled(gain, mode, distribution, fan_in, fan_out, layout)


@_initializer
def xavier_normal(
    gain: float | None = None,
    *,
    nonlinearity: str | Activation | None = None,
    convention: str = "second_moment",
    distribution: str = "normal",
    fan_in: int | None = None,
    fan_out: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
    """N(0, gain²·2/(fan_in + fan_out)), after Glorot and Bengio (2010).

    Parameters
    ----------
    gain
        A number, 1 if nothing is said.
    nonlinearity, convention
        An activation, whose gain in this convention (see :func:`gain`) is used.
    distribution
        ``normal``, as PyTorch has it, or ``truncated_normal``, as Keras and JAX do.
    fan_in, fan_out and the layout
        As :func:`variance_scaling` takes them.
    """
    number = _chosen_gain(gain, nonlinearity, None, convention, "linear")
    law = _normal_or_truncated(distribution)
    return _fan_scaled(number, "fan_avg", law, fan_in, fan_out, layout)


@_initializer
def xavier_uniform(
    gain: float | None = None,
    *,
    nonlinearity: str | Activation | None = None,
    convention: str = "second_moment",
    fan_in: int | None = None,
    fan_out: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
    """As :func:`xavier_normal`, uniform within gain·√(6/(fan_in + fan_out))."""
    number = _chosen_gain(gain, nonlinearity, None, convention, "linear")
    return _fan_scaled(number, "fan_avg", "uniform", fan_in, fan_out, layout)


@_initializer
def kaiming_normal(
    *,
    nonlinearity: str | Activation | None = None,
    mode: str = "fan_in",
    a: float | None = None,
    gain: float | None = None,
    convention: str = "second_moment",
    distribution: str = "normal",
    fan_in: int | None = None,
    fan_out: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
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
    distribution
        ``normal``, as PyTorch has it, or ``truncated_normal``, as Keras and JAX do.
    fan_in, fan_out and the layout
        As :func:`variance_scaling` takes them.
    """
    number = _chosen_gain(gain, nonlinearity, a, convention, "relu")
    return _fan_scaled(number, mode, _normal_or_truncated(distribution), fan_in, fan_out, layout)


@_initializer
def kaiming_uniform(
    *,
    nonlinearity: str | Activation | None = None,
    mode: str = "fan_in",
    a: float | None = None,
    gain: float | None = None,
    convention: str = "second_moment",
    fan_in: int | None = None,
    fan_out: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
    """As :func:`kaiming_normal`, uniform within √3·gain/√fan."""
    number = _chosen_gain(gain, nonlinearity, a, convention, "relu")
    return _fan_scaled(number, mode, "uniform", fan_in, fan_out, layout)


@_initializer
def lecun_normal(
    *,
    distribution: str = "normal",
    fan_in: int | None = None,
    **layout: Unpack[LayoutOptions],
) -> Rule | Law:
    """N(0, 1/fan_in), after LeCun et al. (1998); keywords as in :func:`kaiming_normal`."""
    law = _normal_or_truncated(distribution)
    return _fan_scaled(1.0, "fan_in", law, fan_in, None, layout)


@_initializer
def lecun_uniform(*, fan_in: int | None = None, **layout: Unpack[LayoutOptions]) -> Rule | Law:
    """As :func:`lecun_normal`, uniform within √(3/fan_in)."""
    return _fan_scaled(1.0, "fan_in", "uniform", fan_in, None, layout)


@_initializer
def torch_linear(*, fan_in: int | None = None, **layout: Unpack[LayoutOptions]) -> Rule | Law:
    """Uniform within 1/√fan_in: PyTorch's default for weights and biases, linear and convolution.

    PyTorch spells it kaiming_uniform(a=√5). `fan_in` is needed for a bias; the layout is as in
    :func:`variance_scaling`.
    """
    return _fan_scaled(1.0 / math.sqrt(3.0), "fan_in", "uniform", fan_in, None, layout)


@_initializer
def torch_conv_transpose(*, fan_in: int | None = None) -> Rule | Law:
    r"""Uniform as PyTorch's default for a transposed convolution (in, out/groups, \*kernel).

    PyTorch takes the first axis for the outputs: the bound is 1/√(out/groups · kernel taps), not
    1/√fan_in. `fan_in` is needed for a bias.
    """
    return _fan_scaled(1.0 / math.sqrt(3.0), "fan_in", "uniform", fan_in, None, {})


@_initializer
def torch_rnn(hidden_size: int) -> Rule | Law:
    """Uniform within 1/√hidden_size: PyTorch's default for all of an RNN, a GRU and an LSTM."""
    bound = 1.0 / math.sqrt(positive("hidden_size", hidden_size))
    return Uniform(-bound, bound)


@_initializer
def embedding(std: float = 1.0, padding_idx: int | None = None) -> Rule | Law:
    """N(0, std²) for a table (rows, features), row `padding_idx` being zero.

    A negative `padding_idx` counts from the end. Drawing raises IndexError where there is no such
    row.
    """
    return _embedding(non_negative_number("std", std), padding_idx)


def _embedding(std: float, padding_idx: int | None) -> Rule | Law:
    if padding_idx is None:
        return Normal(std)
    return Embedding(std, integer("padding_idx", padding_idx))


@_initializer
def torch_embedding(padding_idx: int | None = None) -> Rule | Law:
    """:func:`embedding` of standard deviation 1, PyTorch's default."""
    return _embedding(1.0, padding_idx)


@_initializer
def identity() -> Rule | Law:
    """Ones on the main diagonal of a matrix, which need not be square, and zeros elsewhere."""
    return Identity()


@_initializer
def dirac(groups: int = 1) -> Rule | Law:
    r"""A convolution (out, in/groups, \*kernel) of 1 to 3 kernel axes that passes on its input.

    Output d of a group is input d of that group, as far as there are inputs, by a one at the centre
    of the kernel, k//2. As torch.nn.init.dirac_.
    """
    return Dirac(positive("groups", groups))


@_initializer
def orthogonal(
    gain: float = 1.0, *, in_axis: Axes | None = None, out_axis: Axes | None = None
) -> Rule | Law:
    """An orthogonal matrix times `gain`, uniformly distributed (Saxe et al. 2014).

    A tensor is flattened to (outputs, the rest): its rows are orthogonal and of norm `gain`, or its
    columns where they are fewer. From the QR decomposition, in float64, of the stream's float64
    normals, with positive diagonal of R; LAPACK's last bits may differ between machines. `in_axis`
    and `out_axis` as in :func:`fans`.
    """
    return Orthogonal(
        non_negative_number("gain", gain), Layout.of(in_axis=in_axis, out_axis=out_axis)
    )


@_initializer
def delta_orthogonal(gain: float = 1.0) -> Rule | Law:
    r"""A convolution (out, in, \*kernel), in ≤ out, that is an orthogonal matrix times `gain` at
    the centre tap, (k − 1)//2, and zero elsewhere (Xiao et al. 2018).

    The matrix is that of :func:`orthogonal`: its columns are orthogonal and of norm `gain`.
    """
    return DeltaOrthogonal(non_negative_number("gain", gain))


@_initializer
def sparse(sparsity: float, std: float = 0.01) -> Rule | Law:
    """N(0, std²) for a matrix, but for ⌈sparsity·rows⌉ zeros in each column (Martens 2010).

    The zeros are chosen uniformly without replacement. As torch.nn.init.sparse_. Raises ValueError
    for a sparsity outside [0, 1].
    """
    share = non_negative_number("sparsity", sparsity)
    if share > 1.0:
        raise ValueError(f"sparsity must be between 0 and 1, got {sparsity!r}")
    return Sparse(share, non_negative_number("std", std))


glorot_normal = INITIALIZERS["glorot_normal"] = xavier_normal
glorot_uniform = INITIALIZERS["glorot_uniform"] = xavier_uniform
he_normal = INITIALIZERS["he_normal"] = kaiming_normal
he_uniform = INITIALIZERS["he_uniform"] = kaiming_uniform
torch_conv = INITIALIZERS["torch_conv"] = torch_linear


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
    try:
        _bind(call.name, inspect.signature(make), *call.args, **call.kwargs)
    except TypeError as error:
        raise ValueError(f"initializer {spec!r}: {error}") from None
    result = make(*call.args, **call.kwargs)
    for factor in call.factors:
        result = result.scaled(cast(float, factor))
    return result
