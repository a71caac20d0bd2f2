/* SPDX-License-Identifier: BSD-3-Clause */
/* The vector vocabulary in NEON (AArch64): 16 lanes in 4 (32-bit) or 8 (64-bit) registers.
 * simd/portable.h is the same vocabulary lane by lane and documents every word of it.
 * max and min compare and select: the instructions of those names have rules of their own for NaN
 * and for zeros of either sign. Clang would take them all the same where an operand is zero (LLVM
 * issue 93414), hence IC_OPAQUE: a mask it knows nothing of. */
#ifndef IC_SIMD_H
#define IC_SIMD_H
#if !defined(__aarch64__)
#error "simd/neon.h belongs in files compiled for AArch64"
#endif

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define IC_ISA neon
#define IC_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define IC_OPAQUE(mask) __asm__("" : "+w"(mask))
#else
#define IC_OPAQUE(mask) (void)0
#endif
/* The product's register tile: 5 rows x 4 registers of the 32 there are, for both types. gcc and
 * clang load weights so early that they would spill accumulators of a sixth row. */
#define IC_TILE_ROWS_f32 5
#define IC_TILE_ROWS_f64 5
#define IC_TILE_PANELS_f32 1
#define IC_TILE_PANELS_f64 1
#define IC_TILE_f32 f32
#define IC_TILE_f64 f64x8
#define IC_TILE_VECTOR_f32 f32x16
#define IC_TILE_VECTOR_f64 f64x8

typedef struct { float32x4_t a, b, c, d; } f32x16;
typedef struct { float64x2_t a, b, c, d, e, f, g, h; } f64x16;
typedef struct { float64x2_t a, b, c, d; } f64x8;
typedef struct { uint32x4_t a, b, c, d; } u32x16;
typedef struct { uint64x2_t a, b, c, d, e, f, g, h; } u64x16;
typedef struct { uint32x4_t a, b, c, d; } m32x16;
typedef struct { uint64x2_t a, b, c, d, e, f, g, h; } m64x16;
/* eight blocks, the halves of a 64-bit lane apart; what nobody asks for is never computed */
typedef struct { uint32x4_t low_a, low_b, high_a, high_b; } u64x8;

#define IC_FOUR1(out, name, in, op) \
  IC_INLINE out name(in x) { return (out){op(x.a), op(x.b), op(x.c), op(x.d)}; }
#define IC_FOUR2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { \
    return (out){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; \
  }
#define IC_FOUR3(out, name, first, in, op) \
  IC_INLINE out name(first x, in y, in z) { \
    return (out){op(x.a, y.a, z.a), op(x.b, y.b, z.b), op(x.c, y.c, z.c), op(x.d, y.d, z.d)}; \
  }
#define IC_EIGHT1(out, name, in, op) \
  IC_INLINE out name(in x) { \
    return (out){op(x.a), op(x.b), op(x.c), op(x.d), op(x.e), op(x.f), op(x.g), op(x.h)}; \
  }
#define IC_EIGHT2(out, name, in, op) \
  IC_INLINE out name(in x, in y) { \
    return (out){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d), \
                 op(x.e, y.e), op(x.f, y.f), op(x.g, y.g), op(x.h, y.h)}; \
  }
#define IC_EIGHT3(out, name, first, in, op) \
  IC_INLINE out name(first x, in y, in z) { \
    return (out){op(x.a, y.a, z.a), op(x.b, y.b, z.b), op(x.c, y.c, z.c), op(x.d, y.d, z.d), \
                 op(x.e, y.e, z.e), op(x.f, y.f, z.f), op(x.g, y.g, z.g), op(x.h, y.h, z.h)}; \
  }

/* One register: the operands in the vocabulary's order. */
#define IC_FMA_F32(x, y, z) vfmaq_f32(z, x, y)
#define IC_FMA_F64(x, y, z) vfmaq_f64(z, x, y)
#define IC_FNMA_F32(x, y, z) vfmsq_f32(z, x, y)
#define IC_FNMA_F64(x, y, z) vfmsq_f64(z, x, y)
#define IC_COPYSIGN_F32(x, y) vbslq_f32(vdupq_n_u32(1u << 31), y, x)
#define IC_COPYSIGN_F64(x, y) vbslq_f64(vdupq_n_u64((uint64_t)1 << 63), y, x)
#define IC_ANDNOT_U32(x, y) vbicq_u32(y, x)
#define IC_ANDNOT_U64(x, y) vbicq_u64(y, x)
#define IC_COMPARE_SELECT(name, vector, mask, compare, select) \
  IC_INLINE vector name(vector x, vector y) { \
    mask m = compare(x, y); \
    IC_OPAQUE(m); \
    return select(m, x, y); \
  }
IC_COMPARE_SELECT(ic_max_f32, float32x4_t, uint32x4_t, vcgtq_f32, vbslq_f32)
IC_COMPARE_SELECT(ic_min_f32, float32x4_t, uint32x4_t, vcltq_f32, vbslq_f32)
IC_COMPARE_SELECT(ic_max_f64, float64x2_t, uint64x2_t, vcgtq_f64, vbslq_f64)
IC_COMPARE_SELECT(ic_min_f64, float64x2_t, uint64x2_t, vcltq_f64, vbslq_f64)

/* float32 */
IC_INLINE f32x16 f32_set(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return (f32x16){v, v, v, v};
}
IC_INLINE f32x16 f32_zero(void) { return f32_set(0.0f); }
IC_INLINE f32x16 f32_load(const float *p) {
  return (f32x16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
IC_INLINE void f32_store(float *p, f32x16 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
IC_FOUR2(f32x16, f32_add, f32x16, vaddq_f32)
IC_FOUR2(f32x16, f32_sub, f32x16, vsubq_f32)
IC_FOUR2(f32x16, f32_mul, f32x16, vmulq_f32)
IC_FOUR2(f32x16, f32_div, f32x16, vdivq_f32)
IC_FOUR2(f32x16, f32_max, f32x16, ic_max_f32)
IC_FOUR2(f32x16, f32_min, f32x16, ic_min_f32)
IC_FOUR1(f32x16, f32_sqrt, f32x16, vsqrtq_f32)
IC_FOUR3(f32x16, f32_fma, f32x16, f32x16, IC_FMA_F32)
IC_FOUR3(f32x16, f32_fnma, f32x16, f32x16, IC_FNMA_F32)
IC_FOUR1(f32x16, f32_abs, f32x16, vabsq_f32)
IC_FOUR1(f32x16, f32_neg, f32x16, vnegq_f32)
IC_FOUR2(f32x16, f32_copysign, f32x16, IC_COPYSIGN_F32)
IC_INLINE f32x16 f32_round(f32x16 x) {
  const f32x16 magic = f32_set(0x1.8p23f);
  return f32_sub(f32_add(x, magic), magic);
}
IC_FOUR2(m32x16, f32_lt, f32x16, vcltq_f32)
IC_FOUR2(m32x16, f32_le, f32x16, vcleq_f32)
IC_FOUR2(m32x16, f32_eq, f32x16, vceqq_f32)
IC_FOUR3(f32x16, f32_select, m32x16, f32x16, vbslq_f32)
IC_FOUR1(u32x16, f32_bits, f32x16, vreinterpretq_u32_f32)
IC_FOUR1(f32x16, f32_from_bits, u32x16, vreinterpretq_f32_u32)
#define IC_FROM_I32(x) vcvtq_f32_s32(vreinterpretq_s32_u32(x))
IC_FOUR1(f32x16, f32_from_i32, u32x16, IC_FROM_I32)
#undef IC_FROM_I32
IC_INLINE float f32_fold_add(f32x16 x) {
  const float32x4_t v = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}
IC_INLINE float f32_fold_max(f32x16 x) {
  const float32x4_t u = ic_max_f32(x.a, x.c), v = ic_max_f32(x.b, x.d), w = ic_max_f32(u, v);
  const float32x2_t low = vget_low_f32(w), high = vget_high_f32(w);
  const float32x2_t pair = vbsl_f32(vcgt_f32(low, high), low, high);
  const float even = vget_lane_f32(pair, 0), odd = vget_lane_f32(pair, 1);
  return even > odd ? even : odd;
}

/* masks */
IC_FOUR2(m32x16, m32_and, m32x16, vandq_u32)
IC_FOUR2(m32x16, m32_andnot, m32x16, IC_ANDNOT_U32)
IC_INLINE unsigned m32_bits(m32x16 m) {
  static const uint8_t weights[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x8_t weight = vld1_u8(weights);
  const uint16x8_t first = vcombine_u16(vmovn_u32(m.a), vmovn_u32(m.b));
  const uint16x8_t last = vcombine_u16(vmovn_u32(m.c), vmovn_u32(m.d));
  return (unsigned)vaddv_u8(vand_u8(vmovn_u16(first), weight)) |
         (unsigned)vaddv_u8(vand_u8(vmovn_u16(last), weight)) << 8;
}
IC_EIGHT2(m64x16, m64_and, m64x16, vandq_u64)
IC_EIGHT2(m64x16, m64_andnot, m64x16, IC_ANDNOT_U64)
IC_INLINE unsigned m64_bits(m64x16 m) {
#define IC_NARROW(x, y) vuzp1q_u32(vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y))
  return m32_bits((m32x16){IC_NARROW(m.a, m.b), IC_NARROW(m.c, m.d), IC_NARROW(m.e, m.f),
                           IC_NARROW(m.g, m.h)});
#undef IC_NARROW
}

/* float64 */
IC_INLINE f64x16 f64_set(double x) {
  const float64x2_t v = vdupq_n_f64(x);
  return (f64x16){v, v, v, v, v, v, v, v};
}
IC_INLINE f64x16 f64_zero(void) { return f64_set(0.0); }
IC_INLINE f64x16 f64_load(const double *p) {
  return (f64x16){vld1q_f64(p),     vld1q_f64(p + 2),  vld1q_f64(p + 4),  vld1q_f64(p + 6),
                  vld1q_f64(p + 8), vld1q_f64(p + 10), vld1q_f64(p + 12), vld1q_f64(p + 14)};
}
IC_INLINE void f64_store(double *p, f64x16 x) {
  vst1q_f64(p, x.a);
  vst1q_f64(p + 2, x.b);
  vst1q_f64(p + 4, x.c);
  vst1q_f64(p + 6, x.d);
  vst1q_f64(p + 8, x.e);
  vst1q_f64(p + 10, x.f);
  vst1q_f64(p + 12, x.g);
  vst1q_f64(p + 14, x.h);
}
IC_EIGHT2(f64x16, f64_add, f64x16, vaddq_f64)
IC_EIGHT2(f64x16, f64_sub, f64x16, vsubq_f64)
IC_EIGHT2(f64x16, f64_mul, f64x16, vmulq_f64)
IC_EIGHT2(f64x16, f64_div, f64x16, vdivq_f64)
IC_EIGHT2(f64x16, f64_max, f64x16, ic_max_f64)
IC_EIGHT2(f64x16, f64_min, f64x16, ic_min_f64)
IC_EIGHT1(f64x16, f64_sqrt, f64x16, vsqrtq_f64)
IC_EIGHT3(f64x16, f64_fma, f64x16, f64x16, IC_FMA_F64)
IC_EIGHT3(f64x16, f64_fnma, f64x16, f64x16, IC_FNMA_F64)
IC_EIGHT1(f64x16, f64_abs, f64x16, vabsq_f64)
IC_EIGHT1(f64x16, f64_neg, f64x16, vnegq_f64)
IC_EIGHT2(f64x16, f64_copysign, f64x16, IC_COPYSIGN_F64)
IC_INLINE f64x16 f64_round(f64x16 x) {
  const f64x16 magic = f64_set(0x1.8p52);
  return f64_sub(f64_add(x, magic), magic);
}
IC_EIGHT2(m64x16, f64_lt, f64x16, vcltq_f64)
IC_EIGHT2(m64x16, f64_le, f64x16, vcleq_f64)
IC_EIGHT2(m64x16, f64_eq, f64x16, vceqq_f64)
IC_EIGHT3(f64x16, f64_select, m64x16, f64x16, vbslq_f64)
IC_EIGHT1(u64x16, f64_bits, f64x16, vreinterpretq_u64_f64)
IC_EIGHT1(f64x16, f64_from_bits, u64x16, vreinterpretq_f64_u64)
IC_INLINE f64x16 f64_from_f32(f32x16 x) {
  return (f64x16){vcvt_f64_f32(vget_low_f32(x.a)), vcvt_high_f64_f32(x.a),
                  vcvt_f64_f32(vget_low_f32(x.b)), vcvt_high_f64_f32(x.b),
                  vcvt_f64_f32(vget_low_f32(x.c)), vcvt_high_f64_f32(x.c),
                  vcvt_f64_f32(vget_low_f32(x.d)), vcvt_high_f64_f32(x.d)};
}
IC_INLINE f64x16 f64_from_f64(f64x16 x) { return x; }
IC_INLINE f64x16 f64_load_f32(const float *p) { return f64_from_f32(f32_load(p)); }
IC_INLINE f64x16 f64_load_f64(const double *p) { return f64_load(p); }
IC_INLINE f32x16 f32_from_f64(f64x16 x) {
  return (f32x16){vcvt_high_f32_f64(vcvt_f32_f64(x.a), x.b),
                  vcvt_high_f32_f64(vcvt_f32_f64(x.c), x.d),
                  vcvt_high_f32_f64(vcvt_f32_f64(x.e), x.f),
                  vcvt_high_f32_f64(vcvt_f32_f64(x.g), x.h)};
}
IC_INLINE double f64_fold_add(f64x16 x) {
  const float64x2_t u = vaddq_f64(vaddq_f64(x.a, x.e), vaddq_f64(x.c, x.g));
  const float64x2_t v = vaddq_f64(vaddq_f64(x.b, x.f), vaddq_f64(x.d, x.h));
  return vpaddd_f64(vaddq_f64(u, v));
}
IC_INLINE void f64_store_halves(double *p, f64x16 x) {
  vst1q_f64(p, vaddq_f64(x.a, x.e));
  vst1q_f64(p + 2, vaddq_f64(x.b, x.f));
  vst1q_f64(p + 4, vaddq_f64(x.c, x.g));
  vst1q_f64(p + 6, vaddq_f64(x.d, x.h));
}
IC_INLINE float64x2_t ic_fold_half(const double *x) { /* to two lanes */
  const float64x2_t even = vaddq_f64(vld1q_f64(x), vld1q_f64(x + 4));
  return vaddq_f64(even, vaddq_f64(vld1q_f64(x + 2), vld1q_f64(x + 6)));
}
IC_INLINE float64x2_t ic_fold_rows(const double *x) { /* two rows */
  return vpaddq_f64(ic_fold_half(x), ic_fold_half(x + 8));
}
IC_INLINE f64x16 f64_fold_rows(const double *x) {
  return (f64x16){ic_fold_rows(x),      ic_fold_rows(x + 16), ic_fold_rows(x + 32),
                  ic_fold_rows(x + 48), ic_fold_rows(x + 64), ic_fold_rows(x + 80),
                  ic_fold_rows(x + 96), ic_fold_rows(x + 112)};
}
IC_INLINE f32x16 f32_abs_max(f32x16 x, f32x16 m) { return f32_max(f32_abs(x), m); }
IC_INLINE f64x16 f64_abs_max(f64x16 x, f64x16 m) { return f64_max(f64_abs(x), m); }
IC_INLINE f64x16 f64_one(void) { return f64_set(1.0); }
IC_INLINE f64x16 f64_fma_add(f64x16 x, f64x16 one, f64x16 y) {
  (void)one; /* the same pipes add and multiply here */
  return f64_add(x, y);
}
IC_INLINE double f64_fold_max(f64x16 x) {
  const float64x2_t a = ic_max_f64(x.a, x.e), b = ic_max_f64(x.b, x.f);
  const float64x2_t c = ic_max_f64(x.c, x.g), d = ic_max_f64(x.d, x.h);
  const float64x2_t u = ic_max_f64(a, c), v = ic_max_f64(b, d), w = ic_max_f64(u, v);
  const double even = vgetq_lane_f64(w, 0), odd = vgetq_lane_f64(w, 1);
  return even > odd ? even : odd;
}

/* float64, eight lanes: 3 rows x 8 registers would load more than they multiply */
IC_INLINE f64x8 f64x8_set(double x) {
  const float64x2_t v = vdupq_n_f64(x);
  return (f64x8){v, v, v, v};
}
IC_INLINE f64x8 f64x8_zero(void) { return f64x8_set(0.0); }
IC_INLINE f64x8 f64x8_load(const double *p) {
  return (f64x8){vld1q_f64(p), vld1q_f64(p + 2), vld1q_f64(p + 4), vld1q_f64(p + 6)};
}
IC_INLINE void f64x8_store(double *p, f64x8 x) {
  vst1q_f64(p, x.a);
  vst1q_f64(p + 2, x.b);
  vst1q_f64(p + 4, x.c);
  vst1q_f64(p + 6, x.d);
}
IC_FOUR2(f64x8, f64x8_add, f64x8, vaddq_f64)
IC_FOUR3(f64x8, f64x8_fma, f64x8, f64x8, IC_FMA_F64)

/* uint32 and uint64; the shifts are operators because the intrinsics insist on literal counts */
IC_INLINE u32x16 u32_set(uint32_t x) {
  const uint32x4_t v = vdupq_n_u32(x);
  return (u32x16){v, v, v, v};
}
IC_INLINE void u32_store(uint32_t *p, u32x16 x) {
  vst1q_u32(p, x.a);
  vst1q_u32(p + 4, x.b);
  vst1q_u32(p + 8, x.c);
  vst1q_u32(p + 12, x.d);
}
IC_FOUR2(u32x16, u32_add, u32x16, vaddq_u32)
IC_FOUR2(u32x16, u32_sub, u32x16, vsubq_u32)
IC_FOUR2(u32x16, u32_and, u32x16, vandq_u32)
IC_FOUR2(u32x16, u32_or, u32x16, vorrq_u32)
IC_FOUR2(u32x16, u32_xor, u32x16, veorq_u32)
IC_INLINE u32x16 u32_shl(u32x16 x, int n) {
  const uint32_t by = (uint32_t)n;
  return (u32x16){x.a << by, x.b << by, x.c << by, x.d << by};
}
IC_INLINE u32x16 u32_shr(u32x16 x, int n) {
  const uint32_t by = (uint32_t)n;
  return (u32x16){x.a >> by, x.b >> by, x.c >> by, x.d >> by};
}
IC_INLINE u32x16 u32_sra(u32x16 x, int n) {
#define IC_SRA(x) vreinterpretq_u32_s32(vreinterpretq_s32_u32(x) >> n)
  return (u32x16){IC_SRA(x.a), IC_SRA(x.b), IC_SRA(x.c), IC_SRA(x.d)};
#undef IC_SRA
}
#define IC_SIGN_U32(x) vcltzq_s32(vreinterpretq_s32_u32(x))
IC_FOUR1(m32x16, u32_sign_mask, u32x16, IC_SIGN_U32)
#undef IC_SIGN_U32
IC_INLINE u32x16 u32_count(u32x16 n, m32x16 m) {
  return u32_sub(n, (u32x16){m.a, m.b, m.c, m.d});
}
IC_INLINE uint64_t u32_total(u32x16 x) {
  const uint64x2_t v = vpadalq_u32(vpaddlq_u32(x.a), x.b), w = vpadalq_u32(vpaddlq_u32(x.c), x.d);
  return vaddvq_u64(vaddq_u64(v, w));
}

IC_INLINE u64x16 u64_set(uint64_t x) {
  const uint64x2_t v = vdupq_n_u64(x);
  return (u64x16){v, v, v, v, v, v, v, v};
}
IC_EIGHT2(u64x16, u64_add, u64x16, vaddq_u64)
IC_EIGHT2(u64x16, u64_sub, u64x16, vsubq_u64)
IC_EIGHT2(u64x16, u64_and, u64x16, vandq_u64)
IC_EIGHT2(u64x16, u64_or, u64x16, vorrq_u64)
IC_EIGHT2(u64x16, u64_xor, u64x16, veorq_u64)
IC_INLINE u64x16 u64_shl(u64x16 x, int n) {
  const uint64_t by = (uint64_t)n;
  return (u64x16){x.a << by, x.b << by, x.c << by, x.d << by,
                  x.e << by, x.f << by, x.g << by, x.h << by};
}
IC_INLINE u64x16 u64_shr(u64x16 x, int n) {
  const uint64_t by = (uint64_t)n;
  return (u64x16){x.a >> by, x.b >> by, x.c >> by, x.d >> by,
                  x.e >> by, x.f >> by, x.g >> by, x.h >> by};
}
#define IC_SIGN_U64(x) vcltzq_s64(vreinterpretq_s64_u64(x))
IC_EIGHT1(m64x16, u64_sign_mask, u64x16, IC_SIGN_U64)
#undef IC_SIGN_U64
IC_INLINE u64x16 u64_count(u64x16 n, m64x16 m) {
  return u64_sub(n, (u64x16){m.a, m.b, m.c, m.d, m.e, m.f, m.g, m.h});
}
IC_INLINE uint64_t u64_total(u64x16 x) {
  const uint64x2_t v = vaddq_u64(vaddq_u64(x.a, x.b), vaddq_u64(x.c, x.d));
  const uint64x2_t w = vaddq_u64(vaddq_u64(x.e, x.f), vaddq_u64(x.g, x.h));
  return vaddvq_u64(vaddq_u64(v, w));
}

/* float16 and bfloat16 */
#define IC_F16(x) vreinterpret_u16_f16(vcvt_f16_f32(x))
IC_INLINE void f16_store(uint16_t *p, f32x16 x) {
  vst1q_u16(p, vcombine_u16(IC_F16(x.a), IC_F16(x.b)));
  vst1q_u16(p + 8, vcombine_u16(IC_F16(x.c), IC_F16(x.d)));
}
#undef IC_F16
IC_INLINE void bf16_store(uint16_t *p, f32x16 x) {
  const u32x16 bits = f32_bits(x), odd = u32_and(u32_shr(bits, 16), u32_set(1));
  const u32x16 r = u32_add(u32_add(bits, u32_set(0x7FFF)), odd);
  vst1q_u16(p, vcombine_u16(vshrn_n_u32(r.a, 16), vshrn_n_u32(r.b, 16)));
  vst1q_u16(p + 8, vcombine_u16(vshrn_n_u32(r.c, 16), vshrn_n_u32(r.d, 16)));
}

/* lane masks and tails */
IC_INLINE m32x16 m32_nonzero(const uint8_t *p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const int8x16_t m = vreinterpretq_s8_u8(vtstq_u8(bytes, bytes));
  const int16x8_t first = vmovl_s8(vget_low_s8(m)), last = vmovl_high_s8(m);
  return (m32x16){vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(first))),
                  vreinterpretq_u32_s32(vmovl_high_s16(first)),
                  vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(last))),
                  vreinterpretq_u32_s32(vmovl_high_s16(last))};
}
IC_INLINE m64x16 m64_nonzero(const uint8_t *p) {
  const m32x16 m = m32_nonzero(p);
#define IC_LOW(x) vreinterpretq_u64_u32(vzip1q_u32(x, x))
#define IC_HIGH(x) vreinterpretq_u64_u32(vzip2q_u32(x, x))
  return (m64x16){IC_LOW(m.a), IC_HIGH(m.a), IC_LOW(m.b), IC_HIGH(m.b),
                  IC_LOW(m.c), IC_HIGH(m.c), IC_LOW(m.d), IC_HIGH(m.d)};
#undef IC_LOW
#undef IC_HIGH
}
IC_INLINE m32x16 m32_first(int n) {
  static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int32x4_t m = vdupq_n_s32(n);
  return (m32x16){vcgtq_s32(m, vld1q_s32(lanes)), vcgtq_s32(m, vld1q_s32(lanes + 4)),
                  vcgtq_s32(m, vld1q_s32(lanes + 8)), vcgtq_s32(m, vld1q_s32(lanes + 12))};
}
IC_INLINE m64x16 m64_first(int n) {
  static const int64_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64x2_t m = vdupq_n_s64(n);
#define IC_FIRST(i) vcgtq_s64(m, vld1q_s64(lanes + (i)))
  return (m64x16){IC_FIRST(0), IC_FIRST(2),  IC_FIRST(4),  IC_FIRST(6),
                  IC_FIRST(8), IC_FIRST(10), IC_FIRST(12), IC_FIRST(14)};
#undef IC_FIRST
}
IC_INLINE f32x16 f32_load_first(const float *p, int n) {
  float lanes[16] = {0};
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return f32_load(lanes);
}
IC_INLINE void f32_store_first(float *p, f32x16 x, int n) {
  float lanes[16];
  f32_store(lanes, x);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}
IC_INLINE f64x16 f64_load_first(const double *p, int n) {
  double lanes[16] = {0};
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return f64_load(lanes);
}
IC_INLINE void f64_store_first(double *p, f64x16 x, int n) {
  double lanes[16];
  f64_store(lanes, x);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}

/* Philox blocks: sixteen as two u64x8, in order; an aligned group carries nothing into the high
 * halves */
IC_INLINE u64x8 blocks_set(uint64_t x) {
  const uint32x4_t low = vdupq_n_u32((uint32_t)x), high = vdupq_n_u32((uint32_t)(x >> 32));
  return (u64x8){low, low, high, high};
}
IC_INLINE u64x8 blocks_low(uint64_t first) {
  static const uint32_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  u64x8 r = blocks_set(first);
  r.low_a = vaddq_u32(r.low_a, vld1q_u32(lanes));
  r.low_b = vaddq_u32(r.low_b, vld1q_u32(lanes + 4));
  return r;
}
IC_INLINE u64x8 blocks_high(uint64_t first) { return blocks_low(first + 8); }
IC_INLINE u64x8 blocks_mul32(u64x8 x, u64x8 y) {
#define IC_LOW(x, y) \
  vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vget_low_u32(y)))
#define IC_HIGH(x, y) vreinterpretq_u32_u64(vmull_high_u32(x, y))
  const uint32x4_t p0 = IC_LOW(x.low_a, y.low_a), p1 = IC_HIGH(x.low_a, y.low_a);
  const uint32x4_t p2 = IC_LOW(x.low_b, y.low_b), p3 = IC_HIGH(x.low_b, y.low_b);
#undef IC_LOW
#undef IC_HIGH
  return (u64x8){vuzp1q_u32(p0, p1), vuzp1q_u32(p2, p3), vuzp2q_u32(p0, p1), vuzp2q_u32(p2, p3)};
}
IC_INLINE u64x8 blocks_xor(u64x8 x, u64x8 y) {
  return (u64x8){veorq_u32(x.low_a, y.low_a), veorq_u32(x.low_b, y.low_b),
                 veorq_u32(x.high_a, y.high_a), veorq_u32(x.high_b, y.high_b)};
}
IC_INLINE u64x8 blocks_high32(u64x8 x) {
  return (u64x8){x.high_a, x.high_b, vdupq_n_u32(0), vdupq_n_u32(0)};
}
IC_INLINE u32x16 blocks_pack(u64x8 low, u64x8 high) {
  return (u32x16){low.low_a, low.low_b, high.low_a, high.low_b};
}
IC_INLINE u64x16 blocks_join(u64x8 top_low, u64x8 top_high, u64x8 low, u64x8 high) {
#define IC_LOW(x, y) vreinterpretq_u64_u32(vzip1q_u32(x, y))
#define IC_HIGH(x, y) vreinterpretq_u64_u32(vzip2q_u32(x, y))
  return (u64x16){
      IC_LOW(low.low_a, top_low.low_a),   IC_HIGH(low.low_a, top_low.low_a),
      IC_LOW(low.low_b, top_low.low_b),   IC_HIGH(low.low_b, top_low.low_b),
      IC_LOW(high.low_a, top_high.low_a), IC_HIGH(high.low_a, top_high.low_a),
      IC_LOW(high.low_b, top_high.low_b), IC_HIGH(high.low_b, top_high.low_b)};
#undef IC_LOW
#undef IC_HIGH
}

#endif
