/* Finding, verifying and loading checkpoints. */
#include "train/checkpoint_files.h"

#include "formats/json.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int manifest_list_add(struct manifest_list *list, const char *name, int64_t bytes, uint64_t hash,
                      struct error *err)
{
    if (strlen(name) >= sizeof list->items->name)
        return error_set(err, ERROR_INPUT, NULL, NULL, "the file name '%s' is too long for a manifest", name);
    if (list->count == list->capacity) {
        int64_t grown = list->capacity ? 2 * list->capacity : 16;
        void *items = realloc(list->items, (size_t)grown * sizeof *list->items);
        if (!items)
            return error_memory(err, (size_t)grown * sizeof *list->items, "a manifest");
        list->items = items;
        list->capacity = grown;
    }
    struct manifest_entry *entry = &list->items[list->count++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->bytes = bytes;
    entry->hash = hash;
    return 0;
}

void manifest_list_free(struct manifest_list *list)
{
    free(list->items);
    *list = (struct manifest_list){0};
}

int manifest_list_write(const struct manifest_list *list, const char *directory, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    char hash[20];
    json_writer_start(&w, &text, 2);
    json_write_object(&w, NULL);
    json_write_int(&w, "version", CHECKPOINT_VERSION);
    json_write_array(&w, "files");
    for (int64_t i = 0; i < list->count; i++) {
        snprintf(hash, sizeof hash, "%016" PRIx64, list->items[i].hash);
        json_write_object(&w, NULL);
        json_write_string(&w, "name", list->items[i].name);
        json_write_int(&w, "bytes", list->items[i].bytes);
        json_write_string(&w, "xxh3", hash);
        json_write_end(&w);
    }
    json_write_end(&w);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    char *path = file_join(directory, "training/manifest.json");
    int status = text.failed || !path ? error_memory(err, text.length, "a manifest")
                                      : file_write_all(path, text.data, text.length, err);
    free(path);
    strbuf_free(&text);
    return status;
}

static int read_hex(const struct json_document *doc, const json_t *object, const char *key, uint64_t *out,
                    struct error *err)
{
    const char *text;
    if (json_get_string(doc, object, key, &text, err) != 0)
        return -1;
    *out = strtoull(text, NULL, 16);
    if (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16)
        return json_error_at(doc, object, key, err, "take another checkpoint",
                             "expected 16 hexadecimal digits");
    return 0;
}

static int check_version(const struct json_document *doc, struct error *err)
{
    int64_t version;
    if (json_get_int(doc, doc->root, "version", 1, INT64_MAX, &version, err) != 0)
        return -1;
    if (version > CHECKPOINT_VERSION)
        return json_error_at(doc, doc->root, "version", err, "use a newer tercet",
                             "the checkpoint has version %lld, this program knows %d", (long long)version,
                             CHECKPOINT_VERSION);
    return 0;
}

int manifest_list_read(struct manifest_list *list, const char *directory, struct error *err)
{
    *list = (struct manifest_list){0};
    char *path = file_join(directory, "training/manifest.json");
    struct json_document doc = {0};
    json_t *files;
    int status = path ? json_open(&doc, path, JSON_FILE_LIMIT, err) : error_memory(err, 0, "a path");
    if (status == 0)
        status = check_version(&doc, err);
    if (status == 0)
        status = json_get_array(&doc, doc.root, "files", &files, err);
    /* With no names in it, it would vouch for whatever is there. */
    if (status == 0 && json_array_size(files) == 0)
        status = json_error_at(&doc, doc.root, "files", err, "take another checkpoint",
                               "the manifest lists no files");
    for (size_t i = 0; status == 0 && i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i);
        const char *name;
        int64_t bytes;
        uint64_t hash;
        if (json_get_string(&doc, entry, "name", &name, err) != 0 ||
            json_get_int(&doc, entry, "bytes", 0, INT64_MAX, &bytes, err) != 0 ||
            read_hex(&doc, entry, "xxh3", &hash, err) != 0)
            status = -1;
        else if (name[0] == '/' || strstr(name, ".."))
            status = json_error_at(&doc, entry, "name", err, NULL, "a name that leaves the checkpoint");
        else if (strlen(name) >= sizeof list->items->name)
            status =
                json_error_at(&doc, entry, "name", err, "take another checkpoint",
                              "a name of %zu bytes, longer than any file's of a checkpoint", strlen(name));
        else
            status = manifest_list_add(list, name, bytes, hash, err);
    }
    if (status != 0)
        manifest_list_free(list);
    json_close(&doc);
    free(path);
    return status;
}

int checkpoint_verify(const char *path, struct error *err)
{
    struct manifest_list list;
    if (manifest_list_read(&list, path, err) != 0)
        return -1;
    int status = 0;
    for (int64_t i = 0; i < list.count && status == 0; i++) {
        char *file = file_join(path, list.items[i].name);
        int64_t bytes;
        uint64_t hash;
        if (!file)
            status = error_memory(err, 0, "a path");
        else if (file_hash(file, &bytes, &hash, err) != 0)
            status = -1;
        else if (bytes != list.items[i].bytes)
            status = error_set(err, ERROR_INPUT, file, "take another checkpoint",
                               "the file has %lld bytes, the manifest says %lld", (long long)bytes,
                               (long long)list.items[i].bytes);
        else if (hash != list.items[i].hash)
            status = error_set(err, ERROR_INPUT, file, "take another checkpoint",
                               "the contents do not match the manifest's checksum");
        free(file);
    }
    manifest_list_free(&list);
    return status;
}

/* "checkpoint-000500" alone, with nothing after the number: 500; else -1. */
static int64_t step_of(const char *name)
{
    static const char prefix[] = "checkpoint-";
    char *end;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || name[sizeof prefix - 1] < '0' ||
        name[sizeof prefix - 1] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + sizeof prefix - 1, &end, 10);
    return *end == '\0' && errno == 0 ? step : -1;
}

static int listing_add(struct checkpoint_listing *l, const char *output, const char *name, int64_t step,
                       struct error *err)
{
    char *path = file_join(output, name), *manifest = path ? file_join(path, "training/manifest.json") : NULL;
    if (!manifest) {
        free(path);
        return error_memory(err, 0, "a path");
    }
    bool complete = file_exists(manifest);
    free(manifest);
    if (!complete) {
        free(path);
        return 0;
    }
    if (l->count == l->capacity) {
        int64_t grown = l->capacity ? 2 * l->capacity : 8;
        void *items = realloc(l->items, (size_t)grown * sizeof *l->items);
        if (!items) {
            free(path);
            return error_memory(err, (size_t)grown * sizeof *l->items, "a list of checkpoints");
        }
        l->items = items;
        l->capacity = grown;
    }
    int64_t at = l->count++;
    for (; at > 0 && l->items[at - 1].step > step; at--)
        l->items[at] = l->items[at - 1];
    l->items[at].path = path;
    l->items[at].step = step;
    return 0;
}

int checkpoint_list(const char *output, struct checkpoint_listing *out, struct error *err)
{
    *out = (struct checkpoint_listing){0};
    DIR *directory = opendir(output);
    if (!directory)
        return errno == ENOENT ? 0 : error_errno(err, errno, output, "read the run's directory");
    const char *name;
    int status;
    while ((status = file_next_name(directory, output, &name, err)) == 0 && name) {
        int64_t step = step_of(name);
        if (step >= 0 && (status = listing_add(out, output, name, step, err)) != 0)
            break;
    }
    closedir(directory);
    if (status != 0)
        checkpoint_listing_free(out);
    return status;
}

void checkpoint_listing_free(struct checkpoint_listing *listing)
{
    for (int64_t i = 0; i < listing->count; i++)
        free(listing->items[i].path);
    free(listing->items);
    *listing = (struct checkpoint_listing){0};
}

int checkpoint_newest(const char *output, char **path, struct error *err)
{
    struct checkpoint_listing listing;
    *path = NULL;
    if (checkpoint_list(output, &listing, err) != 0)
        return -1;
    int status = 0;
    struct error damage;
    if (listing.count > 0 && checkpoint_verify(listing.items[listing.count - 1].path, &damage) != 0) {
        int64_t sound = listing.count - 2;
        while (sound >= 0 && checkpoint_verify(listing.items[sound].path, NULL) != 0)
            sound--;
        char remedy[512];
        if (sound >= 0)
            snprintf(remedy, sizeof remedy, "go on from the newest sound one with --resume=%.450s",
                     listing.items[sound].path);
        else
            snprintf(remedy, sizeof remedy, "no other checkpoint is sound: start again with --overwrite");
        status = error_set(err, ERROR_INPUT, damage.where, remedy, "the newest checkpoint is damaged: %.800s",
                           damage.what);
    } else if (listing.count > 0) {
        *path = strdup(listing.items[listing.count - 1].path);
        status = *path ? 0 : error_memory(err, 0, "a path");
    }
    checkpoint_listing_free(&listing);
    return status;
}

int checkpoint_read_state(const char *path, struct checkpoint_state *out, struct error *err)
{
    char *file = file_join(path, "training/state.json");
    struct json_document doc = {0};
    int status = -1;
    if (!file)
        error_memory(err, 0, "a path");
    else if (json_open(&doc, file, JSON_FILE_LIMIT, err) == 0 && check_version(&doc, err) == 0 &&
             json_get_int(&doc, doc.root, "step", 0, INT64_MAX, &out->step, err) == 0 &&
             json_get_int(&doc, doc.root, "tokens_seen", 0, INT64_MAX, &out->tokens_seen, err) == 0 &&
             read_hex(&doc, doc.root, "data_hash", &out->data_hash, err) == 0)
        status = read_hex(&doc, doc.root, "probe", &out->probe, err);
    json_close(&doc);
    free(file);
    return status;
}

int checkpoint_read_run(const char *path, char **text, struct error *err)
{
    char *file = file_join(path, "training/run.yaml");
    size_t n;
    int status = file ? file_read(file, JSON_FILE_LIMIT, text, &n, err) : error_memory(err, 0, "a path");
    free(file);
    return status;
}

/* training/STEM.safetensors, or its shards. */
static int load_states(struct engine *e, enum shard_kind kind, const char *path, const char *stem,
                       struct error *err)
{
    struct safetensors_set set = {0};
    char *training = file_join(path, "training");
    int status =
        training ? safetensors_set_open_named(&set, training, stem, err) : error_memory(err, 0, "a path");
    if (status == 0)
        status = weights_load(e, kind, &set, err);
    safetensors_set_close(&set);
    free(training);
    return status;
}

int checkpoint_load(struct engine *e, const char *path, const struct log *log, struct error *err)
{
    struct safetensors_set model = {0};
    char *master = file_join(path, "training/master.safetensors");
    char *index = file_join(path, "training/master.safetensors.index.json");
    if (!master || !index) {
        free(master);
        free(index);
        return error_memory(err, 0, "a path");
    }
    bool apart = file_exists(master) || file_exists(index);
    free(master);
    free(index);
    if (weights_open(&model, e->model, path, log, err) != 0)
        return -1;
    int status = apart ? load_states(e, SHARD_MASTER, path, "master", err)
                       : weights_load(e, SHARD_MASTER, &model, err);
    safetensors_set_close(&model);
    if (status == 0)
        status = load_states(e, SHARD_MOMENT1, path, "moment1", err);
    return status == 0 ? load_states(e, SHARD_MOMENT2, path, "moment2", err) : -1;
}
