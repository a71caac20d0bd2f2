/* SPDX-License-Identifier: BSD-3-Clause */
/* A trial by gram.h of one input, where no factor is needed: norms alone say what to draw. Given a
 * layer's input x, or its norm's, W = sigma V and b = mean + beta v, all units are independent:
 *
 *     h = sqrt(a) z + mean,  a = sigma^2 |x|^2 + beta^2
 *
 * Backward, q = [sigma x, beta] / sqrt(a) has z = [V, v] q, and with g from N(0, sigma^2 |dh|^2)
 *
 *     dx = g - along x,  along = sigma (g q - sigma dh z) / sqrt(a)   (g without the column of b)
 *
 * and |dW|^2 = |dh|^2 |x|^2. Behind a norm |x^|^2 is n_in, and what lies along x^ goes no further:
 *
 *     dx = (g - mean g - x^ mean(g x^)) / s   (without mean g for an RMS norm)
 *
 * Lanes are units. A layer goes by in pieces that stay in cache: drawn, finished and forgotten, but
 * for a residual branch or a backward pass, which want whole states: memory does not grow with the
 * width of other chains. To chain_finish, 256 values are 16 of each of 16 units. |x|^2, mean and s
 * come from the statistics: |x|^2 = m2 + n mean^2, and a state with a spread below 2^-48 of its
 * mean is a constant one, whose layer norm is 0. Squares are those of float64, as in gram.h, and
 * under a norm, too, which norm.h would scale.
 *
 * Unit o has element o of the layer's stream as its z, input j element j of the gradient's as its g
 * (and b the one after the last): those of gram.h at a batch of 1. */
#ifndef IC_GRAM_SINGLE_H
#define IC_GRAM_SINGLE_H

static const ic_distribution standard_normal = {.kind = IC_NORMAL, .scale = 1};

/* Values at a time, some blocks of 16 values of IC_UNIT_BLOCK units. */
enum { IC_SINGLE_BLOCK = 16 * IC_UNIT_BLOCK, IC_SINGLE_PIECE = 16 * IC_SINGLE_BLOCK };

/* What a layer sees of its input, x^ = (x - mean) inverse: |x^|^2, as that of gram.h's X. */
typedef struct {
  double mean, inverse, square;
} single_row;

/* |x|^2 of one row, from its moments. */
static double single_square(const ic_moments *x) {
  return fma(x->count * x->mean, x->mean, x->m2);
}

static single_row single_row_of(int norm, const ic_moments *x) {
  const double square = single_square(x), invalid = square - square; /* 0 or NaN */
  if (norm == IC_NO_NORM) return (single_row){0, 1, square};
  const double mean = norm == IC_LAYER_NORM ? x->mean : 0;
  const double about = norm == IC_LAYER_NORM ? x->m2 : square;
  if (about <= fma(0x1p-96 * x->count * mean, mean, DBL_MIN))
    return (single_row){mean, invalid, invalid};
  return (single_row){mean, sqrt(x->count) / sqrt(about), x->count + invalid};
}

/* The standard deviation of variance a; 0 and NaN beyond what squares of float64 can say. */
static double single_root(double a) { return a < DBL_MIN ? 0 : sqrt(a) + (a - a); }

/* The moments of a batch of one, whose units are values, from those of larger units. */
static ic_moments single_moments(ic_moments m) {
  m.within = m.nonfinite > 0 ? NAN : 0;
  m.dead = m.zeros;
  m.cosine = NAN;
  return m;
}
#endif

/* sigma, beta and the biases' mean of a layer, in the dtype. */
typedef struct {
  double sigma, beta;
  real mean;
} R(gram_law);
static R(gram_law) R(gram_law_of)(const ic_layer *layer) {
  const ic_distribution *bias = &layer->bias.distribution;
  const int varies = layer->has_bias && bias->kind == IC_NORMAL;
  return (R(gram_law)){(real)layer->weight.distribution.scale, varies ? (real)bias->scale : 0,
                       layer->has_bias ? (real)bias->shift : 0};
}

/* sqrt(a) of a layer that sees `row`. */
static double R(single_std)(R(gram_law) law, single_row row) {
  return single_root(fma(law.sigma * law.sigma, row.square, law.beta * law.beta));
}

/* Where buffers begin in a workspace, in elements: two pieces; states, two in turn or, with
 * backward, all; slopes, as far from their states; the gradients of two states in turn, and that of
 * pre-activations; what layers see, with backward. */
typedef struct {
  size_t aside, states, slopes, gradients, by_pre, rows, total;
  size_t widest;
  int whole; /* states are kept */
} R(single_layout);

/* Elements of state l; a line of padding keeps equal widths from a power of two apart. */
static size_t R(single_size)(const ic_chain *c, size_t l) {
  const size_t n = l ? c->layers[l - 1].n_out : c->layers[0].n_in;
  return R(chain_panel)((n + 15) / 16);
}

static R(single_layout) R(single_plan)(const ic_chain *c) {
  size_t all = R(single_size)(c, 0), widest = all;
  int residual = 0;
  for (size_t l = 0; l < c->n_layers; l++) {
    const size_t state = R(single_size)(c, l + 1);
    all += state;
    if (state > widest) widest = state;
    residual |= c->layers[l].residual;
  }
  R(single_layout) plan = {.widest = widest, .whole = residual || c->backward};
  plan.aside = IC_SINGLE_PIECE;
  plan.states = plan.slopes = plan.aside + IC_SINGLE_PIECE;
  plan.total = plan.states + (residual ? 2 * widest : 0);
  if (!c->backward) return plan;
  plan.slopes = plan.states + all;
  plan.gradients = plan.slopes + all;
  plan.by_pre = plan.gradients + 2 * widest;
  plan.rows = plan.by_pre + widest;
  plan.total = plan.rows + c->n_layers * sizeof(single_row) / sizeof(real);
  return plan;
}

static real *R(single_state)(const ic_chain *c, const R(single_layout) * plan, real *base,
                             size_t l) {
  real *at = base + plan->states;
  if (!c->backward) return at + l % 2 * plan->widest;
  for (size_t j = 0; j < l; j++) at += R(single_size)(c, j);
  return at;
}

static real *R(single_gradient)(const R(single_layout) * plan, real *base, size_t l) {
  return base + plan->gradients + l % 2 * plan->widest;
}

/* What each layer sees, with backward. */
static single_row *R(single_rows)(const R(single_layout) * plan, real *base) {
  return (single_row *)(void *)(base + plan->rows);
}

/* Elements first ... first + n - 1 of a source of one row. */
static void R(single_fill)(const ic_kernels *k, const ic_chain *c, const ic_source *source,
                           uint64_t trial, size_t first, size_t n, real *to) {
  if (source->data)
    memcpy(to, (const real *)source->data + first, n * sizeof *to);
  else
    k->R(draw)(to, first, n, 1, 0, c->seed, source->stream + trial, &source->distribution);
}

/* `chain_finish` of n contiguous values. */
static void R(single_finish)(const ic_layer *layer, int gradient, const real *x, const real *skip,
                             real *out, real *slope, size_t n, ic_moments *moments) {
  const size_t rows = n / IC_SINGLE_BLOCK, i = rows * IC_SINGLE_BLOCK;
  if (rows)
    R(chain_finish)(layer, gradient, x, skip, out, slope, IC_SINGLE_BLOCK, IC_UNIT_BLOCK,
                    16 * rows, moments, NULL);
  if (i < n)
    R(chain_finish)(layer, gradient, x + i, skip ? skip + i : NULL, out + i,
                    slope ? slope + i : NULL, 16, 1, n - i, moments, NULL);
}

/* x^ of 16 values, rounded as that of norm.h: where nothing but x^ passes, no rounding does. */
IC_INLINE f64x16 R(single_seen)(f64x16 x, single_row row) {
  const f64x16 seen = f64_mul(f64_sub(x, f64_set(row.mean)), f64_set(row.inverse));
  return IC_JOIN(f64_from, IC_REAL)(IC_JOIN(IC_REAL, from_f64)(seen));
}

/* The sums of g and of g x^, by lane. */
typedef struct {
  f64x16 g, product;
} R(single_lanes);

IC_INLINE R(single_lanes) R(single_add)(R(single_lanes) sum, f64x16 g, f64x16 x, single_row row) {
  sum.g = f64_add(sum.g, g);
  sum.product = f64_fma(g, R(single_seen)(x, row), sum.product);
  return sum;
}

/* Adds the sums over n values to sums (2). */
static void R(single_sums)(const real *g, const real *x, single_row row, size_t n, double *sums) {
  const int rest = (int)(n % 16);
  R(single_lanes) sum = {f64_zero(), f64_zero()};
  for (; n >= 16; n -= 16, g += 16, x += 16)
    sum = R(single_add)(sum, IC_JOIN(f64_load, IC_REAL)(g), IC_JOIN(f64_load, IC_REAL)(x), row);
  if (rest) /* g of the lanes beyond loads as 0 */
    sum = R(single_add)(sum, IC_JOIN(f64_from, IC_REAL)(V(load_first)(g, rest)),
                        IC_JOIN(f64_from, IC_REAL)(V(load_first)(x, rest)), row);
  sums[0] += f64_fold_add(sum.g);
  sums[1] += f64_fold_add(sum.product);
}

static int R(single_forward)(const ic_kernels *k, const ic_chain *c,
                             const R(single_layout) * plan, uint64_t trial, ic_moments *input,
                             ic_moments *moments, real *base, const volatile int32_t *cancel) {
  single_row *rows = R(single_rows)(plan, base);
  ic_moments found[2] = {{0}}; /* before and after */
  real *piece = base, *state = R(single_state)(c, plan, base, 0);
  size_t n = c->layers[0].n_in, count;
  for (size_t j = 0; j < n; j += count) {
    if (*cancel) return 0;
    count = n - j < IC_SINGLE_PIECE ? n - j : IC_SINGLE_PIECE;
    real *x = plan->whole ? state + j : piece;
    R(single_fill)(k, c, &c->input, trial, j, count, x);
    if (c->common) {
      R(single_fill)(k, c, c->common, trial, j, count, base + plan->aside);
      R(panel_add)(x, base + plan->aside, 0, 1, 0, (count + 15) / 16);
    }
    R(moments)(x, count, 1, found + 1);
  }
  if (input) *input = found[1];
  for (size_t l = 0; l < c->n_layers; l++) {
    const ic_layer *layer = c->layers + l;
    const R(gram_law) law = R(gram_law_of)(layer);
    const single_row row = single_row_of(layer->norm, found + 1);
    const ic_distribution pre = {
        .kind = IC_NORMAL, .scale = R(single_std)(law, row), .shift = law.mean};
    const real *skip = layer->residual ? state : NULL;
    real *slope = NULL;
    if (c->backward) rows[l] = row;
    state = R(single_state)(c, plan, base, l + 1);
    if (c->backward) slope = state + (plan->slopes - plan->states);
    chain_begin(layer, found);
    n = layer->n_out;
    for (size_t o = 0; o < n; o += count) {
      if (*cancel) return 0;
      count = n - o < IC_SINGLE_PIECE ? n - o : IC_SINGLE_PIECE;
      k->R(draw)(piece, o, count, 1, 0, c->seed, layer->weight.stream + trial, &pre);
      R(single_finish)(layer, 0, piece, skip ? skip + o : NULL, plan->whole ? state + o : piece,
                       slope ? slope + o : NULL, count, found);
    }
    for (int i = 0; moments && i < 2; i++) moments[2 * l + (size_t)i] = single_moments(found[i]);
  }
  return 1;
}

/* What makes dx of g: (g - mean - along x^) row.inverse. */
typedef struct {
  double mean, along;
} R(single_terms);

/* Those of layer l > 0, from dh of squared norm `square`; g is drawn into the gradient of state l.
 * They mean nothing if cancelled. */
static R(single_terms) R(single_terms_of)(const ic_kernels *k, const ic_chain *c,
                                          const R(single_layout) * plan, uint64_t gradient_stream,
                                          uint64_t trial, size_t l, double square, real *base,
                                          const volatile int32_t *cancel) {
  const ic_layer *layer = c->layers + l;
  const R(gram_law) law = R(gram_law_of)(layer);
  const single_row row = R(single_rows)(plan, base)[l];
  const ic_distribution spread = {.kind = IC_NORMAL, .scale = law.sigma * single_root(square)};
  const size_t n_in = layer->n_in, n_out = layer->n_out;
  const double n = (double)n_in, std = R(single_std)(law, row);
  const real *x = R(single_state)(c, plan, base, l), *dh = base + plan->by_pre;
  real *piece = base, *g = R(single_gradient)(plan, base, l);
  double sums[2] = {0, 0}, with_z[2] = {0, 0};
  for (size_t j = 0; j < n_in && !*cancel; j += IC_SINGLE_PIECE) {
    const size_t count = n_in - j < IC_SINGLE_PIECE ? n_in - j : IC_SINGLE_PIECE;
    k->R(draw)(g + j, j, count, 1, 0, c->seed, gradient_stream + trial, &spread);
    R(single_sums)(g + j, x + j, row, count, sums);
  }
  if (layer->norm)
    return (R(single_terms)){layer->norm == IC_LAYER_NORM ? sums[0] / n : 0, sums[1] / n};
  if (std == 0) return (R(single_terms)){0, 0};
  for (size_t o = 0; o < n_out && !*cancel; o += IC_SINGLE_PIECE) {
    const size_t count = n_out - o < IC_SINGLE_PIECE ? n_out - o : IC_SINGLE_PIECE;
    k->R(draw)(piece, o, count, 1, 0, c->seed, layer->weight.stream + trial, &standard_normal);
    R(single_sums)(dh + o, piece, (single_row){0, 1, 0}, count, with_z);
  }
  real last = 0; /* g's column of b */
  if (law.beta != 0)
    k->R(draw)(&last, n_in, 1, 1, 0, c->seed, gradient_stream + trial, &spread);
  const double with_q = fma(law.sigma, sums[1], law.beta * (double)last) / std;
  return (R(single_terms)){0, law.sigma * fma(-law.sigma, with_z[1], with_q) / std};
}

/* dx of n values of g, in its place, and of what passed a branch by if dy is not NULL. */
static void R(single_combine)(real *g, const real *x, const real *dy, single_row row,
                              R(single_terms) terms, size_t n) {
  const f64x16 mean = f64_set(terms.mean), along = f64_set(terms.along);
  const f64x16 factor = f64_set(row.inverse);
  for (size_t i = 0; i < n; i += 16) {
    const f64x16 v = f64_sub(IC_JOIN(f64_load, IC_REAL)(g + i), mean);
    const f64x16 w = R(single_seen)(IC_JOIN(f64_load, IC_REAL)(x + i), row);
    const vreal dx = IC_JOIN(IC_REAL, from_f64)(f64_mul(f64_fnma(along, w, v), factor));
    V(store)(g + i, dy ? V(add)(dx, V(load)(dy + i)) : dx);
  }
}

static int R(single_backward)(const ic_kernels *k, const ic_chain *c,
                              const R(single_layout) * plan, const uint64_t *gradient_streams,
                              uint64_t trial, ic_moments *gradients, real *base,
                              const volatile int32_t *cancel) {
  const single_row *rows = R(single_rows)(plan, base);
  real *dh = base + plan->by_pre;
  R(single_terms) terms = {0, 0};
  double square = 0; /* |dh|^2 */
  for (size_t l = c->n_layers; l > 0; l--) { /* the gradient of state l, then of the layer below */
    const ic_layer *layer = c->layers + l, *below = layer - 1;
    const int top = l == c->n_layers;
    const size_t n = below->n_out;
    real *x = R(single_state)(c, plan, base, l), *slope = x + (plan->slopes - plan->states);
    real *dx = R(single_gradient)(plan, base, l);
    const real *dy = !top && layer->residual ? R(single_gradient)(plan, base, l + 1) : NULL;
    if (!top)
      terms = R(single_terms_of)(k, c, plan, gradient_streams[l], trial, l, square, base, cancel);
    ic_moments found[2] = {{0}}; /* of dx and dh */
    for (size_t j = 0; j < n; j += IC_SINGLE_PIECE) {
      if (*cancel) return 0;
      const size_t count = n - j < IC_SINGLE_PIECE ? n - j : IC_SINGLE_PIECE;
      if (top)
        R(single_fill)(k, c, &c->output_gradient, trial, j, count, dx + j);
      else
        R(single_combine)(dx + j, x + j, dy ? dy + j : NULL, rows[l], terms, count);
      R(single_finish)(below, 1, dx + j, NULL, dh + j, slope + j, count, found);
    }
    square = single_square(found + 1);
    if (!gradients) continue;
    ic_moments *to = gradients + 3 * (l - 1);
    for (int i = 0; i < 2; i++) to[i] = single_moments(found[i]);
    to[2] = (ic_moments){.count = (double)below->n_in * (double)n,
                         .m2 = square * rows[l - 1].square};
  }
  return 1;
}

/* `gram` of a batch of one, the workspace aligned. */
static int R(single)(const ic_kernels *k, const ic_chain *c, const uint64_t *gradient_streams,
                     uint64_t trial, ic_moments *input, ic_moments *moments,
                     ic_moments *gradients, real *base, const volatile int32_t *cancel) {
  const R(single_layout) plan = R(single_plan)(c);
  if (!R(single_forward)(k, c, &plan, trial, input, moments, base, cancel)) return 0;
  return !c->backward || R(single_backward)(k, c, &plan, gradient_streams, trial, gradients, base,
                                            cancel);
}
