/* Rotary position embeddings: their keys in config.json, in both spellings, and their frequencies.
 *
 * Transformers 4 writes "rope_theta" and "rope_scaling" {"type" or "rope_type", "factor" …} at the top
 * level; Transformers 5 writes "rope_parameters" {"rope_type", "rope_theta", "factor" …}. Both are read,
 * values that contradict each other are refused, and both are written, because a reader that knows only
 * one of them silently takes theta for 10,000. */
#ifndef TERCET_MODELS_ROPE_H
#define TERCET_MODELS_ROPE_H

#include "models/config_keys.h"
#include "models/model.h"

/* Fills rope_type, rope_theta, rope_factor and what llama3 needs. Types: default, linear, llama3; others
 * are refused by name. */
int rope_read(struct config_keys *keys, struct model_config *config, struct error *err);

/* Sets rope_theta, rope_scaling and rope_parameters in a config.json. -1 when out of memory. */
int rope_write(const struct model_config *config, json_t *object);

/* inv_freq[head_dim/2], each operation rounded to fp32 where PyTorch rounds it when it runs
 * transformers' modeling_rope_utils on the CPU:
 *   default   1 / theta^(2i/head_dim)
 *   linear    that / factor
 *   llama3    kept, divided by the factor, or a blend of both, by wavelength (Llama 3.1).
 * The power itself is rounded correctly; PyTorch's own vector routine may be off by one unit in the last
 * place for some of the elements, depending on the CPU. */
void rope_frequencies(const struct model_config *config, float *inv_freq);

#endif
