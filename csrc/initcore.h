/* SPDX-License-Identifier: BSD-3-Clause */
/* All that the bindings may call: one struct of kernel pointers for each instruction set.
 *
 * Law of every kernel: pointers, counts and strides in, results out. Nothing is allocated, no
 * global is written, nothing can fail; Python has checked every argument. A kernel that may run
 * long polls `cancel` and returns whether it finished. Arrays are native-endian, aligned to their
 * type and C-contiguous unless a stride is given, in elements. The same bits come out of every
 * instruction set, and none depends on how the work is cut up. */
#ifndef INITCORE_H
#define INITCORE_H

#include <stddef.h>
#include <stdint.h>

/* A standard normal on (a, b), as its inverse CDF at u wants it. y = Phi(x) - 1/2 is
 * spread (u - 1/2) + centre. The tail nearer to x is tail[i] + slope[i] min(u, 1 - u), i = 0 for
 * u < 1/2, else 1, in a unit that makes it representable; offset is -2 ln(unit). */
typedef struct {
  double tail[2], slope[2], spread, centre, offset;
} ic_truncation;

/* How the words of a stream become values: fma(unit, scale, shift), with `unit` uniform on (-1, 1),
 * standard normal, or that truncated; scale and shift are rounded once to the dtype (float32 for
 * the halves, whose value is then rounded once more). */
enum { IC_CONSTANT = 0, IC_UNIFORM = 1, IC_NORMAL = 2, IC_TRUNCATED_NORMAL = 3 };
typedef struct {
  int kind;
  double scale, shift; /* a constant's value is `shift` */
  double low, high;    /* uniform, truncated normal: the least and largest value, both reachable, in
                          the dtype (of the output: a half has halves) */
  ic_truncation truncation;
} ic_distribution;

enum {
  IC_LINEAR, IC_RELU, IC_LEAKY_RELU, IC_TANH, IC_SIGMOID, IC_ELU, IC_SELU, IC_GELU, IC_GELU_TANH,
  IC_SILU, IC_MISH, IC_SOFTPLUS, IC_SOFTSIGN, IC_ERF, IC_SIN, IC_HARDTANH, IC_HARDSWISH, IC_RELU2,
  IC_ACTIVATIONS
};

/* A running record of moments over units merged in index order. */
typedef struct {
  double count, mean;
  double m2;        /* sum of squared deviations from the mean */
  double abs_max;   /* largest |x|, NaN left out */
  double zeros, saturated, nonfinite; /* counts; saturated is NaN where phi' has no finite bound */
  double m3, m4;    /* sums of third and fourth powers of deviations from the mean */
  double within;    /* sum of squared deviations from the mean of the unit */
  double dead;      /* count of the values of units that are zero for the whole batch */
  double overflows; /* count of the values that are infinite in float16 */
  double cosine;    /* mean cosine of two rows of a layer's batch; 0 where it has not been taken */
} ic_moments;

/* What a unit (an output over the batch) brings to a merge; m2, m3 and m4 as above. */
typedef struct {
  double mean, m2, m3, m4;
} ic_unit;

/* Where a matrix (rows, columns) comes from: stored, or drawn row by row and never stored. */
typedef struct {
  const void *data;     /* stored: rows `row_stride` elements apart; NULL: drawn */
  ptrdiff_t row_stride;
  ic_distribution distribution;
  uint64_t stream;      /* of trial 0; trial t draws from stream + t */
} ic_source;

/* x <- phi(h) or, with `residual`, x + m phi(h); h = x^ W' + b, x^ (batch, n_in) the norm of x (see
 * norm.h), W (n_out, n_in), b (n_out). */
enum { IC_NO_NORM, IC_RMS_NORM, IC_LAYER_NORM };
typedef struct {
  size_t n_in, n_out;     /* equal with `residual`, positive with a norm */
  ic_source weight, bias;
  int has_bias;
  int activation;
  double parameter;  /* slope of leaky_relu, alpha of elu */
  double saturation; /* |phi'| below this counts as saturated; NaN: not counted */
  int norm, residual;
  double multiplier; /* m, which is 0 exactly: x <- x, whatever phi(h) is */
} ic_layer;

typedef struct {
  uint64_t seed;
  size_t batch, n_layers;
  ic_source input; /* (batch, layers[0].n_in) */
  const ic_layer *layers;
  int backward; /* the forward pass keeps what a backward pass needs */
  ic_source output_gradient; /* if backward: of the last activation, (batch, n_out) */
  const ic_source *common; /* a drawn row (layers[0].n_in) that is added to every row of the input;
                              NULL: none */
} ic_chain;

/* Where gradients go, C-contiguous arrays of the chain's dtype; NULL where one is not wanted. */
typedef struct {
  void *input;    /* (batch, layers[0].n_in) */
  void **weights; /* of each layer (n_out, n_in) */
  void **biases;  /* of each layer (n_out) */
} ic_gradients;

/* What a block of softmax rows needs beside its logits. */
typedef struct {
  size_t rows, n;
  double scale, softcap;   /* softcap 0: none; else logits become softcap tanh(scale z / softcap) */
  const uint8_t *keep;     /* boolean mask (m, n), non-zero takes part; NULL: none */
  const void *bias;        /* additive mask (m, n) of the logits' dtype; NULL: none */
  const int64_t *mask_row; /* the mask row of each row; NULL only where there is no mask */
  size_t queries;          /* 0: not causal; else row r is query (first_row + r) % queries and */
  size_t first_row;        /* sees keys up to query + n - queries */
} ic_softmax_rows;
enum { IC_LSE, IC_MAX_PROB, IC_ENTROPY, IC_SUM_SQ, IC_JACOBIAN_NORM, IC_ROW_STATISTICS };

/* Attention of heads: q (., queries, d_k), k (., keys, d_k), v (., keys, d_v) or NULL. */
typedef struct {
  size_t queries, keys, d_k, d_v;
  double scale, softcap;   /* as of softmax */
  int causal;              /* query i sees keys up to i + keys - queries */
  const int64_t *heads;    /* (heads, 3): which matrix of q, of k and v, of the mask a head has */
  const void *q, *k, *v;
  const uint8_t *keep;     /* boolean mask, non-zero takes part; NULL: none */
  const void *bias;        /* additive mask of the dtype; NULL: none */
  ptrdiff_t mask_size, mask_query, mask_key; /* elements between matrices, queries, keys of it */
} ic_attention;
/* Its backward pass. Matrix m of q is used by the heads q_users[q_begin[m]] ...
 * q_users[q_begin[m + 1] - 1], of k likewise. */
typedef struct {
  ic_attention heads;
  const void *dout;        /* (heads, queries, d_v) */
  const void *prepared;    /* (heads, queries, 3), by attention_prepare */
  const int64_t *q_begin, *q_users, *k_begin, *k_users;
} ic_attention_gradient;
enum {
  IC_LOGIT_MEAN = IC_ROW_STATISTICS, IC_LOGIT_VAR, IC_LOGIT_MAX, IC_KEYS, IC_ATTENTION_STATISTICS
};
/* Of a row of q's gradients: by the scale, and the sum of squares of those by scale q k'. */
enum { IC_BY_SCALE, IC_LOGIT_SQUARES, IC_GRADIENT_SUMS };

/* Exact sums of doubles and of their squares: integers in 32-bit digits held in 64-bit words. */
enum {
  IC_EXACT_SUM_WORDS = 68,     /* unit 2^-1074 */
  IC_EXACT_SQUARE_WORDS = 136, /* unit 2^-2148 */
  IC_EXACT_WORDS = 3 + IC_EXACT_SUM_WORDS + IC_EXACT_SQUARE_WORDS
};
/* int64 layout: [0] count of finite values, [1] count of non-finite ones, [2] additions since the
 * digits were last carried, then the digits of the sum and of the sum of squares, least first. */

typedef struct ic_kernels ic_kernels;
struct ic_kernels {
  const char *isa;

  /* sampling */
  void (*philox)(uint32_t *out, size_t blocks, const uint32_t counter[4], uint64_t key);
  /* out (rows, n): row r is elements first + r stride ... first + r stride + n - 1 of the stream;
   * float16 and bfloat16 are written as their bits */
  void (*draw_f32)(float *out, uint64_t first, size_t n, size_t rows, uint64_t stride,
                   uint64_t seed, uint64_t stream, const ic_distribution *);
  void (*draw_f64)(double *out, uint64_t first, size_t n, size_t rows, uint64_t stride,
                   uint64_t seed, uint64_t stream, const ic_distribution *);
  void (*draw_f16)(uint16_t *out, uint64_t first, size_t n, size_t rows, uint64_t stride,
                   uint64_t seed, uint64_t stream, const ic_distribution *);
  void (*draw_bf16)(uint16_t *out, uint64_t first, size_t n, size_t rows, uint64_t stride,
                    uint64_t seed, uint64_t stream, const ic_distribution *);

  /* dense */
  void (*activate_f32)(const float *x, float *out, size_t n, int activation, double parameter,
                       int derivative);
  void (*activate_f64)(const double *x, double *out, size_t n, int activation, double parameter,
                       int derivative);
  void (*moments_f32)(const float *x, size_t units, size_t batch, ic_moments *);
  void (*moments_f64)(const double *x, size_t units, size_t batch, ic_moments *);
  /* The mean cosine of two rows of a batch; x ((batch + 15) / 16, units, 16), scales as many doubles
   * as a unit has. */
  double (*cosine_f32)(const float *x, size_t units, size_t batch, double *scales);
  double (*cosine_f64)(const double *x, size_t units, size_t batch, double *scales);
  /* One trial. input: moments of the input, or NULL; moments: (n_layers, 2), pre-activation then
   * activation, or NULL; y: the last activation (batch, n_out) or NULL; workspace:
   * chain_workspace bytes at any address. */
  int (*chain_f32)(const ic_kernels *, const ic_chain *, uint64_t trial, ic_moments *input,
                   ic_moments *moments, float *y, void *workspace, const volatile int32_t *cancel);
  int (*chain_f64)(const ic_kernels *, const ic_chain *, uint64_t trial, ic_moments *input,
                   ic_moments *moments, double *y, void *workspace,
                   const volatile int32_t *cancel);
  size_t (*chain_workspace_f32)(const ic_chain *);
  size_t (*chain_workspace_f64)(const ic_chain *);
  /* One trial in pieces, for several threads: chain_input; then of each layer, before the next,
   * chain_norm, chain_columns over ranges of its outputs that cover them, and chain_merge into the
   * zeroed moments (2) of the layer. `shared` is the trial's workspace, `own` the thread's, perhaps
   * the same; units (n_out, 2) of the layer; part (2) of the range, NULL for no statistics; then
   * chain_cosines into the same moments, before the next layer.
   * chain_merge: units (n, states) of `batch` values each, parts (n_parts, states). */
  void (*chain_input_f32)(const ic_kernels *, const ic_chain *, uint64_t trial,
                          ic_moments *, void *shared);
  void (*chain_input_f64)(const ic_kernels *, const ic_chain *, uint64_t trial,
                          ic_moments *, void *shared);
  void (*chain_norm_f32)(const ic_chain *, size_t layer, void *shared);
  void (*chain_norm_f64)(const ic_chain *, size_t layer, void *shared);
  int (*chain_columns_f32)(const ic_kernels *, const ic_chain *, uint64_t trial, size_t layer,
                           size_t first, size_t last, ic_unit *units, ic_moments *part, float *y,
                           void *shared, void *own, const volatile int32_t *cancel);
  int (*chain_columns_f64)(const ic_kernels *, const ic_chain *, uint64_t trial, size_t layer,
                           size_t first, size_t last, ic_unit *units, ic_moments *part, double *y,
                           void *shared, void *own, const volatile int32_t *cancel);
  void (*chain_merge)(const ic_unit *units, int states, size_t n, size_t batch,
                      const ic_moments *parts, size_t n_parts, ic_moments *);
  /* The cosines of layer `layer`, into moments (2): of its pre-activation and activation or, if
   * `gradient`, of the gradients by activation and pre-activation. */
  void (*chain_cosines_f32)(const ic_chain *, size_t layer, int gradient, ic_moments *moments,
                            void *shared, void *own);
  void (*chain_cosines_f64)(const ic_chain *, size_t layer, int gradient, ic_moments *moments,
                            void *shared, void *own);
  /* One trial forward and backward, of a chain with `backward` set. gradients: (n_layers, 3), with
   * respect to activation, pre-activation and weight, or NULL; of the weight's only count and m2,
   * here the sum of squares about 0. */
  int (*chain_backward_f32)(const ic_kernels *, const ic_chain *, uint64_t trial,
                            ic_moments *input, ic_moments *moments, ic_moments *gradients,
                            const ic_gradients *, void *workspace, const volatile int32_t *cancel);
  int (*chain_backward_f64)(const ic_kernels *, const ic_chain *, uint64_t trial,
                            ic_moments *input, ic_moments *moments, ic_moments *gradients,
                            const ic_gradients *, void *workspace, const volatile int32_t *cancel);
  /* The backward pass in pieces, after the forward one's: chain_output_gradient, into the moments
   * (2) of the last layer's activation and pre-activation; then of each layer, from the last one,
   * chain_backward_columns over ranges of its inputs that cover them, and chain_merge twice: units
   * (n_in, 2) and parts (2) into the two of the layer below, and weight_units (n_in), each of n_out
   * values, into the weight's; then chain_norm_backward, which does in a layer with a norm all that
   * concerns the layer below, units and parts meaning nothing; and chain_cosines after
   * chain_output_gradient and into the two of each layer below. NULL for no statistics; layer 0 has
   * no layer below. */
  void (*chain_output_gradient_f32)(const ic_kernels *, const ic_chain *, uint64_t trial,
                                    ic_moments *, const ic_gradients *, void *shared, void *own);
  void (*chain_output_gradient_f64)(const ic_kernels *, const ic_chain *, uint64_t trial,
                                    ic_moments *, const ic_gradients *, void *shared, void *own);
  int (*chain_backward_columns_f32)(const ic_kernels *, const ic_chain *, uint64_t trial,
                                    size_t layer, size_t first, size_t last, ic_unit *units,
                                    ic_unit *weight_units, ic_moments *part, const ic_gradients *,
                                    void *shared, void *own, const volatile int32_t *cancel);
  int (*chain_backward_columns_f64)(const ic_kernels *, const ic_chain *, uint64_t trial,
                                    size_t layer, size_t first, size_t last, ic_unit *units,
                                    ic_unit *weight_units, ic_moments *part, const ic_gradients *,
                                    void *shared, void *own, const volatile int32_t *cancel);
  void (*chain_norm_backward_f32)(const ic_chain *, size_t layer, ic_moments *,
                                  const ic_gradients *, void *shared);
  void (*chain_norm_backward_f64)(const ic_chain *, size_t layer, ic_moments *,
                                  const ic_gradients *, void *shared);
  /* One trial of a chain with Gaussian weights, none of them drawn: those of layer l are normal of
   * mean 0, and weight.stream and gradient_streams[l] are what it draws from instead; biases are
   * normal or constant. moments and gradients as of chain_backward, gradients (which may be NULL)
   * only of a chain with `backward` set; workspace: gram_workspace bytes at any address. */
  int (*gram_f32)(const ic_kernels *, const ic_chain *, const uint64_t *gradient_streams,
                  uint64_t trial, ic_moments *input, ic_moments *moments, ic_moments *gradients,
                  void *workspace, const volatile int32_t *cancel);
  int (*gram_f64)(const ic_kernels *, const ic_chain *, const uint64_t *gradient_streams,
                  uint64_t trial, ic_moments *input, ic_moments *moments, ic_moments *gradients,
                  void *workspace, const volatile int32_t *cancel);
  size_t (*gram_workspace_f32)(const ic_chain *);
  size_t (*gram_workspace_f64)(const ic_chain *);
  /* p (rows, n) or NULL, may be z itself; statistics (rows, IC_ROW_STATISTICS) or NULL */
  void (*softmax_f32)(const float *z, float *p, double *statistics, const ic_softmax_rows *);
  void (*softmax_f64)(const double *z, double *p, double *statistics, const ic_softmax_rows *);
  void (*softmax_backward_f32)(const float *p, const float *dp, float *dz, size_t rows, size_t n,
                               double scale);
  void (*softmax_backward_f64)(const double *p, const double *dp, double *dz, size_t rows,
                               size_t n, double scale);
  /* Rows first ... last - 1 of all, row head queries + query: statistics (of those rows,
   * IC_ATTENTION_STATISTICS) and output (of those rows, d_v) or NULL. workspace:
   * attention_workspace bytes at any address. */
  int (*attention_f32)(const ic_attention *, size_t first, size_t last, double *statistics,
                       float *output, void *workspace, const volatile int32_t *cancel);
  int (*attention_f64)(const ic_attention *, size_t first, size_t last, double *statistics,
                       double *output, void *workspace, const volatile int32_t *cancel);
  size_t (*attention_workspace_f32)(const ic_attention *);
  size_t (*attention_workspace_f64)(const ic_attention *);
  /* From statistics, output and dout of rows, what the next wants of them: prepared (rows, 3). */
  void (*attention_prepare_f32)(const ic_attention *, const double *statistics, const float *output,
                                const float *dout, size_t rows, float *prepared);
  void (*attention_prepare_f64)(const ic_attention *, const double *statistics,
                                const double *output, const double *dout, size_t rows,
                                double *prepared);
  /* dx (of those rows, d_k) and sums (of those rows, IC_GRADIENT_SUMS), for rows matrix queries +
   * query of q; with keys_are_lanes dx and dv (of those rows, d_v) for rows of k. The other is
   * NULL. */
  int (*attention_backward_f32)(const ic_attention_gradient *, int keys_are_lanes, size_t first,
                                size_t last, float *dx, float *dv, double *sums, void *workspace,
                                const volatile int32_t *cancel);
  int (*attention_backward_f64)(const ic_attention_gradient *, int keys_are_lanes, size_t first,
                                size_t last, double *dx, double *dv, double *sums,
                                void *workspace, const volatile int32_t *cancel);
  size_t (*attention_backward_workspace_f32)(const ic_attention_gradient *);
  size_t (*attention_backward_workspace_f64)(const ic_attention_gradient *);
  /* x (t, m) added to m accumulators of IC_EXACT_WORDS; exact_carry makes digits canonical */
  void (*exact_add)(int64_t *accumulators, const double *x, size_t t, size_t m);
  void (*exact_carry)(int64_t *accumulators, size_t m);
};

/* The kernels this CPU can run, best first; ends with NULL. The portable ones are always there. */
const ic_kernels *const *ic_available(void);

#endif
