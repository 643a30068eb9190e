#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The rounds of rows [first, first+rows) of an epoch. */
struct rounds {
    struct row_plan *plan;
    int64_t epoch, first, rows;
    struct batch *scratch;
    bool backward;
    float loss_scale;
    bool *stopped; /* may end on a signal: set then; NULL: never */
};

static int run_rounds(struct engine *e, const struct rounds *r, struct exact_sum *loss, struct error *err)
{
    int64_t size = e->options.micro_batch, micro = (r->rows + size - 1) / size;
    int n = comm_size(e->comm), rank = comm_rank(e->comm);
    for (int64_t start = 0; start < micro; start += n) {
        int64_t mine = start + rank, left = micro - start;
        struct engine_pass pass = {.backward = r->backward,
                                   .contributors = left < n ? (int)left : n,
                                   .first = start == 0,
                                   .loss_scale = r->loss_scale,
                                   .loss = loss};
        struct batch *batch = NULL;
        if (mine < micro) {
            int64_t row = mine * size, rows = r->rows - row < size ? r->rows - row : size;
            batch = r->scratch;
            struct profile_mark mark = profile_begin(e->profile);
            if (rows_read(r->plan, r->epoch, r->first + row, rows, batch, err) != 0)
                return -1;
            profile_end(e->profile, "read rows", mark, NULL);
        }
        if (engine_micro_batch(e, batch, &pass, err) != 0)
            return -1;
        if (r->stopped) {
            int64_t stop = comm_stop_signal(e->comm) != 0;
            if (comm_max_i64(e->comm, &stop, 1, err) != 0)
                return -1;
            *r->stopped = stop != 0;
            if (stop)
                return 0;
        }
    }
    return 0;
}

/* Everything that ranks add up at the end of a step, as integers in one reduce. */
struct totals {
    struct exact_sum loss, squares;
};

static int add_up(struct engine *e, struct totals *t, struct error *err)
{
    struct profile_mark mark = profile_begin(e->profile);
    int status = comm_sum_i64(e->comm, (int64_t *)t, 2 * EXACT_SUM_WORDS, err);
    profile_end(e->profile, "sum over ranks", mark, NULL);
    return status;
}

/* The step again, looking at every op's outputs. The first micro-batch that met a bad value decides
 * which rank reports; the others wait for that to end the run. */
static int find_culprit(struct engine *e, const struct rounds *r, int64_t step, double loss, double norm,
                        struct error *err)
{
    struct exact_sum unused;
    exact_sum_clear(&unused);
    engine_check(e);
    int64_t before = e->micro_batches;
    int status = run_rounds(e, r, &unused, err);
    engine_check_off(e);
    if (status != 0)
        return -1;
    int rank = comm_rank(e->comm), n = comm_size(e->comm);
    /* Number of the micro-batch in the step, negated for a maximum; "none" is the lowest. */
    int64_t none = INT64_MIN / 2, first = none;
    if (e->found_at >= 0)
        first = -((e->found_at - before) * n + rank);
    int64_t mine = first;
    if (comm_max_i64(e->comm, &first, 1, err) != 0)
        return -1;
    if (first != none && mine != first) {
        comm_barrier(e->comm, err);
        return error_set(err, ERROR_RUN, NULL, NULL, "another rank met a value that is not finite");
    }
    char where[64];
    snprintf(where, sizeof where, "step %lld, rank %d", (long long)step + 1, rank);
    const char *remedy =
        "lower the learning rate, warm up longer, or look at the data of this step; nothing was "
        "updated, the last checkpoint is sound";
    if (first == none)
        return error_set(
            err, ERROR_RUN, where, remedy,
            "loss is %g and gradient norm is %g, though every op gave finite values: a sum overflowed", loss,
            norm);
    return error_set(
        err, ERROR_RUN, where, remedy,
        "loss is %g and gradient norm is %g; the first value that is not finite came from %s, %s", loss, norm,
        e->found.where, e->found.what);
}

int step_run(struct engine *e, struct row_plan *plan, int64_t step, const struct adamw *adamw, double lr,
             struct batch *scratch, const struct step_hold *hold, struct step_result *out, struct error *err)
{
    struct row_range range;
    struct row_counts counts;
    row_plan_locate(plan, step, &range);
    row_plan_count(plan, range.epoch, range.row, range.rows, &counts);
    struct rounds rounds = {plan,
                            range.epoch,
                            range.row,
                            range.rows,
                            scratch,
                            true,
                            counts.targets > 0 ? (float)(1.0 / (double)counts.targets) : 0.0f,
                            NULL};
    struct totals totals;
    exact_sum_clear(&totals.loss);
    if (run_rounds(e, &rounds, &totals.loss, err) != 0 ||
        shard_sum_squares(e->shard, &totals.squares, err) != 0 || add_up(e, &totals, err) != 0)
        return -1;
    out->tokens = counts.tokens;
    out->targets = counts.targets;
    out->pairs = counts.pairs;
    out->loss = counts.targets > 0 ? exact_sum_value(&totals.loss) / (double)counts.targets : 0;
    out->grad_norm = sqrt(exact_sum_value(&totals.squares));
    bool finite = isfinite(out->loss) && isfinite(out->grad_norm);
    if (hold && hold->before_update(hold->context, finite, err) != 0)
        return -1;
    if (!finite)
        return find_culprit(e, &rounds, step, out->loss, out->grad_norm, err);
    struct op_adamw update;
    adamw_update(adamw, lr, step, out->grad_norm, &update);
    struct profile_mark mark = profile_begin(e->profile);
    int status = shard_update(e->shard, &update, err);
    profile_end(e->profile, "update", mark, NULL);
    return status;
}

int step_evaluate(struct engine *e, struct row_plan *plan, struct batch *scratch, double *loss_sum,
                  int64_t *targets, bool *stopped, struct error *err)
{
    struct totals totals;
    struct row_counts counts;
    memset(&totals, 0, sizeof totals);
    row_plan_count(plan, 0, 0, plan->rows_per_epoch, &counts);
    struct rounds rounds = {plan, 0, 0, plan->rows_per_epoch, scratch, false, 0.0f, stopped};
    if (run_rounds(e, &rounds, &totals.loss, err) != 0 || add_up(e, &totals, err) != 0)
        return -1;
    *loss_sum = exact_sum_value(&totals.loss);
    *targets = counts.targets;
    return 0;
}
