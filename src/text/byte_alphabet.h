/* GPT-2's alphabet of bytes: each byte has a printable character that stands for it in vocabulary files.
 *
 * Bytes 0x21 … 0x7E, 0xA1 … 0xAC and 0xAE … 0xFF stand for themselves (as U+0021 …); the 68 others, in
 * ascending order, are U+0100 … U+0143, so that a space is U+0120 "Ġ". */
#ifndef TERCET_TEXT_BYTE_ALPHABET_H
#define TERCET_TEXT_BYTE_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

/* The character of a byte, U+0021 … U+0143. */
uint32_t byte_alphabet_character(uint8_t byte);
/* The byte of a character, or -1. */
int byte_alphabet_byte(uint32_t character);

/* Writes the text that stands for `bytes` to out, which has room for 2n bytes. Returns its length. */
size_t byte_alphabet_encode(const uint8_t *bytes, size_t n, char *out);
/* The reverse, from valid UTF-8; out has room for n bytes. Returns how many, or SIZE_MAX where a character
 * is not of the alphabet. */
size_t byte_alphabet_decode(const char *text, size_t n, uint8_t *out);

#endif
