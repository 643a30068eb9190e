/* NFC (Unicode Standard Annex 15) with the data of utf8proc, as of Unicode 9: Hugging Face normalizes so, and
 * tokenizers were trained on that. Characters that came later are left as and where they are. */
#ifndef TERCET_TEXT_NORMALIZE_H
#define TERCET_TEXT_NORMALIZE_H

#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Working memory; zero-initialise. */
struct nfc_scratch {
    int32_t *characters;
    size_t capacity;
};
void nfc_scratch_free(struct nfc_scratch *scratch);

/* Appends the NFC of s (valid UTF-8) to *out. O(n log n) for any text. Returns -1 when memory ran out. */
int nfc_append(struct nfc_scratch *scratch, const uint8_t *s, size_t n, struct strbuf *out);

#endif
