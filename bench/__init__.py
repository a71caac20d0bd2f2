# SPDX-License-Identifier: BSD-3-Clause
"""`python -m bench`: every kernel beside its peers and the machine's floors, in one run.

A module a kernel, as everywhere: sampling, chain, softmax, attention, gain, theory, startup. Each
yields `Case`s (measure.py); peers.py finds NumPy's rivals, floors.py what the machine can do,
report.py writes.
"""
