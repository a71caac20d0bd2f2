# SPDX-License-Identifier: BSD-3-Clause
"""What `import initcore` adds to `import numpy`, in new processes, from cached bytecode."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .measure import MS, OURS, Case, Contender, Settings, extra, require


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
    """An installed package is imported from bytecode, whatever this process's environment says of
    it: these processes have a cache of their own, which the first of each fills."""
    cache = tempfile.mkdtemp(prefix="initcore-bench-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def process(statement: str) -> None:
        subprocess.run([sys.executable, "-c", statement], check=True, env=environment)

    def cached() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.pyc")}

    both, alone = "import numpy; import initcore", "import numpy"
    process(both)
    first = cached()
    process(both)
    require(any("initcore" in path.parts for path in first), "import initcore cached no bytecode")
    require(cached() == first, "import initcore compiles what it has compiled before")
    return [
        Contender(OURS, lambda: process(both)),
        Contender("import numpy", lambda: process(alone)),
    ]
