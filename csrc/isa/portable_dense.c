/* SPDX-License-Identifier: BSD-3-Clause */
#include "../simd/portable.h"
#define IC_DENSE
#include "../kernels.h"
