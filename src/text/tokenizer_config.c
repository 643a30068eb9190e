/* tokenizer_config.json: what Transformers lays over the tokenizer itself. Of its many keys most concern
 * other things (lengths, input names, classes); those that would change ids are read here or refused. */
#include "text/internal.h"

#include "base/file.h"
#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_LIMIT = 16 << 20 };

struct reader {
    struct tokenizer *tok;
    const struct json_document *doc;
    struct error *err;
};

/* A token given as "text" or as {"content": "text", …}; *id is left alone where there is none. */
static int read_token(const struct reader *r, const char *key, int64_t *id)
{
    json_t *value = json_object_get(r->doc->root, key);
    const char *text;

    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_object(value)) {
        if (json_get_string(r->doc, value, "content", &text, r->err) != 0)
            return -1;
    } else if (json_get_string(r->doc, r->doc->root, key, &text, r->err) != 0) {
        return -1;
    }
    *id = tokenizer_token_id(r->tok, text, strlen(text));
    if (*id < 0)
        return json_error_at(r->doc, r->doc->root, key, r->err,
                             "name a token of the vocabulary; Transformers would add a new one here",
                             "\"%.80s\" is not in the vocabulary", text);
    return 0;
}

/* Every token that Transformers would add must be there already. */
static int check_added(const struct reader *r)
{
    json_t *tokens, *token;
    const char *key, *text;

    if (json_get_object_or(r->doc, r->doc->root, "added_tokens_decoder", &tokens, r->err) != 0)
        return -1;
    json_object_foreach(tokens, key, token)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (!json_is_object(token))
            return json_error_at(r->doc, tokens, key, r->err, NULL, "expected an object");
        if (json_get_string(r->doc, token, "content", &text, r->err) != 0)
            return -1;
        if (*end != 0 || tokenizer_token_id(r->tok, text, strlen(text)) != id)
            return json_error_at(r->doc, tokens, key, r->err, "write both files anew with Transformers",
                                 "\"%.80s\" does not have this id in the vocabulary", text);
    }
    return 0;
}

/* additional_special_tokens and its newer name: a list, or an object of names, of tokens as "text" or as
 * {"content": "text"}. */
static int check_extra(const struct reader *r, const char *key)
{
    json_t *list = json_object_get(r->doc->root, key), *item;
    bool named = json_is_object(list);
    void *at = json_object_iter(list);
    size_t count = named ? json_object_size(list) : json_array_size(list);

    for (size_t i = 0; i < count; i++) {
        const char *text;
        item = named ? json_object_iter_value(at) : json_array_get(list, i);
        at = named ? json_object_iter_next(list, at) : NULL;
        text = json_string_value(json_is_object(item) ? json_object_get(item, "content") : item);
        if (text == NULL)
            return json_error_at(r->doc, r->doc->root, key, r->err, NULL, "expected tokens");
        if (tokenizer_token_id(r->tok, text, strlen(text)) < 0)
            return json_error_at(r->doc, r->doc->root, key, r->err,
                                 "remove it; Transformers would add a new token here",
                                 "\"%.80s\" is not in the vocabulary", text);
    }
    return 0;
}

static int read_template(const struct reader *r)
{
    json_t *value = json_object_get(r->doc->root, "chat_template"), *item;
    const char *text = NULL, *name;
    size_t i;

    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_array(value)) { /* several, by name */
        json_array_foreach(value, i, item)
        {
            if (!json_is_object(item))
                return json_error_at_index(r->doc, value, i, r->err, NULL, "expected an object");
            if (json_get_string(r->doc, item, "name", &name, r->err) != 0)
                return -1;
            if (strcmp(name, "default") == 0 && json_get_string(r->doc, item, "template", &text, r->err) != 0)
                return -1;
        }
    } else if (json_get_string(r->doc, r->doc->root, "chat_template", &text, r->err) != 0) {
        return -1;
    }
    if (text == NULL)
        return 0;
    r->tok->chat_template = strdup(text);
    return r->tok->chat_template != NULL ? 0 : error_memory(r->err, strlen(text), "the chat template");
}

static int check_class(const struct reader *r)
{
    const char *name;

    if (json_get_string_or(r->doc, r->doc->root, "tokenizer_class", "GPT2Tokenizer", &name, r->err) != 0)
        return -1;
    if (strcmp(name, "GPT2Tokenizer") == 0 || strcmp(name, "GPT2TokenizerFast") == 0)
        return 0;
    return json_error_at(r->doc, r->doc->root, "tokenizer_class", r->err, "put its tokenizer.json beside it",
                         "vocab.json and merges.txt are supported for GPT-2 only, this is %.60s", name);
}

/* What would change the ids, and is not done here. */
static int check_rules(const struct reader *r, bool legacy)
{
    json_t *space = json_object_get(r->doc->root, "add_prefix_space");
    bool split;

    if (legacy && check_class(r) != 0)
        return -1;
    if (json_get_bool_or(r->doc, r->doc->root, "split_special_tokens", false, &split, r->err) != 0)
        return -1;
    if (split)
        return json_error_at(r->doc, r->doc->root, "split_special_tokens", r->err, "set it to false",
                             "true is not supported");
    if (legacy && json_is_boolean(space))
        r->tok->prefix_space = json_is_true(space);
    else if (json_is_boolean(space) && json_is_true(space) != r->tok->prefix_space)
        return json_error_at(r->doc, r->doc->root, "add_prefix_space", r->err, "make the two files agree",
                             "the pre-tokenizer of tokenizer.json says the opposite");
    return 0;
}

/* Puts an id at the outer end of what surrounds a text, unless it is there. */
static int surround(const struct reader *r, const char *key, const char *token_key, int64_t id, bool there,
                    struct token_buffer *ids, int *added, bool front)
{
    bool wanted;

    if (json_get_bool_or(r->doc, r->doc->root, key, false, &wanted, r->err) != 0)
        return -1;
    if (!wanted || there)
        return 0;
    if (id < 0)
        return json_error_at(r->doc, r->doc->root, key, r->err, "name the token in the same file",
                             "true, but there is no %s", token_key);
    if (token_buffer_reserve(ids, 1, r->err) != 0)
        return -1;
    if (front)
        memmove(ids->ids + 1, ids->ids, (size_t)ids->count * sizeof *ids->ids);
    ids->ids[front ? 0 : ids->count] = (uint32_t)id;
    ids->count++;
    *added = 1;
    return 0;
}

static int read_root(const struct reader *r, bool legacy)
{
    struct tokenizer *tok = r->tok;

    if (!json_is_object(r->doc->root))
        return json_error_at(r->doc, r->doc->root, NULL, r->err, NULL, "expected an object");
    if (check_rules(r, legacy) != 0 || check_added(r) != 0 ||
        check_extra(r, "additional_special_tokens") != 0 || check_extra(r, "extra_special_tokens") != 0 ||
        read_token(r, "bos_token", &tok->bos) != 0 || read_token(r, "eos_token", &tok->eos) != 0 ||
        read_token(r, "pad_token", &tok->pad) != 0 || read_template(r) != 0)
        return -1;
    if (surround(r, "add_bos_token", "bos_token", tok->bos, tokenizer_adds_bos(tok), &tok->before,
                 &tok->config_before, true) != 0)
        return -1;
    return surround(r, "add_eos_token", "eos_token", tok->eos, tokenizer_adds_eos(tok), &tok->after,
                    &tok->config_after, false);
}

static int read_config_file(struct tokenizer *tok, const char *path, bool legacy, struct error *err)
{
    struct json_document doc;
    struct reader r = {tok, &doc, err};
    int status;

    if (json_open(&doc, path, JSON_FILE_LIMIT, err) != 0)
        return -1;
    tok->hash = hash_bytes(doc.text, doc.size, tok->hash);
    status = read_root(&r, legacy);
    json_close(&doc);
    return status;
}

/* The file takes the place of what tokenizer_config.json holds. */
static int read_template_file(struct tokenizer *tok, const char *path, struct error *err)
{
    char *text;
    size_t size;

    if (file_read(path, TEMPLATE_LIMIT, &text, &size, err) != 0)
        return -1;
    free(tok->chat_template);
    tok->chat_template = text;
    return 0;
}

int tokenizer_read_config(struct tokenizer *tok, const char *directory, bool legacy, struct error *err)
{
    char *config = file_join(directory, "tokenizer_config.json");
    char *template = file_join(directory, "chat_template.jinja");
    int status = 0;

    if (config == NULL || template == NULL)
        status = error_memory(err, strlen(directory), "a path");
    if (status == 0 && file_exists(config))
        status = read_config_file(tok, config, legacy, err);
    if (status == 0 && file_exists(template))
        status = read_template_file(tok, template, err);
    free(config);
    free(template);
    return status;
}
