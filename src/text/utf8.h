/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
#ifndef TERCET_TEXT_UTF8_H
#define TERCET_TEXT_UTF8_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum utf8_status { UTF8_OK, UTF8_INVALID, UTF8_INCOMPLETE };

/* Looks at the first character of s[0 … n-1], n >= 1. *length becomes that of the character or, where it
 * is invalid or cut off by the end, that of its maximal part (Unicode Standard, section 3.9). */
enum utf8_status utf8_step(const uint8_t *s, size_t n, size_t *length);

/* The offset of the first byte that is not UTF-8, or n. */
size_t utf8_invalid_at(const uint8_t *s, size_t n);

/* Valid text only: the character at s[*at], and *at moves behind it. */
uint32_t utf8_next(const uint8_t *s, size_t *at);
/* Valid text only: the character that ends before s[at], at >= 1; *start is where it starts. */
uint32_t utf8_previous(const uint8_t *s, size_t at, size_t *start);

/* Writes a character (not a surrogate); returns its length, 1 … 4. */
size_t utf8_put(uint32_t c, uint8_t out[4]);

/* Appends s to *out with U+FFFD for each maximal part that is no character. Where `final` is false, stops
 * before a character that the end cuts off. Returns how many bytes were used. */
size_t utf8_append_lossy(struct strbuf *out, const uint8_t *s, size_t n, bool final);

#endif
