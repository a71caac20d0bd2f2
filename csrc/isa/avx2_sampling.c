/* SPDX-License-Identifier: BSD-3-Clause */
#include "../simd/avx2.h"
#define IC_SAMPLING
#include "../kernels.h"
