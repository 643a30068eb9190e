#include "backend/reference/kernels.h"

#include "backend/signature.h"

#include <math.h>

void reference_accumulate(float *acc, const float *part, int64_t n, int first)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = first ? part[i] : acc[i] + part[i];
}

void reference_sum_squares(double *sums, const float *x, int64_t n)
{
    for (int64_t begin = 0; begin < n; begin += SUM_SQUARES_BLOCK) {
        double partial[16] = {0}, sum = 0;
        for (int64_t i = begin; i < n && i < begin + SUM_SQUARES_BLOCK; i++)
            partial[i % 16] += (double)x[i] * (double)x[i];
        for (int l = 0; l < 16; l++)
            sum += partial[l];
        sums[begin / SUM_SQUARES_BLOCK] = sum;
    }
}

/* Loshchilov & Hutter, "Decoupled weight decay regularization", ICLR 2019, in the order of operations
 * of PyTorch's AdamW. Factors are made in double and rounded once, elements are fp32. */
void reference_adamw(float *master, float *m, float *v, void *copy, enum dtype copy_type,
                     const float *gradient, int64_t n, const struct op_adamw *a)
{
    float decay = (float)(1 - (double)a->lr * (double)a->weight_decay);
    float step = (float)((double)a->lr / (double)a->correction1);
    float root = (float)sqrt((double)a->correction2);
    float beta1_rest = (float)(1 - (double)a->beta1), beta2_rest = (float)(1 - (double)a->beta2);
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * a->gradient_scale;
        float p = master[i] * decay;
        m[i] = a->beta1 * m[i] + beta1_rest * g;
        v[i] = a->beta2 * v[i] + beta2_rest * g * g;
        float denominator = sqrtf(v[i]) / root + a->eps;
        master[i] = p - step * m[i] / denominator;
        if (copy)
            store(copy, copy_type, i, (double)master[i]);
    }
}
