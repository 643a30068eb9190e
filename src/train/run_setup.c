/* Before the first step: model, tokenizer, data, and the state of OUTPUT. */
#include "train/checkpoint_files.h"
#include "train/run_internal.h"

#include "data/encoder.h"
#include "formats/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How often, every 0.1 seconds, to ask for OUTPUT before it counts as another run's. */
enum { LOCK_NAPS = 30 };
/* What the names of files within OUTPUT or a token cache may add to its path. */
enum { NAMES_ROOM = 200 };

static bool is_root(const struct train_run *run)
{
    return comm_rank(run->comm) == 0;
}

/* Only rank 0 talks. */
static const struct log *quiet_log(const struct train_run *run)
{
    static const struct log silent = {NULL, NULL, NULL};
    return is_root(run) ? run->log : &silent;
}

/* A configuration without vocab_size takes the tokenizer's; BOS and EOS too. */
static int config_complete(struct train_run *run, json_t *config, struct error *err)
{
    const struct {
        const char *key;
        int64_t value;
    } fill[] = {{"vocab_size", run->tokenizer ? tokenizer_vocab_size(run->tokenizer) : -1},
                {"bos_token_id", run->bos},
                {"eos_token_id", run->eos}};
    for (size_t i = 0; i < sizeof fill / sizeof *fill; i++) {
        const json_t *there = json_object_get(config, fill[i].key);
        if ((there && !json_is_null(there)) || fill[i].value < 0)
            continue;
        if (json_object_set_new(config, fill[i].key, json_integer(fill[i].value)) != 0)
            return error_memory(err, 0, "config.json");
    }
    return 0;
}

static int load_random_model(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    json_t *config = NULL;
    const char *where = o->model_config ? o->model_config : o->model_place;
    if (o->model_inline) {
        config = json_deep_copy(o->model_inline);
        if (!config)
            return error_memory(err, 0, "config.json");
    } else {
        char *text;
        size_t n;
        if (file_read(o->model_config, JSON_FILE_LIMIT, &text, &n, err) != 0)
            return -1;
        int status = json_parse(o->model_config, 1, text, n, &config, err);
        free(text);
        if (status != 0)
            return -1;
        if (!json_is_object(config)) {
            json_decref(config);
            return error_set(err, ERROR_INPUT, o->model_config, "give a config.json",
                             "expected a JSON object");
        }
    }
    int status = config_complete(run, config, err);
    if (status == 0)
        status = model_create(&run->model, config, where, quiet_log(run), err);
    json_decref(config);
    return status;
}

static int special_tokens(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    const struct model_config *c = run->model ? &run->model->config : NULL;
    run->bos = tokenizer_bos(run->tokenizer);
    run->eos = tokenizer_eos(run->tokenizer);
    run->pad = tokenizer_pad(run->tokenizer);
    /* What config.json says; the ids that Llama's class would take without it may be any tokens here. */
    if (run->bos < 0 && c && json_object_get(c->source, "bos_token_id"))
        run->bos = c->bos;
    if (run->eos < 0 && c && c->eos_count > 0 && json_object_get(c->source, "eos_token_id"))
        run->eos = c->eos[0];
    bool needs_bos = o->add_bos == TRAIN_ADD_BOS_YES ||
                     (o->add_bos == TRAIN_ADD_BOS_AUTO && tokenizer_adds_bos(run->tokenizer));
    if (needs_bos && run->bos < 0)
        return error_set(
            err, ERROR_INPUT, run->tokenizer_path,
            "name a bos_token in tokenizer_config.json, or set data.add_bos: false",
            "documents are to begin with BOS, but neither the tokenizer nor config.json names one");
    if (o->add_eos && run->eos < 0)
        return error_set(err, ERROR_INPUT, run->tokenizer_path,
                         "name an eos_token in tokenizer_config.json, or set data.add_eos: false",
                         "documents are to end in EOS, but neither the tokenizer nor config.json names one");
    return 0;
}

/* It is trained all the same, but other programs, and eval and generate, take the model's word. */
static void warn_of_length(const struct train_run *run)
{
    int64_t rows = run->options->engine.seq_len, most = run->model->config.max_positions;
    if (rows > most)
        log_warning(
            quiet_log(run),
            "data.seq_len %lld is beyond the model's max_position_embeddings %lld, which stays as it is: "
            "set it in model.config for rows of this length",
            (long long)rows, (long long)most);
}

/* A model that is trained further ends its text as the tokenizer says from now on. */
static void compare_eos(struct train_run *run)
{
    const struct model_config *c = &run->model->config;
    bool named = c->eos_count == 0 || run->eos < 0;
    for (int i = 0; i < c->eos_count; i++)
        named = named || c->eos[i] == run->eos;
    run->eos_changed = !named;
    if (!named)
        log_warning(
            quiet_log(run),
            "config.json names EOS %lld, the tokenizer %lld: the model is written with the tokenizer's, and "
            "generation_config.json is left out",
            (long long)c->eos[0], (long long)run->eos);
}

int run_setup_model(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    run->tokenizer_path = o->tokenizer ? o->tokenizer : o->model_from;
    if (tokenizer_load(run->tokenizer_path, &run->tokenizer, err) != 0)
        return -1;
    if (o->model_from) {
        if (model_load_config(&run->model, o->model_from, quiet_log(run), err) != 0)
            return -1;
        warn_of_length(run);
        if (special_tokens(run, err) != 0)
            return -1;
        compare_eos(run);
        return 0;
    }
    run->bos = tokenizer_bos(run->tokenizer);
    run->eos = tokenizer_eos(run->tokenizer);
    if (load_random_model(run, err) != 0)
        return -1;
    warn_of_length(run);
    return special_tokens(run, err);
}

static bool stop_asked(void *comm)
{
    return comm_stop_signal(comm) != 0;
}

static int build_cache(struct train_run *run, const struct train_texts *texts, struct pool *pool, char **path,
                       struct error *err)
{
    const struct train_options *o = run->options;
    struct text_encoder *encoder;
    if (text_encoder_create(&encoder, run->tokenizer, pool_threads(pool), err) != 0)
        return -1;
    bool bos = o->add_bos == TRAIN_ADD_BOS_YES ||
               (o->add_bos == TRAIN_ADD_BOS_AUTO && tokenizer_adds_bos(run->tokenizer));
    struct token_cache_options options = {.files = texts->items,
                                          .file_count = texts->count,
                                          .root = o->cache_root,
                                          .field = o->field,
                                          .bad_lines = o->bad_lines,
                                          .encode = text_encoder_encode,
                                          .encode_context = encoder,
                                          .tokenizer_hash = tokenizer_hash(run->tokenizer),
                                          .special_in_text = o->special_in_text,
                                          .bos_id = bos ? run->bos : -1,
                                          .eos_id = o->add_eos ? run->eos : -1,
                                          .vocab_limit = run->model->config.vocab_size,
                                          .tokenizer_name = run->tokenizer_path,
                                          .model_name = o->model_from     ? o->model_from
                                                        : o->model_config ? o->model_config
                                                                          : o->model_place,
                                          .stopped = stop_asked,
                                          .stopped_context = run->comm};
    int status = token_cache_build(&options, pool, run->log, path, err);
    text_encoder_free(encoder);
    return status;
}

/* Tokenizes on rank 0. A request to stop is no failure: run->plan.stop_signal says so. */
static int tokenize(struct train_run *run, const struct train_texts *texts, struct train_data *data,
                    struct error *err)
{
    /* A pool of its own, gone before training: its threads would idle beside the backend's. */
    struct pool *pool;
    struct error problem = {0};
    if (pool_create(&pool, pool_cpus(), false, 0, NULL, err) != 0)
        return -1;
    int status = build_cache(run, texts, pool, &data->path, &problem);
    pool_free(pool);
    int signal = comm_stop_signal(run->comm);
    if (status != 0 && signal != 0) {
        run->plan.stop_signal = signal;
        log_info(run->log, "%s; %s", problem.what, problem.remedy);
        return 0;
    }
    if (status != 0 && err)
        *err = problem;
    return status;
}

/* Rank 0 tokenizes, all ranks map the result. */
static int open_data(struct train_run *run, const struct train_texts *texts, struct train_data *data,
                     struct error *err)
{
    if (is_root(run) && tokenize(run, texts, data, err) != 0)
        return -1;
    int64_t told[2] = {data->path ? (int64_t)strlen(data->path) + 1 : 0, run->plan.stop_signal};
    if (comm_broadcast(run->comm, told, sizeof told, 0, err) != 0)
        return -1;
    run->plan.stop_signal = (int)told[1];
    if (told[1] != 0)
        return 0;
    if (!data->path && !(data->path = malloc((size_t)told[0])))
        return error_memory(err, (size_t)told[0], "a path");
    if (comm_broadcast(run->comm, data->path, (size_t)told[0], 0, err) != 0 ||
        token_cache_open(data->path, &data->cache, err) != 0)
        return -1;
    data->open = true;
    return 0;
}

/* The rows of one kind of text; none after a request to stop. */
static int make_rows(struct train_run *run, const struct train_texts *texts, struct train_data *data,
                     const struct row_options *rows, struct error *err)
{
    if (run->plan.stop_signal != 0)
        return 0;
    if (open_data(run, texts, data, err) != 0)
        return -1;
    return run->plan.stop_signal != 0 ? 0 : row_plan_create(&data->rows, &data->cache, rows, err);
}

int run_setup_data(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    struct row_options rows = {.seq_len = o->engine.seq_len,
                               .pack = o->pack,
                               .shuffle = o->shuffle,
                               .seed = o->seed,
                               .global_batch = o->global_batch,
                               .pad_id =
                                   run->pad >= 0 && run->pad < run->model->config.vocab_size ? run->pad : 0};
    if (make_rows(run, &o->train, &run->data, &rows, err) != 0)
        return -1;
    rows.shuffle = false;
    if (o->eval.count > 0 && make_rows(run, &o->eval, &run->eval, &rows, err) != 0)
        return -1;
    if (run->plan.stop_signal != 0)
        return 0;
    int64_t total = o->steps;
    if (total == 0 && row_plan_total_steps(&run->data.rows, o->epochs, &total, err) != 0)
        return -1;
    run->plan.total_steps = total;
    if (run->resume_from && run->state.data_hash != run->data.cache.content_hash)
        return error_set(err, ERROR_INPUT, run->resume_from, "give the same text and tokenizer as before",
                         "the tokenized text is not the one this checkpoint was trained on");
    return 0;
}

static int check_texts(const struct train_texts *texts, struct error *err)
{
    struct text_files files;
    if (texts->count == 0)
        return 0;
    int status = text_files_find(texts->items, texts->count, &files, err);
    text_files_free(&files);
    return status;
}

int run_check_data(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    int64_t micro = (o->global_batch + o->engine.micro_batch - 1) / o->engine.micro_batch;
    if (comm_size(run->comm) > micro)
        return error_set(
            err, ERROR_INPUT, "train.micro_batch",
            "start fewer ranks, or make micro_batch smaller or global_batch larger",
            "%d ranks share %lld micro-batches a step (global_batch %lld, micro_batch %lld): some "
            "would never have work",
            comm_size(run->comm), (long long)micro, (long long)o->global_batch,
            (long long)o->engine.micro_batch);
    if (!is_root(run))
        return 0;
    if (check_texts(&o->train, err) != 0 || check_texts(&o->eval, err) != 0)
        return -1;
    return file_check_directory(o->cache_root, NAMES_ROOM, err);
}

/* A run writes things of this name, and --overwrite removes them. */
static bool is_ours(const char *name)
{
    static const char *const names[] = {"metrics.jsonl", "run.yaml",   "last",
                                        "tensorboard",   "trace.json", "stop"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return strncmp(name, "checkpoint-", 11) == 0;
}

/* OUTPUT holds a run when it has metrics or a checkpoint. */
static int holds_run(const char *output, bool *found, struct error *err)
{
    const char *name;
    int status;
    *found = false;
    DIR *directory = opendir(output);
    if (!directory)
        return file_says_absent(errno) ? 0 : error_errno(err, errno, output, "read this directory");
    while ((status = file_next_name(directory, output, &name, err)) == 0 && name && !*found)
        *found = is_ours(name) && strcmp(name, "stop") != 0;
    closedir(directory);
    return status;
}

/* realpath; *out stays NULL where nothing is. */
static int real_path(const char *path, char **out, struct error *err)
{
    *out = path ? realpath(path, NULL) : NULL;
    return !path || *out || file_says_absent(errno) ? 0
                                                    : error_errno(err, errno, path, "find out where it is");
}

/* What this run reads must not lie where it removes and replaces: in a checkpoint of its own OUTPUT. */
static int check_input(const struct train_run *run, const char *path, struct error *err)
{
    char *output = NULL, *input = NULL;
    int status = real_path(run->options->output, &output, err);
    if (status == 0)
        status = real_path(path, &input, err);
    size_t n = output ? strlen(output) : 0;
    bool inside = false;
    if (output && input && strncmp(input, output, n) == 0 && input[n] == '/') {
        input[n + 1 + strcspn(input + n + 1, "/")] = '\0';
        inside = is_ours(input + n + 1);
    }
    free(output);
    free(input);
    if (status != 0)
        return -1;
    return inside ? error_set(err, ERROR_INPUT, path, "choose another output, or move it away first",
                              "the run is to start from this, and would remove it from its output %s",
                              run->options->output)
                  : 0;
}

static int check_inputs(const struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    const char *const paths[] = {o->model_from, o->model_config, o->tokenizer};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (check_input(run, paths[i], err) != 0)
            return -1;
    for (int64_t i = 0; i < o->train.count + o->eval.count; i++)
        if (check_input(run, i < o->train.count ? o->train.items[i] : o->eval.items[i - o->train.count],
                        err) != 0)
            return -1;
    return 0;
}

static int find_resume(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    char *old;
    if (o->resume_path) {
        if (!file_is_directory(o->resume_path))
            return error_set(
                err, ERROR_INPUT, o->resume_path,
                "give a checkpoint's directory, as OUTPUT/checkpoint-000100; --resume alone takes the "
                "newest",
                "--resume: there is no such directory");
        if (checkpoint_verify(o->resume_path, err) != 0)
            return -1;
        run->resume_from = strdup(o->resume_path);
        if (!run->resume_from)
            return error_memory(err, 0, "a path");
    } else if (checkpoint_newest(o->output, &run->resume_from, err) != 0) {
        return -1;
    }
    if (!run->resume_from)
        return 0;
    if (checkpoint_read_run(run->resume_from, &old, err) != 0)
        return -1;
    int status = o->compare_run ? o->compare_run(o->compare_context, old, err) : 0;
    free(old);
    return status;
}

/* What rank 0 found, told to the others: the path, or none. */
static int share_resume(struct train_run *run, struct error *err)
{
    int64_t length = run->resume_from ? (int64_t)strlen(run->resume_from) + 1 : 0;
    if (comm_broadcast(run->comm, &length, sizeof length, 0, err) != 0)
        return -1;
    if (length == 0)
        return 0;
    if (!is_root(run) && !(run->resume_from = malloc((size_t)length)))
        return error_memory(err, (size_t)length, "a path");
    if (comm_broadcast(run->comm, run->resume_from, (size_t)length, 0, err) != 0)
        return -1;
    return checkpoint_read_state(run->resume_from, &run->state, err);
}

/* OUTPUT belongs to one run at a time. One that was killed a moment ago may take a little to be gone. */
static int lock_output(struct train_run *run, struct error *err)
{
    static const struct timespec nap = {.tv_nsec = 100000000};
    const char *output = run->options->output;
    char *path = file_join(output, ".lock");
    if (!path)
        return error_memory(err, 0, "a path");
    int status = 0;
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->lock < 0) {
        status = error_errno(err, errno, path, "create the file");
        if (err)
            err->kind = ERROR_INPUT;
    }
    int naps = 0;
    bool taken = false; /* a file system without locks is written without one */
    while (status == 0 && (taken = flock(run->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) &&
           naps++ < LOCK_NAPS)
        nanosleep(&nap, NULL);
    if (status == 0 && taken) {
        status = error_set(err, ERROR_INPUT, output, "wait for it, stop it, or choose another output",
                           "another run is writing here");
    }
    free(path);
    return status;
}

/* --resume=CHECKPOINT of another run, while OUTPUT has checkpoints: two histories in one directory. */
static int check_place(const struct train_run *run, struct error *err)
{
    const char *output = run->options->output;
    struct checkpoint_listing listing;
    if (run->resume_inside)
        return 0;
    if (checkpoint_list(output, &listing, err) != 0)
        return -1;
    int64_t count = listing.count;
    checkpoint_listing_free(&listing);
    if (count == 0)
        return 0;
    return error_set(err, ERROR_INPUT, output, "choose another output, or go on from one of its own",
                     "this directory holds checkpoints of its own, %s is not among them", run->resume_from);
}

/* OUTPUT/checkpoint-N, under whatever path it was named. */
static int is_inside(const char *checkpoint, const char *output, bool *inside, struct error *err)
{
    char *parent = file_join(checkpoint, "..");
    struct stat a, b;
    int status = 0;
    *inside = false;
    if (!parent)
        return error_memory(err, strlen(checkpoint), "a path");
    if (stat(parent, &a) != 0)
        status = error_errno(err, errno, parent, "look at this directory");
    else if (stat(output, &b) == 0)
        *inside = a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    else if (!file_says_absent(errno))
        status = error_errno(err, errno, output, "look at this directory");
    free(parent);
    return status;
}

static int look_at_output(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    bool there = file_exists(o->output);
    if (there && !file_is_directory(o->output))
        return error_set(err, ERROR_INPUT, o->output, "choose another output",
                         "this is a file, not a directory");
    bool taken = false;
    if (!o->resume && !o->overwrite && holds_run(o->output, &taken, err) != 0)
        return -1;
    if (taken)
        return error_set(err, ERROR_INPUT, o->output,
                         "go on with --resume, start again with --overwrite, or choose another output",
                         "this directory holds a run");
    if (file_check_directory(o->output, NAMES_ROOM, err) != 0 || (there && lock_output(run, err) != 0) ||
        (o->resume && find_resume(run, err) != 0))
        return -1;
    if (!o->overwrite && checkpoint_check_space(o->output, run->model, o->checkpoint_type, err) != 0) {
        if (err)
            err->kind = ERROR_INPUT; /* found before any work */
        return -1;
    }
    if (!run->resume_from)
        return check_inputs(run, err);
    if (is_inside(run->resume_from, o->output, &run->resume_inside, err) != 0)
        return -1;
    return check_place(run, err);
}

int run_check_output(struct train_run *run, struct error *err)
{
    if (is_root(run) && look_at_output(run, err) != 0)
        return -1;
    return share_resume(run, err);
}

/* --overwrite: removes what a run leaves, and nothing else. */
static int remove_run(const char *output, struct error *err)
{
    const char *name;
    int status;
    DIR *directory = opendir(output);
    if (!directory)
        return error_errno(err, errno, output, "read the directory");
    while ((status = file_next_name(directory, output, &name, err)) == 0 && name) {
        if (!is_ours(name))
            continue;
        char *path = file_join(output, name);
        status = path ? file_remove_tree(path, err) : error_memory(err, 0, "a path");
        free(path);
        if (status != 0)
            break;
    }
    closedir(directory);
    return status;
}

/* Takes a directory that was not there when run_check_output looked. */
static int claim_output(struct train_run *run, struct error *err)
{
    const char *output = run->options->output;
    if (run->lock >= 0)
        return 0;
    if (file_make_directories(output, err) != 0) {
        if (err)
            err->kind = ERROR_INPUT;
        return -1;
    }
    if (lock_output(run, err) != 0)
        return -1;
    bool taken;
    if (holds_run(output, &taken, err) != 0)
        return -1;
    return taken ? error_set(err, ERROR_INPUT, output, "look at it, then start again",
                             "another run has begun in this directory meanwhile")
                 : 0;
}

/* Makes OUTPUT agree with where the run begins. */
static int tidy_output(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    if (o->overwrite && !run->resume_from && remove_run(o->output, err) != 0)
        return -1;
    if (checkpoint_clean(o->output, err) != 0)
        return -1;
    if (!run->resume_from || !run->resume_inside)
        return 0;
    if (checkpoint_set_aside(o->output, run->state.step, run->log, err) != 0)
        return -1;
    /* An interrupted save may have ended before it did this. */
    char *real = realpath(run->resume_from, NULL);
    int status = real ? checkpoint_point_last(o->output, real, err)
                      : error_errno(err, errno, run->resume_from, "find the directory");
    free(real);
    return status;
}

int run_open_output(struct train_run *run, struct error *err)
{
    const struct train_options *o = run->options;
    if (!is_root(run))
        return 0;
    if (claim_output(run, err) != 0 || tidy_output(run, err) != 0)
        return -1;
    char *path = file_join(o->output, "run.yaml");
    int status =
        path ? file_write_all(path, o->run_yaml, strlen(o->run_yaml), err) : error_memory(err, 0, "a path");
    free(path);
    if (status != 0)
        return -1;
    /* Without a checkpoint nothing stays of what an earlier start may have written. */
    int64_t kept = run->resume_from ? run->state.step : -1;
    return metrics_open(&run->metrics, o->output, kept, o->log_every, o->tensorboard, err);
}
