/* Loss and its gradient, a chunk of LOSS_ROWS tokens at a time.
 *
 * Forward: tiles of logits are made in a thread's own buffer; each leaves a maximum and a sum of exps a
 * row, and the target's logit where it holds the target. These are combined in tile order. Backward:
 * the same tiles become gradients of the logits, kept for one chunk in the product's type; then
 * dx = g w for the chunk, and dw gets one addition a chunk. */
#include "backend/cpu/internal.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { LOSS_ROWS = 256 };

struct loss_layout {
    void *x32, *w32;     /* fp32 copies, where the CPU has no bf16 products */
    void *x_chunk;       /* the last rows, padded */
    float *max, *sum;    /* [rows, tiles] */
    float *target_logit; /* [rows] */
    void *gradient;      /* [rows, vocabulary] of the product's type */
    float *lse;          /* of the chunk, padded; backward only */
    int32_t *targets;    /* of the chunk, padded with -1 */
    char *threads;
    size_t slot, scratch;
    char *product; /* workspace of the products of the backward pass */
};

struct loss_job {
    struct cpu *cpu;
    bool grad;
    enum dtype type; /* of the products */
    int64_t tokens, width, vocabulary, tile, tiles;
    struct gemm *gemm[2]; /* [last tile] of the chunk at hand */
    struct loss_layout l;
    const void *x, *w; /* in the product's type; x of the chunk */
    int64_t rows, padded;
    float scale;
    atomic_int failures;
};

static struct gemm_spec logits_spec(const struct loss_job *job, int64_t rows, bool last)
{
    int64_t columns = last ? job->vocabulary - (job->tiles - 1) * job->tile : job->tile;
    return (struct gemm_spec){
        .m = rows,
        .n = columns,
        .k = job->width,
        .lda = job->width,
        .ldb = job->width,
        .ldc = columns,
        .b_transposed = true,
        .in = job->type,
        .out = DTYPE_F32,
    };
}

static int resolve_chunk(struct loss_job *job, int64_t rows, struct error *err)
{
    for (int last = 0; last < 2; last++) {
        struct gemm_spec spec = logits_spec(job, row_bucket(rows), last);
        if (gemm_find(job->cpu->gemms, &spec, &job->gemm[last], err) != 0 ||
            gemm_build(job->cpu->gemms, job->gemm[last], err) != 0)
            return -1;
    }
    return 0;
}

static struct product input_product(const struct loss_job *job, enum dtype dx_type)
{
    return (struct product){.m = job->rows,
                            .n = job->width,
                            .k = job->vocabulary,
                            .padded = true,
                            .in = job->type,
                            .out = dx_type};
}

static struct product weight_product(const struct loss_job *job)
{
    return (struct product){.m = job->vocabulary,
                            .n = job->width,
                            .k = job->padded,
                            .sum_over_tokens = true,
                            .padded = true,
                            .in = job->type,
                            .out = DTYPE_F32};
}

/* Raises *most to what the backward products of a chunk need. */
static int products_workspace(struct loss_job *job, enum dtype dx_type, int64_t rows, size_t *most,
                              struct error *err)
{
    if (rows == 0)
        return 0;
    job->rows = rows;
    job->padded = row_bucket(rows);
    struct product list[3] = {input_product(job, dx_type), weight_product(job), weight_product(job)};
    list[2].accumulate = true;
    for (int i = 0; i < 3; i++) {
        size_t bytes = 0;
        if (product_workspace(job->cpu, &list[i], &bytes, err) != 0)
            return -1;
        if (bytes > *most)
            *most = bytes;
    }
    return 0;
}

static int lay_out(struct loss_job *job, enum dtype type, struct carve *carve, struct error *err)
{
    struct loss_layout *l = &job->l;
    struct cpu *cpu = job->cpu;
    int64_t most = row_bucket(job->tokens);
    size_t element = (size_t)dtype_bytes(job->type, 1), scratch = 0;
    memset(l, 0, sizeof *l);
    if (job->type != type) {
        l->x32 = carve_take(carve, (size_t)(job->tokens * job->width) * element);
        l->w32 = carve_take(carve, (size_t)(job->vocabulary * job->width) * element);
    }
    l->x_chunk = carve_take(carve, (size_t)(most * job->width) * element);
    l->targets = carve_take(carve, (size_t)most * sizeof(int32_t));
    for (int64_t rows = 16; rows <= most; rows *= 4) /* the buckets */
        for (int last = 0; last < 2; last++) {
            struct gemm_spec spec = logits_spec(job, rows, last);
            struct gemm *g;
            if (gemm_find(cpu->gemms, &spec, &g, err) != 0)
                return -1;
            if (gemm_scratch(g) > scratch)
                scratch = gemm_scratch(g);
        }
    struct carve slot = {0};
    carve_take(&slot, scratch);
    l->scratch = slot.used;
    carve_take(&slot, (size_t)(most * job->tile) * sizeof(float));
    l->slot = slot.used;
    l->threads = carve_take(carve, l->slot * (size_t)cpu->threads);
    if (!job->grad) {
        l->max = carve_take(carve, (size_t)(most * job->tiles) * sizeof(float));
        l->sum = carve_take(carve, (size_t)(most * job->tiles) * sizeof(float));
        l->target_logit = carve_take(carve, (size_t)most * sizeof(float));
        return 0;
    }
    l->lse = carve_take(carve, (size_t)most * sizeof(float));
    l->gradient = carve_take(carve, (size_t)(most * job->vocabulary) * element);
    size_t product = 0;
    if (products_workspace(job, type, min_i64(job->tokens, LOSS_ROWS), &product, err) != 0 ||
        products_workspace(job, type, job->tokens % LOSS_ROWS, &product, err) != 0)
        return -1;
    l->product = carve_take(carve, product);
    return 0;
}

static int start(struct loss_job *job, struct cpu *cpu, const struct op_call *call,
                 const struct signature_sizes *s, struct carve *carve, struct error *err)
{
    *job = (struct loss_job){
        .cpu = cpu,
        .grad = call->op == OP_LOSS_GRAD,
        .type = product_type(cpu, s->compute),
        .tokens = s->of['T'],
        .width = s->of['D'],
        .vocabulary = s->of['V'],
    };
    job->tile = column_tile(job->vocabulary);
    job->tiles = divide_up(job->vocabulary, job->tile);
    return lay_out(job, s->compute, carve, err);
}

int loss_workspace(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s,
                   size_t *bytes, struct error *err)
{
    struct loss_job job;
    struct carve carve = {0};
    if (start(&job, cpu, call, s, &carve, err) != 0)
        return -1;
    int64_t tail = job.tokens % LOSS_ROWS;
    if ((job.tokens >= LOSS_ROWS && resolve_chunk(&job, LOSS_ROWS, err) != 0) ||
        (tail > 0 && resolve_chunk(&job, tail, err) != 0))
        return -1;
    *bytes = carve.used;
    return 0;
}

static void logits_piece(void *context, int64_t piece, int thread)
{
    struct loss_job *job = context;
    const struct row_kernels *kernels = job->cpu->kernels->row;
    struct loss_layout *l = &job->l;
    int64_t first = piece * job->tile, columns = min_i64(job->tile, job->vocabulary - first);
    char *scratch = l->threads + l->slot * (size_t)thread;
    float *logits = (float *)(void *)(scratch + l->scratch);
    const char *w = (const char *)job->w + dtype_bytes(job->type, first * job->width);
    if (gemm_run(job->gemm[piece == job->tiles - 1], thread, job->x, w, NULL, logits, scratch) != 0) {
        atomic_fetch_add(&job->failures, 1);
        return;
    }
    if (job->grad) {
        char *out = (char *)l->gradient + dtype_bytes(job->type, first);
        kernels->softmax_grad(out, job->type, job->vocabulary, logits, columns, l->lse, l->targets,
                              job->scale, first, job->padded, columns);
        return;
    }
    kernels->softmax_statistics(l->max + piece, l->sum + piece, job->tiles, logits, columns, job->rows,
                                columns);
    for (int64_t r = 0; r < job->rows; r++) {
        int64_t column = l->targets[r] - first;
        if (l->targets[r] >= 0 && column >= 0 && column < columns)
            l->target_logit[r] = logits[r * columns + column];
    }
}

/* Points the job at rows first … of x: at x itself, or at a copy padded to a tile's rows. */
static void take_chunk(struct loss_job *job, const void *x, const int32_t *targets, const float *lse,
                       int64_t first)
{
    job->rows = min_i64(LOSS_ROWS, job->tokens - first);
    job->padded = row_bucket(job->rows);
    job->x = (const char *)x + dtype_bytes(job->type, first * job->width);
    if (job->padded > job->rows) {
        size_t bytes = (size_t)dtype_bytes(job->type, job->rows * job->width);
        memcpy(job->l.x_chunk, job->x, bytes);
        memset((char *)job->l.x_chunk + bytes, 0,
               (size_t)dtype_bytes(job->type, (job->padded - job->rows) * job->width));
        job->x = job->l.x_chunk;
    }
    for (int64_t r = 0; r < job->padded; r++) {
        job->l.targets[r] = r < job->rows ? targets[first + r] : -1;
        if (lse)
            job->l.lse[r] = r < job->rows ? lse[first + r] : 0;
    }
}

/* Statistics of all tiles, in tile order, to the loss and lse of each row. */
static void combine(const struct loss_job *job, float *loss, float *lse)
{
    const struct loss_layout *l = &job->l;
    for (int64_t r = 0; r < job->rows; r++) {
        const float *max = l->max + r * job->tiles, *sum = l->sum + r * job->tiles;
        double largest = -INFINITY, total = 0;
        for (int64_t i = 0; i < job->tiles; i++)
            largest = (double)max[i] > largest ? (double)max[i] : largest;
        for (int64_t i = 0; i < job->tiles; i++)
            total += (double)sum[i] * exp((double)max[i] - largest);
        double log_sum = largest + log(total);
        lse[r] = (float)log_sum;
        loss[r] = l->targets[r] < 0 ? 0 : (float)(log_sum - (double)l->target_logit[r]);
    }
}

static int backward_chunk(struct loss_job *job, const struct op_call *call, int64_t first, struct error *err)
{
    struct product dx = input_product(job, call->out[0].type), dw = weight_product(job);
    dx.a = job->l.gradient;
    dx.b = job->w;
    dx.c = operand_at(&call->out[0], first * job->width);
    dw.a = job->l.gradient;
    dw.b = job->x;
    dw.c = call->out[1].data;
    dw.accumulate = first > 0;
    if (product_run(job->cpu, &dx, job->l.product, err) != 0)
        return -1;
    return product_run(job->cpu, &dw, job->l.product, err);
}

int loss_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s, struct error *err)
{
    struct loss_job job;
    struct carve carve = {call->workspace, 0};
    if (start(&job, cpu, call, s, &carve, err) != 0)
        return -1;
    const void *x = call->in[0].data;
    job.w = call->in[1].data;
    if (job.type != s->compute) {
        convert_parallel(cpu, job.l.x32, job.type, x, s->compute, job.tokens * job.width);
        convert_parallel(cpu, job.l.w32, job.type, job.w, s->compute, job.vocabulary * job.width);
        x = job.l.x32;
        job.w = job.l.w32;
    }
    const float *lse = NULL;
    if (job.grad) {
        lse = call->in[3].data;
        job.scale = *(const float *)call->in[4].data;
        if (job.tokens == 0)
            zero_parallel(cpu, call->out[1].data, operand_bytes(&call->out[1]));
    }
    for (int64_t first = 0; first < job.tokens; first += LOSS_ROWS) {
        take_chunk(&job, x, call->in[2].data, lse, first);
        if (resolve_chunk(&job, job.rows, err) != 0)
            return -1;
        pool_run(cpu->pool, job.tiles, logits_piece, &job);
        if (atomic_load(&job.failures) > 0)
            return error_set(err, ERROR_RUN, "oneDNN", NULL, "a matrix product failed");
        if (!job.grad)
            combine(&job, (float *)call->out[0].data + first, (float *)call->out[1].data + first);
        else if (backward_chunk(&job, call, first, err) != 0)
            return -1;
    }
    return 0;
}
