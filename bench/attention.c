/* Attention of the cpu backend against the machine's products, in processor time.
 *
 *     cmake -S . -B build -DTERCET_BENCH=ON && cmake --build build --target bench_attention
 *     build/bench_attention [pieces] [length] [heads] [kv_heads] [head_dim] [threads] [isa]
 *
 * Defaults are one layer of SmolLM2-135M with 4 rows of 512 tokens. Prints, for each type, milliseconds and
 * GFLOP/s of processor time (all threads together; other programs on the machine disturb it less than the
 * clock), and the share of what a large product of the same type reaches per second of processor time,
 * measured in the same run. Products counted: two for a pair of query and key it sees forward, five backward.
 */
#include "backend/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct shape {
    int64_t pieces, length, heads, kv_heads, head_dim;
};

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_attention: %s\n", what);
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!p)
        give_up("out of memory");
    return p;
}

/* Numbers of a small generator, in [-1, 1). */
static struct operand floats(enum dtype type, int64_t rows, int64_t width)
{
    struct operand x = {.type = type, .ndim = 2, .dim = {rows, width}};
    x.data = memory((size_t)operand_bytes(&x));
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * width; i++) {
        state = state * 1664525u + 1013904223u;
        float f = (float)(int32_t)state * 0x1p-31f;
        if (type == DTYPE_F32)
            ((float *)x.data)[i] = f;
        else
            ((uint16_t *)x.data)[i] = f32_to_bf16(f);
    }
    return x;
}

/* Least processor time of a few runs, after one that warms up. */
static double measure(struct backend *b, struct op_call *call, int times)
{
    struct error err = {0};
    size_t bytes = 0;
    if (backend_prepare(b, call, &bytes, &err) != 0)
        give_up(err.what);
    call->workspace = memory(bytes);
    call->workspace_bytes = bytes;
    double least = INFINITY;
    for (int i = 0; i <= times; i++) {
        double start = seconds();
        if (backend_run(b, 0, call, &err) != 0 || backend_sync(b, 0, &err) != 0)
            give_up(err.what);
        double used = seconds() - start;
        if (i > 0 && used < least)
            least = used;
    }
    free(call->workspace);
    return least;
}

static double peak(struct backend *b, enum dtype type)
{
    enum { SIZE = 1024 };
    struct op_call call = {.op = OP_LINEAR, .inputs = 2, .outputs = 1};
    call.in[0] = floats(type, SIZE, SIZE);
    call.in[1] = floats(type, SIZE, SIZE);
    call.out[0] = floats(type, SIZE, SIZE);
    double best = 2.0 * SIZE * SIZE * SIZE / measure(b, &call, 10);
    free(call.in[0].data);
    free(call.in[1].data);
    free(call.out[0].data);
    return best;
}

static void report(const char *what, enum dtype type, double used, double flops, double most)
{
    printf("%-9s %-5s %9.2f ms  %7.1f GFLOP/s  %5.1f %% of %.1f GFLOP/s\n", what, dtype_info(type)->name,
           used * 1e3, flops / used * 1e-9, 100 * flops / used / most, most * 1e-9);
}

static void bench(struct backend *b, enum dtype type, const struct shape *s)
{
    int64_t tokens = s->pieces * s->length, q_width = s->heads * s->head_dim,
            kv_width = s->kv_heads * s->head_dim;
    struct operand q = floats(type, tokens, q_width), k = floats(type, tokens, kv_width),
                   v = floats(type, tokens, kv_width), o = floats(type, tokens, q_width),
                   lse = floats(DTYPE_F32, tokens, s->heads), dout = floats(type, tokens, q_width),
                   dq = floats(type, tokens, q_width), dk = floats(type, tokens, kv_width),
                   dv = floats(type, tokens, kv_width);
    struct operand pieces = {.type = DTYPE_I32, .ndim = 2, .dim = {s->pieces, 4}};
    pieces.data = memory((size_t)operand_bytes(&pieces));
    for (int64_t i = 0; i < 4 * s->pieces; i++)
        ((int32_t *)pieces.data)[i] = (int32_t)(i % 2 ? s->length : i / 4 * s->length);
    struct op_attr attr = {
        .heads = s->heads, .kv_heads = s->kv_heads, .scale = 1.0f / sqrtf((float)s->head_dim)};
    struct op_call forward = {.op = OP_ATTENTION,
                              .attr = attr,
                              .inputs = 4,
                              .in = {q, k, v, pieces},
                              .outputs = 2,
                              .out = {o, lse}};
    struct op_call backward = {.op = OP_ATTENTION_GRAD,
                               .attr = attr,
                               .inputs = 7,
                               .in = {dout, q, k, v, o, lse, pieces},
                               .outputs = 3,
                               .out = {dq, dk, dv}};
    double product = (double)(s->pieces * s->heads * s->head_dim) * (double)(s->length * (s->length + 1));
    double most = peak(b, type);
    report("forward", type, measure(b, &forward, 10), 2 * product, most);
    report("backward", type, measure(b, &backward, 10), 5 * product, most);
    struct operand all[] = {q, k, v, o, lse, dout, dq, dk, dv, pieces};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i].data);
}

int main(int argc, char **argv)
{
    int64_t values[] = {4, 512, 9, 3, 64, 1};
    for (int i = 1; i < argc && i <= 6; i++)
        if ((values[i - 1] = strtoll(argv[i], NULL, 10)) < 1)
            give_up("arguments are numbers of at least 1: pieces length heads kv_heads head_dim threads");
    struct shape s = {values[0], values[1], values[2], values[3], values[4]};
    struct backend_options options = {
        .name = "cpu", .isa = argc > 7 ? argv[7] : "auto", .threads = (int)values[5]};
    struct error err = {0};
    struct backend *b;
    if (backend_create(&b, &options, &err) != 0)
        give_up(err.what);
    struct backend_description about;
    backend_describe(b, &about);
    printf("%lld pieces of %lld tokens, %lld heads, %lld key heads of %lld; %d threads, %s, %s\n",
           (long long)s.pieces, (long long)s.length, (long long)s.heads, (long long)s.kv_heads,
           (long long)s.head_dim, options.threads, about.isa, about.library);
    bench(b, DTYPE_F32, &s);
    bench(b, DTYPE_BF16, &s);
    backend_destroy(b);
    return 0;
}
