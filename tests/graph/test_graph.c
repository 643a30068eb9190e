/* The builder: shapes and types of every op, what each shape rule refuses, sticky errors, names. */
#include "support/cmocka.h"

#include "graph/graph.h"
#include "support/allocations.h"

#include <stdio.h>
#include <string.h>

/* A graph with one value of every form that an operand can have. */
struct forms {
    struct graph *g;
    int ids, x, x2, x_bf16, narrow, w, w_bf16, bias, norm, norm_bf16, positions, inv_freq, table, odd_table,
        q, k, kc, v, pieces, wide_pieces, slots, cache, targets, rows, rstd, lse2, scale, cube;
};

static int matrix(struct graph *g, const char *name, enum dtype type, int64_t rows, int64_t columns)
{
    return graph_input(g, name, type, 2, (int64_t[]){rows, columns}, true);
}

static int vector(struct graph *g, const char *name, enum dtype type, int64_t n)
{
    return graph_input(g, name, type, 1, &n, false);
}

static struct forms forms_make(void)
{
    struct graph *g = graph_create();
    assert_non_null(g);
    struct forms f = {.g = g};
    f.ids = vector(g, "ids", DTYPE_I32, GRAPH_TOKENS);
    f.x = matrix(g, "x", DTYPE_F32, GRAPH_TOKENS, 15);
    f.x2 = matrix(g, "x2", DTYPE_F32, GRAPH_TOKENS, 15);
    f.x_bf16 = matrix(g, "x_bf16", DTYPE_BF16, GRAPH_TOKENS, 15);
    f.narrow = matrix(g, "narrow", DTYPE_F32, GRAPH_TOKENS, 7);
    f.w = graph_param(g, 0, DTYPE_F32, 2, (int64_t[]){7, 15}, true);
    f.w_bf16 = graph_param(g, 1, DTYPE_BF16, 2, (int64_t[]){7, 15}, true);
    f.bias = graph_param(g, 2, DTYPE_F32, 1, (int64_t[]){7}, true);
    f.norm = graph_param(g, 3, DTYPE_F32, 1, (int64_t[]){15}, true);
    f.norm_bf16 = graph_param(g, 4, DTYPE_BF16, 1, (int64_t[]){15}, true);
    f.positions = vector(g, "positions", DTYPE_I32, GRAPH_TOKENS);
    f.inv_freq = vector(g, "inv_freq", DTYPE_F32, 3);
    f.table = matrix(g, "table", DTYPE_F32, GRAPH_TOKENS, 6);
    f.odd_table = matrix(g, "odd_table", DTYPE_F32, GRAPH_TOKENS, 5);
    f.q = matrix(g, "q", DTYPE_F32, GRAPH_TOKENS, 24);
    f.k = matrix(g, "k", DTYPE_F32, GRAPH_TOKENS, 12);
    f.v = matrix(g, "v", DTYPE_F32, GRAPH_TOKENS, 12);
    f.kc = matrix(g, "kc", DTYPE_F32, GRAPH_CACHE, 12);
    f.pieces = graph_input(g, "pieces", DTYPE_I32, 2, (int64_t[]){GRAPH_PIECES, 4}, false);
    f.wide_pieces = graph_input(g, "wide_pieces", DTYPE_I32, 2, (int64_t[]){GRAPH_PIECES, 5}, false);
    f.slots = vector(g, "slots", DTYPE_I32, GRAPH_TOKENS);
    f.cache = graph_input(g, "cache", DTYPE_F32, 2, (int64_t[]){GRAPH_CACHE, 12}, false);
    f.targets = vector(g, "targets", DTYPE_I32, GRAPH_TOKENS);
    f.rows = vector(g, "rows", DTYPE_I32, GRAPH_PICKED);
    f.rstd = vector(g, "rstd", DTYPE_F32, GRAPH_TOKENS);
    f.lse2 = matrix(g, "lse2", DTYPE_F32, GRAPH_TOKENS, 4);
    f.scale = vector(g, "scale", DTYPE_F32, 1);
    f.cube = graph_input(g, "cube", DTYPE_F32, 3, (int64_t[]){GRAPH_TOKENS, 3, 5}, false);
    assert_int_equal(graph_check(g, NULL), 0);
    return f;
}

static void assert_value(const struct graph *g, int value, enum dtype type, int ndim, int64_t d0, int64_t d1)
{
    assert_true(value >= 0 && value < g->value_count);
    const struct graph_value *v = &g->values[value];
    assert_int_equal(v->type, type);
    assert_int_equal(v->ndim, ndim);
    assert_int_equal(v->dim[0], d0);
    if (ndim > 1)
        assert_int_equal(v->dim[1], d1);
}

static void test_shapes(void **state)
{
    (void)state;
    struct forms f = forms_make();
    struct graph *g = f.g;
    int embedded = graph_embed(g, f.ids, f.w);
    assert_value(g, embedded, DTYPE_F32, 2, GRAPH_TOKENS, 15);
    assert_value(g, graph_linear(g, f.x, f.w, GRAPH_NONE), DTYPE_F32, 2, GRAPH_TOKENS, 7);
    int linear = graph_linear(g, f.x, f.w, f.bias);
    assert_value(g, linear, DTYPE_F32, 2, GRAPH_TOKENS, 7);
    assert_int_equal(g->nodes[g->node_count - 1].inputs, 3);
    int logits = graph_linear_f32(g, f.x_bf16, f.w_bf16);
    assert_value(g, logits, DTYPE_F32, 2, GRAPH_TOKENS, 7);
    assert_false(g->values[logits].needs_grad);
    int norm = graph_rmsnorm(g, f.x_bf16, f.norm_bf16, 1e-5f);
    assert_value(g, norm, DTYPE_BF16, 2, GRAPH_TOKENS, 15);
    assert_value(g, norm + 1, DTYPE_F32, 1, GRAPH_TOKENS, 0);
    assert_true(g->nodes[g->node_count - 1].attr.eps == 1e-5f);
    assert_value(g, graph_rope_table(g, f.positions, f.inv_freq), DTYPE_F32, 2, GRAPH_TOKENS, 6);
    assert_value(g, graph_rope(g, f.q, f.table, 4), DTYPE_F32, 2, GRAPH_TOKENS, 24);
    assert_int_equal(g->nodes[g->node_count - 1].attr.head_dim, 6);
    int o = graph_attention(g, f.q, f.k, f.v, f.pieces, 4, 2, 0.5f);
    assert_value(g, o, DTYPE_F32, 2, GRAPH_TOKENS, 24);
    assert_value(g, o + 1, DTYPE_F32, 2, GRAPH_TOKENS, 4);
    assert_int_equal(g->nodes[g->node_count - 1].attr.head_dim, 6);
    int cache = graph_cache_write(g, f.k, f.slots, f.cache);
    assert_value(g, cache, DTYPE_F32, 2, GRAPH_CACHE, 12);
    assert_value(g, graph_attention(g, f.q, cache, cache, f.pieces, 4, 2, 0.5f), DTYPE_F32, 2, GRAPH_TOKENS,
                 24);
    assert_value(g, graph_swiglu(g, f.x, f.x2), DTYPE_F32, 2, GRAPH_TOKENS, 15);
    assert_value(g, graph_add(g, f.cube, f.cube), DTYPE_F32, 3, GRAPH_TOKENS, 3);
    assert_value(g, graph_gather_rows(g, f.x, f.rows), DTYPE_F32, 2, GRAPH_PICKED, 15);
    int loss = graph_loss(g, f.x, f.w, f.targets);
    assert_value(g, loss, DTYPE_F32, 1, GRAPH_TOKENS, 0);
    assert_int_equal(graph_check(g, NULL), 0);
    assert_string_equal(g->values[norm + 1].name, "rmsnorm 4 (second)");
    graph_free(g);
}

/* Whether a gradient is needed goes from inputs to outputs. */
static void test_needs_grad(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int64_t shape[] = {GRAPH_TOKENS, 4};
    int fixed = graph_input(g, "fixed", DTYPE_F32, 2, shape, false);
    int free_input = graph_input(g, "free", DTYPE_F32, 2, shape, true);
    int frozen = graph_param(g, 0, DTYPE_F32, 1, (int64_t[]){4}, false);
    assert_false(g->values[graph_rmsnorm(g, fixed, frozen, 1e-5f)].needs_grad);
    int n = graph_rmsnorm(g, free_input, frozen, 1e-5f);
    assert_true(g->values[n].needs_grad && g->values[n + 1].needs_grad);
    assert_true(g->values[graph_add(g, fixed, n)].needs_grad);
    graph_free(g);
}

/* Adds a node to a fresh graph and expects the op's own refusal, naming it, with a word of the reason. */
static void refuses(int line, enum op op, const struct forms *f, const int *in, int inputs,
                    struct op_attr attr, const char *word)
{
    struct error err = {0};
    const char *name = graph_rule(op)->name;
    if (graph_node_add(f->g, op, in, inputs, &attr) != GRAPH_NONE)
        fail_msg("line %d: %s took wrong operands", line, name);
    assert_int_equal(graph_check(f->g, &err), -1);
    if (err.kind != ERROR_RUN || strcmp(err.where, name) != 0 || !strstr(err.what, word))
        fail_msg("line %d: %s: %s: %s", line, name, err.where, err.what);
    f->g->error = (struct error){0};
}

static void accepts(int line, enum op op, const struct forms *f, const int *in, int inputs,
                    struct op_attr attr)
{
    struct error err = {0};
    if (graph_node_add(f->g, op, in, inputs, &attr) == GRAPH_NONE) {
        graph_check(f->g, &err);
        fail_msg("line %d: %s: %s", line, err.where, err.what);
    }
}

struct operands {
    int in[OP_MAX_INPUTS], count;
};

/* For each op: operands that fit, and each of them in turn replaced by others that do not. */
static void each_wrong(int line, enum op op, const struct forms *f, struct operands right,
                       struct op_attr attr, const int (*wrong)[2], int wrong_count)
{
    accepts(line, op, f, right.in, right.count, attr);
    for (int i = 0; i < wrong_count; i++) {
        struct operands bad = right;
        bad.in[wrong[i][0]] = wrong[i][1];
        refuses(line * 100 + i, op, f, bad.in, bad.count, attr, "operands do not fit");
    }
    for (int i = 0; i < graph_rule(op)->min_inputs; i++) {
        struct operands bad = right;
        bad.in[i] = GRAPH_NONE;
        refuses(line, op, f, bad.in, bad.count, attr, "is missing");
    }
    refuses(line, op, f, right.in, graph_rule(op)->min_inputs - 1, attr, "operands, got");
}

#define WRONG(op, attr, right_operands, ...)                                                                 \
    do {                                                                                                     \
        const int wrong[][2] = {__VA_ARGS__};                                                                \
        each_wrong(__LINE__, op, &f, (struct operands)right_operands, attr, wrong,                           \
                   (int)(sizeof wrong / sizeof *wrong));                                                     \
    } while (0)
#define LIST(...)                                                                                            \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

static void test_forward_refusals(void **state)
{
    (void)state;
    struct forms f = forms_make();
    struct op_attr none = {0}, rope = {.heads = 4}, attention = {.heads = 4, .kv_heads = 2, .head_dim = 6};
    WRONG(OP_EMBED, none, LIST({f.ids, f.w}, 2), {0, f.x}, {0, f.pieces}, {0, f.rstd}, {1, f.ids},
          {1, f.bias}, {1, f.cube});
    WRONG(OP_LINEAR, none, LIST({f.x, f.w, f.bias}, 3), {0, f.narrow}, {0, f.x_bf16}, {0, f.ids},
          {1, f.w_bf16}, {1, f.bias}, {2, f.norm}, {2, f.norm_bf16}, {2, f.w});
    WRONG(OP_RMSNORM, none, LIST({f.x, f.norm}, 2), {0, f.narrow}, {0, f.cube}, {0, f.x_bf16}, {1, f.bias},
          {1, f.norm_bf16}, {1, f.w});
    WRONG(OP_ROPE_TABLE, none, LIST({f.positions, f.inv_freq}, 2), {0, f.x}, {0, f.rstd}, {1, f.ids},
          {1, f.x});
    WRONG(OP_ROPE, rope, LIST({f.q, f.table}, 2), {0, f.x}, {0, f.ids}, {0, f.kc}, {1, f.odd_table}, {1, f.w},
          {1, f.rstd});
    refuses(__LINE__, OP_ROPE, &f, (int[]){f.q, f.table}, 2, (struct op_attr){.heads = 3}, "do not fit");
    refuses(__LINE__, OP_ROPE, &f, (int[]){f.x, f.odd_table}, 2, (struct op_attr){.heads = 3}, "H even");
    WRONG(OP_ATTENTION, attention, LIST({f.q, f.k, f.v, f.pieces}, 4), {0, f.k}, {0, f.ids}, {1, f.q},
          {1, f.kc}, {2, f.q}, {2, f.cube}, {3, f.wide_pieces}, {3, f.ids}, {3, f.lse2});
    const struct op_attr bad_attr[] = {
        {.heads = 4, .kv_heads = 0, .head_dim = 6},  {.heads = 4, .kv_heads = 3, .head_dim = 6},
        {.heads = 4, .kv_heads = -2, .head_dim = 6}, {.heads = 4, .kv_heads = 2, .head_dim = 3},
        {.heads = 0, .kv_heads = 2, .head_dim = 6},  {.heads = 4, .kv_heads = 4, .head_dim = 6}};
    for (size_t i = 0; i < sizeof bad_attr / sizeof *bad_attr; i++)
        refuses(__LINE__, OP_ATTENTION, &f, (int[]){f.q, f.k, f.v, f.pieces}, 4, bad_attr[i], "do not fit");
    WRONG(OP_CACHE_WRITE, none, LIST({f.k, f.slots, f.cache}, 3), {0, f.q}, {0, f.x_bf16}, {0, f.kc},
          {1, f.rows}, {1, f.rstd}, {1, f.k}, {2, f.x}, {2, f.ids});
    WRONG(OP_SWIGLU, none, LIST({f.x, f.x2}, 2), {0, f.x_bf16}, {1, f.narrow}, {1, f.cube}, {1, f.ids});
    WRONG(OP_ADD, none, LIST({f.x, f.x2}, 2), {0, f.x_bf16}, {1, f.narrow}, {1, f.cube}, {1, f.ids});
    WRONG(OP_LOSS, none, LIST({f.x, f.w, f.targets}, 3), {0, f.narrow}, {0, f.x_bf16}, {1, f.w_bf16},
          {1, f.bias}, {2, f.rows}, {2, f.rstd}, {2, f.x});
    WRONG(OP_GATHER_ROWS, none, LIST({f.x, f.rows}, 2), {0, f.ids}, {0, f.cube}, {1, f.rstd}, {1, f.x});
    graph_free(f.g);
}

static void test_backward_refusals(void **state)
{
    (void)state;
    struct forms f = forms_make();
    struct op_attr none = {0}, rows = {.rows = 7}, attention = {.heads = 4, .kv_heads = 2, .head_dim = 6};
    WRONG(OP_EMBED_GRAD, rows, LIST({f.ids, f.x}, 2), {0, f.x}, {0, f.rows}, {1, f.ids}, {1, f.cube});
    refuses(__LINE__, OP_EMBED_GRAD, &f, (int[]){f.ids, f.x}, 2, none, "do not fit");
    WRONG(OP_LINEAR_GRAD_INPUT, none, LIST({f.narrow, f.w}, 2), {0, f.x}, {0, f.rstd}, {1, f.w_bf16},
          {1, f.bias});
    WRONG(OP_LINEAR_GRAD_WEIGHT, none, LIST({f.narrow, f.x}, 2), {0, f.kc}, {0, f.ids}, {1, f.x_bf16},
          {1, f.rstd});
    WRONG(OP_LINEAR_GRAD_BIAS, none, LIST({f.narrow}, 1), {0, f.rstd}, {0, f.cube}, {0, f.pieces});
    WRONG(OP_RMSNORM_GRAD_INPUT, none, LIST({f.x, f.x2, f.norm, f.rstd}, 4), {0, f.narrow}, {1, f.x_bf16},
          {2, f.bias}, {2, f.norm_bf16}, {3, f.norm}, {3, f.lse2}, {3, f.ids});
    WRONG(OP_RMSNORM_GRAD_WEIGHT, none, LIST({f.x, f.x2, f.rstd}, 3), {0, f.narrow}, {1, f.x_bf16},
          {2, f.norm}, {2, f.ids});
    WRONG(OP_ATTENTION_GRAD, attention, LIST({f.q, f.q, f.k, f.v, f.q, f.lse2, f.pieces}, 7), {0, f.k},
          {1, f.k}, {2, f.kc}, {3, f.q}, {4, f.x}, {5, f.x}, {5, f.rstd}, {6, f.wide_pieces});
    refuses(__LINE__, OP_ATTENTION_GRAD, &f, (int[]){f.q, f.q, f.kc, f.kc, f.q, f.lse2, f.pieces}, 7,
            attention, "training form");
    WRONG(OP_SWIGLU_GRAD, none, LIST({f.x, f.x2, f.x}, 3), {0, f.narrow}, {1, f.x_bf16}, {2, f.cube});
    WRONG(OP_LOSS_GRAD, none, LIST({f.x, f.w, f.targets, f.scale}, 4), {0, f.narrow}, {0, f.x_bf16},
          {1, f.bias}, {2, f.rows}, {3, f.rstd}, {3, f.ids});
    /* What sharding calls directly stands in no graph. */
    const enum op direct[] = {OP_ACCUMULATE, OP_SUM_SQUARES, OP_ADAMW, OP_CAST};
    for (size_t i = 0; i < sizeof direct / sizeof *direct; i++)
        refuses(__LINE__, direct[i], &f, &f.rstd, 1, none, "called directly");
    graph_free(f.g);
}

static void test_every_op_has_a_rule(void **state)
{
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        const struct graph_rule *rule = graph_rule((enum op)op);
        assert_non_null(rule);
        assert_non_null(rule->name);
        assert_non_null(rule->shape);
        assert_true(rule->min_inputs >= 1 && rule->max_inputs >= rule->min_inputs &&
                    rule->max_inputs <= OP_MAX_INPUTS);
        assert_true(rule->outputs >= 1 && rule->outputs <= OP_MAX_OUTPUTS);
        assert_string_equal(op_name((enum op)op), rule->name);
        for (int other = 0; other < op; other++)
            assert_string_not_equal(rule->name, op_name((enum op)other));
    }
    assert_null(graph_rule(OP_COUNT));
    assert_string_equal(op_name(OP_COUNT), "unknown op");
}

/* The first mistake is kept; what follows does nothing. */
static void test_sticky(void **state)
{
    (void)state;
    struct forms f = forms_make();
    int values = f.g->value_count;
    assert_int_equal(graph_linear(f.g, f.narrow, f.w, GRAPH_NONE), GRAPH_NONE);
    struct error first, later;
    assert_int_equal(graph_check(f.g, &first), -1);
    assert_string_equal(first.where, "linear");
    int x = graph_rmsnorm(f.g, f.x, f.bias, 1e-5f);
    assert_int_equal(x, GRAPH_NONE);
    x = graph_add(f.g, graph_rope(f.g, x, f.table, 4), graph_attention(f.g, x, x, x, x, 4, 2, 1));
    graph_output(f.g, "x", x);
    graph_output(f.g, "ids", f.ids);
    assert_int_equal(graph_param(f.g, 9, DTYPE_F32, 1, (int64_t[]){3}, true), GRAPH_NONE);
    assert_int_equal(vector(f.g, "more", DTYPE_F32, 3), GRAPH_NONE);
    assert_int_equal(graph_differentiate(f.g, &later), -1);
    assert_string_equal(later.what, first.what);
    assert_int_equal(graph_check(f.g, NULL), -1);
    assert_int_equal(f.g->value_count, values);
    assert_int_equal(f.g->node_count, 0);
    assert_int_equal(f.g->output_count, 0);
    graph_free(f.g);
    graph_free(NULL);
}

static void expect_error(struct graph *g, const char *word)
{
    struct error err = {0};
    assert_int_equal(graph_check(g, &err), -1);
    if (!strstr(err.what, word))
        fail_msg("%s: %s", word, err.what);
    graph_free(g);
}

static void test_names(void **state)
{
    (void)state;
    char longest[48], longer[49];
    memset(longest, 'a', 47);
    longest[47] = '\0';
    memset(longer, 'a', 48);
    longer[48] = '\0';
    struct forms f = forms_make();
    int v = vector(f.g, longest, DTYPE_F32, 3);
    assert_int_equal(graph_find_input(f.g, longest), v);
    graph_output(f.g, longest, f.x);
    assert_int_equal(graph_find_output(f.g, longest), f.x);
    assert_int_equal(graph_find_output(f.g, "x"), GRAPH_NONE);
    assert_int_equal(graph_find_input(f.g, "rmsnorm 1"), GRAPH_NONE);
    assert_int_equal(vector(f.g, longer, DTYPE_F32, 3), GRAPH_NONE);
    expect_error(f.g, "longer than 47");
    f = forms_make();
    graph_output(f.g, longer, f.x);
    expect_error(f.g, "longer than 47");
    f = forms_make();
    assert_int_equal(vector(f.g, "ids", DTYPE_F32, 3), GRAPH_NONE);
    expect_error(f.g, "two inputs are named 'ids'");
    f = forms_make();
    graph_output(f.g, "y", f.x);
    graph_output(f.g, "y", f.x2);
    expect_error(f.g, "two outputs are named 'y'");
}

static void test_params(void **state)
{
    (void)state;
    struct graph *g = graph_create();
    int64_t shape[] = {7, 15};
    int p = graph_param(g, 3, DTYPE_BF16, 2, shape, true);
    assert_int_equal(g->param_count, 4);
    assert_int_equal(g->param_value[0], GRAPH_NONE);
    assert_int_equal(graph_param(g, 3, DTYPE_BF16, 2, shape, true), p);
    assert_int_not_equal(graph_param(g, 1, DTYPE_BF16, 2, shape, true), p);
    assert_int_equal(g->param_count, 4);
    assert_int_equal(graph_param(g, 3, DTYPE_F32, 2, shape, true), GRAPH_NONE);
    expect_error(g, "parameter 3 is used with two shapes or types");
    g = graph_create();
    graph_param(g, 0, DTYPE_F32, 2, shape, true);
    assert_int_equal(graph_param(g, 0, DTYPE_F32, 2, (int64_t[]){15, 7}, true), GRAPH_NONE);
    expect_error(g, "two shapes");
}

static void test_counts(void **state)
{
    (void)state;
    struct graph_counts counts = {.tokens = 11, .pieces = 3, .cache = 29, .picked = 2};
    assert_int_equal(graph_dim(GRAPH_TOKENS, &counts), 11);
    assert_int_equal(graph_dim(GRAPH_PIECES, &counts), 3);
    assert_int_equal(graph_dim(GRAPH_CACHE, &counts), 29);
    assert_int_equal(graph_dim(GRAPH_PICKED, &counts), 2);
    assert_int_equal(graph_dim(60, &counts), 60);
    struct graph_value v = {.type = DTYPE_BF16, .ndim = 2, .dim = {GRAPH_TOKENS, 7}};
    assert_int_equal(graph_value_bytes(&v, &counts), 11 * 7 * 2);
}

/* A long graph: arrays grow, and a lack of memory anywhere is an error, not a crash. */
static int long_graph(struct graph **out)
{
    struct graph *g = *out = graph_create();
    if (!g)
        return -1;
    int x = graph_input(g, "x", DTYPE_F32, 2, (int64_t[]){GRAPH_TOKENS, 5}, true);
    for (int i = 0; i < 70; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        x = graph_rmsnorm(g, x, graph_param(g, i, DTYPE_F32, 1, (int64_t[]){5}, true), 1e-5f);
        graph_output(g, name, x);
    }
    return graph_differentiate(g, NULL);
}

static void test_memory(void **state)
{
    (void)state;
    int64_t n = 0;
    for (;; n++) {
        struct graph *g;
        allocations_fail_after(n);
        int status = long_graph(&g);
        allocations_fail_after(-1);
        if (status == 0) {
            assert_int_equal(graph_check(g, NULL), 0);
            graph_free(g);
            break;
        }
        if (g && g->error.kind != ERROR_NONE)
            assert_non_null(strstr(g->error.what, "cannot allocate"));
        graph_free(g);
        assert_true(n < 1000);
    }
    assert_true(n > 70);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_needs_grad),
        cmocka_unit_test(test_forward_refusals),
        cmocka_unit_test(test_backward_refusals),
        cmocka_unit_test(test_every_op_has_a_rule),
        cmocka_unit_test(test_sticky),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
