/* Runs a program on a backend: resolves places to addresses and counts to sizes, and enqueues the ops.
 *
 *     struct exec exec = {.backend = backend};
 *     struct exec_bindings b = {.io = slots, .param = params, .grad = grads, .saved = …, .work = …};
 *     exec_run(&exec, program, PROGRAM_FORWARD, &b, &counts, err);
 *
 * Nothing has happened when it returns, see backend.h. It does not know what the graph is for. */
#ifndef TERCET_EXEC_EXEC_H
#define TERCET_EXEC_EXEC_H

#include "backend/backend.h"
#include "graph/program.h"

struct exec_stats {
    int64_t ops[OP_COUNT];        /* run so far, by op */
    int64_t recomputed[OP_COUNT]; /* of these, forward ops run again by a backward part */
};

struct exec {
    struct backend *backend;
    /* Find the first non-finite value: after each op its float outputs are fetched and looked at. Slow;
     * for the rerun of a step that went wrong. The error names the op and its output. */
    bool check;
    struct exec_stats stats;
};

/* Device addresses. io has the program's io_count entries (slots that the part does not touch may be
 * NULL), param and grad its param_count. */
struct exec_bindings {
    void *const *io, *const *param, *const *grad;
    void *saved, *work;
};

int exec_run(struct exec *e, const struct program *p, int part, const struct exec_bindings *b,
             const struct graph_counts *counts, struct error *err);

/* ERROR_RUN naming `what` when one of n floats of `type` in device memory is NaN or infinite. Waits. */
int exec_check_finite(struct exec *e, const void *device, enum dtype type, int64_t n, const char *what,
                      struct error *err);

/* The workspace question of program_options, asked of a backend (context). */
int exec_workspace(void *backend, const struct op_call *call, size_t *bytes, struct error *err);

#endif
