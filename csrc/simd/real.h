/* SPDX-License-Identifier: BSD-3-Clause */
/* A body written once for float32 and float64 says `real` and V(op). It is included twice: with
 * IC_REAL defined as f32 and as f64. V(add) is f32_add or f64_add, M(and) and U(and) the same on
 * masks and bits, and R(chain) is chain_f32 or chain_f64. */
#ifndef IC_REAL_H
#define IC_REAL_H
#define IC_JOIN_(x, y) x##_##y
#define IC_JOIN(x, y) IC_JOIN_(x, y)
#define IC_GLUE_(x, y) x##y
#define IC_GLUE(x, y) IC_GLUE_(x, y)
#define V(op) IC_JOIN(IC_REAL, op)
#define R(name) IC_JOIN(name, IC_REAL)
#define real IC_GLUE(IC_REAL, _scalar)
#define vreal IC_GLUE(IC_REAL, x16)
#define IC_MASK_f32 m32
#define IC_MASK_f64 m64
#define IC_BITS_f32 u32
#define IC_BITS_f64 u64
#define M(op) IC_JOIN(IC_GLUE(IC_MASK_, IC_REAL), op)
#define U(op) IC_JOIN(IC_GLUE(IC_BITS_, IC_REAL), op)
#define vmask IC_GLUE(IC_GLUE(IC_MASK_, IC_REAL), x16)
#define vbits IC_GLUE(IC_GLUE(IC_BITS_, IC_REAL), x16)
typedef float f32_scalar;
typedef double f64_scalar;
#endif
