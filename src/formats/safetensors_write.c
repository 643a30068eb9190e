#include "formats/safetensors.h"

#include "formats/json.h"
#include "formats/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct safetensors_planned {
    char *name;
    enum dtype dtype;
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    int64_t begin, end; /* bytes, from the start of the data */
};

struct safetensors_planned_pair {
    char *key, *value;
};

/* The header is padded so that the data begin at a multiple of this, and its length is limited to what
 * readers accept. */
enum { HEADER_ALIGNMENT = 8, HEADER_LIMIT = 100000000 };

/* ---- The plan ---- */

/* Room for one more item of `size` bytes: the array, moved where it had to grow; NULL without memory. */
static void *with_room(void *items, int64_t count, int64_t *capacity, size_t size)
{
    if (count < *capacity)
        return items;
    int64_t wanted = *capacity > 0 ? *capacity * 2 : 64;
    void *larger = realloc(items, (size_t)wanted * size);
    if (larger != NULL)
        *capacity = wanted;
    return larger;
}

static int append_tensor(struct safetensors_plan *plan, struct safetensors_planned t, const char *name,
                         struct error *err)
{
    void *tensors = with_room(plan->tensors, plan->count, &plan->capacity, sizeof t);
    if (tensors == NULL)
        return error_memory(err, sizeof t, "a safetensors header");
    plan->tensors = tensors;
    t.name = strdup(name);
    if (t.name == NULL)
        return error_memory(err, strlen(name) + 1, "a tensor name");
    plan->tensors[plan->count++] = t;
    plan->data_bytes = t.end;
    return 0;
}

int safetensors_plan_add(struct safetensors_plan *plan, const char *name, enum dtype dtype, int rank,
                         const int64_t *shape, struct error *err)
{
    struct safetensors_planned t = {.dtype = dtype, .rank = rank, .begin = plan->data_bytes};
    int64_t elements;
    if (name[0] == '\0' || strcmp(name, "__metadata__") == 0 || !utf8_valid(name, strlen(name)))
        return error_set(err, ERROR_INPUT, NULL, NULL, "\"%s\" cannot be a tensor's name", name);
    if (rank < 0 || rank > SAFETENSORS_MAX_RANK)
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "tensor \"%s\": %d dimensions, at most %d are supported", name, rank,
                         SAFETENSORS_MAX_RANK);
    if (safetensors_shape_elements(rank, shape, &elements) != 0)
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "tensor \"%s\": a dimension is negative or their product overflows", name);
    if (__builtin_add_overflow(t.begin, dtype_bytes(dtype, elements), &t.end))
        return error_set(err, ERROR_INPUT, NULL, NULL, "tensor \"%s\": the size of the file overflows", name);
    for (int i = 0; i < rank; i++)
        t.shape[i] = shape[i];
    return append_tensor(plan, t, name, err);
}

int safetensors_plan_metadata(struct safetensors_plan *plan, const char *key, const char *value,
                              struct error *err)
{
    if (!utf8_valid(key, strlen(key)) || !utf8_valid(value, strlen(value)))
        return error_set(err, ERROR_INPUT, NULL, NULL, "metadata \"%s\" is not UTF-8", key);
    for (int64_t i = 0; i < plan->metadata_count; i++)
        if (strcmp(plan->metadata[i].key, key) == 0)
            return error_set(err, ERROR_INPUT, NULL, NULL, "metadata \"%s\" is given twice", key);
    struct safetensors_planned_pair pair = {strdup(key), strdup(value)};
    void *room = with_room(plan->metadata, plan->metadata_count, &plan->metadata_capacity, sizeof pair);
    if (room != NULL)
        plan->metadata = room;
    if (room == NULL || pair.key == NULL || pair.value == NULL) {
        free(pair.key);
        free(pair.value);
        return error_memory(err, strlen(key) + strlen(value), "metadata");
    }
    plan->metadata[plan->metadata_count++] = pair;
    return 0;
}

void safetensors_plan_free(struct safetensors_plan *plan)
{
    for (int64_t i = 0; i < plan->count; i++)
        free(plan->tensors[i].name);
    for (int64_t i = 0; i < plan->metadata_count; i++) {
        free(plan->metadata[i].key);
        free(plan->metadata[i].value);
    }
    free(plan->tensors);
    free(plan->metadata);
    *plan = (struct safetensors_plan){0};
}

/* ---- The header ---- */

static void put_metadata(const struct safetensors_plan *plan, struct strbuf *out)
{
    strbuf_puts(out, "\"__metadata__\":{");
    for (int64_t i = 0; i < plan->metadata_count; i++) {
        const struct safetensors_planned_pair *pair = &plan->metadata[i];
        strbuf_puts(out, i > 0 ? "," : "");
        json_quote(out, pair->key, strlen(pair->key));
        strbuf_puts(out, ":");
        json_quote(out, pair->value, strlen(pair->value));
    }
    strbuf_puts(out, "}");
}

static void put_tensor(const struct safetensors_planned *t, struct strbuf *out)
{
    json_quote(out, t->name, strlen(t->name));
    strbuf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_info(t->dtype)->safetensors);
    for (int i = 0; i < t->rank; i++)
        strbuf_printf(out, "%s%" PRId64, i > 0 ? "," : "", t->shape[i]);
    strbuf_printf(out, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->begin, t->end);
}

/* The header with its padding, without its length. */
static void put_header(const struct safetensors_plan *plan, struct strbuf *out)
{
    strbuf_puts(out, "{");
    if (plan->metadata_count > 0)
        put_metadata(plan, out);
    for (int64_t i = 0; i < plan->count; i++) {
        strbuf_puts(out, i > 0 || plan->metadata_count > 0 ? "," : "");
        put_tensor(&plan->tensors[i], out);
    }
    strbuf_puts(out, "}");
    while (!out->failed && out->length % HEADER_ALIGNMENT != 0)
        strbuf_puts(out, " ");
}

int64_t safetensors_plan_bytes(const struct safetensors_plan *plan)
{
    struct strbuf header = {0};
    put_header(plan, &header);
    int64_t bytes = header.failed ? -1 : (int64_t)header.length + 8 + plan->data_bytes;
    strbuf_free(&header);
    return bytes;
}

static int compare_strings(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static int refuse_duplicates(const struct safetensors_plan *plan, const char *path, struct error *err)
{
    size_t n = (size_t)plan->count;
    const char **names = malloc((n + 1) * sizeof *names);
    int status = 0;
    if (names == NULL)
        return error_memory(err, (n + 1) * sizeof *names, "tensor names");
    for (size_t i = 0; i < n; i++)
        names[i] = plan->tensors[i].name;
    qsort(names, n, sizeof *names, compare_strings);
    for (size_t i = 1; i < n && status == 0; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = error_set(err, ERROR_INPUT, path, NULL, "tensor \"%s\" is declared twice", names[i]);
    free(names);
    return status;
}

int safetensors_plan_header(const struct safetensors_plan *plan, const char *path, struct strbuf *out,
                            struct error *err)
{
    uint64_t length = 0;
    if (refuse_duplicates(plan, path, err) != 0)
        return -1;
    strbuf_append(out, &length, sizeof length);
    put_header(plan, out);
    if (out->failed)
        return error_memory(err, out->length, "a safetensors header");
    length = out->length - sizeof length;
    if (length > HEADER_LIMIT)
        return error_set(err, ERROR_INPUT, path, NULL,
                         "its header would have %" PRIu64 " bytes, at most %d are allowed", length,
                         HEADER_LIMIT);
    memcpy(out->data, &length, sizeof length);
    return 0;
}

/* ---- Writing ---- */

int safetensors_writer_open(struct safetensors_writer *w, const char *path,
                            const struct safetensors_plan *plan, struct error *err)
{
    struct strbuf header = {0};
    *w = (struct safetensors_writer){.plan = plan};
    int status = safetensors_plan_header(plan, path, &header, err);
    if (status == 0)
        status = file_writer_open(&w->file, path, err);
    if (status == 0 && file_writer_write(&w->file, header.data, header.length, err) != 0) {
        file_writer_abort(&w->file);
        status = -1;
    }
    strbuf_free(&header);
    if (status != 0)
        *w = (struct safetensors_writer){0};
    return status;
}

int safetensors_writer_write(struct safetensors_writer *w, const void *data, size_t n, struct error *err)
{
    int64_t left = w->plan->data_bytes - w->written;
    if (n > (uint64_t)left)
        return error_set(err, ERROR_RUN, w->file.path, NULL,
                         "%zu more bytes of tensor data than the header declares", n - (size_t)left);
    if (file_writer_write(&w->file, data, n, err) != 0)
        return -1;
    w->written += (int64_t)n;
    return 0;
}

int64_t safetensors_writer_at(const struct safetensors_writer *w)
{
    int64_t low = 0, high = w->plan->count;
    while (low < high) { /* the first tensor that ends after `written` */
        int64_t middle = low + (high - low) / 2;
        if (w->plan->tensors[middle].end > w->written)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int safetensors_writer_commit(struct safetensors_writer *w, int64_t *size, uint64_t *hash, struct error *err)
{
    if (w->written != w->plan->data_bytes) {
        const struct safetensors_planned *t = &w->plan->tensors[safetensors_writer_at(w)];
        error_set(err, ERROR_RUN, w->file.path, NULL,
                  "%" PRId64 " bytes of tensor data were not written, from tensor \"%s\" on",
                  w->plan->data_bytes - w->written, t->name);
        safetensors_writer_abort(w);
        return -1;
    }
    if (size != NULL)
        *size = w->file.bytes;
    if (hash != NULL)
        *hash = file_writer_hash(&w->file);
    int status = file_writer_commit(&w->file, err);
    *w = (struct safetensors_writer){0};
    return status;
}

void safetensors_writer_abort(struct safetensors_writer *w)
{
    file_writer_abort(&w->file);
    *w = (struct safetensors_writer){0};
}
