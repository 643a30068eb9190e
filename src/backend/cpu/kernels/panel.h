/* Small matrix products of one thread, with sums in registers.
 *
 * Every element of a result is one chain of additions, in the order of k, whatever rows and columns are
 * computed with it: so an element's bits do not depend on the shape of the block, nor on how a long k is cut
 * in calls. Matrices b and c have rows of whole LANES. */
#ifndef TERCET_BACKEND_CPU_KERNELS_PANEL_H
#define TERCET_BACKEND_CPU_KERNELS_PANEL_H

#include "backend/cpu/kernels/common.h"
#include "backend/cpu/kernels/vector.h"

/* Rows and vectors of c that are held in registers: 24 of 32, or 12 of 16. */
enum { PANEL_ROWS = 6, PANEL_VECTORS = VECTOR == 16 ? 4 : 2, PANEL_COLUMNS = PANEL_VECTORS * VECTOR };

/* c = a b, c + a b, or c scaled by row + a b */
enum panel_start { PANEL_NEW, PANEL_ADD, PANEL_SCALE };

struct panel {
    float *c;
    const float *a;     /* element [row, k] at row * a_row + k * a_k */
    const float *b;     /* [k, columns] */
    const float *scale; /* [row]; PANEL_SCALE only */
    int64_t c_row, a_row, a_k, b_row, k;
    enum panel_start start;
};

VECTOR_INLINE void panel_begin(vec acc[PANEL_ROWS][PANEL_VECTORS], const struct panel *p, int rows,
                               int vectors)
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            acc[r][v] = p->start == PANEL_NEW ? (vec){0} : vec_load(p->c + r * p->c_row + v * VECTOR);
    }
    if (p->start != PANEL_SCALE)
        return;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            acc[r][v] *= p->scale[r];
    }
}

VECTOR_INLINE void panel_end(const struct panel *p, vec acc[PANEL_ROWS][PANEL_VECTORS], int rows, int vectors)
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            vec_store(p->c + r * p->c_row + v * VECTOR, acc[r][v]);
    }
}

VECTOR_INLINE void panel_block(const struct panel *p, int rows, int vectors)
{
    vec acc[PANEL_ROWS][PANEL_VECTORS];
    const float *a = p->a, *b = p->b;
    int64_t a_row = p->a_row, a_k = p->a_k, b_row = p->b_row;
    panel_begin(acc, p, rows, vectors);
    for (int64_t k = p->k; k > 0; k--, a += a_k, b += b_row) {
        vec of_b[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            of_b[v] = vec_load(b + v * VECTOR);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec of_a = vec_all(a[r * a_row]);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                acc[r][v] = vec_fma(of_a, of_b[v], acc[r][v]);
        }
    }
    panel_end(p, acc, rows, vectors);
}

#ifdef __AVX512BF16__
/* The same for bf16 numbers in pairs: k counts pairs, an element of a and b is two neighbours in k. Products
 * of two bf16 numbers are exact in fp32; a pair makes two additions. */
VECTOR_INLINE void panel_block_pairs(const struct panel *p, int rows, int vectors)
{
    vec acc[PANEL_ROWS][PANEL_VECTORS];
    const float *a = p->a, *b = p->b;
    int64_t a_row = p->a_row, a_k = p->a_k, b_row = p->b_row;
    panel_begin(acc, p, rows, vectors);
    for (int64_t k = p->k; k > 0; k--, a += a_k, b += b_row) {
        __m512bh of_b[PANEL_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            of_b[v] = (__m512bh)_mm512_loadu_si512(b + v * VECTOR);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, a + r * a_row, sizeof pair);
            __m512bh of_a = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                acc[r][v] = (vec)_mm512_dpbf16_ps((__m512)acc[r][v], of_a, of_b[v]);
        }
    }
    panel_end(p, acc, rows, vectors);
}
#endif

VECTOR_INLINE void panel_cell(const struct panel *p, int rows, int vectors, bool pairs)
{
#ifdef __AVX512BF16__
    if (pairs) {
        panel_block_pairs(p, rows, vectors);
        return;
    }
#endif
    (void)pairs;
    panel_block(p, rows, vectors);
}

/* A copy of the block for each number of vectors, so that sums stay in registers. */
VECTOR_INLINE void panel_cells(const struct panel *p, int rows, int vectors, bool pairs)
{
    if (vectors == PANEL_VECTORS)
        panel_cell(p, rows, PANEL_VECTORS, pairs);
    else if (vectors == 1)
        panel_cell(p, rows, 1, pairs);
    else if (vectors == 2)
        panel_cell(p, rows, 2, pairs);
    else
        panel_cell(p, rows, PANEL_VECTORS - 1, pairs);
}

VECTOR_INLINE void panel_any(const struct panel *p, int64_t rows, int vectors, bool pairs)
{
    struct panel part = *p;
    for (int64_t r = 0; r < rows;) {
        int64_t left = rows - r, now = left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        part.c = p->c + r * p->c_row;
        part.a = p->a + r * p->a_row;
        part.scale = p->scale ? p->scale + r : NULL;
        if (now == 6)
            panel_cells(&part, 6, vectors, pairs);
        else if (now == 4)
            panel_cells(&part, 4, vectors, pairs);
        else if (now == 2)
            panel_cells(&part, 2, vectors, pairs);
        else
            panel_cells(&part, 1, vectors, pairs);
        r += now;
    }
}

/* Up to PANEL_ROWS rows, and `columns` columns rounded up to whole vectors. */
static void panel_run(const struct panel *p, int64_t rows, int64_t columns)
{
    struct panel part = *p;
    for (int64_t at = 0; at < columns; at += PANEL_COLUMNS) {
        int64_t left = (columns - at + VECTOR - 1) / VECTOR;
        part.c = p->c + at;
        part.b = p->b + at;
        panel_any(&part, rows, (int)(left < PANEL_VECTORS ? left : PANEL_VECTORS), false);
    }
}

#ifdef __AVX512BF16__
static void panel_run_pairs(const struct panel *p, int64_t rows, int64_t columns)
{
    struct panel part = *p;
    for (int64_t at = 0; at < columns; at += PANEL_COLUMNS) {
        int64_t left = (columns - at + VECTOR - 1) / VECTOR;
        part.c = p->c + at;
        part.b = p->b + at;
        panel_any(&part, rows, (int)(left < PANEL_VECTORS ? left : PANEL_VECTORS), true);
    }
}
#endif

#endif
