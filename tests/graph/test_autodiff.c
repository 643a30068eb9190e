/* Differentiation: which nodes it appends, in which order gradients of one value are added, how seeds and
 * results are named, and what it refuses. Numbers are checked in tests/backend, against differences. */
#include "support/cmocka.h"

#include "graph/graph.h"

#include <string.h>

static int input(struct graph *g, const char *name, enum dtype type, int64_t columns, bool grad)
{
    return graph_input(g, name, type, columns > 0 ? 2 : 1, (int64_t[]){GRAPH_TOKENS, columns}, grad);
}

static int weight(struct graph *g, int index, enum dtype type, int64_t rows, int64_t columns)
{
    return graph_param(g, index, type, columns > 0 ? 2 : 1, (int64_t[]){rows, columns}, true);
}

static void differentiate(struct graph *g)
{
    struct error err = {0};
    if (graph_differentiate(g, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
}

static void expect_refusal(struct graph *g, const char *const *words)
{
    struct error err = {0}, again = {0};
    assert_int_equal(graph_differentiate(g, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    for (; *words; words++)
        if (!strstr(err.what, *words))
            fail_msg("'%s' is not in: %s", *words, err.what);
    assert_int_equal(graph_check(g, &again), -1); /* it can no longer be compiled */
    assert_string_equal(again.what, err.what);
    graph_free(g);
}

#define REFUSES(g, ...) expect_refusal(g, (const char *const[]){__VA_ARGS__, NULL})

static const struct graph_node *producer(const struct graph *g, int value)
{
    assert_true(value >= 0 && value < g->value_count);
    assert_int_equal(g->values[value].kind, GRAPH_VALUE_NODE);
    return &g->nodes[g->values[value].index];
}

static void test_seeds_and_results(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "hidden", DTYPE_BF16, 15, true);
    int fixed = input(g, "fixed", DTYPE_BF16, 15, false);
    int norm = graph_rmsnorm(g, graph_add(g, x, fixed), weight(g, 0, DTYPE_BF16, 15, 0), 1e-5f);
    int y = graph_linear(g, norm, weight(g, 1, DTYPE_BF16, 7, 15), weight(g, 2, DTYPE_BF16, 7, 0));
    graph_output(g, "hidden", y);
    int forward = g->node_count;
    differentiate(g);

    int seed = graph_find_input(g, "grad:hidden");
    assert_int_not_equal(seed, GRAPH_NONE);
    assert_int_equal(g->values[seed].type, DTYPE_BF16);
    assert_int_equal(g->values[seed].dim[0], GRAPH_TOKENS);
    assert_int_equal(g->values[seed].dim[1], 7);
    assert_int_equal(graph_find_input(g, "grad:fixed"), GRAPH_NONE);
    assert_int_equal(graph_find_output(g, "grad:fixed"), GRAPH_NONE);
    int dx = graph_find_output(g, "grad:hidden");
    assert_int_equal(g->values[dx].type, DTYPE_BF16);
    assert_int_equal(g->values[dx].dim[1], 15);
    assert_int_equal(producer(g, dx)->op, OP_RMSNORM_GRAD_INPUT);
    const enum op ops[] = {OP_RMSNORM_GRAD_WEIGHT, OP_LINEAR_GRAD_WEIGHT, OP_LINEAR_GRAD_BIAS};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(producer(g, g->param_grad[i])->op, ops[i]);
        assert_int_equal(g->values[g->param_grad[i]].type, DTYPE_F32);
    }
    for (int n = 0; n < g->node_count; n++)
        assert_int_equal(g->nodes[n].backward, n >= forward);

    struct error err = {0};
    assert_int_equal(graph_differentiate(g, &err), -1);
    assert_non_null(strstr(err.what, "backward pass already"));
    graph_free(g);
}

static void test_loss_scale(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, true);
    graph_output(g, "loss",
                 graph_loss(g, x, weight(g, 0, DTYPE_F32, 9, 15), input(g, "targets", DTYPE_I32, 0, false)));
    differentiate(g);
    int scale = graph_find_input(g, "loss_scale");
    assert_int_not_equal(scale, GRAPH_NONE);
    assert_int_equal(g->values[scale].ndim, 1);
    assert_int_equal(g->values[scale].dim[0], 1);
    assert_int_equal(graph_find_input(g, "grad:loss"), GRAPH_NONE);
    const struct graph_node *grad = producer(g, g->param_grad[0]);
    assert_int_equal(grad->op, OP_LOSS_GRAD);
    assert_int_equal(grad->in[3], scale);
    assert_int_equal(graph_find_output(g, "backward:loss"), grad->out[2]);
    assert_int_equal(graph_find_output(g, "grad:x"), grad->out[0]);
    graph_free(g);
}

/* A frozen parameter gets no gradient, and no op is spent on one. */
static void test_frozen(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int w = graph_param(g, 0, DTYPE_F32, 2, (int64_t[]){7, 15}, false);
    graph_output(g, "y", graph_linear(g, input(g, "x", DTYPE_F32, 15, true), w, GRAPH_NONE));
    differentiate(g);
    assert_int_equal(g->param_grad[0], GRAPH_NONE);
    assert_int_equal(g->node_count, 2);
    assert_int_equal(g->nodes[1].op, OP_LINEAR_GRAD_INPUT);
    graph_free(g);
}

/* Three uses of one value: gradients come last use first, each added to the sum so far: (c + b) + a. */
static void test_order_of_sums(void **state)
{
    (void)state;
    for (int repeat = 0; repeat < 2; repeat++) {
        struct graph *g = graph_create();
        int x = graph_rmsnorm(g, input(g, "x", DTYPE_F32, 15, true), weight(g, 9, DTYPE_F32, 15, 0), 1e-5f);
        for (int i = 0; i < 3; i++) {
            const char *const names[] = {"a", "b", "c"};
            graph_output(g, names[i], graph_linear(g, x, weight(g, i, DTYPE_F32, 7, 15), GRAPH_NONE));
        }
        differentiate(g);
        const struct graph_node *norm = producer(g, g->param_grad[9]);
        const struct graph_node *outer = producer(g, norm->in[0]);
        assert_int_equal(outer->op, OP_ADD);
        const struct graph_node *inner = producer(g, outer->in[0]);
        assert_int_equal(inner->op, OP_ADD);
        const int order[] = {inner->in[0], inner->in[1], outer->in[1]};
        for (int i = 0; i < 3; i++) {
            const struct graph_node *n = producer(g, order[i]);
            assert_int_equal(n->op, OP_LINEAR_GRAD_INPUT);
            assert_int_equal(n->in[1], g->param_value[2 - i]);
        }
        graph_free(g);
    }
}

/* A parameter used twice: the same chain, in fp32. */
static void test_parameter_used_twice(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int w = weight(g, 0, DTYPE_BF16, 15, 15), x = input(g, "x", DTYPE_BF16, 15, true);
    int first = graph_linear(g, x, w, GRAPH_NONE);
    graph_output(g, "y", graph_linear(g, first, w, GRAPH_NONE));
    differentiate(g);
    const struct graph_node *sum = producer(g, g->param_grad[0]);
    assert_int_equal(sum->op, OP_ADD);
    assert_int_equal(g->values[g->param_grad[0]].type, DTYPE_F32);
    assert_int_equal(producer(g, sum->in[0])->in[1], first); /* the later use comes first */
    assert_int_equal(producer(g, sum->in[1])->in[1], x);
    graph_free(g);
}

/* The same operand twice in one op. */
static void test_operand_twice(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, true);
    graph_output(g, "y", graph_swiglu(g, x, x));
    differentiate(g);
    const struct graph_node *sum = producer(g, graph_find_output(g, "grad:x"));
    assert_int_equal(sum->op, OP_ADD);
    assert_int_equal(producer(g, sum->in[0])->op, OP_SWIGLU_GRAD);
    assert_int_equal(sum->in[1], sum->in[0] + 1);
    graph_free(g);
}

/* The gradient of a rotation is the rotation back. */
static void test_rope(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 24, true), table = input(g, "table", DTYPE_F32, 6, false);
    graph_output(g, "y", graph_rope(g, x, table, 4));
    differentiate(g);
    const struct graph_node *back = producer(g, graph_find_output(g, "grad:x"));
    assert_int_equal(back->op, OP_ROPE);
    assert_int_equal(back->attr.inverse, 1);
    assert_int_equal(back->in[1], table);
    graph_free(g);
}

static void test_no_rule(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, true);
    int rows = graph_input(g, "rows", DTYPE_I32, 1, (int64_t[]){GRAPH_PICKED}, false);
    graph_output(g, "y",
                 graph_gather_rows(g, graph_linear(g, x, weight(g, 0, DTYPE_F32, 7, 15), GRAPH_NONE), rows));
    REFUSES(g, "op 'gather_rows' has no gradient", "'gather_rows 1' needs one");

    g = graph_create();
    x = input(g, "x", DTYPE_F32, 24, true);
    int cache = graph_input(g, "cache", DTYPE_F32, 2, (int64_t[]){GRAPH_CACHE, 24}, false);
    int pieces = graph_input(g, "pieces", DTYPE_I32, 2, (int64_t[]){GRAPH_PIECES, 4}, false);
    int k = graph_cache_write(g, x, input(g, "slots", DTYPE_I32, 0, false), cache);
    graph_output(g, "y", graph_attention(g, x, k, k, pieces, 4, 4, 1));
    struct error err = {0};
    assert_int_equal(graph_differentiate(g, &err), -1); /* attention has none over a cache */
    assert_string_equal(err.where, "attention_grad");
    graph_free(g);
}

/* A gradient that an op would drop without a word. */
static void test_dropped_gradients(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 24, true), table = input(g, "table", DTYPE_F32, 6, true);
    graph_output(g, "y", graph_rope(g, x, table, 4));
    REFUSES(g, "op 'rope' gives no gradient to 'table'");

    g = graph_create();
    x = input(g, "x", DTYPE_F32, 15, true);
    int norm = graph_rmsnorm(g, x, weight(g, 0, DTYPE_F32, 15, 0), 1e-5f);
    graph_output(g, "y", norm);
    graph_output(g, "rstd", norm + 1);
    REFUSES(g, "op 'rmsnorm' has no gradient through 'rmsnorm 0 (second)'");
}

static void test_unreached(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, true);
    weight(g, 3, DTYPE_F32, 4, 5);
    graph_output(g, "y", graph_add(g, x, x));
    REFUSES(g, "no gradient reaches parameter 3");

    g = graph_create();
    input(g, "lonely", DTYPE_F32, 15, true);
    graph_output(
        g, "y",
        graph_linear(g, input(g, "x", DTYPE_F32, 15, false), weight(g, 0, DTYPE_F32, 7, 15), GRAPH_NONE));
    REFUSES(g, "no gradient reaches lonely");

    /* Logits stop gradients: what hangs on them alone is refused, too. */
    g = graph_create();
    graph_output(g, "y",
                 graph_linear_f32(g, input(g, "x", DTYPE_F32, 15, false), weight(g, 0, DTYPE_F32, 7, 15)));
    REFUSES(g, "no gradient reaches parameter 0");
}

static void test_gradient_type(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int64_t shape[] = {GRAPH_TOKENS, 15};
    int p = graph_param(g, 0, DTYPE_BF16, 2, shape, true);
    graph_output(g, "y",
                 graph_rmsnorm(g, graph_add(g, input(g, "x", DTYPE_BF16, 15, false), p),
                               weight(g, 1, DTYPE_BF16, 15, 0), 1e-5f));
    REFUSES(g, "the gradient of parameter 0 is not fp32");
}

static void test_two_losses(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int x = input(g, "x", DTYPE_F32, 15, true), targets = input(g, "targets", DTYPE_I32, 0, false);
    int w = weight(g, 0, DTYPE_F32, 9, 15);
    graph_output(g, "loss", graph_loss(g, x, w, targets));
    graph_output(g, "other", graph_loss(g, x, w, targets));
    REFUSES(g, "two inputs are named 'loss_scale'");
}

/* "grad:" and the name must fit, too. */
static void test_long_name(void **state)
{
    (void)state;
    char name[48];
    memset(name, 'n', 45);
    name[45] = '\0';
    struct graph *g = graph_create();
    int x = input(g, name, DTYPE_F32, 15, true);
    graph_output(g, "y", graph_swiglu(g, x, x));
    REFUSES(g, "longer than 47");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seeds_and_results),
        cmocka_unit_test(test_loss_scale),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_order_of_sums),
        cmocka_unit_test(test_parameter_used_twice),
        cmocka_unit_test(test_operand_twice),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_no_rule),
        cmocka_unit_test(test_dropped_gradients),
        cmocka_unit_test(test_unreached),
        cmocka_unit_test(test_gradient_type),
        cmocka_unit_test(test_two_losses),
        cmocka_unit_test(test_long_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
