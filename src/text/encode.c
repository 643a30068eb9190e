/* Encoding, as a walk: the text is split at raw added tokens; each gap is normalized and split at the
 * normalized added tokens; each piece goes through the pre-tokenizer's stages down to words; each word
 * goes through BPE. Nothing is collected on the way: a stage calls the next one for each of its pieces. */
#include "text/characters.h"
#include "text/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct tokenizer_scratch {
    struct pattern_scratch *patterns;
    struct bpe_scratch *bpe;
    struct nfc_scratch nfc;
    struct strbuf normalized;
    struct strbuf shadow;
    struct strbuf prefixed, prefixed_shadow;
};

/* One call of tokenizer_encode. */
struct walk {
    const struct tokenizer *tok;
    struct tokenizer_scratch *scratch;
    bool special_too;
    struct token_buffer *out;
    struct error *err;
};

int token_buffer_reserve(struct token_buffer *buffer, int64_t more, struct error *err)
{
    size_t capacity = (size_t)buffer->capacity;

    if (more <= buffer->capacity - buffer->count)
        return 0;
    if (array_reserve(&buffer->ids, &capacity, (size_t)buffer->count + (size_t)more, sizeof *buffer->ids) !=
        0)
        return error_memory(err, ((size_t)buffer->count + (size_t)more) * sizeof *buffer->ids, "token ids");
    buffer->capacity = (int64_t)capacity;
    return 0;
}

void token_buffer_free(struct token_buffer *buffer)
{
    free(buffer->ids);
    *buffer = (struct token_buffer){0};
}

int tokenizer_scratch_create(const struct tokenizer *tok, struct tokenizer_scratch **out, struct error *err)
{
    struct tokenizer_scratch *s = calloc(1, sizeof *s);

    (void)tok; /* today's working memory is the same for all */
    *out = NULL;
    if (s == NULL)
        return error_memory(err, sizeof *s, "encoding");
    if (pattern_scratch_create(&s->patterns, err) != 0 || bpe_scratch_create(&s->bpe, err) != 0) {
        tokenizer_scratch_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void tokenizer_scratch_free(struct tokenizer_scratch *scratch)
{
    if (scratch == NULL)
        return;
    pattern_scratch_free(scratch->patterns);
    bpe_scratch_free(scratch->bpe);
    nfc_scratch_free(&scratch->nfc);
    strbuf_free(&scratch->normalized);
    strbuf_free(&scratch->shadow);
    strbuf_free(&scratch->prefixed);
    strbuf_free(&scratch->prefixed_shadow);
    free(scratch);
}

static int encode_word(const struct walk *w, const uint8_t *word, size_t n)
{
    return bpe_encode(&w->tok->bpe, &w->tok->vocabulary, w->scratch->bpe, word, n, w->out, w->err);
}

/* `s` is the piece and `shadow` what patterns see of it, byte for byte (the same pointer, as a rule). */
static int encode_piece(const struct walk *w, int stage, const uint8_t *s, const uint8_t *shadow, size_t n);

/* Cuts a piece at the matches of a pattern and hands the parts on. */
static int cut_piece(const struct walk *w, const struct pattern *pattern, int next_stage, const uint8_t *s,
                     const uint8_t *shadow, size_t n)
{
    struct pattern_cursor cursor = {0};
    size_t done = 0, start, end;
    int status;

    while ((status = pattern_next(pattern, w->scratch->patterns, shadow, n, &cursor, &start, &end, w->err)) >
           0) {
        if (start > done && encode_piece(w, next_stage, s + done, shadow + done, start - done) != 0)
            return -1;
        if (end > start && encode_piece(w, next_stage, s + start, shadow + start, end - start) != 0)
            return -1;
        done = end;
    }
    if (status < 0)
        return -1;
    return done < n ? encode_piece(w, next_stage, s + done, shadow + done, n - done) : 0;
}

/* ByteLevel with add_prefix_space: the piece with a space in front. */
static int prefix_piece(const struct walk *w, const uint8_t **s, const uint8_t **shadow, size_t *n)
{
    struct tokenizer_scratch *scratch = w->scratch;
    bool apart = *shadow != *s;

    strbuf_clear(&scratch->prefixed);
    strbuf_append(&scratch->prefixed, " ", 1);
    strbuf_append(&scratch->prefixed, *s, *n);
    strbuf_clear(&scratch->prefixed_shadow);
    if (apart) {
        strbuf_append(&scratch->prefixed_shadow, " ", 1);
        strbuf_append(&scratch->prefixed_shadow, *shadow, *n);
    }
    if (scratch->prefixed.failed || scratch->prefixed_shadow.failed)
        return error_memory(w->err, *n + 1, "encoding");
    *s = (const uint8_t *)scratch->prefixed.data;
    *shadow = apart ? (const uint8_t *)scratch->prefixed_shadow.data : *s;
    *n += 1;
    return 0;
}

static int encode_piece(const struct walk *w, int stage, const uint8_t *s, const uint8_t *shadow, size_t n)
{
    const struct tokenizer *tok = w->tok;

    if (stage < tok->stage_count)
        return cut_piece(w, tok->stages[stage], stage + 1, s, shadow, n);
    if (stage > tok->stage_count)
        return encode_word(w, s, n);
    if (tok->prefix_space && s[0] != ' ' && prefix_piece(w, &s, &shadow, &n) != 0)
        return -1;
    if (tok->word_pattern != NULL)
        return cut_piece(w, tok->word_pattern, stage + 1, s, shadow, n);
    return encode_word(w, s, n);
}

static int encode_found(void *context, uint32_t id)
{
    const struct walk *w = context;

    if (token_buffer_reserve(w->out, 1, w->err) != 0)
        return -1;
    w->out->ids[w->out->count++] = id;
    return 0;
}

static int encode_gap(void *context, const uint8_t *s, size_t n)
{
    const struct walk *w = context;
    struct strbuf *shadow = &w->scratch->shadow;

    if (!characters_need_shadow(s, n))
        return encode_piece(w, 0, s, s, n);
    strbuf_clear(shadow);
    strbuf_append(shadow, s, n);
    if (shadow->failed)
        return error_memory(w->err, n, "encoding");
    characters_shadow(s, n, (uint8_t *)shadow->data);
    return encode_piece(w, 0, s, (const uint8_t *)shadow->data, n);
}

static int encode_raw_gap(void *context, const uint8_t *s, size_t n)
{
    const struct walk *w = context;
    struct strbuf *normalized = &w->scratch->normalized;

    if (w->tok->nfc) {
        strbuf_clear(normalized);
        if (nfc_append(&w->scratch->nfc, s, n, normalized) != 0)
            return error_memory(w->err, n, "normalizing text");
        s = (const uint8_t *)normalized->data;
        n = normalized->length;
    }
    return added_set_split(&w->tok->added_normalized, s, n, w->special_too, encode_gap, encode_found,
                           context);
}

static int append_ids(const struct walk *w, const struct token_buffer *ids)
{
    if (token_buffer_reserve(w->out, ids->count, w->err) != 0)
        return -1;
    if (ids->count > 0)
        memcpy(w->out->ids + w->out->count, ids->ids, (size_t)ids->count * sizeof *ids->ids);
    w->out->count += ids->count;
    return 0;
}

/* The ids to put around a text. */
static void around_text(const struct tokenizer *tok, unsigned flags, struct token_buffer *before,
                        struct token_buffer *after)
{
    if (!(flags & (ENCODE_SPECIAL_TOKENS_ADDED | ENCODE_TEMPLATE_ADDED)))
        return;
    *before = tok->before;
    *after = tok->after;
    if (flags & ENCODE_SPECIAL_TOKENS_ADDED)
        return;
    if (tok->config_before) {
        before->ids++;
        before->count--;
    }
    after->count -= tok->config_after;
}

int tokenizer_encode(const struct tokenizer *tok, struct tokenizer_scratch *scratch, const char *text,
                     size_t length, unsigned flags, struct token_buffer *out, struct error *err)
{
    struct walk w = {tok, scratch, (flags & ENCODE_SPECIAL_IN_TEXT) != 0, out, err};
    const uint8_t *s = (const uint8_t *)text;
    int64_t count = out->count;
    size_t invalid = utf8_invalid_at(s, length);
    struct token_buffer before = {0}, after = {0}; /* views of the tokenizer's */
    around_text(tok, flags, &before, &after);

    if (invalid < length)
        return error_set(err, ERROR_INPUT, NULL, "convert the text to UTF-8",
                         "the text is not UTF-8: byte 0x%02x at offset %zu", s[invalid], invalid);
    if (length >= INT32_MAX)
        return error_set(err, ERROR_INPUT, NULL, "split it into several documents",
                         "a text of %zu bytes is longer than the limit of 2 GiB", length);
    if (append_ids(&w, &before) != 0 ||
        added_set_split(&tok->added_raw, s, length, w.special_too, encode_raw_gap, encode_found, &w) != 0 ||
        append_ids(&w, &after) != 0) {
        out->count = count;
        return -1;
    }
    return 0;
}
