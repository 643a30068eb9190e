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

/* The log of the sum of exps of a token's logits, which are left in logits[vocabulary]. */
static double log_of_sum(const void *x, int64_t t, const void *w, enum dtype type, int64_t width,
                         int64_t vocabulary, double *logits)
{
    double max = -INFINITY, sum = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        logits[v] = logit(x, t, w, v, type, width);
        if (logits[v] > max)
            max = logits[v];
    }
    for (int64_t v = 0; v < vocabulary; v++)
        sum += exp(logits[v] - max);
    return max + log(sum);
}

void reference_loss(float *loss, const void *x, const void *w, const int32_t *targets, enum dtype type,
                    int64_t tokens, int64_t width, int64_t vocabulary, double *logits)
{
    for (int64_t t = 0; t < tokens; t++) {
        double log_sum = log_of_sum(x, t, w, type, width, vocabulary, logits);
        loss[t] = targets[t] < 0 ? 0 : (float)(log_sum - logits[targets[t]]);
    }
}

/* gradients[vocabulary] = those of a token's logits. */
static void logit_gradients(const void *x, int64_t t, const void *w, const int32_t *targets, float scale,
                            enum dtype type, int64_t width, int64_t vocabulary, double *gradients)
{
    double log_sum = log_of_sum(x, t, w, type, width, vocabulary, gradients);
    for (int64_t v = 0; v < vocabulary; v++) {
        double p = exp(gradients[v] - log_sum);
        gradients[v] = targets[t] < 0 ? 0 : (double)scale * (p - (targets[t] == v ? 1 : 0));
    }
}

/* workspace: vocabulary + vocabulary * width doubles */
void reference_loss_grad(void *dx, float *dw, float *loss, const void *x, const void *w,
                         const int32_t *targets, float scale, enum dtype type, int64_t tokens, int64_t width,
                         int64_t vocabulary, double *workspace)
{
    double *gradients = workspace, *sums = workspace + vocabulary;
    reference_loss(loss, x, w, targets, type, tokens, width, vocabulary, gradients);
    for (int64_t i = 0; i < vocabulary * width; i++)
        sums[i] = 0;
    for (int64_t t = 0; t < tokens; t++) {
        logit_gradients(x, t, w, targets, scale, type, width, vocabulary, gradients);
        for (int64_t i = 0; i < width; i++) {
            double sum = 0;
            for (int64_t v = 0; v < vocabulary; v++)
                sum += gradients[v] * load(w, type, v * width + i);
            store(dx, type, t * width + i, sum);
        }
        for (int64_t v = 0; v < vocabulary; v++)
            for (int64_t i = 0; i < width; i++)
                sums[v * width + i] += gradients[v] * load(x, type, t * width + i);
    }
    for (int64_t i = 0; i < vocabulary * width; i++)
        dw[i] = (float)sums[i];
}
