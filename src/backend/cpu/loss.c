/* Loss and its gradient, of some hundred tokens (a chunk) and LOSS_COLUMNS entries of the vocabulary (a
 * block) at a time.
 *
 * Each block of logits leaves a maximum and a sum of exps a row, and the target's logit where it holds the
 * target; these are combined in the order of blocks. For the gradient a chunk's logits stay, in fp32, block
 * after block, so that they are made once. Each block then becomes its gradient g, and while that lies in
 * caches dx += g w for the block's columns, in fp32, and dw += g^T x for the chunk's tokens. So memory does
 * not grow with the tokens beyond a chunk, nor, for the loss alone, with the vocabulary but for a few bytes.
 */
#include "backend/cpu/internal.h"

#include <math.h>
#include <string.h>

enum {
    MOST_ROWS = 1024,
    LOSS_COLUMNS = 1024,
    PIECE_ROWS = 32, /* that one thread looks at together */
};

/* That wait for their gradient: 160 MB of them at most, while a chunk has more than PIECE_ROWS tokens. Small
 * chunks cost time, as each adds to the whole of dw. */
static const int64_t most_logits = 40 << 20;

struct loss_layout {
    float *logits;       /* [rows, columns] of a block; for a gradient of all, one behind the other */
    float *max, *sum;    /* [rows, blocks] */
    float *target_logit; /* [rows] */
    float *lse;          /* [rows]: the log of the sum of exps */
    void *gradient;      /* [rows, columns] of a block, of the compute type; fp32: in the logits' place */
    float *dx;           /* [rows, width]; in its own place where the result is fp32 */
    char *product;       /* workspace of products */
};

struct loss_job {
    struct cpu *cpu;
    bool grad;
    enum dtype type;
    int64_t tokens, width, vocabulary, blocks;
    int64_t chunk; /* tokens of a whole one */
    float scale;
    struct loss_layout l;
    /* Of the chunk of tokens at hand: */
    int64_t rows;
    const void *x;
    const int32_t *targets;
    /* Of the block of columns: */
    int64_t block, first, columns;
    const void *w;
    float *logits;
    void *gradient;
};

static const void *at(const void *data, enum dtype type, int64_t element)
{
    return (const char *)data + dtype_bytes(type, element);
}

/* ---- the three products of a block ---- */

static struct product logits_product(const struct loss_job *job)
{
    return (struct product){.m = job->rows,
                            .n = job->columns,
                            .k = job->width,
                            .a = job->x,
                            .b = job->w,
                            .c = job->logits,
                            .b_transposed = true,
                            .in = job->type,
                            .out = DTYPE_F32};
}

static struct product input_product(const struct loss_job *job)
{
    return (struct product){.m = job->rows,
                            .n = job->width,
                            .k = job->columns,
                            .a = job->gradient,
                            .b = job->w,
                            .c = job->l.dx,
                            .accumulate = job->first > 0,
                            .in = job->type,
                            .out = DTYPE_F32};
}

static struct product weight_product(const struct loss_job *job, bool accumulate, float *dw)
{
    return (struct product){.m = job->columns,
                            .n = job->width,
                            .k = job->rows,
                            .a = job->gradient,
                            .b = job->x,
                            .c = dw,
                            .sum_over_tokens = true,
                            .accumulate = accumulate,
                            .in = job->type,
                            .out = DTYPE_F32};
}

/* Raises *most to what the products of the job's rows and columns need. */
static int products_workspace(struct loss_job *job, size_t *most, struct error *err)
{
    struct product list[] = {logits_product(job), input_product(job), input_product(job),
                             weight_product(job, false, NULL), weight_product(job, true, NULL)};
    int count = job->grad ? (int)(sizeof list / sizeof list[0]) : 1;
    list[2].accumulate = true;
    for (int i = 0; i < count; i++) {
        size_t bytes = 0;
        if (product_workspace(job->cpu, &list[i], &bytes, err) != 0)
            return -1;
        *most = bytes > *most ? bytes : *most;
    }
    return 0;
}

static void choose_block(struct loss_job *job, int64_t block)
{
    job->block = block;
    job->first = block * LOSS_COLUMNS;
    job->columns = min_i64(LOSS_COLUMNS, job->vocabulary - job->first);
    job->logits = job->l.logits + (job->grad ? job->rows * job->first : 0);
    job->gradient = job->type == DTYPE_F32 ? job->logits : job->l.gradient;
}

/* A power of two, and a matter of the vocabulary alone: a sum over tokens has the same parts in every call.
 */
static int64_t rows_of_chunk(int64_t vocabulary)
{
    int64_t rows = MOST_ROWS;
    while (rows > PIECE_ROWS && rows * vocabulary > most_logits)
        rows /= 2;
    return rows;
}

static int lay_out(struct loss_job *job, enum dtype dx_type, struct carve *carve, struct error *err)
{
    struct loss_layout *l = &job->l;
    int64_t rows = min_i64(job->tokens, job->chunk), columns = min_i64(job->vocabulary, LOSS_COLUMNS);
    size_t product = 0;
    l->logits = carve_take(carve, (size_t)(rows * (job->grad ? job->vocabulary : columns)) * sizeof(float));
    l->max = carve_take(carve, (size_t)(rows * job->blocks) * sizeof(float));
    l->sum = carve_take(carve, (size_t)(rows * job->blocks) * sizeof(float));
    l->target_logit = carve_take(carve, (size_t)rows * sizeof(float));
    l->lse = carve_take(carve, (size_t)rows * sizeof(float));
    if (job->grad && job->type != DTYPE_F32)
        l->gradient = carve_take(carve, (size_t)dtype_bytes(job->type, rows * columns));
    if (job->grad && dx_type != DTYPE_F32)
        l->dx = carve_take(carve, (size_t)(rows * job->width) * sizeof(float));
    /* Blocks are whole or the last one, chunks of tokens too. */
    for (int i = 0; i < 4; i++) {
        choose_block(job, i & 1 ? job->blocks - 1 : 0);
        job->rows = i & 2 && job->tokens > job->chunk ? job->tokens % job->chunk : rows;
        if (products_workspace(job, &product, err) != 0)
            return -1;
    }
    l->product = carve_take(carve, product);
    return 0;
}

static int start(struct loss_job *job, struct cpu *cpu, const struct op_call *call,
                 const struct signature_sizes *s, struct carve *carve, struct error *err)
{
    *job = (struct loss_job){
        .cpu = cpu,
        .grad = call->op == OP_LOSS_GRAD,
        .type = s->compute,
        .tokens = s->of['T'],
        .width = s->of['D'],
        .vocabulary = s->of['V'],
    };
    job->blocks = divide_up(job->vocabulary, LOSS_COLUMNS);
    job->chunk = job->grad ? rows_of_chunk(job->vocabulary) : MOST_ROWS;
    return lay_out(job, call->out[0].type, carve, err);
}

int loss_workspace(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s,
                   size_t *bytes, struct error *err)
{
    struct loss_job job;
    struct carve carve = {0};
    if (start(&job, cpu, call, s, &carve, err) != 0)
        return -1;
    *bytes = carve.used;
    return 0;
}

/* ---- loss ---- */

static void statistics_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct loss_job *job = context;
    const struct loss_layout *l = &job->l;
    int64_t first = piece * PIECE_ROWS, rows = min_i64(PIECE_ROWS, job->rows - first);
    const float *logits = job->logits + first * job->columns;
    int64_t place = first * job->blocks + job->block;
    job->cpu->kernels->row->softmax_statistics(l->max + place, l->sum + place, job->blocks, logits,
                                               job->columns, rows, job->columns);
    for (int64_t r = first; r < first + rows; r++) {
        int64_t column = job->targets[r] - job->first;
        if (job->targets[r] >= 0 && column >= 0 && column < job->columns)
            l->target_logit[r] = job->logits[r * job->columns + column];
    }
}

/* Statistics of all blocks, in their order, to the loss and lse of each row. */
static void combine(const struct loss_job *job, float *loss)
{
    const struct loss_layout *l = &job->l;
    for (int64_t r = 0; r < job->rows; r++) {
        const float *max = l->max + r * job->blocks, *sum = l->sum + r * job->blocks;
        double largest = -INFINITY, total = 0;
        for (int64_t i = 0; i < job->blocks; i++)
            largest = (double)max[i] > largest ? (double)max[i] : largest;
        for (int64_t i = 0; i < job->blocks; i++)
            total += (double)sum[i] * exp((double)max[i] - largest);
        double log_sum = largest + log(total);
        l->lse[r] = (float)log_sum;
        loss[r] = job->targets[r] < 0 ? 0 : (float)(log_sum - (double)l->target_logit[r]);
    }
}

/* The losses of the chunk, and what its gradient needs. */
static int run_loss(struct loss_job *job, const void *w, float *loss, struct error *err)
{
    for (int64_t block = 0; block < job->blocks; block++) {
        choose_block(job, block);
        job->w = at(w, job->type, job->first * job->width);
        struct product logits = logits_product(job);
        if (product_run(job->cpu, &logits, job->l.product, err) != 0)
            return -1;
        pool_run(job->cpu->pool, divide_up(job->rows, PIECE_ROWS), statistics_piece, job);
    }
    combine(job, loss);
    return 0;
}

/* ---- gradient ---- */

static void gradient_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct loss_job *job = context;
    int64_t first = piece * PIECE_ROWS, rows = min_i64(PIECE_ROWS, job->rows - first);
    char *out = (char *)job->gradient + dtype_bytes(job->type, first * job->columns);
    job->cpu->kernels->row->softmax_grad(out, job->type, job->columns, job->logits + first * job->columns,
                                         job->columns, job->l.lse + first, job->targets + first, job->scale,
                                         job->first, rows, job->columns);
}

static int run_gradient(struct loss_job *job, const void *w, float *dw, bool first_chunk, struct error *err)
{
    for (int64_t block = 0; block < job->blocks; block++) {
        choose_block(job, block);
        job->w = at(w, job->type, job->first * job->width);
        pool_run(job->cpu->pool, divide_up(job->rows, PIECE_ROWS), gradient_piece, job);
        struct product dx = input_product(job),
                       weight = weight_product(job, !first_chunk, dw + job->first * job->width);
        if (product_run(job->cpu, &dx, job->l.product, err) != 0 ||
            product_run(job->cpu, &weight, job->l.product, err) != 0)
            return -1;
    }
    return 0;
}

/* Gradients of the chunk that begins with token `first`. */
static int put_gradients(struct loss_job *job, const struct op_call *call, int64_t first, struct error *err)
{
    const struct operand *dx = &call->out[0];
    void *place = operand_at(dx, first * job->width);
    if (dx->type == DTYPE_F32)
        job->l.dx = place;
    if (run_gradient(job, call->in[1].data, call->out[1].data, first == 0, err) != 0)
        return -1;
    if (dx->type != DTYPE_F32)
        convert_parallel(job->cpu, place, dx->type, job->l.dx, DTYPE_F32, job->rows * job->width);
    return 0;
}

int loss_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s, struct error *err)
{
    struct loss_job job;
    struct carve carve = {call->workspace, 0};
    if (start(&job, cpu, call, s, &carve, err) != 0)
        return -1;
    if (job.grad)
        job.scale = *(const float *)call->in[3].data;
    if (job.grad && job.tokens == 0)
        zero_parallel(cpu, call->out[1].data, operand_bytes(&call->out[1]));
    float *loss = call->out[job.grad ? 2 : 0].data;
    for (int64_t first = 0; first < job.tokens; first += job.chunk) {
        job.rows = min_i64(job.chunk, job.tokens - first);
        job.x = operand_at(&call->in[0], first * job.width);
        job.targets = (const int32_t *)call->in[2].data + first;
        if (run_loss(&job, call->in[1].data, loss + first, err) != 0)
            return -1;
        if (job.grad && put_gradients(&job, call, first, err) != 0)
            return -1;
    }
    return 0;
}
