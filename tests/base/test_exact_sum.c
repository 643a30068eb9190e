#include "base/exact_sum.h"
#include "base/rng.h"
#include "support/cmocka.h"

#include <float.h>
#include <math.h>
#include <string.h>

__extension__ typedef __int128 wide;

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void assert_same(double a, double b)
{
    assert_int_equal(bits_of(a), bits_of(b));
}

static double sum_of(const double *x, int n)
{
    struct exact_sum s;
    exact_sum_clear(&s);
    for (int i = 0; i < n; i++)
        exact_sum_add(&s, x[i]);
    return exact_sum_value(&s);
}

static void single_values_come_back(void **state)
{
    (void)state;
    static const double special[] = {0.0,     1.0,      -1.0,      DBL_MAX,    -DBL_MAX,
                                     DBL_MIN, -DBL_MIN, 0x1p-1074, -0x1p-1074, 0x0.fffffffffffffp-1022,
                                     M_PI,    1e300,    -1e-300};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        assert_same(sum_of(&special[i], 1), special[i]);
    for (uint64_t i = 0; i < 200000; i++) { /* any finite bit pattern */
        double x = double_of(rng_bits(1, 2, i));
        if (isfinite(x) && x != 0.0)
            assert_same(sum_of(&x, 1), x);
    }
    for (int e = -1074; e <= 1023; e++) { /* each bit position, alone and in the company of its neighbour */
        double x = ldexp(1.0, e);
        assert_same(sum_of(&x, 1), x);
        double pair[] = {x, -ldexp(1.0, e > -1074 ? e - 1 : e)};
        assert_same(sum_of(pair, 2), e > -1074 ? ldexp(1.0, e - 1) : 0.0);
    }
}

/* The exact sum of numbers m 2^s, held as a 128-bit integer, which the compiler rounds once. */
static void agrees_with_wide_integers(void **state)
{
    (void)state;
    enum { N = 37 };
    static const int scales[] = {0, -1074, -1000, -100, 800};
    for (uint64_t round = 0; round < 4000; round++) {
        int scale = scales[round % 5];
        double x[N];
        wide exact = 0;
        for (uint64_t i = 0; i < N; i++) {
            int64_t m = (int64_t)(rng_bits(round, 1, i) >> 11);
            int shift = (int)rng_below(round, 2, i, 64);
            if (rng_below(round, 3, i, 2))
                m = -m;
            if (i > 0 && rng_below(round, 4, i, 3) == 0) { /* cancels the last one, but for one unit */
                double last = ldexp(x[i - 1], -scale - shift);
                m = fabs(last) < 0x1p53 ? 1 - (int64_t)last : 1;
            }
            x[i] = ldexp((double)m, shift + scale);
            exact += (wide)m * ((wide)1 << shift);
        }
        assert_same(sum_of(x, N), ldexp((double)exact, scale));
    }
}

static void order_and_grouping_leave_no_trace(void **state)
{
    (void)state;
    enum { N = 301 };
    double x[N];
    for (uint64_t i = 0; i < N; i++) {
        x[i] = double_of(rng_bits(7, 1, i)); /* all exponents */
        if (!isfinite(x[i]) || fabs(x[i]) > 1e300)
            x[i] = 1e-5 * (double)i;
    }
    double expected = sum_of(x, N);
    for (uint64_t round = 0; round < 200; round++) {
        uint32_t order[N];
        rng_permutation(round, 5, N, order);
        struct exact_sum part[7];
        for (int i = 0; i < 7; i++)
            exact_sum_clear(&part[i]);
        for (uint64_t i = 0; i < N; i++)
            exact_sum_add(&part[rng_below(round, 6, i, 7)], x[order[i]]);
        uint32_t parts[7];
        rng_permutation(round, 8, 7, parts);
        struct exact_sum total;
        exact_sum_clear(&total);
        for (int i = 0; i < 7; i++)
            exact_sum_merge(&total, &part[parts[i]]);
        assert_same(exact_sum_value(&total), expected);

        /* As an integer all-reduce does it: every member added, nothing carried. */
        exact_sum_clear(&total);
        for (int i = 0; i < 7; i++) {
            for (int k = 0; k < EXACT_SUM_LIMBS; k++)
                total.limb[k] += part[i].limb[k];
            total.pending += part[i].pending;
        }
        assert_same(exact_sum_value(&total), expected);
    }
}

static void rounds_to_nearest_even(void **state)
{
    (void)state;
    const double half = 0x1p-53;
    assert_same(sum_of((double[]){1.0, half}, 2), 1.0);
    assert_same(sum_of((double[]){1.0, half, 0x1p-1074}, 3), 1.0 + DBL_EPSILON);
    assert_same(sum_of((double[]){1.0, half, -0x1p-1074}, 3), 1.0);
    assert_same(sum_of((double[]){1.0 + DBL_EPSILON, half}, 2), 1.0 + 2 * DBL_EPSILON);
    assert_same(sum_of((double[]){-1.0, -half, -0x1p-1074}, 3), -1.0 - DBL_EPSILON);
    /* All ones, rounded up to the next power of two. */
    assert_same(sum_of((double[]){2.0 - DBL_EPSILON, half}, 2), 2.0);
}

static void cancels_exactly(void **state)
{
    (void)state;
    assert_same(sum_of((double[]){1e308, 1.0, -1e308}, 3), 1.0);
    assert_same(sum_of((double[]){DBL_MAX, 0x1p-1074, -DBL_MAX}, 3), 0x1p-1074);
    assert_same(sum_of((double[]){1.0, -1.0}, 2), 0.0);
    assert_same(sum_of((double[]){-0.0, -0.0}, 2), 0.0);
    /* Borrows through every limb, in both directions. */
    assert_same(sum_of((double[]){0x1p1023, -0x1p-1074}, 2), 0x1p1023);
    assert_same(sum_of((double[]){0x1p1023, -0x1p-1074, -0x1p1023}, 3), -0x1p-1074);
    assert_same(sum_of((double[]){-0x1p-1074, 0x1p1023, 0x1p-1074, -0x1p1023}, 4), 0.0);
    /* Subnormals that add up to a normal number. */
    assert_same(sum_of((double[]){0x1p-1023, 0x1p-1023}, 2), 0x1p-1022);
}

static void intermediate_overflow_is_none(void **state)
{
    (void)state;
    assert_same(sum_of((double[]){DBL_MAX, DBL_MAX, DBL_MAX, -DBL_MAX, -DBL_MAX}, 5), DBL_MAX);
    assert_same(sum_of((double[]){DBL_MAX, DBL_MAX}, 2), INFINITY);
    assert_same(sum_of((double[]){-DBL_MAX, -DBL_MAX}, 2), -INFINITY);
    /* Half a unit above the largest double rounds to infinity, just below it does not. */
    const double half = 0x1p970;
    assert_same(sum_of((double[]){DBL_MAX, half}, 2), INFINITY);
    assert_same(sum_of((double[]){DBL_MAX, half, -0x1p-1074}, 3), DBL_MAX);
}

static void non_finite_terms(void **state)
{
    (void)state;
    assert_true(isnan(sum_of((double[]){1.0, NAN, 2.0}, 3)));
    assert_true(isnan(sum_of((double[]){INFINITY, -INFINITY}, 2)));
    assert_same(sum_of((double[]){-DBL_MAX, INFINITY}, 2), INFINITY);
    assert_same(sum_of((double[]){-INFINITY, 1.0}, 2), -INFINITY);
    struct exact_sum a, b;
    exact_sum_clear(&a);
    exact_sum_clear(&b);
    exact_sum_add(&a, INFINITY);
    exact_sum_add(&b, -INFINITY);
    exact_sum_merge(&a, &b);
    assert_true(isnan(exact_sum_value(&a)));
}

static void many_terms_do_not_overflow(void **state)
{
    (void)state;
    /* Past several carries, with every limb of the term full. */
    const double x = 2.0 - DBL_EPSILON;
    struct exact_sum s, up;
    exact_sum_clear(&s);
    exact_sum_clear(&up);
    for (int i = 0; i < 3 << 20; i++) {
        exact_sum_add(&s, x);
        exact_sum_add(&up, -x);
    }
    assert_same(exact_sum_value(&s), 3 * 0x1p20 * x);
    assert_same(exact_sum_value(&up), -3 * 0x1p20 * x);

    /* 2^40 and more by doubling: the accumulator merged with itself. */
    exact_sum_clear(&s);
    exact_sum_clear(&up);
    for (int i = 0; i < 1000000; i++) {
        exact_sum_add(&s, i % 2 ? x : 0x1.8p-1074);
        exact_sum_add(&up, i % 2 ? -DBL_MAX : -x);
    }
    double before = exact_sum_value(&s);
    for (int i = 0; i < 45; i++) {
        exact_sum_merge(&s, &s);
        exact_sum_merge(&up, &up);
    }
    assert_same(exact_sum_value(&s), ldexp(before, 45));
    assert_same(exact_sum_value(&up), -INFINITY);
    /* And taken away again: nothing was lost far above the largest double. */
    struct exact_sum negated = up;
    for (int k = 0; k < EXACT_SUM_LIMBS; k++)
        negated.limb[k] = -negated.limb[k];
    exact_sum_add(&negated, 0.5);
    exact_sum_merge(&up, &negated);
    assert_same(exact_sum_value(&up), 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_values_come_back),
        cmocka_unit_test(agrees_with_wide_integers),
        cmocka_unit_test(order_and_grouping_leave_no_trace),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(cancels_exactly),
        cmocka_unit_test(intermediate_overflow_is_none),
        cmocka_unit_test(non_finite_terms),
        cmocka_unit_test(many_terms_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
