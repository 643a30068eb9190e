/* Kernels of the cpu backend: tables of functions, compiled once for each instruction set (the sources in
 * kernels/ are the same) and chosen at start.
 *
 * A kernel computes on one thread, on a piece that its caller cut; it takes pointers and sizes. Float
 * data are fp32 or bf16 by `type`; arithmetic is fp32, and sums are split in a fixed number of
 * lanes. No kernels but those of attention and products contract a*b+c, so all instruction sets give the same
 * bits; these give the same on AVX2 and AVX-512, except that AVX512-BF16 multiplies bf16 numbers where it is.
 */
#ifndef TERCET_BACKEND_CPU_KERNELS_H
#define TERCET_BACKEND_CPU_KERNELS_H

#include "backend/cpu/gemm.h"
#include "graph/op.h"

#include <stdbool.h>

/* Element by element: cutting the range anywhere leaves the bits alone. Outputs may be inputs. */
struct flat_kernels {
    void (*convert)(void *to, enum dtype to_type, const void *from, enum dtype from_type, int64_t n);
    void (*add)(void *y, const void *a, const void *b, enum dtype type, int64_t n);
    void (*swiglu)(void *y, const void *gate, const void *up, enum dtype type, int64_t n);
    void (*swiglu_grad)(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                        enum dtype type, int64_t n);
    void (*accumulate)(float *acc, const float *part, int64_t n, int first);
    /* x begins at a block's start; one double for each block of SUM_SQUARES_BLOCK. */
    void (*sum_squares)(double *sums, const float *x, int64_t n);
    void (*adamw)(float *master, float *m, float *v, void *copy, enum dtype copy_type, const float *gradient,
                  int64_t n, const struct op_adamw *a);
};

/* Row by row; a row's bits do not depend on its neighbours. */
struct row_kernels {
    void (*rmsnorm)(void *y, float *rstd, const void *x, const void *w, enum dtype type, int64_t rows,
                    int64_t width, float eps);
    void (*rmsnorm_grad_input)(void *dx, const void *dy, const void *x, const void *w, const float *rstd,
                               enum dtype type, int64_t rows, int64_t width);
    /* partial[width] = sums over these rows, in row order. */
    void (*rmsnorm_grad_weight)(float *partial, const void *dy, const void *x, const float *rstd,
                                enum dtype type, int64_t rows, int64_t width);
    void (*column_sums)(float *partial, const void *x, enum dtype type, int64_t rows, int64_t width);
    void (*rope)(void *y, const void *x, const float *table, enum dtype type, int64_t rows, int64_t heads,
                 int64_t head_dim, int inverse);
    /* acc[width] += row */
    void (*add_row)(float *acc, const void *row, enum dtype type, int64_t width);
    /* For each row of logits[rows, columns] (row stride `stride`): max[row * statistics] and
     * sum[row * statistics] = sum of exp(logit - max). */
    void (*softmax_statistics)(float *max, float *sum, int64_t statistics, const float *logits,
                               int64_t stride, int64_t rows, int64_t columns);
    /* out[row, column] (row stride out_stride) = scale * (exp(logit - lse[row]) - (target == first +
     * column)), zeros where the target is negative. out may be logits. */
    void (*softmax_grad)(void *out, enum dtype out_type, int64_t out_stride, const float *logits,
                         int64_t stride, const float *lse, const int32_t *targets, float scale, int64_t first,
                         int64_t rows, int64_t columns);
};

/* Keys that are looked at together, and queries too in the gradient; rows (a query of one head) that the
 * gradient handles at a time. */
enum { ATTENTION_KEYS = 64, ATTENTION_ROWS = 96 };

/* What the calls of one attention op share. */
struct attention_data {
    const void *q, *k, *v;
    void *o;
    float *lse;
    const void *dout;   /* from here on: gradient only */
    const float *delta; /* [tokens, heads]: dot(dout, o) */
    void *dq, *dk, *dv;
    float *dq_sums;           /* [kv_heads, tokens, heads / kv_heads, depth] */
    float *dk_sums, *dv_sums; /* [kv_heads, tokens, depth] */
    enum dtype type;
    int64_t tokens, heads, kv_heads, head_dim;
    float scale;
};

struct attention_piece {
    int64_t q_start, q_len, kv_start, kv_len;
};

/* All query heads of one key head, for a block of a piece's queries, or for a tile of the gradient: a block
 * of ATTENTION_KEYS queries and one of as many keys. `buffer`: attention_buffer() floats. */
struct attention_kernels {
    void (*forward)(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                    int64_t first_query, float *buffer);
    void (*delta)(float *delta, const void *dout, const void *o, enum dtype type, int64_t rows, int64_t heads,
                  int64_t head_dim);
    void (*grad_tile)(const struct attention_data *a, const struct attention_piece *p, int64_t kv_head,
                      int64_t query_block, int64_t key_block, float *buffer);
};

/* Queries that one call of forward handles: about 192 rows. */
static inline int64_t attention_queries(int64_t group)
{
    int64_t queries = 192 / group;
    return queries < 8 ? 8 : queries > 64 ? 64 : queries;
}

/* head_dim in whole lanes. */
static inline int64_t attention_depth(int64_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

static inline int64_t attention_buffer(int64_t head_dim, int64_t group, bool gradient)
{
    int64_t depth = attention_depth(head_dim), rows = attention_queries(group) * group;
    if (gradient)
        return (4 * ATTENTION_KEYS + 4 * ATTENTION_ROWS) * depth + 2 * ATTENTION_ROWS * ATTENTION_KEYS;
    return (3 * ATTENTION_KEYS + 2 * rows) * depth + 17 * rows;
}

/* Products, as panels of columns: c[rows, columns] = a b with sums in registers, each element one chain of
 * additions in the order of k. The chain may be cut in calls anywhere, and an element's bits do not depend on
 * the rows and columns that are computed with it.
 *
 * Operands are taken in words of four bytes along k: an fp32 number, or two bf16 numbers that are neighbours
 * in k (the second is 0 where k ends with the first). So k numbers are product_steps() words. bf16 is for
 * instruction sets that multiply it (gemm_has_bf16). */
enum {
    PRODUCT_COLUMNS = 64, /* of a packed panel of b */
    PRODUCT_ROWS = 48,    /* that are packed together, of an a that is stored by columns */
    PRODUCT_STEPS = 512,  /* of a packed panel at most: 128 KB, for the second cache */
};

static inline int64_t product_steps(enum dtype type, int64_t k)
{
    return type == DTYPE_BF16 ? (k + 1) / 2 : k;
}

struct product_kernels {
    /* to[steps][width] words = the matrix stored [k, stride], its first `columns` columns; zeros beside them
     * up to `width`. */
    void (*pack)(void *to, int64_t width, const void *from, enum dtype type, int64_t stride, int64_t k,
                 int64_t columns);
    /* The same of a matrix stored [columns, stride], k of each row; width is PRODUCT_COLUMNS. */
    void (*pack_transposed)(void *to, const void *from, enum dtype type, int64_t stride, int64_t k,
                            int64_t columns);
    /* c[rows, columns rounded up to 16] = a b, or += where `add`. Word [row, step] of a is at row * a_row +
     * step * a_step words; b is packed. */
    void (*run)(float *c, int64_t c_row, const void *a, int64_t a_row, int64_t a_step, const void *b,
                enum dtype type, int64_t steps, int64_t rows, int64_t columns, bool add);
    /* c[rows, columns] (row stride c_row) of type out = tile[rows, PRODUCT_COLUMNS] + bias (NULL: none). */
    void (*finish)(void *c, enum dtype out, int64_t c_row, const float *tile, const void *bias,
                   enum dtype bias_type, int64_t rows, int64_t columns);
};

struct cpu_kernels {
    const struct flat_kernels *flat;
    const struct row_kernels *row;
    const struct attention_kernels *attention;
    const struct product_kernels *product;
};

/* kernels/kernels_*.c; on x86-64 all of them. */
extern const struct cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512,
    cpu_kernels_avx512_bf16;

/* The best for this instruction set among those that were built. */
const struct cpu_kernels *kernels_choose(enum isa isa);

#endif
