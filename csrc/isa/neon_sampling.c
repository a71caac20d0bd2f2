/* SPDX-License-Identifier: BSD-3-Clause */
#include "../simd/neon.h"
#define IC_SAMPLING
#include "../kernels.h"
