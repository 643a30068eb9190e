/* tercet tokenizer train. */
#include "cli/tokenizer_train.h"

#include "data/reader.h"
#include "formats/json.h"
#include "text/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_VOCAB_SIZE = CLI_OWN, OPTION_TEXT, OPTION_BAD_LINES, OPTION_MIN_FREQUENCY };

struct train_arguments {
    const char **files; /* [file_count] */
    int64_t file_count;
    const char *output, *field;
    enum data_bad_lines bad_lines;
    struct bpe_options bpe;
    bool json;
};

static error_t parse_train(int key, char *value, struct argp_state *state)
{
    struct train_arguments *a = state->input;
    switch (key) {
    case OPTION_VOCAB_SIZE:
        a->bpe.vocab_size = cli_parse_int(state, "--vocab-size", value, 257, 1 << 24);
        return 0;
    case OPTION_MIN_FREQUENCY:
        a->bpe.min_frequency = cli_parse_int(state, "--min-frequency", value, 1, INT64_MAX);
        return 0;
    case 'o':
        a->output = value;
        return 0;
    case OPTION_TEXT:
        a->field = value;
        return 0;
    case OPTION_BAD_LINES:
        if (strcmp(value, "error") != 0 && strcmp(value, "skip") != 0)
            argp_error(state, "--bad-lines: expected error or skip, not \"%s\"", value);
        a->bad_lines = strcmp(value, "skip") == 0 ? DATA_BAD_LINES_SKIP : DATA_BAD_LINES_ERROR;
        return 0;
    case CLI_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        a->files[a->file_count++] = value; /* there is room for all of argv */
        return 0;
    case ARGP_KEY_END:
        if (a->file_count == 0)
            argp_error(state, "which text? Give .jsonl or .txt files");
        if (a->bpe.vocab_size == 0)
            argp_error(state, "how many tokens? Give --vocab-size, as in --vocab-size 8192");
        if (!a->output)
            argp_error(state, "where should the tokenizer go? Give a directory with -o");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option train_options[] = {
    {"vocab-size", OPTION_VOCAB_SIZE, "N", 0, "Tokens in all, <|endoftext|> and the 256 bytes among them", 0},
    {"output", 'o', "DIR", 0, "Directory for tokenizer.json and tokenizer_config.json", 0},
    {"text", OPTION_TEXT, "FIELD", 0, "JSON field that holds the text (text)", 0},
    {"min-frequency", OPTION_MIN_FREQUENCY, "N", 0, "Merge only pairs that occur at least so often (1)", 0},
    {"bad-lines", OPTION_BAD_LINES, "error|skip", 0,
     "What to do about lines that cannot be used (error): skip counts them and shows the reasons", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
    {0}};
static const struct argp train_argp = {
    train_options,
    parse_train,
    "FILE...",
    "Example:\n  tercet tokenizer train text.jsonl --vocab-size 8192 -o my-tokenizer\n\n"
    "Trains byte-level BPE on JSON Lines or .txt files (plain, .gz, .zst or .xz; globs in quotes are "
    "expanded) and "
    "writes what Hugging Face's tokenizers reads.",
    NULL,
    NULL,
    NULL};

static int count_words(struct bpe_trainer *trainer, struct text_reader *reader,
                       const struct train_arguments *a, const struct log *log, struct data_summary *summary,
                       struct error *err)
{
    struct document document;
    int64_t total = text_reader_total_bytes(reader);
    int got;
    while ((got = document_next(reader, a->field, a->bad_lines, summary, &document, err)) == 1) {
        int status = bpe_trainer_add(trainer, document.text, document.size, err);
        if (status != 0 && err->where[0] == '\0')
            snprintf(err->where, sizeof err->where, "%.480s:%lld", document.path, (long long)document.line);
        document_free(&document);
        if (status != 0)
            return -1;
        if (summary->documents % 1024 == 0) {
            char documents[32];
            log_progress(log, false, "counting words: %3d%%, %s documents",
                         total > 0 ? (int)(100.0 * (double)text_reader_bytes(reader) / (double)total) : 100,
                         format_count(summary->documents, documents));
        }
    }
    return got;
}

static void put_report(struct strbuf *out, const struct train_arguments *a,
                       const struct data_summary *summary, const struct bpe_result *result)
{
    char number[32];
    cli_put_field(out, "tokenizer", "%s", a->output);
    cli_put_field(out, "vocabulary", "%s", format_count(result->vocab_size, number));
    cli_put_field(out, "merges", "%s", format_count(result->merges, number));
    cli_put_field(out, "documents", "%s", format_count(summary->documents, number));
    cli_put_field(out, "words", "%s", format_count(result->words, number));
    cli_put_field(out, "distinct words", "%s", format_count(result->distinct_words, number));
}

static void write_report(struct strbuf *out, const struct train_arguments *a,
                         const struct data_summary *summary, const struct bpe_result *result)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "tokenizer", a->output);
    json_write_int(&w, "vocab_size", result->vocab_size);
    json_write_int(&w, "merges", result->merges);
    json_write_int(&w, "documents", summary->documents);
    json_write_int(&w, "words", result->words);
    json_write_int(&w, "distinct_words", result->distinct_words);
    json_write_int(&w, "dropped", data_summary_dropped(summary));
    json_write_end(&w);
}

static void tell_shortfalls(struct cli *cli, const struct train_arguments *a,
                            const struct data_summary *summary, const struct bpe_result *result)
{
    cli_warn_drops(cli, summary);
    if (result->vocab_size < a->bpe.vocab_size)
        log_warning(&cli->log, "the text has no more pairs to merge: %lld tokens instead of %lld",
                    (long long)result->vocab_size, (long long)a->bpe.vocab_size);
}

static int train(struct cli *cli, const struct train_arguments *a, struct data_summary *summary,
                 struct bpe_result *result, struct error *err)
{
    struct text_files files = {0};
    struct text_reader *reader = NULL;
    struct bpe_trainer *trainer = NULL;
    int status = text_files_find(a->files, a->file_count, &files, err);
    if (status == 0)
        status = text_reader_open(&reader, &files, err);
    if (status == 0)
        status = bpe_trainer_create(&trainer, err);
    if (status == 0)
        status = count_words(trainer, reader, a, &cli->log, summary, err);
    if (status == 0)
        status = bpe_trainer_write(trainer, &a->bpe, a->output, result, err);
    bpe_trainer_free(trainer);
    text_reader_close(reader);
    text_files_free(&files);
    return status;
}

int tokenizer_train(int argc, char **argv, struct cli *cli)
{
    struct train_arguments a = {.field = "text", .bpe.log = &cli->log};
    struct data_summary summary = {0};
    struct bpe_result result = {0};
    struct strbuf text = {0};
    struct error err = {0};
    a.files = calloc((size_t)argc, sizeof *a.files);
    if (!a.files) {
        error_memory(&err, (size_t)argc * sizeof *a.files, "the command line");
        return cli_fail(cli, &err);
    }
    int status = cli_parse(cli, &train_argp, argc, argv, &a);
    if (status == 0 && train(cli, &a, &summary, &result, &err) != 0)
        status = cli_fail(cli, &err);
    if (status == 0) {
        tell_shortfalls(cli, &a, &summary, &result);
        (a.json ? write_report : put_report)(&text, &a, &summary, &result);
        status = cli_print(cli, &text);
    }
    free(a.files);
    return status;
}
