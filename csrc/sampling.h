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

#define IC_REAL f32
#include "sampling.h"
#undef IC_REAL
#define IC_REAL f64
#include "sampling.h"
#undef IC_REAL

#else

#define POLYNOMIAL(terms, z) R(sampling_horner)(terms, sizeof(terms) / sizeof *(terms), z)
IC_INLINE vreal R(sampling_horner)(const real *terms, size_t n, vreal z) {
    vreal sum = V(set)(terms[n - 1]);
    for (size_t i = n - 1; i-- > 0;) sum = V(fma)(sum, z, V(set)(terms[i]));
    return sum;
}

/* sqrt(-2 ln u) of q = u for u < 1/2 and q = u - 1 above, so that both ends are exact.
 * Domain: q in [-1/2, 1/2], not 0. Max error: 1.5 ulp of r against long double. Determinism: the
 * same bits for every instruction set. */
IC_INLINE vreal R(radius)(vreal q) {
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
    const vreal minus_2log = V(fma)(f, V(set)(-2), tail);
    return V(sqrt)(V(fma)(R(exponent)(e), V(set)(-R(two_ln2)), minus_2log));
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
    const vreal r = V(from_bits)(
        U(xor)(V(bits)(R(radius)(R(centred)(radius_word))), U(and)(quarter, top)));
    const vmask swap = U(sign_mask)(odd);
    *cosine = V(mul)(r, V(select)(swap, signed_s, c));
    *sine = V(mul)(r, V(select)(swap, c, signed_s));
}

/* Elements first ... first + n - 1 of the tiles whose blocks share the high word of `keys`. */
IC_INLINE void R(draw_tiles)(real *out, uint64_t first, size_t n, const philox_keys *keys,
                             const ic_distribution *d, int kind) {
    enum { WORDS = IC_JOIN(IC_WORDS, IC_REAL), TILE = 16 * WORDS };
    const vreal scale = V(set)((real)d->scale), shift = V(set)((real)d->shift);
    const vreal low = V(set)((real)d->low), high = V(set)((real)d->high);
    real partial[TILE];
    while (n) {
        const unsigned skip = first % TILE;
        const size_t count = n < TILE - skip ? n : TILE - skip;
        real *const tile = count == TILE ? out : partial;
        vbits w[WORDS];
        R(philox_words)(w, first / TILE * 16, keys);
        for (int j = 0; j < WORDS; j += 2) {
            vreal x, y;
            if (kind == IC_NORMAL) {
                R(box_muller)(w[j], w[j + 1], &x, &y);
                x = V(fma)(x, scale, shift);
                y = V(fma)(y, scale, shift);
            } else {
                x = V(fma)(R(symmetric)(w[j]), scale, shift);
                y = V(fma)(R(symmetric)(w[j + 1]), scale, shift);
                x = V(min)(V(max)(x, low), high);
                y = V(min)(V(max)(y, low), high);
            }
            V(store)(tile + 16 * j, x);
            V(store)(tile + 16 * j + 16, y);
        }
        if (tile == partial) memcpy(out, partial + skip, count * sizeof(real));
        out += count;
        first += count;
        n -= count;
    }
}

/* out (n): elements first ... first + n - 1 of the stream.
 * Domain: any first and n; first + n counts modulo 2^64.
 * Max error: uniform units are exact; normal units 4 ulp (float32; one in a thousand above 2) and
 * 3 ulp (float64) against long double.
 * Determinism: the same bits for every instruction set and every way of cutting the stream up. */
static void R(draw)(real *out, uint64_t first, size_t n, uint64_t seed, uint64_t stream,
                    const ic_distribution *d) {
    const ic_fpmode mode = fpmode_enter();
    if (d->kind == IC_CONSTANT) {
        for (size_t i = 0; i < n; i++) out[i] = (real)d->shift;
        n = 0;
    }
    while (n) {
        /* a run of blocks with one high word */
        const uint64_t run = (uint64_t)IC_JOIN(IC_WORDS, IC_REAL) << 32;
        const uint64_t left = run - first % run;
        const size_t count = n < left ? n : (size_t)left;
        const philox_keys keys = philox_schedule(seed, stream, (uint32_t)(first / run));
        if (d->kind == IC_NORMAL)
            R(draw_tiles)(out, first, count, &keys, d, IC_NORMAL);
        else
            R(draw_tiles)(out, first, count, &keys, d, IC_UNIFORM);
        out += count;
        first += count;
        n -= count;
    }
    fpmode_leave(mode);
}

#undef POLYNOMIAL
#endif
