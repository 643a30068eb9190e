#include "backend/reference/kernels.h"

#include <math.h>

/* Logits are fp32: the sum is rounded once. */
static double logit(const void *x, int64_t t, const void *w, int64_t v, enum dtype type, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += load(x, type, t * width + i) * load(w, type, v * width + i);
    return (double)(float)sum;
}

void reference_loss(float *loss, float *lse, const void *x, const void *w, const int32_t *targets,
                    enum dtype type, int64_t tokens, int64_t width, int64_t vocabulary, double *logits)
{
    for (int64_t t = 0; t < tokens; t++) {
        double max = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocabulary; v++) {
            logits[v] = logit(x, t, w, v, type, width);
            if (logits[v] > max)
                max = logits[v];
        }
        for (int64_t v = 0; v < vocabulary; v++)
            sum += exp(logits[v] - max);
        double log_sum = max + log(sum);
        lse[t] = (float)log_sum;
        loss[t] = targets[t] < 0 ? 0 : (float)(log_sum - logits[targets[t]]);
    }
}

static double logit_grad(const void *x, int64_t t, const void *w, int64_t v, const int32_t *targets,
                         const float *lse, float scale, enum dtype type, int64_t width)
{
    if (targets[t] < 0)
        return 0;
    double p = exp(logit(x, t, w, v, type, width) - (double)lse[t]);
    return (double)scale * (p - (targets[t] == v ? 1 : 0));
}

void reference_loss_grad(void *dx, float *dw, const void *x, const void *w, const int32_t *targets,
                         const float *lse, float scale, enum dtype type, int64_t tokens, int64_t width,
                         int64_t vocabulary, double *sums)
{
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < width; i++)
            sums[i] = 0;
        for (int64_t v = 0; v < vocabulary; v++) {
            double g = logit_grad(x, t, w, v, targets, lse, scale, type, width);
            for (int64_t i = 0; i < width; i++)
                sums[i] += g * load(w, type, v * width + i);
        }
        for (int64_t i = 0; i < width; i++)
            store(dx, type, t * width + i, sums[i]);
    }
    for (int64_t v = 0; v < vocabulary; v++) {
        for (int64_t i = 0; i < width; i++)
            sums[i] = 0;
        for (int64_t t = 0; t < tokens; t++) {
            double g = logit_grad(x, t, w, v, targets, lse, scale, type, width);
            for (int64_t i = 0; i < width; i++)
                sums[i] += g * load(x, type, t * width + i);
        }
        for (int64_t i = 0; i < width; i++)
            dw[v * width + i] = (float)sums[i];
    }
}
