/* SPDX-License-Identifier: BSD-3-Clause */
/* The backward pass of a chain: from the gradient of the last activation to those of everything.
 * With x and dx of a layer's input, x^ and dx^ of its norm, h and dh of its pre-activation, layer
 * by layer from the last, dy that of the layer's output, which is dx of the layer above:
 *
 *     dh = dy * phi'(h);   dx^ = W' dh;   dW = dh x^', db = dh 1 (the batch's)
 *
 * dx is dx^ without a norm, else as in norm.h. With a residual, m phi' takes the place of phi', and
 * dx gains dy. The forward pass has left x^ and phi'(h) of every layer in the trial's workspace,
 * and what fits of the drawn weights; the others are drawn again. A layer goes by in strips of its
 * inputs, all of whose work is one thread's: dx^ sums over W's rows in ascending order, a block of
 * rows after the other; then, while hot, the moments of dx, phi', the moments of dh below (behind a
 * norm, which wants rows whole, when all of dx^ is there: chain_norm_backward). dW is the product
 * of matmul.h with the batch as k: dh row by row, x^ with lanes along the inputs. Only its sum of
 * squares stays, unless a caller wants it: of each input over ascending outputs, then over
 * ascending inputs. Where the batch is small (squares_by_traces), dW is not needed for that:
 * |dh' x^|^2 = tr(dh dh' x^ x^'), by matrices batch x batch. */
/* Units 0 ... n - 1 of x in panels to panels of units: value b of unit u to
 * to[u/16 * to_panel + b * 16 + u%16]; the lanes beyond n are 0. */
static void R(transpose_units)(const real *x, size_t panel, size_t n, size_t batch, real *to,
                               size_t to_panel) {
  for (size_t u = 0; u < n; u += 16, to += to_panel) {
    const size_t units = n - u < 16 ? n - u : 16;
    for (size_t b = 0; b < batch; b += 16) {
      const real *from = x + b / 16 * panel + 16 * u;
      const size_t values = batch - b < 16 ? batch - b : 16;
      real *out = to + 16 * b;
      if (units == 16 && values == 16) {
        for (size_t v = 0; v < 16; v++)
          for (size_t i = 0; i < 16; i++) out[16 * v + i] = from[16 * i + v];
      } else {
        for (size_t v = 0; v < values; v++)
          for (size_t i = 0; i < 16; i++) out[16 * v + i] = i < units ? from[16 * i + v] : 0;
      }
    }
  }
}

/* out[u] = the sum of unit u over the batch, in ascending order. */
static void R(sum_units)(const real *x, size_t panel, size_t n, size_t batch, real *out) {
  for (size_t u = 0; u < n; u++) out[u] = 0;
  for (size_t b = 0; b < batch; b++)
    for (size_t u = 0; u < n; u++) out[u] += x[b / 16 * panel + 16 * u + b % 16];
}

/* dx^ (of layer l's input, units first ... first + columns - 1) from dh, both in panels. */
static int R(backward_inputs)(const ic_kernels *k, const ic_chain *c, uint64_t trial, size_t l,
                              size_t first, size_t columns, const real *kept, const real *dh,
                              real *dx, real *slab, const volatile int32_t *cancel) {
  const ic_layer *layer = c->layers + l;
  const size_t n_in = layer->n_in, n_out = layer->n_out, panels = (c->batch + 15) / 16;
  const size_t panel = R(chain_panel)(n_in), stride = R(strip_stride)(columns);
  const real *stored = layer->weight.data ? (const real *)layer->weight.data : kept;
  const ptrdiff_t stored_stride =
      kept ? (ptrdiff_t)R(chain_slab_stride)(n_in) : layer->weight.row_stride;
  for (size_t p = 0; p < panels; p++)
    memset(dx + p * panel + 16 * first, 0, 16 * columns * sizeof(real));
  const size_t most = IC_SLAB_BYTES / sizeof(real) / stride / 16 * 16; /* prefetched by 16 */
  const size_t block = chain_part(n_out, most, 16);
  for (size_t o = 0; o < n_out; o += block) {
    if (*cancel) return 0;
    const size_t rows = n_out - o < block ? n_out - o : block;
    const real *from = stored ? stored + (ptrdiff_t)o * stored_stride + first : NULL;
    for (size_t r = 0; r < rows; r++) {
      real *to = slab + r * stride;
      if (stored)
        memcpy(to, from + (ptrdiff_t)r * stored_stride, columns * sizeof(real));
      else
        k->R(draw)(to, (o + r) * n_in + first, columns, 1, 0, c->seed,
                   layer->weight.stream + trial, &layer->weight.distribution);
    }
    if (stored) /* what comes next: a block or, after the last one, the next strip */
      from = o + rows < n_out ? from + (ptrdiff_t)rows * stored_stride : stored + first + columns;
    R(multiply_strip)(slab, (ptrdiff_t)stride, from, stored_stride, columns, rows, dh + 16 * o,
                      (ptrdiff_t)R(chain_panel)(n_out), dx + 16 * first, (ptrdiff_t)panel, panels);
  }
  return 1;
}

/* squares[i] += the squares of unit i of x in `panels` panels of `n` features, in ascending order.
 * Two panels at once: a lane's sum waits for itself. */
IC_INLINE void R(add_squares)(const int panels, const real *x, size_t panel, size_t n,
                              double *squares) {
  f64x16 sum[2];
#define IC_EACH(p) \
  IC_UNROLL_ALL for (int p = 0; p < 2; p++) \
    if (p < panels)
  IC_EACH(p) sum[p] = f64_load(squares + 16 * p);
  for (size_t r = 0; r < n; r++)
    IC_EACH(p) {
      const f64x16 v = IC_JOIN(f64_load, IC_REAL)(x + (size_t)p * panel + 16 * r);
      sum[p] = f64_fma(v, v, sum[p]);
    }
  IC_EACH(p) f64_store(squares + 16 * p, sum[p]);
#undef IC_EACH
}

/* Columns first ... last - 1 of dW from x and dh in panels: the sum of squares of column i to
 * squares[i - first] and dW to `out`, each if it is not NULL. */
static int R(backward_weights)(const ic_chain *c, const R(chain_layout) * plan, size_t l,
                               size_t first, size_t last, const real *x, const real *dh,
                               double *squares, real *out, real *own,
                               const volatile int32_t *cancel) {
  const size_t n_in = c->layers[l].n_in, n_out = c->layers[l].n_out, batch = c->batch;
  const size_t columns = last - first, panels = (columns + 15) / 16;
  const size_t most = R(gradient_rows)(n_in, batch), panel = R(chain_panel)(most);
  const size_t dh_panel = R(chain_panel)(n_out), x_panel = R(chain_panel)(batch);
  const size_t stride = R(chain_slab_stride)(16 * ((batch + 15) / 16));
  real *dw = own, *strip = own + plan->inputs, *rows = own + plan->rows;
  if (squares) memset(squares, 0, 16 * panels * sizeof *squares);
  R(transpose_units)(x + 16 * first, R(chain_panel)(n_in), columns, batch, strip, x_panel);
  for (size_t o = 0; o < n_out; o += most) {
    if (*cancel) return 0;
    const size_t count = n_out - o < most ? n_out - o : most;
    for (size_t b = 0; b < batch; b += 16)
      for (size_t r = 0; r < count; r++)
        V(store)(rows + r * stride + b, V(load)(dh + b / 16 * dh_panel + 16 * (o + r)));
    R(multiply)(rows, (ptrdiff_t)stride, count, batch, NULL, strip, (ptrdiff_t)x_panel, dw,
                (ptrdiff_t)panel, panels);
    size_t p = 0;
    for (; squares && p + 2 <= panels; p += 2)
      R(add_squares)(2, dw + p * panel, panel, count, squares + 16 * p);
    if (squares && p < panels) R(add_squares)(1, dw + p * panel, panel, count, squares + 16 * p);
    for (p = 0; out && p < panels; p++)
      for (size_t r = 0; r < count; r++)
        memcpy(out + (o + r) * n_in + first + 16 * p, dw + p * panel + 16 * r,
               (columns - 16 * p < 16 ? columns - 16 * p : 16) * sizeof(real));
  }
  return 1;
}

/* Where the squares of dW are summed by traces: of panel p of the batch the rows of dH dH' and X X'
 * to the square of input p * n_in / panels, if that is one of first ... last - 1; those of the
 * others are 0. Both are symmetric: of a row's panels those before its own are in the columns of
 * those. */
static int R(backward_traces)(const ic_chain *c, size_t l, size_t first, size_t last,
                              const real *x, const real *dh, double *squares, double *own,
                              const volatile int32_t *cancel) {
  const size_t n_in = c->layers[l].n_in, n_out = c->layers[l].n_out, batch = c->batch;
  const size_t panels = (batch + 15) / 16;
  double *inputs = own, *gradients = inputs + 256 * panels, *wide = gradients + 256 * panels;
  memset(squares, 0, (last - first) * sizeof *squares);
  for (size_t p = 0; p < panels; p++) {
    const size_t at = p * n_in / panels, rows = batch - 16 * p < 16 ? batch - 16 * p : 16;
    if (at < first || at >= last) continue;
    if (*cancel) return 0;
    memset(own, 0, 512 * panels * sizeof *own);
    R(multiply_self)(x, R(chain_panel)(n_in), n_in, batch, p, p + 1, inputs, 256, wide);
    R(multiply_self)(dh, R(chain_panel)(n_out), n_out, batch, p, p + 1, gradients, 256, wide);
    f64x16 sum = f64_zero();
    for (size_t q = panels - p; q-- > 0;) {
      const m64x16 lanes = m64_first(batch - 16 * (p + q) < 16 ? (int)(batch - 16 * (p + q)) : 16);
      if (q == 0) sum = f64_add(sum, sum);
      for (size_t r = 256 * q; r < 256 * q + 16 * rows; r += 16) {
        const f64x16 added = f64_fma(f64_load(gradients + r), f64_load(inputs + r), sum);
        sum = f64_select(lanes, added, sum);
      }
    }
    squares[at - first] = f64_fold_add(sum);
  }
  return 1;
}

/* The gradient of state l; with residual layers, those of two states in turn. */
static real *R(gradient_by_state)(const R(chain_layout) * plan, void *shared, size_t l) {
  return R(chain_aligned)(shared) + (l % 2 ? plan->aside : plan->before);
}

/* Adds what passes layer l's branch by, the gradient of its outputs first ... last - 1, to that of
 * its inputs. */
static void R(backward_skip)(const ic_chain *c, const R(chain_layout) * plan, size_t l,
                             size_t first, size_t last, void *shared) {
  R(panel_add)(R(gradient_by_state)(plan, shared, l), R(gradient_by_state)(plan, shared, l + 1),
               R(chain_panel)(c->layers[l].n_in), (c->batch + 15) / 16, first, last);
}

/* The gradient of state l, there in panels, units first ... last - 1: its moments, times phi' of
 * the layer below, the moments of that, and the bias's gradient. */
static void R(backward_finish)(const ic_chain *c, const R(chain_layout) * plan, size_t l,
                               size_t first, size_t last, ic_unit *units, ic_moments *moments,
                               const ic_gradients *out, void *shared) {
  const ic_layer *below = c->layers + (l - 1);
  const size_t panel = R(chain_panel)(below->n_out);
  const real *by_x = R(gradient_by_state)(plan, shared, l) + 16 * first;
  real *at = R(chain_gradient)(plan, shared, l) + 16 * first;
  real *slope = R(chain_slope)(c, plan, shared, l) + 16 * first;
  if (c->batch)
    R(chain_finish)(below, 1, by_x, NULL, at, slope, (ptrdiff_t)panel, last - first, c->batch,
                    moments, units);
  if (out && out->biases && out->biases[l - 1])
    R(sum_units)(at, panel, last - first, c->batch, (real *)out->biases[l - 1] + first);
}

/* `chain_output_gradient`, given the plan. */
static void R(backward_top)(const ic_kernels *k, const ic_chain *c, const R(chain_layout) * plan,
                            uint64_t trial, ic_moments *moments, const ic_gradients *out,
                            void *shared, void *own) {
  const ic_fpmode mode = fpmode_enter();
  const size_t l = c->n_layers, n = c->layers[l - 1].n_out;
  if (moments) memset(moments, 0, 2 * sizeof *moments);
  R(chain_fill)(k, c, &c->output_gradient, trial, n, R(gradient_by_state)(plan, shared, l),
                R(chain_aligned)(own));
  R(backward_finish)(c, plan, l, 0, n, NULL, moments, out, shared);
  fpmode_leave(mode);
}

/* `chain_backward_columns`, given the plan; without units, moments and weight are running records,
 * of the layer below and of this one's weight. */
static int R(backward_range)(const ic_kernels *k, const ic_chain *c, const R(chain_layout) * plan,
                             uint64_t trial, size_t l, size_t first, size_t last, ic_unit *units,
                             ic_unit *weight_units, ic_moments *moments, ic_moments *weight,
                             const ic_gradients *out, void *shared, void *own,
                             const volatile int32_t *cancel) {
  const ic_fpmode mode = fpmode_enter();
  const ic_layer *layer = c->layers + l;
  const real *x = R(chain_state)(c, plan, shared, l), *dh = R(chain_gradient)(plan, shared, l + 1);
  const real *kept = R(chain_kept)(c, plan, shared, l);
  real *dx = R(gradient_by_state)(plan, shared, l), *slab = R(chain_aligned)(own);
  real *d_input = out && l == 0 ? (real *)out->input : NULL;
  real *d_weight = out && out->weights ? (real *)out->weights[l] : NULL;
  if (moments) memset(moments, 0, 2 * sizeof *moments);
  if (weight) memset(weight, 0, sizeof *weight);
  int finished = 1;
  const size_t strip = chain_part(last - first, R(strip_columns)(c->batch), 16);
  for (size_t i = first; i < last && (l || d_input) && finished; i += strip) {
    const size_t columns = last - i < strip ? last - i : strip;
    finished = R(backward_inputs)(k, c, trial, l, i, columns, kept, dh, dx, slab, cancel);
    if (!finished || layer->norm) continue;
    if (layer->residual) R(backward_skip)(c, plan, l, i, i + columns, shared);
    if (l)
      R(backward_finish)(c, plan, l, i, i + columns, units ? units + 2 * i : NULL, moments, out,
                         shared);
  }
  if (finished && d_input && !layer->norm)
    R(chain_copy)(dx, R(chain_panel)(layer->n_in), c->batch, first, last, d_input, layer->n_in);
  const int counted = weight || weight_units, by_traces = R(squares_by_traces)(c, l);
  double *squares = (double *)(void *)(slab + plan->squares);
  if (finished && (d_weight || (counted && !by_traces)))
    finished = R(backward_weights)(c, plan, l, first, last, x, dh, by_traces ? NULL : squares,
                                   d_weight, slab, cancel);
  if (finished && counted && by_traces)
    finished = R(backward_traces)(c, l, first, last, x, dh, squares, (double *)(void *)slab,
                                  cancel);
  if (finished && counted) {
    for (size_t i = first; i < last; i += IC_UNIT_BLOCK) {
      const size_t count = last - i < IC_UNIT_BLOCK ? last - i : IC_UNIT_BLOCK;
      ic_unit block[IC_UNIT_BLOCK];
      for (size_t j = 0; j < count; j++) block[j] = (ic_unit){0, squares[i - first + j], 0, 0};
      if (weight_units) memcpy(weight_units + i, block, count * sizeof *block);
      if (weight && layer->n_out) merge_units(block, 1, count, layer->n_out, weight);
    }
    if (weight) clip_square(weight);
  }
  fpmode_leave(mode);
  return finished;
}

/* `chain_norm_backward`, given the plan. */
static void R(backward_norm)(const ic_chain *c, const R(chain_layout) * plan, size_t l,
                             ic_moments *moments, const ic_gradients *out, void *shared) {
  const ic_layer *layer = c->layers + l;
  const size_t n = layer->n_in, panel = R(chain_panel)(n);
  real *dx = R(gradient_by_state)(plan, shared, l);
  real *d_input = out && l == 0 ? (real *)out->input : NULL;
  if (!layer->norm || (l == 0 && !d_input)) return;
  const ic_fpmode mode = fpmode_enter();
  R(norm_backward)(layer->norm, R(chain_state)(c, plan, shared, l),
                   R(chain_factors)(c, plan, shared, l), dx, panel, n, c->batch);
  if (layer->residual) R(backward_skip)(c, plan, l, 0, n, shared);
  if (d_input) R(chain_copy)(dx, panel, c->batch, 0, n, d_input, n);
  if (moments) memset(moments, 0, 2 * sizeof *moments);
  if (l) R(backward_finish)(c, plan, l, 0, n, NULL, moments, out, shared);
  fpmode_leave(mode);
}

/* The gradient of the last activation, and of its pre-activation; into moments (2) if that is not
 * NULL. Domain, error and determinism: those of `chain_backward`. */
static void R(chain_output_gradient)(const ic_kernels *k, const ic_chain *c, uint64_t trial,
                                     ic_moments *moments, const ic_gradients *out, void *shared,
                                     void *own) {
  const R(chain_layout) plan = R(chain_plan)(c);
  R(backward_top)(k, c, &plan, trial, moments, out, shared, own);
}

/* Inputs first ... last - 1 of layer l: their gradient, that of the pre-activations below, and
 * their columns of the weight's; 0 if cancelled.
 * Domain, error and determinism: those of `chain_backward`. */
static int R(chain_backward_columns)(const ic_kernels *k, const ic_chain *c, uint64_t trial,
                                     size_t l, size_t first, size_t last, ic_unit *units,
                                     ic_unit *weight_units, ic_moments *part,
                                     const ic_gradients *out, void *shared, void *own,
                                     const volatile int32_t *cancel) {
  const R(chain_layout) plan = R(chain_plan)(c);
  return R(backward_range)(k, c, &plan, trial, l, first, last, units, weight_units, part, NULL,
                           out, shared, own, cancel);
}

/* Of a layer l with a norm, whose columns have left dx^: the gradient of its inputs, and that of
 * the pre-activations below, with the moments (2) of both if that is not NULL. Nothing without a
 * norm. Domain, error and determinism: those of `chain_backward`. */
static void R(chain_norm_backward)(const ic_chain *c, size_t l, ic_moments *moments,
                                   const ic_gradients *out, void *shared) {
  const R(chain_layout) plan = R(chain_plan)(c);
  R(backward_norm)(c, &plan, l, moments, out, shared);
}

/* Domain: that of `chain`. Max error: one rounding a fma and one for each of dh, norm and sum with
 * dy, phi's and phi' ulps; statistics as in moments.h, sums of squares those of float64, by
 * traces n roundings of |dh|^2 |x^|^2, n the larger width, whose float64 rows of norm below 2^-511
 * count as zero, above 2^511 as infinite. Determinism: the same bits for every
 * instruction set, however a layer is cut into columns, and whichever weights are kept. */
static int R(chain_backward)(const ic_kernels *k, const ic_chain *c, uint64_t trial,
                             ic_moments *input, ic_moments *moments, ic_moments *gradients,
                             const ic_gradients *out, void *workspace,
                             const volatile int32_t *cancel) {
  const R(chain_layout) plan = R(chain_plan)(c);
  if (!R(chain)(k, c, trial, input, moments, NULL, workspace, cancel)) return 0;
  ic_moments *top = gradients ? gradients + 3 * (c->n_layers - 1) : NULL;
  R(backward_top)(k, c, &plan, trial, top, out, workspace, workspace);
  if (top) R(chain_cosines)(c, c->n_layers - 1, 1, top, workspace, workspace);
  int finished = 1;
  for (size_t l = c->n_layers; l-- > 0 && finished;) {
    ic_moments *here = gradients ? gradients + 3 * l : NULL;
    finished = R(backward_range)(k, c, &plan, trial, l, 0, c->layers[l].n_in, NULL, NULL,
                                 here && l ? here - 3 : NULL, here ? here + 2 : NULL, out,
                                 workspace, workspace, cancel);
    if (finished) R(backward_norm)(c, &plan, l, here && l ? here - 3 : NULL, out, workspace);
    if (finished && here && l) R(chain_cosines)(c, l - 1, 1, here - 3, workspace, workspace);
  }
  return finished;
}
