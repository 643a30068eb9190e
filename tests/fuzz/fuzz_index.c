/* model.safetensors.index.json beside two shards, "a.safetensors" (tensors w and x) and "b.safetensors" (y).
 */
#include "fuzz/input.h"

#include "formats/safetensors.h"

#include <stdio.h>

static void put_shard(const struct fuzz_directory *d, const char *name, const char *header)
{
    uint8_t file[256] = {0};
    int n = snprintf((char *)file + 8, sizeof file - 8, "%s", header);
    FUZZ_CHECK(n > 0 && n < 200);
    file[0] = (uint8_t)n;
    fuzz_directory_put(d, name, file, 8 + (size_t)n + (name[0] == 'a' ? 12 : 4));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_directory d;
    struct safetensors_set set;
    struct error err;
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "model.safetensors.index.json", data, size);
    put_shard(&d, "a.safetensors",
              "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
              "\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]}}");
    put_shard(&d, "b.safetensors", "{\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    if (safetensors_set_open(&set, d.path, &err) == 0) {
        FUZZ_CHECK(set.count <= 3 && set.indexed);
        for (int64_t i = 0; i < set.count; i++)
            FUZZ_CHECK(safetensors_set_find(&set, set.tensors[i]->name) == set.tensors[i]);
        safetensors_set_close(&set);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    fuzz_directory_remove(&d);
    return 0;
}
