#include "data/manifest.h"
#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "{\n  \"checksum\": \"";
enum { HEAD = sizeof head - 1, DIGITS = 16 };

const char *cache_part_name(enum cache_part part)
{
    static const char *const names[CACHE_PARTS] = {"tokens.u32", "ends.u64", "places.u64"};
    return names[part];
}

void manifest_put_hex(struct json_writer *w, const char *key, uint64_t value)
{
    char digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%016" PRIx64, value);
    json_write_string(w, key, digits);
}

int manifest_get_hex(const struct json_document *doc, const json_t *object, const char *key, uint64_t *out,
                     struct error *err)
{
    const char *text;
    if (json_get_string(doc, object, key, &text, err) != 0)
        return -1;
    char *end;
    if (strlen(text) != DIGITS || strspn(text, "0123456789abcdef") != DIGITS)
        return json_error_at(doc, object, key, err, NULL, "expected 16 hexadecimal digits");
    *out = strtoull(text, &end, 16);
    return 0;
}

static void put_made_of(struct json_writer *w, const struct cache_manifest *m,
                        const struct token_cache_options *options)
{
    json_write_object(w, "made_of");
    manifest_put_hex(w, "tokenizer", options->tokenizer_hash);
    json_write_string(w, "field", options->field);
    json_write_int(w, "bos", options->bos_id);
    json_write_int(w, "eos", options->eos_id);
    json_write_bool(w, "special_in_text", options->special_in_text);
    json_write_string(w, "bad_lines", options->bad_lines == DATA_BAD_LINES_SKIP ? "skip" : "error");
    json_write_array(w, "files");
    for (int64_t i = 0; i < m->file_count; i++) {
        json_write_object(w, NULL);
        json_write_string(w, "path", m->files[i].path);
        json_write_int(w, "size", m->files[i].size);
        json_write_int(w, "mtime_ns", m->files[i].mtime_ns);
        manifest_put_hex(w, "checksum", m->files[i].checksum);
        json_write_end(w);
    }
    json_write_end(w);
    json_write_end(w);
}

static void put_summary(struct json_writer *w, const struct data_summary *s)
{
    json_write_object(w, "summary");
    json_write_int(w, "documents", s->documents);
    json_write_int(w, "text_bytes", s->text_bytes);
    json_write_int(w, "tokens", s->tokens);
    json_write_int(w, "blank_lines", s->blank_lines);
    json_write_object(w, "dropped");
    for (int i = 0; i < DATA_REASONS; i++) {
        json_write_object(w, data_reason_name((enum data_reason)i));
        json_write_int(w, "count", s->dropped[i].count);
        json_write_string(w, "first", s->dropped[i].first);
        json_write_end(w);
    }
    json_write_end(w);
    json_write_end(w);
}

int manifest_write(const char *directory, const struct cache_manifest *m,
                   const struct token_cache_options *options, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    json_writer_start(&w, &text, 2);
    json_write_object(&w, NULL);
    manifest_put_hex(&w, "checksum", 0);
    json_write_string(&w, "format", "tercet token cache");
    json_write_int(&w, "version", CACHE_VERSION);
    manifest_put_hex(&w, "key", m->key);
    json_write_int(&w, "max_id", m->max_id);
    for (int i = 0; i < CACHE_PARTS; i++) {
        json_write_object(&w, cache_part_name((enum cache_part)i));
        json_write_int(&w, "bytes", m->parts[i].bytes);
        manifest_put_hex(&w, "checksum", m->parts[i].checksum);
        json_write_end(&w);
    }
    put_summary(&w, &m->summary);
    put_made_of(&w, m, options);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    char *path = file_join(directory, "manifest.json");
    int result = -1;
    if (text.failed || !path) {
        error_memory(err, text.length, "the manifest of a token cache");
    } else {
        char digits[DIGITS + 1];
        snprintf(digits, sizeof digits, "%016" PRIx64,
                 hash_bytes(text.data + HEAD + DIGITS, text.length - HEAD - DIGITS, 0));
        memcpy(text.data + HEAD, digits, DIGITS);
        result = file_write_all(path, text.data, text.length, err);
    }
    free(path);
    strbuf_free(&text);
    return result;
}

static int get_files(const struct json_document *doc, struct cache_manifest *m, struct error *err)
{
    json_t *made_of, *list;
    if (json_get_object(doc, doc->root, "made_of", &made_of, err) != 0 ||
        json_get_array(doc, made_of, "files", &list, err) != 0)
        return -1;
    size_t n = json_array_size(list);
    m->files = calloc(n ? n : 1, sizeof *m->files);
    if (!m->files)
        return error_memory(err, n * sizeof *m->files, "the manifest of a token cache");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        struct manifest_file *f = &m->files[i];
        const char *path;
        if (json_get_string(doc, item, "path", &path, err) != 0 ||
            json_get_int(doc, item, "size", 0, INT64_MAX, &f->size, err) != 0 ||
            json_get_int(doc, item, "mtime_ns", INT64_MIN, INT64_MAX, &f->mtime_ns, err) != 0 ||
            manifest_get_hex(doc, item, "checksum", &f->checksum, err) != 0)
            return -1;
        f->path = strdup(path);
        if (!f->path)
            return error_memory(err, strlen(path) + 1, "the manifest of a token cache");
        m->file_count++;
    }
    return 0;
}

static int get_summary(const struct json_document *doc, struct data_summary *s, struct error *err)
{
    json_t *summary, *dropped;
    if (json_get_object(doc, doc->root, "summary", &summary, err) != 0 ||
        json_get_int(doc, summary, "documents", 1, INT64_MAX / 8, &s->documents, err) != 0 ||
        json_get_int(doc, summary, "text_bytes", 0, INT64_MAX, &s->text_bytes, err) != 0 ||
        json_get_int(doc, summary, "tokens", 1, INT64_MAX / 8, &s->tokens, err) != 0 ||
        json_get_int(doc, summary, "blank_lines", 0, INT64_MAX, &s->blank_lines, err) != 0 ||
        json_get_object(doc, summary, "dropped", &dropped, err) != 0)
        return -1;
    for (int i = 0; i < DATA_REASONS; i++) {
        json_t *reason;
        const char *first;
        if (json_get_object(doc, dropped, data_reason_name((enum data_reason)i), &reason, err) != 0 ||
            json_get_int(doc, reason, "count", 0, INT64_MAX, &s->dropped[i].count, err) != 0 ||
            json_get_string(doc, reason, "first", &first, err) != 0)
            return -1;
        snprintf(s->dropped[i].first, sizeof s->dropped[i].first, "%s", first);
    }
    return 0;
}

static int get_all(const struct json_document *doc, struct cache_manifest *m, struct error *err)
{
    int64_t version;
    if (json_get_int(doc, doc->root, "version", CACHE_VERSION, CACHE_VERSION, &version, err) != 0 ||
        manifest_get_hex(doc, doc->root, "key", &m->key, err) != 0 ||
        json_get_int(doc, doc->root, "max_id", 0, UINT32_MAX, &m->max_id, err) != 0)
        return -1;
    for (int i = 0; i < CACHE_PARTS; i++) {
        json_t *part;
        if (json_get_object(doc, doc->root, cache_part_name((enum cache_part)i), &part, err) != 0 ||
            json_get_int(doc, part, "bytes", 0, INT64_MAX, &m->parts[i].bytes, err) != 0 ||
            manifest_get_hex(doc, part, "checksum", &m->parts[i].checksum, err) != 0)
            return -1;
    }
    if (get_summary(doc, &m->summary, err) != 0 || get_files(doc, m, err) != 0)
        return -1;
    m->summary.files = m->file_count;
    return 0;
}

/* Whether the text begins with the checksum of the rest. */
static bool is_sound(const char *text, size_t size)
{
    if (size < HEAD + DIGITS || memcmp(text, head, HEAD) != 0)
        return false;
    char digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%016" PRIx64, hash_bytes(text + HEAD + DIGITS, size - HEAD - DIGITS, 0));
    return memcmp(text + HEAD, digits, DIGITS) == 0;
}

int manifest_read(const char *directory, struct cache_manifest *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    char *path = file_join(directory, "manifest.json");
    if (!path)
        return error_memory(err, strlen(directory), "the manifest of a token cache");
    char *text = NULL;
    size_t size;
    struct json_document doc = {0};
    int result = file_read(path, JSON_FILE_LIMIT, &text, &size, err);
    if (result == 0 && !is_sound(text, size))
        result = error_set(err, ERROR_INPUT, path, "delete the cache: the next run makes it anew",
                           "the manifest is damaged: its checksum does not match");
    if (result == 0)
        result = json_open_text(&doc, path, text, size, err);
    if (result == 0)
        result = get_all(&doc, out, err);
    json_close(&doc);
    free(text);
    free(path);
    if (result != 0)
        manifest_free(out);
    return result;
}

void manifest_free(struct cache_manifest *m)
{
    for (int64_t i = 0; i < m->file_count; i++)
        free(m->files[i].path);
    free(m->files);
    m->files = NULL;
    m->file_count = 0;
}
