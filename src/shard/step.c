/* What happens in a step: gather, release, ordered reduce, norm, update. */
#include "shard/internal.h"

/* The device address of the whole unit once gathered; NULL while it has no slot. */
static void *whole(const struct shard *s, const struct shard_unit *u)
{
    if (u->full.memory)
        return u->full.memory;
    return u->slot >= 0 ? s->slot[u->slot].memory : NULL;
}

static bool alone(const struct shard *s)
{
    return comm_size(s->comm) == 1 || s->options.stage == 0;
}

static int64_t compute_bytes(const struct shard *s, const struct shard_unit *u)
{
    return dtype_bytes(s->options.compute, u->layout.elements);
}

static int take_slot(struct shard *s, int unit, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    if (u->full.memory || u->slot >= 0)
        return 0;
    for (int i = 0; i < SHARD_SLOTS; i++) {
        if (s->slot_unit[i] < 0 && s->slot[i].memory) {
            s->slot_unit[i] = unit;
            u->slot = i;
            return 0;
        }
    }
    return error_set(err, ERROR_RUN, "shard", NULL, "more than %d units are gathered at once", SHARD_SLOTS);
}

/* Messages read and write device memory, so the transfer's window is opened to them. */
static int transfer_access(struct shard *s, struct shard_unit *u, bool begin, struct error *err)
{
    int (*access)(struct backend *, void *, size_t, struct error *) =
        begin ? backend_begin_access : backend_end_access;
    if (access(s->backend, whole(s, u), (size_t)compute_bytes(s, u), err) != 0)
        return -1;
    return u->piece.memory ? access(s->backend, u->piece.memory, (size_t)u->piece.bytes, err) : 0;
}

int shard_gather_begin(struct shard *s, int unit, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    if (alone(s) || u->gathering || u->ready)
        return 0;
    if (take_slot(s, unit, err) != 0)
        return -1;
    void *full = whole(s, u), *mine = shard_compute_run(s, u);
    if (!s->share && (backend_sync(s->backend, 0, err) != 0 || transfer_access(s, u, true, err) != 0))
        return -1;
    if (comm_gather_begin(&u->gather, mine, full, err) != 0)
        return -1;
    u->gathering = true;
    return 0;
}

int shard_gather(struct shard *s, int unit, void **base, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    if (shard_gather_begin(s, unit, err) != 0)
        return -1;
    if (u->gathering) {
        if (comm_gather_wait(&u->gather, err) != 0)
            return -1;
        if (!s->share && transfer_access(s, u, false, err) != 0)
            return -1;
        u->gathering = false;
        u->ready = true;
    }
    *base = whole(s, u);
    return 0;
}

int shard_run_written(struct shard *s, int unit, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    u->ready = false;
    if (!s->share)
        return 0;
    /* What was said of the values before is no longer true: it is taken back, then said anew. */
    if (u->gathering && comm_gather_wait(&u->gather, err) != 0)
        return -1;
    u->gathering = false;
    return shard_gather_begin(s, unit, err);
}

void shard_release(struct shard *s, int unit)
{
    struct shard_unit *u = &s->units[unit];
    if (u->slot < 0) /* it has memory of its own: it stays until the next update */
        return;
    s->slot_unit[u->slot] = -1;
    u->slot = -1;
    u->ready = false;
}

int shard_grads(struct shard *s, int unit, float **base, struct error *err)
{
    struct shard_sender *sender = &s->senders[s->units[unit].sender];
    if (!sender->writable && comm_exchange_reuse(&sender->exchange, err) != 0)
        return -1;
    sender->writable = true;
    if (sender->lent &&
        backend_end_access(s->backend, sender->exchange.send, sender->exchange.capacity, err) != 0)
        return -1;
    sender->lent = false;
    *base = sender->exchange.send;
    return 0;
}

/* Messages arrive in the staging memory while an exchange is open. */
static int staging_access(struct shard *s, const struct comm_exchange *x, bool begin, struct error *err)
{
    if (!x->staging)
        return 0;
    return begin ? backend_begin_access(s->backend, x->staging, x->staging_bytes, err)
                 : backend_end_access(s->backend, x->staging, x->staging_bytes, err);
}

int shard_reduce_begin(struct shard *s, int unit, int contributors, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    struct shard_sender *sender = &s->senders[u->sender];
    float *unused;
    /* A rank without a micro-batch has not asked for the buffer: the object is made free here. */
    if (shard_grads(s, unit, &unused, err) != 0)
        return -1;
    flat_layout_cuts(&u->layout, comm_size(s->comm), 4, s->cuts);
    if (backend_begin_access(s->backend, sender->exchange.send, sender->exchange.capacity, err) != 0 ||
        staging_access(s, &sender->exchange, true, err) != 0 ||
        comm_exchange_layout(&sender->exchange, s->cuts, err) != 0 ||
        comm_exchange_begin(&sender->exchange, contributors, err) != 0)
        return -1;
    sender->writable = false;
    sender->lent = true;
    sender->contributors = contributors;
    return 0;
}

/* The sums of the own run. */
static float *own_sums(const struct shard_unit *u)
{
    return (float *)u->sums.memory + (u->own_first - u->first);
}

static struct operand flat(const void *data, enum dtype type, int64_t n)
{
    return (struct operand){.data = (void *)(uintptr_t)data, .type = type, .ndim = 1, .dim = {n}};
}

int shard_reduce_finish(struct shard *s, int unit, bool first, struct error *err)
{
    struct shard_unit *u = &s->units[unit];
    struct shard_sender *sender = &s->senders[u->sender];
    int64_t n = u->own_end - u->own_first;
    const void *part;
    for (int r = 0; r < sender->contributors; r++) {
        if (comm_exchange_part(&sender->exchange, r, &part, err) != 0)
            return -1;
        if (!part || n == 0)
            continue;
        struct op_call call = {.op = OP_ACCUMULATE,
                               .inputs = 1,
                               .outputs = 1,
                               .in = {flat(part, DTYPE_F32, n)},
                               .out = {flat(own_sums(u), DTYPE_F32, n)},
                               .attr = {.first = first && r == 0}};
        if (backend_run(s->backend, 0, &call, err) != 0)
            return -1;
    }
    if (backend_sync(s->backend, 0, err) != 0 || staging_access(s, &sender->exchange, false, err) != 0)
        return -1;
    return comm_exchange_end(&sender->exchange, err);
}

int shard_sum_squares(struct shard *s, struct exact_sum *sum, struct error *err)
{
    exact_sum_clear(sum);
    for (int i = 0; i < s->unit_count; i++) {
        struct shard_unit *u = &s->units[i];
        int64_t n = u->own_end - u->own_first, blocks = (n + SHARD_BLOCK - 1) / SHARD_BLOCK;
        if (n == 0)
            continue;
        struct op_call call = {.op = OP_SUM_SQUARES,
                               .inputs = 1,
                               .outputs = 1,
                               .in = {flat(own_sums(u), DTYPE_F32, n)},
                               .out = {flat(s->squares.memory, DTYPE_F64, blocks)}};
        if (backend_run(s->backend, 0, &call, err) != 0 ||
            backend_download(s->backend, 0, s->host_squares, s->squares.memory,
                             (size_t)blocks * sizeof(double), err) != 0 ||
            backend_sync(s->backend, 0, err) != 0)
            return -1;
        for (int64_t b = 0; b < blocks; b++)
            exact_sum_add(sum, s->host_squares[b]);
    }
    return 0;
}

/* Stage 0: every rank needs all sums, for it updates everything. */
static int spread_sums(struct shard *s, struct error *err)
{
    bool shares = comm_shares_memory(s->comm);
    for (int i = 0; i < s->unit_count; i++) {
        struct shard_unit *u = &s->units[i];
        if (!shares && backend_begin_access(s->backend, u->sums.memory, (size_t)u->sums.bytes, err) != 0)
            return -1;
        if (comm_gather_begin(&u->gather_sums, own_sums(u), u->sums.memory, err) != 0 ||
            comm_gather_wait(&u->gather_sums, err) != 0)
            return -1;
        if (!shares && backend_end_access(s->backend, u->sums.memory, (size_t)u->sums.bytes, err) != 0)
            return -1;
    }
    return 0;
}

static int update_unit(struct shard *s, struct shard_unit *u, const struct op_adamw *adamw, struct error *err)
{
    int64_t c = dtype_bytes(s->options.compute, 1);
    for (int k = 0; k < u->layout.param_count; k++) {
        int64_t first = u->layout.offset[k] > u->first ? u->layout.offset[k] : u->first;
        int64_t end = u->layout.offset[k + 1] < u->end ? u->layout.offset[k + 1] : u->end;
        int64_t n = end - first, at = first - u->first;
        if (n <= 0)
            continue;
        bool copy = s->options.compute != DTYPE_F32;
        struct op_call call = {.op = OP_ADAMW,
                               .inputs = 1,
                               .outputs = copy ? 4 : 3,
                               .in = {flat((float *)u->sums.memory + at, DTYPE_F32, n)},
                               .out = {flat(shard_master_run(s, u) + at, DTYPE_F32, n),
                                       flat((float *)u->moment[0].memory + at, DTYPE_F32, n),
                                       flat((float *)u->moment[1].memory + at, DTYPE_F32, n)},
                               .attr = {.adamw = *adamw}};
        if (copy)
            call.out[3] = flat((char *)shard_compute_run(s, u) + c * at, s->options.compute, n);
        if (!u->decay[k])
            call.attr.adamw.weight_decay = 0;
        if (backend_run(s->backend, 0, &call, err) != 0)
            return -1;
    }
    return 0;
}

int shard_update(struct shard *s, const struct op_adamw *adamw, struct error *err)
{
    bool spread = s->options.stage == 0 && comm_size(s->comm) > 1;
    if (spread && spread_sums(s, err) != 0)
        return -1;
    for (int i = 0; i < s->unit_count; i++) {
        if (update_unit(s, &s->units[i], adamw, err) != 0)
            return -1;
    }
    if (backend_sync(s->backend, 0, err) != 0)
        return -1;
    for (int i = 0; i < s->unit_count; i++)
        if (shard_run_written(s, i, err) != 0)
            return -1;
    /* The shared sums must not be overwritten while another rank still reads them. */
    return spread ? comm_barrier(s->comm, err) : 0;
}
