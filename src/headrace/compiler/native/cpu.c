/* What only instructions can ask of an x86 processor. cpu.py knows what the answers mean. */
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* CPUID: eax, ebx, ecx, edx; zeros for a leaf that the processor does not have. */
void hr_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t *out) {
    out[0] = out[1] = out[2] = out[3] = 0;
    __get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]);
}

/* The register states that the system saves; 0 where it saves none. */
uint64_t hr_xgetbv(void) {
    uint32_t low, high, out[4];
    hr_cpuid(1, 0, out);
    if (!((out[2] >> 27) & 1)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Ask Linux for the tile registers, which a process gets on request only. Whether it may use them. */
int hr_request_amx(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return 0;
#endif
}
#else
void hr_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t *out) { (void)leaf, (void)subleaf, (void)out; }
uint64_t hr_xgetbv(void) { return 0; }
int hr_request_amx(void) { return 0; }
#endif
