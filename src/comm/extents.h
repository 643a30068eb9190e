/* Places in a file of any length: which byte ranges are taken. First fit, so that the same calls in the same
 * order give the same places in every process. Zero-initialise. */
#ifndef TERCET_COMM_EXTENTS_H
#define TERCET_COMM_EXTENTS_H

#include <stddef.h>

struct extent {
    size_t offset, bytes;
};

struct extents {
    struct extent *items; /* by offset */
    size_t count, capacity;
};

/* The lowest gap of `bytes` (> 0) bytes, or the end. -1 when out of memory or of places. */
int extents_take(struct extents *e, size_t bytes, size_t *offset);
/* Gives back what was taken at `offset`. */
void extents_give(struct extents *e, size_t offset);
void extents_free(struct extents *e);

#endif
