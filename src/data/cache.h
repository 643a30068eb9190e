/* Tokens on disk: text is tokenized once, in parallel, into files that every rank maps.
 *
 *     rank 0:      token_cache_build(&options, pool, log, &path, err)   // finds or makes it; see encoder.h
 *     all ranks:   token_cache_open(path, &cache, err)
 *                  token_cache_document(&cache, i, &length)             // const uint32_t *
 *                  token_cache_close(&cache)
 *
 * Format. A cache is a directory ROOT/tokens-<key>, little-endian:
 *
 *     tokens.u32      the token ids of all documents, end to end, in file order
 *     ends.u64        for each document, the number of tokens up to and including it
 *     places.u64      for each document, file << 40 | line: where it came from
 *     manifest.json   what made it, counts, sizes and XXH3-64 checksums, and its own checksum
 *
 * The key is a hash of all that decides the tokens: absolute path, size, time and checksum of every
 * text file, the tokenizer's hash, the field, BOS, EOS, special tokens, bad_lines, the format's
 * version. Beside the caches ROOT/checksums.json remembers the checksum of each file under its
 * device, inode, size, modification and change time, so that an unchanged file is not read again;
 * ROOT/tokens-<key>.lock is there while a cache is being made.
 *
 * A cache is made in ROOT/tokens-<key>.tmp-…, fsynced and renamed. Of two runs that start at
 * once, the second waits for the first and takes its cache; where the file system has no locks, both
 * make it and the later one yields. What a killed run left behind is removed by the next one. A
 * damaged cache is made anew, with a warning. */
#ifndef TERCET_DATA_CACHE_H
#define TERCET_DATA_CACHE_H

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/pool.h"
#include "data/reader.h"
#include "data/summary.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

/* Appends the tokens of a text (valid UTF-8, not terminated, may hold NUL) to *out: no BOS, no EOS.
 * `special`: the text of a special token becomes that token. Called from several threads at once,
 * `thread` in 0 … pool_threads - 1 tells them apart. */
typedef int token_encode_fn(void *context, int thread, const char *text, size_t size, bool special,
                            struct token_buffer *out, struct error *err);

struct token_cache_options {
    const char *const *files; /* files and globs, as in the run file */
    int64_t file_count;
    const char *root;  /* directory of caches; made when missing */
    const char *field; /* the JSON field that holds the text; NULL: "text" */
    enum data_bad_lines bad_lines;

    token_encode_fn *encode;
    void *encode_context;
    uint64_t tokenizer_hash; /* of everything that decides what encode gives */
    bool special_in_text;
    int64_t bos_id; /* put before each document; -1: none */
    int64_t eos_id; /* put after each document that does not end in it; -1: none */

    int64_t vocab_limit;        /* ids must be below it: the rows of the embedding; 0: no limit */
    const char *tokenizer_name; /* for messages */
    const char *model_name;     /* for messages */

    /* Asked now and then; true ends the work with an error and nothing left behind. May be NULL. */
    bool (*stopped)(void *context);
    void *stopped_context;
};

/* Finds the cache for these options or makes it. *path is malloc'd, the caller frees it. ERROR_INPUT
 * for what reader.h lists, for ids beyond vocab_limit, for text without any document, for a root
 * that cannot be written. One process of a run calls it. */
int token_cache_build(const struct token_cache_options *options, struct pool *pool, const struct log *log,
                      char **path, struct error *err);

struct token_cache {
    int64_t documents, tokens;
    const uint32_t *ids;  /* [tokens] */
    const uint64_t *ends; /* [documents], ascending; the last is `tokens` */
    int64_t max_id;       /* the highest id in it */
    uint64_t key;
    uint64_t content_hash; /* of tokens and document ends: the same data, wherever it lies */
    uint64_t checksums[3]; /* XXH3-64 of tokens.u32, ends.u64, places.u64 as the manifest gives them */
    struct data_summary summary;
    int64_t file_count;
    char **files;           /* absolute paths, in order */
    const uint64_t *places; /* private: see token_cache_place */
    struct file_map maps[3];
};

/* Maps a cache read-only. Sizes, the manifest's checksum and the ends are checked; ERROR_INPUT when
 * something is missing or damaged. Zeroed on failure. */
int token_cache_open(const char *path, struct token_cache *out, struct error *err);
void token_cache_close(struct token_cache *cache); /* safe on a zeroed or closed one */

/* Document i: its tokens and their number (>= 1). */
static inline const uint32_t *token_cache_document(const struct token_cache *cache, int64_t i,
                                                   int64_t *length)
{
    uint64_t start = i > 0 ? cache->ends[i - 1] : 0;
    *length = (int64_t)(cache->ends[i] - start);
    return cache->ids + start;
}

/* Where document i came from: the file and the line (0 for a .txt file). */
void token_cache_place(const struct token_cache *cache, int64_t i, const char **path, int64_t *line);

#endif
