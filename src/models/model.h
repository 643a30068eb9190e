/* Models: one file per family holds its configuration keys, tensor names and forward graphs.
 *
 * A model is a list of units (embedding, one per block, head). A unit is the piece that is sharded,
 * gathered, recomputed and planned: a parameter list plus a forward graph. Units run in a chain: each has
 * an input and an output "hidden" (the first has no input, the last gives "loss" or "logits").
 * Units of one `kind` share one graph. A unit may use another unit's parameter (a tied head).
 *
 * Graph inputs and outputs by name ("slots" that the caller fills or keeps):
 *   ids[T] i32, positions[T] i32, pieces[P,4] i32, targets[T] i32, inv_freq[H/2] f32  given
 *   rope[T,H] f32             output of the first unit, input of the blocks; no gradient
 *   hidden[T,D]               the chain, compute type
 *   loss[T] f32               output of the head (MODEL_TRAIN)
 *   picked[N] i32 -> logits[N,V] f32   of the head (MODEL_LOGITS, MODEL_DECODE): rows to give logits for
 *   cache_k, cache_v[C, kv_heads*H], slots[T] i32      of the blocks (MODEL_DECODE), one cache a block */
#ifndef TERCET_MODELS_MODEL_H
#define TERCET_MODELS_MODEL_H

#include "base/error.h"
#include "base/log.h"
#include "graph/graph.h"

#include <jansson.h>
#include <stdbool.h>

enum model_init { MODEL_INIT_NORMAL, MODEL_INIT_ONES, MODEL_INIT_ZEROS };

struct model_param {
    char name[96]; /* the tensor's name in a Hugging Face directory: "model.layers.3.mlp.up_proj.weight" */
    int ndim;
    int64_t dim[2];
    enum model_init init;
    bool decay;      /* weight decay applies: matrices, not norms, biases, embeddings */
    int unit, index; /* where it lives: this unit and this place, or (tied) another unit's parameter */
};

struct model_unit {
    char name[48]; /* "embedding", "block 3", "head" */
    int kind;
    int param_count;
    struct model_param *params;
};

enum model_mode { MODEL_TRAIN, MODEL_LOGITS, MODEL_DECODE };

/* What a family's configuration comes to. */
struct model_config {
    char model_type[32];
    int64_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim;
    int64_t max_positions;
    double rms_norm_eps, initializer_range, rope_theta;
    bool tied, attention_bias, mlp_bias;
    enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } rope_type;
    double rope_factor, rope_low_freq, rope_high_freq;
    int64_t rope_original_positions;
    int64_t bos, pad; /* -1: none */
    int64_t eos[16];  /* one or several */
    int eos_count;
    json_t *source; /* the whole file, unknown keys included: written back as it was */
};

struct model {
    struct model_config config;
    int kinds, unit_count;
    struct model_unit *units;
    float *inv_freq; /* [head_dim/2] */
};

/* From config.json's text as a JSON object (borrowed) whose place for messages is `where`. Every key that
 * is not understood is reported through log by name and kept. Impossible values, an unknown model_type or
 * rope_type are ERROR_INPUT. */
int model_create(struct model **out, const json_t *config, const char *where, const struct log *log,
                 struct error *err);
/* From DIR/config.json or the path of a config.json. */
int model_load_config(struct model **out, const char *path, const struct log *log, struct error *err);
void model_free(struct model *m);

/* The forward graph of a kind of unit; `type` is the compute type (fp32, bf16). */
int model_graph(const struct model *m, int kind, enum model_mode mode, enum dtype type, struct graph **out,
                struct error *err);

int64_t model_parameter_count(const struct model *m); /* tied ones once */
/* Elements of a parameter. */
int64_t model_param_elements(const struct model_param *p);
/* Product FLOPs that training needs for one token at a given length of context (forward and backward,
 * attention's causal half counted, recompute not): for peak_share. */
double model_flops_per_token(const struct model *m, double context);

/* config.json to write beside weights of `type`: source with architectures, torch_dtype and dtype, rope in
 * both forms, token ids as given here (-1: leave as is). The caller json_decref()s. */
json_t *model_config_json(const struct model *m, enum dtype type, int64_t bos, int64_t eos, int64_t pad);

/* Weights of one parameter from a counter stream given by seed and name: elements first … first+n-1. */
void model_init_values(const struct model *m, const struct model_param *p, uint64_t seed, int64_t first,
                       int64_t n, float *out);

#endif
