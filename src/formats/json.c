#include "formats/json.h"

#include "base/file.h"
#include "formats/json_load.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Parsing ---- */

/* Copies JSON text to `out` with ".0" after every whole number that does not fit into int64, so that
 * jansson reads it as a real. Columns behind one move by two; lines stay. */
static void widen_integers(const char *text, size_t size, struct strbuf *out)
{
    bool in_string = false;
    size_t copied = 0;
    for (size_t i = 0; i < size;) {
        char c = text[i];
        if (in_string) {
            if (c == '"')
                in_string = false;
            i += c == '\\' && i + 1 < size ? 2 : 1;
            continue;
        }
        if (c == '"')
            in_string = true;
        if (c != '-' && !isdigit((unsigned char)c)) {
            i++;
            continue;
        }
        char digits[32];
        size_t start = i;
        while (i < size && (isdigit((unsigned char)text[i]) || (text[i] != '\0' && strchr("+-.eE", text[i]))))
            i++;
        size_t n = i - start;
        bool whole = true;
        for (size_t k = 1; k < n; k++)
            whole = whole && isdigit((unsigned char)text[start + k]);
        if (!whole)
            continue;
        bool fits = n < sizeof digits;
        if (fits) {
            memcpy(digits, text + start, n);
            digits[n] = '\0';
            errno = 0;
            (void)strtoll(digits, NULL, 10);
            fits = errno != ERANGE;
        }
        if (!fits) {
            strbuf_append(out, text + copied, i - copied);
            strbuf_puts(out, ".0");
            copied = i;
        }
    }
    strbuf_append(out, text + copied, size - copied);
}

static int parse_failure(const char *name, int64_t line, const json_error_t *problem, struct error *err)
{
    char where[sizeof err->where];
    snprintf(where, sizeof where, "%s:%" PRId64 ":%d", name,
             line - 1 + (problem->line > 0 ? problem->line : 1), problem->column > 0 ? problem->column : 1);
    const char *remedy = json_error_code(problem) == json_error_invalid_utf8
                             ? "convert the text to UTF-8"
                             : "correct the text at this place";
    return error_set(err, ERROR_INPUT, where, remedy, "this is not valid JSON: %s", problem->text);
}

int json_parse(const char *name, int64_t line, const void *bytes, size_t size, json_t **out,
               struct error *err)
{
    *out = NULL;
    const char *text = bytes;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        size -= 3;
    }
    size_t blank = 0;
    while (blank < size && text[blank] != '\0' && strchr(" \t\r\n", text[blank]))
        blank++;
    if (blank == size) {
        char where[sizeof err->where];
        snprintf(where, sizeof where, "%s:%" PRId64, name, line);
        return error_set(err, ERROR_INPUT, where, NULL, "expected a JSON value, found nothing");
    }
    json_error_t problem;
    bool no_memory;
    *out = json_load(text, size, &no_memory, &problem);
    if (*out == NULL && !no_memory && json_error_code(&problem) == json_error_numeric_overflow) {
        struct strbuf wide = {0};
        widen_integers(text, size, &wide);
        if (wide.failed) {
            strbuf_free(&wide);
            return error_memory(err, size, "JSON text");
        }
        *out = json_load(wide.data, wide.length, &no_memory, &problem);
        strbuf_free(&wide);
    }
    if (no_memory)
        return error_set(err, ERROR_RUN, name, "free some memory, or ask for less",
                         "cannot allocate memory for the JSON tree");
    return *out != NULL ? 0 : parse_failure(name, line, &problem, err);
}

static int document_finish(struct json_document *doc, const char *name, struct error *err)
{
    doc->name = strdup(name);
    if (doc->name == NULL) {
        json_close(doc);
        return error_memory(err, strlen(name) + 1, "a file name");
    }
    if (json_parse(name, 1, doc->text, doc->size, &doc->root, err) != 0) {
        json_close(doc);
        return -1;
    }
    return 0;
}

int json_open(struct json_document *doc, const char *path, size_t limit, struct error *err)
{
    *doc = (struct json_document){0};
    if (file_read(path, limit, &doc->text, &doc->size, err) != 0) {
        *doc = (struct json_document){0};
        return -1;
    }
    return document_finish(doc, path, err);
}

int json_open_text(struct json_document *doc, const char *name, const void *bytes, size_t size,
                   struct error *err)
{
    *doc = (struct json_document){.text = malloc(size + 1), .size = size};
    if (doc->text == NULL)
        return error_memory(err, size, "JSON text");
    if (size > 0)
        memcpy(doc->text, bytes, size);
    doc->text[size] = '\0';
    return document_finish(doc, name, err);
}

void json_close(struct json_document *doc)
{
    json_decref(doc->root);
    free(doc->name);
    free(doc->text);
    *doc = (struct json_document){0};
}

/* ---- Places ----
 *
 * jansson keeps no positions, but it keeps members in the order of the text. So the place of a value is
 * found, when a message needs it, by walking text and tree side by side until the tree's walk comes to
 * the container in question. */

enum { NO_INDEX = -1 };

struct walk {
    const char *p, *end;
    int64_t line;
    const json_t *target; /* the container */
    const char *key;      /* its member, or NULL */
    int64_t index;        /* its element, or NO_INDEX */
    int64_t found_line;
    char path[400];
};

static void walk_char(struct walk *w)
{
    if (w->p < w->end && *w->p++ == '\n')
        w->line++;
}

static void walk_space(struct walk *w)
{
    while (w->p < w->end && *w->p != '\0' && strchr(" \t\r\n,:", *w->p))
        walk_char(w);
}

static void walk_string(struct walk *w)
{
    walk_char(w);
    while (w->p < w->end && *w->p != '"') {
        if (*w->p == '\\')
            walk_char(w);
        walk_char(w);
    }
    walk_char(w);
}

static void path_key(struct walk *w, size_t length, const char *key)
{
    snprintf(w->path + length, sizeof w->path - length, "%s%s", length > 0 ? "." : "", key);
}

static void path_index(struct walk *w, size_t length, size_t index)
{
    snprintf(w->path + length, sizeof w->path - length, "[%zu]", index);
}

static bool walk_value(struct walk *w, json_t *value);

static bool walk_object(struct walk *w, json_t *object)
{
    const char *key;
    json_t *member;
    size_t length = strlen(w->path);
    walk_char(w);
    json_object_foreach(object, key, member)
    {
        walk_space(w);
        path_key(w, length, key);
        if (object == w->target && w->key != NULL && strcmp(key, w->key) == 0) {
            w->found_line = w->line;
            return true;
        }
        walk_string(w);
        if (walk_value(w, member))
            return true;
        w->path[length] = '\0';
    }
    walk_space(w);
    walk_char(w);
    return false;
}

static bool walk_array(struct walk *w, json_t *array)
{
    size_t index;
    json_t *element;
    size_t length = strlen(w->path);
    walk_char(w);
    json_array_foreach(array, index, element)
    {
        walk_space(w);
        path_index(w, length, index);
        if (array == w->target && w->index == (int64_t)index) {
            w->found_line = w->line;
            return true;
        }
        if (walk_value(w, element))
            return true;
        w->path[length] = '\0';
    }
    walk_space(w);
    walk_char(w);
    return false;
}

/* True when the walk ended at its target, with found_line and path set. */
static bool walk_value(struct walk *w, json_t *value)
{
    walk_space(w);
    if (value == w->target && w->index == NO_INDEX &&
        (w->key == NULL || json_object_get(value, w->key) == NULL)) {
        w->found_line = w->line;
        if (w->key != NULL)
            path_key(w, strlen(w->path), w->key);
        return true;
    }
    if (json_is_object(value))
        return walk_object(w, value);
    if (json_is_array(value))
        return walk_array(w, value);
    if (json_is_string(value)) {
        walk_string(w);
        return false;
    }
    while (w->p < w->end && (*w->p == '\0' || !strchr(" \t\r\n,]}", *w->p)))
        walk_char(w);
    return false;
}

static bool walk_document(struct walk *w, const struct json_document *doc, const json_t *container,
                          const char *key, int64_t index)
{
    *w = (struct walk){.p = doc->text,
                       .end = doc->text + doc->size,
                       .line = 1,
                       .target = container,
                       .key = key,
                       .index = index};
    if (doc->size >= 3 && memcmp(doc->text, "\xef\xbb\xbf", 3) == 0)
        w->p += 3;
    return doc->root != NULL && walk_value(w, doc->root);
}

int64_t json_line_of(const struct json_document *doc, const json_t *container, const char *key)
{
    struct walk w;
    if (key != NULL && json_object_get(container, key) == NULL)
        return 0;
    return walk_document(&w, doc, container, key, NO_INDEX) ? w.found_line : 0;
}

static int place_error(const struct json_document *doc, const json_t *container, const char *key,
                       int64_t index, struct error *err, const char *remedy, const char *format,
                       va_list arguments)
{
    struct walk w;
    char where[sizeof err->where], what[sizeof err->what];
    vsnprintf(what, sizeof what, format, arguments);
    if (walk_document(&w, doc, container, key, index))
        snprintf(where, sizeof where, "%s:%" PRId64, doc->name, w.found_line);
    else
        snprintf(where, sizeof where, "%s", doc->name);
    return error_set(err, ERROR_INPUT, where, remedy, "%s%s%s", w.path, w.path[0] != '\0' ? ": " : "", what);
}

int json_error_at(const struct json_document *doc, const json_t *container, const char *key,
                  struct error *err, const char *remedy, const char *what_format, ...)
{
    va_list arguments;
    va_start(arguments, what_format);
    int status = place_error(doc, container, key, NO_INDEX, err, remedy, what_format, arguments);
    va_end(arguments);
    return status;
}

int json_error_at_index(const struct json_document *doc, const json_t *array, size_t index, struct error *err,
                        const char *remedy, const char *what_format, ...)
{
    va_list arguments;
    va_start(arguments, what_format);
    int status = place_error(doc, array, NULL, (int64_t)index, err, remedy, what_format, arguments);
    va_end(arguments);
    return status;
}

/* ---- Typed reading ---- */

const char *json_kind_name(const json_t *value)
{
    if (value == NULL)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

/* The member, or NULL with err filled when it is absent or `object` is none. */
static json_t *required(const struct json_document *doc, const json_t *object, const char *key,
                        const char *expected, struct error *err)
{
    if (!json_is_object(object)) {
        json_error_at(doc, object, NULL, err, NULL, "expected an object with the key \"%s\", found %s", key,
                      json_kind_name(object));
        return NULL;
    }
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        json_error_at(doc, object, key, err, NULL, "this key is missing (expected %s)", expected);
    return value;
}

static bool absent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_object(object) && (value == NULL || json_is_null(value));
}

static int mistyped(const struct json_document *doc, const json_t *object, const char *key,
                    const char *expected, const json_t *found, struct error *err)
{
    return json_error_at(doc, object, key, err, NULL, "expected %s, found %s", expected,
                         json_kind_name(found));
}

int json_get_int(const struct json_document *doc, const json_t *object, const char *key, int64_t min,
                 int64_t max, int64_t *out, struct error *err)
{
    const json_t *value = required(doc, object, key, "an integer", err);
    if (value == NULL)
        return -1;
    if (!json_is_integer(value))
        return mistyped(doc, object, key, "an integer", value, err);
    int64_t number = json_integer_value(value);
    if (number < min)
        return json_error_at(doc, object, key, err, NULL,
                             "expected an integer of at least %" PRId64 ", found %" PRId64, min, number);
    if (number > max)
        return json_error_at(doc, object, key, err, NULL,
                             "expected an integer of at most %" PRId64 ", found %" PRId64, max, number);
    *out = number;
    return 0;
}

int json_get_int_or(const struct json_document *doc, const json_t *object, const char *key, int64_t min,
                    int64_t max, int64_t fallback, int64_t *out, struct error *err)
{
    if (!absent(object, key))
        return json_get_int(doc, object, key, min, max, out, err);
    *out = fallback;
    return 0;
}

int json_get_double(const struct json_document *doc, const json_t *object, const char *key, double *out,
                    struct error *err)
{
    const json_t *value = required(doc, object, key, "a number", err);
    if (value == NULL)
        return -1;
    if (!json_is_number(value))
        return mistyped(doc, object, key, "a number", value, err);
    *out = json_number_value(value);
    return 0;
}

int json_get_double_or(const struct json_document *doc, const json_t *object, const char *key,
                       double fallback, double *out, struct error *err)
{
    if (!absent(object, key))
        return json_get_double(doc, object, key, out, err);
    *out = fallback;
    return 0;
}

int json_get_bool(const struct json_document *doc, const json_t *object, const char *key, bool *out,
                  struct error *err)
{
    const json_t *value = required(doc, object, key, "true or false", err);
    if (value == NULL)
        return -1;
    if (!json_is_boolean(value))
        return mistyped(doc, object, key, "true or false", value, err);
    *out = json_is_true(value);
    return 0;
}

int json_get_bool_or(const struct json_document *doc, const json_t *object, const char *key, bool fallback,
                     bool *out, struct error *err)
{
    if (!absent(object, key))
        return json_get_bool(doc, object, key, out, err);
    *out = fallback;
    return 0;
}

int json_get_string(const struct json_document *doc, const json_t *object, const char *key, const char **out,
                    struct error *err)
{
    const json_t *value = required(doc, object, key, "a string", err);
    if (value == NULL)
        return -1;
    if (!json_is_string(value))
        return mistyped(doc, object, key, "a string", value, err);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return json_error_at(doc, object, key, err, NULL, "this string has U+0000 in it");
    *out = json_string_value(value);
    return 0;
}

int json_get_string_or(const struct json_document *doc, const json_t *object, const char *key,
                       const char *fallback, const char **out, struct error *err)
{
    if (!absent(object, key))
        return json_get_string(doc, object, key, out, err);
    *out = fallback;
    return 0;
}

int json_get_object(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                    struct error *err)
{
    json_t *value = required(doc, object, key, "an object", err);
    if (value == NULL)
        return -1;
    if (!json_is_object(value))
        return mistyped(doc, object, key, "an object", value, err);
    *out = value;
    return 0;
}

int json_get_object_or(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                       struct error *err)
{
    if (!absent(object, key))
        return json_get_object(doc, object, key, out, err);
    *out = NULL;
    return 0;
}

int json_get_array(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                   struct error *err)
{
    json_t *value = required(doc, object, key, "an array", err);
    if (value == NULL)
        return -1;
    if (!json_is_array(value))
        return mistyped(doc, object, key, "an array", value, err);
    *out = value;
    return 0;
}

int json_get_array_or(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                      struct error *err)
{
    if (!absent(object, key))
        return json_get_array(doc, object, key, out, err);
    *out = NULL;
    return 0;
}
