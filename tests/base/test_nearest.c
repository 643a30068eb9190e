#include "base/nearest.h"

#include "support/cmocka.h"

#include <string.h>

static void test_distance(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},           {"train", "train", 0},    {"", "plan", 4},
        {"train", "trian", 1}, {"train", "tran", 1},     {"train", "traain", 1},
        {"train", "brain", 1}, {"Train", "tRAIN", 0},    {"kitten", "sitting", 3},
        {"ca", "abc", 3},      {"inspect", "inspct", 1}, {"ab", "ba", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(nearest_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(nearest_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

static void test_long_names(void **state)
{
    (void)state;
    char a[66], b[66];
    memset(a, 'x', sizeof a);
    memset(b, 'x', sizeof b);
    a[64] = b[64] = '\0';
    assert_int_equal(nearest_distance(a, b), 0);
    a[64] = 'x';
    a[65] = '\0';
    assert_int_equal(nearest_distance(a, b), 64);
    assert_int_equal(nearest_distance(b, a), 64);
}

static void test_tolerance(void **state)
{
    (void)state;
    assert_int_equal(nearest_tolerance("ab"), 1);
    assert_int_equal(nearest_tolerance("train"), 2);
    assert_int_equal(nearest_tolerance("warmup_steps"), 4);
    assert_int_equal(nearest_tolerance("gradient_accumulation_steps"), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_tolerance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
