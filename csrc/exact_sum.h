/* SPDX-License-Identifier: BSD-3-Clause */
/* Exact sums of doubles and of their squares (superaccumulators, Neal 2015, arXiv:1505.05571): an
 * integer in units of 2^-1074 (sum) or 2^-2148 (squares), in 32-bit digits held in signed 64-bit
 * words. Sums are integers, hence associative: any order and any split give the same number.
 * The layout is in initcore.h. Integers only: no floating-point mode matters here. */
#ifndef IC_EXACT_SUM_H
#define IC_EXACT_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* An addition changes a digit by less than 2^32: after 2^30 of them a word is still far from
 * overflow. */
#define IC_EXACT_CARRY_EVERY ((int64_t)1 << 30)

#define IC_LOW32 UINT64_C(0xFFFFFFFF)

/* Digits into [0, 2^32); the last one takes what is left, and the sign. */
static inline void exact_carry_digits(int64_t *digits, size_t n) {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < n; i++) {
    const int64_t value = digits[i] + carry;
    digits[i] = (int64_t)((uint64_t)value & IC_LOW32);
    carry = value >> 32;
  }
  digits[n - 1] += carry;
}

static inline void exact_carry_one(int64_t *accumulator) {
  int64_t *sum = accumulator + 3;
  exact_carry_digits(sum, IC_EXACT_SUM_WORDS);
  exact_carry_digits(sum + IC_EXACT_SUM_WORDS, IC_EXACT_SQUARE_WORDS);
  accumulator[2] = 0;
}

static inline void exact_add_one(int64_t *accumulator, double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint64_t exponent = bits >> 52 & 0x7FF;
  if (exponent == 0x7FF) {
    accumulator[1]++;
    return;
  }
  if (accumulator[2] == IC_EXACT_CARRY_EVERY) exact_carry_one(accumulator);
  accumulator[0]++;
  accumulator[2]++;
  /* |x| = mantissa 2^position units; the denormals (exponent 0) share exponent 1's position */
  const uint64_t normal = exponent != 0, position = exponent - normal;
  const uint64_t mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | normal << 52;
  const uint64_t low = mantissa & IC_LOW32, high = mantissa >> 32;

  int64_t *sum = accumulator + 3 + position / 32;
  const unsigned shift = (unsigned)(position % 32);
  const int64_t sign = -(int64_t)(bits >> 63); /* (digit ^ sign) - sign is the signed digit */
  const uint64_t s0 = low << shift, s1 = (high << shift) + (s0 >> 32);
  sum[0] += ((int64_t)(s0 & IC_LOW32) ^ sign) - sign;
  sum[1] += ((int64_t)(s1 & IC_LOW32) ^ sign) - sign;
  sum[2] += ((int64_t)(s1 >> 32) ^ sign) - sign;

  /* the square's 106 bits as four digits q, each of whose sums fits in 64 bits */
  int64_t *square = accumulator + 3 + IC_EXACT_SUM_WORDS + position / 16;
  const unsigned twice = (unsigned)(position % 16) * 2;
  const uint64_t q0 = low * low, q1 = 2 * low * high + (q0 >> 32), q2 = high * high + (q1 >> 32);
  const uint64_t t0 = (q0 & IC_LOW32) << twice, t1 = ((q1 & IC_LOW32) << twice) + (t0 >> 32);
  const uint64_t t2 = ((q2 & IC_LOW32) << twice) + (t1 >> 32);
  const uint64_t t3 = ((q2 >> 32) << twice) + (t2 >> 32);
  square[0] += (int64_t)(t0 & IC_LOW32);
  square[1] += (int64_t)(t1 & IC_LOW32);
  square[2] += (int64_t)(t2 & IC_LOW32);
  square[3] += (int64_t)(t3 & IC_LOW32);
  square[4] += (int64_t)(t3 >> 32);
}

/* Domain: any x; NaN and infinities are counted and left out; fewer than 2^31 carried records of
 * 2^30 values each. Max error: none, x and x*x are added exactly. Determinism: the number
 * represented depends on the values alone; its digits do after exact_carry. */
static void exact_add(int64_t *accumulators, const double *x, size_t t, size_t m) {
  for (size_t j = 0; j < m; j++)
    for (size_t i = 0; i < t; i++) exact_add_one(accumulators + j * IC_EXACT_WORDS, x[i * m + j]);
}

/* Domain: accumulators of exact_add, or sums of carried ones, word by word. Max error: none.
 * Determinism: canonical, equal sums are equal bits: every digit in [0, 2^32) but the last. */
static void exact_carry(int64_t *accumulators, size_t m) {
  for (size_t j = 0; j < m; j++) exact_carry_one(accumulators + j * IC_EXACT_WORDS);
}

#undef IC_LOW32
#endif
