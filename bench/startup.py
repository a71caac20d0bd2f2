# SPDX-License-Identifier: BSD-3-Clause
"""What `import initcore` adds to `import numpy`, in new processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from .measure import MS, OURS, Case, Contender, Settings, extra


def cases(settings: Settings) -> Iterator[Case]:
    """See the package."""
    yield Case(
        "import",
        "`import numpy; import initcore`, a new process",
        MS,
        _imports,
        (extra(30e-3, "import numpy"),),
    )


def _imports() -> list[Contender]:
    def process(statement: str) -> None:
        subprocess.run([sys.executable, "-c", statement], check=True)

    return [
        Contender(OURS, lambda: process("import numpy; import initcore")),
        Contender("import numpy", lambda: process("import numpy")),
    ]
