/* Where the time of a run goes: spans of time with names, on one track for each thread of this process, and
 * what they sum up to by name.
 *
 *     struct profile *p;
 *     profile_create(&p, threads, spans, err);
 *     profile_start(p);
 *     struct profile_mark mark = profile_begin(p);
 *     … spans may lie inside each other …
 *     profile_end(p, "gather", mark, NULL);
 *     profile_stop(p);
 *     rows = profile_rows(p, &count);           // "gather": calls, seconds without what lies inside
 *     profile_write_trace(p, file, rank, err);  // for Perfetto
 *     profile_free(p);
 *
 * All functions that record take NULL and do nothing then, as they do before profile_start and after
 * profile_stop. Memory is taken at the beginning; spans beyond it are counted, not kept. Thread 0 is the
 * caller's: its spans are summed up. The others' (profile_add) are for the trace alone. */
#ifndef TERCET_BASE_PROFILE_H
#define TERCET_BASE_PROFILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PROFILE_MAX_ROWS = 64 };

struct profile;

/* What a span has done: floating-point operations in matrix products and in all else, bytes moved. */
struct profile_cost {
    double product_flops, other_flops, bytes;
};

struct profile_row {
    const char *name;
    int64_t calls;
    double seconds; /* of its spans, without the spans inside them */
    struct profile_cost cost;
};

struct profile_mark {
    double begin, inside; /* private */
};

/* Bytes that profile_create takes. */
int64_t profile_bytes(int threads, int64_t spans);
/* `spans` are kept of each of `threads` threads. */
int profile_create(struct profile **out, int threads, int64_t spans, struct error *err);
void profile_free(struct profile *p); /* NULL is allowed */

/* Forgets what was recorded, and records from here on. */
void profile_start(struct profile *p);
void profile_stop(struct profile *p);
bool profile_records(const struct profile *p);

/* A span of thread 0. Names are compared by address and must outlive the profile. `cost` may be NULL. At most
 * PROFILE_MAX_ROWS names are told apart; what is beyond them is in the last row. */
struct profile_mark profile_begin(const struct profile *p);
void profile_end(struct profile *p, const char *name, struct profile_mark mark,
                 const struct profile_cost *cost);
/* A span of any thread, by that thread; clock_seconds(). Not summed up. */
void profile_add(struct profile *p, int thread, const char *name, double begin, double end);

/* In the order in which names were met first. */
const struct profile_row *profile_rows(const struct profile *p, int *count);
/* From profile_start to profile_stop. */
double profile_seconds(const struct profile *p);
/* Spans that were not kept. */
int64_t profile_lost(const struct profile *p);

/* Appends this process's part of a Chrome trace (JSON array format): events with a comma behind each, which
 * the caller puts between "[" and a last event without one. Process `rank`, a thread each; time from
 * profile_start in microseconds. Errors are the stream's: ferror(). */
void profile_write_trace(const struct profile *p, FILE *out, int rank);

#endif
