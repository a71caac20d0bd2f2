/* SPDX-License-Identifier: BSD-3-Clause */
/* A norm of rows, without gain, bias or epsilon, and its derivative. With means over the n units of
 * a row, mu = mean x for a layer norm and 0 for an RMS norm:
 *
 *     s = sqrt(mean (x - mu)^2);   x^ = (x - mu) / s
 *     dx = (g - mean g - x^ mean(g x^)) / s   (without mean g for an RMS norm)
 *
 * Rows are lanes: value b of unit u is x[b/16 * panel + 16 u + b%16]. All is float64 and rounded
 * once to the dtype; a sum goes over even and over odd units in ascending order, then both. Two
 * things float32 does without, whose squares and sums of equal values float64 holds: a float64 row
 * is first divided by a power of two near its largest |x|, and to a mean of float64 is added the
 * mean of what is left of x, so that equal values have themselves as their mean. */

/* 1 / the power of two, from 2^-1000 to 2^1000, at or next below a row's largest |x|. */
IC_INLINE f64x16 R(row_scale)(const real *x, size_t n) {
  f64x16 largest = f64_zero();
  if (sizeof(real) < sizeof(double)) return f64_set(1);
  for (size_t u = 0; u < n; u++)
    largest = f64_abs_max(IC_JOIN(f64_load, IC_REAL)(x + 16 * u), largest);
  const f64x16 bounded = f64_max(f64_min(largest, f64_set(0x1p1000)), f64_set(0x1p-1000));
  const u64x16 power = u64_and(f64_bits(bounded), u64_set(UINT64_C(0x7FF) << 52));
  return f64_div(f64_set(1), f64_from_bits(power));
}

/* scale x - shift. */
IC_INLINE f64x16 R(row_unit)(const real *x, f64x16 scale, f64x16 shift) {
  return f64_sub(f64_mul(IC_JOIN(f64_load, IC_REAL)(x), scale), shift);
}

/* The mean of scale x - shift. */
IC_INLINE f64x16 R(row_average)(const real *x, f64x16 scale, f64x16 shift, size_t n) {
  f64x16 even = f64_zero(), odd = f64_zero();
  for (size_t u = 0; u + 1 < n; u += 2) {
    even = f64_add(even, R(row_unit)(x + 16 * u, scale, shift));
    odd = f64_add(odd, R(row_unit)(x + 16 * u + 16, scale, shift));
  }
  if (n % 2) even = f64_add(even, R(row_unit)(x + 16 * (n - 1), scale, shift));
  return f64_div(f64_add(even, odd), f64_set((double)n));
}

/* mu of scale x. */
IC_INLINE f64x16 R(row_mean)(int norm, const real *x, f64x16 scale, size_t n) {
  if (norm != IC_LAYER_NORM) return f64_zero();
  const f64x16 mean = R(row_average)(x, scale, f64_zero(), n);
  if (sizeof(real) < sizeof(double)) return mean;
  return f64_add(mean, R(row_average)(x, scale, mean, n));
}

/* The mean of (scale x - shift) (scale y - shift). */
IC_INLINE f64x16 R(row_product)(const real *x, const real *y, f64x16 scale, f64x16 shift,
                                size_t n) {
  f64x16 sum[2] = {f64_zero(), f64_zero()};
  for (size_t u = 0; u < n; u += 2)
    for (size_t i = 0; i < 2 && u + i < n; i++) {
      const f64x16 v = R(row_unit)(x + 16 * (u + i), scale, shift);
      const f64x16 w = R(row_unit)(y + 16 * (u + i), scale, shift);
      sum[i] = f64_fma(v, w, sum[i]);
    }
  return f64_div(f64_add(sum[0], sum[1]), f64_set((double)n));
}

/* x^ in place of x, n units of whole panels; to inverse[b], if that is not NULL, the 1/s of row b.
 * Domain: any x, n > 0. A row with s = 0 becomes zeros, with an inverse of 0; one that is not
 * finite becomes NaN. An s below 2^-1024 has an infinite inverse. Max error: of the formulas in
 * float64, and one rounding. Determinism: a row's bits depend on itself alone, and those of x^ not
 * on a power of two in all of x, unless one leaves the range of normal numbers. */
static void R(norm)(int norm, real *x, size_t panel, size_t n, size_t batch, double *inverse) {
  for (size_t b = 0; b < batch; b += 16, x += panel) {
    const f64x16 scale = R(row_scale)(x, n), mean = R(row_mean)(norm, x, scale, n);
    const f64x16 square = R(row_product)(x, x, scale, mean, n);
    const f64x16 over = f64_div(f64_set(1), f64_sqrt(square)), invalid = f64_sub(square, square);
    const f64x16 alive = f64_select(f64_lt(f64_zero(), square), over, f64_zero());
    const f64x16 factor = f64_add(alive, invalid); /* which is 0 or NaN */
    if (inverse) f64_store(inverse + b, f64_mul(factor, scale));
    for (size_t i = 0; i < 16 * n; i += 16) {
      const f64x16 v = R(row_unit)(x + i, scale, mean);
      V(store)(x + i, IC_JOIN(IC_REAL, from_f64)(f64_mul(v, factor)));
    }
  }
}

/* dx in place of g, from x^ and the inverses of `norm`. Where s = 0 there is no derivative, and dx
 * is 0. Domain, error and determinism: those of `norm`, and sums of g that are finite. */
static void R(norm_backward)(int norm, const real *normed, const double *inverse, real *g,
                             size_t panel, size_t n, size_t batch) {
  const f64x16 one = f64_set(1);
  for (size_t b = 0; b < batch; b += 16, g += panel, normed += panel) {
    const f64x16 mean = R(row_mean)(norm, g, one, n), factor = f64_load(inverse + b);
    const f64x16 along = R(row_product)(g, normed, one, f64_zero(), n);
    for (size_t i = 0; i < 16 * n; i += 16) {
      const f64x16 v = R(row_unit)(g + i, one, mean);
      const f64x16 rest = f64_fnma(along, IC_JOIN(f64_load, IC_REAL)(normed + i), v);
      V(store)(g + i, IC_JOIN(IC_REAL, from_f64)(f64_mul(rest, factor)));
    }
  }
}
