/* Attention in blocks of keys with a running maximum and sum for each row (Milakov & Gimelshein,
 * "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022): no row of scores is
 * kept. Key blocks count from the piece's first key, so a row's bits depend on its keys alone.
 *
 * Rows are queries of the heads that share a key head, query by query. Blocks are copied to fp32 panels once,
 * head_dim padded with zeros to whole LANES ("depth"). Products of two inputs (q k, dout v) take bf16 numbers
 * in pairs where the instruction set multiplies them; weights are never rounded to bf16. Keys that a row does
 * not see have weight 0. Included by one file for each instruction set. */
#ifndef TERCET_BACKEND_CPU_KERNELS_ATTENTION_H
#define TERCET_BACKEND_CPU_KERNELS_ATTENTION_H

#include "backend/cpu/kernels/panel.h"

#include <stdbool.h>

enum { KEYS = ATTENTION_KEYS, ROWS = ATTENTION_ROWS };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void load_row(float *to, const void *from, enum dtype type, int64_t at, int64_t n)
{
    if (type == DTYPE_F32)
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    else
        widen(to, (const uint16_t *)from + at, n);
}

/* to[n] = from[n] * factor; adding 0 makes one zero of two, so that its sign does not tell of unseen keys. */
static void store_row(void *to, enum dtype type, int64_t at, float *from, float factor, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        from[d] = from[d] * factor + 0.0f;
    if (type == DTYPE_F32)
        memcpy((float *)to + at, from, (size_t)n * sizeof *from);
    else
        narrow((uint16_t *)to + at, from, n);
}

/* Whether scores of this type are made from pairs. */
static bool in_pairs(enum dtype type)
{
#ifdef __AVX512BF16__
    return type == DTYPE_BF16;
#else
    (void)type;
    return false;
#endif
}

/* Elements of 32 bits that a row of `depth` takes as a factor of scores. */
static int64_t factor_width(enum dtype type, int64_t depth)
{
    return in_pairs(type) ? depth / 2 : depth;
}

/* A row as a factor of scores: fp32, or bf16 pairs. */
static void load_factor(float *to, const void *from, enum dtype type, int64_t at, int64_t n, int64_t depth)
{
    memset(to, 0, (size_t)factor_width(type, depth) * sizeof *to);
    if (in_pairs(type))
        memcpy(to, (const uint16_t *)from + at, (size_t)n * sizeof(uint16_t));
    else
        load_row(to, from, type, at, n);
}

/* Rows first … first+count-1 of one key head, to rows[KEYS][depth] unless NULL, and as columns of scores,
 * columns[factor_width][KEYS], unless NULL. `scratch`: KEYS * depth floats. */
static void load_keys(float *rows, float *columns, float *scratch, const void *from,
                      const struct attention_data *a, int64_t first, int64_t count, int64_t head)
{
    int64_t dim = a->head_dim, depth = attention_depth(dim), width = factor_width(a->type, depth);
    for (int64_t j = 0; rows && j < count; j++) {
        load_row(rows + j * depth, from, a->type, ((first + j) * a->kv_heads + head) * dim, dim);
        memset(rows + j * depth + dim, 0, (size_t)(depth - dim) * sizeof *rows);
    }
    if (rows)
        memset(rows + count * depth, 0, (size_t)((KEYS - count) * depth) * sizeof *rows);
    if (!columns)
        return;
    for (int64_t j = 0; j < count; j++)
        load_factor(scratch + j * width, from, a->type, ((first + j) * a->kv_heads + head) * dim, dim, depth);
    memset(scratch + count * width, 0, (size_t)((KEYS - count) * width) * sizeof *scratch);
    for (int64_t j = 0; j < KEYS; j += 16) /* a line of the first cache in each column at a time */
        for (int64_t d = 0; d < width; d++)
            for (int64_t l = 0; l < 16; l++)
                columns[d * KEYS + j + l] = scratch[(j + l) * width + d];
}

/* out[rows][KEYS] = factors[rows] columns, at least the first `count` columns of it. */
static void make_scores(float *out, const float *factors, const float *columns, enum dtype type,
                        int64_t depth, int64_t rows, int64_t count)
{
    int64_t width = factor_width(type, depth);
    struct panel p = {.c = out,
                      .a = factors,
                      .b = columns,
                      .c_row = KEYS,
                      .a_row = width,
                      .a_k = 1,
                      .b_row = KEYS,
                      .k = width,
                      .start = PANEL_NEW};
#ifdef __AVX512BF16__
    if (in_pairs(type)) {
        panel_run_pairs(&p, rows, count);
        return;
    }
#endif
    panel_run(&p, rows, count);
}

/* One row and one block of keys, of which it sees the first `count`: scores to weights; running maximum and
 * sum (LANES partial sums) brought up to date. Returns what earlier sums are to be scaled by. */
static float absorb(float *scores, float *max, float *sums, float scale, int64_t count)
{
    vec weight[KEYS / VECTOR], largest = vec_all(-INFINITY);
    for (int j = 0; j < KEYS / VECTOR; j++) {
        vec score = vec_load(scores + j * VECTOR) * scale;
        if (count < KEYS)
            score = vec_select(vec_below(j * VECTOR, count), score, vec_all(-INFINITY));
        weight[j] = score;
        largest = vec_max(score, largest);
    }
    float most = vec_largest(largest);
    most = most > *max ? most : *max;
    for (int j = 0; j < KEYS / VECTOR; j++) {
        weight[j] = vec_exp(weight[j] - most);
        vec_store(scores + j * VECTOR, weight[j]);
    }
    float keep = exp_f32(*max - most);
    for (int l = 0; l < LANES / VECTOR; l++) {
        vec sum = weight[l];
        for (int j = l + LANES / VECTOR; j < KEYS / VECTOR; j += LANES / VECTOR)
            sum += weight[j];
        vec_store(sums + l * VECTOR, vec_fma(vec_load(sums + l * VECTOR), vec_all(keep), sum));
    }
    *max = most;
    return keep;
}

/* Where the parts of a forward buffer begin. */
struct forward_parts {
    float *columns, *values, *scratch, *q, *acc, *sums, *max;
};

static struct forward_parts forward_parts(float *buffer, int64_t depth, int64_t rows)
{
    struct forward_parts b;
    b.columns = buffer;
    b.values = b.columns + KEYS * depth;
    b.scratch = b.values + KEYS * depth;
    b.q = b.scratch + KEYS * depth;
    b.acc = b.q + rows * depth;
    b.sums = b.acc + rows * depth;
    b.max = b.sums + rows * LANES;
    return b;
}

/* One block of keys for rows r … r+n-1; row r + i sees the first counts[i] of the block (none: 0 or less),
 * and no row more than the last. */
static void forward_strip(const struct attention_data *a, const struct forward_parts *b, int64_t r, int64_t n,
                          const int64_t *counts)
{
    float scores[PANEL_ROWS * KEYS], keep[PANEL_ROWS];
    int64_t depth = attention_depth(a->head_dim), count = counts[n - 1];
    make_scores(scores, b->q + r * factor_width(a->type, depth), b->columns, a->type, depth, n, count);
    for (int64_t i = 0; i < n; i++)
        keep[i] = absorb(scores + i * KEYS, &b->max[r + i], b->sums + (r + i) * LANES, a->scale, counts[i]);
    struct panel p = {.c = b->acc + r * depth,
                      .a = scores,
                      .b = b->values,
                      .scale = keep,
                      .c_row = depth,
                      .a_row = KEYS,
                      .a_k = 1,
                      .b_row = depth,
                      .k = count,
                      .start = PANEL_SCALE};
    panel_run(&p, n, depth);
}

static void forward(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                    int64_t first_query, float *buffer)
{
    int64_t dim = a->head_dim, depth = attention_depth(dim), group = a->heads / a->kv_heads;
    int64_t block = attention_queries(group), queries = smaller(block, p->q_len - first_query),
            rows = queries * group, past = p->kv_len - p->q_len + first_query;
    struct forward_parts b = forward_parts(buffer, depth, block * group);
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = p->q_start + first_query + r / group, head = kv_head * group + r % group;
        load_factor(b.q + r * factor_width(a->type, depth), a->q, a->type, (token * a->heads + head) * dim,
                    dim, depth);
        b.max[r] = -INFINITY;
    }
    memset(b.acc, 0, (size_t)(rows * depth) * sizeof(float));
    memset(b.sums, 0, (size_t)(rows * LANES) * sizeof(float));
    int64_t last = past + queries; /* keys that the last query sees */
    for (int64_t key = 0; key < last; key += KEYS) {
        int64_t present = smaller(KEYS, last - key);
        load_keys(NULL, b.columns, b.scratch, a->k, a, p->kv_start + key, present, kv_head);
        load_keys(b.values, NULL, b.scratch, a->v, a, p->kv_start + key, present, kv_head);
        for (int64_t r = 0; r < rows; r += PANEL_ROWS) {
            int64_t n = smaller(PANEL_ROWS, rows - r), counts[PANEL_ROWS];
            for (int64_t i = 0; i < n; i++)
                counts[i] = smaller(KEYS, past + (r + i) / group + 1 - key);
            if (counts[n - 1] > 0)
                forward_strip(a, &b, r, n, counts);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t token = p->q_start + first_query + r / group, head = kv_head * group + r % group;
        float sum = lanes_sum(b.sums + r * LANES);
        store_row(a->o, a->type, (token * a->heads + head) * dim, b.acc + r * depth, 1.0f / sum, dim);
        a->lse[token * a->heads + head] = b.max[r] + logf(sum);
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

#endif
