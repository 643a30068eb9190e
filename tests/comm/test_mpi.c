/* The same collectives with messages: this program starts itself again under mpirun. And what becomes of
 * ranks that fail or are killed there. Skipped without MPI. */
#include "base/clock.h"
#include "base/file.h"
#include "comm/bodies.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

/* MOST_SECONDS: five are promised; mpirun on a machine with other work, under a sanitizer, may take longer.
 */
enum { SKIPPED = 77, TEXT = 65536, MOST_SECONDS = 15 };

/* ---- in a rank ---- */

static int body_error(struct comm *c, void *context, struct error *err)
{
    (void)context;
    if (comm_rank(c) == comm_size(c) - 1)
        return error_set(err, ERROR_INPUT, "the place", "the remedy", "the problem"), ERROR_INPUT;
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static int body_all_err(struct comm *c, void *context, struct error *err)
{
    (void)c, (void)context;
    return error_set(err, ERROR_INPUT, "run.yaml:3", NULL, "the problem"), ERROR_INPUT;
}

/* Fails with messages of all kinds under way and gives everything back. */
static int body_error_in_flight(struct comm *c, void *context, struct error *err)
{
    (void)context;
    int64_t offset[LAYOUT_RANKS + 1] = {0};
    struct comm_window full;
    struct comm_gather g;
    struct comm_exchange x;
    enum { RUN = 300000 }; /* more than what is sent unasked */
    for (int r = 0; r < comm_size(c); r++)
        offset[r + 1] = offset[r] + RUN;
    size_t bytes = (size_t)RUN * (size_t)comm_size(c);
    CHECK(comm_window_create(c, bytes, true, &full, err) == 0);
    CHECK(comm_gather_create(c, offset, false, &g, err) == 0);
    CHECK(comm_exchange_create(c, bytes, RUN, &x, err) == 0);
    CHECK(comm_exchange_layout(&x, offset, err) == 0 && comm_exchange_reuse(&x, err) == 0);
    if (comm_rank(c) == 0)
        return comm_move(c, 1, 0, NULL, full.memory, 1, err) == 0 ? 0 : ERROR_RUN;
    CHECK(comm_gather_begin(&g, (char *)full.memory + offset[comm_rank(c)], full.memory, err) == 0);
    CHECK(comm_exchange_begin(&x, comm_size(c), err) == 0);
    comm_window_free(c, &full);
    comm_exchange_free(&x);
    comm_gather_free(&g);
    return error_set(err, ERROR_RUN, "the place", NULL, "the problem"), ERROR_RUN;
}

static int body_killed(struct comm *c, void *context, struct error *err)
{
    (void)context;
    if (comm_rank(c) == comm_size(c) - 1)
        raise(SIGKILL);
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

/* All ranks end with 128+N when their launcher is asked to stop. */
static int body_stopped(struct comm *c, void *context, struct error *err)
{
    (void)context;
    if (comm_rank(c) == 0) {
        puts("ready");
        fflush(stdout);
    }
    for (;;) {
        int64_t number = comm_stop_signal(c);
        if (comm_max_i64(c, &number, 1, err) != 0)
            return ERROR_RUN;
        if (number != 0) {
            if (comm_rank(c) == 0)
                printf("stopped by %d\n", (int)number);
            return 128 + (int)number;
        }
    }
}

static int body_hang(struct comm *c, void *context, struct error *err)
{
    (void)context;
    if (comm_rank(c) == 0) {
        puts("ready");
        fflush(stdout);
        sleep(60);
    }
    return comm_barrier(c, err) == 0 ? 0 : ERROR_RUN;
}

static const struct named_body mpi_bodies[] = {
    {"error", body_error},   {"all_err", body_all_err}, {"error_in_flight", body_error_in_flight},
    {"killed", body_killed}, {"stopped", body_stopped}, {"hang", body_hang},
};

/* `test_mpi --rank NAME [RANKS TRANSPORT]`: runs one body and reports as src/cli does. */
static int run_rank(int argc, char **argv)
{
    struct log log;
    struct log_stream stream;
    struct error err;
    comm_body *body = NULL;
    for (int i = 0; i < BODIES; i++)
        if (strcmp(all_bodies[i].name, argv[2]) == 0)
            body = all_bodies[i].body;
    for (size_t i = 0; i < sizeof mpi_bodies / sizeof mpi_bodies[0]; i++)
        if (strcmp(mpi_bodies[i].name, argv[2]) == 0)
            body = mpi_bodies[i].body;
    if (!body)
        return 99;
    log_to_stream(&log, &stream, stderr);
    int ranks = argc > 3 ? atoi(argv[3]) : 0;
    enum comm_transport transport = argc > 4 ? (enum comm_transport)atoi(argv[4]) : COMM_AUTO;
    int status = comm_run(ranks, transport, &log, body, NULL, &err);
    if (err.kind != ERROR_NONE) {
        char text[sizeof err];
        error_format(&err, text, sizeof text);
        fprintf(stderr, "error: %s\n", text);
    }
    return status;
}

/* ---- in the test ---- */

struct output {
    int status;
    bool signaled;
    double seconds; /* from the signal, or the start */
    char text[TEXT];
};

/* Adds to an environment variable of options that are separated by colons. */
static void add_option(const char *variable, const char *option)
{
    const char *before = getenv(variable);
    char options[1024];
    snprintf(options, sizeof options, "%s%s%s", before ? before : "", before ? ":" : "", option);
    setenv(variable, options, 1);
}

static void start_again(char **arguments, int out)
{
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    setpgid(0, 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    /* The MPI library's own leaks (in plug-ins that it unloads, so no suppression can name them), and its own
     * threads and locks, which ThreadSanitizer does not see through; a rank has one thread of ours here. */
    add_option("ASAN_OPTIONS", "detect_leaks=0");
    setenv("TSAN_OPTIONS", "report_bugs=0:atexit_sleep_ms=0", 1);
    execvp(arguments[0], arguments);
    _exit(127);
}

/* Runs a command; once it has printed "ready", sends `number` to it (0: nothing). Fails when it or a process
 * that it left behind is alive MOST_SECONDS from then, or 100 from the start. */
static void run_command(char **arguments, int number, struct output *o)
{
    int pipes[2];
    size_t fill = 0;
    double start = clock_seconds(), limit = 100;
    memset(o, 0, sizeof *o);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        start_again(arguments, pipes[1]);
    close(pipes[1]);
    for (bool sent = number == 0;;) { /* until every process has closed its end */
        struct pollfd ready = {.fd = pipes[0], .events = POLLIN};
        if (clock_seconds() - start > limit) {
            kill(pid, SIGKILL);
            fail_msg("alive after %.0f seconds: %s", limit, o->text);
        }
        if (poll(&ready, 1, 100) <= 0)
            continue;
        ssize_t n = read(pipes[0], o->text + fill, TEXT - 1 - fill);
        if (n <= 0)
            break;
        fill += (size_t)n;
        if (!sent && strstr(o->text, "ready")) {
            kill(pid, number);
            sent = true;
            start = clock_seconds();
            limit = MOST_SECONDS;
        }
    }
    close(pipes[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    o->seconds = clock_seconds() - start;
    o->signaled = WIFSIGNALED(status);
    o->status = o->signaled ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static char *self_path(void)
{
    static const char link[] = "/proc/self/exe";
    char *path = calloc(1, 4096);
    assert_non_null(path);
    assert_true(readlink(link, path, 4095) > 0);
    return path;
}

/* mpirun -n COUNT test_mpi --rank BODY [ranks transport] */
static void mpirun(int count, const char *body, const char *ranks, const char *transport, int number,
                   struct output *o)
{
    char counted[16], *path = self_path();
    snprintf(counted, sizeof counted, "%d", count);
    char *arguments[] = {"mpirun",
                         "-n",
                         counted,
                         path,
                         "--rank",
                         (char *)(uintptr_t)body,
                         (char *)(uintptr_t)ranks,
                         (char *)(uintptr_t)transport,
                         NULL};
    run_command(arguments, number, o);
    free(path);
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

static void run_body(void **state)
{
    const struct named_body *b = *state;
    struct output o;
    for (int ranks = 1; ranks <= 3; ranks++) {
        mpirun(ranks, b->name, NULL, NULL, 0, &o);
        if (o.status != 0)
            fail_msg("%s on %d ranks: status %d, %s", b->name, ranks, o.status, o.text);
        assert_string_equal(o.text, "");
    }
}

static void test_error(void **state)
{
    (void)state;
    struct output o;
    mpirun(3, "error", NULL, NULL, 0, &o);
    assert_int_equal(o.status, 2);
    assert_int_equal(occurrences(o.text, "error: rank 2: the place: the problem; the remedy"), 1);
    assert_int_equal(occurrences(o.text, "another rank failed"), 0);
    mpirun(2, "error_in_flight", NULL, NULL, 0, &o);
    assert_int_equal(o.status, 1);
    if (occurrences(o.text, "the place: the problem") != 1 || strstr(o.text, "errno"))
        fail_msg("%s", o.text);
    mpirun(3, "all_err", NULL, NULL, 0, &o);
    assert_int_equal(o.status, 2);
    assert_int_equal(occurrences(o.text, "run.yaml:3: the problem"), 1);
}

static void test_killed(void **state)
{
    (void)state;
    struct output o;
    mpirun(3, "killed", NULL, NULL, 0, &o);
    assert_int_not_equal(o.status, 0);
    /* The launcher's words, which ends the others at once. MPICH's tells the process and the signal, not the
     * rank. */
    assert_true(strstr(o.text, "rank 2") || strstr(o.text, "Killed (signal 9)"));
    assert_int_equal(occurrences(o.text, "rank 0: "), 0);
    mpirun(2, "hang", NULL, NULL, SIGKILL, &o);
    assert_true(o.signaled);
}

static void test_stopped(void **state)
{
    (void)state;
    struct output o;
    mpirun(2, "stopped", NULL, NULL, SIGTERM, &o);
    if (!strstr(o.text, "stopped by 15"))
        fail_msg("status %d, %s", o.status, o.text);
}

static void test_refusals(void **state)
{
    (void)state;
    struct output o;
    mpirun(2, "names", "2", NULL, 0, &o);
    assert_int_equal(o.status, 2);
    assert_int_equal(occurrences(o.text, "error: an MPI launcher has started the ranks already"), 1);
    mpirun(2, "names", "0", "1", 0, &o);
    assert_int_equal(o.status, 2);
    assert_int_equal(occurrences(o.text, "error: transport shm cannot join"), 1);
    /* A launcher of another library: the ranks do not know each other. */
    char *path = self_path();
    char *arguments[] = {"env", "PMI_SIZE=3", "PMI_RANK=0", path, "--rank", "names", NULL};
    run_command(arguments, 0, &o);
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.text, "started 3 ranks, but they do not know each other"));
    /* -n in a launcher's one process is fine. */
    mpirun(1, "names", "2", NULL, 0, &o);
    assert_int_equal(o.status, 0);
    free(path);
}

static bool have_mpirun(void)
{
    char *arguments[] = {"mpirun", "--version", NULL};
    struct output *o = malloc(sizeof *o);
    assert_non_null(o);
    run_command(arguments, 0, o);
    bool found = o->status == 0;
    free(o);
    return found;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--rank") == 0)
        return run_rank(argc, argv);
    if (!comm_has_mpi() || !have_mpirun())
        return SKIPPED;
    /* Open MPI's files, which it leaves when mpirun is killed. */
    char directory[] = "/tmp/tercet-test-mpi-XXXXXX";
    if (!mkdtemp(directory))
        return 1;
    setenv("OMPI_MCA_orte_tmpdir_base", directory, 1);
    setenv("OMPI_MCA_btl_vader_backing_directory", directory, 1);
    struct CMUnitTest tests[BODIES + 4];
    int n = 0;
    for (; n < BODIES; n++)
        tests[n] =
            (struct CMUnitTest){all_bodies[n].name, run_body, NULL, NULL, (void *)(uintptr_t)&all_bodies[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_error);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_killed);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_stopped);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_refusals);
    int failures = cmocka_run_group_tests_name("mpi", tests, NULL, NULL);
    return file_remove_tree(directory, NULL) == 0 ? failures : 1;
}
