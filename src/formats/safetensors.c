#include "formats/safetensors.h"

#include "formats/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data are used as they lie in the file");

/* What the format's own library accepts at most. */
#define HEADER_LIMIT ((uint64_t)100000000)

enum { LENGTH_BYTES = 8 };

static const char again[] = "fetch or write the file again";

static int bad_file(const struct safetensors *file, struct error *err, const char *what)
{
    return error_set(err, ERROR_INPUT, file->path, again, "%s", what);
}

int safetensors_shape_elements(int rank, const int64_t *shape, int64_t *elements)
{
    int64_t product = 1; /* of the dimensions that are not 0, so that a 0 hides no overflow */
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return -1;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, shape[i], &product))
            return -1;
    }
    if (product > INT64_MAX / 64) /* its bytes, or even bits, must be countable too */
        return -1;
    *elements = empty ? 0 : product;
    return 0;
}

/* ---- The header ---- */

static int parse_dtype(const struct safetensors *file, const char *name, const json_t *value, enum dtype *out,
                       struct error *err)
{
    const char *text = json_string_value(value);
    char known[128] = "";
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const char *one = dtype_info((enum dtype)i)->safetensors;
        if (text != NULL && strcmp(text, one) == 0) {
            *out = (enum dtype)i;
            return 0;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", one);
    }
    char remedy[256];
    snprintf(remedy, sizeof remedy, "convert the tensor to one of %s", known);
    return error_set(err, ERROR_INPUT, file->path, remedy, "tensor \"%s\": dtype %s is not supported", name,
                     text != NULL ? text : json_kind_name(value));
}

static int parse_shape(const struct safetensors *file, const json_t *value, struct safetensors_tensor *t,
                       struct error *err)
{
    if (!json_is_array(value))
        return error_set(err, ERROR_INPUT, file->path, again, "tensor \"%s\": its shape is %s, not an array",
                         t->name, json_kind_name(value));
    if (json_array_size(value) > SAFETENSORS_MAX_RANK)
        return error_set(err, ERROR_INPUT, file->path, NULL,
                         "tensor \"%s\": it has %zu dimensions, at most %d are supported", t->name,
                         json_array_size(value), SAFETENSORS_MAX_RANK);
    t->rank = (int)json_array_size(value);
    for (int i = 0; i < t->rank; i++) {
        const json_t *dimension = json_array_get(value, (size_t)i);
        if (!json_is_integer(dimension) || json_integer_value(dimension) < 0)
            return error_set(err, ERROR_INPUT, file->path, again,
                             "tensor \"%s\": dimension %d of its shape is no whole number of at least 0",
                             t->name, i);
        t->shape[i] = json_integer_value(dimension);
    }
    if (safetensors_shape_elements(t->rank, t->shape, &t->elements) != 0)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": the product of its dimensions overflows", t->name);
    t->bytes = dtype_bytes(t->dtype, t->elements);
    return 0;
}

/* Sets t->offset, counted from the start of the data until the header is known. */
static int parse_offsets(const struct safetensors *file, const json_t *value, struct safetensors_tensor *t,
                         struct error *err)
{
    const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": its data_offsets are not two whole numbers", t->name);
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": its data_offsets [%" PRId64 ", %" PRId64 "] are in the wrong order",
                         t->name, begin, end);
    if (end > file->data_bytes)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": its data end at byte %" PRId64 " of %" PRId64
                         ": the file is truncated or its header wrong",
                         t->name, end, file->data_bytes);
    if (end - begin != t->bytes) {
        char text[256];
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": %s has %" PRId64 " bytes, its data_offsets say %" PRId64, t->name,
                         safetensors_describe(t, text, sizeof text), t->bytes, end - begin);
    }
    t->offset = begin;
    return 0;
}

static int parse_tensor(struct safetensors *file, const char *name, const json_t *entry, struct error *err)
{
    struct safetensors_tensor *t = &file->tensors[file->count];
    const char *const keys[] = {"dtype", "shape", "data_offsets"};
    t->name = name;
    t->path = file->path;
    if (!json_is_object(entry))
        return error_set(err, ERROR_INPUT, file->path, again, "tensor \"%s\": its entry is %s, not an object",
                         name, json_kind_name(entry));
    for (int i = 0; i < 3; i++)
        if (json_object_get(entry, keys[i]) == NULL)
            return error_set(err, ERROR_INPUT, file->path, again, "tensor \"%s\": its entry has no \"%s\"",
                             name, keys[i]);
    if (json_object_size(entry) != 3)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "tensor \"%s\": its entry has keys beside dtype, shape and data_offsets", name);
    if (parse_dtype(file, name, json_object_get(entry, keys[0]), &t->dtype, err) != 0 ||
        parse_shape(file, json_object_get(entry, keys[1]), t, err) != 0 ||
        parse_offsets(file, json_object_get(entry, keys[2]), t, err) != 0)
        return -1;
    file->count++;
    return 0;
}

static int parse_metadata(struct safetensors *file, json_t *object, struct error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return error_set(err, ERROR_INPUT, file->path, again, "__metadata__ is %s, not an object",
                         json_kind_name(object));
    file->metadata = calloc(json_object_size(object) + 1, sizeof *file->metadata);
    if (file->metadata == NULL)
        return error_memory(err, (json_object_size(object) + 1) * sizeof *file->metadata, "metadata");
    json_object_foreach(object, key, value)
    {
        const char *text = json_string_value(value);
        if (text == NULL)
            return error_set(err, ERROR_INPUT, file->path, again, "__metadata__: \"%s\" is %s, not a string",
                             key, json_kind_name(value));
        if (strlen(text) != json_string_length(value))
            return error_set(err, ERROR_INPUT, file->path, again, "__metadata__: \"%s\" has U+0000 in it",
                             key);
        file->metadata[file->metadata_count++] = (struct safetensors_pair){key, text};
    }
    return 0;
}

/* ---- The layout ---- */

static int by_offset(const void *left, const void *right)
{
    const struct safetensors_tensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) /* empty tensors stand before the one that begins at the same place */
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sorts the tensors by place and checks that they fill the data from end to end. */
static int check_layout(struct safetensors *file, struct error *err)
{
    int64_t end = 0;
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_offset);
    for (int64_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];
        if (t->offset < end)
            return error_set(err, ERROR_INPUT, file->path, again,
                             "tensors \"%s\" and \"%s\" overlap at byte %" PRId64 " of the data",
                             file->tensors[i - 1].name, t->name, t->offset);
        if (t->offset > end)
            return error_set(err, ERROR_INPUT, file->path, again,
                             "%" PRId64 " bytes before tensor \"%s\" belong to no tensor", t->offset - end,
                             t->name);
        end = t->offset + t->bytes;
    }
    if (end != file->data_bytes)
        return error_set(err, ERROR_INPUT, file->path, again, "%" PRId64 " bytes follow the last tensor",
                         file->data_bytes - end);
    return 0;
}

static int compare_names(const void *left, const void *right, void *context)
{
    const struct safetensors_tensor *tensors = context;
    return strcmp(tensors[*(const int64_t *)left].name, tensors[*(const int64_t *)right].name);
}

static int index_names(struct safetensors *file, struct error *err)
{
    size_t n = (size_t)file->count;
    file->by_name = malloc((n + 1) * sizeof *file->by_name);
    if (file->by_name == NULL)
        return error_memory(err, (n + 1) * sizeof *file->by_name, "tensor names");
    for (size_t i = 0; i < n; i++)
        file->by_name[i] = (int64_t)i;
    qsort_r(file->by_name, n, sizeof *file->by_name, compare_names, file->tensors);
    return 0;
}

/* ---- Opening ---- */

/* Finds the header's length and the number of data bytes after it. */
static int measure(struct safetensors *file, uint64_t *header_bytes, struct error *err)
{
    const struct file_map *map = &file->map;
    static const char pointer[] = "version https://git-lfs";
    if (map->size >= sizeof pointer && memcmp(map->data, pointer, sizeof pointer - 1) == 0)
        return error_set(err, ERROR_INPUT, file->path, "run git lfs pull in its directory",
                         "this is a Git LFS pointer, not the file that it stands for");
    if (map->size < LENGTH_BYTES)
        return bad_file(file, err, "the file is too short for a safetensors file");
    memcpy(header_bytes, map->data, LENGTH_BYTES);
    if (*header_bytes > HEADER_LIMIT)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "the header should have %" PRIu64 " bytes, at most %" PRIu64
                         " are allowed: this is no safetensors file",
                         *header_bytes, HEADER_LIMIT);
    if (*header_bytes > map->size - LENGTH_BYTES)
        return error_set(err, ERROR_INPUT, file->path, again,
                         "the header should have %" PRIu64
                         " bytes, but only %zu follow: the file is truncated or no safetensors file",
                         *header_bytes, map->size - LENGTH_BYTES);
    if (*header_bytes == 0 || map->data[LENGTH_BYTES] != '{')
        return bad_file(file, err, "the header does not begin with {: this is no safetensors file");
    file->data_bytes = (int64_t)(map->size - LENGTH_BYTES - *header_bytes);
    return 0;
}

static int parse_header(struct safetensors *file, struct error *err)
{
    uint64_t header_bytes;
    json_t *root, *entry;
    const char *name;
    if (measure(file, &header_bytes, err) != 0 ||
        json_parse(file->path, 1, file->map.data + LENGTH_BYTES, header_bytes, &root, err) != 0)
        return -1;
    file->header = root;
    file->tensors = calloc(json_object_size(root) + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return error_memory(err, (json_object_size(root) + 1) * sizeof *file->tensors, "tensor entries");
    json_object_foreach(root, name, entry)
    {
        int status = strcmp(name, "__metadata__") == 0 ? parse_metadata(file, entry, err)
                                                       : parse_tensor(file, name, entry, err);
        if (status != 0)
            return -1;
    }
    if (check_layout(file, err) != 0 || index_names(file, err) != 0)
        return -1;
    for (int64_t i = 0; i < file->count; i++) {
        file->tensors[i].offset += LENGTH_BYTES + (int64_t)header_bytes;
        file->tensors[i].data = file->map.data + file->tensors[i].offset;
    }
    return 0;
}

int safetensors_open(struct safetensors *out, const char *path, struct error *err)
{
    *out = (struct safetensors){.path = strdup(path)};
    if (out->path == NULL)
        return error_memory(err, strlen(path) + 1, "a file name");
    if (file_map(path, &out->map, err) != 0) {
        out->map = (struct file_map){0};
        safetensors_close(out);
        return -1;
    }
    if (parse_header(out, err) != 0) {
        safetensors_close(out);
        return -1;
    }
    return 0;
}

void safetensors_close(struct safetensors *file)
{
    json_decref(file->header);
    if (file->path != NULL)
        file_unmap(&file->map);
    free(file->path);
    free(file->tensors);
    free(file->metadata);
    free(file->by_name);
    *file = (struct safetensors){0};
}

/* ---- Use ---- */

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    int64_t low = 0, high = file->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct safetensors_tensor *t = &file->tensors[file->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key)
{
    for (int64_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0)
            return file->metadata[i].value;
    return NULL;
}

char *safetensors_describe(const struct safetensors_tensor *tensor, char *out, size_t size)
{
    size_t n = 0;
    snprintf(out, size, "%s [", dtype_info(tensor->dtype)->safetensors);
    for (int i = 0; i < tensor->rank; i++) {
        n = strlen(out);
        snprintf(out + n, size - n, "%s%" PRId64, i > 0 ? ", " : "", tensor->shape[i]);
    }
    n = strlen(out);
    snprintf(out + n, size - n, "]");
    return out;
}

int safetensors_get(const struct safetensors_tensor *tensor, int64_t first, int64_t n, enum dtype to,
                    void *dst, struct error *err)
{
    assert(first >= 0 && n >= 0 && n <= tensor->elements && first <= tensor->elements - n);
    const uint8_t *src = (const uint8_t *)tensor->data + dtype_bytes(tensor->dtype, first);
    if (n == 0)
        return 0;
    if (to == tensor->dtype) {
        memcpy(dst, src, (size_t)dtype_bytes(to, n));
        return 0;
    }
    if (!dtype_info(to)->is_float || !dtype_info(tensor->dtype)->is_float) {
        char text[256];
        return error_set(err, ERROR_INPUT, tensor->path, NULL, "tensor \"%s\": %s cannot be read as %s",
                         tensor->name, safetensors_describe(tensor, text, sizeof text),
                         dtype_info(to)->safetensors);
    }
    /* The data may lie at any address: convert by way of an aligned buffer. */
    _Alignas(8) uint8_t piece[4096];
    const int64_t step = (int64_t)sizeof piece / dtype_bytes(tensor->dtype, 1);
    for (int64_t done = 0; done < n; done += step) {
        int64_t count = n - done < step ? n - done : step;
        memcpy(piece, src + dtype_bytes(tensor->dtype, done), (size_t)dtype_bytes(tensor->dtype, count));
        dtype_convert(to, (uint8_t *)dst + dtype_bytes(to, done), tensor->dtype, piece, count);
    }
    return 0;
}
