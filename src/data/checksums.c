#include "data/checksums.h"
#include "base/clock.h"
#include "base/file.h"
#include "data/manifest.h"
#include "formats/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int file_identify(const char *path, struct file_identity *out, struct error *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        error_errno(err, errno, path, "read the file");
        if (err)
            err->kind = ERROR_INPUT;
        return -1;
    }
    const int64_t second = 1000000000;
    out->device = (int64_t)st.st_dev;
    out->inode = (int64_t)st.st_ino;
    out->size = (int64_t)st.st_size;
    out->mtime_ns = (int64_t)((uint64_t)st.st_mtim.tv_sec * (uint64_t)second + (uint64_t)st.st_mtim.tv_nsec);
    out->ctime_ns = (int64_t)((uint64_t)st.st_ctim.tv_sec * (uint64_t)second + (uint64_t)st.st_ctim.tv_nsec);
    return 0;
}

bool file_identity_equal(const struct file_identity *a, const struct file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct checksum_entry *)a)->path, ((const struct checksum_entry *)b)->path);
}

/* A new entry, or the one of this path made new. */
static int remember(struct checksum_record *record, struct checksum_entry *known, const char *path,
                    const struct file_identity *identity, uint64_t checksum, struct error *err)
{
    if (!known) {
        if (record->count == record->capacity) {
            int64_t capacity = record->capacity ? 2 * record->capacity : 64;
            struct checksum_entry *entries = realloc(record->entries, (size_t)capacity * sizeof *entries);
            if (!entries)
                return error_memory(err, (size_t)capacity * sizeof *entries, "the checksums of files");
            record->entries = entries;
            record->capacity = capacity;
        }
        known = &record->entries[record->count];
        known->path = strdup(path);
        if (!known->path)
            return error_memory(err, strlen(path) + 1, "the checksums of files");
        record->count++;
    }
    known->identity = *identity;
    known->checksum = checksum;
    return 0;
}

static int read_entry(struct checksum_record *record, const struct json_document *doc, const json_t *item,
                      struct error *err)
{
    struct file_identity id;
    const char *path;
    uint64_t checksum;
    if (json_get_string(doc, item, "path", &path, err) != 0 ||
        json_get_int(doc, item, "device", INT64_MIN, INT64_MAX, &id.device, err) != 0 ||
        json_get_int(doc, item, "inode", INT64_MIN, INT64_MAX, &id.inode, err) != 0 ||
        json_get_int(doc, item, "size", 0, INT64_MAX, &id.size, err) != 0 ||
        json_get_int(doc, item, "mtime_ns", INT64_MIN, INT64_MAX, &id.mtime_ns, err) != 0 ||
        json_get_int(doc, item, "ctime_ns", INT64_MIN, INT64_MAX, &id.ctime_ns, err) != 0 ||
        manifest_get_hex(doc, item, "checksum", &checksum, err) != 0)
        return -1;
    return remember(record, NULL, path, &id, checksum, err);
}

static void forget_entries(struct checksum_record *record)
{
    for (int64_t i = 0; i < record->count; i++)
        free(record->entries[i].path);
    record->count = record->sorted = 0;
}

int checksums_load(struct checksum_record *record, const char *directory, struct error *err)
{
    memset(record, 0, sizeof *record);
    record->settled_seconds = 3.0; /* coarser than the clock of any file system in use: FAT counts in 2 s */
    record->path = file_join(directory, "checksums.json");
    if (!record->path)
        return error_memory(err, strlen(directory), "the checksums of files");
    if (!file_exists(record->path))
        return 0;
    struct json_document doc;
    struct error ignored;
    json_t *list;
    if (json_open(&doc, record->path, JSON_FILE_LIMIT, &ignored) != 0)
        return 0;
    if (json_get_array(&doc, doc.root, "files", &list, &ignored) == 0) {
        size_t i;
        json_t *item;
        json_array_foreach(list, i, item)
        {
            if (read_entry(record, &doc, item, &ignored) != 0) {
                forget_entries(record);
                break;
            }
        }
    }
    json_close(&doc);
    if (record->count > 0)
        qsort(record->entries, (size_t)record->count, sizeof *record->entries, compare_entries);
    record->sorted = record->count;
    return 0;
}

int checksums_save(struct checksum_record *record, struct error *err)
{
    if (!record->changed)
        return 0;
    if (record->count > 0)
        qsort(record->entries, (size_t)record->count, sizeof *record->entries, compare_entries);
    record->sorted = record->count;
    struct strbuf text = {0};
    struct json_writer w;
    json_writer_start(&w, &text, 1);
    json_write_object(&w, NULL);
    json_write_array(&w, "files");
    for (int64_t i = 0; i < record->count; i++) {
        const struct checksum_entry *e = &record->entries[i];
        if (!file_exists(e->path))
            continue;
        json_write_object(&w, NULL);
        json_write_string(&w, "path", e->path);
        json_write_int(&w, "device", e->identity.device);
        json_write_int(&w, "inode", e->identity.inode);
        json_write_int(&w, "size", e->identity.size);
        json_write_int(&w, "mtime_ns", e->identity.mtime_ns);
        json_write_int(&w, "ctime_ns", e->identity.ctime_ns);
        manifest_put_hex(&w, "checksum", e->checksum);
        json_write_end(&w);
    }
    json_write_end(&w);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    int result = text.failed ? error_memory(err, text.length, "the checksums of files")
                             : file_write_all(record->path, text.data, text.length, err);
    strbuf_free(&text);
    if (result == 0)
        record->changed = false;
    return result;
}

void checksums_free(struct checksum_record *record)
{
    forget_entries(record);
    free(record->entries);
    free(record->path);
    memset(record, 0, sizeof *record);
}

int checksums_of(struct checksum_record *record, const char *path, struct file_identity *identity,
                 uint64_t *checksum, struct error *err)
{
    if (file_identify(path, identity, err) != 0)
        return -1;
    struct checksum_entry wanted = {.path = (char *)(uintptr_t)path};
    struct checksum_entry *known = NULL;
    if (record->sorted > 0)
        known = bsearch(&wanted, record->entries, (size_t)record->sorted, sizeof wanted, compare_entries);
    if (known && file_identity_equal(&known->identity, identity)) {
        *checksum = known->checksum;
        return 0;
    }
    double now = clock_wall();
    int64_t bytes;
    struct file_identity after;
    if (file_hash(path, &bytes, checksum, err) != 0 || file_identify(path, &after, err) != 0)
        return -1;
    if (!file_identity_equal(identity, &after) || bytes != identity->size)
        return error_set(err, ERROR_RUN, path, "start again when it is complete",
                         "the file changed while it was read");
    int64_t newest = identity->mtime_ns > identity->ctime_ns ? identity->mtime_ns : identity->ctime_ns;
    if (now - (double)newest * 1e-9 < record->settled_seconds)
        return 0;
    record->changed = true;
    return remember(record, known, path, identity, *checksum, err);
}
