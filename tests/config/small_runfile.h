/* Small run files and how the tests of the room read them. */
#ifndef TERCET_TESTS_CONFIG_SMALL_RUNFILE_H
#define TERCET_TESTS_CONFIG_SMALL_RUNFILE_H

#include "support/cmocka.h"

#include "config/runfile.h"

#include <string.h>

/* The least that is accepted, one key a line. */
#define LEAST                                                                                                \
    "output: runs/demo\n"                                                                                    \
    "model: {from: base}\n"                                                                                  \
    "data: {train: a.jsonl, seq_len: 512}\n"                                                                 \
    "train: {steps: 1000, global_batch: 12, micro_batch: 4}\n"

static const char everything[] =
    "output: \"/data/runs/é #1\"\n"
    "seed: 9007199254740993\n"
    "tokenizer: \"2024\"\n"
    "model:\n"
    "  config: {model_type: llama, hidden_size: 60, rms_norm_eps: 1e-5, tie_word_embeddings: true,\n"
    "           rope_scaling: null, eos_token_id: [1, 2], architectures: [LlamaForCausalLM], name: "
    "\"a\\\"b\\n\"}\n"
    "data:\n"
    "  train: [a.jsonl, \"*.jsonl.zst\", \"yes\"]\n"
    "  eval: c.jsonl\n"
    "  text: content\n"
    "  seq_len: 1e3\n"
    "  pack: false\n"
    "  add_bos: true\n"
    "  add_eos: false\n"
    "  special_in_text: true\n"
    "  shuffle: false\n"
    "  bad_lines: skip\n"
    "  cache: /var/cache/tokens\n"
    "train: {epochs: 2.5, global_batch: 11, micro_batch: 2, dtype: fp32, recompute: full, lanes: 0}\n"
    "optimizer: {name: adamw, lr: 0.1, betas: [0, 0.999], eps: 1e-12, weight_decay: 0, clip: 0, decay_all: "
    "true}\n"
    "schedule: {name: cosine, warmup_steps: 7, min_lr: 3.3e-7, hf_schedule: true}\n"
    "parallel: {zero: 0, threads: 3, transport: mpi, overlap: false, watchdog: 7.5}\n"
    "backend: {name: guarded, isa: avx2, products: onednn}\n"
    "checkpoint: {every: 0, minutes: 12.5, keep: 0, dtype: bf16}\n"
    "eval: {every: 3, at_start: false}\n"
    "log: {every: 10, tensorboard: false}\n";

static inline int parse(const char *text, const char *const *overrides, int64_t n, struct run_config *out,
                        struct error_list *errors)
{
    return run_config_parse("run.yaml", text, strlen(text), overrides, n, out, errors);
}

static inline void print_errors(const struct error_list *errors)
{
    char line[2048];
    for (int64_t i = 0; i < errors->count; i++) {
        error_format(&errors->items[i], line, sizeof line);
        print_error("%s\n", line);
    }
}

static inline void accept(const char *text, const char *const *overrides, int64_t n, struct run_config *out)
{
    struct error_list errors = {0};
    int result = parse(text, overrides, n, out, &errors);
    print_errors(&errors);
    assert_int_equal(result, 0);
    assert_int_equal(errors.count, 0);
    error_list_free(&errors);
}

#endif
