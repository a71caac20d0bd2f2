/* SPDX-License-Identifier: BSD-3-Clause */
/* A whole trial of a chain, first layer to last: x <- phi(x W' + b), with statistics.
 *
 * A layer goes by in slabs of W's rows. A drawn slab is an ordinary contiguous piece of its stream,
 * drawn into cache, multiplied and forgotten; a stored one is read where it lies. The slab's
 * outputs are then finished while they are hot, a block of units at a time: moments of the
 * pre-activations, phi in place, moments of the activations. Panels are as in matmul.h.
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

/* Buffers begin on cache lines. */
enum { IC_LINE_BYTES = 64 };
static inline size_t chain_round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
#endif

/* Where buffers lie in a workspace, in elements. */
typedef struct {
  size_t activations; /* each of the two */
  size_t slab, bias, total;
} R(chain_layout);

/* Between panels of n features lies one line of padding: a unit's panels would otherwise be a
 * power of two apart at the usual widths, all in one cache set. */
IC_INLINE size_t R(chain_panel)(size_t n) { return 16 * (n + 1); }

/* The most rows a slab of a layer has, a multiple of the tile. */
static size_t R(chain_slab_most)(const ic_layer *layer, size_t batch) {
  const size_t row = layer->n_in ? layer->n_in : 1, column = batch ? batch : 1;
  size_t rows = IC_SLAB_BYTES / sizeof(real) / row;
  const size_t most = IC_SLAB_OUTPUT_BYTES / sizeof(real) / column;
  if (rows > most) rows = most;
  return rows < IC_TILE_ROWS ? IC_TILE_ROWS : rows / IC_TILE_ROWS * IC_TILE_ROWS;
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
    const size_t rows = R(chain_slab_most)(layer, c->batch);
    const size_t drawn = rows * R(chain_slab_stride)(layer->n_in);
    if (layer->n_out > widest) widest = layer->n_out;
    if (layer->has_bias && !layer->bias.data && rows > bias) bias = rows;
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

static real *R(chain_aligned)(void *workspace) {
  const uintptr_t address = (uintptr_t)workspace;
  return (real *)((char *)workspace + (chain_round_up(address, IC_LINE_BYTES) - address));
}

/* The input (batch, n), into the workspace's panels; drawn in runs through its slab.
 * Domain, error and determinism: those of `chain`. */
static void R(chain_input)(const ic_kernels *k, const ic_chain *c, uint64_t trial,
                           void *workspace) {
  const size_t n = c->layers[0].n_in, panel = R(chain_panel)(n), rest = c->batch % 16;
  const R(chain_layout) plan = R(chain_plan)(c);
  real *x = R(chain_aligned)(workspace), *scratch = x + 2 * plan.activations;
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
          end = first + (left < plan.slab ? left : plan.slab);
          k->R(draw)(scratch, first, end - first, 1, 0, c->seed, c->input.stream + trial,
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

/* Pre-activations of `count` units to activations, with the moments of both if wanted: what needs
 * no order goes into moments, the rest to `units`, or into moments too if that is NULL. */
static void R(chain_finish)(const ic_layer *layer, real *x, ptrdiff_t panel, size_t count,
                            size_t batch, ic_moments *moments, ic_unit *units) {
  /* relu' is 0 exactly where relu is */
  const int saturated_are_zeros =
      layer->activation == IC_RELU && layer->saturation > 0 && layer->saturation <= 1;
  const int count_saturated = !saturated_are_zeros && layer->saturation == layer->saturation;
  ic_unit merged[2 * IC_UNIT_BLOCK];
  for (size_t u = 0; u < count; u += IC_UNIT_BLOCK, x += 16 * IC_UNIT_BLOCK) {
    const int block = count - u < IC_UNIT_BLOCK ? (int)(count - u) : IC_UNIT_BLOCK;
    ic_unit *found = units ? units + 2 * u : merged;
    if (moments) {
      R(moments_block)(x, 16, panel, block, batch, found, 2, moments);
      if (count_saturated)
        moments[0].saturated += R(chain_saturated)(x, panel, block, batch, layer);
    }
    for (size_t b = 0; b < batch; b += 16) {
      real *at = x + (ptrdiff_t)(b / 16) * panel;
      R(apply)(at, at, (size_t)(16 * block), layer->activation, (real)layer->parameter, 0);
    }
    if (moments) R(moments_block)(x, 16, panel, block, batch, found + 1, 2, moments + 1);
    if (moments && !units) merge_units(found, 2, (size_t)block, batch, moments);
  }
  if (moments && saturated_are_zeros) moments[0].saturated = moments[1].zeros;
}

/* Outputs first ... last - 1 of a layer, from the panels of `shared` to its others and, of the last
 * layer, to y if that is not NULL; 0 if cancelled. What is drawn goes through `own`. With units,
 * moments is the part of this range; without, the layer's running record.
 * Domain, error and determinism: those of `chain`. */
static int R(chain_columns)(const ic_kernels *k, const ic_chain *c, uint64_t trial, size_t l,
                            size_t first, size_t last, ic_unit *units, ic_moments *moments,
                            real *y, void *shared, void *own, const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const R(chain_layout) plan = R(chain_plan)(c);
  const ic_layer *layer = c->layers + l;
  const size_t n_in = layer->n_in, n_out = layer->n_out, batch = c->batch;
  const size_t panel = R(chain_panel)(n_out), stride = R(chain_slab_stride)(n_in);
  real *in = R(chain_aligned)(shared) + l % 2 * plan.activations;
  real *out = R(chain_aligned)(shared) + (l + 1) % 2 * plan.activations;
  real *slab = R(chain_aligned)(own) + 2 * plan.activations, *bias_slab = slab + plan.slab;
  if (moments) {
    memset(moments, 0, 2 * sizeof *moments);
    if (layer->saturation != layer->saturation) moments[0].saturated = layer->saturation;
  }

  /* equal slabs */
  const size_t most = R(chain_slab_most)(layer, batch), slabs = (last - first + most - 1) / most;
  const size_t equal = slabs ? (last - first + slabs - 1) / slabs : 0;
  const size_t slab_rows = chain_round_up(equal, IC_TILE_ROWS);
  size_t o = first;
  for (; o < last && !*cancel; o += slab_rows) {
    const size_t rows = last - o < slab_rows ? last - o : slab_rows;
    const real *w = layer->weight.data, *bias = layer->bias.data;
    ptrdiff_t w_stride = layer->weight.row_stride;
    if (w) {
      w += (ptrdiff_t)o * w_stride;
    } else {
      const size_t pieces = stride == n_in ? 1 : rows, length = rows / pieces * n_in;
      for (size_t i = 0; i < pieces; i++)
        k->R(draw)(slab + i * stride, (o + i) * n_in, length, 1, 0, c->seed,
                   layer->weight.stream + trial, &layer->weight.distribution);
      w = slab;
      w_stride = (ptrdiff_t)stride;
    }
    if (bias) {
      bias += o;
    } else if (layer->has_bias) {
      k->R(draw)(bias_slab, o, rows, 1, 0, c->seed, layer->bias.stream + trial,
                 &layer->bias.distribution);
      bias = bias_slab;
    }
    R(multiply)(w, w_stride, rows, n_in, bias, in, (ptrdiff_t)R(chain_panel)(n_in), out + 16 * o,
                (ptrdiff_t)panel, (batch + 15) / 16);
    if (batch)
      R(chain_finish)(layer, out + 16 * o, (ptrdiff_t)panel, rows, batch, moments,
                      units ? units + 2 * o : NULL);
    if (y && l + 1 == c->n_layers)
      for (size_t b = 0; b < batch; b++)
        for (size_t j = o; j < o + rows; j++)
          y[b * n_out + j] = out[b / 16 * panel + 16 * j + b % 16];
  }
  fpmode_leave(mode);
  return o >= last;
}

/* Domain: at least one layer; any sizes, zero included; any values. batch < 2^32. Max error: one
 * rounding a fma, phi's ulps; statistics as in moments.h. Determinism: the same bits for every
 * instruction set and however a layer is cut into columns; a drawn matrix gives what the same
 * matrix, stored, gives. */
static int R(chain)(const ic_kernels *k, const ic_chain *c, uint64_t trial, ic_moments *moments,
                    real *y, void *workspace, const volatile int32_t *cancel) {
  int finished = 1;
  R(chain_input)(k, c, trial, workspace);
  for (size_t l = 0; l < c->n_layers && finished; l++)
    finished = R(chain_columns)(k, c, trial, l, 0, c->layers[l].n_out, NULL,
                                moments ? moments + 2 * l : NULL, y, workspace, workspace, cancel);
  return finished;
}
