/* A token cache: manifest.json, whose own checksum is made right, and behind a NUL the bytes of ends.u64
 * (else those that belong to the seed). What is accepted can be walked through. */
#include "fuzz/input.h"

#include "base/file.h"
#include "data/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void walk(const struct token_cache *cache)
{
    const char *path;
    int64_t length, line, sum = 0;
    FUZZ_CHECK(cache->documents > 0 && cache->tokens > 0);
    for (int64_t i = 0; i < cache->documents; i++) {
        const uint32_t *ids = token_cache_document(cache, i, &length);
        FUZZ_CHECK(length > 0);
        for (int64_t k = 0; k < length; k++)
            sum += ids[k];
        token_cache_place(cache, i, &path, &line);
        FUZZ_CHECK(path && line >= 0);
    }
    FUZZ_CHECK(sum >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char head[] = "{\n  \"checksum\": \"";
    static const uint64_t ends[] = {3, 7}, places[] = {1, 2};
    static const uint32_t tokens[] = {65, 66, 0, 67, 65, 66, 0};
    enum { HEAD = sizeof head - 1, DIGITS = 16 };
    struct fuzz_part rest = {data, size}, manifest = fuzz_part(&rest);
    struct fuzz_directory d;
    struct token_cache cache;
    struct error err;
    char digits[DIGITS + 1], *text = malloc(manifest.size + 1);
    FUZZ_CHECK(text);
    if (manifest.size > 0)
        memcpy(text, manifest.data, manifest.size);
    if (manifest.size >= HEAD + DIGITS) {
        snprintf(digits, sizeof digits, "%016" PRIx64,
                 hash_bytes(text + HEAD + DIGITS, manifest.size - HEAD - DIGITS, 0));
        memcpy(text + HEAD, digits, DIGITS);
    }
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "manifest.json", text, manifest.size);
    if (rest.size > 0)
        fuzz_directory_put(&d, "ends.u64", rest.data, rest.size);
    else
        fuzz_directory_put(&d, "ends.u64", ends, sizeof ends);
    fuzz_directory_put(&d, "places.u64", places, sizeof places);
    fuzz_directory_put(&d, "tokens.u32", tokens, sizeof tokens);
    if (token_cache_open(d.path, &cache, &err) == 0) {
        walk(&cache);
        token_cache_close(&cache);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    fuzz_directory_remove(&d);
    free(text);
    return 0;
}
