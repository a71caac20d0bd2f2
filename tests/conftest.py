# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures: one kernel table for each instruction set this machine runs, and seeded generators."""

import signal

import numpy as np
import pytest
from hypothesis import settings

from initcore import _core

# A runner in a shell's background hands down an ignored SIGINT, to be tested all the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomised: a run in CI can be repeated; no deadline: the portable kernels are slow by design.
settings.register_profile("initcore", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("initcore")


@pytest.fixture(scope="session", params=sorted(_core.available()))
def kernels(request):
    """The kernels of one instruction set; a test that takes this runs once for each."""
    return _core.available()[request.param]


@pytest.fixture(scope="session")
def every_isa():
    """The kernels of all instruction sets, for comparisons between them."""
    return [kernels for _, kernels in sorted(_core.available().items())]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture
def rng():
    """Test inputs come from NumPy, so that a fault of ours cannot make its own input easy."""
    return np.random.default_rng(20240229)


@pytest.fixture
def always_shared(monkeypatch):
    """Threads share trials however small the layers are."""
    from initcore.kernels import chain as module

    monkeypatch.setattr(module, "_SHARED_PRODUCTS", 0)
