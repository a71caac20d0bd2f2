/* SPDX-License-Identifier: BSD-3-Clause */
/* Floating-point mode: kernels run with round-to-nearest and denormals, whatever the host has set
 * (some libraries leave flush-to-zero on in their threads), and give the host's mode back. */
#ifndef IC_FPMODE_H
#define IC_FPMODE_H

#include <stdint.h>

/* No load, store or sum of a kernel may move across the switch. */
#define IC_BARRIER() __asm__ volatile("" ::: "memory")

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned ic_fpmode;
static inline ic_fpmode fpmode_enter(void) {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x1F80); /* the power-on value: all exceptions masked, nearest even, no flushing */
  IC_BARRIER();
  return mode;
}
static inline void fpmode_leave(ic_fpmode mode) {
  IC_BARRIER();
  _mm_setcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t ic_fpmode;
static inline ic_fpmode fpmode_enter(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
  return mode;
}
static inline void fpmode_leave(ic_fpmode mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
typedef int ic_fpmode;
static inline ic_fpmode fpmode_enter(void) { return 0; }
static inline void fpmode_leave(ic_fpmode mode) { (void)mode; }
#endif

#endif
