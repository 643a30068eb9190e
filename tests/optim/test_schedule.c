/* Learning rates against their formulas and against numbers that come from elsewhere. */
#include "support/cmocka.h"

#include "optim/schedule.h"

#include <math.h>

static void near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-15 * fabs(wanted)))
        fail_msg("%.17g instead of %.17g", got, wanted);
}

static void test_warmup(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_CONSTANT; kind <= SCHEDULE_COSINE; kind++) {
        struct schedule s = {.kind = (enum schedule_kind)kind, .lr = 3e-4, .warmup = 4, .total = 10};
        near(schedule_lr(&s, 0), 0.75e-4);
        near(schedule_lr(&s, 1), 1.5e-4);
        near(schedule_lr(&s, 3), 3e-4);
        near(schedule_lr(&s, 4), 3e-4); /* p = 0 */
        s.hugging_face = true;
        assert_true(schedule_lr(&s, 0) == 0);
        near(schedule_lr(&s, 1), 0.75e-4);
        near(schedule_lr(&s, 3), 2.25e-4);
        near(schedule_lr(&s, 4), 3e-4);
    }
}

static void test_constant(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_CONSTANT, .lr = 5e-5, .min_lr = 1e-5, .warmup = 0, .total = 7};
    for (int64_t k = 0; k < 20; k++)
        assert_true(schedule_lr(&s, k) == 5e-5);
}

static void test_linear(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_LINEAR, .lr = 8e-4, .min_lr = 0, .warmup = 2, .total = 10};
    near(schedule_lr(&s, 2), 8e-4);
    near(schedule_lr(&s, 3), 7e-4);
    near(schedule_lr(&s, 9), 1e-4); /* the last update still moves: p = 7/8 */
    assert_true(schedule_lr(&s, 10) == 0);
    assert_true(schedule_lr(&s, 1000) == 0); /* never below */
    s.min_lr = 4e-4;                         /* absolute */
    near(schedule_lr(&s, 6), 6e-4);
    near(schedule_lr(&s, 10), 4e-4);
}

static void test_cosine(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_COSINE, .lr = 1e-3, .min_lr = 1e-4, .warmup = 0, .total = 12};
    near(schedule_lr(&s, 0), 1e-3);
    near(schedule_lr(&s, 2), 1e-4 + 9e-4 * (1 + 0.86602540378443865) / 2); /* cos(pi/6) = sqrt(3)/2 */
    near(schedule_lr(&s, 3), 1e-4 + 9e-4 * (1 + 0.70710678118654752) / 2); /* cos(pi/4) = sqrt(1/2) */
    near(schedule_lr(&s, 4), 1e-4 + 9e-4 * 0.75);                          /* cos(pi/3) = 1/2 */
    near(schedule_lr(&s, 6), 5.5e-4);
    near(schedule_lr(&s, 8), 1e-4 + 9e-4 * 0.25);
    near(schedule_lr(&s, 12), 1e-4);
    near(schedule_lr(&s, 50), 1e-4);
}

/* Transformers' factors for 10 warm-up steps of 100, at steps 5, 10, 30, 99. get_linear_schedule_with_warmup:
 * k/10, then (100-k)/90. get_cosine_schedule_with_warmup: k/10, then (1+cos(pi (k-10)/90))/2:
 * cos(2 pi/9) = 0.76604444311897804, cos(89 pi/90) = -0.99939082701909573. */
static void test_hugging_face(void **state)
{
    (void)state;
    static const struct {
        int64_t step;
        double linear, cosine;
    } expected[] = {{5, 0.5, 0.5},
                    {10, 1, 1},
                    {30, 70.0 / 90, (1 + 0.76604444311897804) / 2},
                    {99, 1.0 / 90, (1 - 0.99939082701909573) / 2}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct schedule s = {
            .kind = SCHEDULE_LINEAR, .lr = 1, .warmup = 10, .total = 100, .hugging_face = true};
        double linear = schedule_lr(&s, expected[i].step);
        s.kind = SCHEDULE_COSINE;
        double cosine = schedule_lr(&s, expected[i].step);
        assert_true(fabs(linear - expected[i].linear) < 1e-15);
        assert_true(fabs(cosine - expected[i].cosine) < 1e-15);
    }
}

/* Nothing but warm-up. */
static void test_warmup_alone(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_LINEAR, .lr = 1, .warmup = 5, .total = 5};
    near(schedule_lr(&s, 4), 1);
    near(schedule_lr(&s, 5), 1);
    s = (struct schedule){.kind = SCHEDULE_COSINE, .lr = 1, .warmup = 0, .total = 1};
    near(schedule_lr(&s, 0), 1);
}

static void test_wsd(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_WSD, .lr = 8e-4, .warmup = 2, .total = 20, .decay_steps = 8};
    near(schedule_lr(&s, 1), 8e-4);
    for (int64_t k = 2; k <= 12; k++)
        assert_true(schedule_lr(&s, k) == 8e-4); /* p = 0 at 12 */
    near(schedule_lr(&s, 13), 7e-4);
    near(schedule_lr(&s, 19), 1e-4);
    assert_true(schedule_lr(&s, 20) == 0);
    s.min_lr = 4e-4;
    near(schedule_lr(&s, 16), 6e-4);
    s.decay = SCHEDULE_DECAY_SQRT;
    near(schedule_lr(&s, 14), 6e-4); /* sqrt(1/4) */
    assert_true(schedule_lr(&s, 11) == 8e-4);
    s.decay = SCHEDULE_DECAY_COSINE;
    near(schedule_lr(&s, 16), 6e-4);
    near(schedule_lr(&s, 14), 4e-4 + 4e-4 * (1 + 0.70710678118654752) / 2);
    near(schedule_lr(&s, 1000), 4e-4);
    s.decay_steps = 18; /* no stable part */
    near(schedule_lr(&s, 11), 6e-4);
}

static void test_multistep(void **state)
{
    (void)state;
    struct schedule s = {.kind = SCHEDULE_MULTISTEP,
                         .lr = 4.2e-4,
                         .warmup = 3,
                         .total = 20,
                         .drops = 2,
                         .at = {0.8, 0.9},
                         .factor = {0.316, 0.1}};
    near(schedule_lr(&s, 0), 1.4e-4);
    assert_true(schedule_lr(&s, 3) == 4.2e-4);
    assert_true(schedule_lr(&s, 15) == 4.2e-4);
    near(schedule_lr(&s, 16), 4.2e-4 * 0.316); /* 0.8 of 20 */
    near(schedule_lr(&s, 17), 4.2e-4 * 0.316);
    near(schedule_lr(&s, 18), 4.2e-5);
    near(schedule_lr(&s, 1000), 4.2e-5);
    /* Every whole per cent of 100 and of 1,000 steps, though many of these shares are no doubles: 0.07, 0.55.
     */
    for (int percent = 1; percent < 100; percent++)
        for (int64_t total = 100; total <= 1000; total *= 10) {
            struct schedule one = {.kind = SCHEDULE_MULTISTEP,
                                   .lr = 1,
                                   .total = total,
                                   .drops = 1,
                                   .at = {percent / 100.0},
                                   .factor = {0.5}};
            assert_true(schedule_lr(&one, percent * total / 100 - 1) == 1);
            assert_true(schedule_lr(&one, percent * total / 100) == 0.5);
        }
    s.at[0] = 0.05; /* within the warm-up, which goes first */
    near(schedule_lr(&s, 2), 4.2e-4);
    near(schedule_lr(&s, 3), 4.2e-4 * 0.316);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup),       cmocka_unit_test(test_constant),
        cmocka_unit_test(test_linear),       cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_hugging_face), cmocka_unit_test(test_warmup_alone),
        cmocka_unit_test(test_wsd),          cmocka_unit_test(test_multistep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
