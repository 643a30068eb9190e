/* Weights between a Hugging Face model directory and a shard: read in, streamed out tensor by tensor. */
#ifndef TERCET_TRAIN_WEIGHTS_H
#define TERCET_TRAIN_WEIGHTS_H

#include "base/log.h"
#include "formats/safetensors.h"
#include "train/engine.h"

/* Opens DIR's weights and compares them with what the model needs: each parameter there, float, of its
 * shape. Tensors that the model does not know are named through log and ignored. No data are read.
 * ERROR_INPUT for what is wrong. */
int weights_open(struct safetensors_set *set, const struct model *model, const char *directory,
                 const struct log *log, struct error *err);

/* Fills `kind` of the engine's shard from an open set. Collective; every rank reads what it keeps. */
int weights_load(struct engine *e, enum shard_kind kind, const struct safetensors_set *set,
                 struct error *err);
/* The same for a shard without an engine around it. */
int weights_load_shard(struct shard *shard, const struct model *model, enum shard_kind kind,
                       const struct safetensors_set *set, struct error *err);

/* A tensor file written from a shard. */
struct weights_file {
    char name[80]; /* relative to the directory */
    int64_t bytes;
    uint64_t hash;
};

/* Bytes that weights_save of `type` writes. */
int64_t weights_bytes(const struct model *model, enum dtype type);

/* Writes all parameters of `kind` as `type` into DIR/STEM.safetensors, or, beyond `limit` bytes, into
 * numbered shards with STEM.safetensors.index.json. Collective: rank 0 writes, one piece in memory at a
 * time. On rank 0 *files (malloc'd, the caller frees) lists what was written. */
int weights_save(struct engine *e, enum shard_kind kind, enum dtype type, const char *directory,
                 const char *stem, int64_t limit, struct weights_file **files, int *file_count,
                 struct error *err);

#endif
