/* SPDX-License-Identifier: BSD-3-Clause */
/* Written by tools/derive_elementary.py: do not edit. Polynomials, lowest degree
 * first, and constants, some as a sum of parts, leading part first; exact. */
#ifndef IC_POLYNOMIALS_H
#define IC_POLYNOMIALS_H

#include <stdint.h>

/* float32 */
static const float log2_e_f32 = 0x1.715476p+0f;
static const float ln2_f32[2] = {
  0x1.62e43p-1f, -0x1.05c61p-29f};
static const float inverse_pi_f32 = 0x1.45f306p-2f;
static const float half_pi_f32[3] = {
  0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
static const float sqrt_2_f32 = 0x1.6a09e6p+0f;
/* 1/sqrt(2 pi) */
static const float density_0_f32 = 0x1.988454p-2f;
/* 2/sqrt(pi) */
static const float erf_rise_f32 = 0x1.20dd76p+0f;
static const float selu_lambda_f32 = 0x1.0cfabep+0f;
static const float selu_lambda_alpha_f32 = 0x1.c212ccp+0f;
/* 2 sqrt(2/pi) */
static const float gelu_linear_f32[2] = {
  0x1.988454p+0f, -0x1.857936p-25f};
/* 2 sqrt(2/pi) 0.044715 */
static const float gelu_cubic_f32[2] = {
  0x1.2444f2p-4f, 0x1.49b16ap-29f};
/* exp(r) = 1 + r + r^2 p(r), |r| <= ln(2)/2; the error is that of exp(r) - 1;
 * error 0.14 ulp */
static const float exp_poly_f32[5] = {
  0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.555674p-5f, 0x1.122776p-7f, 0x1.6bec06p-10f};
/* log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2 <= (3 - 2 sqrt(2))^2;
 * error 0.007 ulp */
static const float log_poly_f32[3] = {
  0x1.55557ap-1f, 0x1.995ecap-2f, 0x1.31e194p-2f};
/* sin(r) = r + r z p(z), z = r^2, |r| <= pi/2;
 * error 0.083 ulp */
static const float sin_poly_f32[4] = {
  -0x1.55554cp-3f, 0x1.110ed4p-7f, -0x1.9f7p-13f, 0x1.5dbdf2p-19f};
/* erf(x) = x + x p(x^2), |x| <= 1;
 * error 0.039 ulp */
static const float erf_poly_f32[7] = {
  0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90cp-6f, 0x1.5405b2p-8f,
  -0x1.a3f6fep-11f, 0x1.496a2cp-14f};
/* Q(a) exp(a^2/2) = p(t)/(a + c), Q the normal upper tail, t = (a - c)/(a + c),
 * c = 4, 0 <= a <= 16;
 * error 0.26 ulp */
static const float tail_poly_f32[10] = {
  0x1.82b4bcp-1f, -0x1.373e38p-1f, 0x1.8c6da2p-2f, -0x1.7e005p-3f, 0x1.eed1c4p-5f, -0x1.ecf56ep-8f,
  -0x1.cb845ep-9f, 0x1.9a9b66p-10f, 0x1.5da5cp-13f, -0x1.21923p-13f};

/* float64 */
static const double log2_e_f64 = 0x1.71547652b82fep+0;
static const double ln2_f64[2] = {
  0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
static const double inverse_pi_f64 = 0x1.45f306dc9c883p-2;
static const double half_pi_f64[3] = {
  0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
static const double sqrt_2_f64 = 0x1.6a09e667f3bcdp+0;
/* 1/sqrt(2 pi) */
static const double density_0_f64 = 0x1.9884533d43651p-2;
/* 2/sqrt(pi) */
static const double erf_rise_f64 = 0x1.20dd750429b6dp+0;
static const double selu_lambda_f64 = 0x1.0cfabd6a91132p+0;
static const double selu_lambda_alpha_f64 = 0x1.c212cc640f031p+0;
/* 2 sqrt(2/pi) */
static const double gelu_linear_f64[2] = {
  0x1.9884533d43651p+0, -0x1.cbc0d30ebfd15p-54};
/* 2 sqrt(2/pi) 0.044715 */
static const double gelu_cubic_f64[2] = {
  0x1.2444f2a4d8b4bp-4, -0x1.6c843a29d1c7p-61};
/* exp(r) = 1 + r + r^2 p(r), |r| <= ln(2)/2; the error is that of exp(r) - 1;
 * error 0.15 ulp */
static const double exp_poly_f64[10] = {
  0x1.0000000000005p-1, 0x1.5555555555539p-3, 0x1.55555555522b8p-5, 0x1.1111111118fa1p-7,
  0x1.6c16c17edbaa8p-10, 0x1.a01a0175182b6p-13, 0x1.a019a76f4a219p-16, 0x1.71de87ff384e2p-19,
  0x1.28a1dff3c56a4p-22, 0x1.ae6bb3e9c3a83p-26};
/* log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2 <= (3 - 2 sqrt(2))^2;
 * error 0.007 ulp */
static const double log_poly_f64[7] = {
  0x1.5555555555592p-1, 0x1.999999997fe69p-2, 0x1.24924941e868fp-2, 0x1.c71c520fa6f4p-3,
  0x1.74663dc61a791p-3, 0x1.39a1d42ea6c16p-3, 0x1.2f04871688385p-3};
/* sin(r) = r + r z p(z), z = r^2, |r| <= pi/2;
 * error 0.026 ulp */
static const double sin_poly_f64[8] = {
  -0x1.5555555555555p-3, 0x1.11111111110c1p-7, -0x1.a01a01a0148bdp-13, 0x1.71de3a5287c79p-19,
  -0x1.ae6454cb57557p-26, 0x1.6123cb290415ap-33, -0x1.ae431d987a056p-41, 0x1.8829a2f0b4a41p-49};
/* erf(x) = x + x p(x^2), |x| <= 1;
 * error 0.051 ulp */
static const double erf_poly_f64[13] = {
  0x1.06eba8214db69p-3, -0x1.812746b0379e6p-2, 0x1.ce2f21a042b2p-4, -0x1.b82ce3128499cp-6,
  0x1.565bcd0db02dep-8, -0x1.c02db3d8ed15ap-11, 0x1.f9a321a11c54ep-14, -0x1.f4d1df3931e29p-17,
  0x1.b9def19cd0495p-20, -0x1.5f1d36b9b9a1cp-23, 0x1.f7a411dd4bc18p-27, -0x1.386abfea0d8f7p-30,
  0x1.0579a8b51d3bbp-34};
/* Q(a) exp(a^2/2) = p(t)/(a + c), Q the normal upper tail, t = (a - c)/(a + c),
 * c = 4, 0 <= a <= 40;
 * error 0.33 ulp */
static const double tail_poly_f64[23] = {
  0x1.82b4bb8c94dcep-1, -0x1.373e3a893c28ap-1, 0x1.8c6dbf2cfc30cp-2, -0x1.7dff2bff6844bp-3,
  0x1.eec4cc3e43c5ap-5, -0x1.ee2761044a021p-8, -0x1.c81719c8cf11fp-9, 0x1.ab825fb49605bp-10,
  0x1.17a4a5a64e318p-13, -0x1.e4a422bb49bfp-13, -0x1.0010982d2ee81p-19, 0x1.26d077fc83005p-15,
  0x1.7fd443738b49fp-21, -0x1.8d4b11237903ep-18, -0x1.4fa1eee876ee6p-21, 0x1.125e23dcc9ea6p-20,
  0x1.1b9667bd8e73cp-22, -0x1.50edfd889a77dp-23, -0x1.4bbd1760f5f25p-24, 0x1.17b7f17dec54ap-26,
  0x1.f882931509838p-27, -0x1.bb1150997ebdep-32, -0x1.51068901bdd54p-30};

/* 64 zeros, then the first 1216 bits of 2/pi; most significant word first. */
static const uint32_t two_over_pi[40] = {
  0, 0, 0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu,
  0xDEBBC561u, 0xB7246E3Au, 0x424DD2E0u, 0x06492EEAu, 0x09D1921Cu, 0xFE1DEB1Cu, 0xB129A73Eu,
  0xE88235F5u, 0x2EBB4484u, 0xE99C7026u, 0xB45F7E41u, 0x3991D639u, 0x835339F4u, 0x9C845F8Bu,
  0xBDF9283Bu, 0x1FF897FFu, 0xDE05980Fu, 0xEF2F118Bu, 0x5A0A6D1Fu, 0x6D367ECFu, 0x27CB09B7u,
  0x4F463F66u, 0x9E5FEA2Du, 0x7527BAC7u, 0xEBE5F17Bu, 0x3D0739F7u, 0x8A5292EAu, 0x6BFB5FB1u,
  0x1F8D5D08u, 0x56033046u, 0xFC7B6BABu};

#endif
