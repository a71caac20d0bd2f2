/* SPDX-License-Identifier: BSD-3-Clause */
/* Compiles one half of the kernels (IC_SAMPLING or IC_DENSE) with the vocabulary included before
 * and fills that half of the struct. Two halves because gcc's scheduling flags that speed up
 * sampling make the matrix product spill (setup.py has the flags of each). */
#include "simd/fpmode.h"
#include "simd/real.h"
#include "initcore.h"

#include <float.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "the same bits everywhere need IEEE arithmetic: build without -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "float must be evaluated as float, not in x87 registers");

#define IC_FILL_(half, isa) ic_fill_##half##_##isa
#define IC_FILL(half, isa) IC_FILL_(half, isa)

#if defined(IC_SAMPLING)

#include "philox.h"
#include "sampling.h"

void IC_FILL(sampling, IC_ISA)(ic_kernels *k);
void IC_FILL(sampling, IC_ISA)(ic_kernels *k) {
  k->philox = philox;
  k->draw_f32 = draw_f32;
  k->draw_f64 = draw_f64;
  k->draw_f16 = draw_f16;
  k->draw_bf16 = draw_bf16;
}

#elif defined(IC_DENSE)

#include "exact_sum.h"
#include "simd/elementary.h"
#define IC_REAL f64
#include "activations.h"
#include "moments.h"
#include "matmul.h"
#include "norm.h"
#include "chain.h"
#include "backward.h"
#include "gram_single.h"
#include "gram.h"
#include "softmax.h"
#include "attention.h"
#undef IC_REAL
#define IC_REAL f32
#include "activations.h"
#include "moments.h"
#include "matmul.h"
#include "norm.h"
#include "chain.h"
#include "backward.h"
#include "gram_single.h"
#include "gram.h"
#include "softmax.h"
#include "attention.h"
#undef IC_REAL

void IC_FILL(dense, IC_ISA)(ic_kernels *k);
void IC_FILL(dense, IC_ISA)(ic_kernels *k) {
  k->activate_f32 = activate_f32;
  k->activate_f64 = activate_f64;
  k->moments_f32 = moments_f32;
  k->moments_f64 = moments_f64;
  k->cosine_f32 = cosine_f32;
  k->cosine_f64 = cosine_f64;
  k->chain_f32 = chain_f32;
  k->chain_f64 = chain_f64;
  k->chain_workspace_f32 = chain_workspace_f32;
  k->chain_workspace_f64 = chain_workspace_f64;
  k->chain_input_f32 = chain_input_f32;
  k->chain_input_f64 = chain_input_f64;
  k->chain_norm_f32 = chain_norm_f32;
  k->chain_norm_f64 = chain_norm_f64;
  k->chain_columns_f32 = chain_columns_f32;
  k->chain_columns_f64 = chain_columns_f64;
  k->chain_merge = chain_merge;
  k->chain_cosines_f32 = chain_cosines_f32;
  k->chain_cosines_f64 = chain_cosines_f64;
  k->chain_backward_f32 = chain_backward_f32;
  k->chain_backward_f64 = chain_backward_f64;
  k->chain_output_gradient_f32 = chain_output_gradient_f32;
  k->chain_output_gradient_f64 = chain_output_gradient_f64;
  k->chain_backward_columns_f32 = chain_backward_columns_f32;
  k->chain_backward_columns_f64 = chain_backward_columns_f64;
  k->chain_norm_backward_f32 = chain_norm_backward_f32;
  k->chain_norm_backward_f64 = chain_norm_backward_f64;
  k->gram_f32 = gram_f32;
  k->gram_f64 = gram_f64;
  k->gram_workspace_f32 = gram_workspace_f32;
  k->gram_workspace_f64 = gram_workspace_f64;
  k->softmax_f32 = softmax_f32;
  k->softmax_f64 = softmax_f64;
  k->softmax_backward_f32 = softmax_backward_f32;
  k->softmax_backward_f64 = softmax_backward_f64;
  k->attention_f32 = attention_f32;
  k->attention_f64 = attention_f64;
  k->attention_workspace_f32 = attention_workspace_f32;
  k->attention_workspace_f64 = attention_workspace_f64;
  k->attention_prepare_f32 = attention_prepare_f32;
  k->attention_prepare_f64 = attention_prepare_f64;
  k->attention_backward_f32 = attention_backward_f32;
  k->attention_backward_f64 = attention_backward_f64;
  k->attention_backward_workspace_f32 = attention_backward_workspace_f32;
  k->attention_backward_workspace_f64 = attention_backward_workspace_f64;
  k->exact_add = exact_add;
  k->exact_carry = exact_carry;
}

#else
#error "kernels.h: define IC_SAMPLING or IC_DENSE before including it"
#endif
