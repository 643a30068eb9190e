/* The command line: what every verb uses. A verb is one file, cmd_<verb>.c, with one function:
 *
 *     int cmd_plan(int argc, char **argv, struct cli *cli)
 *     {
 *         struct plan_arguments arguments = {0};
 *         int status = cli_parse(cli, &plan_argp, argc, argv, &arguments);
 *         if (status != 0)
 *             return status;
 *         if (something(…, &cli->log, &err) != 0)
 *             return cli_fail(cli, &err);
 *         … append the result to `text`, as JSON when --json was given …
 *         return cli_print(cli, &text);
 *     }
 *
 * argv[0] is "tercet plan", so argp names the verb in its messages; argv[argc] is NULL. The function
 * returns the exit status: 0 done; 1 failed; 2 wrong usage, configuration or input (enum error_kind has
 * these values); 128+N ended by signal N after saving. It frees what it allocated, so that leak checkers
 * see the truth. Its line in the table stands in main.c, where the verbs are in the order of the help.
 *
 * Standard output gets results and nothing else. Progress, log lines and errors go to standard error:
 * the first two through cli->log, errors through cli_fail. SIGPIPE is ignored: a long verb that writes as it
 * goes asks cli_output_failed() and stops; main reports what standard output suffered in any case.
 *
 * Help is argp's. Its `doc` begins with an example, then says what the verb does:
 *
 *     "Example:\n  tercet plan run.yaml -n 2\n\nPrints the memory that each rank needs.\v…"
 *
 * The shells' completion and the manual page are made from the same tables (describe.h). What an option or
 * argument takes is seen by its name: FILE, DIR, MODEL, KEY …, or "error|skip" where it is one of a few
 * words. */
#ifndef TERCET_CLI_CLI_H
#define TERCET_CLI_CLI_H

#include "base/error.h"
#include "base/log.h"
#include "base/strbuf.h"

#include <argp.h>
#include <stdbool.h>

struct verb_table;
struct description;

struct cli {
    struct log log; /* to standard error */
    struct log_stream stream;
    const struct verb_table *verbs; /* of the whole program */
    /* Where not NULL, verbs are asked for their tables, not for work: describe.h. */
    struct description *description;
};

typedef int cli_verb(int argc, char **argv, struct cli *cli);

cli_verb cmd_train, cmd_plan, cmd_eval, cmd_generate, cmd_logits, cmd_tokenizer, cmd_data, cmd_inspect,
    cmd_doctor, cmd_completion, cmd_man, cmd_version;

/* Keys of options that several verbs have and that have no letter; a verb's own begin at CLI_OWN:
 *
 *     {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0} */
enum { CLI_JSON = 0x100, CLI_OWN = 0x200 };

/* argp_parse. A usage error is told on standard error and ends the program with 2, --help with 0. Returns
 * 0, or the exit status where parsing failed otherwise; so too where cli->description wants the table only.
 * It comes before any work. Parsers report wrong arguments with argp_error. */
int cli_parse(struct cli *cli, const struct argp *argp, int argc, char **argv, void *input);

/* A whole number, from option or argument `name`, within min … max; argp_error otherwise. */
int64_t cli_parse_int(struct argp_state *state, const char *name, const char *text, int64_t min, int64_t max);
/* A finite number within min … max; argp_error otherwise. */
double cli_parse_double(struct argp_state *state, const char *name, const char *text, double min, double max);

/* The one place that reports errors, as
 *
 *     tercet: run.yaml:12: optimizer.lr: expected a number
 *       write it as in 5e-5
 *
 * and returns the exit status: the error's kind; for a list the highest of its kinds' numbers. An error
 * of kind ERROR_NONE (see comm_run) says nothing and gives 0. */
int cli_fail(struct cli *cli, const struct error *err);
int cli_fail_list(struct cli *cli, const struct error_list *errors);

/* Writes a result to standard output, with a newline at the end where there is none, and frees it. Returns
 * the exit status: 0, or 1 when building the text had run out of memory (which is reported). */
int cli_print(struct cli *cli, struct strbuf *text);
/* The same for a rank, whose errors are reported by those who started it: 0, or -1 with *err filled. */
int cli_put(struct strbuf *text, struct error *err);
/* Writes what is buffered for standard output. -1: it could not take all that was printed, which *err tells
 * and main no longer does. For ranks: what one of them had to say must be out before its work counts as done.
 */
int cli_flush(struct error *err);
/* Standard output can no longer be written (a full disk, a closed pipe). */
bool cli_output_failed(void);

/* Warns of documents that were left out: a line for each reason, with the place that was met first. */
struct data_summary;
void cli_warn_drops(const struct cli *cli, const struct data_summary *summary);

/* Appends text that came from a file or a user, with control characters (which could rewrite the terminal)
 * as '?'. */
void cli_put_text(struct strbuf *out, const char *text);
/* Appends "name   value" as a line of a report; all names of a report are padded to one width. */
void cli_put_field(struct strbuf *out, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
