/* Ops of one step: cut in pieces of rows or elements, a kernel for each piece. */
#include "backend/cpu/internal.h"

#include <math.h>
#include <string.h>

enum {
    PIECE_ELEMENTS = 32 * 1024, /* of flat ranges and, about, of blocks of rows; whole blocks of 1,024 */
    SUM_ROWS = 64,              /* rows of one partial sum */
    SUM_COLUMNS = 1024,
    TABLE_ROWS = 1024, /* of an embedding table, in its gradient */
};

struct simple_job {
    const struct cpu *cpu;
    const struct op_call *call;
    const struct signature_sizes *s;
    int64_t total, step; /* rows or elements in all and in a piece */
    float *partial;      /* sums over rows: [pieces, width] */
    int64_t width, pieces;
};

static void flat_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct simple_job *job = context;
    const struct op_call *c = job->call;
    const struct flat_kernels *k = job->cpu->kernels->flat;
    const struct operand *in = c->in, *out = c->out;
    enum dtype type = job->s->compute;
    int64_t at = piece * job->step, n = min_i64(job->step, job->total - at);
    switch (c->op) {
    case OP_ADD:
        k->add(operand_at(&out[0], at), operand_at(&in[0], at), operand_at(&in[1], at), type, n);
        break;
    case OP_SWIGLU:
        k->swiglu(operand_at(&out[0], at), operand_at(&in[0], at), operand_at(&in[1], at), type, n);
        break;
    case OP_SWIGLU_GRAD:
        k->swiglu_grad(operand_at(&out[0], at), operand_at(&out[1], at), operand_at(&in[0], at),
                       operand_at(&in[1], at), operand_at(&in[2], at), type, n);
        break;
    case OP_ACCUMULATE:
        k->accumulate(operand_at(&out[0], at), operand_at(&in[0], at), n, c->attr.first);
        break;
    case OP_SUM_SQUARES:
        k->sum_squares(operand_at(&out[0], at / SUM_SQUARES_BLOCK), operand_at(&in[0], at), n);
        break;
    case OP_ADAMW:
        k->adamw(operand_at(&out[0], at), operand_at(&out[1], at), operand_at(&out[2], at),
                 c->outputs > 3 && operand_present(&out[3]) ? operand_at(&out[3], at) : NULL, out[3].type,
                 operand_at(&in[0], at), n, &c->attr.adamw);
        break;
    default: /* OP_CAST */
        k->convert(operand_at(&out[0], at), out[0].type, operand_at(&in[0], at), in[0].type, n);
        break;
    }
}

static void copy_rows(const struct operand *to, const int32_t *to_row, const struct operand *from,
                      const int32_t *from_row, int64_t first, int64_t rows, int64_t width)
{
    size_t bytes = (size_t)dtype_bytes(to->type, width);
    for (int64_t r = first; r < first + rows; r++)
        memcpy(operand_at(to, (to_row ? to_row[r] : r) * width),
               operand_at(from, (from_row ? from_row[r] : r) * width), bytes);
}

static void rope_table_rows(float *table, const int32_t *positions, const float *inv_freq, int64_t first,
                            int64_t rows, int64_t half)
{
    for (int64_t r = first; r < first + rows; r++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)positions[r] * inv_freq[i];
            table[2 * r * half + i] = cosf(angle);
            table[2 * r * half + half + i] = sinf(angle);
        }
}

static void row_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct simple_job *job = context;
    const struct op_call *c = job->call;
    const struct row_kernels *k = job->cpu->kernels->row;
    const struct operand *in = c->in, *out = c->out;
    const int64_t *of = job->s->of;
    enum dtype type = job->s->compute;
    int64_t first = piece * job->step, rows = min_i64(job->step, job->total - first), width = job->width;
    switch (c->op) {
    case OP_EMBED:
        copy_rows(&out[0], NULL, &in[1], in[0].data, first, rows, width);
        break;
    case OP_GATHER_ROWS:
        copy_rows(&out[0], NULL, &in[0], in[1].data, first, rows, width);
        break;
    case OP_RMSNORM:
        k->rmsnorm(operand_at(&out[0], first * width), operand_at(&out[1], first),
                   operand_at(&in[0], first * width), in[1].data, type, rows, width, c->attr.eps);
        break;
    case OP_RMSNORM_GRAD_INPUT:
        k->rmsnorm_grad_input(operand_at(&out[0], first * width), operand_at(&in[0], first * width),
                              operand_at(&in[1], first * width), in[2].data, operand_at(&in[3], first), type,
                              rows, width);
        break;
    case OP_ROPE_TABLE:
        rope_table_rows(out[0].data, in[0].data, in[1].data, first, rows, of['G']);
        break;
    default: /* OP_ROPE */
        k->rope(operand_at(&out[0], first * width), operand_at(&in[0], first * width),
                operand_at(&in[1], first * of['H']), type, rows, c->attr.heads, of['H'], c->attr.inverse);
        break;
    }
}

/* Rows of the table are owned by pieces; each looks at all tokens, in their order. */
static void embed_grad_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct simple_job *job = context;
    const struct op_call *c = job->call;
    const int32_t *ids = c->in[0].data;
    float *table = c->out[0].data;
    int64_t width = job->width, first = piece * TABLE_ROWS,
            end = min_i64(first + TABLE_ROWS, job->s->of['V']);
    memset(table + first * width, 0, (size_t)((end - first) * width) * sizeof *table);
    for (int64_t t = 0; t < job->s->of['T']; t++)
        if (ids[t] >= first && ids[t] < end)
            job->cpu->kernels->row->add_row(table + ids[t] * width, operand_at(&c->in[1], t * width),
                                            job->s->compute, width);
}

static void partial_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct simple_job *job = context;
    const struct op_call *c = job->call;
    const struct row_kernels *k = job->cpu->kernels->row;
    int64_t first = piece * SUM_ROWS, rows = min_i64(SUM_ROWS, job->total - first), width = job->width;
    float *partial = job->partial + piece * width;
    if (c->op == OP_LINEAR_GRAD_BIAS)
        k->column_sums(partial, operand_at(&c->in[0], first * width), job->s->compute, rows, width);
    else /* OP_RMSNORM_GRAD_WEIGHT */
        k->rmsnorm_grad_weight(partial, operand_at(&c->in[0], first * width),
                               operand_at(&c->in[1], first * width), operand_at(&c->in[2], first),
                               job->s->compute, rows, width);
}

static void combine_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct simple_job *job = context;
    int64_t first = piece * SUM_COLUMNS, n = min_i64(SUM_COLUMNS, job->width - first);
    float *out = (float *)job->call->out[0].data + first;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < job->pieces; i++)
        job->cpu->kernels->flat->accumulate(out, job->partial + i * job->width + first, n, 0);
}

static int64_t sum_width(const struct op_call *call, const struct signature_sizes *s)
{
    return call->op == OP_LINEAR_GRAD_BIAS ? s->of['O'] : s->of['D'];
}

size_t simple_workspace(const struct op_call *call, const struct signature_sizes *s)
{
    if (call->op != OP_LINEAR_GRAD_BIAS && call->op != OP_RMSNORM_GRAD_WEIGHT)
        return 0;
    return (size_t)(divide_up(s->of['T'], SUM_ROWS) * sum_width(call, s)) * sizeof(float);
}

static void run_row_sums(struct simple_job *job)
{
    job->total = job->s->of['T'];
    job->width = sum_width(job->call, job->s);
    job->partial = job->call->workspace;
    job->pieces = divide_up(job->total, SUM_ROWS);
    pool_run(job->cpu->pool, job->pieces, partial_piece, job);
    pool_run(job->cpu->pool, divide_up(job->width, SUM_COLUMNS), combine_piece, job);
}

static void run_by_rows(struct simple_job *job, int64_t rows, int64_t width)
{
    job->total = rows;
    job->width = width;
    job->step = max_i64(1, PIECE_ELEMENTS / max_i64(1, width));
    pool_run(job->cpu->pool, divide_up(rows, job->step), row_piece, job);
}

void simple_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s)
{
    struct simple_job job = {.cpu = cpu, .call = call, .s = s};
    switch (call->op) {
    case OP_EMBED:
    case OP_RMSNORM:
    case OP_RMSNORM_GRAD_INPUT:
        run_by_rows(&job, s->of['T'], s->of['D']);
        break;
    case OP_GATHER_ROWS:
        run_by_rows(&job, s->of['N'], s->of['D']);
        break;
    case OP_ROPE_TABLE:
        run_by_rows(&job, s->of['T'], s->of['H']);
        break;
    case OP_ROPE:
        run_by_rows(&job, s->of['T'], s->of['Q']);
        break;
    case OP_CACHE_WRITE: /* two rows may go to one slot: the last one stays */
        copy_rows(&call->out[0], call->in[1].data, &call->in[0], NULL, 0, s->of['T'], s->of['W']);
        break;
    case OP_EMBED_GRAD:
        job.width = s->of['D'];
        pool_run(cpu->pool, divide_up(s->of['V'], TABLE_ROWS), embed_grad_piece, &job);
        break;
    case OP_LINEAR_GRAD_BIAS:
    case OP_RMSNORM_GRAD_WEIGHT:
        run_row_sums(&job);
        break;
    default:
        job.total = s->of['n'];
        job.step = PIECE_ELEMENTS;
        pool_run(cpu->pool, divide_up(job.total, PIECE_ELEMENTS), flat_piece, &job);
        break;
    }
}
