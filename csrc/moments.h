/* SPDX-License-Identifier: BSD-3-Clause */
/* Moments of units: a unit is one weight row's outputs over the batch. Two passes a unit, in
 * float64 from the values as stored: value b goes to lane b % 16, the lanes fold l + 8, + 4, + 2,
 * + 1; first the sum, then the powers of the deviations from the mean. Units are merged in index
 * order (Chan, Golub & LeVeque 1983; Pebay 2008, SAND2008-6212, for the third and fourth powers):
 *
 *     n = a + b;  p = a/n;  s = b/n;  w = a*b/n;  d = mean_b - mean_a;  mean = fma(d, s, mean_a)
 *     m2 = m2_a + fma(d*d, w, m2_b)
 *     m3 = m3_a + fma(d, fma(d*d*w, p - s, 3 (p m2_b - s m2_a)), m3_b)
 *     q  = fma(d*d*w, 1 - 3 p s, 6 (p^2 m2_b + s^2 m2_a))
 *     m4 = m4_a + fma(d, fma(d, q, 4 (p m3_b - s m3_a)), m4_b)
 *
 * so the bits do not depend on how the units came to be grouped. Panels hold 16 values of a unit:
 * value b of unit u is x[u * unit + b/16 * panel + b%16]. */
#ifndef IC_MOMENTS_H
#define IC_MOMENTS_H

#include <float.h>
#include <math.h>
#include <string.h>

/* Units at once: what takes divisions, means and the weights of a merge, is one vector's. */
enum { IC_UNIT_BLOCK = 16 };

/* The least |x| that float16 rounds to infinity: half way from its largest, 65504, to 65536. */
#define IC_FLOAT16_OVERFLOW 65520

/* Merges `n` units of `batch` values, units[u * states + s], into m[s]; their counts are equal, so
 * that what the formulas make of counts is vectors' work. The rest goes unit by unit, of all states
 * side by side. */
IC_INLINE void merge_units(const ic_unit *units, const int states, size_t n, size_t batch,
                           ic_moments *m) {
  static const double index[IC_UNIT_BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  double p[IC_UNIT_BLOCK], s[IC_UNIT_BLOCK], w[IC_UNIT_BLOCK], skew[IC_UNIT_BLOCK];
  double flat[IC_UNIT_BLOCK], p2[IC_UNIT_BLOCK], s2[IC_UNIT_BLOCK];
  double mean[2], m2[2], m3[2], m4[2], within[2];
  for (int j = 0; j < states; j++) { /* nothing to differ from yet, and d*d might overflow */
    const int first = m[j].count == 0 && units[j].mean - units[j].mean == 0;
    mean[j] = first ? units[j].mean : m[j].mean;
    m2[j] = m[j].m2;
    m3[j] = m[j].m3;
    m4[j] = m[j].m4;
    within[j] = m[j].within;
  }
  const f64x16 b = f64_set((double)batch), one = f64_set(1), three = f64_set(3);
  for (size_t u = 0; u < n; u += IC_UNIT_BLOCK) {
    const int block = n - u < IC_UNIT_BLOCK ? (int)(n - u) : IC_UNIT_BLOCK;
    const double before = m->count + (double)u * (double)batch;
    const f64x16 a = f64_fma(f64_load(index), b, f64_set(before)), total = f64_add(a, b);
    const f64x16 of_a = f64_div(a, total), of_b = f64_div(b, total), ps = f64_mul(of_a, of_b);
    f64_store(p, of_a);
    f64_store(s, of_b);
    f64_store(w, f64_div(f64_mul(a, b), total));
    f64_store(skew, f64_sub(of_a, of_b));
    f64_store(flat, f64_fnma(three, ps, one));
    f64_store(p2, f64_mul(of_a, of_a));
    f64_store(s2, f64_mul(of_b, of_b));
    for (int i = 0; i < block; i++, units += states)
      for (int j = 0; j < states; j++) {
        const ic_unit unit = units[j];
        const double d = unit.mean - mean[j], square = d * d, spread = square * w[i];
        const double both = fma(p[i], unit.m2, -(s[i] * m2[j]));
        const double inner = fma(spread, skew[i], 3 * both);
        const double q = fma(spread, flat[i], 6 * fma(p2[i], unit.m2, s2[i] * m2[j]));
        const double odd = fma(p[i], unit.m3, -(s[i] * m3[j]));
        mean[j] = fma(d, s[i], mean[j]);
        m4[j] += fma(d, fma(d, q, 4 * odd), unit.m4);
        m3[j] += fma(d, inner, unit.m3);
        m2[j] += fma(square, w[i], unit.m2);
        within[j] += unit.m2;
      }
  }
  for (int j = 0; j < states; j++) {
    m[j].count += (double)n * (double)batch;
    m[j].mean = mean[j];
    m[j].m2 = m2[j];
    m[j].m3 = m3[j];
    m[j].m4 = m4[j];
    m[j].within = within[j];
  }
}

/* What sums to a square, but for its parts' roundings, is none below 0. */
static void clip_square(ic_moments *m) {
  if (m->m2 < 0) m->m2 = m->within = 0;
}

/* Domain: units (n, states) of `batch` values, and the parts (n_parts, states) of the ranges they
 * came in; states 1 or 2, n and batch > 0. Max error: as `moments`. Determinism: the ranges do not
 * change a bit. */
static void chain_merge(const ic_unit *units, int states, size_t n, size_t batch,
                        const ic_moments *parts, size_t n_parts, ic_moments *m) {
  const ic_fpmode mode = fpmode_enter();
  merge_units(units, states, n, batch, m);
  for (size_t i = 0; i < (size_t)states * n_parts; i++) {
    ic_moments *sum = m + i % (size_t)states;
    if (parts[i].abs_max > sum->abs_max) sum->abs_max = parts[i].abs_max;
    sum->zeros += parts[i].zeros;
    sum->saturated += parts[i].saturated;
    sum->nonfinite += parts[i].nonfinite;
    sum->dead += parts[i].dead;
    sum->overflows += parts[i].overflows;
  }
  for (int j = 0; j < states; j++) clip_square(m + j);
  fpmode_leave(mode);
}
#endif

#define IC_WIDEN IC_JOIN(f64_from, IC_REAL)
#define IC_LOAD_WIDE IC_JOIN(f64_load, IC_REAL)

/* What is common to all units, by lane: their order does not matter to it. */
typedef struct {
  vreal abs_max;
  vbits zeros;
} R(ic_common);

IC_INLINE f64x16 R(unit_sum)(const real *x, ptrdiff_t panel, size_t batch, f64x16 one,
                             R(ic_common) * common) {
  const int rest = (int)(batch % 16);
  f64x16 sum = f64_zero();
  vreal abs_max = common->abs_max;
  vbits zeros = common->zeros;
  for (size_t p = 0; p < batch / 16; p++, x += panel) {
    const vreal v = V(load)(x);
    sum = f64_fma_add(IC_LOAD_WIDE(x), one, sum);
    abs_max = V(abs_max)(v, abs_max);
    zeros = U(count)(zeros, V(eq)(v, V(zero)()));
  }
  if (rest) { /* the missing lanes load as +0, which changes neither a sum nor a maximum */
    const vreal v = V(load_first)(x, rest);
    sum = f64_add(sum, IC_WIDEN(v));
    abs_max = V(abs_max)(v, abs_max);
    zeros = U(count)(zeros, M(and)(M(first)(rest), V(eq)(v, V(zero)())));
  }
  common->abs_max = abs_max;
  common->zeros = zeros;
  return sum;
}

/* The lanes of the sums of squares, cubes and fourth powers of deviations from the mean. */
typedef struct {
  f64x16 m2, m3, m4;
} R(ic_powers);

IC_INLINE R(ic_powers) R(add_powers)(R(ic_powers) sum, f64x16 d) {
  const f64x16 square = f64_mul(d, d);
  sum.m2 = f64_fma(d, d, sum.m2);
  sum.m3 = f64_fma(square, d, sum.m3);
  sum.m4 = f64_fma(square, square, sum.m4);
  return sum;
}

IC_INLINE R(ic_powers) R(unit_powers)(const real *x, ptrdiff_t panel, size_t batch, double mean) {
  const int rest = (int)(batch % 16);
  const f64x16 minus_mean = f64_set(-mean);
  R(ic_powers) sum = {f64_zero(), f64_zero(), f64_zero()};
  for (size_t p = 0; p < batch / 16; p++, x += panel)
    sum = R(add_powers)(sum, f64_add(IC_LOAD_WIDE(x), minus_mean));
  if (rest) {
    const f64x16 d = f64_add(IC_WIDEN(V(load_first)(x, rest)), minus_mean);
    sum = R(add_powers)(sum, f64_select(m64_first(rest), d, f64_zero()));
  }
  return sum;
}

/* Counts the values that float16 rounds to infinity. */
static double R(unit_overflows)(const real *x, ptrdiff_t panel, size_t batch) {
  const vreal limit = V(set)(IC_FLOAT16_OVERFLOW);
  vbits n = U(set)(0);
  for (size_t b = 0; b < batch; b += 16, x += panel) {
    const vreal v = V(load_first)(x, batch - b < 16 ? (int)(batch - b) : 16);
    n = U(count)(n, V(le)(limit, V(abs)(v)));
  }
  return (double)U(total)(n);
}

/* Counts the values that are not finite, value by value; *abs_max passes over NaN. */
static double R(unit_nonfinite)(const real *x, ptrdiff_t panel, size_t batch, double *abs_max) {
  size_t n = 0;
  for (size_t b = 0; b < batch; b++) {
    const double v = (double)x[(ptrdiff_t)(b / 16) * panel + (ptrdiff_t)(b % 16)];
    if (fabs(v) > *abs_max) *abs_max = fabs(v);
    n += !(v - v == 0);
  }
  return (double)n;
}

/* How many units are zero throughout, value by value. */
static double R(zero_units)(const real *x, ptrdiff_t unit, ptrdiff_t panel, int units,
                            size_t batch) {
  double zeros = 0;
  for (int u = 0; u < units; u++, x += unit) {
    int zero = 1;
    for (size_t b = 0; b < batch; b++)
      zero &= x[(ptrdiff_t)(b / 16) * panel + (ptrdiff_t)(b % 16)] == 0;
    zeros += zero;
  }
  return zeros;
}

/* What the first pass over a block of units leaves to the second. */
typedef struct {
  R(ic_common) common;
  double mean[IC_UNIT_BLOCK];
} R(ic_block);

/* The first pass over 1 <= units <= IC_UNIT_BLOCK units of 1 <= batch < 2^32 values. */
static void R(block_means)(const real *x, ptrdiff_t unit, ptrdiff_t panel, int units, size_t batch,
                           R(ic_block) * block) {
  _Alignas(64) double lanes[8 * IC_UNIT_BLOCK];
  R(ic_common) common = {V(zero)(), U(set)(0)};
  const f64x16 one = f64_one();
  for (int u = 0; u < units; u++, x += unit)
    f64_store_halves(lanes + 8 * u, R(unit_sum)(x, panel, batch, one, &common));
  for (int u = units; u < IC_UNIT_BLOCK; u++) f64_store_halves(lanes + 8 * u, f64_zero());
  f64_store(block->mean, f64_div(f64_fold_rows(lanes), f64_set((double)batch)));
  block->common = common;
}

/* The second: what a merge wants of unit u to out[u * states], what needs no order into m. */
static void R(block_powers)(const real *x, ptrdiff_t unit, ptrdiff_t panel, int units,
                            size_t batch, const R(ic_block) * block, ic_unit *out, int states,
                            ic_moments *m) {
  _Alignas(64) double lanes[3][8 * IC_UNIT_BLOCK], sums[3][IC_UNIT_BLOCK];
  for (int u = 0; u < units; u++) {
    const R(ic_powers) powers = R(unit_powers)(x + u * unit, panel, batch, block->mean[u]);
    f64_store_halves(lanes[0] + 8 * u, powers.m2);
    f64_store_halves(lanes[1] + 8 * u, powers.m3);
    f64_store_halves(lanes[2] + 8 * u, powers.m4);
  }
  for (int u = units; u < IC_UNIT_BLOCK; u++)
    for (int i = 0; i < 3; i++) f64_store_halves(lanes[i] + 8 * u, f64_zero());
  for (int i = 0; i < 3; i++) f64_store(sums[i], f64_fold_rows(lanes[i]));

  const m64x16 own = m64_first(units);
  const f64x16 mean = f64_load(block->mean), zero = f64_zero();
  /* a unit with a value that is not finite has no finite mean */
  const int finite = m64_bits(m64_and(own, f64_eq(f64_sub(mean, mean), zero))) == m64_bits(own);
  const m64x16 flat = m64_and(f64_eq(mean, zero), f64_eq(f64_load(sums[0]), zero));
  double dead = f64_fold_add(f64_select(m64_and(own, flat), f64_set(1), zero));
  /* squares of float64 may underflow, so both being 0 is no proof */
  if (sizeof(real) == 8 && dead > 0) dead = R(zero_units)(x, unit, panel, units, batch);
  m->dead += dead * (double)batch;
  for (int u = 0; u < units; u++) {
    const ic_unit found = {block->mean[u], sums[0][u], sums[1][u], sums[2][u]};
    out[u * states] = found;
  }
  double abs_max = finite ? (double)V(fold_max)(block->common.abs_max) : 0;
  if (!finite)
    for (int u = 0; u < units; u++)
      m->nonfinite += R(unit_nonfinite)(x + u * unit, panel, batch, &abs_max);
  if (abs_max >= IC_FLOAT16_OVERFLOW)
    for (int u = 0; u < units; u++)
      m->overflows += R(unit_overflows)(x + u * unit, panel, batch);
  if (abs_max > m->abs_max) m->abs_max = abs_max;
  m->zeros += (double)U(total)(block->common.zeros);
}

/* Domain: any x (units, batch), NaN and infinities included; batch < 2^32. Max error: of the
 * formulas above in float64. Determinism: the same bits however units are split over calls. */
static void R(moments)(const real *x, size_t units, size_t batch, ic_moments *m) {
  if (batch == 0) return;
  const ic_fpmode mode = fpmode_enter();
  for (size_t u = 0; u < units; u += IC_UNIT_BLOCK) {
    const int block = units - u < IC_UNIT_BLOCK ? (int)(units - u) : IC_UNIT_BLOCK;
    ic_unit found[IC_UNIT_BLOCK];
    R(ic_block) means;
    R(block_means)(x + u * batch, (ptrdiff_t)batch, 16, block, batch, &means);
    R(block_powers)(x + u * batch, (ptrdiff_t)batch, 16, block, batch, &means, found, 1, m);
    merge_units(found, 1, (size_t)block, batch, m);
  }
  fpmode_leave(mode);
}

/* The mean cosine of two rows of a batch, over all units: with x^ = x / |x|, B rows that are not
 * zero, (|sum_b x^_b|^2 - B) / (B (B - 1)). It needs a layer's row norms before its sums, so it
 * looks twice at x in panels, where it lies in cache: for the norms, and for each unit's sum of x^.
 * Squared norms sum over even and over odd units in ascending order, then both; the squares of the
 * sums of units u % 16 in ascending order, then the lanes fold. scales: room for a double a row,
 * rounded up to 16. Row norms below 2^-511, whose squares are not whole, are those of zero rows.
 * Domain: any x. Max error: of the formula in float64; NaN where a norm is not finite or B < 2.
 * Determinism: it always takes whole layers. */
static double R(mean_cosine)(const real *x, size_t panel, size_t units, size_t batch,
                             double *scales) {
  const f64x16 one = f64_set(1), zero = f64_zero();
  double rows = 0;
  for (size_t b = 0; b < batch; b += 16) {
    const int lanes = batch - b < 16 ? (int)(batch - b) : 16;
    const real *at = x + b / 16 * panel;
    f64x16 even = zero, odd = zero;
    for (size_t u = 0; u + 1 < units; u += 2) {
      const f64x16 v = IC_LOAD_WIDE(at + 16 * u), w = IC_LOAD_WIDE(at + 16 * u + 16);
      even = f64_fma(v, v, even);
      odd = f64_fma(w, w, odd);
    }
    if (units % 2) {
      const f64x16 v = IC_LOAD_WIDE(at + 16 * (units - 1));
      even = f64_fma(v, v, even);
    }
    const f64x16 squares = f64_select(m64_first(lanes), f64_add(even, odd), zero);
    const double sum = f64_fold_add(squares);
    if (sum - sum != 0) return NAN;
    const m64x16 alive = f64_lt(f64_set(DBL_MIN), squares);
    f64_store(scales + b, f64_select(alive, f64_div(one, f64_sqrt(squares)), zero));
    for (unsigned bits = m64_bits(alive); bits; bits &= bits - 1) rows++;
  }
  if (rows < 2) return NAN;
  const int rest = (int)(batch % 16); /* what the lanes beyond hold need not be finite */
  f64x16 total = zero;
  for (size_t u = 0; u < units; u += IC_UNIT_BLOCK) {
    _Alignas(64) double sums[8 * IC_UNIT_BLOCK];
    for (size_t i = 0; i < IC_UNIT_BLOCK; i++) {
      f64x16 sum = zero;
      if (u + i < units) {
        const real *at = x + 16 * (u + i);
        size_t b = 0;
        for (; b + 16 <= batch; b += 16, at += panel)
          sum = f64_fma(IC_LOAD_WIDE(at), f64_load(scales + b), sum);
        if (rest) sum = f64_fma(IC_WIDEN(V(load_first)(at, rest)), f64_load(scales + b), sum);
      }
      f64_store_halves(sums + 8 * i, sum);
    }
    const f64x16 v = f64_fold_rows(sums);
    total = f64_fma(v, v, total);
  }
  return (f64_fold_add(total) - rows) / (rows * (rows - 1));
}

/* `mean_cosine` of x in panels without padding. */
static double R(cosine)(const real *x, size_t units, size_t batch, double *scales) {
  const ic_fpmode mode = fpmode_enter();
  const double found = R(mean_cosine)(x, 16 * units, units, batch, scales);
  fpmode_leave(mode);
  return found;
}

#undef IC_WIDEN
#undef IC_LOAD_WIDE
