/* JSON: reading with places in every message, and writing the same bytes every time.
 *
 * Reading goes through jansson: strict UTF-8, no duplicate keys. A file is kept as a document, which
 * knows its text, so that a getter can say where a value stands (as long as the tree is left unchanged):
 *
 *     struct json_document doc;
 *     int64_t width;
 *     if (json_open(&doc, "config.json", JSON_FILE_LIMIT, err) != 0)
 *         return -1;
 *     if (json_get_int(&doc, doc.root, "hidden_size", 1, INT32_MAX, &width, err) != 0)
 *         // "config.json:12: hidden_size: expected an integer, found a string"
 *
 * Getters come in two forms. json_get_X wants the key to be there. json_get_X_or takes `fallback`
 * where the key is absent or null. Members of any depth work: pass the inner object, the message has
 * the whole path ("rope_scaling.factor"). Strings belong to the document.
 *
 * Writing appends to a strbuf; objects and arrays nest, commas are put by the writer:
 *
 *     struct json_writer w;
 *     json_writer_start(&w, &buffer, 0);
 *     json_write_object(&w, NULL);
 *     json_write_int(&w, "step", 12);
 *     json_write_double(&w, "loss", 3.25);
 *     json_write_end(&w);              // {"step": 12, "loss": 3.25}
 *
 * Inside an object every call has a key; inside an array, and outermost, the key is NULL. */
#ifndef TERCET_FORMATS_JSON_H
#define TERCET_FORMATS_JSON_H

#include "base/error.h"
#include "base/strbuf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Larger than any configuration or tokenizer file in use. */
#define JSON_FILE_LIMIT ((size_t)256 << 20)

/* Parses one JSON value of any kind, with nothing but white space around it. `name` is the file's name
 * in messages and `line` the number of its first line (1 for a whole file). A byte order mark at the
 * start is skipped. Strings may contain U+0000: use json_string_length. Whole numbers beyond int64
 * become reals, as in "model_max_length": 1000000000000000019884624838656. ERROR_INPUT with
 * "name:line:column". The caller frees *out with json_decref. */
int json_parse(const char *name, int64_t line, const void *bytes, size_t size, json_t **out,
               struct error *err);

struct json_document {
    json_t *root;
    char *name; /* of the file, in messages */
    char *text; /* private */
    size_t size;
};

/* Reads and parses a file of at most `limit` bytes. On failure *doc is zeroed. */
int json_open(struct json_document *doc, const char *path, size_t limit, struct error *err);
/* The same from memory; the bytes are copied. */
int json_open_text(struct json_document *doc, const char *name, const void *bytes, size_t size,
                   struct error *err);
/* Safe on a zeroed or closed document. */
void json_close(struct json_document *doc);

/* The line (from 1) on which the member `key` of the object `container` stands; 0 where there is none,
 * or where it was not read from this document. */
int64_t json_line_of(const struct json_document *doc, const json_t *container, const char *key);

/* Fills err (ERROR_INPUT) with "file:line" and "path.of.key: <what>", where container is an object of
 * the document and `key` one of its members, a missing one, or NULL for the object itself. Returns -1. */
int json_error_at(const struct json_document *doc, const json_t *container, const char *key,
                  struct error *err, const char *remedy, const char *what_format, ...)
    __attribute__((format(printf, 6, 7)));
/* The same for element `index` of an array. */
int json_error_at_index(const struct json_document *doc, const json_t *array, size_t index, struct error *err,
                        const char *remedy, const char *what_format, ...)
    __attribute__((format(printf, 6, 7)));

/* "an object", "a string", "an integer", "null" …; NULL gives "nothing". */
const char *json_kind_name(const json_t *value);

/* An integer within min … max (both included). 2.0 is not one. */
int json_get_int(const struct json_document *doc, const json_t *object, const char *key, int64_t min,
                 int64_t max, int64_t *out, struct error *err);
int json_get_int_or(const struct json_document *doc, const json_t *object, const char *key, int64_t min,
                    int64_t max, int64_t fallback, int64_t *out, struct error *err);
/* A number, whole or not; always finite. */
int json_get_double(const struct json_document *doc, const json_t *object, const char *key, double *out,
                    struct error *err);
int json_get_double_or(const struct json_document *doc, const json_t *object, const char *key,
                       double fallback, double *out, struct error *err);
int json_get_bool(const struct json_document *doc, const json_t *object, const char *key, bool *out,
                  struct error *err);
int json_get_bool_or(const struct json_document *doc, const json_t *object, const char *key, bool fallback,
                     bool *out, struct error *err);
/* A string without U+0000 in it. */
int json_get_string(const struct json_document *doc, const json_t *object, const char *key, const char **out,
                    struct error *err);
int json_get_string_or(const struct json_document *doc, const json_t *object, const char *key,
                       const char *fallback, const char **out, struct error *err);
/* An object or an array; with _or, *out is NULL where the key is absent or null. */
int json_get_object(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                    struct error *err);
int json_get_object_or(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                       struct error *err);
int json_get_array(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                   struct error *err);
int json_get_array_or(const struct json_document *doc, const json_t *object, const char *key, json_t **out,
                      struct error *err);

/* The shortest of %.15g, %.16g, %.17g (for float %.6g … %.9g) that reads back as the same value, with
 * ".0" where it would look like an integer; "nan", "inf", "-inf" for the others. Into out, returned. */
char *format_double(double value, char out[32]);
char *format_float(float value, char out[32]);

enum { JSON_WRITER_DEPTH = 2304 }; /* jansson parses 2048 deep */

struct json_writer {
    struct strbuf *out;
    int indent; /* private from here on */
    int depth;
    bool array[JSON_WRITER_DEPTH], filled[JSON_WRITER_DEPTH];
};

/* `indent` 0 writes one line, with a space after commas and colons; otherwise that many spaces a level.
 * Check out->failed at the end; nesting deeper than JSON_WRITER_DEPTH sets it too. */
void json_writer_start(struct json_writer *w, struct strbuf *out, int indent);
void json_write_object(struct json_writer *w, const char *key); /* opens */
void json_write_array(struct json_writer *w, const char *key);  /* opens */
void json_write_end(struct json_writer *w);                     /* closes the innermost */
void json_write_int(struct json_writer *w, const char *key, int64_t value);
void json_write_uint(struct json_writer *w, const char *key, uint64_t value);
/* Not finite: null, for JSON has nothing else. */
void json_write_double(struct json_writer *w, const char *key, double value);
void json_write_float(struct json_writer *w, const char *key, float value);
void json_write_bool(struct json_writer *w, const char *key, bool value);
void json_write_null(struct json_writer *w, const char *key);
/* Bytes that are not UTF-8 are replaced by U+FFFD. NULL writes null. */
void json_write_string(struct json_writer *w, const char *key, const char *text);
void json_write_string_n(struct json_writer *w, const char *key, const char *text, size_t n);
/* A whole tree, members in their order. */
void json_write_value(struct json_writer *w, const char *key, const json_t *value);

/* Appends text as a JSON string with its quotes, as json_write_string does. */
void json_quote(struct strbuf *out, const char *text, size_t n);

#endif
