/* What kernels share: loads and stores of rows, exp, lanes.
 *
 * Kernels work through ranges in blocks that fit the first cache: a block is fp32 where it lies, or is
 * converted to a buffer on the stack, so each kernel is written once, for fp32. */
#ifndef TERCET_BACKEND_CPU_KERNELS_COMMON_H
#define TERCET_BACKEND_CPU_KERNELS_COMMON_H

#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

/* Elements of a block, and lanes that a sum is split in. */
enum { BLOCK = 512, LANES = 16 };

static inline void widen(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = bf16_to_f32(from[i]);
}

/* Same bits as f32_to_bf16, in a form that compilers turn into vector code. */
static inline uint16_t narrow_one(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline void narrow(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = narrow_one(from[i]);
}

static inline int64_t block_length(int64_t at, int64_t n)
{
    return n - at < BLOCK ? n - at : BLOCK;
}

/* n elements from `at` as fp32: where they lie, or converted into the buffer. */
static inline const float *block_load(const void *data, enum dtype type, int64_t at, int64_t n, float *buffer)
{
    if (type == DTYPE_F32)
        return (const float *)data + at;
    widen(buffer, (const uint16_t *)data + at, n);
    return buffer;
}

/* Where to compute n elements that belong to `at`: in place, or in the buffer until block_store(). */
static inline float *block_target(void *data, enum dtype type, int64_t at, float *buffer)
{
    return type == DTYPE_F32 ? (float *)data + at : buffer;
}

static inline void block_store(void *data, enum dtype type, int64_t at, int64_t n, const float *buffer)
{
    if (type != DTYPE_F32)
        narrow((uint16_t *)data + at, buffer, n);
}

static inline float lanes_sum(const float *lanes)
{
    float sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

/* exp within 2 units in the last place; 0 below -87.3, infinity above 88.3, NaN stays.
 * x = n ln 2 + r with |r| <= ln 2 / 2, and the polynomial of Cephes (S. L. Moshier) for exp(r). */
static inline float exp_f32(float x)
{
    const float low = -87.33654f, high = 88.3762626647949f, magic = 12582912.0f; /* 1.5 * 2^23 */
    float c = x < low ? low : x;
    c = c > high ? high : c;
    float shifted = c * 1.44269504088896341f + magic; /* the low bits of it are round(c / ln 2) */
    float n = shifted - magic;
    float r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits, magic_bits;
    float scale;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&magic_bits, &magic, sizeof magic_bits);
    bits = (bits - magic_bits + 127u) << 23;
    memcpy(&scale, &bits, sizeof scale);
    float y = p * scale;
    y = x < low ? 0.0f : y;
    return x > high ? INFINITY : y;
}

#endif
