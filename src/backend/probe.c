/* The probe: every op once, in both compute types, on numbers that are always the same. */
#include "backend/backend.h"
#include "backend/signature.h"
#include "base/file.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

enum { PROBE_SEED = 20, PROBE_TOKENS = 70, MAX_OPERANDS = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

static const struct signature_sizes probe_sizes = {
    .of =
        {
            ['T'] = PROBE_TOKENS,
            ['P'] = 2,
            ['V'] = 601,
            ['C'] = PROBE_TOKENS,
            ['H'] = 24,
            ['G'] = 12,
            ['Q'] = 96,
            ['K'] = 48,
            ['h'] = 4,
            ['N'] = 9,
            ['n'] = 3001,
            ['B'] = 3,
            ['D'] = 100,
            ['I'] = 72,
            ['O'] = 530,
            ['F'] = 40,
            ['W'] = 48,
        },
};

/* Indices that fit every op: below the tokens and the vocabulary; pieces cut the tokens in two. */
static void fill_indices(enum op op, int64_t elements, int32_t *out)
{
    static const int32_t pieces[8] = {0, 41, 0, 41, 41, PROBE_TOKENS - 41, 41, PROBE_TOKENS - 41};
    if (op == OP_ATTENTION || op == OP_ATTENTION_GRAD)
        memcpy(out, pieces, sizeof pieces);
    else
        for (int64_t i = 0; i < elements; i++)
            out[i] = (int32_t)(i * 7 % PROBE_TOKENS);
}

/* Positive numbers stand for second moments and reciprocal deviations too. */
static void fill(const struct op_call *call, int number, const struct operand *x, void *out)
{
    int64_t n = operand_elements(x);
    if (x->type == DTYPE_I32) {
        fill_indices(call->op, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double u = rng_uniform(PROBE_SEED, (uint64_t)call->op * 32 + (uint64_t)number, (uint64_t)i);
        float value = (float)(x->type == DTYPE_F32 ? u : 2 * u - 1);
        if (x->type == DTYPE_BF16)
            ((uint16_t *)out)[i] = f32_to_bf16(value);
        else if (x->type == DTYPE_F32)
            ((float *)out)[i] = call->op == OP_ADAMW || x->ndim == 1 ? value : 2 * value - 1;
        else
            ((double *)out)[i] = 0;
    }
}

static void set_attributes(struct op_call *call)
{
    call->attr = (struct op_attr){
        .eps = 1e-5f,
        .scale = 0.2f,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 24,
        .rows = 601,
        .adamw = {.lr = 1e-3f,
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f,
                  .correction1 = 0.1f,
                  .correction2 = 0.05f,
                  .gradient_scale = 0.5f},
    };
}

/* In-out operands are given as outputs only. */
static void drop_inout_inputs(struct op_call *call)
{
    if (call->op == OP_ACCUMULATE || call->op == OP_ADAMW)
        call->inputs = 1;
}

struct probe {
    struct backend *b;
    void *device[MAX_OPERANDS + 1], *host;
    uint64_t hash;
};

static int place_operand(struct probe *p, struct op_call *call, int number, struct error *err)
{
    struct operand *x = number < call->inputs ? &call->in[number] : &call->out[number - call->inputs];
    size_t bytes = (size_t)operand_bytes(x);
    if (backend_alloc(p->b, MEMORY_DEVICE, bytes, &p->device[number], err) != 0)
        return -1;
    x->data = p->device[number];
    fill(call, number, x, p->host);
    return backend_upload(p->b, 0, x->data, p->host, bytes, err) != 0 || backend_sync(p->b, 0, err) != 0 ? -1
                                                                                                         : 0;
}

static int probe_op(struct probe *p, enum op op, enum dtype compute, struct error *err)
{
    struct signature_sizes sizes = probe_sizes;
    struct op_call call;
    sizes.compute = compute;
    call_from_sizes(&call, op, &sizes, true);
    set_attributes(&call);
    drop_inout_inputs(&call);
    for (int i = 0; i < call.inputs + call.outputs; i++)
        if (place_operand(p, &call, i, err) != 0)
            return -1;
    if (op == OP_CACHE_WRITE)
        call.out[0].data = call.in[2].data;
    if (backend_prepare(p->b, &call, &call.workspace_bytes, err) != 0 ||
        backend_alloc(p->b, MEMORY_DEVICE, call.workspace_bytes, &p->device[MAX_OPERANDS], err) != 0)
        return -1;
    call.workspace = p->device[MAX_OPERANDS];
    if (backend_run(p->b, 0, &call, err) != 0)
        return -1;
    for (int i = 0; i < call.outputs; i++) {
        size_t bytes = (size_t)operand_bytes(&call.out[i]);
        if (backend_download(p->b, 0, p->host, call.out[i].data, bytes, err) != 0 ||
            backend_sync(p->b, 0, err) != 0)
            return -1;
        p->hash = hash_bytes(p->host, bytes, p->hash);
    }
    return 0;
}

int backend_probe(struct backend *b, uint64_t *hash, struct error *err)
{
    size_t largest = 601 * 100 * sizeof(double); /* no operand has more elements */
    struct probe p = {.b = b};
    if (backend_alloc(b, MEMORY_HOST, largest, &p.host, err) != 0)
        return -1;
    int status = 0;
    for (int type = 0; type < 2; type++)
        for (int op = 0; op < OP_COUNT && status == 0; op++) {
            status = probe_op(&p, (enum op)op, type ? DTYPE_BF16 : DTYPE_F32, err);
            for (int i = 0; i <= MAX_OPERANDS; i++) {
                backend_free(b, p.device[i]);
                p.device[i] = NULL;
            }
        }
    backend_free(b, p.host);
    *hash = p.hash;
    return status;
}
