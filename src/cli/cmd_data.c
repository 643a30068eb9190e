/* tercet data: what a data set holds. The text goes through the token cache and the row plan of training, in
 * a temporary directory, so what is shown is what training would see. */
#include "cli/cli.h"

#include "base/file.h"
#include "comm/signals.h"
#include "config/runfile.h"
#include "data/encoder.h"
#include "data/order.h"
#include "formats/json.h"
#include "models/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { OPTION_TOKENIZER = CLI_OWN, OPTION_TEXT, OPTION_SEQ_LEN, OPTION_NO_PACK, OPTION_NO_EOS, BUCKETS = 64 };

struct data_arguments {
    const char **items; /* [count]: files, or a run file and its overrides */
    int64_t count;
    const char *tokenizer, *field;
    int64_t seq_len; /* 0: not given */
    bool no_pack, no_eos, json;
};

/* What is to be looked at, from the run file or from the options. */
struct data_request {
    const char *const *files; /* [file_count] */
    int64_t file_count;
    const char *const *eval_files;
    int64_t eval_count;
    const char *tokenizer_path, *model_path; /* model_path NULL: none */
    const char *field;
    enum run_add_bos add_bos;
    bool add_eos, need_eos, special_in_text, pack, bad_lines_fail;
    int64_t seq_len, global_batch; /* 0: not known */
};

/* Document lengths in tokens; bucket b > 0 holds 2^(b-1)+1 … 2^b, bucket 0 a single token. */
struct data_report {
    struct data_summary summary;
    int64_t shortest, longest, max_id;
    char longest_place[512], truncated_place[512];
    int64_t buckets[BUCKETS];
    bool rows_known;
    int64_t rows, steps, targets, truncated_documents, truncated_tokens;
};

struct data_work {
    struct cli *cli;
    const struct data_request *request;
    struct tokenizer *tokenizer;
    int64_t bos, eos; /* added to each document; -1: not */
    struct pool *pool;
    struct text_encoder *encoder;
    struct signals signals;
    char *directory; /* temporary */
};

/* ---- arguments ---- */

static bool names_text(const char *path)
{
    static const char *const endings[] = {".jsonl", ".ndjson", ".txt", ".gz", ".zst", ".xz"};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (n > strlen(endings[i]) && strcasecmp(path + n - strlen(endings[i]), endings[i]) == 0)
            return true;
    return false;
}

static error_t parse_data(int key, char *value, struct argp_state *state)
{
    struct data_arguments *a = state->input;
    switch (key) {
    case OPTION_TOKENIZER:
        a->tokenizer = value;
        return 0;
    case OPTION_TEXT:
        a->field = value;
        return 0;
    case OPTION_SEQ_LEN:
        a->seq_len = cli_parse_int(state, "--seq-len", value, 1, INT32_MAX);
        return 0;
    case OPTION_NO_PACK:
        a->no_pack = true;
        return 0;
    case OPTION_NO_EOS:
        a->no_eos = true;
        return 0;
    case CLI_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        a->items[a->count++] = value; /* there is room for all of argv */
        return 0;
    case ARGP_KEY_END:
        if (a->count == 0)
            argp_error(state, "which data? Give a run file, or text files and --tokenizer");
        if (!a->tokenizer && a->count > 0 && names_text(a->items[0]))
            argp_error(state, "\"%s\" is text: give its tokenizer too, with --tokenizer", a->items[0]);
        if (!a->tokenizer && (a->field || a->seq_len || a->no_pack || a->no_eos))
            argp_error(
                state,
                "--text, --seq-len, --no-pack and --no-eos belong to text files and --tokenizer; with a "
                "run file write key=value, as in data.seq_len=512");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option data_options[] = {
    {"tokenizer", OPTION_TOKENIZER, "DIR_OR_JSON", 0,
     "Tokenizer for text files: a model directory or a tokenizer.json", 0},
    {"text", OPTION_TEXT, "FIELD", 0, "JSON field that holds the text (text)", 0},
    {"seq-len", OPTION_SEQ_LEN, "N", 0, "Positions of a row: shows how many rows there are", 0},
    {"no-pack", OPTION_NO_PACK, NULL, 0, "One document a row: shows what is cut off at --seq-len", 0},
    {"no-eos", OPTION_NO_EOS, NULL, 0, "Do not count an EOS behind each document", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
    {0}};
static const struct argp data_argp = {
    data_options,
    parse_data,
    "RUN.yaml [key=value...]\nFILE... --tokenizer DIR_OR_JSON",
    "Example:\n  tercet data run.yaml\n  tercet data text.jsonl --tokenizer models/llama --seq-len 512\n\n"
    "Shows what a data set holds: documents, tokens, their lengths, and what is dropped or truncated, with "
    "the reason "
    "and the first place. Lines that cannot be used are counted, whatever data.bad_lines says.",
    NULL,
    NULL,
    NULL};

static void request_from_run(struct data_request *r, const struct run_config *run)
{
    *r = (struct data_request){.files = (const char *const *)run->data.train.items,
                               .file_count = run->data.train.count,
                               .eval_files = (const char *const *)run->data.eval.items,
                               .eval_count = run->data.eval.count,
                               .tokenizer_path = run->tokenizer ? run->tokenizer : run->model.from,
                               .model_path = run->model.from,
                               .field = run->data.text,
                               .add_bos = run->data.add_bos,
                               .add_eos = run->data.add_eos,
                               .need_eos = true,
                               .special_in_text = run->data.special_in_text,
                               .pack = run->data.pack,
                               .bad_lines_fail = run->data.bad_lines == DATA_BAD_LINES_ERROR,
                               .seq_len = run->data.seq_len,
                               .global_batch = run->train.global_batch};
}

static void request_from_files(struct data_request *r, const struct data_arguments *a)
{
    *r = (struct data_request){.files = a->items,
                               .file_count = a->count,
                               .tokenizer_path = a->tokenizer,
                               .field = a->field ? a->field : "text",
                               .add_bos = RUN_ADD_BOS_AUTO,
                               .add_eos = !a->no_eos,
                               .pack = !a->no_pack,
                               .seq_len = a->seq_len};
}

/* ---- work ---- */

/* As training decides: the tokenizer's BOS and EOS, else those of the model's config.json. */
static int choose_special_tokens(struct data_work *w, struct error *err)
{
    const struct data_request *r = w->request;
    w->bos = tokenizer_bos(w->tokenizer);
    w->eos = tokenizer_eos(w->tokenizer);
    if (r->model_path && (w->bos < 0 || w->eos < 0)) {
        struct model *model;
        if (model_load_config(&model, r->model_path, NULL, err) != 0)
            return -1;
        if (w->bos < 0)
            w->bos = model->config.bos;
        if (w->eos < 0 && model->config.eos_count > 0)
            w->eos = model->config.eos[0];
        model_free(model);
    }
    bool add_bos = r->add_bos == RUN_ADD_BOS_TRUE ||
                   (r->add_bos == RUN_ADD_BOS_AUTO && tokenizer_adds_bos(w->tokenizer));
    if (add_bos && w->bos < 0)
        return error_set(
            err, ERROR_INPUT, r->tokenizer_path,
            "name a bos_token in tokenizer_config.json, or set data.add_bos: false",
            "documents are to begin with BOS, but neither the tokenizer nor config.json names one");
    if (r->add_eos && r->need_eos && w->eos < 0)
        return error_set(err, ERROR_INPUT, r->tokenizer_path,
                         "name an eos_token in tokenizer_config.json, or set data.add_eos: false",
                         "documents are to end in EOS, but neither the tokenizer nor config.json names one");
    if (!add_bos)
        w->bos = -1;
    if (!r->add_eos)
        w->eos = -1;
    return 0;
}

static int make_directory(struct data_work *w, struct error *err)
{
    const char *place = getenv("TMPDIR");
    w->directory = file_join(place && place[0] ? place : "/var/tmp", "tercet-data-XXXXXX");
    if (!w->directory)
        return error_memory(err, 64, "a path");
    if (mkdtemp(w->directory))
        return 0;
    error_errno(err, errno, w->directory, "make a temporary directory");
    free(w->directory);
    w->directory = NULL;
    return -1;
}

static bool stop_asked(void *context)
{
    return signals_poll(context) != 0;
}

static int open_cache(struct data_work *w, const char *const *files, int64_t count, struct token_cache *cache,
                      struct error *err)
{
    const struct data_request *r = w->request;
    struct token_cache_options options = {.files = files,
                                          .file_count = count,
                                          .root = w->directory,
                                          .field = r->field,
                                          .bad_lines = DATA_BAD_LINES_SKIP,
                                          .encode = text_encoder_encode,
                                          .encode_context = w->encoder,
                                          .tokenizer_hash = tokenizer_hash(w->tokenizer),
                                          .special_in_text = r->special_in_text,
                                          .bos_id = w->bos,
                                          .eos_id = w->eos,
                                          .tokenizer_name = r->tokenizer_path,
                                          .stopped = stop_asked,
                                          .stopped_context = &w->signals};
    char *path = NULL;
    int status = token_cache_build(&options, w->pool, &w->cli->log, &path, err);
    if (status == 0)
        status = token_cache_open(path, cache, err);
    free(path);
    return status;
}

static void put_place(const struct token_cache *cache, int64_t document, char out[512])
{
    const char *path;
    int64_t line;
    token_cache_place(cache, document, &path, &line);
    if (line > 0)
        snprintf(out, 512, "%.480s:%" PRId64, path, line);
    else
        snprintf(out, 512, "%s", path);
}

static void measure_lengths(const struct token_cache *cache, struct data_report *report)
{
    int64_t longest = -1;
    for (int64_t i = 0; i < cache->documents; i++) {
        int64_t length;
        int bucket = 0;
        token_cache_document(cache, i, &length);
        while (bucket < BUCKETS - 2 && length > (int64_t)1 << bucket)
            bucket++;
        report->buckets[bucket]++;
        if (i == 0 || length < report->shortest)
            report->shortest = length;
        if (length > report->longest) {
            report->longest = length;
            longest = i;
        }
    }
    if (longest >= 0)
        put_place(cache, longest, report->longest_place);
}

static int measure_rows(const struct data_request *r, const struct token_cache *cache,
                        struct data_report *report, struct error *err)
{
    struct row_plan plan;
    struct row_options options = {
        .seq_len = r->seq_len, .pack = r->pack, .global_batch = r->global_batch > 0 ? r->global_batch : 1};
    if (row_plan_create(&plan, cache, &options, err) != 0)
        return -1;
    report->rows_known = true;
    report->rows = plan.rows_per_epoch;
    report->steps = plan.steps_per_epoch;
    report->targets = plan.targets_per_epoch;
    report->truncated_documents = plan.truncated_documents;
    report->truncated_tokens = plan.truncated_tokens;
    if (plan.first_truncated >= 0)
        put_place(cache, plan.first_truncated, report->truncated_place);
    row_plan_free(&plan);
    return 0;
}

static int measure(struct data_work *w, const char *const *files, int64_t count, struct data_report *report,
                   struct error *err)
{
    struct token_cache cache = {0};
    if (open_cache(w, files, count, &cache, err) != 0)
        return -1;
    report->summary = cache.summary;
    report->max_id = cache.max_id;
    measure_lengths(&cache, report);
    int status = w->request->seq_len > 0 ? measure_rows(w->request, &cache, report, err) : 0;
    token_cache_close(&cache);
    return status;
}

static int measure_all(struct data_work *w, struct data_report reports[2], struct error *err)
{
    const struct data_request *r = w->request;
    if (tokenizer_load(r->tokenizer_path, &w->tokenizer, err) != 0 || choose_special_tokens(w, err) != 0 ||
        pool_create(&w->pool, pool_cpus(), false, 0, NULL, err) != 0 ||
        text_encoder_create(&w->encoder, w->tokenizer, pool_threads(w->pool), err) != 0 ||
        make_directory(w, err) != 0 || measure(w, r->files, r->file_count, &reports[0], err) != 0)
        return -1;
    return r->eval_count > 0 ? measure(w, r->eval_files, r->eval_count, &reports[1], err) : 0;
}

/* ---- report ---- */

static void put_drops(struct strbuf *out, const struct data_request *r, const struct data_summary *s)
{
    char number[32];
    cli_put_field(out, "dropped", "%s", format_count(data_summary_dropped(s), number));
    for (int i = 0; i < DATA_REASONS; i++)
        if (s->dropped[i].count > 0) {
            strbuf_printf(out, "  %12s  %s; the first is ", format_count(s->dropped[i].count, number),
                          data_reason_text((enum data_reason)i));
            cli_put_text(out, s->dropped[i].first);
            strbuf_puts(out, "\n");
        }
    if (data_summary_dropped(s) > 0 && r->bad_lines_fail)
        strbuf_puts(out, "                Training will refuse them, unless data.bad_lines is skip.\n");
}

static void put_histogram(struct strbuf *out, const struct data_report *report)
{
    char from[32], to[32], number[32];
    strbuf_puts(out, "\n    tokens of a document     documents   share\n");
    for (int b = 0; b < BUCKETS - 1; b++) {
        if (report->buckets[b] == 0)
            continue;
        double share = 100.0 * (double)report->buckets[b] / (double)report->summary.documents;
        format_count(b > 0 ? ((int64_t)1 << (b - 1)) + 1 : 1, from);
        strbuf_printf(out, "%11s – %-11s %12s  %5.1f%%\n", from, format_count((int64_t)1 << b, to),
                      format_count(report->buckets[b], number), share);
    }
}

static void put_report(struct strbuf *out, const struct data_work *w, const struct data_report *report)
{
    const struct data_request *r = w->request;
    const struct data_summary *s = &report->summary;
    char number[32], other[32];
    cli_put_field(out, "files", "%s", format_count(s->files, number));
    cli_put_field(out, "documents", "%s", format_count(s->documents, number));
    cli_put_field(out, "text", "%s", format_bytes(s->text_bytes, number));
    cli_put_field(out, "tokens", "%s (%s BOS, %s EOS; %.2f bytes of text a token)",
                  format_count(s->tokens, number), w->bos >= 0 ? "with" : "without",
                  w->eos >= 0 ? "with" : "without", (double)s->text_bytes / (double)s->tokens);
    cli_put_field(out, "highest id", "%" PRId64, report->max_id);
    cli_put_field(out, "shortest", "%s tokens", format_count(report->shortest, number));
    cli_put_field(out, "mean", "%.1f tokens", (double)s->tokens / (double)s->documents);
    cli_put_field(out, "longest", "%s tokens: %s", format_count(report->longest, number),
                  report->longest_place);
    cli_put_field(out, "blank lines", "%s", format_count(s->blank_lines, number));
    put_drops(out, r, s);
    if (report->rows_known) {
        if (r->pack)
            cli_put_field(out, "truncated", "0 (packed: documents go on in the next row)");
        else if (report->truncated_documents == 0)
            cli_put_field(out, "truncated", "0");
        else
            cli_put_field(out, "truncated", "%s documents lose %s tokens; the first is %s",
                          format_count(report->truncated_documents, number),
                          format_count(report->truncated_tokens, other), report->truncated_place);
        cli_put_field(out, "rows", "%s of %" PRId64 " positions", format_count(report->rows, number),
                      r->seq_len);
        cli_put_field(out, "targets", "%s", format_count(report->targets, number));
        if (r->global_batch > 0)
            cli_put_field(out, "steps an epoch", "%s of %" PRId64 " rows",
                          format_count(report->steps, number), r->global_batch);
    }
    put_histogram(out, report);
}

static void write_drops(struct json_writer *j, const struct data_summary *s)
{
    json_write_object(j, "dropped");
    json_write_int(j, "documents", data_summary_dropped(s));
    json_write_array(j, "reasons");
    for (int i = 0; i < DATA_REASONS; i++) {
        if (s->dropped[i].count == 0)
            continue;
        json_write_object(j, NULL);
        json_write_string(j, "reason", data_reason_name((enum data_reason)i));
        json_write_int(j, "documents", s->dropped[i].count);
        json_write_string(j, "first", s->dropped[i].first);
        json_write_end(j);
    }
    json_write_end(j);
    json_write_end(j);
}

static void write_rows(struct json_writer *j, const struct data_request *r, const struct data_report *report)
{
    json_write_object(j, "truncated");
    json_write_int(j, "documents", report->truncated_documents);
    json_write_int(j, "tokens", report->truncated_tokens);
    json_write_string(j, "first", report->truncated_place[0] ? report->truncated_place : NULL);
    json_write_end(j);
    json_write_int(j, "seq_len", r->seq_len);
    json_write_bool(j, "pack", r->pack);
    json_write_int(j, "rows", report->rows);
    json_write_int(j, "targets", report->targets);
    if (r->global_batch > 0)
        json_write_int(j, "steps_per_epoch", report->steps);
}

/* The members of one set's object. */
static void write_report(struct json_writer *j, const struct data_work *w, const struct data_report *report)
{
    const struct data_summary *s = &report->summary;
    json_write_int(j, "files", s->files);
    json_write_int(j, "documents", s->documents);
    json_write_int(j, "text_bytes", s->text_bytes);
    json_write_int(j, "tokens", s->tokens);
    json_write_bool(j, "bos", w->bos >= 0);
    json_write_bool(j, "eos", w->eos >= 0);
    json_write_int(j, "highest_id", report->max_id);
    json_write_int(j, "shortest", report->shortest);
    json_write_int(j, "longest", report->longest);
    json_write_string(j, "longest_place", report->longest_place);
    json_write_int(j, "blank_lines", s->blank_lines);
    write_drops(j, s);
    if (report->rows_known)
        write_rows(j, w->request, report);
    json_write_array(j, "histogram");
    for (int b = 0; b < BUCKETS - 1; b++) {
        if (report->buckets[b] == 0)
            continue;
        json_write_object(j, NULL);
        json_write_int(j, "from", b > 0 ? ((int64_t)1 << (b - 1)) + 1 : 1);
        json_write_int(j, "to", (int64_t)1 << b);
        json_write_int(j, "documents", report->buckets[b]);
        json_write_end(j);
    }
    json_write_end(j);
}

static void put_reports(struct strbuf *out, const struct data_work *w, const struct data_report reports[2],
                        bool json)
{
    bool eval = w->request->eval_count > 0;
    if (json) {
        struct json_writer j;
        json_writer_start(&j, out, 0);
        json_write_object(&j, NULL);
        write_report(&j, w, &reports[0]);
        if (eval) {
            json_write_object(&j, "eval");
            write_report(&j, w, &reports[1]);
            json_write_end(&j);
        }
        json_write_end(&j);
        return;
    }
    if (eval)
        strbuf_puts(out, "data.train\n\n");
    put_report(out, w, &reports[0]);
    if (eval) {
        strbuf_puts(out, "\ndata.eval\n\n");
        put_report(out, w, &reports[1]);
    }
}

/* ---- */

static int run_request(struct cli *cli, const struct data_request *request, bool json)
{
    struct data_work w = {.cli = cli, .request = request};
    struct data_report reports[2] = {0};
    struct error err = {0}, cleaning = {0};
    struct strbuf text = {0};
    signals_block(&w.signals, false, true);
    int status = measure_all(&w, reports, &err);
    text_encoder_free(w.encoder);
    pool_free(w.pool);
    if (w.directory && file_remove_tree(w.directory, &cleaning) != 0)
        log_warning(&cli->log, "%s: %s", cleaning.where, cleaning.what);
    int stopped = signals_poll(&w.signals);
    signals_restore(&w.signals);
    if (stopped != 0) {
        log_info(&cli->log, "stopped by signal %d (%s)", stopped, strsignal(stopped));
        status = 128 + stopped;
    } else if (status != 0)
        status = cli_fail(cli, &err);
    else {
        put_reports(&text, &w, reports, json);
        status = cli_print(cli, &text);
    }
    tokenizer_free(w.tokenizer);
    free(w.directory);
    return status;
}

static int run_arguments(struct cli *cli, const struct data_arguments *a)
{
    struct data_request request;
    if (a->tokenizer) {
        request_from_files(&request, a);
        return run_request(cli, &request, a->json);
    }
    struct run_config run;
    struct error_list errors = {0};
    int status;
    if (run_config_load(a->items[0], a->items + 1, a->count - 1, &run, &errors) != 0)
        status = cli_fail_list(cli, &errors);
    else {
        request_from_run(&request, &run);
        status = run_request(cli, &request, a->json);
        run_config_free(&run);
    }
    error_list_free(&errors);
    return status;
}

int cmd_data(int argc, char **argv, struct cli *cli)
{
    struct data_arguments a = {0};
    a.items = calloc((size_t)argc, sizeof *a.items);
    if (!a.items) {
        struct error err;
        error_memory(&err, (size_t)argc * sizeof *a.items, "the command line");
        return cli_fail(cli, &err);
    }
    int status = cli_parse(cli, &data_argp, argc, argv, &a);
    if (status == 0)
        status = run_arguments(cli, &a);
    free(a.items);
    return status;
}
