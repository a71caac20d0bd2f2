/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole trial of a chain, first layer to last, with statistics: x <- phi(h) or x + m phi(h),
 * h = x^ W' + b with x^ = x or its norm.
 *
 * A norm wants its rows whole, so it comes before the layer (chain_norm): x^ takes the place of x,
 * which goes aside if the layer adds to it. A layer goes by in slabs of W's rows. A drawn slab is
 * an ordinary contiguous piece of its stream, drawn into cache, multiplied and forgotten; a stored
 * one is read where it lies. The slab's outputs are then finished while they are hot, a block of
 * units at a time: moments of the pre-activations, phi, moments of the activations; after the last
 * slab, the cosines of both, which are why pre-activations are kept until then. Panels are as in
 * matmul.h.
 *
 * A range of a layer's outputs is a piece of work of its own (chain_columns), so that threads can
 * share a trial: nothing of it depends on the other outputs but the order in which units are
 * merged, which chain_merge keeps. */
#ifndef IC_CHAIN_H
#define IC_CHAIN_H

/* A slab's weights fit the second cache level beside a panel, and so do its outputs. */
enum { IC_SLAB_BYTES = 96 << 10, IC_SLAB_OUTPUT_BYTES = 512 << 10 };

/* Row strides that are a multiple of this put all rows of a tile into one cache set. */
enum { IC_CACHE_WAY_BYTES = 4096 };

/* Drawn weights up to this size are kept for the backward pass, the others drawn again: what the
 * last cache level may hold is fetched in less time than it is drawn, and what a thread takes is
 * bounded. */
enum { IC_KEPT_BYTES = 32 << 20 };

/* Buffers begin on cache lines. */
enum { IC_LINE_BYTES = 64 };
static inline size_t chain_round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/* Of n in as few parts of at most `most` as will do, as equal as can be, the size of one: a
 * multiple of `multiple`, as `most` is. */
static inline size_t chain_part(size_t n, size_t most, size_t multiple) {
  const size_t parts = (n + most - 1) / most;
  return parts ? chain_round_up((n + parts - 1) / parts, multiple) : 0;
}

/* Moments (2) of a layer before its first unit. */
static void chain_begin(const ic_layer *layer, ic_moments *moments) {
  memset(moments, 0, 2 * sizeof *moments);
  if (layer->saturation != layer->saturation) moments[0].saturated = layer->saturation;
}
#endif

/* Between panels of n features lies one line of padding: a unit's panels would otherwise be a
 * power of two apart at the usual widths, all in one cache set. */
IC_INLINE size_t R(chain_panel)(size_t n) { return 16 * (n + 1); }

/* The most rows a slab of a layer has, a multiple of the tile. */
static size_t R(chain_slab_most)(size_t n_in, size_t batch) {
  const size_t row = n_in ? n_in : 1, column = batch ? batch : 1;
  size_t rows = IC_SLAB_BYTES / sizeof(real) / row;
  const size_t most = IC_SLAB_OUTPUT_BYTES / sizeof(real) / column;
  if (rows > most) rows = most;
  return rows < IC_TILE_ROWS ? IC_TILE_ROWS : rows / IC_TILE_ROWS * IC_TILE_ROWS;
}

/* Elements between the rows of a drawn slab. */
static size_t R(chain_slab_stride)(size_t n_in) {
  return n_in * sizeof(real) % IC_CACHE_WAY_BYTES ? n_in : n_in + IC_LINE_BYTES / sizeof(real);
}

/* State l is the input of layer l, state n_layers the last activation. */
static size_t R(chain_state_size)(const ic_chain *c, size_t l) {
  const size_t n = l ? c->layers[l - 1].n_out : c->layers[0].n_in;
  return chain_round_up((c->batch + 15) / 16 * R(chain_panel)(n), IC_LINE_BYTES / sizeof(real));
}

/* The backward pass goes by strips of W's columns: wide enough for its rows to be drawn well,
 * narrow enough for a block of many rows to fit a slab, and for its outputs to stay in the second
 * cache level. */
static size_t R(strip_columns)(size_t batch) {
  const size_t columns = IC_SLAB_OUTPUT_BYTES / sizeof(real) / (batch ? batch : 1) / 64 * 64;
  return columns < 64 ? 64 : columns > 256 ? 256 : columns;
}

/* Elements between the rows of a strip: an odd number of cache lines, so that a column's are spread
 * over all sets. */
static size_t R(strip_stride)(size_t columns) {
  const size_t line = IC_LINE_BYTES / sizeof(real);
  return line * ((columns + line - 1) / line | 1);
}

/* Rows of W whose gradients fit a slab, and the gradients of whose outputs fit one, too. */
static size_t R(gradient_rows)(size_t n_in, size_t batch) {
  const size_t widest = n_in > batch ? n_in : batch, row = widest ? widest : 1;
  const size_t rows = IC_SLAB_BYTES / sizeof(real) / row / IC_TILE_ROWS * IC_TILE_ROWS;
  return rows ? rows : IC_TILE_ROWS;
}

/* Whether two matrices batch x batch in float64, half of each, are fewer multiplications than
 * layer l's dW. */
static int R(squares_by_traces)(const ic_chain *c, size_t l) {
  const size_t n_in = c->layers[l].n_in, n_out = c->layers[l].n_out;
  return chain_round_up(c->batch, 16) * (n_in + n_out) < n_in * n_out;
}

/* Where buffers begin in a workspace, in elements. A thread's own: the slab, at 0, the biases of
 * its rows, and for the backward pass a layer's inputs and some rows of gradients, both with the
 * batch along k, and a sum of squares an input; and scales of rows. A trial's: what a layer's
 * activations, or gradients by pre-activations, are made of; if a layer is residual, as much beside
 * it, for what passes the branch by; two states in turn or, for the backward pass, all of them, the
 * factors of their norms, the slopes phi' of all but the input, two states' gradients in turn, and
 * weights. */
typedef struct {
  size_t bias, inputs, rows, squares, scales, before, aside, states, norms, slopes, gradients, kept;
  size_t total;
  size_t widest; /* elements of the largest state */
} R(chain_layout);

/* Elements of the drawn weights kept for the backward pass, of layers l and above: as many as fit,
 * the last layers first, which are the first to be needed. *kept: layer l is the last of them. */
static size_t R(chain_keep)(const ic_chain *c, size_t l, int *kept) {
  size_t sum = 0;
  *kept = 0;
  for (size_t j = c->backward ? c->n_layers : l; j-- > l;) {
    const ic_layer *layer = c->layers + j;
    const size_t size = layer->n_out * R(chain_slab_stride)(layer->n_in);
    *kept = !layer->weight.data && sum + size <= IC_KEPT_BYTES / sizeof(real);
    if (*kept) sum += size;
  }
  return sum;
}

static R(chain_layout) R(chain_plan)(const ic_chain *c) {
  const size_t line = IC_LINE_BYTES / sizeof(real), batch = 16 * ((c->batch + 15) / 16);
  size_t bias = 0, slab = IC_SLAB_BYTES / sizeof(real), inputs = 0, rows = 0, squares = 0;
  size_t residual = 0, norms = 0;
  size_t all = R(chain_state_size)(c, 0), widest = all;
  for (size_t l = 0; l < c->n_layers; l++) {
    const ic_layer *layer = c->layers + l;
    const size_t drawn_rows = R(chain_slab_most)(layer->n_in, c->batch);
    const size_t drawn = drawn_rows * R(chain_slab_stride)(layer->n_in);
    const size_t state = R(chain_state_size)(c, l + 1), panels = (layer->n_in + 15) / 16;
    if (state > widest) widest = state;
    all += state;
    if (layer->residual) residual = 1;
    if (layer->norm) norms = c->n_layers * batch;
    if (layer->has_bias && !layer->bias.data && drawn_rows > bias) bias = drawn_rows;
    if (!layer->weight.data && drawn > slab) slab = drawn;
    if (!c->backward) continue;
    const size_t most = R(gradient_rows)(layer->n_in, c->batch);
    if (panels * R(chain_panel)(most) > slab) slab = panels * R(chain_panel)(most);
    const size_t traces = batch * (32 + IC_GRAM_FEATURES + 1) * (sizeof(double) / sizeof(real));
    if (R(squares_by_traces)(c, l) && traces > slab) slab = traces;
    if (panels * R(chain_panel)(batch) > inputs) inputs = panels * R(chain_panel)(batch);
    if (most > rows) rows = most;
    if (16 * panels > squares) squares = 16 * panels;
  }
  R(chain_layout) plan = {.bias = chain_round_up(slab, line), .widest = widest};
  plan.inputs = plan.bias + chain_round_up(bias, line);
  plan.rows = plan.inputs + inputs;
  plan.squares = plan.rows + chain_round_up(rows * R(chain_slab_stride)(batch), line);
  plan.scales = plan.squares + squares * (sizeof(double) / sizeof(real));
  plan.before = plan.scales + chain_round_up(batch * (sizeof(double) / sizeof(real)), line);
  plan.aside = plan.before + (residual ? widest : 0);
  plan.states = plan.aside + widest;
  if (!c->backward) {
    plan.total = plan.states + 2 * widest;
    return plan;
  }
  int kept;
  plan.norms = plan.states + all;
  plan.slopes = plan.norms + norms * (sizeof(double) / sizeof(real));
  plan.gradients = plan.slopes + all - R(chain_state_size)(c, 0);
  plan.kept = plan.gradients + 2 * widest;
  plan.total = plan.kept + R(chain_keep)(c, 0, &kept);
  return plan;
}

/* Domain: at least one layer. Max error: none. Determinism: bytes that any trial of c needs. */
static size_t R(chain_workspace)(const ic_chain *c) {
  return R(chain_plan)(c).total * sizeof(real) + IC_LINE_BYTES;
}

static real *R(chain_aligned)(void *workspace) {
  const uintptr_t address = (uintptr_t)workspace;
  return (real *)((char *)workspace + (chain_round_up(address, IC_LINE_BYTES) - address));
}

/* State l in a trial's workspace, and the slopes of the layer that it comes from, l > 0. */
static real *R(chain_state)(const ic_chain *c, const R(chain_layout) * plan, void *shared,
                            size_t l) {
  real *at = R(chain_aligned)(shared) + plan->states;
  if (!c->backward) return at + l % 2 * plan->widest;
  for (size_t j = 0; j < l; j++) at += R(chain_state_size)(c, j);
  return at;
}
static real *R(chain_slope)(const ic_chain *c, const R(chain_layout) * plan, void *shared,
                            size_t l) {
  const size_t before = plan->slopes - plan->states - R(chain_state_size)(c, 0);
  return R(chain_state)(c, plan, shared, l) + before;
}

/* What the norm of state l multiplied its rows by. */
static double *R(chain_factors)(const ic_chain *c, const R(chain_layout) * plan, void *shared,
                                size_t l) {
  const size_t lanes = 16 * ((c->batch + 15) / 16);
  return (double *)(void *)(R(chain_aligned)(shared) + plan->norms) + l * lanes;
}

/* The gradient by the pre-activation that state l comes from, l > 0. */
static real *R(chain_gradient)(const R(chain_layout) * plan, void *shared, size_t l) {
  return R(chain_aligned)(shared) + plan->gradients + l % 2 * plan->widest;
}

/* Where the weights of layer l are kept; NULL if they are not. */
static real *R(chain_kept)(const ic_chain *c, const R(chain_layout) * plan, void *shared,
                           size_t l) {
  const ic_layer *layer = c->layers + l;
  int kept;
  const size_t end = R(chain_keep)(c, l, &kept);
  if (!kept) return NULL;
  const size_t begin = end - layer->n_out * R(chain_slab_stride)(layer->n_in);
  return R(chain_aligned)(shared) + plan->kept + begin;
}

/* A source (batch, n) into panels; drawn in runs through scratch of a slab's size. */
static void R(chain_fill)(const ic_kernels *k, const ic_chain *c, const ic_source *source,
                          uint64_t trial, size_t n, real *x, real *scratch) {
  const size_t panel = R(chain_panel)(n), rest = c->batch % 16;
  const size_t run = IC_SLAB_BYTES / sizeof(real);
  if (rest) memset(x + c->batch / 16 * panel, 0, 16 * n * sizeof(real));
  size_t drawn = 0, end = 0; /* scratch holds elements drawn ... end - 1 */
  for (size_t b = 0; b < c->batch; b++) {
    real *to = x + b / 16 * panel + b % 16;
    for (size_t j = 0; j < n;) {
      const real *from;
      size_t count = n - j;
      if (source->data) {
        from = (const real *)source->data + (ptrdiff_t)b * source->row_stride + j;
      } else {
        const size_t first = b * n + j;
        if (first == end) {
          const size_t left = c->batch * n - first;
          drawn = first;
          end = first + (left < run ? left : run);
          k->R(draw)(scratch, first, end - first, 1, 0, c->seed, source->stream + trial,
                     &source->distribution);
        }
        from = scratch + (first - drawn);
        if (count > end - first) count = end - first;
      }
      for (size_t i = 0; i < count; i++) to[16 * (j + i)] = from[i];
      j += count;
    }
  }
}

/* Adds elements first ... first + n - 1 of the row that all inputs share, if there is one, to those
 * features of the input in panels; drawn in runs through scratch of a slab's size. */
static void R(add_common)(const ic_kernels *k, const ic_chain *c, uint64_t trial, size_t first,
                          size_t n, real *x, size_t panel, real *scratch) {
  const size_t run = IC_SLAB_BYTES / sizeof(real);
  if (!c->common) return;
  for (size_t j = 0; j < n; j += run) {
    const size_t count = n - j < run ? n - j : run;
    k->R(draw)(scratch, first + j, count, 1, 0, c->seed, c->common->stream + trial,
               &c->common->distribution);
    for (size_t b = 0; b < c->batch; b += 16) {
      const vmask lanes = M(first)(c->batch - b < 16 ? (int)(c->batch - b) : 16);
      real *to = x + b / 16 * panel + 16 * j;
      for (size_t i = 0; i < count; i++, to += 16) {
        const vreal common = V(select)(lanes, V(set)(scratch[i]), V(zero)());
        V(store)(to, V(add)(V(load)(to), common));
      }
    }
  }
}

/* x += y, features first ... last - 1 of `panels` panels. */
static void R(panel_add)(real *x, const real *y, size_t panel, size_t panels, size_t first,
                         size_t last) {
  for (size_t p = 0; p < panels; p++)
    for (size_t i = p * panel + 16 * first; i < p * panel + 16 * last; i += 16)
      V(store)(x + i, V(add)(V(load)(x + i), V(load)(y + i)));
}

/* Adds `n` units in panels to their moments. */
static void R(panel_moments)(const real *x, size_t panel, size_t n, size_t batch,
                             ic_moments *moments) {
  for (size_t u = 0; u < n && batch; u += IC_UNIT_BLOCK) {
    const int block = n - u < IC_UNIT_BLOCK ? (int)(n - u) : IC_UNIT_BLOCK;
    ic_unit found[IC_UNIT_BLOCK];
    R(ic_block) means;
    R(block_means)(x + 16 * u, 16, (ptrdiff_t)panel, block, batch, &means);
    R(block_powers)(x + 16 * u, 16, (ptrdiff_t)panel, block, batch, &means, found, 1, moments);
    merge_units(found, 1, (size_t)block, batch, moments);
  }
}

/* The input (batch, n), into the workspace's panels; its moments, if that is not NULL.
 * Domain, error and determinism: those of `chain`. */
static void R(chain_input)(const ic_kernels *k, const ic_chain *c, uint64_t trial,
                           ic_moments *moments, void *workspace) {
  const R(chain_layout) plan = R(chain_plan)(c);
  const size_t n = c->layers[0].n_in;
  real *x = R(chain_state)(c, &plan, workspace, 0);
  R(chain_fill)(k, c, &c->input, trial, n, x, R(chain_aligned)(workspace));
  const ic_fpmode mode = fpmode_enter();
  R(add_common)(k, c, trial, 0, n, x, R(chain_panel)(n), R(chain_aligned)(workspace));
  if (moments) {
    memset(moments, 0, sizeof *moments);
    R(panel_moments)(x, R(chain_panel)(n), n, c->batch, moments);
  }
  fpmode_leave(mode);
}

/* From panels to units (features) first ... last - 1 of y, rows of n. */
static void R(chain_copy)(const real *x, size_t panel, size_t batch, size_t first, size_t last,
                          real *y, size_t n) {
  for (size_t b = 0; b < batch; b++)
    for (size_t j = first; j < last; j++) y[b * n + j] = x[b / 16 * panel + 16 * j + b % 16];
}

/* phi' of a block of pre-activations, into `slope` if that is not NULL; returns how many |phi'| are
 * below the threshold. */
static double R(chain_slopes)(const real *x, real *slope, ptrdiff_t panel, int units, size_t batch,
                              const ic_layer *layer) {
  real scratch[16 * IC_UNIT_BLOCK];
  const vreal threshold = V(set)((real)layer->saturation);
  vbits count = U(set)(0);
  for (size_t b = 0; b < batch; b += 16, x += panel) {
    const vmask lanes = M(first)(batch - b < 16 ? (int)(batch - b) : 16);
    real *to = slope ? slope + (ptrdiff_t)(b / 16) * panel : scratch;
    R(apply)(x, to, (size_t)(16 * units), layer->activation, (real)layer->parameter, 1);
    for (int u = 0; u < units; u++) {
      const vmask small = V(lt)(V(abs)(V(load)(to + 16 * u)), threshold);
      count = U(count)(count, M(and)(lanes, small));
    }
  }
  return (double)U(total)(count);
}

/* From activations to x + m phi in `out`, and from phi' to m phi' if that is not NULL: a block of
 * units of a layer whose inputs are x. */
static void R(chain_branch)(const ic_layer *layer, const real *x, real *out, real *slope,
                            ptrdiff_t panel, int units, size_t batch) {
  const int absent = layer->multiplier == 0;
  const vreal m = V(set)((real)layer->multiplier);
  for (size_t b = 0; b < batch; b += 16, x += panel, out += panel)
    for (ptrdiff_t i = 0; i < 16 * units; i += 16) {
      const vreal in = V(load)(x + i);
      V(store)(out + i, absent ? in : V(fma)(m, V(load)(out + i), in));
      if (!slope) continue;
      real *to = slope + (ptrdiff_t)(b / 16) * panel + i;
      V(store)(to, absent ? V(zero)() : V(mul)(m, V(load)(to)));
    }
}

/* Of `count` units, pre-activations x to activations `out`, their phi' to `slope` if that is not
 * NULL, and beyond to the layer's outputs if there is a residual `skip`, its inputs; or, if
 * `gradient`, gradients of outputs to those of pre-activations, by the slopes; all in panels alike,
 * out may be x. With the moments of before and after if wanted: what needs no order
 * goes into moments, the rest to `units`, or into moments too if that is NULL. */
static void R(chain_finish)(const ic_layer *layer, const int gradient, const real *x,
                            const real *skip, real *out, real *slope, ptrdiff_t panel,
                            size_t count, size_t batch, ic_moments *moments, ic_unit *units) {
  /* relu' is 0 exactly where relu is */
  const int saturated_are_zeros =
      layer->activation == IC_RELU && layer->saturation > 0 && layer->saturation <= 1 && !skip;
  const int count_saturated =
      moments && !saturated_are_zeros && layer->saturation == layer->saturation;
  ic_unit merged[2 * IC_UNIT_BLOCK];
  for (size_t u = 0; u < count;
       u += IC_UNIT_BLOCK, x += 16 * IC_UNIT_BLOCK, out += 16 * IC_UNIT_BLOCK) {
    const int block = count - u < IC_UNIT_BLOCK ? (int)(count - u) : IC_UNIT_BLOCK;
    ic_unit *found = units ? units + 2 * u : merged;
    R(ic_block) before, after;
    const int in_place = x == out;
    if (moments) R(block_means)(x, 16, panel, block, batch, &before);
    if (moments && in_place)
      R(block_powers)(x, 16, panel, block, batch, &before, found, 2, moments);
    if (!gradient && (slope || count_saturated)) {
      const double saturated = R(chain_slopes)(x, slope, panel, block, batch, layer);
      if (count_saturated) moments[0].saturated += saturated;
    }
    for (size_t b = 0; b < batch; b += 16) {
      const ptrdiff_t at = (ptrdiff_t)(b / 16) * panel;
      if (gradient)
        for (ptrdiff_t i = at; i < at + 16 * block; i += 16)
          V(store)(out + i, V(mul)(V(load)(x + i), V(load)(slope + i)));
      else
        R(apply)(x + at, out + at, (size_t)(16 * block), layer->activation,
                 (real)layer->parameter, 0);
    }
    if (skip) {
      R(chain_branch)(layer, skip, out, slope, panel, block, batch);
      skip += 16 * IC_UNIT_BLOCK;
    }
    if (slope) slope += 16 * IC_UNIT_BLOCK;
    if (moments) {
      R(block_means)(out, 16, panel, block, batch, &after);
      if (!in_place) R(block_powers)(x, 16, panel, block, batch, &before, found, 2, moments);
      R(block_powers)(out, 16, panel, block, batch, &after, found + 1, 2, moments + 1);
    }
    if (moments && !units) merge_units(found, 2, (size_t)block, batch, moments);
  }
  if (moments && !gradient && saturated_are_zeros) moments[0].saturated = moments[1].zeros;
}

/* `chain_norm`, given the plan. */
static void R(norm_state)(const ic_chain *c, const R(chain_layout) * plan, size_t l,
                          void *shared) {
  const ic_layer *layer = c->layers + l;
  const size_t panel = R(chain_panel)(layer->n_in);
  real *x = R(chain_state)(c, plan, shared, l);
  if (!layer->norm) return;
  if (layer->residual)
    memcpy(R(chain_aligned)(shared) + plan->aside, x, R(chain_state_size)(c, l) * sizeof(real));
  const ic_fpmode mode = fpmode_enter();
  R(norm)(layer->norm, x, panel, layer->n_in, c->batch,
          c->backward ? R(chain_factors)(c, plan, shared, l) : NULL);
  fpmode_leave(mode);
}

/* The norm of a layer's inputs, in their place, if it has one.
 * Domain, error and determinism: those of `norm`. */
static void R(chain_norm)(const ic_chain *c, size_t l, void *shared) {
  const R(chain_layout) plan = R(chain_plan)(c);
  R(norm_state)(c, &plan, l, shared);
}

/* `chain_columns`, given the plan. */
static int R(chain_range)(const ic_kernels *k, const ic_chain *c, const R(chain_layout) * plan,
                          uint64_t trial, size_t l, size_t first, size_t last, ic_unit *units,
                          ic_moments *moments, real *y, void *shared, void *own,
                          const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const ic_layer *layer = c->layers + l;
  const size_t n_in = layer->n_in, n_out = layer->n_out, batch = c->batch;
  const size_t panel = R(chain_panel)(n_out), stride = R(chain_slab_stride)(n_in);
  real *in = R(chain_state)(c, plan, shared, l), *out = R(chain_state)(c, plan, shared, l + 1);
  real *pre = R(chain_aligned)(shared) + plan->before;
  const real *skip = layer->norm ? R(chain_aligned)(shared) + plan->aside : in;
  if (!layer->residual) skip = NULL;
  real *slope = c->backward ? R(chain_slope)(c, plan, shared, l + 1) : NULL;
  real *slab = R(chain_aligned)(own), *bias_slab = slab + plan->bias;
  real *kept = R(chain_kept)(c, plan, shared, l);
  if (moments) chain_begin(layer, moments);

  const size_t most = R(chain_slab_most)(n_in, batch);
  const size_t slab_rows = chain_part(last - first, most, IC_TILE_ROWS);
  size_t o = first;
  for (; o < last && !*cancel; o += slab_rows) {
    const size_t rows = last - o < slab_rows ? last - o : slab_rows;
    const real *w = layer->weight.data, *bias = layer->bias.data;
    ptrdiff_t w_stride = layer->weight.row_stride;
    if (w) {
      w += (ptrdiff_t)o * w_stride;
    } else {
      const size_t pieces = stride == n_in ? 1 : rows, length = rows / pieces * n_in;
      real *to = kept ? kept + o * stride : slab;
      for (size_t i = 0; i < pieces; i++)
        k->R(draw)(to + i * stride, (o + i) * n_in, length, 1, 0, c->seed,
                   layer->weight.stream + trial, &layer->weight.distribution);
      w = to;
      w_stride = (ptrdiff_t)stride;
    }
    if (bias) {
      bias += o;
    } else if (layer->has_bias) {
      k->R(draw)(bias_slab, o, rows, 1, 0, c->seed, layer->bias.stream + trial,
                 &layer->bias.distribution);
      bias = bias_slab;
    }
    R(multiply)(w, w_stride, rows, n_in, bias, in, (ptrdiff_t)R(chain_panel)(n_in), pre + 16 * o,
                (ptrdiff_t)panel, (batch + 15) / 16);
    if (batch)
      R(chain_finish)(layer, 0, pre + 16 * o, skip ? skip + 16 * o : NULL, out + 16 * o,
                      slope ? slope + 16 * o : NULL, (ptrdiff_t)panel, rows, batch, moments,
                      units ? units + 2 * o : NULL);
    if (y && l + 1 == c->n_layers) R(chain_copy)(out, panel, batch, o, o + rows, y, n_out);
  }
  fpmode_leave(mode);
  return o >= last;
}

/* Outputs first ... last - 1 of a layer, from the panels of `shared` to its others and, of the last
 * layer, to y if that is not NULL; 0 if cancelled. What is drawn goes through `own`. With units,
 * moments is the part of this range; without, the layer's running record.
 * Domain, error and determinism: those of `chain`. */
static int R(chain_columns)(const ic_kernels *k, const ic_chain *c, uint64_t trial, size_t l,
                            size_t first, size_t last, ic_unit *units, ic_moments *moments,
                            real *y, void *shared, void *own, const volatile int32_t *cancel) {
  const R(chain_layout) plan = R(chain_plan)(c);
  return R(chain_range)(k, c, &plan, trial, l, first, last, units, moments, y, shared, own,
                        cancel);
}

/* The cosines of a layer, while its panels are there: of pre-activation and activation or, if
 * `gradient`, of the gradients by activation and pre-activation.
 * Domain, error and determinism: those of `mean_cosine`. */
static void R(chain_cosines)(const ic_chain *c, size_t l, int gradient, ic_moments *moments,
                             void *shared, void *own) {
  const ic_fpmode mode = fpmode_enter();
  const R(chain_layout) plan = R(chain_plan)(c);
  const size_t n = c->layers[l].n_out, panel = R(chain_panel)(n);
  const size_t at = gradient && (l + 1) % 2 ? plan.aside : plan.before;
  const real *before = R(chain_aligned)(shared) + at;
  const real *after = gradient ? R(chain_gradient)(&plan, shared, l + 1)
                               : R(chain_state)(c, &plan, shared, l + 1);
  double *scales = (double *)(void *)(R(chain_aligned)(own) + plan.scales);
  moments[0].cosine = R(mean_cosine)(before, panel, n, c->batch, scales);
  moments[1].cosine = R(mean_cosine)(after, panel, n, c->batch, scales);
  fpmode_leave(mode);
}

/* Domain: at least one layer; any sizes, zero included; any values. batch < 2^32. Max error: one
 * rounding a fma and a norm, phi's ulps; statistics as in moments.h. Determinism: the same bits for
 * every instruction set and however a layer is cut into columns; a drawn matrix gives what the same
 * matrix, stored, gives. */
static int R(chain)(const ic_kernels *k, const ic_chain *c, uint64_t trial, ic_moments *input,
                    ic_moments *moments, real *y, void *workspace,
                    const volatile int32_t *cancel) {
  const R(chain_layout) plan = R(chain_plan)(c);
  int finished = 1;
  R(chain_input)(k, c, trial, input, workspace);
  for (size_t l = 0; l < c->n_layers && finished; l++) {
    ic_moments *here = moments ? moments + 2 * l : NULL;
    R(norm_state)(c, &plan, l, workspace);
    finished = R(chain_range)(k, c, &plan, trial, l, 0, c->layers[l].n_out, NULL, here, y,
                              workspace, workspace, cancel);
    if (finished && here) R(chain_cosines)(c, l, 0, here, workspace, workspace);
  }
  return finished;
}
