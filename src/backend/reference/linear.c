#include "backend/reference/kernels.h"

void reference_linear(void *y, enum dtype y_type, const void *x, const void *w, const void *bias,
                      enum dtype type, int64_t tokens, int64_t in, int64_t out)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? load(bias, type, o) : 0;
            for (int64_t i = 0; i < in; i++)
                sum += load(x, type, t * in + i) * load(w, type, o * in + i);
            store(y, y_type, t * out + o, sum);
        }
}

void reference_linear_grad_input(void *dx, const void *dy, const void *w, enum dtype type, int64_t tokens,
                                 int64_t in, int64_t out)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++)
                sum += load(dy, type, t * out + o) * load(w, type, o * in + i);
            store(dx, type, t * in + i, sum);
        }
}

void reference_linear_grad_weight(float *dw, const void *dy, const void *x, enum dtype type, int64_t tokens,
                                  int64_t in, int64_t out)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t t = 0; t < tokens; t++)
                sum += load(dy, type, t * out + o) * load(x, type, t * in + i);
            dw[o * in + i] = (float)sum;
        }
}

void reference_linear_grad_bias(float *db, const void *dy, enum dtype type, int64_t tokens, int64_t out)
{
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t t = 0; t < tokens; t++)
            sum += load(dy, type, t * out + o);
        db[o] = (float)sum;
    }
}
