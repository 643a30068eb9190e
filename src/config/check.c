/* What no single key shows: keys that are missing, that exclude each other, or that do not fit together. */
#include "config/schema.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct checker {
    const struct run_config *config;
    const bool *given, *sound;
    const char *file;
    struct error_list *errors;
};

static void __attribute__((format(printf, 3, 4)))
report(const struct checker *c, const char *remedy, const char *format, ...)
{
    char what[512];
    struct error err = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    error_set(&err, ERROR_INPUT, c->file, remedy, "%s", what);
    error_list_add(c->errors, &err);
}

static bool given(const struct checker *c, const char *key)
{
    return c->given[schema_find(key)];
}

/* Given or not, nothing is wrong with it alone. */
static bool sound(const struct checker *c, const char *key)
{
    return c->sound[schema_find(key)];
}

static void check_required(const struct checker *c)
{
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        char remedy[400];
        if (!schema_keys[i].required || c->given[i] || !c->sound[i])
            continue;
        snprintf(remedy, sizeof remedy, "add it: %s", schema_keys[i].help);
        report(c, remedy, "%s is missing", schema_keys[i].name);
    }
}

/* Exactly one of two keys. */
static void check_one_of(const struct checker *c, const char *a, const char *b, const char *which)
{
    if (given(c, a) && given(c, b))
        report(c, "remove one of them (on the command line: key=null)", "%s and %s are both given", a, b);
    else if (!given(c, a) && !given(c, b) && sound(c, a) && sound(c, b))
        report(c, which, "one of %s and %s is missing", a, b);
}

static void check_sizes(const struct checker *c)
{
    const struct run_config *r = c->config;
    bool micro = given(c, "train.micro_batch"), global = given(c, "train.global_batch");
    if (micro && global && r->train.micro_batch > r->train.global_batch)
        report(c, "lower micro_batch, or raise global_batch",
               "train.micro_batch %" PRId64 " is larger than train.global_batch %" PRId64,
               r->train.micro_batch, r->train.global_batch);
    if (micro && given(c, "data.seq_len") && r->train.micro_batch * r->data.seq_len > INT32_MAX)
        report(c, "lower one of them",
               "train.micro_batch %" PRId64 " times data.seq_len %" PRId64
               " are more positions than can be counted",
               r->train.micro_batch, r->data.seq_len);
}

static void check_schedule(const struct checker *c)
{
    const struct run_config *r = c->config;
    if (given(c, "train.steps") && sound(c, "schedule.warmup_steps") &&
        r->schedule.warmup_steps > r->train.steps)
        report(c, "lower warmup_steps, or raise steps",
               "schedule.warmup_steps %" PRId64 " is more than train.steps %" PRId64,
               r->schedule.warmup_steps, r->train.steps);
    if (sound(c, "schedule.min_lr") && sound(c, "optimizer.lr") && r->schedule.min_lr > r->optimizer.lr)
        report(c, "lower min_lr, or raise lr", "schedule.min_lr %g is above optimizer.lr %g",
               r->schedule.min_lr, r->optimizer.lr);
}

/* Keys that belong to one schedule alone and have no default (one with a default may stand in any file). */
static void check_belongs(const struct checker *c, const char *key, enum run_schedule schedule,
                          const char *schedule_name)
{
    if (given(c, key) && sound(c, "schedule.name") && c->config->schedule.name != schedule)
        report(c, "leave it out, or choose that schedule", "%s belongs to schedule.name %s alone", key,
               schedule_name);
}

static void check_wsd(const struct checker *c)
{
    const struct run_config *r = c->config;
    check_belongs(c, "schedule.decay_steps", RUN_SCHEDULE_WSD, "wsd");
    if (!sound(c, "schedule.name") || r->schedule.name != RUN_SCHEDULE_WSD ||
        !sound(c, "schedule.decay_steps") || !sound(c, "schedule.warmup_steps"))
        return;
    if (!given(c, "schedule.decay_steps"))
        report(c, "add how many steps before the end the rate begins to fall, say a tenth of the run",
               "schedule.name wsd needs schedule.decay_steps");
    else if (given(c, "train.steps") && sound(c, "train.steps") &&
             r->schedule.decay_steps > r->train.steps - r->schedule.warmup_steps)
        report(c, "lower one of them, or raise steps",
               "schedule.warmup_steps %" PRId64 " and schedule.decay_steps %" PRId64
               " together are more than train.steps %" PRId64,
               r->schedule.warmup_steps, r->schedule.decay_steps, r->train.steps);
}

static void check_multistep(const struct checker *c)
{
    const struct run_config *r = c->config;
    const struct run_numbers *at = &r->schedule.at, *factor = &r->schedule.factor;
    check_belongs(c, "schedule.at", RUN_SCHEDULE_MULTISTEP, "multistep");
    check_belongs(c, "schedule.factor", RUN_SCHEDULE_MULTISTEP, "multistep");
    if (!sound(c, "schedule.name") || r->schedule.name != RUN_SCHEDULE_MULTISTEP ||
        !sound(c, "schedule.at") || !sound(c, "schedule.factor"))
        return;
    if (at->count == 0 || factor->count == 0)
        report(c, "add for example at: [0.8, 0.9] and factor: [0.316, 0.1]",
               "schedule.name multistep needs schedule.at and schedule.factor");
    else if (at->count != factor->count)
        report(c, "give one factor for each share",
               "schedule.at has %" PRId64 " numbers, schedule.factor %" PRId64, at->count, factor->count);
    for (int64_t i = 1; i < at->count; i++)
        if (at->items[i] <= at->items[i - 1]) {
            report(c, "put the shares in ascending order", "schedule.at: %g does not lie above %g",
                   at->items[i], at->items[i - 1]);
            break;
        }
}

void check_together(const struct run_config *config, const bool *is_given, const bool *is_sound,
                    const char *file, struct error_list *errors)
{
    const struct checker c = {config, is_given, is_sound, file, errors};
    check_required(&c);
    check_one_of(
        &c, "model.from", "model.config",
        "add model: {from: DIR} to start from those weights, or model: {config: config.json} to start "
        "from random ones");
    check_one_of(&c, "train.steps", "train.epochs", "add train: {steps: N}, or train: {epochs: N}");
    if (given(&c, "model.config") && !given(&c, "tokenizer") && sound(&c, "tokenizer") &&
        !given(&c, "model.from"))
        report(&c, "add tokenizer: DIR, a directory with a tokenizer.json",
               "tokenizer is missing, and model.config brings none");
    check_sizes(&c);
    check_schedule(&c);
    check_wsd(&c);
    check_multistep(&c);
    if (sound(&c, "train.lanes") && config->train.lanes != 0)
        report(&c, "set it to 0", "train.lanes: %" PRId64 " lanes are not available in this version",
               config->train.lanes);
}
