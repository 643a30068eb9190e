#include "graph/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Where and how long a value lives in the part that is being laid out. */
struct life {
    int value;       /* value number; -1 for a workspace */
    int step;        /* of a workspace: its step */
    int first, last; /* steps, inclusive */
    int64_t bytes, offset;
};

struct compiler {
    const struct graph *g;
    const struct program_options *options;
    struct program *p;
    struct program_operand *home; /* by value: where it is, as far as decided */
    bool *again;                  /* by node: the backward part runs it again */
    bool *added;                  /* by node: it is among the backward part's steps already */
    struct life *lives;
    int life_count;
    struct error *err;
};

static int64_t align(int64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The value whose memory `value` stands in: what cache_write gives is the cache that it was given. */
static int storage(const struct graph *g, int value)
{
    while (value != GRAPH_NONE && g->values[value].kind == GRAPH_VALUE_NODE &&
           g->nodes[g->values[value].index].op == OP_CACHE_WRITE)
        value = g->nodes[g->values[value].index].in[2];
    return value;
}

static void operand_resolve(const struct program_operand *from, const struct graph_counts *counts,
                            struct operand *to)
{
    to->data = NULL;
    to->type = from->type;
    to->ndim = from->ndim;
    for (int i = 0; i < from->ndim; i++)
        to->dim[i] = graph_dim(from->dim[i], counts);
}

static int io_add(struct compiler *c, const char *name, int value, bool output)
{
    const struct graph_value *v = &c->g->values[value];
    struct program_io *io = &c->p->io[c->p->io_count];
    snprintf(io->name, sizeof io->name, "%s", name);
    io->type = v->type;
    io->ndim = v->ndim;
    memcpy(io->dim, v->dim, sizeof io->dim);
    io->output = output;
    return c->p->io_count++;
}

static void home_set(struct compiler *c, int value, enum place place, int index)
{
    const struct graph_value *v = &c->g->values[value];
    struct program_operand *home = &c->home[value];
    home->place = place;
    home->index = index;
    home->type = v->type;
    home->ndim = v->ndim;
    memcpy(home->dim, v->dim, sizeof home->dim);
}

/* Inputs, parameters, named outputs and parameter gradients have their places from the start. */
static int place_outer(struct compiler *c)
{
    const struct graph *g = c->g;
    for (int v = 0; v < g->value_count; v++) {
        home_set(c, v, PLACE_NONE, 0);
        if (g->values[v].kind == GRAPH_VALUE_PARAM)
            home_set(c, v, PLACE_PARAM, g->values[v].index);
        else if (g->values[v].kind == GRAPH_VALUE_INPUT)
            home_set(c, v, PLACE_IO, io_add(c, g->values[v].name, v, false));
    }
    for (int i = 0; i < g->output_count; i++) {
        int v = g->outputs[i].value;
        if (storage(g, v) != v)
            return error_set(c->err, ERROR_RUN, "graph", NULL,
                             "output '%s' is a cache: it stands where it was given", g->outputs[i].name);
        if (c->home[v].place != PLACE_NONE)
            return error_set(c->err, ERROR_RUN, "graph", NULL,
                             "output '%s' is an input, a parameter or another output as well",
                             g->outputs[i].name);
        home_set(c, v, PLACE_IO, io_add(c, g->outputs[i].name, v, true));
    }
    for (int i = 0; g->param_grad && i < g->param_count; i++) {
        int v = g->param_grad[i];
        if (v == GRAPH_NONE)
            continue;
        if (c->home[v].place != PLACE_NONE)
            return error_set(c->err, ERROR_RUN, "graph", NULL,
                             "the gradient of parameter %d is another value as well", i);
        if (!c->options->grad_adds || !c->options->grad_adds[i])
            home_set(c, v, PLACE_GRAD, i);
    }
    return 0;
}

static bool is_temporary(const struct compiler *c, int value)
{
    return value != GRAPH_NONE && c->home[value].place == PLACE_NONE;
}

/* Marks the forward nodes that must run again so that `value` exists in the backward part. */
static void mark_again(struct compiler *c, int value)
{
    if (!is_temporary(c, value))
        return;
    int n = c->g->values[value].index;
    const struct graph_node *node = &c->g->nodes[n];
    if (node->backward || c->again[n])
        return;
    c->again[n] = true;
    for (int i = 0; i < node->inputs; i++)
        mark_again(c, node->in[i]);
}

static bool read_by_backward(const struct graph *g, int value)
{
    for (int n = 0; n < g->node_count; n++)
        for (int i = 0; g->nodes[n].backward && i < g->nodes[n].inputs; i++)
            if (storage(g, g->nodes[n].in[i]) == value)
                return true;
    return false;
}

/* Whether the backward part finds a value without anything more being saved for it. */
static bool is_at_hand(const struct compiler *c, int value)
{
    int v = storage(c->g, value);
    return value == GRAPH_NONE || !is_temporary(c, v) || c->again[c->g->values[v].index] ||
           read_by_backward(c->g, v);
}

/* Selective recompute: nodes in order, so that what their inputs come to is known. */
static void mark_cheap(struct compiler *c)
{
    const struct graph *g = c->g;
    for (int n = 0; n < g->node_count; n++) {
        const struct graph_node *node = &g->nodes[n];
        int v = node->out[0];
        bool wanted = !node->backward && is_temporary(c, v) && read_by_backward(g, v);
        for (int i = 0; wanted && i < node->inputs; i++)
            wanted = is_at_hand(c, node->in[i]);
        if (!wanted)
            continue;
        struct op_call call = {
            .op = node->op, .inputs = node->inputs, .outputs = node->outputs, .attr = node->attr};
        for (int i = 0; i < node->inputs; i++)
            if (node->in[i] != GRAPH_NONE)
                operand_resolve(&c->home[node->in[i]], &c->options->bounds, &call.in[i]);
        for (int i = 0; i < node->outputs; i++)
            operand_resolve(&c->home[node->out[i]], &c->options->bounds, &call.out[i]);
        c->again[n] = op_is_cheap(&call, &call.out[0]);
    }
}

/* What the backward part reads of the forward part: saved, or made again. */
static void place_saved(struct compiler *c)
{
    const struct graph *g = c->g;
    if (c->options->recompute == RECOMPUTE_FULL)
        for (int n = 0; n < g->node_count; n++)
            for (int i = 0; g->nodes[n].backward && i < g->nodes[n].inputs; i++)
                mark_again(c, g->nodes[n].in[i]);
    if (c->options->recompute == RECOMPUTE_SELECTIVE)
        mark_cheap(c);
    for (int n = 0; n < g->node_count; n++) {
        if (!g->nodes[n].backward && !c->again[n])
            continue;
        for (int i = 0; i < g->nodes[n].inputs; i++) {
            int v = storage(g, g->nodes[n].in[i]);
            if (!is_temporary(c, v) || g->nodes[g->values[v].index].backward || c->again[g->values[v].index])
                continue;
            home_set(c, v, PLACE_SAVED, 0);
            c->home[v].offset = c->p->saved_bytes;
            c->p->saved_bytes += align(graph_value_bytes(&g->values[v], &c->options->bounds));
        }
    }
}

/* The next step of a part: node n, noted in order[]. */
static void step_add(struct compiler *c, struct program_part *part, int *order, int n, bool recomputed)
{
    const struct graph_node *node = &c->g->nodes[n];
    struct program_step *s = &part->steps[part->count];
    order[part->count++] = n;
    memset(s, 0, sizeof *s);
    s->op = node->op;
    s->inputs = node->inputs;
    s->outputs = node->outputs;
    s->attr = node->attr;
    s->recomputed = recomputed;
}

/* Adds the forward nodes that `node` needs run again, unless they have been: as late as can be, so that what
 * they compute takes room for a short time. */
static void add_again(struct compiler *c, struct program_part *part, int *order,
                      const struct graph_node *node)
{
    for (int i = 0; i < node->inputs; i++) {
        int v = storage(c->g, node->in[i]);
        if (!is_temporary(c, v) || c->g->values[v].kind != GRAPH_VALUE_NODE)
            continue;
        int n = c->g->values[v].index;
        if (!c->again[n] || c->added[n])
            continue;
        c->added[n] = true;
        add_again(c, part, order, &c->g->nodes[n]);
        step_add(c, part, order, n, true);
    }
}

/* A life for every temporary of the part. order[i] is the node of step i. */
static void collect_lives(struct compiler *c, const int *order, int steps)
{
    const struct graph *g = c->g;
    c->life_count = 0;
    for (int s = 0; s < steps; s++) {
        const struct graph_node *node = &g->nodes[order[s]];
        for (int i = 0; i < node->outputs; i++) {
            int v = node->out[i];
            if (!is_temporary(c, v) || storage(g, v) != v)
                continue;
            c->lives[c->life_count++] =
                (struct life){.value = v,
                              .step = s,
                              .first = s,
                              .last = s,
                              .bytes = align(graph_value_bytes(&g->values[v], &c->options->bounds))};
        }
        for (int i = 0; i < node->inputs; i++)
            for (int l = 0; l < c->life_count; l++)
                if (node->in[i] != GRAPH_NONE && c->lives[l].value == storage(g, node->in[i]))
                    c->lives[l].last = s;
    }
    /* A gradient that is added to another unit's at the end lives until then. */
    for (int i = 0; g->param_grad && c->options->grad_adds && i < g->param_count; i++)
        for (int l = 0; l < c->life_count; l++)
            if (c->options->grad_adds[i] && c->lives[l].value == g->param_grad[i])
                c->lives[l].last = steps;
}

static int by_size(const void *a, const void *b)
{
    const struct life *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->value - y->value;
}

/* Offsets: the largest first, each at the lowest place that is free for its whole life. */
static int64_t pack(struct life *lives, int count)
{
    int64_t end = 0;
    qsort(lives, (size_t)count, sizeof *lives, by_size);
    for (int i = 0; i < count; i++) {
        int64_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int j = 0; j < i; j++) {
                bool together = lives[j].first <= lives[i].last && lives[i].first <= lives[j].last;
                bool overlap = at < lives[j].offset + lives[j].bytes && lives[j].offset < at + lives[i].bytes;
                if (together && overlap) {
                    at = lives[j].offset + lives[j].bytes;
                    moved = true;
                }
            }
        }
        lives[i].offset = at;
        if (at + lives[i].bytes > end)
            end = at + lives[i].bytes;
    }
    return end;
}

static const struct life *life_of(const struct compiler *c, int value, int step)
{
    for (int l = 0; l < c->life_count; l++)
        if (c->lives[l].value == value && (value >= 0 || c->lives[l].step == step))
            return &c->lives[l];
    return NULL;
}

static int operand_set(struct compiler *c, int value, struct program_operand *out)
{
    if (value == GRAPH_NONE) {
        memset(out, 0, sizeof *out);
        return 0;
    }
    value = storage(c->g, value);
    *out = c->home[value];
    if (out->place != PLACE_NONE)
        return 0;
    const struct graph_value *v = &c->g->values[value];
    const struct life *life = life_of(c, value, 0);
    if (!life)
        return error_set(c->err, ERROR_RUN, "graph", NULL, "'%s' is read but never computed", v->name);
    out->place = PLACE_WORK;
    out->offset = life->offset;
    return 0;
}

/* Lays out one part whose steps are the nodes order[]. */
static int layout_part(struct compiler *c, struct program_part *part, const int *order)
{
    collect_lives(c, order, part->count);
    for (int s = 0; s < part->count; s++) {
        struct program_step *step = &part->steps[s];
        const struct graph_node *node = &c->g->nodes[order[s]];
        /* The workspace question needs types and shapes only, which home[] has for every value. */
        for (int i = 0; i < node->inputs; i++)
            step->in[i] = node->in[i] == GRAPH_NONE ? (struct program_operand){0} : c->home[node->in[i]];
        for (int i = 0; i < node->outputs; i++)
            step->out[i] = c->home[node->out[i]];
        struct op_call call;
        size_t bytes = 0;
        program_call(step, &c->options->bounds, &call);
        if (c->options->workspace && c->options->workspace(c->options->context, &call, &bytes, c->err) != 0)
            return -1;
        step->workspace_bytes = (int64_t)bytes;
        if (bytes > 0)
            c->lives[c->life_count++] =
                (struct life){.value = -1, .step = s, .first = s, .last = s, .bytes = align((int64_t)bytes)};
    }
    part->work_bytes = pack(c->lives, c->life_count);
    for (int s = 0; s < part->count; s++) {
        struct program_step *step = &part->steps[s];
        const struct graph_node *node = &c->g->nodes[order[s]];
        for (int i = 0; i < node->inputs; i++)
            if (operand_set(c, node->in[i], &step->in[i]) != 0)
                return -1;
        for (int i = 0; i < node->outputs; i++)
            if (operand_set(c, node->out[i], &step->out[i]) != 0)
                return -1;
        if (step->workspace_bytes > 0)
            step->workspace = life_of(c, -1, s)->offset;
    }
    return 0;
}

/* Gradients that are added to what another unit left: one more step after the one that computes them. */
static int add_grads(struct compiler *c, struct program_part *part)
{
    const struct graph *g = c->g;
    for (int i = 0; g->param_grad && c->options->grad_adds && i < g->param_count; i++) {
        int v = g->param_grad[i];
        if (v == GRAPH_NONE || !c->options->grad_adds[i])
            continue;
        struct program_step *s = &part->steps[part->count];
        memset(s, 0, sizeof *s);
        s->op = OP_ACCUMULATE;
        s->inputs = s->outputs = 1;
        if (operand_set(c, v, &s->in[0]) != 0)
            return -1;
        s->out[0] = s->in[0];
        s->out[0].place = PLACE_GRAD;
        s->out[0].index = i;
        s->out[0].offset = 0;
        part->count++;
    }
    return 0;
}

static int compile(struct compiler *c)
{
    const struct graph *g = c->g;
    struct program *p = c->p;
    int *order = calloc(2 * (size_t)g->node_count + 1, sizeof *order);
    if (!order)
        return error_memory(c->err, 0, "a program");
    int status = place_outer(c);
    if (status == 0) {
        place_saved(c);
        for (int n = 0; n < g->node_count; n++)
            if (!g->nodes[n].backward)
                step_add(c, &p->part[PROGRAM_FORWARD], order, n, false);
        status = layout_part(c, &p->part[PROGRAM_FORWARD], order);
    }
    if (status == 0) {
        struct program_part *back = &p->part[PROGRAM_BACKWARD];
        for (int n = 0; n < g->node_count; n++) {
            if (!g->nodes[n].backward)
                continue;
            add_again(c, back, order, &g->nodes[n]);
            step_add(c, back, order, n, false);
        }
        status = layout_part(c, back, order);
        if (status == 0)
            status = add_grads(c, back);
    }
    free(order);
    return status;
}

int program_compile(struct program **out, const struct graph *g, const struct program_options *options,
                    struct error *err)
{
    *out = NULL;
    if (graph_check(g, err) != 0)
        return -1;
    struct compiler c = {.g = g, .options = options, .err = err};
    size_t values = (size_t)g->value_count + 1,
           nodes = 2 * (size_t)g->node_count + (size_t)g->param_count + 1;
    c.p = calloc(1, sizeof *c.p);
    c.home = calloc(values, sizeof *c.home);
    c.again = calloc(nodes, sizeof *c.again);
    c.added = calloc(nodes, sizeof *c.added);
    c.lives = calloc(values + nodes, sizeof *c.lives);
    int status = -1;
    if (c.p) {
        c.p->io = calloc(values + (size_t)g->output_count, sizeof *c.p->io);
        for (int i = 0; i < PROGRAM_PARTS; i++)
            c.p->part[i].steps = calloc(nodes, sizeof(struct program_step));
    }
    if (!c.p || !c.home || !c.again || !c.added || !c.lives || !c.p->io || !c.p->part[0].steps ||
        !c.p->part[1].steps) {
        error_memory(err, nodes * sizeof(struct program_step), "a program");
    } else {
        c.p->bounds = options->bounds;
        c.p->param_count = g->param_count;
        status = compile(&c);
    }
    free(c.home);
    free(c.again);
    free(c.added);
    free(c.lives);
    if (status != 0) {
        program_free(c.p);
        return -1;
    }
    *out = c.p;
    return 0;
}

void program_free(struct program *p)
{
    if (!p)
        return;
    for (int i = 0; i < PROGRAM_PARTS; i++)
        free(p->part[i].steps);
    free(p->io);
    free(p);
}

int program_slot(const struct program *p, const char *name)
{
    for (int i = 0; i < p->io_count; i++)
        if (strcmp(p->io[i].name, name) == 0)
            return i;
    return -1;
}

int64_t program_io_bytes(const struct program_io *io, const struct graph_counts *counts)
{
    int64_t n = 1;
    for (int i = 0; i < io->ndim; i++)
        n *= graph_dim(io->dim[i], counts);
    return dtype_bytes(io->type, n);
}

void program_call(const struct program_step *step, const struct graph_counts *counts, struct op_call *call)
{
    memset(call, 0, sizeof *call);
    call->op = step->op;
    call->inputs = step->inputs;
    call->outputs = step->outputs;
    call->attr = step->attr;
    call->workspace_bytes = (size_t)step->workspace_bytes;
    for (int i = 0; i < step->inputs; i++)
        operand_resolve(&step->in[i], counts, &call->in[i]);
    for (int i = 0; i < step->outputs; i++)
        operand_resolve(&step->out[i], counts, &call->out[i]);
}
