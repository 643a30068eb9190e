/* Kernels over rows. Included by one file for each instruction set. */
#ifndef TERCET_BACKEND_CPU_KERNELS_ROW_H
#define TERCET_BACKEND_CPU_KERNELS_ROW_H

#include "backend/cpu/kernels/common.h"

/* lanes += a * b, element i to lane i % LANES; n is a multiple of LANES but at a row's end. */
static void lanes_dot(float *lanes, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (int l = 0; i < n; i++, l++)
        lanes[l] += a[i] * b[i];
}

static float round_to(float x, enum dtype type)
{
    return type == DTYPE_F32 ? x : bf16_to_f32(narrow_one(x));
}

static void rmsnorm(void *y, float *rstd, const void *x, const void *w, enum dtype type, int64_t rows,
                    int64_t width, float eps)
{
    float x_buffer[BLOCK], w_buffer[BLOCK], y_buffer[BLOCK];
    for (int64_t row = 0; row < rows; row++) {
        float lanes[LANES] = {0};
        for (int64_t at = 0; at < width; at += BLOCK) {
            int64_t length = block_length(at, width);
            const float *px = block_load(x, type, row * width + at, length, x_buffer);
            lanes_dot(lanes, px, px, length);
        }
        float r = 1.0f / sqrtf(lanes_sum(lanes) / (float)width + eps);
        rstd[row] = r;
        for (int64_t at = 0; at < width; at += BLOCK) {
            int64_t length = block_length(at, width), place = row * width + at;
            const float *px = block_load(x, type, place, length, x_buffer);
            const float *pw = block_load(w, type, at, length, w_buffer);
            float *py = block_target(y, type, place, y_buffer);
            if (type == DTYPE_F32)
                for (int64_t i = 0; i < length; i++)
                    py[i] = px[i] * r * pw[i];
            else
                for (int64_t i = 0; i < length; i++)
                    py[i] = round_to(px[i] * r, DTYPE_BF16) * pw[i];
            block_store(y, type, place, length, py);
        }
    }
}

/* With n = x rstd and g = dy w:  dx = rstd (g - n mean(g n)). */
static void rmsnorm_grad_input(void *dx, const void *dy, const void *x, const void *w, const float *rstd,
                               enum dtype type, int64_t rows, int64_t width)
{
    float x_buffer[BLOCK], w_buffer[BLOCK], dy_buffer[BLOCK], g[BLOCK], dx_buffer[BLOCK];
    for (int64_t row = 0; row < rows; row++) {
        float lanes[LANES] = {0}, r = rstd[row];
        for (int64_t at = 0; at < width; at += BLOCK) {
            int64_t length = block_length(at, width), place = row * width + at;
            const float *px = block_load(x, type, place, length, x_buffer);
            const float *pdy = block_load(dy, type, place, length, dy_buffer);
            const float *pw = block_load(w, type, at, length, w_buffer);
            for (int64_t i = 0; i < length; i++)
                g[i] = pdy[i] * pw[i];
            lanes_dot(lanes, g, px, length);
        }
        float factor = r * r * lanes_sum(lanes) / (float)width;
        for (int64_t at = 0; at < width; at += BLOCK) {
            int64_t length = block_length(at, width), place = row * width + at;
            const float *px = block_load(x, type, place, length, x_buffer);
            const float *pdy = block_load(dy, type, place, length, dy_buffer);
            const float *pw = block_load(w, type, at, length, w_buffer);
            float *pdx = block_target(dx, type, place, dx_buffer);
            for (int64_t i = 0; i < length; i++)
                pdx[i] = r * (pdy[i] * pw[i] - px[i] * factor);
            block_store(dx, type, place, length, pdx);
        }
    }
}

static void rmsnorm_grad_weight(float *partial, const void *dy, const void *x, const float *rstd,
                                enum dtype type, int64_t rows, int64_t width)
{
    float x_buffer[BLOCK], dy_buffer[BLOCK];
    memset(partial, 0, (size_t)width * sizeof *partial);
    for (int64_t at = 0; at < width; at += BLOCK) {
        int64_t length = block_length(at, width);
        float *sum = partial + at;
        for (int64_t row = 0; row < rows; row++) {
            const float *px = block_load(x, type, row * width + at, length, x_buffer);
            const float *pdy = block_load(dy, type, row * width + at, length, dy_buffer);
            float r = rstd[row];
            if (type == DTYPE_F32)
                for (int64_t i = 0; i < length; i++)
                    sum[i] += pdy[i] * (px[i] * r);
            else
                for (int64_t i = 0; i < length; i++)
                    sum[i] += pdy[i] * round_to(px[i] * r, DTYPE_BF16);
        }
    }
}

static void add_row(float *acc, const void *row, enum dtype type, int64_t width)
{
    float buffer[BLOCK];
    for (int64_t at = 0; at < width; at += BLOCK) {
        int64_t length = block_length(at, width);
        const float *p = block_load(row, type, at, length, buffer);
        for (int64_t i = 0; i < length; i++)
            acc[at + i] += p[i];
    }
}

static void column_sums(float *partial, const void *x, enum dtype type, int64_t rows, int64_t width)
{
    memset(partial, 0, (size_t)width * sizeof *partial);
    for (int64_t row = 0; row < rows; row++)
        add_row(partial, (const char *)x + dtype_bytes(type, row * width), type, width);
}

static void turn(float *y, const float *x, const float *cosine, const float *sine, float sign, int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i], c = cosine[i], s = sign * sine[i];
        y[i] = a * c - b * s;
        y[half + i] = b * c + a * s;
    }
}

static void rope(void *y, const void *x, const float *table, enum dtype type, int64_t rows, int64_t heads,
                 int64_t head_dim, int inverse)
{
    float x_buffer[BLOCK], y_buffer[BLOCK];
    float sign = inverse ? -1.0f : 1.0f;
    int64_t half = head_dim / 2;
    for (int64_t row = 0; row < rows; row++) {
        const float *cosine = table + row * head_dim, *sine = cosine + half;
        for (int64_t head = 0; head < heads; head++) {
            int64_t place = (row * heads + head) * head_dim;
            if (type == DTYPE_F32) {
                turn((float *)y + place, (const float *)x + place, cosine, sine, sign, half);
                continue;
            }
            /* Both halves of a part of the head, as large as a buffer holds. */
            for (int64_t at = 0; at < half; at += BLOCK / 2) {
                int64_t length = half - at < BLOCK / 2 ? half - at : BLOCK / 2;
                widen(x_buffer, (const uint16_t *)x + place + at, length);
                widen(x_buffer + length, (const uint16_t *)x + place + half + at, length);
                turn(y_buffer, x_buffer, cosine + at, sine + at, sign, length);
                narrow((uint16_t *)y + place + at, y_buffer, length);
                narrow((uint16_t *)y + place + half + at, y_buffer + length, length);
            }
        }
    }
}

static void softmax_statistics(float *max, float *sum, int64_t statistics, const float *logits,
                               int64_t stride, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++, logits += stride) {
        float lanes[LANES], largest = -INFINITY;
        for (int l = 0; l < LANES; l++)
            lanes[l] = -INFINITY;
        int64_t i = 0;
        for (; i + LANES <= columns; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
        for (int l = 0; i < columns; i++, l++)
            lanes[l] = logits[i] > lanes[l] ? logits[i] : lanes[l];
        for (int l = 0; l < LANES; l++)
            largest = lanes[l] > largest ? lanes[l] : largest;
        memset(lanes, 0, sizeof lanes);
        for (i = 0; i + LANES <= columns; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += exp_f32(logits[i + l] - largest);
        for (int l = 0; i < columns; i++, l++)
            lanes[l] += exp_f32(logits[i] - largest);
        max[row * statistics] = largest;
        sum[row * statistics] = lanes_sum(lanes);
    }
}

static void softmax_grad(void *out, enum dtype out_type, int64_t out_stride, const float *logits,
                         int64_t stride, const float *lse, const int32_t *targets, float scale, int64_t first,
                         int64_t rows, int64_t columns)
{
    float buffer[BLOCK];
    for (int64_t row = 0; row < rows; row++, logits += stride) {
        int64_t hit = (int64_t)targets[row] - first;
        bool holds = targets[row] >= 0 && hit >= 0 && hit < columns;
        float l = lse[row], factor = targets[row] < 0 ? 0.0f : scale;
        float of_target = holds ? logits[hit] : 0; /* before its place becomes the gradient's */
        for (int64_t at = 0; at < columns; at += BLOCK) {
            int64_t length = block_length(at, columns), place = row * out_stride + at;
            float *p = block_target(out, out_type, place, buffer);
            if (targets[row] < 0) /* whatever the logits are: not 0 * NaN */
                memset(p, 0, (size_t)length * sizeof *p);
            else
                for (int64_t i = 0; i < length; i++)
                    p[i] = factor * exp_f32(logits[at + i] - l);
            if (holds && hit >= at && hit < at + length)
                p[hit - at] = factor * (exp_f32(of_target - l) - 1.0f);
            block_store(out, out_type, place, length, p);
        }
    }
}

static const struct row_kernels row_kernels = {
    .rmsnorm = rmsnorm,
    .rmsnorm_grad_input = rmsnorm_grad_input,
    .rmsnorm_grad_weight = rmsnorm_grad_weight,
    .column_sums = column_sums,
    .rope = rope,
    .add_row = add_row,
    .softmax_statistics = softmax_statistics,
    .softmax_grad = softmax_grad,
};

#endif
