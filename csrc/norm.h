/* SPDX-License-Identifier: BSD-3-Clause */
/* A norm of rows, without gain, bias or epsilon, and its derivative. With means over the n units of
 * a row, mu = mean x for a layer norm and 0 for an RMS norm:
 *
 *     s = sqrt(mean (x - mu)^2);   x^ = (x - mu) / s
 *     dx = (g - mean g - x^ mean(g x^)) / s   (without mean g for an RMS norm)
 *
 * Rows are lanes: value b of unit u is x[b/16 * panel + 16 u + b%16]. All is float64 and rounded
 * once to the dtype; a sum goes over even and over odd units in ascending order, then both. */
IC_INLINE f64x16 R(row_sum)(const real *x, size_t n) {
  f64x16 even = f64_zero(), odd = f64_zero();
  for (size_t u = 0; u + 1 < n; u += 2) {
    even = f64_add(even, IC_JOIN(f64_load, IC_REAL)(x + 16 * u));
    odd = f64_add(odd, IC_JOIN(f64_load, IC_REAL)(x + 16 * u + 16));
  }
  if (n % 2) even = f64_add(even, IC_JOIN(f64_load, IC_REAL)(x + 16 * (n - 1)));
  return f64_add(even, odd);
}

/* Of (x - shift) (y - shift). */
IC_INLINE f64x16 R(row_product)(const real *x, const real *y, f64x16 shift, size_t n) {
  f64x16 sum[2] = {f64_zero(), f64_zero()};
  for (size_t u = 0; u < n; u += 2)
    for (size_t i = 0; i < 2 && u + i < n; i++) {
      const f64x16 v = f64_sub(IC_JOIN(f64_load, IC_REAL)(x + 16 * (u + i)), shift);
      const f64x16 w = f64_sub(IC_JOIN(f64_load, IC_REAL)(y + 16 * (u + i)), shift);
      sum[i] = f64_fma(v, w, sum[i]);
    }
  return f64_add(sum[0], sum[1]);
}

IC_INLINE f64x16 R(row_mean)(int norm, const real *x, size_t n) {
  return norm == IC_LAYER_NORM ? f64_div(R(row_sum)(x, n), f64_set((double)n)) : f64_zero();
}

/* x^ in place of x, n units of whole panels; to inverse[b], if that is not NULL, the 1/s of row b.
 * Domain: any x, n > 0. A row with s = 0 becomes zeros, with an inverse of 0; one that is not
 * finite becomes NaN. Squares are those of float64: float64 rows below 2^-511 count as zeros, and
 * above 2^511 they are not finite. Max error: of the formulas in float64, and one rounding.
 * Determinism: a row's bits depend on itself alone. */
static void R(norm)(int norm, real *x, size_t panel, size_t n, size_t batch, double *inverse) {
  const f64x16 count = f64_set((double)n);
  for (size_t b = 0; b < batch; b += 16, x += panel) {
    const f64x16 mean = R(row_mean)(norm, x, n);
    const f64x16 square = f64_div(R(row_product)(x, x, mean, n), count);
    const f64x16 over = f64_div(f64_set(1), f64_sqrt(square)), invalid = f64_sub(square, square);
    const f64x16 alive = f64_select(f64_lt(f64_zero(), square), over, f64_zero());
    const f64x16 factor = f64_add(alive, invalid); /* which is 0 or NaN */
    if (inverse) f64_store(inverse + b, factor);
    for (size_t i = 0; i < 16 * n; i += 16) {
      const f64x16 v = f64_sub(IC_JOIN(f64_load, IC_REAL)(x + i), mean);
      V(store)(x + i, IC_JOIN(IC_REAL, from_f64)(f64_mul(v, factor)));
    }
  }
}

/* dx in place of g, from x^ and the inverses of `norm`. Where s = 0 there is no derivative, and dx
 * is 0. Domain, error and determinism: those of `norm`. */
static void R(norm_backward)(int norm, const real *normed, const double *inverse, real *g,
                             size_t panel, size_t n, size_t batch) {
  const f64x16 count = f64_set((double)n);
  for (size_t b = 0; b < batch; b += 16, g += panel, normed += panel) {
    const f64x16 mean = R(row_mean)(norm, g, n), factor = f64_load(inverse + b);
    const f64x16 along = f64_div(R(row_product)(g, normed, f64_zero(), n), count);
    for (size_t i = 0; i < 16 * n; i += 16) {
      const f64x16 v = f64_sub(IC_JOIN(f64_load, IC_REAL)(g + i), mean);
      const f64x16 rest = f64_fnma(along, IC_JOIN(f64_load, IC_REAL)(normed + i), v);
      V(store)(g + i, IC_JOIN(IC_REAL, from_f64)(f64_mul(rest, factor)));
    }
  }
}
