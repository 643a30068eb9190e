/* The thread that raises a rank's counter, and what a launcher makes of the counters (on a clock of its own).
 */
#include "comm/heartbeat.h"

#include "base/clock.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <signal.h>
#include <string.h>
#include <time.h>

static void nap(double seconds)
{
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- in a rank ---- */

static volatile sig_atomic_t handled;

static void handle(int number)
{
    (void)number;
    handled = 1;
}

static void the_counter_rises_until_the_end(void **state)
{
    (void)state;
    _Atomic uint32_t beat = UINT32_MAX - 2; /* and around */
    struct heart h;
    struct error err;
    assert_int_equal(heart_start(&h, &beat, 0.1, &err), 0);
    for (double start = clock_seconds(); atomic_load(&beat) - (UINT32_MAX - 2) < 10;)
        assert_true(clock_seconds() - start < 60);
    heart_stop(&h);
    uint32_t last = atomic_load(&beat);
    nap(0.05);
    assert_int_equal(atomic_load(&beat), last);
}

/* The longest pause between two beats is a second, and the end waits for none of them. */
static void the_end_is_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        _Atomic uint32_t beat = 0;
        struct heart h;
        assert_int_equal(heart_start(&h, &beat, 1e9, NULL), 0);
        assert_true(h.every >= 1 && h.every <= 1);
        heart_stop(&h);
        assert_true(atomic_load(&beat) <= 1);
    }
}

static void the_thread_takes_no_signals(void **state)
{
    (void)state;
    _Atomic uint32_t beat = 0;
    struct heart h;
    sigset_t mine, before, pending;
    struct sigaction action = {.sa_handler = handle}, old;
    sigaction(SIGUSR1, &action, &old);
    assert_int_equal(heart_start(&h, &beat, 0.1, NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(sigismember(&before, SIGUSR1), 0); /* the caller's mask is as it was */
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    kill(getpid(), SIGUSR1);
    for (uint32_t seen = atomic_load(&beat); atomic_load(&beat) - seen < 3;)
        nap(0.001);
    sigpending(&pending);
    assert_int_equal(handled, 0);
    assert_int_equal(sigismember(&pending, SIGUSR1), 1);
    heart_stop(&h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(handled, 1);
    sigaction(SIGUSR1, &old, NULL);
}

/* ---- in the launcher ---- */

static void silence_is_counted_from_the_last_beat(void **state)
{
    (void)state;
    struct watchdog w;
    assert_int_equal(watchdog_create(&w, 2, 10, 100, NULL), 0);
    uint32_t beat = 0;
    for (double now = 101; now < 150; now++) {
        watchdog_turn(&w, now);
        beat += (int)now % 3 == 0; /* 102, 105 … */
        assert_true(watchdog_silence(&w, 0, beat, now) <= 2);
        assert_true(watchdog_silence(&w, 1, 0, now) == now - 100); /* never seen at all */
    }
    /* A counter that has come around to 0 is as good as any other. */
    assert_true(watchdog_silence(&w, 0, UINT32_MAX, 150) == 0);
    assert_true(watchdog_silence(&w, 0, 0, 151) == 0);
    assert_true(watchdog_silence(&w, 0, 0, 152) == 1);
    watchdog_free(&w);
}

static void a_launcher_that_was_stopped_begins_again(void **state)
{
    (void)state;
    struct watchdog w;
    assert_int_equal(watchdog_create(&w, 2, 10, 0, NULL), 0);
    double now = 0;
    for (; now <= 8; now += 1)
        watchdog_turn(&w, now);
    now = 12; /* a gap of 4: the launcher was busy, no more */
    watchdog_turn(&w, now);
    assert_true(watchdog_silence(&w, 0, 0, now) == 12);
    now = 1000; /* Ctrl-Z */
    watchdog_turn(&w, now);
    assert_true(watchdog_silence(&w, 0, 0, now) == 0);
    assert_true(watchdog_silence(&w, 1, 0, now) == 0);
    for (; now <= 1011; now += 1)
        watchdog_turn(&w, now);
    assert_true(watchdog_silence(&w, 0, 0, 1011) == 11); /* still stopped */
    assert_true(watchdog_silence(&w, 1, 1, 1011) == 0);
    watchdog_free(&w);
}

static void looks_are_more_frequent_than_the_limit(void **state)
{
    (void)state;
    assert_true(watchdog_interval(60) == 0.5);
    assert_true(watchdog_interval(1) == 0.125);
}

static void without_memory(void **state)
{
    (void)state;
    struct watchdog w;
    struct error err;
    allocations_fail_after(0);
    int status = watchdog_create(&w, 3, 10, 0, &err);
    allocations_fail_after(-1);
    assert_int_equal(status, -1);
    assert_non_null(strstr(err.what, "signs of life"));
    watchdog_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_rises_until_the_end),
        cmocka_unit_test(the_end_is_at_once),
        cmocka_unit_test(the_thread_takes_no_signals),
        cmocka_unit_test(silence_is_counted_from_the_last_beat),
        cmocka_unit_test(a_launcher_that_was_stopped_begins_again),
        cmocka_unit_test(looks_are_more_frequent_than_the_limit),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
