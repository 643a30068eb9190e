/* Saving beside the next step. A gate in the backend stands before every read of the saver's thread, so that
 * what happens first is the test's choice: the passes of the next step run while it is closed, the update
 * waits until all is read, and the checkpoint holds what was there before them, to the bit. Then what goes
 * wrong: a read that fails on one rank, a run that ends in the middle, a save on the heels of another. */
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include "train/saver.h"
#include "train/step.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 7, STEPS = 3, SEQ = 9, DOCUMENTS = ROWS * STEPS, LENGTH = 8, VOCABULARY = 331 };

/* Takes the place of a backend's table: its own, but for read. */
struct gate {
    struct backend_vtable v;
    int (*read)(struct backend *b, void *host, const void *device, size_t bytes, struct error *err);
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool closed;
    int64_t reads, fails_at; /* done so far; the number of the one that fails, from 1 */
};

struct trial {
    const char *backend;
    enum dtype type;
    int stage;
    int64_t file_limit;
    int failing; /* rank whose read fails; -1 none */
    const char *output;
    int (*work)(struct trial *t, struct error *err);
    /* in the rank */
    struct comm *comm;
    struct gate gate;
    struct model *model;
    struct backend *be;
    struct engine *engine;
    struct row_plan plan;
    struct batch scratch;
    struct background *thread;
    struct saver *saver;
};

static struct scratch scratch;

static int setup(void **state)
{
    (void)state;
    scratch_open(&scratch);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_close(&scratch);
    return 0;
}

static int failed_at(struct error *err, int line, const char *condition)
{
    char before[600] = "", where[32];
    if (err->kind != ERROR_NONE)
        snprintf(before, sizeof before, " (%.200s: %.300s)", err->where, err->what);
    snprintf(where, sizeof where, "line %d", line);
    return error_set(err, ERROR_RUN, where, NULL, "%s%s", condition, before);
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return failed_at(err, __LINE__, #condition);                                                     \
    } while (0)

/* ---- The gate ---- */

static int gated_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err)
{
    union {
        const struct backend_vtable *v;
        struct gate *gate; /* its first member is the table */
    } u = {.v = b->v};
    struct gate *g = u.gate;
    pthread_mutex_lock(&g->lock);
    while (g->closed)
        pthread_cond_wait(&g->moved, &g->lock);
    bool fails = g->reads + 1 == g->fails_at;
    pthread_mutex_unlock(&g->lock);
    if (fails)
        return error_set(err, ERROR_RUN, "the gate", NULL, "a read fails");
    int status = g->read(b, host, device, bytes, err);
    pthread_mutex_lock(&g->lock);
    g->reads++;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static void gate_set(struct gate *g, bool closed)
{
    pthread_mutex_lock(&g->lock);
    g->closed = closed;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static int64_t gate_reads(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    int64_t reads = g->reads;
    pthread_mutex_unlock(&g->lock);
    return reads;
}

static void gate_install(struct trial *t)
{
    pthread_mutex_init(&t->gate.lock, NULL);
    pthread_cond_init(&t->gate.moved, NULL);
    t->gate.v = *t->be->v;
    t->gate.read = t->be->v->read;
    t->gate.v.read = gated_read;
    t->be->v = &t->gate.v;
}

/* Reads that one save of this rank takes. */
static int64_t reads_of_a_save(const struct trial *t)
{
    int64_t reads = 0, sets = t->type == DTYPE_F32 ? 3 : 4;
    for (int u = 0; u < t->model->unit_count; u++) {
        for (int k = 0; k < t->model->units[u].param_count; k++) {
            int64_t first, end;
            if (t->model->units[u].params[k].unit != u)
                continue;
            shard_owned(t->engine->shard, u, k, &first, &end);
            reads += sets * ((end - first + WEIGHTS_PIECE - 1) / WEIGHTS_PIECE);
        }
    }
    return reads;
}

/* ---- A rank ---- */

static int fill(void *context, int unit, int param, int64_t first, int64_t n, float *out, struct error *err)
{
    (void)err;
    const struct trial *t = context;
    model_init_values(t->model, &t->model->units[unit].params[param], 42, first, n, out);
    return 0;
}

static int step(struct trial *t, int64_t number, const struct step_hold *hold, struct error *err)
{
    const struct adamw adamw = {0.9, 0.95, 1e-8, 0.1, 1.0};
    struct step_result result;
    return step_run(t->engine, &t->plan, number, &adamw, 1e-3, &t->scratch, hold, &result, err);
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
        return error_memory(err, 0, "states");
    memcpy(grown + k->n, values, (size_t)n * sizeof *grown);
    k->values = grown;
    k->n += n;
    return 0;
}

/* All masters and moments, on rank 0. */
static int fetch(struct trial *t, struct kept *out, struct error *err)
{
    *out = (struct kept){0};
    for (int kind = SHARD_MASTER; kind <= SHARD_MOMENT2; kind++)
        for (int u = 0; u < t->model->unit_count; u++)
            for (int k = 0; k < t->model->units[u].param_count; k++)
                if (t->model->units[u].params[k].unit == u &&
                    shard_fetch(t->engine->shard, (enum shard_kind)kind, u, k, keep, out, err) != 0)
                    return -1;
    return 0;
}

static bool same(const struct kept *a, const struct kept *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->values, b->values, (size_t)a->n * sizeof(float)) == 0);
}

static void checkpoint_path(const struct trial *t, int64_t number, char out[400])
{
    snprintf(out, 400, "%s/checkpoint-%06lld", t->output, (long long)number);
}

static int save_begin(struct trial *t, int64_t number, struct error *err)
{
    return saver_begin(t->saver, &(struct checkpoint_state){.step = number, .tokens_seen = 10 * number}, err);
}

static int rank_open(struct trial *t, struct token_cache *cache, struct error *err)
{
    json_t *config = json_loads(
        "{\"model_type\":\"llama\",\"vocab_size\":331,\"hidden_size\":240,\"intermediate_size\":77,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
        "\"tie_word_embeddings\":true,\"attention_bias\":true}",
        0, NULL);
    CHECK(config != NULL);
    int status = model_create(&t->model, config, "the test", NULL, err);
    json_decref(config);
    CHECK(status == 0);
    const struct backend_options be = {.name = t->backend, .isa = "auto", .threads = 2};
    const struct row_options rows = {.seq_len = SEQ, .global_batch = ROWS};
    const struct engine_options engine = {
        .compute = t->type, .micro_batch = 1, .seq_len = SEQ, .stage = t->stage, .overlap = true};
    const struct checkpoint_options options = {.output = t->output,
                                               .run_yaml = "seed: 42\n",
                                               .type = t->type,
                                               .file_limit = t->file_limit,
                                               .keep = 2,
                                               .bos = 1,
                                               .eos = 2,
                                               .pad = -1};
    CHECK(background_create(&t->thread, err) == 0);
    CHECK(row_plan_create(&t->plan, cache, &rows, err) == 0);
    CHECK(batch_create(&t->scratch, 1, SEQ, err) == 0);
    CHECK(backend_create(&t->be, &be, err) == 0);
    gate_install(t);
    CHECK(engine_create(&t->engine, t->model, t->comm, t->be, &engine, err) == 0);
    CHECK(saver_create(&t->saver, t->engine, &options, t->thread, err) == 0);
    return shard_fill(t->engine->shard, SHARD_MASTER, fill, t, err);
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct trial t = *(const struct trial *)context;
    uint32_t ids[DOCUMENTS * LENGTH];
    uint64_t ends[DOCUMENTS];
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = 0; i < LENGTH; i++)
            ids[d * LENGTH + i] = (uint32_t)(d * 31 + i * 7) % VOCABULARY;
        ends[d] = (uint64_t)(d + 1) * LENGTH;
    }
    struct token_cache cache = {.documents = DOCUMENTS,
                                .tokens = DOCUMENTS * LENGTH,
                                .ids = ids,
                                .ends = ends,
                                .max_id = VOCABULARY - 1};
    t.comm = comm;
    int status = rank_open(&t, &cache, err);
    if (status == 0)
        status = t.work(&t, err);
    if (status == 0)
        status = comm_barrier(comm, err);
    saver_free(t.saver);
    background_free(t.thread);
    engine_free(t.engine);
    backend_destroy(t.be);
    batch_free(&t.scratch);
    row_plan_free(&t.plan);
    model_free(t.model);
    return status == 0 ? 0 : 1;
}

/* ---- In the test ---- */

/* OUTPUT of its own. */
static void output_make(struct trial *t, const char *name)
{
    t->output = scratch_path(&scratch, name);
    assert_int_equal(file_make_directories(t->output, NULL), 0);
    t->backend = t->backend ? t->backend : "cpu";
}

static void run(int ranks, struct trial *t)
{
    struct error err = {0};
    int status = comm_run(ranks, COMM_AUTO, NULL, body, t, &err);
    if (status != 0)
        fail_msg("%d ranks, type %d, stage %d, %s: %s: %s", ranks, (int)t->type, t->stage, t->backend,
                 err.where, err.what);
}

static void expect_checkpoint(const struct trial *t, int64_t number, bool wanted)
{
    char path[400];
    struct error err = {0};
    checkpoint_path(t, number, path);
    if (!wanted)
        assert_false(file_exists(path));
    else if (checkpoint_verify(path, &err) != 0)
        fail_msg("%s: %s: %s", path, err.where, err.what);
}

static void expect_no_leftover(const struct trial *t)
{
    char command[600];
    snprintf(command, sizeof command, "ls -d '%s'/*.tmp-* 2>/dev/null", t->output);
    FILE *f = popen(command, "r");
    char line[400] = "";
    assert_non_null(f);
    const char *found = fgets(line, sizeof line, f);
    pclose(f);
    if (found)
        fail_msg("left behind: %s", line);
}

/* ---- The passes of the next step are done before anything is read, and the update comes after all is ----
 */

static int look_before_update(void *context, bool finite, struct error *err)
{
    struct trial *t = context;
    char path[400];
    checkpoint_path(t, 1, path);
    CHECK(finite);
    CHECK(gate_reads(&t->gate) == 0);
    CHECK(saver_progress(t->saver) == (reads_of_a_save(t) > 0));
    CHECK(!file_exists(path));
    gate_set(&t->gate, false);
    saver_hold(t->saver);
    CHECK(gate_reads(&t->gate) == reads_of_a_save(t));
    return 0;
}

static int overlap(struct trial *t, struct error *err)
{
    struct kept before, after, loaded;
    struct saver_done done;
    const struct step_hold hold = {look_before_update, t};
    char path[400];
    checkpoint_path(t, 1, path);
    CHECK(step(t, 0, NULL, err) == 0);
    CHECK(fetch(t, &before, err) == 0);
    gate_set(&t->gate, true);
    CHECK(save_begin(t, 1, err) == 0);
    CHECK(!saver_completed(t->saver, &done));
    CHECK(step(t, 1, &hold, err) == 0);
    CHECK(fetch(t, &after, err) == 0);
    CHECK(saver_finish(t->saver, err) == 0);
    CHECK(saver_completed(t->saver, &done) && done.step == 1 && strcmp(done.path, path) == 0);
    CHECK(done.bytes > 0 && done.held >= 0 && done.held <= done.seconds);
    CHECK(!saver_completed(t->saver, &done) && saver_progress(t->saver) == 0);
    CHECK(comm_rank(t->comm) != 0 || checkpoint_verify(path, err) == 0);
    CHECK(checkpoint_load(t->engine, path, NULL, err) == 0);
    CHECK(fetch(t, &loaded, err) == 0);
    CHECK(comm_rank(t->comm) != 0 || (before.n > 0 && !same(&before, &after)));
    CHECK(same(&before, &loaded));
    free(before.values);
    free(after.values);
    free(loaded.values);
    return 0;
}

static void test_overlap(void **state)
{
    (void)state;
    static const char *const backends[] = {"cpu", "guarded"};
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int stage = 0; stage <= 3; stage++) {
            char name[32];
            snprintf(name, sizeof name, "overlap-%d-%d", ranks, stage);
            struct trial t = {.type = (ranks + stage) % 2 ? DTYPE_BF16 : DTYPE_F32,
                              .stage = stage,
                              .backend = backends[(ranks + stage / 2) % 2],
                              .file_limit = stage == 1 ? 400000 : 0,
                              .work = overlap};
            output_make(&t, name);
            run(ranks, &t);
            expect_no_leftover(&t);
        }
    }
}

/* More ranks than there is something to own for. */
static void test_idle_ranks(void **state)
{
    (void)state;
    struct trial t = {.type = DTYPE_BF16, .stage = 3, .work = overlap};
    output_make(&t, "idle");
    run(7, &t);
    expect_no_leftover(&t);
}

/* ---- One on the heels of another ---- */

static int follow(struct trial *t, struct error *err)
{
    struct saver_done done;
    const int64_t numbers[] = {1, 2, 10};
    for (int i = 0; i < 3; i++) {
        CHECK(save_begin(t, numbers[i], err) == 0);
        CHECK(saver_completed(t->saver, &done) == (i > 0));
        CHECK(i == 0 || done.step == numbers[i - 1]);
    }
    /* As a run does it, from step to step. */
    for (int64_t agreed = 1; agreed != 0 || !saver_completed(t->saver, &done);) {
        agreed = saver_progress(t->saver);
        CHECK(comm_max_i64(t->comm, &agreed, 1, err) == 0);
        CHECK(saver_advance(t->saver, agreed, err) == 0);
    }
    CHECK(done.step == 10);
    return saver_finish(t->saver, err);
}

static void test_follow(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        char name[32];
        snprintf(name, sizeof name, "follow-%d", ranks);
        struct trial t = {.stage = ranks, .work = follow};
        output_make(&t, name);
        run(ranks, &t);
        expect_checkpoint(&t, 1, false); /* two are kept */
        expect_checkpoint(&t, 2, true);
        expect_checkpoint(&t, 10, true);
        expect_no_leftover(&t);
    }
}

/* ---- What goes wrong ---- */

static int hold_update(void *context, bool finite, struct error *err)
{
    (void)finite, (void)err;
    saver_hold(context);
    return 0;
}

static int fail_in_step(struct trial *t, struct error *err)
{
    const struct step_hold hold = {hold_update, t->saver};
    CHECK(save_begin(t, 1, err) == 0);
    CHECK(saver_finish(t->saver, err) == 0);
    if (comm_rank(t->comm) == t->failing)
        t->gate.fails_at = gate_reads(&t->gate) + reads_of_a_save(t);
    CHECK(save_begin(t, 2, err) == 0);
    CHECK(step(t, 0, &hold, err) == 0);
    if (saver_finish(t->saver, err) == 0)
        return error_set(err, ERROR_RUN, NULL, NULL, "the save went well");
    if (comm_size(t->comm) > 1)
        return -1;
    /* Nothing is under way now, and the next one is as the first. */
    struct error first = *err;
    struct saver_done done;
    *err = (struct error){0};
    t->gate.fails_at = 0;
    CHECK(saver_completed(t->saver, &done) && done.step == 1);
    CHECK(save_begin(t, 3, err) == 0 && saver_finish(t->saver, err) == 0);
    CHECK(saver_completed(t->saver, &done) && done.step == 3);
    *err = first;
    return -1;
}

static void test_failing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int failing = 0; failing < ranks; failing++) {
            char name[32], text[2200], wanted[32] = "";
            struct error err = {0};
            snprintf(name, sizeof name, "failing-%d-%d", ranks, failing);
            struct trial t = {.type = DTYPE_BF16, .stage = 2, .failing = failing, .work = fail_in_step};
            output_make(&t, name);
            assert_int_equal(comm_run(ranks, COMM_AUTO, NULL, body, &t, &err), 1);
            error_format(&err, text, sizeof text);
            if (ranks > 1)
                snprintf(wanted, sizeof wanted, "rank %d", failing);
            if (!strstr(text, "a read fails") || !strstr(text, wanted))
                fail_msg("%d ranks, %d fails: %s", ranks, failing, text);
            expect_checkpoint(&t, 1, true);
            expect_checkpoint(&t, 2, false);
            if (ranks == 1)
                expect_checkpoint(&t, 3, true);
            expect_no_leftover(&t);
        }
    }
}

/* OUTPUT is not there: found where a save begins. */
static int begin_nowhere(struct trial *t, struct error *err)
{
    CHECK(file_remove_tree(t->output, err) == 0);
    CHECK(file_write_all(t->output, "", 0, err) == 0);
    int status = save_begin(t, 1, err);
    CHECK(status != 0 && saver_progress(t->saver) == 0);
    return -1;
}

static void test_begin_nowhere(void **state)
{
    (void)state;
    struct error err = {0};
    struct trial t = {.work = begin_nowhere};
    output_make(&t, "nowhere");
    assert_int_equal(comm_run(1, COMM_AUTO, NULL, body, &t, &err), 1);
    assert_non_null(strstr(err.what, "directory"));
}

/* A run that ends while its save is under way, for a reason of its own. */
static int abandon(struct trial *t, struct error *err)
{
    CHECK(save_begin(t, 1, err) == 0);
    CHECK(saver_finish(t->saver, err) == 0);
    gate_set(&t->gate, true);
    CHECK(save_begin(t, 2, err) == 0);
    gate_set(&t->gate, false);
    return 0;
}

static void test_abandon(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        char name[32];
        snprintf(name, sizeof name, "abandon-%d", ranks);
        struct trial t = {.stage = 3, .work = abandon};
        output_make(&t, name);
        run(ranks, &t);
        expect_checkpoint(&t, 1, true);
        expect_no_leftover(&t);
    }
}

/* Memory runs out at every allocation in turn, of the caller and of the thread. */
static int starve(struct trial *t, struct error *err)
{
    struct saver_done done;
    for (int64_t n = 0;; n++) {
        struct error why = {0};
        allocations_fail_after(n);
        int status = save_begin(t, 1, &why);
        if (status == 0)
            status = saver_finish(t->saver, &why);
        allocations_fail_after(-1);
        CHECK(saver_progress(t->saver) == 0);
        CHECK(saver_completed(t->saver, &done) == (status == 0));
        if (status == 0)
            return n > 20 ? 0 : failed_at(err, __LINE__, "there are allocations");
        CHECK(why.kind == ERROR_RUN);
        expect_no_leftover(t);
    }
}

static int starve_at_birth(struct trial *t, struct error *err)
{
    const struct checkpoint_options options = {.output = t->output, .type = DTYPE_BF16, .file_limit = 1};
    for (int64_t n = 0;; n++) {
        struct error why = {0};
        struct saver *s;
        allocations_fail_after(n);
        int status = saver_create(&s, t->engine, &options, t->thread, &why);
        allocations_fail_after(-1);
        if (status == 0) {
            saver_free(s);
            return n > 20 ? 0 : failed_at(err, __LINE__, "there are allocations");
        }
        CHECK(why.kind == ERROR_RUN && s == NULL);
    }
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct trial t = {.work = starve};
    output_make(&t, "starved");
    run(1, &t);
    expect_checkpoint(&t, 1, true);
    t.work = starve_at_birth;
    run(1, &t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_overlap),       TEST(test_idle_ranks), TEST(test_follow),        TEST(test_failing),
        TEST(test_begin_nowhere), TEST(test_abandon),    TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
