/* SPDX-License-Identifier: BSD-3-Clause */
/* The floor under a matrix product: chains of fused multiply-adds that touch no memory.
 *
 * Twelve chains in registers hide the latency of an fma (4 or 5 cycles) at two a cycle. Compiled by
 * the bench with -O3 -march=native -ffp-contract=fast; a * x + y becomes one instruction. */
#include <stddef.h>

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef float vec __attribute__((vector_size(BYTES)));
enum { LANES = BYTES / sizeof(float), CHAINS = 12 };

/* Runs `steps` steps of every chain and returns the flops done; `out` keeps the results alive. */
double fma_peak(size_t steps, float *out) {
  vec x, y, chain[CHAINS];
  for (int l = 0; l < LANES; l++) {
    x[l] = 1.0f - 1e-7f * (float)l;
    y[l] = 1e-7f;
  }
  for (int c = 0; c < CHAINS; c++) chain[c] = x * (float)c;
  for (size_t s = 0; s < steps; s++) {
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) chain[c] = chain[c] * x + y;
  }
  vec sum = chain[0];
  for (int c = 1; c < CHAINS; c++) sum += chain[c];
  float total = 0;
  for (int l = 0; l < LANES; l++) total += sum[l];
  *out = total;
  return 2.0 * CHAINS * LANES * (double)steps;
}
