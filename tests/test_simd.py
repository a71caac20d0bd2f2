# SPDX-License-Identifier: BSD-3-Clause
"""The vector vocabularies (csrc/simd): one language, whatever the instruction set."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SIMD = Path(__file__).parent.parent / "csrc" / "simd"
TYPES = {"f32x16", "f64x16", "u32x16", "u64x16", "m32x16", "m64x16", "u64x8"}
TILE_WORDS = {"set", "zero", "load", "store", "add", "fma"}
FUNCTION = re.compile(r"static inline (?:__attribute__\(\(always_inline\)\) )?\w+ (\w+)\(")
MACRO = re.compile(r"#define (\w+)")
TYPE = re.compile(r"\} (\w+);")
# What kernels may say; the rest (IC_PAIR2, ic_first, f64x8_load, ...) is a vocabulary's own.
SPOKEN = re.compile(r"(?:f32|f64|u32|u64|m32|m64|blocks)_\w+|IC_(?:ISA|INLINE|SIMD_H|TILE_\w+)")


def vocabulary(isa, directory):
    """simd/ISA.h with its macros expanded and kept, for whatever processor: the headers that it
    includes are empty, and the instruction sets that it asks for are declared present."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler is installed")
    header = SIMD / f"{isa}.h"
    if not header.exists():
        pytest.skip("the tests run outside the source tree")
    source, empty = header.read_text(), directory / isa
    empty.mkdir()
    for name in re.findall(r"#include <(\S+)>", source):
        (empty / name).touch()
    declared = [f"-D{name}" for name in re.findall(r"!defined\((\w+)\)", source)]
    command = [compiler, "-E", "-P", "-dD", "-nostdinc", f"-I{empty}", *declared, str(header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return re.sub(r"\s+", " ", done.stdout)


def defined(text):
    return {*FUNCTION.findall(text), *MACRO.findall(text), *TYPE.findall(text)}


def spoken(text):
    return {word for word in defined(text) if word in TYPES or SPOKEN.fullmatch(word)}


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
def test_every_vocabulary_has_the_same_words(isa, tmp_path):
    words = spoken(vocabulary("portable", tmp_path))
    assert words >= TYPES | {"f32_fma", "f64_fold_max", "u32_sra", "m64_first", "blocks_join"}
    assert spoken(vocabulary(isa, tmp_path)) == words


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("real", ["f32", "f64"])
def test_tile_vectors_have_their_words(isa, real, tmp_path):
    text = vocabulary(isa, tmp_path)
    prefix = re.search(rf"#define IC_TILE_{real} (\w+)", text)[1]
    assert {f"{prefix}_{word}" for word in TILE_WORDS} <= defined(text)
