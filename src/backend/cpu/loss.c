/* Loss and its gradient, LOSS_ROWS tokens at a time: their logits are made once, in fp32.
 *
 * Each row leaves a maximum and a sum of exps for every BLOCK_COLUMNS logits, which are combined in order to
 * the log of the whole sum. For the gradient the logits then become their own gradient, row by row in their
 * own memory (in bf16 it takes the first half of a row), and with it dx = g w and dw += g^T x. So memory
 * grows with the vocabulary, not with the tokens. */
#include "backend/cpu/internal.h"

#include <math.h>

enum {
    LOSS_ROWS = 256,
    BLOCK_COLUMNS = 1024,
    PIECE_ROWS = 8, /* that one thread looks at together */
};

struct loss_job {
    struct cpu *cpu;
    const struct op_call *call;
    bool grad;
    enum dtype type, dx_type;
    int64_t tokens, width, vocabulary, blocks;
    float scale;
    /* Of the chunk of tokens at hand: */
    int64_t rows;
    const void *x;
    const int32_t *targets;
    float *loss;
    /* In the workspace: */
    float *logits;    /* [rows, vocabulary], with the gradient in their place */
    float *max, *sum; /* [rows, blocks] */
    char *product;    /* workspace of products */
};

/* ---- the three products of a chunk ---- */

static struct product logits_product(const struct loss_job *job)
{
    return (struct product){.m = job->rows,
                            .n = job->vocabulary,
                            .k = job->width,
                            .a = job->x,
                            .b = job->call->in[1].data,
                            .c = job->logits,
                            .b_transposed = true,
                            .in = job->type,
                            .out = DTYPE_F32};
}

/* Elements from row to row of the gradient. */
static int64_t gradient_row(const struct loss_job *job)
{
    return job->vocabulary * (int64_t)sizeof(float) / dtype_bytes(job->type, 1);
}

static struct product input_product(const struct loss_job *job, void *dx)
{
    return (struct product){.m = job->rows,
                            .n = job->width,
                            .k = job->vocabulary,
                            .a = job->logits,
                            .a_row = gradient_row(job),
                            .b = job->call->in[1].data,
                            .c = dx,
                            .in = job->type,
                            .out = job->dx_type};
}

static struct product weight_product(const struct loss_job *job, bool accumulate)
{
    return (struct product){.m = job->vocabulary,
                            .n = job->width,
                            .k = job->rows,
                            .a = job->logits,
                            .a_row = gradient_row(job),
                            .b = job->x,
                            .c = job->call->out[1].data,
                            .sum_over_tokens = true,
                            .accumulate = accumulate,
                            .in = job->type,
                            .out = DTYPE_F32};
}

/* Raises *most to what the products of a chunk of so many rows need. */
static int products_workspace(struct loss_job *job, int64_t rows, size_t *most, struct error *err)
{
    job->rows = rows;
    struct product list[] = {logits_product(job), input_product(job, NULL), weight_product(job, false),
                             weight_product(job, true)};
    int count = job->grad ? (int)(sizeof list / sizeof list[0]) : 1;
    for (int i = 0; i < count; i++) {
        size_t bytes = 0;
        if (product_workspace(job->cpu, &list[i], &bytes, err) != 0)
            return -1;
        *most = bytes > *most ? bytes : *most;
    }
    return 0;
}

static int start(struct loss_job *job, struct cpu *cpu, const struct op_call *call,
                 const struct signature_sizes *s, struct carve *carve, struct error *err)
{
    *job = (struct loss_job){
        .cpu = cpu,
        .call = call,
        .grad = call->op == OP_LOSS_GRAD,
        .type = s->compute,
        .dx_type = call->out[0].type,
        .tokens = s->of['T'],
        .width = s->of['D'],
        .vocabulary = s->of['V'],
    };
    job->blocks = divide_up(job->vocabulary, BLOCK_COLUMNS);
    int64_t rows = min_i64(job->tokens, LOSS_ROWS);
    size_t product = 0;
    job->logits = carve_take(carve, (size_t)(rows * job->vocabulary) * sizeof(float));
    job->max = carve_take(carve, (size_t)(rows * job->blocks) * sizeof(float));
    job->sum = carve_take(carve, (size_t)(rows * job->blocks) * sizeof(float));
    /* Chunks are whole, or the last one. */
    if (products_workspace(job, rows, &product, err) != 0 ||
        products_workspace(job, job->tokens % LOSS_ROWS, &product, err) != 0)
        return -1;
    job->product = carve_take(carve, product);
    return 0;
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

/* ---- rows of logits ---- */

/* The log of the sum of exps of a row, its blocks in order. */
static double log_of_sum(const struct loss_job *job, int64_t row)
{
    const float *max = job->max + row * job->blocks, *sum = job->sum + row * job->blocks;
    double largest = -INFINITY, total = 0;
    for (int64_t i = 0; i < job->blocks; i++)
        largest = (double)max[i] > largest ? (double)max[i] : largest;
    for (int64_t i = 0; i < job->blocks; i++)
        total += (double)sum[i] * exp((double)max[i] - largest);
    return largest + log(total);
}

static void finish_row(const struct loss_job *job, int64_t row)
{
    const struct row_kernels *kernels = job->cpu->kernels->row;
    float *logits = job->logits + row * job->vocabulary;
    int32_t target = job->targets[row];
    for (int64_t block = 0; block < job->blocks; block++) {
        int64_t first = block * BLOCK_COLUMNS, place = row * job->blocks + block;
        kernels->softmax_statistics(job->max + place, job->sum + place, 1, logits + first, job->vocabulary, 1,
                                    min_i64(BLOCK_COLUMNS, job->vocabulary - first));
    }
    double log_sum = log_of_sum(job, row);
    job->loss[row] = target < 0 ? 0 : (float)(log_sum - (double)logits[target]);
    if (!job->grad)
        return;
    float lse = (float)log_sum;
    kernels->softmax_grad(logits, job->type, gradient_row(job), logits, job->vocabulary, &lse, &target,
                          job->scale, 0, 1, job->vocabulary);
}

static void rows_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct loss_job *job = context;
    int64_t end = min_i64(piece * PIECE_ROWS + PIECE_ROWS, job->rows);
    for (int64_t row = piece * PIECE_ROWS; row < end; row++)
        finish_row(job, row);
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
    for (int64_t first = 0; first < job.tokens; first += LOSS_ROWS) {
        job.rows = min_i64(LOSS_ROWS, job.tokens - first);
        job.x = operand_at(&call->in[0], first * job.width);
        job.targets = (const int32_t *)call->in[2].data + first;
        job.loss = loss + first;
        struct product logits = logits_product(&job);
        if (product_run(cpu, &logits, job.product, err) != 0)
            return -1;
        pool_run(cpu->pool, divide_up(job.rows, PIECE_ROWS), rows_piece, &job);
        if (!job.grad)
            continue;
        struct product dx = input_product(&job, operand_at(&call->out[0], first * job.width)),
                       dw = weight_product(&job, first > 0);
        if (product_run(cpu, &dx, job.product, err) != 0 || product_run(cpu, &dw, job.product, err) != 0)
            return -1;
    }
    return 0;
}
