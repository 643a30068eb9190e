/* Filling a shard and fetching from it: initial values, checkpoints. */
#include "shard/internal.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Uploads n values of one parameter that start at element `at` of the kept range. */
static int put(struct shard *s, struct shard_unit *u, enum shard_kind kind, int64_t at, int64_t n,
               struct error *err)
{
    float *state = shard_state_run(s, u, kind);
    size_t bytes = (size_t)n * sizeof(float);
    if (kind != SHARD_MASTER || s->options.compute == DTYPE_F32 || !s->options.inference) {
        dtype_convert(DTYPE_F32, s->staging, DTYPE_F32, s->values, n);
        if (backend_upload(s->backend, 0, state + at, s->staging, bytes, err) != 0 ||
            backend_sync(s->backend, 0, err) != 0)
            return -1;
    }
    if (kind != SHARD_MASTER || s->options.compute == DTYPE_F32)
        return 0;
    dtype_convert(s->options.compute, s->staging, DTYPE_F32, s->values, n);
    char *compute = (char *)shard_compute_run(s, u) + dtype_bytes(s->options.compute, at);
    return backend_upload(s->backend, 0, compute, s->staging, (size_t)dtype_bytes(s->options.compute, n),
                          err) != 0
               ? -1
               : backend_sync(s->backend, 0, err);
}

/* Inference has parameters alone, and they are no masters unless they are fp32. */
static int check_kept(const struct shard *s, enum shard_kind kind, bool fill, struct error *err)
{
    bool parameters = kind == SHARD_MASTER && (fill || s->options.compute == DTYPE_F32);
    if ((fill && kind == SHARD_SUMS) || (s->options.inference && !parameters))
        return error_set(err, ERROR_RUN, "shard", NULL, "states of kind %d are not kept here", (int)kind);
    return 0;
}

int shard_fill(struct shard *s, enum shard_kind kind,
               int (*fill)(void *context, int unit, int param, int64_t first, int64_t n, float *out,
                           struct error *err),
               void *context, struct error *err)
{
    if (check_kept(s, kind, true, err) != 0)
        return -1;
    for (int i = 0; i < s->unit_count; i++) {
        struct shard_unit *u = &s->units[i];
        for (int k = 0; k < u->layout.param_count; k++) {
            int64_t start = u->layout.offset[k];
            int64_t first = start > u->first ? start : u->first, end = least(u->layout.offset[k + 1], u->end);
            for (int64_t e = first; e < end; e += SHARD_STAGING) {
                int64_t n = least(end - e, SHARD_STAGING);
                if (fill(context, i, k, e - start, n, s->values, err) != 0 ||
                    put(s, u, kind, e - u->first, n, err) != 0)
                    return -1;
            }
        }
        if (kind == SHARD_MASTER && shard_run_written(s, i, err) != 0)
            return -1;
    }
    return 0;
}

void shard_owned(const struct shard *s, int unit, int param, int64_t *first, int64_t *end)
{
    const struct shard_unit *u = &s->units[unit];
    int64_t start = u->layout.offset[param], stop = u->layout.offset[param + 1];
    int64_t from = u->own_first > start ? u->own_first : start, to = least(u->own_end, stop);
    *first = from < to ? from - start : 0;
    *end = from < to ? to - start : 0;
}

int shard_read(const struct shard *s, enum shard_kind kind, int unit, int param, int64_t first, int64_t n,
               float *out, struct error *err)
{
    if (check_kept(s, kind, false, err) != 0)
        return -1;
    int64_t own_first, own_end;
    shard_owned(s, unit, param, &own_first, &own_end);
    if (kind == SHARD_SUMS || first < own_first || first + n > own_end)
        return error_set(err, ERROR_RUN, "shard", NULL, "this rank cannot read what it does not own");
    if (n == 0)
        return 0;
    const struct shard_unit *u = &s->units[unit];
    const float *state = shard_state_run(s, u, kind) + (u->layout.offset[param] + first - u->first);
    return backend_read(s->backend, out, state, (size_t)n * sizeof *out, err);
}

/* Brings n elements from `at` of the owner's kept range into s->values of rank 0. */
static int fetch_piece(struct shard *s, struct shard_unit *u, enum shard_kind kind, int owner, int64_t at,
                       int64_t n, struct error *err)
{
    size_t bytes = (size_t)n * sizeof(float);
    int rank = comm_rank(s->comm);
    if (rank != 0 && rank != owner)
        return 0;
    if (rank == owner) {
        const float *state = shard_state_run(s, u, kind);
        if (backend_download(s->backend, 0, s->staging, state + at, bytes, err) != 0 ||
            backend_sync(s->backend, 0, err) != 0)
            return -1;
        dtype_convert(DTYPE_F32, s->values, DTYPE_F32, s->staging, n);
    }
    return owner == 0 ? 0 : comm_move(s->comm, owner, 0, s->values, s->values, bytes, err);
}

int shard_fetch(struct shard *s, enum shard_kind kind, int unit, int param,
                int (*sink)(void *context, const float *values, int64_t n, struct error *err), void *context,
                struct error *err)
{
    if (check_kept(s, kind, false, err) != 0)
        return -1;
    struct shard_unit *u = &s->units[unit];
    int ranks = comm_size(s->comm);
    /* At stage 0 every rank has all states; the sums are right where they were added up, at their owner's. */
    bool all_here = s->options.stage == 0 && kind != SHARD_SUMS;
    int64_t e = u->layout.offset[param], end = u->layout.offset[param + 1];
    while (e < end) {
        int owner = all_here ? 0 : (int)(e / flat_layout_run(&u->layout, ranks));
        int64_t first = 0, last = u->layout.elements;
        if (!all_here)
            flat_layout_range(&u->layout, ranks, owner, &first, &last);
        int64_t kept_from = s->options.stage == 0 ? 0 : first;
        int64_t n = least(least(end, last) - e, SHARD_STAGING);
        if (fetch_piece(s, u, kind, owner, e - kept_from, n, err) != 0)
            return -1;
        if (comm_rank(s->comm) == 0 && sink(context, s->values, n, err) != 0)
            return -1;
        e += n;
    }
    return 0;
}
