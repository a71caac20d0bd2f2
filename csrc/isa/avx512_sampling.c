/* SPDX-License-Identifier: BSD-3-Clause */
#include "../simd/avx512.h"
#define IC_SAMPLING
#include "../kernels.h"
