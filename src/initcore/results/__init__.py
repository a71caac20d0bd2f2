# SPDX-License-Identifier: BSD-3-Clause
"""Results: frozen records of read-only arrays that merge exactly, save, load and print."""
