/* A training run on one rank: from files to a trained model directory. src/cli fills the options from
 * the run file; everything else about the command line stays there.
 *
 *     struct train_run *run;
 *     train_prepare(&run, comm, &options, log, err)   // model, tokenizer, data, plan: nothing big allocated
 *     … train_plan(run) is shown …
 *     train_execute(run, &report, err)                // the steps
 *     train_free(run)
 *
 * All calls are collective: every rank makes them. */
#ifndef TERCET_TRAIN_RUN_H
#define TERCET_TRAIN_RUN_H

#include "base/profile.h"
#include "data/cache.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/step.h"

enum train_add_bos { TRAIN_ADD_BOS_AUTO, TRAIN_ADD_BOS_YES, TRAIN_ADD_BOS_NO };

struct train_texts {
    const char *const *items;
    int64_t count;
};

/* Borrowed; must outlive the run. */
struct train_options {
    const char *output;
    uint64_t seed;
    const char *model_from, *model_config; /* one of these three */
    const json_t *model_inline;
    const char *model_place; /* of the inline keys, for messages */
    const char *tokenizer;   /* NULL: model_from */
    struct train_texts train, eval;
    const char *field, *cache_root;
    enum data_bad_lines bad_lines;
    enum train_add_bos add_bos;
    bool add_eos, special_in_text, pack, shuffle;
    int64_t steps; /* 0: epochs */
    double epochs;
    int64_t global_batch;
    struct engine_options engine;   /* compute, recompute, micro_batch, seq_len, stage, overlap */
    struct backend_options backend; /* threads 0: the machine's, divided among its ranks */
    bool decay_all;
    struct adamw adamw;
    struct schedule schedule;       /* total is filled in here */
    int64_t checkpoint_every, keep; /* steps; 0: only at the end */
    double checkpoint_minutes;      /* 0: never by time */
    enum dtype checkpoint_type;
    int64_t eval_every; /* steps; 0: never on the way */
    bool eval_at_start;
    int64_t log_every;
    bool tensorboard;
    const char *run_yaml;    /* the resolved run file's text */
    bool resume;             /* go on where there is a checkpoint */
    const char *resume_path; /* this one; NULL: the newest */
    bool overwrite;          /* remove the run that is there */
    /* Compares the run file of the checkpoint with this one; fills err where a key may not differ. */
    int (*compare_run)(void *context, const char *old_yaml, struct error *err);
    void *compare_context;
    /* What one machine reaches in products of this type with so many threads, in FLOPs a second, as it was
     * measured before; 0: it was not. NULL: nobody knows. Asked on rank 0. */
    double (*peak)(const struct backend *backend, enum dtype compute, int threads);
    int64_t profile_steps; /* time so many op by op; 0: none */
    double bandwidth;      /* bytes a second that all cores of one machine read and write; 0: not measured */
    /* For a plan alone: no data, no OUTPUT; for so many ranks on this machine, whatever the comm. 0: a run.
     */
    int plan_ranks;
    bool plan_messages; /* these ranks would pass messages instead of sharing memory */
};

/* Of a few steps of rank 0, the longest first. */
struct train_profile {
    struct profile_row rows[PROFILE_MAX_ROWS];
    int count; /* 0: nothing was profiled */
    int64_t steps;
    double seconds; /* of these steps */
    double peak,
        bandwidth; /* of this rank's share of the machine: FLOPs in products, bytes a second; 0: not known */
};
/* The time that its products take at the peak, or its bytes at the bandwidth if that is longer, as a share of
 * what they took. 0: not known. */
double train_profile_limit(const struct train_profile *p, const struct profile_row *row);

struct train_report {
    int64_t first_step, last_step, total_steps;
    double first_loss, last_loss, seconds;
    int stop_signal; /* it was asked to stop, and all it did is saved; 0: it ran to the end or found
                        OUTPUT/stop */
    bool stopped_by_file;
    char checkpoint[4096];        /* the last one written; rank 0 */
    struct train_profile profile; /* rank 0 */
};

struct train_run;

int train_prepare(struct train_run **out, struct comm *comm, const struct train_options *options,
                  const struct log *log, struct error *err);
int train_execute(struct train_run *run, struct train_report *report, struct error *err);
void train_free(struct train_run *run); /* NULL is allowed */

/* What train_prepare found. */
struct train_plan {
    const struct model *model;
    const struct row_plan *rows, *eval_rows; /* NULL: none */
    const struct token_cache *data, *eval_data;
    int64_t parameters, total_steps, first_step, micro_batches;
    int ranks, threads;
    const char *transport, *backend;
    struct engine_memory memory;
    int64_t memory_available; /* of this machine */
    int64_t memory_needed;    /* of this machine's ranks together, shared memory once */
    char advice[256]; /* where that does not fit: the settings that would, and no text was read; else empty */
    const char *resume_from; /* NULL: from the start */
    int stop_signal; /* asked to stop while tokenizing: the rest is not filled, nothing is to be run */
};
const struct train_plan *train_plan(const struct train_run *run);

/* The engine of a run in execution, for tests that look inside; `on_step` is called after each step. */
void train_observe(struct train_run *run, void (*on_step)(void *context, struct engine *e, int64_t step),
                   void *context);

#endif
