/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole trial of a chain with Gaussian weights that never exist, exact in law. Given a layer's
 * inputs X (batch, n_in), W = sigma V, b = mean + beta v with V and v standard normal, a unit's
 * pre-activations over the batch are N(mean, A), A = sigma^2 X X' + beta^2 1 1':
 *
 *     A = L L' (L: batch x rank, Z: n_out x rank, standard normal);   H = L Z' + mean
 *
 * Backward, L Q = [sigma X, beta 1] has orthonormal rows Q, Z is [V, v] Q', and the rest of [V, v]
 * is independent of all that is known, so that with dH dH' = D D' and E standard normal
 *
 *     G = sigma D E';   dX = sigma dH Z Q + G - G Q' Q  (without the column of b)
 *
 * and |dW|^2 = |dH' X|^2 = tr(dH dH' X X'). Forward, a block of units is drawn, multiplied,
 * finished and added to the next X X'. States are kept whole for the cosines of inputs: two in
 * turn or, for the backward pass, all. With a norm, X is that of the norm. A batch of one has a
 * file of its own, gram_single.h.
 *
 * Gram matrices and factors are float64 whatever the dtype is, and so is Q until it is rounded:
 * one rounding a fma, products of float32 exact. The factor of a matrix with rows of any lengths
 * is that of its correlations, by elimination: of what is left of every row's 1 the next pivot has
 * at least a sixteenth of the most, the first that does, so that most factors are triangular; what
 * is below IC_GRAM_TOLERANCE is 0. Inputs at an angle below 2^-20 count as parallel,
 * equal inputs have equal outputs, zero inputs only `mean`. Squares are those of float64: float64
 * inputs of norm below 2^-511 count as zero, above 2^511 as infinite.
 *
 * Row o of Z has all of a batch's columns in its stream, element o batch + s, whatever the rank. */
#ifndef IC_GRAM_H
#define IC_GRAM_H

#define IC_GRAM_TOLERANCE 0x1p-40
#define IC_GRAM_PIVOT 0x1p-4

static size_t gram_take(size_t *end, size_t bytes) {
  const size_t begin = *end;
  *end += chain_round_up(bytes, IC_LINE_BYTES);
  return begin;
}

/* What a product of panels with themselves left out: its lower triangle, from the upper one. */
static void gram_mirror(double *gram, size_t panel, size_t batch) {
  for (size_t r = 16; r < batch; r++)
    for (size_t b = 0; b < r / 16 * 16; b++)
      gram[b / 16 * panel + 16 * r + b % 16] = gram[r / 16 * panel + 16 * b + r % 16];
}

/* `mean_cosine` of the rows whose Gram matrix this is, from its upper triangle of panels: the sum
 * of G_rb / sqrt(G_rr G_bb), in lanes b over ascending r. scales: room for `batch` doubles.
 * Domain: any G. Max error: of the formula in float64. Determinism: one order of sums. */
static double gram_cosine(const double *gram, size_t panel, size_t batch, double *scales) {
  double rows = 0;
  for (size_t b = 0; b < batch; b++) {
    const double square = gram[b / 16 * panel + 16 * b + b % 16];
    if (square - square != 0) return NAN;
    scales[b] = square > DBL_MIN ? 1 / sqrt(square) : 0;
    rows += square > DBL_MIN;
  }
  if (rows < 2) return NAN;
  f64x16 total = f64_zero();
  for (size_t b = 0; b < batch; b += 16, gram += panel) {
    const int lanes = batch - b < 16 ? (int)(batch - b) : 16;
    f64x16 sum = f64_zero();
    for (size_t r = 0; r < b + (size_t)lanes; r++) /* those above a diagonal block count twice */
      sum = f64_fma(f64_set(r < b ? 2 * scales[r] : scales[r]), f64_load(gram + 16 * r), sum);
    sum = f64_mul(sum, f64_load_first(scales + b, lanes));
    total = f64_add(total, f64_select(m64_first(lanes), sum, f64_zero()));
  }
  return (f64_fold_add(total) - rows) / (rows * (rows - 1));
}

/* L of scale^2 G + common^2 1 1': column s, a lane a batch row, at factor[s * lanes], the other
 * lanes 0; row pivots[s] is 0 beyond column s. Returns the rank. rest (2, lanes): scratch, then the
 * second half is NaN where a diagonal is not finite, rows that the factor leaves 0.
 * Domain: any G (panels of a symmetric matrix). Max error: backward stable, plus the tolerance.
 * Determinism: the same bits for every instruction set; rows that are equal stay equal. */
static size_t gram_factor(const double *gram, size_t panel, size_t batch, double scale,
                          double common, double *factor, double *rest, size_t *pivots,
                          const volatile int32_t *cancel) {
  const size_t lanes = chain_round_up(batch, 16);
  const f64x16 square = f64_set(scale * scale), shared = f64_set(common * common);
  const f64x16 tolerance = f64_set(IC_GRAM_TOLERANCE);
  double *inverse = rest + lanes; /* of the diagonal */
  for (size_t b = 0; b < lanes; b++) {
    const double g = b < batch ? gram[b / 16 * panel + 16 * b + b % 16] : 0;
    const double a = fma(scale * scale, g, common * common);
    const int positive = b < batch && a >= DBL_MIN && a <= DBL_MAX;
    rest[b] = positive;
    inverse[b] = positive ? 1 / a : a - a;
  }
  for (size_t rank = 0; rank < batch && !*cancel; rank++) {
    f64x16 most = f64_load(rest);
    for (size_t b = 16; b < lanes; b += 16) most = f64_max(f64_load(rest + b), most);
    const double largest = f64_fold_max(most);
    if (!(largest > IC_GRAM_TOLERANCE)) return rank;
    size_t pivot = 0;
    while (!(rest[pivot] >= largest * IC_GRAM_PIVOT)) pivot++;
    const f64x16 root = f64_set(sqrt(rest[pivot] / inverse[pivot]));
    double *column = factor + rank * lanes;
    for (size_t b = 0; b < lanes; b += 16) {
      f64x16 v = f64_fma(square, f64_load(gram + b / 16 * panel + 16 * pivot), shared);
      for (size_t s = 0; s < rank; s++)
        v = f64_fnma(f64_set(factor[s * lanes + pivot]), f64_load(factor + s * lanes + b), v);
      const f64x16 before = f64_load(rest + b);
      v = f64_select(f64_lt(f64_zero(), before), f64_div(v, root), f64_zero());
      f64_store(column + b, v);
      const f64x16 after = f64_fnma(f64_mul(v, v), f64_load(inverse + b), before);
      f64_store(rest + b, f64_select(f64_lt(tolerance, after), after, f64_zero()));
    }
    rest[pivot] = 0;
    pivots[rank] = pivot;
  }
  return batch;
}
#endif

/* Where buffers begin in a workspace, in bytes. */
typedef struct {
  size_t rows, stride;         /* units at a time, elements between the rows of a drawn slab */
  size_t lanes, panels;        /* of the batch */
  size_t gram_panel, gram;     /* of a Gram matrix: elements between its panels, in all */
  size_t slab, bias, wide, grams, factor, rest, pivots, columns, left, total;
  size_t before;               /* pre-activations, then gradients by activations */
  size_t gradient;             /* by pre-activations */
  size_t aside, states, norms, slopes, widest; /* as in chain.h; widest in elements */
  size_t gradient_gram, gradient_factor, gradient_left, middle, coefficients, strip, solved;
  size_t q, q_stride;          /* Q, and elements between its rows */
} R(gram_layout);

static R(gram_layout) R(gram_plan)(const ic_chain *c) {
  const size_t batch = c->batch, lanes = chain_round_up(batch, 16), panels = lanes / 16;
  R(gram_layout) plan = {.lanes = lanes, .panels = panels};
  size_t *end = &plan.total;
  const size_t n_grams = c->backward ? c->n_layers : 1;
  const size_t left = panels * R(chain_panel)(batch) * sizeof(real);
  plan.rows = R(chain_slab_most)(batch, lanes);
  plan.stride = R(chain_slab_stride)(batch);
  plan.gram_panel = 16 * (batch + 1);
  plan.gram = panels * plan.gram_panel;
  plan.slab = gram_take(end, plan.rows * plan.stride * sizeof(real) > IC_SLAB_BYTES
                                 ? plan.rows * plan.stride * sizeof(real)
                                 : IC_SLAB_BYTES);
  plan.bias = gram_take(end, plan.rows * sizeof(real));
  plan.wide = gram_take(end, panels * 16 * (IC_GRAM_FEATURES + 1) * sizeof(double));
  plan.grams = gram_take(end, n_grams * plan.gram * sizeof(double));
  plan.factor = gram_take(end, batch * lanes * sizeof(double));
  plan.rest = gram_take(end, 2 * lanes * sizeof(double));
  plan.pivots = gram_take(end, batch * sizeof(size_t));
  plan.columns = gram_take(end, panels * sizeof(size_t));
  plan.left = gram_take(end, left);
  size_t all = R(chain_state_size)(c, 0), most = 0;
  int normed = 0, residual = 0;
  plan.widest = all;
  for (size_t l = 0; l < c->n_layers; l++) {
    const size_t state = R(chain_state_size)(c, l + 1);
    all += state;
    if (state > plan.widest) plan.widest = state;
    if (l && c->layers[l].n_in > most) most = c->layers[l].n_in;
    normed |= c->layers[l].norm != IC_NO_NORM;
    residual |= c->layers[l].residual;
  }
  if (residual) plan.aside = gram_take(end, plan.widest * sizeof(real));
  const size_t kept = c->backward ? all : 2 * plan.widest;
  plan.states = gram_take(end, kept * sizeof(real));
  plan.before = gram_take(end, plan.widest * sizeof(real));
  if (!c->backward) return plan;
  if (normed) plan.norms = gram_take(end, c->n_layers * lanes * sizeof(double));
  plan.slopes = gram_take(end, all * sizeof(real));
  plan.gradient = gram_take(end, plan.widest * sizeof(real));
  plan.gradient_gram = gram_take(end, plan.gram * sizeof(double));
  plan.gradient_factor = gram_take(end, batch * lanes * sizeof(double));
  plan.gradient_left = gram_take(end, left);
  plan.middle = gram_take(end, left);
  plan.coefficients = gram_take(end, left);
  plan.strip = gram_take(end, 16 * lanes * sizeof(real));
  plan.solved = gram_take(end, 16 * batch * sizeof(double));
  plan.q_stride = R(chain_slab_stride)(chain_round_up(most + 1, 16));
  plan.q = gram_take(end, batch * plan.q_stride * sizeof(real));
  return plan;
}

/* Domain: that of `gram`. Max error: none. Determinism: bytes that any trial of c needs. */
static size_t R(gram_workspace)(const ic_chain *c) {
  if (c->batch == 1) return R(single_plan)(c).total * sizeof(real) + IC_LINE_BYTES;
  return R(gram_plan)(c).total + IC_LINE_BYTES;
}

#define DOUBLES(offset) ((double *)(void *)(base + plan->offset))
#define SIZES(offset) ((size_t *)(void *)(base + plan->offset))
#define REALS(offset) ((real *)(void *)(base + plan->offset))

/* G += x x' of `n` features in panels, its upper triangle of panels. */
static void R(gram_add)(const R(gram_layout) * plan, size_t batch, const real *x, size_t panel,
                        size_t n, double *gram, char *base) {
  R(multiply_self)(x, panel, n, batch, 0, plan->panels, gram, plan->gram_panel, DOUBLES(wide));
}

/* A factor of `rank` columns as the panels of a product, rounded to the dtype, each with as many
 * columns as it needs; rows without a finite diagonal are NaN. */
static void R(gram_left)(const R(gram_layout) * plan, size_t batch, const double *factor,
                         const double *inverse, size_t rank, real *left, size_t *columns) {
  for (size_t p = 0; p < plan->panels; p++, left += R(chain_panel)(batch)) {
    columns[p] = 0;
    for (size_t s = 0; s < rank; s++) {
      const f64x16 column = f64_load(factor + s * plan->lanes + 16 * p);
      V(store)(left + 16 * s, IC_JOIN(IC_REAL, from_f64)(column));
      if (m64_bits(f64_eq(column, f64_zero())) != 0xFFFF) columns[p] = s + 1;
    }
    for (size_t b = 16 * p; b < batch && b < 16 * p + 16; b++) {
      if (inverse[b] == inverse[b]) continue;
      if (columns[p] == 0) V(store)(left, V(zero)());
      columns[p] = columns[p] ? columns[p] : 1;
      left[b % 16] = (real)inverse[b];
    }
  }
}

/* L times rows of standard normals, panel by panel. */
static void R(gram_multiply)(const R(gram_layout) * plan, size_t batch, const real *slab,
                             size_t rows, const real *bias, const real *left,
                             const size_t *columns, real *out, size_t panel) {
  for (size_t p = 0; p < plan->panels; p++)
    R(multiply)(slab, (ptrdiff_t)plan->stride, rows, columns[p], bias,
                left + p * R(chain_panel)(batch), 0, out + p * panel, 0, 1);
}

/* `rows` rows of standard normals, (., batch), from row `first` of a stream. */
static void R(gram_draw)(const ic_kernels *k, const ic_chain *c, const R(gram_layout) * plan,
                         uint64_t stream, size_t first, size_t rows, real *slab) {
  const size_t pieces = plan->stride == c->batch ? 1 : rows;
  for (size_t i = 0; i < pieces; i++)
    k->R(draw)(slab + i * plan->stride, (first + i) * c->batch, rows / pieces * c->batch, 1, 0,
               c->seed, stream, &standard_normal);
}

/* Features first ... first + count - 1 of the input, into panels. */
static void R(gram_input)(const ic_kernels *k, const ic_chain *c, uint64_t trial, size_t first,
                          size_t count, real *x, size_t panel, real *slab) {
  const ic_source *source = &c->input;
  const real *from = source->data;
  ptrdiff_t stride = source->row_stride;
  if (from) {
    from += first;
  } else {
    k->R(draw)(slab, first, count, c->batch, c->layers[0].n_in, c->seed, source->stream + trial,
               &source->distribution);
    from = slab;
    stride = (ptrdiff_t)count;
  }
  if (c->batch % 16) memset(x + c->batch / 16 * panel, 0, 16 * count * sizeof(real));
  for (size_t b = 0; b < c->batch; b++) {
    const real *row = from + (ptrdiff_t)b * stride;
    real *to = x + b / 16 * panel + b % 16;
    for (size_t j = 0; j < count; j++) to[16 * j] = row[j];
  }
  R(add_common)(k, c, trial, first, count, x, panel, slab);
}

/* State l; with backward, a slope lies as far from the first one. */
static real *R(gram_state)(const ic_chain *c, const R(gram_layout) * plan, char *base, size_t l) {
  real *at = REALS(states);
  if (!c->backward) return at + l % 2 * plan->widest;
  for (size_t j = 0; j < l; j++) at += R(chain_state_size)(c, j);
  return at;
}

/* x x' of `n` features in panels, its upper triangle; 0 if cancelled. */
static int R(gram_of)(const R(gram_layout) * plan, size_t batch, const real *x, size_t panel,
                      size_t n, double *gram, char *base, const volatile int32_t *cancel) {
  memset(gram, 0, plan->gram * sizeof *gram);
  for (size_t j = 0; j < n; j += plan->rows) {
    if (*cancel) return 0;
    R(gram_add)(plan, batch, x + 16 * j, panel, n - j < plan->rows ? n - j : plan->rows, gram,
                base);
  }
  return 1;
}

/* The norm of layer l's inputs, in their place, and its Gram matrix. */
static int R(gram_norm)(const ic_chain *c, const R(gram_layout) * plan, size_t l, double *gram,
                        char *base, const volatile int32_t *cancel) {
  const ic_layer *layer = c->layers + l;
  const size_t panel = R(chain_panel)(layer->n_in);
  real *x = R(gram_state)(c, plan, base, l);
  if (layer->residual) memcpy(REALS(aside), x, R(chain_state_size)(c, l) * sizeof(real));
  R(norm)(layer->norm, x, panel, layer->n_in, c->batch,
          c->backward ? DOUBLES(norms) + l * plan->lanes : NULL);
  return R(gram_of)(plan, c->batch, x, panel, layer->n_in, gram, base, cancel);
}

static int R(gram_forward)(const ic_kernels *k, const ic_chain *c, const R(gram_layout) * plan,
                           uint64_t trial, ic_moments *input, ic_moments *moments, char *base,
                           const volatile int32_t *cancel) {
  const size_t batch = c->batch, n_layers = c->n_layers;
  real *slab = REALS(slab), *bias = REALS(bias), *left = REALS(left);
  double *gram = DOUBLES(grams);
  size_t *columns = SIZES(columns);
  size_t n = c->layers[0].n_in, panel = R(chain_panel)(n);
  real *x = R(gram_state)(c, plan, base, 0), *slope = NULL;
  memset(gram, 0, plan->gram * sizeof *gram);
  if (input) memset(input, 0, sizeof *input);
  for (size_t j = 0; j < n; j += plan->rows) {
    if (*cancel) return 0;
    const size_t count = n - j < plan->rows ? n - j : plan->rows;
    R(gram_input)(k, c, trial, j, count, x + 16 * j, panel, slab);
    if (input) R(panel_moments)(x + 16 * j, panel, count, batch, input);
    if (!c->layers[0].norm) R(gram_add)(plan, batch, x + 16 * j, panel, count, gram, base);
  }
  for (size_t l = 0; l < n_layers; l++) {
    const ic_layer *layer = c->layers + l;
    const R(gram_law) law = R(gram_law_of)(layer);
    ic_moments *found = moments ? moments + 2 * l : NULL;
    if (layer->norm && !R(gram_norm)(c, plan, l, gram, base, cancel)) return 0;
    gram_mirror(gram, plan->gram_panel, batch);
    const size_t rank = gram_factor(gram, plan->gram_panel, batch, law.sigma, law.beta,
                                    DOUBLES(factor), DOUBLES(rest), SIZES(pivots), cancel);
    R(gram_left)(plan, batch, DOUBLES(factor), DOUBLES(rest) + plan->lanes, rank, left, columns);
    for (size_t o = 0; o < plan->rows && layer->has_bias; o++) bias[o] = law.mean;
    const real *skip = NULL;
    if (layer->residual) skip = layer->norm ? REALS(aside) : R(gram_state)(c, plan, base, l);
    if (c->backward) {
      gram += l + 1 < n_layers ? plan->gram : 0;
      slope = R(gram_state)(c, plan, base, l + 1) + (REALS(slopes) - REALS(states));
    }
    x = R(gram_state)(c, plan, base, l + 1);
    panel = R(chain_panel)(layer->n_out);
    const int added = l + 1 < n_layers && !layer[1].norm; /* to the next Gram matrix, while hot */
    if (added) memset(gram, 0, plan->gram * sizeof *gram);
    if (found) chain_begin(layer, found);
    for (size_t o = 0; o < layer->n_out; o += plan->rows) {
      if (*cancel) return 0;
      const size_t rows = layer->n_out - o < plan->rows ? layer->n_out - o : plan->rows;
      real *pre = REALS(before) + 16 * o, *out = x + 16 * o;
      R(gram_draw)(k, c, plan, layer->weight.stream + trial, o, rows, slab);
      R(gram_multiply)(plan, batch, slab, rows, layer->has_bias ? bias : NULL, left, columns, pre,
                       panel);
      R(chain_finish)(layer, 0, pre, skip ? skip + 16 * o : NULL, out,
                      slope ? slope + 16 * o : NULL, (ptrdiff_t)panel, rows, batch, found, NULL);
      if (added) R(gram_add)(plan, batch, out, panel, rows, gram, base);
    }
    if (!found) continue;
    double *scales = DOUBLES(rest);
    found[0].cosine = R(mean_cosine)(REALS(before), panel, layer->n_out, batch, scales);
    found[1].cosine = added ? gram_cosine(gram, plan->gram_panel, batch, scales)
                            : R(mean_cosine)(x, panel, layer->n_out, batch, scales);
  }
  return 1;
}

/* The gradient of state l, there in panels, units first ... first + count - 1, to that of the
 * pre-activations below, with the moments of both; aside if the layer below has a residual branch,
 * which it passes by. */
static void R(gram_finish)(const ic_chain *c, const R(gram_layout) * plan, size_t l, size_t first,
                           size_t count, ic_moments *moments, char *base) {
  const ic_layer *below = c->layers + (l - 1);
  real *slope = R(gram_state)(c, plan, base, l) + (REALS(slopes) - REALS(states));
  real *dx = REALS(before) + 16 * first;
  const size_t panel = R(chain_panel)(below->n_out);
  for (size_t p = 0; p < plan->panels && below->residual; p++)
    memcpy(REALS(aside) + p * panel + 16 * first, dx + p * panel, 16 * count * sizeof(real));
  R(chain_finish)(below, 1, dx, NULL, REALS(gradient) + 16 * first, slope + 16 * first,
                  (ptrdiff_t)panel, count, c->batch, moments, NULL);
}

/* Layer l's inputs, units first ... first + count - 1: to the gradient that has come through the
 * branch, there in panels, is added what passed it by; finished. */
static void R(gram_skip)(const ic_chain *c, const R(gram_layout) * plan, size_t l, size_t first,
                         size_t count, ic_moments *moments, char *base) {
  if (c->layers[l].residual)
    R(panel_add)(REALS(before), REALS(aside), R(chain_panel)(c->layers[l].n_in), plan->panels,
                 first, first + count);
  R(gram_finish)(c, plan, l, first, count, moments, base);
}

/* Q of n columns, the inputs x in panels: column j of [sigma X, beta 1] by substitution; 0 if
 * cancelled. */
static int R(gram_solve)(const R(gram_layout) * plan, size_t batch, size_t n_in, size_t n,
                         R(gram_law) law, const real *x, const double *factor, size_t rank,
                         const size_t *pivots, char *base, const volatile int32_t *cancel) {
  const size_t panel = R(chain_panel)(n_in);
  real *strip = REALS(strip), *q = REALS(q);
  double *solved = DOUBLES(solved), scale[16];
  for (size_t j = 0; j < n; j += 16) {
    if (*cancel) return 0;
    const size_t count = n - j < 16 ? n - j : 16;
    R(transpose_units)(x + 16 * j, panel, count, batch, strip, 16 * plan->lanes);
    for (size_t i = 0; i < 16; i++) scale[i] = j + i < n_in ? law.sigma : law.beta;
    for (size_t s = 0; s < rank; s++) {
      const double *row = factor + pivots[s];
      f64x16 v = f64_mul(f64_load(scale),
                         IC_JOIN(f64_load, IC_REAL)(strip + 16 * pivots[s]));
      for (size_t t = 0; t < s; t++)
        v = f64_fnma(f64_set(row[t * plan->lanes]), f64_load(solved + 16 * t), v);
      v = f64_div(v, f64_set(row[s * plan->lanes]));
      f64_store(solved + 16 * s, v);
      V(store)(q + s * plan->q_stride + j, IC_JOIN(IC_REAL, from_f64)(v));
    }
  }
  return 1;
}

/* From the gradient of layer l's pre-activations that of its inputs, l > 0, finished; D D' is there
 * as gradient_gram. */
static int R(gram_inputs)(const ic_kernels *k, const ic_chain *c, const R(gram_layout) * plan,
                          uint64_t gradient_stream, uint64_t trial, size_t l, ic_moments *moments,
                          char *base, const volatile int32_t *cancel) {
  const ic_layer *layer = c->layers + l;
  const R(gram_law) law = R(gram_law_of)(layer);
  const size_t batch = c->batch, n_in = layer->n_in, panels = plan->panels;
  const size_t n = n_in + (law.beta != 0); /* the column of b in the line between panels */
  const size_t left_panel = R(chain_panel)(batch), panel = R(chain_panel)(n_in);
  const ptrdiff_t dh_panel = (ptrdiff_t)R(chain_panel)(layer->n_out);
  const real *dh = REALS(gradient);
  real *x = R(gram_state)(c, plan, base, l), *dx = REALS(before);
  real *slab = REALS(slab), *q = REALS(q), *left = REALS(gradient_left);
  real *middle = REALS(middle), *coefficients = REALS(coefficients);
  double *rest = DOUBLES(rest), *factor = DOUBLES(gradient_factor);
  size_t *pivots = SIZES(pivots), *columns = SIZES(columns);

  size_t rank = gram_factor(DOUBLES(gradient_gram), plan->gram_panel, batch, law.sigma, 0, factor,
                            rest, pivots, cancel);
  R(gram_left)(plan, batch, factor, rest + plan->lanes, rank, left, columns);
  factor = DOUBLES(factor);
  rank = gram_factor(DOUBLES(grams) + l * plan->gram, plan->gram_panel, batch, law.sigma, law.beta,
                     factor, rest, pivots, cancel);
  if (*cancel) return 0;
  for (size_t p = 0; p < panels; p++)
    for (size_t i = 0; i < 16; i++) x[p * panel + 16 * n_in + i] = 1;
  if (!R(gram_solve)(plan, batch, n_in, n, law, x, factor, rank, pivots, base, cancel)) return 0;

  /* middle = dH Z, coefficients = G Q' with G in dx */
  memset(middle, 0, panels * left_panel * sizeof(real));
  for (size_t o = 0; o < layer->n_out; o += plan->rows) {
    if (*cancel) return 0;
    const size_t rows = layer->n_out - o < plan->rows ? layer->n_out - o : plan->rows;
    R(gram_draw)(k, c, plan, layer->weight.stream + trial, o, rows, slab);
    R(multiply_transposed)(slab, (ptrdiff_t)plan->stride, rank, rows, dh + 16 * o, dh_panel, middle,
                           (ptrdiff_t)left_panel, panels);
  }
  for (size_t j = 0; j < n; j += plan->rows) {
    if (*cancel) return 0;
    const size_t rows = n - j < plan->rows ? n - j : plan->rows;
    R(gram_draw)(k, c, plan, gradient_stream + trial, j, rows, slab);
    R(gram_multiply)(plan, batch, slab, rows, NULL, left, columns, dx + 16 * j, panel);
  }
  for (size_t s = 0; s < rank; s += plan->rows) {
    if (*cancel) return 0;
    R(multiply)(q + s * plan->q_stride, (ptrdiff_t)plan->q_stride,
                rank - s < plan->rows ? rank - s : plan->rows, n, NULL, dx, (ptrdiff_t)panel,
                coefficients + 16 * s, (ptrdiff_t)left_panel, panels);
  }
  const vreal sigma = V(set)((real)law.sigma);
  for (size_t p = 0; p < panels; p++)
    for (size_t i = p * left_panel; i < p * left_panel + 16 * rank; i += 16)
      V(store)(middle + i, V(sub)(V(mul)(sigma, V(load)(middle + i)), V(load)(coefficients + i)));
  for (size_t j = 0; j < n_in; j += plan->rows) {
    if (*cancel) return 0;
    const size_t rows = n_in - j < plan->rows ? n_in - j : plan->rows;
    R(multiply_transposed)(q + j, (ptrdiff_t)plan->q_stride, rows, rank, middle,
                           (ptrdiff_t)left_panel, dx + 16 * j, (ptrdiff_t)panel, panels);
    if (!layer->norm) R(gram_skip)(c, plan, l, j, rows, moments, base);
  }
  if (layer->norm) {
    R(norm_backward)(layer->norm, x, DOUBLES(norms) + l * plan->lanes, dx, panel, n_in, batch);
    R(gram_skip)(c, plan, l, 0, n_in, moments, base);
  }
  if (moments) moments[0].cosine = R(mean_cosine)(dx, panel, n_in, batch, DOUBLES(rest));
  return 1;
}

static int R(gram_backward)(const ic_kernels *k, const ic_chain *c, const R(gram_layout) * plan,
                            const uint64_t *gradient_streams, uint64_t trial,
                            ic_moments *gradients, char *base, const volatile int32_t *cancel) {
  const size_t batch = c->batch, n_layers = c->n_layers;
  double *gram = DOUBLES(gradient_gram);
  const size_t n = c->layers[n_layers - 1].n_out;
  ic_moments *top = gradients ? gradients + 3 * (n_layers - 1) : NULL;
  if (gradients) memset(gradients, 0, 3 * n_layers * sizeof *gradients);
  R(chain_fill)(k, c, &c->output_gradient, trial, n, REALS(before), REALS(slab));
  R(gram_finish)(c, plan, n_layers, 0, n, top, base);
  if (top)
    top[0].cosine = R(mean_cosine)(REALS(before), R(chain_panel)(n), n, batch, DOUBLES(rest));
  for (size_t l = n_layers; l-- > 0;) {
    const size_t n_in = c->layers[l].n_in, n_out = c->layers[l].n_out;
    const double *inputs = DOUBLES(grams) + l * plan->gram;
    if (!R(gram_of)(plan, batch, REALS(gradient), R(chain_panel)(n_out), n_out, gram, base,
                    cancel))
      return 0;
    gram_mirror(gram, plan->gram_panel, batch);
    if (gradients) {
      double trace = 0;
      for (size_t r = 0; r < batch; r++)
        for (size_t b = 0; b < batch; b++) {
          const size_t at = b / 16 * plan->gram_panel + 16 * r + b % 16;
          trace = fma(gram[at], inputs[at], trace);
        }
      gradients[3 * l + 1].cosine = gram_cosine(gram, plan->gram_panel, batch, DOUBLES(rest));
      gradients[3 * l + 2].count = (double)n_in * (double)n_out;
      gradients[3 * l + 2].m2 = trace;
      clip_square(gradients + 3 * l + 2);
    }
    if (l && !R(gram_inputs)(k, c, plan, gradient_streams[l], trial, l,
                             gradients ? gradients + 3 * (l - 1) : NULL, base, cancel))
      return 0;
  }
  return 1;
}

/* One trial, forward and, of a chain with `backward` set, backward; layer l's weight.stream is that
 * of Z, gradient_streams[l] that of E. Weights are normal of mean 0, biases normal or constant.
 * input, moments (n_layers, 2) and gradients (n_layers, 3) as of chain_backward, or NULL.
 * Domain: at least one layer; batch from 1 to 2^32 - 1; inputs of any values. Max error: as above,
 * and what `chain` has of a product of batch terms. Determinism: the same bits for every
 * instruction set. */
static int R(gram)(const ic_kernels *k, const ic_chain *c, const uint64_t *gradient_streams,
                   uint64_t trial, ic_moments *input, ic_moments *moments, ic_moments *gradients,
                   void *workspace, const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  real *base = R(chain_aligned)(workspace);
  int finished;
  if (c->batch == 1) {
    finished = R(single)(k, c, gradient_streams, trial, input, moments, gradients, base, cancel);
  } else {
    const R(gram_layout) plan = R(gram_plan)(c);
    finished = R(gram_forward)(k, c, &plan, trial, input, moments, (char *)base, cancel);
    if (finished && c->backward)
      finished = R(gram_backward)(k, c, &plan, gradient_streams, trial, gradients, (char *)base,
                                  cancel);
  }
  fpmode_leave(mode);
  return finished;
}

#undef DOUBLES
#undef SIZES
#undef REALS
