/* Flat layout: all parameters of a unit end to end in one range, cut in blocks of 1,024 elements.
 *
 * The layout knows nothing of the number of ranks; ownership is a second step: rank r of n owns the
 * blocks r*run … r*run+run-1 with run = ceil(blocks/n), so its buffers hold run blocks whether the last
 * ones are there or not. Odd shapes and rank counts are the normal case: a run may begin inside a
 * tensor, end before the last block is full, or be empty. */
#ifndef TERCET_SHARD_LAYOUT_H
#define TERCET_SHARD_LAYOUT_H

#include "base/dtype.h"
#include "base/error.h"

enum { SHARD_BLOCK = 1024 };

struct flat_layout {
    int param_count;
    int64_t *offset; /* [param_count+1] elements; the last is `elements` */
    int64_t elements, blocks;
};

/* `elements[k]` >= 1 of each parameter. */
int flat_layout_create(struct flat_layout *out, int param_count, const int64_t *elements, struct error *err);
void flat_layout_free(struct flat_layout *l);

/* Elements of a buffer that holds one rank's run. */
int64_t flat_layout_run(const struct flat_layout *l, int ranks);
/* The elements that a rank owns: [*first, *end), without what lies behind the last parameter. */
void flat_layout_range(const struct flat_layout *l, int ranks, int rank, int64_t *first, int64_t *end);
/* Element offsets [ranks+1] of all runs, as comm_gather and comm_exchange take them (times bytes). */
void flat_layout_cuts(const struct flat_layout *l, int ranks, int64_t element_bytes, int64_t *cuts);

#endif
