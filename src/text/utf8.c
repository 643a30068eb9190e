#include "text/utf8.h"

#include <string.h>

enum utf8_status utf8_step(const uint8_t *s, size_t n, size_t *length)
{
    uint8_t lead = s[0], low = 0x80, high = 0xbf; /* the range of the second byte */
    size_t need;

    *length = 1;
    if (lead < 0x80)
        return UTF8_OK;
    if (lead < 0xc2 || lead > 0xf4)
        return UTF8_INVALID;
    need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0; /* shorter forms exist */
    else if (lead == 0xed)
        high = 0x9f; /* surrogates */
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f; /* beyond U+10FFFF */
    for (size_t i = 1; i < need; i++) {
        *length = i;
        if (i == n)
            return UTF8_INCOMPLETE;
        if (s[i] < low || s[i] > high)
            return UTF8_INVALID;
        low = 0x80;
        high = 0xbf;
    }
    *length = need;
    return UTF8_OK;
}

size_t utf8_invalid_at(const uint8_t *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        size_t length;
        if (n - i >= 8) {
            memcpy(&eight, s + i, 8);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                i += 8;
                continue;
            }
        }
        if (utf8_step(s + i, n - i, &length) != UTF8_OK)
            return i;
        i += length;
    }
    return n;
}

uint32_t utf8_next(const uint8_t *s, size_t *at)
{
    const uint8_t *p = s + *at;

    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *at += 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *at += 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *at += 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

uint32_t utf8_previous(const uint8_t *s, size_t at, size_t *start)
{
    size_t from;

    do
        at--;
    while (at > 0 && (s[at] & 0xc0) == 0x80);
    *start = from = at;
    return utf8_next(s, &from);
}

size_t utf8_put(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

size_t utf8_append_lossy(struct strbuf *out, const uint8_t *s, size_t n, bool final)
{
    size_t good = 0, i = 0; /* s[good … i-1] is valid and not yet appended */

    while (i < n) {
        size_t length;
        enum utf8_status status = utf8_step(s + i, n - i, &length);
        if (status == UTF8_INCOMPLETE && !final)
            break;
        if (status != UTF8_OK) {
            strbuf_append(out, s + good, i - good);
            strbuf_puts(out, "\xef\xbf\xbd");
            good = i + length;
        }
        i += length;
    }
    strbuf_append(out, s + good, i - good);
    return i;
}
