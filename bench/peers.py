# SPDX-License-Identifier: BSD-3-Clause
"""The peers: which are installed, held to the same number of threads; and how to get the others.

Thread counts that a library reads once, when it loads, are environment variables: `limit_threads`
sets them, and must run before NumPy is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
from collections.abc import MutableMapping
from types import ModuleType
from typing import Any

INSTALL = {
    "torch": "pip install torch",
    "jax": "pip install jax",
    "numba": "pip install numba",
    "anyinit": "pip install anyinit",
}


def limit_threads(threads: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes libraries that are imported later use so many threads."""
    for name in ("OPENBLAS", "OMP", "MKL", "NUMBA"):
        environment[f"{name}_NUM_THREADS"] = str(threads)
    environment["VECLIB_MAXIMUM_THREADS"] = str(threads)
    environment["NPROC"] = str(threads)  # how large XLA makes its pools
    if threads == 1:
        flags = environment.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    environment.setdefault("JAX_PLATFORMS", "cpu")


def warnings(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """What in the environment would make a comparison unfair."""
    found = []
    if core := environment.get("OPENBLAS_CORETYPE"):
        found.append(
            f"OPENBLAS_CORETYPE={core} keeps NumPy's OpenBLAS from its best kernels: unset it"
        )
    if isa := environment.get("INITCORE_ISA"):
        found.append(f"INITCORE_ISA={isa}: initcore is measured on that instruction set")
    return found


@functools.cache
def find(module: str) -> Any | None:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def torch(threads: int) -> Any | None:
    """torch with that many threads."""
    module = find("torch")
    if module is not None:
        module.set_num_threads(threads)
    return module


def jax() -> tuple[ModuleType, ModuleType] | None:
    """jax and jax.numpy."""
    module = find("jax")
    return None if module is None else (module, importlib.import_module("jax.numpy"))


def numba() -> Any | None:
    """numba."""
    return find("numba")


def missing() -> dict[str, str]:
    """The peers that are not installed, and how to install them."""
    return {name: how for name, how in INSTALL.items() if find(name) is None}


def versions() -> dict[str, str]:
    """The version of everything that takes part."""
    found = {}
    for name in ("numpy", *INSTALL):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
