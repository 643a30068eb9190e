/* `train --profile`: a few steps are timed op by op; then the run goes on without that.
 *
 * Rank 0 logs a table of its own time; every rank's threads go into OUTPUT/trace.json, for Perfetto or
 * chrome://tracing. The first steps, in which caches and pages are still cold, are left out where there are
 * enough. */
#ifndef TERCET_TRAIN_PROFILING_H
#define TERCET_TRAIN_PROFILING_H

#include "train/run_internal.h"

/* Bytes that it takes of a rank; 0 where nothing is profiled. */
int64_t profiling_bytes(const struct train_run *run);
/* Takes its memory, and hands it to the engine and the backend. Nothing where nothing is to be profiled. */
int profiling_create(struct train_run *run, struct error *err);
void profiling_free(struct train_run *run);

/* Before and after each step. The latter, at the end of what is profiled, is collective: the trace is written
 * and `report` and the log get the table. */
void profiling_step_begins(struct train_run *run, const struct train_report *report, int64_t step);
int profiling_step_ends(struct train_run *run, struct train_report *report, int64_t step, bool last,
                        struct error *err);

#endif
