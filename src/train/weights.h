/* Weights between a Hugging Face model directory and a shard: read in, and written out by the ranks that own
 * them. */
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

/* Bytes of all parameters as `type`. */
int64_t weights_bytes(const struct model *model, enum dtype type);

/* How all parameters lie in STEM.safetensors, or, beyond `limit` bytes, in numbered files with
 * STEM.safetensors.index.json: the same whatever the ranks. So each rank can write what it owns, in any
 * order, and nobody needs to have the whole. */
struct weights_layout {
    enum dtype type;
    struct weights_tensor {
        int unit, param, file;
        int64_t offset; /* of its first byte, from the file's */
    } * tensors;        /* in the model's order, and so file by file */
    int tensor_count;
    struct weights_file {
        char name[80];
        struct strbuf header; /* its first bytes */
        int64_t bytes;        /* of the whole file */
    } * files;
    int file_count;
    char index_name[96];
    struct strbuf index; /* its text; empty with one file */
};
/* Zeroed on failure. */
int weights_layout_create(struct weights_layout *out, const struct model *model, enum dtype type,
                          const char *stem, int64_t limit, struct error *err);
void weights_layout_free(struct weights_layout *l); /* safe on a zeroed one */

/* This rank owns some of tensor i. */
bool weights_tensor_owned(const struct weights_layout *l, int i, const struct shard *shard);
/* Writes that to its place in its file, of `kind`, a piece at a time. As shard_read it may be called beside
 * passes. */
enum { WEIGHTS_PIECE = 1 << 16 /* elements */ };
struct weights_buffers {
    float *values;   /* [WEIGHTS_PIECE], MEMORY_HOST */
    void *converted; /* room for as many of any type */
};
int weights_write_owned(const struct weights_layout *l, int i, const struct shard *shard,
                        enum shard_kind kind, struct file_part *file, const struct weights_buffers *buffers,
                        struct error *err);

#endif
