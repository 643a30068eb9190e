/* The graphs of every family as programs: for all kinds of units, modes, types and ways of recomputing, no
 * two values that live at once share a place and every result is the graph's (see graph/check_program.h);
 * every training graph can be differentiated; what recomputing saves and what it runs again. */
#include "graph/check_program.h"

#include "models/model.h"

/* Odd sizes; GQA, biases and tying in some of them. */
static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":331,\"hidden_size\":60,\"intermediate_size\":77,\"num_hidden_"
    "layers\":2,"
    "\"num_attention_heads\":5,\"num_key_value_heads\":1,\"head_dim\":12}",
    "{\"model_type\":\"llama\",\"vocab_size\":29,\"hidden_size\":36,\"intermediate_size\":52,\"num_hidden_"
    "layers\":1,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":14,\"tie_word_embeddings\":true,"
    "\"attention_bias\":true,\"mlp_bias\":true}",
    "{\"model_type\":\"llama\",\"vocab_size\":5000,\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_"
    "layers\":3,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"tie_word_embeddings\":true}",
};
enum { CONFIGS = sizeof configs / sizeof *configs };

static struct model *model_of(const char *text)
{
    struct model *m;
    struct error err = {0};
    json_t *config = json_loads(text, 0, NULL);
    assert_non_null(config);
    if (model_create(&m, config, "config.json", NULL, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    json_decref(config);
    return m;
}

static struct graph *graph_of(const struct model *m, int kind, enum model_mode mode, enum dtype type,
                              bool backward)
{
    struct graph *g;
    struct error err = {0};
    if (model_graph(m, kind, mode, type, &g, &err) != 0 || (backward && graph_differentiate(g, &err) != 0))
        fail_msg("%s: %s", err.where, err.what);
    return g;
}

/* Workspaces of many sizes, none for some ops. */
static int workspace(void *context, const struct op_call *call, size_t *bytes, struct error *err)
{
    (void)err;
    const int *salt = context;
    *bytes = (size_t)(((int)call->op * 7 + *salt) % 4) * 1234;
    return 0;
}

static void check_kind(const struct model *m, int kind, enum model_mode mode, enum dtype type, bool backward)
{
    char what[96];
    snprintf(what, sizeof what, "kind %d, mode %d, type %d, backward %d", kind, (int)mode, (int)type,
             backward);
    for (int variant = 0; variant < 24; variant++) {
        struct graph *g = graph_of(m, kind, mode, type, backward);
        bool adds[64] = {false};
        assert_true(g->param_count <= 64);
        for (int i = 0; i < g->param_count; i++)
            adds[i] = backward && (variant & 4) && i % 2 == 0;
        struct program_options options = {
            .bounds = {.tokens = variant & 1 ? 1 : 37, .pieces = 5, .cache = 64, .picked = 3},
            .recompute = (enum recompute)(variant / 8), /* none, selective, full */
            .grad_adds = adds,
            .workspace = variant & 2 ? workspace : NULL,
            .context = &variant,
        };
        struct program *p;
        struct error err = {0};
        if (program_compile(&p, g, &options, &err) != 0)
            fail_msg("%s: %s: %s", what, err.where, err.what);
        check_program(g, p, adds, what);
        if (!backward || (options.recompute == RECOMPUTE_FULL && kind != m->kinds - 1))
            assert_int_equal(p->saved_bytes, 0);
        program_free(p);
        graph_free(g);
    }
}

static void test_places(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        struct model *m = model_of(configs[i]);
        for (int kind = 0; kind < m->kinds; kind++) {
            for (int type = 0; type < 2; type++) {
                enum dtype dtype = type ? DTYPE_BF16 : DTYPE_F32;
                check_kind(m, kind, MODEL_TRAIN, dtype, true);
                check_kind(m, kind, MODEL_TRAIN, dtype, false);
                check_kind(m, kind, MODEL_LOGITS, dtype, false);
                check_kind(m, kind, MODEL_DECODE, dtype, false);
            }
        }
        model_free(m);
    }
}

/* Every op between a parameter and the loss has a rule, and every parameter gets an fp32 gradient. */
static void test_every_op_has_a_backward(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        struct model *m = model_of(configs[i]);
        for (int u = 0; u < m->unit_count; u++) {
            struct graph *g = graph_of(m, m->units[u].kind, MODEL_TRAIN, DTYPE_BF16, true);
            for (int n = 0; n < g->node_count; n++) {
                const struct graph_node *node = &g->nodes[n];
                if (!node->backward && g->values[node->out[0]].needs_grad && !graph_rule(node->op)->backward)
                    fail_msg("%s: op %s has no backward", m->units[u].name, op_name(node->op));
            }
            assert_int_equal(g->param_count, m->units[u].param_count);
            for (int k = 0; k < g->param_count; k++) {
                const struct graph_value *grad = &g->values[g->param_grad[k]];
                const struct model_param *p = &m->units[u].params[k];
                assert_int_equal(grad->type, DTYPE_F32);
                assert_int_equal(grad->ndim, p->ndim);
                for (int d = 0; d < p->ndim; d++)
                    assert_int_equal(grad->dim[d], p->dim[d]);
            }
            graph_free(g);
        }
        model_free(m);
    }
}

static struct program *compiled(const struct model *m, int unit, enum recompute recompute)
{
    struct graph *g = graph_of(m, m->units[unit].kind, MODEL_TRAIN, DTYPE_BF16, true);
    struct program_options options = {.bounds = {.tokens = 37, .pieces = 37}, .recompute = recompute};
    struct program *p;
    assert_int_equal(program_compile(&p, g, &options, NULL), 0);
    graph_free(g);
    return p;
}

static void count_ops(const struct program_part *part, int all[OP_COUNT], int again[OP_COUNT])
{
    memset(all, 0, OP_COUNT * sizeof *all);
    memset(again, 0, OP_COUNT * sizeof *again);
    for (int s = 0; s < part->count; s++) {
        all[part->steps[s].op]++;
        again[part->steps[s].op] += part->steps[s].recomputed;
    }
}

static void test_block_recompute(void **state)
{
    (void)state;
    int forward[OP_COUNT], back[OP_COUNT], again[OP_COUNT], none[OP_COUNT];
    struct model *m = model_of(configs[0]);
    struct program *full = compiled(m, 1, RECOMPUTE_FULL), *keep = compiled(m, 1, RECOMPUTE_NONE);
    count_ops(&full->part[PROGRAM_FORWARD], forward, none);
    count_ops(&full->part[PROGRAM_BACKWARD], back, again);
    assert_int_equal(full->saved_bytes, 0);
    /* All of the forward pass, but for the last product and the last sum, whose results nobody reads. */
    assert_int_equal(forward[OP_LINEAR], 7);
    assert_int_equal(again[OP_LINEAR], 6);
    assert_int_equal(again[OP_ADD], 1);
    assert_int_equal(again[OP_RMSNORM], 2);
    assert_int_equal(again[OP_ROPE], 2);
    assert_int_equal(again[OP_ATTENTION], 1);
    assert_int_equal(again[OP_SWIGLU], 1);
    assert_int_equal(back[OP_LINEAR_GRAD_WEIGHT], 7);
    assert_int_equal(back[OP_LINEAR_GRAD_INPUT], 7);
    count_ops(&keep->part[PROGRAM_BACKWARD], back, again);
    for (int op = 0; op < OP_COUNT; op++)
        assert_int_equal(again[op], 0);
    /* What is kept, bf16 unless said: two normalised inputs and the sum between them (60 each), q and o (60),
     * k and v (12), gate, up and their product (77), fp32 rstd twice and lse of 5 heads; each rounded up to
     * 64 bytes. */
    const int64_t widths[] = {60, 60, 60, 60, 60, 12, 12, 77, 77, 77, 2, 2, 10};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        bytes += (37 * 2 * widths[i] + 63) / 64 * 64;
    assert_int_equal(keep->saved_bytes, bytes);
    program_free(full);
    program_free(keep);
    model_free(m);
}

static void test_head_recompute(void **state)
{
    (void)state;
    int back[OP_COUNT], again[OP_COUNT];
    struct model *m = model_of(configs[1]);
    struct program *full = compiled(m, m->unit_count - 1, RECOMPUTE_FULL);
    count_ops(&full->part[PROGRAM_BACKWARD], back, again);
    assert_int_equal(full->saved_bytes, 0); /* the gradient makes the logits itself */
    assert_int_equal(back[OP_LOSS], 0);
    assert_int_equal(again[OP_RMSNORM], 1);
    program_free(full);
    full = compiled(m, 0, RECOMPUTE_FULL); /* the embedding needs nothing of its forward pass */
    assert_int_equal(full->saved_bytes, 0);
    count_ops(&full->part[PROGRAM_BACKWARD], back, again);
    assert_int_equal(back[OP_EMBED_GRAD], 1);
    assert_int_equal(full->part[PROGRAM_BACKWARD].count, 1);
    program_free(full);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_every_op_has_a_backward),
        cmocka_unit_test(test_block_recompute),
        cmocka_unit_test(test_head_recompute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
