#include "base/pool.h"

#include "base/clock.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    _Atomic int *runs; /* of each piece */
    int64_t pieces;
    int threads;
    _Atomic int wrong; /* pieces or threads out of range */
};

static void count_piece(void *context, int64_t piece, int thread)
{
    struct tally *t = context;
    if (piece < 0 || piece >= t->pieces || thread < 0 || thread >= t->threads)
        atomic_fetch_add(&t->wrong, 1);
    else
        atomic_fetch_add(&t->runs[piece], 1);
}

static void every_piece_runs_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000};
    for (int threads = 1; threads <= 9; threads += 2) {
        struct pool *pool;
        assert_int_equal(pool_create(&pool, threads, false, 0, NULL, NULL), 0);
        assert_int_equal(pool_threads(pool), threads);
        for (int round = 0; round < 300; round++) {
            int64_t pieces = sizes[round % 7];
            struct tally t = {.pieces = pieces, .threads = threads};
            t.runs = calloc((size_t)pieces + 1, sizeof *t.runs);
            assert_non_null(t.runs);
            pool_run(pool, pieces, count_piece, &t);
            assert_int_equal(t.wrong, 0);
            for (int64_t i = 0; i < pieces; i++)
                assert_int_equal(t.runs[i], 1);
            free(t.runs);
        }
        assert_in_range(pool_threads_seen(pool), 1, threads);
        pool_free(pool);
    }
}

struct plain_sum {
    const int *in; /* written by the caller before, by plain stores */
    int *out;      /* read by the caller afterwards, by plain loads */
};

static void square_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    struct plain_sum *s = context;
    s->out[piece] = s->in[piece] * s->in[piece];
}

/* Many short jobs: late threads meet the next job, or the one after; memory must be handed over both
 * ways without locks of the caller (ThreadSanitizer watches). */
static void short_jobs_in_a_row(void **state)
{
    (void)state;
    enum { MOST = 17, JOBS = 20000 };
    struct pool *pool;
    assert_int_equal(pool_create(&pool, 4, false, 0, NULL, NULL), 0);
    int in[MOST], out[MOST];
    for (int job = 0; job < JOBS; job++) {
        int pieces = 1 + job % MOST;
        for (int i = 0; i < pieces; i++)
            in[i] = job % 1000 + i;
        memset(out, 0xff, sizeof out);
        pool_run(pool, pieces, square_piece, &(struct plain_sum){in, out});
        for (int i = 0; i < MOST; i++)
            assert_int_equal(out[i], i < pieces ? (job % 1000 + i) * (job % 1000 + i) : -1);
    }
    pool_free(pool);
}

struct order {
    int64_t last[8]; /* of each thread */
    _Atomic int wrong;
};

static void check_order(void *context, int64_t piece, int thread)
{
    struct order *o = context;
    if (piece <= o->last[thread])
        atomic_fetch_add(&o->wrong, 1);
    o->last[thread] = piece;
}

static void each_thread_goes_upwards(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_create(&pool, 8, false, 0, NULL, NULL), 0);
    for (int round = 0; round < 50; round++) {
        struct order o = {.wrong = 0};
        for (int i = 0; i < 8; i++)
            o.last[i] = -1;
        pool_run(pool, 500, check_order, &o);
        assert_int_equal(o.wrong, 0);
    }
    pool_free(pool);
}

struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t all;
    int arrived, wanted;
};

static void meet(void *context, int64_t piece, int thread)
{
    (void)piece;
    (void)thread;
    struct meeting *m = context;
    pthread_mutex_lock(&m->lock);
    if (++m->arrived == m->wanted)
        pthread_cond_broadcast(&m->all);
    while (m->arrived < m->wanted)
        pthread_cond_wait(&m->all, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

/* As many pieces as threads, none of which ends before all have begun: every thread must come, from its
 * spin as from its sleep. */
static void all_threads_take_part(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 5, 16};
    for (int k = 0; k < 5; k++) {
        struct pool *pool;
        assert_int_equal(pool_create(&pool, counts[k], false, 0, NULL, NULL), 0);
        for (int round = 0; round < 100; round++) {
            struct meeting m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, counts[k]};
            pool_run(pool, counts[k], meet, &m);
            assert_int_equal(m.arrived, counts[k]);
        }
        assert_int_equal(pool_threads_seen(pool), counts[k]);
        pool_free(pool);
    }
}

struct watched {
    _Atomic int told[4]; /* jobs that each thread has told of */
    _Atomic int wrong;
};

static void note_took(void *context, int thread, double begin, double end)
{
    struct watched *w = context;
    if (thread < 1 || thread > 3 || begin > end || end > clock_seconds())
        atomic_fetch_add(&w->wrong, 1);
    else
        atomic_fetch_add(&w->told[thread], 1);
}

/* Before pool_run returns, the workers have told of it; the caller does not. */
static void who_watches_is_told(void **state)
{
    (void)state;
    struct pool *pool;
    struct watched w = {0};
    const struct pool_watch watch = {note_took, &w};
    assert_int_equal(pool_create(&pool, 4, false, 0, NULL, NULL), 0);
    for (int round = 0; round < 60; round++) {
        pool_set_watch(pool, round < 50 ? &watch : NULL);
        struct meeting m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 4};
        pool_run(pool, 4, meet, &m);
        for (int i = 1; i < 4; i++)
            assert_int_equal(w.told[i], round < 50 ? round + 1 : 50);
    }
    assert_int_equal(w.told[0], 0);
    assert_int_equal(w.wrong, 0);
    pool_free(pool);
}

static _Atomic int starts;
static _Thread_local int started_here;

static void count_start(void)
{
    atomic_fetch_add(&starts, 1);
    started_here++;
}

static void check_started(void *context, int64_t piece, int thread)
{
    (void)piece;
    (void)thread;
    if (started_here != 1)
        atomic_store((_Atomic int *)context, 1);
}

static void on_start_runs_in_each_thread(void **state)
{
    (void)state;
    struct pool *pool;
    starts = 0;
    started_here = 0;
    assert_int_equal(pool_create(&pool, 6, false, 0, count_start, NULL), 0);
    assert_int_equal(starts, 6); /* all done before pool_create returns */
    _Atomic int wrong = 0;
    for (int i = 0; i < 20; i++)
        pool_run(pool, 100, check_started, &wrong);
    assert_int_equal(wrong, 0);
    pool_free(pool);
}

static void nothing_is_allocated_in_a_run(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_create(&pool, 4, false, 0, NULL, NULL), 0);
    int in[64] = {0}, out[64];
    int64_t before = allocations_count();
    for (int i = 0; i < 500; i++)
        pool_run(pool, 64, square_piece, &(struct plain_sum){in, out});
    assert_int_equal(allocations_count(), before);
    pool_free(pool);
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    for (int64_t n = 0;; n++) {
        struct pool *pool;
        struct error err = {0};
        allocations_fail_after(n);
        int status = pool_create(&pool, 3, true, 0, NULL, &err);
        allocations_fail_after(-1);
        if (status == 0) {
            assert_true(n >= 3);
            pool_free(pool);
            break;
        }
        assert_null(pool);
        assert_int_equal(err.kind, ERROR_RUN);
    }
}

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    struct pool *pool;
    struct error err;
    assert_int_equal(pool_create(&pool, 0, false, 0, NULL, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_int_equal(pool_create(&pool, -3, false, 0, NULL, &err), -1);
    assert_int_equal(pool_create(&pool, 1 << 30, false, 0, NULL, &err), -1);
    assert_int_equal(pool_create(&pool, 1, true, -1, NULL, &err), -1);
    assert_null(pool);
    pool_free(NULL);
}

struct pins {
    struct meeting meeting; /* so that each thread takes exactly one piece */
    cpu_set_t cpus[3];
};

static void ask_cpu(void *context, int64_t piece, int thread)
{
    struct pins *p = context;
    sched_getaffinity(0, sizeof p->cpus[thread], &p->cpus[thread]);
    meet(&p->meeting, piece, thread);
}

static void pinned_threads_have_one_cpu(void **state)
{
    (void)state;
    cpu_set_t allowed, after;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_int_equal(pool_cpus(), CPU_COUNT(&allowed));
    size_t cpus[CPU_SETSIZE];
    int count = 0;
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &allowed))
            cpus[count++] = i;
    }
    for (int first = 0; first < 3; first++) {
        struct pool *pool;
        struct error err;
        assert_int_equal(pool_create(&pool, 3, true, first, NULL, &err), 0);
        struct pins p = {.meeting = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 3}};
        pool_run(pool, 3, ask_cpu, &p);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(CPU_COUNT(&p.cpus[i]), 1);
            assert_true(CPU_ISSET(cpus[(first + i) % count], &p.cpus[i]));
        }
        pool_free(pool);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&allowed, &after));
    }
}

static void ask_signals(void *context, int64_t piece, int thread)
{
    struct meeting *m = context;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (thread != 0 && (!sigismember(&blocked, SIGTERM) || sigismember(&blocked, SIGSEGV)))
        abort();
    meet(m, piece, thread);
}

static void signals_stay_with_the_caller(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_create(&pool, 3, false, 0, NULL, NULL), 0);
    struct meeting m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 3};
    pool_run(pool, 3, ask_signals, &m);
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    assert_false(sigismember(&blocked, SIGTERM));
    pool_free(pool);
}

static void two_pools_side_by_side(void **state)
{
    (void)state;
    struct pool *a, *b;
    assert_int_equal(pool_create(&a, 2, false, 0, NULL, NULL), 0);
    assert_int_equal(pool_create(&b, 3, false, 0, NULL, NULL), 0);
    int in[5] = {1, 2, 3, 4, 5}, out[5];
    pool_run(a, 5, square_piece, &(struct plain_sum){in, out});
    pool_run(b, 5, square_piece, &(struct plain_sum){out, out});
    assert_int_equal(out[4], 625);
    pool_free(a);
    pool_run(b, 5, square_piece, &(struct plain_sum){in, out});
    assert_int_equal(out[4], 25);
    pool_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_runs_once),           cmocka_unit_test(short_jobs_in_a_row),
        cmocka_unit_test(each_thread_goes_upwards),        cmocka_unit_test(all_threads_take_part),
        cmocka_unit_test(on_start_runs_in_each_thread),    cmocka_unit_test(nothing_is_allocated_in_a_run),
        cmocka_unit_test(failed_allocations_are_reported), cmocka_unit_test(wrong_numbers_are_refused),
        cmocka_unit_test(pinned_threads_have_one_cpu),     cmocka_unit_test(signals_stay_with_the_caller),
        cmocka_unit_test(two_pools_side_by_side),          cmocka_unit_test(who_watches_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
