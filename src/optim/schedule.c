#include "optim/schedule.h"

#include <math.h>

double schedule_lr(const struct schedule *s, int64_t update)
{
    if (update < s->warmup)
        return s->lr * (double)(s->hugging_face ? update : update + 1) / (double)s->warmup;
    if (s->kind == SCHEDULE_CONSTANT || s->total <= s->warmup)
        return s->lr;
    double p = (double)(update - s->warmup) / (double)(s->total - s->warmup);
    p = p > 1 ? 1 : p;
    if (s->kind == SCHEDULE_LINEAR)
        return s->lr + (s->min_lr - s->lr) * p;
    return s->min_lr + (s->lr - s->min_lr) * (1 + cos(3.14159265358979323846 * p)) / 2;
}
