#include "backend/cpu/kernels.h"

const struct cpu_kernels *kernels_choose(enum isa isa)
{
#ifdef __x86_64__
    if (isa >= ISA_AVX512_BF16)
        return &cpu_kernels_avx512_bf16;
    if (isa >= ISA_AVX512)
        return &cpu_kernels_avx512;
    if (isa >= ISA_AVX2)
        return &cpu_kernels_avx2;
#endif
    (void)isa;
    return &cpu_kernels_portable;
}
