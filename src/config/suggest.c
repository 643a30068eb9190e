/* The nearest right name for a wrong one: by the names that other trainers use, by the same word in
 * another section, and by edit distance. */
#include "config/schema.h"

#include "base/nearest.h"

#include <string.h>

/* Names of Transformers, Accelerate, DeepSpeed and others, without their sections. */
static const char *const elsewhere[][2] = {
    {"learning_rate", "optimizer.lr"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"adam_epsilon", "optimizer.eps"},
    {"max_grad_norm", "optimizer.clip"},
    {"gradient_clipping", "optimizer.clip"},
    {"grad_clip", "optimizer.clip"},
    {"lr_scheduler_type", "schedule.name"},
    {"lr_scheduler", "schedule.name"},
    {"warmup_num_steps", "schedule.warmup_steps"},
    {"max_steps", "train.steps"},
    {"num_train_epochs", "train.epochs"},
    {"num_epochs", "train.epochs"},
    {"batch_size", "train.global_batch"},
    {"train_batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"gradient_accumulation_steps", "train.global_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch"},
    {"micro_batch_size", "train.micro_batch"},
    {"mixed_precision", "train.dtype"},
    {"precision", "train.dtype"},
    {"torch_dtype", "train.dtype"},
    {"bf16", "train.dtype"},
    {"fp16", "train.dtype"},
    {"gradient_checkpointing", "train.recompute"},
    {"activation_checkpointing", "train.recompute"},
    {"max_seq_length", "data.seq_len"},
    {"max_length", "data.seq_len"},
    {"sequence_length", "data.seq_len"},
    {"context_length", "data.seq_len"},
    {"block_size", "data.seq_len"},
    {"cutoff_len", "data.seq_len"},
    {"packing", "data.pack"},
    {"dataset_text_field", "data.text"},
    {"train_file", "data.train"},
    {"validation_file", "data.eval"},
    {"model_name_or_path", "model.from"},
    {"output_dir", "output"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"eval_steps", "eval.every"},
    {"logging_steps", "log.every"},
    {"zero_stage", "parallel.zero"},
    {"zero_optimization", "parallel.zero"},
};

struct best {
    const char *name;
    int distance;
};

static void consider(struct best *best, const char *candidate, int d)
{
    if (d < best->distance)
        *best = (struct best){candidate, d};
}

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL ? dot + 1 : name;
}

/* The one key with this last part, where there is exactly one. */
static const char *only_key(const char *leaf)
{
    const char *found = NULL;
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        if (strcmp(last_part(schema_keys[i].name), leaf) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = schema_keys[i].name;
    }
    return found;
}

const char *schema_nearest(const char *name)
{
    const char *leaf = last_part(name), *found = only_key(leaf);
    if (found != NULL)
        return found;
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (strcmp(elsewhere[i][0], leaf) == 0)
            return elsewhere[i][1];
    struct best best = {NULL, nearest_tolerance(leaf) + 1};
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        const char *key = schema_keys[i].name;
        consider(&best, key, nearest_distance(name, key));
        consider(&best, key, nearest_distance(leaf, last_part(key)) + 1); /* right but for its section */
    }
    for (int i = 0; schema_section(i) != NULL; i++)
        if (strchr(name, '.') == NULL)
            consider(&best, schema_section(i), nearest_distance(name, schema_section(i)));
    return best.name;
}

const char *schema_nearest_choice(const struct choice *choices, const char *text)
{
    struct best best = {NULL, nearest_tolerance(text) + 1};
    for (; choices->name != NULL; choices++)
        if (!choices->later)
            consider(&best, choices->name, nearest_distance(text, choices->name));
    return best.name;
}
