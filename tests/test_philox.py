# SPDX-License-Identifier: BSD-3-Clause
"""The Philox kernel: published answers, carries, and the reference, word for word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from initcore.reference import philox as reference
from kernel_calls import EDGES, philox

WORD64 = st.integers(0, 2**64 - 1)

KNOWN = [
    (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        0x85A308D3243F6A88,
        0x0370734413198A2E,
        0x299F31D0A4093822,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("block", "stream", "key", "expected"), KNOWN)
def test_random123_known_answers(kernels, block, stream, key, expected):
    assert " ".join(f"{w:08x}" for w in philox(kernels, block, stream, key)[0]) == expected


def test_block_counter_carries_into_its_high_word(kernels):
    """arrayfire #2007, Random123.jl #5: blocks 2^32 − 1 and 2^32."""
    rows = philox(kernels, 0xFFFFFFFF, 0, 0, n=2)
    assert [" ".join(f"{w:08x}" for w in row) for row in rows] == [
        "c5b20a9d 4434ec4e 11bbe4fb 2a1ef7a5",
        "6ad0c5ec ea236249 73a459f5 074944b3",
    ]


@pytest.mark.parametrize("first", [2**32 - 9, 2**33 - 9, 2**63 - 9, 2**64 - 9])
def test_carry_within_a_run(kernels, first):
    """Twenty blocks across a carry; at 2^64 the number wraps and the stream does not move."""
    expected = reference.blocks(first, 2**32 - 1, 7, n=20)
    assert np.array_equal(philox(kernels, first, 2**32 - 1, 7, n=20), expected)


@pytest.mark.parametrize("n", EDGES)
def test_every_length(kernels, n):
    assert np.array_equal(philox(kernels, 5, 6, 7, n), reference.blocks(5, 6, 7, n))


@given(block=WORD64, stream=WORD64, key=WORD64, n=st.integers(1, 40))
def test_equals_the_reference(kernels, block, stream, key, n):
    expected = reference.blocks(block, stream, key, n)
    assert np.array_equal(philox(kernels, block, stream, key, n), expected)
