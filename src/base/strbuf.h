/* A growing byte string. Zero-initialise, append, check `failed` once at the end (it is sticky:
 * after an allocation failed, appends do nothing), free. `data` is always terminated once non-NULL. */
#ifndef TERCET_BASE_STRBUF_H
#define TERCET_BASE_STRBUF_H

#include <stdarg.h>
#include <stddef.h>

struct strbuf {
    char *data;
    size_t length, capacity;
    int failed;
};

void strbuf_append(struct strbuf *b, const void *bytes, size_t n);
void strbuf_puts(struct strbuf *b, const char *s);
void strbuf_printf(struct strbuf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void strbuf_vprintf(struct strbuf *b, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
void strbuf_clear(struct strbuf *b); /* length 0, memory kept */
void strbuf_free(struct strbuf *b);

#endif
