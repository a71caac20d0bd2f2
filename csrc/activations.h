/* SPDX-License-Identifier: BSD-3-Clause */
/* The activations phi and their derivatives, elementwise.
 *
 * Sigmoid-like functions are written in t = exp(-|x|) (of what they take the exponential of), so
 * that nothing overflows, and have one form for each sign of x. The form of negative x, where phi
 * decays, keeps its factor t as T = t 2^tail_shift (exp_tail) to the last: products with x are then
 * rounded once where they become denormal. Arguments are bounded (`R(bounded)`) where the result
 * has long been 0, or x, or 1, to keep T among the normal numbers and inf out of products with 0.
 * At kinks the derivative is that from the left, but 0 or 1 where hardtanh and hardswish saturate.
 *
 * Max error of phi and phi', in units in the last place as simd/elementary.h counts them:
 *
 *     linear 0, 0      tanh 2.6, 4.2     gelu 5, 5.5 *       softplus 1.8, 2.5   hardtanh 0, 0
 *     relu 0, 0        sigmoid 2.5, 4.2  gelu_tanh 3.2, 6 *  softsign 1.6, 3.1   hardswish 2, 1.1
 *     leaky .5, 0      elu 1.7, 1.7      silu 3.2, 6 *       erf 1.2, 2.5        relu2 .5, 0
 *                      selu 2, 2         mish 4.4, 6 *       sin 2.3, 2.6
 *
 *     * but 0.75 ulp of 1, absolute, for -1.7 < x < -0.5, where this phi' has its zero.
 *     The parameter counts as rounded to the dtype.
 *
 * Included once a dtype (simd/real.h). */
#ifndef IC_ACTIVATIONS_H
#define IC_ACTIVATIONS_H

#include <float.h>
#include <string.h>

#define IC_EACH_ACTIVATION(X) \
  X(IC_LINEAR, linear) X(IC_RELU, relu) X(IC_LEAKY_RELU, leaky_relu) X(IC_TANH, tanh) \
  X(IC_SIGMOID, sigmoid) X(IC_ELU, elu) X(IC_SELU, selu) X(IC_GELU, gelu) \
  X(IC_GELU_TANH, gelu_tanh) X(IC_SILU, silu) X(IC_MISH, mish) X(IC_SOFTPLUS, softplus) \
  X(IC_SOFTSIGN, softsign) X(IC_ERF, erf) X(IC_SIN, sin) X(IC_HARDTANH, hardtanh) \
  X(IC_HARDSWISH, hardswish) X(IC_RELU2, relu2)

/* The bounds of |x|: exp(-x^2/2), exp(-x^2) and the exponential of gelu_tanh's argument are 0 in
 * the dtype, and exp_tail's argument is above tail_low. */
static const float gauss_end_f32 = 16.0f, erf_end_f32 = 11.0f, gelu_tanh_end_f32 = 11.5f;
static const double gauss_end_f64 = 40.0, erf_end_f64 = 29.0, gelu_tanh_end_f64 = 22.5;
static const float finite_end_f32 = FLT_MAX;
static const double finite_end_f64 = DBL_MAX;

#endif

/* |x|, at most `end`; NaN stays. */
IC_INLINE vreal R(bounded)(vreal x, real end) { return V(min)(V(set)(end), V(abs)(x)); }

IC_INLINE vmask R(negative)(vreal x) { return V(lt)(x, V(zero)()); }
IC_INLINE vreal R(positive_part)(vreal x) { return V(max)(V(zero)(), x); } /* NaN, -0 stay */
IC_INLINE vreal R(negative_part)(vreal x) { return V(min)(V(zero)(), x); } /* NaN, -0 stay */

/* y, but NaN where x is. */
IC_INLINE vreal R(or_nan)(vreal y, vreal x) { return V(select)(V(eq)(x, x), y, x); }

/* What the functions of t = exp(-|x|) share. */
typedef struct {
  vmask negative;
  vreal a;    /* |x|, bounded */
  vreal tail; /* t in units of 2^-tail_shift */
  vreal t;
} R(logistic);

IC_INLINE R(logistic) R(logistic_of)(vreal x) {
  R(logistic) e;
  e.negative = R(negative)(x);
  e.a = R(bounded)(x, -R(tail_low));
  e.tail = R(exp_tail)(V(neg)(e.a), V(zero)());
  e.t = V(mul)(e.tail, V(set)(R(tail_unit)));
  return e;
}

/* The quotient with numerator `left` (in units of 2^-tail_shift) if negative, else `right`. */
IC_INLINE vreal R(quotient)(vmask negative, vreal left, vreal right, vreal denominator) {
  const vreal unit = V(select)(negative, V(set)(R(tail_unit)), V(set)(1));
  return V(mul)(V(div)(V(select)(negative, left, right), denominator), unit);
}

#define IC_PHI(name) \
  IC_INLINE vreal R(name)(vreal x, vreal parameter __attribute__((unused)))

IC_PHI(linear) { return x; }
IC_PHI(linear_slope) { return R(or_nan)(V(set)(1), x); }

IC_PHI(relu) { return R(positive_part)(x); }
IC_PHI(relu_slope) {
  return R(or_nan)(V(select)(V(lt)(V(zero)(), x), V(set)(1), V(zero)()), x);
}

IC_PHI(leaky_relu) { return V(select)(V(lt)(V(zero)(), x), x, V(mul)(x, parameter)); }
IC_PHI(leaky_relu_slope) {
  return R(or_nan)(V(select)(V(lt)(V(zero)(), x), V(set)(1), parameter), x);
}

IC_PHI(tanh) { return V(tanh)(x); }
IC_PHI(tanh_slope) { /* 4 t/(1 + t)^2, t = exp(-2 |x|) */
  const R(logistic) e = R(logistic_of)(V(add)(x, x));
  const vreal d = V(add)(e.t, V(set)(1));
  return V(mul)(V(div)(e.tail, V(mul)(d, d)), V(set)(4 * R(tail_unit)));
}

IC_PHI(sigmoid) { /* 1/(1 + t) or t/(1 + t) */
  const R(logistic) e = R(logistic_of)(x);
  return R(quotient)(e.negative, e.tail, V(set)(1), V(add)(e.t, V(set)(1)));
}
IC_PHI(sigmoid_slope) { /* t/(1 + t)^2 */
  const R(logistic) e = R(logistic_of)(x);
  const vreal d = V(add)(e.t, V(set)(1));
  return V(mul)(V(div)(e.tail, V(mul)(d, d)), V(set)(R(tail_unit)));
}

IC_PHI(elu) {
  const vreal left = V(mul)(V(expm1)(R(negative_part)(x)), parameter);
  return V(select)(R(negative)(x), left, x);
}
IC_PHI(elu_slope) {
  const vreal left = V(mul)(V(exp)(R(negative_part)(x)), parameter);
  return V(select)(V(lt)(V(zero)(), x), V(set)(1), left);
}

IC_PHI(selu) {
  const vreal left = V(mul)(V(expm1)(R(negative_part)(x)), V(set)(R(selu_lambda_alpha)));
  return V(select)(R(negative)(x), left, V(mul)(x, V(set)(R(selu_lambda))));
}
IC_PHI(selu_slope) {
  const vreal left = V(mul)(V(exp)(R(negative_part)(x)), V(set)(R(selu_lambda_alpha)));
  return V(select)(V(lt)(V(zero)(), x), V(set)(R(selu_lambda)), left);
}

/* The standard normal beyond a = |x|: its upper tail Q(a), or Q(a) - a density(a), in units of
 * 2^-tail_shift. */
IC_INLINE vreal R(normal_beyond)(vreal a, int minus_moment) {
  vreal mills = R(normal_tail)(a);
  if (minus_moment) mills = V(fnma)(a, V(set)(R(density_0)), mills);
  return V(mul)(R(gauss_tail)(a, (real)0.5), mills);
}
IC_PHI(gelu) { /* x (1 - Q(x)) or x Q(-x) */
  const vreal a = R(bounded)(x, R(gauss_end)), unit = V(set)(R(tail_unit));
  const vreal q = R(normal_beyond)(a, 0);
  const vreal left = V(mul)(V(mul)(V(neg)(a), q), unit);
  return V(select)(R(negative)(x), left, V(mul)(x, V(fnma)(q, unit, V(set)(1))));
}
IC_PHI(gelu_slope) { /* 1 - w or w, w = Q(|x|) - |x| density(x) */
  const vreal unit = V(set)(R(tail_unit)), w = R(normal_beyond)(R(bounded)(x, R(gauss_end)), 1);
  return V(select)(R(negative)(x), V(mul)(w, unit), V(fnma)(w, unit, V(set)(1)));
}

/* gelu_tanh = x/(1 + exp(-v)), v = 2 sqrt(2/pi) (x + 0.044715 x^3), here of |x|. An error of v is
 * one of exp(-v), so v is kept to twice the digits. */
IC_INLINE R(logistic) R(gelu_tanh_of)(vreal x) {
  const vreal linear = V(set)(R(gelu_linear)[0]), linear_low = V(set)(R(gelu_linear)[1]);
  const vreal cubic = V(set)(R(gelu_cubic)[0]), cubic_low = V(set)(R(gelu_cubic)[1]);
  R(logistic) e;
  e.negative = R(negative)(x);
  e.a = R(bounded)(x, R(gelu_tanh_end));
  const vreal square = V(mul)(e.a, e.a), square_low = V(fma)(e.a, e.a, V(neg)(square));
  const vreal c = V(mul)(cubic, square);
  const vreal c_low = V(fma)(cubic, square_low,
                             V(fma)(cubic_low, square, V(fma)(cubic, square, V(neg)(c))));
  const vreal sum = V(add)(linear, c), c_part = V(sub)(sum, linear);
  const vreal lost = V(add)(V(sub)(linear, V(sub)(sum, c_part)), V(sub)(c, c_part));
  const vreal sum_low = V(add)(lost, V(add)(linear_low, c_low));
  const vreal v = V(mul)(e.a, sum);
  const vreal v_low = V(fma)(e.a, sum_low, V(fma)(e.a, sum, V(neg)(v)));
  e.tail = R(exp_tail)(V(neg)(v), V(neg)(v_low));
  e.t = V(mul)(e.tail, V(set)(R(tail_unit)));
  return e;
}
IC_PHI(gelu_tanh) {
  const R(logistic) e = R(gelu_tanh_of)(x);
  const vreal left = V(mul)(V(neg)(e.a), e.tail);
  return R(quotient)(e.negative, left, x, V(add)(e.t, V(set)(1)));
}

/* The derivative of x/(1 + exp(-v(x))), v odd, given v'(x): with t = exp(-|v|) it is
 * (1 + t (1 + |x| v'))/(1 + t)^2 or t (1 + t - |x| v')/(1 + t)^2. */
IC_INLINE vreal R(gated_slope)(R(logistic) e, vreal slope) {
  const vreal one = V(set)(1), d = V(add)(e.t, one);
  const vreal right = V(fma)(e.t, V(fma)(e.a, slope, one), one);
  const vreal left = V(mul)(e.tail, V(fnma)(e.a, slope, d));
  return R(quotient)(e.negative, left, right, V(mul)(d, d));
}
IC_PHI(gelu_tanh_slope) {
  const R(logistic) e = R(gelu_tanh_of)(x);
  const vreal three_cubic = V(set)(3 * R(gelu_cubic)[0]);
  return R(gated_slope)(e, V(fma)(three_cubic, V(mul)(e.a, e.a), V(set)(R(gelu_linear)[0])));
}

IC_PHI(silu) { /* x/(1 + t) or x t/(1 + t) */
  const R(logistic) e = R(logistic_of)(x);
  return R(quotient)(e.negative, V(mul)(V(neg)(e.a), e.tail), x, V(add)(e.t, V(set)(1)));
}
IC_PHI(silu_slope) { return R(gated_slope)(R(logistic_of)(x), V(set)(1)); }

/* tanh(softplus(x)) = w/(w + 2), w = e^2x + 2 e^x: with t = exp(-|x|) it is
 * (1 + 2t)/(1 + 2t + 2t^2) or t (2 + t)/(2 + 2t + t^2). */
IC_INLINE vreal R(mish_denominator)(R(logistic) e) {
  const vreal one = V(set)(1), two = V(set)(2);
  const vreal square = V(select)(e.negative, one, two), constant = V(select)(e.negative, two, one);
  return V(fma)(V(fma)(square, e.t, two), e.t, constant);
}
IC_PHI(mish) {
  const R(logistic) e = R(logistic_of)(x);
  const vreal two = V(set)(2);
  const vreal left = V(mul)(V(mul)(V(neg)(e.a), e.tail), V(add)(e.t, two));
  const vreal right = V(mul)(x, V(fma)(e.t, two, V(set)(1)));
  return R(quotient)(e.negative, left, right, R(mish_denominator)(e));
}
/* (1 + 4t + (6 + 4x) t^2 + (4 + 4x) t^3) or t (4 + 4x + (6 + 4x) t + 4t^2 + t^3), over the square
 * of mish's denominator. */
IC_PHI(mish_slope) {
  const R(logistic) e = R(logistic_of)(x);
  const vreal one = V(set)(1), four = V(set)(4), six = V(set)(6), d = R(mish_denominator)(e);
  vreal right = V(fma)(V(fma)(four, e.a, four), e.t, V(fma)(four, e.a, six));
  right = V(fma)(V(fma)(right, e.t, four), e.t, one);
  vreal left = V(fma)(V(add)(e.t, four), e.t, V(fnma)(four, e.a, six));
  left = V(mul)(V(fma)(left, e.t, V(fnma)(four, e.a, four)), e.tail);
  return R(quotient)(e.negative, left, right, V(mul)(d, d));
}

IC_PHI(softplus) { /* max(x, 0) + log(1 + t) */
  return V(add)(R(positive_part)(x), V(log1p)(R(logistic_of)(x).t));
}

IC_PHI(softplus_slope) { return R(sigmoid)(x, parameter); }

IC_PHI(softsign) { /* x/(1 + |x|), also at the infinities */
  const vreal a = R(bounded)(x, R(finite_end));
  return V(copysign)(V(div)(a, V(add)(a, V(set)(1))), x);
}
IC_PHI(softsign_slope) { /* 1/(1 + |x|)^2 */
  const vreal one = V(set)(1), d = V(add)(V(abs)(x), one);
  return V(div)(V(div)(one, d), d);
}

IC_PHI(erf) { return V(erf)(x); }
IC_PHI(erf_slope) { /* 2/sqrt(pi) exp(-x^2) */
  const vreal tail = V(mul)(R(gauss_tail)(R(bounded)(x, R(erf_end)), 1), V(set)(R(erf_rise)));
  return V(mul)(tail, V(set)(R(tail_unit)));
}

IC_PHI(sin) { return R(sine)(x, 0); }
IC_PHI(sin_slope) { return R(sine)(x, 1); }

IC_PHI(hardtanh) {
  return V(min)(V(set)(1), V(max)(V(set)(-1), x));
}
IC_PHI(hardtanh_slope) {
  return R(or_nan)(V(select)(V(lt)(V(abs)(x), V(set)(1)), V(set)(1), V(zero)()), x);
}

IC_PHI(hardswish) { /* x clamp(x + 3, 0, 6)/6 */
  const vreal a = V(max)(V(set)(-3), x), six = V(set)(6);
  return V(mul)(a, V(div)(V(min)(six, V(add)(a, V(set)(3))), six));
}
IC_PHI(hardswish_slope) { /* (2x + 3)/6 between -3 and 3 */
  const vreal three = V(set)(3), one = V(set)(1);
  const vreal middle = V(div)(V(fma)(x, V(set)(2), three), V(set)(6));
  const vreal upper = V(select)(V(lt)(x, three), middle, R(or_nan)(one, x));
  return V(select)(V(le)(x, V(set)(-3)), V(zero)(), upper);
}

IC_PHI(relu2) {
  const vreal a = R(positive_part)(x);
  return V(mul)(a, a);
}
IC_PHI(relu2_slope) {
  const vreal a = R(positive_part)(x);
  return V(add)(a, a);
}

#undef IC_PHI

/* One loop for each phi and phi', over whole vectors: n is a multiple of 16. */
#define IC_MAP(name) \
  static void R(name##_map)(const real *x, real *out, size_t n, real parameter) { \
    const vreal p = V(set)(parameter); \
    for (size_t i = 0; i < n; i += 16) V(store)(out + i, R(name)(V(load)(x + i), p)); \
  }
#define IC_MAPS(id, name) IC_MAP(name) IC_MAP(name##_slope)
IC_EACH_ACTIVATION(IC_MAPS)
#undef IC_MAP
#undef IC_MAPS

typedef void (*R(activation_map))(const real *x, real *out, size_t n, real parameter);

/* phi(x), or phi'(x) if `derivative`, elementwise; out may be x. */
static void R(apply)(const real *x, real *out, size_t n, int activation, real parameter,
                     int derivative) {
#define IC_ENTRY(id, name) [id] = {R(name##_map), R(name##_slope_map)},
  static const R(activation_map) maps[IC_ACTIVATIONS][2] = {IC_EACH_ACTIVATION(IC_ENTRY)};
#undef IC_ENTRY
  const R(activation_map) map = maps[activation][derivative != 0];
  const size_t rest = n % 16;
  map(x, out, n - rest, parameter);
  if (rest) {
    real last[16] = {0};
    memcpy(last, x + (n - rest), rest * sizeof *x);
    map(last, last, 16, parameter);
    memcpy(out + (n - rest), last, rest * sizeof *x);
  }
}

/* Domain: all of the dtype; at the infinities the limits (sin: NaN); NaN gives NaN. x and out are
 *   the same or do not overlap.
 * Max error: the table above, against the exact value for `parameter` rounded to the dtype.
 * Determinism: the same bits for every instruction set, wherever an element stands. */
static void R(activate)(const real *x, real *out, size_t n, int activation, double parameter,
                        int derivative) {
  const ic_fpmode mode = fpmode_enter();
  R(apply)(x, out, n, activation, (real)parameter, derivative);
  fpmode_leave(mode);
}
