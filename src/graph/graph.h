/* Graphs: the forward pass of one unit, described by calling a builder.
 *
 *     struct graph *g = graph_create();
 *     int x = graph_input(g, "hidden", DTYPE_BF16, 2, (int64_t[]){GRAPH_TOKENS, 60}, true);
 *     int norm = graph_param(g, 0, DTYPE_BF16, 1, (int64_t[]){60}, true);
 *     int w = graph_param(g, 1, DTYPE_BF16, 2, (int64_t[]){60, 60}, true);
 *     graph_output(g, "hidden", graph_linear(g, graph_rmsnorm(g, x, norm, 1e-5f), w, GRAPH_NONE));
 *     if (graph_check(g, err) != 0) …
 *
 * Values are numbers (static single assignment). Builder errors are sticky: a call with a wrong shape
 * returns GRAPH_NONE, later calls do nothing, and graph_check() tells the first one. graph_differentiate
 * appends the backward pass from each op's rule; a value that needs a gradient and comes out of
 * an op without a rule is refused by name. program.h turns the result into something that runs. */
#ifndef TERCET_GRAPH_GRAPH_H
#define TERCET_GRAPH_GRAPH_H

#include "base/error.h"
#include "graph/op.h"

#include <stdbool.h>

enum { GRAPH_NONE = -1 };

/* Dimensions whose count is known only when the graph runs; memory is planned for their bounds. */
enum {
    GRAPH_TOKENS = -1, /* tokens of the micro-batch */
    GRAPH_PIECES = -2, /* document pieces of the micro-batch */
    GRAPH_CACHE = -3,  /* rows of the key-value cache */
    GRAPH_PICKED = -4, /* rows picked by graph_gather_rows */
};
struct graph_counts {
    int64_t tokens, pieces, cache, picked;
};

enum graph_value_kind {
    GRAPH_VALUE_INPUT, /* given by the caller, by name */
    GRAPH_VALUE_PARAM, /* a parameter, by its index in the unit */
    GRAPH_VALUE_NODE,  /* the output of a node */
};

struct graph_value {
    enum graph_value_kind kind;
    char name[48]; /* of an input; else made from the op, for messages */
    int index;     /* parameter index; node number */
    int slot;      /* which output of the node */
    enum dtype type;
    int ndim;
    int64_t dim[OP_MAX_DIMS]; /* entries may be GRAPH_TOKENS … */
    bool needs_grad;
};

struct graph_node {
    enum op op;
    int inputs, outputs;
    int in[OP_MAX_INPUTS]; /* value numbers; GRAPH_NONE where an optional operand is absent */
    int out[OP_MAX_OUTPUTS];
    struct op_attr attr;
    bool backward; /* appended by graph_differentiate */
};

struct graph_named {
    char name[48];
    int value;
};

struct graph {
    struct graph_value *values;
    int value_count, value_capacity;
    struct graph_node *nodes;
    int node_count, node_capacity;
    struct graph_named *outputs;
    int output_count, output_capacity;
    int *param_value; /* by parameter index; GRAPH_NONE */
    int param_count;
    int *param_grad; /* by parameter index, after graph_differentiate: the value that is its gradient */
    bool differentiated;
    struct error error;
};

struct graph *graph_create(void); /* NULL when out of memory */
void graph_free(struct graph *g); /* NULL is allowed */
int graph_check(const struct graph *g, struct error *err);

/* Names have at most 47 bytes; inputs have different ones, and so have outputs. needs_grad:
 * graph_differentiate makes an output "grad:<name>". */
int graph_input(struct graph *g, const char *name, enum dtype type, int ndim, const int64_t *dim,
                bool needs_grad);
/* Parameter `index` of the unit; the same index gives the same value, and is refused with another shape.
 * Trainable ones need a gradient. */
int graph_param(struct graph *g, int index, enum dtype type, int ndim, const int64_t *dim, bool trainable);
void graph_output(struct graph *g, const char *name, int value);

/* Ops, see op.h for shapes. */
int graph_embed(struct graph *g, int ids, int table);
int graph_linear(struct graph *g, int x, int w, int bias);
/* As graph_linear with an fp32 result whatever the operands: logits. No gradient. */
int graph_linear_f32(struct graph *g, int x, int w);
int graph_rmsnorm(struct graph *g, int x, int w, float eps);
int graph_rope_table(struct graph *g, int positions, int inv_freq);
int graph_rope(struct graph *g, int x, int table, int64_t heads);
int graph_attention(struct graph *g, int q, int k, int v, int pieces, int64_t heads, int64_t kv_heads,
                    float scale);
int graph_cache_write(struct graph *g, int rows, int slots, int cache);
int graph_swiglu(struct graph *g, int gate, int up);
int graph_add(struct graph *g, int a, int b);
int graph_gather_rows(struct graph *g, int x, int index);
/* loss[T] f32, one number a token, not summed. As an output its gradient is seeded by the input "loss_scale"
 * ([1] f32) that graph_differentiate makes. */
int graph_loss(struct graph *g, int x, int w, int targets);

/* Appends the backward pass. Seeds: for an output made by graph_loss, the input "loss_scale"; for every
 * other output that needs a gradient, a new input "grad:<output name>" of its shape and type. Results: for
 * each input that needs one, the output "grad:<input name>"; for each trainable parameter, param_grad[]
 * (fp32). Refuses (naming op and value) where an op on the way has no backward rule or gives no gradient to a
 * value that needs one, or where a trainable parameter gets none at all. Only once a graph.
 *
 * The backward pass makes a loss anew on its way to the gradient: the output "backward:<output name>". Where
 * it reads nothing else of the forward pass (RECOMPUTE_FULL), a caller that runs it may leave the forward
 * part out. */
int graph_differentiate(struct graph *g, struct error *err);

/* The value of a named output or input; GRAPH_NONE when there is none. */
int graph_find_output(const struct graph *g, const char *name);
int graph_find_input(const struct graph *g, const char *name);

/* Replaces GRAPH_TOKENS … by counts. */
int64_t graph_dim(int64_t dim, const struct graph_counts *counts);
int64_t graph_value_bytes(const struct graph_value *v, const struct graph_counts *counts);

/* How an op builds its outputs and its gradient: one entry an op, in op_table.c. */
struct graph_rule {
    const char *name;
    int min_inputs, max_inputs, outputs;
    /* Checks operands, fills the outputs' types and shapes. */
    int (*shape)(const struct graph *g, const struct graph_node *node, struct graph_value *out,
                 struct error *err);
    /* Appends the nodes that compute gradients of the inputs from grad_out (GRAPH_NONE where nothing
     * flows back); writes value numbers to grad_in (GRAPH_NONE: none needed). NULL: no gradient. */
    int (*backward)(struct graph *g, int node, const int *grad_out, int *grad_in);
};
const struct graph_rule *graph_rule(enum op op);
/* Adds a node of any op; returns the value of its first output (further outputs have the next numbers). */
int graph_node_add(struct graph *g, enum op op, const int *in, int inputs, const struct op_attr *attr);

#endif
