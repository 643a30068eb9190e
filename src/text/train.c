/* Counting words, and the directory that training leaves. The merges are found in train_merges.c. */
#include "text/train.h"

#include "base/file.h"
#include "formats/json.h"
#include "text/byte_alphabet.h"
#include "text/characters.h"
#include "text/internal.h"
#include "text/train_merges.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"

struct bpe_trainer {
    struct byte_map words;
    int64_t *counts; /* of each word */
    size_t counts_capacity;
    struct pattern *pattern;
    struct pattern_scratch *patterns;
    struct strbuf shadow;
};

int bpe_trainer_create(struct bpe_trainer **out, struct error *err)
{
    struct bpe_trainer *t = calloc(1, sizeof *t);

    *out = NULL;
    if (t == NULL)
        return error_memory(err, sizeof *t, "training a tokenizer");
    if (gpt2_pattern_compile(&t->pattern, err) != 0 || pattern_scratch_create(&t->patterns, err) != 0) {
        bpe_trainer_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void bpe_trainer_free(struct bpe_trainer *trainer)
{
    if (trainer == NULL)
        return;
    byte_map_free(&trainer->words);
    free(trainer->counts);
    pattern_free(trainer->pattern);
    pattern_scratch_free(trainer->patterns);
    strbuf_free(&trainer->shadow);
    free(trainer);
}

static int count_word(struct bpe_trainer *t, const void *word, size_t n, int64_t times, struct error *err)
{
    uint32_t index;
    int added = byte_map_add(&t->words, word, n, &index);

    if (added < 0 ||
        array_reserve(&t->counts, &t->counts_capacity, (size_t)index + 1, sizeof *t->counts) != 0)
        return error_memory(err, n, "the words of the training text");
    t->counts[index] = (added == 1 ? 0 : t->counts[index]) + times;
    return 0;
}

int bpe_trainer_add(struct bpe_trainer *trainer, const char *text, size_t length, struct error *err)
{
    const uint8_t *s = (const uint8_t *)text, *shadow = s;
    size_t invalid = utf8_invalid_at(s, length), start, end, done = 0;
    struct pattern_cursor cursor = {0};
    int status;

    if (invalid < length)
        return error_set(err, ERROR_INPUT, NULL, "convert the text to UTF-8",
                         "the text is not UTF-8: byte 0x%02x at offset %zu", s[invalid], invalid);
    if (characters_need_shadow(s, length)) {
        strbuf_clear(&trainer->shadow);
        strbuf_append(&trainer->shadow, s, length);
        if (trainer->shadow.failed)
            return error_memory(err, length, "training a tokenizer");
        characters_shadow(s, length, (uint8_t *)trainer->shadow.data);
        shadow = (const uint8_t *)trainer->shadow.data;
    }
    while ((status = pattern_next(trainer->pattern, trainer->patterns, shadow, length, &cursor, &start, &end,
                                  err)) > 0) {
        if ((start > done && count_word(trainer, s + done, start - done, 1, err) != 0) ||
            (end > start && count_word(trainer, s + start, end - start, 1, err) != 0))
            return -1;
        done = end;
    }
    if (status == 0 && done < length)
        status = count_word(trainer, s + done, length - done, 1, err);
    return status;
}

int bpe_trainer_merge(struct bpe_trainer *into, const struct bpe_trainer *from, struct error *err)
{
    for (size_t i = 0; i < from->words.count; i++) {
        size_t n;
        const char *word = byte_map_key(&from->words, (uint32_t)i, &n);
        if (count_word(into, word, n, from->counts[i], err) != 0)
            return -1;
    }
    return 0;
}

static void write_byte_level(struct json_writer *w, const char *key, bool prefix_space, bool trim_offsets)
{
    json_write_object(w, key);
    json_write_string(w, "type", "ByteLevel");
    json_write_bool(w, "add_prefix_space", prefix_space);
    json_write_bool(w, "trim_offsets", trim_offsets);
    json_write_bool(w, "use_regex", true);
    json_write_end(w);
}

static void write_added_token(struct json_writer *w)
{
    json_write_array(w, "added_tokens");
    json_write_object(w, NULL);
    json_write_int(w, "id", 0);
    json_write_string(w, "content", END_OF_TEXT);
    json_write_bool(w, "single_word", false);
    json_write_bool(w, "lstrip", false);
    json_write_bool(w, "rstrip", false);
    json_write_bool(w, "normalized", false);
    json_write_bool(w, "special", true);
    json_write_end(w);
    json_write_end(w);
}

/* Appends a token in the alphabet of bytes. */
static void append_token(struct strbuf *text, const struct byte_map *tokens, uint32_t id)
{
    size_t n;
    const uint8_t *bytes = (const uint8_t *)byte_map_key(tokens, id, &n);

    for (size_t i = 0; i < n; i++) {
        char character[2];
        strbuf_append(text, character, byte_alphabet_encode(bytes + i, 1, character));
    }
}

static void write_model(struct json_writer *w, const struct bpe_merges *merges, struct strbuf *text)
{
    json_write_object(w, "model");
    json_write_string(w, "type", "BPE");
    json_write_null(w, "dropout");
    json_write_null(w, "unk_token");
    json_write_null(w, "continuing_subword_prefix");
    json_write_null(w, "end_of_word_suffix");
    json_write_bool(w, "fuse_unk", false);
    json_write_bool(w, "byte_fallback", false);
    json_write_bool(w, "ignore_merges", false);
    json_write_object(w, "vocab");
    for (size_t id = 0; id < merges->tokens.count && !text->failed; id++) {
        strbuf_clear(text);
        append_token(text, &merges->tokens, (uint32_t)id);
        if (!text->failed)
            json_write_int(w, text->data, (int64_t)id);
    }
    json_write_end(w);
    json_write_array(w, "merges");
    for (size_t i = 0; i < merges->count && !text->failed; i++) {
        strbuf_clear(text);
        append_token(text, &merges->tokens, merges->pairs[i].left);
        strbuf_puts(text, " ");
        append_token(text, &merges->tokens, merges->pairs[i].right);
        if (!text->failed)
            json_write_string_n(w, NULL, text->data, text->length);
    }
    json_write_end(w);
    json_write_end(w);
}

static int write_tokenizer(const struct bpe_merges *merges, const char *path, struct error *err)
{
    struct strbuf out = {0}, text = {0};
    struct json_writer w;
    int status;

    json_writer_start(&w, &out, 1);
    json_write_object(&w, NULL);
    json_write_string(&w, "version", "1.0");
    json_write_null(&w, "truncation");
    json_write_null(&w, "padding");
    write_added_token(&w);
    json_write_null(&w, "normalizer");
    write_byte_level(&w, "pre_tokenizer", false, true);
    write_byte_level(&w, "post_processor", true, false);
    write_byte_level(&w, "decoder", true, true);
    write_model(&w, merges, &text);
    json_write_end(&w);
    strbuf_puts(&out, "\n");
    if (out.failed || text.failed)
        status = error_memory(err, out.length, "tokenizer.json");
    else
        status = file_write_all(path, out.data, out.length, err);
    strbuf_free(&out);
    strbuf_free(&text);
    return status;
}

static int write_config(const char *path, struct error *err)
{
    struct strbuf out = {0};
    struct json_writer w;
    int status;

    json_writer_start(&w, &out, 2);
    json_write_object(&w, NULL);
    json_write_bool(&w, "add_bos_token", false);
    json_write_string(&w, "bos_token", END_OF_TEXT);
    json_write_string(&w, "eos_token", END_OF_TEXT);
    json_write_bool(&w, "clean_up_tokenization_spaces", false);
    json_write_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    json_write_end(&w);
    strbuf_puts(&out, "\n");
    if (out.failed)
        status = error_memory(err, out.length, "tokenizer_config.json");
    else
        status = file_write_all(path, out.data, out.length, err);
    strbuf_free(&out);
    return status;
}

static int write_directory(const struct bpe_merges *merges, const char *directory, struct error *err)
{
    char *tokenizer = file_join(directory, "tokenizer.json");
    char *config = file_join(directory, "tokenizer_config.json");
    int status;

    if (tokenizer == NULL || config == NULL)
        status = error_memory(err, strlen(directory), "a path");
    else
        status = file_make_directories(directory, err);
    if (status == 0)
        status = write_tokenizer(merges, tokenizer, err);
    if (status == 0)
        status = write_config(config, err);
    free(tokenizer);
    free(config);
    return status;
}

int bpe_trainer_write(struct bpe_trainer *trainer, const struct bpe_options *options, const char *directory,
                      struct bpe_result *result, struct error *err)
{
    struct bpe_merges merges = {0};
    int status;

    if (options->vocab_size < 257 || options->vocab_size > TOKEN_ID_LIMIT)
        return error_set(err, ERROR_INPUT, NULL,
                         "choose a size from 257 (the bytes and " END_OF_TEXT ") to 2^24",
                         "a vocabulary of %lld tokens cannot be trained", (long long)options->vocab_size);
    if (options->min_frequency < 0)
        return error_set(err, ERROR_INPUT, NULL, "choose 0 or more",
                         "a minimal frequency of %lld makes no sense", (long long)options->min_frequency);
    if (trainer->words.count == 0)
        return error_set(err, ERROR_INPUT, NULL, "give it text", "there is no text to train a tokenizer on");
    status = bpe_merges_find(&merges, &trainer->words, trainer->counts, END_OF_TEXT, options, err);
    if (status == 0)
        status = write_directory(&merges, directory, err);
    if (status == 0 && result != NULL) {
        *result = (struct bpe_result){.vocab_size = (int64_t)merges.tokens.count,
                                      .merges = (int64_t)merges.count,
                                      .distinct_words = (int64_t)trainer->words.count};
        for (size_t i = 0; i < trainer->words.count; i++)
            result->words += trainer->counts[i];
    }
    bpe_merges_free(&merges);
    return status;
}
