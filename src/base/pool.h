/* A pool of threads that take numbered pieces of work.
 *
 * Work is cut by the caller in pieces whose size depends on shapes alone, never on the number of
 * threads: so the thread count leaves no trace in the results. pool_run() hands out the pieces in
 * ascending order, the calling thread takes its share too, and returns when all are done. One
 * caller at a time; pool_run() from inside a piece is a bug (asserted). */
#ifndef TERCET_BASE_POOL_H
#define TERCET_BASE_POOL_H

#include "base/error.h"

#include <stdbool.h>

struct pool;

/* `threads` >= 1 counts the caller. `pin` binds thread i to the i-th allowed CPU counted from
 * `first_cpu` (modulo their number); without it the system places them. `on_start`, when not NULL,
 * is called once in each thread (the caller's included, from pool_create): a library's per-thread
 * settings go there. Allocates; nothing is allocated later. */
int pool_create(struct pool **out, int threads, bool pin, int first_cpu, void (*on_start)(void),
                struct error *err);
void pool_free(struct pool *pool); /* NULL is allowed */
int pool_threads(const struct pool *pool);

/* Calls fn(context, piece, thread) for piece 0 … pieces-1, thread in 0 … threads-1. */
void pool_run(struct pool *pool, int64_t pieces, void (*fn)(void *context, int64_t piece, int thread),
              void *context);

/* Told each time that a worker (not the caller) has taken pieces of a job: when it began and ended, in
 * clock_seconds(), in the worker's thread, before pool_run returns. */
struct pool_watch {
    void (*took)(void *context, int thread, double begin, double end);
    void *context;
};
/* NULL: nobody watches. Not while a job runs; *watch is borrowed until it is replaced. */
void pool_set_watch(struct pool *pool, const struct pool_watch *watch);

/* Threads (the caller's included) that took at least one piece since creation: for tests and doctor. */
int pool_threads_seen(const struct pool *pool);

/* CPUs this process may run on. */
int pool_cpus(void);

#endif
