/* tercet eval: the loss of a model on text, in file order, the same bits on any number of ranks. */
#include "base/clock.h"
#include "cli/inference.h"
#include "data/encoder.h"
#include "formats/json.h"
#include "train/step.h"
#include "train/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_DATA = CLI_OWN, OPTION_SEQ_LEN, OPTION_TEXT, OPTION_NO_PACK, OPTION_BAD_LINES };
enum { DEFAULT_SEQ_LEN = 1024, TOKENS_AT_ONCE = 2048, ROOT_BYTES = 4096 };

struct eval_arguments {
    const char *model, *field;
    const char **files; /* [file_count] */
    int64_t file_count;
    int64_t seq_len; /* 0: not given */
    int ranks;
    bool json, no_pack;
    enum data_bad_lines bad_lines;
    struct inference_options options;
    struct cli *cli;

    struct inference inference;
    struct tokenizer *tokenizer;
    int64_t bos, eos; /* added to each document; -1: not */
};

/* What one rank holds while it works. */
struct evaluation {
    const struct eval_arguments *a;
    struct comm *comm;
    char root[ROOT_BYTES]; /* temporary directory of the token cache */
    bool made;             /* by this rank */
    struct token_cache cache;
    struct row_plan rows;
    struct backend *backend;
    struct engine *engine;
    struct batch scratch;
    double loss_sum, seconds;
    int64_t targets;
    bool stopped;
};

static const struct argp_option options_table[] = {
    {"data", OPTION_DATA, "FILE", 0,
     "JSON Lines or .txt, also .gz, .zst or .xz; more files may follow, or more --data", 1},
    {"text", OPTION_TEXT, "FIELD", 0, "The JSON field that holds the text; default: text", 1},
    {"seq-len", OPTION_SEQ_LEN, "N", 0, "Positions of a row; default: 1024, or the model's if fewer", 1},
    {"no-pack", OPTION_NO_PACK, NULL, 0,
     "A row for each document, cut at --seq-len (as data.pack: false of a run)", 1},
    {"bad-lines", OPTION_BAD_LINES, "error|skip", 0,
     "What to do with a line that is no document; default: error", 1},
    {"ranks", 'n', "RANKS", 0,
     "Start so many ranks on this machine (an MPI launcher's ranks are joined without it)", 1},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 2},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct eval_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->options;
        return 0;
    case OPTION_DATA:
        a->files[a->file_count++] = text;
        return 0;
    case OPTION_TEXT:
        a->field = text;
        return 0;
    case OPTION_SEQ_LEN:
        a->seq_len = cli_parse_int(state, "--seq-len", text, 1, INT32_MAX);
        return 0;
    case OPTION_NO_PACK:
        a->no_pack = true;
        return 0;
    case OPTION_BAD_LINES:
        if (strcmp(text, "error") != 0 && strcmp(text, "skip") != 0)
            argp_error(state, "--bad-lines: give error or skip, not \"%s\"", text);
        a->bad_lines = strcmp(text, "skip") == 0 ? DATA_BAD_LINES_SKIP : DATA_BAD_LINES_ERROR;
        return 0;
    case 'n':
        a->ranks = (int)cli_parse_int(state, "-n", text, 1, COMM_MAX_LOCAL_RANKS);
        return 0;
    case CLI_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (!a->model)
            a->model = text;
        else
            a->files[a->file_count++] = text;
        return 0;
    case ARGP_KEY_END:
        if (!a->model)
            argp_error(state, "which model? Give a model directory");
        if (a->file_count == 0)
            argp_error(state, "which text? Give it as --data FILE");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&inference_argp, 0, NULL, 2}, {0}};
static const struct argp eval_argp = {
    options_table,
    parse,
    "MODEL [FILE…]",
    "Example:\n  tercet eval models/llama --data test.jsonl -n 2\n\n"
    "Prints the loss of a model on text: the mean over target tokens, and the perplexity, which is its "
    "exponential. "
    "Documents are taken in file order and, but for --no-pack, packed, each attending to itself only."
    "\vBOS and EOS are added to documents as training adds them. MODEL is a Hugging Face model directory.",
    children,
    NULL,
    NULL};

/* ---- model and tokens ---- */

/* As training decides by default; a model without any EOS goes without. */
static int choose_special_tokens(struct eval_arguments *a, struct error *err)
{
    const struct model_config *c = &a->inference.model->config;
    a->bos = tokenizer_bos(a->tokenizer) >= 0 ? tokenizer_bos(a->tokenizer) : c->bos;
    a->eos = tokenizer_eos(a->tokenizer);
    if (a->eos < 0 && c->eos_count > 0)
        a->eos = c->eos[0];
    if (!tokenizer_adds_bos(a->tokenizer))
        a->bos = -1;
    else if (a->bos < 0)
        return error_set(
            err, ERROR_INPUT, a->model, "name a bos_token in tokenizer_config.json",
            "documents are to begin with BOS, but neither the tokenizer nor config.json names one");
    if (a->eos < 0 && comm_launcher_rank() == 0)
        log_warning(&a->cli->log, "%s names no EOS: documents do not end in one", a->model);
    return 0;
}

/* What every process finds alike, before there are ranks. */
static int prepare(struct eval_arguments *a, struct error *err)
{
    const struct log *log = comm_launcher_rank() == 0 ? &a->cli->log : NULL;
    if (inference_open(&a->inference, a->model, log, err) != 0 ||
        tokenizer_load(a->model, &a->tokenizer, err) != 0 || choose_special_tokens(a, err) != 0)
        return -1;
    int64_t most = a->inference.model->config.max_positions;
    if (a->seq_len == 0)
        a->seq_len = most < DEFAULT_SEQ_LEN ? most : DEFAULT_SEQ_LEN;
    if (a->seq_len > most)
        return error_set(err, ERROR_INPUT, "--seq-len", "give fewer",
                         "%" PRId64 " positions are more than the model's %" PRId64
                         " (max_position_embeddings)",
                         a->seq_len, most);
    return 0;
}

static bool stop_asked(void *comm)
{
    return comm_stop_signal(comm) != 0;
}

static int build_cache(struct evaluation *e, char **path, struct error *err)
{
    const struct eval_arguments *a = e->a;
    static const struct log silent = {NULL, NULL, NULL};
    struct text_encoder *encoder = NULL;
    struct pool *pool;
    if (pool_create(&pool, pool_cpus(), false, 0, NULL, err) != 0)
        return -1;
    int status = text_encoder_create(&encoder, a->tokenizer, pool_threads(pool), err);
    struct token_cache_options options = {.files = a->files,
                                          .file_count = a->file_count,
                                          .root = e->root,
                                          .field = a->field,
                                          .bad_lines = a->bad_lines,
                                          .encode = text_encoder_encode,
                                          .encode_context = encoder,
                                          .tokenizer_hash = tokenizer_hash(a->tokenizer),
                                          .bos_id = a->bos,
                                          .eos_id = a->eos,
                                          .vocab_limit = a->inference.model->config.vocab_size,
                                          .tokenizer_name = a->model,
                                          .model_name = a->model,
                                          .stopped = stop_asked,
                                          .stopped_context = e->comm};
    if (status == 0)
        status =
            token_cache_build(&options, pool, comm_rank(e->comm) == 0 ? &a->cli->log : &silent, path, err);
    text_encoder_free(encoder);
    pool_free(pool);
    return status;
}

/* A directory that only this run uses, named by rank 0; every machine has its own. */
static int make_root(struct evaluation *e, struct error *err)
{
    const char *place = getenv("TMPDIR");
    if (comm_rank(e->comm) == 0) {
        int n = snprintf(e->root, sizeof e->root, "%s/tercet-eval-XXXXXX",
                         place && place[0] ? place : "/var/tmp");
        if (n < 0 || (size_t)n >= sizeof e->root)
            return error_set(err, ERROR_INPUT, "TMPDIR", "choose a shorter one", "its name is too long");
        if (!mkdtemp(e->root))
            return error_errno(err, errno, e->root, "make a temporary directory");
        e->made = true;
    }
    if (comm_broadcast(e->comm, e->root, sizeof e->root, 0, err) != 0)
        return -1;
    if (comm_rank(e->comm) == 0 || comm_local_rank(e->comm) != 0)
        return 0;
    e->made = true;
    return file_make_directories(e->root, err);
}

static int remove_root(struct evaluation *e, struct error *err)
{
    bool made = e->made;
    e->made = false;
    return made ? file_remove_tree(e->root, err) : 0;
}

/* One rank of each machine tokenizes, all map the result; then the files go, and only the mappings stay. */
static int open_data(struct evaluation *e, struct error *err)
{
    char path[ROOT_BYTES] = "", *made = NULL;
    int status = make_root(e, err);
    if (status == 0 && e->made)
        status = build_cache(e, &made, err);
    if (made)
        snprintf(path, sizeof path, "%s", made);
    free(made);
    if (status != 0 || comm_broadcast(e->comm, path, sizeof path, 0, err) != 0 ||
        comm_barrier(e->comm, err) != 0 || token_cache_open(path, &e->cache, err) != 0 ||
        comm_barrier(e->comm, err) != 0 || remove_root(e, err) != 0)
        return -1;
    struct row_options rows = {.seq_len = e->a->seq_len, .pack = !e->a->no_pack, .global_batch = 1};
    return row_plan_create(&e->rows, &e->cache, &rows, err);
}

/* ---- work ---- */

/* Rows of a micro-batch: what keeps a rank busy, not more than its share. The loss does not depend on it. */
static int64_t rows_at_once(const struct evaluation *e)
{
    int64_t rows = TOKENS_AT_ONCE / e->a->seq_len;
    int64_t share = (e->rows.rows_per_epoch + comm_size(e->comm) - 1) / comm_size(e->comm);
    rows = rows < share ? rows : share;
    return rows > 0 ? rows : 1;
}

static int evaluate(struct evaluation *e, struct error *err)
{
    const struct eval_arguments *a = e->a;
    double start = clock_seconds();
    if (open_data(e, err) != 0)
        return -1;
    struct engine_options options = {.compute = a->options.compute,
                                     .micro_batch = rows_at_once(e),
                                     .seq_len = a->seq_len,
                                     .stage = 3,
                                     .overlap = true,
                                     .inference = true};
    if (inference_backend(&e->backend, &a->options, e->comm, err) != 0 ||
        engine_create(&e->engine, a->inference.model, e->comm, e->backend, &options, err) != 0 ||
        batch_create(&e->scratch, options.micro_batch, a->seq_len, err) != 0 ||
        weights_load(e->engine, SHARD_MASTER, &a->inference.weights, err) != 0 ||
        step_evaluate(e->engine, &e->rows, &e->scratch, &e->loss_sum, &e->targets, &e->stopped, err) != 0)
        return -1;
    e->seconds = clock_seconds() - start;
    if (!e->stopped && !isfinite(e->loss_sum))
        return error_set(
            err, ERROR_RUN, a->model,
            "its weights hold values that are not finite, or numbers overflow on the way: look at the "
            "weights, and try fp32 if this was another type",
            "the loss is %f", e->loss_sum);
    return 0;
}

static void put_json(const struct evaluation *e, struct strbuf *out)
{
    double loss = e->loss_sum / (double)e->targets;
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_double(&w, "loss", loss);
    json_write_double(&w, "perplexity", exp(loss));
    json_write_int(&w, "tokens", e->targets);
    json_write_double(&w, "loss_sum", e->loss_sum);
    json_write_int(&w, "input_tokens", e->rows.tokens_per_epoch);
    json_write_int(&w, "documents", e->cache.documents);
    json_write_int(&w, "dropped_documents", data_summary_dropped(&e->cache.summary));
    json_write_int(&w, "truncated_documents", e->rows.truncated_documents);
    json_write_int(&w, "truncated_tokens", e->rows.truncated_tokens);
    json_write_int(&w, "rows", e->rows.rows_per_epoch);
    json_write_int(&w, "seq_len", e->a->seq_len);
    json_write_double(&w, "seconds", e->seconds);
    json_write_end(&w);
}

static void put_text(const struct evaluation *e, struct strbuf *out)
{
    char number[32], other[32], time[32];
    double loss = e->loss_sum / (double)e->targets;
    cli_put_field(out, "loss", "%.6f", loss);
    cli_put_field(out, "perplexity", "%.6g", exp(loss));
    cli_put_field(out, "tokens", "%s, of %s in %s", format_count(e->targets, number),
                  format_count(e->rows.tokens_per_epoch, other), format_duration(e->seconds, time));
    cli_put_field(out, "documents", "%s", format_count(e->cache.documents, number));
    if (data_summary_dropped(&e->cache.summary) > 0)
        cli_put_field(out, "dropped", "%s documents",
                      format_count(data_summary_dropped(&e->cache.summary), number));
    if (e->rows.truncated_documents > 0)
        cli_put_field(out, "truncated", "%s documents, by %s tokens",
                      format_count(e->rows.truncated_documents, number),
                      format_count(e->rows.truncated_tokens, other));
    cli_put_field(out, "rows", "%s of %" PRId64 " positions", format_count(e->rows.rows_per_epoch, number),
                  e->a->seq_len);
}

/* The signal that asked for the end, the same on all ranks. */
static int agree_on_signal(const struct evaluation *e, int *status, struct error *err)
{
    int64_t signal = comm_stop_signal(e->comm);
    if (comm_max_i64(e->comm, &signal, 1, err) != 0)
        return -1;
    *status = signal ? 128 + (int)signal : 0;
    return 0;
}

static int finish(const struct evaluation *e, int *status, struct error *err)
{
    if (e->stopped)
        return agree_on_signal(e, status, err);
    if (comm_rank(e->comm) != 0)
        return 0;
    cli_warn_drops(e->a->cli, &e->cache.summary);
    struct strbuf text = {0};
    if (e->a->json)
        put_json(e, &text);
    else
        put_text(e, &text);
    return cli_put(&text, err) != 0 ? -1 : cli_flush(err);
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct evaluation *e = calloc(1, sizeof *e);
    if (!e) {
        error_memory(err, sizeof *e, "an evaluation");
        return ERROR_RUN;
    }
    int status = 0;
    e->a = context;
    e->comm = comm;
    if (evaluate(e, err) != 0 || finish(e, &status, err) != 0)
        status = (int)err->kind;
    remove_root(e, NULL);
    batch_free(&e->scratch);
    engine_free(e->engine);
    backend_destroy(e->backend);
    row_plan_free(&e->rows);
    token_cache_close(&e->cache);
    free(e);
    return status;
}

static int run(struct eval_arguments *a)
{
    struct error err = {0};
    int status = 0;
    if (prepare(a, &err) == 0)
        status = comm_run(a->ranks, COMM_AUTO, &a->cli->log, body, a, &err);
    else if (comm_launcher_rank() != 0) { /* all processes see the same mistake: one tells */
        status = (int)err.kind;
        err.kind = ERROR_NONE;
    }
    if (err.kind != ERROR_NONE)
        status = cli_fail(a->cli, &err);
    inference_close(&a->inference);
    tokenizer_free(a->tokenizer);
    return status;
}

int cmd_eval(int argc, char **argv, struct cli *cli)
{
    struct eval_arguments a = {.cli = cli};
    a.files = calloc((size_t)argc + 1, sizeof *a.files);
    if (!a.files) {
        struct error err;
        error_memory(&err, (size_t)argc * sizeof *a.files, "the command line");
        return cli_fail(cli, &err);
    }
    int status = cli_parse(cli, &eval_argp, argc, argv, &a);
    if (status == 0)
        status = run(&a);
    free(a.files);
    return status;
}
