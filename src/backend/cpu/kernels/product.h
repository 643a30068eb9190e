/* Matrix products in panels of columns (kernels.h says how operands are packed). */
#ifndef TERCET_BACKEND_CPU_KERNELS_PRODUCT_H
#define TERCET_BACKEND_CPU_KERNELS_PRODUCT_H

#include "backend/cpu/kernels/panel.h"

/* Rows ahead of the one that is packed: a few lines of each of many far rows are read, which no prefetcher
 * of a CPU foresees. */
enum { PACK_AHEAD = 24 };

VECTOR_INLINE void prefetch_row(const void *row, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char *)row + at);
}

static void product_pack(void *to, int64_t width, const void *from, enum dtype type, int64_t stride,
                         int64_t k, int64_t columns)
{
    if (type == DTYPE_F32) {
        const float *row = from;
        float *out = to;
        for (int64_t s = 0; s < k; s++, row += stride, out += width) {
            memcpy(out, row, (size_t)columns * sizeof *out);
            memset(out + columns, 0, (size_t)(width - columns) * sizeof *out);
        }
        return;
    }
    const uint16_t *row = from;
    uint32_t *restrict out = to;
    for (int64_t s = 0; s < k; s += 2, row += 2 * stride, out += width) {
        bool pair = s + 1 < k;
        if (s + PACK_AHEAD + 1 < k) {
            prefetch_row(row + PACK_AHEAD * stride, 2 * columns);
            prefetch_row(row + (PACK_AHEAD + 1) * stride, 2 * columns);
        }
        const uint16_t *next = row + (pair ? stride : 0);
        uint32_t keep = pair ? 0xffffffffu : 0xffffu;
        for (int64_t j = 0; j < columns; j++)
            out[j] = (row[j] | (uint32_t)next[j] << 16) & keep;
        memset(out + columns, 0, (size_t)(width - columns) * sizeof *out);
    }
}

/* VECTOR words from each of `columns` rows, turned: to[step][column]. */
VECTOR_INLINE void turn_words(float *to, const char *from, int64_t stride_bytes, int64_t columns)
{
    for (int64_t j = 0; j < PRODUCT_COLUMNS; j += VECTOR) {
        vec rows[VECTOR];
#pragma GCC unroll 16
        for (int64_t r = 0; r < VECTOR; r++) {
            rows[r] = (vec){0};
            if (j + r < columns)
                memcpy(&rows[r], from + (j + r) * stride_bytes, sizeof rows[r]);
        }
        vec_transpose(rows);
#pragma GCC unroll 16
        for (int64_t s = 0; s < VECTOR; s++)
            vec_store(to + s * PRODUCT_COLUMNS + j, rows[s]);
    }
}

static void product_pack_transposed(void *to, const void *from, enum dtype type, int64_t stride, int64_t k,
                                    int64_t columns)
{
    const int64_t element = type == DTYPE_F32 ? 4 : 2, whole = k * element / 4,
                  steps = product_steps(type, k);
    const char *bytes = from;
    float *out = to;
    int64_t s = 0;
    for (; s + VECTOR <= whole; s += VECTOR)
        turn_words(out + s * PRODUCT_COLUMNS, bytes + 4 * s, stride * element, columns);
    for (; s < steps; s++)
        for (int64_t j = 0; j < PRODUCT_COLUMNS; j++) {
            uint32_t word = 0;
            if (j < columns)
                memcpy(&word, bytes + j * stride * element + 4 * s, (size_t)(s < whole ? 4 : element));
            memcpy(out + s * PRODUCT_COLUMNS + j, &word, sizeof word);
        }
}

static void product_run(float *c, int64_t c_row, const void *a, int64_t a_row, int64_t a_step, const void *b,
                        enum dtype type, int64_t steps, int64_t rows, int64_t columns, bool add)
{
    struct panel p = {.c = c,
                      .a = a,
                      .b = b,
                      .c_row = c_row,
                      .a_row = a_row,
                      .a_k = a_step,
                      .b_row = PRODUCT_COLUMNS,
                      .k = steps,
                      .start = add ? PANEL_ADD : PANEL_NEW};
#ifdef __AVX512BF16__
    if (type == DTYPE_BF16) {
        panel_run_pairs(&p, rows, columns);
        return;
    }
#endif
    (void)type;
    panel_run(&p, rows, columns);
}

static void product_finish(void *c, enum dtype out, int64_t c_row, const float *tile, const void *bias,
                           enum dtype bias_type, int64_t rows, int64_t columns)
{
    float added[PRODUCT_COLUMNS], sums[PRODUCT_COLUMNS];
    const float *of_bias = bias ? block_load(bias, bias_type, 0, columns, added) : NULL;
    for (int64_t r = 0; r < rows; r++, tile += PRODUCT_COLUMNS) {
        const float *row = tile;
        if (of_bias) {
            for (int64_t j = 0; j < columns; j++)
                sums[j] = tile[j] + of_bias[j];
            row = sums;
        }
        if (out == DTYPE_F32)
            memcpy((float *)c + r * c_row, row, (size_t)columns * sizeof(float));
        else
            narrow((uint16_t *)c + r * c_row, row, columns);
    }
}

static const struct product_kernels product_kernels = {product_pack, product_pack_transposed, product_run,
                                                       product_finish};

#endif
