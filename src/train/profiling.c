#include "train/profiling.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLD_STEPS = 2, SPANS = 1 << 17 };

int64_t profiling_bytes(const struct train_run *run)
{
    return run->options->profile_steps > 0 ? profile_bytes(run->plan.threads, SPANS) : 0;
}

int profiling_create(struct train_run *run, struct error *err)
{
    if (run->options->profile_steps == 0)
        return 0;
    run->trace_path = file_join(run->options->output, "trace.json");
    if (!run->trace_path)
        return error_memory(err, strlen(run->options->output), "a path");
    if (profile_create(&run->profile, run->plan.threads, SPANS, err) != 0)
        return -1;
    run->engine->profile = run->profile;
    backend_profile(run->backend, run->profile);
    return 0;
}

void profiling_free(struct train_run *run)
{
    profile_free(run->profile);
    free(run->trace_path);
}

void profiling_step_begins(struct train_run *run, const struct train_report *report, int64_t step)
{
    int64_t cold = run->plan.total_steps - report->first_step - run->options->profile_steps;
    cold = cold < 0 ? 0 : cold < COLD_STEPS ? cold : COLD_STEPS;
    if (run->profile && step == report->first_step + cold) {
        run->profiled_from = step;
        profile_start(run->profile);
    }
}

/* ---- the trace ---- */

/* This rank's part: rank 0 begins the file, the last one ends it. */
static int append_trace(const struct train_run *run, struct error *err)
{
    int rank = comm_rank(run->comm);
    FILE *f = fopen(run->trace_path, rank == 0 ? "we" : "ae");
    if (!f)
        return error_errno(err, errno, run->trace_path, "write it");
    if (rank == 0)
        fputs("[\n", f);
    profile_write_trace(run->profile, f, rank);
    if (rank == comm_size(run->comm) - 1)
        fputs("{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": 0, \"args\": {\"labels\": "
              "\"tercet\"}}\n]\n",
              f);
    bool failed = ferror(f);
    int why = errno;
    if (fclose(f) != 0) {
        failed = true;
        why = errno;
    }
    return failed ? error_errno(err, why, run->trace_path, "write it") : 0;
}

/* One rank after the other. */
static int write_trace(const struct train_run *run, struct error *err)
{
    for (int r = 0; r < comm_size(run->comm); r++) {
        if (r == comm_rank(run->comm) && append_trace(run, err) != 0)
            return -1;
        if (comm_barrier(run->comm, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- the table ---- */

static int by_seconds(const void *a, const void *b)
{
    const struct profile_row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void fill_table(const struct train_run *run, int64_t steps, struct train_profile *out)
{
    const struct profile_row *rows = profile_rows(run->profile, &out->count);
    memcpy(out->rows, rows, (size_t)out->count * sizeof *rows);
    qsort(out->rows, (size_t)out->count, sizeof *out->rows, by_seconds);
    out->steps = steps;
    out->seconds = profile_seconds(run->profile);
    out->peak = run->peak / comm_size(run->comm);
    out->bandwidth = run->options->bandwidth / comm_local_size(run->comm);
}

double train_profile_limit(const struct train_profile *p, const struct profile_row *row)
{
    double products = p->peak > 0 ? row->cost.product_flops / p->peak : 0;
    double moves = p->bandwidth > 0 ? row->cost.bytes / p->bandwidth : 0;
    bool known = (row->cost.product_flops == 0 || p->peak > 0) && p->bandwidth > 0 && row->seconds > 0;
    return known ? (products > moves ? products : moves) / row->seconds : 0;
}

static void log_table(const struct train_run *run, const struct train_profile *p)
{
    const struct log *log = run->log;
    double steps = (double)p->steps;
    log_info(log, "%-20s %9s %10s %7s %9s %8s %13s", "profile of rank 0", "calls", "ms a step", "share",
             "GFLOP/s", "GB/s", "of its limit");
    for (int i = 0; i < p->count; i++) {
        const struct profile_row *r = &p->rows[i];
        char flops[32] = "", bytes[32] = "", limit[32] = "";
        if (r->cost.product_flops > 0)
            snprintf(flops, sizeof flops, "%.1f", r->cost.product_flops / r->seconds / 1e9);
        if (r->cost.bytes > 0)
            snprintf(bytes, sizeof bytes, "%.1f", r->cost.bytes / r->seconds / 1e9);
        if (r->cost.bytes > 0 && train_profile_limit(p, r) > 0)
            snprintf(limit, sizeof limit, "%.0f %%", 100 * train_profile_limit(p, r));
        log_info(log, "%-20s %9.1f %10.2f %5.1f %% %9s %8s %13s", r->name, (double)r->calls / steps,
                 1e3 * r->seconds / steps, 100 * r->seconds / p->seconds, flops, bytes, limit);
    }
    if (p->peak <= 0)
        log_info(log,
                 "`tercet doctor` measures this machine's product peak, which the limit of products needs");
    if (profile_lost(run->profile) > 0)
        log_warning(log, "%s lacks the last %" PRId64 " spans of rank 0, for which there was no room",
                    run->trace_path, profile_lost(run->profile));
    log_info(log, "steps %" PRId64 " to %" PRId64 " are in %s, for Perfetto", run->profiled_from + 1,
             run->profiled_from + p->steps, run->trace_path);
}

int profiling_step_ends(struct train_run *run, struct train_report *report, int64_t step, bool last,
                        struct error *err)
{
    int64_t steps = step + 1 - run->profiled_from;
    if (!profile_records(run->profile) || (!last && steps < run->options->profile_steps))
        return 0;
    profile_stop(run->profile);
    backend_profile(run->backend, NULL);
    run->engine->profile = NULL;
    if (write_trace(run, err) != 0)
        return -1;
    if (comm_rank(run->comm) != 0)
        return 0;
    fill_table(run, steps, &report->profile);
    log_table(run, &report->profile);
    return 0;
}
