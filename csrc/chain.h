/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole trial of a chain, first layer to last: x <- phi(x W' + b), with statistics.
 *
 * A layer goes by in slabs of W's rows. A drawn slab is an ordinary contiguous piece of its stream,
 * drawn into cache, multiplied and forgotten; a stored one is read where it lies. The slab's
 * outputs are then finished while they are hot, a block of units at a time: moments of the
 * pre-activations, phi in place, moments of the activations. Panels are as in matmul.h. */
#ifndef IC_CHAIN_H
#define IC_CHAIN_H

/* A slab's weights fit the second cache level beside a panel, and so do its outputs. */
enum { IC_SLAB_BYTES = 96 << 10, IC_SLAB_OUTPUT_BYTES = 512 << 10 };

/* Row strides that are a multiple of this put all rows of a tile into one cache set. */
enum { IC_CACHE_WAY_BYTES = 4096 };

/* Buffers begin on cache lines. */
enum { IC_LINE_BYTES = 64 };
static inline size_t chain_round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
#endif

/* Where a trial's buffers lie in its workspace, in elements. */
typedef struct {
  size_t activations; /* each of the two */
  size_t slab, bias, total;
} R(chain_layout);

/* Between panels of n features lies one line of padding: a unit's panels would otherwise be a
 * power of two apart at the usual widths, all in one cache set. */
IC_INLINE size_t R(chain_panel)(size_t n) { return 16 * (n + 1); }

/* Rows of a layer's slabs: equal ones, a multiple of the tile. */
static size_t R(chain_slab_rows)(const ic_layer *layer, size_t batch) {
  const size_t row = layer->n_in ? layer->n_in : 1, column = batch ? batch : 1;
  size_t rows = IC_SLAB_BYTES / sizeof(real) / row;
  const size_t most = IC_SLAB_OUTPUT_BYTES / sizeof(real) / column;
  if (rows > most) rows = most;
  if (rows < IC_TILE_ROWS) rows = IC_TILE_ROWS;
  const size_t slabs = (layer->n_out + rows - 1) / rows;
  if (slabs == 0) return IC_TILE_ROWS;
  return chain_round_up((layer->n_out + slabs - 1) / slabs, IC_TILE_ROWS);
}

/* Elements between the rows of a drawn slab. */
static size_t R(chain_slab_stride)(size_t n_in) {
  return n_in * sizeof(real) % IC_CACHE_WAY_BYTES ? n_in : n_in + IC_LINE_BYTES / sizeof(real);
}

static R(chain_layout) R(chain_plan)(const ic_chain *c) {
  const size_t line = IC_LINE_BYTES / sizeof(real), panels = (c->batch + 15) / 16;
  size_t widest = c->layers[0].n_in, bias = 0, slab = IC_SLAB_BYTES / sizeof(real);
  for (size_t l = 0; l < c->n_layers; l++) {
    const ic_layer *layer = c->layers + l;
    const size_t drawn = R(chain_slab_rows)(layer, c->batch) * R(chain_slab_stride)(layer->n_in);
    if (layer->n_out > widest) widest = layer->n_out;
    if (layer->has_bias && !layer->bias.data && layer->n_out > bias) bias = layer->n_out;
    if (!layer->weight.data && drawn > slab) slab = drawn;
  }
  R(chain_layout) plan = {chain_round_up(panels * R(chain_panel)(widest), line),
                          chain_round_up(slab, line), chain_round_up(bias, line), 0};
  plan.total = 2 * plan.activations + plan.slab + plan.bias;
  return plan;
}

/* Domain: at least one layer. Max error: none. Determinism: bytes that any trial of c needs. */
static size_t R(chain_workspace)(const ic_chain *c) {
  return R(chain_plan)(c).total * sizeof(real) + IC_LINE_BYTES;
}

/* The input (batch, n), into panels; drawn in runs of at most `run` elements through `scratch`. */
static void R(chain_input)(const ic_kernels *k, const ic_chain *c, uint64_t trial, real *x,
                           real *scratch, size_t run) {
  const size_t n = c->layers[0].n_in, panel = R(chain_panel)(n), rest = c->batch % 16;
  if (rest) memset(x + c->batch / 16 * panel, 0, 16 * n * sizeof(real));
  size_t drawn = 0, end = 0; /* scratch holds elements drawn ... end - 1 */
  for (size_t b = 0; b < c->batch; b++) {
    real *to = x + b / 16 * panel + b % 16;
    for (size_t j = 0; j < n;) {
      const real *from;
      size_t count = n - j;
      if (c->input.data) {
        from = (const real *)c->input.data + (ptrdiff_t)b * c->input.row_stride + j;
      } else {
        const size_t first = b * n + j;
        if (first == end) {
          const size_t left = c->batch * n - first;
          drawn = first;
          end = first + (left < run ? left : run);
          k->R(draw)(scratch, first, end - first, c->seed, c->input.stream + trial,
                     &c->input.distribution);
        }
        from = scratch + (first - drawn);
        if (count > end - first) count = end - first;
      }
      for (size_t i = 0; i < count; i++) to[16 * (j + i)] = from[i];
      j += count;
    }
  }
}

/* How many pre-activations of a block of units have |phi'| < threshold. */
static double R(chain_saturated)(const real *x, ptrdiff_t panel, int units, size_t batch,
                                 const ic_layer *layer) {
  real slope[16 * IC_UNIT_BLOCK];
  const vreal threshold = V(set)((real)layer->saturation);
  vbits count = U(set)(0);
  for (size_t b = 0; b < batch; b += 16, x += panel) {
    const vmask lanes = M(first)(batch - b < 16 ? (int)(batch - b) : 16);
    R(apply)(x, slope, (size_t)(16 * units), layer->activation, (real)layer->parameter, 1);
    for (int u = 0; u < units; u++) {
      const vmask small = V(lt)(V(abs)(V(load)(slope + 16 * u)), threshold);
      count = U(count)(count, M(and)(lanes, small));
    }
  }
  return (double)U(total)(count);
}

/* Pre-activations of `units` units to activations, with the moments of both if wanted. */
static void R(chain_finish)(const ic_layer *layer, real *x, ptrdiff_t panel, size_t units,
                            size_t batch, ic_moments *moments) {
  /* relu' is 0 exactly where relu is */
  const int saturated_are_zeros =
      layer->activation == IC_RELU && layer->saturation > 0 && layer->saturation <= 1;
  const int count_saturated = !saturated_are_zeros && layer->saturation == layer->saturation;
  for (size_t u = 0; u < units; u += IC_UNIT_BLOCK, x += 16 * IC_UNIT_BLOCK) {
    const int block = units - u < IC_UNIT_BLOCK ? (int)(units - u) : IC_UNIT_BLOCK;
    ic_merge merge;
    if (moments) {
      merge_weights(&merge, moments->count, (double)batch);
      R(moments_block)(x, 16, panel, block, batch, &merge, moments);
      if (count_saturated)
        moments[0].saturated += R(chain_saturated)(x, panel, block, batch, layer);
    }
    for (size_t b = 0; b < batch; b += 16) {
      real *at = x + (ptrdiff_t)(b / 16) * panel;
      R(apply)(at, at, (size_t)(16 * block), layer->activation, (real)layer->parameter, 0);
    }
    if (moments) R(moments_block)(x, 16, panel, block, batch, &merge, moments + 1);
  }
  if (moments && saturated_are_zeros) moments[0].saturated = moments[1].zeros;
}

/* One layer, x to y; 0 if cancelled. */
static int R(chain_layer)(const ic_kernels *k, const ic_chain *c, const ic_layer *layer,
                          uint64_t trial, const real *x, real *y, real *slab, real *bias_buffer,
                          ic_moments *moments, const volatile int32_t *cancel) {
  const size_t n_in = layer->n_in, n_out = layer->n_out, batch = c->batch;
  const size_t slab_rows = R(chain_slab_rows)(layer, batch);
  const ptrdiff_t x_panel = (ptrdiff_t)R(chain_panel)(n_in);
  const ptrdiff_t y_panel = (ptrdiff_t)R(chain_panel)(n_out);
  const real *bias = NULL;
  if (layer->has_bias) {
    bias = layer->bias.data;
    if (!bias) {
      k->R(draw)(bias_buffer, 0, n_out, c->seed, layer->bias.stream + trial,
                 &layer->bias.distribution);
      bias = bias_buffer;
    }
  }
  for (size_t o = 0; o < n_out; o += slab_rows) {
    const size_t rows = n_out - o < slab_rows ? n_out - o : slab_rows;
    const real *w = layer->weight.data;
    ptrdiff_t stride = layer->weight.row_stride;
    if (*cancel) return 0;
    if (w) {
      w += (ptrdiff_t)o * stride;
    } else {
      const ic_distribution *law = &layer->weight.distribution;
      const uint64_t stream = layer->weight.stream + trial;
      const size_t slab_stride = R(chain_slab_stride)(n_in);
      if (slab_stride == n_in)
        k->R(draw)(slab, o * n_in, rows * n_in, c->seed, stream, law);
      else
        for (size_t r = 0; r < rows; r++)
          k->R(draw)(slab + r * slab_stride, (o + r) * n_in, n_in, c->seed, stream, law);
      w = slab;
      stride = (ptrdiff_t)slab_stride;
    }
    R(multiply)(w, stride, rows, n_in, bias ? bias + o : NULL, x, x_panel, y + 16 * o, y_panel,
                (batch + 15) / 16);
    if (batch) R(chain_finish)(layer, y + 16 * o, y_panel, rows, batch, moments);
  }
  return 1;
}

/* Domain: at least one layer; any sizes, zero included; any values. batch < 2^32. Max error: one
 * rounding a fma, phi's ulps; statistics as in moments.h. Determinism: the same bits for every
 * instruction set; a drawn matrix gives what the same matrix, stored, gives. */
static int R(chain)(const ic_kernels *k, const ic_chain *c, uint64_t trial, ic_moments *moments,
                    real *y, void *workspace, const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const R(chain_layout) plan = R(chain_plan)(c);
  const uintptr_t address = (uintptr_t)workspace;
  real *x = (real *)((char *)workspace + (chain_round_up(address, IC_LINE_BYTES) - address));
  real *next = x + plan.activations;
  real *slab = next + plan.activations, *bias = slab + plan.slab;
  int finished = 1;

  R(chain_input)(k, c, trial, x, slab, plan.slab);
  for (size_t l = 0; l < c->n_layers && finished; l++) {
    const ic_layer *layer = c->layers + l;
    ic_moments *of_layer = NULL;
    if (moments) {
      of_layer = moments + 2 * l;
      memset(of_layer, 0, 2 * sizeof *of_layer);
      if (layer->saturation != layer->saturation) of_layer->saturated = layer->saturation;
    }
    finished = R(chain_layer)(k, c, layer, trial, x, next, slab, bias, of_layer, cancel);
    real *swap = x;
    x = next;
    next = swap;
  }
  if (finished && y) {
    const size_t n = c->layers[c->n_layers - 1].n_out, panel = R(chain_panel)(n);
    for (size_t b = 0; b < c->batch; b++)
      for (size_t j = 0; j < n; j++) y[b * n + j] = x[b / 16 * panel + 16 * j + b % 16];
  }
  fpmode_leave(mode);
  return finished;
}
