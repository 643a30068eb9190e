/* A run from its plan to its last checkpoint. */
#include "train/profiling.h"

#include "base/clock.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_root(const struct train_run *run)
{
    return comm_rank(run->comm) == 0;
}

static int make_backend(struct train_run *run, struct error *err)
{
    struct backend_options options = run->options->backend;
    int local = comm_local_size(run->comm);
    if (run->options->plan_ranks)
        local = run->options->plan_ranks;
    if (options.threads == 0)
        options.threads = pool_cpus() / local > 0 ? pool_cpus() / local : 1;
    options.first_cpu = comm_local_rank(run->comm) * options.threads;
    options.pin = local * options.threads <= pool_cpus();
    run->plan.threads = options.threads;
    return backend_create(&run->backend, &options, err);
}

static int compare_probes(struct train_run *run, struct error *err)
{
    if (backend_probe(run->backend, &run->probe, err) != 0)
        return -1;
    int n = comm_size(run->comm);
    uint64_t *all = malloc((size_t)n * sizeof *all);
    if (!all)
        return error_memory(err, (size_t)n * sizeof *all, "a comparison of ranks");
    int status = comm_all_gather(run->comm, &run->probe, sizeof run->probe, all, err);
    for (int r = 1; status == 0 && r < n && is_root(run); r++)
        if (all[r] != all[0])
            log_warning(
                run->log,
                "rank %d computes a probe with other bits than rank 0 (another CPU or library): results "
                "will depend on the number of ranks",
                r);
    free(all);
    return status;
}

static int fill_plan(struct train_run *run, struct error *err)
{
    struct train_plan *p = &run->plan;
    const struct train_options *o = run->options;
    p->ranks = o->plan_ranks ? o->plan_ranks : comm_size(run->comm);
    p->model = run->model;
    p->parameters = model_parameter_count(run->model);
    p->micro_batches = (o->global_batch + o->engine.micro_batch - 1) / o->engine.micro_batch;
    p->first_step = run->state.step;
    p->transport = o->plan_ranks == 0 ? comm_name(run->comm)
                   : o->plan_messages ? "mpi"
                   : p->ranks > 1     ? "shm"
                                      : "self";
    p->backend = run->options->backend.name;
    p->resume_from = run->resume_from;
    return run_fit_memory(run, err);
}

static void fill_plan_data(struct train_run *run)
{
    struct train_plan *p = &run->plan;
    p->rows = &run->data.rows;
    p->data = &run->data.cache;
    p->eval_rows = run->eval.open ? &run->eval.rows : NULL;
    p->eval_data = run->eval.open ? &run->eval.cache : NULL;
}

static int prepare(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    struct safetensors_set weights = {0};
    /* Before a backend pins this thread to a CPU, and long before it is needed: it must not fail in the
     * middle. */
    if (o->plan_ranks == 0 && background_create(&run->thread, err) != 0)
        return -1;
    if (run_setup_model(run, err) != 0)
        return -1;
    /* Weights that do not fit are found now, not after an hour of tokenizing. */
    if (o->model_from &&
        weights_open(&weights, run->model, o->model_from, is_root(run) ? run->log : NULL, err) != 0)
        return -1;
    safetensors_set_close(&weights);
    for (int u = 0; o->decay_all && u < run->model->unit_count; u++)
        for (int k = 0; k < run->model->units[u].param_count; k++)
            run->model->units[u].params[k].decay = true;
    if (o->plan_ranks == 0 && (run_check_data(run, err) != 0 || run_check_output(run, err) != 0))
        return -1;
    /* A run that does not fit is refused before its text is read. */
    if (make_backend(run, err) != 0 || fill_plan(run, err) != 0)
        return -1;
    if (o->plan_ranks || run->plan.advice[0])
        return 0;
    /* It pins this thread, and tokenizing is to use every CPU. */
    backend_destroy(run->backend);
    run->backend = NULL;
    if (run_setup_data(run, err) != 0)
        return -1;
    if (run->plan.stop_signal != 0)
        return 0;
    fill_plan_data(run);
    if (make_backend(run, err) != 0 || compare_probes(run, err) != 0)
        return -1;
    /* Only tokenizing needs it, and a large vocabulary takes a hundred megabytes. */
    tokenizer_free(run->tokenizer);
    run->tokenizer = NULL;
    malloc_trim(0);
    run->schedule = o->schedule;
    run->schedule.total = run->plan.total_steps;
    run->adamw = o->adamw;
    if (run->state.step > run->plan.total_steps)
        return error_set(err, ERROR_INPUT, run->resume_from,
                         "ask for more steps, or go on from an earlier checkpoint",
                         "it stands after step %lld, beyond the run's %lld steps", (long long)run->state.step,
                         (long long)run->plan.total_steps);
    if (run->schedule.warmup > run->schedule.total)
        return error_set(err, ERROR_INPUT, "schedule.warmup_steps", "warm up for fewer steps",
                         "%lld warm-up steps are more than the run's %lld", (long long)run->schedule.warmup,
                         (long long)run->schedule.total);
    if (run->schedule.kind == SCHEDULE_WSD &&
        run->schedule.decay_steps > run->schedule.total - run->schedule.warmup)
        return error_set(err, ERROR_INPUT, "schedule.decay_steps", "lower one of them",
                         "%lld steps of decay and %lld of warm-up are more than the run's %lld",
                         (long long)run->schedule.decay_steps, (long long)run->schedule.warmup,
                         (long long)run->schedule.total);
    if (run->resume_from && run->state.probe != run->probe && is_root(run))
        log_warning(run->log,
                    "this machine computes a probe with other bits than the one that wrote %s: the run "
                    "goes on, but not with the same bits",
                    run->resume_from);
    return 0;
}

int train_prepare(struct train_run **out, struct comm *comm, const struct train_options *options,
                  const struct log *log, struct error *err)
{
    *out = NULL;
    struct train_run *run = calloc(1, sizeof *run);
    if (!run)
        return error_memory(err, sizeof *run, "a run");
    run->options = options;
    run->comm = comm;
    run->log = log;
    run->lock = -1;
    run->metrics.fd = -1;
    run->bos = run->eos = run->pad = -1;
    run->engine_options = options->engine;
    if (prepare(run, err) != 0) {
        train_free(run);
        return -1;
    }
    *out = run;
    return 0;
}

const struct train_plan *train_plan(const struct train_run *run)
{
    return &run->plan;
}

void train_observe(struct train_run *run, void (*on_step)(void *context, struct engine *e, int64_t step),
                   void *context)
{
    run->on_step = on_step;
    run->on_step_context = context;
}

void train_free(struct train_run *run)
{
    if (!run)
        return;
    struct train_data *data[] = {&run->data, &run->eval};
    metrics_close(&run->metrics, NULL);
    batch_free(&run->scratch);
    saver_free(run->saver);
    background_free(run->thread);
    engine_free(run->engine);
    backend_destroy(run->backend);
    profiling_free(run);
    for (int i = 0; i < 2; i++) {
        row_plan_free(&data[i]->rows);
        token_cache_close(&data[i]->cache);
        free(data[i]->path);
    }
    tokenizer_free(run->tokenizer);
    model_free(run->model);
    free(run->resume_from);
    free(run->stop_path);
    if (run->lock >= 0)
        close(run->lock);
    free(run);
}

/* Weights: from a checkpoint, from a model directory, or random. */
static int load_weights(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    if (run->resume_from)
        return checkpoint_load(run->engine, run->resume_from, is_root(run) ? run->log : NULL, err);
    if (!o->model_from)
        return engine_init_weights(run->engine, o->seed, err);
    struct safetensors_set set;
    if (weights_open(&set, run->model, o->model_from, NULL, err) != 0)
        return -1;
    int status = weights_load(run->engine, SHARD_MASTER, &set, err);
    safetensors_set_close(&set);
    return status;
}

/* Every rank writes its part of a checkpoint into OUTPUT: better known now than at the first one. Rank 0 has
 * been there. */
static int check_shared_output(const struct train_run *run, struct error *err)
{
    const char *output = run->options->output;
    char *path = file_join(output, "run.yaml");
    if (!path)
        return error_memory(err, strlen(output), "a path");
    bool seen = file_exists(path);
    free(path);
    return seen ? 0
                : error_set(err, ERROR_RUN, output, "choose an output directory that all machines share",
                            "this rank does not see there what rank 0 has written");
}

static int start(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    const struct checkpoint_options checkpoint = {.output = o->output,
                                                  .tokenizer = run->tokenizer_path,
                                                  .run_yaml = o->run_yaml,
                                                  .type = o->checkpoint_type,
                                                  .keep = o->keep,
                                                  .bos = run->bos,
                                                  .eos = run->eos,
                                                  .pad = run->pad,
                                                  .no_generation_config = run->eos_changed};
    /* OUTPUT last: weights that cannot be read leave it as it was. */
    if (engine_create(&run->engine, run->model, run->comm, run->backend, &run->engine_options, err) != 0 ||
        batch_create(&run->scratch, o->engine.micro_batch, o->engine.seq_len, err) != 0 ||
        saver_create(&run->saver, run->engine, &checkpoint, run->thread, err) != 0 ||
        load_weights(run, err) != 0 || run_open_output(run, err) != 0 || profiling_create(run, err) != 0)
        return -1;
    int64_t evaluation = run->metrics.last_evaluation;
    if (comm_broadcast(run->comm, &evaluation, sizeof evaluation, 0, err) != 0)
        return -1;
    if (check_shared_output(run, err) != 0)
        return -1;
    run->evaluated = evaluation == run->state.step;
    run->stop_path = file_join(o->output, "stop");
    if (!run->stop_path)
        return error_memory(err, strlen(o->output), "a path");
    run->state.data_hash = run->data.cache.content_hash;
    run->state.probe = run->probe;
    int local = comm_local_size(run->comm);
    if (is_root(run) && o->peak) /* machines of one kind, with as many ranks each */
        run->peak = o->peak(run->backend, o->engine.compute, local * run->plan.threads) *
                    comm_size(run->comm) / local;
    return 0;
}

/* Reports a checkpoint that has become complete. */
static void note_saved(struct train_run *run, struct train_report *report)
{
    struct saver_done done;
    char bytes[32];
    if (!saver_completed(run->saver, &done) || !is_root(run))
        return;
    snprintf(report->checkpoint, sizeof report->checkpoint, "%s", done.path);
    log_info(run->log, "step %lld: %s saved as %s in %.1f s, for %.1f s of which training waited",
             (long long)done.step, format_bytes(done.bytes, bytes), done.path, done.seconds, done.held);
}

static int finish_saving(struct train_run *run, struct train_report *report, struct error *err)
{
    int status = saver_finish(run->saver, err);
    note_saved(run, report);
    return status;
}

static int save(struct train_run *run, bool last, struct train_report *report, struct error *err)
{
    int status = saver_begin(run->saver, &run->state, err);
    note_saved(run, report); /* the one before */
    return status == 0 && last ? finish_saving(run, report, err) : status;
}

struct hold_context {
    struct train_run *run;
    struct train_report *report;
};

/* A step that cannot be done ends the run: what was saved before it is to be whole first. */
static int before_update(void *context, bool finite, struct error *err)
{
    const struct hold_context *c = context;
    if (!finite)
        return finish_saving(c->run, c->report, err);
    struct profile_mark mark = profile_begin(c->run->profile);
    saver_hold(c->run->saver);
    profile_end(c->run->profile, "wait for saving", mark, NULL);
    return 0;
}

static int evaluate(struct train_run *run, int64_t step, struct error *err)
{
    double loss, start_time = clock_seconds();
    int64_t targets;
    bool stopped = false;
    if (step_evaluate(run->engine, &run->eval.rows, &run->scratch, &loss, &targets, &stopped, err) != 0)
        return -1;
    if (!is_root(run) || stopped)
        return 0;
    return metrics_eval(&run->metrics, step, loss / (double)targets, targets, clock_seconds() - start_time,
                        run->log, err);
}

/* Product FLOPs that a step needed (attention by the real pieces; recompute and padding are not needed) a
 * second, as a share of the peak; 0: not known. */
static double peak_share(struct train_run *run, const struct step_result *r, double seconds)
{
    if (run->peak <= 0 || seconds <= 0 || r->tokens == 0)
        return 0;
    double tokens = (double)r->tokens, context = 2.0 * (double)r->pairs / tokens;
    double share = tokens * model_flops_per_token(run->model, context) / seconds / run->peak;
    if (share > 1 && !run->peak_doubted)
        log_warning(
            run->log,
            "this step reached %.0f %% of the product peak that is kept for this machine, which is too "
            "low then: run `tercet doctor` while nothing else runs",
            100 * share);
    run->peak_doubted = run->peak_doubted || share > 1;
    return share;
}

/* Why to stop after this step: a signal's number, STOP_FILE, or 0; whether to save: SAVE_DUE or 0. The same
 * on all ranks. A save that is under way goes on where all ranks are ready for that. */
enum { STOP_FILE = 1, SAVE_DUE = 2, SIGNAL_BASE = 16 };

static int agree(struct train_run *run, double last_save, struct train_report *report, int64_t out[2],
                 struct error *err)
{
    int64_t wish[3] = {0, 0, saver_progress(run->saver)};
    int signal = comm_stop_signal(run->comm);
    wish[0] = signal ? SIGNAL_BASE + signal : 0;
    if (is_root(run)) {
        struct stat st;
        if (!signal && stat(run->stop_path, &st) == 0)
            wish[0] = STOP_FILE;
        double minutes = run->options->checkpoint_minutes;
        wish[1] = minutes > 0 && clock_seconds() - last_save >= 60 * minutes ? SAVE_DUE : 0;
    }
    if (comm_max_i64(run->comm, wish, 3, err) != 0 || saver_advance(run->saver, wish[2], err) != 0)
        return -1;
    note_saved(run, report);
    out[0] = wish[0];
    out[1] = wish[1];
    return 0;
}

static int one_step(struct train_run *run, int64_t step, double started, struct train_report *report,
                    struct error *err)
{
    struct step_result r;
    double begin = clock_seconds(), lr = schedule_lr(&run->schedule, step);
    struct hold_context context = {run, report};
    const struct step_hold hold = {before_update, &context};
    profiling_step_begins(run, report, step);
    struct profile_mark mark = profile_begin(run->profile);
    if (step_run(run->engine, &run->data.rows, step, &run->adamw, lr, &run->scratch, &hold, &r, err) != 0)
        return -1;
    profile_end(run->profile, "rest of the step", mark, NULL);
    double now = clock_seconds();
    int64_t done = step + 1 - report->first_step;
    run->state.step = step + 1;
    run->state.tokens_seen += r.tokens;
    if (step == report->first_step)
        report->first_loss = r.loss;
    report->last_loss = r.loss;
    report->last_step = step + 1;
    if (run->on_step)
        run->on_step(run->on_step_context, run->engine, step + 1);
    if (!is_root(run))
        return 0;
    struct metrics_step m = {.step = step + 1,
                             .total = run->plan.total_steps,
                             .tokens = r.tokens,
                             .tokens_seen = run->state.tokens_seen,
                             .loss = r.loss,
                             .lr = lr,
                             .grad_norm = r.grad_norm,
                             .seconds = now - begin,
                             .peak_share = peak_share(run, &r, now - begin),
                             .seconds_left =
                                 (now - started) / (double)done * (double)(run->plan.total_steps - step - 1)};
    return metrics_step(&run->metrics, &m, run->log, err);
}

static bool due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* An evaluation is due before the first step: at the start, or where a request to stop cut it short. */
static bool owes_evaluation(const struct train_run *run, int64_t step)
{
    const struct train_options *o = run->options;
    if (step == 0)
        return o->eval_at_start;
    return !run->evaluated && (due(o->eval_every, step) || step == run->plan.total_steps);
}

/* Notes why the run ends here; the file that asked for it has done its work. */
static void stop(struct train_run *run, int64_t wish, struct train_report *report)
{
    report->stop_signal = wish >= SIGNAL_BASE ? (int)(wish - SIGNAL_BASE) : 0;
    report->stopped_by_file = wish == STOP_FILE;
    if (report->stopped_by_file && is_root(run))
        unlink(run->stop_path);
}

static int loop(struct train_run *run, double started, struct train_report *report, struct error *err)
{
    const struct train_options *o = run->options;
    double last_save = started;
    int64_t total = run->plan.total_steps;
    if (run->eval.open && owes_evaluation(run, report->first_step)) {
        int64_t wish[2];
        if (evaluate(run, report->first_step, err) != 0 || agree(run, last_save, report, wish, err) != 0)
            return -1;
        /* Cut short again, it is still owed: a step more, and nobody would remember it. */
        if (wish[0] != 0) {
            stop(run, wish[0], report);
            return 0;
        }
    }
    for (int64_t step = report->first_step; step < total; step++) {
        int64_t wish[2];
        if (one_step(run, step, started, report, err) != 0 || agree(run, last_save, report, wish, err) != 0)
            return -1;
        bool last = step + 1 == total || wish[0] != 0;
        if (run->eval.open && wish[0] == 0 && (due(o->eval_every, step + 1) || last)) {
            if (evaluate(run, step + 1, err) != 0)
                return -1;
            int64_t later[2]; /* asked to stop while evaluating */
            if (agree(run, last_save, report, later, err) != 0)
                return -1;
            wish[0] = later[0];
            last = last || wish[0] != 0;
        }
        if (last || due(o->checkpoint_every, step + 1) || wish[1] != 0) {
            if (save(run, last, report, err) != 0)
                return -1;
            last_save = clock_seconds();
        }
        if (profiling_step_ends(run, report, step, last, err) != 0)
            return -1;
        if (wish[0] == 0)
            continue;
        stop(run, wish[0], report);
        break;
    }
    return 0;
}

int train_execute(struct train_run *run, struct train_report *report, struct error *err)
{
    *report = (struct train_report){
        .first_step = run->state.step, .last_step = run->state.step, .total_steps = run->plan.total_steps};
    if (start(run, err) != 0)
        return -1;
    double started = clock_seconds();
    int status = loop(run, started, report, err);
    report->seconds = clock_seconds() - started;
    if (metrics_close(&run->metrics, status == 0 ? err : NULL) != 0)
        status = -1;
    return status;
}
