#include "cli/describe.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- verbs ---- */

void describe_program(const struct cli *cli, struct description *out)
{
    struct cli asking = *cli;
    *out = (struct description){.root = cli->verbs};
    asking.description = out;
    describe_table(&asking, cli->verbs);
}

int describe_table(struct cli *cli, const struct verb_table *table)
{
    struct description *d = cli->description;
    if (d->count > 0)
        d->verbs[d->count - 1].group = table;
    for (const struct verb *verb = table->verbs; verb->name; verb++) {
        assert(d->count < DESCRIBE_MOST_VERBS);
        struct described_verb *described = &d->verbs[d->count++];
        char program[128];
        char *argv[] = {program, NULL};
        snprintf(program, sizeof program, "%s %s", table->program, verb->name);
        *described = (struct described_verb){.line = verb->line};
        snprintf(described->path, sizeof described->path, "%s", program + strlen(d->root->program) + 1);
        verb->run(1, argv, cli);
        assert(described->argp || described->group);
    }
    return ERROR_RUN;
}

int describe_verb(struct cli *cli, const struct argp *argp)
{
    struct description *d = cli->description;
    assert(d->count > 0);
    d->verbs[d->count - 1].argp = argp;
    return ERROR_RUN;
}

/* ---- options ---- */

static int add_options(const struct argp_option *table, struct described_option *out, int count)
{
    const struct argp_option *real = table; /* what an alias stands for */
    for (const struct argp_option *o = table; o && (o->name || o->key || o->doc); o++) {
        if (!(o->flags & OPTION_ALIAS))
            real = o;
        /* A title has neither name nor key. */
        if ((!o->name && !o->key) || ((o->flags | real->flags) & (OPTION_HIDDEN | OPTION_DOC)))
            continue;
        assert(count < DESCRIBE_MOST_OPTIONS);
        out[count++] = (struct described_option){
            .name = o->name,
            .letter = o->key > 0 && o->key <= CHAR_MAX && isprint(o->key) ? (char)o->key : '\0',
            .argument = real->arg,
            .optional = real->arg && (real->flags & OPTION_ARG_OPTIONAL),
            .help = real->doc ? real->doc : ""};
    }
    return count;
}

static int add_parser(const struct argp *argp, struct described_option *out, int count)
{
    count = add_options(argp->options, out, count);
    for (const struct argp_child *child = argp->children; child && child->argp; child++)
        count = add_parser(child->argp, out, count);
    return count;
}

int describe_options(const struct argp *argp, struct described_option out[DESCRIBE_MOST_OPTIONS])
{
    /* argp_parse adds these to every parser; it has no table to ask. */
    static const struct argp_option own[] = {{"help", '?', NULL, 0, "Give this help list", 0},
                                             {"usage", CLI_OWN, NULL, 0, "Give a short usage message", 0},
                                             {0}};
    return add_options(own, out, add_parser(argp, out, 0));
}

/* ---- values ---- */

static struct described_value value_of(const char *text, int length)
{
    static const struct {
        const char *name;
        enum value_kind kind;
    } names[] = {
        {"FILE", VALUE_FILE},         {"FILE|-", VALUE_FILE},          {"RUN.yaml", VALUE_FILE},
        {"DIR_OR_FILE", VALUE_FILE},  {"DIR_OR_JSON", VALUE_FILE},     {"DIR", VALUE_DIRECTORY},
        {"MODEL", VALUE_DIRECTORY},   {"CHECKPOINT", VALUE_DIRECTORY}, {"KEY", VALUE_KEY},
        {"key=value", VALUE_SETTING},
    };
    struct described_value value = {VALUE_OTHER, text, length};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((size_t)length == strlen(names[i].name) && memcmp(text, names[i].name, (size_t)length) == 0)
            value.kind = names[i].kind;
    if (value.kind == VALUE_OTHER && (memchr(text, '|', (size_t)length) || (length == 1 && *text == '-')))
        value.kind = VALUE_WORDS;
    return value;
}

struct described_value describe_value(const char *argument)
{
    return argument ? value_of(argument, (int)strlen(argument)) : (struct described_value){0};
}

const char *describe_word(const struct described_value *value, const char **at, int *length)
{
    const char *word = *at, *end = value->text + value->length;
    if (!word)
        return NULL;
    const char *bar = memchr(word, '|', (size_t)(end - word));
    *length = (int)((bar ? bar : end) - word);
    *at = bar ? bar + 1 : NULL;
    return word;
}

struct described_arguments describe_arguments(const struct argp *argp)
{
    static const char dots[] = "…";
    struct described_arguments a = {0};
    const char *at = argp->args_doc;
    int seen = 0;
    while (at && *at && *at != '\n') {
        at += strspn(at, " []");
        const char *end;
        for (end = at; *end && !strchr(" []\n", *end); end++)
            if (strncmp(end, "...", 3) == 0 || strncmp(end, dots, strlen(dots)) == 0)
                break;
        if (end > at && seen++ < 2)
            *(seen == 1 ? &a.first : &a.rest) = value_of(at, (int)(end - at));
        bool repeats = strncmp(end, "...", 3) == 0 || strncmp(end, dots, strlen(dots)) == 0;
        if (repeats && seen == 1) /* "FILE..." */
            a.rest = a.first;
        at = end + (repeats ? 3 : 0);
    }
    a.files_too = at && *at == '\n' && a.rest.kind == VALUE_SETTING;
    return a;
}
