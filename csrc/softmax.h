/* SPDX-License-Identifier: BSD-3-Clause */
/* Softmax by rows with its statistics, and its gradient.
 *
 * A row's statistics come from sums that leave one largest logit out (the first of equal ones):
 * with d = logit - largest and e = exp(d) over all other keys,
 *     R = sum e,  T = sum e d,  Q = sum e^2,  C = sum e^3,  S = 1 + R
 *     lse = largest + log1p(R),  max p = 1/S,  H = log1p(R) - T/S,  sum p^2 = (1 + Q)/S^2
 *     |J|^2 = (R^2 + 2Q + Q^2)/S^4 + Q/S^2 - 2C/S^3,  J = diag p - p p'
 * Every term is then of one sign (e/S <= 1/2, so Q/S^2 >= 2C/S^3) and nothing cancels near one-hot,
 * where 1 - max p and log(max p) would. The sums merge by rescaling.
 *
 * Order of the sums, on which no result may depend: element k goes to lane k % 16; blocks of 256
 * elements are summed in the dtype, blocks in float64, lanes folded last.
 * Included once a dtype (see simd/real.h). */
#ifndef IC_SOFTMAX_H
#define IC_SOFTMAX_H

enum { IC_SOFTMAX_BLOCK = 256, IC_SOFTMAX_BATCH = 16 };

/* A row's e are kept in units of 2^-60 (float64: 2^-460), their squares in the square of it and so
 * are the cubes: neither squares nor subnormal p underflow, and no sum overflows. */
static const float softmax_unit_f32 = 0x1p-60f;
static const double softmax_unit_f64 = 0x1p-460;
/* Adding this to an integer leaves in the low bits the biased exponent of its power of 2 in those
 * units; that is 0 at the lowest argument of the exponential, -187 ln 2 (-1483 ln 2). */
static const float softmax_magic_f32 = 0x1.8p23f + 127.0f + 60.0f;
static const double softmax_magic_f64 = 0x1.8p52 + 1023.0 + 460.0;
static const float softmax_lowest_f32 = -0x1.033cbp+7f;
static const double softmax_lowest_f64 = -0x1.00fbfc36271b3p+10;
/* Units of the record below, of either dtype's sums. */
static const double softmax_record_unit = 0x1p-460, softmax_record_square = 0x1p-920;

/* The sums of up to 16 rows. A row without any logit above -inf has largest -inf and rest NaN, one
 * with NaN or +inf has NaN in both. */
typedef struct {
  double largest[IC_SOFTMAX_BATCH], rest[IC_SOFTMAX_BATCH], weighted[IC_SOFTMAX_BATCH];
  double squares[IC_SOFTMAX_BATCH], cubes[IC_SOFTMAX_BATCH]; /* in softmax_record_square */
} softmax_sums;

/* Domain: R >= 0 and up to 2^40 keys. Max error: 4 ulp of each statistic given the sums; |J| below
 * 1e-280 loses digits. Determinism: lane by lane. */
static void softmax_statistics(const softmax_sums *sums, double *statistics, size_t rows) {
  const f64x16 one = f64_set(1.0), largest = f64_load(sums->largest), rest = f64_load(sums->rest);
  const f64x16 squares = f64_load(sums->squares), cubes = f64_load(sums->cubes);
  const f64x16 s = f64_add(one, rest), inverse = f64_div(one, s);
  /* log1p(R): what rounding took from 1 + R comes back to first order */
  const f64x16 lost = f64_sub(rest, f64_sub(s, one));
  const f64x16 log_s = f64_fma(lost, inverse, f64_log(s));
  const f64x16 q = f64_mul(squares, f64_set(softmax_record_square));
  const f64x16 sum_sq = f64_mul(f64_mul(f64_add(one, q), inverse), inverse);

  const f64x16 x = f64_mul(rest, f64_set(1 / softmax_record_unit));
  const f64x16 off = f64_mul(inverse, f64_fma(x, x, f64_mul(squares, f64_add(f64_set(2.0), q))));
  const f64x16 diagonal = f64_fnma(f64_add(cubes, cubes), inverse, squares);
  const f64x16 norm = f64_mul(inverse, f64_sqrt(f64_fma(off, inverse, diagonal)));

  double columns[IC_ROW_STATISTICS][IC_SOFTMAX_BATCH];
  const f64x16 empty_lse = f64_set(-INFINITY);
  f64_store(columns[IC_LSE],
            f64_select(f64_eq(largest, empty_lse), largest, f64_add(largest, log_s)));
  f64_store(columns[IC_MAX_PROB], inverse);
  f64_store(columns[IC_ENTROPY], f64_fnma(f64_load(sums->weighted), inverse, log_s));
  f64_store(columns[IC_SUM_SQ], sum_sq);
  f64_store(columns[IC_JACOBIAN_NORM], f64_mul(norm, f64_set(softmax_record_unit)));
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < IC_ROW_STATISTICS; c++) *statistics++ = columns[c][r];
}

/* Lanes of the vector, and keys of the block, that begins at k. */
IC_INLINE int softmax_left(size_t n, size_t k) { return n - k < 16 ? (int)(n - k) : 16; }
IC_INLINE size_t softmax_block_size(size_t n, size_t k) {
  return n - k < IC_SOFTMAX_BLOCK ? n - k : IC_SOFTMAX_BLOCK;
}

/* How many keys a causal query sees: the last query is aligned with the last key. */
IC_INLINE size_t softmax_visible(size_t query, size_t queries, size_t n) {
  return query + n + 1 > queries ? query + n + 1 - queries : 0;
}
#endif

/* Where a row's logits come from. They are kept as logit / slope: with a positive scale and neither
 * softcap nor bias that is z itself, and z - largest, scaled, loses nothing to large logits; else
 * slope is 1. */
typedef struct {
  const real *z, *bias;
  const uint8_t *keep;
  real scale, softcap, inner, slope; /* inner = scale / softcap */
  int ready;                         /* z are already logit / slope, with -inf where masked */
} R(softmax_row);

/* The options, rounded to the dtype, of rows without a boolean mask. */
static R(softmax_row) R(softmax_options)(double scale, double softcap, int biased) {
  const real s = (real)scale, cap = (real)softcap;
  const int shiftable = !(cap > 0) && !biased && s > 0;
  return (R(softmax_row)){.scale = s, .softcap = cap, .slope = shiftable ? s : 1,
                          .inner = cap > 0 ? (real)(scale / softcap) : 0, .ready = shiftable};
}

IC_INLINE vreal R(softmax_load)(const real *p, int n) {
  return n == 16 ? V(load)(p) : V(load_first)(p, n);
}
IC_INLINE void R(softmax_store)(real *p, vreal x, int n) {
  if (n == 16) V(store)(p, x);
  else V(store_first)(p, x, n);
}

/* logit / slope of the n keys from k (a block), made in `buffer` where they do not lie ready. */
static const real *R(softmax_logits)(const R(softmax_row) *row, size_t k, size_t n, real *buffer) {
  if (row->ready) return row->z + k;
  for (size_t j = 0; j < n; j += 16) {
    const int left = softmax_left(n, j);
    vreal x = R(softmax_load)(row->z + k + j, left);
    if (row->softcap > 0) {
      x = V(mul)(V(set)(row->softcap), V(tanh)(V(mul)(x, V(set)(row->inner))));
      if (row->bias) x = V(add)(x, R(softmax_load)(row->bias + k + j, left));
    } else if (row->bias) {
      x = V(fma)(x, V(set)(row->scale), R(softmax_load)(row->bias + k + j, left));
    } else if (!(row->scale > 0)) {
      x = V(mul)(x, V(set)(row->scale));
    }
    if (row->keep) {
      uint8_t tail[16] = {0};
      const uint8_t *keep = row->keep + k + j;
      if (left < 16) keep = memcpy(tail, keep, (size_t)left);
      x = V(select)(M(nonzero)(keep), x, V(set)((real)-INFINITY));
    }
    R(softmax_store)(buffer + j, x, left);
  }
  return buffer;
}

/* The largest of a block, NaN left out. */
IC_INLINE real R(softmax_largest)(const real *u, size_t n) {
  const vreal lowest = V(set)((real)-INFINITY);
  vreal even = lowest, odd = lowest;
  size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    even = V(max)(V(load)(u + j), even);
    odd = V(max)(V(load)(u + j + 16), odd);
  }
  for (; j < n; j += 16) {
    const int left = softmax_left(n, j);
    even = V(max)(V(select)(M(first)(left), R(softmax_load)(u + j, left), lowest), even);
  }
  return V(fold_max)(V(max)(even, odd));
}

/* The first index at which a block holds `value`, which it does hold. */
IC_INLINE size_t R(softmax_find)(const real *u, size_t n, real value) {
  for (size_t j = 0;; j += 16) {
    const vreal x = R(softmax_load)(u + j, softmax_left(n, j));
    const unsigned found = M(bits)(V(eq)(x, V(set)(value)));
    if (found) return j + (size_t)__builtin_ctz(found);
  }
}

static int R(softmax_any_nan)(const R(softmax_row) *row, size_t n, real *buffer) {
  for (size_t k = 0; k < n; k += IC_SOFTMAX_BLOCK) {
    const size_t count = softmax_block_size(n, k);
    const real *u = R(softmax_logits)(row, k, count, buffer);
    for (size_t j = 0; j < count; j++)
      if (u[j] != u[j]) return 1;
  }
  return 0;
}

/* exp(d) in the row's units for d between the lowest argument and 0; 0 at the lowest.
 * Max error: (2 + 0.3 |d|) 2^-24, 2^-53: one constant for ln 2, whose error is below that of d. */
IC_INLINE vreal R(softmax_exp)(vreal d) {
  const vreal magic = V(set)(R(softmax_magic));
  const vreal t = V(fma)(d, V(set)(R(log2_e)), magic);
  const vreal r = V(fnma)(V(sub)(t, magic), V(set)(R(ln2)[0]), d);
  const vreal power = V(from_bits)(U(shl)(V(bits)(t), R(mantissa_bits)));
  return V(mul)(V(add)(R(expm1_reduced)(r), V(set)(1)), power);
}

/* A block: e into `to` and the sums over all keys but `top` (none if n). Two loops, because the
 * constants of the exponential and the accumulators do not fit the registers together. */
typedef struct { vreal rest, weighted, squares, cubes; } R(softmax_lanes);
IC_INLINE R(softmax_lanes) R(softmax_block)(const real *u, real *to, size_t n, size_t top,
                                            real largest, real slope, int statistics) {
  const vreal m = V(set)(largest), s = V(set)(slope);
  const vreal lowest = V(set)(R(softmax_lowest));
  const vreal unit = V(set)(R(softmax_unit));
  R(softmax_lanes) sum = {V(zero)(), V(zero)(), V(zero)(), V(zero)()};
  for (size_t j = 0; j < n; j += 16) {
    const int left = softmax_left(n, j);
    vreal x = R(softmax_load)(u + j, left);
    if (left < 16) x = V(select)(M(first)(left), x, m);
    /* max in this order lets NaN through; -inf becomes finite, so that e d is 0 and not NaN */
    const vreal d = V(max)(lowest, V(mul)(V(sub)(x, m), s));
    const vreal e = R(softmax_exp)(d);
    R(softmax_store)(to + j, e, left);
    if (statistics) sum.weighted = V(fma)(e, d, sum.weighted); /* d is 0 at top and past n */
  }
  if (top < n) to[top] = 0;
  for (size_t j = 0; j < n; j += 16) {
    const vreal e = R(softmax_load)(to + j, softmax_left(n, j));
    sum.rest = V(add)(sum.rest, e);
    if (statistics) {
      const vreal square = V(mul)(e, e);
      sum.squares = V(add)(sum.squares, square);
      sum.cubes = V(fma)(square, V(mul)(e, unit), sum.cubes);
    }
  }
  if (top < n) to[top] = 1 / R(softmax_unit);
  return sum;
}

IC_INLINE void R(softmax_scale)(real *p, size_t n, real factor) {
  const vreal f = V(set)(factor);
  for (size_t k = 0; k < n; k += 16) {
    const int left = softmax_left(n, k);
    R(softmax_store)(p + k, V(mul)(R(softmax_load)(p + k, left), f), left);
  }
}

IC_INLINE void R(softmax_fill)(real *p, size_t n, real value) {
  for (size_t k = 0; k < n; k++) p[k] = value;
}

/* One row of n keys, of which the first `seen` may take part: p (or NULL), slot r of the sums. */
IC_INLINE void R(softmax_one)(R(softmax_row) row, size_t seen, size_t n, real *p,
                              softmax_sums *sums, size_t r, int statistics) {
  real buffer[IC_SOFTMAX_BLOCK];
  real largest = (real)-INFINITY;
  size_t first = 0; /* of the block that holds the largest */
  for (size_t k = 0; k < seen; k += IC_SOFTMAX_BLOCK) {
    const size_t count = softmax_block_size(seen, k);
    const real *u = R(softmax_logits)(&row, k, count, p ? p + k : buffer);
    const real top = R(softmax_largest)(u, count);
    if (top > largest) {
      largest = top;
      first = k;
    }
  }
  if (p && !row.ready) {
    row.z = p;
    row.ready = 1;
  }

  f64x16 total[4] = {f64_zero(), f64_zero(), f64_zero(), f64_zero()};
  const double unit = R(softmax_unit);
  double rest = NAN;
  real inverse = (real)NAN; /* what e is multiplied by */
  const int empty = largest == (real)-INFINITY && !R(softmax_any_nan)(&row, seen, buffer);
  if (largest > (real)-INFINITY && largest < (real)INFINITY) {
    const size_t count = softmax_block_size(seen, first);
    const real *u = R(softmax_logits)(&row, first, count, buffer);
    const size_t top = R(softmax_find)(u, count, largest);
    for (size_t k = 0; k < seen; k += IC_SOFTMAX_BLOCK) {
      const size_t size = softmax_block_size(seen, k);
      u = R(softmax_logits)(&row, k, size, buffer);
      const R(softmax_lanes) lanes = R(softmax_block)(u, p ? p + k : buffer, size,
          k == first ? top : size, largest, row.slope, statistics);
      total[0] = f64_add(total[0], R(f64_from)(lanes.rest));
      if (!statistics) continue;
      total[1] = f64_add(total[1], R(f64_from)(lanes.weighted));
      total[2] = f64_add(total[2], R(f64_from)(lanes.squares));
      total[3] = f64_add(total[3], R(f64_from)(lanes.cubes));
    }
    rest = f64_fold_add(total[0]) * unit; /* NaN where a NaN took part */
    inverse = (real)(unit / (1.0 + rest));
  }

  if (statistics) {
    const double square_unit = unit * unit / softmax_record_square;
    sums->largest[r] = empty ? -INFINITY : rest == rest ? (double)largest * (double)row.slope : NAN;
    sums->rest[r] = rest;
    sums->weighted[r] = f64_fold_add(total[1]) * unit;
    sums->squares[r] = f64_fold_add(total[2]) * square_unit;
    sums->cubes[r] = f64_fold_add(total[3]) * square_unit;
  }
  if (!p) return;
  if (inverse == inverse) {
    R(softmax_scale)(p, seen, inverse);
    R(softmax_fill)(p + seen, n - seen, 0);
  } else {
    R(softmax_fill)(p, n, empty ? 0 : (real)NAN);
  }
}

/* Rows of z (rows, n) into p (rows, n), which may be z, and statistics (rows, IC_ROW_STATISTICS);
 * either may be NULL.
 * Domain: every logit; scale finite, softcap 0 or positive. Keys that `keep` or causality excludes
 *   are never looked at and get 0; a bias of -inf gives 0 too, but does not hide a NaN under it. A
 *   row without any logit above -inf is 0, its lse -inf and the rest NaN; a row in which NaN or
 *   +inf takes part is NaN throughout.
 * Max error: with e = 2^-24 (2^-53) and t the largest logit in magnitude of the keys that take
 *   part, 6 (1 + |t|) e relative for p and the statistics, absolute for lse beside its own last
 *   place; rows sum to 1 within 5e-7 (1e-15). Scale and softcap are rounded to the dtype. Where
 *   scale is positive and neither softcap nor bias given, |t| counts from the largest logit only.
 * Determinism: the same bits on every instruction set; a row depends on nothing but itself. */
static void R(softmax)(const real *z, real *p, double *statistics, const ic_softmax_rows *rows) {
  const ic_fpmode mode = fpmode_enter();
  const size_t n = rows->n;
  R(softmax_row) row = R(softmax_options)(rows->scale, rows->softcap, rows->bias != NULL);
  if (rows->keep) row.ready = 0;
  softmax_sums sums = {{0}, {0}, {0}, {0}, {0}};
  size_t query = rows->queries ? rows->first_row % rows->queries : 0;
  for (size_t r = 0; r < rows->rows; r++) {
    size_t seen = n;
    if (rows->queries) {
      seen = softmax_visible(query, rows->queries, n);
      query = query + 1 < rows->queries ? query + 1 : 0;
    }
    row.z = z + r * n;
    if (rows->keep) row.keep = rows->keep + (size_t)rows->mask_row[r] * n;
    if (rows->bias) row.bias = (const real *)rows->bias + (size_t)rows->mask_row[r] * n;
    real *const p_row = p ? p + r * n : NULL;
    if (!statistics) {
      R(softmax_one)(row, seen, n, p_row, NULL, 0, 0);
      continue;
    }
    const size_t slot = r % IC_SOFTMAX_BATCH;
    R(softmax_one)(row, seen, n, p_row, &sums, slot, 1);
    if (slot + 1 == IC_SOFTMAX_BATCH || r + 1 == rows->rows)
      softmax_statistics(&sums, statistics + (r - slot) * IC_ROW_STATISTICS, slot + 1);
  }
  fpmode_leave(mode);
}

/* dz = scale p (dp - sum dp p), row by row; dz may be p or dp.
 * Domain: every value; a row with NaN or infinite gradients is as IEEE arithmetic gives it.
 * Max error: the sum 2^-50 of sum |dp p| (float64 in 16 lanes, also for float32), rounded to the
 *   dtype; then three roundings an element.
 * Determinism: element k goes to lane k % 16; lanes are folded last. */
static void R(softmax_backward)(const real *p, const real *dp, real *dz, size_t rows, size_t n,
                                double scale) {
  const ic_fpmode mode = fpmode_enter();
  const vreal factor = V(set)((real)scale);
  for (size_t r = 0; r < rows; r++, p += n, dp += n, dz += n) {
    f64x16 lanes = f64_zero();
    for (size_t k = 0; k < n; k += 16) {
      const int left = softmax_left(n, k);
      lanes = f64_fma(R(f64_from)(R(softmax_load)(p + k, left)),
                      R(f64_from)(R(softmax_load)(dp + k, left)), lanes);
    }
    const vreal inner = V(set)((real)f64_fold_add(lanes));
    for (size_t k = 0; k < n; k += 16) {
      const int left = softmax_left(n, k);
      const vreal x = V(mul)(factor, R(softmax_load)(p + k, left));
      R(softmax_store)(dz + k, V(mul)(x, V(sub)(R(softmax_load)(dp + k, left), inner)), left);
    }
  }
  fpmode_leave(mode);
}
