/* The order of training: which rows there are, in which epoch and step, and how many targets each
 * part holds, all known from the documents' lengths alone.
 *
 * A row is seq_len positions. An epoch visits every document once, in a permutation given by (seed,
 * epoch), or in file order without shuffle. Packed, the documents are laid end to end over the rows;
 * not packed, each document is a row, cut at seq_len. A step takes global_batch rows; an epoch's
 * last step takes what is left, so it may be short, and no step holds rows of two epochs. Every epoch
 * has the same number of rows.
 *
 * Epochs, steps, rows and documents count from 0. A plan keeps the order of one epoch at a time (4
 * bytes a document, and 8 more when packed; nothing without shuffle) and changes it when another
 * epoch is asked for: a plan belongs to one thread, and going back and forth between epochs is slow. */
#ifndef TERCET_DATA_ORDER_H
#define TERCET_DATA_ORDER_H

#include "base/error.h"
#include "data/cache.h"

#include <stdbool.h>
#include <stdint.h>

struct row_options {
    int64_t seq_len; /* >= 1 */
    bool pack, shuffle;
    uint64_t seed;
    int64_t global_batch; /* rows of a step, >= 1 */
    int64_t pad_id;       /* id at positions that hold no token; 0 serves */
};

struct row_plan {
    const struct token_cache *cache;
    struct row_options options;
    int64_t rows_per_epoch, steps_per_epoch;
    int64_t tokens_per_epoch;                      /* without padding and what is cut off */
    int64_t targets_per_epoch;                     /* > 0 */
    int64_t truncated_documents, truncated_tokens; /* not packed: cut, and what was cut off */
    int64_t first_truncated;                       /* a document, -1 when none */

    /* The order of one epoch, private. */
    int64_t epoch;         /* -1: none yet */
    uint32_t *permutation; /* [documents]: place in the epoch to document; NULL without shuffle */
    uint64_t *ends; /* [documents]: tokens up to and including that place; NULL unless packed and shuffled */
};

/* `cache` must outlive the plan. ERROR_INPUT when an epoch holds no target at all. */
int row_plan_create(struct row_plan *plan, const struct token_cache *cache, const struct row_options *options,
                    struct error *err);
void row_plan_free(struct row_plan *plan); /* safe on a zeroed one */

/* Steps of a whole run: ceil(epochs x steps_per_epoch), where a product that differs from a whole
 * number only by the rounding of a decimal fraction counts as that number. ERROR_INPUT unless epochs
 * is positive and the result fits. */
int row_plan_total_steps(const struct row_plan *plan, double epochs, int64_t *steps, struct error *err);

struct row_range {
    int64_t epoch;
    int64_t row;  /* first, within the epoch */
    int64_t rows; /* 1 … global_batch */
};
/* The rows of one step. */
void row_plan_locate(const struct row_plan *plan, int64_t step, struct row_range *out);

struct row_counts {
    int64_t tokens;  /* without padding */
    int64_t targets; /* positions that have one; may be 0 */
    int64_t pairs;   /* of a token and one that it attends to, itself included: n(n+1)/2 for a piece of n */
};
/* What rows row … row+rows-1 of an epoch hold. */
void row_plan_count(struct row_plan *plan, int64_t epoch, int64_t row, int64_t rows, struct row_counts *out);

/* Makes `epoch` the one whose order is kept. row_plan_count and rows_read call it themselves. */
void row_plan_load_epoch(struct row_plan *plan, int64_t epoch);

/* In the epoch that is loaded: the document at a place (0 … documents-1) … */
static inline int64_t row_plan_document(const struct row_plan *plan, int64_t place)
{
    return plan->permutation ? (int64_t)plan->permutation[place] : place;
}
/* … and, packed, the number of tokens up to and including each place: [documents], ascending … */
static inline const uint64_t *row_plan_ends(const struct row_plan *plan)
{
    return plan->ends ? plan->ends : plan->cache->ends;
}
/* … and the number of places that end at or before a position of the epoch's stream of tokens: so
 * the place whose document holds it. */
int64_t row_plan_find(const struct row_plan *plan, int64_t position);

#endif
