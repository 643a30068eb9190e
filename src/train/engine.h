/* The engine: one rank's model on its backend, unit by unit, forward and backward.
 *
 *     engine_create(&e, model, comm, backend, &options, err)      // compiles, plans, allocates
 *     shard_fill(e->shard, …)                                     // weights
 *     for each round of micro-batches:
 *         engine_micro_batch(e, batch or NULL, &pass, err)        // collective
 *     … shard_sum_squares, shard_update …
 *
 * All memory is planned first: engine_plan gives the figures without allocating, engine_create uses the
 * same ones. Nothing is allocated afterwards. */
#ifndef TERCET_TRAIN_ENGINE_H
#define TERCET_TRAIN_ENGINE_H

#include "base/exact_sum.h"
#include "data/rows.h"
#include "exec/exec.h"
#include "models/model.h"
#include "shard/shard.h"

enum { ENGINE_MAX_KINDS = 8 };

struct engine_options {
    enum dtype compute;
    enum recompute recompute;
    int64_t micro_batch, seq_len; /* rows and positions of the largest micro-batch */
    int stage;
    bool overlap;   /* gather one unit ahead, reduce behind */
    bool inference; /* forward alone: evaluation without training */
};

/* Bytes of one rank, by item. */
struct engine_memory {
    struct shard_memory shard;
    int64_t hidden;  /* each unit's output, and two gradients of one */
    int64_t saved;   /* what forward passes keep for backward passes */
    int64_t work;    /* temporaries and workspaces */
    int64_t inputs;  /* tokens, targets, tables, losses, and their host copies */
    int64_t profile; /* of a run that is profiled; the engine has none */
    int64_t saving;  /* of a training run's thread that saves; the engine has none */
    int64_t private_total, shared_total;
};

struct engine_unit {
    const struct program *program;
    void **io;            /* [io_count] addresses, fixed */
    void **param, **grad; /* [param_count], filled for each run */
    char *saved;
};

struct engine {
    const struct model *model;
    struct comm *comm;
    struct backend *backend;
    struct engine_options options;
    struct exec exec;
    struct shard *shard;
    struct program *programs[ENGINE_MAX_KINDS];
    struct engine_unit *units;
    struct engine_memory memory;
    /* Regions: the arena holds hidden, saved, work and inputs. */
    char *arena, *work;
    int64_t arena_bytes;
    void *host; /* pinned: inputs on their way in, losses on their way out */
    struct engine_inputs {
        int32_t *ids, *positions, *pieces, *targets;
        float *loss, *loss_scale, *inv_freq;
    } device, staged;
    int64_t micro_batches;   /* run on this rank so far */
    struct error found;      /* in a checked pass: the first non-finite value of this rank … */
    int64_t found_at;        /* … and the number of the call that met it, -1 none */
    struct profile *profile; /* borrowed; NULL: none */
    int64_t gathers_ahead;   /* gathers begun before the previous unit's compute ended */
};

/* Figures alone: comm and backend are asked, nothing is allocated in them. `ranks` may differ from the
 * comm's. */
int engine_plan(const struct model *model, struct backend *backend, const struct engine_options *options,
                int ranks, bool shares_memory, struct engine_memory *out, struct error *err);

int engine_create(struct engine **out, const struct model *model, struct comm *comm, struct backend *backend,
                  const struct engine_options *options, struct error *err);
void engine_free(struct engine *e); /* NULL is allowed */

/* One micro-batch of this rank (NULL: it has none in this round) together with those of the others. */
struct engine_pass {
    bool backward;
    int contributors;       /* ranks 0 … contributors-1 have a micro-batch in this round */
    bool first;             /* the round of micro-batch 0 of a step: gradient sums start anew */
    float loss_scale;       /* 1 / target tokens of the global batch */
    struct exact_sum *loss; /* this rank's losses of target tokens are added to it */
};
int engine_micro_batch(struct engine *e, const struct batch *batch, const struct engine_pass *pass,
                       struct error *err);

/* Looks for the first non-finite value in following passes, until engine_check_off: e->found is filled
 * instead of returning an error, so that all ranks go through the same calls. */
void engine_check(struct engine *e);
void engine_check_off(struct engine *e);

/* Fills the masters from the model's counter streams (shard_fill). */
int engine_init_weights(struct engine *e, uint64_t seed, struct error *err);

#endif
