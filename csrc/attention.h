/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention of queries to keys without ever holding their logits: statistics of every row of
 * softmax(scale q k'), and its product with v.
 *
 * Lanes are 16 queries (a panel of matmul.h), keys stream by in blocks of IC_ATTENTION_BLOCK: the
 * product of a block of keys with a panel is a tile (keys, 16) in cache, in which softmax runs down
 * the keys with no sum across lanes. A row keeps the sums of softmax.h, which leave its largest
 * logit out; when a larger one comes, the old one joins the others (attention_grow).
 *
 * Order of the sums, on which no result may depend: blocks begin at multiples of the block's size;
 * in a block the even keys and the odd ones are summed in the dtype, k ascending, then the two; the
 * blocks follow in float64. So the block's size is part of the results' contract, and a row knows
 * nothing of the other lanes, of threads or of the instruction set.
 * Included once a dtype (see simd/real.h). */
#ifndef IC_ATTENTION_H
#define IC_ATTENTION_H

/* A tile stays in the first cache level beside the block of keys; a multiple of the product's
 * rows. Panels share a block of keys while it is hot. */
enum { IC_ATTENTION_BLOCK = 96, IC_ATTENTION_PANELS = 8 };
enum { IC_ATTENTION_TILE = 16 * IC_ATTENTION_BLOCK };

/* What 16 rows have gathered. `softmax.largest` is in units of the slope (see softmax_row); m2 is
 * the sum of squares of logit/slope about its mean. */
typedef struct {
  softmax_sums softmax;
  double count[16], mean[16], m2[16];
} attention_sums;

/* The sums after `largest` has grown: exp(old - new) of everything, the old largest included.
 * Returns that factor, 1 where nothing grew. */
static f64x16 attention_grow(softmax_sums *sums, f64x16 largest, double slope) {
  const f64x16 one = f64_set(1), unit = f64_set(softmax_record_unit);
  const f64x16 square_unit = f64_set(softmax_record_square);
  const f64x16 before = f64_load(sums->largest);
  const m64x16 grown = f64_lt(before, largest);
  /* max in this order turns the NaN of inf - inf into the lowest too */
  const f64x16 d = f64_max(f64_mul(f64_sub(before, largest), f64_set(slope)),
                           f64_set(softmax_lowest_f64));
  const f64x16 f_units = softmax_exp_f64(d), f = f64_mul(f_units, unit);
  const f64x16 square = f64_mul(f_units, f_units), cube = f64_mul(square, f);

  const f64x16 rest = f64_load(sums->rest), all = f64_add(one, rest);
  const f64x16 weighted = f64_load(sums->weighted), squares = f64_load(sums->squares);
  const f64x16 cubes = f64_load(sums->cubes);
  f64_store(sums->largest, f64_select(grown, largest, before));
  f64_store(sums->rest, f64_select(grown, f64_mul(f, all), rest));
  f64_store(sums->weighted,
            f64_select(grown, f64_mul(f, f64_fma(d, all, weighted)), weighted));
  f64_store(sums->squares,
            f64_select(grown, f64_mul(square, f64_fma(squares, square_unit, one)), squares));
  f64_store(sums->cubes,
            f64_select(grown, f64_mul(cube, f64_fma(cubes, square_unit, one)), cubes));
  return f64_select(grown, f, one);
}

/* Mean and m2 of `count` logits join those of the sums (Chan, Golub & LeVeque 1983). */
static void attention_merge(attention_sums *sums, f64x16 count, f64x16 mean, f64x16 m2) {
  const f64x16 a = f64_load(sums->count), total = f64_add(a, count);
  const f64x16 share = f64_div(count, f64_max(total, f64_set(1)));
  const f64x16 before = f64_load(sums->mean), d = f64_sub(mean, before);
  f64_store(sums->count, total);
  f64_store(sums->mean, f64_fma(d, share, before));
  f64_store(sums->m2, f64_add(f64_load(sums->m2),
                              f64_fma(f64_mul(d, d), f64_mul(a, share), m2)));
}

/* Statistics of the first `rows` rows, (rows, IC_ATTENTION_STATISTICS). */
static void attention_statistics(attention_sums *sums, double slope, double *statistics,
                                 size_t rows) {
  double from_softmax[16 * IC_ROW_STATISTICS];
  softmax_sums *const softmax = &sums->softmax;
  for (size_t r = 0; r < rows; r++) { /* as softmax_statistics wants them */
    if (softmax->rest[r] != softmax->rest[r]) softmax->largest[r] = NAN;
    else if (softmax->largest[r] == -INFINITY) softmax->rest[r] = NAN;
    else softmax->largest[r] *= slope;
  }
  softmax_statistics(softmax, from_softmax, rows);
  for (size_t r = 0; r < rows; r++, statistics += IC_ATTENTION_STATISTICS) {
    const double largest = softmax->largest[r];
    const int empty = largest == -INFINITY, valid = softmax->rest[r] == softmax->rest[r];
    memcpy(statistics, from_softmax + r * IC_ROW_STATISTICS, IC_ROW_STATISTICS * sizeof(double));
    statistics[IC_LOGIT_MEAN] = valid ? sums->mean[r] * slope : NAN;
    statistics[IC_LOGIT_VAR] = valid ? sums->m2[r] / sums->count[r] * slope * slope : NAN;
    statistics[IC_LOGIT_MAX] = valid ? largest : NAN;
    statistics[IC_KEYS] = valid ? sums->count[r] : empty ? 0 : NAN;
  }
}
#endif

/* The masks of a tile's cells, gathered from where they lie. */
typedef struct {
  uint8_t keep[IC_ATTENTION_TILE];
  real bias[IC_ATTENTION_TILE];
} R(attention_masks);

/* Products (n, 16) of keys from `key` with the queries from `query`, of which `lanes` exist, to
 * logit/slope with -inf where masked. Returns whether masks had a say. */
static int R(attention_logits)(const ic_attention *a, R(softmax_row) row, ptrdiff_t mask,
                               size_t query, size_t lanes, size_t key, size_t n, real *tile,
                               R(attention_masks) *masks) {
  const size_t least = a->causal ? softmax_visible(query, a->queries, a->keys) : a->keys;
  if (a->keep || least < key + n) {
    for (size_t l = 0; l < 16; l++) {
      const size_t seen = a->causal ? softmax_visible(query + l, a->queries, a->keys) : a->keys;
      for (size_t j = 0; j < n; j++)
        masks->keep[16 * j + l] = l < lanes && key + j < seen;
      if (a->keep && l < lanes) {
        const uint8_t *keep = a->keep + mask + (ptrdiff_t)(query + l) * a->mask_query;
        for (size_t j = 0; j < n; j++)
          masks->keep[16 * j + l] &= keep[(ptrdiff_t)(key + j) * a->mask_key] != 0;
      }
    }
    row.keep = masks->keep;
    row.ready = 0;
  }
  if (a->bias) {
    for (size_t l = 0; l < 16; l++) {
      const real *bias = (const real *)a->bias + mask + (ptrdiff_t)(query + l) * a->mask_query;
      for (size_t j = 0; j < n; j++)
        masks->bias[16 * j + l] = l < lanes ? bias[(ptrdiff_t)(key + j) * a->mask_key] : 0;
    }
    row.bias = masks->bias;
  }
  row.z = tile;
  R(softmax_logits)(&row, 0, 16 * n, tile);
  return row.keep || row.bias;
}

/* Largest and sum of a tile's columns; with `partial`, those above -inf alone, and their number. */
typedef struct { vreal largest, sum, count; } R(attention_survey);
IC_INLINE void R(attention_see)(R(attention_survey) *s, const real *x, const int partial) {
  const vreal v = V(load)(x), lowest = V(set)((real)-INFINITY);
  s->largest = V(max)(v, s->largest); /* passes over NaN */
  if (partial) {
    const vmask counts = V(lt)(lowest, v);
    s->sum = V(add)(s->sum, V(select)(counts, v, V(zero)()));
    s->count = V(add)(s->count, V(select)(counts, V(set)(1), V(zero)()));
  } else {
    s->sum = V(add)(s->sum, v);
  }
}
IC_INLINE R(attention_survey) R(attention_look)(const real *x, size_t n, const int partial) {
  R(attention_survey) even = {V(set)((real)-INFINITY), V(zero)(), V(zero)()}, odd = even;
  size_t j = 0;
  for (; j + 2 <= n; j += 2) {
    R(attention_see)(&even, x + 16 * j, partial);
    R(attention_see)(&odd, x + 16 * j + 16, partial);
  }
  if (j < n) R(attention_see)(&even, x + 16 * j, partial);
  even.largest = V(max)(even.largest, odd.largest);
  even.sum = V(add)(even.sum, odd.sum);
  even.count = partial ? V(add)(even.count, odd.count) : V(set)((real)n);
  return even;
}

/* Logits to e in place, with sum e d and the squares about `mean`. */
typedef struct { vreal weighted, m2; } R(attention_spread);
IC_INLINE void R(attention_raise)(R(attention_spread) *s, real *x, vreal largest, vreal slope,
                                  vreal mean, const int partial) {
  const vreal v = V(load)(x);
  /* max in this order lets NaN through; -inf becomes finite, so that e d is 0 and not NaN */
  const vreal d = V(max)(V(set)(R(softmax_lowest)), V(mul)(V(sub)(v, largest), slope));
  const vreal e = R(softmax_exp)(d);
  vreal off = V(sub)(v, mean);
  if (partial) off = V(select)(V(lt)(V(set)((real)-INFINITY), v), off, V(zero)());
  V(store)(x, e);
  s->weighted = V(fma)(e, d, s->weighted);
  s->m2 = V(fma)(off, off, s->m2);
}
IC_INLINE R(attention_spread) R(attention_exp)(real *x, size_t n, vreal largest, vreal slope,
                                               vreal mean, const int partial) {
  R(attention_spread) even = {V(zero)(), V(zero)()}, odd = even;
  size_t j = 0;
  for (; j + 2 <= n; j += 2) {
    R(attention_raise)(&even, x + 16 * j, largest, slope, mean, partial);
    R(attention_raise)(&odd, x + 16 * j + 16, largest, slope, mean, partial);
  }
  if (j < n) R(attention_raise)(&even, x + 16 * j, largest, slope, mean, partial);
  even.weighted = V(add)(even.weighted, odd.weighted);
  even.m2 = V(add)(even.m2, odd.m2);
  return even;
}

/* Sums of e, its square and its cube, without the first e of exp(0) in the lanes `top`. With
 * `output`, e leave their units for the product with v. */
typedef struct { vreal rest, squares, cubes; } R(attention_powers);
IC_INLINE void R(attention_power)(R(attention_powers) *s, real *x, vmask *top, const int grown,
                                  const int output) {
  const vreal unit = V(set)(R(softmax_unit));
  vreal e = V(load)(x);
  const vreal p = V(mul)(e, unit);
  if (output) V(store)(x, p);
  if (grown) {
    const vmask first = M(and)(*top, V(eq)(p, V(set)(1)));
    *top = M(andnot)(first, *top);
    e = V(select)(first, V(zero)(), e);
  }
  const vreal square = V(mul)(e, e);
  s->rest = V(add)(s->rest, e);
  s->squares = V(add)(s->squares, square);
  s->cubes = V(fma)(square, p, s->cubes);
}
IC_INLINE R(attention_powers) R(attention_sum)(real *x, size_t n, vmask top, const int grown,
                                               const int output) {
  R(attention_powers) even = {V(zero)(), V(zero)(), V(zero)()}, odd = even;
  size_t j = 0;
  for (; j + 2 <= n; j += 2) {
    R(attention_power)(&even, x + 16 * j, &top, grown, output);
    R(attention_power)(&odd, x + 16 * j + 16, &top, grown, output);
  }
  if (j < n) R(attention_power)(&even, x + 16 * j, &top, grown, output);
  even.rest = V(add)(even.rest, odd.rest);
  even.squares = V(add)(even.squares, odd.squares);
  even.cubes = V(add)(even.cubes, odd.cubes);
  return even;
}

/* A tile (n, 16) of logit/slope joins the sums of its 16 rows. Returns the factor by which what was
 * gathered before shrinks; with `output`, the tile becomes exp(logit - largest). */
static vreal R(attention_join)(attention_sums *sums, real *tile, size_t n, real slope, int partial,
                               int output) {
  R(attention_survey) seen = partial ? R(attention_look)(tile, n, 1) : R(attention_look)(tile, n, 0);
  const vreal infinity = V(set)((real)INFINITY), s = V(set)(slope);
  if (!partial && M(bits)(V(lt)(V(abs)(seen.sum), infinity)) != 0xFFFF) {
    partial = 1;
    seen = R(attention_look)(tile, n, 1);
  }
  const f64x16 count = R(f64_from)(seen.count);
  const f64x16 mean = f64_div(R(f64_from)(seen.sum), f64_max(count, f64_set(1)));
  const vreal before = V(from_f64)(f64_load(sums->softmax.largest));
  const vreal largest = V(max)(seen.largest, before);
  const vmask grown = V(lt)(before, largest);
  const int grows = M(bits)(grown) != 0;

  /* a row that has nothing yet: -inf less 0 is -inf still */
  const vreal shift = V(select)(V(lt)(V(neg)(infinity), largest), largest, V(zero)());
  const vreal centre = V(from_f64)(mean);
  const R(attention_spread) spread = partial ? R(attention_exp)(tile, n, shift, s, centre, 1)
                                             : R(attention_exp)(tile, n, shift, s, centre, 0);
  R(attention_powers) powers;
  if (output) powers = grows ? R(attention_sum)(tile, n, grown, 1, 1)
                             : R(attention_sum)(tile, n, grown, 0, 1);
  else powers = grows ? R(attention_sum)(tile, n, grown, 1, 0)
                      : R(attention_sum)(tile, n, grown, 0, 0);

  softmax_sums *const t = &sums->softmax;
  vreal factor = V(set)(1);
  if (grows)
    factor = V(from_f64)(attention_grow(t, R(f64_from)(largest), (double)slope));
  const double unit = R(softmax_unit);
  const f64x16 u = f64_set(unit), square_unit = f64_set(unit * unit / softmax_record_square);
  f64_store(t->rest, f64_fma(R(f64_from)(powers.rest), u, f64_load(t->rest)));
  f64_store(t->weighted, f64_fma(R(f64_from)(spread.weighted), u, f64_load(t->weighted)));
  f64_store(t->squares, f64_fma(R(f64_from)(powers.squares), square_unit, f64_load(t->squares)));
  f64_store(t->cubes, f64_fma(R(f64_from)(powers.cubes), square_unit, f64_load(t->cubes)));
  attention_merge(sums, count, mean, R(f64_from)(spread.m2));
  return factor;
}

/* Bytes that `attention` needs of a workspace, at any address. */
static size_t R(attention_workspace)(const ic_attention *a) {
  return IC_ATTENTION_PANELS * R(chain_panel)(a->d_k) * sizeof(real) + IC_LINE_BYTES;
}

/* Rows first ... last - 1 of all, row head queries + query: statistics (of those rows,
 * IC_ATTENTION_STATISTICS). Returns 0 if cancelled.
 * Domain: every q and k; scale finite, softcap 0 or positive. What masks exclude is never looked
 *   at. A row without any logit above -inf has lse -inf, 0 keys and NaN for the rest; a row in
 *   which NaN or +inf takes part is NaN throughout. The mean and variance of the logits lose their
 *   meaning where squares of logits overflow the dtype.
 * Max error: given the products, which are chains of fma as in matmul.h, that of softmax.h with
 *   8 (1 + |t|) e for its 6 (1 + |t|) e: sums run over half a block in the dtype.
 * Determinism: the same bits on every instruction set; a row depends on nothing but itself. */
static int R(attention)(const ic_attention *a, size_t first, size_t last, double *statistics,
                        void *workspace, const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const size_t d = a->d_k, panel = R(chain_panel)(d);
  const R(softmax_row) options = R(softmax_options)(a->scale, a->softcap, a->bias != NULL);
  real *const x = R(chain_aligned)(workspace);
  attention_sums sums[IC_ATTENTION_PANELS];
  _Alignas(64) real tile[IC_TILE_PANELS * IC_ATTENTION_TILE];
  R(attention_masks) masks;
  size_t row = first;
  while (row < last && !*cancel) {
    const int64_t *head = a->heads + 3 * (row / a->queries);
    const size_t query = row % a->queries;
    size_t count = a->queries - query;
    if (count > last - row) count = last - row;
    if (count > 16 * IC_ATTENTION_PANELS) count = 16 * IC_ATTENTION_PANELS;
    const size_t panels = (count + 15) / 16;
    const real *q = (const real *)a->q + ((size_t)head[0] * a->queries + query) * d;
    const real *k = (const real *)a->k + (size_t)head[1] * a->keys * d;
    const ptrdiff_t mask = (ptrdiff_t)head[2] * a->mask_size;

    memset(x, 0, panels * panel * sizeof(real));
    for (size_t i = 0; i < count; i++)
      for (size_t c = 0; c < d; c++) x[i / 16 * panel + 16 * c + i % 16] = q[i * d + c];
    memset(sums, 0, panels * sizeof *sums);
    for (size_t p = 0; p < panels; p++)
      for (size_t l = 0; l < 16; l++) sums[p].softmax.largest[l] = -INFINITY;

    for (size_t key = 0; key < a->keys && !*cancel; key += IC_ATTENTION_BLOCK)
      for (size_t p = 0; p < panels; p += IC_TILE_PANELS) {
        const size_t some = panels - p < IC_TILE_PANELS ? panels - p : IC_TILE_PANELS;
        const size_t end = p + some < panels ? 16 * (p + some) : count;
        const size_t seen = a->causal
            ? softmax_visible(query + end - 1, a->queries, a->keys) : a->keys;
        if (seen <= key) continue;
        const size_t n = seen - key < IC_ATTENTION_BLOCK ? seen - key : IC_ATTENTION_BLOCK;
        R(multiply)(k + key * d, (ptrdiff_t)d, n, d, NULL, x + p * panel, (ptrdiff_t)panel, tile,
                    IC_ATTENTION_TILE, some);
        for (size_t i = 0; i < some; i++) {
          const size_t at = 16 * (p + i), lanes = count - at < 16 ? count - at : 16;
          real *const logits = tile + i * IC_ATTENTION_TILE;
          const int partial = R(attention_logits)(a, options, mask, query + at, lanes, key, n,
                                                  logits, &masks);
          R(attention_join)(sums + p + i, logits, n, options.slope, partial, 0);
        }
      }

    for (size_t p = 0; p < panels; p++) {
      const size_t lanes = count - 16 * p < 16 ? count - 16 * p : 16;
      attention_statistics(sums + p, (double)options.slope, statistics, lanes);
      statistics += lanes * IC_ATTENTION_STATISTICS;
    }
    row += count;
  }
  fpmode_leave(mode);
  return row >= last && !*cancel;
}
