#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Doubles *array until it holds `need` items of `size` bytes; 0 or -1. */
static int reserve(void **array, int *capacity, int need, size_t size)
{
    if (need <= *capacity)
        return 0;
    int grown = *capacity ? *capacity * 2 : 32;
    while (grown < need)
        grown *= 2;
    void *p = realloc(*array, (size_t)grown * size);
    if (!p)
        return -1;
    *array = p;
    *capacity = grown;
    return 0;
}

struct graph *graph_create(void)
{
    return calloc(1, sizeof(struct graph));
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    free(g->values);
    free(g->nodes);
    free(g->outputs);
    free(g->param_value);
    free(g->param_grad);
    free(g);
}

int graph_check(const struct graph *g, struct error *err)
{
    if (g->error.kind == ERROR_NONE)
        return 0;
    if (err)
        *err = g->error;
    return -1;
}

static int fail_memory(struct graph *g)
{
    if (g->error.kind == ERROR_NONE)
        error_memory(&g->error, sizeof(struct graph_value), "a graph");
    return GRAPH_NONE;
}

static int value_add(struct graph *g, const struct graph_value *v)
{
    if (reserve((void **)&g->values, &g->value_capacity, g->value_count + 1, sizeof *g->values) != 0)
        return fail_memory(g);
    g->values[g->value_count] = *v;
    return g->value_count++;
}

/* Names are compared whole: one that is cut would be found under no name, or under another's. */
static bool name_fits(struct graph *g, const char *name)
{
    if (strlen(name) < sizeof g->values->name)
        return true;
    error_set(&g->error, ERROR_RUN, "graph", NULL, "the name '%s' is longer than %zu bytes", name,
              sizeof g->values->name - 1);
    return false;
}

static void value_shape_set(struct graph_value *v, enum dtype type, int ndim, const int64_t *dim)
{
    v->type = type;
    v->ndim = ndim;
    for (int i = 0; i < ndim; i++)
        v->dim[i] = dim[i];
}

int graph_input(struct graph *g, const char *name, enum dtype type, int ndim, const int64_t *dim,
                bool needs_grad)
{
    if (g->error.kind != ERROR_NONE || !name_fits(g, name))
        return GRAPH_NONE;
    if (graph_find_input(g, name) != GRAPH_NONE) {
        error_set(&g->error, ERROR_RUN, "graph", NULL, "two inputs are named '%s'", name);
        return GRAPH_NONE;
    }
    struct graph_value v = {.kind = GRAPH_VALUE_INPUT, .index = GRAPH_NONE, .needs_grad = needs_grad};
    snprintf(v.name, sizeof v.name, "%s", name);
    value_shape_set(&v, type, ndim, dim);
    return value_add(g, &v);
}

static bool same_parameter(const struct graph_value *a, const struct graph_value *b)
{
    return a->type == b->type && a->ndim == b->ndim && a->needs_grad == b->needs_grad &&
           memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

int graph_param(struct graph *g, int index, enum dtype type, int ndim, const int64_t *dim, bool trainable)
{
    if (g->error.kind != ERROR_NONE)
        return GRAPH_NONE;
    if (index >= g->param_count) {
        int count = index + 1;
        int *grown = realloc(g->param_value, (size_t)count * sizeof *grown);
        if (!grown)
            return fail_memory(g);
        g->param_value = grown;
        for (int i = g->param_count; i < count; i++)
            g->param_value[i] = GRAPH_NONE;
        g->param_count = count;
    }
    struct graph_value v = {.kind = GRAPH_VALUE_PARAM, .index = index, .needs_grad = trainable};
    snprintf(v.name, sizeof v.name, "parameter %d", index);
    value_shape_set(&v, type, ndim, dim);
    if (g->param_value[index] == GRAPH_NONE) {
        g->param_value[index] = value_add(g, &v);
    } else if (!same_parameter(&v, &g->values[g->param_value[index]])) {
        error_set(&g->error, ERROR_RUN, "graph", NULL, "%s is used with two shapes or types", v.name);
        return GRAPH_NONE;
    }
    return g->param_value[index];
}

void graph_output(struct graph *g, const char *name, int value)
{
    if (g->error.kind != ERROR_NONE || value == GRAPH_NONE || !name_fits(g, name))
        return;
    if (graph_find_output(g, name) != GRAPH_NONE) {
        error_set(&g->error, ERROR_RUN, "graph", NULL, "two outputs are named '%s'", name);
        return;
    }
    if (reserve((void **)&g->outputs, &g->output_capacity, g->output_count + 1, sizeof *g->outputs) != 0) {
        fail_memory(g);
        return;
    }
    struct graph_named *out = &g->outputs[g->output_count++];
    snprintf(out->name, sizeof out->name, "%s", name);
    out->value = value;
}

static bool take_operands(struct graph *g, const struct graph_rule *rule, const int *in,
                          struct graph_node *node)
{
    if (node->inputs < rule->min_inputs || node->inputs > rule->max_inputs) {
        error_set(&g->error, ERROR_RUN, rule->name, NULL, "takes %d to %d operands, got %d", rule->min_inputs,
                  rule->max_inputs, node->inputs);
        return false;
    }
    for (int i = 0; i < node->inputs; i++) {
        node->in[i] = in[i];
        if (in[i] == GRAPH_NONE && i < rule->min_inputs) {
            error_set(&g->error, ERROR_RUN, rule->name, NULL, "operand %d is missing", i);
            return false;
        }
    }
    return true;
}

int graph_node_add(struct graph *g, enum op op, const int *in, int inputs, const struct op_attr *attr)
{
    if (g->error.kind != ERROR_NONE)
        return GRAPH_NONE;
    const struct graph_rule *rule = graph_rule(op);
    struct graph_node node = {
        .op = op, .inputs = inputs, .outputs = rule->outputs, .backward = g->differentiated};
    struct graph_value out[OP_MAX_OUTPUTS] = {0};
    if (attr)
        node.attr = *attr;
    if (!take_operands(g, rule, in, &node) || rule->shape(g, &node, out, &g->error) != 0)
        return GRAPH_NONE;
    bool needs_grad = false;
    for (int i = 0; i < inputs; i++)
        needs_grad = needs_grad || (in[i] != GRAPH_NONE && g->values[in[i]].needs_grad);
    if (reserve((void **)&g->nodes, &g->node_capacity, g->node_count + 1, sizeof *g->nodes) != 0)
        return fail_memory(g);
    for (int i = 0; i < node.outputs; i++) {
        out[i].kind = GRAPH_VALUE_NODE;
        out[i].index = g->node_count;
        out[i].slot = i;
        out[i].needs_grad = needs_grad && !node.backward;
        snprintf(out[i].name, sizeof out[i].name, "%s %d%s", rule->name, g->node_count,
                 i == 0   ? ""
                 : i == 1 ? " (second)"
                          : " (third)");
        node.out[i] = value_add(g, &out[i]);
        if (node.out[i] == GRAPH_NONE)
            return GRAPH_NONE;
    }
    g->nodes[g->node_count++] = node;
    return node.out[0];
}

int graph_find_output(const struct graph *g, const char *name)
{
    for (int i = 0; i < g->output_count; i++)
        if (strcmp(g->outputs[i].name, name) == 0)
            return g->outputs[i].value;
    return GRAPH_NONE;
}

int graph_find_input(const struct graph *g, const char *name)
{
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i].kind == GRAPH_VALUE_INPUT && strcmp(g->values[i].name, name) == 0)
            return i;
    return GRAPH_NONE;
}

int64_t graph_dim(int64_t dim, const struct graph_counts *counts)
{
    switch (dim) {
    case GRAPH_TOKENS:
        return counts->tokens;
    case GRAPH_PIECES:
        return counts->pieces;
    case GRAPH_CACHE:
        return counts->cache;
    case GRAPH_PICKED:
        return counts->picked;
    default:
        return dim;
    }
}

int64_t graph_value_bytes(const struct graph_value *v, const struct graph_counts *counts)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++)
        n *= graph_dim(v->dim[i], counts);
    return dtype_bytes(v->type, n);
}

int graph_embed(struct graph *g, int ids, int table)
{
    return graph_node_add(g, OP_EMBED, (int[]){ids, table}, 2, NULL);
}

int graph_linear(struct graph *g, int x, int w, int bias)
{
    return graph_node_add(g, OP_LINEAR, (int[]){x, w, bias}, bias == GRAPH_NONE ? 2 : 3, NULL);
}

int graph_linear_f32(struct graph *g, int x, int w)
{
    int y = graph_linear(g, x, w, GRAPH_NONE);
    if (y != GRAPH_NONE) {
        g->values[y].type = DTYPE_F32;
        g->values[y].needs_grad = false;
    }
    return y;
}

int graph_rmsnorm(struct graph *g, int x, int w, float eps)
{
    return graph_node_add(g, OP_RMSNORM, (int[]){x, w}, 2, &(struct op_attr){.eps = eps});
}

int graph_rope_table(struct graph *g, int positions, int inv_freq)
{
    return graph_node_add(g, OP_ROPE_TABLE, (int[]){positions, inv_freq}, 2, NULL);
}

int graph_rope(struct graph *g, int x, int table, int64_t heads)
{
    if (g->error.kind != ERROR_NONE)
        return GRAPH_NONE;
    struct op_attr attr = {.heads = heads};
    if (table != GRAPH_NONE)
        attr.head_dim = g->values[table].dim[1];
    return graph_node_add(g, OP_ROPE, (int[]){x, table}, 2, &attr);
}

int graph_attention(struct graph *g, int q, int k, int v, int pieces, int64_t heads, int64_t kv_heads,
                    float scale)
{
    if (g->error.kind != ERROR_NONE)
        return GRAPH_NONE;
    struct op_attr attr = {.heads = heads, .kv_heads = kv_heads, .scale = scale};
    if (q != GRAPH_NONE && heads > 0)
        attr.head_dim = g->values[q].dim[1] / heads;
    return graph_node_add(g, OP_ATTENTION, (int[]){q, k, v, pieces}, 4, &attr);
}

int graph_cache_write(struct graph *g, int rows, int slots, int cache)
{
    return graph_node_add(g, OP_CACHE_WRITE, (int[]){rows, slots, cache}, 3, NULL);
}

int graph_swiglu(struct graph *g, int gate, int up)
{
    return graph_node_add(g, OP_SWIGLU, (int[]){gate, up}, 2, NULL);
}

int graph_add(struct graph *g, int a, int b)
{
    return graph_node_add(g, OP_ADD, (int[]){a, b}, 2, NULL);
}

int graph_gather_rows(struct graph *g, int x, int index)
{
    return graph_node_add(g, OP_GATHER_ROWS, (int[]){x, index}, 2, NULL);
}

int graph_loss(struct graph *g, int x, int w, int targets)
{
    return graph_node_add(g, OP_LOSS, (int[]){x, w, targets}, 3, NULL);
}
