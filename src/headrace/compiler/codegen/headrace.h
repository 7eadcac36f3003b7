// What generated code is written in: vectors of sixteen lanes, the same on every processor. There are forms for AVX-512,
// for AVX2 with FMA, and one in plain C that the others equal bit for bit, but for two: in hr_dot2 and hr_round_bf16
// AVX-512 BF16 takes subnormal numbers for zero, and hr_dot2 rounds in another order. Which NaN results is not promised.
#ifndef HEADRACE_H
#define HEADRACE_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float f32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t u8x64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t u16x16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t i8x16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint8_t u8x16 __attribute__((vector_size(16), aligned(1), may_alias));

#define HR_INLINE static inline __attribute__((always_inline, unused))
#define HR_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define HR_UNROLL(n) HR_PRAGMA(clang loop unroll(full))
#else
#define HR_UNROLL(n) HR_PRAGMA(GCC unroll n)
#endif
#define HR_INFINITY __builtin_inff()
#define HR_EACH for (int lane = 0; lane < 16; lane++)
// A vector of which an expression gives each lane.
#define HR_LANES(vector, expression) \
    ({ vector lanes_; for (int lane = 0; lane < 16; lane++) lanes_[lane] = (expression); lanes_; })

// ---- indices

HR_INLINE int64_t hr_clamp(int64_t index, int64_t extent) { return index < 0 ? 0 : index < extent ? index : extent - 1; }
HR_INLINE int64_t hr_larger(int64_t a, int64_t b) { return a > b ? a : b; }
HR_INLINE int64_t hr_smaller(int64_t a, int64_t b) { return a < b ? a : b; }
HR_INLINE int64_t hr_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); }  // b is positive
HR_INLINE int64_t hr_rest(int64_t a, int64_t b) { int64_t r = a % b; return r < 0 ? r + b : r; }
HR_INLINE int64_t hr_steps(int64_t length, int64_t step) { return (length + step - 1) / step; }
HR_INLINE int64_t hr_lanes(int64_t index, int64_t extent) { return hr_smaller(16, extent - index); }

// ---- vectors of one value, of indices, of conditions (all bits or none)

HR_INLINE f32x16 hr_splat_f32(float x) { return x - (f32x16){}; }
HR_INLINE i32x16 hr_splat_i32(int32_t x) { return x - (i32x16){}; }
HR_INLINE i32x16 hr_iota(int64_t first, int32_t step) {
    const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lanes * step + (int32_t)first;
}
HR_INLINE i32x16 hr_below(int64_t first, int64_t bound) { return hr_iota(0, 1) < (int32_t)(bound - first); }
HR_INLINE i32x16 hr_less_f(f32x16 a, f32x16 b) { return a < b; }
HR_INLINE i32x16 hr_less_i(i32x16 a, i32x16 b) { return a < b; }
HR_INLINE i32x16 hr_select_i(i32x16 condition, i32x16 yes, i32x16 no) { return (condition & yes) | (~condition & no); }
HR_INLINE i32x16 hr_select_b(i32x16 condition, i32x16 yes, i32x16 no) { return hr_select_i(condition, yes, no); }
HR_INLINE f32x16 hr_select_f(i32x16 condition, f32x16 yes, f32x16 no) {
    return (f32x16)hr_select_i(condition, (i32x16)yes, (i32x16)no);
}

HR_INLINE i32x16 hr_if_i(int condition, i32x16 yes, i32x16 no) { return condition ? yes : no; }
HR_INLINE i32x16 hr_if_b(int condition, i32x16 yes, i32x16 no) { return condition ? yes : no; }
HR_INLINE f32x16 hr_if_f(int condition, f32x16 yes, f32x16 no) { return condition ? yes : no; }

// ---- arithmetic, of one value (_1) and of vectors

HR_INLINE float hr_fma_1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HR_INLINE float hr_max_f_1(float a, float b) { return a > b || a != a ? a : b; }
HR_INLINE int32_t hr_max_i_1(int32_t a, int32_t b) { return a > b ? a : b; }
HR_INLINE int32_t hr_mod_i_1(int32_t a, int32_t b) {
    if (b == 0 || b == -1) return 0;
    const int32_t r = a % b;
    return r && (r ^ b) < 0 ? r + b : r;
}
HR_INLINE float hr_mod_f_1(float a, float b) {
    const float r = fmodf(a, b);
    if (r == 0) return __builtin_copysignf(0, b);
    return (r < 0) != (b < 0) ? r + b : r;
}
HR_INLINE float hr_sqrt_1(float x) { return __builtin_sqrtf(x); }
HR_INLINE float hr_sin_1(float x) { return sinf(x); }
HR_INLINE float hr_log2_1(float x) { return log2f(x); }
HR_INLINE int32_t hr_rint_1(float x) { return (int32_t)__builtin_rintf(x); }
HR_INLINE float hr_to_f32_1(int32_t x) { return (float)x; }

HR_INLINE f32x16 hr_recip(f32x16 x) { return 1.0f / x; }
HR_INLINE i32x16 hr_max_i(i32x16 a, i32x16 b) { return hr_select_i(a > b, a, b); }
HR_INLINE i32x16 hr_mod_i(i32x16 a, i32x16 b) { i32x16 r; HR_EACH r[lane] = hr_mod_i_1(a[lane], b[lane]); return r; }
HR_INLINE f32x16 hr_mod_f(f32x16 a, f32x16 b) { f32x16 r; HR_EACH r[lane] = hr_mod_f_1(a[lane], b[lane]); return r; }
HR_INLINE f32x16 hr_sin(f32x16 x) { f32x16 r; HR_EACH r[lane] = sinf(x[lane]); return r; }
HR_INLINE f32x16 hr_log2(f32x16 x) { f32x16 r; HR_EACH r[lane] = log2f(x[lane]); return r; }
HR_INLINE f32x16 hr_to_f32(i32x16 x) { return __builtin_convertvector(x, f32x16); }

#if defined(__AVX512F__)
HR_INLINE f32x16 hr_fma(f32x16 a, f32x16 b, f32x16 c) { return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
HR_INLINE f32x16 hr_max_f(f32x16 a, f32x16 b) {
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q);
    return (f32x16)_mm512_mask_mov_ps(_mm512_max_ps((__m512)a, (__m512)b), nan, (__m512)a);
}
HR_INLINE f32x16 hr_sqrt(f32x16 x) { return (f32x16)_mm512_sqrt_ps((__m512)x); }
HR_INLINE i32x16 hr_rint(f32x16 x) { return (i32x16)_mm512_cvtps_epi32((__m512)x); }
HR_INLINE f32x16 hr_scale2(f32x16 x, f32x16 power) { return (f32x16)_mm512_scalef_ps((__m512)x, (__m512)power); }
HR_INLINE f32x16 hr_round_f32(f32x16 x) { return (f32x16)_mm512_roundscale_ps((__m512)x, 8); }
#else
// In two steps that are exact, or the last of which rounds; power is from -250 to 250, or not a number as x is.
HR_INLINE f32x16 hr_scale2(f32x16 x, f32x16 power) {
    const i32x16 whole = __builtin_convertvector(hr_select_f(power == power, power, hr_splat_f32(0)), i32x16);
    const i32x16 first = whole >> 1, second = whole - first;
    return x * (f32x16)((first + 127) << 23) * (f32x16)((second + 127) << 23);
}
#if defined(__AVX2__) && defined(__FMA__)
// A vector is two of eight lanes.
HR_INLINE __m256 hr_part(f32x16 x, int n) { __m256 r; memcpy(&r, (const char *)&x + 32 * n, 32); return r; }
HR_INLINE __m256i hr_part_i(i32x16 x, int n) { __m256i r; memcpy(&r, (const char *)&x + 32 * n, 32); return r; }
HR_INLINE f32x16 hr_join(__m256 a, __m256 b) {
    f32x16 r;
    memcpy(&r, &a, 32);
    memcpy((char *)&r + 32, &b, 32);
    return r;
}
HR_INLINE i32x16 hr_join_i(__m256i a, __m256i b) { return (i32x16)hr_join(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)); }
#define HR_HALVES(f, x) hr_join(f(hr_part(x, 0)), f(hr_part(x, 1)))
#define HR_NEAREST(x) _mm256_round_ps(x, 8)
HR_INLINE f32x16 hr_fma(f32x16 a, f32x16 b, f32x16 c) {
    return hr_join(_mm256_fmadd_ps(hr_part(a, 0), hr_part(b, 0), hr_part(c, 0)),
                   _mm256_fmadd_ps(hr_part(a, 1), hr_part(b, 1), hr_part(c, 1)));
}
HR_INLINE f32x16 hr_sqrt(f32x16 x) { return HR_HALVES(_mm256_sqrt_ps, x); }
HR_INLINE i32x16 hr_rint(f32x16 x) { return hr_join_i(_mm256_cvtps_epi32(hr_part(x, 0)), _mm256_cvtps_epi32(hr_part(x, 1))); }
HR_INLINE f32x16 hr_round_f32(f32x16 x) { return HR_HALVES(HR_NEAREST, x); }
#else
HR_INLINE f32x16 hr_fma(f32x16 a, f32x16 b, f32x16 c) { f32x16 r; HR_EACH r[lane] = hr_fma_1(a[lane], b[lane], c[lane]); return r; }
HR_INLINE f32x16 hr_sqrt(f32x16 x) { f32x16 r; HR_EACH r[lane] = hr_sqrt_1(x[lane]); return r; }
HR_INLINE i32x16 hr_rint(f32x16 x) { i32x16 r; HR_EACH r[lane] = hr_rint_1(x[lane]); return r; }
HR_INLINE f32x16 hr_round_f32(f32x16 x) { f32x16 r; HR_EACH r[lane] = __builtin_rintf(x[lane]); return r; }
#endif
HR_INLINE f32x16 hr_max_f(f32x16 a, f32x16 b) { return hr_select_f((a > b) | (a != a), a, b); }
#endif

// 2^x: the whole part goes to the exponent, the rest, from -1/2 to 1/2, through a polynomial of degree 6 that
// is exact at 0 and elsewhere off by no more than a fraction 2e-09; with all rounding the error is below 1.01 ulp.
HR_INLINE f32x16 hr_exp2(f32x16 x) {
#if defined(__AVX512DQ__)  // of an infinity the rest is 0
    const f32x16 whole = hr_round_f32(x), rest = (f32x16)_mm512_reduce_ps((__m512)x, 8);
#else
    const f32x16 low = hr_splat_f32(-160.0f), high = hr_splat_f32(160.0f);
    const f32x16 inside = hr_select_f(x < low, low, hr_select_f(high < x, high, x));
    const f32x16 whole = hr_round_f32(inside), rest = inside - whole;
#endif
    f32x16 y = hr_splat_f32(0.00015353362f);
    y = hr_fma(y, rest, hr_splat_f32(0.0013398875f));
    y = hr_fma(y, rest, hr_splat_f32(0.00961843692f));
    y = hr_fma(y, rest, hr_splat_f32(0.0555033237f));
    y = hr_fma(y, rest, hr_splat_f32(0.240226477f));
    y = hr_fma(y, rest, hr_splat_f32(0.693147182f));
    y = hr_fma(y, rest, hr_splat_f32(1.0f));
    return hr_scale2(y, whole);
}
HR_INLINE float hr_exp2_1(float x) { return hr_exp2(hr_splat_f32(x))[0]; }

// ---- across lanes: neighbours at distance 8, 4, 2, 1 in turn, so that the order is the same everywhere

#define HR_ACROSS(name, vector, scalar, op)                                              \
    HR_INLINE scalar name(vector x) {                                                    \
        scalar t[16];                                                                    \
        memcpy(t, &x, sizeof t);                                                         \
        for (int d = 8; d; d /= 2)                                                       \
            for (int i = 0; i < d; i++) t[i] = op(t[i], t[i + d]);                       \
        return t[0];                                                                     \
    }
HR_INLINE float hr_add_f_1(float a, float b) { return a + b; }
HR_INLINE float hr_mul_f_1(float a, float b) { return a * b; }
HR_INLINE int32_t hr_add_i_1(int32_t a, int32_t b) { return a + b; }
HR_INLINE int32_t hr_mul_i_1(int32_t a, int32_t b) { return a * b; }
HR_ACROSS(hr_prod_f32, f32x16, float, hr_mul_f_1)
HR_ACROSS(hr_prod_i32, i32x16, int32_t, hr_mul_i_1)
HR_ACROSS(hr_max_i32, i32x16, int32_t, hr_max_i_1)
#if defined(__AVX512F__)
HR_INLINE float hr_sum_f32(f32x16 x) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)x, 1)));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
HR_INLINE float hr_max_f32(f32x16 x) {
    const float most = _mm512_reduce_max_ps((__m512)x);
    return _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q) ? __builtin_nanf("") : most;
}
HR_INLINE int32_t hr_sum_i32(i32x16 x) { return _mm512_reduce_add_epi32((__m512i)x); }
#else
HR_ACROSS(hr_sum_f32, f32x16, float, hr_add_f_1)
HR_ACROSS(hr_max_f32, f32x16, float, hr_max_f_1)
HR_ACROSS(hr_sum_i32, i32x16, int32_t, hr_add_i_1)
#endif

// ---- half precision

HR_INLINE uint32_t hr_bits(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
HR_INLINE float hr_float(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
// AVX-512 BF16 takes numbers below the least normal one for 0.
HR_INLINE float hr_round_bf16_1(float x) {
    const uint32_t b = hr_bits(x);
#if defined(__AVX512BF16__)
    if (!(b & 0x7F800000)) return hr_float(b & 0x80000000u);
#endif
    return x != x ? hr_float(b | 0x400000) : hr_float((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000u);
}
HR_INLINE f32x16 hr_round_bf16(f32x16 x) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)), 16);
#endif
    const i32x16 b = (i32x16)x;
    const i32x16 rounded = (b + 0x7FFF + (b >> 16 & 1)) & (int32_t)0xFFFF0000;
#if defined(__AVX512F__)
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (f32x16)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)b, _mm512_set1_epi32(0x400000));
#endif
    return hr_select_f(x != x, (f32x16)(b | 0x400000), (f32x16)rounded);  // a quiet NaN keeps a bit in its upper half
}
#if defined(__F16C__)
HR_INLINE float hr_from_f16(uint16_t h) { return _cvtsh_ss(h); }
HR_INLINE uint16_t hr_to_f16(float x) { return _cvtss_sh(x, 0); }
#else
HR_INLINE float hr_from_f16(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
HR_INLINE uint16_t hr_to_f16(float x) { _Float16 h = (_Float16)x; uint16_t b; memcpy(&b, &h, 2); return b; }
#endif
HR_INLINE float hr_round_f16_1(float x) { return hr_from_f16(hr_to_f16(x)); }

// ---- memory: element `at` of an array, alone, sixteen neighbours, or sixteen in steps

HR_INLINE float hr_get_f32(const void *p, int64_t at) { return ((const float *)p)[at]; }
HR_INLINE float hr_get_bf16(const void *p, int64_t at) { return hr_float((uint32_t)((const uint16_t *)p)[at] << 16); }
HR_INLINE float hr_get_f16(const void *p, int64_t at) { return hr_from_f16(((const uint16_t *)p)[at]); }
HR_INLINE int32_t hr_get_i32(const void *p, int64_t at) { return ((const int32_t *)p)[at]; }
HR_INLINE int32_t hr_get_i8(const void *p, int64_t at) { return ((const int8_t *)p)[at]; }
HR_INLINE int32_t hr_get_u8(const void *p, int64_t at) { return ((const uint8_t *)p)[at]; }
HR_INLINE int32_t hr_get_u4(const void *p, int64_t at) { return ((const uint8_t *)p)[at]; }  // one in a byte
HR_INLINE int32_t hr_get_half(const void *p, int64_t at, int64_t high) { return ((const uint8_t *)p)[at] >> 4 * high & 15; }
HR_INLINE int32_t hr_get_bool(const void *p, int64_t at) { return ((const uint8_t *)p)[at] != 0; }

HR_INLINE void hr_put_f32(void *p, int64_t at, float x) { ((float *)p)[at] = x; }
HR_INLINE void hr_put_bf16(void *p, int64_t at, float x) { ((uint16_t *)p)[at] = hr_bits(x) >> 16; }
HR_INLINE void hr_put_f16(void *p, int64_t at, float x) { ((uint16_t *)p)[at] = hr_to_f16(x); }
HR_INLINE void hr_put_i32(void *p, int64_t at, int32_t x) { ((int32_t *)p)[at] = x; }
HR_INLINE void hr_put_i8(void *p, int64_t at, int32_t x) { ((int8_t *)p)[at] = (int8_t)x; }
HR_INLINE void hr_put_u8(void *p, int64_t at, int32_t x) { ((uint8_t *)p)[at] = (uint8_t)x; }
HR_INLINE void hr_put_u4(void *p, int64_t at, int32_t x) { ((uint8_t *)p)[at] = (uint8_t)x; }
HR_INLINE void hr_put_bool(void *p, int64_t at, int32_t x) { ((uint8_t *)p)[at] = x != 0; }

HR_INLINE f32x16 hr_load_f32(const void *p, int64_t at) { return *(const f32x16 *)((const float *)p + at); }
HR_INLINE f32x16 hr_load_bf16(const void *p, int64_t at) {
    return (f32x16)(__builtin_convertvector(*(const u16x16 *)((const uint16_t *)p + at), i32x16) << 16);
}
#if defined(__AVX512F__)
HR_INLINE f32x16 hr_load_f16(const void *p, int64_t at) {
    return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)p + at)));
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
HR_INLINE f32x16 hr_load_f16(const void *p, int64_t at) {
    const __m128i *h = (const void *)((const uint16_t *)p + at);
    return hr_join(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
}
#else
HR_INLINE f32x16 hr_load_f16(const void *p, int64_t at) { f32x16 r; HR_EACH r[lane] = hr_get_f16(p, at + lane); return r; }
#endif
HR_INLINE i32x16 hr_load_i32(const void *p, int64_t at) { return *(const i32x16 *)((const int32_t *)p + at); }
HR_INLINE i32x16 hr_load_i8(const void *p, int64_t at) { return __builtin_convertvector(*(const i8x16 *)((const int8_t *)p + at), i32x16); }
HR_INLINE i32x16 hr_load_u8(const void *p, int64_t at) { return __builtin_convertvector(*(const u8x16 *)((const uint8_t *)p + at), i32x16); }

HR_INLINE i32x16 hr_load_u4(const void *p, int64_t at) { return hr_load_u8(p, at); }
HR_INLINE i32x16 hr_load_bool(const void *p, int64_t at) { return hr_load_u8(p, at) != 0; }

HR_INLINE void hr_store_f32(void *p, int64_t at, f32x16 x) { *(f32x16 *)((float *)p + at) = x; }
HR_INLINE void hr_store_bf16(void *p, int64_t at, f32x16 x) {
#if defined(__AVX512F__)
    const __m512i upper = _mm512_srli_epi32((__m512i)x, 16);
    _mm256_storeu_si256((void *)((uint16_t *)p + at), _mm512_cvtepi32_epi16(upper));
    return;
#endif
    *(u16x16 *)((uint16_t *)p + at) = __builtin_convertvector((i32x16)x >> 16 & 0xFFFF, u16x16);
}
#if defined(__AVX512F__)
HR_INLINE void hr_store_f16(void *p, int64_t at, f32x16 x) {
    _mm256_storeu_si256((void *)((uint16_t *)p + at), _mm512_cvtps_ph((__m512)x, 0));
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
HR_INLINE void hr_store_f16(void *p, int64_t at, f32x16 x) {
    __m128i *h = (void *)((uint16_t *)p + at);
    _mm_storeu_si128(h, _mm256_cvtps_ph(hr_part(x, 0), 0));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(hr_part(x, 1), 0));
}
#else
HR_INLINE void hr_store_f16(void *p, int64_t at, f32x16 x) { HR_EACH hr_put_f16(p, at + lane, x[lane]); }
#endif
HR_INLINE f32x16 hr_round_f16(f32x16 x) { uint16_t h[16]; hr_store_f16(h, 0, x); return hr_load_f16(h, 0); }
HR_INLINE void hr_store_i32(void *p, int64_t at, i32x16 x) { *(i32x16 *)((int32_t *)p + at) = x; }
HR_INLINE void hr_store_i8(void *p, int64_t at, i32x16 x) { *(i8x16 *)((int8_t *)p + at) = __builtin_convertvector(x, i8x16); }
HR_INLINE void hr_store_u8(void *p, int64_t at, i32x16 x) { *(u8x16 *)((uint8_t *)p + at) = __builtin_convertvector(x, u8x16); }

HR_INLINE void hr_store_u4(void *p, int64_t at, i32x16 x) { hr_store_u8(p, at, x); }
HR_INLINE void hr_store_bool(void *p, int64_t at, i32x16 x) { hr_store_u8(p, at, x & 1); }

#define HR_GATHER(type, vector) \
    HR_INLINE vector hr_gather_##type(const void *p, int64_t at, int64_t step) { vector r; HR_EACH r[lane] = hr_get_##type(p, at + lane * step); return r; }
HR_GATHER(f32, f32x16)
HR_GATHER(bf16, f32x16)
HR_GATHER(f16, f32x16)
HR_GATHER(i32, i32x16)
HR_GATHER(i8, i32x16)
HR_GATHER(u8, i32x16)
HR_GATHER(u4, i32x16)
HR_INLINE i32x16 hr_gather_bool(const void *p, int64_t at, int64_t step) { return hr_gather_u8(p, at, step) != 0; }

HR_INLINE void hr_prefetch(const void *p, int64_t byte) { __builtin_prefetch((const char *)p + byte); }

// ---- groups: four bytes or two bfloat16 in a word, sixteen words in a vector; `byte` counts bytes

HR_INLINE int32_t hr_word(const void *p, int64_t byte) { int32_t w; memcpy(&w, (const char *)p + byte, 4); return w; }
HR_INLINE u8x64 hr_splat_word(int32_t w) { return (u8x64)hr_splat_i32(w); }
HR_INLINE u8x64 hr_load_words(const void *p, int64_t byte) { return *(const u8x64 *)((const uint8_t *)p + byte); }
HR_INLINE u8x64 hr_half(u8x64 x, int high) { return (high ? x >> 4 : x) & 15; }

// The first `count` members of each group; the others zero.
// From tables: of conditions C compilers make branches, and of loops with branches several loops.
HR_INLINE u8x64 hr_members_2(u8x64 x, int64_t count) {
    static const int32_t masks[] = {0, 0xFFFF, -1};
    return (u8x64)((i32x16)x & masks[hr_smaller(hr_larger(count, 0), 2)]);
}
HR_INLINE u8x64 hr_members_4(u8x64 x, int64_t count) {
    static const int32_t masks[] = {0, 0xFF, 0xFFFF, 0xFFFFFF, -1};
    return (u8x64)((i32x16)x & masks[hr_smaller(hr_larger(count, 0), 4)]);
}

HR_INLINE i32x16 hr_dot4(i32x16 sum, u8x64 a, u8x64 b) {
#if defined(__AVX512VNNI__)
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
    // Of sixteen bits each, since products of bytes added in pairs (vpmaddubsw) may exceed them.
    const i32x16 even = hr_splat_i32(0x00FF00FF);
    __m256i parts[2];
    for (int n = 0; n < 2; n++) {
        const __m256i x = hr_part_i((i32x16)a, n), y = hr_part_i((i32x16)b, n), s = hr_part_i(sum, n);
        const __m256i x0 = _mm256_and_si256(x, hr_part_i(even, n)), x1 = _mm256_srli_epi16(x, 8);
        const __m256i y0 = _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8), y1 = _mm256_srai_epi16(y, 8);
        parts[n] = _mm256_add_epi32(s, _mm256_add_epi32(_mm256_madd_epi16(x0, y0), _mm256_madd_epi16(x1, y1)));
    }
    return hr_join_i(parts[0], parts[1]);
#else
    HR_EACH for (int i = 0; i < 4; i++) sum[lane] += (int32_t)a[4 * lane + i] * (int8_t)b[4 * lane + i];
    return sum;
#endif
}
HR_INLINE f32x16 hr_dot2(f32x16 sum, u8x64 a, u8x64 b) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    const i32x16 x = (i32x16)a, y = (i32x16)b;
    const int32_t high = (int32_t)0xFFFF0000;
    sum = hr_fma((f32x16)(x & high), (f32x16)(y & high), sum);
    return hr_fma((f32x16)(x << 16), (f32x16)(y << 16), sum);
#endif
}

#endif
