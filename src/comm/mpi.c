#include "comm/mpi.h"

#include "comm/transport.h"

#ifndef TERCET_HAVE_MPI

bool comm_has_mpi(void)
{
    return false;
}

int mpi_run(int started, const struct log *log, comm_body *body, void *context, struct error *err)
{
    (void)started, (void)log, (void)body, (void)context;
    error_set(err, ERROR_INPUT, NULL, "build with an MPI library, or start with -n instead of mpirun",
              "this build has no MPI");
    return ERROR_INPUT;
}

void mpi_limit_count(struct comm *c, int most)
{
    (void)c, (void)most;
}

void comm_mpi_library(char *out, size_t size)
{
    snprintf(out, size, "%s", "");
}

#else

#include "base/clock.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* MPICH's MPI_STATUSES_IGNORE is the address 1, which GCC takes for an array of no size. */
#if defined(MPICH) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif

/* Memory and requests of something that was freed while messages of this rank were still under way: kept
 * until they have arrived. MPI may use the memory until then, also when a failing rank cleans up. */
struct orphan {
    struct orphan *next;
    void *memory; /* a mapping, or NULL */
    size_t bytes;
    MPI_Request *requests; /* or NULL */
    int count;
};

struct mpi {
    MPI_Comm collectives, messages;
    int limit;     /* largest count in one call */
    int tag_limit; /* largest tag */
    int objects;   /* gathers and exchanges made so far: their tags */
    int underway;  /* gathers and halves of exchanges whose requests are not all done */
    struct orphan *orphans;
};

static struct mpi *mpi_of(const struct comm *c)
{
    return c->transport;
}

/* An MPI call failed. As a rule that is because another rank is gone, so that rank's message goes first. */
static int mpi_failed(struct comm *c, int code, const char *doing, struct error *err)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    c->secondary = true;
    return error_set(err, ERROR_RUN, "MPI", NULL, "cannot %s: %.900s", doing, text);
}

/* Waits for requests: looks often at first, then naps. */
static int wait_for(struct comm *c, MPI_Request *requests, int count, const char *doing, struct error *err)
{
    for (int64_t looks = 0;; looks++) {
        int done = 0;
        int code = MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_failed(c, code, doing, err);
        if (done)
            return 0;
        if (looks < 100) {
            sched_yield();
        } else {
            struct timespec nap = {.tv_nsec = looks < 1000 ? 20000 : 200000};
            nanosleep(&nap, NULL);
        }
    }
}

/* Lets messages that are under way go on. */
static void progress(struct comm *c)
{
    int flag;
    (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi_of(c)->messages, &flag, MPI_STATUS_IGNORE);
}

/* ---- pieces ---- */

static int pieces_of(const struct comm *c, size_t bytes)
{
    size_t limit = (size_t)mpi_of(c)->limit;
    return (int)((bytes + limit - 1) / limit);
}

static int piece_bytes(const struct comm *c, size_t left)
{
    size_t limit = (size_t)mpi_of(c)->limit;
    return (int)(left < limit ? left : limit);
}

/* Starts sending (or receiving) bytes in pieces: pieces_of() requests are filled. */
static int start_send(struct comm *c, const void *data, size_t bytes, int to, int tag, MPI_Request *requests,
                      struct error *err)
{
    for (size_t done = 0; done < bytes; requests++) {
        int n = piece_bytes(c, bytes - done);
        int code = MPI_Isend((const char *)data + done, n, MPI_BYTE, to, tag, mpi_of(c)->messages, requests);
        if (code != MPI_SUCCESS)
            return mpi_failed(c, code, "send", err);
        done += (size_t)n;
    }
    c->stats.bytes_sent += (int64_t)bytes;
    return 0;
}

static int start_receive(struct comm *c, void *data, size_t bytes, int from, int tag, MPI_Request *requests,
                         struct error *err)
{
    for (size_t done = 0; done < bytes; requests++) {
        int n = piece_bytes(c, bytes - done);
        int code = MPI_Irecv((char *)data + done, n, MPI_BYTE, from, tag, mpi_of(c)->messages, requests);
        if (code != MPI_SUCCESS)
            return mpi_failed(c, code, "receive", err);
        done += (size_t)n;
    }
    return 0;
}

static MPI_Request *no_requests(int count, struct error *err)
{
    MPI_Request *requests = malloc((size_t)(count > 0 ? count : 1) * sizeof *requests);
    if (!requests)
        error_memory(err, (size_t)count * sizeof *requests, "requests of messages");
    for (int i = 0; requests && i < count; i++)
        requests[i] = MPI_REQUEST_NULL;
    return requests;
}

/* Tag 0 is that of moves. */
static int next_tag(struct mpi *m)
{
    return 1 + m->objects++ % (m->tag_limit - 1);
}

/* ---- orphans ---- */

static void orphan_free(struct orphan *o)
{
    if (o->memory)
        munmap(o->memory, o->bytes);
    free(o->requests);
    free(o);
}

/* Keeps memory or requests until nothing is under way; without memory for the note they are kept for good. */
static void orphan_keep(struct mpi *m, void *memory, size_t bytes, MPI_Request *requests, int count)
{
    struct orphan *o = malloc(sizeof *o);
    if (!o)
        return;
    *o = (struct orphan){m->orphans, memory, bytes, requests, count};
    m->orphans = o;
}

/* Frees all orphans when their messages have arrived; with `wait`, waits for that. */
static void orphans_reap(struct comm *c, bool wait)
{
    struct mpi *m = mpi_of(c);
    int done = 1;
    for (struct orphan *o = m->orphans; o; o = o->next) {
        if (!o->requests || done == 0)
            continue;
        if (wait && wait_for(c, o->requests, o->count, "finish", NULL) != 0)
            return;
        if (MPI_Testall(o->count, o->requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return;
    }
    if (done == 0 || m->underway > 0)
        return;
    while (m->orphans) {
        struct orphan *next = m->orphans->next;
        orphan_free(m->orphans);
        m->orphans = next;
    }
}

/* ---- small collectives ---- */

static int finish(struct comm *c, int code, MPI_Request *request, const char *doing, struct error *err)
{
    if (code != MPI_SUCCESS)
        return mpi_failed(c, code, doing, err);
    return wait_for(c, request, 1, doing, err);
}

static int mpi_barrier(struct comm *c, struct error *err)
{
    MPI_Request request;
    return finish(c, MPI_Ibarrier(mpi_of(c)->collectives, &request), &request, "meet the other ranks", err);
}

static int mpi_broadcast(struct comm *c, void *data, size_t bytes, int root, struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        MPI_Request request;
        int n = piece_bytes(c, bytes - done);
        int code = MPI_Ibcast((char *)data + done, n, MPI_BYTE, root, mpi_of(c)->collectives, &request);
        if (finish(c, code, &request, "broadcast", err) != 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

static int combine(struct comm *c, int64_t *values, int64_t n, MPI_Op op, struct error *err)
{
    for (int64_t done = 0; done < n;) {
        MPI_Request request;
        int limit = mpi_of(c)->limit, count = n - done < limit ? (int)(n - done) : limit;
        int code = MPI_Iallreduce(MPI_IN_PLACE, values + done, count, MPI_INT64_T, op, mpi_of(c)->collectives,
                                  &request);
        if (finish(c, code, &request, "add up", err) != 0)
            return -1;
        done += count;
    }
    return 0;
}

static int mpi_sum(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return combine(c, values, n, MPI_SUM, err);
}

static int mpi_max(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return combine(c, values, n, MPI_MAX, err);
}

static int mpi_send(struct comm *c, int to, const void *source, size_t bytes, struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        MPI_Request request = MPI_REQUEST_NULL;
        size_t n = (size_t)piece_bytes(c, bytes - done);
        if (start_send(c, (const char *)source + done, n, to, 0, &request, err) != 0 ||
            wait_for(c, &request, 1, "send", err) != 0)
            return -1;
        c->stats.bytes_sent -= (int64_t)n; /* gathers and exchanges only */
        done += n;
    }
    return 0;
}

static int mpi_receive(struct comm *c, int from, void *target, size_t bytes, struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        MPI_Request request = MPI_REQUEST_NULL;
        size_t n = (size_t)piece_bytes(c, bytes - done);
        if (start_receive(c, (char *)target + done, n, from, 0, &request, err) != 0 ||
            wait_for(c, &request, 1, "receive", err) != 0)
            return -1;
        done += n;
    }
    return 0;
}

static int mpi_all_gather(struct comm *c, const void *mine, size_t bytes, void *all, struct error *err)
{
    if (bytes <= (size_t)mpi_of(c)->limit) {
        MPI_Request request;
        int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                                  mpi_of(c)->collectives, &request);
        return finish(c, code, &request, "gather", err);
    }
    for (int r = 0; r < c->size; r++) {
        char *place = (char *)all + (size_t)r * bytes;
        if (r == c->rank)
            memcpy(place, mine, bytes);
        if (mpi_broadcast(c, place, bytes, r, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- windows: private memory ---- */

static int mpi_window_create(struct comm *c, bool shared, struct comm_window *w, struct error *err)
{
    (void)shared;
    orphans_reap(c, false);
    void *memory = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_memory(err, w->bytes, "a window");
    w->memory = w->part[c->rank] = memory;
    return 0;
}

static void mpi_window_free(struct comm *c, struct comm_window *w)
{
    if (mpi_of(c)->underway > 0)
        orphan_keep(mpi_of(c), w->memory, w->bytes, NULL, 0);
    else
        munmap(w->memory, w->bytes);
}

/* ---- gathers ---- */

/* How one gather's runs are counted: in MPI_BYTE, in units of the largest size that divides all offsets, or
 * not at all (unit 0): then every rank sends its run to every other. */
struct mpi_gather {
    MPI_Datatype type;
    int64_t unit;
    int *count, *place; /* [size], in units */
    int tag;
    int each;              /* requests of one begun gather */
    MPI_Request *requests; /* [COMM_REQUESTS][each], a ring */
    unsigned begun, waited;
};

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t unit_of(const struct comm *c, const int64_t *offset)
{
    int64_t limit = mpi_of(c)->limit, unit = 0;
    if (offset[c->size] <= limit)
        return 1;
    for (int r = 1; r <= c->size; r++)
        unit = common_divisor(offset[r], unit);
    return unit > 0 && unit <= limit && offset[c->size] / unit <= limit ? unit : 0;
}

static void gather_release(struct mpi_gather *own)
{
    if (own->unit > 1)
        MPI_Type_free(&own->type);
    free(own->count);
    free(own->place);
    free(own->requests);
    free(own);
}

static int gather_count(struct comm_gather *g, struct mpi_gather *own, struct error *err)
{
    struct comm *c = g->comm;
    own->type = MPI_BYTE;
    own->each = 1;
    if (own->unit == 0) {
        own->each = 0;
        for (int r = 0; r < c->size; r++)
            own->each += pieces_of(c, run_bytes(g->offset, r)) + pieces_of(c, run_bytes(g->offset, c->rank));
        return 0;
    }
    for (int r = 0; r < c->size; r++) {
        own->count[r] = (int)((g->offset[r + 1] - g->offset[r]) / own->unit);
        own->place[r] = (int)(g->offset[r] / own->unit);
    }
    if (own->unit > 1) {
        int code = MPI_Type_contiguous((int)own->unit, MPI_BYTE, &own->type);
        if (code == MPI_SUCCESS)
            code = MPI_Type_commit(&own->type);
        if (code != MPI_SUCCESS) {
            own->unit = 1;
            return mpi_failed(c, code, "describe the runs of a gather", err);
        }
    }
    return 0;
}

static int mpi_gather_create(struct comm_gather *g, struct error *err)
{
    struct comm *c = g->comm;
    struct mpi_gather *own = calloc(1, sizeof *own);
    if (!own)
        return error_memory(err, sizeof *own, "a gather");
    own->tag = next_tag(mpi_of(c));
    own->unit = unit_of(c, g->offset);
    own->count = calloc((size_t)c->size, sizeof *own->count);
    own->place = calloc((size_t)c->size, sizeof *own->place);
    if (!own->count || !own->place)
        error_memory(err, (size_t)c->size * sizeof *own->count, "the runs of a gather");
    else if (gather_count(g, own, err) == 0)
        own->requests = no_requests(COMM_REQUESTS * own->each, err);
    if (!own->requests) {
        gather_release(own);
        return -1;
    }
    g->internal = own;
    return 0;
}

static void mpi_gather_free(struct comm_gather *g)
{
    struct mpi_gather *own = g->internal;
    if (g->pending > 0) {
        mpi_of(g->comm)->underway -= g->pending;
        orphan_keep(mpi_of(g->comm), NULL, 0, own->requests, COMM_REQUESTS * own->each);
        own->requests = NULL;
    }
    gather_release(own);
}

static int gather_by_messages(struct comm_gather *g, struct mpi_gather *own, const void *mine, void *full,
                              MPI_Request *requests, struct error *err)
{
    struct comm *c = g->comm;
    size_t bytes = run_bytes(g->offset, c->rank);
    char *place = (char *)full + g->offset[c->rank];
    for (int r = 0; r < c->size; r++) {
        size_t theirs = run_bytes(g->offset, r);
        if (r == c->rank)
            continue;
        if (start_receive(c, (char *)full + g->offset[r], theirs, r, own->tag, requests, err) != 0)
            return -1;
        requests += pieces_of(c, theirs);
        if (start_send(c, mine, bytes, r, own->tag, requests, err) != 0)
            return -1;
        requests += pieces_of(c, bytes);
    }
    if (mine != place && bytes > 0)
        memcpy(place, mine, bytes);
    return 0;
}

static int mpi_gather_begin(struct comm_gather *g, const void *mine, void *full, struct error *err)
{
    struct comm *c = g->comm;
    struct mpi_gather *own = g->internal;
    MPI_Request *requests = own->requests + (size_t)(own->begun % COMM_REQUESTS) * (size_t)own->each;
    bool in_place = mine == (char *)full + g->offset[c->rank];
    progress(c);
    mpi_of(c)->underway++;
    own->begun++;
    if (own->unit == 0)
        return gather_by_messages(g, own, mine, full, requests, err);
    int code = MPI_Iallgatherv(in_place ? MPI_IN_PLACE : mine, own->count[c->rank], own->type, full,
                               own->count, own->place, own->type, mpi_of(c)->collectives, requests);
    if (code != MPI_SUCCESS)
        return mpi_failed(c, code, "gather", err);
    c->stats.bytes_sent += (int64_t)run_bytes(g->offset, c->rank) * (c->size - 1);
    return 0;
}

static int mpi_gather_wait(struct comm_gather *g, struct error *err)
{
    struct mpi_gather *own = g->internal;
    MPI_Request *requests = own->requests + (size_t)(own->waited % COMM_REQUESTS) * (size_t)own->each;
    if (wait_for(g->comm, requests, own->each, "gather", err) != 0)
        return -1;
    own->waited++;
    mpi_of(g->comm)->underway--;
    return 0;
}

/* ---- exchanges ---- */

struct mpi_exchange {
    struct comm_window staging; /* the parts of other ranks in rank order, own left out */
    size_t stride;
    int tag;
    int each;                      /* requests of one part */
    MPI_Request *sends, *receives; /* [size][each] */
    bool sending, receiving;
};

static int mpi_exchange_create(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct comm *c = x->comm;
    struct mpi_exchange *own = calloc(1, sizeof *own);
    if (!own)
        return error_memory(err, sizeof *own, "an exchange");
    own->tag = next_tag(mpi_of(c));
    own->stride = (s->part_capacity + 63) / 64 * 64;
    own->each = pieces_of(c, s->part_capacity);
    own->sends = no_requests(c->size * own->each, err);
    own->receives = no_requests(c->size * own->each, err);
    size_t bytes = (size_t)(c->size - 1) * own->stride;
    if (!own->sends || !own->receives || comm_window_create(c, bytes, false, &own->staging, err) != 0) {
        free(own->sends);
        free(own->receives);
        free(own);
        return -1;
    }
    x->staging = bytes > 0 ? own->staging.memory : NULL; /* a rank alone receives nothing */
    x->staging_bytes = bytes;
    s->transport = own;
    return 0;
}

static void mpi_exchange_free(struct comm_exchange *x, struct exchange_state *s)
{
    struct comm *c = x->comm;
    struct mpi *m = mpi_of(c);
    struct mpi_exchange *own = s->transport;
    int count = c->size * own->each;
    if (own->sending || own->receiving) {
        /* Kept as under way until here, so that the buffers are kept too. */
        orphan_keep(m, s->send.memory, s->send.bytes > 0 ? s->send.bytes : 1, own->sends, count);
        orphan_keep(m, own->staging.memory, own->staging.bytes > 0 ? own->staging.bytes : 1, own->receives,
                    count);
        m->underway -= (own->sending ? 1 : 0) + (own->receiving ? 1 : 0);
        free(s->send.part);
        free(own->staging.part);
        s->send = own->staging = (struct comm_window){0};
    } else {
        comm_window_free(c, &own->staging);
        free(own->sends);
        free(own->receives);
    }
    free(own);
}

static int mpi_exchange_reuse(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct mpi_exchange *own = s->transport;
    if (!own->sending)
        return 0;
    if (wait_for(x->comm, own->sends, x->comm->size * own->each, "send", err) != 0)
        return -1;
    own->sending = false;
    mpi_of(x->comm)->underway--;
    return 0;
}

static int start_sends(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct comm *c = x->comm;
    struct mpi_exchange *own = s->transport;
    own->sending = true;
    mpi_of(c)->underway++;
    for (int i = 1; i < c->size; i++) {
        int r = (c->rank + i) % c->size; /* or all ranks would send to rank 0 first */
        if (start_send(c, (const char *)x->send + s->offset[r], run_bytes(s->offset, r), r, own->tag,
                       own->sends + (size_t)r * (size_t)own->each, err) != 0)
            return -1;
    }
    return 0;
}

static char *staged(const struct comm *c, const struct mpi_exchange *own, int r)
{
    return (char *)own->staging.memory + (size_t)(r < c->rank ? r : r - 1) * own->stride;
}

static int mpi_exchange_begin(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct comm *c = x->comm;
    struct mpi_exchange *own = s->transport;
    progress(c);
    own->receiving = true;
    mpi_of(c)->underway++;
    for (int r = 0; r < s->contributors; r++)
        if (r != c->rank && start_receive(c, staged(c, own, r), run_bytes(s->offset, c->rank), r, own->tag,
                                          own->receives + (size_t)r * (size_t)own->each, err) != 0)
            return -1;
    return c->rank < s->contributors ? start_sends(x, s, err) : 0;
}

static int mpi_exchange_part(struct comm_exchange *x, struct exchange_state *s, int rank, const void **part,
                             struct error *err)
{
    struct comm *c = x->comm;
    struct mpi_exchange *own = s->transport;
    *part = rank == c->rank ? (const char *)x->send + s->offset[rank] : staged(c, own, rank);
    return wait_for(c, own->receives + (size_t)rank * (size_t)own->each, own->each, "receive", err);
}

static int mpi_exchange_end(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct mpi_exchange *own = s->transport;
    if (wait_for(x->comm, own->receives, x->comm->size * own->each, "receive", err) != 0)
        return -1;
    own->receiving = false;
    mpi_of(x->comm)->underway--;
    return 0;
}

/* ---- joining and leaving ---- */

static const struct comm_ops mpi_ops = {
    .name = "mpi",
    .shares_memory = false,
    .barrier = mpi_barrier,
    .broadcast = mpi_broadcast,
    .sum = mpi_sum,
    .max = mpi_max,
    .all_gather = mpi_all_gather,
    .send = mpi_send,
    .receive = mpi_receive,
    .window_create = mpi_window_create,
    .window_free = mpi_window_free,
    .gather_create = mpi_gather_create,
    .gather_free = mpi_gather_free,
    .gather_begin = mpi_gather_begin,
    .gather_wait = mpi_gather_wait,
    .exchange_create = mpi_exchange_create,
    .exchange_free = mpi_exchange_free,
    .exchange_reuse = mpi_exchange_reuse,
    .exchange_begin = mpi_exchange_begin,
    .exchange_part = mpi_exchange_part,
    .exchange_end = mpi_exchange_end,
};

bool comm_has_mpi(void)
{
    return true;
}

void mpi_limit_count(struct comm *c, int most)
{
    if (c->ops == &mpi_ops)
        mpi_of(c)->limit = most;
}

void comm_mpi_library(char *out, size_t size)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        length = 0;
    text[length] = '\0';
    text[strcspn(text, ",\r\n")] = '\0';
    size_t used = 0;
    for (const char *at = text; *at; at++) { /* MPICH writes "MPICH Version:", a tab or blanks, the number */
        char c = *at == '\t' ? ' ' : *at;
        if (c != ' ' || (used > 0 && text[used - 1] != ' '))
            text[used++] = c;
    }
    text[used] = '\0';
    snprintf(out, size, "%s", text);
}

/* Fills *c from an initialised MPI. */
static int join(struct comm *c, struct mpi *m, struct error *err)
{
    MPI_Comm local;
    int *tags = NULL, found = 0;
    *m = (struct mpi){.limit = INT_MAX, .tag_limit = 32767};
    *c = (struct comm){.ops = &mpi_ops, .name = mpi_ops.name, .transport = m};
    int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(MPI_COMM_WORLD, &c->size);
    if (code == MPI_SUCCESS) /* these inherit the error handler */
        code = MPI_Comm_dup(MPI_COMM_WORLD, &m->collectives);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &m->messages);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(local, &c->local_rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(local, &c->local_size);
    if (code != MPI_SUCCESS)
        return mpi_failed(c, code, "join the other ranks", err);
    MPI_Comm_free(&local);
    if (MPI_Comm_get_attr(m->messages, MPI_TAG_UB, &tags, &found) == MPI_SUCCESS && found)
        m->tag_limit = *tags;
    return 0;
}

/* Reports a failure once for the whole group and ends it. Ranks that stumble over the same thing all come
 * here within moments: rank 0 reports at once, each other one waits a little longer than the one before.
 * The first that reports has the launcher end all others, which arrives here as SIGTERM (from Open MPI up to
 * a second later, when the first one takes long to exit). No MPI call is made meanwhile, since messages may
 * be under way into memory that is gone. */
static void report_and_abort(struct comm *c, struct signals *signals, int status, const struct log *log,
                             struct error *err)
{
    double share = (double)c->rank / (double)c->size;
    double seconds = c->secondary ? 2.5 + 0.5 * share : c->rank == 0 ? 0.0 : 1.2 + share;
    bool second;
    (void)signals_poll(signals); /* an earlier request to stop is not meant */
    bool ended = signals_wait(signals, seconds, &second) != 0;
    if (!ended && log && log->line) {
        char text[sizeof *err];
        /* Of wrong input all ranks of rank 0's machine would say the same. */
        if (status != ERROR_INPUT || c->rank != 0)
            comm_name_rank(err, c->rank);
        error_format(err, text, sizeof text);
        log->line(log->context, LOG_ERROR, text);
    }
    fflush(NULL); /* MPI_Abort does not */
    *err = (struct error){0};
    if (!ended)
        MPI_Abort(MPI_COMM_WORLD, status);
}

/* True when MPI is to be left in the ordinary way. */
static bool run_joined(struct comm *c, struct signals *signals, const struct log *log, comm_body *body,
                       void *context, int *status, struct error *err)
{
    *status = comm_body_status(body(c, context, err), err);
    if (*status == ERROR_RUN || *status == ERROR_INPUT) {
        report_and_abort(c, signals, *status, log, err);
        return false;
    }
    struct mpi *m = mpi_of(c);
    orphans_reap(c, true);
    MPI_Comm_free(&m->collectives);
    MPI_Comm_free(&m->messages);
    return true;
}

int mpi_run(int started, const struct log *log, comm_body *body, void *context, struct error *err)
{
    struct signals signals;
    struct comm c;
    struct mpi m;
    int provided = MPI_THREAD_SINGLE, before = 0, status = ERROR_RUN;
    bool leave = true;
    if (MPI_Initialized(&before) != MPI_SUCCESS || before) {
        error_set(err, ERROR_RUN, "MPI", NULL, "it was started in this process before");
        return ERROR_RUN;
    }
    signals_block(&signals, false, false); /* first: MPI may start threads */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        error_set(err, ERROR_RUN, "MPI", "see what the MPI library printed", "it cannot be started");
        signals_restore(&signals);
        return ERROR_RUN;
    }
    int size = 0;
    if (MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS)
        size = 0; /* join says why */
    if (started > 1 && size == 1) {
        status = ERROR_INPUT;
        if (comm_launcher_rank() == 0)
            error_set(err, ERROR_INPUT, "MPI",
                      "start with the mpirun of the MPI library that `tercet version` names",
                      "the launcher started %d ranks, but they do not know each other: it belongs to another "
                      "MPI library than this build",
                      started);
    } else if (provided < MPI_THREAD_FUNNELED) {
        status = ERROR_INPUT;
        if (comm_launcher_rank() == 0)
            error_set(err, ERROR_INPUT, "MPI", "use an MPI library that supports MPI_THREAD_FUNNELED",
                      "it does not allow other threads in a rank");
    } else if (join(&c, &m, err) != 0) {
        report_and_abort(&c, &signals, ERROR_RUN, log, err);
        leave = false;
    } else {
        c.signals = &signals;
        leave = run_joined(&c, &signals, log, body, context, &status, err);
    }
    if (leave && MPI_Finalize() != MPI_SUCCESS && status == 0) {
        error_set(err, ERROR_RUN, "MPI", "see what the MPI library printed", "it cannot be left");
        status = ERROR_RUN;
    }
    signals_restore(&signals);
    return status;
}

#endif
