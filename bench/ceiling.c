/* What a training step could reach were it made of its matrix products alone: all products of the linear
 * layers and the head of a Llama, forward and backward, each as one call of oneDNN on whole matrices with all
 * its threads.
 *
 *     cmake -S . -B build -DTERCET_BENCH=ON && cmake --build build --target bench_ceiling
 *     OMP_NUM_THREADS=2 build/bench_ceiling fp32|bf16 TOKENS HIDDEN KV FFN VOCABULARY LAYERS
 *
 * KV is the width of keys and values. A shape counts with the best of its runs, in about half a second each;
 * attention, norms, the loss's second look at the logits and the optimizer are not counted. Prints one JSON
 * object: seconds of a step, tokens a second, floating-point operations a second. */
#include <dnnl.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_ceiling: %s\n", what);
    exit(1);
}

static void check(dnnl_status_t status)
{
    if (status != dnnl_success)
        give_up("oneDNN refuses");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

struct machine {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_data_type_t type;
};

/* A matrix of the product: rows by columns, stored by columns where transposed. */
struct matrix {
    int64_t rows, columns;
    int transposed;
    dnnl_data_type_t type;
};

/* A primitive and its three matrices, through the API of oneDNN 2 or 3. */
struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[3];
};

#if DNNL_VERSION_MAJOR >= 3
static void describe(const struct matrix *m, dnnl_memory_desc_t *out)
{
    dnnl_dims_t dims = {m->rows, m->columns},
                strides = {m->transposed ? 1 : m->columns, m->transposed ? m->rows : 1};
    check(dnnl_memory_desc_create_with_strides(out, 2, dims, m->type, strides));
}

static void make(const struct machine *machine, const struct matrix m[3], struct product *out)
{
    dnnl_memory_desc_t d[3];
    dnnl_primitive_desc_t description;
    for (int i = 0; i < 3; i++) {
        describe(&m[i], &d[i]);
        check(dnnl_memory_create(&out->memory[i], d[i], machine->engine, DNNL_MEMORY_ALLOCATE));
    }
    check(dnnl_matmul_primitive_desc_create(&description, machine->engine, d[0], d[1], NULL, d[2], NULL));
    check(dnnl_primitive_create(&out->primitive, description));
    dnnl_primitive_desc_destroy(description);
    for (int i = 0; i < 3; i++)
        dnnl_memory_desc_destroy(d[i]);
}
#else
static void describe(const struct matrix *m, dnnl_memory_desc_t *out)
{
    dnnl_dims_t dims = {m->rows, m->columns},
                strides = {m->transposed ? 1 : m->columns, m->transposed ? m->rows : 1};
    check(dnnl_memory_desc_init_by_strides(out, 2, dims, m->type, strides));
}

static void make(const struct machine *machine, const struct matrix m[3], struct product *out)
{
    dnnl_memory_desc_t d[3];
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t description;
    for (int i = 0; i < 3; i++) {
        describe(&m[i], &d[i]);
        check(dnnl_memory_create(&out->memory[i], &d[i], machine->engine, DNNL_MEMORY_ALLOCATE));
    }
    check(dnnl_matmul_desc_init(&matmul, &d[0], &d[1], NULL, &d[2]));
    check(dnnl_primitive_desc_create(&description, &matmul, NULL, machine->engine, NULL));
    check(dnnl_primitive_create(&out->primitive, description));
    dnnl_primitive_desc_destroy(description);
}
#endif

/* Numbers between 0.5 and 1, so that nothing overflows or is subnormal. */
static void fill(dnnl_memory_t memory, const struct matrix *m)
{
    void *data;
    int64_t n = m->rows * m->columns;
    check(dnnl_memory_get_data_handle(memory, &data));
    for (int64_t i = 0; i < n; i++) {
        if (m->type == dnnl_f32)
            ((float *)data)[i] = 0.5f + 0.5f * (float)(i % 61) / 61.0f;
        else
            ((uint16_t *)data)[i] = (uint16_t)(0x3f00 + i % 61);
    }
}

/* Seconds of c[m,n] = a[m,k] b[k,n]. */
static double time_product(const struct machine *machine, int64_t m, int64_t n, int64_t k, int a_transposed,
                           int b_transposed, dnnl_data_type_t result)
{
    const struct matrix matrices[3] = {
        {m, k, a_transposed, machine->type}, {k, n, b_transposed, machine->type}, {m, n, 0, result}};
    struct product p;
    make(machine, matrices, &p);
    fill(p.memory[0], &matrices[0]);
    fill(p.memory[1], &matrices[1]);
    dnnl_exec_arg_t arguments[3] = {
        {DNNL_ARG_SRC, p.memory[0]}, {DNNL_ARG_WEIGHTS, p.memory[1]}, {DNNL_ARG_DST, p.memory[2]}};
    double best = 1e30, start = seconds();
    for (int runs = 0; runs < 3 || seconds() - start < 0.5; runs++) {
        double begin = seconds();
        check(dnnl_primitive_execute(p.primitive, machine->stream, 3, arguments));
        check(dnnl_stream_wait(machine->stream));
        double took = seconds() - begin;
        best = took < best ? took : best;
    }
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p.memory[i]);
    dnnl_primitive_destroy(p.primitive);
    return best;
}

/* y = x w^T, dx = dy w, dw = dy^T x. */
static double time_layer(const struct machine *machine, int64_t tokens, int64_t out, int64_t in)
{
    return time_product(machine, tokens, out, in, 0, 1, machine->type) +
           time_product(machine, tokens, in, out, 0, 0, machine->type) +
           time_product(machine, out, in, tokens, 1, 0, dnnl_f32);
}

int main(int argc, char **argv)
{
    int64_t sizes[6];
    struct machine machine = {.type = dnnl_f32};
    if (argc != 8 || (strcmp(argv[1], "fp32") != 0 && strcmp(argv[1], "bf16") != 0))
        give_up("usage: bench_ceiling fp32|bf16 TOKENS HIDDEN KV FFN VOCABULARY LAYERS");
    if (strcmp(argv[1], "bf16") == 0)
        machine.type = dnnl_bf16;
    for (int i = 0; i < 6; i++) {
        char *end;
        sizes[i] = strtoll(argv[i + 2], &end, 10);
        if (*end || sizes[i] < 1 || sizes[i] > 10000000)
            give_up("sizes are whole numbers from 1 to 10,000,000");
    }
    const int64_t tokens = sizes[0], hidden = sizes[1], kv = sizes[2], ffn = sizes[3], vocabulary = sizes[4],
                  layers = sizes[5];
    check(dnnl_engine_create(&machine.engine, dnnl_cpu, 0));
    check(dnnl_stream_create(&machine.stream, machine.engine, dnnl_stream_default_flags));
    double layer = 2 * time_layer(&machine, tokens, hidden, hidden) + /* q, o */
                   2 * time_layer(&machine, tokens, kv, hidden) +     /* k, v */
                   2 * time_layer(&machine, tokens, ffn, hidden) +    /* gate, up */
                   time_layer(&machine, tokens, hidden, ffn);         /* down */
    double took = (double)layers * layer + time_layer(&machine, tokens, vocabulary, hidden);
    double weights = (double)(layers * hidden * (2 * hidden + 2 * kv + 3 * ffn) + vocabulary * hidden);
    printf("{\"seconds\": %.4f, \"tokens_per_second\": %.1f, \"flops\": %.4g}\n", took, (double)tokens / took,
           6 * weights * (double)tokens / took);
    dnnl_stream_destroy(machine.stream);
    dnnl_engine_destroy(machine.engine);
    return 0;
}
