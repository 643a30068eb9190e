/* Runs a body on a group of ranks in a process group of its own, and sees what is left of it.
 *
 * The test process forks a "launcher" that calls comm_run; the two and all ranks share a page. The test
 * process is the reaper of what the launcher leaves behind, so no rank can survive unseen. */
#ifndef TEST_COMM_GROUP_H
#define TEST_COMM_GROUP_H

#include "base/clock.h"
#include "comm/comm.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { GROUP_MOST = 8 };

struct shared {
    _Atomic int ready;               /* ranks that have come to the point of interest */
    _Atomic int open;                /* set by the test: ranks may go on */
    _Atomic int32_t pid[GROUP_MOST]; /* of ranks */
    _Atomic int seen[GROUP_MOST];    /* what ranks want to tell */
    double watchdog;                 /* 0: the standard one */
    int status;                      /* of comm_run */
    struct error err;
    int lines; /* that were logged by the launcher */
};

struct outcome {
    int status; /* exit status of the launcher; 128+N when signal N killed it */
    bool signaled;
    struct error err;
    int lines;
    double seconds; /* from the interference (or the start) until everything was gone */
};

static void nap(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static void count_line(void *context, enum log_level level, const char *text)
{
    (void)level, (void)text;
    ((struct shared *)context)->lines++;
}

static struct shared *group_shared(void)
{
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    return s;
}

/* Runs body(context = s) on ranks; `interfere`, when not NULL, is called meanwhile with the launcher's pid.
 * Fails when anything of the group is alive five seconds after `interfere` (or 120 after the start). */
static struct outcome group_run(int ranks, comm_body *body, struct shared *s,
                                void (*interfere)(struct shared *s, pid_t launcher))
{
    struct outcome out = {0};
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    pid_t launcher = fork();
    assert_true(launcher >= 0);
    if (launcher == 0) {
        setpgid(0, 0);
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        struct log log = {.line = count_line, .context = s};
        struct comm_options options = {.ranks = ranks, .watchdog = s->watchdog, .log = &log};
        s->status = comm_run_with(&options, body, s, &s->err);
        _exit(s->status);
    }
    setpgid(launcher, launcher); /* whoever comes first */
    double limit = 120, start = clock_seconds();
    if (interfere) {
        interfere(s, launcher);
        limit = 5;
        start = clock_seconds();
    }
    for (;;) { /* the launcher and, if it left some, its ranks */
        int status;
        pid_t pid = waitpid(-launcher, &status, WNOHANG);
        if (pid < 0)
            break; /* nothing left */
        if (pid == launcher) {
            out.signaled = WIFSIGNALED(status);
            out.status = out.signaled ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        if (pid == 0)
            nap(0.002);
        if (clock_seconds() - start > limit) {
            kill(-launcher, SIGKILL);
            fail_msg("processes of the group are alive after %.0f seconds", limit);
        }
    }
    out.seconds = clock_seconds() - start;
    assert_int_equal(kill(-launcher, 0), -1);
    assert_int_equal(errno, ESRCH);
    out.err = s->err;
    out.lines = s->lines;
    return out;
}

#endif
