/* Ranks that fail, are killed, stopped or end early while others wait; launchers that are killed; requests to
 * stop. The run is over within five seconds with one message that names the rank, and nothing is left. */
#include "comm/bodies.h"
#include "comm/group.h"

static void await_flag(_Atomic int *flag, int value)
{
    double start = clock_seconds();
    while (atomic_load(flag) < value && clock_seconds() - start < 60)
        nap(0.002);
}

/* Waits until `count` ranks are ready. */
static void group_await(struct shared *s, int count)
{
    await_flag(&s->ready, count);
    assert_true(atomic_load(&s->ready) >= count);
}

/* ---- ways to wait ---- */

static int wait_barrier(struct comm *c, int failing, struct error *err)
{
    (void)failing;
    return comm_barrier(c, err);
}

static int wait_sum(struct comm *c, int failing, struct error *err)
{
    int64_t values[20000] = {0};
    (void)failing;
    return comm_sum_i64(c, values, 20000, err);
}

static int wait_broadcast(struct comm *c, int failing, struct error *err)
{
    char data[100];
    return comm_broadcast(c, data, sizeof data, failing, err);
}

static int wait_send(struct comm *c, int failing, struct error *err)
{
    char data[100] = "x";
    return comm_move(c, comm_rank(c), failing, data, data, sizeof data, err);
}

static int wait_receive(struct comm *c, int failing, struct error *err)
{
    char data[100];
    return comm_move(c, failing, comm_rank(c), data, data, sizeof data, err);
}

static int wait_window(struct comm *c, int failing, struct error *err)
{
    struct comm_window w;
    (void)failing;
    return comm_window_create(c, 100000, true, &w, err);
}

/* These need objects made by all before one fails. */
struct objects {
    struct comm_window full;
    struct comm_gather gather;
    struct comm_exchange exchange;
};

static int make_objects(struct comm *c, struct objects *o, struct error *err)
{
    int64_t offset[LAYOUT_RANKS + 1];
    make_layout(0, comm_size(c), offset);
    if (comm_window_create(c, LAYOUT_BYTES, true, &o->full, err) != 0 ||
        comm_gather_create(c, offset, true, &o->gather, err) != 0 ||
        comm_exchange_create(c, LAYOUT_BYTES, LAYOUT_BYTES, &o->exchange, err) != 0)
        return -1;
    return comm_exchange_layout(&o->exchange, offset, err);
}

static void free_objects(struct comm *c, struct objects *o)
{
    comm_exchange_free(&o->exchange);
    comm_gather_free(&o->gather);
    comm_window_free(c, &o->full);
}

static int wait_gather(struct objects *o, struct error *err)
{
    if (comm_gather_begin(&o->gather, o->full.memory, o->full.memory, err) != 0)
        return -1;
    return comm_gather_wait(&o->gather, err);
}

static int wait_part(struct objects *o, int failing, int size, struct error *err)
{
    const void *part;
    if (comm_exchange_reuse(&o->exchange, err) != 0 || comm_exchange_begin(&o->exchange, size, err) != 0)
        return -1;
    return comm_exchange_part(&o->exchange, failing, &part, err);
}

/* All but the failing rank are one round ahead: it never takes their parts. */
static int wait_reuse(struct objects *o, int size, struct error *err)
{
    if (comm_exchange_reuse(&o->exchange, err) != 0 || comm_exchange_begin(&o->exchange, size, err) != 0 ||
        comm_exchange_end(&o->exchange, err) != 0)
        return -1;
    return comm_exchange_reuse(&o->exchange, err);
}

enum wait {
    WAIT_BARRIER,
    WAIT_SUM,
    WAIT_BROADCAST,
    WAIT_SEND,
    WAIT_RECEIVE,
    WAIT_WINDOW,
    WAIT_GATHER,
    WAIT_PART,
    WAIT_REUSE,
    WAITS
};

static int wait_in(struct comm *c, enum wait wait, struct objects *o, int failing, struct error *err)
{
    int (*const simple[])(struct comm *, int, struct error *) = {wait_barrier, wait_sum,     wait_broadcast,
                                                                 wait_send,    wait_receive, wait_window};
    if (wait < WAIT_GATHER)
        return simple[wait](c, failing, err);
    if (wait == WAIT_GATHER)
        return wait_gather(o, err);
    return wait == WAIT_PART ? wait_part(o, failing, comm_size(c), err) : wait_reuse(o, comm_size(c), err);
}

/* ---- ways to fail ---- */

enum way { RETURN_RUN, RETURN_INPUT, RETURN_NONE, RETURN_ODD, EXIT_ZERO, EXIT_THREE, BY_KILL, BY_SEGV, WAYS };

struct way_out {
    int status;       /* of the run */
    const char *text; /* in where or what, with the rank's number for %d */
};

static const struct way_out way_out[WAYS] = {
    {1, "rank %d: the place"},
    {2, "the place: the problem"},
    {1, "rank %d has ended while"},
    {1, "a rank's work ended with status 77"},
    {1, "rank %d ended with status 0 without"},
    {1, "rank %d ended with status 3 without"},
    {1, "rank %d was killed by signal 9 (Killed)"},
    {1, "rank %d was killed by signal 11 (Segmentation fault)"},
};

static int fail_by(enum way way, struct error *err)
{
    if (way == RETURN_RUN || way == RETURN_INPUT) {
        error_set(err, way == RETURN_RUN ? ERROR_RUN : ERROR_INPUT, "the place", "the remedy", "the problem");
        return way == RETURN_RUN ? 1 : 2;
    }
    if (way == RETURN_NONE || way == RETURN_ODD)
        return way == RETURN_NONE ? 0 : 77;
    if (way == EXIT_ZERO || way == EXIT_THREE)
        _exit(way == EXIT_ZERO ? 0 : 3);
    if (way == BY_SEGV) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's own */
        raise(SIGSEGV);
    }
    raise(SIGKILL);
    return 0;
}

/* What one test passes to its ranks: through the shared page. */
enum { SEEN_WAIT, SEEN_WAY, SEEN_RANK, SEEN_SECONDARY };

static int body_failing(struct comm *c, void *context, struct error *err)
{
    struct shared *s = context;
    struct objects o = {0};
    int failing = s->seen[SEEN_RANK];
    if (make_objects(c, &o, err) != 0)
        return ERROR_RUN;
    if (comm_rank(c) == failing) {
        await_flag(&s->ready, comm_size(c) - 1);
        nap(0.03); /* the others have gone to sleep */
        int status = fail_by((enum way)s->seen[SEEN_WAY], err);
        free_objects(c, &o); /* a failing rank cleans up, which waits for nobody */
        return status;
    }
    atomic_fetch_add(&s->ready, 1);
    int result = wait_in(c, (enum wait)s->seen[SEEN_WAIT], &o, failing, err);
    free_objects(c, &o);
    if (result == 0)
        return error_set(err, ERROR_RUN, NULL, NULL, "the wait has ended well"), ERROR_RUN;
    return ERROR_RUN;
}

static void run_failure(enum wait wait, enum way way, int ranks, int failing)
{
    struct shared *s = group_shared();
    char expected[128], found[sizeof s->err];
    s->seen[SEEN_WAIT] = (int)wait;
    s->seen[SEEN_WAY] = (int)way;
    s->seen[SEEN_RANK] = failing;
    double start = clock_seconds();
    struct outcome out = group_run(ranks, body_failing, s, NULL);
    double seconds = clock_seconds() - start;
    snprintf(expected, sizeof expected, way_out[way].text, failing);
    error_format(&out.err, found, sizeof found);
    if (out.status != way_out[way].status || !strstr(found, expected) || seconds > 5 || out.lines != 0)
        fail_msg("wait %d, way %d, rank %d of %d: status %d, %.1f s, %d lines, \"%s\"", wait, way, failing,
                 ranks, out.status, seconds, out.lines, found);
    if (way == BY_KILL)
        assert_non_null(strstr(found, "out of memory"));
    if (way == RETURN_INPUT) /* what is nobody's own has no rank */
        assert_string_equal(out.err.where, "the place");
    if (way == RETURN_RUN)
        assert_string_equal(out.err.remedy, "the remedy");
    munmap(s, sizeof *s);
}

static void test_failures(void **state)
{
    enum way way = (enum way)(intptr_t)*state;
    for (int wait = 0; wait < WAITS; wait++)
        for (int i = 0; i < 2; i++)
            run_failure((enum wait)wait, way, i == 0 ? 2 : 3, i == 0 ? 0 : 2);
}

/* ---- all at once ---- */

static int body_all_fail(struct comm *c, void *context, struct error *err)
{
    (void)context;
    char where[32];
    snprintf(where, sizeof where, "run.yaml:%d", comm_rank(c));
    error_set(err, ERROR_INPUT, where, NULL, "misspelt");
    return ERROR_INPUT;
}

static int body_no_text(struct comm *c, void *context, struct error *err)
{
    (void)context, (void)err;
    return comm_rank(c) == 1 ? ERROR_RUN : comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static int body_disagree(struct comm *c, void *context, struct error *err)
{
    (void)context, (void)err;
    return comm_rank(c) == 1 ? 143 : 0;
}

static int body_alone_fails(struct comm *c, void *context, struct error *err)
{
    (void)c, (void)context;
    return error_set(err, ERROR_INPUT, "here", NULL, "wrong"), ERROR_INPUT;
}

static void test_messages(void **state)
{
    (void)state;
    struct shared *s = group_shared();
    struct outcome out = group_run(3, body_all_fail, s, NULL);
    assert_int_equal(out.status, 2);
    int line; /* wrong input is nobody's own */
    assert_int_equal(sscanf(out.err.where, "run.yaml:%d", &line), 1);
    assert_in_range(line, 0, 2);
    out = group_run(3, body_no_text, s, NULL);
    assert_int_equal(out.status, 1);
    assert_string_equal(out.err.where, "rank 1");
    assert_string_equal(out.err.what, "it failed without saying why");
    out = group_run(2, body_disagree, s, NULL);
    assert_int_equal(out.status, 1);
    assert_non_null(strstr(out.err.what, "rank 0 with status 0, rank 1 with 143"));
    out = group_run(1, body_alone_fails, s, NULL);
    assert_int_equal(out.status, 2);
    assert_string_equal(out.err.where, "here");
    munmap(s, sizeof *s);
}

/* ---- from outside ---- */

/* Each rank tells its pid and waits: rank 0 working, the others for it. */
static int body_hang(struct comm *c, void *context, struct error *err)
{
    struct shared *s = context;
    atomic_store(&s->pid[comm_rank(c)], getpid());
    atomic_fetch_add(&s->ready, 1);
    if (comm_rank(c) == 0)
        for (;;)
            nap(1);
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static void kill_launcher(struct shared *s, pid_t launcher)
{
    group_await(s, 3);
    kill(launcher, SIGKILL);
}

static void kill_working(struct shared *s, pid_t launcher)
{
    (void)launcher;
    group_await(s, 3);
    kill(s->pid[0], SIGKILL);
}

static void stop_then_kill_waiting(struct shared *s, pid_t launcher)
{
    (void)launcher;
    group_await(s, 3);
    kill(s->pid[0], SIGSTOP); /* a stopped rank goes too */
    kill(s->pid[2], SIGKILL);
}

static void send_twice(struct shared *s, pid_t launcher)
{
    group_await(s, 3);
    kill(launcher, SIGINT);
    nap(0.5);
    kill(launcher, SIGINT);
}

static void test_killed_from_outside(void **state)
{
    (void)state;
    struct shared *s = group_shared();
    struct outcome out = group_run(3, body_hang, s, kill_launcher);
    assert_true(out.signaled && out.status == 137);
    assert_int_equal(out.lines, 1); /* rank 0 says what nobody else can */
    s->lines = 0;
    atomic_store(&s->ready, 0);
    out = group_run(3, body_hang, s, kill_working);
    assert_int_equal(out.status, 1);
    assert_string_equal(out.err.what, "rank 0 was killed by signal 9 (Killed)");
    atomic_store(&s->ready, 0);
    out = group_run(3, body_hang, s, stop_then_kill_waiting);
    assert_int_equal(out.status, 1);
    assert_string_equal(out.err.what, "rank 2 was killed by signal 9 (Killed)");
    atomic_store(&s->ready, 0);
    out = group_run(3, body_hang, s, send_twice);
    assert_int_equal(out.status, 130);
    assert_false(out.signaled);
    assert_int_equal(out.err.kind, ERROR_NONE);
    assert_int_equal(out.lines, 2); /* that it stops, and that it does so without saving */
    munmap(s, sizeof *s);
}

/* ---- ranks that are stopped, and those that only seem so ---- */

enum { WATCHDOG = 1 }; /* seconds */

static void stop_working(struct shared *s, pid_t launcher)
{
    (void)launcher;
    group_await(s, 2);
    kill(s->pid[0], SIGSTOP);
}

static void stop_waiting(struct shared *s, pid_t launcher)
{
    (void)launcher;
    group_await(s, 3);
    kill(s->pid[2], SIGSTOP);
}

static void test_stopped_rank(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        struct shared *s = group_shared();
        char expected[128];
        int stopped = ranks == 2 ? 0 : 2;
        s->watchdog = WATCHDOG;
        struct outcome out = group_run(ranks, body_hang, s, ranks == 2 ? stop_working : stop_waiting);
        assert_int_equal(out.status, 1);
        assert_false(out.signaled);
        assert_int_equal(out.lines, 0);
        snprintf(expected, sizeof expected, "rank %d (process %d) has given no sign of life for ", stopped,
                 (int)s->pid[stopped]);
        if (strstr(out.err.what, expected) != out.err.what || !strstr(out.err.what, "stopped (SIGSTOP)"))
            fail_msg("\"%s\" does not say \"%s\"", out.err.what, expected);
        assert_true(out.err.remedy[0] != '\0');
        munmap(s, sizeof *s);
    }
}

/* Rank 0 computes, calling nothing, and the others wait for it, several watchdogs long. */
static int body_computes(struct comm *c, void *context, struct error *err)
{
    volatile double x = 0;
    (void)context;
    if (comm_rank(c) == 0)
        for (double start = clock_seconds(); clock_seconds() - start < 2.5 * WATCHDOG;)
            for (int i = 0; i < 100000; i++)
                x = x * 0.5 + i;
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static void test_long_work(void **state)
{
    (void)state;
    struct shared *s = group_shared();
    s->watchdog = WATCHDOG;
    struct outcome out = group_run(2, body_computes, s, NULL);
    if (out.status != 0)
        fail_msg("status %d, %s", out.status, out.err.what);
    munmap(s, sizeof *s);
}

/* Works on until it is told to end. */
static int body_open(struct comm *c, void *context, struct error *err)
{
    struct shared *s = context;
    atomic_store(&s->pid[comm_rank(c)], getpid());
    atomic_fetch_add(&s->ready, 1);
    await_flag(&s->open, 1);
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static void pause_launcher(struct shared *s, pid_t launcher)
{
    group_await(s, 2);
    kill(launcher, SIGSTOP);
    nap(2.5 * WATCHDOG);
    kill(launcher, SIGCONT);
    nap(0.5 * WATCHDOG); /* it has looked */
    atomic_store(&s->open, 1);
}

/* As Ctrl-Z and `fg`, but that the launcher has seen the last beats when it is stopped, and that the ranks
 * come back a little later. */
static void pause_all(struct shared *s, pid_t launcher)
{
    group_await(s, 2);
    kill(s->pid[0], SIGSTOP);
    kill(s->pid[1], SIGSTOP);
    nap(0.3 * WATCHDOG);
    kill(-launcher, SIGSTOP);
    nap(2.5 * WATCHDOG);
    kill(launcher, SIGCONT);
    nap(0.3 * WATCHDOG);
    kill(-launcher, SIGCONT);
    nap(0.5 * WATCHDOG);
    atomic_store(&s->open, 1);
}

static void test_paused_run(void **state)
{
    (void)state;
    void (*const pauses[])(struct shared *, pid_t) = {pause_launcher, pause_all};
    for (int i = 0; i < 2; i++) {
        struct shared *s = group_shared();
        s->watchdog = WATCHDOG;
        struct outcome out = group_run(2, body_open, s, pauses[i]);
        if (out.status != 0)
            fail_msg("pause %d: status %d, %s", i, out.status, out.err.what);
        munmap(s, sizeof *s);
    }
}

/* ---- requests to stop ---- */

/* A training loop: works, agrees on the request to stop, "saves" and ends with 128+N. */
static int body_loop(struct comm *c, void *context, struct error *err)
{
    struct shared *s = context;
    atomic_fetch_add(&s->ready, 1);
    for (;;) {
        int64_t number = comm_stop_signal(c);
        if (comm_max_i64(c, &number, 1, err) != 0)
            return ERROR_RUN;
        if (number != 0) {
            nap(0.4); /* saving takes longer than a repeated signal counts as the same */
            atomic_store(&s->seen[comm_rank(c)], comm_stop_signal(c));
            return 128 + (int)number;
        }
        nap(0.005);
    }
}

static void send_term(struct shared *s, pid_t launcher)
{
    group_await(s, 1);
    kill(launcher, SIGTERM);
}

/* As `timeout` does: to the process, then to its whole group. */
static void send_term_like_timeout(struct shared *s, pid_t launcher)
{
    group_await(s, 1);
    kill(launcher, SIGTERM);
    nap(0.02);
    kill(-launcher, SIGTERM);
}

static void send_int_to_group(struct shared *s, pid_t launcher)
{
    group_await(s, 1);
    kill(-launcher, SIGINT);
}

static void test_stop_requests(void **state)
{
    (void)state;
    void (*const senders[])(struct shared *, pid_t) = {send_term, send_term_like_timeout, send_int_to_group};
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int i = 0; i < 3; i++) {
            struct shared *s = group_shared();
            struct outcome out = group_run(ranks, body_loop, s, senders[i]);
            int expected = i < 2 ? SIGTERM : SIGINT;
            if (out.status != 128 + expected || out.signaled)
                fail_msg("%d ranks, sender %d: status %d, %s", ranks, i, out.status, out.err.what);
            for (int r = 0; r < ranks; r++)
                assert_int_equal(s->seen[r], expected);
            assert_int_equal(out.lines, ranks > 1); /* the launcher says that the step is finished first */
            munmap(s, sizeof *s);
        }
}

/* One rank: the first request is seen, the second one ends the process. */
static int body_deaf(struct comm *c, void *context, struct error *err)
{
    struct shared *s = context;
    atomic_fetch_add(&s->ready, 1);
    for (double start = clock_seconds(); clock_seconds() - start < 60; nap(0.01))
        atomic_store(&s->seen[0], comm_stop_signal(c));
    return error_set(err, ERROR_RUN, NULL, NULL, "the second request did nothing"), ERROR_RUN;
}

static void send_twice_to_one(struct shared *s, pid_t launcher)
{
    group_await(s, 1);
    kill(launcher, SIGTERM);
    nap(0.6);
    assert_int_equal(s->seen[0], SIGTERM);
    kill(launcher, SIGINT);
}

static void test_second_request_alone(void **state)
{
    (void)state;
    struct shared *s = group_shared();
    struct outcome out = group_run(1, body_deaf, s, send_twice_to_one);
    assert_true(out.signaled && out.status == 130);
    munmap(s, sizeof *s);
}

/* The caller's signal mask and SIGCHLD come back as they were, and its other children are left alone. */
static int body_nothing(struct comm *c, void *context, struct error *err)
{
    (void)context;
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static void test_leaves_the_caller_alone(void **state)
{
    (void)state;
    sigset_t before, after;
    struct sigaction action;
    struct log log = {0};
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    sigprocmask(SIG_BLOCK, NULL, &before);
    for (int ranks = 1; ranks <= 3; ranks++)
        assert_int_equal(comm_run(ranks, COMM_SHM, &log, body_nothing, NULL, NULL), 0);
    sigprocmask(SIG_BLOCK, NULL, &after);
    for (int number = 1; number <= SIGRTMAX; number++)
        assert_int_equal(sigismember(&before, number), sigismember(&after, number));
    sigaction(SIGCHLD, NULL, &action);
    assert_true(action.sa_handler == SIG_DFL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 7);
    /* A caller that ignores SIGCHLD still gets its ranks' statuses. */
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(comm_run(2, COMM_AUTO, &log, body_nothing, NULL, NULL), 0);
    signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
    static const char *const names[WAYS] = {"returns 1",  "returns 2",           "returns 0",
                                            "returns 77", "exits with 0",        "exits with 3",
                                            "is killed",  "a segmentation fault"};
    struct CMUnitTest tests[WAYS + 8];
    int n = 0;
    for (; n < WAYS; n++)
        tests[n] = (struct CMUnitTest){names[n], test_failures, NULL, NULL, (void *)(intptr_t)n};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_messages);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_killed_from_outside);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_stopped_rank);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_long_work);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_paused_run);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_stop_requests);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_second_request_alone);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_leaves_the_caller_alone);
    return cmocka_run_group_tests_name("failures", tests, NULL, NULL);
}
