#include "base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Multipliers and key increments as the paper gives them. */
static const uint32_t philox_m0 = 0xD2511F53u, philox_m1 = 0xCD9E8D57u;
static const uint32_t philox_w0 = 0x9E3779B9u, philox_w1 = 0xBB67AE85u;
enum { PHILOX_ROUNDS = 10 };

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)philox_m0 * c0;
        uint64_t p1 = (uint64_t)philox_m1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += philox_w0;
        k1 += philox_w1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The block of (seed, stream, index), as two 64-bit numbers. */
static void rng_block(uint64_t seed, uint64_t stream, uint64_t index, uint64_t out[2])
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                           (uint32_t)(stream >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];
    rng_philox(counter, key, words);
    out[0] = words[0] | (uint64_t)words[1] << 32;
    out[1] = words[2] | (uint64_t)words[3] << 32;
}

uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t block[2];
    rng_block(seed, stream, index, block);
    return block[0];
}

uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound)
{
    assert(bound >= 1);
    /* 2^64 mod bound of the lowest values would come once too often: they are thrown away. */
    uint64_t reject = (0 - bound) % bound;
    uint64_t block[2];
    rng_block(seed, stream, index, block);
    while (block[0] < reject) {
        if (block[1] >= reject)
            return block[1] % bound;
        rng_block(seed, block[1], block[0], block); /* as far from other counters as chance puts it */
    }
    return block[0] % bound;
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(rng_bits(seed, stream, index) >> 11) * 0x1p-53;
}

/* Logarithm, sine and cosine are spelt out here, in operations that IEEE 754 rounds alike everywhere: a C
 * library's differ in the last bit between versions and CPUs, and the weights that a seed gives should
 * not. The errors, below 1e-15 relative, vanish in the float result. */

/* log(x) for normal x in (0, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh((m-1)/(m+1)). */
static double portable_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * z;
    return exponent * 0.69314718055994530942 + (2.0 * s + 2.0 * s * sum);
}

/* sin and cos of 2 pi turns, 0 <= turns < 1. */
static void portable_sincos(double turns, double *sine, double *cosine)
{
    int quadrant = (int)(4.0 * turns + 0.5);
    double x = (4.0 * turns - quadrant) * 1.57079632679489661923; /* within pi/4 */
    double z = -x * x;
    double s = 1.0, c = 1.0;
    for (int k = 17; k >= 3; k -= 2)
        s = 1.0 + s * z / (k * (k - 1));
    for (int k = 18; k >= 2; k -= 2)
        c = 1.0 + c * z / (k * (k - 1));
    s *= x;
    switch (quadrant & 3) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}

/* Box and Muller, "A note on the generation of random normal deviates", 1958: one block gives values
 * 2 p and 2 p + 1. */
static void normal_pair(uint64_t seed, uint64_t stream, uint64_t p, double out[2])
{
    uint64_t block[2];
    rng_block(seed, stream, p, block);
    double u = (double)((block[0] >> 11) + 1) * 0x1p-53; /* in (0, 1] */
    double turns = (double)(block[1] >> 11) * 0x1p-53;
    double radius = sqrt(-2.0 * portable_log(u));
    double sine, cosine;
    portable_sincos(turns, &sine, &cosine);
    out[0] = radius * cosine;
    out[1] = radius * sine;
}

void rng_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t n, float std, float *out)
{
    assert(first >= 0);
    double pair[2];
    int64_t i = 0;
    while (i < n) {
        int64_t element = first + i;
        normal_pair(seed, stream, (uint64_t)element / 2, pair);
        if (element % 2 == 0)
            out[i++] = (float)(pair[0] * (double)std);
        if (i < n)
            out[i++] = (float)(pair[1] * (double)std);
    }
}

uint64_t rng_stream(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

void rng_permutation(uint64_t seed, uint64_t stream, int64_t n, uint32_t *out)
{
    assert(n <= (int64_t)UINT32_MAX + 1);
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    for (int64_t i = n - 1; i >= 1; i--) {
        uint64_t j = rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        uint32_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}
