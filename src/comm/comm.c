#include "comm/comm.h"

#include "base/clock.h"
#include "comm/launch.h"
#include "comm/mpi.h"
#include "comm/shm.h"
#include "comm/transport.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- what started this process ---- */

/* A whole number >= 0 from the environment; -1 when absent or something else. */
static long environment_number(const char *name)
{
    const char *text = getenv(name);
    if (!text || *text < '0' || *text > '9')
        return -1;
    char *end;
    long value = strtol(text, &end, 10);
    return *end == '\0' && value >= 0 && value <= INT32_MAX ? value : -1;
}

/* Processes of the Slurm step that srun started this one in; -1 without srun. A batch script and the shell
 * of an allocation are no steps of several tasks. */
static long slurm_tasks(void)
{
    if (environment_number("SLURM_PROCID") < 0 || !getenv("SLURM_STEP_ID"))
        return -1;
    long tasks = environment_number("SLURM_STEP_NUM_TASKS");
    return tasks >= 0 ? tasks : environment_number("SLURM_NTASKS");
}

/* Ranks that an MPI launcher started: -1 without one, 0 when it does not say how many. */
static long launcher_size(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        long size = environment_number(names[i]);
        if (size >= 1)
            return size;
    }
    long tasks = slurm_tasks();
    if (tasks > 1)
        return tasks;
    return tasks < 0 && environment_number("PMIX_RANK") >= 0 ? 0 : -1;
}

bool comm_under_launcher(void)
{
    return launcher_size() >= 0;
}

int comm_launcher_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                        "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        long rank = environment_number(names[i]);
        if (rank >= 0)
            return (int)rank;
    }
    return slurm_tasks() > 1 ? (int)environment_number("SLURM_PROCID") : 0;
}

/* ---- running ---- */

int comm_body_status(int status, struct error *err)
{
    if (status == 0 || (status >= 128 && status <= 255))
        return status;
    if (status != ERROR_RUN && status != ERROR_INPUT) {
        error_set(err, ERROR_RUN, NULL, NULL, "a rank's work ended with status %d", status);
        return ERROR_RUN;
    }
    if (err && err->kind == ERROR_NONE)
        error_set(err, (enum error_kind)status, NULL, NULL, "it failed without saying why");
    if (err)
        err->kind = (enum error_kind)status;
    return status;
}

void comm_name_rank(struct error *err, int rank)
{
    char where[sizeof err->where];
    int n = snprintf(where, sizeof where, "rank %d", rank);
    if (err->where[0] != '\0')
        snprintf(where + n, sizeof where - (size_t)n, ": %.*s", (int)sizeof where - 32, err->where);
    memcpy(err->where, where, sizeof where);
}

/* One rank, in this process. */
static int run_self(comm_body *body, void *context, struct error *err)
{
    struct region *g;
    if (region_create(1, &g, err) != 0)
        return ERROR_RUN;
    struct signals signals;
    struct comm c;
    int status = ERROR_RUN;
    signals_block(&signals, false, true);
    if (shm_open_rank(&c, g, 0, err) == 0) {
        c.signals = &signals;
        status = comm_body_status(body(&c, context, err), err);
        shm_close_rank(&c);
    }
    signals_restore(&signals);
    region_free(g);
    return status;
}

static int refuse(struct error *err, const char *remedy, const char *what)
{
    /* Every process of a launcher comes to the same refusal: one reports it. */
    if (comm_launcher_rank() == 0)
        error_set(err, ERROR_INPUT, NULL, remedy, "%s", what);
    return ERROR_INPUT;
}

int comm_run_with(const struct comm_options *options, comm_body *body, void *context, struct error *err)
{
    int ranks = options->ranks;
    enum comm_transport transport = options->transport;
    struct error unread;
    if (!err)
        err = &unread;
    *err = (struct error){0};
    long started = launcher_size(); /* by an MPI launcher */
    if (ranks < 0 || ranks > COMM_MAX_LOCAL_RANKS)
        return error_set(err, ERROR_INPUT, "-n", NULL, "%d is not a number of ranks from 1 to %d", ranks,
                         COMM_MAX_LOCAL_RANKS),
               ERROR_INPUT;
    if (ranks > 0 && started != -1 && started != 1)
        return refuse(err, "leave out -n, or start without mpirun",
                      "an MPI launcher has started the ranks already, and -n asks for more");
    if (transport == COMM_MPI && ranks > 0)
        return refuse(err, "start with `mpirun -n N tercet …` instead of -n",
                      "transport mpi needs an MPI launcher, -n starts ranks without one");
    if (transport == COMM_MPI && started == -1)
        return refuse(err, "start with `mpirun -n N tercet …`, or take transport auto",
                      "transport mpi needs an MPI launcher");
    if (transport == COMM_SHM && ranks == 0 && started != -1)
        return refuse(err, "take transport auto or mpi, or start with -n instead of mpirun",
                      "transport shm cannot join the ranks of an MPI launcher");
    if (ranks == 0 && started != -1) {
        if (!comm_has_mpi() && started != 1)
            return refuse(err, "build with an MPI library, or start with -n instead of mpirun",
                          "an MPI launcher started this process, but this build has no MPI");
        if (comm_has_mpi())
            return mpi_run((int)started, options->log, body, context, err);
    }
    return ranks > 1 ? launch_run(options, body, context, err) : run_self(body, context, err);
}

int comm_run(int ranks, enum comm_transport transport, const struct log *log, comm_body *body, void *context,
             struct error *err)
{
    struct comm_options options = {.ranks = ranks, .transport = transport, .log = log};
    return comm_run_with(&options, body, context, err);
}

/* ---- what a rank can ask ---- */

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

int comm_local_size(const struct comm *c)
{
    return c->local_size;
}

int comm_local_rank(const struct comm *c)
{
    return c->local_rank;
}

const char *comm_name(const struct comm *c)
{
    return c->name;
}

bool comm_shares_memory(const struct comm *c)
{
    return c->ops->shares_memory;
}

const struct comm_stats *comm_stats(const struct comm *c)
{
    return &c->stats;
}

int comm_stop_signal(struct comm *c)
{
    return c->signals ? signals_poll(c->signals) : c->ops->stop_signal(c);
}

/* ---- small collectives ---- */

int comm_barrier(struct comm *c, struct error *err)
{
    return c->ops->barrier(c, err);
}

int comm_broadcast(struct comm *c, void *data, size_t bytes, int root, struct error *err)
{
    assert(root >= 0 && root < c->size);
    return bytes > 0 ? c->ops->broadcast(c, data, bytes, root, err) : 0;
}

int comm_sum_i64(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return n > 0 ? c->ops->sum(c, values, n, err) : 0;
}

int comm_max_i64(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return n > 0 ? c->ops->max(c, values, n, err) : 0;
}

int comm_all_gather(struct comm *c, const void *mine, size_t bytes, void *all, struct error *err)
{
    return bytes > 0 ? c->ops->all_gather(c, mine, bytes, all, err) : 0;
}

int comm_move(struct comm *c, int from, int root, const void *source, void *target, size_t bytes,
              struct error *err)
{
    assert(from >= 0 && from < c->size && root >= 0 && root < c->size);
    if (bytes == 0)
        return 0;
    if (from == root) {
        if (c->rank == root && source != target)
            memmove(target, source, bytes);
        return 0;
    }
    if (c->rank == from)
        return c->ops->send(c, root, source, bytes, err);
    return c->rank == root ? c->ops->receive(c, from, target, bytes, err) : 0;
}

/* ---- windows ---- */

int comm_window_create(struct comm *c, size_t bytes, bool shared, struct comm_window *out, struct error *err)
{
    *out = (struct comm_window){.bytes = bytes > 0 ? bytes : 1};
    if (bytes > (size_t)INT64_MAX / 4 / (size_t)c->size)
        return error_memory(err, bytes, "a window");
    /* NULL is possible on one rank only; the others must not be left waiting. */
    int64_t failed = 0;
    out->part = calloc((size_t)c->size, sizeof *out->part);
    if (!out->part)
        failed = 1;
    if (comm_max_i64(c, &failed, 1, err) != 0 || failed != 0 ||
        c->ops->window_create(c, shared, out, err) != 0) {
        if (failed != 0)
            error_memory(err, (size_t)c->size * sizeof *out->part, "a window's table");
        free(out->part);
        *out = (struct comm_window){0};
        return -1;
    }
    out->bytes = bytes;
    return 0;
}

void comm_window_free(struct comm *c, struct comm_window *w)
{
    if (w->part) {
        w->bytes = w->bytes > 0 ? w->bytes : 1;
        c->ops->window_free(c, w);
        free(w->part);
    }
    *w = (struct comm_window){0};
}

/* ---- gathers ---- */

/* Copies a table of runs, checked: they start at 0 and do not go backwards. */
static int copy_layout(const struct comm *c, const int64_t *offset, int64_t *copy, struct error *err)
{
    bool sound = offset[0] == 0;
    for (int r = 0; r < c->size; r++)
        sound = sound && offset[r + 1] >= offset[r];
    if (!sound)
        return error_set(err, ERROR_RUN, NULL, NULL, "the runs of a flat buffer are not consecutive");
    memcpy(copy, offset, ((size_t)c->size + 1) * sizeof *copy);
    return 0;
}

int comm_gather_create(struct comm *c, const int64_t *offset, bool shared, struct comm_gather *out,
                       struct error *err)
{
    *out = (struct comm_gather){0};
    if (shared != c->ops->shares_memory)
        return error_set(err, ERROR_RUN, NULL, NULL, "a gather into %s memory is not what transport %s does",
                         shared ? "shared" : "private", c->name);
    int64_t *runs = calloc((size_t)c->size + 1, sizeof *runs);
    if (!runs)
        return error_memory(err, ((size_t)c->size + 1) * sizeof *runs, "a gather's runs");
    *out = (struct comm_gather){.comm = c, .shared = shared, .offset = runs};
    if (copy_layout(c, offset, runs, err) != 0 || c->ops->gather_create(out, err) != 0) {
        free(runs);
        *out = (struct comm_gather){0};
        return -1;
    }
    return 0;
}

void comm_gather_free(struct comm_gather *g)
{
    if (g->comm) {
        g->comm->gathers_pending -= g->shared ? 0 : g->pending;
        g->comm->ops->gather_free(g);
        free(g->offset);
    }
    *g = (struct comm_gather){0};
}

int comm_gather_begin(struct comm_gather *g, const void *mine, void *full, struct error *err)
{
    struct comm *c = g->comm;
    if (!g->shared && c->gathers_pending == COMM_REQUESTS)
        return error_set(err, ERROR_RUN, NULL, NULL, "more than %d gathers begun and not waited for",
                         COMM_REQUESTS);
    if (c->ops->gather_begin(g, mine, full, err) != 0)
        return -1;
    g->pending++;
    c->gathers_pending += !g->shared;
    c->stats.gathers++;
    c->stats.last_gather_begin = clock_seconds();
    return 0;
}

int comm_gather_wait(struct comm_gather *g, struct error *err)
{
    if (g->pending == 0)
        return error_set(err, ERROR_RUN, NULL, NULL, "a gather is waited for that was not begun");
    if (g->comm->ops->gather_wait(g, err) != 0)
        return -1;
    g->pending--;
    g->comm->gathers_pending -= !g->shared;
    return 0;
}

/* ---- exchanges ---- */

int comm_exchange_create(struct comm *c, size_t capacity, size_t part_capacity, struct comm_exchange *out,
                         struct error *err)
{
    *out = (struct comm_exchange){.capacity = capacity};
    struct exchange_state *s = calloc(1, sizeof *s);
    if (s)
        s->offset = calloc((size_t)c->size + 1, sizeof *s->offset);
    if (!s || !s->offset) {
        error_memory(err, ((size_t)c->size + 1) * sizeof(int64_t), "an exchange's runs");
        free(s);
        return -1;
    }
    s->part_capacity = part_capacity;
    out->comm = c;
    out->internal = s;
    if (comm_window_create(c, capacity, false, &s->send, err) == 0) {
        out->send = s->send.memory;
        out->peers = s->send.part;
        if (c->ops->exchange_create(out, s, err) == 0)
            return 0;
        comm_window_free(c, &s->send);
    }
    free(s->offset);
    free(s);
    *out = (struct comm_exchange){0};
    return -1;
}

void comm_exchange_free(struct comm_exchange *x)
{
    struct exchange_state *s = x->internal;
    if (s) {
        x->comm->ops->exchange_free(x, s);
        comm_window_free(x->comm, &s->send);
        free(s->offset);
        free(s);
    }
    *x = (struct comm_exchange){0};
}

static int out_of_order(const char *call, struct error *err)
{
    return error_set(err, ERROR_RUN, NULL, NULL, "%s is called out of order", call);
}

int comm_exchange_layout(struct comm_exchange *x, const int64_t *offset, struct error *err)
{
    struct exchange_state *s = x->internal;
    struct comm *c = x->comm;
    if (s->phase == EXCHANGE_OPEN)
        return out_of_order("comm_exchange_layout", err);
    for (int r = 0; r < c->size; r++)
        if (offset[r + 1] - offset[r] > (int64_t)s->part_capacity)
            return error_set(err, ERROR_RUN, NULL, NULL,
                             "a run of %lld bytes is larger than the exchange's %zu",
                             (long long)(offset[r + 1] - offset[r]), s->part_capacity);
    if (offset[c->size] > (int64_t)x->capacity)
        return error_set(err, ERROR_RUN, NULL, NULL,
                         "a buffer of %lld bytes is larger than the exchange's %zu",
                         (long long)offset[c->size], x->capacity);
    return copy_layout(c, offset, s->offset, err);
}

int comm_exchange_reuse(struct comm_exchange *x, struct error *err)
{
    struct exchange_state *s = x->internal;
    if (s->phase == EXCHANGE_OPEN)
        return out_of_order("comm_exchange_reuse", err);
    if (x->comm->ops->exchange_reuse(x, s, err) != 0)
        return -1;
    s->phase = EXCHANGE_WRITABLE;
    return 0;
}

int comm_exchange_begin(struct comm_exchange *x, int contributors, struct error *err)
{
    struct exchange_state *s = x->internal;
    struct comm *c = x->comm;
    assert(contributors >= 0 && contributors <= c->size);
    if (s->phase == EXCHANGE_OPEN || (c->rank < contributors && s->phase != EXCHANGE_WRITABLE))
        return out_of_order("comm_exchange_begin", err);
    s->contributors = contributors;
    if (c->ops->exchange_begin(x, s, err) != 0)
        return -1;
    s->phase = EXCHANGE_OPEN;
    c->stats.exchanges++;
    return 0;
}

int comm_exchange_part(struct comm_exchange *x, int rank, const void **part, struct error *err)
{
    struct exchange_state *s = x->internal;
    if (s->phase != EXCHANGE_OPEN || rank < 0 || rank >= s->contributors)
        return out_of_order("comm_exchange_part", err);
    return x->comm->ops->exchange_part(x, s, rank, part, err);
}

int comm_exchange_end(struct comm_exchange *x, struct error *err)
{
    struct exchange_state *s = x->internal;
    if (s->phase != EXCHANGE_OPEN)
        return out_of_order("comm_exchange_end", err);
    if (x->comm->ops->exchange_end(x, s, err) != 0)
        return -1;
    s->phase = EXCHANGE_IDLE;
    return 0;
}
