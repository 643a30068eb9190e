/* UTF-8, the little that file formats need of it. */
#ifndef TERCET_FORMATS_UTF8_H
#define TERCET_FORMATS_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes (1 to 4) of the well-formed sequence at the start of text[0..n-1]; 0 where there is none: n is
 * 0, a stray or missing continuation byte, an overlong form, a surrogate, beyond U+10FFFF. */
size_t utf8_sequence(const char *text, size_t n);

/* Whether all n bytes are well-formed. */
bool utf8_valid(const char *text, size_t n);

#endif
