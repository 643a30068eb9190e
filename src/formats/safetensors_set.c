#include "formats/safetensors.h"

#include "formats/json.h"

#include <stdlib.h>
#include <string.h>

static const char single_suffix[] = ".safetensors", index_suffix[] = ".safetensors.index.json";

/* More shards than any model has; an index that asks for more is wrong. */
enum { SHARD_LIMIT = 10000 };

static int compare_strings(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static int compare_tensors(const void *left, const void *right)
{
    const struct safetensors_tensor *a = *(const struct safetensors_tensor *const *)left;
    const struct safetensors_tensor *b = *(const struct safetensors_tensor *const *)right;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : strcmp(a->path, b->path);
}

/* ---- The index ---- */

static int check_index(const struct json_document *index, json_t **map, struct error *err)
{
    const char *key;
    json_t *value;
    if (json_get_object(index, index->root, "weight_map", map, err) != 0)
        return -1;
    json_object_foreach(
        index->root, key,
        value) if (strcmp(key, "weight_map") != 0 &&
                   strcmp(key, "metadata") !=
                       0) return json_error_at(index, index->root, key, err, "remove it",
                                               "an index has the keys metadata and weight_map alone");
    if (json_object_size(*map) == 0)
        return json_error_at(index, *map, NULL, err, NULL, "it lists no tensor");
    json_object_foreach(*map, key, value)
    {
        const char *shard;
        if (json_get_string(index, *map, key, &shard, err) != 0)
            return -1;
        if (shard[0] == '\0' || strchr(shard, '/') != NULL || strcmp(shard, ".") == 0 ||
            strcmp(shard, "..") == 0)
            return json_error_at(index, *map, key, err, "write the name of a file in the same directory",
                                 "\"%s\" is no plain file name", shard);
    }
    return 0;
}

/* The distinct shard names, sorted, in a malloc'd array; the names belong to the map. */
static int distinct_shards(const struct json_document *index, json_t *map, const char ***names, size_t *count,
                           struct error *err)
{
    const char *key;
    json_t *value;
    size_t n = 0, kept = 0;
    const char **all = malloc((json_object_size(map) + 1) * sizeof *all);
    if (all == NULL)
        return error_memory(err, (json_object_size(map) + 1) * sizeof *all, "shard names");
    json_object_foreach(map, key, value) all[n++] = json_string_value(value);
    qsort(all, n, sizeof *all, compare_strings);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(all[i], all[kept - 1]) != 0)
            all[kept++] = all[i];
    if (kept > SHARD_LIMIT) {
        free(all);
        return json_error_at(index, map, NULL, err, NULL, "it names %zu files, at most %d are allowed", kept,
                             SHARD_LIMIT);
    }
    *names = all;
    *count = kept;
    return 0;
}

/* ---- Files ---- */

static int open_file(struct safetensors_set *set, const char *name, struct error *err)
{
    char *path = file_join(set->directory, name);
    if (path == NULL)
        return error_memory(err, strlen(name), "a file name");
    int status = 0;
    if (set->indexed && !file_exists(path))
        status = error_set(err, ERROR_INPUT, path, "fetch the model again",
                           "this file is missing, and the index lists tensors in it");
    else
        status = safetensors_open(&set->files[set->file_count], path, err);
    free(path);
    if (status == 0)
        set->file_count++;
    return status;
}

static int open_shards(struct safetensors_set *set, const char **names, size_t count, struct error *err)
{
    set->files = calloc(count + 1, sizeof *set->files);
    if (set->files == NULL)
        return error_memory(err, (count + 1) * sizeof *set->files, "shards");
    for (size_t i = 0; i < count; i++)
        if (open_file(set, names[i], err) != 0)
            return -1;
    return 0;
}

/* Gathers the tensors of all files, sorted by name; a name in two files is refused. */
static int gather_tensors(struct safetensors_set *set, struct error *err)
{
    size_t total = 0;
    for (int64_t i = 0; i < set->file_count; i++)
        total += (size_t)set->files[i].count;
    set->tensors = malloc((total + 1) * sizeof *set->tensors);
    if (set->tensors == NULL)
        return error_memory(err, (total + 1) * sizeof *set->tensors, "tensor names");
    for (int64_t i = 0; i < set->file_count; i++) {
        for (int64_t k = 0; k < set->files[i].count; k++)
            set->tensors[set->count++] = &set->files[i].tensors[k];
        set->data_bytes += set->files[i].data_bytes;
    }
    qsort(set->tensors, total, sizeof *set->tensors, compare_tensors);
    for (int64_t i = 1; i < set->count; i++) {
        const struct safetensors_tensor *a = set->tensors[i - 1], *b = set->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return error_set(err, ERROR_INPUT, b->path, "keep it in one of them",
                             "tensor \"%s\" is also in %s", b->name, a->path);
    }
    return 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Index and shards must agree, tensor by tensor. */
static int compare_with_index(const struct safetensors_set *set, const struct json_document *index,
                              json_t *map, struct error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const struct safetensors_tensor *t = safetensors_set_find(set, name);
        const char *shard = json_string_value(value);
        if (t == NULL || strcmp(base_name(t->path), shard) != 0)
            return json_error_at(index, map, name, err, "fetch the model again", "this tensor is not in %s",
                                 shard);
    }
    for (int64_t i = 0; i < set->count; i++)
        if (json_object_get(map, set->tensors[i]->name) == NULL)
            return error_set(err, ERROR_INPUT, set->tensors[i]->path, "fetch the model again",
                             "tensor \"%s\" is not listed in the index", set->tensors[i]->name);
    return 0;
}

static int open_indexed(struct safetensors_set *set, const char *index_path, struct error *err)
{
    struct json_document index;
    json_t *map;
    const char **shards = NULL;
    size_t count = 0;
    if (json_open(&index, index_path, JSON_FILE_LIMIT, err) != 0)
        return -1;
    set->indexed = true;
    int status = check_index(&index, &map, err);
    if (status == 0)
        status = distinct_shards(&index, map, &shards, &count, err);
    if (status == 0)
        status = open_shards(set, shards, count, err);
    if (status == 0)
        status = gather_tensors(set, err);
    if (status == 0)
        status = compare_with_index(set, &index, map, err);
    free(shards);
    json_close(&index);
    return status;
}

static int open_single(struct safetensors_set *set, const char *name, struct error *err)
{
    return open_shards(set, &name, 1, err) != 0 || gather_tensors(set, err) != 0 ? -1 : 0;
}

static int open_either(struct safetensors_set *set, const char *single, const char *index, struct error *err)
{
    bool has_single = file_exists(single), has_index = file_exists(index);
    if (has_single && has_index)
        return error_set(err, ERROR_INPUT, set->directory, "remove the one that is not meant",
                         "it holds both %s and %s", base_name(single), base_name(index));
    if (has_single)
        return open_single(set, base_name(single), err);
    if (has_index)
        return open_indexed(set, index, err);
    if (!file_is_directory(set->directory))
        return error_set(err, ERROR_INPUT, set->directory,
                         "give the directory that holds config.json and the weights",
                         "there is no such directory");
    return error_set(err, ERROR_INPUT, set->directory,
                     "give a model directory whose weights are stored as safetensors",
                     "it holds neither %s nor %s", base_name(single), base_name(index));
}

int safetensors_set_open(struct safetensors_set *out, const char *directory, struct error *err)
{
    return safetensors_set_open_named(out, directory, "model", err);
}

int safetensors_set_open_named(struct safetensors_set *out, const char *directory, const char *stem,
                               struct error *err)
{
    *out = (struct safetensors_set){.directory = strdup(directory)};
    char *single = NULL, *index = NULL;
    int status = -1;
    if (out->directory == NULL || asprintf(&single, "%s/%s%s", directory, stem, single_suffix) < 0 ||
        asprintf(&index, "%s/%s%s", directory, stem, index_suffix) < 0)
        error_memory(err, strlen(directory), "a file name");
    else
        status = open_either(out, single, index, err);
    free(single);
    free(index);
    if (status != 0)
        safetensors_set_close(out);
    return status;
}

void safetensors_set_close(struct safetensors_set *set)
{
    for (int64_t i = 0; i < set->file_count; i++)
        safetensors_close(&set->files[i]);
    free(set->files);
    free(set->tensors);
    free(set->directory);
    *set = (struct safetensors_set){0};
}

const struct safetensors_tensor *safetensors_set_find(const struct safetensors_set *set, const char *name)
{
    int64_t low = 0, high = set->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, set->tensors[middle]->name);
        if (order == 0)
            return set->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
