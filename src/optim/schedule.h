/* Learning-rate schedules: a function of the update's number, nothing else.
 *
 * Update k counts from 0, W warm-up updates, T updates in all. During warm-up lr*(k+1)/W; afterwards
 * with p = (k-W)/(T-W) linear: lr + (min_lr-lr)*p, cosine: min_lr + (lr-min_lr)*(1+cos(pi p))/2,
 * constant: lr. WSD (warm-up, stable, decay) stays at lr until the last D updates; with p = (k-(T-D))/D it
 * then goes as `decay` says: linear and cosine as above, sqrt: lr + (min_lr-lr)*sqrt(p) (Hu et al. 2024,
 * "MiniCPM"; Hagele et al. 2024 for the root). Multi-step: lr times factor[i] of the last i with k >= at[i]
 * T, lr before (DeepSeek LLM, 2024, section 2.3). With `hugging_face` warm-up is lr*k/W, as Transformers'
 * schedulers have it. */
#ifndef TERCET_OPTIM_SCHEDULE_H
#define TERCET_OPTIM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_MULTISTEP };
enum schedule_decay { SCHEDULE_DECAY_LINEAR, SCHEDULE_DECAY_COSINE, SCHEDULE_DECAY_SQRT };
enum { SCHEDULE_MOST_DROPS = 16 };

struct schedule {
    enum schedule_kind kind;
    double lr, min_lr;
    int64_t warmup, total;
    int64_t decay_steps;                                         /* of WSD, 1 … total - warmup */
    enum schedule_decay decay;                                   /* of WSD */
    int drops;                                                   /* of multi-step */
    double at[SCHEDULE_MOST_DROPS], factor[SCHEDULE_MOST_DROPS]; /* `at`: ascending shares of `total` */
    bool hugging_face;
};

double schedule_lr(const struct schedule *s, int64_t update);

#endif
