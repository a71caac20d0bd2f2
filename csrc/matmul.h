/* SPDX-License-Identifier: BSD-3-Clause */
/* y = W x + b for a slab of W's rows and a whole batch, and y = W' x for a strip of its columns.
 * The lanes of a vector are 16 rows of the batch; a weight is broadcast from its plain row-major
 * row. Activations live in panels: feature k of batch row b is x[b/16 * panel + k * 16 + b%16], so
 * that a product's output tile already is a piece of the next product's panel, and W is neither
 * packed nor transposed.
 *
 * An output is one chain of fused multiply-adds over ascending k, from +0; the bias is added last.
 * W x never blocks k (as fast at every n to 4096), W' x goes on from its own y, in whatever blocks
 * W's rows come: no tile shape can change a bit. */
#ifndef IC_MATMUL_H
#define IC_MATMUL_H

#if defined(__clang__)
#define IC_UNROLL_ALL _Pragma("clang loop unroll(full)")
#define IC_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define IC_UNROLL_ALL _Pragma("GCC unroll 16")
#define IC_UNROLL_4 _Pragma("GCC unroll 4")
#endif
/* Each row of a tile is code of its own: the trip count is constant, and the compiler drops what
 * is beyond `rows`. */
#define IC_EACH_ROW(r) \
  IC_UNROLL_ALL for (int r = 0; r < IC_TILE_ROWS; r++) \
    if (r < rows)
#define IC_EACH_THIRD(t) \
  IC_UNROLL_ALL for (int t = 0; t < IC_TILE_THIRDS; t++) \
    if (3 * t < rows)
#define IC_EACH_PANEL(p) \
  IC_UNROLL_ALL for (int p = 0; p < IC_TILE_PANELS; p++) \
    if (p < panels)

/* Features at a time that are widened for a float64 product. */
enum { IC_GRAM_FEATURES = 64 };
#endif

#define IC_TILE_ROWS IC_GLUE(IC_TILE_ROWS_, IC_REAL)
#define IC_TILE_PANELS IC_GLUE(IC_TILE_PANELS_, IC_REAL)
#define IC_TILE_VECTOR IC_GLUE(IC_TILE_VECTOR_, IC_REAL)
#define IC_TILE_THIRDS ((IC_TILE_ROWS + 2) / 3)
#define IC_TILE_LANES (int)(sizeof(IC_TILE_VECTOR) / sizeof(real))
#define T(op) IC_JOIN(IC_GLUE(IC_TILE_, IC_REAL), op)
_Static_assert(IC_TILE_ROWS <= 16, "multiply's switch has tiles of up to 16 rows");

/* One tile: `rows` outputs and IC_TILE_LANES lanes of each of `panels` panels, both constants. An
 * output is a row of W or, if the constant `transposed` is set, a column, added to y. The
 * accumulators must stay in registers: look at the assembly after any change. `next` is where the
 * weights of the next tile begin; `ahead`, if transposed, the address of those of this one in the
 * next block of rows, `ahead_stride` bytes apart, or 0: a number, which may lie beyond W. */
IC_INLINE void R(tile)(const int rows, const int panels, const int transposed, const real *w,
                       ptrdiff_t stride, const real *next, uintptr_t ahead, uintptr_t ahead_stride,
                       size_t n, const real *bias, const real *x, ptrdiff_t x_panel, real *y,
                       ptrdiff_t y_panel) {
  IC_TILE_VECTOR sum[IC_TILE_ROWS][IC_TILE_PANELS];
  IC_EACH_ROW(r) IC_EACH_PANEL(p)
    sum[r][p] = transposed ? T(load)(y + p * y_panel + 16 * r) : T(zero)();
  /* three rows of W from a pointer each, so that addresses take few registers and no arithmetic */
  const real *at[IC_TILE_THIRDS];
  IC_EACH_THIRD(t) at[t] = w + (transposed ? 3 * t : 3 * t * stride);
#define IC_STEP() \
  do { \
    IC_TILE_VECTOR v[IC_TILE_PANELS]; \
    IC_EACH_PANEL(p) v[p] = T(load)(x + p * x_panel); \
    IC_EACH_ROW(r) { \
      const IC_TILE_VECTOR weight = T(set)(at[r / 3][r % 3 * (transposed ? 1 : stride)]); \
      IC_EACH_PANEL(p) sum[r][p] = T(fma)(weight, v[p], sum[r][p]); \
    } \
    x += 16; \
    IC_EACH_THIRD(t) at[t] += transposed ? stride : 1; \
  } while (0)
  size_t k = 0;
  for (; k + 16 <= n; k += 16) {
    /* into the second level: what comes next would push these rows out of the first */
    if (transposed) {
      for (size_t i = k; ahead && i < k + 16; i++)
        __builtin_prefetch((const void *)(ahead + i * ahead_stride), 0, 2);
    } else {
      IC_EACH_ROW(r) {
        const real *row = at[r / 3] + (next - w) + r % 3 * stride;
        __builtin_prefetch(row, 0, 2);
        if (sizeof(real) == 8) __builtin_prefetch(row + 8, 0, 2);
      }
    }
    IC_UNROLL_4 for (int i = 0; i < 16; i++) IC_STEP();
  }
  for (; k < n; k++) IC_STEP();
#undef IC_STEP
  if (bias)
    IC_EACH_ROW(r) IC_EACH_PANEL(p) sum[r][p] = T(add)(sum[r][p], T(set)(bias[r]));
  IC_EACH_ROW(r) IC_EACH_PANEL(p) T(store)(y + p * y_panel + 16 * r, sum[r][p]);
}

/* `panels` panels, a constant, at once. */
IC_INLINE void R(multiply_panels)(const int panels, const int transposed, const real *w,
                                  ptrdiff_t stride, uintptr_t ahead, uintptr_t ahead_stride,
                                  size_t rows, size_t n, const real *bias, const real *x,
                                  ptrdiff_t x_panel, real *y, ptrdiff_t y_panel) {
  /* as few tiles as will do, as equal as can be: no thin tile is left over to wait for its fmas */
  const size_t tiles = (rows + IC_TILE_ROWS - 1) / IC_TILE_ROWS;
  const size_t least = tiles ? rows / tiles : 0, smaller = tiles ? tiles - rows % tiles : 0;
  const real *row = w;
  for (size_t t = 0; t < tiles; t++) {
    const size_t count = least + (t >= smaller);
    const real *after = row + (ptrdiff_t)count * (transposed ? 1 : stride);
    const real *next = t + 1 < tiles ? after : w;
#define IC_CASE(r) \
  case r: \
    if (r <= IC_TILE_ROWS) \
      R(tile)(r <= IC_TILE_ROWS ? r : 1, panels, transposed, row, stride, next, ahead, \
              ahead_stride, n, bias, x + lane, x_panel, y + lane, y_panel); \
    break;
    for (int lane = 0; lane < 16; lane += IC_TILE_LANES) switch (count) {
        IC_CASE(1) IC_CASE(2) IC_CASE(3) IC_CASE(4) IC_CASE(5) IC_CASE(6) IC_CASE(7) IC_CASE(8)
        IC_CASE(9) IC_CASE(10) IC_CASE(11) IC_CASE(12) IC_CASE(13) IC_CASE(14) IC_CASE(15)
        IC_CASE(16)
      }
#undef IC_CASE
    row = after;
    if (ahead) ahead += count * sizeof(real);
    y += 16 * count;
    if (bias) bias += count;
  }
}

IC_INLINE void R(multiply_all)(const int transposed, const real *w, ptrdiff_t stride,
                               uintptr_t ahead, uintptr_t ahead_stride, size_t rows, size_t n,
                               const real *bias, const real *x, ptrdiff_t x_panel, real *y,
                               ptrdiff_t y_panel, size_t panels) {
  for (; panels >= IC_TILE_PANELS; panels -= IC_TILE_PANELS) {
    R(multiply_panels)(IC_TILE_PANELS, transposed, w, stride, ahead, ahead_stride, rows, n, bias, x,
                       x_panel, y, y_panel);
    ahead = 0;
    x += IC_TILE_PANELS * x_panel;
    y += IC_TILE_PANELS * y_panel;
  }
  for (; IC_TILE_PANELS > 1 && panels; panels--, x += x_panel, y += y_panel)
    R(multiply_panels)(1, transposed, w, stride, ahead, ahead_stride, rows, n, bias, x, x_panel, y,
                       y_panel);
}

/* y = W x + b.
 * Domain: any values; W (rows, n) with rows `stride` elements apart, bias (rows) or NULL, x and y
 * in panels `x_panel` and `y_panel` elements apart, y at the slab's first feature. Padding lanes
 * of the last panel are computed like the others and mean nothing. Max error: one rounding a fma.
 * Determinism: an output's bits depend on its own row, its own batch row and its bias. */
static void R(multiply)(const real *w, ptrdiff_t stride, size_t rows, size_t n, const real *bias,
                        const real *x, ptrdiff_t x_panel, real *y, ptrdiff_t y_panel,
                        size_t panels) {
  R(multiply_all)(0, w, stride, 0, 0, rows, n, bias, x, x_panel, y, y_panel, panels);
}

/* y += W' x; into the second cache level comes what the next call will read, n rows `ahead_stride`
 * elements apart from `ahead`, unless that is NULL.
 * Domain: as above, of W (n, columns). Max error: one rounding a fma. Determinism: an output goes
 * on over ascending rows of W, so that blocks of rows, in order, give what all at once give. */
static void R(multiply_strip)(const real *w, ptrdiff_t stride, const real *ahead,
                              ptrdiff_t ahead_stride, size_t columns, size_t n, const real *x,
                              ptrdiff_t x_panel, real *y, ptrdiff_t y_panel, size_t panels) {
  R(multiply_all)(1, w, stride, (uintptr_t)ahead, (uintptr_t)ahead_stride * sizeof(real), columns,
                  n, NULL, x, x_panel, y, y_panel, panels);
}

/* The same, where no call follows. */
IC_INLINE void R(multiply_transposed)(const real *w, ptrdiff_t stride, size_t columns, size_t n,
                                      const real *x, ptrdiff_t x_panel, real *y, ptrdiff_t y_panel,
                                      size_t panels) {
  R(multiply_strip)(w, stride, NULL, 0, columns, n, x, x_panel, y, y_panel, panels);
}

/* G += x x' for `n` features of a batch in panels, in float64: of the rows of panels first ...
 * last - 1 the columns of the same panel and those after it, panel q of row r of panel p at
 * gram[(q - first) * gram_panel + (p - first) * 256 + r * 16]; wide: scratch for 16 x
 * (IC_GRAM_FEATURES + 1) doubles a panel.
 * Domain: any values. Max error: one rounding of a float64 a fma. Determinism: as above. */
static void R(multiply_self)(const real *x, size_t panel, size_t n, size_t batch, size_t first,
                             size_t last, double *gram, size_t gram_panel, double *wide) {
  const size_t panels = (batch + 15) / 16, wide_panel = 16 * (IC_GRAM_FEATURES + 1);
  for (size_t k = 0; k < n; k += IC_GRAM_FEATURES) {
    const size_t count = n - k < IC_GRAM_FEATURES ? n - k : IC_GRAM_FEATURES;
    for (size_t p = first; p < panels; p++)
      for (size_t i = 0; i < 16 * count; i += 16)
        f64_store(wide + (p - first) * wide_panel + i,
                  IC_JOIN(f64_load, IC_REAL)(x + p * panel + 16 * k + i));
    for (size_t p = first; p < last; p++) {
      const double *rows = wide + (p - first) * wide_panel;
      multiply_transposed_f64(rows, 16, batch - 16 * p < 16 ? batch - 16 * p : 16, count, rows,
                              (ptrdiff_t)wide_panel, gram + (p - first) * (gram_panel + 256),
                              (ptrdiff_t)gram_panel, panels - p);
    }
  }
}

#undef T
