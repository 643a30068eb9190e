#include "infer/sampler.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

struct sampler_candidate {
    float logit;
    uint32_t id;
};

static int check_options(const struct sampler_options *o, struct error *err)
{
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return error_set(err, ERROR_INPUT, "temperature",
                         "0 takes the likeliest token, 1 draws as the model says", "%g is not a temperature",
                         o->temperature);
    if (o->top_k < 0)
        return error_set(err, ERROR_INPUT, "top_k", "0 keeps all tokens", "%" PRId64 " tokens cannot be kept",
                         o->top_k);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return error_set(err, ERROR_INPUT, "top_p", "1 keeps all tokens", "%g is not a probability",
                         o->top_p);
    return 0;
}

int sampler_create(struct sampler *s, int64_t vocab, const struct sampler_options *options, struct error *err)
{
    *s = (struct sampler){.options = *options, .vocab = vocab};
    if (check_options(options, err) != 0)
        return -1;
    if (s->options.top_p == 0)
        s->options.top_p = 1;
    if (s->options.top_k == 0 || s->options.top_k > vocab)
        s->options.top_k = vocab;
    s->candidates = calloc((size_t)vocab, sizeof *s->candidates);
    if (!s->candidates)
        return error_memory(err, (size_t)vocab * sizeof *s->candidates, "sampling");
    return 0;
}

void sampler_free(struct sampler *s)
{
    free(s->candidates);
    *s = (struct sampler){0};
}

static uint32_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (uint32_t)best;
}

static bool before(const struct sampler_candidate *a, const struct sampler_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Restores the heap of n candidates below place i; the one that comes before all others is at its root. */
static void sift(struct sampler_candidate *heap, int64_t n, int64_t i)
{
    struct sampler_candidate moved = heap[i];
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &moved))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Takes the root off a heap of n: it moves to place n-1. */
static void pop(struct sampler_candidate *heap, int64_t n)
{
    struct sampler_candidate root = heap[0];
    heap[0] = heap[n - 1];
    sift(heap, n - 1, 0);
    heap[n - 1] = root;
}

/* The weight of a logit: its probability times a common factor. */
static double weight(const struct sampler *s, float logit, float max)
{
    return exp(((double)logit - (double)max) / s->options.temperature);
}

/* The number that was drawn, as a part of `total`. */
static double draw(struct sampler *s, double total)
{
    static const uint64_t stream = 0x73616d706c65; /* any fixed number of our own */
    return rng_uniform(s->options.seed, stream, (uint64_t)s->draws++) * total;
}

static uint32_t pick_of_all(struct sampler *s, const float *logits, float max)
{
    double total = 0, sum = 0;
    for (int64_t i = 0; i < s->vocab; i++)
        total += weight(s, logits[i], max);
    double target = draw(s, total);
    for (int64_t i = 0; i < s->vocab; i++) {
        sum += weight(s, logits[i], max);
        if (sum > target)
            return (uint32_t)i;
    }
    return largest(logits, s->vocab); /* not reached: target < total, which is the last sum */
}

/* The i-th of the candidates that were popped from a heap of vocab. */
static const struct sampler_candidate *popped(const struct sampler *s, int64_t i)
{
    return &s->candidates[s->vocab - 1 - i];
}

static uint32_t pick_of_best(struct sampler *s, const float *logits, float max)
{
    int64_t vocab = s->vocab, kept = 0, count = 0;
    double total = 0, nucleus = 0, sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        s->candidates[i] = (struct sampler_candidate){logits[i], (uint32_t)i};
    for (int64_t i = vocab / 2 - 1; i >= 0; i--)
        sift(s->candidates, vocab, i);
    if (s->options.top_k < vocab) {
        for (; kept < s->options.top_k; kept++)
            pop(s->candidates, vocab - kept);
        for (int64_t i = 0; i < kept; i++)
            total += weight(s, popped(s, i)->logit, max);
    } else {
        for (int64_t i = 0; i < vocab; i++)
            total += weight(s, logits[i], max);
    }
    for (; count < s->options.top_k && (count == 0 || nucleus < s->options.top_p * total); count++) {
        if (count == kept)
            pop(s->candidates, vocab - kept++);
        nucleus += weight(s, popped(s, count)->logit, max);
    }
    double target = draw(s, nucleus);
    for (int64_t i = 0; i < count; i++) {
        sum += weight(s, popped(s, i)->logit, max);
        if (sum > target)
            return popped(s, i)->id;
    }
    return popped(s, 0)->id; /* not reached: target < nucleus, which is the last sum */
}

uint32_t sampler_pick(struct sampler *s, const float *logits)
{
    uint32_t best = largest(logits, s->vocab);
    if (s->options.temperature == 0)
        return best;
    if (s->options.top_k < s->vocab || s->options.top_p < 1)
        return pick_of_best(s, logits, logits[best]);
    return pick_of_all(s, logits, logits[best]);
}
