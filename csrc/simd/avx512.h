/* SPDX-License-Identifier: BSD-3-Clause */
/* The vector vocabulary in AVX-512 (F, BW, DQ, VL): 16 lanes in 1 (32-bit) or 2 (64-bit) registers.
 * simd/portable.h is the same vocabulary lane by lane and documents every word of it. */
#ifndef IC_SIMD_H
#define IC_SIMD_H
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__)
#error "simd/avx512.h belongs in files compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define IC_ISA avx512
#define IC_INLINE static inline __attribute__((always_inline))
/* Rows of the product's register tile: 12 x 1 (float32) and 8 x 2 (float64) of 32 registers. */
#define IC_TILE_ROWS_f32 12
#define IC_TILE_ROWS_f64 8
#define IC_TILE_PANELS_f32 2
#define IC_TILE_PANELS_f64 1
#define IC_TILE_f32 f32
#define IC_TILE_f64 f64
#define IC_TILE_VECTOR_f32 f32x16
#define IC_TILE_VECTOR_f64 f64x16

typedef struct { __m512 a; } f32x16;
typedef struct { __m512d a, b; } f64x16;
typedef struct { __m512i a; } u32x16;
typedef struct { __m512i a, b; } u64x16;
typedef struct { __mmask16 a; } m32x16;
typedef struct { __mmask8 a, b; } m64x16;
typedef struct { __m512i a; } u64x8; /* eight blocks: low 0 2 4 ... 14, high 1 3 5 ... 15 */

#define IC_ONE1(out, name, in, op) \
  IC_INLINE out name(in x) { return (out){op(x.a)}; }
#define IC_ONE2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { return (out){op(x.a, y.a)}; }
#define IC_TWO1(out, name, in, op) \
  IC_INLINE out name(in x) { return (out){op(x.a), op(x.b)}; }
#define IC_TWO2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { return (out){op(x.a, y.a), op(x.b, y.b)}; }

/* float32 */
IC_INLINE f32x16 f32_set(float x) { return (f32x16){_mm512_set1_ps(x)}; }
IC_INLINE f32x16 f32_zero(void) { return (f32x16){_mm512_setzero_ps()}; }
IC_INLINE f32x16 f32_load(const float *p) { return (f32x16){_mm512_loadu_ps(p)}; }
IC_INLINE void f32_store(float *p, f32x16 x) { _mm512_storeu_ps(p, x.a); }
IC_ONE2(f32x16, f32_add, f32x16, _mm512_add_ps)
IC_ONE2(f32x16, f32_sub, f32x16, _mm512_sub_ps)
IC_ONE2(f32x16, f32_mul, f32x16, _mm512_mul_ps)
IC_ONE2(f32x16, f32_div, f32x16, _mm512_div_ps)
IC_ONE2(f32x16, f32_max, f32x16, _mm512_max_ps)
IC_ONE2(f32x16, f32_min, f32x16, _mm512_min_ps)
IC_ONE1(f32x16, f32_sqrt, f32x16, _mm512_sqrt_ps)
IC_INLINE f32x16 f32_fma(f32x16 x, f32x16 y, f32x16 z) {
  return (f32x16){_mm512_fmadd_ps(x.a, y.a, z.a)};
}
IC_INLINE f32x16 f32_fnma(f32x16 x, f32x16 y, f32x16 z) {
  return (f32x16){_mm512_fnmadd_ps(x.a, y.a, z.a)};
}
IC_INLINE f32x16 f32_abs(f32x16 x) {
  return (f32x16){_mm512_andnot_ps(_mm512_set1_ps(-0.0f), x.a)};
}
IC_INLINE f32x16 f32_abs_max(f32x16 x, f32x16 m) {
  return (f32x16){_mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_castps_si512(f32_abs(x).a), _mm512_castps_si512(m.a)))};
}
IC_INLINE f32x16 f32_neg(f32x16 x) {
  return (f32x16){_mm512_xor_ps(_mm512_set1_ps(-0.0f), x.a)};
}
IC_INLINE f32x16 f32_copysign(f32x16 x, f32x16 y) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  return (f32x16){_mm512_or_ps(_mm512_andnot_ps(sign, x.a), _mm512_and_ps(sign, y.a))};
}
IC_INLINE f32x16 f32_round(f32x16 x) {
  const f32x16 magic = f32_set(0x1.8p23f);
  return f32_sub(f32_add(x, magic), magic);
}
IC_INLINE m32x16 f32_lt(f32x16 x, f32x16 y) {
  return (m32x16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_LT_OQ)};
}
IC_INLINE m32x16 f32_le(f32x16 x, f32x16 y) {
  return (m32x16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_LE_OQ)};
}
IC_INLINE m32x16 f32_eq(f32x16 x, f32x16 y) {
  return (m32x16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_EQ_OQ)};
}
IC_INLINE f32x16 f32_select(m32x16 m, f32x16 x, f32x16 y) {
  return (f32x16){_mm512_mask_blend_ps(m.a, y.a, x.a)};
}
IC_ONE1(u32x16, f32_bits, f32x16, _mm512_castps_si512)
IC_ONE1(f32x16, f32_from_bits, u32x16, _mm512_castsi512_ps)
IC_ONE1(f32x16, f32_from_i32, u32x16, _mm512_cvtepi32_ps)
IC_INLINE float f32_fold_add(f32x16 x) {
  const __m256 v = _mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
  __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_add_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}
IC_INLINE float f32_fold_max(f32x16 x) {
  const __m256 v = _mm256_max_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
  __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_max_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
}

/* masks */
IC_ONE2(m32x16, m32_and, m32x16, _kand_mask16)
IC_ONE2(m32x16, m32_andnot, m32x16, _kandn_mask16)
IC_INLINE unsigned m32_bits(m32x16 m) { return m.a; }
IC_TWO2(m64x16, m64_and, m64x16, _kand_mask8)
IC_TWO2(m64x16, m64_andnot, m64x16, _kandn_mask8)
IC_INLINE unsigned m64_bits(m64x16 m) { return (unsigned)m.a | (unsigned)m.b << 8; }

/* float64 */
IC_INLINE f64x16 f64_set(double x) { return (f64x16){_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
IC_INLINE f64x16 f64_zero(void) { return f64_set(0.0); }
IC_INLINE f64x16 f64_load(const double *p) {
  return (f64x16){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)};
}
IC_INLINE void f64_store(double *p, f64x16 x) {
  _mm512_storeu_pd(p, x.a);
  _mm512_storeu_pd(p + 8, x.b);
}
IC_TWO2(f64x16, f64_add, f64x16, _mm512_add_pd)
IC_TWO2(f64x16, f64_sub, f64x16, _mm512_sub_pd)
IC_TWO2(f64x16, f64_mul, f64x16, _mm512_mul_pd)
IC_TWO2(f64x16, f64_div, f64x16, _mm512_div_pd)
IC_TWO2(f64x16, f64_max, f64x16, _mm512_max_pd)
IC_TWO2(f64x16, f64_min, f64x16, _mm512_min_pd)
IC_TWO1(f64x16, f64_sqrt, f64x16, _mm512_sqrt_pd)
IC_INLINE f64x16 f64_fma(f64x16 x, f64x16 y, f64x16 z) {
  return (f64x16){_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b)};
}
IC_INLINE f64x16 f64_one(void) {
  double one = 1;
  __asm__("" : "+x"(one)); /* else the compiler makes additions of the fmas again */
  return f64_set(one);
}
IC_INLINE f64x16 f64_fma_add(f64x16 x, f64x16 one, f64x16 y) { return f64_fma(x, one, y); }
IC_INLINE f64x16 f64_fnma(f64x16 x, f64x16 y, f64x16 z) {
  return (f64x16){_mm512_fnmadd_pd(x.a, y.a, z.a), _mm512_fnmadd_pd(x.b, y.b, z.b)};
}
IC_INLINE f64x16 f64_abs(f64x16 x) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return (f64x16){_mm512_andnot_pd(sign, x.a), _mm512_andnot_pd(sign, x.b)};
}
IC_INLINE f64x16 f64_abs_max(f64x16 x, f64x16 m) { return f64_max(f64_abs(x), m); }
IC_INLINE f64x16 f64_neg(f64x16 x) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return (f64x16){_mm512_xor_pd(sign, x.a), _mm512_xor_pd(sign, x.b)};
}
IC_INLINE __m512d ic_copysign_pd(__m512d x, __m512d y) {
  const __m512d sign = _mm512_set1_pd(-0.0);
  return _mm512_or_pd(_mm512_andnot_pd(sign, x), _mm512_and_pd(sign, y));
}
IC_TWO2(f64x16, f64_copysign, f64x16, ic_copysign_pd)
IC_INLINE f64x16 f64_round(f64x16 x) {
  const f64x16 magic = f64_set(0x1.8p52);
  return f64_sub(f64_add(x, magic), magic);
}
#define IC_LT_PD(x, y) _mm512_cmp_pd_mask(x, y, _CMP_LT_OQ)
#define IC_LE_PD(x, y) _mm512_cmp_pd_mask(x, y, _CMP_LE_OQ)
#define IC_EQ_PD(x, y) _mm512_cmp_pd_mask(x, y, _CMP_EQ_OQ)
IC_TWO2(m64x16, f64_lt, f64x16, IC_LT_PD)
IC_TWO2(m64x16, f64_le, f64x16, IC_LE_PD)
IC_TWO2(m64x16, f64_eq, f64x16, IC_EQ_PD)
#undef IC_LT_PD
#undef IC_LE_PD
#undef IC_EQ_PD
IC_INLINE f64x16 f64_select(m64x16 m, f64x16 x, f64x16 y) {
  return (f64x16){_mm512_mask_blend_pd(m.a, y.a, x.a), _mm512_mask_blend_pd(m.b, y.b, x.b)};
}
IC_TWO1(u64x16, f64_bits, f64x16, _mm512_castpd_si512)
IC_TWO1(f64x16, f64_from_bits, u64x16, _mm512_castsi512_pd)
IC_INLINE f64x16 f64_from_f32(f32x16 x) {
  return (f64x16){_mm512_cvtps_pd(_mm512_castps512_ps256(x.a)),
                  _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.a, 1))};
}
IC_INLINE f64x16 f64_from_f64(f64x16 x) { return x; }
IC_INLINE f64x16 f64_load_f32(const float *p) {
  return (f64x16){_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8))};
}
IC_INLINE f64x16 f64_load_f64(const double *p) { return f64_load(p); }
IC_INLINE f32x16 f32_from_f64(f64x16 x) {
  return (f32x16){_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)),
                                     _mm512_cvtpd_ps(x.b), 1)};
}
IC_INLINE double f64_fold_add(f64x16 x) {
  const __m512d u = _mm512_add_pd(x.a, x.b);
  const __m256d v = _mm256_add_pd(_mm512_castpd512_pd256(u), _mm512_extractf64x4_pd(u, 1));
  const __m128d w = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(w, _mm_unpackhi_pd(w, w)));
}
IC_INLINE void f64_store_halves(double *p, f64x16 x) {
  _mm512_storeu_pd(p, _mm512_add_pd(x.a, x.b));
}
/* Halves of x and y, those that a mask or an immediate chooses: x's folded, then y's. */
#define IC_FOLD(x, y, blend, shuffle, immediate) \
  _mm512_add_pd(_mm512_mask_blend_pd(blend, x, y), shuffle(x, y, immediate))
IC_INLINE __m512d ic_fold_rows(const double *x) { /* eight rows */
  __m512d v[8];
  for (int r = 0; r < 8; r++) v[r] = _mm512_loadu_pd(x + 8 * r);
  for (int r = 0; r < 4; r++) /* rows r and r + 4: 0 0 0 0 4 4 4 4 */
    v[r] = IC_FOLD(v[r], v[r + 4], 0xF0, _mm512_shuffle_f64x2, 0x4E);
  for (int r = 0; r < 2; r++) { /* 0 0 2 2 4 4 6 6 */
    const __m512d crossed = _mm512_permutex_pd(_mm512_mask_blend_pd(0x33, v[r], v[r + 2]), 0x4E);
    v[r] = _mm512_add_pd(_mm512_mask_blend_pd(0xCC, v[r], v[r + 2]), crossed);
  }
  /* 0 1 2 3 4 5 6 7 */
  return IC_FOLD(v[0], v[1], 0xAA, _mm512_shuffle_pd, 0x55);
}
#undef IC_FOLD
IC_INLINE f64x16 f64_fold_rows(const double *x) {
  return (f64x16){ic_fold_rows(x), ic_fold_rows(x + 64)};
}
IC_INLINE double f64_fold_max(f64x16 x) {
  const __m512d u = _mm512_max_pd(x.a, x.b);
  const __m256d v = _mm256_max_pd(_mm512_castpd512_pd256(u), _mm512_extractf64x4_pd(u, 1));
  const __m128d w = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_max_sd(w, _mm_unpackhi_pd(w, w)));
}

/* uint32 and uint64 */
IC_INLINE u32x16 u32_set(uint32_t x) { return (u32x16){_mm512_set1_epi32((int)x)}; }
IC_INLINE void u32_store(uint32_t *p, u32x16 x) { _mm512_storeu_si512(p, x.a); }
IC_ONE2(u32x16, u32_add, u32x16, _mm512_add_epi32)
IC_ONE2(u32x16, u32_sub, u32x16, _mm512_sub_epi32)
IC_ONE2(u32x16, u32_and, u32x16, _mm512_and_si512)
IC_ONE2(u32x16, u32_or, u32x16, _mm512_or_si512)
IC_ONE2(u32x16, u32_xor, u32x16, _mm512_xor_si512)
#define u32_shl(x, n) ((u32x16){_mm512_slli_epi32((x).a, n)})
#define u32_shr(x, n) ((u32x16){_mm512_srli_epi32((x).a, n)})
#define u32_sra(x, n) ((u32x16){_mm512_srai_epi32((x).a, n)})
IC_ONE1(m32x16, u32_sign_mask, u32x16, _mm512_movepi32_mask)
IC_INLINE u32x16 u32_count(u32x16 n, m32x16 m) {
  return (u32x16){_mm512_mask_add_epi32(n.a, m.a, n.a, _mm512_set1_epi32(1))};
}
IC_INLINE uint64_t u32_total(u32x16 x) {
  uint32_t lanes[16];
  uint64_t sum = 0;
  u32_store(lanes, x);
  for (int l = 0; l < 16; l++) sum += lanes[l];
  return sum;
}

IC_INLINE u64x16 u64_set(uint64_t x) {
  const __m512i v = _mm512_set1_epi64((long long)x);
  return (u64x16){v, v};
}
IC_TWO2(u64x16, u64_add, u64x16, _mm512_add_epi64)
IC_TWO2(u64x16, u64_sub, u64x16, _mm512_sub_epi64)
IC_TWO2(u64x16, u64_and, u64x16, _mm512_and_si512)
IC_TWO2(u64x16, u64_or, u64x16, _mm512_or_si512)
IC_TWO2(u64x16, u64_xor, u64x16, _mm512_xor_si512)
#define u64_shl(x, n) ((u64x16){_mm512_slli_epi64((x).a, n), _mm512_slli_epi64((x).b, n)})
#define u64_shr(x, n) ((u64x16){_mm512_srli_epi64((x).a, n), _mm512_srli_epi64((x).b, n)})
IC_TWO1(m64x16, u64_sign_mask, u64x16, _mm512_movepi64_mask)
IC_INLINE u64x16 u64_count(u64x16 n, m64x16 m) {
  const __m512i one = _mm512_set1_epi64(1);
  return (u64x16){_mm512_mask_add_epi64(n.a, m.a, n.a, one),
                  _mm512_mask_add_epi64(n.b, m.b, n.b, one)};
}
IC_INLINE uint64_t u64_total(u64x16 x) {
  return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(x.a, x.b));
}

/* float16 and bfloat16 */
IC_INLINE void f16_store(uint16_t *p, f32x16 x) {
  /* gcc's form without a mask is a macro that warns of a conversion of its own */
  const __mmask16 all = 0xFFFF;
  _mm256_storeu_si256((__m256i *)p,
                      _mm512_maskz_cvtps_ph(all, x.a, _MM_FROUND_TO_NEAREST_INT));
}
IC_INLINE void bf16_store(uint16_t *p, f32x16 x) {
  const u32x16 bits = f32_bits(x), odd = u32_and(u32_shr(bits, 16), u32_set(1));
  const u32x16 r = u32_shr(u32_add(u32_add(bits, u32_set(0x7FFF)), odd), 16);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r.a));
}

/* lane masks and tails */
IC_INLINE m32x16 m32_nonzero(const uint8_t *p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  return (m32x16){_mm_test_epi8_mask(bytes, bytes)};
}
IC_INLINE m64x16 m64_nonzero(const uint8_t *p) {
  const unsigned m = m32_nonzero(p).a;
  return (m64x16){(__mmask8)m, (__mmask8)(m >> 8)};
}
IC_INLINE m32x16 m32_first(int n) { return (m32x16){(__mmask16)((1u << n) - 1)}; }
IC_INLINE m64x16 m64_first(int n) {
  const unsigned m = (1u << n) - 1;
  return (m64x16){(__mmask8)m, (__mmask8)(m >> 8)};
}
IC_INLINE f32x16 f32_load_first(const float *p, int n) {
  return (f32x16){_mm512_maskz_loadu_ps(m32_first(n).a, p)};
}
IC_INLINE void f32_store_first(float *p, f32x16 x, int n) {
  _mm512_mask_storeu_ps(p, m32_first(n).a, x.a);
}
IC_INLINE f64x16 f64_load_first(const double *p, int n) {
  const m64x16 m = m64_first(n);
  return (f64x16){_mm512_maskz_loadu_pd(m.a, p), _mm512_maskz_loadu_pd(m.b, p + 8)};
}
IC_INLINE void f64_store_first(double *p, f64x16 x, int n) {
  const m64x16 m = m64_first(n);
  _mm512_mask_storeu_pd(p, m.a, x.a);
  _mm512_mask_storeu_pd(p + 8, m.b, x.b);
}

/* Philox blocks: sixteen as two u64x8, one block a 64-bit lane */
#define IC_BLOCKS(first) \
  ((u64x8){_mm512_add_epi64(_mm512_set1_epi64((long long)(first)), \
                            _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14))})
IC_INLINE u64x8 blocks_low(uint64_t first) { return IC_BLOCKS(first); }
IC_INLINE u64x8 blocks_high(uint64_t first) { return IC_BLOCKS(first + 1); }
#undef IC_BLOCKS
IC_INLINE u64x8 blocks_set(uint64_t x) { return (u64x8){_mm512_set1_epi64((long long)x)}; }
IC_ONE2(u64x8, blocks_mul32, u64x8, _mm512_mul_epu32)
IC_ONE2(u64x8, blocks_xor, u64x8, _mm512_xor_si512)
IC_INLINE u64x8 blocks_high32(u64x8 x) { return (u64x8){_mm512_srli_epi64(x.a, 32)}; }
IC_INLINE __m512i ic_pack_words(__m512i bottom, __m512i top) {
  return _mm512_mask_blend_epi32(0xAAAA, bottom, _mm512_slli_epi64(top, 32));
}
IC_INLINE u32x16 blocks_pack(u64x8 low, u64x8 high) {
  return (u32x16){ic_pack_words(low.a, high.a)};
}
IC_INLINE u64x16 blocks_join(u64x8 top_low, u64x8 top_high, u64x8 low, u64x8 high) {
  const __m512i even = ic_pack_words(low.a, top_low.a), odd = ic_pack_words(high.a, top_high.a);
  const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i last = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  return (u64x16){_mm512_permutex2var_epi64(even, first, odd),
                  _mm512_permutex2var_epi64(even, last, odd)};
}

#endif
