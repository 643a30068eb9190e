/* A family of models: what model.c asks of llama.c and its like. A new family is one file that fills this
 * table, and one line in model.c. */
#ifndef TERCET_MODELS_FAMILY_H
#define TERCET_MODELS_FAMILY_H

#include "models/config_keys.h"
#include "models/model.h"

struct model_family {
    const char *model_type;   /* as config.json has it: "llama" */
    const char *architecture; /* the class whose tensors these are: "LlamaForCausalLM" */

    /* Reads and checks every key of the family. What all families share (model_type, architectures, token
     * ids, notes about storage and versions) has been read. */
    int (*read)(struct config_keys *keys, struct model_config *config, struct error *err);
    /* The keys that `read` understands, as they stand in the configuration: those that are missing in
     * the object are added. -1 when out of memory. */
    int (*write)(const struct model_config *config, json_t *object);

    int kinds;
    /* Fills name, kind and parameters of unit `number` of model_family_units(). Parameters are added with
     * model_unit_add, in the order in which Hugging Face's state dict has them. */
    int (*describe)(const struct model_config *config, int number, struct model_unit *unit);
    /* Calls the builder. */
    void (*build)(const struct model *m, int kind, enum model_mode mode, enum dtype type, struct graph *g);

    double (*flops_per_token)(const struct model_config *config, double context);
};

extern const struct model_family model_family_llama;

/* Adds a parameter that lives in this unit; dim1 is 0 for a vector. Matrices decay, embeddings, norms and
 * biases do not. -1 when out of memory or when the number of elements does not fit. */
int model_unit_add(struct model_unit *unit, int number, const char *prefix, const char *name, int64_t dim0,
                   int64_t dim1, enum model_init init, bool decay);
/* Adds the use of a parameter that lives elsewhere. */
int model_unit_add_tied(struct model_unit *unit, const struct model_param *owner);

#endif
