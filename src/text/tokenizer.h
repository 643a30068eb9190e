/* Tokenizers: byte-level BPE as GPT-2, Llama 3, DeepSeek and Qwen use it, from Hugging Face files.
 *
 *     struct tokenizer *tok;
 *     struct tokenizer_scratch *scratch;
 *     struct token_buffer ids = {0};
 *     if (tokenizer_load("models/llama", &tok, err) != 0)
 *         return -1;
 *     if (tokenizer_scratch_create(tok, &scratch, err) != 0) …
 *     if (tokenizer_encode(tok, scratch, text, length, ENCODE_SPECIAL_TOKENS_ADDED, &ids, err) != 0) …
 *     token_buffer_free(&ids);
 *     tokenizer_scratch_free(scratch);
 *     tokenizer_free(tok);
 *
 * A tokenizer never changes after loading, so any number of threads may use one; each needs a scratch
 * of its own (working memory, and a bounded cache of words already encoded). The ids are those of
 * Hugging Face `tokenizers` for the same file, whichever releases of PCRE2 are installed: characters
 * newer than the library's tables are known to this room (see pattern.h).
 *
 * What tokenizer.json may hold: normalizer null, NFC or a Sequence of these; pre-tokenizer ByteLevel, or
 * a Sequence of Split (Regex or String, Isolated, not inverted) and Digits that ends in ByteLevel;
 * model BPE, without byte_fallback, dropout, prefix or suffix; added tokens with all their flags;
 * post-processor ByteLevel, TemplateProcessing or a Sequence of these; decoder ByteLevel. Anything
 * else that would change the ids is refused by name, with file and line. */
#ifndef TERCET_TEXT_TOKENIZER_H
#define TERCET_TEXT_TOKENIZER_H

#include "base/error.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct tokenizer_scratch;

/* Token ids, in memory that belongs to the caller. Zero-initialise; set count to 0 to use it again. */
struct token_buffer {
    uint32_t *ids;
    int64_t count, capacity;
};
/* Room for `more` further ids. */
int token_buffer_reserve(struct token_buffer *buffer, int64_t more, struct error *err);
void token_buffer_free(struct token_buffer *buffer);

/* `path` is a tokenizer.json, or a directory that holds one or, in GPT-2's older form, vocab.json and
 * merges.txt (whose `<|endoftext|>`, if there, is special and both BOS and EOS). tokenizer_config.json
 * and chat_template.jinja beside it are read where they exist: they name BOS, EOS and PAD, say whether
 * BOS or EOS are added to every text, and hold the chat template. ERROR_INPUT when a file is missing,
 * damaged, or asks for something that is not supported, which the message names. */
int tokenizer_load(const char *path, struct tokenizer **out, struct error *err);
void tokenizer_free(struct tokenizer *tok); /* NULL is allowed */

/* Must not outlive `tok`, nor be used with another one. */
int tokenizer_scratch_create(const struct tokenizer *tok, struct tokenizer_scratch **out, struct error *err);
void tokenizer_scratch_free(struct tokenizer_scratch *scratch); /* NULL is allowed */

enum encode_flags {
    /* Add what belongs around one text: the post-processor's template, and BOS or EOS where
     * tokenizer_config.json has add_bos_token or add_eos_token and the template leaves them out. */
    ENCODE_SPECIAL_TOKENS_ADDED = 1,
    /* Take the text of a special token inside `text` as that token (what Hugging Face does unless told
     * otherwise). Without it the text of special tokens is ordinary text, as one wants for text of
     * unknown origin; added tokens that are not special are recognised in any case. */
    ENCODE_SPECIAL_IN_TEXT = 2,
    /* Add what the post-processor's template alone puts around one text, as Hugging Face `tokenizers`
     * does, which does not read tokenizer_config.json. */
    ENCODE_TEMPLATE_ADDED = 4,
};

/* Appends the ids of `text` (UTF-8, at most 2 GiB; U+0000 is an ordinary character) to *out.
 * ERROR_INPUT naming the byte offset where the text is not UTF-8, and where a byte of it has no token in
 * this vocabulary. On failure *out holds what it held before. The time is O(n log n) for any text. */
int tokenizer_encode(const struct tokenizer *tok, struct tokenizer_scratch *scratch, const char *text,
                     size_t length, unsigned flags, struct token_buffer *out, struct error *err);

/* Appends the text of n ids to *out; check out->failed. The bytes of all tokens are joined; what is not
 * UTF-8 then becomes U+FFFD, one for each maximal part of a character. Ids without a token add nothing.
 * `skip_special` leaves special tokens out. Spaces are not "cleaned up". */
void tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, int64_t n, bool skip_special,
                      struct strbuf *out);

/* Decoding as ids come. All pieces joined are what tokenizer_decode gives for all ids. Zero-initialise. */
struct tokenizer_stream {
    uint8_t pending[4]; /* the beginning of a character that is not complete yet */
    int fill;
    bool skip_special;
};
/* Appends to *out the characters that `id` completes. */
void tokenizer_stream_feed(struct tokenizer_stream *stream, const struct tokenizer *tok, uint32_t id,
                           struct strbuf *out);
/* At the end: an unfinished character becomes U+FFFD. The stream can then be used again. */
void tokenizer_stream_finish(struct tokenizer_stream *stream, struct strbuf *out);

/* Ids, or -1 where the files name none. */
int64_t tokenizer_bos(const struct tokenizer *tok);
int64_t tokenizer_eos(const struct tokenizer *tok);
int64_t tokenizer_pad(const struct tokenizer *tok);
/* Whether ENCODE_SPECIAL_TOKENS_ADDED puts BOS in front (EOS at the end). */
bool tokenizer_adds_bos(const struct tokenizer *tok);
bool tokenizer_adds_eos(const struct tokenizer *tok);

/* The largest id plus one: a model needs at least so many embeddings. */
int64_t tokenizer_vocab_size(const struct tokenizer *tok);
/* The text of a token as the file writes it ("Ġthe"), terminated; NULL where the id has no token.
 * `length` may be NULL. Belongs to the tokenizer. */
const char *tokenizer_token_text(const struct tokenizer *tok, uint32_t id, size_t *length);
/* The id of a token written so, or -1. */
int64_t tokenizer_token_id(const struct tokenizer *tok, const char *text, size_t length);
bool tokenizer_is_special(const struct tokenizer *tok, uint32_t id);

/* The Jinja template for chats, unparsed, or NULL. Belongs to the tokenizer. */
const char *tokenizer_chat_template(const struct tokenizer *tok);

/* XXH3-64 of all that decides ids (the files' bytes and the version of the rules here): equal hashes
 * encode alike. For cache keys. */
uint64_t tokenizer_hash(const struct tokenizer *tok);

#endif
