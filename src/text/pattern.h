/* Regular expressions of pre-tokenizers: PCRE2, held to what means the same in Oniguruma, whose syntax
 * tokenizer.json is written in.
 *
 * Taken: literal characters, . | ( ) (?: ) (?= ) (?! ) (?<= ) (?<! ) (?> ) (?i: ) around ASCII characters,
 * classes [ ] and [^ ] without nesting or &&, \s \S \d \D \r \n \t \f, \x41 \x{41} \u0041, \p{..} and \P{..}
 * with a general category, escaped punctuation, ? * + with a lazy ? or possessive +, {n} {n,} {n,m}.
 * The rest (\w, \b, anchors, scripts, intersections …) is refused, for the two libraries differ there or
 * may.
 *
 * Matching is against the text with characters_shadow() applied. */
#ifndef TERCET_TEXT_PATTERN_H
#define TERCET_TEXT_PATTERN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pattern;
struct pattern_scratch;

/* A regular expression, or with `literal` a string to be found as it is; valid UTF-8. On failure err->what
 * says what is wrong with it; the place is the caller's to add. */
int pattern_compile(const char *text, size_t n, bool literal, struct pattern **out, struct error *err);
void pattern_free(struct pattern *pattern);

/* Working memory of one thread, for any patterns, one search at a time. */
int pattern_scratch_create(struct pattern_scratch **out, struct error *err);
void pattern_scratch_free(struct pattern_scratch *scratch);

/* A walk over all matches from left to right, as Oniguruma's bindings do it: an empty match directly
 * behind the last match does not count. Zero-initialise. */
struct pattern_cursor {
    size_t at, last_end;
    bool matched;
};
/* The next match in s[0 … n-1] (valid UTF-8): 1 and its range, 0 when there is none, -1 when it takes
 * more work or memory than can be right. */
int pattern_next(const struct pattern *pattern, struct pattern_scratch *scratch, const uint8_t *s, size_t n,
                 struct pattern_cursor *cursor, size_t *start, size_t *end, struct error *err);

#endif
