/* Checkpoints: the manifest refuses every damage, the newest is the highest number, a damaged newest names
 * the newest sound one, retention; what is saved comes back, also in shards and from several ranks. */
#include "support/cmocka.h"

#include "support/scratch.h"
#include "train/checkpoint_files.h"
#include "train/saver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void put(const char *directory, const char *name, const char *text)
{
    char *path = file_join(directory, name);
    struct error err = {0};
    if (file_write_all(path, text, strlen(text), &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    free(path);
}

/* A directory with two files and their manifest. */
static char *make_checkpoint(const char *name)
{
    struct manifest_list list = {0};
    char *path = scratch_path(&scratch, name), *training = file_join(path, "training");
    assert_int_equal(file_make_directories(training, NULL), 0);
    put(path, "config.json", "{}");
    put(path, "training/state.json", "some state");
    assert_int_equal(manifest_list_add(&list, "config.json", 2, hash_bytes("{}", 2, 0), NULL), 0);
    assert_int_equal(
        manifest_list_add(&list, "training/state.json", 10, hash_bytes("some state", 10, 0), NULL), 0);
    assert_int_equal(manifest_list_write(&list, path, NULL), 0);
    manifest_list_free(&list);
    free(training);
    return path;
}

static void test_manifest(void **state)
{
    (void)state;
    struct manifest_list list;
    char *path = make_checkpoint("checkpoint-000001");
    assert_int_equal(manifest_list_read(&list, path, NULL), 0);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.items[1].name, "training/state.json");
    assert_int_equal(list.items[1].bytes, 10);
    assert_true(list.items[1].hash == hash_bytes("some state", 10, 0));
    manifest_list_free(&list);
    assert_int_equal(checkpoint_verify(path, NULL), 0);

    char longest[129];
    memset(longest, 'n', 128);
    longest[128] = '\0';
    assert_int_equal(manifest_list_add(&list, longest, 1, 1, NULL), -1);
    longest[127] = '\0';
    assert_int_equal(manifest_list_add(&list, longest, 1, 1, NULL), 0);
    manifest_list_free(&list);
}

static void refused(const char *path, const char *place, const char *word)
{
    struct error err = {0};
    assert_int_equal(checkpoint_verify(path, &err), -1);
    if (err.kind != ERROR_INPUT || !strstr(err.where, place) || !strstr(err.what, word))
        fail_msg("expected '%s' in %s; kind %d, %s: %s", word, place, (int)err.kind, err.where, err.what);
}

static void test_damage(void **state)
{
    (void)state;
    char *path = make_checkpoint("checkpoint-000001"), *file = file_join(path, "training/state.json");
    put(path, "training/state.json", "some statf");
    refused(path, "training/state.json", "checksum");
    put(path, "training/state.json", "some stat");
    refused(path, "training/state.json", "9 bytes, the manifest says 10");
    put(path, "training/state.json", "some state and more");
    refused(path, "training/state.json", "19 bytes");
    assert_int_equal(unlink(file), 0);
    refused(path, "training/state.json", "No such file");
    assert_int_equal(mkdir(file, 0777), 0);
    refused(path, "training/state.json", "directory");
    free(file);
    file = file_join(path, "training/manifest.json");
    assert_int_equal(unlink(file), 0);
    refused(path, "training/manifest.json", "No such file");
    free(file);
}

static void test_bad_manifests(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"", "manifest.json"},
        {"{\"version\": 1", "manifest.json"},
        {"[]", "object"},
        {"{\"version\": 2, \"files\": []}", "version 2"},
        {"{\"version\": 0, \"files\": []}", "version"},
        {"{\"files\": []}", "version"},
        {"{\"version\": 1}", "files"},
        {"{\"version\": 1, \"files\": {}}", "files"},
        {"{\"version\": 1, \"files\": []}", "lists no files"},
        {"{\"version\": 1, \"files\": [3]}", "name"},
        {"{\"version\": 1, \"files\": [{\"name\": 3, \"bytes\": 1, \"xxh3\": \"0123456789abcdef\"}]}",
         "name"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": -1, \"xxh3\": \"0123456789abcdef\"}]}",
         "bytes"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1.5, \"xxh3\": \"0123456789abcdef\"}]}",
         "bytes"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": \"123456789abcdef\"}]}",
         "hexadecimal"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": \"-123456789abcdef\"}]}",
         "hexadecimal"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": \" 123456789abcdef\"}]}",
         "hexadecimal"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": \"0x23456789abcdef\"}]}",
         "hexadecimal"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a\", \"bytes\": 1, \"xxh3\": \"0123456789abcdeg\"}]}",
         "hexadecimal"},
        {"{\"version\": 1, \"files\": [{\"name\": \"/etc/passwd\", \"bytes\": 1, \"xxh3\": "
         "\"0123456789abcdef\"}]}",
         "leaves"},
        {"{\"version\": 1, \"files\": [{\"name\": \"../x\", \"bytes\": 1, \"xxh3\": \"0123456789abcdef\"}]}",
         "leaves"},
        {"{\"version\": 1, \"files\": [{\"name\": \"a/../../x\", \"bytes\": 1, \"xxh3\": "
         "\"0123456789abcdef\"}]}",
         "leaves"},
        /* 128 bytes, one more than there is room for: the place is named, as everywhere. */
        {"{\"version\": 1, \"files\": [{\"name\": "
         "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\", \"bytes\": 1, \"xxh3\": "
         "\"0123456789abcdef\"}]}",
         "128 bytes"},
    };
    char *path = make_checkpoint("checkpoint-000001");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err = {0};
        char text[2200];
        put(path, "training/manifest.json", bad[i].text);
        assert_int_equal(checkpoint_verify(path, &err), -1);
        error_format(&err, text, sizeof text);
        if (err.kind != ERROR_INPUT || !strstr(text, "manifest.json") || !strstr(text, bad[i].word))
            fail_msg("%s: kind %d, %s", bad[i].text, (int)err.kind, text);
    }
}

static void test_numeric_order(void **state)
{
    (void)state;
    static const char *const names[] = {"checkpoint-1000000", "checkpoint-000009", "checkpoint-999999",
                                        "checkpoint-000010", "checkpoint-000100"};
    static const char *const others[] = {"checkpoint-000500.tmp-12",
                                         "checkpoint-abc",
                                         "checkpoint-12x",
                                         "checkpoint-",
                                         "checkpoint--5",
                                         "other-000001",
                                         "checkpoint-99999999999999999999"};
    const int64_t steps[] = {9, 10, 100, 999999, 1000000};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        make_checkpoint(names[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        make_checkpoint(others[i]);
    assert_int_equal(mkdir(scratch_path(&scratch, "checkpoint-2000000"), 0777), 0); /* without a manifest */
    struct checkpoint_listing listing;
    assert_int_equal(checkpoint_list(scratch.directory, &listing, NULL), 0);
    assert_int_equal(listing.count, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(listing.items[i].step, steps[i]);
    checkpoint_listing_free(&listing);
    char *newest;
    assert_int_equal(checkpoint_newest(scratch.directory, &newest, NULL), 0);
    assert_string_equal(strrchr(newest, '/'), "/checkpoint-1000000");
    free(newest);
}

static void test_newest_sound(void **state)
{
    (void)state;
    struct error err = {0};
    char *newest = NULL, none[300], wanted[300];
    snprintf(none, sizeof none, "%s/nothing", scratch.directory);
    assert_int_equal(checkpoint_newest(none, &newest, NULL), 0);
    assert_null(newest);
    assert_int_equal(checkpoint_newest(scratch.directory, &newest, NULL), 0);
    assert_null(newest);

    make_checkpoint("checkpoint-000009");
    char *second = make_checkpoint("checkpoint-000010"), *third = make_checkpoint("checkpoint-000011");
    put(third, "config.json", "[]");
    assert_int_equal(checkpoint_newest(scratch.directory, &newest, &err), -1);
    assert_null(newest);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.where, "checkpoint-000011/config.json"));
    snprintf(wanted, sizeof wanted, "--resume=%s", second);
    assert_non_null(strstr(err.remedy, wanted));

    put(second, "training/state.json", "");
    assert_int_equal(checkpoint_newest(scratch.directory, &newest, &err), -1);
    assert_non_null(strstr(err.remedy, "/checkpoint-000009"));
    put(scratch_path(&scratch, "checkpoint-000009"), "training/manifest.json", "?");
    assert_int_equal(checkpoint_newest(scratch.directory, &newest, &err), -1);
    assert_non_null(strstr(err.remedy, "--overwrite"));
}

/* ---- with an engine ---- */

struct trial {
    enum dtype type; /* of the model files */
    int64_t limit;   /* of one file of tensors */
    const char *output;
    struct comm *comm;
    struct model *model;
    struct backend *be;
    struct engine *engine;
    uint64_t seed;
};

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

/* Values of a state: other ones for each seed and kind. */
static void values_of(const struct trial *t, int kind, int unit, int param, int64_t first, int64_t n,
                      float *out)
{
    struct model_param p = t->model->units[unit].params[param];
    p.init = MODEL_INIT_NORMAL;
    model_init_values(t->model, &p, t->seed * 10 + (uint64_t)kind, first, n, out);
}

static int fill(void *context, int unit, int param, int64_t first, int64_t n, float *out, struct error *err)
{
    (void)err;
    values_of(((void **)context)[0], *(int *)((void **)context)[1], unit, param, first, n, out);
    return 0;
}

static int fill_all(struct trial *t, uint64_t seed, struct error *err)
{
    t->seed = seed;
    for (int kind = SHARD_MASTER; kind <= SHARD_MOMENT2; kind++) {
        void *context[] = {t, &kind};
        CHECK(shard_fill(t->engine->shard, (enum shard_kind)kind, fill, context, err) == 0);
    }
    return 0;
}

struct compared {
    const struct trial *t;
    int kind, unit, param;
    bool rounded;
    int64_t at;
};

static int compare(void *context, const float *values, int64_t n, struct error *err)
{
    struct compared *c = context;
    for (int64_t i = 0; i < n; i++, c->at++) {
        float wanted;
        values_of(c->t, c->kind, c->unit, c->param, c->at, 1, &wanted);
        CHECK(values[i] == (c->rounded ? bf16_to_f32(f32_to_bf16(wanted)) : wanted));
    }
    return 0;
}

/* The engine holds the values of `seed`. */
static int check_all(struct trial *t, uint64_t seed, int kinds, bool rounded, struct error *err)
{
    t->seed = seed;
    for (int kind = 0; kind < kinds; kind++) {
        for (int u = 0; u < t->model->unit_count; u++) {
            for (int k = 0; k < t->model->units[u].param_count; k++) {
                if (t->model->units[u].params[k].unit != u)
                    continue;
                struct compared c = {t, kind, u, k, rounded, 0};
                CHECK(shard_fetch(t->engine->shard, (enum shard_kind)kind, u, k, compare, &c, err) == 0);
                CHECK(comm_rank(t->comm) != 0 || c.at == model_param_elements(&t->model->units[u].params[k]));
            }
        }
    }
    return 0;
}

static int trial_open(struct trial *t, struct error *err)
{
    json_t *config =
        json_loads("{\"model_type\":\"llama\",\"vocab_size\":331,\"hidden_size\":60,\"intermediate_size\":77,"
                   "\"num_hidden_layers\":2,\"num_attention_heads\":5,\"num_key_value_heads\":1,"
                   "\"tie_word_embeddings\":true,\"attention_bias\":true}",
                   0, NULL);
    CHECK(config != NULL);
    int status = model_create(&t->model, config, "the test", NULL, err);
    json_decref(config);
    CHECK(status == 0);
    struct backend_options be = {.name = "cpu", .isa = "auto", .threads = 1};
    CHECK(backend_create(&t->be, &be, err) == 0);
    struct engine_options options = {.compute = t->type, .micro_batch = 1, .seq_len = 4, .stage = 3};
    return engine_create(&t->engine, t->model, t->comm, t->be, &options, err);
}

static int with_engine(struct comm *comm, struct trial t, int (*work)(struct trial *t, struct error *err),
                       struct error *err)
{
    t.comm = comm;
    int status = trial_open(&t, err);
    if (status == 0)
        status = work(&t, err);
    if (status == 0)
        status = comm_barrier(comm, err);
    engine_free(t.engine);
    backend_destroy(t.be);
    model_free(t.model);
    return status == 0 ? 0 : 1;
}

/* `path` is where it is. */
static int save(struct trial *t, int64_t step, char path[4096], struct error *err)
{
    const struct checkpoint_options options = {.output = t->output,
                                               .run_yaml = "seed: 42\n",
                                               .type = t->type,
                                               .file_limit = t->limit,
                                               .keep = 2,
                                               .bos = 1,
                                               .eos = 2,
                                               .pad = -1};
    const struct checkpoint_state state = {step, 1000 * step, 0xfedcba9876543210u, 77};
    struct background *thread;
    struct saver *saver;
    struct saver_done done;
    CHECK(background_create(&thread, err) == 0);
    CHECK(saver_create(&saver, t->engine, &options, thread, err) == 0);
    CHECK(saver_begin(saver, &state, err) == 0 && saver_finish(saver, err) == 0);
    CHECK(saver_completed(saver, &done) && done.step == step);
    saver_free(saver);
    background_free(thread);
    if (comm_rank(t->comm) == 0)
        CHECK(checkpoint_verify(done.path, err) == 0);
    snprintf(path, sizeof done.path, "%s", done.path);
    return 0;
}

/* Three saves, the oldest of which goes; the newest comes back. */
static int save_and_load(struct trial *t, struct error *err)
{
    const int64_t steps[] = {9, 10, 100};
    char path[4096];
    for (int i = 0; i < 3; i++)
        if (fill_all(t, (uint64_t)steps[i], err) != 0 || save(t, steps[i], path, err) != 0)
            return -1;
    struct checkpoint_state state;
    char *newest, *run;
    CHECK(fill_all(t, 5, err) == 0);
    CHECK(checkpoint_newest(t->output, &newest, err) == 0 && newest != NULL);
    CHECK(strcmp(strrchr(newest, '/'), "/checkpoint-000100") == 0);
    CHECK(checkpoint_read_state(newest, &state, err) == 0);
    CHECK(state.step == 100 && state.tokens_seen == 100000 && state.probe == 77);
    CHECK(state.data_hash == 0xfedcba9876543210u);
    CHECK(checkpoint_read_run(newest, &run, err) == 0 && strcmp(run, "seed: 42\n") == 0);
    CHECK(checkpoint_load(t->engine, newest, NULL, err) == 0);
    free(newest);
    free(run);
    return check_all(t, 100, 3, false, err);
}

static int save_body(struct comm *comm, void *context, struct error *err)
{
    return with_engine(comm, *(const struct trial *)context, save_and_load, err);
}

static void run(int ranks, comm_body *body, struct trial t)
{
    struct error err = {0};
    int status = comm_run(ranks, COMM_AUTO, NULL, body, &t, &err);
    if (status != 0)
        fail_msg("%d ranks, type %d: %s: %s", ranks, (int)t.type, err.where, err.what);
}

static bool there(const char *directory, const char *name)
{
    char *path = file_join(directory, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

static void same_files(const char *a, const char *b, const char *name)
{
    char *paths[] = {file_join(a, name), file_join(b, name)};
    int64_t bytes[2];
    uint64_t hash[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(file_hash(paths[i], &bytes[i], &hash[i], NULL), 0);
    if (bytes[0] != bytes[1] || hash[0] != hash[1])
        fail_msg("%s and %s differ", paths[0], paths[1]);
    free(paths[0]);
    free(paths[1]);
}

static void test_save(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        const char *const names[] = {"one", "two", "three"};
        char *output[3];
        for (int ranks = 1; ranks <= 3; ranks++) {
            char name[32], last[64] = {0};
            snprintf(name, sizeof name, "%s-%d", names[ranks - 1], type);
            output[ranks - 1] = scratch_path(&scratch, name);
            assert_int_equal(file_make_directories(output[ranks - 1], NULL), 0);
            run(ranks, save_body,
                (struct trial){.type = type ? DTYPE_BF16 : DTYPE_F32, .output = output[ranks - 1]});
            assert_false(there(output[ranks - 1], "checkpoint-000009"));
            assert_true(there(output[ranks - 1], "checkpoint-000010"));
            char *link = file_join(output[ranks - 1], "last");
            assert_true(readlink(link, last, sizeof last - 1) > 0);
            assert_string_equal(last, "checkpoint-000100");
            free(link);
            assert_int_equal(there(output[ranks - 1], "last/training/master.safetensors"), type == 1);
            static const char *const files[] = {"last/model.safetensors",
                                                "last/config.json",
                                                "last/training/moment1.safetensors",
                                                "last/training/moment2.safetensors",
                                                "last/training/state.json",
                                                "last/training/manifest.json"};
            for (size_t i = 0; i < sizeof files / sizeof *files; i++)
                same_files(output[0], output[ranks - 1], files[i]);
        }
    }
}

/* ---- sharded model files ---- */

static int save_shards(struct trial *t, struct error *err)
{
    char path[4096];
    CHECK(fill_all(t, 3, err) == 0);
    CHECK(save(t, 1, path, err) == 0);
    struct safetensors_set set;
    CHECK(weights_open(&set, t->model, path, NULL, err) == 0);
    CHECK(fill_all(t, 4, err) == 0);
    int status = weights_load(t->engine, SHARD_MASTER, &set, err);
    int64_t owned = 0;
    for (int u = 0; u < t->model->unit_count; u++)
        for (int k = 0; k < t->model->units[u].param_count; k++)
            owned += t->model->units[u].params[k].unit == u;
    CHECK(set.count == owned);
    safetensors_set_close(&set);
    CHECK(status == 0);
    return check_all(t, 3, 1, t->type == DTYPE_BF16, err);
}

static int shards_body(struct comm *comm, void *context, struct error *err)
{
    return with_engine(comm, *(const struct trial *)context, save_shards, err);
}

static int count_files(const char *directory)
{
    int count = 0;
    for (int n = 1; n <= 99; n++) {
        char name[64];
        for (int i = 1; i <= n; i++) {
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, n);
            count += there(directory, name);
        }
    }
    return count;
}

static void test_shards(void **state)
{
    (void)state;
    /* fp32: the embedding has 79,440 bytes and a file of its own; then files of at most 40,000 bytes, one
     * tensor a file, all in one. */
    static const struct {
        int64_t limit;
        bool indexed;
    } cases[] = {{40000, true}, {1, true}, {1 << 30, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *directories[2];
        for (int r = 0; r < 2; r++) {
            char name[64];
            snprintf(name, sizeof name, "shards-%zu-%d", i, r);
            char *output = scratch_path(&scratch, name);
            assert_int_equal(file_make_directories(output, NULL), 0);
            run(r == 0 ? 1 : 3, shards_body, (struct trial){.limit = cases[i].limit, .output = output});
            snprintf(name, sizeof name, "shards-%zu-%d/checkpoint-000001", i, r);
            directories[r] = scratch_path(&scratch, name);
            assert_int_equal(there(directories[r], "model.safetensors.index.json"), cases[i].indexed);
            assert_int_equal(there(directories[r], "model.safetensors"), !cases[i].indexed);
        }
        assert_int_equal(count_files(directories[0]), count_files(directories[1]));
        if (!cases[i].indexed)
            same_files(directories[0], directories[1], "model.safetensors");
        else
            same_files(directories[0], directories[1], "model.safetensors.index.json");
        same_files(directories[0], directories[1], "training/manifest.json");
        if (cases[i].limit == 1)
            assert_int_equal(count_files(directories[0]),
                             2 + 2 * 13); /* embedding, last norm, 13 tensors a block */
    }
    char *bf16 = scratch_path(&scratch, "bf16");
    assert_int_equal(file_make_directories(bf16, NULL), 0);
    run(2, shards_body, (struct trial){.type = DTYPE_BF16, .limit = 30000, .output = bf16});
    assert_true(count_files(scratch_path(&scratch, "bf16/checkpoint-000001")) >= 3);
}

/* What an interrupted save leaves is removed; nothing else is. */
static void test_clean(void **state)
{
    (void)state;
    make_checkpoint("checkpoint-000010");
    make_checkpoint("checkpoint-000011.tmp-123");
    make_checkpoint("mine.tmp-123");
    assert_int_equal(checkpoint_clean(scratch.directory, NULL), 0);
    assert_true(there(scratch.directory, "checkpoint-000010/training/manifest.json"));
    assert_false(there(scratch.directory, "checkpoint-000011.tmp-123"));
    assert_true(there(scratch.directory, "mine.tmp-123"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_manifest),     TEST(test_damage), TEST(test_bad_manifests), TEST(test_numeric_order),
        TEST(test_newest_sound), TEST(test_save),   TEST(test_shards),        TEST(test_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
