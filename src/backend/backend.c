#include "backend/backend.h"

#include "backend/cpu/cpu.h"
#include "backend/guarded/guarded.h"
#include "backend/reference/reference.h"

#include <string.h>

int backend_create(struct backend **out, const struct backend_options *options, struct error *err)
{
    *out = NULL;
    const char *name = options->name ? options->name : "auto";
    if (options->threads < 1)
        return error_set(err, ERROR_INPUT, "backend", "give at least one thread", "%d threads",
                         options->threads);
    bool reference = strcmp(name, "reference") == 0 || strcmp(name, "guarded-reference") == 0;
    bool guarded = strcmp(name, "guarded") == 0 || strcmp(name, "guarded-reference") == 0;
    bool cpu = strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 || strcmp(name, "guarded") == 0;
    if (!reference && !cpu)
        return error_set(err, ERROR_INPUT, "backend.name",
                         "use auto, cpu, reference, guarded or guarded-reference",
                         "there is no backend \"%s\"", name);
    struct backend *inner = NULL;
    if (reference ? reference_create(&inner, err) : cpu_create(&inner, options, err))
        return -1;
    if (!guarded) {
        *out = inner;
        return 0;
    }
    return guarded_create(out, inner, err);
}

void backend_destroy(struct backend *b)
{
    if (b)
        b->v->destroy(b);
}

static int check_stream(int stream, struct error *err)
{
    if (stream < 0 || stream >= BACKEND_STREAMS)
        return error_set(err, ERROR_RUN, "backend", NULL, "there is no stream %d", stream);
    return 0;
}

static int check_event(int event, struct error *err)
{
    if (event < 0 || event >= BACKEND_EVENTS)
        return error_set(err, ERROR_RUN, "backend", NULL, "there is no event %d", event);
    return 0;
}

int backend_alloc(struct backend *b, enum memory_kind kind, size_t bytes, void **out, struct error *err)
{
    *out = NULL;
    return b->v->alloc(b, kind, bytes, out, err);
}

void backend_free(struct backend *b, void *memory)
{
    if (memory)
        b->v->free(b, memory);
}

int backend_adopt(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    return b->v->adopt(b, memory, bytes, err);
}

void backend_disown(struct backend *b, void *memory)
{
    b->v->disown(b, memory);
}

int backend_upload(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                   struct error *err)
{
    return check_stream(stream, err) != 0 ? -1 : b->v->upload(b, stream, device, host, bytes, err);
}

int backend_download(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                     struct error *err)
{
    return check_stream(stream, err) != 0 ? -1 : b->v->download(b, stream, host, device, bytes, err);
}

int backend_copy(struct backend *b, int stream, void *to, const void *from, size_t bytes, struct error *err)
{
    return check_stream(stream, err) != 0 ? -1 : b->v->copy(b, stream, to, from, bytes, err);
}

int backend_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err)
{
    return b->v->read(b, host, device, bytes, err);
}

int backend_prepare(struct backend *b, const struct op_call *call, size_t *workspace, struct error *err)
{
    *workspace = 0;
    return b->v->prepare(b, call, workspace, err);
}

int backend_run(struct backend *b, int stream, const struct op_call *call, struct error *err)
{
    if (check_stream(stream, err) != 0)
        return -1;
    struct profile_mark mark = profile_begin(b->profile);
    if (b->v->run(b, stream, call, err) != 0)
        return -1;
    if (!profile_records(b->profile))
        return 0;
    struct op_cost cost = op_cost(call);
    struct profile_cost told = {cost.product_flops, cost.other_flops, cost.bytes};
    /* How much attention does lies with its pieces, which only the device may read. */
    bool unknown = call->op == OP_ATTENTION || call->op == OP_ATTENTION_GRAD;
    int status = b->v->sync(b, stream, err);
    profile_end(b->profile, op_name(call->op), mark, unknown ? NULL : &told);
    return status;
}

void backend_profile(struct backend *b, struct profile *p)
{
    b->profile = p;
    if (b->v->profile)
        b->v->profile(b, p);
}

int backend_record(struct backend *b, int stream, int event, struct error *err)
{
    return check_stream(stream, err) != 0 || check_event(event, err) != 0
               ? -1
               : b->v->record(b, stream, event, err);
}

int backend_stream_wait(struct backend *b, int stream, int event, struct error *err)
{
    if (check_stream(stream, err) != 0 || check_event(event, err) != 0)
        return -1;
    return b->v->stream_wait(b, stream, event, err);
}

int backend_event_sync(struct backend *b, int event, struct error *err)
{
    return check_event(event, err) != 0 ? -1 : b->v->event_sync(b, event, err);
}

int backend_sync(struct backend *b, int stream, struct error *err)
{
    return check_stream(stream, err) != 0 ? -1 : b->v->sync(b, stream, err);
}

int backend_begin_access(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    return b->v->begin_access(b, memory, bytes, err);
}

int backend_end_access(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    return b->v->end_access(b, memory, bytes, err);
}

int backend_threads_seen(const struct backend *b)
{
    return b->v->threads_seen(b);
}

void backend_describe(const struct backend *b, struct backend_description *out)
{
    *out = (struct backend_description){.isa = "none", .library = "none"};
    if (b->v->describe)
        b->v->describe(b, out);
}
