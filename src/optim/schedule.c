#include "optim/schedule.h"

#include <math.h>

/* From lr to min_lr as p goes from 0 to 1. */
static double between(const struct schedule *s, enum schedule_decay decay, double p)
{
    if (decay == SCHEDULE_DECAY_COSINE)
        return s->min_lr + (s->lr - s->min_lr) * (1 + cos(3.14159265358979323846 * p)) / 2;
    return s->lr + (s->min_lr - s->lr) * (decay == SCHEDULE_DECAY_SQRT ? sqrt(p) : p);
}

static double multistep(const struct schedule *s, int64_t update)
{
    double lr = s->lr;
    /* 0.07 of 100 comes out a little above 7 in doubles: what rounding alone put above a whole step (each
     * factor and the product add 2^-53 of it at most) is that step. */
    double total = (double)s->total * (1 - 0x1p-50);
    for (int i = 0; i < s->drops && (double)update >= s->at[i] * total; i++)
        lr = s->lr * s->factor[i];
    return lr;
}

double schedule_lr(const struct schedule *s, int64_t update)
{
    if (update < s->warmup)
        return s->lr * (double)(s->hugging_face ? update : update + 1) / (double)s->warmup;
    if (s->kind == SCHEDULE_MULTISTEP)
        return multistep(s, update);
    int64_t start = s->kind == SCHEDULE_WSD ? s->total - s->decay_steps : s->warmup;
    if (s->kind == SCHEDULE_CONSTANT || s->total <= start || update < start)
        return s->lr;
    double p = (double)(update - start) / (double)(s->total - start);
    enum schedule_decay decay = s->kind == SCHEDULE_WSD      ? s->decay
                                : s->kind == SCHEDULE_LINEAR ? SCHEDULE_DECAY_LINEAR
                                                             : SCHEDULE_DECAY_COSINE;
    return between(s, decay, p > 1 ? 1 : p);
}
