# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo experiments: what random networks do, over trials, with error bars."""
