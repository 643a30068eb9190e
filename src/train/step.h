/* One optimizer step: the micro-batches of a global batch in rounds, the ordered sums, the norm, the
 * update. Collective.
 *
 * Rank r of n takes micro-batches r, r+n, r+2n … of the step; in the last round some ranks may have none.
 * The loss is the sum over target tokens divided by those of the whole global batch. */
#ifndef TERCET_TRAIN_STEP_H
#define TERCET_TRAIN_STEP_H

#include "optim/adamw.h"
#include "train/engine.h"

struct step_result {
    double loss, grad_norm;         /* the norm before clipping */
    int64_t tokens, targets, pairs; /* see struct row_counts */
};

/* What is to happen between the passes and the update, on each rank: the last chance to look at masters and
 * moments as they are. `finite` false: there will be no update, for the step ends in an error; all ranks see
 * the same. */
struct step_hold {
    int (*before_update)(void *context, bool finite, struct error *err);
    void *context;
};

/* Runs step `step` (from 0) of `plan` with learning rate lr. `scratch` has room for a micro-batch. A loss or
 * norm that is not finite ends the step before the update: it is run once more, checked op by op, and the
 * error names step, rank and the first op that made such a value. `hold` may be NULL. */
int step_run(struct engine *e, struct row_plan *plan, int64_t step, const struct adamw *adamw, double lr,
             struct batch *scratch, const struct step_hold *hold, struct step_result *out, struct error *err);

/* Forward passes alone over rows 0 … rows-1 of epoch 0 of `plan`: the sum of losses and the number of
 * target tokens, the same for all ranks and any number of them. A rank that is asked to stop by a signal ends
 * it after the round: *stopped is set, on all ranks, and the sums are worth nothing. */
int step_evaluate(struct engine *e, struct row_plan *plan, struct batch *scratch, double *loss_sum,
                  int64_t *targets, bool *stopped, struct error *err);

#endif
