#include "comm/launch.h"

#include "base/clock.h"
#include "base/proc.h"
#include "comm/heartbeat.h"
#include "comm/region.h"
#include "comm/shm.h"
#include "comm/signals.h"
#include "comm/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Once a rank has failed: how long the others may take to notice and to remove what they were writing, before
 * they are killed; and when the launcher ends though the kernel has not got rid of one yet. */
static const double grace_seconds = 1.0, reap_seconds = 4.0;

struct launch {
    struct region *region;
    const struct log *log;
    struct signals signals;
    struct watchdog watchdog;
    struct sigaction before; /* the caller's SIGCHLD */
    int started;
    int alive;
    pid_t *pid;  /* 0 once reaped */
    int *status; /* exit status of a reaped rank that ended well */
    bool ending; /* all ranks are to end */
    double ending_since;
    int result; /* exit status once `ending` */
    struct error *err;
};

/* ---- in a rank ---- */

/* A killed launcher takes its ranks along: the kernel sends each a signal. For all but rank 0 that is
 * SIGKILL. In rank 0 a thread waits for another, says what has happened, which nobody else can, and then ends
 * the rank. */
enum { LAUNCHER_GONE = SIGUSR2 };

struct guard {
    const struct log *log;
    pid_t launcher;
    pthread_t thread;
    bool started;
};

static void *guard_run(void *context)
{
    const struct guard *guard = context;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, LAUNCHER_GONE);
    while (sigwaitinfo(&wanted, NULL) != LAUNCHER_GONE || getppid() == guard->launcher)
        continue; /* a signal that somebody else sent */
    if (guard->log && guard->log->line)
        guard->log->line(guard->log->context, LOG_ERROR,
                         "the launcher was killed: rank 0 and all others end");
    kill(getpid(), SIGKILL);
    return NULL;
}

/* The signal that tells this rank of the launcher's end, once it is asked for. */
static int guard_start(struct guard *guard, int rank)
{
    sigset_t gone;
    if (rank != 0)
        return SIGKILL;
    sigemptyset(&gone);
    sigaddset(&gone, LAUNCHER_GONE);
    pthread_sigmask(SIG_BLOCK, &gone, NULL); /* in every thread that this one makes */
    guard->started = pthread_create(&guard->thread, NULL, guard_run, guard) == 0;
    return guard->started ? LAUNCHER_GONE : SIGKILL;
}

static void guard_stop(struct guard *guard)
{
    if (!guard->started)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_cancel(guard->thread);
    pthread_join(guard->thread, NULL);
}

static _Noreturn void rank_run(struct launch *l, int rank, pid_t launcher, comm_body *body, void *context)
{
    struct region *g = l->region;
    struct region_rank *me = &g->rank[rank];
    struct guard guard = {.log = l->log, .launcher = launcher};
    sigset_t child;
    if (prctl(PR_SET_PDEATHSIG, guard_start(&guard, rank)) != 0 || getppid() != launcher)
        _exit(ERROR_RUN); /* the launcher died before the signal was asked for */
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    if (!sigismember(&l->signals.before, SIGCHLD))
        pthread_sigmask(SIG_UNBLOCK, &child, NULL);
    sigaction(SIGCHLD, &l->before, NULL);
    free(l->pid);
    free(l->status);
    watchdog_free(&l->watchdog);

    struct comm c = {0};
    struct error err = {0};
    struct heart heart;
    int status = ERROR_RUN;
    if (heart_start(&heart, &me->beat, l->watchdog.limit, &err) == 0) {
        if (shm_open_rank(&c, g, rank, &err) == 0) {
            /* Nothing is begun when not all ranks could be started. */
            if (region_wait(&c, g, rank, &g->go, WORD_EQUALS, 1, &err) == 0)
                status = comm_body_status(body(&c, context, &err), &err);
            shm_close_rank(&c);
        }
        heart_stop(&heart);
    }
    if (status == ERROR_RUN || status == ERROR_INPUT) {
        /* Input is the same for all ranks of a machine: it is as wrong for the others. */
        if (status != ERROR_INPUT)
            comm_name_rank(&err, rank);
        me->error = err;
        int32_t none = -1;
        if (!c.secondary)
            atomic_compare_exchange_strong(&g->first_failed, &none, rank);
        atomic_store(&g->abort, 1);
    }
    guard_stop(&guard);
    me->status = status;
    atomic_store(&me->ended, 1);
    exit(status);
}

/* ---- in the launcher ---- */

static void kill_all(struct launch *l)
{
    for (int r = 0; r < l->started; r++)
        if (l->pid[r] != 0)
            kill(l->pid[r], SIGKILL);
}

/* Ends the run: ranks see the word that they look at while waiting. */
static void end_all(struct launch *l, int result)
{
    if (!l->ending) {
        l->ending = true;
        l->ending_since = clock_seconds();
        l->result = result;
    }
    atomic_store(&l->region->abort, 1);
}

static void report_signal(int rank, int number, struct error *err)
{
    const char *name = sigdescr_np(number);
    const char *remedy = "this is a bug in Tercet: please report it with the run file";
    if (number == SIGKILL)
        remedy =
            "if nobody killed it, the machine ran out of memory: take a smaller micro_batch, fewer ranks or "
            "recompute: full";
    else if (number == SIGBUS)
        remedy = "the machine or its container may have run out of memory";
    else if (number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT ||
             number == SIGXCPU || number == SIGXFSZ || number == SIGPIPE)
        remedy = NULL;
    error_set(err, ERROR_RUN, NULL, remedy, "rank %d was killed by signal %d (%s)", rank, number,
              name ? name : "unknown");
}

/* Rank r is gone: keeps its status, or ends the run with the first failure. */
static void rank_gone(struct launch *l, int r, int wait_status)
{
    struct region *g = l->region;
    l->pid[r] = 0;
    l->alive--;
    if (l->ending)
        return;
    int first = atomic_load(&g->first_failed);
    bool ended = atomic_load(&g->rank[r].ended) != 0;
    int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    if (ended && status == g->rank[r].status && (status == 0 || status >= 128)) {
        l->status[r] = status;
        return;
    }
    int result = ERROR_RUN;
    if (first >= 0) {
        if (l->err)
            *l->err = g->rank[first].error;
        result = (int)g->rank[first].error.kind;
    } else if (WIFSIGNALED(wait_status))
        report_signal(r, WTERMSIG(wait_status), l->err);
    else
        error_set(l->err, ERROR_RUN, NULL, NULL, "rank %d ended with status %d %s", r, status,
                  ended ? "although its work ended well" : "without saying why");
    end_all(l, result);
}

static void reap(struct launch *l)
{
    for (int r = 0; r < l->started; r++) {
        int wait_status;
        if (l->pid[r] != 0 && waitpid(l->pid[r], &wait_status, WNOHANG) == l->pid[r])
            rank_gone(l, r, wait_status);
    }
}

/* ---- ranks that give no sign of life ---- */

enum plight {
    PLIGHT_STOPPED,
    PLIGHT_TRACED,
    PLIGHT_ENDING, /* it will be reaped: it writes a core file, or its memory is given back */
    PLIGHT_HELD,   /* nothing is wrong with it, but it does not get to run */
};

static enum plight plight_of(pid_t pid)
{
    char path[64], state[32] = "", dumping[8] = "";
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    char *text = proc_text("", path);
    if (text) {
        proc_line(text, "State", state, sizeof state);
        proc_line(text, "CoreDumping", dumping, sizeof dumping);
        free(text);
    }
    if (state[0] == 'T')
        return PLIGHT_STOPPED;
    if (state[0] == 't')
        return PLIGHT_TRACED;
    return state[0] == 'Z' || state[0] == 'X' || dumping[0] == '1' ? PLIGHT_ENDING : PLIGHT_HELD;
}

static void report_silence(int rank, pid_t pid, double seconds, enum plight plight, struct error *err)
{
    static const char *const what[] = {
        [PLIGHT_STOPPED] = "it is stopped (SIGSTOP)",
        [PLIGHT_TRACED] = "a debugger holds it",
        [PLIGHT_HELD] = "the machine does not let it run",
    };
    static const char *const remedy[] = {
        [PLIGHT_STOPPED] =
            "to pause a run, stop its launcher together with its ranks: Ctrl-Z, or kill -STOP -- -PGID",
        [PLIGHT_TRACED] = "to look at a rank with a debugger, give the run a larger parallel.watchdog",
        [PLIGHT_HELD] = "the machine may be swapping: take a smaller micro_batch or fewer ranks; a larger "
                        "parallel.watchdog waits longer",
    };
    error_set(err, ERROR_RUN, NULL, remedy[plight],
              "rank %d (process %d) has given no sign of life for %.3g seconds: %s", rank, (int)pid, seconds,
              what[plight]);
}

/* Ends the run when a rank has been silent for too long. Ranks that have ended are silent too. */
static void look_for_silence(struct launch *l)
{
    struct region *g = l->region;
    double now = clock_seconds();
    watchdog_turn(&l->watchdog, now);
    for (int r = 0; r < l->started && !l->ending; r++) {
        bool ended = atomic_load(&g->rank[r].ended) != 0;
        double silence = watchdog_silence(&l->watchdog, r, atomic_load(&g->rank[r].beat), now);
        if (l->pid[r] == 0 || silence <= l->watchdog.limit)
            continue;
        enum plight plight = plight_of(l->pid[r]);
        if (plight == PLIGHT_ENDING || (ended && plight == PLIGHT_HELD))
            continue;
        report_silence(r, l->pid[r], silence, plight, l->err);
        end_all(l, ERROR_RUN);
        kill(l->pid[r], SIGKILL); /* all that a stopped process heeds */
    }
}

/* Waits until every rank is gone. */
static void watch(struct launch *l)
{
    double interval = watchdog_interval(l->watchdog.limit);
    while (l->alive > 0) {
        bool second;
        int number = signals_wait(&l->signals, l->ending ? 0.05 : interval, &second);
        if (number == SIGTERM || number == SIGINT) {
            if (second && !l->ending) {
                log_warning(l->log, "a second %s: the ranks are ended without saving",
                            number == SIGINT ? "SIGINT" : "SIGTERM");
                end_all(l, 128 + number);
                kill_all(l);
            } else if (atomic_exchange(&l->region->stop, (uint32_t)l->signals.first) == 0)
                log_info(
                    l->log,
                    "stopping at the end of this step, then saving; a second signal ends the run at once, "
                    "without saving");
        }
        reap(l);
        look_for_silence(l);
        double ending = l->ending ? clock_seconds() - l->ending_since : 0;
        if (ending > grace_seconds)
            kill_all(l);
        /* A process that the kernel cannot end (a dead network file system) must not hold the launcher. */
        if (ending > reap_seconds)
            break;
    }
}

static int start_ranks(struct launch *l, int ranks, comm_body *body, void *context)
{
    pid_t launcher = getpid();
    fflush(NULL); /* or every rank would write what is buffered here once more */
    for (int r = 0; r < ranks; r++) {
        pid_t pid = fork();
        if (pid == 0)
            rank_run(l, r, launcher, body, context);
        if (pid < 0) {
            char doing[64];
            snprintf(doing, sizeof doing, "start rank %d", r);
            error_errno(l->err, errno, NULL, doing);
            end_all(l, ERROR_RUN);
            return -1;
        }
        l->pid[r] = pid;
        l->started++;
        l->alive++;
    }
    word_set(&l->region->go, 1);
    return 0;
}

/* All ranks ended well: their one status. */
static int agreed_status(const struct launch *l, int ranks)
{
    for (int r = 1; r < ranks; r++)
        if (l->status[r] != l->status[0]) {
            error_set(l->err, ERROR_RUN, NULL, NULL,
                      "ranks ended differently: rank 0 with status %d, rank %d with %d", l->status[0], r,
                      l->status[r]);
            return ERROR_RUN;
        }
    return l->status[0];
}

int launch_run(const struct comm_options *options, comm_body *body, void *context, struct error *err)
{
    struct launch l = {.log = options->log, .err = err};
    int ranks = options->ranks;
    double limit = options->watchdog > 0 ? options->watchdog : COMM_WATCHDOG_SECONDS;
    if (region_create(ranks, &l.region, err) != 0)
        return ERROR_RUN;
    l.pid = calloc((size_t)ranks, sizeof *l.pid);
    l.status = calloc((size_t)ranks, sizeof *l.status);
    if (!l.pid || !l.status) {
        error_memory(err, (size_t)ranks * sizeof *l.pid, "the list of ranks");
        l.result = ERROR_RUN;
    } else if (watchdog_create(&l.watchdog, ranks, limit, clock_seconds(), err) != 0) {
        l.result = ERROR_RUN;
    } else {
        /* An inherited "ignore" would take the ranks' statuses away. */
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(SIGCHLD, &standard, &l.before);
        signals_block(&l.signals, true, false);
        start_ranks(&l, ranks, body, context);
        watch(&l);
        signals_restore(&l.signals);
        sigaction(SIGCHLD, &l.before, NULL);
        if (!l.ending)
            l.result = agreed_status(&l, ranks);
    }
    watchdog_free(&l.watchdog);
    free(l.pid);
    free(l.status);
    region_free(l.region);
    return l.result;
}
