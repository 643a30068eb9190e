/* Tokenizer files that ask for what is not supported, or are damaged: refused, and the message names it. */
#include "small_tokenizer.h"

#include <unistd.h>

static void check_refused_files(const char *directory, const char *name, const char *label)
{
    struct tokenizer *tok = NULL;
    struct error err = {0};
    char message[2048];

    if (tokenizer_load(directory, &tok, &err) == 0)
        fail_msg("%s was taken", label);
    error_format(&err, message, sizeof message);
    assert_null(tok);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (strstr(message, name) == NULL)
        fail_msg("%s: \"%s\" does not name %s", label, message, name);
}

static void check_refused(const struct small_tokenizer *spec, const char *name)
{
    char *directory = temporary_directory();

    write_small_tokenizer(directory, spec);
    check_refused_files(directory, name, name);
    remove_directory(directory);
}

#define REFUSED(name, ...) check_refused(&(const struct small_tokenizer){__VA_ARGS__}, name)

static void test_parts(void **state)
{
    (void)state;
    REFUSED("Lowercase", .normalizer = "{\"type\": \"Lowercase\"}");
    REFUSED("Prepend", .normalizer =
                           "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": "
                           "\"Prepend\", \"prepend\": \"x\"}]}");
    REFUSED("normalizer.extra", .normalizer = "{\"type\": \"NFC\", \"extra\": 1}");
    REFUSED("normalizers", .normalizer = "{\"type\": \"Sequence\"}");
    REFUSED("pre_tokenizer", .pre_tokenizer = "null");
    REFUSED("Metaspace", .pre_tokenizer = "{\"type\": \"Metaspace\"}");
    REFUSED("without ByteLevel", .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": []}");
    REFUSED("after ByteLevel", .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL
                                                ", {\"type\": \"Digits\"}]}");
    REFUSED("Bert", .post_processor = "{\"type\": \"BertProcessing\"}");
    REFUSED("decoder", .decoder = "null");
    REFUSED("ByteFallback", .decoder = "{\"type\": \"ByteFallback\"}");
    REFUSED("surprise", .more = ", \"surprise\": 0");
    /* Not known either: nothing, a part of a name, and two names in a row. */
    REFUSED("this key", .more = ", \"\": 0");
    REFUSED("normalizer.typ", .normalizer = "{\"type\": \"NFC\", \"typ\": 1}");
    REFUSED("type ", .normalizer = "{\"type\": \"NFC\", \"type \": 1}");
    REFUSED("version truncation", .more = ", \"version truncation\": null");
    REFUSED("truncation",
            .more = ", \"truncation\": {\"max_length\": 5}"); /* also a key that is there twice */
}

#define SPLIT_WITH(more)                                                                                     \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", " more "}, " BYTE_LEVEL_PLAIN "]}"

static void test_splits(void **state)
{
    (void)state;
    REFUSED("MergedWithNext", .pre_tokenizer = SPLIT_WITH("\"pattern\": {\"String\": \"a\"}, \"behavior\": "
                                                          "\"MergedWithNext\", \"invert\": false"));
    REFUSED("invert", .pre_tokenizer = SPLIT_WITH(
                          "\"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\", \"invert\": true"));
    REFUSED("Regex",
            .pre_tokenizer = SPLIT_WITH("\"pattern\": {\"Regex\": \"\\\\w+\"}, \"behavior\": \"Isolated\""));
    REFUSED("pattern", .pre_tokenizer = SPLIT_WITH("\"pattern\": {}, \"behavior\": \"Isolated\""));
    REFUSED("pattern", .pre_tokenizer = SPLIT_WITH("\"pattern\": \"a\", \"behavior\": \"Isolated\""));
    REFUSED("behavior", .pre_tokenizer = SPLIT_WITH("\"pattern\": {\"String\": \"a\"}"));
    REFUSED("empty",
            .pre_tokenizer = SPLIT_WITH("\"pattern\": {\"String\": \"\"}, \"behavior\": \"Isolated\""));
}

static void test_models(void **state)
{
    static const char *const unknown_left[] = {"zz a", NULL};

    (void)state;
    REFUSED("byte_fallback", .model = ", \"byte_fallback\": true");
    REFUSED("dropout", .model = ", \"dropout\": 0.1");
    REFUSED("continuing_subword_prefix", .model = ", \"continuing_subword_prefix\": \"##\"");
    REFUSED("end_of_word_suffix", .model = ", \"end_of_word_suffix\": \"</w>\"");
    REFUSED("novelty", .model = ", \"novelty\": true");
    REFUSED("ignore_merges", .model = ", \"ignore_merges\": 1");
    REFUSED("unk_token", .model = ", \"unk_token\": \"x\"", .skip_byte = 7);
    REFUSED("merges[0]", .merges = unknown_left);
    REFUSED("zz", .merges = unknown_left);
}

static void test_added(void **state)
{
    (void)state;
    REFUSED("Hugging Face gives 256", .added = "[{\"id\": 300, \"content\": \"<s>\"}]");
    REFUSED("Hugging Face gives 97", .added = "[{\"id\": 256, \"content\": \"a\"}]");
    REFUSED("twice", .added = "[{\"id\": 256, \"content\": \"<s>\"}, {\"id\": 256, \"content\": \"<s>\"}]");
    REFUSED("added_tokens[0].content", .added = "[{\"id\": 256, \"content\": \"\"}]");
    REFUSED("added_tokens[0].id", .added = "[{\"id\": -1, \"content\": \"x\"}]");
    REFUSED("sparkle", .added = "[{\"id\": 256, \"content\": \"<s>\", \"sparkle\": true}]");
    REFUSED("added_tokens[0]", .added = "[7]");
    REFUSED("NFC", .normalizer = "{\"type\": \"NFC\"}",
            .added = "[{\"id\": 256, \"content\": \"e\xcc\x81\", \"normalized\": true}]");
}

#define TEMPLATE_WITH(single, tokens)                                                                        \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single                                                \
    "], \"pair\": [], \"special_tokens\": {" tokens "}}"
#define TEXT_A "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define TOKEN_X "{\"SpecialToken\": {\"id\": \"X\", \"type_id\": 0}}"

static void test_templates(void **state)
{
    (void)state;
    REFUSED("leaves the text out",
            .post_processor = TEMPLATE_WITH(TOKEN_X, "\"X\": {\"id\": \"X\", \"ids\": [5]}"));
    REFUSED("X", .post_processor = TEMPLATE_WITH(TOKEN_X "," TEXT_A, ""));
    REFUSED("ids[1]",
            .post_processor = TEMPLATE_WITH(TOKEN_X "," TEXT_A, "\"X\": {\"id\": \"X\", \"ids\": [5, 256]}"));
    REFUSED("once", .post_processor = TEMPLATE_WITH(TEXT_A "," TEXT_A, ""));
    REFUSED("sequence A", .post_processor = TEMPLATE_WITH("{\"Sequence\": {\"id\": \"B\"}}", ""));
    REFUSED("second TemplateProcessing",
            .post_processor = "{\"type\": \"Sequence\", \"processors\": [" TEMPLATE_WITH(
                TEXT_A, "") ", " TEMPLATE_WITH(TEXT_A, "") "]}");
}

static void test_config(void **state)
{
    (void)state;
    REFUSED("bos_token", .config = "{\"bos_token\": \"<none>\"}");
    REFUSED("pad_token", .config = "{\"pad_token\": {\"content\": \"<none>\"}}");
    REFUSED("eos_token", .config = "{\"eos_token\": 3}");
    REFUSED("add_bos_token", .config = "{\"add_bos_token\": true}");
    REFUSED("add_eos_token", .config = "{\"add_eos_token\": \"yes\"}");
    REFUSED("split_special_tokens", .config = "{\"split_special_tokens\": true}");
    REFUSED("add_prefix_space", .config = "{\"add_prefix_space\": true}");
    REFUSED("300", .config = "{\"added_tokens_decoder\": {\"300\": {\"content\": \"<s>\"}}}");
    REFUSED("<x>", .config = "{\"additional_special_tokens\": [\"a\", \"<x>\"]}");
    REFUSED("<x>", .config = "{\"extra_special_tokens\": {\"image\": {\"content\": \"<x>\"}}}");
    REFUSED("extra_special_tokens", .config = "{\"extra_special_tokens\": [1]}");
    REFUSED("chat_template", .config = "{\"chat_template\": 1}");
    REFUSED("tokenizer_config.json", .config = "[]");
    REFUSED("tokenizer_config.json:1", .config = "{\"bos_token\": }");
}

static void test_missing(void **state)
{
    char *directory = temporary_directory();

    (void)state;
    check_refused_files("/nonexistent/place", "/nonexistent/place", "a missing path");
    check_refused_files(directory, "tokenizer.json", "an empty directory");
    write_file(directory, "vocab.json", "{}", 2);
    check_refused_files(directory, "merges.txt", "half of GPT-2's files");
    write_file(directory, "merges.txt", "", 0);
    check_refused_files(directory, "vocab.json", "an empty vocabulary");
    remove_directory(directory);
}

static void test_damaged(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"model\": {}}",
        "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}",
        "{\"version\": \"2.0\", \"model\": {}}",
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}",
        "{\"model\": {\"vocab\": {\"a\": 99999999}, \"merges\": []}}",
        "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}",
        "{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}",
        "{\"model\": {\"vocab\": {\"a\": \"0\"}, \"merges\": []}}",
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}",
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}",
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [3]}}",
        "{\"model\": {\"vocab\": {}, \"merges\": []}}",
    };
    char *directory = temporary_directory();

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(directory, "tokenizer.json", texts[i], strlen(texts[i]));
        check_refused_files(directory, "tokenizer.json", texts[i]);
    }
    remove_directory(directory);
}

/* A good file cut off anywhere is refused, whatever the place. */
static void test_truncated(void **state)
{
    struct small_tokenizer spec = {.added = "[{\"id\": 256, \"content\": \"<s>\"}]"};
    char *directory = temporary_directory(), *path = file_join(directory, "tokenizer.json"), *text;
    struct error err;
    size_t size;

    (void)state;
    write_small_tokenizer(directory, &spec);
    assert_int_equal(file_read(path, 1 << 20, &text, &size, &err), 0);
    for (size_t n = 1; n < size - 2; n += 97) {
        write_file(directory, "tokenizer.json", text, n);
        check_refused_files(directory, "tokenizer.json", "a truncated file");
    }
    free(text);
    free(path);
    remove_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_splits),    cmocka_unit_test(test_models),
        cmocka_unit_test(test_added),   cmocka_unit_test(test_templates), cmocka_unit_test(test_config),
        cmocka_unit_test(test_missing), cmocka_unit_test(test_damaged),   cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
