/* What the files of this room share about a tokenizer: its tables, and the steps of encoding. */
#ifndef TERCET_TEXT_INTERNAL_H
#define TERCET_TEXT_INTERNAL_H

#include "base/strbuf.h"
#include "text/maps.h"
#include "text/normalize.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Changes whenever the same files would give other ids than before. */
#define TOKENIZER_RULES_VERSION 1

#define TOKEN_NONE UINT32_MAX

enum {
    STAGE_LIMIT = 16,
    TOKEN_ID_LIMIT = 1 << 24,
    ADDED_LENGTH_LIMIT = 1024,
};

/* ---- vocabulary.c: ids and their texts --------------------------------------------------------- */

enum token_flags {
    TOKEN_IN_MODEL = 1, /* the BPE model knows it; otherwise it is only an added token */
    TOKEN_ADDED = 2,
    TOKEN_SPECIAL = 4,
};

struct token {
    uint32_t text; /* its number in `texts`; TOKEN_NONE where the id has no token */
    uint32_t flags;
    size_t bytes; /* what it decodes to: its place in `decoded`, and length */
    uint32_t bytes_length;
};

struct vocabulary {
    struct byte_map texts;
    uint32_t *ids; /* of each text */
    size_t ids_capacity;
    struct token *tokens; /* by id, 0 … size-1 */
    size_t tokens_capacity;
    int64_t size;
    uint8_t *decoded;
};

/* Adds a token, or flags to the one that has this id and text. ERROR_INPUT where the id or the text
 * belongs to another one; err->what says so, the place is the caller's to add. */
int vocabulary_add(struct vocabulary *v, const char *text, size_t length, uint32_t id, uint32_t flags,
                   struct error *err);
/* TOKEN_NONE, or the id of the token with all of `flags`. */
uint32_t vocabulary_find(const struct vocabulary *v, const char *text, size_t length, uint32_t flags);
/* Fills `decoded`, once all tokens are there. */
int vocabulary_finish(struct vocabulary *v, struct error *err);
void vocabulary_free(struct vocabulary *v);

/* ---- bpe.c: words to ids ----------------------------------------------------------------------- */

struct merge {
    uint32_t rank, id;
};

struct bpe {
    struct key_map merges; /* pair of ids to number in merge_list */
    struct merge *merge_list;
    size_t merge_count, merge_capacity;
    uint32_t byte_ids[256]; /* TOKEN_NONE where a byte has no token */
    bool ignore_merges;     /* a word that is a token is not merged */
};

/* Adds the next merge, in the order of the file. The result's text is the two texts joined. ERROR_INPUT
 * where one of the three is no token; the place is the caller's to add. */
int bpe_add_merge(struct bpe *bpe, const struct vocabulary *v, const char *left, size_t left_length,
                  const char *right, size_t right_length, struct strbuf *joined, struct error *err);
/* Looks up the 256 bytes, once all tokens are there. Returns how many have none. */
int bpe_find_bytes(struct bpe *bpe, const struct vocabulary *v);
void bpe_free(struct bpe *bpe);

struct bpe_scratch;
int bpe_scratch_create(struct bpe_scratch **out, struct error *err);
void bpe_scratch_free(struct bpe_scratch *scratch);
/* Appends the ids of one word (1 … 2^31-1 bytes). */
int bpe_encode(const struct bpe *bpe, const struct vocabulary *v, struct bpe_scratch *scratch,
               const uint8_t *word, size_t n, struct token_buffer *out, struct error *err);

/* ---- added.c: tokens that are found in the text before anything else --------------------------- */

struct added_token {
    const char *content; /* within a set: malloc'd */
    size_t length;
    uint32_t id;
    bool special, left_space, right_space, single_word;
};

struct added_set {
    struct added_token *items; /* sorted by content once finished */
    size_t count, capacity;
    bool first[256]; /* whether some content starts with this byte */
};

/* The content is copied. */
int added_set_add(struct added_set *set, const struct added_token *token, struct error *err);
/* Sorts. All contents are different. */
void added_set_finish(struct added_set *set);
void added_set_free(struct added_set *set);
/* Walks through s: calls `gap` for what lies between tokens and `found` for each. Both return 0, or -1 to
 * stop. */
int added_set_split(const struct added_set *set, const uint8_t *s, size_t n, bool special_too,
                    int (*gap)(void *context, const uint8_t *s, size_t n),
                    int (*found)(void *context, uint32_t id), void *context);

/* ---- the tokenizer ----------------------------------------------------------------------------- */

struct tokenizer {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct added_set added_raw, added_normalized; /* found before, and after normalization */
    bool nfc;
    /* Each stage cuts the pieces of the one before at its matches; what lies between is kept too. */
    struct pattern *stages[STAGE_LIMIT];
    int stage_count;
    bool prefix_space;                 /* then each piece gets a space in front if it has none … */
    struct pattern *word_pattern;      /* … and is cut by this, where it is not NULL */
    struct token_buffer before, after; /* the ids around a text, from outside in: tokenizer_config.json's, */
    int config_before, config_after;   /* so many (0 or 1), and those of the template */
    int64_t bos, eos, pad;             /* -1: none */
    char *chat_template;
    uint64_t hash;
};

/* tokenizer_json.c and tokenizer_legacy.c fill all but bos … chat_template. `name` is the file's in
 * messages. */
int tokenizer_read_json(struct tokenizer *tok, const char *path, struct error *err);
int tokenizer_read_legacy(struct tokenizer *tok, const char *vocab_path, const char *merges_path,
                          struct error *err);
/* tokenizer_config.c: reads tokenizer_config.json and chat_template.jinja where they exist. `legacy` says
 * that the vocabulary came from vocab.json. */
int tokenizer_read_config(struct tokenizer *tok, const char *directory, bool legacy, struct error *err);

/* GPT-2's pattern for words, which ByteLevel with use_regex stands for. */
int gpt2_pattern_compile(struct pattern **out, struct error *err);

#endif
