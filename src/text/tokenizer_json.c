/* tokenizer.json: model, added tokens, normalizer, pre-tokenizer, post-processor, decoder.
 *
 * Every object is read against a list of the keys it may have, so that nothing in the file goes unseen:
 * a key that is not on the list, or a value that asks for what is not there, is refused by name. */
#include "text/internal.h"

#include "base/file.h"
#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

static const char remedy[] =
    "use a tokenizer of the byte-level BPE kind, as GPT-2, Llama 3, DeepSeek and Qwen have";

struct reader {
    struct tokenizer *tok;
    const struct json_document *doc;
    struct error *err;
    bool templated;       /* a TemplateProcessing was read */
    size_t model_tokens;  /* in model.vocab */
    size_t next_added_id; /* what Hugging Face gives to the next added token */
};

static int refuse(const struct reader *r, const json_t *object, const char *key, const char *what)
{
    return json_error_at(r->doc, object, key, r->err, remedy, "%s", what);
}

static int refuse_value(const struct reader *r, const json_t *object, const char *key, const char *value)
{
    return json_error_at(r->doc, object, key, r->err, remedy, "\"%.60s\" is not supported", value);
}

/* Adds the place to what went wrong further down, unless it has nothing to do with the file. */
static int pass_on(const struct reader *r, const json_t *object, const char *key, const struct error *why)
{
    if (why->kind == ERROR_INPUT)
        return json_error_at(r->doc, object, key, r->err, NULL, "%s", why->what);
    if (r->err != NULL)
        *r->err = *why;
    return -1;
}

/* `keys`: names with a space around each. */
static int check_keys(const struct reader *r, json_t *object, const char *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        const char *word = keys + 1;
        size_t n = strcspn(word, " ");
        while (n > 0 && (n != strlen(key) || memcmp(word, key, n) != 0)) {
            word += n + 1;
            n = strcspn(word, " ");
        }
        if (n == 0)
            return refuse(r, object, key, "this key is not known");
    }
    return 0;
}

static int check_null(const struct reader *r, json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value))
        return 0;
    return json_error_at(r->doc, object, key, r->err, "remove it from the file", "only null is supported");
}

static int check_false(const struct reader *r, json_t *object, const char *key, const char *what)
{
    bool value;

    if (json_get_bool_or(r->doc, object, key, false, &value, r->err) != 0)
        return -1;
    return value ? refuse(r, object, key, what) : 0;
}

/* null, missing or "". */
static int check_no_text(const struct reader *r, json_t *object, const char *key)
{
    const char *value;

    if (json_get_string_or(r->doc, object, key, "", &value, r->err) != 0)
        return -1;
    return value[0] == 0 ? 0 : refuse_value(r, object, key, value);
}

static int get_type(const struct reader *r, json_t *object, const char **type)
{
    return json_get_string(r->doc, object, "type", type, r->err);
}

/* ---- model -------------------------------------------------------------------------------------- */

static int read_vocab(struct reader *r, json_t *model)
{
    struct error *err = r->err;
    json_t *vocab, *value;
    const char *text;

    if (json_get_object(r->doc, model, "vocab", &vocab, err) != 0)
        return -1;
    json_object_foreach(vocab, text, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        struct error why;
        if (id < 0 || id >= TOKEN_ID_LIMIT)
            return json_error_at(r->doc, vocab, text, err, NULL, "expected an id from 0 to %d",
                                 TOKEN_ID_LIMIT - 1);
        if (vocabulary_add(&r->tok->vocabulary, text, strlen(text), (uint32_t)id, TOKEN_IN_MODEL, &why) != 0)
            return pass_on(r, vocab, text, &why);
    }
    r->model_tokens = json_object_size(vocab);
    if (r->model_tokens == 0)
        return refuse(r, model, "vocab", "the vocabulary is empty");
    return 0;
}

/* A merge is "left right" or, in newer files, ["left", "right"]. */
static int split_merge(const json_t *merge, const char **left, size_t *left_length, const char **right,
                       size_t *right_length)
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        size_t length = json_string_length(merge);
        if (space == NULL || strlen(text) != length || strchr(space + 1, ' ') != NULL)
            return -1;
        *left = text;
        *left_length = (size_t)(space - text);
        *right = space + 1;
        *right_length = length - *left_length - 1;
        return 0;
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2 || !json_is_string(json_array_get(merge, 0)) ||
        !json_is_string(json_array_get(merge, 1)))
        return -1;
    *left = json_string_value(json_array_get(merge, 0));
    *left_length = json_string_length(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    *right_length = json_string_length(json_array_get(merge, 1));
    return 0;
}

static int read_merges(struct reader *r, json_t *model)
{
    struct strbuf joined = {0};
    json_t *merges, *merge;
    size_t i;
    int status = 0;

    if (json_get_array(r->doc, model, "merges", &merges, r->err) != 0)
        return -1;
    json_array_foreach(merges, i, merge)
    {
        const char *left, *right;
        size_t left_length, right_length;
        struct error why;
        if (split_merge(merge, &left, &left_length, &right, &right_length) != 0) {
            status = json_error_at_index(r->doc, merges, i, r->err, NULL,
                                         "expected a merge, \"left right\" or [\"left\", \"right\"]");
            break;
        }
        if (bpe_add_merge(&r->tok->bpe, &r->tok->vocabulary, left, left_length, right, right_length, &joined,
                          &why) != 0) {
            if (why.kind == ERROR_INPUT)
                status = json_error_at_index(r->doc, merges, i, r->err, NULL, "%s", why.what);
            else
                status = pass_on(r, model, "merges", &why);
            break;
        }
    }
    strbuf_free(&joined);
    return status;
}

static int check_model_kind(const struct reader *r, json_t *model)
{
    const char *type;

    /* Files of before 2020 do not name the type; what reads as BPE then is. */
    if (json_get_string_or(r->doc, model, "type", "BPE", &type, r->err) != 0)
        return -1;
    if (strcmp(type, "BPE") != 0)
        return json_error_at(r->doc, model, "type", r->err, remedy,
                             "models of type %.40s are not supported%s", type,
                             strcmp(type, "Unigram") == 0 ? " (this one comes from SentencePiece)" : "");
    if (check_false(r, model, "byte_fallback",
                    "BPE with byte_fallback, the form that SentencePiece models are converted to, is not "
                    "supported") != 0)
        return -1;
    return check_keys(
        r, model,
        " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
        "ignore_merges vocab merges ");
}

static int read_model(struct reader *r)
{
    json_t *model;
    const char *unknown;
    double dropout;
    int missing;

    if (json_get_object(r->doc, r->doc->root, "model", &model, r->err) != 0 ||
        check_model_kind(r, model) != 0 ||
        json_get_double_or(r->doc, model, "dropout", 0, &dropout, r->err) != 0 ||
        check_no_text(r, model, "continuing_subword_prefix") != 0 ||
        check_no_text(r, model, "end_of_word_suffix") != 0 ||
        json_get_string_or(r->doc, model, "unk_token", NULL, &unknown, r->err) != 0 ||
        json_get_bool_or(r->doc, model, "ignore_merges", false, &r->tok->bpe.ignore_merges, r->err) != 0)
        return -1;
    if (dropout != 0)
        return refuse(r, model, "dropout", "dropout is not supported");
    if (read_vocab(r, model) != 0 || read_merges(r, model) != 0)
        return -1;
    missing = bpe_find_bytes(&r->tok->bpe, &r->tok->vocabulary);
    if (missing == 256)
        return refuse(r, model, "vocab", "no byte has a token: this is no byte-level vocabulary");
    if (missing > 0 && unknown != NULL)
        return json_error_at(
            r->doc, model, "unk_token", r->err, remedy,
            "an unknown token is only supported where it is never used, but %d of the 256 bytes have "
            "no token",
            missing);
    return 0;
}

/* ---- added tokens ------------------------------------------------------------------------------- */

/* The id that Hugging Face gives the token, whatever the file says. */
static uint32_t expected_id(const struct reader *r, const char *content, size_t length)
{
    uint32_t id = vocabulary_find(&r->tok->vocabulary, content, length, TOKEN_IN_MODEL);

    return id != TOKEN_NONE ? id : (uint32_t)r->next_added_id;
}

/* What is looked for after normalization must read as it reads there: for the rest, what Hugging Face does
 * has changed over time. */
static int check_normalized(struct reader *r, const json_t *token, const struct added_token *t)
{
    struct nfc_scratch nfc = {0};
    struct strbuf text = {0};
    int status = 0;

    if (nfc_append(&nfc, (const uint8_t *)t->content, t->length, &text) != 0)
        status = error_memory(r->err, t->length, "added tokens");
    else if (text.length != t->length || memcmp(text.data, t->content, t->length) != 0)
        status = json_error_at(r->doc, token, "content", r->err, "set its \"normalized\" to false",
                               "\"%.80s\" is not NFC, which is what it is looked for in", t->content);
    nfc_scratch_free(&nfc);
    strbuf_free(&text);
    return status;
}

static int read_added_token(struct reader *r, json_t *token)
{
    const char *content;
    int64_t id;
    bool special, normalized;
    struct added_token t = {0};
    struct error why;

    if (json_get_int(r->doc, token, "id", 0, TOKEN_ID_LIMIT - 1, &id, r->err) != 0 ||
        json_get_string(r->doc, token, "content", &content, r->err) != 0 ||
        json_get_bool_or(r->doc, token, "special", false, &special, r->err) != 0 ||
        json_get_bool_or(r->doc, token, "normalized", !special, &normalized, r->err) != 0 ||
        json_get_bool_or(r->doc, token, "single_word", false, &t.single_word, r->err) != 0 ||
        json_get_bool_or(r->doc, token, "lstrip", false, &t.left_space, r->err) != 0 ||
        json_get_bool_or(r->doc, token, "rstrip", false, &t.right_space, r->err) != 0 ||
        check_keys(r, token, " id content special normalized single_word lstrip rstrip ") != 0)
        return -1;
    t.length = strlen(content);
    t.id = expected_id(r, content, t.length);
    t.special = special;
    if (t.length == 0 || t.length > ADDED_LENGTH_LIMIT)
        return json_error_at(r->doc, token, "content", r->err, NULL, "expected 1 to %d bytes",
                             ADDED_LENGTH_LIMIT);
    if (vocabulary_find(&r->tok->vocabulary, content, t.length, TOKEN_ADDED) != TOKEN_NONE)
        return json_error_at(r->doc, token, "content", r->err, NULL, "\"%.80s\" is added twice", content);
    if (t.id != id)
        return json_error_at(r->doc, token, "id", r->err, "write the file anew with Hugging Face tokenizers",
                             "the file gives %lld to \"%.80s\", Hugging Face gives %u", (long long)id,
                             content, t.id);
    if (vocabulary_add(&r->tok->vocabulary, content, t.length, t.id,
                       TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0), &why) != 0)
        return pass_on(r, token, "id", &why);
    if (t.id >= r->next_added_id)
        r->next_added_id = (size_t)t.id + 1;
    t.content = content;
    if (normalized && r->tok->nfc && check_normalized(r, token, &t) != 0)
        return -1;
    return added_set_add(normalized ? &r->tok->added_normalized : &r->tok->added_raw, &t, r->err);
}

static int read_added(struct reader *r)
{
    json_t *list, *token;
    size_t i;

    r->next_added_id = r->model_tokens;
    if (json_get_array_or(r->doc, r->doc->root, "added_tokens", &list, r->err) != 0)
        return -1;
    if (list == NULL || json_array_size(list) == 0)
        return 0;
    json_array_foreach(list, i, token)
    {
        if (!json_is_object(token))
            return json_error_at_index(r->doc, list, i, r->err, NULL, "expected an object");
        if (read_added_token(r, token) != 0)
            return -1;
    }
    added_set_finish(&r->tok->added_raw);
    added_set_finish(&r->tok->added_normalized);
    return 0;
}

/* ---- normalizer, pre-tokenizer, post-processor, decoder ----------------------------------------- */

static int read_normalizer(struct reader *r, json_t *object)
{
    const char *type;
    json_t *list, *item;
    size_t i;

    if (get_type(r, object, &type) != 0)
        return -1;
    if (strcmp(type, "NFC") == 0) {
        r->tok->nfc = true;
        return check_keys(r, object, " type ");
    }
    if (strcmp(type, "Sequence") != 0)
        return refuse_value(r, object, "type", type);
    if (check_keys(r, object, " type normalizers ") != 0 ||
        json_get_array(r->doc, object, "normalizers", &list, r->err) != 0)
        return -1;
    json_array_foreach(list, i, item)
    {
        if (!json_is_object(item))
            return json_error_at_index(r->doc, list, i, r->err, NULL, "expected an object");
        if (json_object_get(item, "normalizers") != NULL)
            return refuse(r, item, "normalizers", "a Sequence within a Sequence is not supported");
        if (read_normalizer(r, item) != 0)
            return -1;
    }
    return 0;
}

static int add_stage(struct reader *r, json_t *object, const char *key, const char *text, size_t n,
                     bool literal)
{
    struct error why;

    if (r->tok->stage_count == STAGE_LIMIT)
        return refuse(r, object, NULL, "more than 16 pre-tokenizers are not supported");
    if (pattern_compile(text, n, literal, &r->tok->stages[r->tok->stage_count], &why) != 0)
        return pass_on(r, object, key, &why);
    r->tok->stage_count++;
    return 0;
}

static int read_split(struct reader *r, json_t *object)
{
    json_t *pattern, *text;
    const char *behavior;
    bool literal;

    if (check_keys(r, object, " type pattern behavior invert ") != 0 ||
        json_get_object(r->doc, object, "pattern", &pattern, r->err) != 0 ||
        json_get_string(r->doc, object, "behavior", &behavior, r->err) != 0 ||
        check_false(r, object, "invert", "an inverted Split is not supported") != 0)
        return -1;
    if (strcmp(behavior, "Isolated") != 0)
        return refuse_value(r, object, "behavior", behavior);
    if (check_keys(r, pattern, " Regex String ") != 0)
        return -1;
    literal = json_object_get(pattern, "String") != NULL;
    text = json_object_get(pattern, literal ? "String" : "Regex");
    if (json_object_size(pattern) != 1 || !json_is_string(text))
        return refuse(r, object, "pattern", "expected {\"Regex\": \"…\"} or {\"String\": \"…\"}");
    return add_stage(r, pattern, literal ? "String" : "Regex", json_string_value(text),
                     json_string_length(text), literal);
}

/* Rust's char::is_numeric, of Unicode 17: category N, and the digits that Unicode 17 added. */
static int read_digits(struct reader *r, json_t *object)
{
    static const char one[] = "[\\p{N}\\x{11de0}-\\x{11de9}]", many[] = "[\\p{N}\\x{11de0}-\\x{11de9}]+";
    bool individual;

    if (check_keys(r, object, " type individual_digits ") != 0 ||
        json_get_bool_or(r->doc, object, "individual_digits", false, &individual, r->err) != 0)
        return -1;
    return individual ? add_stage(r, object, NULL, one, sizeof one - 1, false)
                      : add_stage(r, object, NULL, many, sizeof many - 1, false);
}

static int read_byte_level(struct reader *r, json_t *object)
{
    bool words;

    if (check_keys(r, object, " type add_prefix_space trim_offsets use_regex ") != 0 ||
        json_get_bool_or(r->doc, object, "add_prefix_space", true, &r->tok->prefix_space, r->err) != 0 ||
        json_get_bool_or(r->doc, object, "use_regex", true, &words, r->err) != 0)
        return -1;
    return words ? gpt2_pattern_compile(&r->tok->word_pattern, r->err) : 0;
}

/* *done: ByteLevel was read, after which nothing may follow. */
static int read_pre_tokenizer(struct reader *r, json_t *object, int depth, bool *done)
{
    const char *type;
    json_t *list, *item;
    size_t i;

    if (get_type(r, object, &type) != 0)
        return -1;
    if (*done)
        return refuse(r, object, "type", "a pre-tokenizer after ByteLevel is not supported");
    if (strcmp(type, "Split") == 0)
        return read_split(r, object);
    if (strcmp(type, "Digits") == 0)
        return read_digits(r, object);
    if (strcmp(type, "ByteLevel") == 0) {
        *done = true;
        return read_byte_level(r, object);
    }
    if (strcmp(type, "Sequence") != 0 || depth > 4)
        return refuse_value(r, object, "type", type);
    if (check_keys(r, object, " type pretokenizers ") != 0 ||
        json_get_array(r->doc, object, "pretokenizers", &list, r->err) != 0)
        return -1;
    json_array_foreach(list, i, item)
    {
        if (!json_is_object(item))
            return json_error_at_index(r->doc, list, i, r->err, NULL, "expected an object");
        if (read_pre_tokenizer(r, item, depth + 1, done) != 0)
            return -1;
    }
    return 0;
}

/* Appends the ids that a template's special token stands for. */
static int read_template_token(struct reader *r, json_t *processor, json_t *piece, struct token_buffer *ids)
{
    json_t *special, *tokens, *entry, *list, *id;
    const char *name;
    size_t i;

    if (json_get_object(r->doc, piece, "SpecialToken", &special, r->err) != 0 ||
        check_keys(r, piece, " SpecialToken ") != 0 || check_keys(r, special, " id type_id ") != 0 ||
        json_get_string(r->doc, special, "id", &name, r->err) != 0 ||
        json_get_object(r->doc, processor, "special_tokens", &tokens, r->err) != 0 ||
        json_get_object(r->doc, tokens, name, &entry, r->err) != 0 ||
        check_keys(r, entry, " id ids tokens ") != 0 ||
        json_get_array(r->doc, entry, "ids", &list, r->err) != 0)
        return -1;
    json_array_foreach(list, i, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= r->tok->vocabulary.size ||
            r->tok->vocabulary.tokens[value].text == TOKEN_NONE)
            return json_error_at_index(r->doc, list, i, r->err, NULL, "this is not the id of a token");
        if (token_buffer_reserve(ids, 1, r->err) != 0)
            return -1;
        ids->ids[ids->count++] = (uint32_t)value;
    }
    return 0;
}

static int read_template(struct reader *r, json_t *object)
{
    json_t *single, *piece, *sequence;
    const char *name;
    bool seen = false;
    size_t i;

    if (r->templated)
        return refuse(r, object, "type", "a second TemplateProcessing is not supported");
    r->templated = true;
    if (check_keys(r, object, " type single pair special_tokens ") != 0 ||
        json_get_array(r->doc, object, "single", &single, r->err) != 0)
        return -1;
    json_array_foreach(single, i, piece)
    {
        sequence = json_object_get(piece, "Sequence");
        if (sequence == NULL) {
            if (!json_is_object(piece))
                return json_error_at_index(r->doc, single, i, r->err, NULL, "expected an object");
            if (read_template_token(r, object, piece, seen ? &r->tok->after : &r->tok->before) != 0)
                return -1;
            continue;
        }
        if (!json_is_object(sequence) || check_keys(r, piece, " Sequence ") != 0 ||
            check_keys(r, sequence, " id type_id ") != 0 ||
            json_get_string(r->doc, sequence, "id", &name, r->err) != 0)
            return json_is_object(sequence) ? -1 : refuse(r, piece, "Sequence", "expected an object");
        if (strcmp(name, "A") != 0 || seen)
            return refuse(r, sequence, "id", "expected the sequence A, once");
        seen = true;
    }
    return seen ? 0 : refuse(r, object, "single", "the template leaves the text out");
}

static int read_post_processor(struct reader *r, json_t *object, int depth)
{
    const char *type;
    json_t *list, *item;
    size_t i;

    if (get_type(r, object, &type) != 0)
        return -1;
    if (strcmp(type, "ByteLevel") == 0) /* it only corrects offsets */
        return check_keys(r, object, " type add_prefix_space trim_offsets use_regex ");
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(r, object);
    if (strcmp(type, "Sequence") != 0 || depth > 4)
        return refuse_value(r, object, "type", type);
    if (check_keys(r, object, " type processors ") != 0 ||
        json_get_array(r->doc, object, "processors", &list, r->err) != 0)
        return -1;
    json_array_foreach(list, i, item)
    {
        if (!json_is_object(item))
            return json_error_at_index(r->doc, list, i, r->err, NULL, "expected an object");
        if (read_post_processor(r, item, depth + 1) != 0)
            return -1;
    }
    return 0;
}

static int read_parts(struct reader *r)
{
    json_t *root = r->doc->root, *part;
    const char *type;
    bool done = false;

    if (json_get_object_or(r->doc, root, "normalizer", &part, r->err) != 0 ||
        (part != NULL && read_normalizer(r, part) != 0) ||
        json_get_object(r->doc, root, "pre_tokenizer", &part, r->err) != 0 ||
        read_pre_tokenizer(r, part, 0, &done) != 0)
        return -1;
    if (!done)
        return refuse(r, root, "pre_tokenizer", "a pre-tokenizer without ByteLevel is not supported");
    if (json_get_object(r->doc, root, "decoder", &part, r->err) != 0 || get_type(r, part, &type) != 0)
        return -1;
    if (strcmp(type, "ByteLevel") != 0)
        return refuse_value(r, part, "type", type);
    return check_keys(r, part, " type add_prefix_space trim_offsets use_regex ");
}

static int read_root(struct reader *r)
{
    json_t *root = r->doc->root, *part;
    const char *version;

    if (!json_is_object(root))
        return refuse(r, root, NULL, "expected an object");
    if (check_keys(r, root,
                   " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder "
                   "model ") != 0 ||
        json_get_string_or(r->doc, root, "version", "1.0", &version, r->err) != 0)
        return -1;
    if (strcmp(version, "1.0") != 0)
        return refuse_value(r, root, "version", version);
    if (check_null(r, root, "truncation") != 0 || check_null(r, root, "padding") != 0 || read_model(r) != 0 ||
        read_parts(r) != 0 || read_added(r) != 0 ||
        json_get_object_or(r->doc, root, "post_processor", &part, r->err) != 0)
        return -1;
    if (part != NULL && read_post_processor(r, part, 0) != 0)
        return -1;
    return vocabulary_finish(&r->tok->vocabulary, r->err);
}

int tokenizer_read_json(struct tokenizer *tok, const char *path, struct error *err)
{
    struct file_map map;
    struct json_document doc = {0};
    struct reader r = {.tok = tok, .doc = &doc, .err = err};
    int status;

    if (file_map(path, &map, err) != 0)
        return -1;
    tok->hash = hash_bytes(map.data, map.size, tok->hash);
    status = map.size > JSON_FILE_LIMIT
                 ? error_set(err, ERROR_INPUT, path, NULL, "the file is larger than 256 MiB")
                 : json_open_text(&doc, path, map.data, map.size, err);
    file_unmap(&map);
    if (status != 0)
        return -1;
    status = read_root(&r);
    json_close(&doc);
    return status;
}
