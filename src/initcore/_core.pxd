# SPDX-License-Identifier: BSD-3-Clause
"""Declarations of csrc/initcore.h; every word of it is explained there."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "initcore.h" nogil:
    ctypedef struct ic_truncation:
        double tail[2]
        double slope[2]
        double spread, centre, offset

    ctypedef struct ic_distribution:
        int kind
        double scale, shift, low, high
        ic_truncation truncation

    ctypedef struct ic_moments:
        double count, mean, m2, abs_max, zeros, saturated, nonfinite, m3, m4, within, dead
        double overflows, cosine

    ctypedef struct ic_unit:
        double mean, m2, m3, m4

    ctypedef struct ic_source:
        const void *data
        ptrdiff_t row_stride
        ic_distribution distribution
        uint64_t stream

    ctypedef struct ic_layer:
        size_t n_in, n_out
        ic_source weight, bias
        int has_bias, activation
        double parameter, saturation
        int norm, residual
        double multiplier

    ctypedef struct ic_chain:
        uint64_t seed
        size_t batch, n_layers
        ic_source input
        const ic_layer *layers
        int backward
        ic_source output_gradient
        const ic_source *common

    ctypedef struct ic_gradients:
        void *input
        void **weights
        void **biases

    ctypedef struct ic_softmax_rows:
        size_t rows, n
        double scale, softcap
        const uint8_t *keep
        const void *bias
        const int64_t *mask_row
        size_t queries, first_row

    ctypedef struct ic_attention:
        size_t queries, keys, d_k, d_v
        double scale, softcap
        int causal
        const int64_t *heads
        const void *q
        const void *k
        const void *v
        const uint8_t *keep
        const void *bias
        ptrdiff_t mask_size, mask_query, mask_key

    ctypedef struct ic_attention_gradient:
        ic_attention heads
        const void *dout
        const void *prepared
        const int64_t *q_begin
        const int64_t *q_users
        const int64_t *k_begin
        const int64_t *k_users

    enum: IC_RMS_NORM
    enum: IC_LAYER_NORM
    enum: IC_ROW_STATISTICS
    enum: IC_KEYS, IC_ATTENTION_STATISTICS
    enum: IC_BY_SCALE, IC_LOGIT_SQUARES, IC_GRADIENT_SUMS
    enum: IC_EXACT_SUM_WORDS
    enum: IC_EXACT_SQUARE_WORDS
    enum: IC_EXACT_WORDS

    ctypedef struct ic_kernels:
        const char *isa
        void (*philox)(uint32_t *, size_t, const uint32_t *, uint64_t) noexcept nogil
        void (*draw_f32)(float *, uint64_t, size_t, size_t, uint64_t, uint64_t, uint64_t,
                         const ic_distribution *) noexcept nogil
        void (*draw_f64)(double *, uint64_t, size_t, size_t, uint64_t, uint64_t, uint64_t,
                         const ic_distribution *) noexcept nogil
        void (*draw_f16)(uint16_t *, uint64_t, size_t, size_t, uint64_t, uint64_t, uint64_t,
                         const ic_distribution *) noexcept nogil
        void (*draw_bf16)(uint16_t *, uint64_t, size_t, size_t, uint64_t, uint64_t, uint64_t,
                         const ic_distribution *) noexcept nogil
        void (*activate_f32)(const float *, float *, size_t, int, double, int) noexcept nogil
        void (*activate_f64)(const double *, double *, size_t, int, double, int) noexcept nogil
        void (*moments_f32)(const float *, size_t, size_t, ic_moments *) noexcept nogil
        void (*moments_f64)(const double *, size_t, size_t, ic_moments *) noexcept nogil
        double (*cosine_f32)(const float *, size_t, size_t, double *) noexcept nogil
        double (*cosine_f64)(const double *, size_t, size_t, double *) noexcept nogil
        int (*chain_f32)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                         ic_moments *, float *, void *, const int32_t *) noexcept nogil
        int (*chain_f64)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                         ic_moments *, double *, void *, const int32_t *) noexcept nogil
        size_t (*chain_workspace_f32)(const ic_chain *) noexcept nogil
        size_t (*chain_workspace_f64)(const ic_chain *) noexcept nogil
        void (*chain_input_f32)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                                void *) noexcept nogil
        void (*chain_input_f64)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                                void *) noexcept nogil
        void (*chain_norm_f32)(const ic_chain *, size_t, void *) noexcept nogil
        void (*chain_norm_f64)(const ic_chain *, size_t, void *) noexcept nogil
        int (*chain_columns_f32)(const ic_kernels *, const ic_chain *, uint64_t, size_t, size_t,
                                 size_t, ic_unit *, ic_moments *, float *, void *, void *,
                                 const int32_t *) noexcept nogil
        int (*chain_columns_f64)(const ic_kernels *, const ic_chain *, uint64_t, size_t, size_t,
                                 size_t, ic_unit *, ic_moments *, double *, void *, void *,
                                 const int32_t *) noexcept nogil
        void (*chain_merge)(const ic_unit *, int, size_t, size_t, const ic_moments *, size_t,
                            ic_moments *) noexcept nogil
        void (*chain_cosines_f32)(const ic_chain *, size_t, int, ic_moments *, void *,
                                  void *) noexcept nogil
        void (*chain_cosines_f64)(const ic_chain *, size_t, int, ic_moments *, void *,
                                  void *) noexcept nogil
        int (*chain_backward_f32)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                                  ic_moments *, ic_moments *, const ic_gradients *, void *,
                                  const int32_t *) noexcept nogil
        int (*chain_backward_f64)(const ic_kernels *, const ic_chain *, uint64_t, ic_moments *,
                                  ic_moments *, ic_moments *, const ic_gradients *, void *,
                                  const int32_t *) noexcept nogil
        void (*chain_output_gradient_f32)(const ic_kernels *, const ic_chain *, uint64_t,
                                          ic_moments *, const ic_gradients *, void *,
                                          void *) noexcept nogil
        void (*chain_output_gradient_f64)(const ic_kernels *, const ic_chain *, uint64_t,
                                          ic_moments *, const ic_gradients *, void *,
                                          void *) noexcept nogil
        int (*chain_backward_columns_f32)(const ic_kernels *, const ic_chain *, uint64_t, size_t,
                                          size_t, size_t, ic_unit *, ic_unit *, ic_moments *,
                                          const ic_gradients *, void *, void *,
                                          const int32_t *) noexcept nogil
        int (*chain_backward_columns_f64)(const ic_kernels *, const ic_chain *, uint64_t, size_t,
                                          size_t, size_t, ic_unit *, ic_unit *, ic_moments *,
                                          const ic_gradients *, void *, void *,
                                          const int32_t *) noexcept nogil
        void (*chain_norm_backward_f32)(const ic_chain *, size_t, ic_moments *,
                                        const ic_gradients *, void *) noexcept nogil
        void (*chain_norm_backward_f64)(const ic_chain *, size_t, ic_moments *,
                                        const ic_gradients *, void *) noexcept nogil
        int (*gram_f32)(const ic_kernels *, const ic_chain *, const uint64_t *, uint64_t,
                        ic_moments *, ic_moments *, ic_moments *, void *,
                        const int32_t *) noexcept nogil
        int (*gram_f64)(const ic_kernels *, const ic_chain *, const uint64_t *, uint64_t,
                        ic_moments *, ic_moments *, ic_moments *, void *,
                        const int32_t *) noexcept nogil
        size_t (*gram_workspace_f32)(const ic_chain *) noexcept nogil
        size_t (*gram_workspace_f64)(const ic_chain *) noexcept nogil
        void (*softmax_f32)(const float *, float *, double *,
                         const ic_softmax_rows *) noexcept nogil
        void (*softmax_f64)(const double *, double *, double *,
                         const ic_softmax_rows *) noexcept nogil
        void (*softmax_backward_f32)(const float *, const float *, float *, size_t, size_t,
                         double) noexcept nogil
        void (*softmax_backward_f64)(const double *, const double *, double *, size_t, size_t,
                                     double) noexcept nogil
        int (*attention_f32)(const ic_attention *, size_t, size_t, double *, float *, void *,
                             const int32_t *) noexcept nogil
        int (*attention_f64)(const ic_attention *, size_t, size_t, double *, double *, void *,
                             const int32_t *) noexcept nogil
        size_t (*attention_workspace_f32)(const ic_attention *) noexcept nogil
        size_t (*attention_workspace_f64)(const ic_attention *) noexcept nogil
        void (*attention_prepare_f32)(const ic_attention *, const double *, const float *,
                                      const float *, size_t, float *) noexcept nogil
        void (*attention_prepare_f64)(const ic_attention *, const double *, const double *,
                                      const double *, size_t, double *) noexcept nogil
        int (*attention_backward_f32)(const ic_attention_gradient *, int, size_t, size_t, float *,
                                      float *, double *, void *, const int32_t *) noexcept nogil
        int (*attention_backward_f64)(const ic_attention_gradient *, int, size_t, size_t, double *,
                                      double *, double *, void *, const int32_t *) noexcept nogil
        size_t (*attention_backward_workspace_f32)(const ic_attention_gradient *) noexcept nogil
        size_t (*attention_backward_workspace_f64)(const ic_attention_gradient *) noexcept nogil
        void (*exact_add)(int64_t *, const double *, size_t, size_t) noexcept nogil
        void (*exact_carry)(int64_t *, size_t) noexcept nogil

    const ic_kernels *const *ic_available()
