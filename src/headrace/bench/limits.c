/* What a core can do at most: arithmetic on registers alone, and reading memory.
 *
 * Each kernel is a loop over independent accumulators, enough of them to hide the latency of the instruction, and is
 * written with one inline assembly statement an instruction: what is measured is that instruction, whatever the
 * optimizer thinks of loop-invariant products. Functions carry their own target attributes, so that one file serves
 * every CPU of an architecture; features() says at run time which kernels may be called.
 *
 *     work = name(loops)     runs `loops` rounds and returns the operations done; a multiply-add counts as two
 */
#include <stddef.h>
#include <stdint.h>

enum { F32_BASE = 1, F32_WIDE = 2, BF16 = 4, I8_BASE = 8, I8_DOT = 16, I8_WIDE = 32, READ_BASE = 64, READ_WIDE = 128 };

static volatile uint8_t sink; /* keeps the compiler from dropping results */

/* Repeats a statement for each accumulator. They are variables, not an array: an array might stay in memory. */
#define EACH8(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define EACH10(DO) EACH8(DO) DO(8) DO(9)
#define EACH16(DO) EACH10(DO) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define OPEN(i) a##i = x,
#define KEEP(i) sink = (uint8_t)a##i[0];

/* Defines a kernel: COUNT accumulators of type V, operands x and y full of FILL, OPS operations a statement. */
#define KERNEL(NAME, TARGET, V, COUNT, OPS, FILL, DO)                                                                  \
    TARGET uint64_t NAME(uint64_t loops) {                                                                             \
        V x = (V){0} + FILL, y = x, EACH##COUNT(OPEN) rest = x;                                                        \
        for (uint64_t n = 0; n < loops; n++) { EACH##COUNT(DO) }                                                       \
        EACH##COUNT(KEEP) sink = (uint8_t)rest[0];                                                                     \
        return loops * COUNT * OPS;                                                                                    \
    }

/* Defines a reader of `bytes` at `memory`; both are multiples of 512. */
#define TAKE(i) a##i ^= p[i];
#define READER(NAME, TARGET, V)                                                                                        \
    TARGET uint64_t NAME(const void *memory, uint64_t bytes) {                                                         \
        const V *p = memory, *end = p + bytes / sizeof(V);                                                             \
        V x = {0}, EACH8(OPEN) rest = x;                                                                               \
        for (; p + 8 <= end; p += 8) { EACH8(TAKE) }                                                                   \
        EACH8(KEEP) sink = (uint8_t)rest[0];                                                                           \
        return bytes;                                                                                                  \
    }

typedef float f32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

#if defined(__x86_64__)
#include <cpuid.h>

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f")))

/* By CPUID itself: __builtin_cpu_supports does not know these features in every compiler. */
int features(void) {
    unsigned a, b, c, d, b7, c7, d7, a71;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    int os_saves = (c >> 27) & 1, fma = (c >> 12) & 1;
    uint32_t saved = 0, high = 0;
    if (os_saves) __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if (!__get_cpuid_count(7, 1, &a71, &b, &c, &d)) a71 = 0;
    int ymm = (saved & 0x06) == 0x06, zmm = (saved & 0xe6) == 0xe6;
    int avx2 = ymm && fma && ((b7 >> 5) & 1), avx512 = zmm && avx2 && ((b7 >> 16) & 1);
    int found = 0;
    if (avx2) found |= F32_BASE | I8_BASE | READ_BASE;
    if (avx512) found |= F32_WIDE | READ_WIDE;
    if (avx2 && ((a71 >> 4) & 1)) found |= I8_DOT;
    if (avx512 && ((c7 >> 11) & 1)) found |= I8_WIDE;
    if (avx512 && ((a71 >> 5) & 1)) found |= BF16;
    return found;
}

#define F32_FMA(i) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define BF16_DOT(i) __asm__ volatile("vdpbf16ps %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define I8_DOT512(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define I8_DOT256(i) __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(a##i) : "x"(x), "x"(y));
/* Without a dot product: multiply to int16 pairs, add them to int32 (here with x, whose value does not matter). */
#define I8_MADD(i)                                                                                                     \
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0"                               \
                     : "+x"(a##i), "=&x"(rest) : "x"(x), "x"(y));

KERNEL(f32_base, AVX2, f32x8, 10, 16, 1e-3f, F32_FMA)
KERNEL(f32_wide, AVX512, f32x16, 16, 32, 1e-3f, F32_FMA)
KERNEL(bf16_dot, AVX512, u32x16, 16, 64, 0x3a833a83u, BF16_DOT)
KERNEL(i8_base, AVX2, u32x8, 10, 64, 0x01020301u, I8_MADD)
KERNEL(i8_dot, AVX2, u32x8, 10, 64, 0x01020301u, I8_DOT256)
KERNEL(i8_wide, AVX512, u32x16, 16, 128, 0x01020301u, I8_DOT512)
READER(read_base, AVX2, u64x4)
READER(read_wide, AVX512, u64x8)

#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static int has(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}
#endif

int features(void) {
    int found = F32_BASE | READ_BASE;
#if defined(__linux__)
    if ((getauxval(AT_HWCAP) >> 20) & 1) found |= I8_DOT;
    if ((getauxval(AT_HWCAP2) >> 14) & 1) found |= BF16;
#elif defined(__APPLE__)
    if (has("hw.optional.arm.FEAT_DotProd")) found |= I8_DOT;
    if (has("hw.optional.arm.FEAT_BF16")) found |= BF16;
#endif
    return found;
}

#define F32_FMA(i) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(a##i) : "w"(x), "w"(y));
#define BF16_DOT(i)                                                                                                    \
    __asm__ volatile(".arch_extension bf16\n\tbfdot %0.4s, %1.8h, %2.8h" : "+w"(a##i) : "w"(x), "w"(y));
#define I8_SDOT(i)                                                                                                     \
    __asm__ volatile(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(a##i) : "w"(x), "w"(y));

KERNEL(f32_base, , f32x4, 16, 8, 1e-3f, F32_FMA)
KERNEL(bf16_dot, , u32x4, 16, 16, 0x3a833a83u, BF16_DOT)
KERNEL(i8_dot, , u32x4, 16, 32, 0x01020301u, I8_SDOT)
READER(read_base, , u64x2)

#else
int features(void) { return READ_BASE; }
READER(read_base, , u64x2)
#endif
