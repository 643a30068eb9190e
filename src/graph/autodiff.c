/* Reverse-mode differentiation: walks the forward nodes backwards and appends each op's rule. */
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* grad[v]: the value that is the gradient of v so far, GRAPH_NONE while nothing flowed back. */
struct tape {
    struct graph *g;
    int *grad;
};

/* A value used twice gets the sum; always new + old in the order of the walk, so the bits are fixed. */
static int tape_add(struct tape *t, int value, int gradient)
{
    if (gradient == GRAPH_NONE || !t->g->values[value].needs_grad)
        return 0;
    int old = t->grad[value];
    t->grad[value] = old == GRAPH_NONE ? gradient : graph_add(t->g, old, gradient);
    return t->grad[value] == GRAPH_NONE ? -1 : 0;
}

static int seed_outputs(struct tape *t)
{
    struct graph *g = t->g;
    int outputs = g->output_count;
    for (int i = 0; i < outputs; i++) {
        struct graph_value v = g->values[g->outputs[i].value];
        if (!v.needs_grad)
            continue;
        int seed;
        if (v.kind == GRAPH_VALUE_NODE && g->nodes[v.index].op == OP_LOSS) {
            seed = graph_input(g, "loss_scale", DTYPE_F32, 1, (int64_t[]){1}, false);
        } else {
            char name[64];
            snprintf(name, sizeof name, "grad:%s", g->outputs[i].name);
            seed = graph_input(g, name, v.type, v.ndim, v.dim, false);
        }
        if (seed == GRAPH_NONE || tape_add(t, g->outputs[i].value, seed) != 0)
            return -1;
    }
    return 0;
}

/* A gradient that a rule has no use for, or one that it owes and does not give, would be missing from the
 * result without a word. */
static int check_rule(const struct graph *g, const struct graph_node *node, const int *grad_out,
                      const int *grad_in, struct error *err)
{
    const char *name = graph_rule(node->op)->name;
    for (int i = 1; i < node->outputs; i++)
        if (grad_out[i] != GRAPH_NONE)
            return error_set(err, ERROR_RUN, "graph", NULL, "op '%s' has no gradient through '%s'", name,
                             g->values[node->out[i]].name);
    for (int i = 0; i < node->inputs; i++)
        if (node->in[i] != GRAPH_NONE && grad_in[i] == GRAPH_NONE && g->values[node->in[i]].needs_grad)
            return error_set(err, ERROR_RUN, "graph", NULL,
                             "op '%s' gives no gradient to '%s', which needs one", name,
                             g->values[node->in[i]].name);
    return 0;
}

/* The loss that its gradient gives too, as an output beside the one of the forward pass. */
static void name_loss(struct graph *g, int loss, int again)
{
    for (int i = 0, outputs = g->output_count; i < outputs; i++)
        if (g->outputs[i].value == loss) {
            char name[64];
            snprintf(name, sizeof name, "backward:%s", g->outputs[i].name);
            graph_output(g, name, again);
        }
}

/* Appends the backward of one forward node. */
static int node_backward(struct tape *t, int n)
{
    struct graph *g = t->g;
    struct graph_node node = g->nodes[n];
    int grad_out[OP_MAX_OUTPUTS], grad_in[OP_MAX_INPUTS];
    bool flows = false;
    for (int i = 0; i < node.outputs; i++) {
        grad_out[i] = t->grad[node.out[i]];
        flows = flows || grad_out[i] != GRAPH_NONE;
    }
    if (!flows)
        return 0;
    const struct graph_rule *rule = graph_rule(node.op);
    if (!rule->backward) {
        return error_set(&g->error, ERROR_RUN, "graph", NULL,
                         "op '%s' has no gradient, but '%s' needs one through it", rule->name,
                         g->values[node.out[0]].name);
    }
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        grad_in[i] = GRAPH_NONE;
    if (rule->backward(g, n, grad_out, grad_in) != 0 ||
        check_rule(g, &node, grad_out, grad_in, &g->error) != 0)
        return -1;
    for (int i = 0; i < node.inputs; i++)
        if (node.in[i] != GRAPH_NONE && tape_add(t, node.in[i], grad_in[i]) != 0)
            return -1;
    if (node.op == OP_LOSS)
        name_loss(g, node.out[0], grad_in[0] + 2);
    return g->error.kind == ERROR_NONE ? 0 : -1;
}

/* Names the results: outputs "grad:<input>" and param_grad[]. */
static int collect(struct tape *t, int forward_values)
{
    struct graph *g = t->g;
    g->param_grad = malloc((size_t)(g->param_count ? g->param_count : 1) * sizeof *g->param_grad);
    if (!g->param_grad)
        return error_memory(&g->error, (size_t)g->param_count * sizeof *g->param_grad, "a graph");
    for (int i = 0; i < g->param_count; i++)
        g->param_grad[i] = GRAPH_NONE;
    for (int v = 0; v < forward_values; v++) {
        struct graph_value value = g->values[v];
        if (!value.needs_grad || value.kind == GRAPH_VALUE_NODE)
            continue;
        if (t->grad[v] == GRAPH_NONE)
            return error_set(&g->error, ERROR_RUN, "graph", NULL,
                             "no gradient reaches %s, though it needs one", value.name);
        if (value.kind == GRAPH_VALUE_PARAM) {
            if (g->values[t->grad[v]].type != DTYPE_F32)
                return error_set(&g->error, ERROR_RUN, "graph", NULL, "the gradient of %s is not fp32",
                                 value.name);
            g->param_grad[value.index] = t->grad[v];
        } else {
            char name[64];
            snprintf(name, sizeof name, "grad:%s", value.name);
            graph_output(g, name, t->grad[v]);
        }
    }
    return g->error.kind == ERROR_NONE ? 0 : -1;
}

int graph_differentiate(struct graph *g, struct error *err)
{
    if (graph_check(g, err) != 0)
        return -1;
    if (g->differentiated)
        return error_set(err, ERROR_RUN, "graph", NULL, "the graph has a backward pass already");
    int nodes = g->node_count, values = g->value_count;
    /* Gradients of appended values are never asked for, but their numbers are looked up: each node
     * appends a bounded number of values, and the tape is sized for the forward ones alone. */
    struct tape t = {g, malloc((size_t)(values ? values : 1) * sizeof(int))};
    if (!t.grad)
        return error_memory(err, (size_t)values * sizeof(int), "a graph");
    for (int i = 0; i < values; i++)
        t.grad[i] = GRAPH_NONE;
    int status = seed_outputs(&t);
    g->differentiated = true; /* nodes from here on are backward nodes */
    for (int n = nodes - 1; n >= 0 && status == 0; n--)
        status = node_backward(&t, n);
    if (status == 0)
        status = collect(&t, values);
    free(t.grad);
    if (status != 0)
        graph_check(g, err);
    return status;
}
