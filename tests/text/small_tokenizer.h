/* For the tests of this room: small tokenizer files written to a temporary directory.
 *
 * The vocabulary gives each byte its value as id, and each merge the next id from 256 on; so the ids that
 * a test expects can be read off its text. */
#ifndef TERCET_TESTS_TEXT_SMALL_TOKENIZER_H
#define TERCET_TESTS_TEXT_SMALL_TOKENIZER_H

#include "support/allocations.h"
#include "support/cmocka.h"

#include "base/file.h"
#include "base/strbuf.h"
#include "formats/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTE_LEVEL                                                                                           \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"
#define BYTE_LEVEL_PLAIN                                                                                     \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}"

/* Parts of a tokenizer.json as JSON; NULL takes the default. */
struct small_tokenizer {
    const char *normalizer;     /* null */
    const char *pre_tokenizer;  /* BYTE_LEVEL */
    const char *post_processor; /* null */
    const char *decoder;        /* BYTE_LEVEL */
    const char *added;          /* [] */
    const char *more;           /* further members of the root, with a comma in front */
    const char *model;          /* further members of the model, with a comma in front */
    const char *const *merges;  /* "left right" …, NULL at the end */
    int skip_byte;              /* a byte without a token; 0 for none */
    bool arrays;                /* merges as ["left", "right"] */
    const char *config;         /* tokenizer_config.json; NULL for none */
};

static inline char *temporary_directory(void)
{
    char path[] = "/tmp/tercet-text-XXXXXX";

    assert_non_null(mkdtemp(path));
    return strdup(path);
}

static inline void remove_directory(char *directory)
{
    struct error err;

    assert_int_equal(file_remove_tree(directory, &err), 0);
    free(directory);
}

static inline void write_file(const char *directory, const char *name, const char *text, size_t n)
{
    struct error err;
    char *path = file_join(directory, name);

    assert_non_null(path);
    assert_int_equal(file_write_all(path, text, n, &err), 0);
    free(path);
}

static inline void append_vocab(struct strbuf *out, const struct small_tokenizer *t)
{
    const char *comma = "";

    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char text[2];
        size_t n = byte_alphabet_encode(&byte, 1, text);
        if (b == t->skip_byte && b != 0)
            continue;
        strbuf_puts(out, comma);
        json_quote(out, text, n);
        strbuf_printf(out, ": %d", b);
        comma = ", ";
    }
    for (int i = 0; t->merges != NULL && t->merges[i] != NULL; i++) {
        const char *space = strchr(t->merges[i], ' ');
        struct strbuf joined = {0};
        bool made_before = false;
        strbuf_append(&joined, t->merges[i], (size_t)(space - t->merges[i]));
        strbuf_puts(&joined, space + 1);
        for (int k = 0; k < i && !made_before; k++) { /* two merges may make one token */
            const char *other = strchr(t->merges[k], ' ');
            size_t left = (size_t)(other - t->merges[k]);
            made_before = joined.length == left + strlen(other + 1) &&
                          memcmp(joined.data, t->merges[k], left) == 0 &&
                          strcmp(joined.data + left, other + 1) == 0;
        }
        if (!made_before) {
            strbuf_puts(out, ", ");
            json_quote(out, joined.data, joined.length);
            strbuf_printf(out, ": %d", 256 + i);
        }
        strbuf_free(&joined);
    }
}

static inline void append_merges(struct strbuf *out, const struct small_tokenizer *t)
{
    for (int i = 0; t->merges != NULL && t->merges[i] != NULL; i++) {
        const char *space = strchr(t->merges[i], ' ');
        strbuf_puts(out, i == 0 ? "" : ", ");
        if (t->arrays) {
            strbuf_puts(out, "[");
            json_quote(out, t->merges[i], (size_t)(space - t->merges[i]));
            strbuf_puts(out, ", ");
            json_quote(out, space + 1, strlen(space + 1));
            strbuf_puts(out, "]");
        } else {
            json_quote(out, t->merges[i], strlen(t->merges[i]));
        }
    }
}

/* Writes tokenizer.json and, where it is given, tokenizer_config.json. */
static inline void write_small_tokenizer(const char *directory, const struct small_tokenizer *t)
{
    struct strbuf out = {0};

    strbuf_printf(&out,
                  "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": %s,\n"
                  "\"normalizer\": %s,\n\"pre_tokenizer\": %s,\n\"post_processor\": %s,\n\"decoder\": %s%s,\n"
                  "\"model\": {\"type\": \"BPE\"%s,\n\"vocab\": {",
                  t->added ? t->added : "[]", t->normalizer ? t->normalizer : "null",
                  t->pre_tokenizer ? t->pre_tokenizer : BYTE_LEVEL,
                  t->post_processor ? t->post_processor : "null", t->decoder ? t->decoder : BYTE_LEVEL,
                  t->more ? t->more : "", t->model ? t->model : "");
    append_vocab(&out, t);
    strbuf_puts(&out, "},\n\"merges\": [");
    append_merges(&out, t);
    strbuf_puts(&out, "]}}\n");
    assert_false(out.failed);
    write_file(directory, "tokenizer.json", out.data, out.length);
    strbuf_free(&out);
    if (t->config != NULL)
        write_file(directory, "tokenizer_config.json", t->config, strlen(t->config));
}

static inline struct tokenizer *load_small_tokenizer(const struct small_tokenizer *t)
{
    char *directory = temporary_directory();
    struct tokenizer *tok;
    struct error err = {0};

    write_small_tokenizer(directory, t);
    if (tokenizer_load(directory, &tok, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
    remove_directory(directory);
    return tok;
}

/* Compares the ids of a text (n bytes) with those listed. */
static inline void check_ids_n(const struct tokenizer *tok, unsigned flags, const char *text, size_t n,
                               const uint32_t *ids, size_t count)
{
    struct tokenizer_scratch *scratch;
    struct token_buffer out = {0};
    struct error err = {0};

    assert_int_equal(tokenizer_scratch_create(tok, &scratch, &err), 0);
    for (int again = 0; again < 2; again++) { /* the second time from the cache of words */
        out.count = 0;
        if (tokenizer_encode(tok, scratch, text, n, flags, &out, &err) != 0)
            fail_msg("%s", err.what);
        assert_int_equal(out.count, count);
        if (count > 0)
            assert_memory_equal(out.ids, ids, count * sizeof *ids);
    }
    token_buffer_free(&out);
    tokenizer_scratch_free(scratch);
}

#define IDS(...) ((const uint32_t[]){__VA_ARGS__}), sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)
#define check_ids(tok, flags, text, ...) check_ids_n(tok, flags, text, sizeof(text) - 1, IDS(__VA_ARGS__))

#endif
