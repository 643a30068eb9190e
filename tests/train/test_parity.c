/* Parity with PyTorch: loss, every gradient, and ten AdamW steps of the goldens, on each backend. What the
 * expected values are and how the bounds come about stands in tests/goldens/README.md. */
#include "optim/adamw.h"
#include "support/cmocka.h"
#include "train/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;

struct parity {
    const char *name, *backend;
    enum dtype compute;
    enum recompute recompute;
    struct comm *comm;
    char directory[512];
    struct model *model;
    struct backend *be;
    struct engine *engine;
    struct safetensors_set weights;
    struct safetensors expected, inputs;
    struct batch batch;
    int64_t targets;
};

/* cmocka's longjmp must not leave comm_run's callback, so checks return -1 with the reason. */
static int differ(struct error *err, const struct parity *p, const char *what, double got, double bound)
{
    return error_set(err, ERROR_RUN, p->name, NULL, "%s on %s: relative error %g, bound %g", what, p->backend,
                     got, bound);
}

static int load(const struct safetensors *file, const char *name, float **out, int64_t *n, struct error *err)
{
    const struct safetensors_tensor *t = safetensors_find(file, name);
    if (!t)
        return error_set(err, ERROR_RUN, file->path, NULL, "no %s", name);
    *n = t->elements;
    *out = malloc((size_t)t->elements * sizeof **out);
    return *out ? safetensors_get(t, 0, t->elements, DTYPE_F32, *out, err) : error_memory(err, 0, name);
}

static double scalar(const struct safetensors *file, const char *prefix, const char *name)
{
    char full[192];
    float *v;
    int64_t n;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (load(file, full, &v, &n, NULL) != 0)
        return -1;
    double x = (double)v[0];
    free(v);
    return x;
}

static double distance(const float *a, const float *b, const float *minus, int64_t n, double *norm)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)b[i] - (minus ? (double)minus[i] : 0);
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += x * x;
    }
    *norm = sqrt(s);
    return sqrt(d);
}

struct sink {
    float *values;
    int64_t n;
};

static int sink_add(void *context, const float *values, int64_t n, struct error *err)
{
    (void)err;
    struct sink *s = context;
    memcpy(s->values + s->n, values, (size_t)n * sizeof *values);
    s->n += n;
    return 0;
}

static int fetch(struct parity *p, enum shard_kind kind, int unit, int param, float **out, int64_t *n,
                 struct error *err)
{
    int64_t elements = model_param_elements(&p->model->units[unit].params[param]);
    struct sink s = {malloc((size_t)elements * sizeof(float)), 0};
    if (!s.values || shard_fetch(p->engine->shard, kind, unit, param, sink_add, &s, err) != 0)
        return -1;
    *out = s.values;
    *n = s.n;
    return s.n == elements ? 0
                           : error_set(err, ERROR_RUN, NULL, NULL, "a tensor of the wrong size came back");
}

/* One tensor against prefix.NAME. For bf16 gradients the bound is 2 err.bf16_grad. */
static int check_tensor(struct parity *p, enum shard_kind kind, const char *prefix, int unit, int param,
                        struct error *err)
{
    const char *tensor = p->model->units[unit].params[param].name;
    char name[160], err_name[180];
    float *got, *want;
    int64_t n, m;
    snprintf(name, sizeof name, "%s.%s", prefix, tensor);
    snprintf(err_name, sizeof err_name, "%s%s", p->compute == DTYPE_F32 ? "err." : "err.bf16_", name);
    if (fetch(p, kind, unit, param, &got, &n, err) != 0 || load(&p->expected, name, &want, &m, err) != 0)
        return -1;
    double norm, d = distance(got, want, NULL, n, &norm), own = scalar(&p->expected, err_name, "");
    double bound = p->compute == DTYPE_F32 ? 4 * own + u : 2 * own;
    free(got);
    free(want);
    if (own < 0)
        return error_set(err, ERROR_RUN, p->name, NULL, "no %s", err_name);
    return d <= bound * norm ? 0 : differ(err, p, name, d / norm, bound);
}

/* The change of a tensor in ten steps against PyTorch's: sharper than the tensor itself. */
static int check_change(struct parity *p, int unit, int param, struct error *err)
{
    const struct model_param *mp = &p->model->units[unit].params[param];
    const struct safetensors_tensor *t = safetensors_set_find(&p->weights, mp->name);
    char name[160];
    float *got, *want, *start = malloc((size_t)t->elements * sizeof *start);
    int64_t n, m;
    snprintf(name, sizeof name, "step10.%s", mp->name);
    if (!start || safetensors_get(t, 0, t->elements, DTYPE_F32, start, err) != 0 ||
        fetch(p, SHARD_MASTER, unit, param, &got, &n, err) != 0 ||
        load(&p->expected, name, &want, &m, err) != 0)
        return -1;
    double norm, whole, d = distance(got, want, start, n, &norm),
                        own = scalar(&p->expected, "err.update.", mp->name);
    distance(got, want, NULL, n, &whole);
    double bound = 4 * own + u * whole / norm;
    free(got);
    free(want);
    free(start);
    if (own < 0)
        return error_set(err, ERROR_RUN, p->name, NULL, "no err.update.%s", mp->name);
    return d <= bound * norm ? 0 : differ(err, p, name, d / norm, bound);
}

static int for_each_param(struct parity *p,
                          int (*check)(struct parity *p, int unit, int param, struct error *err),
                          struct error *err)
{
    for (int i = 0; i < p->model->unit_count; i++)
        for (int k = 0; k < p->model->units[i].param_count; k++)
            if (p->model->units[i].params[k].unit == i && check(p, i, k, err) != 0)
                return -1;
    return 0;
}

static int check_grad(struct parity *p, int unit, int param, struct error *err)
{
    return check_tensor(p, SHARD_SUMS, "grad", unit, param, err);
}

static int check_step10(struct parity *p, int unit, int param, struct error *err)
{
    return check_tensor(p, SHARD_MASTER, "step10", unit, param, err) != 0 ? -1
                                                                          : check_change(p, unit, param, err);
}

static int check_scalar(struct parity *p, const char *what, double got, double want, double bound,
                        struct error *err)
{
    double e = fabs(got - want) / fabs(want);
    return e <= bound ? 0 : differ(err, p, what, e, bound);
}

/* Forward and backward on the batch; *loss is the mean. */
static int run_batch(struct parity *p, double *loss, double *norm, struct error *err)
{
    struct exact_sum sum, squares;
    exact_sum_clear(&sum);
    struct engine_pass pass = {.backward = true,
                               .contributors = 1,
                               .first = true,
                               .loss_scale = (float)(1.0 / (double)p->targets),
                               .loss = &sum};
    if (engine_micro_batch(p->engine, &p->batch, &pass, err) != 0 ||
        shard_sum_squares(p->engine->shard, &squares, err) != 0)
        return -1;
    *loss = exact_sum_value(&sum) / (double)p->targets;
    *norm = sqrt(exact_sum_value(&squares));
    return 0;
}

static int run_steps(struct parity *p, struct error *err)
{
    struct adamw adamw = {0.9, 0.95, 1e-8, 0.1, 1.0};
    float *losses, *norms;
    int64_t n;
    if (load(&p->expected, "step_loss", &losses, &n, err) != 0 ||
        load(&p->expected, "step_grad_norm", &norms, &n, err) != 0)
        return -1;
    int status = 0;
    for (int step = 0; step < 10 && status == 0; step++) {
        double loss, norm;
        struct op_adamw update;
        status = run_batch(p, &loss, &norm, err);
        if (status == 0)
            status = check_scalar(p, "step_loss", loss, (double)losses[step],
                                  4 * scalar(&p->expected, "err.step_loss", "") + u, err);
        if (status == 0)
            status = check_scalar(p, "step_grad_norm", norm, (double)norms[step],
                                  4 * scalar(&p->expected, "err.step_grad_norm", "") + u, err);
        adamw_update(&adamw, 1e-3, step, norm, &update);
        if (status == 0)
            status = shard_update(p->engine->shard, &update, err);
    }
    free(losses);
    free(norms);
    return status == 0 ? for_each_param(p, check_step10, err) : -1;
}

static int check_first(struct parity *p, struct error *err)
{
    double loss, norm, want = scalar(&p->expected, "loss_sum", "") / (double)p->targets;
    if (run_batch(p, &loss, &norm, err) != 0)
        return -1;
    bool bf16 = p->compute == DTYPE_BF16;
    double own = scalar(&p->expected, bf16 ? "err.bf16_loss" : "err.loss_sum", "");
    if (check_scalar(p, "loss", loss, want, 4 * own + u, err) != 0)
        return -1;
    /* bf16 must act: an fp32 loss would be a thousand times nearer than bf16's rounding lets it be. */
    if (bf16 && fabs(loss - want) < 1e-7 * want)
        return error_set(err, ERROR_RUN, p->name, NULL, "the bf16 loss is that of fp32");
    return for_each_param(p, check_grad, err);
}

static int set_batch(struct parity *p, struct error *err)
{
    const struct {
        const char *name;
        int32_t *to;
    } parts[] = {{"ids", p->batch.ids},
                 {"targets", p->batch.targets},
                 {"positions", p->batch.positions},
                 {"pieces", (int32_t *)p->batch.pieces}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct safetensors_tensor *t = safetensors_find(&p->inputs, parts[i].name);
        if (!t || safetensors_get(t, 0, t->elements, DTYPE_I32, parts[i].to, err) != 0)
            return -1;
        if (i == 3)
            p->batch.piece_count = t->shape[0];
    }
    p->batch.rows = 2;
    for (int i = 0; i < 74; i++)
        p->targets += p->batch.targets[i] >= 0;
    return 0;
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct parity *p = context;
    char path[600];
    struct engine_options options = {
        .compute = p->compute, .recompute = p->recompute, .micro_batch = 2, .seq_len = 37, .stage = 3};
    struct backend_options be = {.name = p->backend, .isa = "auto", .threads = 2};
    snprintf(p->directory, sizeof p->directory, "%s/%s", TEST_GOLDENS, p->name);
    int status = model_load_config(&p->model, p->directory, NULL, err);
    snprintf(path, sizeof path, "%s/expected.safetensors", p->directory);
    if (status == 0)
        status = safetensors_open(&p->expected, path, err);
    snprintf(path, sizeof path, "%s/batch.safetensors", p->directory);
    if (status == 0)
        status = safetensors_open(&p->inputs, path, err);
    if (status == 0)
        status = backend_create(&p->be, &be, err);
    if (status == 0)
        status = engine_create(&p->engine, p->model, comm, p->be, &options, err);
    if (status == 0)
        status = weights_open(&p->weights, p->model, p->directory, NULL, err);
    if (status == 0)
        status = weights_load(p->engine, SHARD_MASTER, &p->weights, err);
    if (status == 0)
        status = batch_create(&p->batch, 2, 37, err);
    if (status == 0)
        status = set_batch(p, err);
    if (status == 0)
        status = check_first(p, err);
    if (status == 0 && p->compute == DTYPE_F32)
        status = run_steps(p, err);
    batch_free(&p->batch);
    safetensors_set_close(&p->weights);
    safetensors_close(&p->expected);
    safetensors_close(&p->inputs);
    engine_free(p->engine);
    backend_destroy(p->be);
    model_free(p->model);
    return status == 0 ? 0 : 1;
}

static void run_case(const char *name, const char *backend, enum dtype compute, enum recompute recompute)
{
    struct parity p = {.name = name, .backend = backend, .compute = compute, .recompute = recompute};
    struct error err = {0};
    int status = comm_run(1, COMM_AUTO, NULL, body, &p, &err);
    if (status != 0) {
        char text[2100];
        error_format(&err, text, sizeof text);
        fail_msg("%s", text);
    }
}

static const char *const cases[] = {"gqa", "tied_llama3", "bias_linear"};
static const char *const backends[] = {"reference", "cpu", "guarded"};

static void run_all(enum dtype compute, enum recompute recompute)
{
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            run_case(cases[c], backends[b], compute, recompute);
}

static void test_fp32(void **state)
{
    (void)state;
    run_all(DTYPE_F32, RECOMPUTE_NONE);
}

static void test_fp32_recompute(void **state)
{
    (void)state;
    run_all(DTYPE_F32, RECOMPUTE_FULL);
}

static void test_fp32_selective(void **state)
{
    (void)state;
    run_all(DTYPE_F32, RECOMPUTE_SELECTIVE);
}

static void test_bf16(void **state)
{
    (void)state;
    run_all(DTYPE_BF16, RECOMPUTE_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_fp32_recompute),
                                       cmocka_unit_test(test_fp32_selective), cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
