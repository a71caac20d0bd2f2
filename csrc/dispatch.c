/* SPDX-License-Identifier: BSD-3-Clause */
/* Which instruction sets this CPU (and its operating system) can run. Compiled at the baseline:
 * built with AVX flags it would crash on the very machines it is here to protect. */
#if defined(__AVX__)
#error "dispatch.c must be compiled at the baseline instruction set"
#endif

#include "initcore.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* The register states that the operating system saves on a context switch (XCR0). */
static uint32_t saved_states(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

static int has_avx2(void) {
  const uint32_t ymm = 0x6;
  uint32_t a, b, c, d;
  if ((saved_states() & ymm) != ymm) return 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C))
    return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

static int has_avx512(void) {
  const uint32_t zmm = 0xE6, parts = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  uint32_t a, b, c, d;
  if (!has_avx2() || (saved_states() & zmm) != zmm) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & parts) == parts;
}
#endif

#define IC_OFFER(name, can_run) \
  if (can_run) { \
    extern void ic_fill_sampling_##name(ic_kernels *); \
    extern void ic_fill_dense_##name(ic_kernels *); \
    static ic_kernels kernels = {.isa = #name}; \
    ic_fill_sampling_##name(&kernels); \
    ic_fill_dense_##name(&kernels); \
    available[n++] = &kernels; \
  }

const ic_kernels *const *ic_available(void) {
  static const ic_kernels *available[4]; /* filled once, by the import that loads the module */
  int n = 0;
  if (available[0]) return available;
#if defined(__x86_64__)
  IC_OFFER(avx512, has_avx512())
  IC_OFFER(avx2, has_avx2())
#elif defined(__aarch64__)
  IC_OFFER(neon, 1)
#endif
  IC_OFFER(portable, 1)
  return available;
}
