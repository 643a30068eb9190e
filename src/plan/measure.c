#include "plan/measure.h"

#include "base/clock.h"
#include "base/pool.h"

#include <stdlib.h>

#include <string.h>

/* ---- products ---- */

enum { WIDTH = 2048, WIDE = 4096, FEW_THREADS = 8, ROWS = 256, LEAST_ROWS = 1024, RUNS = 64 };
#define SECONDS 0.25 /* of one product */

struct layer {
    int64_t tokens, in, out;
    enum dtype type;
    void *x, *w, *y; /* [tokens,in], [out,in], [tokens,out]: operands and results by turns */
    float *dw;       /* [out,in] */
    void *workspace;
    size_t workspace_bytes;
};

/* Rows in equal shares for the threads, columns in enough tiles for all of them. */
static struct layer layer_for(int threads, enum dtype type)
{
    int64_t rows = (int64_t)ROWS * threads;
    int64_t times = (LEAST_ROWS + rows - 1) / rows;
    return (struct layer){
        .tokens = rows * times, .in = WIDTH, .out = threads > FEW_THREADS ? WIDE : WIDTH, .type = type};
}

static struct operand matrix(void *data, enum dtype type, int64_t rows, int64_t columns)
{
    return (struct operand){.data = data, .type = type, .ndim = 2, .dim = {rows, columns}};
}

static struct op_call call_of(const struct layer *l, enum op op)
{
    struct operand x = matrix(l->x, l->type, l->tokens, l->in);
    struct operand w = matrix(l->w, l->type, l->out, l->in);
    struct operand y = matrix(l->y, l->type, l->tokens, l->out);
    struct op_call call = {.op = op, .inputs = 2, .outputs = 1};
    call.workspace = l->workspace;
    call.workspace_bytes = l->workspace_bytes;
    if (op == OP_LINEAR) {
        call.in[0] = x;
        call.in[1] = w;
        call.out[0] = y;
    } else if (op == OP_LINEAR_GRAD_INPUT) {
        call.in[0] = y;
        call.in[1] = w;
        call.out[0] = x;
    } else {
        call.in[0] = y;
        call.in[1] = x;
        call.out[0] = matrix(l->dw, DTYPE_F32, l->out, l->in);
    }
    return call;
}

static const enum op products[] = {OP_LINEAR, OP_LINEAR_GRAD_INPUT, OP_LINEAR_GRAD_WEIGHT};
enum { PRODUCTS = sizeof products / sizeof products[0] };

static void layer_free(struct backend *b, struct layer *l)
{
    backend_free(b, l->x);
    backend_free(b, l->w);
    backend_free(b, l->y);
    backend_free(b, l->dw);
    backend_free(b, l->workspace);
}

/* Operands in device memory, filled with small numbers: what is zero may be skipped, and what grows from one
 * product to the next may end as infinities. */
static int fill(struct backend *b, void *device, enum dtype type, int64_t n, struct error *err)
{
    size_t bytes = (size_t)dtype_bytes(type, n);
    void *host;
    if (backend_alloc(b, MEMORY_HOST, bytes, &host, err) != 0)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float value = (float)((i * 37 + i / 61) % 127 - 63) * 0x1p-12f;
        if (type == DTYPE_F32)
            ((float *)host)[i] = value;
        else
            ((uint16_t *)host)[i] = f32_to_bf16(value);
    }
    int status = backend_upload(b, 0, device, host, bytes, err);
    if (status == 0)
        status = backend_sync(b, 0, err);
    backend_free(b, host);
    return status;
}

static int layer_create(struct backend *b, struct layer *l, struct error *err)
{
    int64_t nx = l->tokens * l->in, nw = l->out * l->in, ny = l->tokens * l->out;
    void *dw = NULL;
    if (backend_alloc(b, MEMORY_DEVICE, (size_t)dtype_bytes(l->type, nx), &l->x, err) != 0 ||
        backend_alloc(b, MEMORY_DEVICE, (size_t)dtype_bytes(l->type, nw), &l->w, err) != 0 ||
        backend_alloc(b, MEMORY_DEVICE, (size_t)dtype_bytes(l->type, ny), &l->y, err) != 0 ||
        backend_alloc(b, MEMORY_DEVICE, (size_t)nw * sizeof(float), &dw, err) != 0)
        return -1;
    l->dw = dw;
    for (int i = 0; i < PRODUCTS; i++) {
        struct op_call call = call_of(l, products[i]);
        size_t bytes;
        if (backend_prepare(b, &call, &bytes, err) != 0)
            return -1;
        l->workspace_bytes = bytes > l->workspace_bytes ? bytes : l->workspace_bytes;
    }
    if (l->workspace_bytes > 0 &&
        backend_alloc(b, MEMORY_DEVICE, l->workspace_bytes, &l->workspace, err) != 0)
        return -1;
    return fill(b, l->x, l->type, nx, err) != 0 || fill(b, l->w, l->type, nw, err) != 0 ? -1 : 0;
}

static int run_once(struct backend *b, const struct op_call *call, double *seconds, struct error *err)
{
    double begin = clock_seconds();
    if (backend_run(b, 0, call, err) != 0 || backend_sync(b, 0, err) != 0)
        return -1;
    *seconds = clock_seconds() - begin;
    return 0;
}

static int measure_one(struct backend *b, const struct layer *l, enum op op, double *rate, struct error *err)
{
    struct op_call call = call_of(l, op);
    double best, seconds;
    if (run_once(b, &call, &best, err) != 0) /* makes its code, touches its memory */
        return -1;
    double end = clock_seconds() + SECONDS;
    for (int i = 0; i < RUNS && (i == 0 || clock_seconds() < end); i++) {
        if (run_once(b, &call, &seconds, err) != 0)
            return -1;
        best = seconds < best ? seconds : best;
    }
    *rate = best > 0 ? op_cost(&call).product_flops / best : 0;
    return 0;
}

int measure_products(struct backend *backend, enum dtype type, int threads, struct measured_products *out,
                     struct error *err)
{
    struct layer l = layer_for(threads, type);
    *out = (struct measured_products){0};
    double *rates[PRODUCTS] = {&out->linear, &out->grad_input, &out->grad_weight};
    int status = layer_create(backend, &l, err);
    for (int i = 0; i < PRODUCTS && status == 0; i++)
        status = measure_one(backend, &l, products[i], rates[i], err);
    layer_free(backend, &l);
    return status;
}

double measured_peak(const struct measured_products *m)
{
    double best = m->linear > m->grad_input ? m->linear : m->grad_input;
    return best > m->grad_weight ? best : m->grad_weight;
}

/* ---- memory ---- */

enum { PIECE = 1 << 16, PASSES = 4 };
#define LEAST_ARRAY ((int64_t)64 << 20)
#define LARGEST_ARRAY ((int64_t)256 << 20)

struct triad {
    float *a, *b, *c;
    int64_t n;
    float scale;
};

static int64_t piece_end(const struct triad *t, int64_t piece)
{
    return t->n - piece * PIECE < PIECE ? t->n : (piece + 1) * PIECE;
}

/* By the pool's threads, so that pages lie with those that use them. */
static void touch(void *context, int64_t piece, int thread)
{
    struct triad *t = context;
    (void)thread;
    for (int64_t i = piece * PIECE; i < piece_end(t, piece); i++) {
        t->a[i] = 0;
        t->b[i] = (float)i;
        t->c[i] = 1;
    }
}

static void pass(void *context, int64_t piece, int thread)
{
    struct triad *t = context;
    (void)thread;
    float *restrict a = t->a;
    const float *restrict b = t->b, *restrict c = t->c;
    float scale = t->scale;
    for (int64_t i = piece * PIECE; i < piece_end(t, piece); i++)
        a[i] = b[i] + scale * c[i];
}

int measure_bandwidth(int threads, int64_t last_cache, int64_t memory, double *bytes_per_second,
                      struct error *err)
{
    int64_t bytes = last_cache + last_cache / 3; /* the three: four times the cache */
    bytes = bytes < LEAST_ARRAY ? LEAST_ARRAY : bytes;
    bytes = bytes > LARGEST_ARRAY ? LARGEST_ARRAY : bytes;
    bytes = bytes > memory / 3 ? memory / 3 : bytes;
    struct triad t = {.n = bytes / (int64_t)sizeof(float), .scale = 3};
    *bytes_per_second = 0;
    if (t.n < PIECE)
        return error_set(err, ERROR_RUN, "memory", "free some",
                         "too little is left to measure its bandwidth");
    struct pool *pool;
    if (pool_create(&pool, threads, threads <= pool_cpus(), 0, NULL, err) != 0)
        return -1;
    size_t size = (size_t)t.n * sizeof(float);
    t.a = malloc(size);
    t.b = malloc(size);
    t.c = malloc(size);
    int status = t.a && t.b && t.c ? 0 : error_memory(err, 3 * size, "measuring memory");
    if (status == 0) {
        int64_t pieces = (t.n + PIECE - 1) / PIECE;
        double best = 0;
        pool_run(pool, pieces, touch, &t);
        for (int i = 0; i < PASSES; i++) {
            double begin = clock_seconds();
            pool_run(pool, pieces, pass, &t);
            double seconds = clock_seconds() - begin;
            best = i == 0 || seconds < best ? seconds : best;
        }
        *bytes_per_second = best > 0 ? 3.0 * (double)size / best : 0;
    }
    free(t.a);
    free(t.b);
    free(t.c);
    pool_free(pool);
    return status;
}
