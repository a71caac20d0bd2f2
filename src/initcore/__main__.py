# SPDX-License-Identifier: BSD-3-Clause
"""``python -m initcore``: the command line."""

import sys

from initcore.cli import main

if __name__ == "__main__":
    sys.exit(main())
