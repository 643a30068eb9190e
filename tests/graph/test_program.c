/* Programs: what is saved and what is run again, where values lie (run on symbols, see check_program.h), what
 * adds to another unit's gradient, caches, workspaces, bounds. */
#include "graph/check_program.h"

#include "base/rng.h"
#include "support/allocations.h"

enum { TOKENS = 11 };

static const struct graph_counts bounds = {.tokens = TOKENS, .pieces = 3, .cache = 29, .picked = 2};

static struct program *compile(const struct graph *g, struct program_options options)
{
    struct program *p;
    struct error err = {0};
    options.bounds = bounds;
    if (program_compile(&p, g, &options, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    check_program(g, p, options.grad_adds, "a program");
    return p;
}

static void expect_refusal(const struct graph *g, const bool *adds, const char *word)
{
    struct program *p;
    struct error err = {0};
    struct program_options options = {.bounds = bounds, .grad_adds = adds};
    assert_int_equal(program_compile(&p, g, &options, &err), -1);
    assert_null(p);
    if (err.kind != ERROR_RUN || !strstr(err.what, word))
        fail_msg("%s: %s", word, err.what);
}

static int input(struct graph *g, const char *name, enum dtype type, int64_t columns, bool grad)
{
    return graph_input(g, name, type, columns > 0 ? 2 : 1, (int64_t[]){GRAPH_TOKENS, columns}, grad);
}

static int weight(struct graph *g, int index, int64_t rows, int64_t columns)
{
    return graph_param(g, index, DTYPE_F32, columns > 0 ? 2 : 1, (int64_t[]){rows, columns}, true);
}

static void differentiate(struct graph *g)
{
    struct error err = {0};
    if (graph_differentiate(g, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
}

/* x[T,15] -> norm -> linear 15 to 7 */
static struct graph *small_graph(void)
{
    struct graph *g = graph_create();
    int n = graph_rmsnorm(g, input(g, "hidden", DTYPE_F32, 15, true), weight(g, 0, 15, 0), 1e-5f);
    graph_output(g, "y", graph_linear(g, n, weight(g, 1, 7, 15), GRAPH_NONE));
    differentiate(g);
    return g;
}

/* x[T,15] -> norm -> loss over 9 words */
static struct graph *head_graph(void)
{
    struct graph *g = graph_create();
    int n = graph_rmsnorm(g, input(g, "hidden", DTYPE_F32, 15, true), weight(g, 0, 15, 0), 1e-5f);
    graph_output(g, "loss", graph_loss(g, n, weight(g, 1, 9, 15), input(g, "targets", DTYPE_I32, 0, false)));
    differentiate(g);
    return g;
}

static int count_recomputed(const struct program *p)
{
    int count = 0;
    for (int part = 0; part < PROGRAM_PARTS; part++)
        for (int s = 0; s < p->part[part].count; s++)
            count += p->part[part].steps[s].recomputed;
    return count;
}

static void test_saved(void **state)
{
    (void)state;
    struct graph *g = small_graph();
    struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_NONE});
    /* The normalised rows (11 x 15 fp32: 660 bytes, 704 aligned) and rstd (44, 64 aligned). */
    assert_int_equal(p->saved_bytes, 704 + 64);
    assert_int_equal(p->part[PROGRAM_FORWARD].count, 2);
    assert_int_equal(p->part[PROGRAM_BACKWARD].count, 4);
    assert_int_equal(p->part[PROGRAM_FORWARD].work_bytes, 0);
    assert_int_equal(p->part[PROGRAM_BACKWARD].work_bytes, 704); /* the gradient of the normalised rows */
    assert_int_equal(count_recomputed(p), 0);
    program_free(p);

    p = compile(g, (struct program_options){.recompute = RECOMPUTE_FULL});
    assert_int_equal(p->saved_bytes, 0);
    assert_int_equal(count_recomputed(p), 1); /* nobody reads what the linear op gave */
    assert_int_equal(p->part[PROGRAM_BACKWARD].count, 5);
    assert_int_equal(p->part[PROGRAM_BACKWARD].steps[0].op, OP_RMSNORM);
    assert_true(p->part[PROGRAM_BACKWARD].steps[0].recomputed);
    assert_int_equal(p->part[PROGRAM_FORWARD].work_bytes, 704 + 64);
    program_free(p);
    graph_free(g);
}

/* A block's norms and the product of its gates are run again, for what they read is saved anyway; products
 * and attention never; the rotated queries and keys are kept, for what they come from is not. */
static void test_selective(void **state)
{
    (void)state;
    struct graph *g = small_graph();
    struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_SELECTIVE});
    assert_int_equal(p->saved_bytes, 0); /* the norm reads an input of the unit */
    assert_int_equal(count_recomputed(p), 1);
    program_free(p);
    graph_free(g);

    g = graph_create();
    int x = input(g, "hidden", DTYPE_F32, 150, true); /* wide enough for a product to cost something */
    int gate = graph_linear(g, x, weight(g, 0, 30, 150), GRAPH_NONE);
    int up = graph_linear(g, x, weight(g, 1, 30, 150), GRAPH_NONE);
    int y = graph_swiglu(g, gate, up);
    graph_output(g, "hidden", graph_linear(g, y, weight(g, 2, 150, 30), GRAPH_NONE));
    assert_int_equal(graph_differentiate(g, NULL), 0);
    p = compile(g, (struct program_options){.recompute = RECOMPUTE_SELECTIVE});
    assert_int_equal(p->saved_bytes, 2 * 1344); /* gate and up, 11 x 30 fp32, aligned; not their product */
    assert_int_equal(count_recomputed(p), 1);
    int again = 0;
    for (int s = 0; s < p->part[PROGRAM_BACKWARD].count; s++)
        again += p->part[PROGRAM_BACKWARD].steps[s].recomputed &&
                 p->part[PROGRAM_BACKWARD].steps[s].op == OP_SWIGLU;
    assert_int_equal(again, 1);
    program_free(p);
    graph_free(g);
}

/* The backward part makes the loss itself and reads nothing of the forward part. */
static void test_loss_is_not_run_again(void **state)
{
    (void)state;
    struct graph *g = head_graph();
    struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_FULL});
    assert_int_equal(p->saved_bytes, 0);
    assert_int_equal(count_recomputed(p), 1);
    assert_true(program_slot(p, "backward:loss") >= 0);
    for (int s = 0; s < p->part[PROGRAM_BACKWARD].count; s++)
        assert_int_not_equal(p->part[PROGRAM_BACKWARD].steps[s].op, OP_LOSS);
    program_free(p);
    graph_free(g);
}

/* A graph that is not differentiated saves nothing and has no backward part. */
static void test_forward_alone(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int n = graph_rmsnorm(g, input(g, "hidden", DTYPE_F32, 15, true), weight(g, 0, 15, 0), 1e-5f);
    graph_output(g, "y", graph_linear(g, n, weight(g, 1, 7, 15), GRAPH_NONE));
    struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_FULL});
    assert_int_equal(p->saved_bytes, 0);
    assert_int_equal(p->part[PROGRAM_BACKWARD].count, 0);
    assert_int_equal(p->part[PROGRAM_BACKWARD].work_bytes, 0);
    program_free(p);
    graph_free(g);
}

static void test_grad_adds(void **state)
{
    (void)state;
    struct graph *g = head_graph();
    bool adds[] = {false, true};
    struct program *p = compile(g, (struct program_options){.grad_adds = adds});
    const struct program_part *back = &p->part[PROGRAM_BACKWARD];
    const struct program_step *last = &back->steps[back->count - 1];
    assert_int_equal(last->op, OP_ACCUMULATE);
    assert_int_equal(last->in[0].place, PLACE_WORK);
    assert_int_equal(last->out[0].place, PLACE_GRAD);
    assert_int_equal(last->out[0].index, 1);
    assert_int_equal(last->attr.first, 0);
    for (int s = 0; s + 1 < back->count; s++)
        for (int i = 0; i < back->steps[s].outputs; i++)
            assert_false(back->steps[s].out[i].place == PLACE_GRAD && back->steps[s].out[i].index == 1);
    program_free(p);
    graph_free(g);
}

/* k and v of decoding: what cache_write gives stands in the cache itself. */
static void test_cache(void **state)
{
    (void)state;
    for (int given = 0; given < 2; given++) {
        struct graph *g = graph_create();
        int64_t cache_shape[] = {GRAPH_CACHE, 12};
        int cache = graph_input(g, "cache", DTYPE_F32, 2, cache_shape, false);
        int other = graph_input(g, "other", DTYPE_F32, 2, cache_shape, false);
        if (!given) /* a cache that is a temporary lives as long as what was written to it is read */
            cache = graph_add(g, cache, cache);
        int x = input(g, "x", DTYPE_F32, 12, false), slots = input(g, "slots", DTYPE_I32, 0, false);
        int pieces = graph_input(g, "pieces", DTYPE_I32, 2, (int64_t[]){GRAPH_PIECES, 4}, false);
        int k = graph_cache_write(g, x, slots, cache);
        int y = graph_add(g, graph_add(g, x, x), graph_swiglu(g, x, x));
        int wide = graph_add(g, other, other);
        graph_output(g, "wide", graph_add(g, wide, wide));
        graph_output(g, "o", graph_attention(g, y, k, k, pieces, 2, 2, 1));
        struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_NONE});
        const struct program_part *part = &p->part[PROGRAM_FORWARD];
        for (int s = 0; s < part->count; s++) {
            const struct program_step *step = &part->steps[s];
            if (step->op != OP_CACHE_WRITE)
                continue;
            assert_int_equal(step->out[0].place, given ? PLACE_IO : PLACE_WORK);
            assert_int_equal(step->out[0].place, step->in[2].place);
            assert_int_equal(step->out[0].index, step->in[2].index);
            assert_int_equal(step->out[0].offset, step->in[2].offset);
            const struct program_step *attention = &part->steps[part->count - 1];
            assert_int_equal(attention->in[1].place, step->out[0].place);
            assert_int_equal(attention->in[2].offset, step->out[0].offset);
        }
        program_free(p);
        graph_free(g);
    }
}

struct asked {
    int count;
    int64_t tokens;
    size_t bytes;
};

static int ask(void *context, const struct op_call *call, size_t *bytes, struct error *err)
{
    struct asked *a = context;
    a->count++;
    if (call->inputs < 1 || call->in[0].data || call->out[0].data)
        return error_set(err, ERROR_RUN, NULL, NULL, "operands of a question have no addresses");
    if (call->in[0].dim[0] != a->tokens)
        return error_set(err, ERROR_RUN, NULL, NULL, "%lld rows instead of the bound",
                         (long long)call->in[0].dim[0]);
    *bytes = a->bytes;
    return 0;
}

static void test_workspace(void **state)
{
    (void)state;
    struct graph *g = small_graph();
    struct asked a = {.tokens = TOKENS, .bytes = 1000};
    struct program *p = compile(g, (struct program_options){.workspace = ask, .context = &a});
    assert_int_equal(a.count, 2 + 4);
    for (int part = 0; part < PROGRAM_PARTS; part++)
        for (int s = 0; s < p->part[part].count; s++)
            assert_int_equal(p->part[part].steps[s].workspace_bytes, 1000);
    assert_int_equal(p->part[PROGRAM_FORWARD].work_bytes, 1024);
    struct op_call call;
    program_call(&p->part[PROGRAM_FORWARD].steps[0], &bounds, &call);
    assert_int_equal(call.workspace_bytes, 1000);
    program_free(p);

    a.tokens = TOKENS + 1;
    struct error err = {0};
    struct program_options options = {.bounds = bounds, .workspace = ask, .context = &a};
    assert_int_equal(program_compile(&p, g, &options, &err), -1);
    assert_non_null(strstr(err.what, "instead of the bound"));
    graph_free(g);
}

/* Counts below the bounds change sizes, not places. */
static void test_call(void **state)
{
    (void)state;
    struct graph *g = small_graph();
    struct program *p = compile(g, (struct program_options){.recompute = RECOMPUTE_NONE});
    struct graph_counts counts = {.tokens = 4};
    struct op_call call;
    program_call(&p->part[PROGRAM_FORWARD].steps[1], &counts, &call);
    assert_int_equal(call.op, OP_LINEAR);
    assert_int_equal(call.inputs, 2);
    assert_int_equal(call.outputs, 1);
    assert_int_equal(call.in[0].dim[0], 4);
    assert_int_equal(call.in[0].dim[1], 15);
    assert_int_equal(call.in[1].dim[0], 7);
    assert_int_equal(call.out[0].dim[0], 4);
    assert_null(call.in[0].data);
    int slot = program_slot(p, "hidden");
    assert_true(slot >= 0 && !p->io[slot].output);
    assert_int_equal(program_io_bytes(&p->io[slot], &counts), 4 * 15 * 4);
    assert_true(p->io[program_slot(p, "grad:hidden")].output);
    assert_false(p->io[program_slot(p, "grad:y")].output);
    assert_int_equal(program_slot(p, "nothing"), -1);
    program_free(p);
    program_free(NULL);
    graph_free(g);
}

static void test_refusals(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, false);
    graph_output(g, "y", x);
    expect_refusal(g, NULL, "output 'y' is an input");
    graph_free(g);

    g = graph_create();
    graph_output(g, "p", weight(g, 0, 3, 4));
    expect_refusal(g, NULL, "output 'p' is an input, a parameter");
    graph_free(g);

    g = graph_create();
    int y = graph_add(g, input(g, "x", DTYPE_F32, 15, false), input(g, "z", DTYPE_F32, 15, false));
    graph_output(g, "first", y);
    graph_output(g, "second", y);
    expect_refusal(g, NULL, "output 'second' is");
    graph_free(g);

    /* add hands one gradient to both operands: they cannot be two results */
    g = graph_create();
    int a = input(g, "a", DTYPE_F32, 15, true), b = input(g, "b", DTYPE_F32, 15, true);
    graph_output(g, "y", graph_add(g, a, b));
    differentiate(g);
    expect_refusal(g, NULL, "output 'grad:a' is");
    graph_free(g);

    g = graph_create();
    int cache = graph_input(g, "cache", DTYPE_F32, 2, (int64_t[]){GRAPH_CACHE, 15}, false);
    x = input(g, "x", DTYPE_F32, 15, false);
    graph_output(g, "new", graph_cache_write(g, x, input(g, "slots", DTYPE_I32, 0, false), cache));
    expect_refusal(g, NULL, "output 'new' is a cache");
    graph_free(g);

    g = graph_create();
    graph_linear(g, input(g, "x", DTYPE_F32, 15, false), weight(g, 0, 3, 4), GRAPH_NONE);
    expect_refusal(g, NULL, "operands do not fit");
    graph_free(g);
}

/* Random graphs: any value may be read by any later op, several times. */
enum { POOL = 40 };

struct random_graph {
    struct graph *g;
    uint64_t seed, draws;
    int value[POOL];
    bool used[POOL];
    int count, params;
};

static int64_t draw(struct random_graph *r, int64_t below)
{
    return (int64_t)rng_below(r->seed, 17, r->draws++, (uint64_t)below);
}

static int64_t width(const struct random_graph *r, int i)
{
    return r->g->values[r->value[i]].dim[1];
}

static int pick(struct random_graph *r)
{
    int i = (int)draw(r, r->count);
    r->used[i] = true;
    return i;
}

/* Another value of the same width; the same one where there is none. */
static int pick_alike(struct random_graph *r, int like)
{
    for (int tries = 0; tries < 20; tries++) {
        int i = (int)draw(r, r->count);
        if (width(r, i) == width(r, like)) {
            r->used[i] = true;
            return i;
        }
    }
    return like;
}

static void random_op(struct random_graph *r)
{
    static const int64_t widths[] = {1, 3, 16, 40};
    struct graph *g = r->g;
    int a = pick(r), x = r->value[a], y;
    switch (draw(r, 4)) {
    case 0:
        y = graph_rmsnorm(g, x, weight(g, r->params++, width(r, a), 0), 1e-5f);
        break;
    case 1:
        y = graph_linear(g, x, weight(g, r->params++, widths[draw(r, 4)], width(r, a)), GRAPH_NONE);
        break;
    case 2:
        y = graph_swiglu(g, x, r->value[pick_alike(r, a)]);
        break;
    default:
        y = graph_add(g, x, r->value[pick_alike(r, a)]);
        break;
    }
    assert_int_not_equal(y, GRAPH_NONE);
    r->value[r->count++] = y;
}

static struct graph *random_graph(uint64_t seed, int ops, bool backward, int *params)
{
    struct random_graph r = {.g = graph_create(), .seed = seed};
    char name[32];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "x%d", i);
        int x = input(r.g, name, DTYPE_F32, 3 + 13 * i, true);
        r.value[r.count++] = graph_rmsnorm(r.g, x, weight(r.g, r.params++, 3 + 13 * i, 0), 1e-5f);
    }
    for (int i = 0; i < ops; i++)
        random_op(&r);
    for (int i = 0; i < r.count; i++) { /* what nobody reads is a result */
        snprintf(name, sizeof name, "y%d", i);
        if (!r.used[i])
            graph_output(r.g, name, r.value[i]);
    }
    if (backward)
        differentiate(r.g);
    *params = r.params;
    return r.g;
}

static int random_workspace(void *context, const struct op_call *call, size_t *bytes, struct error *err)
{
    (void)err;
    const uint64_t *seed = context;
    *bytes = (size_t)(rng_below(*seed, (uint64_t)call->op, (uint64_t)call->in[0].dim[1], 3) * 333);
    return 0;
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        int params;
        bool adds[POOL + 2] = {false};
        struct graph *g = random_graph(seed, 1 + (int)(seed % 36), seed % 5 != 0, &params);
        for (int i = 0; i < params; i++)
            adds[i] = rng_below(seed, 99, (uint64_t)i, 4) == 0;
        for (int mode = 0; mode < 4; mode++) {
            struct program_options options = {.recompute = mode & 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                                              .grad_adds = mode & 2 ? adds : NULL,
                                              .workspace = random_workspace,
                                              .context = &seed};
            struct program *p = compile(g, options);
            if (mode & 1)
                assert_int_equal(p->saved_bytes, 0);
            program_free(p);
        }
        graph_free(g);
    }
}

/* The same graph gives the same program: nothing depends on addresses or on qsort's moods. */
static void test_repeatable(void **state)
{
    (void)state;
    int params;
    struct graph *g = random_graph(5, 36, true, &params), *h = random_graph(5, 36, true, &params);
    struct program *p = compile(g, (struct program_options){0}), *q = compile(h, (struct program_options){0});
    for (int part = 0; part < PROGRAM_PARTS; part++) {
        assert_int_equal(p->part[part].count, q->part[part].count);
        assert_int_equal(p->part[part].work_bytes, q->part[part].work_bytes);
        for (int s = 0; s < p->part[part].count; s++)
            for (int i = 0; i < p->part[part].steps[s].outputs; i++)
                assert_int_equal(p->part[part].steps[s].out[i].offset, q->part[part].steps[s].out[i].offset);
    }
    program_free(p);
    program_free(q);
    graph_free(g);
    graph_free(h);
}

static void test_memory(void **state)
{
    (void)state;
    struct graph *g = small_graph();
    struct program_options options = {.bounds = bounds};
    int64_t n = 0;
    for (;; n++) {
        struct program *p;
        struct error err = {0};
        allocations_fail_after(n);
        int status = program_compile(&p, g, &options, &err);
        allocations_fail_after(-1);
        program_free(p);
        if (status == 0)
            break;
        assert_null(p);
        assert_non_null(strstr(err.what, "cannot allocate"));
        assert_true(n < 100);
    }
    assert_true(n >= 7);
    graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_selective),
        cmocka_unit_test(test_loss_is_not_run_again),
        cmocka_unit_test(test_forward_alone),
        cmocka_unit_test(test_grad_adds),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_call),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
