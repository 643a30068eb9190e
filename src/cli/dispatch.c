#include "cli/dispatch.h"

#include "base/nearest.h"
#include "cli/describe.h"

#include <stdlib.h>
#include <string.h>

static const struct verb *find_verb(const struct verb_table *table, const char *name)
{
    for (const struct verb *verb = table->verbs; verb->name; verb++)
        if (strcmp(verb->name, name) == 0 || (verb->option && strcmp(verb->option, name) == 0))
            return verb;
    return NULL;
}

const char *dispatch_help_word(int i)
{
    static const char *const words[] = {"help", "--help", "-h", "-?"};
    return i < (int)(sizeof words / sizeof words[0]) ? words[i] : NULL;
}

static void print_help(const struct verb_table *table, FILE *stream)
{
    fprintf(stream, "Example:\n  %s\n\n%s\n\nUsage: %s VERB [options] [arguments]\n\n", table->example,
            table->about, table->program);
    for (const struct verb *verb = table->verbs; verb->name; verb++)
        fprintf(stream, "  %-10s  %s\n", verb->name, verb->line);
    fprintf(stream, "\n`%s VERB --help` says more.%s%s\n", table->program, table->more ? " " : "",
            table->more ? table->more : "");
    if (table->statuses)
        fprintf(stream, "Exit status: %s.\n", table->statuses);
}

static int unknown_verb(const struct verb_table *table, const char *name, struct cli *cli)
{
    const char *nearest = NULL;
    int best = nearest_tolerance(name) + 1;
    for (const struct verb *verb = table->verbs; verb->name; verb++) {
        int distance = nearest_distance(name, verb->name);
        if (distance < best) {
            best = distance;
            nearest = verb->name;
        }
    }
    char remedy[256];
    if (nearest)
        snprintf(remedy, sizeof remedy, "did you mean `%s %s`? `%s --help` lists all verbs", table->program,
                 nearest, table->program);
    else
        snprintf(remedy, sizeof remedy, "`%s --help` lists the verbs", table->program);
    struct error err;
    error_fill(&err, ERROR_INPUT, NULL, remedy, "there is no `%s %s`", table->program, name);
    return cli_fail(cli, &err);
}

int dispatch(const struct verb_table *table, int argc, char **argv, struct cli *cli)
{
    if (cli->description)
        return describe_table(cli, table);
    if (argc < 2) {
        print_help(table, stderr);
        return ERROR_INPUT;
    }
    bool help = false;
    const char *word;
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++)
        help = help || strcmp(argv[1], word) == 0;
    if (help && argc == 2) {
        print_help(table, stdout);
        return 0;
    }
    const char *name = help ? argv[2] : argv[1];
    const struct verb *verb = find_verb(table, name);
    if (!verb)
        return unknown_verb(table, name, cli);
    char program[128], help_option[] = "--help";
    snprintf(program, sizeof program, "%s %s", table->program, verb->name);
    char *help_argv[] = {program, help_option, NULL};
    if (help)
        return verb->run(2, help_argv, cli);
    argv[1] = program; /* what argp calls the program in its messages */
    return verb->run(argc - 1, argv + 1, cli);
}
