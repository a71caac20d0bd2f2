# SPDX-License-Identifier: BSD-3-Clause
"""Pins the streams: writes streams.json, the hashes of what the stream contract draws.

A change of that file is a new version of the contract. Run it from the repository's root:

    python tests/golden/regenerate.py
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("streams.json")
sys.path.insert(0, str(FILE.parents[1]))

from initcore import _core  # noqa: E402
from initcore.reference.sampling import NORMAL, UNIFORM  # noqa: E402
from initcore.streams import stream_id  # noqa: E402
from kernel_calls import draw, sha256  # noqa: E402

N = 1000
KINDS = {"uniform": UNIFORM, "normal": NORMAL}
# (seed, name, trial, first element)
PLACES = [
    (0, "layers.0.weight", 0, 0),
    (0, "layers.0.weight", 1, 0),
    (0, "layers.0.weight", 0, 7),
    (1, "fc1.weight", 0, 0),
    (2**32 + 5, "input", 0, 0),
    (2**64 - 1, "", 2**64 - 1, 64),
    (42, 0, 0, 0),
    (42, 2**64 - 1, 3, 2**31 - 500),
    (20240229, "é", 0, 2**34 - 500),
]


def hashes(kernels):
    """{description: sha256} of the streams as one instruction set draws them."""
    return {
        f"{kind} {dtype} seed={seed} name={name!r} trial={trial} first={first}": sha256(
            draw(
                kernels,
                N,
                first=first,
                seed=seed,
                stream=stream_id(name, trial),
                kind=number,
                dtype=dtype,
            )
        )
        for kind, number in KINDS.items()
        for dtype in ("float32", "float64")
        for seed, name, trial, first in PLACES
    }


def main():
    tables = {isa: hashes(kernels) for isa, kernels in _core.available().items()}
    first, *others = tables.values()
    if any(other != first for other in others):
        raise SystemExit(f"the instruction sets {', '.join(tables)} disagree: nothing is written")
    FILE.write_text(json.dumps(first, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {len(first)} streams of {N} numbers, alike under {', '.join(tables)}")


if __name__ == "__main__":
    main()
