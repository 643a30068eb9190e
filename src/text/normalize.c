#include "text/normalize.h"

#include "text/characters.h"
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

/* Combining characters that came after Unicode 9 and before 14 (and what composes since then). */
static const struct range {
    uint32_t first, last;
} newer[] = {
    {0x7FD, 0x7FD},     {0x8D3, 0x8D3},     {0x9FE, 0x9FE},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x1ABF, 0x1AC0},   {0x1DF6, 0x1DF9},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10F46, 0x10F50}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1},
    {0x1E130, 0x1E136}, {0x1E2EC, 0x1E2EF},
};

enum behaviour {
    JOINS,  /* may join or swap with what stands before it */
    STARTS, /* does not, and stays as it is: Latin of one or two bytes, and ideographs */
    ALONE,  /* nor does what stands behind it: unknown to normalization */
};

static enum behaviour behaviour_of(uint32_t c)
{
    size_t low = 0, high = sizeof newer / sizeof *newer;

    if (c < 0x300 || (c >= 0x3400 && c < 0xa000))
        return STARTS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > newer[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < sizeof newer / sizeof *newer && c >= newer[low].first)
        return ALONE;
    return character_stand_in(c) != c ? ALONE : JOINS;
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
    size_t start = 0; /* of the piece that the next character may join */
    size_t at = 0;

    while (at < n) {
        size_t before = at;
        enum behaviour behaviour = behaviour_of(utf8_next(s, &at));
        if (behaviour != JOINS) {
            start = behaviour == STARTS ? before : at;
            continue;
        }
        while (at < n) {
            before = at;
            if (behaviour_of(utf8_next(s, &at)) != JOINS) {
                at = before;
                break;
            }
        }
        strbuf_append(out, s + done, start - done);
        if (append_normalized(scratch, s + start, at - start, out) != 0)
            return -1;
        done = start = at;
    }
    strbuf_append(out, s + done, n - done);
    return out->failed ? -1 : 0;
}
