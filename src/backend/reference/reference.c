#include "backend/reference/reference.h"

#include "backend/host_memory.h"
#include "backend/reference/kernels.h"
#include "backend/signature.h"

#include <stdlib.h>

static void reference_destroy(struct backend *b)
{
    free(b);
}

/* Doubles that an op needs as scratch. */
static size_t workspace_bytes(const struct op_call *call, const struct signature_sizes *s)
{
    switch (call->op) {
    case OP_ATTENTION:
        return (size_t)s->of['C'] * sizeof(double);
    case OP_ATTENTION_GRAD:
        return (size_t)s->of['H'] * 2 * sizeof(double);
    case OP_LOSS:
        return (size_t)s->of['V'] * sizeof(double);
    case OP_LOSS_GRAD:
        return (size_t)s->of['V'] * (1 + (size_t)s->of['D']) * sizeof(double);
    default:
        return 0;
    }
}

static int reference_prepare(struct backend *b, const struct op_call *call, size_t *workspace,
                             struct error *err)
{
    (void)b;
    struct signature_sizes sizes;
    if (call_check(call, false, &sizes, err) != 0)
        return -1;
    *workspace = workspace_bytes(call, &sizes);
    return 0;
}

static void run_rows(const struct op_call *c, const int64_t *of, enum dtype type)
{
    const struct operand *in = c->in, *out = c->out;
    switch (c->op) {
    case OP_EMBED:
        reference_embed(out[0].data, in[0].data, in[1].data, type, of['T'], of['D']);
        break;
    case OP_EMBED_GRAD:
        reference_embed_grad(out[0].data, in[0].data, in[1].data, type, of['T'], of['V'], of['D']);
        break;
    case OP_GATHER_ROWS:
        reference_gather_rows(out[0].data, in[0].data, in[1].data, type, of['N'], of['D']);
        break;
    case OP_CACHE_WRITE:
        reference_cache_write(out[0].data, in[0].data, in[1].data, type, of['T'], of['W']);
        break;
    case OP_LINEAR:
        reference_linear(out[0].data, out[0].type, in[0].data, in[1].data,
                         c->inputs > 2 && operand_present(&in[2]) ? in[2].data : NULL, type, of['T'], of['I'],
                         of['O']);
        break;
    case OP_LINEAR_GRAD_INPUT:
        reference_linear_grad_input(out[0].data, in[0].data, in[1].data, type, of['T'], of['I'], of['O']);
        break;
    case OP_LINEAR_GRAD_WEIGHT:
        reference_linear_grad_weight(out[0].data, in[0].data, in[1].data, type, of['T'], of['I'], of['O']);
        break;
    default: /* OP_LINEAR_GRAD_BIAS */
        reference_linear_grad_bias(out[0].data, in[0].data, type, of['T'], of['O']);
        break;
    }
}

static void run_norm(const struct op_call *c, const int64_t *of, enum dtype type)
{
    const struct operand *in = c->in, *out = c->out;
    switch (c->op) {
    case OP_RMSNORM:
        reference_rmsnorm(out[0].data, out[1].data, in[0].data, in[1].data, type, of['T'], of['D'],
                          c->attr.eps);
        break;
    case OP_RMSNORM_GRAD_INPUT:
        reference_rmsnorm_grad_input(out[0].data, in[0].data, in[1].data, in[2].data, in[3].data, type,
                                     of['T'], of['D']);
        break;
    case OP_RMSNORM_GRAD_WEIGHT:
        reference_rmsnorm_grad_weight(out[0].data, in[0].data, in[1].data, in[2].data, type, of['T'],
                                      of['D']);
        break;
    case OP_ROPE_TABLE:
        reference_rope_table(out[0].data, in[0].data, in[1].data, of['T'], of['H']);
        break;
    default: /* OP_ROPE */
        reference_rope(out[0].data, in[0].data, in[1].data, type, of['T'], c->attr.heads, of['H'],
                       c->attr.inverse);
        break;
    }
}

static void run_attention_and_loss(const struct op_call *c, const int64_t *of, enum dtype type)
{
    const struct operand *in = c->in, *out = c->out;
    struct attention_shape shape = {
        .tokens = of['T'],
        .rows = of['C'],
        .pieces = of['P'],
        .heads = c->attr.heads,
        .kv_heads = c->attr.kv_heads,
        .head_dim = of['H'],
        .scale = c->attr.scale,
    };
    switch (c->op) {
    case OP_ATTENTION:
        reference_attention(out[0].data, out[1].data, in[0].data, in[1].data, in[2].data, in[3].data, type,
                            &shape, c->workspace);
        break;
    case OP_ATTENTION_GRAD:
        reference_attention_grad(out[0].data, out[1].data, out[2].data, in[0].data, in[1].data, in[2].data,
                                 in[3].data, in[4].data, in[5].data, in[6].data, type, &shape, c->workspace);
        break;
    case OP_LOSS:
        reference_loss(out[0].data, in[0].data, in[1].data, in[2].data, type, of['T'], of['D'], of['V'],
                       c->workspace);
        break;
    default: /* OP_LOSS_GRAD */
        reference_loss_grad(out[0].data, out[1].data, out[2].data, in[0].data, in[1].data, in[2].data,
                            *(const float *)in[3].data, type, of['T'], of['D'], of['V'], c->workspace);
        break;
    }
}

static void run_flat(const struct op_call *c, const int64_t *of, enum dtype type)
{
    const struct operand *in = c->in, *out = c->out;
    switch (c->op) {
    case OP_ADD:
        reference_add(out[0].data, in[0].data, in[1].data, type, of['n']);
        break;
    case OP_SWIGLU:
        reference_swiglu(out[0].data, in[0].data, in[1].data, type, of['n']);
        break;
    case OP_SWIGLU_GRAD:
        reference_swiglu_grad(out[0].data, out[1].data, in[0].data, in[1].data, in[2].data, type, of['n']);
        break;
    case OP_ACCUMULATE:
        reference_accumulate(out[0].data, in[0].data, of['n'], c->attr.first);
        break;
    case OP_SUM_SQUARES:
        reference_sum_squares(out[0].data, in[0].data, of['n']);
        break;
    case OP_ADAMW:
        reference_adamw(out[0].data, out[1].data, out[2].data,
                        c->outputs > 3 && operand_present(&out[3]) ? out[3].data : NULL, type, in[0].data,
                        of['n'], &c->attr.adamw);
        break;
    default: /* OP_CAST */
        dtype_convert(out[0].type, out[0].data, in[0].type, in[0].data, of['n']);
        break;
    }
}

static int reference_run(struct backend *b, int stream, const struct op_call *call, struct error *err)
{
    (void)b;
    (void)stream;
    struct signature_sizes sizes;
    if (call_check(call, true, &sizes, err) != 0 || call_check_indices(call, &sizes, err) != 0)
        return -1;
    if (call->workspace_bytes < workspace_bytes(call, &sizes))
        return error_set(err, ERROR_RUN, op_name(call->op), NULL, "the workspace is too small");
    switch (call->op) {
    case OP_EMBED:
    case OP_EMBED_GRAD:
    case OP_GATHER_ROWS:
    case OP_CACHE_WRITE:
    case OP_LINEAR:
    case OP_LINEAR_GRAD_INPUT:
    case OP_LINEAR_GRAD_WEIGHT:
    case OP_LINEAR_GRAD_BIAS:
        run_rows(call, sizes.of, sizes.compute);
        break;
    case OP_RMSNORM:
    case OP_RMSNORM_GRAD_INPUT:
    case OP_RMSNORM_GRAD_WEIGHT:
    case OP_ROPE_TABLE:
    case OP_ROPE:
        run_norm(call, sizes.of, sizes.compute);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
    case OP_LOSS:
    case OP_LOSS_GRAD:
        run_attention_and_loss(call, sizes.of, sizes.compute);
        break;
    default:
        run_flat(call, sizes.of, sizes.compute);
        break;
    }
    return 0;
}

static int reference_threads_seen(const struct backend *b)
{
    (void)b;
    return 1;
}

static const struct backend_vtable reference_vtable = {
    .name = "reference",
    .destroy = reference_destroy,
    .alloc = host_alloc,
    .free = host_free,
    .adopt = host_adopt,
    .disown = host_disown,
    .upload = host_upload,
    .download = host_download,
    .read = host_read,
    .copy = host_copy,
    .prepare = reference_prepare,
    .run = reference_run,
    .record = host_record,
    .stream_wait = host_stream_wait,
    .event_sync = host_event_sync,
    .sync = host_sync,
    .begin_access = host_access,
    .end_access = host_access,
    .threads_seen = reference_threads_seen,
};

int reference_create(struct backend **out, struct error *err)
{
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return error_memory(err, sizeof *b, "the reference backend");
    b->v = &reference_vtable;
    *out = b;
    return 0;
}
