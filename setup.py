# SPDX-License-Identifier: BSD-3-Clause
"""Builds the one extension: binding and dispatcher at the baseline, each ISA with its own flags.

Everything else is in pyproject.toml. INITCORE_SANITIZE=address,undefined adds sanitizers.
"""

import os
import platform
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CFLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
CFLAGS += ["-Wall", "-Wextra", "-Wconversion", "-Wshadow"]
# gcc's pre-allocation scheduler makes sampling 25-30 % faster and the product half as fast.
SAMPLING_ONLY_GCC = ["-fschedule-insns", "-fsched-pressure"]
# Rows by the target's architecture: the machine that builds need not be the one that runs.
ISA_FLAGS = {
    "x86_64": {
        "portable": [],
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
        "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"],
    },
    # gcc 12 loses stores to the portable vectors where two of them share a stack slot.
    "aarch64": {"portable": ["-fno-strict-aliasing"], "neon": []},
    "other": {"portable": []},
}
HEADERS = sorted(str(path) for path in Path("csrc").rglob("*.h"))
WRAPPERS = sorted(str(path) for path in Path("csrc/isa").glob("*.c"))


def target_architecture() -> str:
    """The architecture the extension is built for, e.g. x86_64 (ARCHFLAGS wins on macOS)."""
    archflags = re.search(r"-arch (\S+)", os.environ.get("ARCHFLAGS", ""))
    found = archflags.group(1) if archflags else sysconfig.get_platform().split("-")[-1]
    if found == "universal2":
        found = platform.machine()
    return {"amd64": "x86_64", "AMD64": "x86_64", "arm64": "aarch64"}.get(found, found)


class build_ext_per_isa(build_ext):
    """build_ext that first compiles each csrc/isa wrapper with the flags of its instruction set."""

    def build_extension(self, ext: Extension) -> None:
        compiler = getattr(self.compiler, "compiler_so", [""])
        is_gcc = "clang" not in " ".join(compiler) and "gcc" in " ".join(compiler)
        sanitize = os.environ.get("INITCORE_SANITIZE")
        extra = [f"-fsanitize={sanitize}", "-g"] if sanitize else []
        ext.extra_link_args = extra
        isas = ISA_FLAGS.get(target_architecture(), ISA_FLAGS["other"])
        objects = []
        for isa, flags in isas.items():
            for half in ("sampling", "dense"):
                scheduling = SAMPLING_ONLY_GCC if half == "sampling" and is_gcc else []
                objects += self.compiler.compile(
                    [f"csrc/isa/{isa}_{half}.c"],
                    output_dir=self.build_temp,
                    extra_postargs=[*CFLAGS, *flags, *scheduling, *extra],
                    depends=ext.depends,
                )
        objects += self.compiler.compile(
            ["csrc/dispatch.c"],
            output_dir=self.build_temp,
            extra_postargs=[*CFLAGS, *extra],
            depends=ext.depends,
        )
        ext.extra_objects = objects
        super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "initcore._core",
            ["src/initcore/_core.pyx"],
            include_dirs=["csrc"],
            depends=[*HEADERS, *WRAPPERS, "csrc/dispatch.c", "src/initcore/_core.pxd"],
            extra_compile_args=["-O2"],
        )
    ],
    cmdclass={"build_ext": build_ext_per_isa},
)
