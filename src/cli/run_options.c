#include "cli/run_options.h"

#include <assert.h>

static enum schedule_kind schedule_kind_of(enum run_schedule name)
{
    switch (name) {
    case RUN_SCHEDULE_LINEAR:
        return SCHEDULE_LINEAR;
    case RUN_SCHEDULE_COSINE:
        return SCHEDULE_COSINE;
    case RUN_SCHEDULE_WSD:
        return SCHEDULE_WSD;
    case RUN_SCHEDULE_MULTISTEP:
        return SCHEDULE_MULTISTEP;
    case RUN_SCHEDULE_CONSTANT:
        break;
    }
    return SCHEDULE_CONSTANT;
}

static struct schedule schedule_of(const struct run_config *c)
{
    static_assert((int)RUN_MOST_NUMBERS <= (int)SCHEDULE_MOST_DROPS, "all drops have a place");
    struct schedule s = {.kind = schedule_kind_of(c->schedule.name),
                         .lr = c->optimizer.lr,
                         .min_lr = c->schedule.min_lr,
                         .warmup = c->schedule.warmup_steps,
                         .hugging_face = c->schedule.hf_schedule,
                         .decay_steps = c->schedule.decay_steps,
                         .decay = c->schedule.decay == RUN_DECAY_SQRT     ? SCHEDULE_DECAY_SQRT
                                  : c->schedule.decay == RUN_DECAY_COSINE ? SCHEDULE_DECAY_COSINE
                                                                          : SCHEDULE_DECAY_LINEAR,
                         .drops = (int)c->schedule.at.count};
    for (int i = 0; i < s.drops; i++) {
        s.at[i] = c->schedule.at.items[i];
        s.factor[i] = c->schedule.factor.items[i];
    }
    return s;
}

static enum train_add_bos add_bos_of(enum run_add_bos value)
{
    return value == RUN_ADD_BOS_AUTO   ? TRAIN_ADD_BOS_AUTO
           : value == RUN_ADD_BOS_TRUE ? TRAIN_ADD_BOS_YES
                                       : TRAIN_ADD_BOS_NO;
}

static enum recompute recompute_of(enum run_recompute value)
{
    switch (value) {
    case RUN_RECOMPUTE_NONE:
        return RECOMPUTE_NONE;
    case RUN_RECOMPUTE_SELECTIVE:
        return RECOMPUTE_SELECTIVE;
    case RUN_RECOMPUTE_FULL:
        return RECOMPUTE_FULL;
    }
    return RECOMPUTE_NONE;
}

void run_options_fill(const struct run_config *c, const char *yaml, struct train_options *out)
{
    *out = (struct train_options){
        .output = c->output,
        .seed = (uint64_t)c->seed,
        .model_from = c->model.from,
        .model_config = c->model.config,
        .model_inline = c->model.config_inline,
        .model_place = c->model.config_place,
        .tokenizer = c->tokenizer,
        .train = {(const char *const *)c->data.train.items, c->data.train.count},
        .eval = {(const char *const *)c->data.eval.items, c->data.eval.count},
        .field = c->data.text,
        .cache_root = c->data.cache,
        .bad_lines = c->data.bad_lines,
        .add_bos = add_bos_of(c->data.add_bos),
        .add_eos = c->data.add_eos,
        .special_in_text = c->data.special_in_text,
        .pack = c->data.pack,
        .shuffle = c->data.shuffle,
        .steps = c->train.steps,
        .epochs = c->train.epochs,
        .global_batch = c->train.global_batch,
        .engine = {.compute = run_config_train_dtype(c),
                   .recompute = recompute_of(c->train.recompute),
                   .micro_batch = c->train.micro_batch,
                   .seq_len = c->data.seq_len,
                   .stage = (int)c->parallel.zero,
                   .overlap = c->parallel.overlap},
        .backend = {.name = c->backend.name,
                    .isa = c->backend.isa,
                    .products = c->backend.products,
                    .threads = (int)c->parallel.threads},
        .decay_all = c->optimizer.decay_all,
        .adamw = {c->optimizer.betas[0], c->optimizer.betas[1], c->optimizer.eps, c->optimizer.weight_decay,
                  c->optimizer.clip},
        .schedule = schedule_of(c),
        .checkpoint_every = c->checkpoint.every,
        .keep = c->checkpoint.keep,
        .checkpoint_minutes = c->checkpoint.minutes,
        .checkpoint_type = run_config_checkpoint_dtype(c),
        .eval_every = c->eval.every,
        .eval_at_start = c->eval.at_start,
        .log_every = c->log.every,
        .tensorboard = c->log.tensorboard,
        .run_yaml = yaml,
    };
}
