/* Kernels over flat ranges. Included by one file for each instruction set. */
#ifndef TERCET_BACKEND_CPU_KERNELS_FLAT_H
#define TERCET_BACKEND_CPU_KERNELS_FLAT_H

#include "backend/cpu/kernels/common.h"

#include "backend/signature.h"

static void convert(void *to, enum dtype to_type, const void *from, enum dtype from_type, int64_t n)
{
    if (to_type == DTYPE_BF16 && from_type == DTYPE_F32)
        narrow(to, from, n);
    else if (to_type == DTYPE_F32 && from_type == DTYPE_BF16)
        widen(to, from, n);
    else
        dtype_convert(to_type, to, from_type, from, n);
}

static void add(void *y, const void *a, const void *b, enum dtype type, int64_t n)
{
    float a_buffer[BLOCK], b_buffer[BLOCK], y_buffer[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t length = block_length(at, n);
        const float *pa = block_load(a, type, at, length, a_buffer);
        const float *pb = block_load(b, type, at, length, b_buffer);
        float *py = block_target(y, type, at, y_buffer);
        for (int64_t i = 0; i < length; i++)
            py[i] = pa[i] + pb[i];
        block_store(y, type, at, length, py);
    }
}

static void swiglu(void *y, const void *gate, const void *up, enum dtype type, int64_t n)
{
    float g_buffer[BLOCK], u_buffer[BLOCK], y_buffer[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t length = block_length(at, n);
        const float *g = block_load(gate, type, at, length, g_buffer);
        const float *u = block_load(up, type, at, length, u_buffer);
        float *py = block_target(y, type, at, y_buffer);
        for (int64_t i = 0; i < length; i++)
            py[i] = g[i] / (1.0f + exp_f32(-g[i])) * u[i];
        block_store(y, type, at, length, py);
    }
}

/* silu(g) = g s(g), so silu' = s + g s (1 - s). Results go through buffers: an output may be an input. */
static void swiglu_grad(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                        enum dtype type, int64_t n)
{
    float d_buffer[BLOCK], g_buffer[BLOCK], u_buffer[BLOCK], dg[BLOCK], du[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t length = block_length(at, n);
        const float *d = block_load(dy, type, at, length, d_buffer);
        const float *g = block_load(gate, type, at, length, g_buffer);
        const float *u = block_load(up, type, at, length, u_buffer);
        for (int64_t i = 0; i < length; i++) {
            float s = 1.0f / (1.0f + exp_f32(-g[i]));
            dg[i] = d[i] * u[i] * (s * (1.0f + g[i] * (1.0f - s)));
            du[i] = d[i] * (g[i] * s);
        }
        if (type == DTYPE_F32) {
            memcpy((float *)dgate + at, dg, (size_t)length * sizeof *dg);
            memcpy((float *)dup + at, du, (size_t)length * sizeof *du);
        } else {
            narrow((uint16_t *)dgate + at, dg, length);
            narrow((uint16_t *)dup + at, du, length);
        }
    }
}

static void accumulate(float *acc, const float *part, int64_t n, int first)
{
    if (first) {
        memmove(acc, part, (size_t)n * sizeof *acc);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        acc[i] += part[i];
}

static void sum_squares(double *sums, const float *x, int64_t n)
{
    for (int64_t begin = 0; begin < n; begin += SUM_SQUARES_BLOCK) {
        double partial[LANES] = {0}, sum = 0;
        int64_t end = n - begin < SUM_SQUARES_BLOCK ? n : begin + SUM_SQUARES_BLOCK, i = begin;
        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++)
                partial[l] += (double)x[i + l] * (double)x[i + l];
        for (int l = 0; i < end; i++, l++)
            partial[l] += (double)x[i] * (double)x[i];
        for (int l = 0; l < LANES; l++)
            sum += partial[l];
        sums[begin / SUM_SQUARES_BLOCK] = sum;
    }
}

/* The order of operations of PyTorch's AdamW; factors are made in double and rounded once. */
static void adamw(float *master, float *m, float *v, void *copy, enum dtype copy_type, const float *gradient,
                  int64_t n, const struct op_adamw *a)
{
    float decay = (float)(1 - (double)a->lr * (double)a->weight_decay);
    float step = (float)((double)a->lr / (double)a->correction1);
    float root = (float)sqrt((double)a->correction2);
    float beta1 = a->beta1, beta2 = a->beta2, eps = a->eps, scale = a->gradient_scale;
    float beta1_rest = (float)(1 - (double)beta1), beta2_rest = (float)(1 - (double)beta2);
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * scale;
        float p = master[i] * decay;
        float m_new = beta1 * m[i] + beta1_rest * g;
        float v_new = beta2 * v[i] + beta2_rest * g * g;
        float denominator = sqrtf(v_new) / root + eps;
        m[i] = m_new;
        v[i] = v_new;
        master[i] = p - step * m_new / denominator;
    }
    if (copy)
        convert(copy, copy_type, master, DTYPE_F32, n);
}

static const struct flat_kernels flat_kernels = {
    .convert = convert,
    .add = add,
    .swiglu = swiglu,
    .swiglu_grad = swiglu_grad,
    .accumulate = accumulate,
    .sum_squares = sum_squares,
    .adamw = adamw,
};

#endif
