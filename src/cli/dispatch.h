/* Tables of verbs: `tercet VERB` and, one level down, `tercet tokenizer VERB`. */
#ifndef TERCET_CLI_DISPATCH_H
#define TERCET_CLI_DISPATCH_H

#include "cli/cli.h"

struct verb {
    const char *name, *line; /* one line that says what it does */
    cli_verb *run;
};

struct verb_table {
    const char *program;      /* "tercet" */
    const char *example;      /* a command */
    const char *about;        /* a sentence */
    const char *more;         /* at the end of the help, with its newlines; may be NULL */
    const struct verb *verbs; /* in the order of the help, ended by a NULL name */
};

/* Runs the verb that argv[1] names, with argv[0] as "PROGRAM VERB". `--help`, `-h`, `help` and `help VERB`
 * are served here. Without a verb, and for an unknown one (the nearest is named), the status is 2. */
int dispatch(const struct verb_table *table, int argc, char **argv, struct cli *cli);

#endif
