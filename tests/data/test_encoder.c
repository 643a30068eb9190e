/* A real tokenizer through the cache: special tokens in the text, several threads, and text that the
 * vocabulary cannot express. */
#include "data/fixture.h"

#include "data/encoder.h"

static const char tokenizer_json[] =
    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"normalizer\": null,\n"
    " \"added_tokens\": [{\"id\": 7, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": false,\n"
    "   \"rstrip\": false, \"normalized\": false, \"special\": true}],\n"
    " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true,\n"
    "   \"use_regex\": true},\n"
    " \"post_processor\": null,\n"
    " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
    "\"use_regex\": true},\n"
    " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": "
    "null,\n"
    "   \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": "
    "false,\n"
    "   \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"abab\": 3, \"<\": 4, \">\": 5, \"s\": 6},\n"
    "   \"merges\": [[\"a\", \"b\"], [\"ab\", \"ab\"]]}}\n";

static void test_encoder(void **state)
{
    (void)state;
    struct error err;
    struct tokenizer *tok;
    struct text_encoder *encoder;
    struct pool *pool;
    put_text("tokenizer.json", tokenizer_json);
    if (tokenizer_load("tokenizer.json", &tok, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    assert_int_equal(pool_create(&pool, 3, false, 0, NULL, &err), 0);
    assert_int_equal(text_encoder_create(&encoder, tok, pool_threads(pool), &err), 0);
    FILE *f = fopen("a.jsonl", "w");
    assert_non_null(f);
    for (int i = 0; i < 20000; i++)
        fputs(i % 2 ? "{\"text\": \"abbaababab\"}\n" : "{\"text\": \"<s>ab\"}\n", f);
    assert_int_equal(fclose(f), 0);
    const char *files[] = {"a.jsonl"};
    struct token_cache_options o = {.files = files,
                                    .file_count = 1,
                                    .root = "cache",
                                    .encode = text_encoder_encode,
                                    .encode_context = encoder,
                                    .tokenizer_hash = tokenizer_hash(tok),
                                    .bos_id = -1,
                                    .eos_id = 7};
    static const uint32_t plain[] = {4, 6, 5, 2, 7}, special[] = {7, 2, 7}, odd[] = {2, 1, 0, 3, 2, 7};
    for (int s = 0; s < 2; s++) {
        char *path;
        struct token_cache cache;
        o.special_in_text = s;
        if (token_cache_build(&o, pool, NULL, &path, &err) != 0)
            fail_msg("%s: %s", err.where, err.what);
        assert_int_equal(token_cache_open(path, &cache, &err), 0);
        free(path);
        assert_int_equal(cache.documents, 20000);
        for (int64_t i = 0; i < cache.documents; i++) {
            int64_t n;
            const uint32_t *ids = token_cache_document(&cache, i, &n);
            const uint32_t *want = i % 2 ? odd : s ? special : plain;
            assert_int_equal(n, i % 2 ? 6 : s ? 3 : 5);
            assert_memory_equal(ids, want, (size_t)n * sizeof *want);
        }
        token_cache_close(&cache);
    }
    char *path;
    put_text("b.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"abc\"}\n");
    files[0] = "b.jsonl";
    assert_int_equal(token_cache_build(&o, pool, NULL, &path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_contains(err.where, "b.jsonl:2");
    text_encoder_free(encoder);
    pool_free(pool);
    tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_encoder, enter_directory, leave_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
