#include "base/rng.h"
#include "support/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The known answers that come with Random123, the authors' own library. */
static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    assert_true(rng_bits(0, 0, 0) == UINT64_C(0xe169c58d6627e8d5));
    assert_true(rng_bits(UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e),
                         UINT64_C(0x85a308d3243f6a88)) == UINT64_C(0x94fdccebd16cfe09));
}

static void every_argument_counts(void **state)
{
    (void)state;
    uint64_t base = rng_bits(1, 2, 3);
    assert_true(base == rng_bits(1, 2, 3));
    for (int bit = 0; bit < 64; bit++) {
        uint64_t flip = UINT64_C(1) << bit;
        assert_true(rng_bits(1 ^ flip, 2, 3) != base);
        assert_true(rng_bits(1, 2 ^ flip, 3) != base);
        assert_true(rng_bits(1, 2, 3 ^ flip) != base);
    }
}

static void below_is_in_range_and_even(void **state)
{
    (void)state;
    enum { DRAWS = 70000, BOUND = 7 };
    int count[BOUND] = {0};
    for (uint64_t i = 0; i < DRAWS; i++)
        count[rng_below(5, 6, i, BOUND)]++;
    for (int i = 0; i < BOUND; i++) /* within five standard deviations of 10,000 */
        assert_in_range(count[i], 9500, 10500);
    assert_true(rng_below(5, 6, 7, 1) == 0);
    /* A bound where nearly half of all draws are rejected: without rejection the lower half would come
     * twice as often. */
    const uint64_t bound = (UINT64_C(1) << 63) + (UINT64_C(1) << 62);
    int low = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t r = rng_below(8, 9, i, bound);
        assert_true(r < bound);
        low += r < bound / 3;
    }
    assert_in_range(low, DRAWS / 3 - 650, DRAWS / 3 + 650);
    for (uint64_t i = 0; i < 1000; i++)
        assert_true(rng_below(1, 1, i, UINT64_MAX) < UINT64_MAX);
}

static void uniform_has_its_moments(void **state)
{
    (void)state;
    enum { DRAWS = 100000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double u = rng_uniform(11, 12, i);
        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
        squares += u * u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 0.005);
    assert_true(fabs(squares / DRAWS - 1.0 / 3.0) < 0.005);
}

static void normal_does_not_depend_on_the_cut(void **state)
{
    (void)state;
    enum { N = 101 };
    float whole[N], part[N];
    rng_normal(1, 2, 1000, N, 0.02f, whole);
    for (int64_t cut = 0; cut <= N; cut++) {
        memset(part, 0, sizeof part);
        rng_normal(1, 2, 1000, cut, 0.02f, part);
        rng_normal(1, 2, 1000 + cut, N - cut, 0.02f, part + cut);
        assert_memory_equal(part, whole, sizeof whole);
    }
    for (int64_t i = 0; i < N; i++) {
        float one;
        rng_normal(1, 2, 1000 + i, 1, 0.02f, &one);
        assert_memory_equal(&one, &whole[i], sizeof one);
    }
}

/* Against the C library's functions: the formula of Box and Muller on the same block. */
static void normal_agrees_with_the_formula(void **state)
{
    (void)state;
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    rng_normal(77, 78, 0, N, 1.0f, x);
    double sum = 0, squares = 0, fourth = 0, neighbours = 0;
    for (uint64_t p = 0; p < N / 2; p++) {
        uint32_t counter[4] = {(uint32_t)p, 0, 78, 0}, key[2] = {77, 0}, w[4];
        rng_philox(counter, key, w);
        double u = ldexp((double)(((w[0] | (uint64_t)w[1] << 32) >> 11) + 1), -53);
        double turns = ldexp((double)((w[2] | (uint64_t)w[3] << 32) >> 11), -53);
        double radius = sqrt(-2.0 * log(u));
        assert_true(fabs((double)x[2 * p] - radius * cos(2 * M_PI * turns)) <= 1e-6);
        assert_true(fabs((double)x[2 * p + 1] - radius * sin(2 * M_PI * turns)) <= 1e-6);
        neighbours += (double)x[2 * p] * (double)x[2 * p + 1];
    }
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        sum += v;
        squares += v * v;
        fourth += v * v * v * v;
    }
    free(x);
    assert_true(fabs(sum / N) < 0.01);
    assert_true(fabs(squares / N - 1.0) < 0.015);
    assert_true(fabs(fourth / N - 3.0) < 0.12);
    assert_true(fabs(2.0 * neighbours / N) < 0.015);
}

/* Bits that must never change: they are the initial weights of every recorded run. The values were
 * checked with the test above and with 50-digit arithmetic. */
static void normal_bits_are_fixed(void **state)
{
    (void)state;
    float x[4];
    uint32_t bits[4];
    rng_normal(42, 0, 0, 4, 1.0f, x);
    memcpy(bits, x, sizeof bits);
    assert_true(bits[0] == 0xbf2a5602u && bits[1] == 0x3f849c6eu && bits[2] == 0xbfb789aeu &&
                bits[3] == 0x3ed8b7ebu);
}

static void streams_have_names(void **state)
{
    (void)state;
    assert_true(rng_stream("") == UINT64_C(0x2d06800538d394c2)); /* XXH3-64 of nothing */
    assert_true(rng_stream("init:a") == rng_stream("init:a"));
    assert_true(rng_stream("init:a") != rng_stream("init:b"));
}

static void permutation_is_one_and_even(void **state)
{
    (void)state;
    enum { N = 1009 };
    uint32_t p[N];
    char seen[N] = {0};
    rng_permutation(1, 2, N, p);
    int fixed = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_true(p[i] < N && !seen[p[i]]);
        seen[p[i]] = 1;
        fixed += p[i] == i;
    }
    assert_true(fixed < 10);
    int count[24] = {0};
    for (uint64_t seed = 0; seed < 24000; seed++) { /* all 24 orders of 4, 1,000 times each */
        uint32_t q[4];
        rng_permutation(seed, 3, 4, q);
        int index = 0, left = 0xf;
        for (int i = 0; i < 4; i++) {
            int smaller = __builtin_popcount((unsigned)left & ((1u << q[i]) - 1));
            index = index * (4 - i) + smaller;
            left &= ~(1 << q[i]);
        }
        count[index]++;
    }
    for (int i = 0; i < 24; i++)
        assert_in_range(count[i], 840, 1160);
    rng_permutation(1, 2, 0, p);
    rng_permutation(1, 2, 1, p);
    assert_int_equal(p[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(every_argument_counts),
        cmocka_unit_test(below_is_in_range_and_even),
        cmocka_unit_test(uniform_has_its_moments),
        cmocka_unit_test(normal_does_not_depend_on_the_cut),
        cmocka_unit_test(normal_agrees_with_the_formula),
        cmocka_unit_test(normal_bits_are_fixed),
        cmocka_unit_test(streams_have_names),
        cmocka_unit_test(permutation_is_one_and_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
