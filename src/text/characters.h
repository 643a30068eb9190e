/* What a character is: general category, white space, word character, in one version of Unicode.
 *
 * Distributions ship PCRE2 and utf8proc with the tables of Unicode 13 to 16. Ids must not depend on
 * that, so this room knows the characters that came with Unicode 14, 15, 15.1 and 16 (which is what Hugging
 * Face tokenizers 0.23 knows). characters_shadow() replaces them by older characters of the same category
 * and length in UTF-8, for PCRE2 to match against; offsets stay. U+180E, which PCRE2's \s takes for
 * white space and Unicode since 6.3 does not, is replaced in the same way. */
#ifndef TERCET_TEXT_CHARACTERS_H
#define TERCET_TEXT_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <utf8proc.h>

utf8proc_category_t character_category(uint32_t c);
/* Unicode's White_Space. */
bool character_is_space(uint32_t c);
/* \w of Unicode Technical Standard 18: Alphabetic, M, Nd, Pc, Join_Control. */
bool character_is_word(uint32_t c);

/* The replacement of a character, or itself. */
uint32_t character_stand_in(uint32_t c);
/* Whether some character of the text (valid UTF-8) has a replacement. */
bool characters_need_shadow(const uint8_t *s, size_t n);
/* The text with its replacements; out has room for n bytes. */
void characters_shadow(const uint8_t *s, size_t n, uint8_t *out);

#endif
