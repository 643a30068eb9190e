#include "backend/reference/kernels.h"

#include <math.h>

static void copy_row(void *to, int64_t to_row, const void *from, int64_t from_row, enum dtype type,
                     int64_t width)
{
    for (int64_t i = 0; i < width; i++)
        store(to, type, to_row * width + i, load(from, type, from_row * width + i));
}

void reference_embed(void *y, const int32_t *ids, const void *table, enum dtype type, int64_t tokens,
                     int64_t width)
{
    for (int64_t t = 0; t < tokens; t++)
        copy_row(y, t, table, ids[t], type, width);
}

void reference_embed_grad(float *dtable, const int32_t *ids, const void *dy, enum dtype type, int64_t tokens,
                          int64_t vocabulary, int64_t width)
{
    for (int64_t i = 0; i < vocabulary * width; i++)
        dtable[i] = 0;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < width; i++)
            dtable[ids[t] * width + i] += (float)load(dy, type, t * width + i);
}

void reference_gather_rows(void *y, const void *rows, const int32_t *index, enum dtype type, int64_t picked,
                           int64_t width)
{
    for (int64_t n = 0; n < picked; n++)
        copy_row(y, n, rows, index[n], type, width);
}

void reference_cache_write(void *cache, const void *rows, const int32_t *slots, enum dtype type,
                           int64_t tokens, int64_t width)
{
    for (int64_t t = 0; t < tokens; t++)
        copy_row(cache, slots[t], rows, t, type, width);
}

void reference_add(void *y, const void *a, const void *b, enum dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        store(y, type, i, load(a, type, i) + load(b, type, i));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void reference_swiglu(void *y, const void *gate, const void *up, enum dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double g = load(gate, type, i);
        store(y, type, i, g * sigmoid(g) * load(up, type, i));
    }
}

/* silu(g) = g s(g), so silu' = s + g s (1 - s). */
void reference_swiglu_grad(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                           enum dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = load(dy, type, i), g = load(gate, type, i), u = load(up, type, i), s = sigmoid(g);
        store(dgate, type, i, d * u * s * (1 + g * (1 - s)));
        store(dup, type, i, d * g * s);
    }
}
