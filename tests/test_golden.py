# SPDX-License-Identifier: BSD-3-Clause
"""The streams are pinned: a hash that changes is a new version of the contract."""

import json

from golden import regenerate


def test_streams_are_the_pinned_ones(kernels):
    pinned = json.loads(regenerate.FILE.read_text(encoding="utf-8"))
    got = regenerate.hashes(kernels)
    assert list(got) == list(pinned)
    changed = [stream for stream in pinned if got[stream] != pinned[stream]]
    assert not changed
