/* What a run writes about itself: metrics.jsonl, TensorBoard events, a progress line. Rank 0 only. */
#ifndef TERCET_TRAIN_METRICS_H
#define TERCET_TRAIN_METRICS_H

#include "base/log.h"
#include "base/strbuf.h"
#include "formats/tensorboard.h"

#include <stdbool.h>

struct metrics {
    int fd; /* metrics.jsonl, -1 when closed */
    char *path;
    struct strbuf line;
    bool events_open;
    struct event_writer events;
    int64_t every;
    int64_t last_evaluation; /* step of the last evaluation that was there when it was opened, -1 none */
};

struct metrics_step {
    int64_t step, total, tokens, tokens_seen;
    double loss, lr, grad_norm, seconds;
    double seconds_left; /* estimated */
    double peak_share;   /* 0: not known */
};

/* Opens OUTPUT/metrics.jsonl for appending, after cutting it back to the lines of steps up to `step`. */
int metrics_open(struct metrics *m, const char *output, int64_t step, int64_t every, bool tensorboard,
                 struct error *err);
int metrics_step(struct metrics *m, const struct metrics_step *s, const struct log *log, struct error *err);
int metrics_eval(struct metrics *m, int64_t step, double loss, int64_t targets, double seconds,
                 const struct log *log, struct error *err);
/* fsync; safe on a zeroed (fd -1) or closed one. */
int metrics_close(struct metrics *m, struct error *err);

#endif
