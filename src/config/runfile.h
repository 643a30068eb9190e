/* The run file: one YAML file (so JSON too) that says what a training run does.
 *
 *     struct run_config config;
 *     struct error_list errors = {0};
 *     const char *overrides[] = {"train.steps=20", "optimizer.clip=null"};
 *     if (run_config_load("run.yaml", overrides, 2, &config, &errors) != 0)
 *         … every mistake of file and overrides, each with its place, key and remedy …
 *     run_config_write(&config, &text);        // every default written out; loads back to the same
 *     run_config_free(&config);
 *
 * One table (schema.c) has every key: type, default, bounds, choices, help. Reading, writing, the help of
 * `tercet train --help-config` and docs/run-file.md all come from it. A null stands for "not given". */
#ifndef TERCET_CONFIG_RUNFILE_H
#define TERCET_CONFIG_RUNFILE_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "comm/comm.h"
#include "data/reader.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct run_texts {
    char **items;
    int64_t count;
};

enum { RUN_MOST_NUMBERS = 16 };
struct run_numbers {
    double items[RUN_MOST_NUMBERS];
    int64_t count;
};

enum run_add_bos { RUN_ADD_BOS_AUTO, RUN_ADD_BOS_TRUE, RUN_ADD_BOS_FALSE };
enum run_recompute { RUN_RECOMPUTE_NONE, RUN_RECOMPUTE_SELECTIVE, RUN_RECOMPUTE_FULL };
enum run_optimizer { RUN_OPTIMIZER_ADAMW };
enum run_schedule {
    RUN_SCHEDULE_CONSTANT,
    RUN_SCHEDULE_LINEAR,
    RUN_SCHEDULE_COSINE,
    RUN_SCHEDULE_WSD,
    RUN_SCHEDULE_MULTISTEP
};
enum run_decay { RUN_DECAY_LINEAR, RUN_DECAY_COSINE, RUN_DECAY_SQRT };
enum run_dtype { RUN_DTYPE_AUTO, RUN_DTYPE_FP32, RUN_DTYPE_BF16, RUN_DTYPE_FP16 };

/* Each member has the name of its key; schema.c says what it means. Strings that were not given are NULL
 * and lists empty. */
struct run_config {
    char *output;
    int64_t seed;
    struct {
        char *from; /* exactly one of from, config and config_inline is there */
        char *config;
        json_t *config_inline; /* an object */
        char *config_place;    /* where the inline keys stand, for messages: "run.yaml:4: model.config" */
    } model;
    char *tokenizer; /* model.from where the file names none; NULL only where model.from is given too */
    struct {
        struct run_texts train, eval;
        char *text;
        int64_t seq_len;
        bool pack;
        enum run_add_bos add_bos;
        bool add_eos, special_in_text, shuffle;
        enum data_bad_lines bad_lines;
        char *cache; /* token-cache beside the output where the file names none */
    } data;
    struct {
        int64_t steps; /* 0 where epochs is given */
        double epochs; /* 0 where steps is given */
        int64_t global_batch, micro_batch;
        enum run_dtype dtype; /* never auto */
        enum run_recompute recompute;
        int64_t lanes;
    } train;
    struct {
        enum run_optimizer name;
        double lr, betas[2], eps, weight_decay;
        double clip; /* 0: none */
        bool decay_all;
    } optimizer;
    struct {
        enum run_schedule name;
        int64_t warmup_steps;
        double min_lr;
        bool hf_schedule;
        int64_t decay_steps; /* 0 where the file names none: only with other schedules than wsd */
        enum run_decay decay;
        struct run_numbers at, factor; /* as many of one as of the other; of multistep at least one */
    } schedule;
    struct {
        int64_t zero, threads;
        enum comm_transport transport;
        bool overlap;
        double watchdog; /* seconds */
    } parallel;
    struct {
        char *name, *isa, *products; /* as backend_create takes them */
    } backend;
    struct {
        int64_t every;
        double minutes;
        int64_t keep;
        enum run_dtype dtype;
    } checkpoint;
    struct {
        int64_t every;
        bool at_start;
    } eval;
    struct {
        int64_t every;
        bool tensorboard;
    } log;
};

/* Reads a run file and applies `overrides` ("dotted.key=value", later ones win). A value is YAML: a
 * scalar, or a list or map in brackets; null unsets the key; for keys that hold text it is taken as it
 * stands, unless it starts with a quote or bracket, so that data.train=*.jsonl needs no quotes. On failure
 * every mistake found is added to `errors` (ERROR_INPUT, "file:line:column" or "command line"), -1 is
 * returned and *out is zeroed. Names of files are not looked at. */
int run_config_load(const char *path, const char *const *overrides, int64_t override_count,
                    struct run_config *out, struct error_list *errors);
/* The same from memory; `name` stands for the file in messages. */
int run_config_parse(const char *name, const void *bytes, size_t size, const char *const *overrides,
                     int64_t override_count, struct run_config *out, struct error_list *errors);
void run_config_free(struct run_config *config); /* safe on a zeroed or freed one */

/* The element types of training and of the model files, auto resolved. */
enum dtype run_config_train_dtype(const struct run_config *config);
enum dtype run_config_checkpoint_dtype(const struct run_config *config);

/* Appends the whole run file as YAML. Check out->failed. */
void run_config_write(const struct run_config *config, struct strbuf *out);

/* Appends all keys with type, default and meaning: for a terminal, and as Markdown. */
void run_config_help(struct strbuf *out);
void run_config_markdown(struct strbuf *out);

/* The table, key by key, for those who show it in another form. */
struct run_key {
    const char *name, *help;
    const char *section; /* what the keys from here on are about; NULL: the same as the key before */
    bool path;           /* its values name files or directories */
};
/* Key i, from 0; false behind the last. */
bool run_config_key(int i, struct run_key *out);
/* Appends what key i takes ("whole number", "fp32 | bf16"), and what it is where the file does not say. */
void run_config_key_takes(int i, struct strbuf *out);
void run_config_key_default(int i, struct strbuf *out);
/* Word n, from 0, of those that key i takes; NULL behind the last, and for keys that take anything else. */
const char *run_config_key_word(int i, int n);

/* What a resumed run may not change. Adds one error for each key that differs between the run as it was
 * (`old`) and as it is asked for (`current`), may not change freely and is not in `allow` (keys or whole
 * sections: "optimizer"), and for each entry of `allow` that is no key. Free are parallel, log, checkpoint,
 * eval, output, data.cache, train.recompute, and backend.name between cpu (auto) and guarded. Returns the
 * number of errors added. */
int64_t run_config_difference(const struct run_config *old, const struct run_config *current,
                              const char *const *allow, int64_t allow_count, struct error_list *errors);

#endif
