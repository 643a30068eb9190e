/* Tables of verbs: `tercet VERB` and, one level down, `tercet tokenizer VERB`. */
#ifndef TERCET_CLI_DISPATCH_H
#define TERCET_CLI_DISPATCH_H

#include "cli/cli.h"

struct verb {
    const char *name, *line; /* one line that says what it does */
    cli_verb *run;
    const char *option; /* another way to say it: "--version"; may be NULL */
};

struct verb_table {
    const char *program;      /* "tercet" */
    const char *example;      /* a command */
    const char *about;        /* a sentence */
    const char *more;         /* a sentence at the end of the help; may be NULL */
    const char *statuses;     /* exit statuses as "0 done; 1 failed"; may be NULL */
    const struct verb *verbs; /* in the order of the help, ended by a NULL name */
};

/* The words that ask for help in place of a verb: word i from 0, NULL behind the last. */
const char *dispatch_help_word(int i);

/* Runs the verb that argv[1] names, with argv[0] as "PROGRAM VERB". `--help`, `-h`, `help` and `help VERB`
 * are served here. With cli->description, all verbs are added to it instead. Without a verb, and for an
 * unknown one (the nearest is named), the status is 2. */
int dispatch(const struct verb_table *table, int argc, char **argv, struct cli *cli);

#endif
