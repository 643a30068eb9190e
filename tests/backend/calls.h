/* Calls of ops for tests: operands in host memory, filled with numbers that always are the same, and run
 * on any backend.
 *
 *     struct trial t;
 *     trial_make(&t, OP_LINEAR, &(struct trial_shape){.tokens = 17, .width = 15, .out = 7}, DTYPE_F32);
 *     trial_complete(reference, &t);   // inputs that are another op's results (lse of attention, rstd, o)
 *     struct result r;
 *     trial_run(backend, &t, &r);      // uploads, runs, downloads; checks the workspace's borders
 *     ... r.out[0] ...
 *     result_free(&r);
 *     trial_free(&t); */
#ifndef TERCET_TESTS_BACKEND_CALLS_H
#define TERCET_TESTS_BACKEND_CALLS_H

#include "support/cmocka.h"

#include "backend/backend.h"
#include "backend/signature.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 6, CANARY = 4096 };

struct trial_shape {
    int64_t tokens, width, out, vocabulary, heads, kv_heads, head_dim, rows, picked, elements;
    int32_t pieces[MAX_PIECES][4];
    int64_t piece_count;
    bool optional, inverse, first, fp32_result;
};

struct trial {
    struct op_call call; /* data of operands point to host memory here */
};

struct result {
    struct operand out[OP_MAX_OUTPUTS];
    int outputs;
};

static inline struct backend *test_backend_with(const char *name, const char *isa, const char *products,
                                                int threads)
{
    struct backend *b;
    struct error err = {0};
    struct backend_options options = {.name = name, .isa = isa, .products = products, .threads = threads};
    if (backend_create(&b, &options, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    return b;
}

static inline struct backend *test_backend(const char *name, const char *isa, int threads)
{
    return test_backend_with(name, isa, NULL, threads);
}

static inline double operand_get(const struct operand *x, int64_t i)
{
    switch (x->type) {
    case DTYPE_F32:
        return (double)((const float *)x->data)[i];
    case DTYPE_BF16:
        return (double)bf16_to_f32(((const uint16_t *)x->data)[i]);
    case DTYPE_F64:
        return ((const double *)x->data)[i];
    case DTYPE_I32:
        return ((const int32_t *)x->data)[i];
    default:
        fail();
        return 0;
    }
}

static inline void operand_set(struct operand *x, int64_t i, double value)
{
    if (x->type == DTYPE_F32)
        ((float *)x->data)[i] = (float)value;
    else if (x->type == DTYPE_BF16)
        ((uint16_t *)x->data)[i] = f32_to_bf16((float)value);
    else if (x->type == DTYPE_F64)
        ((double *)x->data)[i] = value;
    else
        ((int32_t *)x->data)[i] = (int32_t)value;
}

static inline void *test_memory(size_t bytes)
{
    void *memory = calloc(1, bytes + 64);
    assert_non_null(memory);
    return memory;
}

/* Uniform in [-1, 1). */
static inline double test_number(uint64_t stream, int64_t i)
{
    return 2 * rng_uniform(7, stream, (uint64_t)i) - 1;
}

static inline int32_t test_index(enum op op, int64_t i, const struct trial_shape *s)
{
    switch (op) {
    case OP_EMBED:
    case OP_EMBED_GRAD:
        return (int32_t)rng_below(7, 100, (uint64_t)i, (uint64_t)s->vocabulary);
    case OP_LOSS:
    case OP_LOSS_GRAD: /* some tokens have no target */
        return i % 5 == 3 ? -1 : (int32_t)rng_below(7, 101, (uint64_t)i, (uint64_t)s->vocabulary);
    case OP_GATHER_ROWS:
        return (int32_t)rng_below(7, 102, (uint64_t)i, (uint64_t)s->tokens);
    case OP_CACHE_WRITE: /* distinct slots */
        return (int32_t)(s->rows - 1 - i);
    default: /* positions */
        return (int32_t)(3 * i);
    }
}

static inline void fill_operand(struct trial *t, int number, struct operand *x, const struct trial_shape *s)
{
    int64_t n = operand_elements(x);
    enum op op = t->call.op;
    bool pieces = (op == OP_ATTENTION && number == 3) || (op == OP_ATTENTION_GRAD && number == 6);
    for (int64_t i = 0; i < n; i++) {
        double value = test_number((uint64_t)number, i);
        if (pieces)
            value = s->pieces[i / 4][i % 4];
        else if (x->type == DTYPE_I32)
            value = test_index(op, i, s);
        else if (op == OP_ADAMW && number >= 2)
            value = fabs(value); /* second moments are positive */
        else if (op == OP_ROPE_TABLE)
            value = pow(10000, -(double)i / (double)n);
        operand_set(x, i, value);
    }
}

/* Makes a call of the op with host operands. In-out operands are outputs only, filled as well. */
static inline void trial_make(struct trial *t, enum op op, const struct trial_shape *s, enum dtype compute)
{
    struct signature_sizes sizes = {.compute = compute};
    int64_t *of = sizes.of;
    of['T'] = s->tokens;
    of['P'] = s->piece_count;
    of['V'] = s->vocabulary;
    of['C'] = s->rows ? s->rows : s->tokens;
    of['H'] = s->head_dim;
    of['G'] = s->head_dim / 2;
    of['Q'] = s->heads * s->head_dim;
    of['K'] = s->kv_heads * s->head_dim;
    of['h'] = s->heads;
    of['N'] = s->picked;
    of['n'] = s->elements;
    of['B'] = (s->elements + 1023) / 1024;
    of['D'] = of['I'] = of['F'] = of['W'] = s->width;
    of['O'] = s->out;
    call_from_sizes(&t->call, op, &sizes, s->optional);
    t->call.attr = (struct op_attr){
        .eps = 1e-5f,
        .scale = s->head_dim ? (float)(1 / sqrt((double)s->head_dim)) : 0,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .rows = s->vocabulary,
        .inverse = s->inverse,
        .first = s->first,
        .adamw = {.lr = 1e-3f,
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f,
                  .correction1 = 0.271f,
                  .correction2 = 0.142625f,
                  .gradient_scale = 0.5f},
    };
    if (op == OP_ADAMW || op == OP_ACCUMULATE)
        t->call.inputs = 1;
    if (op == OP_CAST)
        t->call.out[0].type = compute == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
    if (op == OP_LINEAR && s->fp32_result)
        t->call.out[0].type = DTYPE_F32;
    for (int i = 0; i < t->call.inputs; i++) {
        if (!operand_present(&t->call.in[i]))
            continue;
        t->call.in[i].data = test_memory((size_t)operand_bytes(&t->call.in[i]));
        fill_operand(t, i, &t->call.in[i], s);
    }
    for (int i = 0; i < t->call.outputs; i++) {
        if (!operand_present(&t->call.out[i]))
            continue;
        t->call.out[i].data = test_memory((size_t)operand_bytes(&t->call.out[i]));
        if (op_output_is_inout(&t->call, i))
            fill_operand(t, i + 1, &t->call.out[i], s);
    }
    if (op == OP_CACHE_WRITE)
        memcpy(t->call.in[2].data, t->call.out[0].data, (size_t)operand_bytes(&t->call.out[0]));
}

static inline void trial_free(struct trial *t)
{
    for (int i = 0; i < t->call.inputs; i++)
        free(t->call.in[i].data);
    for (int i = 0; i < t->call.outputs; i++)
        free(t->call.out[i].data);
}

static inline void result_free(struct result *r)
{
    for (int i = 0; i < r->outputs; i++)
        free(r->out[i].data);
}

static inline void must(int status, const struct error *err)
{
    if (status != 0)
        fail_msg("%s: %s", err->where, err->what);
}

/* A call whose operands are in device memory: device[] in order of operands, then the workspace, which has
 * CANARY bytes behind it that must not change. */
struct placed {
    struct op_call call;
    void *device[OP_MAX_INPUTS + OP_MAX_OUTPUTS + 1];
};

static inline void place(struct backend *b, const struct trial *t, struct placed *p)
{
    struct error err = {0};
    memset(p, 0, sizeof *p);
    p->call = t->call;
    for (int i = 0; i < t->call.inputs + t->call.outputs; i++) {
        bool input = i < t->call.inputs;
        struct operand *x = input ? &p->call.in[i] : &p->call.out[i - t->call.inputs];
        if (!operand_present(x))
            continue;
        size_t bytes = (size_t)operand_bytes(x);
        must(backend_alloc(b, MEMORY_DEVICE, bytes, &p->device[i], &err), &err);
        must(backend_upload(b, 0, p->device[i], x->data, bytes, &err), &err);
        must(backend_sync(b, 0, &err), &err);
        x->data = p->device[i];
    }
    if (p->call.op == OP_CACHE_WRITE)
        p->call.out[0].data = p->call.in[2].data;
    must(backend_prepare(b, &p->call, &p->call.workspace_bytes, &err), &err);
    size_t bytes = p->call.workspace_bytes + CANARY;
    void **workspace = &p->device[t->call.inputs + t->call.outputs];
    unsigned char *canary = test_memory(bytes);
    memset(canary, 0xA5, bytes);
    must(backend_alloc(b, MEMORY_DEVICE, bytes, workspace, &err), &err);
    must(backend_upload(b, 0, *workspace, canary, bytes, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    p->call.workspace = *workspace;
    free(canary);
}

static inline void check_canary(struct backend *b, const struct placed *p)
{
    unsigned char canary[CANARY];
    struct error err = {0};
    const char *end = (const char *)p->call.workspace + p->call.workspace_bytes;
    must(backend_download(b, 0, canary, end, CANARY, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    for (int i = 0; i < CANARY; i++)
        if (canary[i] != 0xA5)
            fail_msg("%s wrote %d bytes behind its workspace", op_name(p->call.op), i + 1);
}

static inline void take_outputs(struct backend *b, const struct placed *p, struct result *r)
{
    struct error err = {0};
    r->outputs = p->call.outputs;
    for (int i = 0; i < p->call.outputs; i++) {
        r->out[i] = p->call.out[i];
        if (!operand_present(&r->out[i]))
            continue;
        size_t bytes = (size_t)operand_bytes(&r->out[i]);
        r->out[i].data = test_memory(bytes);
        must(backend_download(b, 0, r->out[i].data, p->call.out[i].data, bytes, &err), &err);
    }
    must(backend_sync(b, 0, &err), &err);
}

static inline void unplace(struct backend *b, struct placed *p)
{
    for (int i = 0; i <= OP_MAX_INPUTS + OP_MAX_OUTPUTS; i++)
        backend_free(b, p->device[i]);
}

static inline void trial_run(struct backend *b, const struct trial *t, struct result *r)
{
    struct placed p;
    struct error err = {0};
    place(b, t, &p);
    must(backend_run(b, 0, &p.call, &err), &err);
    take_outputs(b, &p, r);
    check_canary(b, &p);
    unplace(b, &p);
}

/* Output `from` of op on these inputs becomes input `to` of the trial. */
static inline void borrow(struct backend *reference, struct trial *t, enum op op, const int *inputs,
                          int count, int from, int to)
{
    struct trial forward = {.call = {.op = op, .inputs = count, .attr = t->call.attr}};
    for (int i = 0; i < count; i++)
        forward.call.in[i] = t->call.in[inputs[i]];
    const struct operand *x = &t->call.in[inputs[0]];
    forward.call.outputs = 2;
    forward.call.out[0] = *x;
    forward.call.out[1] = (struct operand){.type = DTYPE_F32, .ndim = 1, .dim = {x->dim[0]}};
    if (op == OP_ATTENTION) {
        forward.call.out[1].ndim = 2;
        forward.call.out[1].dim[1] = t->call.attr.heads;
    }
    struct result r;
    forward.call.out[0].data = test_memory((size_t)operand_bytes(&forward.call.out[0]));
    forward.call.out[1].data = test_memory((size_t)operand_bytes(&forward.call.out[1]));
    trial_run(reference, &forward, &r);
    memcpy(t->call.in[to].data, r.out[from].data, (size_t)operand_bytes(&r.out[from]));
    free(forward.call.out[0].data);
    free(forward.call.out[1].data);
    result_free(&r);
}

/* Gradients take results of the forward op: those of the reference. */
static inline void trial_complete(struct backend *reference, struct trial *t)
{
    switch (t->call.op) {
    case OP_RMSNORM_GRAD_INPUT:
        borrow(reference, t, OP_RMSNORM, (int[]){1, 2}, 2, 1, 3);
        break;
    case OP_RMSNORM_GRAD_WEIGHT: { /* any weight will do for rstd */
        struct trial with_weight = *t;
        with_weight.call.in[3] = (struct operand){.type = t->call.in[1].type, .ndim = 1};
        with_weight.call.in[3].dim[0] = t->call.in[1].dim[1];
        with_weight.call.in[3].data = test_memory((size_t)operand_bytes(&with_weight.call.in[3]));
        borrow(reference, &with_weight, OP_RMSNORM, (int[]){1, 3}, 2, 1, 2);
        free(with_weight.call.in[3].data);
        break;
    }
    case OP_ATTENTION_GRAD:
        borrow(reference, t, OP_ATTENTION, (int[]){1, 2, 3, 6}, 4, 0, 4);
        borrow(reference, t, OP_ATTENTION, (int[]){1, 2, 3, 6}, 4, 1, 5);
        break;
    default:
        break;
    }
}

static inline void assert_same_bits(const struct result *a, const struct result *b, const char *what)
{
    assert_int_equal(a->outputs, b->outputs);
    for (int i = 0; i < a->outputs; i++) {
        if (!operand_present(&a->out[i]))
            continue;
        size_t bytes = (size_t)operand_bytes(&a->out[i]);
        if (memcmp(a->out[i].data, b->out[i].data, bytes) != 0)
            fail_msg("%s: output %d has other bits", what, i);
    }
}

/* ---- the shapes that ops are tried on ---- */
struct named_trial {
    enum op op;
    struct trial_shape shape;
};

#endif
