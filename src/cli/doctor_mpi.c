#include "cli/doctor.h"

#include "base/clock.h"
#include "base/pool.h"
#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_SECONDS = 5, ANSWER_SIZE = 1024, MASK_CPUS = 64 * 64 };

/* ---- the launcher on PATH ---- */

/* The first of a PATH that is an executable file. */
static bool find_on_path(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        struct stat st;
        int length = snprintf(out, size, "%.*s/%s", (int)n, path, name);
        if (n > 0 && length > 0 && (size_t)length < size && stat(out, &st) == 0 && S_ISREG(st.st_mode) &&
            access(out, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    out[0] = '\0';
    return false;
}

/* Reads until the end, until the buffer is full, or until the time is over. */
static void read_answer(int fd, char *out, size_t size)
{
    size_t used = 0;
    double end = clock_seconds() + ANSWER_SECONDS;
    while (used + 1 < size) {
        double left = end - clock_seconds();
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&waiting, 1, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n = ready > 0 ? read(fd, out + used, size - 1 - used) : 0;
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    out[used] = '\0';
}

/* What `path --version` prints; empty when it prints nothing in time. It is not waited for any longer. */
static void ask_version(const char *path, char *out, size_t size)
{
    int ends[2];
    pid_t child;
    char option[] = "--version";
    char *arguments[] = {(char *)(uintptr_t)path, option, NULL};
    posix_spawn_file_actions_t actions;
    out[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    bool ready = posix_spawn_file_actions_init(&actions) == 0;
    if (ready && posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0 &&
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0 &&
        posix_spawn(&child, path, &actions, NULL, arguments, environ) == 0) {
        close(ends[1]);
        ends[1] = -1;
        read_answer(ends[0], out, size);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    if (ready)
        posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
}

/* Its first line; where that ends in a colon (MPICH: "HYDRA build details:") the second one as well, without
 * the blanks that line it up. */
static void shorten_answer(const char *answer, char *out, size_t size)
{
    size_t used = 0;
    bool more = true;
    for (const char *at = answer; *at && more && used + 1 < size; at++) {
        bool blank = *at == ' ' || *at == '\t' || *at == '\n';
        if (*at == '\n' && used > 0)
            more = out[used - 1] == ':' || out[used - 1] == ' ';
        if (!blank)
            out[used++] = *at;
        else if (used > 0 && out[used - 1] != ' ')
            out[used++] = ' ';
    }
    while (used > 0 && out[used - 1] == ' ')
        used--;
    out[used] = '\0';
}

static bool mentions(const char *text, const char *word)
{
    return strcasestr(text, word) != NULL;
}

static void look_for_launcher(struct doctor *d)
{
    static const char *const names[] = {"mpirun", "mpiexec", "srun"};
    struct doctor_mpi *mpi = &d->mpi;
    char answer[ANSWER_SIZE];
    bool found = false;
    for (size_t i = 0; !found && i < sizeof names / sizeof names[0]; i++)
        found = find_on_path(names[i], mpi->launcher, sizeof mpi->launcher);
    bool open = mentions(mpi->library, "open mpi");
    if (!found) {
        doctor_miss(d, open ? "apt-get install openmpi-bin" : "apt-get install mpich",
                    "no MPI launcher (mpirun, mpiexec or srun) is on PATH; ranks of one machine need none");
        return;
    }
    ask_version(mpi->launcher, answer, sizeof answer);
    shorten_answer(answer, mpi->launcher_version, sizeof mpi->launcher_version);
    bool open_launcher = mentions(mpi->launcher_version, "open mpi") ||
                         mentions(mpi->launcher_version, "openrte") ||
                         mentions(mpi->launcher_version, "prrte");
    bool other_launcher =
        mentions(mpi->launcher_version, "hydra") || mentions(mpi->launcher_version, "intel");
    if (open ? other_launcher : open_launcher)
        doctor_miss(d,
                    open ? "apt-get install openmpi-bin, then start with mpirun.openmpi"
                         : "apt-get install mpich, then start with mpirun.mpich",
                    "%s (%s) belongs to another MPI library than this build (%s): its ranks would not know "
                    "each other",
                    mpi->launcher, mpi->launcher_version, mpi->library);
}

/* ---- ranks ---- */

static void describe_rank(struct doctor_rank *out)
{
    *out = (struct doctor_rank){.cores = pool_cpus()};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->cores_online = online > 0 ? (int)online : out->cores;
    if (gethostname(out->host, sizeof out->host) != 0)
        snprintf(out->host, sizeof out->host, "a machine");
    out->host[sizeof out->host - 1] = '\0';
    cpu_set_t *set = CPU_ALLOC(MASK_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MASK_CPUS);
    if (set && sched_getaffinity(0, bytes, set) == 0)
        for (size_t i = 0; i < MASK_CPUS; i++)
            if (CPU_ISSET_S(i, bytes, set))
                out->allowed[i / 64] |= UINT64_C(1) << (i % 64);
    CPU_FREE(set);
}

static int gather_body(struct comm *comm, void *context, struct error *err)
{
    struct doctor_mpi *mpi = context;
    struct doctor_rank mine;
    describe_rank(&mine);
    mpi->ranks = calloc((size_t)comm_size(comm), sizeof *mpi->ranks);
    if (!mpi->ranks) {
        error_memory(err, (size_t)comm_size(comm) * sizeof *mpi->ranks, "what the ranks tell");
        return ERROR_RUN;
    }
    if (comm_all_gather(comm, &mine, sizeof mine, mpi->ranks, err) != 0)
        return (int)err->kind;
    mpi->rank_count = comm_size(comm);
    return 0;
}

/* The ranks of the machine that rank `first` is the first one of. */
static void judge_machine(struct doctor *d, int first)
{
    const struct doctor_mpi *mpi = &d->mpi;
    const struct doctor_rank *r = &mpi->ranks[first];
    const char *remedy = mentions(mpi->library, "open mpi")
                             ? "start with `mpirun --bind-to none …` (srun: `srun --cpu-bind=none …`)"
                             : "start with `mpirun -bind-to none …` (srun: `srun --cpu-bind=none …`)";
    int ranks = 0, cores = 0;
    uint64_t together[64] = {0};
    for (int i = first; i < mpi->rank_count; i++)
        if (strcmp(mpi->ranks[i].host, r->host) == 0) {
            ranks++;
            for (int k = 0; k < 64; k++)
                together[k] |= mpi->ranks[i].allowed[k];
        }
    for (int k = 0; k < 64; k++)
        cores += __builtin_popcountll(together[k]);
    if (cores == 0 || cores >= r->cores_online)
        return;
    if (cores < ranks)
        doctor_miss(d, remedy, "%s: MPI pins all %d ranks to %d core%s, of %d", r->host, ranks, cores,
                    cores == 1 ? "" : "s", r->cores_online);
    else
        doctor_miss(d, remedy, "%s: MPI lets its %d rank%s run on %d core%s only, of %d", r->host, ranks,
                    ranks == 1 ? "" : "s", cores, cores == 1 ? "" : "s", r->cores_online);
}

static void look_at_ranks(struct doctor *d, struct cli *cli)
{
    struct doctor_mpi *mpi = &d->mpi;
    struct error err;
    int status = comm_run(0, COMM_AUTO, &cli->log, gather_body, mpi, &err);
    if (status != 0) {
        /* Also: started without knowing each other. Processes other than the first have no text. */
        mpi->rank_count = 0;
        if (err.kind != ERROR_NONE)
            doctor_miss(d, err.remedy[0] ? err.remedy : NULL, "%s", err.what);
        return;
    }
    for (int i = 0; i < mpi->rank_count; i++) {
        bool first = true;
        for (int k = 0; k < i; k++)
            first = first && strcmp(mpi->ranks[k].host, mpi->ranks[i].host) != 0;
        if (first)
            judge_machine(d, i);
    }
}

void doctor_look_at_mpi(struct doctor *d, struct cli *cli)
{
    d->mpi.built = comm_has_mpi();
    d->mpi.under_launcher = comm_under_launcher();
    comm_mpi_library(d->mpi.library, sizeof d->mpi.library);
    if (d->mpi.under_launcher)
        look_at_ranks(d, cli);
    if (comm_launcher_rank() != 0)
        return; /* it has nothing to report */
    if (d->mpi.built)
        look_for_launcher(d);
    else if (!d->mpi.under_launcher)
        doctor_miss(d, "apt-get install libopenmpi-dev openmpi-bin, then build again with ./setup",
                    "this build has no MPI: its ranks are those of one machine");
}
