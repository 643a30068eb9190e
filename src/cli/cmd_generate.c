/* tercet generate: continues a text, token by token. */
#include "base/clock.h"
#include "cli/inference.h"
#include "formats/json.h"
#include "infer/sampler.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_PROMPT = CLI_OWN,
    OPTION_FILE,
    OPTION_MAX_TOKENS,
    OPTION_TEMPERATURE,
    OPTION_TOP_K,
    OPTION_TOP_P,
    OPTION_SEED,
    OPTION_LITERAL,
    OPTION_CHAT
};
enum { DEFAULT_TOKENS = 256, DEFAULT_SEED = 42 };

/* A prompt that no context holds. */
#define PROMPT_LIMIT ((size_t)256 << 20)

struct generate_arguments {
    const char *model, *prompt, *file;
    bool standard_input, literal, chat, json;
    int64_t max_tokens; /* 0: not given */
    struct sampler_options sampling;
    struct inference_options options;
    struct cli *cli;

    struct strbuf text; /* the prompt */
    struct tokenizer *tokenizer;
    struct token_buffer prompt_ids, output_ids;
    struct inference inference;
    struct sampler sampler;
    float *logits;
    struct tokenizer_stream stream;
    struct strbuf output, piece; /* all text so far, and what the last token added */
    const char *finish;          /* why it ended */
};

static const struct argp_option options_table[] = {
    {"prompt", OPTION_PROMPT, "TEXT", 0, "The text to continue", 1},
    {"prompt-file", OPTION_FILE, "FILE", 0, "Continue the text of FILE, every byte of it", 1},
    {"no-special-in-text", OPTION_LITERAL, NULL, 0,
     "Take the text of a special token, as in \"<|endoftext|>\", as ordinary text", 1},
    {"max-tokens", OPTION_MAX_TOKENS, "N", 0,
     "Stop after N tokens; default: 256, or what the context has room for", 2},
    {"temperature", OPTION_TEMPERATURE, "T", 0,
     "0 (default) takes the likeliest token; 1 draws as the model says, more is more random", 2},
    {"top-k", OPTION_TOP_K, "K", 0, "Draw among the K likeliest tokens; 0 (default): all", 2},
    {"top-p", OPTION_TOP_P, "P", 0,
     "Draw among the fewest tokens that together have probability P; 1 (default): all", 2},
    {"seed", OPTION_SEED, "S", 0, "Of the draws; default: 42", 2},
    {"chat", OPTION_CHAT, NULL, 0, "Not supported in this version", 3},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object at the end: prompt_ids, output_ids, text, finish", 3},
    {0},
};

static error_t parse_sampling(int key, const char *text, struct generate_arguments *a,
                              struct argp_state *state)
{
    switch (key) {
    case OPTION_MAX_TOKENS:
        a->max_tokens = cli_parse_int(state, "--max-tokens", text, 1, INT32_MAX);
        return 0;
    case OPTION_TEMPERATURE:
        a->sampling.temperature = cli_parse_double(state, "--temperature", text, 0, 1e6);
        return 0;
    case OPTION_TOP_K:
        a->sampling.top_k = cli_parse_int(state, "--top-k", text, 0, INT32_MAX);
        return 0;
    case OPTION_TOP_P:
        a->sampling.top_p = cli_parse_double(state, "--top-p", text, 0, 1);
        if (a->sampling.top_p == 0)
            argp_error(state, "--top-p: 0 would leave no token; --temperature 0 takes the likeliest");
        return 0;
    case OPTION_SEED:
        a->sampling.seed = (uint64_t)cli_parse_int(state, "--seed", text, 0, INT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void take_argument(struct generate_arguments *a, const char *text, struct argp_state *state)
{
    if (!a->model)
        a->model = text;
    else if (strcmp(text, "-") == 0)
        a->standard_input = true;
    else
        argp_error(state, "one model at a time; \"%s\" is too many. A prompt is given as --prompt TEXT",
                   text);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct generate_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->options;
        return 0;
    case OPTION_PROMPT:
        a->prompt = text;
        return 0;
    case OPTION_FILE:
        a->file = text;
        return 0;
    case OPTION_LITERAL:
        a->literal = true;
        return 0;
    case OPTION_CHAT:
        a->chat = true;
        return 0;
    case CLI_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        take_argument(a, text, state);
        return 0;
    case ARGP_KEY_END:
        if (!a->model)
            argp_error(state, "which model? Give a model directory");
        if ((a->prompt != NULL) + (a->file != NULL) + a->standard_input > 1)
            argp_error(state, "--prompt, --prompt-file and - are three ways to give one prompt: choose one");
        return 0;
    default:
        return parse_sampling(key, text, a, state);
    }
}

static const struct argp_child children[] = {{&inference_argp, 0, NULL, 3}, {0}};
static const struct argp generate_argp = {
    options_table,
    parse,
    "MODEL [-]",
    "Example:\n  tercet generate models/llama --prompt 'Once upon a time' --temperature 0.8\n\n"
    "Continues a text and prints the continuation as it comes. MODEL is a Hugging Face model directory; - "
    "reads the "
    "prompt from standard input, and without a prompt the text begins from BOS. It ends at EOS or after "
    "--max-tokens."
    "\vSampling is in this order: temperature, top-k, top-p. The same seed gives the same text on the same "
    "machine.",
    children,
    NULL,
    NULL};

/* ---- prompt ---- */

static int read_stream(struct generate_arguments *a, FILE *stream, const char *name, struct error *err)
{
    char block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stream)) > 0) {
        strbuf_append(&a->text, block, n);
        if (a->text.failed)
            return error_memory(err, a->text.length + n, "the prompt");
        if (a->text.length > PROMPT_LIMIT)
            return error_set(err, ERROR_INPUT, name, "give a shorter prompt",
                             "the prompt is longer than 256 MB");
    }
    if (!ferror(stream))
        return 0;
    error_fill_errno(err, errno, name, "read the prompt");
    if (err)
        err->kind = ERROR_INPUT;
    return -1;
}

static int read_prompt(struct generate_arguments *a, struct error *err)
{
    if (a->standard_input)
        return read_stream(a, stdin, "standard input", err);
    if (a->file) {
        char *text;
        size_t n;
        if (file_read(a->file, PROMPT_LIMIT, &text, &n, err) != 0)
            return -1;
        strbuf_append(&a->text, text, n);
        free(text);
    } else if (a->prompt) {
        strbuf_puts(&a->text, a->prompt);
    }
    return a->text.failed ? error_memory(err, a->text.length, "the prompt") : 0;
}

/* As Transformers encodes a prompt, but for an EOS at its end: nothing is to follow that. */
static int encode_prompt(struct generate_arguments *a, struct error *err)
{
    struct tokenizer_scratch *scratch;
    struct token_buffer *ids = &a->prompt_ids;
    const struct model_config *c = &a->inference.model->config;
    unsigned flags = ENCODE_SPECIAL_TOKENS_ADDED | (a->literal ? 0u : ENCODE_SPECIAL_IN_TEXT);
    int64_t bos = tokenizer_bos(a->tokenizer) >= 0 ? tokenizer_bos(a->tokenizer) : c->bos;
    if (tokenizer_scratch_create(a->tokenizer, &scratch, err) != 0)
        return -1;
    int status = tokenizer_encode(a->tokenizer, scratch, a->text.data ? a->text.data : "", a->text.length,
                                  flags, ids, err);
    tokenizer_scratch_free(scratch);
    if (status != 0) {
        if (err && err->where[0] == '\0')
            snprintf(err->where, sizeof err->where, "%s", a->file ? a->file : "the prompt");
        return -1;
    }
    if (tokenizer_adds_eos(a->tokenizer) && ids->count > 0 &&
        ids->ids[ids->count - 1] == tokenizer_eos(a->tokenizer))
        ids->count--;
    if (ids->count > 0)
        return 0;
    if (bos < 0)
        return error_set(err, ERROR_INPUT, "the prompt", "give some text with --prompt",
                         "it is empty, and this model has no BOS to begin from");
    if (token_buffer_reserve(ids, 1, err) != 0)
        return -1;
    ids->ids[ids->count++] = (uint32_t)bos;
    return 0;
}

/* How many tokens to make. The last one is never fed, so it needs no place in the context. */
static int choose_length(struct generate_arguments *a, struct error *err)
{
    const struct model *m = a->inference.model;
    int64_t prompt = a->prompt_ids.count, room = m->config.max_positions - prompt + 1;
    if (a->max_tokens > 0)
        return decoder_check_length(m, prompt + a->max_tokens - 1, err);
    if (decoder_check_length(m, prompt, err) != 0)
        return -1;
    a->max_tokens = room < DEFAULT_TOKENS ? room : DEFAULT_TOKENS;
    return 0;
}

static int prepare(struct generate_arguments *a, struct error *err)
{
    if (a->chat)
        return error_set(err, ERROR_INPUT, "--chat", "write the conversation out in the prompt",
                         "chat templates are not supported in this version");
    if (inference_open(&a->inference, a->model, &a->cli->log, err) != 0 ||
        tokenizer_load(a->model, &a->tokenizer, err) != 0 || read_prompt(a, err) != 0 ||
        encode_prompt(a, err) != 0 ||
        decoder_check_ids(a->inference.model, a->prompt_ids.ids, a->prompt_ids.count, err) != 0 ||
        choose_length(a, err) != 0)
        return -1;
    if (a->sampling.temperature == 0 && (a->sampling.top_k > 0 || a->sampling.top_p > 0))
        log_warning(&a->cli->log,
                    "--top-k and --top-p do nothing at temperature 0, which takes the likeliest token");
    a->logits = malloc((size_t)a->inference.model->config.vocab_size * sizeof *a->logits);
    if (!a->logits)
        return error_memory(err, (size_t)a->inference.model->config.vocab_size * sizeof *a->logits, "logits");
    if (token_buffer_reserve(&a->output_ids, a->max_tokens, err) != 0)
        return -1;
    return sampler_create(&a->sampler, a->inference.model->config.vocab_size, &a->sampling, err);
}

/* ---- generating ---- */

static bool ends(const struct generate_arguments *a, uint32_t id)
{
    const struct model_config *c = &a->inference.model->config;
    for (int i = 0; i < c->eos_count; i++)
        if (c->eos[i] == id)
            return true;
    return tokenizer_eos(a->tokenizer) == id;
}

/* Prints what is complete of the text; with --json it is only kept. */
static int emit(struct generate_arguments *a, struct error *err)
{
    if (a->piece.length > 0)
        strbuf_append(&a->output, a->piece.data, a->piece.length);
    if (a->piece.failed || a->output.failed)
        return error_memory(err, a->output.length, "the text");
    if (!a->json && a->piece.length > 0) {
        fwrite(a->piece.data, 1, a->piece.length, stdout);
        fflush(stdout);
    }
    strbuf_clear(&a->piece);
    return cli_output_failed() ? error_set(err, ERROR_RUN, "standard output", NULL, "cannot write the text")
                               : 0;
}

/* The prompt but for its last token, which the loop feeds: chunk by chunk, so that a signal is heeded. */
static int feed_prompt(struct generate_arguments *a, struct comm *comm, struct error *err)
{
    int64_t n = a->prompt_ids.count - 1;
    for (int64_t at = 0; at < n && comm_stop_signal(comm) == 0; at += DECODER_CHUNK) {
        int64_t count = n - at < DECODER_CHUNK ? n - at : DECODER_CHUNK;
        if (decoder_feed(a->inference.decoder, a->prompt_ids.ids + at, count, NULL, err) != 0)
            return -1;
    }
    return 0;
}

static int generate(struct generate_arguments *a, struct comm *comm, struct error *err)
{
    if (feed_prompt(a, comm, err) != 0)
        return -1;
    uint32_t id = a->prompt_ids.ids[a->prompt_ids.count - 1];
    a->stream.skip_special = true;
    a->finish = "length";
    while (a->output_ids.count < a->max_tokens) {
        if (comm_stop_signal(comm) != 0) {
            a->finish = "stopped";
            break;
        }
        if (decoder_feed(a->inference.decoder, &id, 1, a->logits, err) != 0)
            return -1;
        id = sampler_pick(&a->sampler, a->logits);
        a->output_ids.ids[a->output_ids.count++] = id;
        if (ends(a, id)) {
            a->finish = "eos";
            break;
        }
        tokenizer_stream_feed(&a->stream, a->tokenizer, id, &a->piece);
        if (emit(a, err) != 0)
            return -1;
    }
    tokenizer_stream_finish(&a->stream, &a->piece);
    return emit(a, err);
}

static void write_ids(struct json_writer *w, const char *key, const struct token_buffer *ids)
{
    json_write_array(w, key);
    for (int64_t i = 0; i < ids->count; i++)
        json_write_int(w, NULL, ids->ids[i]);
    json_write_end(w);
}

static int report(struct generate_arguments *a, double seconds, struct error *err)
{
    struct strbuf text = {0};
    if (!a->json) {
        strbuf_puts(&text, "\n");
        return cli_put(&text, err);
    }
    struct json_writer w;
    json_writer_start(&w, &text, 0);
    json_write_object(&w, NULL);
    write_ids(&w, "prompt_ids", &a->prompt_ids);
    write_ids(&w, "output_ids", &a->output_ids);
    json_write_string_n(&w, "text", a->output.data ? a->output.data : "", a->output.length);
    json_write_string(&w, "finish", a->finish);
    json_write_double(&w, "seconds", seconds);
    json_write_end(&w);
    return cli_put(&text, err);
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct generate_arguments *a = context;
    int64_t capacity = a->prompt_ids.count + a->max_tokens - 1;
    int status = inference_start(&a->inference, &a->options, capacity, 1, comm, err);
    double start = clock_seconds();
    if (status == 0)
        status = generate(a, comm, err);
    int signal = comm_stop_signal(comm);
    if (status != 0 || report(a, clock_seconds() - start, err) != 0)
        status = (int)err->kind;
    inference_close(&a->inference);
    return status == 0 && signal ? 128 + signal : status;
}

static void release(struct generate_arguments *a)
{
    inference_close(&a->inference);
    sampler_free(&a->sampler);
    tokenizer_free(a->tokenizer);
    token_buffer_free(&a->prompt_ids);
    token_buffer_free(&a->output_ids);
    strbuf_free(&a->text);
    strbuf_free(&a->output);
    strbuf_free(&a->piece);
    free(a->logits);
}

int cmd_generate(int argc, char **argv, struct cli *cli)
{
    struct generate_arguments a = {.cli = cli, .sampling = {.seed = DEFAULT_SEED}};
    struct error err = {0};
    int status = cli_parse(cli, &generate_argp, argc, argv, &a);
    if (status != 0)
        return status;
    if (prepare(&a, &err) == 0)
        status = comm_run(1, COMM_AUTO, &cli->log, body, &a, &err);
    if (cli_output_failed())
        status = ERROR_RUN; /* which main reports */
    else if (err.kind != ERROR_NONE)
        status = cli_fail(cli, &err);
    release(&a);
    return status;
}
