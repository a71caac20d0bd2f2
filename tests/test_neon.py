# SPDX-License-Identifier: BSD-3-Clause
"""NEON without an ARM machine: the C kernels are built by a cross compiler, run under emulation,
and must give the bits that this machine's instruction sets give.

On Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user.
"""

import runpy
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("setuptools", reason="setup.py, which has the flags, needs it")

ROOT = Path(__file__).parent.parent
HALVES = ("sampling", "dense")


def tool(*names):
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def setup():
    """The globals of setup.py."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("the tests run outside the source tree")
    with mock.patch("setuptools.setup"):
        return runpy.run_path(str(ROOT / "setup.py"))


def hash_kernels(setup, compiler, architecture, directory, *more):
    """tests/c/hash_kernels.c with setup.py's flags, and `more` after them; warnings are errors."""
    common = [*setup["CFLAGS"], "-Werror"]
    isas = setup["ISA_FLAGS"].get(architecture, setup["ISA_FLAGS"]["other"])
    units = [("csrc/dispatch.c", []), ("tests/c/hash_kernels.c", ["-Icsrc", "-O1"])]
    for isa, flags in isas.items():
        scheduling = {"sampling": setup["SAMPLING_ONLY_GCC"], "dense": []}
        units += [(f"csrc/isa/{isa}_{half}.c", [*flags, *scheduling[half]]) for half in HALVES]

    def compiled(unit):
        source, flags = unit
        target = str(directory / (Path(source).stem + ".o"))
        run(compiler, *common, *flags, *more, "-c", source, "-o", target)
        return target

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compiled, units))
    program = str(directory / "hash_kernels")
    run(compiler, *objects, "-static", "-lm", "-o", program)
    return program


def hashes(*program):
    """instruction set → {(kernel, type): hash}."""
    found = {}
    for isa in run(*program).split():
        lines = [line.split() for line in run(*program, isa).splitlines()]
        found[isa] = {(kernel, kind): value for kernel, kind, value in lines}
    return found


def test_neon_has_the_bits_of_this_machine(setup, tmp_path):
    compiler, cross = tool("gcc"), tool("aarch64-linux-gnu-gcc")
    emulator = tool("qemu-aarch64", "qemu-aarch64-static")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    # as shipped there; here, where other tests look at what is shipped, quick to compile
    native = hash_kernels(setup, compiler, setup["target_architecture"](), here, "-O0")
    emulated = hashes(emulator, hash_kernels(setup, cross, "aarch64", there))
    expected, *others = hashes(native).values()
    assert len(expected) == 17
    assert emulated.keys() == {"neon", "portable"}
    for found in (*others, *emulated.values()):
        assert found == expected
