/* Attention in blocks of keys with a running maximum and sum for each row (Milakov & Gimelshein,
 * "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022): no row of scores is
 * kept. Key blocks count from the piece's first key, so a row's bits depend on its keys alone.
 *
 * A block of keys or values is held transposed, [head_dim][ATTENTION_KEYS], where scores are made (one
 * query element times a row of it is a vector operation) and as it lies where rows are added. Absent
 * keys of a block are zeros and are given no weight. Included by one file for each instruction set. */
#ifndef TERCET_BACKEND_CPU_KERNELS_ATTENTION_H
#define TERCET_BACKEND_CPU_KERNELS_ATTENTION_H

#include "backend/cpu/kernels/common.h"

enum { KEYS = ATTENTION_KEYS, QUERIES = ATTENTION_QUERIES };

static void load_row(float *to, const void *from, enum dtype type, int64_t at, int64_t n)
{
    if (type == DTYPE_F32)
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    else
        widen(to, (const uint16_t *)from + at, n);
}

static void store_row(void *to, enum dtype type, int64_t at, const float *from, int64_t n)
{
    if (type == DTYPE_F32)
        memcpy((float *)to + at, from, (size_t)n * sizeof *from);
    else
        narrow((uint16_t *)to + at, from, n);
}

/* Rows first … first+count-1 of one head to rows[KEYS][head_dim], and to columns[head_dim][KEYS] unless NULL.
 */
static void load_block(float *rows, float *columns, const void *from, enum dtype type, int64_t first,
                       int64_t count, int64_t head, int64_t heads, int64_t head_dim)
{
    for (int64_t j = 0; j < count; j++)
        load_row(rows + j * head_dim, from, type, ((first + j) * heads + head) * head_dim, head_dim);
    memset(rows + count * head_dim, 0, (size_t)((KEYS - count) * head_dim) * sizeof *rows);
    for (int64_t d = 0; columns && d < head_dim; d++)
        for (int64_t j = 0; j < KEYS; j++)
            columns[d * KEYS + j] = rows[j * head_dim + d];
}

/* out[KEYS] = sum over d of row[d] * columns[d][KEYS]. */
static void row_times_columns(float *restrict out, const float *restrict row, const float *restrict columns,
                              int64_t head_dim)
{
    float sum[KEYS];
    for (int j = 0; j < KEYS; j++)
        sum[j] = 0;
    for (int64_t d = 0; d < head_dim; d++) {
        float x = row[d];
        for (int j = 0; j < KEYS; j++)
            sum[j] += x * columns[d * KEYS + j];
    }
    for (int j = 0; j < KEYS; j++)
        out[j] = sum[j];
}

/* acc[head_dim] += weight * row[head_dim] */
static void add_scaled(float *restrict acc, float weight, const float *restrict row, int64_t head_dim)
{
    for (int64_t d = 0; d < head_dim; d++)
        acc[d] += weight * row[d];
}

/* One block of keys for one row: scores to weights, running maximum, sum and acc brought up to date. */
static void absorb(float *acc, float *max, float *sum, float *scores, int64_t count, const float *values,
                   int64_t head_dim)
{
    float lanes[LANES], largest = *max, total = 0;
    for (int j = 0; j < KEYS; j++)
        scores[j] = j < count ? scores[j] : -INFINITY;
    for (int l = 0; l < LANES; l++)
        lanes[l] = scores[l];
    for (int j = LANES; j < KEYS; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] = scores[j + l] > lanes[l] ? scores[j + l] : lanes[l];
    for (int l = 0; l < LANES; l++)
        largest = lanes[l] > largest ? lanes[l] : largest;
    for (int j = 0; j < KEYS; j++)
        scores[j] = exp_f32(scores[j] - largest);
    for (int l = 0; l < LANES; l++)
        lanes[l] = 0;
    for (int j = 0; j < KEYS; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += scores[j + l];
    total = lanes_sum(lanes);
    float keep = exp_f32(*max - largest);
    for (int64_t d = 0; d < head_dim; d++)
        acc[d] *= keep;
    for (int64_t j = 0; j < count; j++)
        add_scaled(acc, scores[j], values + j * head_dim, head_dim);
    *max = largest;
    *sum = *sum * keep + total;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void forward(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                    int64_t first_query, float *buffer)
{
    int64_t dim = a->head_dim, group = a->heads / a->kv_heads, past = p->kv_len - p->q_len;
    int64_t queries = smaller(QUERIES, p->q_len - first_query), rows = queries * group;
    float *keys = buffer, *columns = keys + KEYS * dim, *values = columns + KEYS * dim,
          *q = values + KEYS * dim;
    float *acc = q + QUERIES * group * dim, *max = acc + QUERIES * group * dim, *sum = max + QUERIES * group;
    float scores[KEYS];
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = p->q_start + first_query + r / group, head = kv_head * group + r % group;
        load_row(q + r * dim, a->q, a->type, (token * a->heads + head) * dim, dim);
        for (int64_t d = 0; d < dim; d++) {
            q[r * dim + d] *= a->scale;
            acc[r * dim + d] = 0;
        }
        max[r] = -INFINITY;
        sum[r] = 0;
    }
    int64_t last = past + first_query + queries; /* keys that the last query sees */
    for (int64_t key = 0; key < last; key += KEYS) {
        int64_t present = smaller(KEYS, last - key);
        load_block(keys, columns, a->k, a->type, p->kv_start + key, present, kv_head, a->kv_heads, dim);
        load_block(values, NULL, a->v, a->type, p->kv_start + key, present, kv_head, a->kv_heads, dim);
        for (int64_t r = 0; r < rows; r++) {
            int64_t count = smaller(KEYS, past + first_query + r / group + 1 - key);
            if (count <= 0)
                continue;
            row_times_columns(scores, q + r * dim, columns, dim);
            absorb(acc + r * dim, &max[r], &sum[r], scores, count, values, dim);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = p->q_start + first_query + r / group, head = kv_head * group + r % group;
        float inverse = 1.0f / sum[r];
        for (int64_t d = 0; d < dim; d++)
            acc[r * dim + d] *= inverse;
        store_row(a->o, a->type, (token * a->heads + head) * dim, acc + r * dim, dim);
        a->lse[token * a->heads + head] = max[r] + logf(sum[r]);
    }
}

static void delta_rows(float *delta, const void *dout, const void *o, enum dtype type, int64_t rows,
                       int64_t heads, int64_t head_dim)
{
    float a_buffer[BLOCK], b_buffer[BLOCK];
    for (int64_t r = 0; r < rows * heads; r++) {
        float lanes[LANES] = {0};
        for (int64_t at = 0; at < head_dim; at += BLOCK) {
            int64_t length = smaller(BLOCK, head_dim - at), i = 0;
            const float *a = block_load(dout, type, r * head_dim + at, length, a_buffer);
            const float *b = block_load(o, type, r * head_dim + at, length, b_buffer);
            for (; i + LANES <= length; i += LANES)
                for (int l = 0; l < LANES; l++)
                    lanes[l] += a[i + l] * b[i + l];
            for (int l = 0; i < length; i++, l++)
                lanes[l] += a[i] * b[i];
        }
        delta[r] = lanes_sum(lanes);
    }
}

/* For one row and one block of keys: p = exp(score - lse), ds = p (dout v - delta); zeros from `count` on. */
static void score_gradients(float *p, float *ds, const float *scaled_q, const float *dout,
                            const float *k_columns, const float *v_columns, float lse, float delta,
                            int64_t count, int64_t head_dim)
{
    row_times_columns(p, scaled_q, k_columns, head_dim);
    row_times_columns(ds, dout, v_columns, head_dim);
    for (int j = 0; j < KEYS; j++) {
        float weight = exp_f32(p[j] - lse), slope = weight * (ds[j] - delta);
        p[j] = j < count ? weight : 0.0f;
        ds[j] = j < count ? slope : 0.0f;
    }
}

static void grad_queries(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                         int64_t first_query, float *buffer)
{
    int64_t dim = a->head_dim, group = a->heads / a->kv_heads;
    int64_t queries = smaller(QUERIES, p->q_len - first_query), rows = queries * group;
    float *k = buffer, *k_columns = k + KEYS * dim, *v = k_columns + KEYS * dim, *v_columns = v + KEYS * dim;
    float *q = v_columns + KEYS * dim, *dout = q + QUERIES * group * dim, *dq = dout + QUERIES * group * dim;
    float weights[KEYS], ds[KEYS];
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = p->q_start + first_query + r / group, head = kv_head * group + r % group;
        load_row(q + r * dim, a->q, a->type, (token * a->heads + head) * dim, dim);
        load_row(dout + r * dim, a->dout, a->type, (token * a->heads + head) * dim, dim);
        for (int64_t d = 0; d < dim; d++) {
            q[r * dim + d] *= a->scale;
            dq[r * dim + d] = 0;
        }
    }
    int64_t last = first_query + queries;
    for (int64_t key = 0; key < last; key += KEYS) {
        int64_t present = smaller(KEYS, last - key);
        load_block(k, k_columns, a->k, a->type, p->kv_start + key, present, kv_head, a->kv_heads, dim);
        load_block(v, v_columns, a->v, a->type, p->kv_start + key, present, kv_head, a->kv_heads, dim);
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = first_query + r / group, count = smaller(KEYS, query + 1 - key);
            if (count <= 0)
                continue;
            int64_t at = (p->q_start + query) * a->heads + kv_head * group + r % group;
            score_gradients(weights, ds, q + r * dim, dout + r * dim, k_columns, v_columns, a->lse[at],
                            a->delta[at], count, dim);
            for (int64_t j = 0; j < count; j++)
                add_scaled(dq + r * dim, ds[j] * a->scale, k + j * dim, dim);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (p->q_start + first_query + r / group) * a->heads + kv_head * group + r % group;
        store_row(a->dq, a->type, at * dim, dq + r * dim, dim);
    }
}

/* Rows are added head by head, query by query: one order, whoever computes the block. */
static void grad_keys(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                      int64_t first_key, float *buffer)
{
    int64_t dim = a->head_dim, group = a->heads / a->kv_heads, present = smaller(KEYS, p->kv_len - first_key);
    float *rows = buffer, *k_columns = rows + KEYS * dim, *v_columns = k_columns + KEYS * dim;
    float *dk = v_columns + KEYS * dim, *dv = dk + KEYS * dim, *q = dv + KEYS * dim, *dout = q + dim;
    float weights[KEYS], ds[KEYS];
    load_block(rows, k_columns, a->k, a->type, p->kv_start + first_key, present, kv_head, a->kv_heads, dim);
    load_block(rows, v_columns, a->v, a->type, p->kv_start + first_key, present, kv_head, a->kv_heads, dim);
    memset(dk, 0, (size_t)(2 * KEYS * dim) * sizeof *dk);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t query = first_key; query < p->q_len; query++) {
            int64_t at = (p->q_start + query) * a->heads + head,
                    count = smaller(present, query + 1 - first_key);
            load_row(q, a->q, a->type, at * dim, dim);
            load_row(dout, a->dout, a->type, at * dim, dim);
            for (int64_t d = 0; d < dim; d++)
                q[d] *= a->scale;
            score_gradients(weights, ds, q, dout, k_columns, v_columns, a->lse[at], a->delta[at], count, dim);
            for (int64_t j = 0; j < count; j++) {
                add_scaled(dk + j * dim, ds[j], q, dim);
                add_scaled(dv + j * dim, weights[j], dout, dim);
            }
        }
    for (int64_t j = 0; j < present; j++) {
        int64_t at = ((p->kv_start + first_key + j) * a->kv_heads + kv_head) * dim;
        store_row(a->dk, a->type, at, dk + j * dim, dim);
        store_row(a->dv, a->type, at, dv + j * dim, dim);
    }
}

static const struct attention_kernels attention_kernels = {
    .forward = forward,
    .delta = delta_rows,
    .grad_queries = grad_queries,
    .grad_keys = grad_keys,
};

#endif
