#include "data/reader.h"
#include "formats/json.h"
#include "formats/utf8.h"

#include <stdio.h>
#include <string.h>

/* The number of leading bytes that are valid UTF-8: n when all are. */
static size_t utf8_valid_prefix(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= sizeof eight) {
            memcpy(&eight, text + i, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        size_t length = utf8_sequence(text + i, n - i);
        if (length == 0)
            return i;
        i += length;
    }
    return n;
}

/* "path:line", or the path alone for a whole file. */
static void item_place(const struct text_item *item, char out[512])
{
    if (item->line > 0)
        snprintf(out, 512, "%s:%lld", item->path, (long long)item->line);
    else
        snprintf(out, 512, "%s", item->path);
}

static const char skip_remedy[] =
    "mend it, or leave such documents out, counted (data.bad_lines: skip in a run file, --bad-lines skip)";

static int invalid_utf8(const struct text_item *item, size_t at, struct error *err)
{
    char place[512];
    item_place(item, place);
    const unsigned char *s = (const unsigned char *)item->data;
    if (item->line <= 1 && item->size >= 2 &&
        ((s[0] == 0xff && s[1] == 0xfe) || (s[0] == 0xfe && s[1] == 0xff)))
        return error_set(err, ERROR_INPUT, place, "convert it with iconv -f UTF-16 -t UTF-8",
                         "the file is UTF-16, not UTF-8");
    return error_set(err, ERROR_INPUT, place, skip_remedy, "byte %zu (0x%02x) is not valid UTF-8", at + 1,
                     (unsigned)s[at]);
}

int document_extract(const struct text_item *item, const char *field, struct document *out,
                     enum data_reason *reason, struct error *err)
{
    memset(out, 0, sizeof *out);
    *reason = DATA_REASONS;
    size_t valid = utf8_valid_prefix(item->data, item->size);
    if (valid != item->size) {
        *reason = DATA_INVALID_UTF8;
        return invalid_utf8(item, valid, err);
    }
    out->path = item->path;
    out->file = item->file;
    out->line = item->line;
    if (item->line == 0) {
        out->text = item->data;
        out->size = item->size;
        return 0;
    }

    struct error local;
    json_t *root;
    if (json_parse(item->path, item->line, item->data, item->size, &root, &local) != 0) {
        if (local.kind != ERROR_INPUT)
            return error_set(err, local.kind, local.where, local.remedy, "%s", local.what);
        *reason = DATA_BAD_JSON;
        return error_set(err, ERROR_INPUT, local.where, skip_remedy, "not a line of JSON: %s", local.what);
    }
    char place[512];
    item_place(item, place);
    json_t *value = json_is_object(root) ? json_object_get(root, field) : NULL;
    if (value && json_is_string(value)) {
        out->text = json_string_value(value);
        out->size = json_string_length(value);
        out->owner = root;
        return 0;
    }
    if (!json_is_object(root)) {
        *reason = DATA_NOT_OBJECT;
        error_set(err, ERROR_INPUT, place, skip_remedy, "expected an object like {\"%s\": \"…\"}, found %s",
                  field, json_kind_name(root));
    } else if (!value) {
        *reason = DATA_MISSING_FIELD;
        error_set(err, ERROR_INPUT, place,
                  "name the field that holds the text (data.text in a run file, --text), or leave such "
                  "documents out, counted "
                  "(data.bad_lines: skip, --bad-lines skip)",
                  "the object has no field \"%s\"", field);
    } else {
        *reason = DATA_NOT_STRING;
        error_set(err, ERROR_INPUT, place, skip_remedy, "the field \"%s\" holds %s, where a string is needed",
                  field, json_kind_name(value));
    }
    json_decref(root);
    return -1;
}

void document_free(struct document *document)
{
    json_decref(document->owner);
    memset(document, 0, sizeof *document);
}

int document_next(struct text_reader *reader, const char *field, enum data_bad_lines bad_lines,
                  struct data_summary *summary, struct document *out, struct error *err)
{
    struct text_item item;
    int got;
    memset(out, 0, sizeof *out);
    while ((got = text_reader_next(reader, &item, err)) == 1) {
        enum data_reason reason;
        summary->blank_lines = text_reader_blank_lines(reader);
        if (document_extract(&item, field, out, &reason, err) == 0) {
            summary->documents++;
            summary->text_bytes += (int64_t)out->size;
            return 1;
        }
        if (reason == DATA_REASONS || bad_lines != DATA_BAD_LINES_SKIP)
            return -1;
        data_summary_drop(summary, reason, item.path, item.line);
    }
    summary->blank_lines = text_reader_blank_lines(reader);
    return got;
}
