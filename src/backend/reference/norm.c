#include "backend/reference/kernels.h"

#include <math.h>

/* The normalised x as y and dw see it: rounded to the storage type. */
static double normalised(const void *x, enum dtype type, int64_t i, float rstd)
{
    float value = (float)(load(x, type, i) * (double)rstd);
    return type == DTYPE_BF16 ? (double)bf16_to_f32(f32_to_bf16(value)) : (double)value;
}

void reference_rmsnorm(void *y, float *rstd, const void *x, const void *w, enum dtype type, int64_t tokens,
                       int64_t width, float eps)
{
    for (int64_t t = 0; t < tokens; t++) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += load(x, type, t * width + i) * load(x, type, t * width + i);
        rstd[t] = (float)(1 / sqrt(sum / (double)width + (double)eps));
        for (int64_t i = 0; i < width; i++)
            store(y, type, t * width + i, normalised(x, type, t * width + i, rstd[t]) * load(w, type, i));
    }
}

/* With n = x rstd and g = dy w:  dx = rstd (g - n mean(g n)). */
void reference_rmsnorm_grad_input(void *dx, const void *dy, const void *x, const void *w, const float *rstd,
                                  enum dtype type, int64_t tokens, int64_t width)
{
    for (int64_t t = 0; t < tokens; t++) {
        double r = (double)rstd[t], sum = 0;
        for (int64_t i = 0; i < width; i++) {
            int64_t at = t * width + i;
            sum += load(dy, type, at) * load(w, type, i) * load(x, type, at) * r;
        }
        double mean = sum / (double)width;
        for (int64_t i = 0; i < width; i++) {
            int64_t at = t * width + i;
            store(dx, type, at, r * (load(dy, type, at) * load(w, type, i) - load(x, type, at) * r * mean));
        }
    }
}

void reference_rmsnorm_grad_weight(float *dw, const void *dy, const void *x, const float *rstd,
                                   enum dtype type, int64_t tokens, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        double sum = 0;
        for (int64_t t = 0; t < tokens; t++)
            sum += load(dy, type, t * width + i) * normalised(x, type, t * width + i, rstd[t]);
        dw[i] = (float)sum;
    }
}

/* Angles are fp32 products and their cosines fp32, as in PyTorch. */
void reference_rope_table(float *table, const int32_t *positions, const float *inv_freq, int64_t tokens,
                          int64_t head_dim)
{
    int64_t half = head_dim / 2;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)positions[t] * inv_freq[i];
            table[t * head_dim + i] = cosf(angle);
            table[t * head_dim + half + i] = sinf(angle);
        }
}

void reference_rope(void *y, const void *x, const float *table, enum dtype type, int64_t tokens,
                    int64_t heads, int64_t head_dim, int inverse)
{
    int64_t half = head_dim / 2;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < half; i++) {
                int64_t at = (t * heads + h) * head_dim + i;
                double a = load(x, type, at), b = load(x, type, at + half);
                double c = (double)table[t * head_dim + i], s = (double)table[t * head_dim + half + i];
                if (inverse)
                    s = -s;
                store(y, type, at, a * c - b * s);
                store(y, type, at + half, b * c + a * s);
            }
}
