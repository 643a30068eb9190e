/* All text through the tokenizer, in parallel, into the parts of a token cache. Private to the room.
 *
 * Work goes in rounds. In a round one piece reads the next lines of text while the others parse and
 * encode the lines of the round before; then their tokens are written, in the order of the text. So
 * neither the threads nor the sizes of rounds and pieces leave a trace, and the first error in the
 * text is the one that is reported. Memory holds two rounds of lines and one of tokens. */
#ifndef TERCET_DATA_ENCODE_H
#define TERCET_DATA_ENCODE_H

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "data/cache.h"
#include "data/manifest.h"

/* Reads `files`, writes to writers[CACHE_PARTS], fills max_id and summary of *manifest. */
int encode_files(const struct token_cache_options *options, const struct text_files *files, struct pool *pool,
                 const struct log *log, struct file_writer *writers, struct cache_manifest *manifest,
                 struct error *err);

/* Fills err: `id` lies beyond the embedding. Returns -1. */
int vocabulary_error(const struct token_cache_options *options, int64_t id, const char *where,
                     struct error *err);

#endif
