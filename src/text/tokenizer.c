#include "text/internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

int gpt2_pattern_compile(struct pattern **out, struct error *err)
{
    static const char text[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

    return pattern_compile(text, sizeof text - 1, false, out, err);
}

/* The directory part of a path, malloc'd. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static int read_directory(struct tokenizer *tok, const char *directory, struct error *err)
{
    char *json = file_join(directory, "tokenizer.json");
    char *vocab = file_join(directory, "vocab.json"), *merges = file_join(directory, "merges.txt");
    int status;

    if (json == NULL || vocab == NULL || merges == NULL)
        status = error_memory(err, 0, "a path");
    else if (file_exists(json))
        status = tokenizer_read_json(tok, json, err) != 0 ||
                 tokenizer_read_config(tok, directory, false, err) != 0;
    else if (file_exists(vocab) && file_exists(merges))
        status = tokenizer_read_legacy(tok, vocab, merges, err) != 0 ||
                 tokenizer_read_config(tok, directory, true, err) != 0;
    else
        status = error_set(err, ERROR_INPUT, directory,
                           "name a directory that holds a Hugging Face tokenizer (SentencePiece's "
                           "tokenizer.model is not supported)",
                           "there is neither tokenizer.json nor vocab.json with merges.txt");
    free(json);
    free(vocab);
    free(merges);
    return status == 0 ? 0 : -1;
}

static int read_file(struct tokenizer *tok, const char *path, struct error *err)
{
    char *directory = parent_of(path);
    int status;

    if (directory == NULL)
        return error_memory(err, strlen(path), "a path");
    status = tokenizer_read_json(tok, path, err);
    if (status == 0)
        status = tokenizer_read_config(tok, directory, false, err);
    free(directory);
    return status;
}

int tokenizer_load(const char *path, struct tokenizer **out, struct error *err)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    int status;

    *out = NULL;
    if (tok == NULL)
        return error_memory(err, sizeof *tok, "a tokenizer");
    tok->bos = tok->eos = tok->pad = -1;
    tok->hash = TOKENIZER_RULES_VERSION;
    if (!file_exists(path))
        status = error_set(err, ERROR_INPUT, path, "check the path of the tokenizer",
                           "there is no such file or directory");
    else if (file_is_directory(path))
        status = read_directory(tok, path, err);
    else
        status = read_file(tok, path, err);
    if (status != 0) {
        tokenizer_free(tok);
        return -1;
    }
    *out = tok;
    return 0;
}

void tokenizer_free(struct tokenizer *tok)
{
    if (tok == NULL)
        return;
    vocabulary_free(&tok->vocabulary);
    bpe_free(&tok->bpe);
    added_set_free(&tok->added_raw);
    added_set_free(&tok->added_normalized);
    for (int i = 0; i < tok->stage_count; i++)
        pattern_free(tok->stages[i]);
    pattern_free(tok->word_pattern);
    token_buffer_free(&tok->before);
    token_buffer_free(&tok->after);
    free(tok->chat_template);
    free(tok);
}

int64_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos;
}

int64_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos;
}

int64_t tokenizer_pad(const struct tokenizer *tok)
{
    return tok->pad;
}

bool tokenizer_adds_bos(const struct tokenizer *tok)
{
    return tok->bos >= 0 && tok->before.count > 0 && tok->before.ids[0] == tok->bos;
}

bool tokenizer_adds_eos(const struct tokenizer *tok)
{
    return tok->eos >= 0 && tok->after.count > 0 && tok->after.ids[tok->after.count - 1] == tok->eos;
}

int64_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->vocabulary.size;
}

const char *tokenizer_token_text(const struct tokenizer *tok, uint32_t id, size_t *length)
{
    const struct vocabulary *v = &tok->vocabulary;

    if (id >= v->size || v->tokens[id].text == TOKEN_NONE)
        return NULL;
    return byte_map_key(&v->texts, v->tokens[id].text, length);
}

int64_t tokenizer_token_id(const struct tokenizer *tok, const char *text, size_t length)
{
    uint32_t id = vocabulary_find(&tok->vocabulary, text, length, 0);

    return id == TOKEN_NONE ? -1 : (int64_t)id;
}

bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id)
{
    return id < tok->vocabulary.size && (tok->vocabulary.tokens[id].flags & TOKEN_SPECIAL) != 0;
}

const char *tokenizer_chat_template(const struct tokenizer *tok)
{
    return tok->chat_template;
}

uint64_t tokenizer_hash(const struct tokenizer *tok)
{
    return tok->hash;
}
