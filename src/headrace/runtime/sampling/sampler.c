/* Draws tokens from logits, a row a task; sampler.py is the reference and says what each step means.
 *
 *     logits ─ adjust ─ survey ─┬─ greedy: the first of the largest
 *                               ├─ no cuts: weigh all ───────────────────────────┬─ walk to the random number
 *                               └─ top_k, top_p: gather the likeliest ─ reach ───┘
 *
 * Equal to the reference bit for bit, on every processor and in every order: weights are whole numbers, made by the same
 * IEEE 754 operations (no contraction), and sums of whole numbers do not depend on who adds first.
 */
#include "headrace_pool.h"
#include "select.h"

#define GREEDY_BELOW 1e-5
#define ONE ((int64_t)1 << 40)
#define FEW 64            /* tokens tried first for a nucleus */
#define LOWEST (-FLT_MAX) /* what is below it weighs nothing, and under a mask that is most */

/* Settings of a row; the fields of SlotSampling, and places as bytes from `base`. */
typedef struct {
    double temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t seed, sample_index;
    int64_t position, prompt_length, min_tokens, top_k;
    int64_t bias_count, bias_tokens, bias_values; /* int32 and float32 [bias_count] */
    int64_t suppress_count, suppress;             /* int32 [suppress_count] */
    int64_t output, seen;                         /* int32 and bytes [vocab]; 0: nothing is penalized */
    int64_t mask;                                 /* uint32 [ceil(vocab / 32)], a bit a token; 0: all may be drawn */
    int64_t report;                               /* likeliest tokens to report; -1: no log probabilities */
    int64_t token;                                /* the token to report on; -1: draw it */
} row;

typedef struct {
    int64_t token; /* -1: the logits are not finite */
    int64_t rank, total;
    double peak, value; /* log probability: value - (peak + log(total / ONE)) */
} result;

typedef struct {
    const char *base;
    const row *rows;
    const float *logits;
    result *results;
    int32_t *top_tokens;
    float *top_values;
    char *scratch;
    int64_t count, vocab, width;
} job;

/* Copies the logits of tokens that may be drawn; the others become minus infinity. */
static void copy_allowed(const uint32_t *mask, const float *x, int64_t n, float *copy) {
    int64_t at = 0;
    for (; at + 32 <= n; at += 32)
        for (int i = 0; i < 32; i++) copy[at + i] = mask[at / 32] >> i & 1 ? x[at + i] : -INFINITY;
    for (; at < n; at++) copy[at] = mask[at / 32] >> at % 32 & 1 ? x[at] : -INFINITY;
}

static void penalize(const row *r, const char *base, float *x, int64_t n) {
    const int32_t *output = (const int32_t *)(base + r->output);
    const uint8_t *seen = (const uint8_t *)(base + r->seen);
    const float repetition = (float)r->repetition, presence = (float)r->presence;
    const double frequency = (float)r->frequency;
    for (int64_t i = 0; i < n; i++) {
        uint64_t eight = 1;
        if (i + 8 <= n) memcpy(&eight, seen + i, sizeof eight);
        if (!eight) i += 7;
        if (!eight || !seen[i]) continue;
        const float repeated = x[i] > 0 ? x[i] / repetition : x[i] * repetition;
        const float present = output[i] > 0 ? repeated - presence : repeated;
        x[i] = (float)((double)present - frequency * output[i]);
    }
}

/* Logits after everything that changes single ones: `x` itself, or a copy. */
static const float *adjust(const row *r, const char *base, const float *x, int64_t n, float *copy) {
    const int64_t suppressed = r->position - r->prompt_length < r->min_tokens ? r->suppress_count : 0;
    if (!r->mask && !suppressed && !r->bias_count && !r->seen) return x;
    if (r->mask)
        copy_allowed((const uint32_t *)(base + r->mask), x, n, copy);
    else
        memcpy(copy, x, (size_t)n * sizeof(float));
    const int32_t *suppress = (const int32_t *)(base + r->suppress);
    for (int64_t i = 0; i < suppressed; i++) copy[suppress[i]] = -INFINITY;
    const int32_t *tokens = (const int32_t *)(base + r->bias_tokens);
    const float *values = (const float *)(base + r->bias_values);
    for (int64_t i = 0; i < r->bias_count; i++) copy[tokens[i]] += values[i];
    if (r->seen) penalize(r, base, copy, n);
    return copy;
}

static int limits_count(const row *r, int64_t n) { return 0 < r->top_k && r->top_k < n; }

/* The weight that a nucleus has to reach, for top_p below 1. */
static int64_t share_of(double top_p, int64_t total) {
    const double share = ceil(top_p * (double)total);
    const int64_t need = share >= 1 ? (int64_t)share : 1;
    return need < total ? need : total;
}

/* Leaves in `kept` the tokens that survive top_k and top_p. */
static void cut(const row *r, const float *x, int64_t n, float peak, double scale, desk *d) {
    list *kept = &d->kept;
    int64_t need;
    if (limits_count(r, n)) {
        likeliest(x, n, r->top_k, LOWEST, d);
        const int64_t total = weigh_list(kept, peak, scale);
        if (!(r->top_p < 1)) return;
        need = share_of(r->top_p, total);
    } else {
        need = share_of(r->top_p, weigh(x, n, peak, scale, 0, d->sums));
        const int64_t groups = blocks_of(n) * LANES;
        for (int64_t many = FEW;; many = many < groups && groups < many * 8 ? groups : many * 8) {
            gather(x, n, many, LOWEST, d);
            if (weigh_list(kept, peak, scale) >= need) break;
        }
    }
    keep(kept, reach(kept, &d->room, need));
}

/* floor(number / 2^53 * total). */
INLINE int64_t part_of(int64_t total, uint64_t number) {
    return (int64_t)((unsigned __int128)number * (uint64_t)total >> 53);
}

/* The token at which the weights of tokens in order exceed the random number's part of their sum; weights below `least`
 * are taken for nothing, but the largest is not below it. */
static int64_t walk_list(const list *l, int64_t least, uint64_t number) {
    int64_t total = 0, i = 0;
    for (int64_t j = 0; j < l->count; j++) total += l->weights[j] >= least ? l->weights[j] : 0;
    for (int64_t left = part_of(total, number);; i++) {
        left -= l->weights[i] >= least ? l->weights[i] : 0;
        if (left < 0) return token_of(l->keys[i]);
    }
}

static int64_t walk_all(const float *x, int64_t n, float peak, double scale, int64_t least, uint64_t number, desk *d) {
    float room[BLOCK];
    int64_t left = part_of(weigh(x, n, peak, scale, least, d->sums), number), block = 0;
    while (left >= d->sums[block]) left -= d->sums[block++];
    const float *v = block_at(x, n, block * BLOCK, room);
    for (int64_t i = 0;; i += WEIGHED) {
        int64_t w[WEIGHED] __attribute__((aligned(64)));
        weigh_32(v + i, peak, scale, (i64x8 *)w);
        for (int j = 0; j < WEIGHED; j++)
            if ((left -= w[j] >= least ? w[j] : 0) < 0) return block * BLOCK + i + j;
    }
}

/* 53 random bits: Philox4x64-10 (doi:10.1145/2063384.2063405), as NumPy counts: from one above what it is given. */
static uint64_t random_bits(uint64_t key0, uint64_t key1, uint64_t position) {
    uint64_t c[4] = {position + 1, position + 1 == 0, 0, 0};
    for (int round = 0; round < 10; round++) {
        const unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93u * c[0];
        const unsigned __int128 b = (unsigned __int128)0xCA5A826395121157u * c[2];
        c[0] = (uint64_t)(b >> 64) ^ c[1] ^ key0;
        c[1] = (uint64_t)b;
        c[2] = (uint64_t)(a >> 64) ^ c[3] ^ key1;
        c[3] = (uint64_t)a;
        key0 += 0x9E3779B97F4A7C15u;
        key1 += 0xBB67AE8584CAA73Bu;
    }
    return c[0] >> 11;
}

/* The token drawn; -1: the logits allow none. */
static int64_t draw(const row *r, const char *base, const float *logits, int64_t n, desk *d) {
    float peak = survey(logits, n, d->tops);
    if (!isfinite(peak)) return -1;
    const float *x = adjust(r, base, logits, n, d->adjusted);
    if (x != logits && !isfinite(peak = survey(x, n, d->tops))) return -1;
    if (r->temperature < GREEDY_BELOW) return first_of(x, d->tops, peak);
    const double scale = LOG2_E / r->temperature;
    const int64_t least = (int64_t)ceil(r->min_p * (double)ONE);
    const uint64_t number = random_bits(r->seed, r->sample_index, (uint64_t)r->position);
    if (!limits_count(r, n) && !(r->top_p < 1)) return walk_all(x, n, peak, scale, least, number, d);
    cut(r, x, n, peak, scale, d);
    return walk_list(&d->kept, least, number);
}

/* Log probabilities of the logits as they are. */
static void report(const row *r, const float *x, int64_t n, desk *d, result *out, int32_t *tokens, float *values) {
    out->peak = survey(x, n, d->tops);
    out->value = x[out->token];
    if (!isfinite(out->peak)) {
        out->token = -1;
        return;
    }
    out->total = weigh(x, n, (float)out->peak, LOG2_E, 0, d->sums);
    out->rank = 1 + count_above(x, n, x[out->token]);
    if (!r->report) return;
    likeliest(x, n, r->report, -INFINITY, d);
    uint64_t *keys = d->kept.keys;
    for (int64_t i = 0; i < d->kept.count; i++) {
        const uint64_t key = keys[i];
        int64_t j = i;
        for (; j > 0 && keys[j - 1] < key; j--) keys[j] = keys[j - 1];
        keys[j] = key;
    }
    for (int64_t i = 0; i < d->kept.count; i++) {
        tokens[i] = (int32_t)token_of(keys[i]);
        values[i] = x[tokens[i]];
    }
}

static void do_row(const job *j, int64_t i, desk *d) {
    const row *r = j->rows + i;
    const float *logits = j->logits + i * j->vocab;
    result *out = j->results + i;
    *out = (result){.token = r->token};
    if (r->token < 0) out->token = draw(r, j->base, logits, j->vocab, d);
    if (r->report >= 0 && out->token >= 0)
        report(r, logits, j->vocab, d, out, j->top_tokens + i * j->width, j->top_values + i * j->width);
}

static void *take(char **at, int64_t bytes) {
    char *begin = *at;
    *at += rounded(bytes);
    return begin;
}

static list take_list(char **at, int64_t n) {
    uint64_t *keys = take(at, n * 8);
    return (list){keys, take(at, n * 8), 0};
}

static desk desk_at(char *begin, int64_t vocab) {
    const int64_t blocks = blocks_of(vocab), n = blocks * BLOCK;
    desk d;
    d.adjusted = take(&begin, n * 4);
    d.tops = take(&begin, blocks * LANES * 4);
    d.sums = take(&begin, blocks * 8);
    d.kept = take_list(&begin, n);
    d.room = take_list(&begin, n);
    return d;
}

/* Bytes of scratch memory that a thread needs. */
int64_t hr_sample_scratch(int64_t vocab) {
    const int64_t blocks = blocks_of(vocab);
    return blocks * BLOCK * (4 + 4 * 8) + rounded(blocks * LANES * 4) + rounded(blocks * 8);
}

static void work(void *context, int thread, int threads, hr_sync *sync) {
    (void)threads;
    const job *j = context;
    desk d = desk_at(j->scratch + thread * hr_sample_scratch(j->vocab), j->vocab);
    hr_cursor at = hr_begin(sync);
    for (int64_t i; (i = hr_claim(&at, j->count)) >= 0;) do_row(j, i, &d);
}

/* buffers: base, row [rows], float32 [rows, vocab] logits; result [rows], int32 and float32 [rows, width] likeliest
 * tokens and their logits; scratch memory. sizes: rows, vocab, width. */
void hr_sample(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    job j = {
        buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5], buffers[6], sizes[0], sizes[1], sizes[2],
    };
    hr_pool_run(pool, work, &j, 1);
}
