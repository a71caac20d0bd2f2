/* SPDX-License-Identifier: BSD-3-Clause */
/* The vector vocabulary in AVX2 + FMA: 16 lanes in 2 (32-bit) or 4 (64-bit) registers.
 * simd/portable.h is the same vocabulary lane by lane and documents every word of it. */
#ifndef IC_SIMD_H
#define IC_SIMD_H
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "simd/avx2.h belongs in files compiled with -mavx2 -mfma -mf16c"
#endif

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define IC_ISA avx2
#define IC_INLINE static inline __attribute__((always_inline))
/* The product's register tile: 6 rows x 2 registers of the 16 there are, for both types. */
#define IC_TILE_ROWS_f32 6
#define IC_TILE_ROWS_f64 6
#define IC_TILE_PANELS_f32 1
#define IC_TILE_PANELS_f64 1
#define IC_TILE_f32 f32
#define IC_TILE_f64 f64x8
#define IC_TILE_VECTOR_f32 f32x16
#define IC_TILE_VECTOR_f64 f64x8

typedef struct { __m256 a, b; } f32x16;
typedef struct { __m256d a, b, c, d; } f64x16;
typedef struct { __m256d a, b; } f64x8;
typedef struct { __m256i a, b; } u32x16;
typedef struct { __m256i a, b, c, d; } u64x16;
typedef struct { __m256 a, b; } m32x16;
typedef struct { __m256d a, b, c, d; } m64x16;
typedef struct { __m256i even, odd; } u64x8; /* eight blocks: 0 2 4 6 and 1 3 5 7 */

#define IC_PAIR1(out, name, in, op) \
  IC_INLINE out name(in x) { return (out){op(x.a), op(x.b)}; }
#define IC_PAIR2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { return (out){op(x.a, y.a), op(x.b, y.b)}; }
#define IC_QUAD1(out, name, in, op) \
  IC_INLINE out name(in x) { return (out){op(x.a), op(x.b), op(x.c), op(x.d)}; }
#define IC_QUAD2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { \
    return (out){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; \
  }

/* float32 */
IC_INLINE f32x16 f32_set(float x) { return (f32x16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
IC_INLINE f32x16 f32_zero(void) { return f32_set(0.0f); }
IC_INLINE f32x16 f32_load(const float *p) {
  return (f32x16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
IC_INLINE void f32_store(float *p, f32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
IC_PAIR2(f32x16, f32_add, f32x16, _mm256_add_ps)
IC_PAIR2(f32x16, f32_sub, f32x16, _mm256_sub_ps)
IC_PAIR2(f32x16, f32_mul, f32x16, _mm256_mul_ps)
IC_PAIR2(f32x16, f32_div, f32x16, _mm256_div_ps)
IC_PAIR2(f32x16, f32_max, f32x16, _mm256_max_ps)
IC_PAIR2(f32x16, f32_min, f32x16, _mm256_min_ps)
IC_PAIR1(f32x16, f32_sqrt, f32x16, _mm256_sqrt_ps)
IC_INLINE f32x16 f32_fma(f32x16 x, f32x16 y, f32x16 z) {
  return (f32x16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
IC_INLINE f32x16 f32_fnma(f32x16 x, f32x16 y, f32x16 z) {
  return (f32x16){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
IC_INLINE f32x16 f32_abs(f32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (f32x16){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
IC_INLINE __m256 ic_abs_max_ps(__m256 x, __m256 m) {
  const __m256i magnitude = _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
  return _mm256_castsi256_ps(_mm256_max_epi32(magnitude, _mm256_castps_si256(m)));
}
IC_PAIR2(f32x16, f32_abs_max, f32x16, ic_abs_max_ps)
IC_INLINE f32x16 f32_neg(f32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (f32x16){_mm256_xor_ps(sign, x.a), _mm256_xor_ps(sign, x.b)};
}
IC_INLINE f32x16 f32_copysign(f32x16 x, f32x16 y) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (f32x16){_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
                  _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b))};
}
IC_INLINE f32x16 f32_round(f32x16 x) {
  const f32x16 magic = f32_set(0x1.8p23f);
  return f32_sub(f32_add(x, magic), magic);
}
IC_INLINE m32x16 f32_lt(f32x16 x, f32x16 y) {
  return (m32x16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
IC_INLINE m32x16 f32_le(f32x16 x, f32x16 y) {
  return (m32x16){_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
IC_INLINE m32x16 f32_eq(f32x16 x, f32x16 y) {
  return (m32x16){_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
IC_INLINE f32x16 f32_select(m32x16 m, f32x16 x, f32x16 y) {
  return (f32x16){_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
IC_PAIR1(u32x16, f32_bits, f32x16, _mm256_castps_si256)
IC_PAIR1(f32x16, f32_from_bits, u32x16, _mm256_castsi256_ps)
IC_PAIR1(f32x16, f32_from_i32, u32x16, _mm256_cvtepi32_ps)
IC_INLINE float f32_fold_add(f32x16 x) {
  const __m256 v = _mm256_add_ps(x.a, x.b);
  __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_add_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}
IC_INLINE float f32_fold_max(f32x16 x) {
  const __m256 v = _mm256_max_ps(x.a, x.b);
  __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_max_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
}

/* masks */
IC_PAIR2(m32x16, m32_and, m32x16, _mm256_and_ps)
IC_PAIR2(m32x16, m32_andnot, m32x16, _mm256_andnot_ps)
IC_INLINE unsigned m32_bits(m32x16 m) {
  return (unsigned)_mm256_movemask_ps(m.a) | (unsigned)_mm256_movemask_ps(m.b) << 8;
}
IC_QUAD2(m64x16, m64_and, m64x16, _mm256_and_pd)
IC_QUAD2(m64x16, m64_andnot, m64x16, _mm256_andnot_pd)
IC_INLINE unsigned m64_bits(m64x16 m) {
  return (unsigned)_mm256_movemask_pd(m.a) | (unsigned)_mm256_movemask_pd(m.b) << 4 |
         (unsigned)_mm256_movemask_pd(m.c) << 8 | (unsigned)_mm256_movemask_pd(m.d) << 12;
}

/* float64 */
IC_INLINE f64x16 f64_set(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return (f64x16){v, v, v, v};
}
IC_INLINE f64x16 f64_zero(void) { return f64_set(0.0); }
IC_INLINE f64x16 f64_load(const double *p) {
  return (f64x16){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8),
                  _mm256_loadu_pd(p + 12)};
}
IC_INLINE void f64_store(double *p, f64x16 x) {
  _mm256_storeu_pd(p, x.a);
  _mm256_storeu_pd(p + 4, x.b);
  _mm256_storeu_pd(p + 8, x.c);
  _mm256_storeu_pd(p + 12, x.d);
}
IC_QUAD2(f64x16, f64_add, f64x16, _mm256_add_pd)
IC_QUAD2(f64x16, f64_sub, f64x16, _mm256_sub_pd)
IC_QUAD2(f64x16, f64_mul, f64x16, _mm256_mul_pd)
IC_QUAD2(f64x16, f64_div, f64x16, _mm256_div_pd)
IC_QUAD2(f64x16, f64_max, f64x16, _mm256_max_pd)
IC_QUAD2(f64x16, f64_min, f64x16, _mm256_min_pd)
IC_QUAD1(f64x16, f64_sqrt, f64x16, _mm256_sqrt_pd)
IC_INLINE f64x16 f64_fma(f64x16 x, f64x16 y, f64x16 z) {
  return (f64x16){_mm256_fmadd_pd(x.a, y.a, z.a), _mm256_fmadd_pd(x.b, y.b, z.b),
                  _mm256_fmadd_pd(x.c, y.c, z.c), _mm256_fmadd_pd(x.d, y.d, z.d)};
}
IC_INLINE f64x16 f64_one(void) {
  double one = 1;
  __asm__("" : "+x"(one)); /* else the compiler makes additions of the fmas again */
  return f64_set(one);
}
IC_INLINE f64x16 f64_fma_add(f64x16 x, f64x16 one, f64x16 y) { return f64_fma(x, one, y); }
IC_INLINE f64x16 f64_fnma(f64x16 x, f64x16 y, f64x16 z) {
  return (f64x16){_mm256_fnmadd_pd(x.a, y.a, z.a), _mm256_fnmadd_pd(x.b, y.b, z.b),
                  _mm256_fnmadd_pd(x.c, y.c, z.c), _mm256_fnmadd_pd(x.d, y.d, z.d)};
}
IC_INLINE f64x16 f64_abs(f64x16 x) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return (f64x16){_mm256_andnot_pd(sign, x.a), _mm256_andnot_pd(sign, x.b),
                  _mm256_andnot_pd(sign, x.c), _mm256_andnot_pd(sign, x.d)};
}
IC_INLINE f64x16 f64_abs_max(f64x16 x, f64x16 m) { return f64_max(f64_abs(x), m); }
IC_INLINE f64x16 f64_neg(f64x16 x) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return (f64x16){_mm256_xor_pd(sign, x.a), _mm256_xor_pd(sign, x.b), _mm256_xor_pd(sign, x.c),
                  _mm256_xor_pd(sign, x.d)};
}
IC_INLINE __m256d ic_copysign_pd(__m256d x, __m256d y) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return _mm256_or_pd(_mm256_andnot_pd(sign, x), _mm256_and_pd(sign, y));
}
IC_QUAD2(f64x16, f64_copysign, f64x16, ic_copysign_pd)
IC_INLINE f64x16 f64_round(f64x16 x) {
  const f64x16 magic = f64_set(0x1.8p52);
  return f64_sub(f64_add(x, magic), magic);
}
#define IC_LT_PD(x, y) _mm256_cmp_pd(x, y, _CMP_LT_OQ)
#define IC_LE_PD(x, y) _mm256_cmp_pd(x, y, _CMP_LE_OQ)
#define IC_EQ_PD(x, y) _mm256_cmp_pd(x, y, _CMP_EQ_OQ)
IC_QUAD2(m64x16, f64_lt, f64x16, IC_LT_PD)
IC_QUAD2(m64x16, f64_le, f64x16, IC_LE_PD)
IC_QUAD2(m64x16, f64_eq, f64x16, IC_EQ_PD)
#undef IC_LT_PD
#undef IC_LE_PD
#undef IC_EQ_PD
IC_INLINE f64x16 f64_select(m64x16 m, f64x16 x, f64x16 y) {
  return (f64x16){_mm256_blendv_pd(y.a, x.a, m.a), _mm256_blendv_pd(y.b, x.b, m.b),
                  _mm256_blendv_pd(y.c, x.c, m.c), _mm256_blendv_pd(y.d, x.d, m.d)};
}
IC_QUAD1(u64x16, f64_bits, f64x16, _mm256_castpd_si256)
IC_QUAD1(f64x16, f64_from_bits, u64x16, _mm256_castsi256_pd)
IC_INLINE f64x16 f64_from_f32(f32x16 x) {
  return (f64x16){_mm256_cvtps_pd(_mm256_castps256_ps128(x.a)),
                  _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)),
                  _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)),
                  _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1))};
}
IC_INLINE f64x16 f64_from_f64(f64x16 x) { return x; }
IC_INLINE f32x16 f32_from_f64(f64x16 x) {
  return (f32x16){_mm256_set_m128(_mm256_cvtpd_ps(x.b), _mm256_cvtpd_ps(x.a)),
                  _mm256_set_m128(_mm256_cvtpd_ps(x.d), _mm256_cvtpd_ps(x.c))};
}
IC_INLINE f64x16 f64_load_f32(const float *p) { /* from memory: no shuffle, unlike f64_from_f32 */
  return (f64x16){_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4)),
                  _mm256_cvtps_pd(_mm_loadu_ps(p + 8)), _mm256_cvtps_pd(_mm_loadu_ps(p + 12))};
}
IC_INLINE f64x16 f64_load_f64(const double *p) { return f64_load(p); }
IC_INLINE double f64_fold_add(f64x16 x) {
  const __m256d v = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
  const __m128d w = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(w, _mm_unpackhi_pd(w, w)));
}
IC_INLINE void f64_store_halves(double *p, f64x16 x) {
  _mm256_storeu_pd(p, _mm256_add_pd(x.a, x.c));
  _mm256_storeu_pd(p + 4, _mm256_add_pd(x.b, x.d));
}
IC_INLINE __m256d ic_fold_rows(const double *x) { /* four rows */
  __m256d v[4];
  for (int r = 0; r < 4; r++)
    v[r] = _mm256_add_pd(_mm256_loadu_pd(x + 8 * r), _mm256_loadu_pd(x + 8 * r + 4));
  for (int r = 0; r < 2; r++) /* rows r and r + 2: 0 0 2 2 */
    v[r] = _mm256_add_pd(_mm256_blend_pd(v[r], v[r + 2], 0xC),
                         _mm256_permute2f128_pd(v[r], v[r + 2], 0x21));
  return _mm256_add_pd(_mm256_blend_pd(v[0], v[1], 0xA), _mm256_shuffle_pd(v[0], v[1], 0x5));
}
IC_INLINE f64x16 f64_fold_rows(const double *x) {
  return (f64x16){ic_fold_rows(x), ic_fold_rows(x + 32), ic_fold_rows(x + 64),
                  ic_fold_rows(x + 96)};
}
IC_INLINE double f64_fold_max(f64x16 x) {
  const __m256d v = _mm256_max_pd(_mm256_max_pd(x.a, x.c), _mm256_max_pd(x.b, x.d));
  const __m128d w = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_max_sd(w, _mm_unpackhi_pd(w, w)));
}

/* float64, eight lanes: 3 rows x 4 registers would not leave room for the operands */
IC_INLINE f64x8 f64x8_set(double x) { return (f64x8){_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
IC_INLINE f64x8 f64x8_zero(void) { return f64x8_set(0.0); }
IC_INLINE f64x8 f64x8_load(const double *p) {
  return (f64x8){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}
IC_INLINE void f64x8_store(double *p, f64x8 x) {
  _mm256_storeu_pd(p, x.a);
  _mm256_storeu_pd(p + 4, x.b);
}
IC_PAIR2(f64x8, f64x8_add, f64x8, _mm256_add_pd)
IC_INLINE f64x8 f64x8_fma(f64x8 x, f64x8 y, f64x8 z) {
  return (f64x8){_mm256_fmadd_pd(x.a, y.a, z.a), _mm256_fmadd_pd(x.b, y.b, z.b)};
}

/* uint32 and uint64 */
IC_INLINE u32x16 u32_set(uint32_t x) {
  return (u32x16){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
IC_INLINE void u32_store(uint32_t *p, u32x16 x) {
  _mm256_storeu_si256((__m256i *)p, x.a);
  _mm256_storeu_si256((__m256i *)(p + 8), x.b);
}
IC_PAIR2(u32x16, u32_add, u32x16, _mm256_add_epi32)
IC_PAIR2(u32x16, u32_sub, u32x16, _mm256_sub_epi32)
IC_PAIR2(u32x16, u32_and, u32x16, _mm256_and_si256)
IC_PAIR2(u32x16, u32_or, u32x16, _mm256_or_si256)
IC_PAIR2(u32x16, u32_xor, u32x16, _mm256_xor_si256)
#define u32_shl(x, n) ((u32x16){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
#define u32_shr(x, n) ((u32x16){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})
#define u32_sra(x, n) ((u32x16){_mm256_srai_epi32((x).a, n), _mm256_srai_epi32((x).b, n)})
IC_PAIR1(m32x16, u32_sign_mask, u32x16, _mm256_castsi256_ps)
IC_INLINE u32x16 u32_count(u32x16 n, m32x16 m) {
  return (u32x16){_mm256_sub_epi32(n.a, _mm256_castps_si256(m.a)),
                  _mm256_sub_epi32(n.b, _mm256_castps_si256(m.b))};
}
IC_INLINE uint64_t u32_total(u32x16 x) {
  uint32_t lanes[16];
  uint64_t sum = 0;
  u32_store(lanes, x);
  for (int l = 0; l < 16; l++) sum += lanes[l];
  return sum;
}

IC_INLINE u64x16 u64_set(uint64_t x) {
  const __m256i v = _mm256_set1_epi64x((long long)x);
  return (u64x16){v, v, v, v};
}
IC_QUAD2(u64x16, u64_add, u64x16, _mm256_add_epi64)
IC_QUAD2(u64x16, u64_sub, u64x16, _mm256_sub_epi64)
IC_QUAD2(u64x16, u64_and, u64x16, _mm256_and_si256)
IC_QUAD2(u64x16, u64_or, u64x16, _mm256_or_si256)
IC_QUAD2(u64x16, u64_xor, u64x16, _mm256_xor_si256)
#define IC_U64_SHIFT(x, n, op) \
  ((u64x16){op((x).a, n), op((x).b, n), op((x).c, n), op((x).d, n)})
#define u64_shl(x, n) IC_U64_SHIFT(x, n, _mm256_slli_epi64)
#define u64_shr(x, n) IC_U64_SHIFT(x, n, _mm256_srli_epi64)
IC_QUAD1(m64x16, u64_sign_mask, u64x16, _mm256_castsi256_pd)
IC_INLINE u64x16 u64_count(u64x16 n, m64x16 m) {
  return (u64x16){_mm256_sub_epi64(n.a, _mm256_castpd_si256(m.a)),
                  _mm256_sub_epi64(n.b, _mm256_castpd_si256(m.b)),
                  _mm256_sub_epi64(n.c, _mm256_castpd_si256(m.c)),
                  _mm256_sub_epi64(n.d, _mm256_castpd_si256(m.d))};
}
IC_INLINE uint64_t u64_total(u64x16 x) {
  const __m256i v = _mm256_add_epi64(_mm256_add_epi64(x.a, x.c), _mm256_add_epi64(x.b, x.d));
  const __m128i w = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(w, _mm_unpackhi_epi64(w, w)));
}

/* float16 and bfloat16 */
IC_INLINE void f16_store(uint16_t *p, f32x16 x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
IC_INLINE void bf16_store(uint16_t *p, f32x16 x) {
  const u32x16 bits = f32_bits(x), odd = u32_and(u32_shr(bits, 16), u32_set(1));
  const u32x16 r = u32_shr(u32_add(u32_add(bits, u32_set(0x7FFF)), odd), 16);
  const __m256i packed = _mm256_packus_epi32(r.a, r.b); /* within 128-bit lanes: 0 2 1 3 */
  _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xD8));
}

/* lane masks and tails */
IC_INLINE m32x16 m32_nonzero(const uint8_t *p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  const __m128i m = _mm_cmpgt_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(1)), _mm_setzero_si128());
  return (m32x16){_mm256_castsi256_ps(_mm256_cvtepi8_epi32(m)),
                  _mm256_castsi256_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(m, 8)))};
}
IC_INLINE m64x16 m64_nonzero(const uint8_t *p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  const __m128i m = _mm_cmpgt_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(1)), _mm_setzero_si128());
  return (m64x16){_mm256_castsi256_pd(_mm256_cvtepi8_epi64(m)),
                  _mm256_castsi256_pd(_mm256_cvtepi8_epi64(_mm_srli_si128(m, 4))),
                  _mm256_castsi256_pd(_mm256_cvtepi8_epi64(_mm_srli_si128(m, 8))),
                  _mm256_castsi256_pd(_mm256_cvtepi8_epi64(_mm_srli_si128(m, 12)))};
}
IC_INLINE u32x16 ic_lane_order(int n) {
  const __m256i m = _mm256_set1_epi32(n);
  return (u32x16){_mm256_cmpgt_epi32(m, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                  _mm256_cmpgt_epi32(m, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}
IC_INLINE m32x16 m32_first(int n) { return u32_sign_mask(ic_lane_order(n)); }
IC_INLINE m64x16 m64_first(int n) {
  const __m256i m = _mm256_set1_epi64x(n);
#define IC_FIRST(i) \
  _mm256_castsi256_pd(_mm256_cmpgt_epi64(m, _mm256_setr_epi64x(i, i + 1, i + 2, i + 3)))
  return (m64x16){IC_FIRST(0), IC_FIRST(4), IC_FIRST(8), IC_FIRST(12)};
#undef IC_FIRST
}
IC_INLINE f32x16 f32_load_first(const float *p, int n) {
  const u32x16 m = ic_lane_order(n);
  return (f32x16){_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}
IC_INLINE void f32_store_first(float *p, f32x16 x, int n) {
  const u32x16 m = ic_lane_order(n);
  _mm256_maskstore_ps(p, m.a, x.a);
  _mm256_maskstore_ps(p + 8, m.b, x.b);
}
IC_INLINE f64x16 f64_load_first(const double *p, int n) {
  const m64x16 m = m64_first(n);
  return (f64x16){_mm256_maskload_pd(p, _mm256_castpd_si256(m.a)),
                  _mm256_maskload_pd(p + 4, _mm256_castpd_si256(m.b)),
                  _mm256_maskload_pd(p + 8, _mm256_castpd_si256(m.c)),
                  _mm256_maskload_pd(p + 12, _mm256_castpd_si256(m.d))};
}
IC_INLINE void f64_store_first(double *p, f64x16 x, int n) {
  const m64x16 m = m64_first(n);
  _mm256_maskstore_pd(p, _mm256_castpd_si256(m.a), x.a);
  _mm256_maskstore_pd(p + 4, _mm256_castpd_si256(m.b), x.b);
  _mm256_maskstore_pd(p + 8, _mm256_castpd_si256(m.c), x.c);
  _mm256_maskstore_pd(p + 12, _mm256_castpd_si256(m.d), x.d);
}

/* Philox blocks: sixteen as two u64x8, one block a 64-bit lane */
#define IC_BLOCKS(first) \
  ((u64x8){_mm256_add_epi64(_mm256_set1_epi64x((long long)(first)), _mm256_setr_epi64x(0, 2, 4, 6)), \
           _mm256_add_epi64(_mm256_set1_epi64x((long long)(first)), _mm256_setr_epi64x(1, 3, 5, 7))})
IC_INLINE u64x8 blocks_low(uint64_t first) { return IC_BLOCKS(first); }
IC_INLINE u64x8 blocks_high(uint64_t first) { return IC_BLOCKS(first + 8); }
#undef IC_BLOCKS
IC_INLINE u64x8 blocks_set(uint64_t x) {
  const __m256i v = _mm256_set1_epi64x((long long)x);
  return (u64x8){v, v};
}
IC_INLINE u64x8 blocks_mul32(u64x8 x, u64x8 y) {
  return (u64x8){_mm256_mul_epu32(x.even, y.even), _mm256_mul_epu32(x.odd, y.odd)};
}
IC_INLINE u64x8 blocks_xor(u64x8 x, u64x8 y) {
  return (u64x8){_mm256_xor_si256(x.even, y.even), _mm256_xor_si256(x.odd, y.odd)};
}
IC_INLINE u64x8 blocks_high32(u64x8 x) {
  return (u64x8){_mm256_srli_epi64(x.even, 32), _mm256_srli_epi64(x.odd, 32)};
}
IC_INLINE u32x16 blocks_pack(u64x8 low, u64x8 high) {
  return (u32x16){_mm256_blend_epi32(low.even, _mm256_slli_epi64(low.odd, 32), 0xAA),
                  _mm256_blend_epi32(high.even, _mm256_slli_epi64(high.odd, 32), 0xAA)};
}
IC_INLINE u64x16 blocks_join(u64x8 top_low, u64x8 top_high, u64x8 low, u64x8 high) {
  /* even and odd blocks interleave to 0 1 4 5 and 2 3 6 7, then to 0 1 2 3 and 4 5 6 7 */
  const __m256i e0 = _mm256_blend_epi32(low.even, _mm256_slli_epi64(top_low.even, 32), 0xAA);
  const __m256i o0 = _mm256_blend_epi32(low.odd, _mm256_slli_epi64(top_low.odd, 32), 0xAA);
  const __m256i e1 = _mm256_blend_epi32(high.even, _mm256_slli_epi64(top_high.even, 32), 0xAA);
  const __m256i o1 = _mm256_blend_epi32(high.odd, _mm256_slli_epi64(top_high.odd, 32), 0xAA);
  const __m256i x0 = _mm256_unpacklo_epi64(e0, o0), y0 = _mm256_unpackhi_epi64(e0, o0);
  const __m256i x1 = _mm256_unpacklo_epi64(e1, o1), y1 = _mm256_unpackhi_epi64(e1, o1);
  return (u64x16){_mm256_permute2x128_si256(x0, y0, 0x20), _mm256_permute2x128_si256(x0, y0, 0x31),
                  _mm256_permute2x128_si256(x1, y1, 0x20), _mm256_permute2x128_si256(x1, y1, 0x31)};
}

#endif
