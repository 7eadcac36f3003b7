/* Rows of logits in blocks, and the weights of tokens; sampler.py says what a weight is. */
#ifndef HEADRACE_LOGITS_H
#define HEADRACE_LOGITS_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define BLOCK 1024 /* logits that are looked at together */
#define LANES 16
#define LOG2_E 1.4426950408889634
#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double f64x8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t i64x8 __attribute__((vector_size(64), aligned(8), may_alias));

INLINE int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
INLINE int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Logits at, at + 1, ...: where they lie, or at the end of the row in `room`, followed by minus infinities. */
INLINE const float *block_at(const float *x, int64_t n, int64_t at, float *room) {
    if (at + BLOCK <= n) return x + at;
    memcpy(room, x + at, (size_t)(n - at) * sizeof(float));
    for (int64_t i = n - at; i < BLOCK; i++) room[i] = -INFINITY;
    return room;
}

INLINE f32x16 larger(f32x16 x, f32x16 y) {
    const i32x16 first = x > y;
    return (f32x16)((first & (i32x16)x) | (~first & (i32x16)y));
}

/* A bit for each lane in which a condition holds. */
INLINE uint32_t lanes_of(i32x16 condition) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition);
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)condition[i] & (uint32_t)1 << i;
    return bits;
#endif
}

INLINE int any(i32x16 condition) {
#if defined(__AVX512F__)
    return lanes_of(condition) != 0;
#else
    const i64x8 c = (i64x8)condition;
    return ((c[0] | c[1]) | (c[2] | c[3]) | (c[4] | c[5]) | (c[6] | c[7])) != 0;
#endif
}

/* The largest logit and the largest of each group; NaN if one is. */
static float survey(const float *x, int64_t n, float *tops) {
    float room[BLOCK];
    f32x16 top = (f32x16){} - INFINITY;
    i32x16 nan = {};
    for (int64_t at = 0; at < n; at += BLOCK) {
        const f32x16 *v = (const f32x16 *)block_at(x, n, at, room);
        f32x16 a = v[0], b = v[1];
        nan |= (a != a) | (b != b);
        for (int i = 2; i < BLOCK / LANES; i += 2) {
            nan |= (v[i] != v[i]) | (v[i + 1] != v[i + 1]);
            a = larger(v[i], a);
            b = larger(v[i + 1], b);
        }
        a = larger(a, b);
        memcpy(tops + at / (BLOCK / LANES), &a, sizeof a);
        top = larger(a, top);
    }
    float peak = top[0];
    for (int i = 1; i < LANES; i++) peak = top[i] > peak ? top[i] : peak;
    return any(nan) ? NAN : peak;
}

/* The first token with this logit, which there is. */
static int64_t first_of(const float *x, const float *tops, float peak) {
    int64_t group = 0;
    while (tops[group] != peak) group++;
    int64_t i = group / LANES * BLOCK;
    while (x[i] != peak) i++;
    return i;
}

static int64_t count_above(const float *x, int64_t n, float bound) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += x[i] > bound;
    return count;
}

/* Three steps that AVX-512 does in one instruction each. */
INLINE f64x8 widened(f32x8 x) {
#if defined(__AVX512F__)
    return (f64x8)_mm512_cvtps_pd((__m256)x);
#else
    return __builtin_convertvector(x, f64x8);
#endif
}
INLINE f64x8 at_least(f64x8 x, f64x8 least) {
#if defined(__AVX512F__)
    return (f64x8)_mm512_max_pd((__m512d)x, (__m512d)least);
#else
    const i64x8 low = x < least;
    return (f64x8)((low & (i64x8)least) | (~low & (i64x8)x));
#endif
}
INLINE i64x8 nearest(f64x8 x) { /* 0 <= x < 2^51 */
#if defined(__AVX512DQ__)
    return (i64x8)_mm512_cvtpd_epi64((__m512d)x);
#else
    const f64x8 shift = (f64x8){} + 0x1p52;
    return (i64x8)(x + shift) - (i64x8)shift;
#endif
}

/* exp((x - peak) / temperature) in units of 2^-40 of 32 logits; `scale` is LOG2_E / temperature. Step by step for all
 * of them, so that there is always something to do while a result is awaited. */
#define WEIGHED 32
#define EACH for (int i = 0; i < WEIGHED / 8; i++)
INLINE void weigh_32(const float *x, double peak, double scale, i64x8 *weights) {
    const f64x8 least = (f64x8){} - 64.0, shift = (f64x8){} + 0x1.8p52;
    f64x8 y[4], whole[4], p[4];
    EACH y[i] = at_least((widened(((const f32x8 *)x)[i]) - peak) * scale, least);
    EACH whole[i] = y[i] + shift; /* rounded to the nearest, in the low bits */
    EACH y[i] -= whole[i] - shift;
    EACH p[i] = y[i] * (0x1p40 * 1.3359826850639156e-05) + 0x1p40 * 0.00015461367624448498;
    EACH p[i] = p[i] * y[i] + 0x1p40 * 0.0013341951024261744;
    EACH p[i] = p[i] * y[i] + 0x1p40 * 0.009618056919446203;
    EACH p[i] = p[i] * y[i] + 0x1p40 * 0.05550400375288354;
    EACH p[i] = p[i] * y[i] + 0x1p40 * 0.24022650920782232;
    EACH p[i] = p[i] * y[i] + 0x1p40 * 0.6931471838168765;
    EACH p[i] = p[i] * y[i] + 0x1p40;
    EACH weights[i] = nearest((f64x8)((i64x8)p[i] + ((i64x8)whole[i] << 52)));
}

/* Weights of all tokens, those below `least` taken for nothing: their sum, and that of each block. */
static int64_t weigh(const float *x, int64_t n, float peak, double scale, int64_t least, int64_t *sums) {
    float room[BLOCK];
    int64_t total = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        const float *v = block_at(x, n, at, room);
        i64x8 sum = {}, w[WEIGHED / 8];
        for (int part = 0; part < BLOCK; part += WEIGHED) {
            weigh_32(v + part, peak, scale, w);
            if (least) EACH w[i] &= w[i] >= least;
            EACH sum += w[i];
        }
        int64_t all = 0;
        for (int i = 0; i < 8; i++) all += sum[i];
        sums[at / BLOCK] = all;
        total += all;
    }
    return total;
}

#endif
