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

/* Units at once: what takes divisions, means and the weights of a merge, is one vector's. */
enum { IC_UNIT_BLOCK = 16 };

/* Merges `n` units of `batch` values, units[u * states + s], into m[s]; their counts are equal. The
 * recurrences of all states run side by side: each waits for itself alone. */
IC_INLINE void merge_units(const ic_unit *units, const int states, size_t n, size_t batch,
                           ic_moments *m) {
  static const double index[IC_UNIT_BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  double share[IC_UNIT_BLOCK], weight[IC_UNIT_BLOCK], mean[2], m2[2];
  for (int s = 0; s < states; s++) { /* nothing to differ from yet, and d*d might overflow */
    const int first = m[s].count == 0 && units[s].mean - units[s].mean == 0;
    mean[s] = first ? units[s].mean : m[s].mean;
    m2[s] = m[s].m2;
  }
  const f64x16 b = f64_set((double)batch);
  for (size_t u = 0; u < n; u += IC_UNIT_BLOCK, units += IC_UNIT_BLOCK * states) {
    const int block = n - u < IC_UNIT_BLOCK ? (int)(n - u) : IC_UNIT_BLOCK;
    const double before = m->count + (double)u * (double)batch;
    const f64x16 a = f64_fma(f64_load(index), b, f64_set(before)), total = f64_add(a, b);
    f64_store(share, f64_div(b, total));
    f64_store(weight, f64_div(f64_mul(a, b), total));
    for (int i = 0; i < block; i++)
      for (int s = 0; s < states; s++) {
        const double d = units[i * states + s].mean - mean[s];
        mean[s] = fma(d, share[i], mean[s]);
        m2[s] = m2[s] + fma(d * d, weight[i], units[i * states + s].m2);
      }
  }
  for (int s = 0; s < states; s++) {
    m[s].mean = mean[s];
    m[s].m2 = m2[s];
    m[s].count += (double)n * (double)batch;
  }
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
  }
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

IC_INLINE f64x16 R(unit_m2)(const real *x, ptrdiff_t panel, size_t batch, f64x16 one,
                            double mean) {
  const int rest = (int)(batch % 16);
  const f64x16 minus_mean = f64_set(-mean);
  f64x16 m2 = f64_zero();
  for (size_t p = 0; p < batch / 16; p++, x += panel) {
    const f64x16 d = f64_half_fma_add(IC_LOAD_WIDE(x), one, minus_mean);
    m2 = f64_fma(d, d, m2);
  }
  if (rest) {
    f64x16 d = f64_add(IC_WIDEN(V(load_first)(x, rest)), minus_mean);
    d = f64_select(m64_first(rest), d, f64_zero());
    m2 = f64_fma(d, d, m2);
  }
  return m2;
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

/* Of 1 <= units <= IC_UNIT_BLOCK units of 1 <= batch < 2^32 values: what a merge wants of unit u to
 * out[u * states], what needs no order into m. */
static void R(moments_block)(const real *x, ptrdiff_t unit, ptrdiff_t panel, int units,
                             size_t batch, ic_unit *out, int states, ic_moments *m) {
  _Alignas(64) double lanes[16 * IC_UNIT_BLOCK], means[IC_UNIT_BLOCK], m2[IC_UNIT_BLOCK];
  R(ic_common) common = {V(zero)(), U(set)(0)};
  const f64x16 one = f64_one();
  for (int u = units; u < IC_UNIT_BLOCK; u++) f64_store(lanes + 16 * u, f64_zero());
  for (int u = 0; u < units; u++)
    f64_store(lanes + 16 * u, R(unit_sum)(x + u * unit, panel, batch, one, &common));
  f64_store(means, f64_div(f64_fold_rows(lanes), f64_set((double)batch)));
  for (int u = 0; u < units; u++)
    f64_store(lanes + 16 * u, R(unit_m2)(x + u * unit, panel, batch, one, means[u]));
  f64_store(m2, f64_fold_rows(lanes));

  int finite = 1; /* a unit with a value that is not finite has no finite mean */
  for (int u = 0; u < units; u++) {
    out[u * states] = (ic_unit){means[u], m2[u]};
    finite &= means[u] - means[u] == 0;
  }
  double abs_max = finite ? (double)V(fold_max)(common.abs_max) : 0;
  if (!finite)
    for (int u = 0; u < units; u++)
      m->nonfinite += R(unit_nonfinite)(x + u * unit, panel, batch, &abs_max);
  if (abs_max > m->abs_max) m->abs_max = abs_max;
  m->zeros += (double)U(total)(common.zeros);
}

/* Domain: any x (units, batch), NaN and infinities included; batch < 2^32. Max error: of the
 * formulas above in float64. Determinism: the same bits however units are split over calls. */
static void R(moments)(const real *x, size_t units, size_t batch, ic_moments *m) {
  if (batch == 0) return;
  const ic_fpmode mode = fpmode_enter();
  for (size_t u = 0; u < units; u += IC_UNIT_BLOCK) {
    const int block = units - u < IC_UNIT_BLOCK ? (int)(units - u) : IC_UNIT_BLOCK;
    ic_unit found[IC_UNIT_BLOCK];
    R(moments_block)(x + u * batch, (ptrdiff_t)batch, 16, block, batch, found, 1, m);
    merge_units(found, 1, (size_t)block, batch, m);
  }
  fpmode_leave(mode);
}

#undef IC_WIDEN
#undef IC_LOAD_WIDE
