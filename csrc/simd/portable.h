/* SPDX-License-Identifier: BSD-3-Clause */
/* The vector vocabulary, lane by lane in C11: what every word means. 16 lanes always; a lane never
 * sees another but in fold_*. The bits of every result are those of the other instruction sets:
 * only +, -, *, /, and correctly rounded fma and sqrt are used.
 *
 * Types   f32x16 f64x16 u32x16 u64x16; masks m32x16 m64x16 (a lane is all ones or all zeros).
 * max(x, y) = x > y ? x : y and min(x, y) = x < y ? x : y, so NaN in either gives y.
 * round     to the nearest integer, ties to even; |x| < 2^22 (float32), 2^51 (float64); never -0
 *           for a non-zero x that rounds to zero.
 * select(m, x, y) = m ? x : y;  andnot(x, y) = ~x & y;  fnma(x, y, z) = z - x*y, one rounding.
 * sign_mask the mask of the lanes whose top bit is set.
 * fold_*    one value of 16 lanes: l with l + 8, then l + 4, l + 2, l + 1.
 * store_halves  the eight sums of lanes l and l + 8, with which fold_add begins; fold_rows ends it
 *           for 16 such rows.
 * fma_add(x, one, y) = x + y, given `one` = f64_one(): for loops that would keep the adders busy and
 *           the multipliers idle, as fma(x, one, y).
 * abs_max(x, m) = max(|x|, m); of a NaN in x it may make NaN or m.
 * count(n, m) adds 1 to the lanes of n where m is set; total: the sum of the lanes, as uint64_t.
 * f64_load_f32, f64_load_f64: 16 values from memory as float64; f64_from_f32, _f64 from a vector.
 * f16_store, bf16_store   rounded to float16 and bfloat16 (nearest even; the domain has no NaN).
 * *_nonzero the mask of the lanes whose byte is not zero.
 * IC_TILE_*  the product's register tile: IC_TILE_ROWS rows of a vector IC_TILE_VECTOR, of 16
 *           lanes or a divisor of 16, in each of up to IC_TILE_PANELS panels; the vector's words
 *           set zero load store add fma begin with IC_TILE.
 * *_first(n) touches only the first n lanes (0 <= n <= 16); the others load as +0.
 * blocks_*  sixteen Philox blocks as two u64x8 (low, high), 32 bits of interest a lane; which block
 *           sits where is the vocabulary's business until blocks_pack puts them in order;
 *           blocks_join makes 64-bit lanes of two words, the first pair on top. */
#ifndef IC_SIMD_H
#define IC_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define IC_ISA portable
#define IC_INLINE static inline
#define IC_TILE_ROWS_f32 2
#define IC_TILE_ROWS_f64 2
#define IC_TILE_PANELS_f32 1
#define IC_TILE_PANELS_f64 1
#define IC_TILE_f32 f32
#define IC_TILE_f64 f64
#define IC_TILE_VECTOR_f32 f32x16
#define IC_TILE_VECTOR_f64 f64x16

typedef struct { float v[16]; } f32x16;
typedef struct { double v[16]; } f64x16;
typedef struct { uint32_t v[16]; } u32x16;
typedef struct { uint64_t v[16]; } u64x16;
typedef struct { uint32_t v[16]; } m32x16;
typedef struct { uint64_t v[16]; } m64x16;
typedef struct { uint64_t v[8]; } u64x8;

#define IC_LANES(type, n, expression) \
  type r; \
  for (int l = 0; l < n; l++) r.v[l] = (expression); \
  return r;
#define IC_MAP1(out, name, in, expression) \
  IC_INLINE out name(in x) { IC_LANES(out, 16, expression) }
#define IC_MAP2(out, name, in, expression) \
  IC_INLINE out name(in x, in y) { IC_LANES(out, 16, expression) }

/* What float32 and float64 share; T is f32 or f64, S its scalar, U and M the integer and mask. */
#define IC_FLOAT(T, S, U, M, UT, FMA, SQRT, MAGIC) \
  IC_INLINE T##x16 T##_set(S s) { IC_LANES(T##x16, 16, s) } \
  IC_INLINE T##x16 T##_zero(void) { return T##_set(0); } \
  IC_INLINE T##x16 T##_load(const S *p) { IC_LANES(T##x16, 16, p[l]) } \
  IC_INLINE void T##_store(S *p, T##x16 x) { memcpy(p, x.v, sizeof x.v); } \
  IC_INLINE T##x16 T##_load_first(const S *p, int n) { IC_LANES(T##x16, 16, l < n ? p[l] : 0) } \
  IC_INLINE void T##_store_first(S *p, T##x16 x, int n) { \
    memcpy(p, x.v, (size_t)n * sizeof(S)); \
  } \
  IC_MAP2(T##x16, T##_add, T##x16, x.v[l] + y.v[l]) \
  IC_MAP2(T##x16, T##_sub, T##x16, x.v[l] - y.v[l]) \
  IC_MAP2(T##x16, T##_mul, T##x16, x.v[l] * y.v[l]) \
  IC_MAP2(T##x16, T##_div, T##x16, x.v[l] / y.v[l]) \
  IC_MAP2(T##x16, T##_max, T##x16, x.v[l] > y.v[l] ? x.v[l] : y.v[l]) \
  IC_MAP2(T##x16, T##_min, T##x16, x.v[l] < y.v[l] ? x.v[l] : y.v[l]) \
  IC_MAP1(T##x16, T##_sqrt, T##x16, SQRT(x.v[l])) \
  IC_INLINE T##x16 T##_fma(T##x16 x, T##x16 y, T##x16 z) { \
    IC_LANES(T##x16, 16, FMA(x.v[l], y.v[l], z.v[l])) \
  } \
  IC_INLINE T##x16 T##_fnma(T##x16 x, T##x16 y, T##x16 z) { \
    IC_LANES(T##x16, 16, FMA(-x.v[l], y.v[l], z.v[l])) \
  } \
  IC_INLINE U##x16 T##_bits(T##x16 x) { \
    U##x16 r; \
    memcpy(r.v, x.v, sizeof r.v); \
    return r; \
  } \
  IC_INLINE T##x16 T##_from_bits(U##x16 x) { \
    T##x16 r; \
    memcpy(r.v, x.v, sizeof r.v); \
    return r; \
  } \
  IC_MAP2(M##x16, T##_lt, T##x16, x.v[l] < y.v[l] ? ~(UT)0 : 0) \
  IC_MAP2(M##x16, T##_le, T##x16, x.v[l] <= y.v[l] ? ~(UT)0 : 0) \
  IC_MAP2(M##x16, T##_eq, T##x16, x.v[l] == y.v[l] ? ~(UT)0 : 0) \
  IC_INLINE T##x16 T##_select(M##x16 m, T##x16 x, T##x16 y) { \
    IC_LANES(T##x16, 16, m.v[l] ? x.v[l] : y.v[l]) \
  } \
  IC_INLINE T##x16 T##_round(T##x16 x) { \
    return T##_sub(T##_add(x, T##_set(MAGIC)), T##_set(MAGIC)); \
  } \
  IC_INLINE S T##_fold_add(T##x16 x) { \
    for (int half = 8; half; half /= 2) \
      for (int l = 0; l < half; l++) x.v[l] = x.v[l] + x.v[l + half]; \
    return x.v[0]; \
  } \
  IC_INLINE S T##_fold_max(T##x16 x) { \
    for (int half = 8; half; half /= 2) \
      for (int l = 0; l < half; l++) x.v[l] = x.v[l] > x.v[l + half] ? x.v[l] : x.v[l + half]; \
    return x.v[0]; \
  } \
  IC_MAP2(M##x16, M##_and, M##x16, x.v[l] & y.v[l]) \
  IC_MAP2(M##x16, M##_andnot, M##x16, ~x.v[l] & y.v[l]) \
  IC_INLINE M##x16 M##_first(int n) { IC_LANES(M##x16, 16, l < n ? ~(UT)0 : 0) } \
  IC_INLINE unsigned M##_bits(M##x16 m) { \
    unsigned bits = 0; \
    for (int l = 0; l < 16; l++) bits |= (m.v[l] ? 1u : 0u) << l; \
    return bits; \
  } \
  IC_INLINE U##x16 U##_set(UT s) { IC_LANES(U##x16, 16, s) } \
  IC_MAP2(U##x16, U##_add, U##x16, x.v[l] + y.v[l]) \
  IC_MAP2(U##x16, U##_sub, U##x16, x.v[l] - y.v[l]) \
  IC_MAP2(U##x16, U##_and, U##x16, x.v[l] & y.v[l]) \
  IC_MAP2(U##x16, U##_or, U##x16, x.v[l] | y.v[l]) \
  IC_MAP2(U##x16, U##_xor, U##x16, x.v[l] ^ y.v[l]) \
  IC_INLINE U##x16 U##_count(U##x16 n, M##x16 m) { IC_LANES(U##x16, 16, n.v[l] + (m.v[l] & 1)) } \
  IC_INLINE uint64_t U##_total(U##x16 x) { \
    uint64_t sum = 0; \
    for (int l = 0; l < 16; l++) sum += x.v[l]; \
    return sum; \
  } \
  IC_INLINE U##x16 U##_shl(U##x16 x, int n) { IC_LANES(U##x16, 16, x.v[l] << n) } \
  IC_INLINE U##x16 U##_shr(U##x16 x, int n) { IC_LANES(U##x16, 16, x.v[l] >> n) } \
  IC_MAP1(M##x16, U##_sign_mask, U##x16, (x.v[l] >> (8 * sizeof(UT) - 1)) ? ~(UT)0 : 0) \
  IC_INLINE T##x16 T##_abs(T##x16 x) { \
    return T##_from_bits(U##_and(T##_bits(x), U##_set(~(UT)0 >> 1))); \
  } \
  IC_INLINE T##x16 T##_neg(T##x16 x) { \
    return T##_from_bits(U##_xor(T##_bits(x), U##_set(~(~(UT)0 >> 1)))); \
  } \
  IC_INLINE T##x16 T##_copysign(T##x16 x, T##x16 y) { \
    const U##x16 magnitude = U##_set(~(UT)0 >> 1), sign = U##_set(~(~(UT)0 >> 1)); \
    return T##_from_bits( \
        U##_or(U##_and(T##_bits(x), magnitude), U##_and(T##_bits(y), sign))); \
  }

IC_FLOAT(f32, float, u32, m32, uint32_t, fmaf, sqrtf, 0x1.8p23f)
IC_FLOAT(f64, double, u64, m64, uint64_t, fma, sqrt, 0x1.8p52)

IC_INLINE void f64_store_halves(double *p, f64x16 x) {
  for (int l = 0; l < 8; l++) p[l] = x.v[l] + x.v[l + 8];
}
IC_INLINE double ic_fold_half(const double *x) {
  const double a = x[0] + x[4], b = x[1] + x[5], c = x[2] + x[6], d = x[3] + x[7];
  return (a + c) + (b + d);
}
IC_INLINE f64x16 f64_fold_rows(const double *x) {
  IC_LANES(f64x16, 16, ic_fold_half(x + 8 * l))
}
IC_INLINE f64x16 f64_one(void) { return f64_set(1); }
IC_INLINE f64x16 f64_fma_add(f64x16 x, f64x16 one, f64x16 y) {
  (void)one;
  return f64_add(x, y);
}
IC_INLINE f32x16 f32_abs_max(f32x16 x, f32x16 m) { return f32_max(f32_abs(x), m); }
IC_INLINE f64x16 f64_abs_max(f64x16 x, f64x16 m) { return f64_max(f64_abs(x), m); }

IC_INLINE void u32_store(uint32_t *p, u32x16 x) { memcpy(p, x.v, sizeof x.v); }
IC_INLINE u32x16 u32_sra(u32x16 x, int n) {
  IC_LANES(u32x16, 16, (x.v[l] >> n) | ((x.v[l] >> 31) ? ~(~0u >> n) : 0u))
}
IC_INLINE f32x16 f32_from_i32(u32x16 x) { IC_LANES(f32x16, 16, (float)(int32_t)x.v[l]) }
IC_INLINE f64x16 f64_from_f32(f32x16 x) { IC_LANES(f64x16, 16, (double)x.v[l]) }
IC_INLINE f64x16 f64_from_f64(f64x16 x) { return x; }
IC_INLINE f64x16 f64_load_f32(const float *p) { IC_LANES(f64x16, 16, (double)p[l]) }
IC_INLINE f64x16 f64_load_f64(const double *p) { return f64_load(p); }
IC_INLINE f32x16 f32_from_f64(f64x16 x) { IC_LANES(f32x16, 16, (float)x.v[l]) }
IC_INLINE uint16_t ic_f16_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude < 0x38800000) { /* below 2^-14: adding 1/2 leaves the multiples of 2^-24 */
    float sum;
    memcpy(&sum, &magnitude, sizeof sum);
    sum += 0.5f;
    memcpy(&bits, &sum, sizeof bits);
    return (uint16_t)(sign | (bits - 0x3F000000));
  }
  const uint32_t rounded = (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  return (uint16_t)(sign | (rounded < 0x23C00 ? rounded - 0x1C000 : 0x7C00));
}
IC_INLINE void f16_store(uint16_t *p, f32x16 x) {
  uint16_t halves[16];
  for (int l = 0; l < 16; l++) halves[l] = ic_f16_bits(x.v[l]);
  memcpy(p, halves, sizeof halves);
}
IC_INLINE void bf16_store(uint16_t *p, f32x16 x) {
  const u32x16 bits = f32_bits(x);
  uint16_t halves[16];
  for (int l = 0; l < 16; l++)
    halves[l] = (uint16_t)((bits.v[l] + 0x7FFF + (bits.v[l] >> 16 & 1)) >> 16);
  memcpy(p, halves, sizeof halves);
}
IC_INLINE m32x16 m32_nonzero(const uint8_t *p) { IC_LANES(m32x16, 16, p[l] ? ~0u : 0u) }
IC_INLINE m64x16 m64_nonzero(const uint8_t *p) {
  IC_LANES(m64x16, 16, p[l] ? ~(uint64_t)0 : 0)
}

IC_INLINE u64x8 blocks_low(uint64_t first) { IC_LANES(u64x8, 8, first + (uint64_t)l) }
IC_INLINE u64x8 blocks_high(uint64_t first) { IC_LANES(u64x8, 8, first + 8 + (uint64_t)l) }
IC_INLINE u64x8 blocks_set(uint64_t s) { IC_LANES(u64x8, 8, s) }
IC_INLINE u64x8 blocks_mul32(u64x8 x, u64x8 y) {
  IC_LANES(u64x8, 8, (uint64_t)(uint32_t)x.v[l] * (uint32_t)y.v[l])
}
IC_INLINE u64x8 blocks_xor(u64x8 x, u64x8 y) { IC_LANES(u64x8, 8, x.v[l] ^ y.v[l]) }
IC_INLINE u64x8 blocks_high32(u64x8 x) { IC_LANES(u64x8, 8, x.v[l] >> 32) }
IC_INLINE u32x16 blocks_pack(u64x8 low, u64x8 high) {
  IC_LANES(u32x16, 16, (uint32_t)(l < 8 ? low.v[l] : high.v[l - 8]))
}
IC_INLINE u64x16 blocks_join(u64x8 top_low, u64x8 top_high, u64x8 low, u64x8 high) {
  IC_LANES(u64x16, 16,
           (l < 8 ? top_low.v[l] : top_high.v[l - 8]) << 32 |
               (uint32_t)(l < 8 ? low.v[l] : high.v[l - 8]))
}

#endif
