/* tercet logits: what a model makes of one sequence of ids, for comparing with other programs. */
#include "cli/inference.h"
#include "formats/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { OPTION_IDS = CLI_OWN };

struct logits_arguments {
    const char *model, *ids_text;
    struct inference_options options;
    struct cli *cli;
    struct inference inference;
    uint32_t *ids; /* [count] */
    int64_t count;
    struct json_writer writer;
    struct strbuf text;
};

static const struct argp_option options_table[] = {
    {"ids", OPTION_IDS, "1,2,3", 0, "The token ids of the sequence, with commas between them", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object, as this verb always does", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct logits_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->options;
        return 0;
    case OPTION_IDS:
        a->ids_text = text;
        return 0;
    case CLI_JSON:
        return 0;
    case ARGP_KEY_ARG:
        if (a->model)
            argp_error(state, "one model at a time; \"%s\" is too many", text);
        a->model = text;
        return 0;
    case ARGP_KEY_END:
        if (!a->model)
            argp_error(state, "which model? Give a model directory");
        if (!a->ids_text)
            argp_error(state, "which tokens? Give them as in --ids 1,2,3");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&inference_argp, 0, NULL, 0}, {0}};
static const struct argp logits_argp = {options_table,
                                        parse,
                                        "MODEL",
                                        "Example:\n  tercet logits models/llama --ids 1,2,3\n\n"
                                        "Prints the logits of every position of one sequence as {\"logits\": "
                                        "[[...], ...]}, in the shortest digits that "
                                        "give the fp32 values back. MODEL is a Hugging Face model directory. "
                                        "The ids are taken as they are: no BOS is "
                                        "added.",
                                        children,
                                        NULL,
                                        NULL};

/* "1, 2,3": whole numbers with commas and blanks between them. */
static int parse_ids(struct logits_arguments *a, struct error *err)
{
    const char *at = a->ids_text;
    const char *remedy = "give whole numbers with commas between them, as in --ids 1,2,3";
    size_t most = 1;
    for (const char *c = at; *c; c++)
        most += *c == ',';
    a->ids = malloc(most * sizeof *a->ids);
    if (!a->ids)
        return error_memory(err, most * sizeof *a->ids, "token ids");
    do {
        char *end;
        while (isspace((unsigned char)*at))
            at++;
        if (*at == '\0' && a->count == 0)
            return error_set(err, ERROR_INPUT, "--ids", remedy, "there are no ids");
        errno = 0;
        uintmax_t id = strtoumax(at, &end, 10);
        if (!isdigit((unsigned char)*at))
            return error_set(err, ERROR_INPUT, "--ids", remedy, "expected a token id at \"%.20s\"", at);
        if (errno != 0 || id > UINT32_MAX)
            return error_set(err, ERROR_INPUT, "--ids", remedy, "%.20s is beyond every vocabulary", at);
        while (isspace((unsigned char)*end))
            end++;
        if (*end != ',' && *end != '\0')
            return error_set(err, ERROR_INPUT, "--ids", remedy, "expected a comma at \"%.20s\"", end);
        a->ids[a->count++] = (uint32_t)id;
        at = end + (*end == ',');
        if (*end == '\0')
            return 0;
    } while (true);
}

static int print_pending(struct logits_arguments *a, struct error *err)
{
    if (a->text.failed)
        return error_memory(err, a->text.length, "the result");
    fwrite(a->text.data, 1, a->text.length, stdout);
    strbuf_clear(&a->text);
    return cli_output_failed() ? error_set(err, ERROR_RUN, "standard output", NULL, "cannot write the result")
                               : 0;
}

/* One row of the result. The beginning waits for the first row, so that a failure leaves nothing half-written
 * where it comes at once. */
static int print_row(void *context, int64_t position, const float *logits, struct error *err)
{
    struct logits_arguments *a = context;
    if (position == 0) {
        json_writer_start(&a->writer, &a->text, 0);
        json_write_object(&a->writer, NULL);
        json_write_array(&a->writer, "logits");
    }
    json_write_array(&a->writer, NULL);
    for (int64_t i = 0; i < a->inference.model->config.vocab_size; i++)
        json_write_float(&a->writer, NULL, logits[i]);
    json_write_end(&a->writer);
    return print_pending(a, err);
}

/* So many rows at once that they take about 16 MB. */
static int64_t rows_at_once(const struct model *model)
{
    int64_t rows = ((int64_t)4 << 20) / model->config.vocab_size;
    return rows > 0 ? rows : 1;
}

static int run(struct logits_arguments *a, struct comm *comm, struct error *err)
{
    struct inference *in = &a->inference;
    if (inference_start(in, &a->options, a->count, rows_at_once(in->model), comm, err) != 0)
        return -1;
    for (int64_t at = 0; at < a->count; at += DECODER_CHUNK) {
        int64_t n = a->count - at < DECODER_CHUNK ? a->count - at : DECODER_CHUNK;
        if (comm_stop_signal(comm) != 0)
            return 0;
        if (decoder_feed_all(in->decoder, a->ids + at, n, print_row, a, err) != 0)
            return -1;
    }
    json_write_end(&a->writer);
    json_write_end(&a->writer);
    strbuf_puts(&a->text, "\n");
    return print_pending(a, err);
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct logits_arguments *a = context;
    int status = run(a, comm, err);
    int signal = comm_stop_signal(comm);
    inference_close(&a->inference);
    return status != 0 ? (int)err->kind : signal ? 128 + signal : 0;
}

static int prepare(struct logits_arguments *a, struct error *err)
{
    if (parse_ids(a, err) != 0 || inference_open(&a->inference, a->model, &a->cli->log, err) != 0)
        return -1;
    if (decoder_check_length(a->inference.model, a->count, err) != 0)
        return -1;
    return decoder_check_ids(a->inference.model, a->ids, a->count, err);
}

int cmd_logits(int argc, char **argv, struct cli *cli)
{
    struct logits_arguments a = {.cli = cli};
    struct error err = {0};
    int status = cli_parse(cli, &logits_argp, argc, argv, &a);
    if (status != 0)
        return status;
    if (prepare(&a, &err) == 0)
        status = comm_run(1, COMM_AUTO, &cli->log, body, &a, &err);
    if (cli_output_failed())
        status = ERROR_RUN; /* which main reports */
    else if (err.kind != ERROR_NONE)
        status = cli_fail(cli, &err);
    inference_close(&a.inference);
    strbuf_free(&a.text);
    free(a.ids);
    return status;
}
