/* Random numbers from a counter, never from a sequence: a value depends on (seed, stream, index) and
 * on nothing that was drawn before, so any rank can make any part of it.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). */
#ifndef TERCET_BASE_RNG_H
#define TERCET_BASE_RNG_H

#include <stdint.h>

/* The block function: counter[4] and key[2] to out[4]. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* 64 random bits. */
uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, bound), bound >= 1, without bias (rejection, with its own inner counter). */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound);
/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Elements first … first+n-1 of the stream's normal(0, std) values, as float. */
void rng_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t n, float std, float *out);
/* A stream number from a name (XXH3 of it): "init:model.norm.weight". */
uint64_t rng_stream(const char *name);
/* Fisher-Yates: out[0..n-1] becomes a permutation of 0..n-1 given by (seed, stream). */
void rng_permutation(uint64_t seed, uint64_t stream, int64_t n, uint32_t *out);

#endif
