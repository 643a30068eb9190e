/* Making and freeing a shard, and what it comes to in bytes. */
#include "shard/internal.h"

#include <stdlib.h>
#include <string.h>

static int64_t largest_unit(const struct shard_unit_spec *units, int n, int64_t *largest_run, int ranks,
                            bool skip_referred)
{
    int64_t largest = 0;
    *largest_run = 0;
    for (int u = 0; u < n; u++) {
        if (skip_referred && units[u].referred)
            continue;
        struct flat_layout l = {0};
        for (int k = 0; k < units[u].param_count; k++)
            l.elements += units[u].elements[k];
        l.blocks = (l.elements + SHARD_BLOCK - 1) / SHARD_BLOCK;
        if (l.elements > largest)
            largest = l.elements;
        if (flat_layout_run(&l, ranks) > *largest_run)
            *largest_run = flat_layout_run(&l, ranks);
    }
    return largest;
}

/* Stage 3 over messages: parameters are kept in runs and gathered into slots. */
static bool uses_slots(const struct shard_options *o, int ranks, bool shares_memory)
{
    return o->stage == 3 && !shares_memory && ranks > 1;
}

static int units_alike(const struct shard_unit_spec *units, int n)
{
    int count = 0;
    for (int u = 0; u < n; u++)
        count += !units[u].referred;
    return count < SHARD_SLOTS ? count : SHARD_SLOTS;
}

int shard_plan(const struct shard_options *o, const struct shard_unit_spec *units, int n, int ranks,
               bool shares_memory, struct shard_memory *out, struct error *err)
{
    (void)err;
    *out = (struct shard_memory){0};
    int64_t c = dtype_bytes(o->compute, 1), run_max;
    bool slots = uses_slots(o, ranks, shares_memory), alone = o->stage == 0;
    int64_t part = shares_memory ? 0 : ranks - 1;
    for (int u = 0; u < n; u++) {
        struct flat_layout l = {0};
        for (int k = 0; k < units[u].param_count; k++)
            l.elements += units[u].elements[k];
        l.blocks = (l.elements + SHARD_BLOCK - 1) / SHARD_BLOCK;
        int64_t all = l.elements, run = flat_layout_run(&l, ranks), kept = alone ? all : run;
        out->parameters += slots ? c * run + (units[u].referred ? c * all : 0) : c * all;
        if (o->inference)
            continue;
        out->masters += o->compute == DTYPE_F32 ? 0 : 4 * kept;
        out->moments += 8 * kept;
        out->sums += 4 * kept;
        if (o->stage == 1 || units[u].referred) {
            out->sent += 4 * all;
            out->received += 4 * part * run;
        }
    }
    int64_t largest = largest_unit(units, n, &run_max, ranks, true);
    int alike = units_alike(units, n);
    if (slots)
        out->parameters += alike * c * largest;
    if (!o->inference && o->stage != 1) {
        out->sent += alike * 4 * largest;
        out->received += alike * 4 * part * run_max;
    }
    out->parameters_shared = shares_memory && ranks > 1 && o->stage > 0;
    out->sums_shared = shares_memory && ranks > 1 && o->stage == 0;
    return 0;
}

static int buffer_make(struct shard *s, struct shard_buffer *b, int64_t bytes, bool window, struct error *err)
{
    b->bytes = bytes;
    if (!window)
        return backend_alloc(s->backend, MEMORY_DEVICE, (size_t)bytes, &b->memory, err);
    if (comm_window_create(s->comm, (size_t)bytes, true, &b->window, err) != 0)
        return -1;
    b->memory = b->window.memory;
    return backend_adopt(s->backend, b->memory, b->window.bytes, err);
}

static void buffer_free(struct shard *s, struct shard_buffer *b)
{
    if (b->window.memory) {
        backend_disown(s->backend, b->memory);
        comm_window_free(s->comm, &b->window);
    } else {
        backend_free(s->backend, b->memory);
    }
    *b = (struct shard_buffer){0};
}

static int unit_layout(struct shard *s, struct shard_unit *u, const struct shard_unit_spec *spec,
                       struct error *err)
{
    u->slot = u->sender = -1;
    u->referred = spec->referred;
    if (flat_layout_create(&u->layout, spec->param_count, spec->elements, err) != 0)
        return -1;
    u->decay = malloc((size_t)spec->param_count * sizeof *u->decay);
    if (!u->decay)
        return error_memory(err, (size_t)spec->param_count, "a shard");
    memcpy(u->decay, spec->decay, (size_t)spec->param_count * sizeof *u->decay);
    flat_layout_range(&u->layout, comm_size(s->comm), comm_rank(s->comm), &u->own_first, &u->own_end);
    u->first = s->options.stage == 0 ? 0 : u->own_first;
    u->end = s->options.stage == 0 ? u->layout.elements : u->own_end;
    return 0;
}

static int unit_make(struct shard *s, struct shard_unit *u, struct error *err)
{
    int ranks = comm_size(s->comm), stage = s->options.stage;
    bool shares = comm_shares_memory(s->comm), slots = uses_slots(&s->options, ranks, shares);
    int64_t c = dtype_bytes(s->options.compute, 1), all = u->layout.elements;
    int64_t run = flat_layout_run(&u->layout, ranks), kept = stage == 0 ? all : run;
    if ((!slots || u->referred) && buffer_make(s, &u->full, c * all, s->share, err) != 0)
        return -1;
    if (slots && buffer_make(s, &u->piece, c * run, false, err) != 0)
        return -1;
    s->held.parameters += u->full.bytes + u->piece.bytes;
    flat_layout_cuts(&u->layout, ranks, c, s->cuts);
    if (ranks > 1 && stage > 0 && comm_gather_create(s->comm, s->cuts, s->share, &u->gather, err) != 0)
        return -1;
    if (s->options.inference)
        return 0;
    if (s->options.compute != DTYPE_F32 && buffer_make(s, &u->master, 4 * kept, false, err) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (buffer_make(s, &u->moment[i], 4 * kept, false, err) != 0)
            return -1;
    if (buffer_make(s, &u->sums, 4 * kept, stage == 0 && ranks > 1 && shares, err) != 0)
        return -1;
    s->held.masters += u->master.bytes;
    s->held.moments += u->moment[0].bytes + u->moment[1].bytes;
    s->held.sums += u->sums.bytes;
    flat_layout_cuts(&u->layout, ranks, 4, s->cuts);
    if (stage == 0 && ranks > 1)
        return comm_gather_create(s->comm, s->cuts, shares, &u->gather_sums, err);
    return 0;
}

static int sender_make(struct shard *s, int64_t elements, int64_t run, int *out, struct error *err)
{
    struct shard_sender *sender = &s->senders[s->sender_count];
    if (comm_exchange_create(s->comm, (size_t)elements * 4, (size_t)run * 4, &sender->exchange, err) != 0)
        return -1;
    sender->made = true;
    *out = s->sender_count++;
    s->held.sent += elements * 4;
    s->held.received += (int64_t)sender->exchange.staging_bytes;
    for (int r = 0; r < comm_size(s->comm); r++)
        if (sender->exchange.peers[r] &&
            backend_adopt(s->backend, sender->exchange.peers[r], sender->exchange.capacity, err) != 0)
            return -1;
    if (sender->exchange.staging)
        return backend_adopt(s->backend, sender->exchange.staging, sender->exchange.staging_bytes, err);
    return 0;
}

/* Gradient buffers: one for each unit that is referred to (all units at stage 1), two that the others
 * use in turn. */
static int senders_make(struct shard *s, const struct shard_unit_spec *specs, struct error *err)
{
    int ranks = comm_size(s->comm), turn[SHARD_SLOTS] = {-1, -1}, next = 0;
    int64_t run_max, largest = largest_unit(specs, s->unit_count, &run_max, ranks, true);
    s->senders = calloc((size_t)s->unit_count + SHARD_SLOTS, sizeof *s->senders);
    if (!s->senders)
        return error_memory(err, (size_t)s->unit_count * sizeof *s->senders, "a shard");
    for (int u = 0; u < s->unit_count; u++) {
        struct shard_unit *unit = &s->units[u];
        if (unit->referred || s->options.stage == 1) {
            if (sender_make(s, unit->layout.elements, flat_layout_run(&unit->layout, ranks), &unit->sender,
                            err) != 0)
                return -1;
            continue;
        }
        if (turn[next] < 0 && sender_make(s, largest, run_max, &turn[next], err) != 0)
            return -1;
        unit->sender = turn[next];
        next = (next + 1) % SHARD_SLOTS;
    }
    return 0;
}

static int shared_make(struct shard *s, const struct shard_unit_spec *specs, struct error *err)
{
    int ranks = comm_size(s->comm), alike = units_alike(specs, s->unit_count);
    int64_t run_max, c = dtype_bytes(s->options.compute, 1);
    int64_t largest = largest_unit(specs, s->unit_count, &run_max, ranks, true);
    for (int i = 0; i < SHARD_SLOTS; i++)
        s->slot_unit[i] = -1;
    if (uses_slots(&s->options, ranks, comm_shares_memory(s->comm))) {
        for (int i = 0; i < alike; i++) {
            if (buffer_make(s, &s->slot[i], c * largest, false, err) != 0)
                return -1;
            s->held.parameters += s->slot[i].bytes;
        }
    }
    int64_t any_run;
    largest_unit(specs, s->unit_count, &any_run, ranks, false);
    size_t blocks = (size_t)(any_run / SHARD_BLOCK) + 1;
    s->values = malloc(SHARD_STAGING * sizeof *s->values);
    if (!s->values)
        return error_memory(err, SHARD_STAGING * sizeof *s->values, "a shard");
    if (backend_alloc(s->backend, MEMORY_HOST, SHARD_STAGING * sizeof(float), &s->staging, err) != 0)
        return -1;
    if (s->options.inference)
        return 0;
    if (buffer_make(s, &s->squares, (int64_t)(blocks * sizeof(double)), false, err) != 0)
        return -1;
    void *host;
    if (backend_alloc(s->backend, MEMORY_HOST, blocks * sizeof(double), &host, err) != 0)
        return -1;
    s->host_squares = host;
    return senders_make(s, specs, err);
}

int shard_create(struct shard **out, struct comm *comm, struct backend *backend,
                 const struct shard_options *options, const struct shard_unit_spec *units, int unit_count,
                 struct error *err)
{
    *out = NULL;
    struct shard *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(err, sizeof *s, "a shard");
    s->comm = comm;
    s->backend = backend;
    s->options = *options;
    s->units = calloc((size_t)unit_count, sizeof *s->units);
    s->cuts = calloc((size_t)comm_size(comm) + 1, sizeof *s->cuts);
    s->share = comm_shares_memory(comm) && comm_size(comm) > 1 && options->stage > 0;
    s->held.parameters_shared = s->share;
    s->held.sums_shared = comm_shares_memory(comm) && comm_size(comm) > 1 && options->stage == 0;
    int status =
        s->units && s->cuts ? 0 : error_memory(err, (size_t)unit_count * sizeof *s->units, "a shard");
    for (int u = 0; u < unit_count && status == 0; u++) {
        s->unit_count = u + 1;
        status = unit_layout(s, &s->units[u], &units[u], err);
        if (status == 0)
            status = unit_make(s, &s->units[u], err);
    }
    if (status == 0)
        status = shared_make(s, units, err);
    if (status != 0) {
        shard_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

static void sender_free(struct shard *s, struct shard_sender *sender)
{
    if (!sender->made)
        return;
    for (int r = 0; r < comm_size(s->comm); r++)
        if (sender->exchange.peers[r])
            backend_disown(s->backend, sender->exchange.peers[r]);
    if (sender->exchange.staging)
        backend_disown(s->backend, sender->exchange.staging);
    comm_exchange_free(&sender->exchange);
}

void shard_free(struct shard *s)
{
    if (!s)
        return;
    for (int u = 0; u < s->unit_count; u++) {
        struct shard_unit *unit = &s->units[u];
        comm_gather_free(&unit->gather);
        comm_gather_free(&unit->gather_sums);
        buffer_free(s, &unit->full);
        buffer_free(s, &unit->piece);
        buffer_free(s, &unit->master);
        buffer_free(s, &unit->moment[0]);
        buffer_free(s, &unit->moment[1]);
        buffer_free(s, &unit->sums);
        flat_layout_free(&unit->layout);
        free(unit->decay);
    }
    for (int i = 0; i < s->sender_count; i++)
        sender_free(s, &s->senders[i]);
    for (int i = 0; i < SHARD_SLOTS; i++)
        buffer_free(s, &s->slot[i]);
    buffer_free(s, &s->squares);
    backend_free(s->backend, s->host_squares);
    backend_free(s->backend, s->staging);
    free(s->values);
    free(s->cuts);
    free(s->senders);
    free(s->units);
    free(s);
}

const struct shard_memory *shard_memory_held(const struct shard *s)
{
    return &s->held;
}

const struct flat_layout *shard_layout(const struct shard *s, int unit)
{
    return &s->units[unit].layout;
}

void *shard_compute_run(const struct shard *s, const struct shard_unit *u)
{
    if (u->piece.memory)
        return u->piece.memory;
    return (char *)u->full.memory + dtype_bytes(s->options.compute, u->first);
}

float *shard_master_run(const struct shard *s, const struct shard_unit *u)
{
    return s->options.compute == DTYPE_F32 ? shard_compute_run(s, u) : u->master.memory;
}

float *shard_state_run(const struct shard *s, const struct shard_unit *u, enum shard_kind kind)
{
    switch (kind) {
    case SHARD_MASTER:
        return shard_master_run(s, u);
    case SHARD_MOMENT1:
        return u->moment[0].memory;
    case SHARD_MOMENT2:
        return u->moment[1].memory;
    case SHARD_SUMS:
        return u->sums.memory;
    }
    return NULL;
}
