/* Page protection for the guarded backend: a list of memory that it watches, and how many users hold
 * each page open. */
#ifndef TERCET_BACKEND_GUARDED_MEMORY_H
#define TERCET_BACKEND_GUARDED_MEMORY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct region {
    char *base;
    size_t bytes;    /* whole pages */
    bool mapped;     /* ours to unmap; else adopted */
    uint16_t *holds; /* by page: begin_access calls that keep it open */
};

struct guarded_memory {
    struct region *regions;
    size_t count, capacity, page;
};

void guarded_memory_start(struct guarded_memory *m);
/* Unmaps what is ours and opens what was adopted. */
void guarded_memory_end(struct guarded_memory *m);
int guarded_map(struct guarded_memory *m, size_t bytes, void **out, struct error *err);
int guarded_watch(struct guarded_memory *m, void *memory, size_t bytes, struct error *err);
/* Ends the watch over the region that begins here; unmaps it if it was mapped. False: there is none. */
bool guarded_drop(struct guarded_memory *m, void *memory);

/* The range lies within one watched region. */
bool guarded_watches(const struct guarded_memory *m, const void *data, size_t bytes);

enum guarded_use { GUARDED_CLOSED, GUARDED_READ, GUARDED_WRITE };
/* Sets the protection of all watched pages that the range touches. Pages that are held open stay so;
 * memory that is not watched is left alone. */
int guarded_protect(struct guarded_memory *m, const void *data, size_t bytes, enum guarded_use use,
                    struct error *err);
/* Opens the pages of a range until the matching guarded_let_go. */
int guarded_hold(struct guarded_memory *m, void *data, size_t bytes, struct error *err);
int guarded_let_go(struct guarded_memory *m, void *data, size_t bytes, struct error *err);

#endif
