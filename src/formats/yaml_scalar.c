#include "formats/yaml.h"

#include "formats/json.h"
#include "formats/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Types ---- */

static bool one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

static bool is_radix_int(const char *text)
{
    const char *set = text[0] == '0' && text[1] == 'x'   ? "0123456789abcdefABCDEF"
                      : text[0] == '0' && text[1] == 'o' ? "01234567"
                                                         : NULL;
    if (set == NULL)
        return false;
    size_t n = strspn(text + 2, set);
    return n > 0 && text[2 + n] == '\0';
}

/* [-+]? (\.[0-9]+ | [0-9]+(\.[0-9]*)?) ([eE][-+]?[0-9]+)? */
static bool is_number(const char *text, bool *whole)
{
    const char *p = text + (*text == '-' || *text == '+');
    size_t before = digits(p), after = 0;
    p += before;
    *whole = true;
    if (*p == '.') {
        *whole = false;
        after = digits(p + 1);
        p += 1 + after;
    }
    if (before == 0 && after == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        *whole = false;
        p++;
        p += *p == '-' || *p == '+';
        if (digits(p) == 0)
            return false;
        p += digits(p);
    }
    return *p == '\0';
}

enum yaml_type yaml_scalar_type(const char *text)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const bools[] = {"true", "True", "TRUE", "false", "False", "FALSE", NULL};
    static const char *const specials[] = {".inf",  ".Inf",  ".INF", "-.inf", "-.Inf", "-.INF", "+.inf",
                                           "+.Inf", "+.INF", ".nan", ".NaN",  ".NAN",  NULL};
    bool whole;
    if (one_of(text, nulls))
        return YAML_TYPE_NULL;
    if (one_of(text, bools))
        return YAML_TYPE_BOOL;
    if (is_radix_int(text))
        return YAML_TYPE_INT;
    if (is_number(text, &whole))
        return whole ? YAML_TYPE_INT : YAML_TYPE_FLOAT;
    return one_of(text, specials) ? YAML_TYPE_FLOAT : YAML_TYPE_TEXT;
}

/* ---- Places ---- */

int yaml_error(const struct yaml_node *node, struct error *err, const char *remedy, const char *what_format,
               ...)
{
    char where[512], what[1024];
    va_list arguments;
    va_start(arguments, what_format);
    vsnprintf(what, sizeof what, what_format, arguments);
    va_end(arguments);
    snprintf(where, sizeof where, "%s:%" PRId64, node->file, node->line);
    return error_set(err, ERROR_INPUT, where, remedy, "%s", what);
}

/* The longest start of a text that has at most `limit` bytes and ends between characters. */
static size_t cut(const char *text, size_t limit)
{
    size_t n = strlen(text), used = 0;
    if (n <= limit)
        return n;
    for (size_t step; (step = utf8_sequence(text + used, n - used)) > 0 && used + step <= limit;)
        used += step;
    return used;
}

char *yaml_describe(const struct yaml_node *node, char *out, size_t size)
{
    size_t shown = cut(node->text, 60);
    const char *more = node->text[shown] != '\0' ? "…" : "";
    if (node->kind != YAML_KIND_SCALAR)
        snprintf(out, size, "%s", node->kind == YAML_KIND_MAP ? "a map" : "a list");
    else if (node->type == YAML_TYPE_NULL)
        snprintf(out, size, "nothing (null)");
    else if (node->type == YAML_TYPE_BOOL)
        snprintf(out, size, "%s", node->text);
    else if (node->type == YAML_TYPE_TEXT)
        snprintf(out, size, "text \"%.*s%s\"", (int)shown, node->text, more);
    else
        snprintf(out, size, "the number %.*s%s", (int)shown, node->text, more);
    return out;
}

static int mistyped(const struct yaml_node *node, struct error *err, const char *remedy, const char *expected)
{
    char found[256];
    return yaml_error(node, err, remedy, "expected %s, found %s", expected,
                      yaml_describe(node, found, sizeof found));
}

static bool is_scalar(const struct yaml_node *node, enum yaml_type type)
{
    return node->kind == YAML_KIND_SCALAR && node->type == type;
}

/* ---- Typed reading ---- */

const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key)
{
    if (map == NULL || map->kind != YAML_KIND_MAP)
        return NULL;
    for (int64_t i = 0; i < map->count; i++)
        if (strcmp(map->keys[i].text, key) == 0)
            return map->children[i];
    return NULL;
}

bool yaml_is_null(const struct yaml_node *node)
{
    return is_scalar(node, YAML_TYPE_NULL);
}

int yaml_bool(const struct yaml_node *node, bool *out, struct error *err)
{
    static const char *const others[] = {"yes", "no", "on", "off", "y", "n", NULL};
    if (is_scalar(node, YAML_TYPE_BOOL)) {
        *out = node->text[0] == 't' || node->text[0] == 'T';
        return 0;
    }
    bool other_word = false;
    for (int i = 0; others[i] != NULL; i++)
        other_word = other_word || (node->kind == YAML_KIND_SCALAR && strcasecmp(node->text, others[i]) == 0);
    return mistyped(node, err, other_word ? "YAML 1.2 knows only true and false" : NULL, "true or false");
}

/* A whole number in decimal, 0x or 0o notation. */
static int int_digits(const struct yaml_node *node, int64_t *out, struct error *err)
{
    const char *text = node->text;
    bool radix = is_radix_int(text);
    errno = 0;
    long long value = radix ? strtoll(text + 2, NULL, text[1] == 'x' ? 16 : 8) : strtoll(text, NULL, 10);
    if (errno == ERANGE)
        return yaml_error(node, err, NULL, "the number %.*s is too large", (int)cut(text, 60), text);
    *out = value;
    return 0;
}

int yaml_int(const struct yaml_node *node, int64_t *out, struct error *err)
{
    if (is_scalar(node, YAML_TYPE_INT))
        return int_digits(node, out, err);
    if (!is_scalar(node, YAML_TYPE_FLOAT))
        return mistyped(node, err, NULL, "a whole number");
    double value = 0;
    if (yaml_double(node, &value, err) != 0)
        return -1;
    if (value != trunc(value))
        return mistyped(node, err, NULL, "a whole number");
    if (fabs(value) > 0x1p53)
        return yaml_error(node, err, "write it without fraction and exponent",
                          "the number %.*s is too large to be whole for sure", (int)cut(node->text, 60),
                          node->text);
    *out = (int64_t)value;
    return 0;
}

int yaml_double(const struct yaml_node *node, double *out, struct error *err)
{
    bool whole;
    if (!is_scalar(node, YAML_TYPE_INT) && !is_scalar(node, YAML_TYPE_FLOAT))
        return mistyped(node, err, NULL, "a number");
    if (is_radix_int(node->text)) {
        int64_t value = 0;
        if (int_digits(node, &value, err) != 0)
            return -1;
        *out = (double)value;
        return 0;
    }
    double value = is_number(node->text, &whole) ? strtod(node->text, NULL) : HUGE_VAL;
    if (!isfinite(value))
        return mistyped(node, err, NULL, "a finite number");
    *out = value;
    return 0;
}

int yaml_text(const struct yaml_node *node, const char **out, struct error *err)
{
    if (is_scalar(node, YAML_TYPE_TEXT)) {
        *out = node->text;
        return 0;
    }
    bool quotable = node->kind == YAML_KIND_SCALAR && node->type != YAML_TYPE_NULL;
    return mistyped(node, err, quotable ? "put it in quotes if it is meant as text" : NULL, "text");
}

/* ---- Writing ---- */

/* Words that one version of YAML or another takes for something else than text. */
static bool is_reserved(const char *text)
{
    static const char *const words[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", NULL};
    for (int i = 0; words[i] != NULL; i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool is_plain(const char *text)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/";
    static const char others[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_/0123456789.+-";
    return text[0] != '\0' && strchr(letters, text[0]) != NULL && text[strspn(text, others)] == '\0' &&
           !is_reserved(text);
}

static uint32_t code_point(const char *text, size_t length)
{
    const uint8_t *s = (const uint8_t *)text;
    uint32_t c = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++)
        c = (c << 6) | (s[i] & 0x3fu);
    return c;
}

/* Whether a character may stand in double quotes as it is: printable by YAML's rules and no line break. */
static bool stands_quoted(uint32_t c)
{
    if (c < 0x7f)
        return c >= 0x20 && c != '"' && c != '\\';
    return c >= 0xa0 && c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

void yaml_quote(struct strbuf *out, const char *text)
{
    if (is_plain(text)) {
        strbuf_puts(out, text);
        return;
    }
    size_t n = strlen(text);
    strbuf_puts(out, "\"");
    for (size_t i = 0; i < n;) {
        size_t length = utf8_sequence(text + i, n - i);
        uint32_t c = length > 0 ? code_point(text + i, length) : 0xfffd;
        if (length > 0 && stands_quoted(c))
            strbuf_append(out, text + i, length);
        else if (c == '"' || c == '\\')
            strbuf_printf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\t')
            strbuf_puts(out, c == '\n' ? "\\n" : "\\t");
        else
            strbuf_printf(out, c < 0x100 ? "\\x%02x" : "\\u%04x", c);
        i += length > 0 ? length : 1;
    }
    strbuf_puts(out, "\"");
}

void yaml_put_json(struct strbuf *out, const char *json, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t length = utf8_sequence(json + i, n - i);
        uint32_t c = length > 0 ? code_point(json + i, length) : 0xfffd;
        if (length > 0 && (c < 0x7f || stands_quoted(c)))
            strbuf_append(out, json + i, length);
        else
            strbuf_printf(out, "\\u%04x", c);
        i += length > 0 ? length : 1;
    }
}

void yaml_put_double(struct strbuf *out, double value)
{
    char text[32];
    if (!isfinite(value)) {
        strbuf_puts(out, isnan(value) ? ".nan" : value > 0 ? ".inf" : "-.inf");
        return;
    }
    format_double(value, text);
    const char *exponent = strchr(text, 'e');
    bool bare = exponent != NULL && strchr(text, '.') == NULL; /* YAML 1.1 wants the dot */
    size_t head = exponent != NULL ? (size_t)(exponent - text) : strlen(text);
    strbuf_append(out, text, head);
    strbuf_puts(out, bare ? ".0" : "");
    strbuf_puts(out, text + head);
}
