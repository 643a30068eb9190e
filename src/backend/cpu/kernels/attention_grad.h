/* The gradient of attention in square tiles of KEYS queries and KEYS keys of a piece, for the heads that
 * share a key head. A tile adds to sums of its queries (dq) and of its keys (dk, dv), which lie in fp32
 * beside the outputs: linear in tokens. Tiles of one diagonal (query block minus key block) share no sums and
 * may run at the same time; diagonals come in order, the main one first, which sets the sums. So the order of
 * additions is one, whoever computes. The last tile of a row or a column of tiles stores the result. */
#ifndef TERCET_BACKEND_CPU_KERNELS_ATTENTION_GRAD_H
#define TERCET_BACKEND_CPU_KERNELS_ATTENTION_GRAD_H

#include "backend/cpu/kernels/attention.h"

/* Where the parts of a buffer begin, and a tile's place. */
struct grad_parts {
    float *k, *k_columns, *v_columns, *scratch; /* of the keys */
    /* Of ROWS rows; the factors of scores are q and dout themselves where they are not pairs. */
    float *q, *dout, *q_factor, *dout_factor, *weights, *slopes;
    float *dq, *dk, *dv; /* sums of the tile's queries and keys */
    int64_t first_query, first_key, keys, rows;
    int64_t kv_head;
};

static struct grad_parts grad_parts(float *buffer, enum dtype type, int64_t depth)
{
    struct grad_parts b = {0};
    b.k = buffer;
    b.k_columns = b.k + KEYS * depth;
    b.v_columns = b.k_columns + KEYS * depth;
    b.scratch = b.v_columns + KEYS * depth;
    b.q = b.scratch + KEYS * depth;
    b.dout = b.q + ROWS * depth;
    b.q_factor = b.dout + ROWS * depth;
    b.dout_factor = b.q_factor + ROWS * depth;
    b.weights = b.dout_factor + ROWS * depth;
    b.slopes = b.weights + ROWS * KEYS;
    if (!in_pairs(type)) {
        b.q_factor = b.q;
        b.dout_factor = b.dout;
    }
    return b;
}

/* weights = exp(scale score - lse), slopes = weight (slope - delta) of one row; zeros from `count` on. */
static void weigh(float *weights, float *slopes, float scale, float lse, float delta, int64_t count)
{
    for (int j = 0; j < KEYS; j += VECTOR) {
        vec weight = vec_exp(vec_fma(vec_load(weights + j), vec_all(scale), vec_all(-lse)));
        vec slope = weight * (vec_load(slopes + j) - delta);
        if (count < KEYS) {
            vec_int seen = vec_below(j, count);
            weight = vec_select(seen, weight, (vec){0});
            slope = vec_select(seen, slope, (vec){0});
        }
        vec_store(weights + j, weight);
        vec_store(slopes + j, slope);
    }
}

/* Element of q, over head_dim, where row r of a tile begins. */
static int64_t row_place(const struct attention_data *a, const struct attention_piece *p,
                         const struct grad_parts *b, int64_t r)
{
    int64_t group = a->heads / a->kv_heads;
    return (p->q_start + b->first_query + r / group) * a->heads + b->kv_head * group + r % group;
}

/* Rows first … first+count-1 of a tile: their weights and slopes, and what they add to dq. */
static void grad_rows(const struct attention_data *a, const struct attention_piece *p, struct grad_parts *b,
                      int64_t first, int64_t count)
{
    int64_t dim = a->head_dim, depth = attention_depth(dim), group = a->heads / a->kv_heads,
            width = factor_width(a->type, depth);
    for (int64_t r = 0; r < count; r++) {
        int64_t at = row_place(a, p, b, first + r) * dim;
        load_row(b->q + r * depth, a->q, a->type, at, dim);
        load_row(b->dout + r * depth, a->dout, a->type, at, dim);
        memset(b->q + r * depth + dim, 0, (size_t)(depth - dim) * sizeof(float));
        memset(b->dout + r * depth + dim, 0, (size_t)(depth - dim) * sizeof(float));
        if (!in_pairs(a->type))
            continue;
        load_factor(b->q_factor + r * width, a->q, a->type, at, dim, depth);
        load_factor(b->dout_factor + r * width, a->dout, a->type, at, dim, depth);
    }
    for (int64_t r = 0; r < count; r += PANEL_ROWS) {
        int64_t n = smaller(PANEL_ROWS, count - r);
        int64_t seen = smaller(b->keys, b->first_query + (first + r + n - 1) / group + 1 - b->first_key);
        float *weights = b->weights + r * KEYS, *slopes = b->slopes + r * KEYS;
        make_scores(weights, b->q_factor + r * width, b->k_columns, a->type, depth, n, seen);
        make_scores(slopes, b->dout_factor + r * width, b->v_columns, a->type, depth, n, seen);
        for (int64_t i = 0; i < n; i++) {
            int64_t row = first + r + i, at = row_place(a, p, b, row);
            weigh(weights + i * KEYS, slopes + i * KEYS, a->scale, a->lse[at], a->delta[at],
                  smaller(b->keys, b->first_query + row / group + 1 - b->first_key));
        }
        struct panel dq = {.c = b->dq + (first + r) * depth,
                           .a = slopes,
                           .b = b->k,
                           .c_row = depth,
                           .a_row = KEYS,
                           .a_k = 1,
                           .b_row = depth,
                           .k = seen,
                           .start = PANEL_ADD};
        panel_run(&dq, n, depth);
    }
}

/* What these rows add to dk and dv, key by key in the order of rows. */
static void grad_columns(const struct attention_data *a, const struct grad_parts *b, int64_t first,
                         int64_t count)
{
    int64_t depth = attention_depth(a->head_dim), group = a->heads / a->kv_heads;
    for (int64_t j = 0; j < b->keys; j += PANEL_ROWS) {
        int64_t n = smaller(PANEL_ROWS, b->keys - j);
        /* The first row that sees key j; keys of an earlier block are seen by all. */
        int64_t skip = (b->first_key + j - b->first_query) * group - first;
        skip = skip < 0 ? 0 : skip;
        if (skip >= count)
            continue;
        struct panel p = {.c = b->dk + j * depth,
                          .a = b->slopes + skip * KEYS + j,
                          .b = b->q + skip * depth,
                          .c_row = depth,
                          .a_row = 1,
                          .a_k = KEYS,
                          .b_row = depth,
                          .k = count - skip,
                          .start = PANEL_ADD};
        panel_run(&p, n, depth);
        p.c = b->dv + j * depth;
        p.a = b->weights + skip * KEYS + j;
        p.b = b->dout + skip * depth;
        panel_run(&p, n, depth);
    }
}

static void grad_tile(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                      int64_t query_block, int64_t key_block, float *buffer)
{
    int64_t dim = a->head_dim, depth = attention_depth(dim), group = a->heads / a->kv_heads;
    struct grad_parts b = grad_parts(buffer, a->type, depth);
    b.kv_head = kv_head;
    b.first_query = query_block * KEYS;
    b.first_key = key_block * KEYS;
    b.rows = smaller(KEYS, p->q_len - b.first_query) * group;
    b.keys = smaller(KEYS, p->kv_len - b.first_key);
    int64_t query = kv_head * a->tokens + p->q_start + b.first_query,
            key = kv_head * a->tokens + p->kv_start + b.first_key;
    b.dq = a->dq_sums + query * group * depth;
    b.dk = a->dk_sums + key * depth;
    b.dv = a->dv_sums + key * depth;
    if (query_block == key_block) {
        memset(b.dq, 0, (size_t)(b.rows * depth) * sizeof(float));
        memset(b.dk, 0, (size_t)(b.keys * depth) * sizeof(float));
        memset(b.dv, 0, (size_t)(b.keys * depth) * sizeof(float));
    }
    load_keys(b.k, b.k_columns, b.scratch, a->k, a, p->kv_start + b.first_key, b.keys, kv_head);
    load_keys(NULL, b.v_columns, b.scratch, a->v, a, p->kv_start + b.first_key, b.keys, kv_head);
    for (int64_t first = 0; first < b.rows; first += ROWS) {
        int64_t count = smaller(ROWS, b.rows - first);
        grad_rows(a, p, &b, first, count);
        grad_columns(a, &b, first, count);
    }
    for (int64_t r = 0; key_block == 0 && r < b.rows; r++)
        store_row(a->dq, a->type, row_place(a, p, &b, r) * dim, b.dq + r * depth, a->scale, dim);
    for (int64_t j = 0; b.first_query + KEYS >= p->q_len && j < b.keys; j++) {
        int64_t at = ((p->kv_start + b.first_key + j) * a->kv_heads + kv_head) * dim;
        store_row(a->dk, a->type, at, b.dk + j * depth, a->scale, dim);
        store_row(a->dv, a->type, at, b.dv + j * depth, 1, dim);
    }
}

static const struct attention_kernels attention_kernels = {
    .forward = forward,
    .delta = delta_rows,
    .grad_tile = grad_tile,
};

#endif
