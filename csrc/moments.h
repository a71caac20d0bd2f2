/* SPDX-License-Identifier: BSD-3-Clause */
/* Moments of units: a unit is one weight row's outputs over the batch. Two passes a unit, in
 * float64 from the values as stored: value b goes to lane b % 16, the lanes fold l + 8, + 4, + 2,
 * + 1; first the sum, then the squared deviations from the mean. Units are merged in index order
 * (Chan, Golub & LeVeque 1983):
 *
 *     n = a + b;  d = mean_b - mean_a;  mean = fma(d, b/n, mean_a);
 *     m2 = m2_a + fma(d*d, a*b/n, m2_b)
 *
 * so the bits do not depend on how the units came to be grouped. Panels hold 16 values of a unit:
 * value b of unit u is x[u * unit + b/16 * panel + b%16]. */
#ifndef IC_MOMENTS_H
#define IC_MOMENTS_H

#include <math.h>
#include <string.h>

/* Units in flight at once: the divisions of their merging are one vector's. */
enum { IC_UNIT_BLOCK = 16 };

/* b/n and a*b/n for the next units of `batch` values merged into `count` values. */
typedef struct {
  double share[IC_UNIT_BLOCK], weight[IC_UNIT_BLOCK];
} ic_merge;

static inline void merge_weights(ic_merge *merge, double count, double batch) {
  static const double index[IC_UNIT_BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f64x16 b = f64_set(batch), a = f64_fma(f64_load(index), b, f64_set(count));
  const f64x16 n = f64_add(a, b);
  f64_store(merge->share, f64_div(b, n));
  f64_store(merge->weight, f64_div(f64_mul(a, b), n));
}
#endif

#define IC_WIDEN IC_JOIN(f64_from, IC_REAL)
#define IC_LOAD_WIDE IC_JOIN(f64_load, IC_REAL)

/* What is common to all units, by lane: their order does not matter to it. */
typedef struct {
  vreal abs_max;
  vbits zeros;
} R(ic_lanes);

IC_INLINE double R(unit_sum)(const real *x, ptrdiff_t panel, size_t batch, R(ic_lanes) * lanes) {
  const size_t full = batch / 16;
  const int rest = (int)(batch % 16);
  f64x16 sum = f64_zero();
  vreal abs_max = lanes->abs_max;
  vbits zeros = lanes->zeros;
  for (size_t p = 0; p < full; p++, x += panel) {
    const vreal v = V(load)(x);
    sum = f64_add(sum, IC_LOAD_WIDE(x));
    abs_max = V(max)(V(abs)(v), abs_max);
    zeros = U(count)(zeros, V(eq)(v, V(zero)()));
  }
  if (rest) { /* the missing lanes load as +0, which changes neither a sum nor a maximum */
    const vreal v = V(load_first)(x, rest);
    sum = f64_add(sum, IC_WIDEN(v));
    abs_max = V(max)(V(abs)(v), abs_max);
    zeros = U(count)(zeros, M(and)(M(first)(rest), V(eq)(v, V(zero)())));
  }
  lanes->abs_max = abs_max;
  lanes->zeros = zeros;
  return f64_fold_add(sum);
}

IC_INLINE double R(unit_m2)(const real *x, ptrdiff_t panel, size_t batch, double mean) {
  const size_t full = batch / 16;
  const int rest = (int)(batch % 16);
  const f64x16 center = f64_set(mean);
  f64x16 m2 = f64_zero();
  for (size_t p = 0; p < full; p++, x += panel) {
    const f64x16 d = f64_sub(IC_LOAD_WIDE(x), center);
    m2 = f64_fma(d, d, m2);
  }
  if (rest) {
    f64x16 d = f64_sub(IC_WIDEN(V(load_first)(x, rest)), center);
    d = f64_select(m64_first(rest), d, f64_zero());
    m2 = f64_fma(d, d, m2);
  }
  return f64_fold_add(m2);
}

static double R(unit_nonfinite)(const real *x, ptrdiff_t panel, size_t batch) {
  size_t n = 0;
  for (size_t b = 0; b < batch; b++) {
    const real v = x[(ptrdiff_t)(b / 16) * panel + (ptrdiff_t)(b % 16)];
    n += !(v - v == 0);
  }
  return (double)n;
}

/* Merges 1 <= units <= IC_UNIT_BLOCK units of 1 <= batch < 2^32 values. */
static void R(moments_block)(const real *x, ptrdiff_t unit, ptrdiff_t panel, int units,
                             size_t batch, const ic_merge *merge, ic_moments *m) {
  double means[IC_UNIT_BLOCK] = {0};
  R(ic_lanes) lanes = {V(zero)(), U(set)(0)};
  for (int u = 0; u < units; u++)
    means[u] = R(unit_sum)(x + u * unit, panel, batch, &lanes) / (double)batch;

  /* the first unit of all has nothing to differ from; d*d might overflow against its zero weight */
  const int first = m->count == 0 && means[0] - means[0] == 0;
  double mean = first ? means[0] : m->mean, m2 = m->m2;
  for (int u = 0; u < units; u++) {
    const double unit_m2 = R(unit_m2)(x + u * unit, panel, batch, means[u]);
    const double d = means[u] - mean;
    mean = fma(d, merge->share[u], mean);
    m2 = m2 + fma(d * d, merge->weight[u], unit_m2);
  }
  m->mean = mean;
  m->m2 = m2;
  m->count += (double)units * (double)batch;

  const double abs_max = (double)V(fold_max)(lanes.abs_max);
  if (abs_max > m->abs_max) m->abs_max = abs_max;
  m->zeros += (double)U(total)(lanes.zeros);
  /* a unit with a non-finite value has no finite mean, and there is seldom one to look at */
  for (int u = 0; u < units; u++)
    if (!(means[u] - means[u] == 0)) m->nonfinite += R(unit_nonfinite)(x + u * unit, panel, batch);
}

/* Domain: any x (units, batch), NaN and infinities included; batch < 2^32. Max error: of the
 * formulas above in float64. Determinism: the same bits however units are split over calls. */
static void R(moments)(const real *x, size_t units, size_t batch, ic_moments *m) {
  if (batch == 0) return;
  const ic_fpmode mode = fpmode_enter();
  for (size_t u = 0; u < units; u += IC_UNIT_BLOCK) {
    const int block = units - u < IC_UNIT_BLOCK ? (int)(units - u) : IC_UNIT_BLOCK;
    ic_merge merge;
    merge_weights(&merge, m->count, (double)batch);
    R(moments_block)(x + u * batch, (ptrdiff_t)batch, 16, block, batch, &merge, m);
  }
  fpmode_leave(mode);
}

#undef IC_WIDEN
#undef IC_LOAD_WIDE
