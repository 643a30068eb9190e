/* What the files of a run share. Private to the room. */
#ifndef TERCET_TRAIN_RUN_INTERNAL_H
#define TERCET_TRAIN_RUN_INTERNAL_H

#include "base/pool.h"
#include "text/tokenizer.h"
#include "train/metrics.h"
#include "train/run.h"
#include "train/saver.h"

struct train_data {
    char *path;
    struct token_cache cache;
    struct row_plan rows;
    bool open;
};

struct train_run {
    const struct train_options *options;
    struct comm *comm;
    const struct log *log;
    struct backend *backend;
    struct model *model;
    struct tokenizer *tokenizer;
    const char *tokenizer_path;
    int64_t bos, eos, pad; /* -1: none */
    bool eos_changed;      /* model.from names another one */
    bool peak_doubted;     /* a step was faster than the peak that is kept */
    struct train_data data, eval;
    struct engine_options engine_options;
    struct engine *engine;
    struct batch scratch;
    struct schedule schedule;
    struct adamw adamw;
    struct metrics metrics;
    struct checkpoint_state state;
    struct background *thread; /* writes checkpoints */
    struct saver *saver;
    struct profile *profile; /* NULL: none is made */
    int64_t profiled_from;   /* the first step that it records */
    char *trace_path;
    char *resume_from;
    char *stop_path;    /* OUTPUT/stop: made before the first step, for steps allocate nothing */
    bool resume_inside; /* it lies in OUTPUT; rank 0 */
    bool evaluated;     /* metrics.jsonl has the evaluation of the step that the run begins after */
    int lock;           /* file descriptor of OUTPUT/.lock on rank 0, -1 none */
    uint64_t probe;
    double
        peak; /* FLOPs a second of products that the machines of all ranks reach; 0: not measured; rank 0 */
    struct train_plan plan;
    void (*on_step)(void *context, struct engine *e, int64_t step);
    void *on_step_context;
};

/* run_setup.c: model and tokenizer; OUTPUT; the tokenized data of both kinds. */
int run_setup_model(struct train_run *run, struct error *err);
/* Refuses OUTPUT or, where it is there, locks it, so that what is found stays true; finds the checkpoint to
 * go on from. Changes nothing before the plan has been found to be right: run_open_output does. */
int run_check_output(struct train_run *run, struct error *err);
/* What shows of the data before any text is read: files, the token cache's place, work for every rank. */
int run_check_data(struct train_run *run, struct error *err);
/* May end early with plan.stop_signal set. */
int run_setup_data(struct train_run *run, struct error *err);
int run_open_output(struct train_run *run, struct error *err);

/* fit.c: the plan's memory, for plan.ranks; where that is more than is available, the advice. */
int run_fit_memory(struct train_run *run, struct error *err);

#endif
