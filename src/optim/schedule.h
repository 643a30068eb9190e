/* Learning-rate schedules: a function of the update's number, nothing else.
 *
 * Update k counts from 0, W warm-up updates, T updates in all. During warm-up lr*(k+1)/W; afterwards
 * with p = (k-W)/(T-W) linear: lr + (min_lr-lr)*p, cosine: min_lr + (lr-min_lr)*(1+cos(pi p))/2,
 * constant: lr. With `hugging_face` warm-up is lr*k/W, as Transformers' schedulers have it. */
#ifndef TERCET_OPTIM_SCHEDULE_H
#define TERCET_OPTIM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };

struct schedule {
    enum schedule_kind kind;
    double lr, min_lr;
    int64_t warmup, total;
    bool hugging_face;
};

double schedule_lr(const struct schedule *s, int64_t update);

#endif
