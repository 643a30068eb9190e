#include "base/background.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

/* A job that waits until it is let go. */
struct job {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool begun, go;
    int runs; /* by plain stores */
    pthread_t thread;
    sigset_t blocked;
    cpu_set_t cpus;
};

static void work(void *context)
{
    struct job *j = context;
    pthread_mutex_lock(&j->lock);
    j->begun = true;
    pthread_cond_broadcast(&j->moved);
    while (!j->go)
        pthread_cond_wait(&j->moved, &j->lock);
    pthread_mutex_unlock(&j->lock);
    j->runs++;
    j->thread = pthread_self();
    pthread_sigmask(SIG_BLOCK, NULL, &j->blocked);
    sched_getaffinity(0, sizeof j->cpus, &j->cpus);
}

static void job_make(struct job *j)
{
    *j = (struct job){.go = false};
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->moved, NULL);
}

static void wait_begun(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    while (!j->begun)
        pthread_cond_wait(&j->moved, &j->lock);
    pthread_mutex_unlock(&j->lock);
}

static void let_go(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    j->go = true;
    pthread_cond_broadcast(&j->moved);
    pthread_mutex_unlock(&j->lock);
}

static void runs_beside_the_caller(void **state)
{
    (void)state;
    struct background *b;
    struct job j;
    struct error err;
    job_make(&j);
    assert_int_equal(background_create(&b, &err), 0);
    assert_false(background_busy(b));
    background_wait(b); /* for nothing */
    background_start(b, work, &j);
    wait_begun(&j);
    assert_true(background_busy(b));
    let_go(&j);
    background_wait(b);
    assert_false(background_busy(b));
    assert_int_equal(j.runs, 1);
    assert_false(pthread_equal(j.thread, pthread_self()));
    for (int i = 0; i < 1000; i++) {
        background_start(b, work, &j);
        background_wait(b);
    }
    assert_int_equal(j.runs, 1001);
    background_start(b, work, &j);
    background_free(b); /* waits */
    assert_int_equal(j.runs, 1002);
    background_free(NULL);
}

/* Its CPUs are those of the caller when it was made, whatever happens to the caller afterwards. */
static void keeps_its_cpus_and_takes_no_signals(void **state)
{
    (void)state;
    struct background *b;
    struct job j;
    struct error err;
    cpu_set_t all, one;
    job_make(&j);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(background_create(&b, &err), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    let_go(&j);
    background_start(b, work, &j);
    background_wait(b);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    background_free(b);
    assert_true(CPU_EQUAL(&j.cpus, &all));
    static const int wanted[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGUSR1};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_int_equal(sigismember(&j.blocked, wanted[i]), 1);
    assert_int_equal(sigismember(&j.blocked, SIGSEGV), 0);
    sigset_t mine;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &mine), 0);
    assert_int_equal(sigismember(&mine, SIGTERM), 0);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct background *b;
    struct error err;
    allocations_fail_after(0);
    int status = background_create(&b, &err);
    allocations_fail_after(-1);
    assert_int_equal(status, -1);
    assert_null(b);
    assert_int_equal(err.kind, ERROR_RUN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_beside_the_caller),
        cmocka_unit_test(keeps_its_cpus_and_takes_no_signals),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
