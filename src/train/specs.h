/* A model as a shard sees it: for each unit the sizes of the parameters that live in it.
 *
 *     struct model_specs specs;
 *     if (model_specs_create(&specs, model, err) != 0)
 *         return -1;
 *     … shard_create(&s, comm, backend, &options, specs.units, model->unit_count, err) …
 *     model_specs_free(&specs);
 *
 * A unit's own parameters come first and in order, so that a parameter's `index` is also its place in the
 * unit's layout. */
#ifndef TERCET_TRAIN_SPECS_H
#define TERCET_TRAIN_SPECS_H

#include "models/model.h"
#include "shard/shard.h"

struct model_specs {
    struct shard_unit_spec *units; /* [unit_count of the model] */
    int64_t *elements;             /* private */
    bool *decay;
};

/* Zeroed on failure. */
int model_specs_create(struct model_specs *out, const struct model *model, struct error *err);
void model_specs_free(struct model_specs *specs); /* safe on a zeroed one */

/* The parameter lives in this unit, and does not only refer to another unit's. */
bool model_specs_owns(const struct model *model, int unit, int param);
/* Another unit refers to this unit's parameter. */
bool model_specs_referred(const struct model *model, int unit, int param);

#endif
