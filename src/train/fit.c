/* What a run needs of its machine's memory, and what would make it fit. */
#include "train/profiling.h"

#include "base/limits.h"

#include <stdio.h>
#include <string.h>

/* What may be changed to need less; none of it changes a result. */
struct setting {
    enum recompute recompute;
    int stage, ranks;
    int64_t micro_batch;
};

/* All ranks are this machine's, so that their number is this machine's matter. */
static bool all_here(const struct train_run *run)
{
    return run->options->plan_ranks || comm_local_size(run->comm) == comm_size(run->comm);
}

/* What they need of this machine together, shared memory once. */
static int needed_by(struct train_run *run, const struct setting *setting, struct engine_memory *memory,
                     int64_t *needed, struct error *err)
{
    const struct train_options *o = run->options;
    struct engine_options options = run->engine_options;
    options.recompute = setting->recompute;
    options.stage = setting->stage;
    options.micro_batch = setting->micro_batch;
    bool shares = o->plan_ranks ? !o->plan_messages : comm_shares_memory(run->comm);
    if (engine_plan(run->model, run->backend, &options, setting->ranks, shares, memory, err) != 0)
        return -1;
    memory->saving = saver_bytes() + BACKGROUND_STACK;
    memory->profile = profiling_bytes(run);
    memory->private_total += memory->saving + memory->profile;
    int local = all_here(run) ? setting->ranks : comm_local_size(run->comm);
    *needed = memory->private_total * local + memory->shared_total;
    return 0;
}

/* 1 when it would fit, 0 when not, -1 on failure. */
static int would_fit(struct train_run *run, const struct setting *setting, int64_t *needed, struct error *err)
{
    struct engine_memory memory;
    if (needed_by(run, setting, &memory, needed, err) != 0)
        return -1;
    return *needed <= run->plan.memory_available;
}

/* The largest micro_batch below the setting's that would fit, in the setting; the same answers. */
static int largest_that_fits(struct train_run *run, struct setting *setting, int64_t *needed,
                             struct error *err)
{
    int64_t least = 0, most = setting->micro_batch, best = 0;
    while (most - least > 1) { /* least fits (or is 0), most does not */
        setting->micro_batch = least + (most - least) / 2;
        int fits = would_fit(run, setting, needed, err);
        if (fits < 0)
            return -1;
        if (fits == 0) {
            most = setting->micro_batch;
            continue;
        }
        least = setting->micro_batch;
        best = *needed;
    }
    setting->micro_batch = least;
    *needed = best;
    return least > 0;
}

/* From what costs a run little time to what costs it much; the first that fits is left in `setting`. The same
 * answers. */
static int search(struct train_run *run, struct setting *setting, int64_t *needed, struct error *err)
{
    const struct setting asked = *setting;
    bool shards_more = asked.ranks > 1 && asked.stage < 3;
    int fits = 0;
    for (int recompute = (int)asked.recompute; fits == 0 && recompute <= (int)RECOMPUTE_FULL; recompute++)
        for (int sharded = 0; fits == 0 && sharded <= (shards_more ? 1 : 0); sharded++) {
            setting->recompute = (enum recompute)recompute;
            setting->stage = sharded ? 3 : asked.stage;
            fits = would_fit(run, setting, needed, err);
        }
    if (fits == 0)
        fits = largest_that_fits(run, setting, needed, err);
    for (int ranks = asked.ranks - 1; fits == 0 && all_here(run) && ranks >= 1; ranks--) {
        setting->ranks = ranks;
        setting->micro_batch = asked.micro_batch;
        fits = would_fit(run, setting, needed, err);
        if (fits == 0)
            fits = largest_that_fits(run, setting, needed, err);
    }
    return fits;
}

static const char *recompute_name(enum recompute recompute)
{
    return recompute == RECOMPUTE_FULL ? "full" : recompute == RECOMPUTE_SELECTIVE ? "selective" : "none";
}

static int advise(struct train_run *run, const struct setting *asked, struct error *err)
{
    struct train_plan *p = &run->plan;
    struct setting s = *asked;
    int64_t needed;
    int fits = search(run, &s, &needed, err);
    if (fits < 0)
        return -1;
    if (fits == 0) {
        snprintf(p->advice, sizeof p->advice,
                 "nothing of train.recompute, train.micro_batch, parallel.zero and -n makes it fit: shorten "
                 "data.seq_len, or take a smaller model or more memory");
        return 0;
    }
    char changes[160] = "", bytes[32];
    size_t n = 0;
    if (s.recompute != asked->recompute)
        n += (size_t)snprintf(changes + n, sizeof changes - n, "train.recompute=%s ",
                              recompute_name(s.recompute));
    if (s.stage != asked->stage && s.ranks > 1)
        n += (size_t)snprintf(changes + n, sizeof changes - n, "parallel.zero=%d ", s.stage);
    if (s.micro_batch != asked->micro_batch)
        n += (size_t)snprintf(changes + n, sizeof changes - n, "train.micro_batch=%lld ",
                              (long long)s.micro_batch);
    if (s.ranks != asked->ranks)
        snprintf(changes + n, sizeof changes - n, "-n %d ", s.ranks);
    snprintf(p->advice, sizeof p->advice, "%sneeds %s and would fit", changes, format_bytes(needed, bytes));
    return 0;
}

int run_fit_memory(struct train_run *run, struct error *err)
{
    struct train_plan *p = &run->plan;
    struct limits limits;
    const struct setting asked = {run->engine_options.recompute, run->engine_options.stage, p->ranks,
                                  run->engine_options.micro_batch};
    limits_read("", &limits);
    p->memory_available = limits.memory_available;
    if (needed_by(run, &asked, &p->memory, &p->memory_needed, err) != 0)
        return -1;
    return p->memory_available >= 0 && p->memory_needed > p->memory_available ? advise(run, &asked, err) : 0;
}
