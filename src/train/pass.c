/* One micro-batch through all units: forward, backward, gather ahead, reduce behind. */
#include "train/engine.h"

#include <string.h>

static int stage_inputs(struct engine *e, const struct batch *b, const struct engine_pass *pass,
                        struct error *err)
{
    size_t t = (size_t)(b->rows * b->seq_len), pieces = (size_t)b->piece_count;
    memcpy(e->staged.ids, b->ids, t * 4);
    memcpy(e->staged.positions, b->positions, t * 4);
    memcpy(e->staged.targets, b->targets, t * 4);
    memcpy(e->staged.pieces, b->pieces, pieces * sizeof *b->pieces);
    *e->staged.loss_scale = pass->loss_scale;
    struct backend *be = e->backend;
    if (backend_upload(be, 0, e->device.ids, e->staged.ids, t * 4, err) != 0 ||
        backend_upload(be, 0, e->device.positions, e->staged.positions, t * 4, err) != 0 ||
        backend_upload(be, 0, e->device.targets, e->staged.targets, t * 4, err) != 0 ||
        backend_upload(be, 0, e->device.loss_scale, e->staged.loss_scale, 4, err) != 0)
        return -1;
    return pieces == 0
               ? 0
               : backend_upload(be, 0, e->device.pieces, e->staged.pieces, pieces * sizeof *b->pieces, err);
}

/* What a profile calls the time in which a rank brings parameters, or gradients to their owners, and waits
 * for others to do so. */
static const char gathering[] = "gather", reducing[] = "reduce";

/* Addresses of a unit's parameters (its own and those it refers to), and of their gradients. */
static int bind_params(struct engine *e, int unit, bool grads, struct error *err)
{
    const struct model_unit *mu = &e->model->units[unit];
    struct engine_unit *u = &e->units[unit];
    for (int k = 0; k < mu->param_count; k++) {
        int owner = mu->params[k].unit;
        const struct flat_layout *l = shard_layout(e->shard, owner);
        int64_t offset = l->offset[mu->params[k].index];
        void *base;
        float *grad;
        struct profile_mark mark = profile_begin(e->profile);
        if (shard_gather(e->shard, owner, &base, err) != 0)
            return -1;
        profile_end(e->profile, gathering, mark, NULL);
        u->param[k] = (char *)base + dtype_bytes(e->options.compute, offset);
        if (!grads)
            continue;
        if (shard_grads(e->shard, owner, &grad, err) != 0)
            return -1;
        u->grad[k] = grad + offset;
    }
    return 0;
}

/* Runs one part of a unit; in a checked pass a non-finite value is noted and ends this rank's work, not
 * its part in the calls that all ranks make. */
static int run_unit(struct engine *e, int unit, int part, const struct graph_counts *counts,
                    struct error *err)
{
    struct engine_unit *u = &e->units[unit];
    struct exec_bindings b = {u->io, (void *const *)u->param, (void *const *)u->grad, u->saved, e->work};
    if (e->exec.check && e->found_at >= 0)
        return 0;
    struct error found = {0};
    if (exec_run(&e->exec, u->program, part, &b, counts, e->exec.check ? &found : err) == 0)
        return 0;
    if (!e->exec.check)
        return -1;
    e->found = found;
    e->found_at = e->micro_batches;
    error_set(&e->found, ERROR_RUN, e->model->units[unit].name, NULL, "%s", found.what);
    return 0;
}

/* Units 0 … last-1, of which each one's successor is fetched while it computes. */
static int forward(struct engine *e, const struct graph_counts *counts, bool active, int last,
                   struct error *err)
{
    int units = e->model->unit_count;
    for (int u = 0; u < last; u++) {
        if (bind_params(e, u, false, err) != 0)
            return -1;
        int64_t gathers = comm_stats(e->comm)->gathers;
        if (e->options.overlap && u + 1 < units && shard_gather_begin(e->shard, u + 1, err) != 0)
            return -1;
        e->gathers_ahead += comm_stats(e->comm)->gathers > gathers;
        if (active && run_unit(e, u, PROGRAM_FORWARD, counts, err) != 0)
            return -1;
        if (backend_sync(e->backend, 0, err) != 0)
            return -1;
        shard_release(e->shard, u);
    }
    return 0;
}

static int reduce_begin(struct engine *e, int unit, const struct engine_pass *pass, struct error *err)
{
    struct profile_mark mark = profile_begin(e->profile);
    int status = shard_reduce_begin(e->shard, unit, pass->contributors, err);
    profile_end(e->profile, reducing, mark, NULL);
    return status;
}

static int reduce_finish(struct engine *e, int unit, const struct engine_pass *pass, struct error *err)
{
    struct profile_mark mark = profile_begin(e->profile);
    int status = shard_reduce_finish(e->shard, unit, pass->first, err);
    profile_end(e->profile, reducing, mark, NULL);
    return status;
}

static int backward(struct engine *e, const struct graph_counts *counts, bool active,
                    const struct engine_pass *pass, struct error *err)
{
    int behind = -1; /* the unit whose parts are on their way to their owners */
    for (int u = e->model->unit_count - 1; u >= 0; u--) {
        if (bind_params(e, u, active, err) != 0)
            return -1;
        if (e->options.overlap && u > 0 && shard_gather_begin(e->shard, u - 1, err) != 0)
            return -1;
        if (active && run_unit(e, u, PROGRAM_BACKWARD, counts, err) != 0)
            return -1;
        if (backend_sync(e->backend, 0, err) != 0)
            return -1;
        shard_release(e->shard, u);
        if (reduce_begin(e, u, pass, err) != 0)
            return -1;
        if (behind >= 0 && reduce_finish(e, behind, pass, err) != 0)
            return -1;
        behind = u;
        if (!e->options.overlap) {
            if (reduce_finish(e, behind, pass, err) != 0)
                return -1;
            behind = -1;
        }
    }
    return behind < 0 ? 0 : reduce_finish(e, behind, pass, err);
}

static int add_losses(struct engine *e, const struct batch *b, struct exact_sum *sum, struct error *err)
{
    int64_t t = b->rows * b->seq_len;
    if (backend_download(e->backend, 0, e->staged.loss, e->device.loss, (size_t)t * 4, err) != 0 ||
        backend_sync(e->backend, 0, err) != 0)
        return -1;
    for (int64_t i = 0; i < t; i++)
        if (b->targets[i] >= 0)
            exact_sum_add(sum, (double)e->staged.loss[i]);
    return 0;
}

int engine_micro_batch(struct engine *e, const struct batch *batch, const struct engine_pass *pass,
                       struct error *err)
{
    struct graph_counts counts = {0};
    if (batch) {
        counts.tokens = batch->rows * batch->seq_len;
        counts.pieces = batch->piece_count;
        if (stage_inputs(e, batch, pass, err) != 0)
            return -1;
    }
    /* The head's backward part makes the loss on its way, so its forward part would be done twice. */
    int units = e->model->unit_count, last = pass->backward ? units - 1 : units;
    if (forward(e, &counts, batch != NULL, last, err) != 0)
        return -1;
    if (pass->backward && backward(e, &counts, batch != NULL, pass, err) != 0)
        return -1;
    if (batch && add_losses(e, batch, pass->loss, err) != 0)
        return -1;
    e->micro_batches += batch != NULL;
    return 0;
}
