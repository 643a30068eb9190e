#include "backend/reference/kernels.h"

#include <math.h>

static double dot(const void *a, int64_t a_at, const void *b, int64_t b_at, enum dtype type, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += load(a, type, a_at + i) * load(b, type, b_at + i);
    return sum;
}

/* One query, at element q_at of q and o, over the first `keys` keys of its piece, at kv_at of k and v. */
static double attend(void *o, const void *q, int64_t q_at, const void *k, const void *v, int64_t kv_at,
                     int64_t kv_stride, int64_t keys, int64_t head_dim, double scale, enum dtype type,
                     double *scores)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = scale * dot(q, q_at, k, kv_at + j * kv_stride, type, head_dim);
        if (scores[j] > max)
            max = scores[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = exp(scores[j] - max);
        sum += scores[j];
    }
    for (int64_t d = 0; d < head_dim; d++) {
        double out = 0;
        for (int64_t j = 0; j < keys; j++)
            out += scores[j] * load(v, type, kv_at + j * kv_stride + d);
        store(o, type, q_at + d, out / sum);
    }
    return max + log(sum);
}

void reference_attention(void *o, float *lse, const void *q, const void *k, const void *v,
                         const int32_t *pieces, enum dtype type, const struct attention_shape *s,
                         double *scores)
{
    int64_t q_stride = s->heads * s->head_dim, kv_stride = s->kv_heads * s->head_dim;
    for (int64_t i = 0; i < s->tokens * q_stride; i++)
        store(o, type, i, 0);
    for (int64_t i = 0; i < s->tokens * s->heads; i++)
        lse[i] = INFINITY;
    for (int64_t p = 0; p < s->pieces; p++) {
        int64_t q_start = pieces[4 * p], q_len = pieces[4 * p + 1];
        int64_t kv_start = pieces[4 * p + 2], kv_len = pieces[4 * p + 3];
        for (int64_t i = 0; i < q_len; i++)
            for (int64_t h = 0; h < s->heads; h++) {
                int64_t kv_head = h / (s->heads / s->kv_heads);
                int64_t keys = kv_len - q_len + i + 1;
                lse[(q_start + i) * s->heads + h] =
                    (float)attend(o, q, (q_start + i) * q_stride + h * s->head_dim, k, v,
                                  kv_start * kv_stride + kv_head * s->head_dim, kv_stride, keys, s->head_dim,
                                  (double)s->scale, type, scores);
            }
    }
}

/* The arrays of one backward pass, so that its loops below can share them. */
struct grad {
    const void *dout, *q, *k, *v, *o;
    const float *lse;
    enum dtype type;
    const struct attention_shape *s;
};

/* Probability of (query i, key j) and the gradient of its scaled score, times scale:
 * ds = p (dout v - dout o) scale. Positions are tokens. */
static double score_grad(const struct grad *g, int64_t i, int64_t j, int64_t head, double *probability)
{
    const struct attention_shape *s = g->s;
    int64_t q_at = (i * s->heads + head) * s->head_dim;
    int64_t kv_at = (j * s->kv_heads + head / (s->heads / s->kv_heads)) * s->head_dim;
    double score = (double)s->scale * dot(g->q, q_at, g->k, kv_at, g->type, s->head_dim);
    double p = exp(score - (double)g->lse[i * s->heads + head]);
    double dp = dot(g->dout, q_at, g->v, kv_at, g->type, s->head_dim);
    double delta = dot(g->dout, q_at, g->o, q_at, g->type, s->head_dim);
    *probability = p;
    return p * (dp - delta) * (double)s->scale;
}

static void grad_query(const struct grad *g, void *dq, int64_t start, int64_t i, int64_t head, double *sum)
{
    const struct attention_shape *s = g->s;
    int64_t kv_head = head / (s->heads / s->kv_heads);
    for (int64_t d = 0; d < s->head_dim; d++)
        sum[d] = 0;
    for (int64_t j = start; j <= i; j++) {
        double p, ds = score_grad(g, i, j, head, &p);
        for (int64_t d = 0; d < s->head_dim; d++)
            sum[d] += ds * load(g->k, g->type, (j * s->kv_heads + kv_head) * s->head_dim + d);
    }
    for (int64_t d = 0; d < s->head_dim; d++)
        store(dq, g->type, (i * s->heads + head) * s->head_dim + d, sum[d]);
}

static void grad_key(const struct grad *g, void *dk, void *dv, int64_t j, int64_t end, int64_t kv_head,
                     double *sums)
{
    const struct attention_shape *s = g->s;
    int64_t group = s->heads / s->kv_heads;
    double *k_sum = sums, *v_sum = sums + s->head_dim;
    for (int64_t d = 0; d < 2 * s->head_dim; d++)
        sums[d] = 0;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t i = j; i < end; i++) {
            int64_t q_at = (i * s->heads + head) * s->head_dim;
            double p, ds = score_grad(g, i, j, head, &p);
            for (int64_t d = 0; d < s->head_dim; d++) {
                k_sum[d] += ds * load(g->q, g->type, q_at + d);
                v_sum[d] += p * load(g->dout, g->type, q_at + d);
            }
        }
    for (int64_t d = 0; d < s->head_dim; d++) {
        store(dk, g->type, (j * s->kv_heads + kv_head) * s->head_dim + d, k_sum[d]);
        store(dv, g->type, (j * s->kv_heads + kv_head) * s->head_dim + d, v_sum[d]);
    }
}

void reference_attention_grad(void *dq, void *dk, void *dv, const void *dout, const void *q, const void *k,
                              const void *v, const void *o, const float *lse, const int32_t *pieces,
                              enum dtype type, const struct attention_shape *s, double *sums)
{
    struct grad g = {dout, q, k, v, o, lse, type, s};
    for (int64_t i = 0; i < s->tokens * s->heads * s->head_dim; i++)
        store(dq, type, i, 0);
    for (int64_t i = 0; i < s->tokens * s->kv_heads * s->head_dim; i++) {
        store(dk, type, i, 0);
        store(dv, type, i, 0);
    }
    for (int64_t p = 0; p < s->pieces; p++) {
        int64_t start = pieces[4 * p], end = start + pieces[4 * p + 1];
        for (int64_t i = start; i < end; i++) {
            for (int64_t head = 0; head < s->heads; head++)
                grad_query(&g, dq, start, i, head, sums);
            for (int64_t kv_head = 0; kv_head < s->kv_heads; kv_head++)
                grad_key(&g, dk, dv, i, end, kv_head, sums);
        }
    }
}
