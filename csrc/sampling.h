/* SPDX-License-Identifier: BSD-3-Clause */
/* Draws: the numbers of a stream (version 1 of the stream contract).
 *
 * Numbers come in tiles of sixteen Philox blocks: 64 float32 (a number a word) or 32 float64 (a
 * number two words). In a tile, element 16 j + b is made of word j of block b; a normal takes words
 * j and j + 1 (j even) and gives elements j and j + 1, its cosine and its sine.
 *
 *   uniform  s = (k + 1/2) 2^(1-bits), k the top `bits` bits of the word, signed: 24 or 53 bits
 *   normal   Box-Muller: r = sqrt(-2 ln u), u = (k + 1/2) 2^-bits with 32 or 53 bits of word j,
 *            theta = 2 pi k 2^-bits of word j + 1; r cos(theta), r sin(theta)
 *   truncated normal  the inverse CDF of u = (k + 1/2) 2^-bits, 32 or 53 bits of the word; the same
 *            words as a uniform, and increasing in the word but for rounding
 *
 * float16 and bfloat16 are the float32 numbers, rounded once.
 *
 * The file is a template over `real` (see simd/real.h) and includes itself for each dtype. The
 * polynomials were fitted by tools/derive_sampling.py. */
#ifndef IC_REAL

#include <string.h>

enum { IC_WORDS_f32 = 4, IC_WORDS_f64 = 2 }; /* of sixteen lanes each, in a tile */

/* -2 log(1 + f) = -2f + f^2 - s (f^2 + z P(z)), s = f / (2 + f), z = s^2: relative error of the
 * approximation below 2^-30.2 (float32), 2^-59.5 (float64) for 1 + f in [sqrt(1/2), sqrt(2)] */
static const float log_terms_f32[] = {0x1.55557ap0f, 0x1.995ed8p-1f, 0x1.31e03cp-1f};
static const double log_terms_f64[] = {
    0x1.5555555555592p0,  0x1.999999997ff62p-1, 0x1.24924941db5c8p-1, 0x1.c71c521a07878p-2,
    0x1.74663ba71adb6p-2, 0x1.39a20b421114p-2,  0x1.2f025558ce0abp-2};
/* sin(pi y / 4) = y (pi/4 rounded + Q(y^2)), |y| <= 1: below 2^-28.1 and 2^-58.1 */
static const float sine_terms_f32[] = {-0x1.a32db2p-26f, -0x1.4abbb8p-4f, 0x1.465e16p-9f,
                                       -0x1.2d7948p-15f};
static const double sine_terms_f64[] = {
    0x1.0260f805254b1p-55, -0x1.4abbce625be41p-4,  0x1.466bc6775878p-9,  -0x1.32d2cce2dcd6cp-15,
    0x1.50782fd0e64ffp-22, -0x1.e300691cf9d8dp-30, 0x1.e3f08cd19d1dbp-38};
/* cos(pi y / 4) = 1 + y^2 C(y^2), |y| <= 1: below 2^-31.1 and 2^-61.5 */
static const float cosine_terms_f32[] = {-0x1.3bd3ccp-2f, 0x1.03c1bp-6f, -0x1.55b2b6p-12f,
                                         0x1.d4f7eep-19f};
static const double cosine_terms_f64[] = {
    -0x1.3bd3cc9be45dep-2, 0x1.03c1f081b5a52p-6,  -0x1.55d3c7e3bfe55p-12, 0x1.e1f50675b1d7ap-19,
    -0x1.a6d1e238afffp-26, 0x1.f9c4ad81beb78p-34, -0x1.b03447dd7dc26p-42};
static const float quarter_pi_f32 = 0x1.921fb6p-1f, two_ln2_f32 = 0x1.62e43p0f;
static const double quarter_pi_f64 = 0x1.921fb54442d18p-1, two_ln2_f64 = 0x1.62e42fefa39efp0;

/* x = y A(v) / B(v), y = Phi(x) - 1/2, v = end^2 - y^2, |y| <= end: below 2^-24.4, 2^-54.8 */
static const float centre_top_f32[] = {
    0x1.2cf308p2f, 0x1.2d154ep9f, 0x1.54cb22p14f, 0x1.d6646ap17f, 0x1.3e137ep19f, 0x1.81a7dep17f};
static const float centre_bottom_f32[] = {
    0x1p0f, 0x1.1b5af4p7f, 0x1.745a28p12f, 0x1.43b7d6p16f, 0x1.430a9cp18f, 0x1.dcb084p17f};
static const double centre_top_f64[] = {
    0x1.b18d91e9eef75p1, 0x1.3381cdf71dff6p7, 0x1.5644d6efa79abp11, 0x1.7c248c82aa9b4p14,
    0x1.bbd95cedcd877p16, 0x1.07d9940c057b7p18, 0x1.1cf6afced85e4p18, 0x1.aca921129cd17p16,
    0x1.8dacb924d5efdp12};
static const double centre_bottom_f64[] = {
    0x1p0, 0x1.83307a7df1cecp5, 0x1.d1e52c1494a27p9, 0x1.1d1e613422f0fp13, 0x1.7935641645aabp15,
    0x1.09396a11eeacep17, 0x1.6c9020ea71a4bp17, 0x1.95c38c39f87ebp16, 0x1.cb79fb6b706d3p13};
/* x = C(v) / D(v), v = sqrt(-2 ln Q(x)) - start, Q(x) = 1 - Phi(x), from Q = 1/2 - end to x = 40:
 * below 2^-24.1 and 2^-53.9 */
static const float tail_top_f32[] = {
    0x1.268252p1f, 0x1.4a4f6cp1f, 0x1.f0873ap-1f, 0x1.34e5dap-3f, 0x1.2d56p-7f, 0x1.46ff58p-13f};
static const float tail_bottom_f32[] = {
    0x1p0f, 0x1.408776p-1f, 0x1.00ec8p-3f, 0x1.1dfc8cp-7f, 0x1.46fd74p-13f};
static const double tail_top_f64[] = {
    0x1.7085226d3e523p0, 0x1.c3d8d1e61f00dp1, 0x1.ba9988b80b164p1, 0x1.d23b4a83af606p0,
    0x1.27be4e415e543p-1, 0x1.d993676cb7b1bp-4, 0x1.e146506428444p-7, 0x1.2d3c303ea5b83p-10,
    0x1.b3a60681f6284p-15, 0x1.48613359c9be2p-20, 0x1.b3e839a70fb19p-27, 0x1.63ec6d6a1a807p-35};
static const double tail_bottom_f64[] = {
    0x1p0, 0x1.9d4fea451d844p0, 0x1.177beb940facdp0, 0x1.9ef66c89e3074p-2, 0x1.73365ea7dac26p-4,
    0x1.9a136b01af3b4p-7, 0x1.115cb5e306498p-10, 0x1.9d75a47e9af12p-15, 0x1.40c42a5aa316cp-20,
    0x1.b0bebcd301447p-27, 0x1.63ec50761fcdep-35};
static const float centre_end_f32 = 0.4893f, centre_square_f32 = 0x1.ea5224p-3f,
                   tail_start_f32 = 0x1.8198ep1f;
static const double centre_end_f64 = 0.425, centre_square_f64 = 0x1.71eb851eb851ep-3,
                    tail_start_f64 = 0x1.23568c24a29dfp1;

static const uint32_t sqrt_half_bits_f32 = 0x3F3504F3, one_bits_f32 = 0x3F800000,
                      exponent_bits_f32 = 0xFF800000, top_bit_f32 = 1u << 31;
static const uint64_t sqrt_half_bits_f64 = 0x3FE6A09E667F3BCD, one_bits_f64 = 0x3FF0000000000000,
                      exponent_bits_f64 = 0xFFF0000000000000, top_bit_f64 = 1ull << 63;

/* (k + 1/2) 2^-bits, k the signed word: exact, but float32 is rounded above 2^-9 */
IC_INLINE f32x16 centred_f32(u32x16 w) {
    return f32_fma(f32_from_i32(w), f32_set(0x1p-32f), f32_set(0x1p-33f));
}
IC_INLINE f64x16 centred_f64(u64x16 w) {
    /* the low 52 of the 53 bits below 2^-1, then the sign's -1/2: no step rounds */
    const u64x16 shifted = u64_shl(w, 1);
    const f64x16 g = f64_from_bits(u64_or(u64_shr(shifted, 12), u64_set(0x3FE0000000000000)));
    const f64x16 positive = f64_sub(g, f64_set(0x1.fffffffffffffp-2));
    return f64_select(u64_sign_mask(w), f64_sub(positive, f64_set(0.5)), positive);
}

/* (k + 1/2) 2^(1-bits), exact */
IC_INLINE f32x16 symmetric_f32(u32x16 w) {
    return f32_fma(f32_from_i32(u32_sra(w, 8)), f32_set(0x1p-23f), f32_set(0x1p-24f));
}
IC_INLINE f64x16 symmetric_f64(u64x16 w) {
    const f64x16 half = centred_f64(w);
    return f64_add(half, half);
}

/* The angle less the nearest quarter turn, in eighths of a turn: all bits but the top two, signed,
 * as a fraction of 2^29 (rounded: float32) or of 2^50 (exact). */
IC_INLINE f32x16 eighths_f32(u32x16 w) {
    return f32_mul(f32_from_i32(u32_shl(w, 2)), f32_set(0x1p-31f));
}
IC_INLINE f64x16 eighths_f64(u64x16 w) {
    const u64x16 shifted = u64_shl(w, 2);
    const u64x16 four_and_sign = u64_set(0x4010000000000000 | 1ull << 50);
    return f64_sub(f64_from_bits(u64_xor(u64_shr(shifted, 13), four_and_sign)), f64_set(5.0));
}

/* The exponent field of bits, signed, as a number */
IC_INLINE f32x16 exponent_f32(u32x16 bits) { return f32_from_i32(u32_sra(bits, 23)); }
IC_INLINE f64x16 exponent_f64(u64x16 bits) {
    const u64x16 biased = u64_add(bits, u64_set(1024ull << 52));
    const u64x16 shifted = u64_or(u64_shr(biased, 52), u64_set(0x4330000000000000));
    return f64_sub(f64_from_bits(shifted), f64_set(0x1p52 + 1024));
}

/* A kind that the loop over tiles is compiled for: a truncated normal that needs no tail. */
enum { IC_CENTRAL_TRUNCATED_NORMAL = IC_TRUNCATED_NORMAL + 1 };

/* Number i of an output in the format asked for. */
typedef enum { IC_NATIVE, IC_FLOAT16, IC_BFLOAT16 } sampling_format;
IC_INLINE void sampling_store_f32(void *out, size_t i, f32x16 x, sampling_format format) {
    if (format == IC_FLOAT16)
        f16_store((uint16_t *)out + i, x);
    else if (format == IC_BFLOAT16)
        bf16_store((uint16_t *)out + i, x);
    else
        f32_store((float *)out + i, x);
}
IC_INLINE void sampling_store_f64(void *out, size_t i, f64x16 x, sampling_format format) {
    (void)format;
    f64_store((double *)out + i, x);
}

#define IC_REAL f32
#include "sampling.h"
#undef IC_REAL
#define IC_REAL f64
#include "sampling.h"
#undef IC_REAL

/* out, r n + i: element first + r stride + i of the stream, r < rows, i < n.
 * Domain: any first, n and stride; elements count modulo 2^64. Halves: numbers that are no NaN;
 * beyond the largest half they become infinite.
 * Max error: uniform units are exact; normal units 4 ulp (float32; one in a thousand above 2) and
 * 3 ulp (float64) against long double; truncated normal units 8 ulp (float32; 0.8 on average) and
 * 6 ulp (float64) against decimal arithmetic, an ulp being at least that of 1/4, wherever within 37
 * of 0 the interval begins. Halves add their one rounding, to nearest even.
 * Determinism: the same bits for every instruction set and every way of cutting the stream up. */
#define IC_DRAW(name, scalar, type, format) \
    static void draw_##name(scalar *out, uint64_t first, size_t n, size_t rows, uint64_t stride, \
                            uint64_t seed, uint64_t stream, const ic_distribution *d) { \
        draw_rows_##type(out, first, n, rows, stride, seed, stream, d, format); \
    }
IC_DRAW(f32, float, f32, IC_NATIVE)
IC_DRAW(f64, double, f64, IC_NATIVE)
IC_DRAW(f16, uint16_t, f32, IC_FLOAT16)
IC_DRAW(bf16, uint16_t, f32, IC_BFLOAT16)
#undef IC_DRAW

#else

#define POLYNOMIAL(terms, z) R(sampling_horner)(terms, sizeof(terms) / sizeof *(terms), z)
IC_INLINE vreal R(sampling_horner)(const real *terms, size_t n, vreal z) {
    vreal sum = V(set)(terms[n - 1]);
    for (size_t i = n - 1; i-- > 0;) sum = V(fma)(sum, z, V(set)(terms[i]));
    return sum;
}

/* -2 ln u of q = u or, so that the end at 1 is exact, q = u - 1.
 * Domain: q in [-1/2, 1], not 0. Max error: 2 ulp against long double. Determinism: the same bits
 * for every instruction set. */
IC_INLINE vreal R(minus_2log)(vreal q) {
    const vmask upper = U(sign_mask)(V(bits)(q));
    const vreal one = V(set)(1), u = V(select)(upper, V(add)(one, q), q);
    /* u = 2^e (1 + f), so f = 2^-e q - 1 or 2^-e q + (2^-e - 1), with one rounding; e is in the
     * exponent field, above what is left of the fraction */
    const vbits e = U(sub)(V(bits)(u), U(set)(R(sqrt_half_bits)));
    const vreal scale = V(from_bits)(
        U(sub)(U(set)(R(one_bits)), U(and)(e, U(set)(R(exponent_bits)))));
    const vreal offset = V(select)(upper, V(sub)(scale, one), V(set)(-1));
    const vreal f = V(fma)(scale, q, offset);
    const vreal s = V(div)(f, V(add)(f, V(set)(2)));
    const vreal z = V(mul)(s, s), f2 = V(mul)(f, f);
    const vreal tail = V(fnma)(s, V(fma)(z, POLYNOMIAL(R(log_terms), z), f2), f2);
    const vreal fraction = V(fma)(f, V(set)(-2), tail);
    return V(fma)(R(exponent)(e), V(set)(-R(two_ln2)), fraction);
}

/* Two standard normals of two words. An angle of a whole number of quarter turns gives an exact
 * zero (of either sign) and the radius itself.
 * Domain: all. Max error: as R(draw). Determinism: the same bits for every instruction set. */
IC_INLINE void R(box_muller)(vbits radius_word, vbits angle_word, vreal *cosine, vreal *sine) {
    const vreal y = R(eighths)(angle_word), z = V(mul)(y, y);
    const vreal q = POLYNOMIAL(R(sine_terms), z);
    const vreal s = V(fma)(y, V(set)(R(quarter_pi)), V(mul)(y, q));
    const vreal c = V(fma)(z, POLYNOMIAL(R(cosine_terms), z), V(set)(1));
    /* the nearest quarter turn: its low bit swaps sine and cosine (and negates the sine that
     * becomes a cosine), its high bit negates both, by way of the radius */
    const vbits top = U(set)(R(top_bit));
    const vbits quarter = U(add)(angle_word, U(set)(R(top_bit) >> 2)), odd = U(shl)(quarter, 1);
    const vreal signed_s = V(from_bits)(U(xor)(V(bits)(s), U(and)(odd, top)));
    const vreal radius = V(sqrt)(R(minus_2log)(R(centred)(radius_word)));
    const vreal r = V(from_bits)(
        U(xor)(V(bits)(radius), U(and)(quarter, top)));
    const vmask swap = U(sign_mask)(odd);
    *cosine = V(mul)(r, V(select)(swap, signed_s, c));
    *sine = V(mul)(r, V(select)(swap, c, signed_s));
}

/* The constants of a truncated normal's inverse CDF, in the dtype. */
typedef struct {
    real tail[2], slope[2], spread, centre, offset;
    real rest; /* what rounding left of spread */
    int far;   /* an end of the interval is out of the centre's reach */
} R(truncation);

static R(truncation) R(truncation_of)(const ic_truncation *t) {
    const double middle = t->centre < 0 ? -t->centre : t->centre;
    return (R(truncation)){{(real)t->tail[0], (real)t->tail[1]},
                           {(real)t->slope[0], (real)t->slope[1]},
                           (real)t->spread,
                           (real)t->centre,
                           (real)t->offset,
                           (real)(t->spread - (real)t->spread),
                           middle + t->spread / 2 > R(centre_end)};
}

/* A standard normal truncated to an interval. From the median out to `centre_end` it is a function
 * of y = Phi(x) - 1/2, beyond of the nearer tail's probability; both come with small relative
 * errors from u less 1/2 and from the lesser of u and 1 - u, which are exact. */
IC_INLINE vreal R(truncated_normal)(vbits w, const R(truncation) *t, int far) {
    const vreal half_less = R(centred)(U(xor)(w, U(set)(R(top_bit))));
    const vreal y = V(fma)(half_less, V(set)(t->spread),
                           V(fma)(half_less, V(set)(t->rest), V(set)(t->centre)));
    const vreal v = V(fnma)(y, y, V(set)(R(centre_square)));
    const vreal top = V(mul)(y, POLYNOMIAL(R(centre_top), v));
    const vreal bottom = POLYNOMIAL(R(centre_bottom), v);
    if (!far) return V(div)(top, bottom);
    const vmask upper = U(sign_mask)(w);
    const vreal tail = V(fma)(V(abs)(R(centred)(w)),
                              V(select)(upper, V(set)(t->slope[1]), V(set)(t->slope[0])),
                              V(select)(upper, V(set)(t->tail[1]), V(set)(t->tail[0])));
    const vreal s = V(sqrt)(V(add)(R(minus_2log)(tail), V(set)(t->offset)));
    const vreal out = V(sub)(s, V(set)(R(tail_start)));
    const vmask inside = V(lt)(V(abs)(y), V(set)(R(centre_end)));
    return V(div)(V(select)(inside, top, V(copysign)(POLYNOMIAL(R(tail_top), out), y)),
                  V(select)(inside, bottom, POLYNOMIAL(R(tail_bottom), out)));
}

/* Elements first ... first + n - 1 of the tiles whose blocks share the high word of `keys`. */
IC_INLINE void R(draw_tiles)(char *out, uint64_t first, size_t n, const philox_keys *keys,
                             const ic_distribution *d, const R(truncation) *t, int kind,
                             sampling_format format) {
    enum { WORDS = IC_JOIN(IC_WORDS, IC_REAL), TILE = 16 * WORDS };
    const size_t size = format == IC_NATIVE ? sizeof(real) : sizeof(uint16_t);
    const vreal scale = V(set)((real)d->scale), shift = V(set)((real)d->shift);
    const vreal low = V(set)((real)d->low), high = V(set)((real)d->high);
    real partial[TILE];
    while (n) {
        const unsigned skip = first % TILE;
        const size_t count = n < TILE - skip ? n : TILE - skip;
        void *const tile = count == TILE ? (void *)out : partial;
        vbits w[WORDS];
        R(philox_words)(w, first / TILE * 16, keys);
        for (int j = 0; j < WORDS; j += 2) {
            vreal x, y;
            if (kind == IC_NORMAL) {
                R(box_muller)(w[j], w[j + 1], &x, &y);
            } else if (kind == IC_UNIFORM) {
                x = R(symmetric)(w[j]);
                y = R(symmetric)(w[j + 1]);
            } else {
                x = R(truncated_normal)(w[j], t, kind == IC_TRUNCATED_NORMAL);
                y = R(truncated_normal)(w[j + 1], t, kind == IC_TRUNCATED_NORMAL);
            }
            x = V(fma)(x, scale, shift);
            y = V(fma)(y, scale, shift);
            if (kind != IC_NORMAL) {
                x = V(min)(V(max)(x, low), high);
                y = V(min)(V(max)(y, low), high);
            }
            R(sampling_store)(tile, (size_t)(16 * j), x, format);
            R(sampling_store)(tile, (size_t)(16 * j + 16), y, format);
        }
        if (count < TILE) memcpy(out, (const char *)partial + skip * size, count * size);
        out += count * size;
        first += count;
        n -= count;
    }
}

IC_INLINE void R(draw_constant)(char *out, size_t n, real value, sampling_format format) {
    const size_t size = format == IC_NATIVE ? sizeof(real) : sizeof(uint16_t);
    real lanes[16];
    R(sampling_store)(lanes, 0, V(set)(value), format);
    for (size_t i = 0; i < n; i++) memcpy(out + i * size, lanes, size);
}

IC_INLINE void R(draw_rows)(void *out, uint64_t first, size_t n, size_t rows, uint64_t stride,
                            uint64_t seed, uint64_t stream, const ic_distribution *d,
                            sampling_format format) {
    const uint64_t run = (uint64_t)IC_JOIN(IC_WORDS, IC_REAL) << 32; /* blocks with one high word */
    const size_t size = format == IC_NATIVE ? sizeof(real) : sizeof(uint16_t);
    const ic_fpmode mode = fpmode_enter();
    const R(truncation) t = R(truncation_of)(&d->truncation);
    philox_keys keys = philox_schedule(seed, stream, (uint32_t)(first / run));
    uint64_t scheduled = first / run;
    char *to = out;
    if (d->kind == IC_CONSTANT) {
        R(draw_constant)(to, rows * n, (real)d->shift, format);
        rows = 0;
    }
    for (size_t r = 0; r < rows; r++) {
        uint64_t element = first + r * stride;
        for (size_t rest = n; rest;) {
            const uint64_t left = run - element % run;
            const size_t count = rest < left ? rest : (size_t)left;
            if (element / run != scheduled) {
                scheduled = element / run;
                keys = philox_schedule(seed, stream, (uint32_t)scheduled);
            }
            if (d->kind == IC_NORMAL)
                R(draw_tiles)(to, element, count, &keys, d, &t, IC_NORMAL, format);
            else if (d->kind == IC_UNIFORM)
                R(draw_tiles)(to, element, count, &keys, d, &t, IC_UNIFORM, format);
            else if (t.far)
                R(draw_tiles)(to, element, count, &keys, d, &t, IC_TRUNCATED_NORMAL, format);
            else
                R(draw_tiles)(to, element, count, &keys, d, &t, IC_CENTRAL_TRUNCATED_NORMAL,
                              format);
            to += count * size;
            element += count;
            rest -= count;
        }
    }
    fpmode_leave(mode);
}

#undef POLYNOMIAL
#endif
