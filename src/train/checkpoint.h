/* Checkpoints: Hugging Face model directories that also hold all that exact resumption needs. saver.h writes
 * them.
 *
 *     OUTPUT/checkpoint-000500/
 *         config.json, model.safetensors (or shards with an index), the tokenizer's files
 *         training/master.safetensors    fp32 masters, where the model files hold another type
 *         training/moment1.safetensors   AdamW's m, under the model's tensor names
 *         training/moment2.safetensors   AdamW's v
 *         training/run.yaml              the resolved run file
 *         training/state.json            step and position in the data
 *         training/manifest.json         sizes and XXH3-64 checksums of all these: complete with it
 *     OUTPUT/last -> checkpoint-000500
 *
 * Whatever the ranks and the stage, the files are the same. All of it is written into
 * checkpoint-000500.tmp-<pid>, fsynced, and renamed; older checkpoints go only after that. Whatever has
 * ".tmp-" in its name is half-written or half-removed, and the next run removes it. */
#ifndef TERCET_TRAIN_CHECKPOINT_H
#define TERCET_TRAIN_CHECKPOINT_H

#include "train/weights.h"

struct checkpoint_state {
    int64_t step;        /* completed */
    int64_t tokens_seen; /* without padding */
    uint64_t data_hash;  /* of the tokenized text */
    uint64_t probe;      /* backend_probe of the machine that wrote it */
};

struct checkpoint_options {
    const char *output;        /* the run's directory */
    const char *tokenizer;     /* directory or tokenizer.json whose files are copied; NULL: none */
    const char *run_yaml;      /* the resolved run file's text */
    enum dtype type;           /* of the model files */
    int64_t file_limit;        /* bytes beyond which tensors go into several files; 0: 5 GB */
    int64_t keep;              /* newest checkpoints that stay; 0: all */
    int64_t bos, eos, pad;     /* for config.json; -1: as the model's configuration has it */
    bool no_generation_config; /* the tokenizer directory's generation_config.json no longer holds */
};

/* Bytes that one checkpoint takes whose model files are of this type. */
int64_t checkpoint_bytes(const struct model *model, enum dtype type);
/* Fails when a directory (or the nearest existing parent) has no room for one: ERROR_RUN. */
int checkpoint_check_space(const char *output, const struct model *model, enum dtype type, struct error *err);

/* The newest complete checkpoint of a run: *path is malloc'd, NULL when there is none. A newest one that
 * has a manifest but does not match it is ERROR_INPUT, and the message names the newest sound one. */
int checkpoint_newest(const char *output, char **path, struct error *err);

/* Compares all files with the manifest. ERROR_INPUT naming the first that differs. */
int checkpoint_verify(const char *path, struct error *err);

int checkpoint_read_state(const char *path, struct checkpoint_state *out, struct error *err);
/* training/run.yaml's text, malloc'd. */
int checkpoint_read_run(const char *path, char **text, struct error *err);

/* Masters and moments into the engine's shard. Collective. */
int checkpoint_load(struct engine *e, const char *path, const struct log *log, struct error *err);

/* Removes what an interrupted run left in OUTPUT. Only for the holder of its lock. */
int checkpoint_clean(const char *output, struct error *err);
/* Points OUTPUT/last to a checkpoint in OUTPUT, in one move. */
int checkpoint_point_last(const char *output, const char *path, struct error *err);
/* A run that goes on from a checkpoint before the newest leaves the later ones behind: those after `step` are
 * renamed to checkpoint-000500.aside, which is no checkpoint. The next save removes them once it is complete,
 * where old checkpoints are removed at all. */
int checkpoint_set_aside(const char *output, int64_t step, const struct log *log, struct error *err);

#endif
