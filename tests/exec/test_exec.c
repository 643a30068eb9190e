/* Running programs: values on the reference and cpu backends, what is counted, and the search for the first
 * value that is not finite. */
#include "support/cmocka.h"

#include "exec/exec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 5, WIDTH = 6, OUT = 3, IOS = 8, PARAMS = 2 };

static const char *const backends[] = {"reference", "cpu", "guarded"};
static const struct graph_counts bounds = {.tokens = TOKENS};

/* x[T,6] -> rmsnorm -> linear 6 to 3 -> + itself */
static struct program *compile(struct backend *b, enum recompute recompute)
{
    struct graph *g = graph_create();
    struct program *p = NULL;
    struct error err = {0};
    int x = graph_input(g, "x", DTYPE_F32, 2, (int64_t[]){GRAPH_TOKENS, WIDTH}, true);
    int n = graph_rmsnorm(g, x, graph_param(g, 0, DTYPE_F32, 1, (int64_t[]){WIDTH}, true), 1e-5f);
    int y = graph_linear(g, n, graph_param(g, 1, DTYPE_F32, 2, (int64_t[]){OUT, WIDTH}, true), GRAPH_NONE);
    graph_output(g, "y", graph_add(g, y, y));
    struct program_options options = {
        .bounds = bounds, .recompute = recompute, .workspace = exec_workspace, .context = b};
    if (graph_differentiate(g, &err) != 0 || program_compile(&p, g, &options, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    graph_free(g);
    return p;
}

struct trial {
    struct backend *b;
    struct program *p;
    void *io[IOS], *param[PARAMS], *grad[PARAMS], *saved, *work, *host;
    struct exec exec;
};

static void *allocate(struct backend *b, enum memory_kind kind, int64_t bytes)
{
    void *memory;
    assert_int_equal(backend_alloc(b, kind, (size_t)(bytes > 0 ? bytes : 64), &memory, NULL), 0);
    return memory;
}

static void upload(struct trial *t, void *device, const float *values, int64_t n)
{
    memcpy(t->host, values, (size_t)n * sizeof *values);
    assert_int_equal(backend_upload(t->b, 0, device, t->host, (size_t)n * sizeof *values, NULL), 0);
    assert_int_equal(backend_sync(t->b, 0, NULL), 0);
}

static void download(struct trial *t, float *values, const void *device, int64_t n)
{
    assert_int_equal(backend_download(t->b, 0, t->host, device, (size_t)n * sizeof *values, NULL), 0);
    assert_int_equal(backend_sync(t->b, 0, NULL), 0);
    memcpy(values, t->host, (size_t)n * sizeof *values);
}

static float x_at(int i)
{
    return (float)(i % 7) - 2.5f;
}

static float w_at(int i)
{
    return (float)(i % 5) * 0.25f - 0.5f;
}

static struct trial trial_make(const char *backend, enum recompute recompute)
{
    struct trial t = {0};
    struct backend_options options = {.name = backend, .isa = "auto", .threads = 1};
    float values[TOKENS * WIDTH];
    assert_int_equal(backend_create(&t.b, &options, NULL), 0);
    t.p = compile(t.b, recompute);
    assert_true(t.p->io_count <= IOS);
    t.exec.backend = t.b;
    t.host = allocate(t.b, MEMORY_HOST, sizeof values);
    for (int i = 0; i < t.p->io_count; i++)
        t.io[i] = allocate(t.b, MEMORY_DEVICE, program_io_bytes(&t.p->io[i], &bounds));
    for (int i = 0; i < PARAMS; i++) {
        t.param[i] = allocate(t.b, MEMORY_DEVICE, sizeof values);
        t.grad[i] = allocate(t.b, MEMORY_DEVICE, sizeof values);
    }
    t.saved = allocate(t.b, MEMORY_DEVICE, t.p->saved_bytes);
    int64_t work =
        t.p->part[0].work_bytes > t.p->part[1].work_bytes ? t.p->part[0].work_bytes : t.p->part[1].work_bytes;
    t.work = allocate(t.b, MEMORY_DEVICE, work);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        values[i] = x_at(i);
    upload(&t, t.io[program_slot(t.p, "x")], values, TOKENS * WIDTH);
    for (int i = 0; i < WIDTH; i++)
        values[i] = 1 + (float)i / 8;
    upload(&t, t.param[0], values, WIDTH);
    for (int i = 0; i < OUT * WIDTH; i++)
        values[i] = w_at(i);
    upload(&t, t.param[1], values, OUT * WIDTH);
    for (int i = 0; i < TOKENS * OUT; i++)
        values[i] = (float)(i % 3) - 1;
    upload(&t, t.io[program_slot(t.p, "grad:y")], values, TOKENS * OUT);
    return t;
}

static void trial_free(struct trial *t)
{
    for (int i = 0; i < t->p->io_count; i++)
        backend_free(t->b, t->io[i]);
    for (int i = 0; i < PARAMS; i++) {
        backend_free(t->b, t->param[i]);
        backend_free(t->b, t->grad[i]);
    }
    backend_free(t->b, t->saved);
    backend_free(t->b, t->work);
    backend_free(t->b, t->host);
    program_free(t->p);
    backend_destroy(t->b);
}

static int run(struct trial *t, int part, int64_t tokens, struct error *err)
{
    struct exec_bindings b = {t->io, t->param, t->grad, t->saved, t->work};
    struct graph_counts counts = {.tokens = tokens};
    int status = exec_run(&t->exec, t->p, part, &b, &counts, err);
    assert_int_equal(backend_sync(t->b, 0, NULL), 0);
    return status;
}

static void expected_y(double *y)
{
    for (int r = 0; r < TOKENS; r++) {
        double sum = 0;
        for (int i = 0; i < WIDTH; i++)
            sum += (double)x_at(r * WIDTH + i) * (double)x_at(r * WIDTH + i);
        double rstd = 1 / sqrt(sum / WIDTH + 1e-5);
        for (int o = 0; o < OUT; o++) {
            double dot = 0;
            for (int i = 0; i < WIDTH; i++)
                dot += (double)x_at(r * WIDTH + i) * rstd * (1 + i / 8.0) * (double)w_at(o * WIDTH + i);
            y[r * OUT + o] = 2 * dot;
        }
    }
}

static void test_forward(void **state)
{
    (void)state;
    double wanted[TOKENS * OUT];
    float y[TOKENS * OUT];
    expected_y(wanted);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct trial t = trial_make(backends[i], RECOMPUTE_NONE);
        assert_int_equal(run(&t, PROGRAM_FORWARD, TOKENS, NULL), 0);
        download(&t, y, t.io[program_slot(t.p, "y")], TOKENS * OUT);
        for (int k = 0; k < TOKENS * OUT; k++)
            assert_true(fabs((double)y[k] - wanted[k]) < 1e-5);
        trial_free(&t);
    }
}

/* Fewer rows than planned: the rows there are the same, those behind are left alone. */
static void test_fewer_rows(void **state)
{
    (void)state;
    float all[TOKENS * OUT], some[TOKENS * OUT];
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct trial t = trial_make(backends[i], RECOMPUTE_NONE);
        void *y = t.io[program_slot(t.p, "y")];
        assert_int_equal(run(&t, PROGRAM_FORWARD, TOKENS, NULL), 0);
        download(&t, all, y, TOKENS * OUT);
        for (int k = 0; k < TOKENS * OUT; k++)
            some[k] = -77;
        upload(&t, y, some, TOKENS * OUT);
        assert_int_equal(run(&t, PROGRAM_FORWARD, 2, NULL), 0);
        download(&t, some, y, TOKENS * OUT);
        assert_memory_equal(all, some, 2 * OUT * sizeof(float));
        for (int k = 2 * OUT; k < TOKENS * OUT; k++)
            assert_true(some[k] == -77);
        trial_free(&t);
    }
}

static void test_counts(void **state)
{
    (void)state;
    float dx[RECOMPUTE_FULL + 1][TOKENS * WIDTH];
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
            struct trial t = trial_make(backends[i], (enum recompute)recompute);
            const struct exec_stats *s = &t.exec.stats;
            assert_int_equal(run(&t, PROGRAM_FORWARD, TOKENS, NULL), 0);
            assert_true(s->ops[OP_RMSNORM] == 1 && s->ops[OP_LINEAR] == 1 && s->ops[OP_ADD] == 1);
            assert_int_equal(s->ops[OP_LINEAR_GRAD_WEIGHT], 0);
            for (int pass = 1; pass <= 2; pass++) {
                assert_int_equal(run(&t, PROGRAM_BACKWARD, TOKENS, NULL), 0);
                assert_int_equal(s->ops[OP_LINEAR_GRAD_WEIGHT], pass);
                assert_int_equal(s->ops[OP_RMSNORM], recompute == RECOMPUTE_NONE ? 1 : 1 + pass);
                assert_int_equal(s->recomputed[OP_RMSNORM], recompute == RECOMPUTE_NONE ? 0 : pass);
                assert_int_equal(s->recomputed[OP_LINEAR], 0);
            }
            download(&t, dx[recompute], t.io[program_slot(t.p, "grad:x")], TOKENS * WIDTH);
            trial_free(&t);
        }
        for (int r = 1; r <= RECOMPUTE_FULL; r++)
            assert_memory_equal(dx[0], dx[r], sizeof dx[0]); /* the same bits */
        assert_true(dx[0][0] != 0);
    }
}

static void expect_found(struct trial *t, int part, const char *what)
{
    struct error err = {0};
    t->exec.check = true;
    assert_int_equal(run(t, part, TOKENS, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    if (!strstr(err.what, what))
        fail_msg("'%s' is not in: %s", what, err.what);
    t->exec.check = false;
    assert_int_equal(run(t, part, TOKENS, &err), 0); /* unchecked, it goes through */
}

static void test_checked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct trial t = trial_make(backends[i], RECOMPUTE_NONE);
        float bad = INFINITY, huge = 3e38f, old;
        t.exec.check = true;
        assert_int_equal(run(&t, PROGRAM_FORWARD, TOKENS, NULL), 0); /* all is finite */
        assert_int_equal(run(&t, PROGRAM_BACKWARD, TOKENS, NULL), 0);

        download(&t, &old, (char *)t.param[1] + 4 * WIDTH, 1);
        upload(&t, (char *)t.param[1] + 4 * WIDTH, &bad, 1);
        expect_found(&t, PROGRAM_FORWARD, "op 'linear' of the forward pass: element 1 is ");
        upload(&t, (char *)t.param[1] + 4 * WIDTH, &old, 1);

        bad = NAN;
        upload(&t, (char *)t.io[program_slot(t.p, "x")] + 4 * (2 * WIDTH + 1), &bad, 1);
        expect_found(&t, PROGRAM_FORWARD, "op 'rmsnorm' of the forward pass: element 12 is nan");
        trial_free(&t);

        t = trial_make(backends[i], RECOMPUTE_NONE); /* too large a gradient doubled */
        assert_int_equal(run(&t, PROGRAM_FORWARD, TOKENS, NULL), 0);
        upload(&t, (char *)t.io[program_slot(t.p, "grad:y")] + 4 * 4, &huge, 1);
        expect_found(&t, PROGRAM_BACKWARD, "op 'add' of the backward pass: element 4 is inf");
        trial_free(&t);
    }
}

static void test_check_finite(void **state)
{
    (void)state;
    struct trial t = trial_make("guarded", RECOMPUTE_NONE);
    struct error err = {0};
    float values[4] = {1, -3e38f, 1e-45f, 0};
    uint16_t halves[2] = {0x3f80, 0xff80}; /* 1 and -infinity in bf16 */
    upload(&t, t.param[0], values, 4);
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_F32, 4, "weights", &err), 0);
    values[3] = -INFINITY;
    upload(&t, t.param[0], values, 4);
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_F32, 3, "weights", &err), 0);
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_F32, 4, "weights", &err), -1);
    assert_string_equal(err.what, "weights: element 3 is -inf");
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_I32, 4, "ids", &err), 0);
    assert_int_equal(exec_check_finite(&t.exec, NULL, DTYPE_F32, 0, "nothing", &err), 0);
    memcpy(values, halves, sizeof halves);
    upload(&t, t.param[0], values, 1);
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_BF16, 1, "halves", &err), 0);
    assert_int_equal(exec_check_finite(&t.exec, t.param[0], DTYPE_BF16, 2, "halves", &err), -1);
    trial_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward), cmocka_unit_test(test_fewer_rows),   cmocka_unit_test(test_counts),
        cmocka_unit_test(test_checked), cmocka_unit_test(test_check_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
