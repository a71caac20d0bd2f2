# SPDX-License-Identifier: BSD-3-Clause
"""Deterministic functions over the user's own arrays."""
