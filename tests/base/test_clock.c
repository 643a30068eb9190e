#include "base/clock.h"
#include "support/cmocka.h"

static void goes_forward(void **state)
{
    (void)state;
    double before = clock_seconds();
    for (int i = 0; i < 1000; i++) {
        double now = clock_seconds();
        assert_true(now >= before);
        before = now;
    }
}

static void wall_clock_is_of_this_age(void **state)
{
    (void)state;
    assert_true(clock_wall() > 1.6e9 && clock_wall() < 1e11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_forward),
        cmocka_unit_test(wall_clock_is_of_this_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
