#include "formats/json.h"

#include "formats/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ---- */

static char *non_finite(double value, char out[32])
{
    snprintf(out, 32, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return out;
}

/* A locale may have another decimal point than JSON; and what looks like an integer would be read back
 * as one. */
static char *finish_number(char out[32])
{
    bool whole = true;
    size_t n = strlen(out);
    for (size_t i = 0; i < n; i++) {
        if (out[i] != '\0' && strchr("0123456789+-e", out[i]) == NULL)
            out[i] = '.';
        if (out[i] == '.' || out[i] == 'e')
            whole = false;
    }
    if (whole)
        snprintf(out + n, 32 - n, ".0");
    return out;
}

char *format_double(double value, char out[32])
{
    if (!isfinite(value))
        return non_finite(value, out);
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return finish_number(out);
}

char *format_float(float value, char out[32])
{
    if (!isfinite(value))
        return non_finite((double)value, out);
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(out, 32, "%.*g", digits, (double)value);
        if (strtof(out, NULL) == value)
            break;
    }
    return finish_number(out);
}

/* ---- Strings ---- */

static void quote_ascii(struct strbuf *out, char c)
{
    static const char short_forms[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: byte, letter */
    for (size_t i = 0; i + 1 < sizeof short_forms; i += 2) {
        if (short_forms[i] == c) {
            char escape[2] = {'\\', short_forms[i + 1]};
            strbuf_append(out, escape, 2);
            return;
        }
    }
    if ((unsigned char)c < 0x20)
        strbuf_printf(out, "\\u%04x", (unsigned)(unsigned char)c);
    else
        strbuf_append(out, &c, 1);
}

static bool needs_escape(unsigned char c)
{
    return c < 0x20 || c == '"' || c == '\\' || c >= 0x80;
}

void json_quote(struct strbuf *out, const char *text, size_t n)
{
    strbuf_puts(out, "\"");
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && !needs_escape((unsigned char)text[run]))
            run++;
        strbuf_append(out, text + i, run - i);
        i = run;
        if (i == n)
            break;
        size_t length = utf8_sequence(text + i, n - i);
        if (length == 1)
            quote_ascii(out, text[i]);
        else if (length > 1)
            strbuf_append(out, text + i, length);
        else
            strbuf_puts(out, "\xef\xbf\xbd");
        i += length > 0 ? length : 1;
    }
    strbuf_puts(out, "\"");
}

/* ---- The writer ---- */

void json_writer_start(struct json_writer *w, struct strbuf *out, int indent)
{
    *w = (struct json_writer){.out = out, .indent = indent};
}

static void new_line(struct json_writer *w)
{
    if (w->indent > 0)
        strbuf_printf(w->out, "\n%*s", w->indent * w->depth, "");
}

/* What stands before a value: comma, line break, key. */
static void before_value(struct json_writer *w, const char *key)
{
    if (w->depth > 0) {
        if (w->filled[w->depth - 1])
            strbuf_puts(w->out, w->indent > 0 ? "," : ", ");
        w->filled[w->depth - 1] = true;
        new_line(w);
    }
    if (key != NULL) {
        json_quote(w->out, key, strlen(key));
        strbuf_puts(w->out, ": ");
    }
}

static void open_container(struct json_writer *w, const char *key, bool array)
{
    before_value(w, key);
    if (w->depth == JSON_WRITER_DEPTH) {
        w->out->failed = 1;
        return;
    }
    strbuf_puts(w->out, array ? "[" : "{");
    w->array[w->depth] = array;
    w->filled[w->depth] = false;
    w->depth++;
}

void json_write_object(struct json_writer *w, const char *key)
{
    open_container(w, key, false);
}

void json_write_array(struct json_writer *w, const char *key)
{
    open_container(w, key, true);
}

void json_write_end(struct json_writer *w)
{
    if (w->depth == 0) { /* only after the depth limit was met */
        w->out->failed = 1;
        return;
    }
    w->depth--;
    if (w->filled[w->depth])
        new_line(w);
    strbuf_puts(w->out, w->array[w->depth] ? "]" : "}");
}

void json_write_int(struct json_writer *w, const char *key, int64_t value)
{
    before_value(w, key);
    strbuf_printf(w->out, "%lld", (long long)value);
}

void json_write_uint(struct json_writer *w, const char *key, uint64_t value)
{
    before_value(w, key);
    strbuf_printf(w->out, "%llu", (unsigned long long)value);
}

void json_write_double(struct json_writer *w, const char *key, double value)
{
    char text[32];
    before_value(w, key);
    strbuf_puts(w->out, isfinite(value) ? format_double(value, text) : "null");
}

void json_write_float(struct json_writer *w, const char *key, float value)
{
    char text[32];
    before_value(w, key);
    strbuf_puts(w->out, isfinite(value) ? format_float(value, text) : "null");
}

void json_write_bool(struct json_writer *w, const char *key, bool value)
{
    before_value(w, key);
    strbuf_puts(w->out, value ? "true" : "false");
}

void json_write_null(struct json_writer *w, const char *key)
{
    before_value(w, key);
    strbuf_puts(w->out, "null");
}

void json_write_string_n(struct json_writer *w, const char *key, const char *text, size_t n)
{
    before_value(w, key);
    if (text != NULL)
        json_quote(w->out, text, n);
    else
        strbuf_puts(w->out, "null");
}

void json_write_string(struct json_writer *w, const char *key, const char *text)
{
    json_write_string_n(w, key, text, text != NULL ? strlen(text) : 0);
}

static void write_members(struct json_writer *w, json_t *object)
{
    const char *key;
    json_t *member;
    json_object_foreach(object, key, member) json_write_value(w, key, member);
}

void json_write_value(struct json_writer *w, const char *key, const json_t *value)
{
    if (w->out->failed)
        return;
    switch (value != NULL ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT:
        json_write_object(w, key);
        write_members(w, (json_t *)value);
        json_write_end(w);
        break;
    case JSON_ARRAY:
        json_write_array(w, key);
        for (size_t i = 0; i < json_array_size(value); i++)
            json_write_value(w, NULL, json_array_get(value, i));
        json_write_end(w);
        break;
    case JSON_STRING:
        json_write_string_n(w, key, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        json_write_int(w, key, json_integer_value(value));
        break;
    case JSON_REAL:
        json_write_double(w, key, json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        json_write_bool(w, key, json_is_true(value));
        break;
    default:
        json_write_null(w, key);
    }
}
