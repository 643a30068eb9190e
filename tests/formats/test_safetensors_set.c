#include "formats/safetensors.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int open_scratch(void **state)
{
    static struct scratch scratch;
    scratch_open(&scratch);
    *state = &scratch;
    return 0;
}

static int close_scratch(void **state)
{
    scratch_close(*state);
    return 0;
}

/* A file with one-byte tensors, named by the letters of `names`; the data are the letters themselves. */
static void make_shard(struct scratch *s, const char *file, const char *names)
{
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct error err;
    const int64_t one = 1;
    for (size_t i = 0; names[i] != '\0'; i++) {
        const char name[2] = {names[i], '\0'};
        assert_int_equal(safetensors_plan_add(&plan, name, DTYPE_U8, 1, &one, &err), 0);
    }
    assert_int_equal(safetensors_writer_open(&w, scratch_path(s, file), &plan, &err), 0);
    assert_int_equal(safetensors_writer_write(&w, names, strlen(names), &err), 0);
    assert_int_equal(safetensors_writer_commit(&w, NULL, NULL, &err), 0);
    safetensors_plan_free(&plan);
}

static void make_index(struct scratch *s, const char *text)
{
    struct error err;
    assert_int_equal(
        file_write_all(scratch_path(s, "model.safetensors.index.json"), text, strlen(text), &err), 0);
}

static void assert_refused(struct scratch *s, const char *where, const char *what)
{
    struct safetensors_set set;
    struct error err = {0};
    assert_int_equal(safetensors_set_open(&set, s->directory, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (strstr(err.where, where) == NULL)
        fail_msg("\"%s\" not in \"%s\"", where, err.where);
    if (strstr(err.what, what) == NULL)
        fail_msg("\"%s\" not in \"%s\"", what, err.what);
    assert_null(set.directory);
    safetensors_set_close(&set); /* does no harm */
}

static void assert_sound(struct scratch *s, const char *names, int64_t files)
{
    struct safetensors_set set;
    struct error err;
    if (safetensors_set_open(&set, s->directory, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    assert_int_equal(set.file_count, files);
    assert_int_equal(set.count, strlen(names));
    assert_int_equal(set.data_bytes, strlen(names));
    for (size_t i = 0; names[i] != '\0'; i++) {
        const char name[2] = {names[i], '\0'};
        const struct safetensors_tensor *t = safetensors_set_find(&set, name);
        assert_ptr_equal(t, set.tensors[i]);
        assert_string_equal(t->name, name);
        assert_int_equal(*(const char *)t->data, names[i]);
    }
    assert_null(safetensors_set_find(&set, "zz"));
    safetensors_set_close(&set);
    safetensors_set_close(&set); /* once more does no harm */
}

static void single_file(void **state)
{
    struct scratch *s = *state;
    make_shard(s, "model.safetensors", "cab");
    assert_sound(s, "abc", 1);
    make_index(s, "{}");
    assert_refused(s, s->directory, "both");
}

#define INDEX(map) "{\"metadata\": {\"total_size\": 4},\n\"weight_map\": {" map "}}"
#define SOUND                                                                                                \
    INDEX("\"a\": \"s-1.safetensors\",\n\"d\": \"s-1.safetensors\",\n\"c\": \"s-2.safetensors\",\n"          \
          "\"b\": \"s-2.safetensors\"")

static void shards(void **state)
{
    struct scratch *s = *state;
    make_shard(s, "s-1.safetensors", "da");
    make_shard(s, "s-2.safetensors", "cb");
    make_index(s, SOUND);
    assert_sound(s, "abcd", 2);
    /* A link to a file elsewhere is a plain name: caches of model hubs are made of them. */
    char *link = scratch_path(s, "s-2.safetensors");
    struct error err;
    assert_int_equal(file_make_directories(scratch_path(s, "blobs"), &err), 0);
    assert_int_equal(rename(link, scratch_path(s, "blobs/x")), 0);
    assert_int_equal(symlink("blobs/x", link), 0);
    assert_sound(s, "abcd", 2);
}

static void wrong_shards(void **state)
{
    struct scratch *s = *state;
    make_shard(s, "s-1.safetensors", "da");
    make_index(s, SOUND);
    assert_refused(s, "s-2.safetensors", "missing");
    make_shard(s, "s-2.safetensors", "c");
    assert_refused(s, "index.json:5", "weight_map.b: this tensor is not in s-2.safetensors");
    make_shard(s, "s-2.safetensors", "cbx");
    assert_refused(s, "s-2.safetensors", "tensor \"x\" is not listed");
    make_shard(s, "s-2.safetensors", "cba");
    assert_refused(s, "s-2.safetensors", "tensor \"a\" is also in");
    make_shard(s, "s-1.safetensors", "dab");
    make_shard(s, "s-2.safetensors", "c");
    assert_refused(s, "index.json:5", "weight_map.b: this tensor is not in s-2.safetensors");
    struct error err;
    assert_int_equal(file_write_all(scratch_path(s, "s-2.safetensors"), "x", 1, &err), 0);
    assert_refused(s, "s-2.safetensors", "too short");
}

static void wrong_indexes(void **state)
{
    struct scratch *s = *state;
    static const struct {
        const char *text, *what;
    } cases[] = {
        {"", "found nothing"},
        {"[]", "expected an object"},
        {"{}", "weight_map: this key is missing"},
        {"{\"weight_map\": []}", "weight_map: expected an object, found an array"},
        {INDEX(""), "weight_map: it lists no tensor"},
        {INDEX("\"a\": 3"), "weight_map.a: expected a string"},
        {INDEX("\"a\": \"x\", \"a\": \"y\""), "duplicate"},
        {INDEX("\"a\": \"\""), "no plain file name"},
        {INDEX("\"a\": \".\""), "no plain file name"},
        {INDEX("\"a\": \"..\""), "no plain file name"},
        {INDEX("\"a\": \"../s-1.safetensors\""), "no plain file name"},
        {INDEX("\"a\": \"/etc/passwd\""), "no plain file name"},
        {INDEX("\"a\": \"b/s-1.safetensors\""), "no plain file name"},
        {INDEX("\"a\": \"s-1\\u0000\""), "U+0000"},
        {"{\"weight_map\": {\"a\": \"s-1.safetensors\"}, \"more\": 1}", "more: an index has the keys"},
    };
    make_shard(s, "s-1.safetensors", "a");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_index(s, cases[i].text);
        assert_refused(s, "index.json", cases[i].what);
    }
    make_index(s, "{\"weight_map\": {\"a\": \"s-1.safetensors\"}}");
    assert_sound(s, "a", 1);
}

static void no_weights(void **state)
{
    struct scratch *s = *state;
    struct safetensors_set set;
    struct error err;
    assert_refused(s, s->directory, "neither");
    assert_int_equal(safetensors_set_open(&set, scratch_path(s, "absent"), &err), -1);
    assert_non_null(strstr(err.what, "no such directory"));
}

static void out_of_memory(void **state)
{
    struct scratch *s = *state;
    struct safetensors_set set;
    struct error err;
    make_shard(s, "s-1.safetensors", "da");
    make_shard(s, "s-2.safetensors", "cb");
    make_index(s, SOUND);
    int64_t failures = 0;
    for (;; failures++) {
        allocations_fail_after(failures);
        int status = safetensors_set_open(&set, s->directory, &err);
        allocations_fail_after(-1);
        if (status == 0)
            break;
        assert_null(set.directory);
    }
    assert_true(failures >= 8);
    safetensors_set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(single_file, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(shards, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(wrong_shards, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(wrong_indexes, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(no_weights, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(out_of_memory, open_scratch, close_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
