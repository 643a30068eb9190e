/* What the program's tables say of its verbs, options and arguments, for the shells' completion and the
 * manual page. The tables are those that command lines are parsed with: each verb is called as if to work,
 * and hands its argp to cli_parse, which keeps it here and goes no further.
 *
 *     struct description d;
 *     describe_program(cli, &d);
 *     for (int i = 0; i < d.count; i++)
 *         … d.verbs[i].path, and describe_options(d.verbs[i].argp, options) …
 *
 * All text belongs to the tables and stays. */
#ifndef TERCET_CLI_DESCRIBE_H
#define TERCET_CLI_DESCRIBE_H

#include "cli/cli.h"
#include "cli/dispatch.h"

enum { DESCRIBE_MOST_VERBS = 64, DESCRIBE_MOST_OPTIONS = 64 };

struct described_verb {
    char path[64];                  /* "train", "tokenizer train" */
    const char *line;               /* what it does */
    const struct verb_table *group; /* of a verb that has verbs; else NULL */
    const struct argp *argp;        /* of all others; else NULL */
};

struct description {
    const struct verb_table *root;
    struct described_verb verbs[DESCRIBE_MOST_VERBS]; /* in the order of the help, a group before its verbs */
    int count;
};

void describe_program(const struct cli *cli, struct description *out);

/* For dispatch and cli_parse: add to cli->description. They return a status other than 0. */
int describe_table(struct cli *cli, const struct verb_table *table);
int describe_verb(struct cli *cli, const struct argp *argp);

struct described_option {
    const char *name;     /* without dashes; NULL: there is a letter only */
    char letter;          /* '\0': none */
    const char *argument; /* its name; NULL: the option takes none */
    bool optional;        /* the argument may be missing, and is written as --name=argument */
    const char *help;
};

/* All options of a verb, argp's own (--help, --usage) at the end. Returns their number. */
int describe_options(const struct argp *argp, struct described_option out[DESCRIBE_MOST_OPTIONS]);

enum value_kind {
    VALUE_NONE,      /* nothing is expected */
    VALUE_OTHER,     /* a number, a text */
    VALUE_FILE,      /* or a directory */
    VALUE_DIRECTORY, /* nothing else */
    VALUE_WORDS,     /* one of a few: "error|skip", or "-" for standard input */
    VALUE_KEY,       /* a key of the run file, or a section */
    VALUE_SETTING,   /* key=value */
};

/* What an option or argument takes, seen by its name. The name is `length` bytes at `text`. */
struct described_value {
    enum value_kind kind;
    const char *text;
    int length;
};
struct described_value describe_value(const char *argument);
/* The next of "error|skip", as `length` bytes; *at goes from value.text to NULL. */
const char *describe_word(const struct described_value *value, const char **at, int *length);

/* A verb's arguments: the first, and what follows it. */
struct described_arguments {
    struct described_value first, rest;
    bool files_too; /* another form takes files: the rest are settings only where the first is a run file */
};
struct described_arguments describe_arguments(const struct argp *argp);

#endif
