#include "backend/cpu/cpu.h"

#include "backend/cpu/internal.h"
#include "backend/host_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cpu *cpu_of(struct backend *b)
{
    return (struct cpu *)b;
}

static void cpu_destroy(struct backend *b)
{
    struct cpu *cpu = cpu_of(b);
    pool_free(cpu->pool);
    gemm_library_free(cpu->gemms);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

static bool is_product(enum op op)
{
    return op == OP_LINEAR || op == OP_LINEAR_GRAD_INPUT || op == OP_LINEAR_GRAD_WEIGHT;
}

static struct product product_of(const struct op_call *call, const struct signature_sizes *s)
{
    const struct operand *in = call->in, *out = call->out;
    int64_t tokens = s->of['T'], width_in = s->of['I'], width_out = s->of['O'];
    struct product p = {
        .a = in[0].data, .b = in[1].data, .c = out[0].data, .in = s->compute, .out = out[0].type};
    switch (call->op) {
    case OP_LINEAR:
        p.m = tokens;
        p.n = width_out;
        p.k = width_in;
        p.b_transposed = true;
        p.has_bias = call->inputs > 2 && operand_present(&in[2]);
        p.bias = p.has_bias ? in[2].data : NULL;
        break;
    case OP_LINEAR_GRAD_INPUT:
        p.m = tokens;
        p.n = width_in;
        p.k = width_out;
        break;
    default: /* OP_LINEAR_GRAD_WEIGHT */
        p.m = width_out;
        p.n = width_in;
        p.k = tokens;
        p.sum_over_tokens = true;
        break;
    }
    return p;
}

static int workspace_bytes(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s,
                           size_t *bytes, struct error *err)
{
    *bytes = 0;
    if (is_product(call->op)) {
        struct product p = product_of(call, s);
        return product_workspace(cpu, &p, bytes, err);
    }
    if (call->op == OP_LOSS || call->op == OP_LOSS_GRAD)
        return loss_workspace(cpu, call, s, bytes, err);
    if (call->op == OP_ATTENTION || call->op == OP_ATTENTION_GRAD)
        *bytes = attention_workspace(cpu, call, s);
    else
        *bytes = simple_workspace(call, s);
    return 0;
}

static int cpu_prepare(struct backend *b, const struct op_call *call, size_t *workspace, struct error *err)
{
    struct cpu *cpu = cpu_of(b);
    struct signature_sizes sizes;
    if (call_check(call, false, &sizes, err) != 0)
        return -1;
    pthread_mutex_lock(&cpu->lock);
    int status = workspace_bytes(cpu, call, &sizes, workspace, err);
    pthread_mutex_unlock(&cpu->lock);
    return status;
}

static int run_locked(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s,
                      struct error *err)
{
    size_t bytes;
    cpu->running = call->op;
    gemm_thread_start(); /* the caller may be a thread that has not computed before */
    if (workspace_bytes(cpu, call, s, &bytes, err) != 0)
        return -1;
    if (call->workspace_bytes < bytes)
        return error_set(err, ERROR_RUN, op_name(call->op), "this is a bug of the program: please report it",
                         "the workspace holds %zu bytes of %zu", call->workspace_bytes, bytes);
    if (is_product(call->op)) {
        struct product p = product_of(call, s);
        return product_run(cpu, &p, call->workspace, err);
    }
    if (call->op == OP_LOSS || call->op == OP_LOSS_GRAD)
        return loss_run(cpu, call, s, err);
    if (call->op == OP_ATTENTION || call->op == OP_ATTENTION_GRAD)
        attention_run(cpu, call, s);
    else
        simple_run(cpu, call, s);
    return 0;
}

static int cpu_run(struct backend *b, int stream, const struct op_call *call, struct error *err)
{
    (void)stream;
    struct cpu *cpu = cpu_of(b);
    struct signature_sizes sizes;
    if (call_check(call, true, &sizes, err) != 0 || call_check_indices(call, &sizes, err) != 0)
        return -1;
    pthread_mutex_lock(&cpu->lock);
    int status = run_locked(cpu, call, &sizes, err);
    pthread_mutex_unlock(&cpu->lock);
    return status;
}

static void tell_profile(void *context, int thread, double begin, double end)
{
    const struct cpu *cpu = context;
    profile_add(cpu->base.profile, thread, op_name(cpu->running), begin, end);
}

static void cpu_profile(struct backend *b, struct profile *p)
{
    struct cpu *cpu = cpu_of(b);
    cpu->watch = (struct pool_watch){tell_profile, cpu};
    pool_set_watch(cpu->pool, p ? &cpu->watch : NULL);
}

static int cpu_threads_seen(const struct backend *b)
{
    return pool_threads_seen(((const struct cpu *)b)->pool);
}

static void cpu_describe(const struct backend *b, struct backend_description *out)
{
    snprintf(out->isa, sizeof out->isa, "%s", gemm_isa_name(gemm_isa(((const struct cpu *)b)->gemms)));
    const struct cpu *cpu = (const struct cpu *)b;
    if (product_uses_own(cpu, gemm_has_bf16(cpu->gemms) ? DTYPE_BF16 : DTYPE_F32))
        snprintf(out->library, sizeof out->library, "own kernels");
    else
        gemm_library_version(out->library, sizeof out->library);
}

static const struct backend_vtable cpu_vtable = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .alloc = host_alloc,
    .free = host_free,
    .adopt = host_adopt,
    .disown = host_disown,
    .upload = host_upload,
    .download = host_download,
    .read = host_read,
    .copy = host_copy,
    .prepare = cpu_prepare,
    .run = cpu_run,
    .record = host_record,
    .stream_wait = host_stream_wait,
    .event_sync = host_event_sync,
    .sync = host_sync,
    .begin_access = host_access,
    .end_access = host_access,
    .threads_seen = cpu_threads_seen,
    .describe = cpu_describe,
    .profile = cpu_profile,
};

static int choose_products(struct cpu *cpu, const char *name, struct error *err)
{
    static const char *const names[] = {"auto", "own", "onednn"};
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            cpu->products = (enum products_by)i;
            return 0;
        }
    return !name ? 0
                 : error_set(err, ERROR_INPUT, "backend.products", "use auto, own or onednn",
                             "nothing makes products by the name of \"%s\"", name);
}

int cpu_create(struct backend **out, const struct backend_options *options, struct error *err)
{
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return error_memory(err, sizeof *cpu, "the cpu backend");
    cpu->base.v = &cpu_vtable;
    cpu->threads = options->threads;
    pthread_mutex_init(&cpu->lock, NULL);
    if (choose_products(cpu, options->products, err) != 0 ||
        gemm_library_create(&cpu->gemms, options->isa, options->threads, err) != 0 ||
        pool_create(&cpu->pool, options->threads, options->pin, options->first_cpu, gemm_thread_start, err) !=
            0) {
        cpu_destroy(&cpu->base);
        return -1;
    }
    cpu->kernels = kernels_choose(gemm_isa(cpu->gemms));
    *out = &cpu->base;
    return 0;
}
