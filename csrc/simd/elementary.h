/* SPDX-License-Identifier: BSD-3-Clause */
/* Elementary functions on 16 lanes, in the vocabulary's words alone: no libm, so every instruction
 * set gives the same bits. Errors are in units in the last place of the exact result (of the least
 * denormal, where it is denormal): bounds above the largest seen in 70 million float32 arguments of
 * every exponent and 2 million float64 ones. NaN gives NaN, with any payload.
 *
 * Written once over `real` (simd/real.h); one inclusion makes the functions of both dtypes. The
 * polynomials and constants come from tools/derive_elementary.py. Bounds of arguments are applied
 * as max(bound, x) and min(bound, x) in that order, which lets NaN through. */
#ifndef IC_REAL
#ifndef IC_ELEMENTARY_H
#define IC_ELEMENTARY_H

#include <math.h>
#include <string.h>

#include "polynomials.h"

enum { mantissa_bits_f32 = 23, mantissa_bits_f64 = 52, sign_bit_f32 = 31, sign_bit_f64 = 63 };

/* An integer k added to round_magic stands in the low bits of the sum, added to power_magic it
 * stands there with the bias of the exponent. */
static const float round_magic_f32 = 0x1.8p23f, power_magic_f32 = 0x1.8p23f + 127.0f;
static const double round_magic_f64 = 0x1.8p52, power_magic_f64 = 0x1.8p52 + 1023.0;
static const float exponent_bias_f32 = 127.0f;
static const double exponent_bias_f64 = 1023.0;

/* exp leaves the dtype's range before these, expm1 reaches -1 before expm1_low. */
static const float exp_low_f32 = -105.0f, exp_high_f32 = 89.0f, expm1_low_f32 = -20.0f;
static const double exp_low_f64 = -746.0, exp_high_f64 = 710.0, expm1_low_f64 = -40.0;

/* exp_tail counts in units of 2^-tail_shift, its argument is at least tail_low. */
static const float tail_shift_f32 = 64.0f, tail_unit_f32 = 0x1p-64f, tail_low_f32 = -130.0f;
static const double tail_shift_f64 = 256.0, tail_unit_f64 = 0x1p-256, tail_low_f64 = -880.0;

/* Where rounding x/pi and the three parts of pi/2 still reduce x to half an ulp. */
static const float sin_far_f32 = 0x1p15f;
static const double sin_far_f64 = 0x1p30;

/* 2/pi x modulo 4, one quarter turn added if `quarter`, for x of at least 2^15 by the integers that
 * x and 2/pi are (Payne & Hanek 1983): 192 bits of 2/pi from the first that does not only count
 * whole turns. Returns r, |r| <= pi/2, and whether the nearest multiple of pi is an odd one. */
static int sin_reduce_far(double x, int quarter, double *r) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint64_t m = (bits & ~(~(uint64_t)0 << 52)) | (uint64_t)1 << 52;
  /* x = m 2^(exponent - 1075); the table's first bit counts 2^63 */
  const unsigned first = (unsigned)(bits >> 52) - 1075 - 2 + 64;
  const unsigned shift = first % 32;
  const uint32_t *table = two_over_pi + first / 32;
  uint32_t window[6], product[6] = {0}; /* least significant first */
  for (int i = 0; i < 6; i++) {
    const uint64_t pair = (uint64_t)table[5 - i] << 32 | table[6 - i];
    window[i] = (uint32_t)(pair << shift >> 32);
  }
  for (int j = 0; j < 2; j++) {
    uint64_t carry = 0;
    for (int i = 0; i + j < 6; i++) {
      carry += (m >> 32 * j & 0xFFFFFFFFu) * window[i] + product[i + j];
      product[i + j] = (uint32_t)carry;
      carry >>= 32;
    }
  }
  /* quarter turns modulo 4, two bits before the point; + 1 rounds to the nearest half turn */
  uint64_t high = (uint64_t)product[5] << 32 | product[4];
  uint64_t low = (uint64_t)product[3] << 32 | product[2];
  high += (uint64_t)(quarter + 1) << 62;
  const int odd = (int)(high >> 63);
  high = (high << 1 | low >> 63) ^ (uint64_t)1 << 63; /* the rest, signed, 63 bits of fraction */
  low <<= 1;
  const double fraction = (double)(int64_t)high + (double)(int64_t)(low >> 11) * 0x1p-53;
  *r = fraction * 0x1p-63 * half_pi_f64[0];
  return odd;
}

#define IC_HORNER(x, polynomial) \
  R(horner)(x, R(polynomial), (int)(sizeof R(polynomial) / sizeof R(polynomial)[0]))

#define IC_REAL f32
#include "elementary.h"
#undef IC_REAL
#define IC_REAL f64
#include "elementary.h"
#undef IC_REAL

#undef IC_HORNER
#endif
#else

/* c[0] + c[1] x + ...; n is a constant at every call, and the loop unrolls. */
IC_INLINE vreal R(horner)(vreal x, const real *c, int n) {
  vreal p = V(set)(c[n - 1]);
  for (int i = n - 2; i >= 0; i--) p = V(fma)(p, x, V(set)(c[i]));
  return p;
}

/* 2^k, k an integer among the exponents of normal numbers. */
IC_INLINE vreal R(power_of_2)(vreal k) {
  const vbits biased = V(bits)(V(add)(k, V(set)(R(power_magic))));
  return V(from_bits)(U(shl)(biased, R(mantissa_bits)));
}

/* x + low = k ln 2 + r, k an integer, |r| <= ln(2)/2; |low| <= 1 ulp of x. */
IC_INLINE vreal R(exp_reduce)(vreal x, vreal low, vreal *k) {
  const vreal magic = V(set)(R(round_magic));
  *k = V(sub)(V(fma)(x, V(set)(R(log2_e)), magic), magic);
  const vreal r = V(fnma)(*k, V(set)(R(ln2)[0]), x);
  return V(add)(r, V(fnma)(*k, V(set)(R(ln2)[1]), low));
}

/* exp(r) - 1 for |r| <= ln(2)/2. */
IC_INLINE vreal R(expm1_reduced)(vreal r) {
  return V(fma)(V(mul)(r, r), IC_HORNER(r, exp_poly), r);
}

/* exp(x)
 * Domain: all of the dtype; gradual underflow, overflow to inf, exp(-inf) = +0.
 * Max error: 1.1 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(exp)(vreal x) {
  vreal k;
  x = V(max)(V(set)(R(exp_low)), V(min)(V(set)(R(exp_high)), x));
  const vreal r = R(exp_reduce)(x, V(zero)(), &k);
  const vreal p = V(add)(R(expm1_reduced)(r), V(set)(1));
  const vreal half = V(round)(V(mul)(k, V(set)((real)0.5))); /* 2^k may not be a normal number */
  return V(mul)(V(mul)(p, R(power_of_2)(half)), R(power_of_2)(V(sub)(k, half)));
}

/* exp(x + low) in units of 2^-tail_shift: a tail that is to be multiplied further keeps its digits
 * where exp itself would be denormal.
 * Domain: tail_low <= x <= 0, |low| <= 1 ulp of x.
 * Max error: 1.1 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal R(exp_tail)(vreal x, vreal low) {
  vreal k;
  const vreal r = R(exp_reduce)(x, low, &k);
  const vreal p = V(add)(R(expm1_reduced)(r), V(set)(1));
  return V(mul)(p, R(power_of_2)(V(add)(k, V(set)(R(tail_shift)))));
}

/* exp(x) - 1
 * Domain: x <= 0.
 * Max error: 1.2 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(expm1)(vreal x) {
  vreal k;
  const vreal r = R(exp_reduce)(V(max)(V(set)(R(expm1_low)), x), V(zero)(), &k);
  const vreal power = R(power_of_2)(k);
  return V(fma)(power, R(expm1_reduced)(r), V(sub)(power, V(set)(1)));
}

/* k ln 2 + log(1 + f), sqrt(1/2) <= 1 + f <= sqrt(2), as log((1 + s)/(1 - s)) with s = f/(2 + f):
 * 2 s + s z p(z) = f - s (f - z p(z)). */
IC_INLINE vreal R(log_reduced)(vreal f, vreal k) {
  const vreal s = V(div)(f, V(add)(f, V(set)(2)));
  const vreal z = V(mul)(s, s);
  const vreal excess = V(mul)(s, V(fnma)(z, IC_HORNER(z, log_poly), f));
  const vreal y = V(sub)(f, V(fnma)(k, V(set)(R(ln2)[1]), excess));
  return V(fma)(k, V(set)(R(ln2)[0]), y);
}

/* log(x)
 * Domain: normal positive numbers; log(inf) = inf.
 * Max error: 1 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(log)(vreal x) {
  const real integers = (real)((uint64_t)1 << R(mantissa_bits)); /* its last place counts 1 */
  const vbits one = V(bits)(V(set)(1)), bits = V(bits)(x);
  /* the biased exponent that leaves a mantissa between sqrt(1/2) and sqrt(2) */
  const vbits to_root = U(sub)(V(bits)(V(set)(2)), V(bits)(V(set)(R(sqrt_2))));
  const vbits from_root = U(add)(bits, to_root);
  const vbits exponent = U(shr)(from_root, R(mantissa_bits));
  const vreal k = V(sub)(V(from_bits)(U(or)(exponent, V(bits)(V(set)(integers)))),
                         V(set)(integers + R(exponent_bias)));
  const vbits power = U(sub)(U(shl)(exponent, R(mantissa_bits)), one);
  const vreal m = V(from_bits)(U(sub)(bits, power));
  const vreal y = R(log_reduced)(V(sub)(m, V(set)(1)), k);
  return V(select)(V(lt)(x, V(set)((real)INFINITY)), y, x);
}

/* log(1 + x)
 * Domain: 0 <= x <= 1.
 * Max error: 1.6 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(log1p)(vreal x) {
  const vreal one = V(set)(1), half = V(set)((real)0.5);
  const vmask upper = V(lt)(V(sub)(V(set)(R(sqrt_2)), one), x);
  const vreal f = V(select)(upper, V(mul)(V(sub)(x, one), half), x); /* (1 + x)/2 - 1 */
  return R(log_reduced)(f, V(select)(upper, one, V(zero)()));
}

/* tanh(x)
 * Domain: all of the dtype; tanh(-0) = -0.
 * Max error: 2.6 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(tanh)(vreal x) {
  const vreal e = V(expm1)(V(mul)(V(abs)(x), V(set)(-2)));
  return V(copysign)(V(div)(e, V(add)(e, V(set)(2))), x);
}

/* Q(a) exp(a^2/2), Q the upper tail of the standard normal, 0 <= a <= 16 (float64: 40), by a
 * polynomial in t = (a - 4)/(a + 4) = 1 - 8/(a + 4). What rounding takes from a + 4 would be
 * several ulps of the result near 0, so 1/(a + 4) is kept as inverse (1 + rest). */
IC_INLINE vreal R(normal_tail)(vreal a) {
  const vreal one = V(set)(1), four = V(set)(4), eight = V(set)(8);
  const vreal d = V(add)(a, four), inverse = V(div)(one, d);
  const vreal lost = V(sub)(a, V(sub)(d, four));
  const vreal rest = V(fnma)(lost, inverse, V(fnma)(d, inverse, one));
  const vreal t = V(fnma)(V(mul)(inverse, eight), rest, V(fnma)(inverse, eight, one));
  const vreal y = V(mul)(IC_HORNER(t, tail_poly), inverse);
  return V(fma)(y, rest, y);
}

/* exp(-scale a^2) in units of 2^-tail_shift, scale a power of 2, its argument down to tail_low. */
IC_INLINE vreal R(gauss_tail)(vreal a, real scale) {
  const vreal square = V(mul)(a, a);
  const vreal low = V(fma)(a, a, V(neg)(square));
  return R(exp_tail)(V(mul)(square, V(set)(-scale)), V(mul)(low, V(set)(-scale)));
}

/* erf(x)
 * Domain: all of the dtype; erf(-0) = -0.
 * Max error: 1.2 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal V(erf)(vreal x) {
  const vreal one = V(set)(1), a = V(min)(V(set)(7), V(abs)(x)); /* erf(7) rounds to 1 */
  const vreal near = V(fma)(a, IC_HORNER(V(mul)(a, a), erf_poly), a);
  const vreal tail = V(mul)(R(gauss_tail)(a, 1), R(normal_tail)(V(mul)(a, V(set)(R(sqrt_2)))));
  const vreal far = V(fnma)(tail, V(set)(2 * R(tail_unit)), one);
  return V(copysign)(V(select)(V(lt)(one, a), far, near), x);
}

/* sin(x), or cos(x) if `quarter`, as the sine of x + quarter pi/2.
 * Domain: all of the dtype; NaN at the infinities; sin(-0) = -0.
 * Max error: 2.6 ulp.
 * Determinism: the same bits for every instruction set. */
IC_INLINE vreal R(sine)(vreal x, int quarter) {
  const vreal magic = V(set)(R(round_magic)), a = V(abs)(x);
  const vreal turn = V(set)((real)quarter), half = V(set)((real)0.5 * (real)quarter);
  const vreal shifted = V(add)(V(fma)(a, V(set)(R(inverse_pi)), half), magic);
  const vreal n = V(sub)(shifted, magic); /* x + quarter pi/2 = n pi + r */
  const vreal q = V(sub)(V(add)(n, n), turn);
  vreal r = V(fnma)(q, V(set)(R(half_pi)[0]), a); /* exact */
  r = V(fnma)(q, V(set)(R(half_pi)[1]), r);
  r = V(fnma)(q, V(set)(R(half_pi)[2]), r);
  vbits sign = U(shl)(V(bits)(shifted), R(sign_bit)); /* n odd */

  const vmask far = M(and)(V(le)(V(set)(R(sin_far)), a), V(lt)(a, V(set)((real)INFINITY)));
  const unsigned lanes = M(bits)(far);
  if (lanes) {
    real from[16], to[16], odd[16];
    V(store)(from, a);
    for (int l = 0; l < 16; l++) {
      double reduced = 0;
      odd[l] = lanes >> l & 1 && sin_reduce_far((double)from[l], quarter, &reduced) ? -1 : 1;
      to[l] = (real)reduced;
    }
    r = V(select)(far, V(load)(to), r);
    const vreal odd_sign = V(select)(far, V(load)(odd), V(from_bits)(sign));
    sign = U(and)(V(bits)(odd_sign), V(bits)(V(set)((real)-0.0)));
  }

  const vreal z = V(mul)(r, r);
  const vreal y = V(fma)(V(mul)(r, z), IC_HORNER(z, sin_poly), r);
  if (!quarter) sign = U(xor)(sign, U(and)(V(bits)(x), V(bits)(V(set)((real)-0.0))));
  return V(from_bits)(U(xor)(V(bits)(y), sign));
}

#endif
