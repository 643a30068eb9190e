/* A loss or a gradient norm that is not finite: the step ends before the update, and the message names the
 * step, the rank whose micro-batch it was, the unit and the first op. Weights are poisoned so that one
 * document alone meets the poison. (What the command line makes of it: tests/system/test_nonfinite.sh.) */
#include "support/cmocka.h"

#include "train/step.h"
#include "train/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 7, STEPS = 2, SEQ = 9, DOCUMENTS = ROWS * STEPS, LENGTH = 8, VOCABULARY = 331 };
/* The document that alone has the tokens 320 …: row 5 of the second step. */
enum { BAD = ROWS + 5, FIRST_BAD_TOKEN = 320 };

/* Elements first … end-1 of one parameter are `value`. */
struct poison {
    const char *param;
    int64_t first, end;
    float value;
};

struct trial {
    struct poison poison;
    const char *eps, *backend;
    enum dtype compute;
    enum recompute recompute;
    int stage;
    int64_t fails_at; /* step, from 0 */
    /* in the rank */
    struct model *model;
    struct backend *be;
    struct engine *engine;
    struct row_plan plan;
    struct batch scratch;
};

static int fill(void *context, int unit, int param, int64_t first, int64_t n, float *out, struct error *err)
{
    (void)err;
    const struct trial *t = context;
    const struct model_param *p = &t->model->units[unit].params[param];
    model_init_values(t->model, p, 42, first, n, out);
    for (int64_t i = 0; i < n && strcmp(p->name, t->poison.param) == 0; i++)
        if (first + i >= t->poison.first && first + i < t->poison.end)
            out[i] = t->poison.value;
    return 0;
}

static int make_model(struct trial *t, struct error *err)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model_type\":\"llama\",\"vocab_size\":%d,\"hidden_size\":60,\"intermediate_size\":100,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"num_key_value_heads\":1,\"rms_norm_eps\":%s}",
        VOCABULARY, t->eps);
    json_t *config = json_loads(text, 0, NULL);
    int status =
        config ? model_create(&t->model, config, "the test", NULL, err) : error_memory(err, 0, "a model");
    json_decref(config);
    return status;
}

struct kept {
    float *values;
    int64_t n;
};

static int keep(void *context, const float *values, int64_t n, struct error *err)
{
    struct kept *k = context;
    float *grown = realloc(k->values, (size_t)(k->n + n) * sizeof *grown);
    if (!grown)
        return error_memory(err, 0, "the masters");
    memcpy(grown + k->n, values, (size_t)n * sizeof *grown);
    k->values = grown;
    k->n += n;
    return 0;
}

/* All masters and moments. */
static int fetch(struct trial *t, struct kept *out, struct error *err)
{
    *out = (struct kept){0};
    for (int kind = SHARD_MASTER; kind <= SHARD_MOMENT2; kind++)
        for (int u = 0; u < t->model->unit_count; u++)
            for (int k = 0; k < t->model->units[u].param_count; k++)
                if (shard_fetch(t->engine->shard, (enum shard_kind)kind, u, k, keep, out, err) != 0)
                    return -1;
    return 0;
}

static int run_step(struct trial *t, int64_t step, struct error *err)
{
    const struct adamw adamw = {0.9, 0.95, 1e-8, 0.1, 1.0};
    struct step_result result;
    return step_run(t->engine, &t->plan, step, &adamw, 1e-3, &t->scratch, NULL, &result, err);
}

/* The failing step, twice on one rank: nothing was updated, so it fails alike. */
static int fail_step(struct trial *t, struct comm *comm, struct error *err)
{
    struct kept before, after;
    struct error first = {0};
    if (comm_size(comm) > 1)
        return run_step(t, t->fails_at, err);
    if (fetch(t, &before, err) != 0)
        return -1;
    int status = run_step(t, t->fails_at, &first);
    if (fetch(t, &after, err) != 0)
        return -1;
    if (!before.values || !after.values || before.n != after.n ||
        memcmp(before.values, after.values, (size_t)before.n * sizeof(float)) != 0)
        status = error_set(err, ERROR_RUN, NULL, NULL, "the failing step changed the weights");
    else if (status != 0 && run_step(t, t->fails_at, err) != -1)
        status = error_set(err, ERROR_RUN, NULL, NULL, "the step failed once and then did not");
    else if (status != 0 && strcmp(err->what, first.what) != 0)
        status = error_set(err, ERROR_RUN, NULL, NULL, "two messages: %.400s; %.400s", first.what, err->what);
    free(before.values);
    free(after.values);
    return status;
}

static int train(struct trial *t, struct comm *comm, struct error *err)
{
    if (engine_create(&t->engine, t->model, comm, t->be,
                      &(struct engine_options){.compute = t->compute,
                                               .recompute = t->recompute,
                                               .micro_batch = 1,
                                               .seq_len = SEQ,
                                               .stage = t->stage,
                                               .overlap = true},
                      err) != 0 ||
        shard_fill(t->engine->shard, SHARD_MASTER, fill, t, err) != 0)
        return -1;
    for (int64_t step = 0; step < t->fails_at; step++)
        if (run_step(t, step, err) != 0)
            return error_set(err, ERROR_INPUT, NULL, NULL, "step %lld failed before its time",
                             (long long)step);
    if (fail_step(t, comm, err) != 0)
        return -1;
    return error_set(err, ERROR_INPUT, NULL, NULL, "the step went well");
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct trial t = *(const struct trial *)context;
    uint32_t ids[DOCUMENTS * LENGTH];
    uint64_t ends[DOCUMENTS];
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = 0; i < LENGTH; i++)
            ids[d * LENGTH + i] =
                (uint32_t)(d == BAD ? FIRST_BAD_TOKEN + i : (d * 31 + i * 7) % FIRST_BAD_TOKEN);
        ends[d] = (uint64_t)(d + 1) * LENGTH;
    }
    struct token_cache cache = {.documents = DOCUMENTS,
                                .tokens = DOCUMENTS * LENGTH,
                                .ids = ids,
                                .ends = ends,
                                .max_id = VOCABULARY - 1};
    struct row_options rows = {.seq_len = SEQ, .global_batch = ROWS};
    struct backend_options be = {.name = t.backend, .isa = "auto", .threads = 1};
    int status = make_model(&t, err);
    if (status == 0)
        status = row_plan_create(&t.plan, &cache, &rows, err);
    if (status == 0)
        status = batch_create(&t.scratch, 1, SEQ, err);
    if (status == 0)
        status = backend_create(&t.be, &be, err);
    if (status == 0)
        status = train(&t, comm, err);
    engine_free(t.engine);
    backend_destroy(t.be);
    batch_free(&t.scratch);
    row_plan_free(&t.plan);
    model_free(t.model);
    return status == 0 ? 0 : (int)err->kind;
}

static void expect(struct trial t, int ranks, const char *unit, const char *op, const char *pass)
{
    struct error err = {0};
    char text[2200], wanted[128];
    t.eps = t.eps ? t.eps : "1e-6";
    t.backend = t.backend ? t.backend : "cpu";
    int status = comm_run(ranks, COMM_AUTO, NULL, body, &t, &err);
    error_format(&err, text, sizeof text);
    /* The bad document is micro-batch 5 of its step; poison that all meet is met by micro-batch 0. */
    int64_t rank = t.fails_at == 1 ? 5 % ranks : 0;
    if (status != 1)
        fail_msg("%d ranks: status %d: %s", ranks, status, text);
    snprintf(wanted, sizeof wanted, "step %lld, rank %lld", (long long)t.fails_at + 1, (long long)rank);
    if (!strstr(text, wanted))
        fail_msg("%d ranks: '%s' is not in: %s", ranks, wanted, text);
    snprintf(wanted, sizeof wanted, "came from %s, op '%s' of the %s pass", unit, op, pass);
    if (!strstr(text, wanted))
        fail_msg("%d ranks: '%s' is not in: %s", ranks, wanted, text);
    assert_non_null(strstr(text, "nothing was updated"));
    assert_null(strstr(text, "another rank"));
}

static const struct poison poisoned_row = {"model.embed_tokens.weight", (FIRST_BAD_TOKEN + 3) * 60 + 17,
                                           (FIRST_BAD_TOKEN + 3) * 60 + 18, NAN};

static void test_poisoned_row(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        expect((struct trial){.poison = poisoned_row, .fails_at = 1, .stage = ranks}, ranks, "embedding",
               "embed", "forward");
    expect((struct trial){.poison = poisoned_row, .fails_at = 1}, 5, "embedding", "embed", "forward");
}

static void test_variants(void **state)
{
    (void)state;
    struct trial t = {.poison = poisoned_row,
                      .fails_at = 1,
                      .compute = DTYPE_BF16,
                      .recompute = RECOMPUTE_FULL,
                      .stage = 3};
    expect(t, 2, "embedding", "embed", "forward");
    t.backend = "guarded";
    expect(t, 2, "embedding", "embed", "forward");
    t.backend = "reference";
    expect(t, 1, "embedding", "embed", "forward");
}

/* Logits that overflow, from the first step on. */
static void test_huge_head(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        expect((struct trial){.poison = {"lm_head.weight", 0, 60, 3e38f}, .stage = 2}, ranks, "head",
               "loss_grad", "backward");
}

/* An infinite weight in the middle of the model. */
static void test_infinite_weight(void **state)
{
    (void)state;
    expect((struct trial){.poison = {"model.layers.1.mlp.up_proj.weight", 0, 1, INFINITY}, .stage = 3}, 2,
           "block 1", "linear", "forward");
}

/* A document whose embeddings are all zero, with an epsilon that is next to nothing: the loss is finite, but
 * each norm multiplies its gradient by 7e18. */
static void test_backward(void **state)
{
    (void)state;
    const struct poison zeros = {"model.embed_tokens.weight", (int64_t)FIRST_BAD_TOKEN * 60,
                                 (int64_t)VOCABULARY * 60, 0};
    for (int ranks = 1; ranks <= 3; ranks++)
        expect((struct trial){.poison = zeros, .eps = "2e-38", .fails_at = 1, .stage = 3}, ranks, "block 0",
               "rmsnorm_grad_input", "backward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poisoned_row), cmocka_unit_test(test_variants),
        cmocka_unit_test(test_huge_head),    cmocka_unit_test(test_infinite_weight),
        cmocka_unit_test(test_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
