#include "formats/utf8.h"

#include <stdint.h>

/* The ranges of the Unicode Standard's table of well-formed byte sequences: only the second byte's
 * range depends on the first. */
size_t utf8_sequence(const char *text, size_t n)
{
    const uint8_t *s = (const uint8_t *)text;
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < length)
        return 0;
    uint8_t low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

bool utf8_valid(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t step = utf8_sequence(text + i, n - i);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}
