/* The plan as text and as JSON: every figure once, nothing that is not there; and what is advised where a run
 * does not fit. */
#include "support/cmocka.h"

#include "plan/plan.h"
#include "support/scratch.h"
#include "text/train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct example {
    struct model model;
    struct token_cache data;
    struct row_plan rows;
    struct train_plan plan;
};

static void example_make(struct example *e)
{
    memset(e, 0, sizeof *e);
    snprintf(e->model.config.model_type, sizeof e->model.config.model_type, "llama");
    e->data.documents = 12345;
    e->data.tokens = 2000000;
    e->rows.options.seq_len = 512;
    e->rows.options.global_batch = 12;
    e->rows.rows_per_epoch = 3907;
    e->rows.steps_per_epoch = 326;
    e->rows.targets_per_epoch = 1987655;
    e->plan = (struct train_plan){
        .model = &e->model,
        .rows = &e->rows,
        .data = &e->data,
        .parameters = 93300,
        .total_steps = 1000,
        .micro_batches = 3,
        .ranks = 3,
        .threads = 2,
        .transport = "shm",
        .backend = "cpu",
        .memory = {.shard = {.parameters = 1001,
                             .masters = 1002,
                             .moments = 1003,
                             .sums = 1004,
                             .sent = 1005,
                             .received = 1006,
                             .parameters_shared = true},
                   .hidden = 1007,
                   .saved = 1008,
                   .work = 1009,
                   .inputs = 1010,
                   .saving = 1011,
                   .profile = 1012,
                   .private_total = 10065,
                   .shared_total = 1001},
        .memory_available = 5000000000,
        .memory_needed = 28163,
    };
}

static char *text_of(const struct train_plan *p, struct strbuf *out)
{
    *out = (struct strbuf){0};
    plan_text(p, out);
    assert_false(out->failed);
    return out->data;
}

static json_t *json_of(const struct train_plan *p)
{
    struct strbuf out = {0};
    plan_json(p, &out);
    assert_false(out.failed);
    json_t *object = json_loads(out.data, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    strbuf_free(&out);
    return object;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in:\n%s", part, text);
}

static void has_not(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("'%s' is in:\n%s", part, text);
}

static void test_text(void **state)
{
    (void)state;
    struct example e;
    struct strbuf out;
    example_make(&e);
    char *text = text_of(&e.plan, &out);
    has(text, "93,300 parameters, llama");
    has(text, "12,345 documents, 2,000,000 tokens, 3,907 rows of 512\n");
    has(text, "3 (shm), 2 threads each, backend cpu");
    has(text, "1000 of 12 rows, 3 micro-batches each; an epoch has 326");
    has(text, "fp32 masters");
    has(text, "shared by the ranks");
    has(text, "a rank and ");
    has(text, "on this machine of ");
    static const char *const absent[] = {"evaluation text", "goes on from", "dropped", "documents cut",
                                         "does not fit"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        has_not(text, absent[i]);
    assert_int_equal(text[out.length - 1], '\n');
    strbuf_free(&out);

    e.plan.threads = 1;
    e.plan.memory.shard.masters = 0; /* what is not kept has no line */
    e.plan.memory.shared_total = 0;
    e.plan.memory_available = -1;
    text = text_of(&e.plan, &out);
    has(text, "1 thread each");
    has_not(text, "fp32 masters");
    has_not(text, "a rank and ");
    has_not(text, "available");
    strbuf_free(&out);
}

static void test_text_of_losses(void **state)
{
    (void)state;
    struct example e;
    struct strbuf out;
    example_make(&e);
    for (int i = 0; i < 1234; i++)
        data_summary_drop(&e.data.summary, DATA_NOT_STRING, "b.jsonl", 17 + i);
    data_summary_drop(&e.data.summary, DATA_BAD_JSON, "a.jsonl", 3);
    e.rows.truncated_documents = 7;
    e.rows.truncated_tokens = 8901;
    e.plan.eval_data = &e.data;
    e.plan.eval_rows = &e.rows;
    e.plan.resume_from = "out/checkpoint-000400";
    e.plan.first_step = 400;
    snprintf(e.plan.advice, sizeof e.plan.advice, "some advice");
    char *text = text_of(&e.plan, &out), part[128];
    snprintf(part, sizeof part, "1,234 dropped: %s (first: b.jsonl:17)", data_reason_text(DATA_NOT_STRING));
    has(text, part);
    snprintf(part, sizeof part, "1 dropped: %s (first: a.jsonl:3)", data_reason_text(DATA_BAD_JSON));
    has(text, part);
    has_not(text, data_reason_text(DATA_INVALID_UTF8));
    has(text, "7 documents cut at 512 tokens, 8,901 tokens lost");
    has(text, "evaluation text");
    has(text, "out/checkpoint-000400, after step 400");
    has(text, "does not fit           some advice\n");
    strbuf_free(&out);
}

static int64_t integer(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v))
        fail_msg("%s is no integer", key);
    return json_integer_value(v);
}

static void test_json(void **state)
{
    (void)state;
    struct example e;
    example_make(&e);
    data_summary_drop(&e.data.summary, DATA_INVALID_UTF8, "a.txt", 0);
    json_t *o = json_of(&e.plan);
    assert_string_equal(json_string_value(json_object_get(o, "model_type")), "llama");
    assert_string_equal(json_string_value(json_object_get(o, "transport")), "shm");
    assert_int_equal(integer(o, "parameters"), 93300);
    assert_int_equal(integer(o, "steps"), 1000);
    assert_int_equal(integer(o, "ranks"), 3);
    assert_int_equal(integer(o, "micro_batches"), 3);
    const json_t *memory = json_object_get(o, "memory");
    static const char *const items[] = {
        "parameters", "masters", "moments", "gradient_sums", "gradients_sent", "gradients_received",
        "hidden",     "saved",   "work",    "inputs",        "saving",         "profile"};
    int64_t sum = 0;
    for (int i = 0; i < 11; i++) {
        assert_int_equal(integer(memory, items[i]), 1001 + i);
        sum += 1001 + i;
    }
    assert_int_equal(integer(memory, "rank") + integer(memory, "shared"), sum);
    assert_true(json_is_true(json_object_get(memory, "parameters_shared")));
    assert_true(json_is_false(json_object_get(memory, "gradient_sums_shared")));
    assert_int_equal(integer(memory, "machine"), 28163);
    assert_int_equal(integer(memory, "available"), 5000000000);
    const json_t *train = json_object_get(o, "train");
    assert_int_equal(integer(train, "targets_per_epoch"), 1987655);
    assert_int_equal(integer(json_object_get(train, "dropped"), "invalid_utf8"), 1);
    assert_int_equal(integer(json_object_get(train, "dropped"), "bad_json"), 0);
    assert_true(json_is_null(json_object_get(o, "eval")));
    assert_true(json_is_true(json_object_get(o, "fits")));
    assert_null(json_object_get(o, "advice"));
    json_decref(o);

    e.plan.data = NULL; /* `tercet plan` reads no text */
    e.plan.rows = NULL;
    snprintf(e.plan.advice, sizeof e.plan.advice, "say \"less\"");
    o = json_of(&e.plan);
    assert_true(json_is_null(json_object_get(o, "train")));
    assert_true(json_is_false(json_object_get(o, "fits")));
    assert_string_equal(json_string_value(json_object_get(o, "advice")), "say \"less\"");
    json_decref(o);
}

/* ---- plans of real models ---- */

struct question {
    const char *tokenizer;
    const json_t *model;
    int ranks;
    int64_t micro_batch, seq_len;
    bool messages;
    enum recompute recompute;
    int stage_less; /* stages below 3 */
    struct train_plan answer;
};

static int plan_body(struct comm *comm, void *context, struct error *err)
{
    struct question *q = context;
    struct train_options o = {
        .output = "/nonexistent",
        .model_inline = q->model,
        .model_place = "the test",
        .tokenizer = q->tokenizer,
        .global_batch = q->micro_batch * q->ranks,
        .engine = {.compute = DTYPE_BF16,
                   .recompute = q->recompute,
                   .micro_batch = q->micro_batch,
                   .seq_len = q->seq_len,
                   .stage = 3 - q->stage_less},
        .backend = {.name = "cpu", .isa = "auto", .threads = 1},
        .plan_ranks = q->ranks,
        .plan_messages = q->messages,
    };
    const struct log log = {NULL, NULL, NULL};
    struct train_run *run;
    if (train_prepare(&run, comm, &o, &log, err) != 0)
        return (int)err->kind;
    q->answer = *train_plan(run);
    train_free(run);
    return 0;
}

static void ask(struct question *q)
{
    struct error err = {0};
    int status = comm_run(1, COMM_AUTO, NULL, plan_body, q, &err);
    if (status != 0)
        fail_msg("%s: %s", err.where, err.what);
}

static struct scratch scratch;
static struct question question;

static int setup(void **state)
{
    (void)state;
    struct bpe_trainer *trainer;
    struct bpe_options options = {.vocab_size = 300};
    static const char text[] = "one two three cards, two three cards, three cards";
    scratch_open(&scratch);
    char *tokenizer = scratch_path(&scratch, "tokenizer");
    assert_int_equal(bpe_trainer_create(&trainer, NULL), 0);
    assert_int_equal(bpe_trainer_add(trainer, text, sizeof text - 1, NULL), 0);
    assert_int_equal(bpe_trainer_write(trainer, &options, tokenizer, NULL, NULL), 0);
    bpe_trainer_free(trainer);
    json_t *model = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "hidden_size", 60,
                              "num_hidden_layers", 3, "num_attention_heads", 5, "intermediate_size", 100,
                              "vocab_size", 331);
    question = (struct question){
        .tokenizer = tokenizer, .model = model, .ranks = 1, .micro_batch = 2, .seq_len = 19};
    return model ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref((json_t *)(uintptr_t)question.model);
    scratch_close(&scratch);
    return 0;
}

static void test_ranks(void **state)
{
    (void)state;
    struct question one = question, three = question, messages = question;
    three.ranks = messages.ranks = 3;
    messages.messages = true;
    ask(&one);
    ask(&three);
    ask(&messages);
    assert_string_equal(one.answer.transport, "self");
    assert_string_equal(three.answer.transport, "shm");
    assert_string_equal(messages.answer.transport, "mpi");
    assert_int_equal(one.answer.memory.shared_total, 0);
    assert_int_equal(messages.answer.memory.shared_total, 0);
    assert_true(three.answer.memory.shared_total == 2 * three.answer.parameters);
    const struct train_plan *p = &three.answer;
    assert_int_equal(p->memory_needed, 3 * p->memory.private_total + p->memory.shared_total);
    assert_true(messages.answer.memory.private_total > p->memory.private_total);
    assert_true(p->memory.shard.moments < one.answer.memory.shard.moments);
    assert_string_equal(p->advice, "");
}

/* Recomputing and a smaller micro_batch need less: the advice rests on that. */
static void test_less(void **state)
{
    (void)state;
    int64_t before = 0;
    for (int64_t micro_batch = 1; micro_batch <= 9; micro_batch++) {
        struct question q = question, full = question;
        q.micro_batch = full.micro_batch = micro_batch;
        full.recompute = RECOMPUTE_FULL;
        ask(&q);
        ask(&full);
        assert_true(full.answer.memory_needed < q.answer.memory_needed);
        assert_true(full.answer.memory_needed > before);
        before = full.answer.memory_needed;
    }
}

/* What grows with the length grows in proportion to it: no score matrix, no logits of all positions. Below
 * 2,048 the largest temporaries may be ones that do not grow: the loss looks at 1,024 tokens together. */
static void test_length(void **state)
{
    (void)state;
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        double needed[5]; /* 2,048 to 32,768 */
        for (int i = 0; i < 5; i++) {
            struct question q = question;
            q.recompute = (enum recompute)recompute;
            q.micro_batch = 1;
            q.seq_len = INT64_C(2048) << i;
            ask(&q);
            needed[i] = (double)q.answer.memory_needed;
        }
        /* Each doubling adds twice what the one before added, but for gaps that placing values in the arena
         * leaves: a hundred kilobytes of the megabytes here. One score matrix, even in bf16, would add four
         * times as much as before, and at 32,768 positions two gigabytes. */
        for (int i = 2; i < 5; i++) {
            double growth = needed[i] - needed[i - 1], before = needed[i - 1] - needed[i - 2];
            assert_true(before > 0);
            assert_true(growth > 1.95 * before && growth < 2.05 * before);
        }
    }
}

static void test_does_not_fit(void **state)
{
    (void)state;
    struct question q = question;
    q.micro_batch = 1000000;
    q.seq_len = 2000;
    ask(&q);
    if (q.answer.memory_available < 0)
        skip();
    assert_true(q.answer.memory_needed > q.answer.memory_available);
    long long advised = 0;
    if (sscanf(q.answer.advice, "train.recompute=full train.micro_batch=%lld needs", &advised) != 1)
        fail_msg("%s", q.answer.advice);
    /* The largest: twice that would be too much. (Other programs come and go meanwhile, so not one more.) */
    struct question fits = q, twice = q;
    fits.recompute = twice.recompute = RECOMPUTE_FULL;
    fits.micro_batch = advised;
    twice.micro_batch = 2 * advised;
    ask(&fits);
    ask(&twice);
    assert_true(fits.answer.memory_needed <= q.answer.memory_available);
    assert_true(twice.answer.memory_needed > q.answer.memory_available);

    /* Not even one row. */
    q.micro_batch = 1;
    q.seq_len = 2000000000;
    ask(&q);
    has(q.answer.advice, "nothing of train.recompute");

    /* Recomputing is not advised to who does it. */
    q = question;
    q.recompute = RECOMPUTE_FULL;
    q.micro_batch = 1000000;
    q.seq_len = 2000;
    ask(&q);
    assert_true(strncmp(q.answer.advice, "train.micro_batch=", 18) == 0);
}

/* Parameters and states alone are too much for each rank, but not shared among them. */
static void test_stage_fits(void **state)
{
    (void)state;
    struct question whole = question;
    whole.ranks = 3;
    whole.messages = true;
    whole.stage_less = 3;
    whole.micro_batch = 1;
    json_t *model = json_deep_copy(question.model);
    assert_non_null(model);
    assert_int_equal(json_object_set_new(model, "hidden_size", json_integer(900)), 0);
    whole.model = model;
    double needed[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(json_object_set_new(model, "num_hidden_layers", json_integer(100 * (i + 1))), 0);
        ask(&whole);
        needed[i] = (double)whole.answer.memory_needed;
    }
    if (whole.answer.memory_available < 0)
        skip();
    double layers = 1.5 * (double)whole.answer.memory_available / (needed[1] - needed[0]) * 100;
    if (layers > 10000) /* the most that a model may have */
        skip();
    assert_int_equal(json_object_set_new(model, "num_hidden_layers", json_integer((json_int_t)layers)), 0);
    ask(&whole);
    assert_true(whole.answer.memory_needed > whole.answer.memory_available);
    if (strncmp(whole.answer.advice, "parallel.zero=3 needs ", 22) != 0)
        fail_msg("%s", whole.answer.advice);
    json_decref(model);
}

/* One row is too much for three ranks, but not for one. */
static void test_fewer_ranks_fit(void **state)
{
    (void)state;
    struct question one = question;
    one.recompute = RECOMPUTE_FULL;
    one.micro_batch = 1;
    one.seq_len = 1 << 20;
    ask(&one);
    if (one.answer.memory_available < 0)
        skip();
    struct question three = one;
    three.ranks = 3;
    three.seq_len =
        (int64_t)(0.6 * (double)one.answer.memory_available / (double)one.answer.memory_needed * (1 << 20));
    if (three.seq_len > INT32_MAX / 2)
        skip();
    ask(&three);
    assert_true(three.answer.memory_needed > three.answer.memory_available);
    if (strncmp(three.answer.advice, "-n 1 needs ", 11) != 0)
        fail_msg("%s", three.answer.advice);
}

/* Recomputing alone is enough. */
static void test_recompute_fits(void **state)
{
    (void)state;
    struct question none = question, full = question;
    none.seq_len = full.seq_len = 2000;
    none.micro_batch = full.micro_batch = 1000;
    full.recompute = RECOMPUTE_FULL;
    ask(&none);
    ask(&full);
    if (none.answer.memory_available < 0)
        skip();
    /* Memory grows with the rows: as many as need twice the difference's middle. */
    double middle = ((double)none.answer.memory_needed + (double)full.answer.memory_needed) / 2;
    none.micro_batch = (int64_t)((double)none.answer.memory_available / middle * 1000);
    if (none.micro_batch > INT32_MAX / 2000)
        skip();
    ask(&none);
    assert_true(strncmp(none.answer.advice, "train.recompute=full needs ", 27) == 0);
}

static void test_too_many_positions(void **state)
{
    (void)state;
    struct question q = question;
    struct error err = {0};
    q.micro_batch = INT32_MAX;
    q.seq_len = 1 << 24;
    assert_int_equal(comm_run(1, COMM_AUTO, NULL, plan_body, &q, &err), ERROR_INPUT);
    assert_non_null(strstr(err.where, "micro_batch"));
    q.seq_len = 2;
    assert_int_equal(comm_run(1, COMM_AUTO, NULL, plan_body, &q, &err), ERROR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_of_losses),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_less),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_recompute_fits),
        cmocka_unit_test(test_too_many_positions),
        cmocka_unit_test(test_stage_fits),
        cmocka_unit_test(test_fewer_ranks_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
