/* Vectors of fp32 numbers, as wide as the instruction set of the file that includes this.
 *
 * Operations are exact or rounded once, so an element's bits do not depend on the width. vec_fma() rounds
 * once where the instruction set has it (AVX2, AVX-512) and twice elsewhere. */
#ifndef TERCET_BACKEND_CPU_KERNELS_VECTOR_H
#define TERCET_BACKEND_CPU_KERNELS_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { VECTOR = 16 };
#elif defined(__AVX2__)
enum { VECTOR = 8 };
#else
enum { VECTOR = 4 };
#endif

typedef float vec __attribute__((vector_size(VECTOR * sizeof(float))));
typedef int32_t vec_int __attribute__((vector_size(VECTOR * sizeof(int32_t))));

#define VECTOR_INLINE static inline __attribute__((always_inline))

VECTOR_INLINE vec vec_load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

VECTOR_INLINE void vec_store(float *to, vec x)
{
    memcpy(to, &x, sizeof x);
}

VECTOR_INLINE vec vec_all(float x)
{
    return x - (vec){0}; /* keeps -0 */
}

/* a b + c */
VECTOR_INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Elements of a where the mask has ones, of b where it has zeros. */
VECTOR_INLINE vec vec_select(vec_int mask, vec a, vec b)
{
    return (vec)((mask & (vec_int)a) | (~mask & (vec_int)b));
}

/* a > b ? a : b; b where one of them is not a number */
VECTOR_INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}

/* a < b ? a : b; b where one of them is not a number */
VECTOR_INLINE vec vec_min(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vec_select(a < b, a, b);
#endif
}

/* The largest element; not for NaN. */
VECTOR_INLINE float vec_largest(vec x)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float most = x[0];
    for (int i = 1; i < VECTOR; i++)
        most = x[i] > most ? x[i] : most;
    return most;
#endif
}

/* Ones in the elements whose number, counted from `first`, is below `count`. */
VECTOR_INLINE vec_int vec_below(int64_t first, int64_t count)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vec_int number;
    memcpy(&number, numbers, sizeof number);
    return number < (int32_t)(count - first) - (vec_int){0};
}

/* rows[r][c] and rows[c][r] change places. */
VECTOR_INLINE void vec_transpose(vec rows[VECTOR])
{
#if defined(__AVX512F__)
    __m512d pairs[16];
    __m512 part[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) { /* 2 x 2 words in each quarter */
        pairs[i] = (__m512d)_mm512_unpacklo_ps((__m512)rows[i], (__m512)rows[i + 1]);
        pairs[i + 1] = (__m512d)_mm512_unpackhi_ps((__m512)rows[i], (__m512)rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) { /* 4 x 4: part[4 g + w] holds word w + 4 q of rows 4 g … 4 g + 3 */
        int g = i & ~3, odd = i & 1, high = i >> 1 & 1;
        part[g + 2 * odd + high] = high ? (__m512)_mm512_unpackhi_pd(pairs[g + odd], pairs[g + 2 + odd])
                                        : (__m512)_mm512_unpacklo_pd(pairs[g + odd], pairs[g + 2 + odd]);
    }
#pragma GCC unroll 4
    for (int w = 0; w < 4; w++) { /* quarters */
        __m512 a = _mm512_shuffle_f32x4(part[w], part[4 + w], 0x88);
        __m512 b = _mm512_shuffle_f32x4(part[w], part[4 + w], 0xdd);
        __m512 c = _mm512_shuffle_f32x4(part[8 + w], part[12 + w], 0x88);
        __m512 d = _mm512_shuffle_f32x4(part[8 + w], part[12 + w], 0xdd);
        rows[w] = (vec)_mm512_shuffle_f32x4(a, c, 0x88);
        rows[4 + w] = (vec)_mm512_shuffle_f32x4(b, d, 0x88);
        rows[8 + w] = (vec)_mm512_shuffle_f32x4(a, c, 0xdd);
        rows[12 + w] = (vec)_mm512_shuffle_f32x4(b, d, 0xdd);
    }
#else
    float words[VECTOR][VECTOR];
    memcpy(words, rows, sizeof words);
    for (int r = 0; r < VECTOR; r++)
        for (int c = 0; c < VECTOR; c++)
            rows[r][c] = words[c][r];
#endif
}

/* exp within 2 units in the last place; 0 below -87, at most 2.4e38, NaN stays.
 * x = n ln 2 + r with |r| <= ln 2 / 2, and the polynomial of Cephes (S. L. Moshier) for exp(r). */
VECTOR_INLINE vec vec_exp(vec x)
{
    const vec low = vec_all(-87.0f), magic = vec_all(12582912.0f); /* 1.5 * 2^23 */
    vec c = vec_min(vec_all(88.37626f), vec_max(low, x));
    vec shifted = vec_fma(c, vec_all(1.44269504088896341f), magic); /* the low bits of it are n */
    vec n = shifted - magic;
    vec r = vec_fma(n, vec_all(-0.693359375f), c);
    r = vec_fma(n, vec_all(2.12194440e-4f), r);
    vec p = vec_all(1.9875691500e-4f);
    p = vec_fma(p, r, vec_all(1.3981999507e-3f));
    p = vec_fma(p, r, vec_all(8.3334519073e-3f));
    p = vec_fma(p, r, vec_all(4.1665795894e-2f));
    p = vec_fma(p, r, vec_all(1.6666665459e-1f));
    p = vec_fma(p, r, vec_all(5.0000001201e-1f));
    p = vec_fma(p, r * r, r) + 1.0f;
    vec y = (vec)((vec_int)p + ((vec_int)shifted << 23)); /* n to the exponent; magic's own bits leave */
    return vec_select(x < low, (vec){0}, y);
}

#endif
