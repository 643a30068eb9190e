/* Finding the merges of byte-level BPE from counted words.
 *
 * A word is a row of symbols, bytes at first. A table holds how often each pair of neighbours occurs, and a
 * heap of entries (pair, its count when it was put in, the words it was seen in). The top entry is out of
 * date when the table says otherwise: then it goes back with the new count. Otherwise its pair becomes a
 * token in those words only, which changes the counts of the pairs around it and puts new entries in. So
 * the whole text is looked at once, and later only the words that a merge touches. */
#ifndef TERCET_TEXT_TRAIN_MERGES_H
#define TERCET_TEXT_TRAIN_MERGES_H

#include "base/error.h"
#include "text/maps.h"
#include "text/train.h"

#include <stddef.h>
#include <stdint.h>

struct bpe_pair {
    uint32_t left, right;
};

struct bpe_merges {
    struct byte_map tokens; /* by id: the special token's text, then bytes and what was merged of them */
    struct bpe_pair *pairs; /* in order */
    size_t count, capacity;
};

/* `counts` of each of `words`. Zero-initialise *out; free it, whether this worked or not. */
int bpe_merges_find(struct bpe_merges *out, const struct byte_map *words, const int64_t *counts,
                    const char *special, const struct bpe_options *options, struct error *err);
void bpe_merges_free(struct bpe_merges *merges);

#endif
