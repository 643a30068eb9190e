#include "text/pattern.h"

#include "base/strbuf.h"
#include "text/characters.h"
#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATTERN_LIMIT = 1 << 16, /* bytes; the longest in use have about 300 */
    GROUP_LIMIT = 64,
    JIT_STACK_START = 32 << 10,
    JIT_STACK_LIMIT = 32 << 20,
    HEAP_LIMIT_KIB = 1 << 20,
};

struct pattern {
    pcre2_code *code;
};

struct pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* The reader of a pattern: checks it and writes what PCRE2 gets. */
struct reader {
    const char *text;
    size_t n, at;
    struct strbuf out;
    struct error *err;
    bool ignore_case[GROUP_LIMIT]; /* by depth of groups */
    int depth;
};

static int reject(struct reader *r, const char *what)
{
    return error_set(r->err, ERROR_INPUT, NULL, NULL,
                     "%s is not supported in a regular expression (at byte %zu of it)", what, r->at);
}

static int peek(const struct reader *r, size_t ahead)
{
    return r->at + ahead < r->n ? (unsigned char)r->text[r->at + ahead] : -1;
}

static bool starts(const struct reader *r, const char *prefix)
{
    size_t length = strlen(prefix);

    return r->n - r->at >= length && memcmp(r->text + r->at, prefix, length) == 0;
}

static void copy(struct reader *r, size_t n)
{
    strbuf_append(&r->out, r->text + r->at, n);
    r->at += n;
}

static bool is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static uint32_t hex_value(int c)
{
    return (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

static bool is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* \p{Lu}: the categories mean the same in both libraries. */
static int read_property(struct reader *r)
{
    static const char names[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf ";
    char name[8] = " ";
    size_t n = 0;

    if (peek(r, 2) != '{')
        return reject(r, "\\p without braces");
    while (is_letter(peek(r, 3 + n)) && n < 2) {
        name[1 + n] = r->text[r->at + 3 + n];
        n++;
    }
    name[1 + n] = ' ';
    if (n == 0 || peek(r, 3 + n) != '}' || strstr(names, name) == NULL)
        return reject(r, "\\p with something other than a general category");
    copy(r, n + 4);
    return 0;
}

/* \x41, \x{41} and \u0041, written as \x{41}. */
static int read_code(struct reader *r)
{
    bool braces = peek(r, 1) == 'x' && peek(r, 2) == '{';
    size_t first = braces ? 3 : 2, n = 0, limit = braces ? 6 : peek(r, 1) == 'x' ? 2 : 4;
    uint32_t value = 0;

    while (n < limit && is_hex(peek(r, first + n)))
        n++;
    if (braces ? n == 0 || peek(r, first + n) != '}' : n != limit)
        return reject(r, "a malformed \\x or \\u");
    for (size_t i = 0; i < n; i++)
        value = value * 16 + hex_value(peek(r, first + i));
    if (character_stand_in(value) != value)
        return reject(r, "a character that is newer than Unicode 13");
    strbuf_printf(&r->out, "\\x{%x}", value);
    r->at += first + n + (braces ? 1 : 0);
    return 0;
}

/* At a backslash. *set tells whether it stands for several characters. */
static int read_escape(struct reader *r, bool *set)
{
    int c = peek(r, 1);

    *set = false;
    switch (c) {
    case 's':
    case 'S':
    case 'd':
    case 'D':
        *set = true;
        copy(r, 2);
        return 0;
    case 'p':
    case 'P':
        *set = true;
        return read_property(r);
    case 'r':
    case 'n':
    case 't':
    case 'f':
        copy(r, 2);
        return 0;
    case 'x':
    case 'u':
        return read_code(r);
    default:
        break;
    }
    if (c < 0 || c >= 0x80 || is_letter(c) || (c >= '0' && c <= '9') || c < 0x20 || c == 0x7f)
        return reject(r, c >= 0 && c < 0x80 && is_letter(c) ? (char[]){'\\', (char)c, 0} : "this escape");
    copy(r, 2);
    return 0;
}

static int read_class(struct reader *r)
{
    bool set = false; /* what stands before is several characters */

    if (r->ignore_case[r->depth])
        return reject(r, "a class within (?i:)");
    copy(r, peek(r, 1) == '^' ? 2 : 1);
    if (peek(r, 0) == ']')
        return reject(r, "an empty class or one that starts with ]");
    while (peek(r, 0) != ']') {
        int c = peek(r, 0);
        if (c < 0)
            return reject(r, "a class without its ]");
        if (c == '[')
            return reject(r, "a class within a class");
        if (c == '&' && peek(r, 1) == '&')
            return reject(r, "an intersection of classes (&&)");
        if (c == '-' && set && peek(r, 1) != ']')
            return reject(r, "a range that starts with a set");
        if (c != '\\') {
            set = false;
            copy(r, 1);
        } else if (read_escape(r, &set) != 0) {
            return -1;
        }
    }
    copy(r, 1);
    return 0;
}

static int read_group(struct reader *r)
{
    static const char *const openings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    bool ignore = r->ignore_case[r->depth];
    size_t n = 1;

    if (peek(r, 1) == '?') {
        n = 0;
        for (size_t i = 0; i < sizeof openings / sizeof *openings; i++)
            if (starts(r, openings[i]))
                n = strlen(openings[i]);
        if (n == 0)
            return reject(r, "this kind of group");
        ignore = ignore || starts(r, "(?i:");
    } else if (peek(r, 1) == '*') {
        return reject(r, "(*");
    }
    if (r->depth + 1 == GROUP_LIMIT)
        return reject(r, "a nesting so deep");
    copy(r, n);
    r->ignore_case[++r->depth] = ignore;
    return 0;
}

/* At ? * + or {. */
static int read_quantifier(struct reader *r)
{
    size_t n = 1;

    if (peek(r, 0) == '{') {
        while (peek(r, n) >= '0' && peek(r, n) <= '9')
            n++;
        if (n == 1)
            return reject(r, "{ other than {n}, {n,} or {n,m}");
        if (peek(r, n) == ',')
            n++;
        while (peek(r, n) >= '0' && peek(r, n) <= '9')
            n++;
        if (peek(r, n) != '}')
            return reject(r, "{ other than {n}, {n,} or {n,m}");
        copy(r, n + 1);
    } else {
        copy(r, 1);
        if (peek(r, 0) == '?' || peek(r, 0) == '+')
            copy(r, 1);
    }
    if (peek(r, 0) >= 0 && strchr("?*+{", peek(r, 0)) != NULL)
        return reject(r, "a quantifier of a quantifier");
    return 0;
}

/* Oniguruma lets some pairs of letters match one character (ss and U+00DF), PCRE2 none. */
static int read_caseless(struct reader *r, int c)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};

    if (c >= 0x80)
        return reject(r, "a character beyond ASCII within (?i:)");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if ((c | 0x20) == pairs[i][0] && peek(r, 1) >= 0 && (peek(r, 1) | 0x20) == pairs[i][1])
            return reject(r, "ss, st, ff, fi or fl within (?i:)");
    copy(r, 1);
    return 0;
}

static int read_pattern(struct reader *r)
{
    while (r->at < r->n) {
        int c = peek(r, 0);
        bool set;
        int status = 0;
        if (c == '\\')
            status = read_escape(r, &set);
        else if (c == '[')
            status = read_class(r);
        else if (c == '(')
            status = read_group(r);
        else if (c == '?' || c == '*' || c == '+' || c == '{')
            status = read_quantifier(r);
        else if (c == '^' || c == '$')
            status = reject(r, "an anchor (^, $)");
        else if (c == ')' && r->depth == 0)
            status = reject(r, "a ) without its (");
        else if (r->ignore_case[r->depth] && c != ')' && c != '|')
            status = read_caseless(r, c);
        else
            copy(r, 1);
        if (status != 0)
            return -1;
        if (c == ')')
            r->depth--;
    }
    return r->depth == 0 ? 0 : reject(r, "a ( without its )");
}

static int compile(const char *text, size_t n, uint32_t options, struct pattern *pattern, struct error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    char message[256];
    int code;
    size_t offset;

    if (context == NULL)
        return error_memory(err, 0, "a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* what . leaves out */
    pattern->code = pcre2_compile((PCRE2_SPTR)text, n, PCRE2_UTF | options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (pattern->code == NULL) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "the regular expression is wrong: %s (at byte %zu of it)", message, offset);
    }
    /* Where PCRE2 was built without JIT, or it cannot compile this one, pcre2_match interprets. */
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pattern_compile(const char *text, size_t n, bool literal, struct pattern **out, struct error *err)
{
    struct reader r = {.text = text, .n = n, .err = err};
    struct pattern *pattern;
    int status;

    *out = NULL;
    if (n == 0 || n > PATTERN_LIMIT)
        return error_set(err, ERROR_INPUT, NULL, NULL, "the pattern is %s",
                         n == 0 ? "empty" : "longer than 64 KiB");
    if (characters_need_shadow((const uint8_t *)text, n))
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "the pattern names a character that is newer than Unicode 13");
    pattern = calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return error_memory(err, sizeof *pattern, "a regular expression");
    if (literal) {
        status = compile(text, n, PCRE2_LITERAL, pattern, err);
    } else {
        status = read_pattern(&r);
        if (status == 0 && r.out.failed)
            status = error_memory(err, n, "a regular expression");
        if (status == 0)
            status = compile(r.out.data, r.out.length, PCRE2_UCP, pattern, err);
        strbuf_free(&r.out);
    }
    if (status != 0) {
        pattern_free(pattern);
        return -1;
    }
    *out = pattern;
    return 0;
}

void pattern_free(struct pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

int pattern_scratch_create(struct pattern_scratch **out, struct error *err)
{
    struct pattern_scratch *s = calloc(1, sizeof *s);

    *out = s;
    if (s != NULL) {
        s->data = pcre2_match_data_create(1, NULL);
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    }
    if (s == NULL || s->data == NULL || s->context == NULL) {
        pattern_scratch_free(s);
        *out = NULL;
        return error_memory(err, sizeof *s, "regular expressions");
    }
    pcre2_set_heap_limit(s->context, HEAP_LIMIT_KIB);
    if (s->stack != NULL) /* NULL where PCRE2 has no JIT */
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return 0;
}

void pattern_scratch_free(struct pattern_scratch *scratch)
{
    if (scratch == NULL)
        return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

/* The first match at or after `from`: as pcre2_match, which tells what its results mean. */
static int search(const struct pattern *pattern, struct pattern_scratch *scratch, const uint8_t *s, size_t n,
                  size_t from)
{
    int result = pcre2_match(pattern->code, s, n, from, PCRE2_NO_UTF_CHECK, scratch->data, scratch->context);

    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(pattern->code, s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->data,
                             scratch->context);
    return result;
}

int pattern_next(const struct pattern *pattern, struct pattern_scratch *scratch, const uint8_t *s, size_t n,
                 struct pattern_cursor *cursor, size_t *start, size_t *end, struct error *err)
{
    while (cursor->at <= n) {
        int result = search(pattern, scratch, s, n, cursor->at);
        const size_t *range = pcre2_get_ovector_pointer(scratch->data);
        if (result == PCRE2_ERROR_NOMATCH)
            break;
        if (result < 0) {
            char message[256];
            pcre2_get_error_message(result, (PCRE2_UCHAR *)message, sizeof message);
            return error_set(err, ERROR_RUN, NULL, "shorten the text, or simplify the tokenizer's pattern",
                             "a regular expression of the tokenizer failed on a text of %zu bytes: %s", n,
                             message);
        }
        if (range[0] == range[1] && cursor->matched && range[1] == cursor->last_end) {
            if (cursor->at == n)
                break;
            utf8_next(s, &cursor->at);
            continue;
        }
        *start = range[0];
        *end = cursor->at = cursor->last_end = range[1];
        cursor->matched = true;
        return 1;
    }
    cursor->at = n + 1;
    return 0;
}
