#include "backend/guarded/guarded.h"

#include "backend/guarded/memory.h"
#include "backend/signature.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_LENGTH = 256, POISON = 0xFF, MAX_RANGES = OP_MAX_INPUTS + OP_MAX_OUTPUTS + 1 };

enum command_kind { COMMAND_OP, COMMAND_COPY, COMMAND_WAIT };

struct range {
    char *data;
    size_t bytes;
    bool written, poisoned; /* poisoned: wholly written, not read */
};

struct command {
    enum command_kind kind;
    struct op_call call;
    int wait_stream; /* COMMAND_WAIT: until this stream has done so many commands */
    int64_t wait_count;
    struct range ranges[MAX_RANGES]; /* memory it touches */
    int range_count;
    bool poison_due; /* older work was in the way when it was enqueued */
    int64_t order;   /* over all streams */
};

/* A ring; commands are numbered from 0, [done, enqueued) are in it. */
struct queue {
    struct command ring[QUEUE_LENGTH];
    int64_t done, enqueued;
};

struct event {
    bool recorded;
    int stream;
    int64_t count; /* commands of the stream before it */
};

struct guarded {
    struct backend base;
    struct backend *inner;
    struct guarded_memory memory;
    struct queue queues[BACKEND_STREAMS];
    struct event events[BACKEND_EVENTS];
    int64_t next_order;
    pthread_mutex_t lock;
};

static struct guarded *guarded_of(struct backend *b)
{
    return (struct guarded *)b;
}

static struct command *command_at(struct guarded *g, int stream, int64_t number)
{
    return &g->queues[stream].ring[number % QUEUE_LENGTH];
}

static bool overlap(const struct range *a, const struct range *b)
{
    return a->bytes > 0 && b->bytes > 0 && a->data < b->data + b->bytes && b->data < a->data + a->bytes;
}

static bool commands_overlap(const struct command *a, const struct range *r)
{
    for (int i = 0; i < a->range_count; i++)
        if (overlap(&a->ranges[i], r))
            return true;
    return false;
}

/* Whether queued work older than `order` touches the range. */
static bool in_use(struct guarded *g, const struct range *r, int64_t order)
{
    for (int stream = 0; stream < BACKEND_STREAMS; stream++)
        for (int64_t n = g->queues[stream].done; n < g->queues[stream].enqueued; n++) {
            const struct command *c = command_at(g, stream, n);
            if (c->order < order && commands_overlap(c, r))
                return true;
        }
    return false;
}

static int poison_range(struct guarded *g, const struct range *r, struct error *err)
{
    if (guarded_protect(&g->memory, r->data, r->bytes, GUARDED_WRITE, err) != 0)
        return -1;
    memset(r->data, POISON, r->bytes);
    return guarded_protect(&g->memory, r->data, r->bytes, GUARDED_CLOSED, err);
}

/* Poisons what a queued command will write, unless older work still needs the memory. */
static int poison(struct guarded *g, struct command *c, struct error *err)
{
    c->poison_due = false;
    for (int i = 0; i < c->range_count; i++)
        if (c->ranges[i].poisoned && in_use(g, &c->ranges[i], c->order))
            c->poison_due = true;
    for (int i = 0; i < c->range_count && !c->poison_due; i++)
        if (c->ranges[i].poisoned && poison_range(g, &c->ranges[i], err) != 0)
            return -1;
    return 0;
}

/* After a command is done: those that waited for its memory are poisoned now. */
static int poison_followers(struct guarded *g, const struct command *done, struct error *err)
{
    for (int stream = 0; stream < BACKEND_STREAMS; stream++)
        for (int64_t n = g->queues[stream].done; n < g->queues[stream].enqueued; n++) {
            struct command *c = command_at(g, stream, n);
            bool touched = false;
            for (int i = 0; i < c->range_count && c->poison_due; i++)
                touched = touched || (c->ranges[i].poisoned && commands_overlap(done, &c->ranges[i]));
            if (touched && poison(g, c, err) != 0)
                return -1;
        }
    return 0;
}

static int open_ranges(struct guarded *g, const struct command *c, struct error *err)
{
    for (int written = 0; written < 2; written++) /* outputs last: they win a shared page */
        for (int i = 0; i < c->range_count; i++)
            if (c->ranges[i].written == (written == 1) &&
                guarded_protect(&g->memory, c->ranges[i].data, c->ranges[i].bytes,
                                written ? GUARDED_WRITE : GUARDED_READ, err) != 0)
                return -1;
    return 0;
}

static int close_ranges(struct guarded *g, const struct command *c, struct error *err)
{
    int status = 0;
    for (int i = 0; i < c->range_count; i++)
        if (guarded_protect(&g->memory, c->ranges[i].data, c->ranges[i].bytes, GUARDED_CLOSED, err) != 0)
            status = -1;
    return status;
}

static int execute(struct guarded *g, const struct command *c, struct error *err)
{
    if (open_ranges(g, c, err) != 0)
        return -1;
    int status = 0;
    if (c->kind == COMMAND_COPY) {
        memmove(c->ranges[0].data, c->ranges[1].data, c->ranges[0].bytes);
    } else {
        if (c->call.workspace_bytes > 0)
            memset(c->call.workspace, POISON, c->call.workspace_bytes);
        status = g->inner->v->run(g->inner, 0, &c->call, err);
    }
    return close_ranges(g, c, err) != 0 ? -1 : status;
}

/* Does a stream's commands in order until `count` are done. A wait does another stream's first; what it
 * waits for was enqueued before it, so this ends. */
static int run_until(struct guarded *g, int stream, int64_t count, struct error *err)
{
    struct queue *q = &g->queues[stream];
    while (q->done < count) {
        struct command c = *command_at(g, stream, q->done);
        if (c.kind == COMMAND_WAIT) {
            if (run_until(g, c.wait_stream, c.wait_count, err) != 0)
                return -1;
            if (q->done < count && command_at(g, stream, q->done)->order == c.order)
                q->done++;
            continue;
        }
        q->done++; /* also when it fails: it is reported once */
        if (execute(g, &c, err) != 0 || poison_followers(g, &c, err) != 0)
            return -1;
    }
    return 0;
}

static int enqueue(struct guarded *g, int stream, struct command *c, struct error *err)
{
    struct queue *q = &g->queues[stream];
    if (q->enqueued - q->done == QUEUE_LENGTH && run_until(g, stream, q->done + 1, err) != 0)
        return -1;
    c->order = g->next_order++;
    struct command *slot = command_at(g, stream, q->enqueued);
    *slot = *c;
    q->enqueued++;
    return poison(g, slot, err);
}

static void add_range(struct command *c, const void *data, size_t bytes, bool written)
{
    if (!data || bytes == 0)
        return;
    struct range *r = &c->ranges[c->range_count++];
    memcpy(&r->data, &data, sizeof r->data); /* inputs are not written */
    r->bytes = bytes;
    r->written = written;
    r->poisoned = false;
}

/* A backend that does not share the host's memory could not reach it. */
static int check_device(struct guarded *g, const void *data, size_t bytes, const char *what,
                        struct error *err)
{
    if (!data || bytes == 0 || guarded_watches(&g->memory, data, bytes))
        return 0;
    return error_set(err, ERROR_RUN, "guarded backend", "allocate or adopt it first",
                     "%s uses memory that is not the device's", what);
}

static int check_operands(struct guarded *g, const struct op_call *call, struct error *err)
{
    const char *name = op_name(call->op);
    for (int i = 0; i < call->inputs; i++)
        if (check_device(g, call->in[i].data, (size_t)operand_bytes(&call->in[i]), name, err) != 0)
            return -1;
    for (int i = 0; i < call->outputs; i++)
        if (check_device(g, call->out[i].data, (size_t)operand_bytes(&call->out[i]), name, err) != 0)
            return -1;
    return check_device(g, call->workspace, call->workspace_bytes, name, err);
}

/* Outputs that no input shares and whose old contents do not matter. */
static void mark_poisoned(struct command *c, const struct op_call *call, int outputs_at)
{
    int range = outputs_at;
    for (int i = 0; i < call->outputs; i++) {
        if (!call->out[i].data || operand_bytes(&call->out[i]) == 0)
            continue;
        struct range *r = &c->ranges[range++];
        r->poisoned = !op_output_is_inout(call, i);
        for (int k = 0; k < outputs_at; k++)
            if (overlap(&c->ranges[k], r))
                r->poisoned = false;
    }
}

static int guarded_run(struct backend *b, int stream, const struct op_call *call, struct error *err)
{
    struct guarded *g = guarded_of(b);
    struct signature_sizes sizes;
    if (call_check(call, true, &sizes, err) != 0)
        return -1;
    struct command c = {.kind = COMMAND_OP, .call = *call};
    for (int i = 0; i < call->inputs; i++)
        add_range(&c, call->in[i].data, (size_t)operand_bytes(&call->in[i]), false);
    int outputs_at = c.range_count;
    for (int i = 0; i < call->outputs; i++)
        add_range(&c, call->out[i].data, (size_t)operand_bytes(&call->out[i]), true);
    mark_poisoned(&c, call, outputs_at);
    add_range(&c, call->workspace, call->workspace_bytes, true);
    pthread_mutex_lock(&g->lock);
    int status = check_operands(g, call, err);
    if (status == 0)
        status = enqueue(g, stream, &c, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* The ends that are said to be on the device are. */
static int transfer(struct guarded *g, int stream, void *to, bool to_device, const void *from,
                    bool from_device, size_t bytes, struct error *err)
{
    if (bytes == 0)
        return 0;
    struct command c = {.kind = COMMAND_COPY};
    add_range(&c, to, bytes, true);
    add_range(&c, from, bytes, false);
    c.ranges[0].poisoned = !overlap(&c.ranges[0], &c.ranges[1]);
    pthread_mutex_lock(&g->lock);
    int status = to_device ? check_device(g, to, bytes, "a transfer", err) : 0;
    if (status == 0 && from_device)
        status = check_device(g, from, bytes, "a transfer", err);
    if (status == 0)
        status = enqueue(g, stream, &c, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_copy(struct backend *b, int stream, void *to, const void *from, size_t bytes,
                        struct error *err)
{
    return transfer(guarded_of(b), stream, to, true, from, true, bytes, err);
}

static int guarded_upload(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                          struct error *err)
{
    return transfer(guarded_of(b), stream, device, true, host, false, bytes, err);
}

static int guarded_download(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                            struct error *err)
{
    return transfer(guarded_of(b), stream, host, false, device, true, bytes, err);
}

/* Whether queued work writes the range. */
static bool to_be_written(struct guarded *g, const struct range *r)
{
    for (int stream = 0; stream < BACKEND_STREAMS; stream++)
        for (int64_t n = g->queues[stream].done; n < g->queues[stream].enqueued; n++) {
            const struct command *c = command_at(g, stream, n);
            for (int i = 0; i < c->range_count; i++)
                if (c->ranges[i].written && overlap(&c->ranges[i], r))
                    return true;
        }
    return false;
}

/* Ops run under the lock, so none runs meanwhile. */
static int guarded_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err)
{
    struct guarded *g = guarded_of(b);
    struct range r = {.bytes = bytes};
    memcpy(&r.data, &device, sizeof r.data);
    if (bytes == 0)
        return 0;
    pthread_mutex_lock(&g->lock);
    int status = check_device(g, device, bytes, "a read", err);
    if (status == 0 && to_be_written(g, &r))
        status = error_set(err, ERROR_RUN, "guarded backend", "let the read end before",
                           "memory is read that queued work is to write");
    if (status == 0)
        status = guarded_hold(&g->memory, r.data, bytes, err);
    if (status == 0) {
        memcpy(host, device, bytes);
        status = guarded_let_go(&g->memory, r.data, bytes, err);
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_record(struct backend *b, int stream, int event, struct error *err)
{
    (void)err;
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    g->events[event] = (struct event){true, stream, g->queues[stream].enqueued};
    pthread_mutex_unlock(&g->lock);
    return 0;
}

/* An event that was never recorded is over. */
static int guarded_stream_wait(struct backend *b, int stream, int event, struct error *err)
{
    struct guarded *g = guarded_of(b);
    int status = 0;
    pthread_mutex_lock(&g->lock);
    const struct event *e = &g->events[event];
    if (e->recorded && e->stream != stream && g->queues[e->stream].done < e->count) {
        struct command c = {.kind = COMMAND_WAIT, .wait_stream = e->stream, .wait_count = e->count};
        status = enqueue(g, stream, &c, err);
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_event_sync(struct backend *b, int event, struct error *err)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    const struct event *e = &g->events[event];
    int status = e->recorded ? run_until(g, e->stream, e->count, err) : 0;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_sync(struct backend *b, int stream, struct error *err)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    int status = run_until(g, stream, g->queues[stream].enqueued, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_alloc(struct backend *b, enum memory_kind kind, size_t bytes, void **out,
                         struct error *err)
{
    struct guarded *g = guarded_of(b);
    if (kind == MEMORY_HOST)
        return g->inner->v->alloc(g->inner, kind, bytes, out, err);
    pthread_mutex_lock(&g->lock);
    int status = guarded_map(&g->memory, bytes, out, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static void guarded_free(struct backend *b, void *memory)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    bool device = guarded_drop(&g->memory, memory);
    pthread_mutex_unlock(&g->lock);
    if (!device)
        g->inner->v->free(g->inner, memory);
}

static int guarded_adopt(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    int status = guarded_watch(&g->memory, memory, bytes, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static void guarded_disown(struct backend *b, void *memory)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    guarded_drop(&g->memory, memory);
    pthread_mutex_unlock(&g->lock);
}

static int guarded_begin_access(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    struct guarded *g = guarded_of(b);
    struct range r = {.data = memory, .bytes = bytes};
    pthread_mutex_lock(&g->lock);
    int status = in_use(g, &r, g->next_order)
                     ? error_set(err, ERROR_RUN, "guarded backend", "sync the stream first",
                                 "a transfer begins in memory that queued work still uses")
                     : guarded_hold(&g->memory, memory, bytes, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_end_access(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    struct guarded *g = guarded_of(b);
    pthread_mutex_lock(&g->lock);
    int status = guarded_let_go(&g->memory, memory, bytes, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static int guarded_prepare(struct backend *b, const struct op_call *call, size_t *workspace,
                           struct error *err)
{
    struct guarded *g = guarded_of(b);
    return g->inner->v->prepare(g->inner, call, workspace, err);
}

static int guarded_threads_seen(const struct backend *b)
{
    const struct guarded *g = (const struct guarded *)b;
    return g->inner->v->threads_seen(g->inner);
}

static void guarded_destroy(struct backend *b)
{
    struct guarded *g = guarded_of(b);
    guarded_memory_end(&g->memory);
    g->inner->v->destroy(g->inner);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static const struct backend_vtable guarded_vtable = {
    .name = "guarded",
    .destroy = guarded_destroy,
    .alloc = guarded_alloc,
    .free = guarded_free,
    .adopt = guarded_adopt,
    .disown = guarded_disown,
    .upload = guarded_upload,
    .download = guarded_download,
    .read = guarded_read,
    .copy = guarded_copy,
    .prepare = guarded_prepare,
    .run = guarded_run,
    .record = guarded_record,
    .stream_wait = guarded_stream_wait,
    .event_sync = guarded_event_sync,
    .sync = guarded_sync,
    .begin_access = guarded_begin_access,
    .end_access = guarded_end_access,
    .threads_seen = guarded_threads_seen,
};

int guarded_create(struct backend **out, struct backend *inner, struct error *err)
{
    struct guarded *g = calloc(1, sizeof *g);
    if (!g) {
        inner->v->destroy(inner);
        return error_memory(err, sizeof *g, "the guarded backend");
    }
    g->base.v = &guarded_vtable;
    g->inner = inner;
    guarded_memory_start(&g->memory);
    pthread_mutex_init(&g->lock, NULL);
    *out = &g->base;
    return 0;
}
