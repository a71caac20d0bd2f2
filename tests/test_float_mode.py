# SPDX-License-Identifier: BSD-3-Clause
"""A host may have set flush-to-zero: kernels compute as ever, and leave the mode as it was."""

import platform
import shutil
import subprocess
import sys

import pytest

# Loading a library built with -ffast-math sets these bits for a whole thread; here by hand.
SET_FLUSH_TO_ZERO = """
__attribute__((constructor)) static void set(void) {
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
}
"""

PROGRAM = """
import ctypes, sys
import numpy as np
from kernel_calls import ACTIVATION_IDS, activate, chain, draw, moments, sha256, softmax
from initcore import _core

def flushes():
    return float(np.multiply(np.float64(5e-324), np.float64(1.0))) == 0.0

inputs = {}
for dtype in ("float32", "float64"):
    tiny = np.finfo(dtype).smallest_subnormal
    steps = np.arange(-40, 41).astype(dtype)
    inputs[dtype] = (
        float(np.finfo(dtype).tiny) / 8,
        steps * tiny,
        np.array([[0, np.log(tiny) + 2, np.log(tiny) + 5, -3]], dtype),
        np.eye(2, dtype=dtype),
    )

def hashes(kernels):
    for dtype, (small, x, z, eye) in inputs.items():
        yield sha256(draw(kernels, 100, scale=small, dtype=dtype))
        for name in ACTIVATION_IDS:
            for derivative in (False, True):
                yield sha256(activate(kernels, x, name, derivative=derivative))
        yield sha256(moments(kernels, x.reshape(9, 9)))
        layer = chain(kernels, x[:2].reshape(1, 2), [eye], [None], ["relu"])
        for part in softmax(kernels, z) + layer:
            yield sha256(part)

tables = [kernels for _, kernels in sorted(_core.available().items())]
before = [list(hashes(kernels)) for kernels in tables]
assert not flushes()
library = ctypes.CDLL(sys.argv[1])
assert flushes(), "the mode is not set"
for kernels, expected in zip(tables, before):
    for number, (got, wanted) in enumerate(zip(hashes(kernels), expected)):
        assert got == wanted, (kernels.isa, number)
        assert flushes(), (kernels.isa, number, "the mode was not restored")
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets x86's MXCSR")
@pytest.mark.skipif(shutil.which("cc") is None, reason="builds a four-line library")
def test_flush_to_zero_changes_nothing(tmp_path, request):
    source, library = tmp_path / "mode.c", tmp_path / "mode.so"
    source.write_text(SET_FLUSH_TO_ZERO)
    subprocess.run(
        ["cc", "-O1", "-msse2", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60
    )
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        cwd=request.path.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
