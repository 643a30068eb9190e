/* tercet tokenizer: text to ids and back. Training stands in cmd_tokenizer_train.c. */
#include "cli/cli.h"

#include "cli/dispatch.h"
#include "cli/tokenizer_train.h"
#include "formats/json.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What tokenizer_encode takes at most. */
#define TEXT_LIMIT ((size_t)1 << 31)

enum { OPTION_SPECIAL = CLI_OWN, OPTION_LITERAL, OPTION_SKIP_SPECIAL, OPTION_JSONL };

/* encode and decode, from their arguments to the end of their work. */
struct convert {
    struct cli *cli;
    const char *tokenizer_path, *input; /* NULL: standard input */
    bool special, literal, skip_special, json, jsonl;

    struct tokenizer *tokenizer;
    struct tokenizer_scratch *scratch;
    struct token_buffer ids;
    struct strbuf text;
    int64_t unknown_ids, first_unknown;
    FILE *stream;
    const char *name; /* of the stream, in messages */
};

static error_t parse_convert(int key, char *value, struct argp_state *state)
{
    struct convert *c = state->input;
    switch (key) {
    case OPTION_SPECIAL:
        c->special = true;
        return 0;
    case OPTION_LITERAL:
        c->literal = true;
        return 0;
    case OPTION_SKIP_SPECIAL:
        c->skip_special = true;
        return 0;
    case OPTION_JSONL:
        c->jsonl = true;
        return 0;
    case CLI_JSON:
        c->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            c->tokenizer_path = value;
        else if (state->arg_num == 1)
            c->input = strcmp(value, "-") == 0 ? NULL : value;
        else
            argp_error(state, "one file at a time; \"%s\" is too many", value);
        return 0;
    case ARGP_KEY_END:
        if (!c->tokenizer_path)
            argp_error(state, "which tokenizer? Give a model directory or a tokenizer.json");
        if (c->json && c->jsonl)
            argp_error(state, "--json gives one object, --jsonl a line for each line: choose one");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option encode_options[] = {
    {"special", OPTION_SPECIAL, NULL, 0,
     "Add what tokenizer.json's post-processor puts around a text, as Hugging Face tokenizers does", 0},
    {"no-special-in-text", OPTION_LITERAL, NULL, 0,
     "Take the text of a special token, as in \"<|endoftext|>\", as ordinary text", 0},
    {"jsonl", OPTION_JSONL, NULL, 0,
     "Each line of the input is a JSON string, each line of the output an array of ids", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object: ids, the tokens' texts, their number", 0},
    {0}};
static const struct argp encode_argp = {
    encode_options,
    parse_convert,
    "DIR_OR_JSON [FILE|-]",
    "Example:\n  echo -n 'Hello, world' | tercet tokenizer encode models/llama\n\n"
    "Turns text into token ids, as Hugging Face's tokenizers does. The text is FILE or standard input, every "
    "byte of "
    "it: a newline at the end is text, too.",
    NULL,
    NULL,
    NULL};

static const struct argp_option decode_options[] = {
    {"skip-special", OPTION_SKIP_SPECIAL, NULL, 0, "Leave special tokens out of the text", 0},
    {"jsonl", OPTION_JSONL, NULL, 0,
     "Each line of the input is an array of ids, each line of the output a JSON string", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object: text, the number of ids", 0},
    {0}};
static const struct argp decode_argp = {
    decode_options,
    parse_convert,
    "DIR_OR_JSON [FILE|-]",
    "Example:\n  echo 15496 11 995 | tercet tokenizer decode models/gpt2\n\n"
    "Turns token ids into text. The input is FILE or standard input: whole numbers with spaces, commas or "
    "line ends "
    "between them, also in brackets. The text comes as it is, without a newline at its end.",
    NULL,
    NULL,
    NULL};

static int open_input(struct convert *c, struct error *err)
{
    c->name = c->input ? c->input : "standard input";
    c->stream = c->input ? fopen(c->input, "rb") : stdin;
    if (c->stream)
        return 0;
    error_fill_errno(err, errno, c->name, "open the file");
    err->kind = ERROR_INPUT;
    return -1;
}

static int read_failed(const struct convert *c, struct error *err)
{
    error_fill_errno(err, errno, c->name, "read");
    err->kind = ERROR_INPUT;
    return -1;
}

/* The whole input to c->text. */
static int read_text(struct convert *c, struct error *err)
{
    char block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, c->stream)) > 0) {
        strbuf_append(&c->text, block, n);
        if (c->text.failed)
            return error_memory(err, c->text.length + n, "the text");
        if (c->text.length > TEXT_LIMIT)
            return error_set(err, ERROR_INPUT, c->name, "cut it in parts", "the text is longer than 2 GiB");
    }
    return ferror(c->stream) ? read_failed(c, err) : 0;
}

static int encode_text(struct convert *c, const char *text, size_t length, struct error *err)
{
    unsigned flags = (c->special ? ENCODE_TEMPLATE_ADDED : 0u) | (c->literal ? 0u : ENCODE_SPECIAL_IN_TEXT);
    c->ids.count = 0;
    return tokenizer_encode(c->tokenizer, c->scratch, text ? text : "", length, flags, &c->ids, err);
}

static void decode_ids(struct convert *c, struct strbuf *out)
{
    for (int64_t i = 0; i < c->ids.count; i++)
        if (!tokenizer_token_text(c->tokenizer, c->ids.ids[i], NULL) && c->unknown_ids++ == 0)
            c->first_unknown = c->ids.ids[i];
    tokenizer_decode(c->tokenizer, c->ids.ids, c->ids.count, c->skip_special, out);
}

static int add_id(struct convert *c, int64_t id, struct error *err)
{
    if (token_buffer_reserve(&c->ids, 1, err) != 0)
        return -1;
    c->ids.ids[c->ids.count++] = (uint32_t)id;
    return 0;
}

/* ---- one text ---- */

static int encode_whole(struct convert *c, struct strbuf *out, struct error *err)
{
    if (encode_text(c, c->text.data, c->text.length, err) != 0)
        return -1;
    if (!c->json) {
        for (int64_t i = 0; i < c->ids.count; i++)
            strbuf_printf(out, i > 0 ? " %" PRIu32 : "%" PRIu32, c->ids.ids[i]);
        strbuf_puts(out, "\n");
        return 0;
    }
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_array(&w, "ids");
    for (int64_t i = 0; i < c->ids.count; i++)
        json_write_uint(&w, NULL, c->ids.ids[i]);
    json_write_end(&w);
    json_write_array(&w, "tokens");
    for (int64_t i = 0; i < c->ids.count; i++) {
        size_t n = 0;
        const char *token = tokenizer_token_text(c->tokenizer, c->ids.ids[i], &n);
        json_write_string_n(&w, NULL, token ? token : "", n);
    }
    json_write_end(&w);
    json_write_int(&w, "count", c->ids.count);
    json_write_end(&w);
    return 0;
}

/* The ids of a text like "1 2 3" or "[1, 2, 3]". */
static int parse_ids(struct convert *c, struct error *err)
{
    const char *text = c->text.data ? c->text.data : "", *end = text + c->text.length;
    c->ids.count = 0;
    while (text < end) {
        if (memchr(" \t\r\n,[]", *text, 8)) {
            text++;
            continue;
        }
        uint64_t id = 0;
        const char *start = text;
        while (text < end && *text >= '0' && *text <= '9' && id <= UINT32_MAX)
            id = 10 * id + (uint64_t)(*text++ - '0');
        if (text == start || id > UINT32_MAX || (text < end && !memchr(" \t\r\n,[]", *text, 8)))
            return error_set(err, ERROR_INPUT, c->name,
                             "give whole numbers with spaces or commas between them",
                             "expected a token id at byte %lld", (long long)(start - c->text.data));
        if (add_id(c, (int64_t)id, err) != 0)
            return -1;
    }
    return 0;
}

static int decode_whole(struct convert *c, struct strbuf *out, struct error *err)
{
    if (parse_ids(c, err) != 0)
        return -1;
    struct strbuf text = {0};
    decode_ids(c, &text);
    if (c->json) {
        struct json_writer w;
        json_writer_start(&w, out, 0);
        json_write_object(&w, NULL);
        json_write_string_n(&w, "text", text.data ? text.data : "", text.length);
        json_write_int(&w, "count", c->ids.count);
        json_write_end(&w);
    } else {
        strbuf_append(out, text.data, text.length);
        if (isatty(STDOUT_FILENO)) /* the shell's prompt would follow on the same line */
            strbuf_puts(out, "\n");
    }
    if (text.failed)
        out->failed = 1;
    strbuf_free(&text);
    return 0;
}

/* ---- a line at a time ---- */

static int encode_line(struct convert *c, const json_t *value, struct strbuf *out, const char *place,
                       struct error *err)
{
    if (!json_is_string(value))
        return error_set(err, ERROR_INPUT, place, "write each text as a JSON string",
                         "expected a JSON string, found %s", json_kind_name(value));
    if (encode_text(c, json_string_value(value), json_string_length(value), err) != 0)
        return -1;
    strbuf_puts(out, "[");
    for (int64_t i = 0; i < c->ids.count; i++)
        strbuf_printf(out, i > 0 ? ", %" PRIu32 : "%" PRIu32, c->ids.ids[i]);
    strbuf_puts(out, "]\n");
    return 0;
}

static int decode_line(struct convert *c, const json_t *value, struct strbuf *out, const char *place,
                       struct error *err)
{
    if (!json_is_array(value))
        return error_set(err, ERROR_INPUT, place, "write each list of ids as in [1, 2, 3]",
                         "expected a JSON array of token ids, found %s", json_kind_name(value));
    c->ids.count = 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
            return error_set(err, ERROR_INPUT, place, "token ids are whole numbers from 0",
                             "element %zu of the array is no token id", i);
        if (add_id(c, json_integer_value(id), err) != 0)
            return -1;
    }
    c->text.length = 0;
    decode_ids(c, &c->text);
    if (c->text.failed)
        return error_memory(err, c->text.length, "a text");
    json_quote(out, c->text.data ? c->text.data : "", c->text.length);
    strbuf_puts(out, "\n");
    return 0;
}

typedef int line_fn(struct convert *c, const json_t *value, struct strbuf *out, const char *place,
                    struct error *err);

static int convert_line(struct convert *c, line_fn *convert, int64_t number, const char *line, size_t length,
                        struct strbuf *out, struct error *err)
{
    char place[512];
    json_t *value;
    snprintf(place, sizeof place, "%.480s:%lld", c->name, (long long)number);
    if (json_parse(c->name, number, line, length, &value, err) != 0)
        return -1;
    int status = convert(c, value, out, place, err);
    if (status != 0 && err->where[0] == '\0')
        snprintf(err->where, sizeof err->where, "%s", place);
    json_decref(value);
    return status;
}

static int convert_lines(struct convert *c, line_fn *convert, struct error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    struct strbuf out = {0};
    int status = 0;
    for (int64_t number = 1; status == 0 && !cli_output_failed(); number++) {
        errno = 0;
        ssize_t length = getline(&line, &capacity, c->stream);
        if (length < 0) {
            if (!feof(c->stream) || ferror(c->stream))
                status = read_failed(c, err);
            break;
        }
        strbuf_clear(&out);
        status = convert_line(c, convert, number, line, (size_t)length, &out, err);
        if (status == 0 && out.failed)
            status = error_memory(err, out.length, "a line of the result");
        if (status == 0)
            fwrite(out.data, 1, out.length, stdout);
    }
    strbuf_free(&out);
    free(line);
    return status;
}

/* ---- */

static int convert(struct convert *c, bool encode, struct error *err)
{
    if (tokenizer_load(c->tokenizer_path, &c->tokenizer, err) != 0 ||
        tokenizer_scratch_create(c->tokenizer, &c->scratch, err) != 0 || open_input(c, err) != 0)
        return -1;
    if (c->jsonl)
        return convert_lines(c, encode ? encode_line : decode_line, err);
    struct strbuf out = {0};
    int status = read_text(c, err);
    if (status == 0)
        status = encode ? encode_whole(c, &out, err) : decode_whole(c, &out, err);
    if (status != 0 && err->where[0] == '\0')
        snprintf(err->where, sizeof err->where, "%s", c->name);
    if (status == 0 && out.failed)
        status = error_memory(err, out.length, "the result");
    if (status == 0 && out.length > 0) {
        fwrite(out.data, 1, out.length, stdout); /* as it is: cli_print would end it with a newline */
        if (c->json)
            putc('\n', stdout);
    }
    strbuf_free(&out);
    return status;
}

static int run_convert(int argc, char **argv, struct cli *cli, const struct argp *argp, bool encode)
{
    struct convert c = {.cli = cli};
    struct error err = {0};
    int status = cli_parse(cli, argp, argc, argv, &c);
    if (status != 0)
        return status;
    if (convert(&c, encode, &err) != 0)
        status = cli_fail(cli, &err);
    if (c.unknown_ids > 0)
        log_warning(&cli->log, "%lld ids have no token in %s and were left out; the first is %lld",
                    (long long)c.unknown_ids, c.tokenizer_path, (long long)c.first_unknown);
    if (c.stream && c.stream != stdin)
        fclose(c.stream);
    strbuf_free(&c.text);
    token_buffer_free(&c.ids);
    tokenizer_scratch_free(c.scratch);
    tokenizer_free(c.tokenizer);
    return status;
}

static int tokenizer_encode_verb(int argc, char **argv, struct cli *cli)
{
    return run_convert(argc, argv, cli, &encode_argp, true);
}

static int tokenizer_decode_verb(int argc, char **argv, struct cli *cli)
{
    return run_convert(argc, argv, cli, &decode_argp, false);
}

int cmd_tokenizer(int argc, char **argv, struct cli *cli)
{
    static const struct verb verbs[] = {
        {"train", "trains byte-level BPE on text and writes tokenizer.json", tokenizer_train, NULL},
        {"encode", "text to token ids", tokenizer_encode_verb, NULL},
        {"decode", "token ids to text", tokenizer_decode_verb, NULL},
        {NULL, NULL, NULL, NULL}};
    static const struct verb_table table = {
        .program = "tercet tokenizer",
        .example = "tercet tokenizer train text.jsonl --vocab-size 8192 -o my-tokenizer",
        .about = "Trains a tokenizer; turns text into token ids and back.",
        .verbs = verbs};
    return dispatch(&table, argc, argv, cli);
}
