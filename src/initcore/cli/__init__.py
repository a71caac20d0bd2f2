# SPDX-License-Identifier: BSD-3-Clause
"""The command line: ``initcore propagate``, ``attention``, ``chain``, ``draw``, and others.

One small module a command; ``app`` puts them together, ``common`` holds what they share. Only this
module may be imported without the extra ``cli``: it says in one line what is missing.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = {"typer", "rich"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on ``arguments`` (``sys.argv[1:]`` by default) and return its exit code.

    0: done. 1: ``verify`` found a kernel outside its tolerance. 2: bad input, or a missing extra,
    told in one line on stderr. 130: interrupted by Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a "±" never kills a run on an ASCII terminal
    try:
        from initcore.cli import app

        return app.run(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _fail("the command line needs typer and rich: pip install 'initcore[cli]'")
    except KeyboardInterrupt:
        return 130
    except MemoryError as error:
        return _fail(str(error) or "not enough memory for a network of this size")
    except (ValueError, TypeError, OSError, OverflowError) as error:
        return _fail(str(error) or type(error).__name__)


def _fail(message: str) -> int:
    print("initcore:", " ".join(message.split()), file=sys.stderr)
    return 2
