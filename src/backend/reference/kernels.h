/* Kernels of the reference backend. Shapes and meaning: graph/op.h. All arrays are dense, row-major. */
#ifndef TERCET_BACKEND_REFERENCE_KERNELS_H
#define TERCET_BACKEND_REFERENCE_KERNELS_H

#include "graph/op.h"

static inline double load(const void *data, enum dtype type, int64_t i)
{
    return type == DTYPE_BF16 ? (double)bf16_to_f32(((const uint16_t *)data)[i])
                              : (double)((const float *)data)[i];
}

/* Rounds to fp32, then to the storage type. */
static inline void store(void *data, enum dtype type, int64_t i, double value)
{
    if (type == DTYPE_BF16)
        ((uint16_t *)data)[i] = f32_to_bf16((float)value);
    else
        ((float *)data)[i] = (float)value;
}

/* rows.c */
void reference_embed(void *y, const int32_t *ids, const void *table, enum dtype type, int64_t tokens,
                     int64_t width);
void reference_embed_grad(float *dtable, const int32_t *ids, const void *dy, enum dtype type, int64_t tokens,
                          int64_t vocabulary, int64_t width);
void reference_gather_rows(void *y, const void *rows, const int32_t *index, enum dtype type, int64_t picked,
                           int64_t width);
void reference_cache_write(void *cache, const void *rows, const int32_t *slots, enum dtype type,
                           int64_t tokens, int64_t width);
void reference_add(void *y, const void *a, const void *b, enum dtype type, int64_t n);
void reference_swiglu(void *y, const void *gate, const void *up, enum dtype type, int64_t n);
void reference_swiglu_grad(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                           enum dtype type, int64_t n);

/* linear.c; bias may be NULL */
void reference_linear(void *y, enum dtype y_type, const void *x, const void *w, const void *bias,
                      enum dtype type, int64_t tokens, int64_t in, int64_t out);
void reference_linear_grad_input(void *dx, const void *dy, const void *w, enum dtype type, int64_t tokens,
                                 int64_t in, int64_t out);
void reference_linear_grad_weight(float *dw, const void *dy, const void *x, enum dtype type, int64_t tokens,
                                  int64_t in, int64_t out);
void reference_linear_grad_bias(float *db, const void *dy, enum dtype type, int64_t tokens, int64_t out);

/* norm.c */
void reference_rmsnorm(void *y, float *rstd, const void *x, const void *w, enum dtype type, int64_t tokens,
                       int64_t width, float eps);
void reference_rmsnorm_grad_input(void *dx, const void *dy, const void *x, const void *w, const float *rstd,
                                  enum dtype type, int64_t tokens, int64_t width);
void reference_rmsnorm_grad_weight(float *dw, const void *dy, const void *x, const float *rstd,
                                   enum dtype type, int64_t tokens, int64_t width);
void reference_rope_table(float *table, const int32_t *positions, const float *inv_freq, int64_t tokens,
                          int64_t head_dim);
void reference_rope(void *y, const void *x, const float *table, enum dtype type, int64_t tokens,
                    int64_t heads, int64_t head_dim, int inverse);

/* attention.c */
struct attention_shape {
    int64_t tokens, rows, pieces, heads, kv_heads, head_dim;
    float scale;
};
/* scores: one row, of as many doubles as the key rows. */
void reference_attention(void *o, float *lse, const void *q, const void *k, const void *v,
                         const int32_t *pieces, enum dtype type, const struct attention_shape *shape,
                         double *scores);
/* sums: 2 * head_dim doubles. */
void reference_attention_grad(void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k,
                              const void *v, const void *o, const float *lse, const int32_t *pieces,
                              enum dtype type, const struct attention_shape *shape, double *sums);

/* loss.c */
void reference_loss(float *loss, const void *x, const void *w, const int32_t *targets, enum dtype type,
                    int64_t tokens, int64_t width, int64_t vocabulary, double *logits);
/* workspace: vocabulary * (1 + width) doubles. */
void reference_loss_grad(void *dx, float *dw, float *loss, const void *x, const void *w,
                         const int32_t *targets, float scale, enum dtype type, int64_t tokens, int64_t width,
                         int64_t vocabulary, double *workspace);

/* flat.c; copy may be NULL */
void reference_accumulate(float *acc, const float *part, int64_t n, int first);
void reference_sum_squares(double *sums, const float *x, int64_t n);
void reference_adamw(float *master, float *m, float *v, void *copy, enum dtype copy_type,
                     const float *gradient, int64_t n, const struct op_adamw *a);

#endif
