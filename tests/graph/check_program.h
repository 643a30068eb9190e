/* Whether a program computes what its graph says, wherever its values lie: both are run on symbols.
 *
 * In the graph, the symbol of a value is a hash of the op, its numbers, and the symbols of its operands. The
 * program is run on memory that holds a symbol in each 64 bytes; a step reads its operands there, whole, and
 * writes its outputs. A value that was overwritten while it was still needed, never written, written again
 * with something else, or read from a wrong place gives another symbol. Workspaces are written over before
 * and after an op reads its operands, and temporaries are forgotten between the parts. */
#ifndef TERCET_TESTS_GRAPH_CHECK_PROGRAM_H
#define TERCET_TESTS_GRAPH_CHECK_PROGRAM_H

#include "support/cmocka.h"

#include "graph/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_UNIT = 64 };

struct check_run {
    const struct graph *g;
    const struct program *p;
    const char *what;
    uint64_t *value;        /* [value_count]: symbols by the graph */
    uint64_t *saved, *work; /* memory, a symbol a unit */
    uint64_t *io, *grad;    /* by slot, by parameter */
    int64_t saved_units, work_units;
    int part, step;
};

static uint64_t check_mix(uint64_t a, uint64_t b)
{
    uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 29);
}

static uint64_t check_text(const char *kind, const char *name)
{
    uint64_t h = 7;
    for (; *kind; kind++)
        h = check_mix(h, (uint64_t)*kind);
    for (; *name; name++)
        h = check_mix(h, (uint64_t)*name + 1000);
    return h;
}

static uint64_t check_number(const char *kind, int64_t n)
{
    return check_mix(check_text(kind, ""), (uint64_t)n);
}

static uint64_t check_op(enum op op, const struct op_attr *a, const uint64_t *in, int inputs, int output)
{
    uint64_t h = check_number("op", op), bits = 0;
    const float numbers[] = {a->eps, a->scale};
    const int64_t sizes[] = {a->heads, a->kv_heads, a->head_dim, a->rows, a->inverse, a->first, output};
    memcpy(&bits, numbers, sizeof numbers);
    h = check_mix(h, bits);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        h = check_mix(h, (uint64_t)sizes[i]);
    for (int i = 0; i < inputs; i++)
        h = check_mix(h, in[i]);
    return h;
}

static void check_graph_symbols(struct check_run *r)
{
    const struct graph *g = r->g;
    for (int v = 0; v < g->value_count; v++) {
        if (g->values[v].kind == GRAPH_VALUE_INPUT)
            r->value[v] = check_text("input", g->values[v].name);
        else if (g->values[v].kind == GRAPH_VALUE_PARAM)
            r->value[v] = check_number("param", g->values[v].index);
    }
    for (int n = 0; n < g->node_count; n++) {
        const struct graph_node *node = &g->nodes[n];
        uint64_t in[OP_MAX_INPUTS];
        for (int i = 0; i < node->inputs; i++)
            in[i] = node->in[i] == GRAPH_NONE ? 0 : r->value[node->in[i]];
        for (int i = 0; i < node->outputs; i++)
            r->value[node->out[i]] = check_op(node->op, &node->attr, in, node->inputs, i);
    }
}

static int64_t check_units(const struct check_run *r, const struct program_operand *o)
{
    int64_t n = 1;
    for (int i = 0; i < o->ndim; i++)
        n *= graph_dim(o->dim[i], &r->p->bounds);
    return (dtype_bytes(o->type, n) + CHECK_UNIT - 1) / CHECK_UNIT;
}

static void check_fail(const struct check_run *r, const char *problem)
{
    fail_msg("%s: part %d, step %d (%s): %s", r->what, r->part, r->step,
             op_name(r->p->part[r->part].steps[r->step].op), problem);
}

/* The units of an operand in saved or work; NULL elsewhere. */
static uint64_t *check_units_of(const struct check_run *r, const struct program_operand *o)
{
    if (o->place != PLACE_SAVED && o->place != PLACE_WORK)
        return NULL;
    int64_t units = o->place == PLACE_SAVED ? r->saved_units : r->work_units;
    if (o->offset % CHECK_UNIT != 0 || o->offset < 0 || o->offset / CHECK_UNIT + check_units(r, o) > units)
        check_fail(r, "an operand lies outside of its region or is not aligned");
    return (o->place == PLACE_SAVED ? r->saved : r->work) + o->offset / CHECK_UNIT;
}

static uint64_t check_read(const struct check_run *r, const struct program_operand *o)
{
    const uint64_t *units = check_units_of(r, o);
    switch (o->place) {
    case PLACE_NONE:
        return 0;
    case PLACE_IO:
        return r->io[o->index];
    case PLACE_PARAM:
        return check_number("param", o->index);
    case PLACE_GRAD:
        return r->grad[o->index];
    default:
        break;
    }
    int64_t n = check_units(r, o);
    for (int64_t i = 1; i < n; i++)
        if (units[i] != units[0])
            check_fail(r, "an operand was overwritten in part");
    return n > 0 ? units[0] : 0;
}

static void check_write(struct check_run *r, const struct program_operand *o, uint64_t symbol)
{
    uint64_t *units = check_units_of(r, o);
    if (o->place == PLACE_IO)
        r->io[o->index] = symbol;
    else if (o->place == PLACE_GRAD)
        r->grad[o->index] = symbol;
    else if (units)
        for (int64_t i = 0; i < check_units(r, o); i++)
            units[i] = symbol;
    else
        check_fail(r, "an output has no place");
    if (r->part == PROGRAM_BACKWARD && o->place == PLACE_SAVED)
        check_fail(r, "the backward part writes to what was saved");
}

static void check_workspace(struct check_run *r, const struct program_step *s)
{
    if (s->workspace_bytes == 0)
        return;
    int64_t first = s->workspace / CHECK_UNIT, n = (s->workspace_bytes + CHECK_UNIT - 1) / CHECK_UNIT;
    if (s->workspace % CHECK_UNIT != 0 || s->workspace < 0 || first + n > r->work_units)
        check_fail(r, "the workspace lies outside of work or is not aligned");
    for (int64_t i = first; i < first + n; i++)
        r->work[i] = check_number("workspace", r->step);
}

static void check_step(struct check_run *r, const struct program_step *s)
{
    uint64_t in[OP_MAX_INPUTS] = {0}, before[OP_MAX_INPUTS] = {0};
    for (int i = 0; i < s->inputs; i++)
        before[i] = check_read(r, &s->in[i]);
    check_workspace(r, s);
    for (int i = 0; i < s->inputs; i++) {
        in[i] = check_read(r, &s->in[i]);
        if (in[i] != before[i])
            check_fail(r, "the workspace lies over an operand");
    }
    for (int i = 0; i < s->outputs; i++) {
        uint64_t symbol = check_op(s->op, &s->attr, in, s->inputs, i);
        if (s->op == OP_ACCUMULATE)
            symbol = check_mix(r->grad[s->out[0].index], in[0]);
        check_write(r, &s->out[i], symbol);
        /* Outputs may not lie over operands, unless the op changes one in place. */
        for (int k = 0; k < s->inputs; k++)
            if (s->op != OP_CACHE_WRITE && check_read(r, &s->in[k]) != in[k])
                check_fail(r, "an output lies over an operand");
    }
    uint64_t after[OP_MAX_OUTPUTS] = {0};
    for (int i = 0; i < s->outputs; i++)
        after[i] = check_read(r, &s->out[i]);
    check_workspace(r, s);
    for (int i = 0; i < s->outputs; i++)
        if (check_read(r, &s->out[i]) != after[i])
            check_fail(r, "the workspace lies over an output");
    for (int i = 0; i < s->outputs; i++)
        for (int k = 0; k < i; k++)
            if (after[i] == after[k])
                check_fail(r, "two outputs lie over each other");
}

static int64_t check_highest(const struct check_run *r)
{
    int64_t highest = 0;
    for (int64_t i = 0; i < r->work_units; i++)
        if (r->work[i] != check_text("forgotten", ""))
            highest = (i + 1) * CHECK_UNIT;
    return highest;
}

static void check_results(const struct check_run *r, const bool *grad_adds)
{
    for (int i = 0; i < r->g->output_count; i++) {
        bool found = false;
        for (int k = 0; k < r->p->io_count; k++) {
            const struct program_io *io = &r->p->io[k];
            if (!io->output || strcmp(io->name, r->g->outputs[i].name) != 0)
                continue;
            found = true;
            if (r->io[k] != r->value[r->g->outputs[i].value])
                fail_msg("%s: output '%s' is not what the graph says", r->what, io->name);
        }
        if (!found)
            fail_msg("%s: output '%s' has no slot", r->what, r->g->outputs[i].name);
    }
    for (int i = 0; r->g->param_grad && i < r->g->param_count; i++) {
        if (r->g->param_grad[i] == GRAPH_NONE)
            continue;
        uint64_t wanted = r->value[r->g->param_grad[i]];
        if (grad_adds && grad_adds[i])
            wanted = check_mix(check_number("gradient before", i), wanted);
        if (r->grad[i] != wanted)
            fail_msg("%s: the gradient of parameter %d is not what the graph says", r->what, i);
    }
}

static uint64_t *check_memory(int64_t units, uint64_t symbol)
{
    uint64_t *m = malloc((size_t)(units + 1) * sizeof *m);
    assert_non_null(m);
    for (int64_t i = 0; i < units; i++)
        m[i] = symbol;
    return m;
}

/* Fails the test when `p` does not compute what `g` says. */
static void check_program(const struct graph *g, const struct program *p, const bool *grad_adds,
                          const char *what)
{
    struct check_run r = {.g = g, .p = p, .what = what};
    uint64_t forgotten = check_text("forgotten", "");
    r.value = check_memory(g->value_count, 0);
    r.io = check_memory(p->io_count, forgotten);
    r.grad = check_memory(p->param_count, 0);
    r.saved_units = p->saved_bytes / CHECK_UNIT;
    r.saved = check_memory(r.saved_units, forgotten);
    check_graph_symbols(&r);
    for (int i = 0; i < p->param_count; i++)
        r.grad[i] = check_number("gradient before", i);
    for (int i = 0; i < p->io_count; i++)
        if (!p->io[i].output)
            r.io[i] = check_text("input", p->io[i].name);
    for (r.part = 0; r.part < PROGRAM_PARTS; r.part++) {
        const struct program_part *part = &p->part[r.part];
        assert_int_equal(part->work_bytes % CHECK_UNIT, 0);
        r.work_units = part->work_bytes / CHECK_UNIT;
        r.work = check_memory(r.work_units, forgotten);
        for (r.step = 0; r.step < part->count; r.step++)
            check_step(&r, &part->steps[r.step]);
        if (check_highest(&r) != part->work_bytes)
            fail_msg("%s: part %d plans %lld bytes of work and uses %lld", what, r.part,
                     (long long)part->work_bytes, (long long)check_highest(&r));
        free(r.work);
    }
    check_results(&r, grad_adds);
    free(r.value);
    free(r.io);
    free(r.grad);
    free(r.saved);
}

#endif
