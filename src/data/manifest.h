/* manifest.json of a token cache: what it was made of, and what it holds. The file begins with the
 * XXH3-64 of all that follows its own digits. Private to the room; the format is told in cache.h. */
#ifndef TERCET_DATA_MANIFEST_H
#define TERCET_DATA_MANIFEST_H

#include "base/error.h"
#include "data/cache.h"
#include "formats/json.h"

#include <stdint.h>

enum { CACHE_VERSION = 1 };
enum cache_part { CACHE_TOKENS, CACHE_ENDS, CACHE_PLACES, CACHE_PARTS };

/* "tokens.u32", "ends.u64", "places.u64". */
const char *cache_part_name(enum cache_part part);

/* An element of places.u64. */
enum { CACHE_LINE_BITS = 40, CACHE_FILE_LIMIT = 1 << 24 };
static inline uint64_t cache_place(int64_t file, int64_t line)
{
    return (uint64_t)file << CACHE_LINE_BITS | (uint64_t)line;
}

struct manifest_file {
    char *path; /* absolute */
    int64_t size, mtime_ns;
    uint64_t checksum;
};

struct cache_manifest {
    uint64_t key;
    struct manifest_file *files;
    int64_t file_count;
    int64_t max_id;
    struct {
        int64_t bytes;
        uint64_t checksum;
    } parts[CACHE_PARTS];
    struct data_summary summary;
};

/* The settings come from `options`. */
int manifest_write(const char *directory, const struct cache_manifest *manifest,
                   const struct token_cache_options *options, struct error *err);
/* ERROR_INPUT when it is missing or damaged. */
int manifest_read(const char *directory, struct cache_manifest *out, struct error *err);
void manifest_free(struct cache_manifest *manifest); /* frees the list of files */

/* 64 bits as 16 hexadecimal digits in a string. */
void manifest_put_hex(struct json_writer *w, const char *key, uint64_t value);
int manifest_get_hex(const struct json_document *doc, const json_t *object, const char *key, uint64_t *out,
                     struct error *err);

#endif
