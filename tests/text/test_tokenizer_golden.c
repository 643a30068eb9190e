/* Real tokenizers against the ids that Hugging Face gives: TERCET_SHARED names a directory with
 * tokenizers/golden.json and the tokenizers beside it. Skipped where it is not set. */
#include "small_tokenizer.h"

#include <stdio.h>

struct model {
    const char *name;
    struct tokenizer *tok;
    struct tokenizer_scratch *scratch;
    const json_t *cases;
};

static void check_list(const struct model *m, const char *text, size_t n, unsigned flags,
                       const json_t *expected, bool bos_in_front)
{
    struct token_buffer out = {0};
    struct error err = {0};
    int64_t shift = bos_in_front ? 1 : 0;

    if (tokenizer_encode(m->tok, m->scratch, text, n, flags, &out, &err) != 0)
        fail_msg("%s: \"%s\": %s", m->name, text, err.what);
    if (out.count != shift + (int64_t)json_array_size(expected))
        fail_msg("%s: \"%s\" has %lld ids", m->name, text, (long long)out.count);
    if (bos_in_front)
        assert_int_equal(out.ids[0], tokenizer_bos(m->tok));
    for (int64_t i = shift; i < out.count; i++)
        if (out.ids[i] != json_integer_value(json_array_get(expected, (size_t)(i - shift))))
            fail_msg("%s: \"%s\": id %lld is %u", m->name, text, (long long)i, out.ids[i]);
    token_buffer_free(&out);
}

static void check_decoded(const struct model *m, const json_t *ids, const json_t *expected)
{
    struct token_buffer in = {0};
    struct strbuf out = {0};
    struct error err;
    const json_t *id;
    size_t i;

    assert_int_equal(token_buffer_reserve(&in, (int64_t)json_array_size(ids), &err), 0);
    json_array_foreach(ids, i, id) in.ids[in.count++] = (uint32_t)json_integer_value(id);
    tokenizer_decode(m->tok, in.ids, in.count, false, &out);
    assert_int_equal(out.length, json_string_length(expected));
    if (out.length > 0)
        assert_memory_equal(out.data, json_string_value(expected), out.length);
    token_buffer_free(&in);
    strbuf_free(&out);
}

/* The goldens are of `tokenizers` alone; where tokenizer_config.json adds BOS, it stands in front. */
static void check_model(const char *directory, const char *name, const json_t *cases, bool config_adds_bos)
{
    struct model m = {.name = name, .cases = cases};
    char *path = file_join(directory, name);
    struct error err = {0};
    const json_t *c;
    size_t i;

    if (tokenizer_load(path, &m.tok, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    assert_int_equal(tokenizer_scratch_create(m.tok, &m.scratch, &err), 0);
    assert_true(json_array_size(cases) >= 46);
    json_array_foreach(cases, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *plain = json_object_get(c, "plain");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        check_list(&m, s, n, ENCODE_SPECIAL_IN_TEXT, plain, false);
        check_list(&m, s, n, ENCODE_SPECIAL_IN_TEXT | ENCODE_SPECIAL_TOKENS_ADDED,
                   json_object_get(c, "special"), config_adds_bos);
        check_decoded(&m, plain, json_object_get(c, "decoded"));
    }
    tokenizer_scratch_free(m.scratch);
    tokenizer_free(m.tok);
    free(path);
}

static struct json_document golden;
static char *tokenizers;

static const json_t *cases_of(const char *name)
{
    return json_object_get(json_object_get(golden.root, "cases"), name);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_model(tokenizers, "gpt2", cases_of("gpt2"), false);
}

static void test_llama3(void **state)
{
    (void)state;
    check_model(tokenizers, "llama3_1", cases_of("llama3_1"), false);
}

static void test_qwen3(void **state)
{
    (void)state;
    check_model(tokenizers, "qwen3", cases_of("qwen3"), false);
}

static void test_deepseek(void **state)
{
    (void)state;
    check_model(tokenizers, "deepseek_v3", cases_of("deepseek_v3"), true);
}

static void test_sentencepiece_refused(void **state)
{
    char *path = file_join(tokenizers, "mistral_v0_1");
    struct tokenizer *tok;
    struct error err = {0};

    (void)state;
    assert_int_equal(tokenizer_load(path, &tok, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.what, "SentencePiece"));
    free(path);
    path = file_join(tokenizers, "llama2");
    assert_int_equal(tokenizer_load(path, &tok, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_sentencepiece_refused),
    };
    const char *shared = getenv("TERCET_SHARED");
    struct error err = {0};
    char *path;
    int failed;

    if (shared == NULL || shared[0] == 0)
        return 77;
    tokenizers = file_join(shared, "tokenizers");
    path = file_join(tokenizers, "golden.json");
    if (json_open(&golden, path, JSON_FILE_LIMIT, &err) != 0) {
        fprintf(stderr, "%s: %s\n", err.where, err.what);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_close(&golden);
    free(path);
    free(tokenizers);
    return failed;
}
