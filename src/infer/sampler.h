/* Sampling: from the logits of a position to the next token.
 *
 *     struct sampler s;
 *     struct sampler_options options = {.temperature = 0.8, .top_p = 0.9, .seed = 7};
 *     sampler_create(&s, vocab_size, &options, err);
 *     id = sampler_pick(&s, logits);
 *     sampler_free(&s);
 *
 * Temperature 0 takes the largest logit. Otherwise logits are divided by the temperature, the top_k largest
 * stay, of these the fewest that together have probability top_p, and one is drawn by its probability among
 * them. Of equal logits the lower id comes first everywhere. The n-th draw of a sampler uses number n of the
 * seed's stream (base/rng.h), so a draw depends on nothing but the logits, the options and n. */
#ifndef TERCET_INFER_SAMPLER_H
#define TERCET_INFER_SAMPLER_H

#include "base/error.h"

struct sampler_options {
    double temperature; /* >= 0; 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* in (0, 1]; 0 stands for 1: all */
    uint64_t seed;
};

struct sampler {
    struct sampler_options options;
    int64_t vocab, draws;
    struct sampler_candidate *candidates; /* private */
};

/* Allocates; picking does not. ERROR_INPUT for options outside their range. */
int sampler_create(struct sampler *s, int64_t vocab, const struct sampler_options *options,
                   struct error *err);
void sampler_free(struct sampler *s); /* safe on a zeroed one */

/* logits[vocab], all finite. */
uint32_t sampler_pick(struct sampler *s, const float *logits);

#endif
