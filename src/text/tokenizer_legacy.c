/* GPT-2's files: vocab.json, an object of token texts and ids, and merges.txt, a line of two texts for each
 * merge, by rank. Everything else is what GPT-2 is known to do. */
#include "text/internal.h"

#include "base/file.h"
#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"

enum { MERGES_LIMIT = 256 << 20 };

static int read_vocab(struct tokenizer *tok, const char *path, struct error *err)
{
    struct json_document doc;
    const char *text;
    json_t *value;
    int status = 0;

    if (json_open(&doc, path, JSON_FILE_LIMIT, err) != 0)
        return -1;
    tok->hash = hash_bytes(doc.text, doc.size, tok->hash);
    if (!json_is_object(doc.root))
        status = json_error_at(&doc, doc.root, NULL, err, NULL, "expected an object of texts and ids");
    json_object_foreach(doc.root, text, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        struct error why;
        if (id < 0 || id >= TOKEN_ID_LIMIT)
            status = json_error_at(&doc, doc.root, text, err, NULL, "expected an id from 0 to %d",
                                   TOKEN_ID_LIMIT - 1);
        else if (vocabulary_add(&tok->vocabulary, text, strlen(text), (uint32_t)id, TOKEN_IN_MODEL, &why) !=
                 0)
            status = why.kind == ERROR_INPUT ? json_error_at(&doc, doc.root, text, err, NULL, "%s", why.what)
                                             : error_set(err, why.kind, path, why.remedy, "%s", why.what);
        if (status != 0)
            break;
    }
    json_close(&doc);
    return status;
}

static int merge_error(struct error *err, enum error_kind kind, const char *path, size_t line,
                       const char *what)
{
    char where[512];

    snprintf(where, sizeof where, "%s:%zu", path, line);
    return error_set(err, kind, where, NULL, "%s", what);
}

static int read_merges(struct tokenizer *tok, const char *path, struct error *err)
{
    struct strbuf joined = {0};
    char *text, *line, *end;
    size_t size, number = 0;
    int status = 0;

    if (file_read(path, MERGES_LIMIT, &text, &size, err) != 0)
        return -1;
    tok->hash = hash_bytes(text, size, tok->hash);
    for (line = text; line < text + size && status == 0; line = end + 1) {
        char *space;
        struct error why;
        number++;
        end = memchr(line, '\n', (size_t)(text + size - line));
        if (end == NULL)
            end = text + size;
        *end = 0;
        if (end > line && end[-1] == '\r')
            end[-1] = 0;
        if (strncmp(line, "#version", 8) == 0 || (line[0] == 0 && end + 1 >= text + size))
            continue;
        space = strchr(line, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            status =
                merge_error(err, ERROR_INPUT, path, number, "expected two tokens with a space between them");
            break;
        }
        *space = 0;
        if (bpe_add_merge(&tok->bpe, &tok->vocabulary, line, strlen(line), space + 1, strlen(space + 1),
                          &joined, &why) != 0)
            status = merge_error(err, why.kind, path, number, why.what);
    }
    strbuf_free(&joined);
    free(text);
    return status;
}

int tokenizer_read_legacy(struct tokenizer *tok, const char *vocab_path, const char *merges_path,
                          struct error *err)
{
    const size_t length = strlen(END_OF_TEXT);
    struct added_token special = {.content = END_OF_TEXT, .length = length, .special = true};

    if (read_vocab(tok, vocab_path, err) != 0 || read_merges(tok, merges_path, err) != 0)
        return -1;
    if (bpe_find_bytes(&tok->bpe, &tok->vocabulary) > 0)
        return error_set(err, ERROR_INPUT, vocab_path, "use GPT-2's files, or a tokenizer.json",
                         "not all 256 bytes have a token");
    special.id = vocabulary_find(&tok->vocabulary, END_OF_TEXT, length, 0);
    if (special.id != TOKEN_NONE) {
        tok->vocabulary.tokens[special.id].flags |= TOKEN_ADDED | TOKEN_SPECIAL;
        tok->bos = tok->eos = (int64_t)special.id;
        if (added_set_add(&tok->added_raw, &special, err) != 0)
            return -1;
        added_set_finish(&tok->added_raw);
    }
    if (gpt2_pattern_compile(&tok->word_pattern, err) != 0)
        return -1;
    return vocabulary_finish(&tok->vocabulary, err);
}
