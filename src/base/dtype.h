/* Element types: a table (bits, block shape), never "size times n".
 *
 * Sizes come from dtype_bytes(type, elements). bf16 and fp16 are stored as uint16_t. Conversions
 * round to nearest, ties to even; NaN stays NaN, values beyond the range become infinities. */
#ifndef TERCET_BASE_DTYPE_H
#define TERCET_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_U8, DTYPE_COUNT };

struct dtype_info {
    const char *name;        /* as people write it: "fp32", "bf16" */
    const char *safetensors; /* as a safetensors header writes it: "F32", "BF16" */
    int bits;                /* of one block */
    int block;               /* elements of one block: 1 for all plain types */
    int is_float;
};

const struct dtype_info *dtype_info(enum dtype type);
/* Bytes of n elements; n is a whole number of blocks. */
int64_t dtype_bytes(enum dtype type, int64_t n);
/* By either name; -1 when unknown. */
int dtype_from_name(const char *name, enum dtype *out);

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* NaN: keep it quiet, never round it to infinity */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);

/* Converts n elements between any two of F32, BF16, F16 (F64 as source or target too). The ranges
 * do not overlap, unless types are equal and src == dst. */
void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, int64_t n);

#endif
