#include "text/normalize.h"

#include "text/maps.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    DECOMPOSITION_LIMIT = 32, /* the longest canonical one has 4 characters */
    SHORT_RUN = 32,
};

void nfc_scratch_free(struct nfc_scratch *scratch)
{
    free(scratch->characters);
    *scratch = (struct nfc_scratch){0};
}

/* Stays as it is and never joins what stands before it: Latin of one or two bytes, and ideographs. */
static bool is_inert(uint32_t c)
{
    return c < 0x300 || (c >= 0x3400 && c < 0xa000);
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Sorts a run of combining characters by class, equals in their order. `spare` has room for n. */
static void order_run(int32_t *run, size_t n, int32_t *spare)
{
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = run[i];
            size_t j = i;
            for (; j > 0 && combining_class(run[j - 1]) > combining_class(c); j--)
                run[j] = run[j - 1];
            run[j] = c;
        }
        return;
    }
    size_t first[257] = {0};
    for (size_t i = 0; i < n; i++)
        first[combining_class(run[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        first[k] += first[k - 1];
    for (size_t i = 0; i < n; i++)
        spare[first[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static void order_characters(int32_t *c, size_t n, int32_t *spare)
{
    size_t i = 0;

    while (i < n) {
        size_t start = i;
        while (i < n && combining_class(c[i]) != 0)
            i++;
        if (i - start > 1)
            order_run(c + start, i - start, spare);
        if (i == start)
            i++;
    }
}

/* The NFC of a piece that starts at a boundary and ends before one. */
static int append_normalized(struct nfc_scratch *scratch, const uint8_t *s, size_t n, struct strbuf *out)
{
    size_t at = 0, count = 0;
    int32_t *c;
    utf8proc_ssize_t composed;

    while (at < n) {
        utf8proc_ssize_t length;
        int boundary = UTF8PROC_BOUNDCLASS_START;
        uint32_t character = utf8_next(s, &at);
        if (array_reserve(&scratch->characters, &scratch->capacity, count + DECOMPOSITION_LIMIT,
                          sizeof *scratch->characters) != 0)
            return -1;
        length = utf8proc_decompose_char((utf8proc_int32_t)character, scratch->characters + count,
                                         DECOMPOSITION_LIMIT, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (length < 0 || length > DECOMPOSITION_LIMIT)
            return -1;
        count += (size_t)length;
    }
    if (array_reserve(&scratch->characters, &scratch->capacity, 2 * count, sizeof *scratch->characters) != 0)
        return -1;
    c = scratch->characters;
    order_characters(c, count, c + count);
    composed = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        uint8_t bytes[4];
        strbuf_append(out, bytes, utf8_put((uint32_t)c[i], bytes));
    }
    return composed < 0 || out->failed ? -1 : 0;
}

int nfc_append(struct nfc_scratch *scratch, const uint8_t *s, size_t n, struct strbuf *out)
{
    size_t done = 0;  /* what was appended */
    size_t inert = 0; /* where the last inert character starts */
    size_t at = 0;

    while (at < n) {
        size_t start = at;
        if (is_inert(utf8_next(s, &at))) {
            inert = start;
            continue;
        }
        while (at < n) {
            start = at;
            if (is_inert(utf8_next(s, &at))) {
                at = start;
                break;
            }
        }
        strbuf_append(out, s + done, inert - done);
        if (append_normalized(scratch, s + inert, at - inert, out) != 0)
            return -1;
        done = inert = at;
    }
    strbuf_append(out, s + done, n - done);
    return out->failed ? -1 : 0;
}
