/* What every verb tells: errors, results, wrong arguments. */
#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/output.h"
#include "data/summary.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An error in the form that people see; line ends inside a part must not look like the next message. */
static void put_error(struct strbuf *out, const struct error *err)
{
    strbuf_puts(out, "tercet: ");
    size_t start = out->length;
    strbuf_printf(out, "%s%s%s", err->where, err->where[0] && err->what[0] ? ": " : "", err->what);
    for (size_t i = start; i < out->length; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
    if (err->remedy[0])
        strbuf_printf(out, "\n  %s", err->remedy);
}

int cli_fail(struct cli *cli, const struct error *err)
{
    if (err->kind == ERROR_NONE)
        return 0;
    fflush(stdout); /* results first, where both streams go to one terminal */
    struct strbuf text = {0};
    put_error(&text, err);
    cli->log.line(cli->log.context, LOG_INFO, text.failed ? "tercet: out of memory" : text.data);
    strbuf_free(&text);
    return (int)err->kind;
}

int cli_fail_list(struct cli *cli, const struct error_list *errors)
{
    int status = 0;
    for (int64_t i = 0; i < errors->count - errors->lost; i++) {
        int kind = cli_fail(cli, &errors->items[i]);
        status = kind > status ? kind : status;
    }
    if (errors->lost > 0) {
        struct error lost;
        error_fill(&lost, ERROR_RUN, NULL, "free some memory to see them",
                   "%" PRId64 " more errors did not fit in memory", errors->lost);
        status = cli_fail(cli, &lost);
    }
    return status;
}

int cli_parse(struct cli *cli, const struct argp *argp, int argc, char **argv, void *input)
{
    if (cli->description)
        return describe_verb(cli, argp);
    char help[] = "--help";
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "-h") == 0) /* as elsewhere; argp's own is -? */
            argv[i] = help;
    int problem = argp_parse(argp, argc, argv, 0, NULL, input);
    if (problem == 0)
        return 0;
    struct error err;
    error_fill_errno(&err, problem, NULL, "read the command line");
    return cli_fail(cli, &err);
}

int64_t cli_parse_int(struct argp_state *state, const char *name, const char *text, int64_t min, int64_t max)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max) {
        if (max == INT64_MAX)
            argp_error(state, "%s: expected a whole number, at least %" PRId64 ", not \"%s\"", name, min,
                       text);
        else
            argp_error(state, "%s: expected a whole number from %" PRId64 " to %" PRId64 ", not \"%s\"", name,
                       min, max, text);
    }
    return value;
}

double cli_parse_double(struct argp_state *state, const char *name, const char *text, double min, double max)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < min || value > max)
        argp_error(state, "%s: expected a number from %g to %g, not \"%s\"", name, min, max, text);
    return value;
}

int cli_put(struct strbuf *text, struct error *err)
{
    int status = 0;
    if (text->failed)
        status = error_memory(err, text->length, "the result");
    else if (text->length > 0) {
        fwrite(text->data, 1, text->length, stdout);
        if (text->data[text->length - 1] != '\n')
            putc('\n', stdout);
    }
    strbuf_free(text);
    return status;
}

int cli_print(struct cli *cli, struct strbuf *text)
{
    struct error err;
    return cli_put(text, &err) == 0 ? 0 : cli_fail(cli, &err);
}

bool cli_output_failed(void)
{
    return ferror(stdout) != 0;
}

int cli_flush(struct error *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    int why = errno;
    /* Told once is enough: output_finish finds nothing more to write. */
    __fpurge(stdout);
    clearerr(stdout);
    if (why != 0)
        return error_errno(err, why, "standard output", "write the result");
    return error_set(err, ERROR_RUN, "standard output", NULL, "cannot write the result");
}

void output_finish(void)
{
    struct error err;
    if (cli_flush(&err) == 0)
        return;
    struct cli cli = {0};
    log_to_stream(&cli.log, &cli.stream, stderr);
    _exit(cli_fail(&cli, &err)); /* exit() is under way already: it must not be called again */
}

void cli_warn_drops(const struct cli *cli, const struct data_summary *summary)
{
    for (int reason = 0; reason < DATA_REASONS; reason++)
        if (summary->dropped[reason].count > 0)
            log_warning(&cli->log, "%" PRId64 " documents dropped: %s; the first is %s",
                        summary->dropped[reason].count, data_reason_text((enum data_reason)reason),
                        summary->dropped[reason].first);
}

void cli_put_text(struct strbuf *out, const char *text)
{
    size_t start = out->length;
    strbuf_puts(out, text);
    for (size_t i = start; i < out->length; i++)
        if ((unsigned char)out->data[i] < 0x20 || out->data[i] == 0x7f)
            out->data[i] = '?';
}

void cli_put_field(struct strbuf *out, const char *name, const char *format, ...)
{
    struct strbuf value = {0};
    va_list arguments;
    va_start(arguments, format);
    strbuf_vprintf(&value, format, arguments);
    va_end(arguments);
    strbuf_printf(out, "%-20s ", name);
    if (value.data)
        cli_put_text(out, value.data);
    if (value.failed)
        out->failed = 1;
    strbuf_puts(out, "\n");
    strbuf_free(&value);
}
