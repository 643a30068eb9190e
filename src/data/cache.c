#include "data/cache.h"
#include "data/manifest.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token caches are mapped as they are, in little-endian order"
#endif

static const char anew[] = "delete the cache: the next run makes it anew";

static int damaged(const char *path, struct error *err, const char *what)
{
    return error_set(err, ERROR_INPUT, path, anew, "the token cache is damaged: %s", what);
}

/* Maps one part and checks its size against the manifest and the count of its elements. */
static int map_part(const char *directory, enum cache_part part, const struct cache_manifest *m,
                    int64_t elements, int64_t width, struct file_map *map, struct error *err)
{
    char *path = file_join(directory, cache_part_name(part));
    if (!path)
        return error_memory(err, strlen(directory), "a token cache");
    int result = file_map(path, map, err);
    if (result == 0 &&
        ((int64_t)map->size != m->parts[part].bytes || m->parts[part].bytes != elements * width))
        result = damaged(path, err, "the file's size is not the manifest's");
    free(path);
    return result;
}

static bool ends_are_sound(const struct token_cache *cache)
{
    uint64_t last = 0;
    for (int64_t i = 0; i < cache->documents; i++) {
        if (cache->ends[i] <= last)
            return false;
        last = cache->ends[i];
    }
    return last == (uint64_t)cache->tokens;
}

static int open_parts(const char *path, struct cache_manifest *m, struct token_cache *out, struct error *err)
{
    out->documents = m->summary.documents;
    out->tokens = m->summary.tokens;
    if (map_part(path, CACHE_TOKENS, m, out->tokens, 4, &out->maps[CACHE_TOKENS], err) != 0 ||
        map_part(path, CACHE_ENDS, m, out->documents, 8, &out->maps[CACHE_ENDS], err) != 0 ||
        map_part(path, CACHE_PLACES, m, out->documents, 8, &out->maps[CACHE_PLACES], err) != 0)
        return -1;
    /* A mapping starts at a page, so it is aligned. */
    out->ids = (const void *)out->maps[CACHE_TOKENS].data;
    out->ends = (const void *)out->maps[CACHE_ENDS].data;
    out->places = (const void *)out->maps[CACHE_PLACES].data;
    for (int i = 0; i < CACHE_PARTS; i++)
        out->checksums[i] = m->parts[i].checksum;
    if (!ends_are_sound(out))
        return damaged(path, err, "the ends of its documents are out of order");
    out->key = m->key;
    out->max_id = m->max_id;
    out->summary = m->summary;
    out->content_hash = hash_bytes(out->checksums, 2 * sizeof out->checksums[0], 0);
    out->files = calloc(m->file_count > 0 ? (size_t)m->file_count : 1, sizeof *out->files);
    if (!out->files)
        return error_memory(err, (size_t)m->file_count * sizeof *out->files, "a token cache");
    out->file_count = m->file_count;
    for (int64_t i = 0; i < m->file_count; i++) {
        out->files[i] = m->files[i].path; /* taken over */
        m->files[i].path = NULL;
    }
    return 0;
}

int token_cache_open(const char *path, struct token_cache *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    struct cache_manifest manifest;
    if (manifest_read(path, &manifest, err) != 0)
        return -1;
    int result = open_parts(path, &manifest, out, err);
    manifest_free(&manifest);
    if (result != 0)
        token_cache_close(out);
    return result;
}

void token_cache_close(struct token_cache *cache)
{
    for (int i = 0; i < CACHE_PARTS; i++)
        file_unmap(&cache->maps[i]);
    for (int64_t i = 0; i < cache->file_count; i++)
        free(cache->files[i]);
    free(cache->files);
    memset(cache, 0, sizeof *cache);
}

void token_cache_place(const struct token_cache *cache, int64_t i, const char **path, int64_t *line)
{
    uint64_t place = cache->places[i];
    int64_t file = (int64_t)(place >> CACHE_LINE_BITS);
    *path = file < cache->file_count ? cache->files[file] : "unknown file";
    *line = (int64_t)(place & ((UINT64_C(1) << CACHE_LINE_BITS) - 1));
}
