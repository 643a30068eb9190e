#include "base/dtype.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static const struct dtype_info dtype_table[DTYPE_COUNT] = {
    [DTYPE_F32] = {"fp32", "F32", 32, 1, 1},  [DTYPE_BF16] = {"bf16", "BF16", 16, 1, 1},
    [DTYPE_F16] = {"fp16", "F16", 16, 1, 1},  [DTYPE_F64] = {"fp64", "F64", 64, 1, 1},
    [DTYPE_I32] = {"int32", "I32", 32, 1, 0}, [DTYPE_I64] = {"int64", "I64", 64, 1, 0},
    [DTYPE_U8] = {"uint8", "U8", 8, 1, 0},
};

const struct dtype_info *dtype_info(enum dtype type)
{
    assert((unsigned)type < DTYPE_COUNT);
    return &dtype_table[type];
}

int64_t dtype_bytes(enum dtype type, int64_t n)
{
    const struct dtype_info *info = dtype_info(type);
    assert(n >= 0 && n % info->block == 0);
    int64_t bytes;
    if (__builtin_mul_overflow(n / info->block, (int64_t)info->bits / 8, &bytes))
        return INT64_MAX;
    return bytes;
}

int dtype_from_name(const char *name, enum dtype *out)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, dtype_table[i].name) == 0 || strcmp(name, dtype_table[i].safetensors) == 0) {
            *out = (enum dtype)i;
            return 0;
        }
    }
    return -1;
}

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f) /* infinity or NaN, made quiet */
        return float_of_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in fp32 */
        float value = (float)fraction * 0x1p-24f;
        return float_of_bits(float_bits(value) | sign);
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = float_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520, half way between the largest fp16 and 2^16: infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal in fp16: 2^-14 and above */
        uint32_t odd = (magnitude >> 13) & 1u;
        return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
    }
    if (magnitude < 0x33000000u) /* below 2^-25, half the smallest subnormal */
        return (uint16_t)sign;
    /* Subnormal: the significand, shifted to units of 2^-24. */
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - (magnitude >> 23); /* 14 … 24 */
    uint32_t kept = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    if (rest > half || (rest == half && (kept & 1u)))
        kept++;
    return (uint16_t)(sign | kept);
}

/* fp64 to fp32 so that rounding the result again to 16 bits equals rounding once: cut towards zero,
 * with the last bit set when anything was cut ("round to odd"). */
static float f64_to_f32_odd(double d)
{
    float f = (float)d;
    if (isnan(d) || (double)f == d)
        return f;
    uint32_t u = float_bits(f);
    if (fabs((double)f) > fabs(d))
        u--;
    return float_of_bits(u | 1u);
}

enum { CONVERT_CHUNK = 256 };

/* n elements of `from`, widened (F64: narrowed, by the second rule when `odd`) to fp32. Pointers need not be
 * aligned: files are mapped where they lie. */
static void load_floats(enum dtype from, const uint8_t *src, int64_t n, int odd, float *out)
{
    uint16_t h;
    double d;
    switch (from) {
    case DTYPE_F32:
        memcpy(out, src, (size_t)n * sizeof *out);
        return;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, sizeof h);
            out[i] = bf16_to_f32(h);
        }
        return;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, sizeof h);
            out[i] = f16_to_f32(h);
        }
        return;
    case DTYPE_F64:
        for (int64_t i = 0; i < n; i++) {
            memcpy(&d, src + 8 * i, sizeof d);
            out[i] = odd ? f64_to_f32_odd(d) : (float)d;
        }
        return;
    case DTYPE_I32:
    case DTYPE_I64:
    case DTYPE_U8:
    case DTYPE_COUNT:
        break;
    }
    abort(); /* dtype_convert has refused it */
}

static void store_floats(enum dtype to, uint8_t *dst, int64_t n, const float *in)
{
    uint16_t h;
    double d;
    switch (to) {
    case DTYPE_F32:
        memcpy(dst, in, (size_t)n * sizeof *in);
        return;
    case DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            h = f32_to_bf16(in[i]);
            memcpy(dst + 2 * i, &h, sizeof h);
        }
        return;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            h = f32_to_f16(in[i]);
            memcpy(dst + 2 * i, &h, sizeof h);
        }
        return;
    case DTYPE_F64:
        for (int64_t i = 0; i < n; i++) {
            d = (double)in[i];
            memcpy(dst + 8 * i, &d, sizeof d);
        }
        return;
    case DTYPE_I32:
    case DTYPE_I64:
    case DTYPE_U8:
    case DTYPE_COUNT:
        break;
    }
    abort(); /* dtype_convert has refused it */
}

void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, int64_t n)
{
    if (n <= 0)
        return;
    if (to == from) {
        memmove(dst, src, (size_t)dtype_bytes(to, n));
        return;
    }
    assert(dtype_info(to)->is_float && dtype_info(from)->is_float);
    float chunk[CONVERT_CHUNK];
    for (int64_t i = 0; i < n; i += CONVERT_CHUNK) {
        int64_t count = n - i < CONVERT_CHUNK ? n - i : CONVERT_CHUNK;
        load_floats(from, (const uint8_t *)src + dtype_bytes(from, i), count, to != DTYPE_F32, chunk);
        store_floats(to, (uint8_t *)dst + dtype_bytes(to, i), count, chunk);
    }
}
