/* One maker of a cache at a time: a file that is locked (flock) while the work goes on. Private to the
 * room. The lock vanishes with the process that holds it, so what its owner left is known to be stale. */
#ifndef TERCET_DATA_CACHE_LOCK_H
#define TERCET_DATA_CACHE_LOCK_H

#include "base/error.h"

#include <stdbool.h>

enum cache_lock_state {
    CACHE_LOCKED,      /* it is ours */
    CACHE_LOCK_BUSY,   /* another process holds it */
    CACHE_LOCK_ABSENT, /* this file system has no locks */
};

struct cache_lock {
    int fd; /* -1: not held */
    char *path;
};

/* Tries to take ROOT/NAME.lock, without waiting. *lock is to be released when the state is CACHE_LOCKED. */
int cache_lock_try(const char *root, const char *name, struct cache_lock *lock, enum cache_lock_state *state,
                   struct error *err);
/* Removes the file and lets go. Safe on one that is not held (fd -1, path NULL). */
void cache_lock_release(struct cache_lock *lock);

#endif
