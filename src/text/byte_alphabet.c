#include "text/byte_alphabet.h"

#include "text/utf8.h"

uint32_t byte_alphabet_character(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121u + (byte - 0x7fu); /* after the 33 of 0x00 … 0x20 */
    if (byte == 0xad)
        return 0x143u;
    return byte;
}

int byte_alphabet_byte(uint32_t character)
{
    if (character < 0x100) {
        int stands_for_itself = byte_alphabet_character((uint8_t)character) == character;
        return stands_for_itself ? (int)character : -1;
    }
    if (character <= 0x120)
        return (int)(character - 0x100);
    if (character <= 0x142)
        return (int)(character - 0x121 + 0x7f);
    return character == 0x143 ? 0xad : -1;
}

size_t byte_alphabet_encode(const uint8_t *bytes, size_t n, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++)
        used += utf8_put(byte_alphabet_character(bytes[i]), (uint8_t *)out + used);
    return used;
}

size_t byte_alphabet_decode(const char *text, size_t n, uint8_t *out)
{
    size_t used = 0, at = 0;

    while (at < n) {
        int byte = byte_alphabet_byte(utf8_next((const uint8_t *)text, &at));
        if (byte < 0)
            return SIZE_MAX;
        out[used++] = (uint8_t)byte;
    }
    return used;
}
