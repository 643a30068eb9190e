/* Encoding and decoding with small tokenizers whose ids can be worked out by hand. */
#include "small_tokenizer.h"

#include <pthread.h>

/* 256 he, 257 ll, 258 hell, 259 hello, 260 " w", 261 or */
static const char *const hello_merges[] = {"h e", "l l", "he ll", "hell o", "\xc4\xa0 w", "o r", NULL};

#define ADDED(id, content, more)                                                                             \
    "{\"id\": " #id ", \"content\": \"" content "\", \"single_word\": false, \"lstrip\": false, "            \
    "\"rstrip\": false, \"normalized\": false, \"special\": false" more "}"
#define SPECIAL(id, content)                                                                                 \
    "{\"id\": " #id ", \"content\": \"" content "\", \"normalized\": false, \"special\": true}"
#define SEQUENCE(list) "{\"type\": \"Sequence\", \"pretokenizers\": [" list "]}"
#define SPLIT(kind, pattern)                                                                                 \
    "{\"type\": \"Split\", \"pattern\": {\"" kind "\": \"" pattern "\"}, \"behavior\": \"Isolated\", "       \
    "\"invert\": false}"

static void test_merges(void **state)
{
    struct small_tokenizer spec = {.merges = hello_merges};

    (void)state;
    for (int arrays = 0; arrays < 2; arrays++) {
        struct tokenizer *tok;
        spec.arrays = arrays != 0;
        tok = load_small_tokenizer(&spec);
        assert_int_equal(tokenizer_vocab_size(tok), 262);
        check_ids(tok, 0, "hello world", 259, 260, 261, 108, 100);
        check_ids(tok, 0, "hell", 258);
        check_ids(tok, 0, "hel", 256, 108);
        check_ids(tok, 0, "llo", 257, 111);
        check_ids(tok, 0, "  w", 32, 260); /* the last space belongs to the word */
        check_ids(tok, 0, "\n\xc3\xa9", 10, 0xc3, 0xa9);
        check_ids_n(tok, ENCODE_SPECIAL_TOKENS_ADDED | ENCODE_SPECIAL_IN_TEXT, "", 0, NULL, 0);
        check_ids_n(tok, 0, NULL, 0, NULL, 0);
        check_ids(tok, 0, "a\0b", 97, 0, 98);
        tokenizer_free(tok);
    }
}

static void test_order_of_merges(void **state)
{
    static const char *const merges[] = {"b c", "a b", "a a", "aa aa", "x y", "y z", "x yz", NULL};
    struct small_tokenizer spec = {.merges = merges};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_ids(tok, 0, "abc", 97, 256); /* the lower rank first, though it stands on the right */
    check_ids(tok, 0, "aaa", 258, 97); /* ties go to the left */
    check_ids(tok, 0, "aaaaaaa", 259, 258, 97);
    check_ids(tok, 0, "xyz", 260, 122);
    tokenizer_free(tok);
    spec.model = ", \"ignore_merges\": true";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "xyz", 262); /* the word is a token, which merging does not lead to */
    check_ids(tok, 0, "xyza", 260, 122, 97);
    check_ids(tok, 0, "abc", 97, 256);
    tokenizer_free(tok);
}

/* As in Llama 3: "aa aa" and "a aaa" both make aaaa, ids 257 and … the same 257. */
static void test_two_ways_to_a_token(void **state)
{
    static const char *const merges[] = {"a a", "aa aa", "a aaa", "aa a", NULL};
    struct small_tokenizer spec = {.merges = merges};
    struct tokenizer *tok;

    (void)state;
    tok = load_small_tokenizer(&spec); /* aa 256, aaaa 257, aaa 259; no 258 */
    assert_int_equal(tokenizer_vocab_size(tok), 260);
    assert_null(tokenizer_token_text(tok, 258, NULL));
    check_ids(tok, 0, "aaaa", 257);
    check_ids(tok, 0, "aaa", 259);
    check_ids(tok, 0, "aaaaa", 257, 97);
    check_ids(tok, 0, "aaaaaaa", 257, 259);
    tokenizer_free(tok);
}

static void test_words(void **state)
{
    static const char *const merges[] = {"' m", "1 2", "\xc4\xa0 1", "\xc4\xa0 \xc4\xa0", "! !", NULL};
    struct small_tokenizer spec = {.merges = merges};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_ids(tok, 0, "I'm", 'I', 256);
    check_ids(tok, 0, "x12", 'x', 257);  /* letters and digits part */
    check_ids(tok, 0, " 12", 32, 257);   /* " 12" is a word: 1 2 has the lower rank */
    check_ids(tok, 0, "   1", 259, 258); /* two spaces, then " 1" */
    check_ids(tok, 0, "   ", 259, 32);   /* spaces at the end stay together */
    check_ids(tok, 0, "a!!", 'a', 260);
    tokenizer_free(tok);
    /* Without the words of GPT-2 the pair of spaces may take what belongs to the next word. */
    spec.pre_tokenizer = BYTE_LEVEL_PLAIN;
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "  1", 32, 258);
    check_ids(tok, 0, "I'm", 'I', 256);
    tokenizer_free(tok);
}

static void test_pre_tokenizers(void **state)
{
    static const char *const merges[] = {"a b", "1 2", "12 3", "\xc4\xa0 a", "\xc4\xa0 1", NULL};
    struct small_tokenizer spec = {.merges = merges};
    struct tokenizer *tok;

    (void)state;
    spec.pre_tokenizer = SEQUENCE(SPLIT("Regex", "\\\\p{N}{1,2}") "," BYTE_LEVEL_PLAIN);
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "ab123", 256, 257, '3'); /* 12, 3 */
    tokenizer_free(tok);
    spec.pre_tokenizer = SEQUENCE(SPLIT("String", "b") "," BYTE_LEVEL_PLAIN);
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "ab123", 'a', 'b', 258);
    tokenizer_free(tok);
    spec.pre_tokenizer = SEQUENCE("{\"type\": \"Digits\", \"individual_digits\": true}," BYTE_LEVEL_PLAIN);
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "ab123", 256, '1', '2', '3');
    tokenizer_free(tok);
    spec.pre_tokenizer = SEQUENCE("{\"type\": \"Digits\", \"individual_digits\": false}," BYTE_LEVEL_PLAIN);
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, " a123b", 259, 258, 'b');
    tokenizer_free(tok);
    spec.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "a1", 259, '1');
    check_ids(tok, 0, " a", 259); /* there is one */
    check_ids(tok, 0, "\na", 32, 10, 'a');
    tokenizer_free(tok);
    /* Each stage cuts the pieces of the one before, and each of them gets its space. */
    spec.pre_tokenizer = SEQUENCE(SPLIT("String", "b") "," SEQUENCE(
        SPLIT("Regex", "1")) ",{\"type\": \"ByteLevel\", \"use_regex\": false}");
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "ab1", 259, 32, 'b', 260);
    tokenizer_free(tok);
}

/* Characters that PCRE2 may not know, or know otherwise, keep their bytes and have the right class. */
static void test_recent_characters(void **state)
{
    struct small_tokenizer spec = {
        .pre_tokenizer = SEQUENCE(SPLIT("Regex", "\\\\p{L}+|\\\\s+") ",{\"type\": \"ByteLevel\", "
                                                                     "\"use_regex\": false}")};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    /* U+1E5D0 is a letter of Unicode 16: one piece with the a, and so one space in front of both. */
    check_ids(tok, 0, "a\xf0\x9e\x97\x90", 32, 'a', 0xf0, 0x9e, 0x97, 0x90);
    /* U+180E is no white space: a piece of its own between a and b. */
    check_ids(tok, 0, "a\xe1\xa0\x8e\nb", 32, 'a', 32, 0xe1, 0xa0, 0x8e, 32, 10, 32, 'b');
    tokenizer_free(tok);
}

static void test_added_tokens(void **state)
{
    struct small_tokenizer spec = {.added = "[" SPECIAL(256, "<s>") "," SPECIAL(257, "<s><s>") "," ADDED(
                                       258, "tool", "") "," SPECIAL(259, "o") "]"};
    struct tokenizer *tok;

    (void)state;
    /* "o" is byte 'o' already, so its id must be that. */
    spec.added = "[" SPECIAL(256, "<s>") "," SPECIAL(257, "<s><s>") "," ADDED(258, "tool",
                                                                              "") "," SPECIAL(111, "o") "]";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, ENCODE_SPECIAL_IN_TEXT, "a<s>b", 'a', 256, 'b');
    check_ids(tok, ENCODE_SPECIAL_IN_TEXT, "<s><s><s>", 257, 256); /* the longest, from the left */
    check_ids(tok, ENCODE_SPECIAL_IN_TEXT, "<stool", '<', 's', 258);
    check_ids(tok, 0, "<s>tool<s", '<', 's', '>', 258, '<', 's');
    check_ids(tok, 0, "<s><s>", '<', 's', '>', '<', 's', '>');
    assert_true(tokenizer_is_special(tok, 256) && tokenizer_is_special(tok, 111));
    assert_false(tokenizer_is_special(tok, 258) || tokenizer_is_special(tok, 97) ||
                 tokenizer_is_special(tok, 9999));
    assert_int_equal(tokenizer_token_id(tok, "tool", 4), 258);
    assert_int_equal(tokenizer_token_id(tok, "\xc4\xa0", 2), 32);
    assert_int_equal(tokenizer_token_id(tok, "nothing", 7), -1);
    assert_string_equal(tokenizer_token_text(tok, 257, NULL), "<s><s>");
    tokenizer_free(tok);
}

static void test_added_flags(void **state)
{
    struct small_tokenizer spec = {
        .added =
            "[{\"id\": 256, \"content\": \"<l>\", \"lstrip\": true}, {\"id\": 257, \"content\": \"<r>\", "
            "\"rstrip\": true}, {\"id\": 258, \"content\": \"cat\", \"single_word\": true}]"};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_ids(tok, 0, "a \xe3\x80\x80<l> b", 'a', 256, 32, 'b');
    check_ids(tok, 0, "a <r> \n b", 'a', 32, 257, 'b');
    check_ids(tok, 0, "<r>  <l>", 257, 256);
    check_ids(tok, 0, "cat cat", 258, 32, 258);
    check_ids(tok, 0, "cats-cat", 'c', 'a', 't', 's', '-', 258);
    check_ids(tok, 0, "_cat", '_', 'c', 'a', 't');
    check_ids(tok, 0, "cat\xcc\x81", 'c', 'a', 't', 0xcc, 0x81); /* a mark goes on with the word */
    tokenizer_free(tok);
}

static void test_normalization(void **state)
{
    struct small_tokenizer spec = {
        .normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}",
        .added =
            "[{\"id\": 256, \"content\": \"<\xc3\xa9>\", \"normalized\": true}, {\"id\": 257, \"content\": "
            "\"[e\xcc\x81]\", \"normalized\": false}]"};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_ids(tok, 0, "e\xcc\x81", 0xc3, 0xa9);
    check_ids(tok, 0, "<e\xcc\x81>", 256); /* looked for after normalization */
    check_ids(tok, 0, "[e\xcc\x81]", 257); /* looked for before */
    check_ids(tok, 0, "[\xc3\xa9]", '[', 0xc3, 0xa9, ']');
    check_ids(tok, 0, "e[e\xcc\x81]\xcc\x81", 'e', 257, 0xcc, 0x81); /* the pieces are normalized apart */
    tokenizer_free(tok);
    spec = (struct small_tokenizer){.normalizer = "{\"type\": \"Sequence\", \"normalizers\": []}"};
    tok = load_small_tokenizer(&spec);
    check_ids(tok, 0, "e\xcc\x81", 'e', 0xcc, 0x81);
    tokenizer_free(tok);
}

#define TEMPLATE                                                                                             \
    "{\"type\": \"Sequence\", \"processors\": [" BYTE_LEVEL ", {\"type\": \"TemplateProcessing\", "          \
    "\"single\": [{\"SpecialToken\": {\"id\": \"B\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "      \
    "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"E\", \"type_id\": 0}}], \"pair\": [], "                 \
    "\"special_tokens\": {\"B\": {\"id\": \"B\", \"ids\": [256, 98], \"tokens\": [\"<s>\", \"b\"]}, "        \
    "\"E\": {\"id\": \"E\", \"ids\": [257], \"tokens\": [\"</s>\"]}}}]}"
#define BOS_EOS "[" SPECIAL(256, "<s>") "," SPECIAL(257, "</s>") "]"

static void test_template(void **state)
{
    struct small_tokenizer spec = {.post_processor = TEMPLATE, .added = BOS_EOS};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "a", 256, 98, 'a', 257);
    check_ids(tok, 0, "a", 'a');
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "", 256, 98, 257);
    assert_false(tokenizer_adds_bos(tok)); /* no file names a BOS */
    tokenizer_free(tok);
    spec.config = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}, "
                  "\"pad_token\": null, \"add_bos_token\": true, \"add_eos_token\": true}";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "a", 256, 98, 'a', 257); /* both are there already */
    assert_true(tokenizer_adds_bos(tok) && tokenizer_adds_eos(tok));
    assert_int_equal(tokenizer_bos(tok), 256);
    assert_int_equal(tokenizer_eos(tok), 257);
    assert_int_equal(tokenizer_pad(tok), -1);
    tokenizer_free(tok);
}

static void test_config(void **state)
{
    struct small_tokenizer spec = {.added = BOS_EOS};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    assert_int_equal(tokenizer_bos(tok), -1);
    assert_int_equal(tokenizer_eos(tok), -1);
    assert_null(tokenizer_chat_template(tok));
    tokenizer_free(tok);
    spec.config =
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": \"</s>\", "
        "\"add_bos_token\": true, \"chat_template\": \"{{ x }}\", \"added_tokens_decoder\": {\"256\": "
        "{\"content\": \"<s>\"}}, \"model_max_length\": 1000000000000000019884624838656, "
        "\"add_prefix_space\": false, \"split_special_tokens\": false, \"extra_special_tokens\": {\"x\": "
        "\"<s>\", \"y\": \"a\"}, "
        "\"additional_special_tokens\": [\"</s>\", {\"content\": \"b\"}]}";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "a", 256, 'a');
    assert_true(tokenizer_adds_bos(tok));
    assert_false(tokenizer_adds_eos(tok));
    assert_int_equal(tokenizer_pad(tok), 257);
    assert_string_equal(tokenizer_chat_template(tok), "{{ x }}");
    tokenizer_free(tok);
    spec.config =
        "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_bos_token\": false, \"add_eos_token\": "
        "true, \"chat_template\": [{\"name\": \"tools\", \"template\": \"T\"}, {\"name\": \"default\", "
        "\"template\": \"D\"}]}";
    tok = load_small_tokenizer(&spec);
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "a", 'a', 257);
    assert_false(tokenizer_adds_bos(tok));
    assert_string_equal(tokenizer_chat_template(tok), "D");
    tokenizer_free(tok);
}

/* A path to the file itself, with its neighbours read too; chat_template.jinja goes first. */
static void test_file_path(void **state)
{
    struct small_tokenizer spec = {.added = BOS_EOS,
                                   .config = "{\"bos_token\": \"<s>\", \"chat_template\": \"x\"}"};
    char *directory = temporary_directory(), *path = file_join(directory, "tokenizer.json");
    struct tokenizer *tok;
    struct error err;

    (void)state;
    write_small_tokenizer(directory, &spec);
    write_file(directory, "chat_template.jinja", "{% y %}\n", 8);
    assert_int_equal(tokenizer_load(path, &tok, &err), 0);
    assert_int_equal(tokenizer_bos(tok), 256);
    assert_string_equal(tokenizer_chat_template(tok), "{% y %}\n");
    tokenizer_free(tok);
    free(path);
    remove_directory(directory);
}

static void write_gpt2_files(const char *directory, const char *merges)
{
    struct small_tokenizer spec = {.merges = hello_merges};
    struct strbuf vocab = {0};

    strbuf_puts(&vocab, "{");
    append_vocab(&vocab, &spec);
    strbuf_puts(&vocab, ", \"<|endoftext|>\": 262}");
    write_file(directory, "vocab.json", vocab.data, vocab.length);
    strbuf_free(&vocab);
    write_file(directory, "merges.txt", merges, strlen(merges));
}

static void test_gpt2_files(void **state)
{
    char *directory = temporary_directory();
    struct tokenizer *tok;
    struct error err = {0};

    (void)state;
    write_gpt2_files(directory, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xc4\xa0 w\no r\n");
    if (tokenizer_load(directory, &tok, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    check_ids(tok, ENCODE_SPECIAL_IN_TEXT, "hello<|endoftext|> world", 259, 262, 260, 261, 108, 100);
    check_ids(tok, ENCODE_SPECIAL_TOKENS_ADDED, "hello", 259);
    assert_int_equal(tokenizer_bos(tok), 262);
    assert_int_equal(tokenizer_eos(tok), 262);
    assert_int_equal(tokenizer_pad(tok), -1);
    assert_int_equal(tokenizer_vocab_size(tok), 263);
    tokenizer_free(tok);
    /* A missing space, a token that does not exist: the line is named. */
    write_gpt2_files(directory, "#version: 0.2\nh e\nll\n");
    assert_int_equal(tokenizer_load(directory, &tok, &err), -1);
    assert_non_null(strstr(err.where, "merges.txt:3"));
    write_gpt2_files(directory, "h e\nh q\n");
    assert_int_equal(tokenizer_load(directory, &tok, &err), -1);
    assert_non_null(strstr(err.where, "merges.txt:2"));
    assert_non_null(strstr(err.what, "hq"));
    /* The files of Qwen look alike and mean something else. */
    write_gpt2_files(directory, "h e\n");
    write_file(directory, "tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}", 37);
    assert_int_equal(tokenizer_load(directory, &tok, &err), -1);
    assert_non_null(strstr(err.what, "Qwen2Tokenizer"));
    assert_int_equal(err.kind, ERROR_INPUT);
    remove_directory(directory);
}

static void check_decoded(const struct tokenizer *tok, const uint32_t *ids, int64_t n, bool skip,
                          const char *expected)
{
    struct strbuf whole = {0}, streamed = {0};
    struct tokenizer_stream stream = {.skip_special = skip};

    tokenizer_decode(tok, ids, n, skip, &whole);
    for (int64_t i = 0; i < n; i++) {
        tokenizer_stream_feed(&stream, tok, ids[i], &streamed);
        if (streamed.length > 0) { /* what came so far never changes */
            assert_true(streamed.length <= whole.length);
            assert_memory_equal(whole.data, streamed.data, streamed.length);
        }
    }
    tokenizer_stream_finish(&stream, &streamed);
    strbuf_puts(&whole, "");
    strbuf_puts(&streamed, "");
    assert_string_equal(whole.data == NULL ? "" : whole.data, expected);
    assert_string_equal(streamed.data == NULL ? "" : streamed.data, expected);
    strbuf_free(&whole);
    strbuf_free(&streamed);
}
#define check_text(tok, skip, expected, ...)                                                                 \
    check_decoded(tok, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4, skip,   \
                  expected)

#define R "\xef\xbf\xbd"

static void test_decode(void **state)
{
    struct small_tokenizer spec = {.added = "[" SPECIAL(256, "<s>") "," ADDED(
                                       257, "\xe4\xb8\xad d", "") "," ADDED(258, "\xc3\xa9q", "") "]"};
    struct tokenizer *tok = load_small_tokenizer(&spec);

    (void)state;
    check_text(tok, false, "a<s>b", 'a', 256, 'b');
    check_text(tok, true, "ab", 'a', 256, 'b');
    check_text(tok, true, "\xe4\xb8\xad d", 257); /* not special, and not in the alphabet of bytes */
    check_text(tok, false, R "q", 258);           /* U+00E9 of the alphabet is the byte E9 */
    check_text(tok, false, "\xe4\xb8\xad", 0xe4, 0xb8, 0xad);
    check_text(tok, false, R "a", 0xe4, 0xb8, 'a');
    check_text(tok, false, R "\xe4\xb8\xad", 0xe4, 0xb8, 0xe4, 0xb8, 0xad);
    check_text(tok, false, R R R, 0xff, 0xc0, 0xf0);
    check_text(tok, false, "\xf0\x9f\x98\x80", 0xf0, 0x9f, 0x98, 0x80);
    check_text(tok, false, R "<s>" R R, 0xf0, 0x9f, 256, 0x98,
               0x80); /* a special token breaks a character … */
    check_text(tok, true, "\xf0\x9f\x98\x80", 0xf0, 0x9f, 256, 0x98, 0x80); /* … unless it is left out */
    check_text(tok, false, "ab", 'a', 259, 1000000, UINT32_MAX, 'b');       /* no such tokens */
    check_decoded(tok, NULL, 0, false, "");
    tokenizer_free(tok);
}

/* A piece of a stream is out as soon as its character is complete. */
static void test_stream_at_once(void **state)
{
    struct small_tokenizer spec = {0};
    struct tokenizer *tok = load_small_tokenizer(&spec);
    struct tokenizer_stream stream = {0};
    struct strbuf out = {0};

    (void)state;
    tokenizer_stream_feed(&stream, tok, 'a', &out);
    assert_int_equal(out.length, 1);
    tokenizer_stream_feed(&stream, tok, 0xe4, &out);
    tokenizer_stream_feed(&stream, tok, 0xb8, &out);
    assert_int_equal(out.length, 1);
    tokenizer_stream_feed(&stream, tok, 0xad, &out);
    assert_int_equal(out.length, 4);
    strbuf_free(&out);
    tokenizer_free(tok);
}

static void test_wrong_text(void **state)
{
    struct small_tokenizer spec = {.skip_byte = 'q'};
    struct tokenizer *tok = load_small_tokenizer(&spec);
    struct tokenizer_scratch *scratch;
    struct token_buffer out = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(tokenizer_scratch_create(tok, &scratch, &err), 0);
    assert_int_equal(tokenizer_encode(tok, scratch, "ab", 2, 0, &out, &err), 0);
    assert_int_equal(tokenizer_encode(tok, scratch, "abc\xc3(", 5, 0, &out, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.what, "0xc3 at offset 3"));
    assert_int_equal(tokenizer_encode(tok, scratch, "abc q", 5, 0, &out, &err), -1);
    assert_non_null(strstr(err.what, "0x71"));
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_int_equal(out.count, 2); /* as it was */
    assert_int_equal(tokenizer_encode(tok, scratch, "c", 1, 0, &out, NULL), 0);
    assert_int_equal(out.count, 3);
    assert_int_equal(out.ids[0] + out.ids[1] + out.ids[2], 'a' + 'b' + 'c');
    token_buffer_free(&out);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
}

/* A million letters in one word take n log n steps, not n squared. */
static void test_long_words(void **state)
{
    enum { N = 1000003 };
    static const char *const merges[] = {"a a", "aa aa", "aaaa aaaa", "\xc3\xa4 \xc2\xb8", NULL};
    struct small_tokenizer spec = {.merges = merges};
    struct tokenizer *tok = load_small_tokenizer(&spec);
    struct tokenizer_scratch *scratch;
    struct token_buffer out = {0};
    struct error err;
    char *text = malloc(N);

    (void)state;
    assert_non_null(text);
    memset(text, 'a', N);
    assert_int_equal(tokenizer_scratch_create(tok, &scratch, &err), 0);
    assert_int_equal(tokenizer_encode(tok, scratch, text, N, 0, &out, &err), 0);
    assert_int_equal(out.count, N / 8 + 2); /* 1000003 = 8 x 125000 + 2 + 1 */
    assert_int_equal(out.ids[0], 258);
    assert_int_equal(out.ids[N / 8], 256);
    assert_int_equal(out.ids[N / 8 + 1], 'a');
    memset(text, ' ', N); /* nothing but white space: one word */
    out.count = 0;
    assert_int_equal(tokenizer_encode(tok, scratch, text, N, 0, &out, &err), 0);
    assert_int_equal(out.count, N);
    token_buffer_free(&out);
    tokenizer_scratch_free(scratch);
    tokenizer_free(tok);
    free(text);
}

static void *encode_often(void *context)
{
    const struct tokenizer *tok = context;

    for (int i = 0; i < 300; i++)
        check_ids(tok, 0, "hello world hell, \xe4\xb8\xad", 259, 260, 261, 108, 100, 32, 258, ',', 32, 0xe4,
                  0xb8, 0xad);
    return NULL;
}

static void test_threads(void **state)
{
    struct small_tokenizer spec = {.merges = hello_merges};
    struct tokenizer *tok = load_small_tokenizer(&spec);
    pthread_t threads[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, tok), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    tokenizer_free(tok);
}

static void test_hash(void **state)
{
    struct small_tokenizer spec = {.merges = hello_merges};
    struct tokenizer *a = load_small_tokenizer(&spec), *b = load_small_tokenizer(&spec), *c, *d;

    (void)state;
    spec.config = "{}";
    c = load_small_tokenizer(&spec);
    spec.merges = NULL;
    d = load_small_tokenizer(&spec);
    assert_true(tokenizer_hash(a) == tokenizer_hash(b));
    assert_true(tokenizer_hash(a) != tokenizer_hash(c));
    assert_true(tokenizer_hash(c) != tokenizer_hash(d));
    tokenizer_free(a);
    tokenizer_free(b);
    tokenizer_free(c);
    tokenizer_free(d);
    tokenizer_free(NULL);
    tokenizer_scratch_free(NULL);
}

/* Every allocation fails once, while loading, then while encoding: an error each time, and no leak. */
static void test_out_of_memory(void **state)
{
    static const char text[] = "hello <s> e\xcc\x81 \xf0\x9e\x97\x90 hellohellohellohellohellohellohello";
    struct small_tokenizer spec = {.merges = hello_merges,
                                   .normalizer = "{\"type\": \"NFC\"}",
                                   .pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
                                   .added = "[" SPECIAL(262, "<s>") "]",
                                   .model = ", \"ignore_merges\": true",
                                   .config = "{\"bos_token\": \"<s>\", \"add_bos_token\": true}"};
    char *directory = temporary_directory();
    struct tokenizer *tok = NULL;
    struct error err = {0};
    int status = -1;

    (void)state;
    write_small_tokenizer(directory, &spec);
    for (int64_t n = 0; status != 0; n++) {
        allocations_fail_after(n);
        status = tokenizer_load(directory, &tok, &err);
        allocations_fail_after(-1);
        if (!(status == 0 || (err.kind == ERROR_RUN && tok == NULL)))
            fail_msg("%d %s: %s", (int)n, err.where, err.what);
    }
    status = -1;
    for (int64_t n = 0; status != 0; n++) {
        struct tokenizer_scratch *scratch = NULL;
        struct token_buffer out = {0};
        allocations_fail_after(n);
        status = tokenizer_scratch_create(tok, &scratch, &err);
        if (status == 0)
            status = tokenizer_encode(tok, scratch, text, sizeof text - 1,
                                      ENCODE_SPECIAL_IN_TEXT | ENCODE_SPECIAL_TOKENS_ADDED, &out, &err);
        allocations_fail_after(-1);
        assert_true(status == 0 ? out.count > 20 : out.count == 0 && err.kind == ERROR_RUN);
        tokenizer_scratch_free(scratch);
        token_buffer_free(&out);
    }
    tokenizer_free(tok);
    remove_directory(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_order_of_merges),
        cmocka_unit_test(test_two_ways_to_a_token),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_pre_tokenizers),
        cmocka_unit_test(test_recent_characters),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_added_flags),
        cmocka_unit_test(test_normalization),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_file_path),
        cmocka_unit_test(test_gpt2_files),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_stream_at_once),
        cmocka_unit_test(test_wrong_text),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
