/* One safetensors file: what is accepted has tensors whose data lie end to end within the file and can be
 * read. An input that begins with '{' is a header alone: it gets its length in front, and behind it as many
 * zeros as it asks for. */
#include "fuzz/input.h"

#include "formats/json.h"
#include "formats/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DATA = 1 << 16 };

static void read_tensor(const struct safetensors *file, const struct safetensors_tensor *t)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64};
    double values[7]; /* room for any element type */
    char text[100];
    safetensors_describe(t, text, sizeof text);
    FUZZ_CHECK(safetensors_find(file, t->name) == t);
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        for (int64_t i = 0; i < t->elements; i += 7) {
            int64_t n = t->elements - i < 7 ? t->elements - i : 7;
            if (safetensors_get(t, i, n, types[k], values, NULL) != 0)
                break;
        }
    }
}

static void read_file(const uint8_t *data, size_t size)
{
    struct fuzz_memory memory;
    struct safetensors file;
    struct error err;
    fuzz_memory_open(&memory, data, size);
    if (safetensors_open(&file, memory.path, &err) == 0) {
        int64_t end = (int64_t)size - file.data_bytes;
        for (int64_t i = 0; i < file.count; i++) {
            const struct safetensors_tensor *t = &file.tensors[i];
            FUZZ_CHECK(t->offset == end && t->bytes >= 0);
            end += t->bytes;
            read_tensor(&file, t);
        }
        FUZZ_CHECK(end == (int64_t)size);
        for (int64_t i = 0; i < file.metadata_count; i++)
            FUZZ_CHECK(safetensors_metadata(&file, file.metadata[i].key) == file.metadata[i].value);
        safetensors_close(&file);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    fuzz_memory_close(&memory);
}

/* The end of the last tensor's data, as far as it can be found. */
static size_t data_size(const uint8_t *header, size_t size)
{
    const char *name;
    json_t *root, *tensor;
    size_t most = 0;
    if (json_parse("header", 1, header, size, &root, NULL) != 0)
        return 0;
    json_object_foreach(root, name, tensor)
    {
        json_int_t end = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 1));
        if (end > (json_int_t)most && end <= MOST_DATA)
            most = (size_t)end;
    }
    json_decref(root);
    return most;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || data[0] != '{') {
        read_file(data, size);
        return 0;
    }
    size_t whole = 8 + size + data_size(data, size);
    uint8_t *file = calloc(1, whole);
    FUZZ_CHECK(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)size >> (8 * i));
    memcpy(file + 8, data, size);
    read_file(file, whole);
    free(file);
    return 0;
}
