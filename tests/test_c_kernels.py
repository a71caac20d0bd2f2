# SPDX-License-Identifier: BSD-3-Clause
"""The C sources alone: warnings, sanitizers, and what may be in which object.

Everything is compiled here with setup.py's own flags, so nothing of it depends on the installed
extension; only the last test looks into that.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from initcore import _core

setuptools = pytest.importorskip("setuptools", reason="setup.py, which has the flags, needs it")

ROOT = Path(__file__).parent.parent
HALVES = ("sampling", "dense")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Exact by IEEE 754, and moving bytes: nothing else may come from outside.
LIBRARY = {"fma", "fmaf", "sqrt", "sqrtf", "memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
# A VEX or EVEX instruction (every one is named v...) faults on a CPU without AVX.
AVX = re.compile(r"\tv[a-z]|%[yz]mm", re.ASCII)

COMPILERS = {"gcc": ("gcc",), "clang": ("clang", *(f"clang-{v}" for v in range(30, 11, -1)))}


def tool(*names):
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="session")
def setup():
    """The globals of setup.py."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("the tests run outside the source tree")
    with mock.patch("setuptools.setup"):
        return runpy.run_path(str(ROOT / "setup.py"))


def units(setup, compiler):
    """name → (source, flags) of every C file of ours, as setup.py compiles it."""
    isas = setup["ISA_FLAGS"].get(setup["target_architecture"](), setup["ISA_FLAGS"]["other"])
    found = {"dispatch": ("csrc/dispatch.c", setup["CFLAGS"])}
    for isa, flags in isas.items():
        for half in HALVES:
            extra = setup["SAMPLING_ONLY_GCC"] if half == "sampling" and compiler == "gcc" else []
            source = f"csrc/isa/{isa}_{half}.c"
            found[f"{isa}_{half}"] = (source, [*setup["CFLAGS"], *flags, *extra])
    return found


def compile_all(setup, compiler, directory, *more):
    """(objects by name, what the compiler said by name) with `more` flags after setup.py's."""
    command = tool(*COMPILERS[compiler])

    def one(unit):
        name, (source, flags) = unit
        target = directory / f"{name}.o"
        made = run(command, *flags, "-fPIC", *more, "-c", source, "-o", str(target), cwd=ROOT)
        return name, target, made.stderr if made.returncode or made.stderr else ""

    with ThreadPoolExecutor() as pool:
        made = list(pool.map(one, units(setup, compiler).items()))
    return {name: target for name, target, _ in made}, {name: said for name, _, said in made}


@pytest.fixture(scope="session", params=COMPILERS)
def build(request, setup, tmp_path_factory):
    """The objects of one compiler, and its messages."""
    return compile_all(setup, request.param, tmp_path_factory.mktemp(request.param), "-Werror")


@pytest.fixture(scope="session")
def objects(build):
    found, said = build
    if any(said.values()):
        pytest.skip("the C does not compile: see test_no_warnings")
    return found


def symbols(objects, *which):
    """name → the set of symbols that nm shows with these options."""
    nm = tool("nm")
    return {
        name: {line.split()[-1] for line in run(nm, *which, str(path)).stdout.splitlines()}
        for name, path in objects.items()
    }


def test_no_warnings(build):
    """-Wall -Wextra -Wconversion -Wshadow, as errors, in every object."""
    for name, said in build[1].items():
        assert not said, f"{name}:\n{said}"


def test_only_isa_objects_have_avx(objects):
    objdump = tool("objdump")
    baseline = [name for name in objects if name == "dispatch" or name.startswith("portable_")]
    assert len(baseline) == 3
    for name in baseline:
        code = run(objdump, "-d", "--no-show-raw-insn", str(objects[name])).stdout
        assert "<" in code
        assert not AVX.search(code), name


def test_objects_share_no_helper(objects):
    """A helper exported by two ISA objects would be linked once, for all: with AVX, perhaps."""
    for name, exported in symbols(objects, "-g", "--defined-only").items():
        isa, _, half = name.partition("_")
        assert exported == {f"ic_fill_{half}_{isa}" if half else "ic_available"}


def test_no_library_functions(objects):
    """libm differs between machines; nothing allocates, prints or starts threads."""
    for name, wanted in symbols(objects, "-u").items():
        if name == "dispatch":
            assert all(symbol.startswith("ic_fill_") for symbol in wanted - LIBRARY)
        else:
            assert wanted <= LIBRARY


def sanitizing_compiler(directory):
    """The first compiler that makes sanitized programs here."""
    (directory / "empty.c").write_text("int main(void) { return 0; }\n")
    for compiler in ("clang", "gcc"):
        command = next(filter(None, map(shutil.which, COMPILERS[compiler])), None)
        if command is None:
            continue
        made = run(command, *SANITIZERS, "empty.c", "-o", "empty", cwd=directory)
        if made.returncode == 0 and run(str(directory / "empty")).returncode == 0:
            return compiler, command
    pytest.skip("neither clang nor gcc with sanitizer runtimes is installed")


def test_kernels_under_sanitizers(setup, tmp_path):
    """Every kernel, each buffer of exactly its size, every instruction set the same bits."""
    compiler, command = sanitizing_compiler(tmp_path)
    flags = [*SANITIZERS, "-O0", "-g1"]  # optimised, it compiles for longer than it runs
    objects, said = compile_all(setup, compiler, tmp_path, *flags)
    assert not any(said.values()), said
    program = tmp_path / "run_kernels"
    linked = run(
        command, "-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", *flags,
        "-Icsrc", "tests/c/run_kernels.c", *map(str, objects.values()), "-lm", "-o", str(program),
        cwd=ROOT,
    )  # fmt: skip
    assert linked.returncode == 0, linked.stderr
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # needs ptrace, often refused
    ran = run(str(program), env=environment)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    for isa in _core.available():
        assert re.search(rf"^{isa}: \d+ results$", ran.stdout, re.M)


# One constant of each, off by a thousandth: the tests of that kernel must see it.
MUTATIONS = {
    "tests/test_philox.py": ("csrc/philox.h", "0x9E3779B9u", "0x9E3779B8u"),
    "tests/test_sampling.py": ("csrc/sampling.h", "f32[] = {0x1.555", "f32[] = {0x1.557"),
    "tests/test_activations.py": (
        "csrc/simd/polynomials.h",
        "exp_poly_f32[5] = {\n  0x1.ff",
        "exp_poly_f32[5] = {\n  0x1.fe",
    ),
}


def test_a_wrong_constant_turns_the_tests_red(tmp_path):
    tool(*COMPILERS["gcc"])
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".*", "*.so", "_core.c", "__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT, tree, ignore=ignored)
    for header, right, wrong in MUTATIONS.values():
        text = (tree / header).read_text()
        assert text.count(right) == 1, header
        (tree / header).write_text(text.replace(right, wrong))
    environment = {**os.environ, "CFLAGS": "-O1 -g0", "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    build = run(*command, cwd=tree, env=environment)
    if build.returncode:
        pytest.skip(f"the extension is not built here: {build.stderr[-300:]}")
    for suite in MUTATIONS:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", suite]
        tested = run(*command, cwd=tree, env=environment)
        assert tested.returncode == 1, suite + tested.stdout[-1000:] + tested.stderr[-500:]


def test_only_isa_functions_of_the_extension_have_avx():
    """The same of what was built and linked, by the source file each function came from."""
    extension = _core.__file__
    table = run(tool("readelf"), "-sW", extension).stdout
    source, owner = "", {}
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":"):
            continue
        kind, name = fields[3], fields[7]
        if kind == "FILE":
            source = name
        elif kind == "FUNC" and fields[6] != "UND":
            # exported or hidden functions come after all files, under the last one's name
            fill = re.fullmatch(r"ic_fill_(\w+?)_(\w+)", name)
            owner[int(fields[1], 16)] = f"{fill[2]}_{fill[1]}.c" if fill else source
    if "portable_dense.c" not in owner.values():
        pytest.skip("the extension is stripped: no telling which function came from where")
    code = run(tool("objdump"), "-d", "--no-show-raw-insn", extension).stdout
    functions = re.split(r"^([0-9a-f]+) <.*>:$", code, flags=re.M)[1:]
    assert len(functions) > 10
    with_avx = {
        owner.get(int(address, 16), f"function at {address}")
        for address, body in zip(functions[::2], functions[1::2], strict=True)
        if AVX.search(body)
    }
    allowed = re.compile(r"avx\w*_(sampling|dense)\.c")
    assert all(allowed.fullmatch(name) for name in with_avx), with_avx
