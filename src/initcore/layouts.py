# SPDX-License-Identifier: BSD-3-Clause
"""Layouts: which axes of a weight are inputs and outputs, and the fans that follow."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack, cast

from initcore.specifications import integer

Shape = int | Sequence[int]
Axes = int | Sequence[int]


class LayoutOptions(TypedDict, total=False):
    """The keywords that describe a layout; :func:`fans` explains them."""

    in_axis: Axes | None
    out_axis: Axes | None
    batch_axis: Axes | None
    groups: int
    parts: int | Sequence[int] | None
    transposed: bool


def integers(argument: str, value: object) -> tuple[int, ...]:
    """One integer or a sequence of them, as a tuple; TypeError for others."""
    if isinstance(value, str | bytes | Iterator):
        raise TypeError(f"{argument} must be an integer or integers, got {value!r}")
    try:
        entries = tuple(cast(Sequence[object], value))
    except TypeError:
        entries = (value,)
    return tuple(integer(argument, entry) for entry in entries)


def positive(argument: str, value: object) -> int:
    """The value as an int of at least 1; TypeError or ValueError for others."""
    number = integer(argument, value)
    if number < 1:
        raise ValueError(f"{argument} must be at least 1, got {value!r}")
    return number


def check_shape(shape: Shape) -> tuple[int, ...]:
    """The sizes of a shape as a tuple; TypeError for what is no integer, ValueError below 0."""
    plain = type(shape) is tuple and {*map(type, shape)} <= {int}
    sizes = cast(tuple[int, ...], shape) if plain else integers("shape", shape)
    if sizes and min(sizes) < 0:
        raise ValueError(f"shape must not have negative sizes, got {shape!r}")
    return sizes


@dataclass(frozen=True)
class Layout:
    """A layout, checked as far as it can be without a shape."""

    in_axis: tuple[int, ...] | None
    out_axis: tuple[int, ...] | None
    batch_axis: tuple[int, ...]
    groups: int
    parts: int | tuple[int, ...]
    transposed: bool

    @classmethod
    def of(
        cls,
        *,
        in_axis: Axes | None = None,
        out_axis: Axes | None = None,
        batch_axis: Axes | None = None,
        groups: int = 1,
        parts: int | Sequence[int] | None = None,
        transposed: bool = False,
    ) -> Layout:
        """The layout that the keywords of :func:`fans` describe."""
        ins, outs, batch = (
            None if value is None else integers(argument, value)
            for argument, value in (
                ("in_axis", in_axis),
                ("out_axis", out_axis),
                ("batch_axis", batch_axis),
            )
        )
        if not isinstance(transposed, bool):
            raise TypeError(f"transposed must be True or False, got {transposed!r}")
        groups = positive("groups", groups)
        sizes = (1,) if parts is None else integers("parts", parts)
        try:
            several = parts is not None and operator.index(cast(int, parts)) < 0
        except TypeError:
            several = True
        if not sizes or min(sizes) < 1:
            raise ValueError(
                f"parts must be a number of equal parts, or the sizes of the parts, got {parts!r}"
            )
        if groups > 1 and parts is not None:
            raise ValueError(f"parts= and groups= exclude each other, got {parts!r} and {groups}")
        return cls(ins, outs, batch or (), groups, sizes if several else sizes[0], transposed)

    def axes(self, shape: tuple[int, ...]) -> tuple[set[int], set[int], set[int]]:
        """The axes of the inputs, of the outputs and of the kernel."""
        given = (
            f"in_axis={self.in_axis!r}, out_axis={self.out_axis!r}, "
            f"batch_axis={self.batch_axis!r} for shape {shape}"
        )
        axes = range(len(shape))
        try:
            ins, outs, batch = (
                None if chosen is None else {axes[axis] for axis in chosen}
                for chosen in (self.in_axis, self.out_axis, self.batch_axis)
            )
        except IndexError:
            raise ValueError(
                f"in_axis, out_axis and batch_axis must be axes of the shape, got {given}"
            ) from None
        others = [axis for axis in axes if axis not in (batch or ())]
        if len(others) < 2:
            raise ValueError(
                f"shape {shape} has no fans: give it two axes or more, (out, in, *kernel), "
                "or the initializer explicit ones, fan_in= and fan_out="
            )
        if ins is None and outs is None:
            first, second = {others[0]}, {others[1]}
            ins, outs = (first, second) if self.transposed else (second, first)
        elif (ins is None or outs is None) and len(others) > 2:
            raise ValueError(
                f"in_axis and out_axis must both be given for more than two axes, got {given}"
            )
        ins = set(others) - (outs or set()) if ins is None else ins
        outs = set(others) - ins if outs is None else outs
        chosen = [*ins, *outs, *(batch or ())]
        if not ins or not outs or len(set(chosen)) < len(chosen):
            raise ValueError(
                f"in_axis, out_axis and batch_axis must be different axes, got {given}"
            )
        return ins, outs, set(others) - ins - outs

    def fans(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """(fan_in, fan_out) of each of the unequal parts, or of the one kind that there is."""
        ins, outs, kernel = self.axes(shape)
        taps, n_in, n_out = (
            math.prod(shape[axis] for axis in some) for some in (kernel, ins, outs)
        )
        whole, name = (n_in, "in") if self.transposed else (n_out, "out")
        if whole % self.groups:
            raise ValueError(
                f"groups must divide the number of {name}puts, got {self.groups} for {whole} "
                f"of shape {shape}"
            )
        if self.transposed:
            n_in //= self.groups
        else:
            n_out //= self.groups
        sizes = [stop - start for start, stop in self.spans(shape)]
        if isinstance(self.parts, int) and self.parts > 1:
            self.part_axis(shape)
            if n_out % self.parts:
                raise ValueError(
                    f"parts must divide the number of outputs, got {self.parts} for {n_out} "
                    f"of shape {shape}"
                )
            sizes = [n_out // self.parts]
        return tuple((taps * n_in, taps * size) for size in sizes or [n_out])

    def spans(self, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where the parts of given sizes begin and end on the axis of the outputs; [] if the tensor
        has one law."""
        if isinstance(self.parts, int):
            return []
        axis = self.part_axis(shape)
        if sum(self.parts) != shape[axis]:
            raise ValueError(
                f"parts must add up to the number of outputs, {shape[axis]} of shape {shape}, "
                f"got {self.parts}"
            )
        ends = [sum(self.parts[: i + 1]) for i in range(len(self.parts))]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def part_axis(self, shape: tuple[int, ...]) -> int:
        """The axis that the parts lie on; a bias has but one."""
        if len(shape) == 1:
            return 0
        outs = self.axes(shape)[1]
        if len(outs) > 1:
            raise ValueError(f"parts lie on one axis of outputs, got out_axis={self.out_axis!r}")
        return next(iter(outs))


def fans(
    shape: Shape, **layout: Unpack[LayoutOptions]
) -> tuple[int, int] | tuple[tuple[int, int], ...]:
    """(fan_in, fan_out): the inputs an output sums over, and the outputs an input reaches.

    Parameters
    ----------
    shape
        Two axes or more; (out, in, \\*kernel) unless the axes are given.
    in_axis, out_axis
        The axis or axes of the inputs, and of the outputs; the others are the kernel's. With two
        axes in all, one of the arguments is enough.
    batch_axis
        Axes of independent matrices, such as heads: they count for neither fan.
    groups
        Of a grouped convolution, whose weight is (out, in/groups, \\*kernel): an input reaches the
        outputs of its group only. A depthwise weight (4, 1, 3, 3) with 4 groups has fans (9, 9).
    parts
        Matrices packed along the axis of the outputs: their number if they are equal, as in a
        packed query, key and value, or their sizes. The fans are those of a part.
    transposed
        A transposed convolution, whose weight is (in, out/groups, \\*kernel).

    Returns a pair, or where `parts` are sizes a tuple of pairs, one a part.

    Raises ValueError for fewer than two axes, for axes that do not exist or that overlap, and for
    groups and parts that do not fit.
    """
    described = Layout.of(**layout)
    found = described.fans(check_shape(shape))
    return found[0] if isinstance(described.parts, int) else found
