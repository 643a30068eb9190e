/* A tokenizer as the encode function of a token cache: one scratch a thread.
 *
 *     struct text_encoder *encoder;
 *     if (text_encoder_create(&encoder, tok, pool_threads(pool), err) != 0) …
 *     options.encode = text_encoder_encode;
 *     options.encode_context = encoder;
 *     options.tokenizer_hash = tokenizer_hash(tok);
 *     … token_cache_build(&options, pool, log, &path, err) …
 *     text_encoder_free(encoder); */
#ifndef TERCET_DATA_ENCODER_H
#define TERCET_DATA_ENCODER_H

#include "base/error.h"
#include "data/cache.h"
#include "text/tokenizer.h"

struct text_encoder;

/* `tok` must outlive it. `threads` >= 1. */
int text_encoder_create(struct text_encoder **out, const struct tokenizer *tok, int threads,
                        struct error *err);
void text_encoder_free(struct text_encoder *encoder); /* NULL is allowed */

/* `context` is the encoder. */
token_encode_fn text_encoder_encode;

#endif
