/* The op table: each op's name, shape rule and backward rule. op.h says what the operands are. */
#include "graph/graph.h"

#include <string.h>

static const struct graph_value *input(const struct graph *g, const struct graph_node *n, int i)
{
    return i < n->inputs && n->in[i] != GRAPH_NONE ? &g->values[n->in[i]] : NULL;
}

static void like(struct graph_value *out, const struct graph_value *v)
{
    out->type = v->type;
    out->ndim = v->ndim;
    memcpy(out->dim, v->dim, sizeof out->dim);
}

static void shape2(struct graph_value *out, enum dtype type, int64_t rows, int64_t cols)
{
    out->type = type;
    out->ndim = cols == 0 ? 1 : 2;
    out->dim[0] = rows;
    out->dim[1] = cols;
}

static int same_shape(const struct graph_value *a, const struct graph_value *b)
{
    if (a->type != b->type || a->ndim != b->ndim)
        return 0;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return 0;
    return 1;
}

/* A failed expectation about operands: names the op and what it wanted. */
static int expect(int holds, const struct graph_node *n, const char *what, struct error *err)
{
    if (holds)
        return 0;
    return error_set(err, ERROR_RUN, graph_rule(n->op)->name, NULL, "operands do not fit: expected %s", what);
}

static int is(const struct graph_value *v, enum dtype type, int ndim)
{
    return v->type == type && v->ndim == ndim;
}

static int is_matrix(const struct graph_value *v)
{
    return v->ndim == 2 && dtype_info(v->type)->is_float;
}

/* One fp32 number for each row of x. */
static int is_rows_f32(const struct graph_value *v, const struct graph_value *x)
{
    return is(v, DTYPE_F32, 1) && v->dim[0] == x->dim[0];
}

static int shape_embed(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                       struct error *err)
{
    const struct graph_value *ids = input(g, n, 0), *table = input(g, n, 1);
    shape2(out, table->type, ids->dim[0], table->dim[1]);
    return expect(is(ids, DTYPE_I32, 1) && is_matrix(table), n, "ids[T], table[V,D]", err);
}

static int shape_embed_grad(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                            struct error *err)
{
    const struct graph_value *ids = input(g, n, 0), *dy = input(g, n, 1);
    shape2(out, DTYPE_F32, n->attr.rows, dy->dim[1]);
    return expect(is(ids, DTYPE_I32, 1) && is_matrix(dy) && ids->dim[0] == dy->dim[0] && n->attr.rows > 0, n,
                  "ids[T], dy[T,D]", err);
}

static int shape_linear(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                        struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *w = input(g, n, 1), *b = input(g, n, 2);
    shape2(out, x->type, x->dim[0], w->dim[0]);
    return expect(is_matrix(x) && is_matrix(w) && x->type == w->type && x->dim[1] == w->dim[1] &&
                      (!b || (is(b, x->type, 1) && b->dim[0] == w->dim[0])),
                  n, "x[T,I], w[O,I], bias[O] of one type", err);
}

static int shape_linear_grad_input(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                                   struct error *err)
{
    const struct graph_value *dy = input(g, n, 0), *w = input(g, n, 1);
    shape2(out, dy->type, dy->dim[0], w->dim[1]);
    return expect(is_matrix(dy) && is_matrix(w) && dy->type == w->type && dy->dim[1] == w->dim[0], n,
                  "dy[T,O], w[O,I] of one type", err);
}

static int shape_linear_grad_weight(const struct graph *g, const struct graph_node *n,
                                    struct graph_value *out, struct error *err)
{
    const struct graph_value *dy = input(g, n, 0), *x = input(g, n, 1);
    shape2(out, DTYPE_F32, dy->dim[1], x->dim[1]);
    return expect(is_matrix(dy) && is_matrix(x) && dy->type == x->type && dy->dim[0] == x->dim[0], n,
                  "dy[T,O], x[T,I] of one type", err);
}

static int shape_column_sums(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                             struct error *err)
{
    shape2(out, DTYPE_F32, input(g, n, 0)->dim[1], 0);
    return expect(is_matrix(input(g, n, 0)), n, "dy[T,O]", err);
}

static int shape_rmsnorm(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                         struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *w = input(g, n, 1);
    like(&out[0], x);
    shape2(&out[1], DTYPE_F32, x->dim[0], 0);
    return expect(is_matrix(x) && is(w, x->type, 1) && w->dim[0] == x->dim[1], n, "x[T,D], w[D]", err);
}

static int shape_rmsnorm_grad_input(const struct graph *g, const struct graph_node *n,
                                    struct graph_value *out, struct error *err)
{
    const struct graph_value *dy = input(g, n, 0), *x = input(g, n, 1), *w = input(g, n, 2);
    like(out, x);
    return expect(is_matrix(x) && same_shape(dy, x) && is(w, x->type, 1) && w->dim[0] == x->dim[1] &&
                      is_rows_f32(input(g, n, 3), x),
                  n, "dy[T,D], x[T,D], w[D], rstd[T]", err);
}

static int shape_rmsnorm_grad_weight(const struct graph *g, const struct graph_node *n,
                                     struct graph_value *out, struct error *err)
{
    const struct graph_value *dy = input(g, n, 0), *x = input(g, n, 1);
    shape2(out, DTYPE_F32, x->dim[1], 0);
    return expect(is_matrix(x) && same_shape(dy, x) && is_rows_f32(input(g, n, 2), x), n,
                  "dy[T,D], x[T,D], rstd[T]", err);
}

static int shape_rope_table(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                            struct error *err)
{
    const struct graph_value *positions = input(g, n, 0), *inv_freq = input(g, n, 1);
    shape2(out, DTYPE_F32, positions->dim[0], 2 * inv_freq->dim[0]);
    return expect(is(positions, DTYPE_I32, 1) && is(inv_freq, DTYPE_F32, 1), n, "positions[T], inv_freq[H/2]",
                  err);
}

static int shape_rope(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                      struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *table = input(g, n, 1);
    like(out, x);
    return expect(is_matrix(x) && is(table, DTYPE_F32, 2) && x->dim[0] == table->dim[0] &&
                      table->dim[1] % 2 == 0 && x->dim[1] == n->attr.heads * table->dim[1],
                  n, "x[T,heads*H], table[T,H], H even", err);
}

static int shape_attention(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                           struct error *err)
{
    const struct graph_value *q = input(g, n, 0), *k = input(g, n, 1), *v = input(g, n, 2),
                             *p = input(g, n, 3);
    const struct op_attr *a = &n->attr;
    like(&out[0], q);
    shape2(&out[1], DTYPE_F32, q->dim[0], a->heads);
    return expect(is_matrix(q) && is_matrix(k) && same_shape(k, v) && k->type == q->type && a->kv_heads > 0 &&
                      a->heads % a->kv_heads == 0 && q->dim[1] == a->heads * a->head_dim &&
                      k->dim[1] == a->kv_heads * a->head_dim && is(p, DTYPE_I32, 2) && p->dim[1] == 4,
                  n, "q[T,heads*H], k and v[C,kv_heads*H], pieces[P,4]", err);
}

static int shape_attention_grad(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                                struct error *err)
{
    const struct graph_value *dout = input(g, n, 0), *q = input(g, n, 1), *k = input(g, n, 2),
                             *v = input(g, n, 3);
    like(&out[0], q);
    like(&out[1], k);
    like(&out[2], v);
    const struct graph_value *o = input(g, n, 4), *lse = input(g, n, 5), *p = input(g, n, 6);
    const struct op_attr *a = &n->attr;
    return expect(is_matrix(q) && is_matrix(k) && same_shape(dout, q) && same_shape(o, q) &&
                      same_shape(k, v) && k->type == q->type && k->dim[0] == q->dim[0] &&
                      q->dim[1] == a->heads * a->head_dim && k->dim[1] == a->kv_heads * a->head_dim &&
                      is(lse, DTYPE_F32, 2) && lse->dim[0] == q->dim[0] && lse->dim[1] == a->heads &&
                      is(p, DTYPE_I32, 2) && p->dim[1] == 4,
                  n, "dout, q, k, v, o, lse, pieces of the training form", err);
}

static int shape_cache_write(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                             struct error *err)
{
    const struct graph_value *rows = input(g, n, 0), *slots = input(g, n, 1), *cache = input(g, n, 2);
    like(out, cache);
    return expect(is_matrix(rows) && is(slots, DTYPE_I32, 1) && is_matrix(cache) &&
                      rows->type == cache->type && rows->dim[1] == cache->dim[1] &&
                      rows->dim[0] == slots->dim[0],
                  n, "rows[T,W], slots[T], cache[C,W]", err);
}

static int shape_elementwise(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                             struct error *err)
{
    const struct graph_value *first = input(g, n, 0);
    for (int i = 1; i < n->inputs; i++)
        if (!same_shape(first, input(g, n, i)))
            return expect(0, n, "equal shapes and types", err);
    for (int i = 0; i < n->outputs; i++)
        like(&out[i], first);
    return 0;
}

static int shape_loss(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                      struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *w = input(g, n, 1), *targets = input(g, n, 2);
    shape2(&out[0], DTYPE_F32, x->dim[0], 0);
    return expect(is_matrix(x) && is_matrix(w) && x->type == w->type && x->dim[1] == w->dim[1] &&
                      is(targets, DTYPE_I32, 1) && targets->dim[0] == x->dim[0],
                  n, "x[T,D], w[V,D], targets[T]", err);
}

static int shape_loss_grad(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                           struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *w = input(g, n, 1), *scale = input(g, n, 3);
    like(&out[0], x);
    shape2(&out[1], DTYPE_F32, w->dim[0], w->dim[1]);
    shape2(&out[2], DTYPE_F32, x->dim[0], 0);
    const struct graph_value *targets = input(g, n, 2);
    return expect(is_matrix(x) && is_matrix(w) && x->type == w->type && x->dim[1] == w->dim[1] &&
                      is(targets, DTYPE_I32, 1) && targets->dim[0] == x->dim[0] && is(scale, DTYPE_F32, 1) &&
                      scale->dim[0] == 1,
                  n, "x[T,D], w[V,D], targets[T], scale[1]", err);
}

static int shape_gather_rows(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                             struct error *err)
{
    const struct graph_value *x = input(g, n, 0), *index = input(g, n, 1);
    shape2(out, x->type, index->dim[0], x->dim[1]);
    return expect(is_matrix(x) && is(index, DTYPE_I32, 1), n, "x[T,D], index[N]", err);
}

/* Flat ops are called by sharding and optimizers directly and stand in no graph. */
static int shape_flat(const struct graph *g, const struct graph_node *n, struct graph_value *out,
                      struct error *err)
{
    (void)g;
    (void)out;
    return expect(0, n, "to be called directly, not from a graph", err);
}

static int backward_embed(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    struct op_attr attr = {.rows = g->values[n.in[1]].dim[0]};
    grad_in[1] = graph_node_add(g, OP_EMBED_GRAD, (int[]){n.in[0], grad_out[0]}, 2, &attr);
    return grad_in[1] == GRAPH_NONE ? -1 : 0;
}

static int backward_linear(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    int dy = grad_out[0];
    if (g->values[n.in[1]].needs_grad)
        grad_in[1] = graph_node_add(g, OP_LINEAR_GRAD_WEIGHT, (int[]){dy, n.in[0]}, 2, NULL);
    if (n.inputs == 3 && g->values[n.in[2]].needs_grad)
        grad_in[2] = graph_node_add(g, OP_LINEAR_GRAD_BIAS, (int[]){dy}, 1, NULL);
    if (g->values[n.in[0]].needs_grad)
        grad_in[0] = graph_node_add(g, OP_LINEAR_GRAD_INPUT, (int[]){dy, n.in[1]}, 2, NULL);
    return g->error.kind == ERROR_NONE ? 0 : -1;
}

static int backward_rmsnorm(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    int dy = grad_out[0], x = n.in[0], w = n.in[1], rstd = n.out[1];
    if (g->values[w].needs_grad)
        grad_in[1] = graph_node_add(g, OP_RMSNORM_GRAD_WEIGHT, (int[]){dy, x, rstd}, 3, NULL);
    if (g->values[x].needs_grad)
        grad_in[0] = graph_node_add(g, OP_RMSNORM_GRAD_INPUT, (int[]){dy, x, w, rstd}, 4, NULL);
    return g->error.kind == ERROR_NONE ? 0 : -1;
}

static int backward_rope(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    struct op_attr attr = n.attr;
    attr.inverse = !attr.inverse;
    grad_in[0] = graph_node_add(g, OP_ROPE, (int[]){grad_out[0], n.in[1]}, 2, &attr);
    return grad_in[0] == GRAPH_NONE ? -1 : 0;
}

static int backward_attention(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    int in[] = {grad_out[0], n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], n.in[3]};
    int first = graph_node_add(g, OP_ATTENTION_GRAD, in, 7, &n.attr);
    if (first == GRAPH_NONE)
        return -1;
    for (int i = 0; i < 3; i++)
        grad_in[i] = first + i;
    return 0;
}

static int backward_swiglu(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    int first = graph_node_add(g, OP_SWIGLU_GRAD, (int[]){grad_out[0], n.in[0], n.in[1]}, 3, NULL);
    if (first == GRAPH_NONE)
        return -1;
    grad_in[0] = first;
    grad_in[1] = first + 1;
    return 0;
}

static int backward_add(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    (void)g;
    (void)node;
    grad_in[0] = grad_in[1] = grad_out[0];
    return 0;
}

static int backward_loss(struct graph *g, int node, const int *grad_out, int *grad_in)
{
    struct graph_node n = g->nodes[node];
    int in[] = {n.in[0], n.in[1], n.in[2], grad_out[0]};
    int first = graph_node_add(g, OP_LOSS_GRAD, in, 4, NULL);
    if (first == GRAPH_NONE)
        return -1;
    grad_in[0] = first;
    grad_in[1] = first + 1;
    return 0;
}

static const struct graph_rule rules[OP_COUNT] = {
    [OP_EMBED] = {"embed", 2, 2, 1, shape_embed, backward_embed},
    [OP_EMBED_GRAD] = {"embed_grad", 2, 2, 1, shape_embed_grad, NULL},
    [OP_LINEAR] = {"linear", 2, 3, 1, shape_linear, backward_linear},
    [OP_LINEAR_GRAD_INPUT] = {"linear_grad_input", 2, 2, 1, shape_linear_grad_input, NULL},
    [OP_LINEAR_GRAD_WEIGHT] = {"linear_grad_weight", 2, 2, 1, shape_linear_grad_weight, NULL},
    [OP_LINEAR_GRAD_BIAS] = {"linear_grad_bias", 1, 1, 1, shape_column_sums, NULL},
    [OP_RMSNORM] = {"rmsnorm", 2, 2, 2, shape_rmsnorm, backward_rmsnorm},
    [OP_RMSNORM_GRAD_INPUT] = {"rmsnorm_grad_input", 4, 4, 1, shape_rmsnorm_grad_input, NULL},
    [OP_RMSNORM_GRAD_WEIGHT] = {"rmsnorm_grad_weight", 3, 3, 1, shape_rmsnorm_grad_weight, NULL},
    [OP_ROPE_TABLE] = {"rope_table", 2, 2, 1, shape_rope_table, NULL},
    [OP_ROPE] = {"rope", 2, 2, 1, shape_rope, backward_rope},
    [OP_ATTENTION] = {"attention", 4, 4, 2, shape_attention, backward_attention},
    [OP_ATTENTION_GRAD] = {"attention_grad", 7, 7, 3, shape_attention_grad, NULL},
    [OP_CACHE_WRITE] = {"cache_write", 3, 3, 1, shape_cache_write, NULL},
    [OP_SWIGLU] = {"swiglu", 2, 2, 1, shape_elementwise, backward_swiglu},
    [OP_SWIGLU_GRAD] = {"swiglu_grad", 3, 3, 2, shape_elementwise, NULL},
    [OP_ADD] = {"add", 2, 2, 1, shape_elementwise, backward_add},
    [OP_LOSS] = {"loss", 3, 3, 1, shape_loss, backward_loss},
    [OP_LOSS_GRAD] = {"loss_grad", 4, 4, 3, shape_loss_grad, NULL},
    [OP_GATHER_ROWS] = {"gather_rows", 2, 2, 1, shape_gather_rows, NULL},
    [OP_ACCUMULATE] = {"accumulate", 1, 1, 1, shape_flat, NULL},
    [OP_SUM_SQUARES] = {"sum_squares", 1, 1, 1, shape_flat, NULL},
    [OP_ADAMW] = {"adamw", 1, 1, 4, shape_flat, NULL},
    [OP_CAST] = {"cast", 1, 1, 1, shape_flat, NULL},
};

const struct graph_rule *graph_rule(enum op op)
{
    return op >= 0 && op < OP_COUNT ? &rules[op] : NULL;
}
