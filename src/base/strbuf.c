#include "base/strbuf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for n more bytes and the NUL. Returns 0, or -1 with `failed` set. */
static int reserve(struct strbuf *b, size_t n)
{
    if (b->failed)
        return -1;
    if (n < b->capacity - b->length) /* false too when both are 0 */
        return 0;
    if (n >= SIZE_MAX / 2 - b->length) {
        b->failed = 1;
        return -1;
    }
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity <= b->length + n)
        capacity *= 2;
    char *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = 1;
        return -1;
    }
    b->data = data;
    b->capacity = capacity;
    b->data[b->length] = '\0';
    return 0;
}

void strbuf_append(struct strbuf *b, const void *bytes, size_t n)
{
    if (reserve(b, n) != 0 || n == 0)
        return;
    memcpy(b->data + b->length, bytes, n);
    b->length += n;
    b->data[b->length] = '\0';
}

void strbuf_puts(struct strbuf *b, const char *s)
{
    strbuf_append(b, s, strlen(s));
}

void strbuf_vprintf(struct strbuf *b, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int n = vsnprintf(NULL, 0, format, arguments);
    if (n < 0)
        b->failed = 1;
    else if (reserve(b, (size_t)n) == 0) {
        vsnprintf(b->data + b->length, (size_t)n + 1, format, again);
        b->length += (size_t)n;
    }
    va_end(again);
}

void strbuf_printf(struct strbuf *b, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    strbuf_vprintf(b, format, arguments);
    va_end(arguments);
}

void strbuf_clear(struct strbuf *b)
{
    b->length = 0;
    if (b->data)
        b->data[0] = '\0';
}

void strbuf_free(struct strbuf *b)
{
    free(b->data);
    memset(b, 0, sizeof *b);
}
