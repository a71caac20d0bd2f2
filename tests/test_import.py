# SPDX-License-Identifier: BSD-3-Clause
"""`import initcore`: every public name is there, and what is slow to load comes when it is used."""

import subprocess
import sys

import initcore as ic

# What NumPy does not load itself, and the drawing of a small tensor does not need.
SLOW = {
    "concurrent.futures",
    "hashlib",
    "importlib.metadata",
    "initcore.experiments",
    "initcore.kernels",
    "initcore.results",
    "json",
    "logging",
    "pathlib",
}


def test_what_is_slow_to_load_is_not_loaded():
    code = (
        "import sys, numpy\n"
        "before = set(sys.modules)\n"
        "import initcore\n"
        "print(*set(sys.modules) - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ran.stdout.split())
    assert "initcore.streams" in loaded
    assert not SLOW & loaded


def test_every_public_name_is_there():
    assert set(ic.__all__) <= set(dir(ic))
    for name in ic.__all__:
        assert getattr(ic, name) is not None
