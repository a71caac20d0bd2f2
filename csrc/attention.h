/* SPDX-License-Identifier: BSD-3-Clause */
/* Attention of queries to keys without ever holding their logits: statistics of every row of
 * softmax(scale q k'), its product with v, and the gradients of that.
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

/* Products (n, 16), of which `lanes` lanes exist, to logit/slope with -inf where masked. Lanes are
 * the queries from `query` and rows the keys from `key`; with `keys_are_lanes` the other way round,
 * and the other lanes are masked. Returns whether masks had a say. */
static int R(attention_logits)(const ic_attention *a, R(softmax_row) row, ptrdiff_t mask,
                               size_t query, size_t key, size_t lanes, size_t n,
                               int keys_are_lanes, real *tile, R(attention_masks) *masks) {
  const size_t keys = keys_are_lanes ? lanes : n, by_row = keys_are_lanes ? 1 : 0;
  const ptrdiff_t row_step = keys_are_lanes ? a->mask_query : a->mask_key;
  const ptrdiff_t lane_step = keys_are_lanes ? a->mask_key : a->mask_query;
  mask += (ptrdiff_t)query * a->mask_query + (ptrdiff_t)key * a->mask_key;
  const int cut = a->causal && key + keys > softmax_visible(query, a->queries, a->keys);
  if (cut || a->keep || (keys_are_lanes && lanes < 16)) {
    uint8_t exist[16] = {0}, none[16] = {0};
    memset(exist, 1, lanes);
    for (size_t j = 0; j < n; j++) {
      uint8_t *const to = masks->keep + 16 * j;
      const uint8_t *from = a->keep ? a->keep + mask + (ptrdiff_t)j * row_step : exist;
      if (!a->keep || lane_step == 0) /* one cell for all lanes */
        memcpy(to, *from ? exist : none, 16);
      else
        for (size_t l = 0; l < 16; l++) to[l] = l < lanes ? from[(ptrdiff_t)l * lane_step] : 0;
      if (cut) /* the last query is aligned with the last key */
        for (size_t l = 0; l < 16; l++)
          if (key + (by_row ? l : j) + a->queries > query + (by_row ? j : l) + a->keys) to[l] = 0;
    }
    row.keep = masks->keep;
    row.ready = 0;
  }
  if (a->bias) {
    for (size_t j = 0; j < n; j++) {
      const real *from = (const real *)a->bias + mask + (ptrdiff_t)j * row_step;
      for (size_t l = 0; l < 16; l++)
        masks->bias[16 * j + l] = l < lanes ? from[(ptrdiff_t)l * lane_step] : 0;
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

/* A tile (n, 16) of logit/slope joins the sums of its 16 rows; `partial`: masks had a say. Returns
 * the factor by which what was gathered before shrinks; with `output`, the tile becomes
 * exp(logit - largest). */
static vreal R(attention_join)(attention_sums *sums, real *tile, size_t n, real slope, int partial,
                               int output) {
  const vreal infinity = V(set)((real)INFINITY), s = V(set)(slope);
  R(attention_survey) seen;
  if (!partial) {
    seen = R(attention_look)(tile, n, 0);
    partial = M(bits)(V(lt)(V(abs)(seen.sum), infinity)) != 0xFFFF; /* products may be -inf too */
  }
  if (partial) seen = R(attention_look)(tile, n, 1);
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

/* sums <- factor sums + w' tile, for `some` panels: w (n, features), tiles (n, 16), sums and
 * product in panels of features. What a zero of a tile multiplies is not looked at. */
static void R(attention_gather)(const real *w, size_t features, size_t n, const real *tile,
                                size_t some, const vreal *factor, real *product, real *sums) {
  const size_t panel = R(chain_panel)(features);
  memset(product, 0, some * panel * sizeof(real));
  R(multiply_transposed)(w, (ptrdiff_t)features, features, n, tile, IC_ATTENTION_TILE, product,
                         (ptrdiff_t)panel, some);
  for (size_t i = 0; i < some; i++, product += panel, sums += panel, tile += IC_ATTENTION_TILE) {
    vreal nothing = V(zero)();
    for (size_t c = 0; c < features; c++)
      nothing = V(fma)(V(load)(product + 16 * c), V(zero)(), nothing);
    if (M(bits)(V(eq)(nothing, V(zero)())) != 0xFFFF) /* NaN or inf: term by term */
      for (size_t c = 0; c < features; c++) {
        vreal sum = V(zero)();
        for (size_t j = 0; j < n; j++) {
          const vreal p = V(load)(tile + 16 * j);
          const vreal more = V(fma)(V(set)(w[j * features + c]), p, sum);
          sum = V(select)(V(eq)(p, V(zero)()), sum, more);
        }
        V(store)(product + 16 * c, sum);
      }
    for (size_t c = 0; c < features; c++)
      V(store)(sums + 16 * c,
               V(fma)(V(load)(sums + 16 * c), factor[i], V(load)(product + 16 * c)));
  }
}

/* Rows (count, n) to panels, with zeros in the lanes that are left. */
static void R(attention_pack)(const real *from, size_t count, size_t n, real *to) {
  const size_t panel = R(chain_panel)(n);
  memset(to, 0, (count + 15) / 16 * panel * sizeof(real));
  for (size_t i = 0; i < count; i++)
    for (size_t c = 0; c < n; c++) to[i / 16 * panel + 16 * c + i % 16] = from[i * n + c];
}

/* Bytes that `attention` needs of a workspace, at any address. */
static size_t R(attention_workspace)(const ic_attention *a) {
  const size_t q = IC_ATTENTION_PANELS * R(chain_panel)(a->d_k);
  const size_t v = (IC_ATTENTION_PANELS + IC_TILE_PANELS) * R(chain_panel)(a->d_v);
  return (q + v) * sizeof(real) + IC_LINE_BYTES;
}

/* Rows first ... last - 1 of all, row head queries + query: statistics (of those rows,
 * IC_ATTENTION_STATISTICS) and, if not NULL, output (of those rows, d_v). Returns 0 if cancelled.
 * Domain: every q and k; scale finite, softcap 0 or positive. What masks exclude is never looked
 *   at, nor is v where p is 0. A row without any logit above -inf has lse -inf, 0 keys, NaN for the
 *   other statistics and an output of 0; a row in which NaN or +inf takes part is NaN throughout.
 *   The mean and variance of the logits lose their meaning where squares of logits overflow the
 *   dtype.
 * Max error: given the products, which are chains of fma as in matmul.h, that of softmax.h with
 *   8 (1 + |t|) e for its 6 (1 + |t|) e: sums run over half a block in the dtype. Output: one fma a
 *   key beside that, one more a block, relative to sum p |v|.
 * Determinism: the same bits on every instruction set; a row depends on nothing but itself. */
static int R(attention)(const ic_attention *a, size_t first, size_t last, double *statistics,
                        real *output, void *workspace, const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const size_t d = a->d_k, panel = R(chain_panel)(d), panel_v = R(chain_panel)(a->d_v);
  const R(softmax_row) options = R(softmax_options)(a->scale, a->softcap, a->bias != NULL);
  real *const x = R(chain_aligned)(workspace), *const y = x + IC_ATTENTION_PANELS * panel;
  real *const product = y + IC_ATTENTION_PANELS * panel_v;
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
    const real *v = output ? (const real *)a->v + (size_t)head[1] * a->keys * a->d_v : NULL;
    const ptrdiff_t mask = (ptrdiff_t)head[2] * a->mask_size;

    R(attention_pack)(q, count, d, x);
    if (output) memset(y, 0, panels * panel_v * sizeof(real));
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
        vreal factor[IC_TILE_PANELS];
        R(multiply)(k + key * d, (ptrdiff_t)d, n, d, NULL, x + p * panel, (ptrdiff_t)panel, tile,
                    IC_ATTENTION_TILE, some);
        for (size_t i = 0; i < some; i++) {
          const size_t at = 16 * (p + i), lanes = count - at < 16 ? count - at : 16;
          real *const logits = tile + i * IC_ATTENTION_TILE;
          const int partial =
              R(attention_logits)(a, options, mask, query + at, key, lanes, n, 0, logits, &masks);
          factor[i] = R(attention_join)(sums + p + i, logits, n, options.slope, partial,
                                        output != NULL);
        }
        if (output)
          R(attention_gather)(v + key * a->d_v, a->d_v, n, tile, some, factor, product,
                              y + p * panel_v);
      }

    for (size_t p = 0; p < panels; p++) {
      const size_t lanes = count - 16 * p < 16 ? count - 16 * p : 16;
      attention_statistics(sums + p, (double)options.slope, statistics, lanes);
      for (size_t l = 0; output && l < lanes; l++, output += a->d_v) {
        const int empty = statistics[l * IC_ATTENTION_STATISTICS + IC_LSE] == -INFINITY;
        const double largest_p = statistics[l * IC_ATTENTION_STATISTICS + IC_MAX_PROB];
        const real inverse = empty ? 0 : (real)largest_p;
        for (size_t c = 0; c < a->d_v; c++) output[c] = y[p * panel_v + 16 * c + l] * inverse;
      }
      statistics += lanes * IC_ATTENTION_STATISTICS;
    }
    row += count;
  }
  fpmode_leave(mode);
  return row >= last && !*cancel;
}

/* What `attention_backward` wants of rows: the largest logit/slope, the largest p and sum of
 * dout output, (rows, 3), from what `attention` made of them; 0, 0 for a row without keys.
 * Domain: every value. Max error: one rounding to the dtype of each. Determinism: feature c goes to
 * lane c % 16 in float64; lanes are folded last. */
static void R(attention_prepare)(const ic_attention *a, const double *statistics,
                                 const real *output, const real *dout, size_t rows,
                                 real *prepared) {
  const ic_fpmode mode = fpmode_enter();
  const double slope = (double)R(softmax_options)(a->scale, a->softcap, a->bias != NULL).slope;
  for (size_t r = 0; r < rows; r++, statistics += IC_ATTENTION_STATISTICS, prepared += 3) {
    const int empty = statistics[IC_LSE] == -INFINITY;
    f64x16 lanes = f64_zero();
    for (size_t c = 0; c < a->d_v; c += 16) {
      const int left = softmax_left(a->d_v, c);
      lanes = f64_fma(R(f64_from)(R(softmax_load)(dout + r * a->d_v + c, left)),
                      R(f64_from)(R(softmax_load)(output + r * a->d_v + c, left)), lanes);
    }
    prepared[0] = empty ? 0 : (real)(statistics[IC_LOGIT_MAX] / slope);
    prepared[1] = empty ? 0 : (real)statistics[IC_MAX_PROB];
    prepared[2] = (real)f64_fold_add(lanes);
  }
  fpmode_leave(mode);
}

/* Tiles (n, 16) of logit/slope and of dp become p and the gradient by scale times product. `rows`
 * (., 3) are those prepared of the 16 lanes, or of the n rows if `keys_are_lanes`; bend, if not
 * NULL, is what softcap makes of a gradient. Adds the gradients' squares to `squares` (16), of
 * lanes that are queries. */
IC_INLINE void R(attention_slopes)(real *p, real *dp, const real *bend, size_t n, real slope,
                                   const real *rows, double *squares, const int keys_are_lanes) {
  const vreal s = V(set)(slope), lowest = V(set)(R(softmax_lowest)), zero = V(zero)();
  const vreal unit = V(set)(R(softmax_unit));
  real of_lanes[3][16] = {{0}};
  if (!keys_are_lanes)
    for (int i = 0; i < 48; i++) of_lanes[i % 3][i / 3] = rows[i];
  vreal largest = V(load)(of_lanes[0]), inverse = V(mul)(V(load)(of_lanes[1]), unit);
  vreal inner = V(load)(of_lanes[2]);
  f64x16 sum = keys_are_lanes ? f64_zero() : f64_load(squares);
  for (size_t j = 0; j < n; j++, p += 16, dp += 16) {
    if (keys_are_lanes) {
      largest = V(set)(rows[3 * j]);
      inverse = V(mul)(V(set)(rows[3 * j + 1]), unit);
      inner = V(set)(rows[3 * j + 2]);
    }
    const vreal d = V(max)(lowest, V(mul)(V(sub)(V(load)(p), largest), s));
    const vreal e = V(mul)(R(softmax_exp)(d), inverse);
    vreal ds = V(mul)(e, V(sub)(V(load)(dp), inner));
    if (bend) ds = V(mul)(ds, V(load)(bend + 16 * j));
    ds = V(select)(V(eq)(e, zero), zero, ds); /* what p hides is not looked at */
    V(store)(p, e);
    V(store)(dp, ds);
    if (!keys_are_lanes) sum = f64_fma(R(f64_from)(ds), R(f64_from)(ds), sum);
  }
  if (!keys_are_lanes) f64_store(squares, sum);
}

/* Bytes that `attention_backward` needs of a workspace, at any address. */
static size_t R(attention_backward_workspace)(const ic_attention_gradient *g) {
  const size_t panel = R(chain_panel)(g->heads.d_k), panel_v = R(chain_panel)(g->heads.d_v);
  const size_t product = IC_TILE_PANELS * (panel > panel_v ? panel : panel_v);
  return (2 * IC_ATTENTION_PANELS * (panel + panel_v) + product) * sizeof(real) + IC_LINE_BYTES;
}

/* Gradients by rows first ... last - 1 of all matrices of q, row matrix queries + query: dx (of
 * those rows, d_k) and sums (of those rows, IC_GRADIENT_SUMS), what each brings to the gradient by
 * scale and to the squares. With `keys_are_lanes`, by rows of k and v: dx (of those rows, d_k) and
 * dv (of those rows, d_v). Logits are made again, blocks and order of sums as in `attention`, over
 * the heads that use a matrix in their order. Returns 0 if cancelled.
 * Domain: as of `attention`, of which the rows must be. What masks exclude is never looked at.
 * Max error: p 8 (1 + |t|) e relative; then one fma a product and a block, relative to the terms.
 * Determinism: the same bits on every instruction set; a row depends on no other of its matrix. */
static int R(attention_backward)(const ic_attention_gradient *g, int keys_are_lanes, size_t first,
                                 size_t last, real *dx, real *dv, double *sums, void *workspace,
                                 const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const ic_attention *const a = &g->heads;
  const size_t d = a->d_k, d_v = a->d_v, panel = R(chain_panel)(d), panel_v = R(chain_panel)(d_v);
  const size_t own = keys_are_lanes ? a->keys : a->queries;
  const size_t others = keys_are_lanes ? a->queries : a->keys;
  const R(softmax_row) options = R(softmax_options)(a->scale, a->softcap, a->bias != NULL);
  const int64_t *const begin = keys_are_lanes ? g->k_begin : g->q_begin;
  const int64_t *const users = keys_are_lanes ? g->k_users : g->q_users;
  real *const x = R(chain_aligned)(workspace), *const y = x + IC_ATTENTION_PANELS * panel;
  real *const sum_x = y + IC_ATTENTION_PANELS * panel_v;
  real *const sum_v = sum_x + IC_ATTENTION_PANELS * panel;
  real *const product = sum_v + IC_ATTENTION_PANELS * panel_v;
  _Alignas(64) real tile[IC_TILE_PANELS * IC_ATTENTION_TILE];
  _Alignas(64) real grad[IC_TILE_PANELS * IC_ATTENTION_TILE];
  _Alignas(64) real bend[IC_ATTENTION_TILE];
  _Alignas(64) double squares[16 * IC_ATTENTION_PANELS];
  R(attention_masks) masks;
  vreal one[IC_TILE_PANELS];
  for (int i = 0; i < IC_TILE_PANELS; i++) one[i] = V(set)(1);

  size_t row = first;
  while (row < last && !*cancel) {
    const size_t matrix = row / own, begins = row % own;
    size_t count = own - begins;
    if (count > last - row) count = last - row;
    if (count > 16 * IC_ATTENTION_PANELS) count = 16 * IC_ATTENTION_PANELS;
    const size_t panels = (count + 15) / 16;
    const real *const mine = (const real *)(keys_are_lanes ? a->k : a->q) + row * d;
    R(attention_pack)(mine, count, d, x);
    if (keys_are_lanes) R(attention_pack)((const real *)a->v + row * d_v, count, d_v, y);
    memset(sum_x, 0, panels * panel * sizeof(real));
    memset(sum_v, 0, panels * panel_v * sizeof(real));
    memset(squares, 0, sizeof squares);

    for (int64_t user = begin[matrix]; user < begin[matrix + 1]; user++) {
      const size_t head = (size_t)users[user];
      const size_t of_q = (size_t)a->heads[3 * head], of_k = (size_t)a->heads[3 * head + 1];
      const ptrdiff_t mask = (ptrdiff_t)a->heads[3 * head + 2] * a->mask_size;
      const real *dout = (const real *)g->dout + head * a->queries * d_v;
      const real *prepared = (const real *)g->prepared + 3 * head * a->queries;
      const real *across = keys_are_lanes ? (const real *)a->q + of_q * others * d
                                          : (const real *)a->k + of_k * others * d;
      const real *across_v = keys_are_lanes ? dout : (const real *)a->v + of_k * others * d_v;
      if (!keys_are_lanes) R(attention_pack)(dout + begins * d_v, count, d_v, y);

      for (size_t at = 0; at < others && !*cancel; at += IC_ATTENTION_BLOCK)
        for (size_t p = 0; p < panels; p += IC_TILE_PANELS) {
          const size_t some = panels - p < IC_TILE_PANELS ? panels - p : IC_TILE_PANELS;
          const size_t lane = begins + 16 * p;
          const size_t end = begins + (p + some < panels ? 16 * (p + some) : count);
          const size_t rest = others - at;
          size_t n = rest < IC_ATTENTION_BLOCK ? rest : IC_ATTENTION_BLOCK;
          if (a->causal) {
            const size_t last_query = keys_are_lanes ? at + n - 1 : end - 1;
            const size_t seen = softmax_visible(last_query, a->queries, a->keys);
            if (seen <= (keys_are_lanes ? lane : at)) continue;
            if (!keys_are_lanes && seen - at < n) n = seen - at;
          }
          R(multiply)(across + at * d, (ptrdiff_t)d, n, d, NULL, x + p * panel, (ptrdiff_t)panel,
                      tile, IC_ATTENTION_TILE, some);
          R(multiply)(across_v + at * d_v, (ptrdiff_t)d_v, n, d_v, NULL, y + p * panel_v,
                      (ptrdiff_t)panel_v, grad, IC_ATTENTION_TILE, some);
          for (size_t i = 0; i < some; i++) {
            const size_t from = lane + 16 * i, lanes = end - from < 16 ? end - from : 16;
            real *const u = tile + i * IC_ATTENTION_TILE, *const ds = grad + i * IC_ATTENTION_TILE;
            for (size_t j = 0; options.softcap > 0 && j < n; j++) {
              const vreal c = V(tanh)(V(mul)(V(load)(u + 16 * j), V(set)(options.inner)));
              V(store)(bend + 16 * j, V(fnma)(c, c, V(set)(1)));
            }
            R(attention_logits)(a, options, mask, keys_are_lanes ? at : from,
                                keys_are_lanes ? from : at, lanes, n, keys_are_lanes, u, &masks);
            const real *bent = options.softcap > 0 ? bend : NULL;
            if (keys_are_lanes) {
              R(attention_slopes)(u, ds, bent, n, options.slope, prepared + 3 * at, NULL, 1);
            } else {
              real of_lanes[3 * 16] = {0};
              memcpy(of_lanes, prepared + 3 * from, 3 * lanes * sizeof(real));
              R(attention_slopes)(u, ds, bent, n, options.slope, of_lanes,
                                  squares + 16 * (p + i), 0);
            }
          }
          R(attention_gather)(across + at * d, d, n, grad, some, one, product, sum_x + p * panel);
          if (keys_are_lanes)
            R(attention_gather)(dout + at * d_v, d_v, n, tile, some, one, product,
                                sum_v + p * panel_v);
        }
    }

    const real scale = (real)a->scale;
    for (size_t i = 0; i < count; i++) {
      double by_scale = 0;
      for (size_t c = 0; c < d; c++) {
        const real sum = sum_x[i / 16 * panel + 16 * c + i % 16];
        by_scale = fma((double)mine[i * d + c], (double)sum, by_scale);
        *dx++ = sum * scale;
      }
      if (keys_are_lanes) {
        for (size_t c = 0; c < d_v; c++) *dv++ = sum_v[i / 16 * panel_v + 16 * c + i % 16];
      } else {
        sums[IC_BY_SCALE] = by_scale;
        sums[IC_LOGIT_SQUARES] = squares[i];
        sums += IC_GRADIENT_SUMS;
      }
    }
    row += count;
  }
  fpmode_leave(mode);
  return row >= last && !*cancel;
}
