#include "small_tokenizer.h"

#include "text/train.h"

static struct bpe_trainer *trainer_of(const char *const *documents)
{
    struct bpe_trainer *t;
    struct error err;

    assert_int_equal(bpe_trainer_create(&t, &err), 0);
    for (; *documents != NULL; documents++)
        assert_int_equal(bpe_trainer_add(t, *documents, strlen(*documents), &err), 0);
    return t;
}

static struct tokenizer *train(struct bpe_trainer *t, int64_t size, int64_t min_frequency,
                               struct bpe_result *result)
{
    char *directory = temporary_directory(), *inner = file_join(directory, "new/place");
    struct bpe_options options = {.vocab_size = size, .min_frequency = min_frequency};
    struct tokenizer *tok;
    struct error err = {0};

    if (bpe_trainer_write(t, &options, inner, result, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    if (tokenizer_load(inner, &tok, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    free(inner);
    remove_directory(directory);
    return tok;
}

/* Ids of bytes: `<|endoftext|>` is 0, then the characters of the alphabet from U+0021 on. */
#define ID(c) (1u + (c) - '!')
#define ID_SPACE 221u /* after 94 + 12 + 82 characters: U+0100 is 189, U+0120 is 221 */

/* Words: "ab" 3 times, " ab" twice, " abc" once: ab 6, " a" 3, bc 1. ab becomes 257; then " ab" 3 (258),
 * then " abc" 1 as (258, c), 259. There is nothing else. */
static void test_by_hand(void **state)
{
    static const char *const documents[] = {"ab ab", "ab ab abc", "ab", NULL};
    struct bpe_trainer *t = trainer_of(documents);
    struct bpe_result result;
    struct tokenizer *tok = train(t, 1000, 0, &result);

    (void)state;
    assert_int_equal(result.vocab_size, 260);
    assert_int_equal(result.merges, 3);
    assert_int_equal(result.words, 6);
    assert_int_equal(result.distinct_words, 3);
    assert_int_equal(tokenizer_vocab_size(tok), 260);
    assert_string_equal(tokenizer_token_text(tok, 0, NULL), "<|endoftext|>");
    assert_string_equal(tokenizer_token_text(tok, 1, NULL), "!");
    assert_string_equal(tokenizer_token_text(tok, 256, NULL), "\xc5\x83"); /* U+0143 */
    assert_string_equal(tokenizer_token_text(tok, ID_SPACE, NULL), "\xc4\xa0");
    assert_string_equal(tokenizer_token_text(tok, 257, NULL), "ab");
    assert_string_equal(tokenizer_token_text(tok, 258, NULL), "\xc4\xa0"
                                                              "ab");
    assert_string_equal(tokenizer_token_text(tok, 259, NULL), "\xc4\xa0"
                                                              "abc");
    check_ids(tok, 0, "ab abc abd b", 257, 259, 258, ID('d'), ID_SPACE, ID('b'));
    check_ids(tok, ENCODE_SPECIAL_IN_TEXT | ENCODE_SPECIAL_TOKENS_ADDED, "ab<|endoftext|>", 257, 0);
    assert_int_equal(tokenizer_bos(tok), 0);
    assert_int_equal(tokenizer_eos(tok), 0);
    assert_false(tokenizer_adds_bos(tok));
    assert_true(tokenizer_is_special(tok, 0));
    tokenizer_free(tok);
    tok = train(t, 258, 0, &result);
    assert_int_equal(result.vocab_size, 258);
    check_ids(tok, 0, "ab abc", 257, ID_SPACE, 257, ID('c'));
    tokenizer_free(tok);
    tok = train(t, 257, 0, &result);
    assert_int_equal(result.merges, 0);
    tokenizer_free(tok);
    tok = train(t, 1000, 2, &result); /* " abc" occurs once only */
    assert_int_equal(result.merges, 2);
    tokenizer_free(tok);
    tok = train(t, 1000, 4, NULL);
    assert_int_equal(tokenizer_vocab_size(tok), 258);
    tokenizer_free(tok);
    bpe_trainer_free(t);
}

/* Of equally frequent pairs the one with the smaller ids goes first; pairs overlap in "aaa". */
static void test_ties_and_overlaps(void **state)
{
    static const char *const ties[] = {"cd", "\n", "ab", "\n", "bz", NULL};
    static const char *const overlaps[] = {"aaaaaaa", NULL};
    struct bpe_trainer *t = trainer_of(ties);
    struct tokenizer *tok = train(t, 259, 0, NULL);

    (void)state;
    assert_string_equal(tokenizer_token_text(tok, 257, NULL), "ab");
    assert_string_equal(tokenizer_token_text(tok, 258, NULL), "bz");
    tokenizer_free(tok);
    bpe_trainer_free(t);
    t = trainer_of(overlaps);
    tok = train(t, 300, 0, NULL);
    /* aa: aa aa aa a. Then (aa, aa) twice, (aa, a) once: aaaa, giving aaaa aa a. Then (aa, a), whose ids are
     * smaller than those of (aaaa, aa): aaa, and at last all of it. */
    assert_string_equal(tokenizer_token_text(tok, 257, NULL), "aa");
    assert_string_equal(tokenizer_token_text(tok, 258, NULL), "aaaa");
    assert_string_equal(tokenizer_token_text(tok, 259, NULL), "aaa");
    assert_string_equal(tokenizer_token_text(tok, 260, NULL), "aaaaaaa");
    assert_int_equal(tokenizer_vocab_size(tok), 261);
    check_ids(tok, 0, "aaaaaaa", 260);
    tokenizer_free(tok);
    bpe_trainer_free(t);
}

/* The merges never leave a word, and every text comes back. */
static void test_any_text(void **state)
{
    static const char *const documents[] = {
        "the cat's 123 hats\n\n  and \xe4\xb8\xad\xe6\x96\x87 \xe4\xb8\xad\xe6\x96\x87",
        "\xf0\x9f\x98\x80\xf0\x9f\x98\x80 the the cat \"quoted\" \\ ", NULL};
    static const char text[] = "cat\0the \xe4\xb8\xad \x7f <|endoftext|> \"\\\n";
    struct bpe_trainer *t = trainer_of(documents);
    struct tokenizer *tok = train(t, 400, 0, NULL);
    struct tokenizer_scratch *scratch;
    struct token_buffer ids = {0};
    struct strbuf out = {0};
    struct error err;

    (void)state;
    for (uint32_t id = 257; id < tokenizer_vocab_size(tok); id++) {
        const char *token = tokenizer_token_text(tok, id, NULL);
        for (const char *space = strstr(token + 1, "\xc4\xa0"); space != NULL;
             space = strstr(space + 1, "\xc4\xa0"))
            assert_null(strchr("acehst123'", space[-1])); /* a space stands in front of a word only */
    }
    assert_int_equal(tokenizer_scratch_create(tok, &scratch, &err), 0);
    assert_int_equal(tokenizer_encode(tok, scratch, text, sizeof text - 1, 0, &ids, &err), 0);
    tokenizer_decode(tok, ids.ids, ids.count, true, &out);
    assert_int_equal(out.length, sizeof text - 1);
    assert_memory_equal(out.data, text, out.length);
    strbuf_free(&out);
    token_buffer_free(&ids);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
    bpe_trainer_free(t);
}

/* However documents are ordered and shared out, the files are the same bytes. */
static void test_order_does_not_matter(void **state)
{
    static const char *const all[] = {"one two three two", "four one five", "aaaa aaab aab", "two", NULL};
    static const char *const first[] = {"two", "aaaa aaab aab", NULL};
    static const char *const second[] = {"four one five", "one two three two", NULL};
    struct bpe_trainer *a = trainer_of(all), *b = trainer_of(first), *c = trainer_of(second);
    struct tokenizer *x, *y;
    struct error err;

    (void)state;
    assert_int_equal(bpe_trainer_merge(b, c, &err), 0);
    x = train(a, 270, 0, NULL);
    y = train(b, 270, 0, NULL);
    assert_true(tokenizer_hash(x) == tokenizer_hash(y));
    tokenizer_free(x);
    tokenizer_free(y);
    bpe_trainer_free(a);
    bpe_trainer_free(b);
    bpe_trainer_free(c);
}

/* Every allocation fails once: an error each time, no leak, and the trainer still works. */
static void test_out_of_memory(void **state)
{
    static const char *const documents[] = {"one two three two \xf0\x9e\x97\x90", NULL};
    struct bpe_options options = {.vocab_size = 262};
    struct bpe_trainer *t = trainer_of(documents);
    char *directory = temporary_directory();
    struct error err = {0};
    int status = -1;

    (void)state;
    for (int64_t n = 0; status != 0; n++) {
        allocations_fail_after(n);
        status = bpe_trainer_write(t, &options, directory, NULL, &err);
        allocations_fail_after(-1);
        assert_true(status == 0 || err.kind == ERROR_RUN);
    }
    bpe_trainer_free(t);
    t = NULL;
    status = -1;
    for (int64_t n = 0; status != 0; n++) {
        allocations_fail_after(n);
        status = bpe_trainer_create(&t, &err);
        if (status == 0)
            status = bpe_trainer_add(t, documents[0], strlen(documents[0]), &err);
        allocations_fail_after(-1);
        assert_true(status == 0 || err.kind == ERROR_RUN);
        bpe_trainer_free(t);
        t = NULL;
    }
    remove_directory(directory);
}

static void check_write_fails(struct bpe_trainer *t, int64_t size, int64_t min_frequency,
                              const char *directory, enum error_kind kind)
{
    struct bpe_options options = {.vocab_size = size, .min_frequency = min_frequency};
    struct error err = {0};

    assert_int_equal(bpe_trainer_write(t, &options, directory, NULL, &err), -1);
    assert_true(kind == ERROR_NONE || err.kind == kind);
    assert_true(err.what[0] != 0);
}

static void test_wrong_input(void **state)
{
    static const char *const none[] = {NULL};
    static const char *const some[] = {"abc", NULL};
    char *directory = temporary_directory(), *file = file_join(directory, "file");
    struct bpe_trainer *t = trainer_of(none);
    struct error err = {0};

    (void)state;
    check_write_fails(t, 300, 0, directory, ERROR_INPUT); /* no text */
    assert_int_equal(bpe_trainer_add(t, "", 0, &err), 0);
    check_write_fails(t, 300, 0, directory, ERROR_INPUT);
    assert_int_equal(bpe_trainer_add(t, "ab\xff", 3, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.what, "0xff at offset 2"));
    bpe_trainer_free(t);
    t = trainer_of(some);
    check_write_fails(t, 256, 0, directory, ERROR_INPUT);
    check_write_fails(t, ((int64_t)1 << 24) + 1, 0, directory, ERROR_INPUT);
    check_write_fails(t, 300, -1, directory, ERROR_INPUT);
    write_file(directory, "file", "x", 1);
    check_write_fails(t, 300, 0, file, ERROR_NONE); /* a file stands where the directory should be */
    bpe_trainer_free(t);
    bpe_trainer_free(NULL);
    free(file);
    remove_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_ties_and_overlaps),
        cmocka_unit_test(test_any_text),    cmocka_unit_test(test_order_does_not_matter),
        cmocka_unit_test(test_wrong_input), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
