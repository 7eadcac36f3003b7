/* The likeliest tokens of a row, and where their weights reach a sum. */
#ifndef HEADRACE_SELECT_H
#define HEADRACE_SELECT_H

#include "logits.h"

/* Tokens and their weights. A key orders tokens: by logit, then the smaller one first. */
typedef struct {
    uint64_t *keys;
    int64_t *weights;
    int64_t count;
} list;

typedef struct {
    float *adjusted; /* [vocab] */
    float *tops;     /* [groups]: the largest of each group of BLOCK / LANES logits */
    int64_t *sums;   /* [blocks]: weights */
    list kept, room;
} desk;

INLINE uint64_t key_of(float x, int64_t token) {
    const float positive = x + 0.0f; /* one zero */
    uint32_t bits;
    memcpy(&bits, &positive, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~(uint32_t)token;
}

INLINE float value_of(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    bits = bits >> 31 ? bits & 0x7fffffffu : ~bits;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE int64_t token_of(uint64_t key) { return (int64_t)(uint32_t)~(uint32_t)key; }

/* Gives the tokens of a list their weights; returns the sum. */
static int64_t weigh_list(list *l, float peak, double scale) {
    int64_t total = 0, w[WEIGHED] __attribute__((aligned(64)));
    for (int64_t at = 0; at < l->count; at += WEIGHED) {
        const int64_t some = l->count - at < WEIGHED ? l->count - at : WEIGHED;
        float x[WEIGHED] = {0};
        for (int64_t i = 0; i < some; i++) x[i] = value_of(l->keys[at + i]);
        weigh_32(x, peak, scale, (i64x8 *)w);
        for (int64_t i = 0; i < some; i++) total += l->weights[at + i] = w[i];
    }
    return total;
}

/* The key at which weights, added from the largest key down, reach `need`, from 1 to their sum: radix selection, each
 * round by the first bits in which the keys that are left differ. */
static uint64_t reach(const list *l, list *room, int64_t need) {
    int64_t sums[1 << 11];
    const int bits = l->count > 4096 ? 11 : 8;
    const uint64_t *keys = l->keys;
    const int64_t *weights = l->weights;
    for (int64_t n = l->count; n > 1;) {
        uint64_t differ = 0;
        for (int64_t i = 1; i < n; i++) differ |= keys[i] ^ keys[0];
        const int high = 63 - __builtin_clzll(differ), shift = high < bits ? 0 : high - bits + 1;
        const uint64_t mask = ((uint64_t)1 << bits) - 1;
        memset(sums, 0, sizeof *sums << bits);
        for (int64_t i = 0; i < n; i++) sums[keys[i] >> shift & mask] += weights[i];
        uint64_t digit = mask;
        while (sums[digit] < need) need -= sums[digit--];
        int64_t left = 0;
        for (int64_t i = 0; i < n; i++) {
            room->keys[left] = keys[i];
            room->weights[left] = weights[i];
            left += (keys[i] >> shift & mask) == digit;
        }
        keys = room->keys;
        weights = room->weights;
        n = left;
    }
    return keys[0];
}

static void keep(list *l, uint64_t least) {
    int64_t left = 0;
    for (int64_t i = 0; i < l->count; i++) {
        l->keys[left] = l->keys[i];
        l->weights[left] = l->weights[i];
        left += l->keys[i] >= least;
    }
    l->count = left;
}

/* A logit that at least `many` tokens have or exceed, and not many more: that of the group which is so manieth. */
static float bound_of(int64_t n, int64_t many, desk *d) {
    const int64_t groups = blocks_of(n) * LANES;
    if (many > groups) return -INFINITY;
    for (int64_t i = 0; i < groups; i++) {
        d->kept.keys[i] = key_of(d->tops[i], i);
        d->kept.weights[i] = 1;
    }
    d->kept.count = groups;
    return value_of(reach(&d->kept, &d->room, many));
}

/* The `many` likeliest tokens and some more, in order of their ids, each with weight 1; but none below `least`. */
static void gather(const float *x, int64_t n, int64_t many, float least, desk *d) {
    const float found = bound_of(n, many, d), bound = found > least ? found : least;
    list *into = &d->kept;
    float room[BLOCK];
    int64_t count = 0;
    for (int64_t at = 0; at < n; at += BLOCK) {
        const float *v = block_at(x, n, at, room);
        for (int part = 0; part < BLOCK; part += 4 * LANES) {
            const f32x16 *w = (const f32x16 *)(v + part);
            if (!any((w[0] >= bound) | (w[1] >= bound) | (w[2] >= bound) | (w[3] >= bound))) continue;
            for (int k = 0; k < 4; k++)
                for (uint32_t bits = lanes_of(w[k] >= bound); bits; bits &= bits - 1) {
                    const int i = part + k * LANES + __builtin_ctz(bits);
                    if (at + i >= n) break;
                    into->keys[count] = key_of(v[i], at + i);
                    into->weights[count++] = 1;
                }
        }
    }
    into->count = count;
}

/* The `many` likeliest tokens, with weight 1; all from `least` up where those are no more. */
static void likeliest(const float *x, int64_t n, int64_t many, float least, desk *d) {
    gather(x, n, many, least, d);
    if (many < d->kept.count) keep(&d->kept, reach(&d->kept, &d->room, many));
}

#endif
