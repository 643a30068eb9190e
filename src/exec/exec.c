#include "exec/exec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void *address(const struct program_operand *o, const struct exec_bindings *b)
{
    switch (o->place) {
    case PLACE_IO:
        return b->io[o->index];
    case PLACE_PARAM:
        return b->param[o->index];
    case PLACE_GRAD:
        return b->grad[o->index];
    case PLACE_SAVED:
        return (char *)b->saved + o->offset;
    case PLACE_WORK:
        return (char *)b->work + o->offset;
    case PLACE_NONE:
        break;
    }
    return NULL;
}

int exec_check_finite(struct exec *e, const void *device, enum dtype type, int64_t n, const char *what,
                      struct error *err)
{
    if (n == 0 || !dtype_info(type)->is_float)
        return 0;
    size_t bytes = (size_t)dtype_bytes(type, n);
    void *host = malloc(bytes);
    double *values = malloc((size_t)n * sizeof *values);
    int status = -1;
    if (!host || !values) {
        error_memory(err, bytes, "the search for a non-finite value");
    } else if (backend_download(e->backend, 0, host, device, bytes, err) == 0 &&
               backend_sync(e->backend, 0, err) == 0) {
        dtype_convert(DTYPE_F64, values, type, host, n);
        status = 0;
        for (int64_t i = 0; i < n && status == 0; i++)
            if (!isfinite(values[i]))
                status = error_set(err, ERROR_RUN, NULL, NULL, "%s: element %lld is %f", what, (long long)i,
                                   values[i]);
    }
    free(host);
    free(values);
    return status;
}

static int check_outputs(struct exec *e, const struct op_call *call, int part, struct error *err)
{
    for (int i = 0; i < call->outputs; i++) {
        char what[128];
        /* attention's lse is +inf for padding by contract. */
        if (call->op == OP_ATTENTION && i == 1)
            continue;
        snprintf(what, sizeof what, "op '%s' of the %s pass", op_name(call->op),
                 part == PROGRAM_FORWARD ? "forward" : "backward");
        if (exec_check_finite(e, call->out[i].data, call->out[i].type, operand_elements(&call->out[i]), what,
                              err) != 0)
            return -1;
    }
    return 0;
}

int exec_run(struct exec *e, const struct program *p, int part, const struct exec_bindings *b,
             const struct graph_counts *counts, struct error *err)
{
    for (int s = 0; s < p->part[part].count; s++) {
        const struct program_step *step = &p->part[part].steps[s];
        struct op_call call;
        program_call(step, counts, &call);
        for (int i = 0; i < call.inputs; i++)
            call.in[i].data = address(&step->in[i], b);
        for (int i = 0; i < call.outputs; i++)
            call.out[i].data = address(&step->out[i], b);
        call.workspace = step->workspace_bytes ? (char *)b->work + step->workspace : NULL;
        if (backend_run(e->backend, 0, &call, err) != 0)
            return -1;
        e->stats.ops[step->op]++;
        e->stats.recomputed[step->op] += step->recomputed;
        if (e->check && check_outputs(e, &call, part, err) != 0)
            return -1;
    }
    return 0;
}

int exec_workspace(void *backend, const struct op_call *call, size_t *bytes, struct error *err)
{
    return backend_prepare(backend, call, bytes, err);
}
