#include "backend/cpu/internal.h"

#include <math.h>
#include <string.h>

/* A task is one block (or one tile, in the gradient) of one piece, for one key head; tasks are numbered piece
 * by piece. */
struct attention_job {
    struct cpu *cpu;
    struct attention_data data;
    const int32_t *pieces;
    int64_t piece_count, tokens;
    int64_t *first_task; /* [piece_count + 1] */
    float *delta, *buffers;
    int64_t buffer;   /* floats of a thread's buffer */
    int64_t block;    /* queries of a task */
    int64_t diagonal; /* gradient: query block minus key block of the tiles at hand */
};

static void lay_out(struct attention_job *job, const struct cpu *cpu, const struct op_call *call,
                    const struct signature_sizes *s, struct carve *carve)
{
    int64_t tokens = s->of['T'], heads = call->attr.heads, kv_heads = call->attr.kv_heads;
    bool gradient = call->op == OP_ATTENTION_GRAD;
    job->buffer = divide_up(attention_buffer(s->of['H'], heads / kv_heads, gradient), 16) * 16;
    job->first_task = carve_take(carve, (size_t)(s->of['P'] + 1) * sizeof(int64_t));
    if (gradient) {
        int64_t keys = tokens * kv_heads * attention_depth(s->of['H']);
        job->delta = carve_take(carve, (size_t)(tokens * heads) * sizeof(float));
        job->data.dq_sums = carve_take(carve, (size_t)(keys * (heads / kv_heads)) * sizeof(float));
        job->data.dk_sums = carve_take(carve, (size_t)keys * sizeof(float));
        job->data.dv_sums = carve_take(carve, (size_t)keys * sizeof(float));
    }
    job->buffers = carve_take(carve, (size_t)(job->buffer * cpu->threads) * sizeof(float));
}

size_t attention_workspace(const struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s)
{
    struct attention_job job = {0};
    struct carve carve = {0};
    lay_out(&job, cpu, call, s, &carve);
    return carve.used;
}

/* The piece that a task is of, and the task's number within it. */
static struct attention_piece find_piece(const struct attention_job *job, int64_t task, int64_t *local)
{
    int64_t low = 0, high = job->piece_count; /* first_task[low] <= task < first_task[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (job->first_task[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    const int32_t *row = job->pieces + 4 * low;
    *local = task - job->first_task[low];
    return (struct attention_piece){row[0], row[1], row[2], row[3]};
}

static void forward_task(void *context, int64_t task, int thread)
{
    struct attention_job *job = context;
    int64_t local, heads = job->data.kv_heads;
    struct attention_piece piece = find_piece(job, task, &local);
    /* The longest blocks, those at the end of a piece, come first: threads then finish together. */
    int64_t block = divide_up(piece.q_len, job->block) - 1 - local / heads;
    job->cpu->kernels->attention->forward(&job->data, &piece, local % heads, block * job->block,
                                          job->buffers + thread * job->buffer);
}

static void tile_task(void *context, int64_t task, int thread)
{
    struct attention_job *job = context;
    int64_t local, heads = job->data.kv_heads;
    struct attention_piece piece = find_piece(job, task, &local);
    job->cpu->kernels->attention->grad_tile(&job->data, &piece, local % heads, local / heads + job->diagonal,
                                            local / heads, job->buffers + thread * job->buffer);
}

/* Numbers the tasks: for each piece its blocks but the first `diagonal`, for each key head. Returns how many.
 */
static int64_t number_tasks(struct attention_job *job)
{
    int64_t tasks = 0;
    for (int64_t i = 0; i < job->piece_count; i++) {
        job->first_task[i] = tasks;
        tasks +=
            max_i64(0, divide_up(job->pieces[4 * i + 1], job->block) - job->diagonal) * job->data.kv_heads;
    }
    job->first_task[job->piece_count] = tasks;
    return tasks;
}

enum { DELTA_ROWS = 64 };

static void delta_task(void *context, int64_t task, int thread)
{
    (void)thread;
    struct attention_job *job = context;
    struct attention_data *d = &job->data;
    int64_t first = task * DELTA_ROWS, rows = min_i64(DELTA_ROWS, job->tokens - first);
    int64_t at = dtype_bytes(d->type, first * d->heads * d->head_dim);
    job->cpu->kernels->attention->delta(job->delta + first * d->heads, (const char *)d->dout + at,
                                        (const char *)d->o + at, d->type, rows, d->heads, d->head_dim);
}

/* Whether some token is in no piece: then outputs are cleared first. Pieces stand in token order as a rule;
 * where they do not, clearing does no harm. */
static bool has_padding(const struct attention_job *job)
{
    int64_t next = 0;
    for (int64_t i = 0; i < job->piece_count; i++) {
        if (job->pieces[4 * i + 1] == 0)
            continue;
        if (job->pieces[4 * i] != next)
            return true;
        next += job->pieces[4 * i + 1];
    }
    return next != job->tokens;
}

static void run_forward(struct attention_job *job, const struct op_call *call)
{
    if (has_padding(job)) {
        zero_parallel(job->cpu, call->out[0].data, operand_bytes(&call->out[0]));
        for (int64_t i = 0; i < job->tokens * job->data.heads; i++)
            job->data.lse[i] = INFINITY;
    }
    job->block = attention_queries(job->data.heads / job->data.kv_heads);
    pool_run(job->cpu->pool, number_tasks(job), forward_task, job);
}

static void run_gradient(struct attention_job *job, const struct op_call *call)
{
    if (has_padding(job))
        for (int i = 0; i < 3; i++)
            zero_parallel(job->cpu, call->out[i].data, operand_bytes(&call->out[i]));
    pool_run(job->cpu->pool, divide_up(job->tokens, DELTA_ROWS), delta_task, job);
    int64_t tasks;
    job->block = ATTENTION_KEYS;
    for (job->diagonal = 0; (tasks = number_tasks(job)) > 0; job->diagonal++)
        pool_run(job->cpu->pool, tasks, tile_task, job);
}

void attention_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s)
{
    struct attention_job job = {
        .cpu = cpu,
        .piece_count = s->of['P'],
        .tokens = s->of['T'],
        .data =
            {
                .type = s->compute,
                .tokens = s->of['T'],
                .heads = call->attr.heads,
                .kv_heads = call->attr.kv_heads,
                .head_dim = s->of['H'],
                .scale = call->attr.scale,
            },
    };
    struct carve carve = {call->workspace, 0};
    lay_out(&job, cpu, call, s, &carve);
    struct attention_data *d = &job.data;
    if (call->op == OP_ATTENTION) {
        d->q = call->in[0].data;
        d->k = call->in[1].data;
        d->v = call->in[2].data;
        job.pieces = call->in[3].data;
        d->o = call->out[0].data;
        d->lse = call->out[1].data;
        run_forward(&job, call);
        return;
    }
    d->dout = call->in[0].data;
    d->q = call->in[1].data;
    d->k = call->in[2].data;
    d->v = call->in[3].data;
    d->o = call->in[4].data;
    d->lse = call->in[5].data;
    job.pieces = call->in[6].data;
    d->dq = call->out[0].data;
    d->dk = call->out[1].data;
    d->dv = call->out[2].data;
    d->delta = job.delta;
    run_gradient(&job, call);
}
