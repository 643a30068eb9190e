/* tercet man: the manual page, in the man(7) macros that groff and mandoc read. Verbs, options and keys come
 * from the tables that command lines and run files are parsed with. */
#include "cli/cli.h"

#include "cli/describe.h"
#include "config/runfile.h"

#include <ctype.h>
#include <string.h>

struct pair {
    const char *name, *text;
};

static const struct pair environment[] = {
    {"XDG_CACHE_HOME, HOME",
     "where the peaks that `tercet doctor` measures are kept: $XDG_CACHE_HOME/tercet, or "
     "~/.cache/tercet"},
    {"TMPDIR", "where data and eval put tokenized text for as long as they run (/var/tmp)"},
    {"TERM", "where it is dumb, progress is shown as on no terminal"},
    {"ONEDNN_MAX_CPU_ISA, DNNL_MAX_CPU_ISA",
     "caps the instruction set of matrix products; `tercet doctor` tells when "
     "it does"},
};
static const struct pair files[] = {
    {"OUTPUT/run.yaml", "the run file with every default written out"},
    {"OUTPUT/metrics.jsonl", "one JSON object a step: loss, learning rate, gradient norm, tokens, seconds"},
    {"OUTPUT/tensorboard/", "the same for TensorBoard"},
    {"OUTPUT/checkpoint-N/", "a Hugging Face model directory, and training/ for resuming"},
    {"OUTPUT/last", "the newest complete checkpoint"},
    {"OUTPUT/stop", "made by the user: finishes the step, saves and stops, with status 0"},
    {"OUTPUT/.lock", "held while a run writes here, so that a second one is refused"},
};

/* ---- text ---- */

enum text_form {
    TEXT_WORDS,  /* line ends are spaces */
    TEXT_FILLED, /* line ends are where the source has room for them: for paragraphs */
    TEXT_LINES,  /* line ends stay */
};

/* What troff would not print as it stands. */
static const char *escape(char c)
{
    switch (c) {
    case '\\':
        return "\\e";
    case '-':
        return "\\-";
    case '\'':
        return "\\(aq";
    case '`':
        return "\\(ga";
    case '"':
        return "\\(dq";
    case '~':
        return "\\(ti";
    case '^':
        return "\\(ha";
    default:
        return NULL;
    }
}

static size_t column(const struct strbuf *out)
{
    size_t n = 0;
    while (n < out->length && out->data[out->length - 1 - n] != '\n')
        n++;
    return n;
}

static void put_text(struct strbuf *out, const char *text, size_t length, enum text_form form)
{
    static const char dots[] = "…";
    enum { ROOM = 60 };
    for (size_t i = 0; i < length; i++) {
        const char *escaped = escape(text[i]);
        if (text[i] == '.' && column(out) == 0) /* it would be a macro */
            strbuf_puts(out, "\\&");
        if (escaped) {
            strbuf_puts(out, escaped);
        } else if (length - i >= strlen(dots) && memcmp(text + i, dots, strlen(dots)) == 0) {
            strbuf_puts(out, "...");
            i += strlen(dots) - 1;
        } else if (text[i] == ' ' && form == TEXT_FILLED && column(out) > ROOM) {
            strbuf_puts(out, "\n");
        } else if (text[i] == '\n' && form != TEXT_LINES) {
            strbuf_puts(out, " ");
        } else {
            strbuf_append(out, &text[i], 1);
        }
    }
}

/* A name, a command: what stays on its line. */
static void put_words(struct strbuf *out, const char *text)
{
    put_text(out, text, strlen(text), TEXT_WORDS);
}

static void put_filled(struct strbuf *out, const char *text, size_t length)
{
    put_text(out, text, length, TEXT_FILLED);
    strbuf_puts(out, "\n");
}

static void put_line(struct strbuf *out, const char *text)
{
    put_filled(out, text, strlen(text));
}

/* Behind a title there is one already. */
static void start_paragraph(struct strbuf *out)
{
    size_t end = out->length > 0 ? out->length - 1 : 0, start = end;
    while (start > 0 && out->data[start - 1] != '\n')
        start--;
    if (end - start < 3 || memcmp(out->data + start, ".S", 2) != 0)
        strbuf_puts(out, ".PP\n");
}

/* A macro with one argument. */
static void put_macro(struct strbuf *out, const char *macro, const char *text)
{
    strbuf_printf(out, ".%s \"", macro);
    put_words(out, text);
    strbuf_puts(out, "\"\n");
}

/* Commands as they are typed, each line without its indent. */
static void put_commands(struct strbuf *out, const char *text, size_t length)
{
    const char *end = text + length;
    strbuf_puts(out, ".nf\n.RS 4\n");
    while (text < end) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        line_end = line_end ? line_end : end;
        while (text < line_end && *text == ' ')
            text++;
        put_text(out, text, (size_t)(line_end - text), TEXT_WORDS);
        strbuf_puts(out, "\n");
        text = line_end < end ? line_end + 1 : end;
    }
    strbuf_puts(out, ".RE\n.fi\n");
}

/* ---- a verb ---- */

/* The parts of argp's doc: "Example:\n  …\n\nWhat it does.\vMore." */
struct doc {
    const char *example, *about, *more;
    size_t example_length, about_length, more_length;
};

static struct doc doc_parts(const char *text)
{
    static const char title[] = "Example:\n";
    struct doc d = {0};
    const char *blank = strstr(text, "\n\n"), *bar = strchr(text, '\v');
    if (strncmp(text, title, strlen(title)) == 0 && blank) {
        d.example = text + strlen(title);
        d.example_length = (size_t)(blank - d.example);
        text = blank + 2;
    }
    d.about = text;
    d.about_length = bar ? (size_t)(bar - text) : strlen(text);
    d.more = bar ? bar + 1 : NULL;
    d.more_length = bar ? strlen(bar + 1) : 0;
    return d;
}

/* Each form of a verb's usage as one paragraph. */
static void put_usage(struct strbuf *out, const struct description *d, const struct described_verb *verb)
{

    const char *form = verb->argp->args_doc ? verb->argp->args_doc : "";
    do {
        size_t length = strcspn(form, "\n");
        start_paragraph(out);
        strbuf_puts(out, "\\fB");
        put_words(out, d->root->program);
        strbuf_puts(out, " ");
        put_words(out, verb->path);
        strbuf_puts(out, "\\fP [\\fIoptions\\fP]");
        if (length > 0) {
            strbuf_puts(out, " \\fI");
            put_text(out, form, length, TEXT_WORDS);
            strbuf_puts(out, "\\fP");
        }
        strbuf_puts(out, "\n");
        form += length + (form[length] == '\n');
    } while (*form);
}

static void put_option(struct strbuf *out, const struct described_option *o)
{
    strbuf_puts(out, ".TP\n");
    if (o->letter)
        strbuf_printf(out, "\\fB\\-%c\\fP%s", o->letter, o->name ? ", " : "");
    if (o->name) {
        strbuf_puts(out, "\\fB\\-\\-");
        put_words(out, o->name);
        strbuf_puts(out, "\\fP");
    }
    if (o->argument) {
        strbuf_printf(out, "%s%s\\fI", o->optional ? "[" : "", o->name ? "=" : " ");
        put_words(out, o->argument);
        strbuf_printf(out, "\\fP%s", o->optional ? "]" : "");
    }
    strbuf_puts(out, "\n");
    put_line(out, o->help);
}

static void put_verb(struct strbuf *out, const struct description *d, const struct described_verb *verb)
{
    struct described_option options[DESCRIBE_MOST_OPTIONS];
    int count = describe_options(verb->argp, options);
    struct doc doc = doc_parts(verb->argp->doc);
    put_commands(out, doc.example, doc.example_length);
    put_usage(out, d, verb);
    start_paragraph(out);
    put_filled(out, doc.about, doc.about_length);
    for (int i = 0; i < count; i++)
        put_option(out, &options[i]);
    if (doc.more_length > 0) {
        start_paragraph(out);
        put_filled(out, doc.more, doc.more_length);
    }
}

static void put_verbs(struct strbuf *out, const struct description *d)
{
    strbuf_puts(out, ".SH VERBS\n");
    for (int i = 0; i < d->count; i++) {
        const struct described_verb *verb = &d->verbs[i];
        strbuf_puts(out, ".SS \"");
        put_words(out, d->root->program);
        strbuf_puts(out, " ");
        put_words(out, verb->path);
        strbuf_puts(out, "\"\n");
        if (verb->group) {
            put_commands(out, verb->group->example, strlen(verb->group->example));
            start_paragraph(out);
            put_line(out, verb->group->about);
        } else
            put_verb(out, d, verb);
    }
}

/* ---- the rest ---- */

/* "Trains models." as NAME wants it: "trains models". */
static void put_name(struct strbuf *out, const struct verb_table *table)
{
    size_t length = strlen(table->about);
    char first = (char)tolower((unsigned char)table->about[0]);
    put_words(out, table->program);
    strbuf_puts(out, " \\- ");
    put_text(out, &first, 1, TEXT_WORDS);
    put_text(out, table->about + 1, length - 1 - (table->about[length - 1] == '.'), TEXT_WORDS);
    strbuf_puts(out, "\n");
}

static void put_synopsis(struct strbuf *out, const struct description *d)
{
    strbuf_puts(out, ".SH SYNOPSIS\n");
    for (int i = 0; i < d->count; i++)
        if (d->verbs[i].argp)
            put_usage(out, d, &d->verbs[i]);
    for (const struct verb *verb = d->root->verbs; verb->name; verb++)
        if (verb->option) {
            start_paragraph(out);
            strbuf_printf(out, "\\fB%s ", d->root->program);
            put_words(out, verb->option);
            strbuf_puts(out, "\\fP\n");
        }
    start_paragraph(out);
    strbuf_printf(out, "\\fB%s", d->root->program);
    const char *word;
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++) {
        strbuf_puts(out, i > 0 ? "\\fP | \\fB" : " ");
        put_words(out, word);
    }
    strbuf_puts(out, "\\fP [\\fIverb\\fP]\n");
}

static void put_run_file(struct strbuf *out)
{
    struct run_key key;
    struct strbuf text = {0};
    strbuf_puts(out, ".SH RUN FILE\n");
    put_line(out,
             "A run file is YAML (so JSON too): one map a section. key=value on the command line overrides a "
             "key by its dotted name, key=null unsets it.");
    for (int i = 0; run_config_key(i, &key); i++) {
        if (key.section)
            put_macro(out, "SS", key.section);
        strbuf_puts(out, ".TP\n\\fB");
        put_words(out, key.name);
        strbuf_puts(out, "\\fP: \\fI");
        strbuf_clear(&text);
        run_config_key_takes(i, &text);
        put_words(out, text.data ? text.data : "");
        strbuf_puts(out, "\\fP (");
        strbuf_clear(&text);
        run_config_key_default(i, &text);
        put_words(out, text.data ? text.data : "");
        strbuf_puts(out, ")\n");
        put_line(out, key.help);
    }
    out->failed |= text.failed;
    strbuf_free(&text);
}

/* "0 done; 1 failed": a number and its meaning each. */
static void put_statuses(struct strbuf *out, const char *text)
{
    strbuf_puts(out, ".SH EXIT STATUS\n");
    while (*text) {
        size_t length = strcspn(text, ";"), number = strcspn(text, " ");
        strbuf_puts(out, ".TP\n\\fB");
        put_text(out, text, number, TEXT_WORDS);
        strbuf_puts(out, "\\fP\n");
        put_filled(out, text + number + 1, length - number - 1);
        text += length;
        text += strspn(text, "; \n");
    }
}

static void put_pairs(struct strbuf *out, const char *title, const struct pair *pairs, size_t count)
{
    strbuf_printf(out, ".SH %s\n", title);
    for (size_t i = 0; i < count; i++) {
        strbuf_puts(out, ".TP\n\\fB");
        put_words(out, pairs[i].name);
        strbuf_puts(out, "\\fP\n");
        put_line(out, pairs[i].text);
    }
}

static void put_examples(struct strbuf *out, const struct description *d)
{
    strbuf_puts(out, ".SH EXAMPLES\n");
    for (int i = 0; i < d->count; i++) {
        if (!d->verbs[i].argp)
            continue;
        struct doc doc = doc_parts(d->verbs[i].argp->doc);
        start_paragraph(out);
        put_words(out, d->verbs[i].path);
        strbuf_puts(out, ": ");
        put_line(out, d->verbs[i].line);
        put_commands(out, doc.example, doc.example_length);
    }
}

static void put_page(struct strbuf *out, const struct description *d)
{
    /* No date: the page of one version is always the same. */
    strbuf_puts(out, ".\\\" Written by `tercet man` from the program's own tables.\n"
                     ".TH TERCET 1 \"\" \"tercet " TERCET_VERSION "\" \"User Commands\"\n"
                     ".SH NAME\n");
    put_name(out, d->root);
    put_synopsis(out, d);
    strbuf_puts(out, ".SH DESCRIPTION\n");
    put_line(out, d->root->about);
    put_line(
        out,
        "JSON Lines text goes in, a trained Hugging Face model directory comes out, computed by one rank or "
        "several. Results go to standard output; progress, log lines and errors to standard error.");
    if (d->root->more)
        put_line(out, d->root->more);
    put_verbs(out, d);
    put_run_file(out);
    if (d->root->statuses)
        put_statuses(out, d->root->statuses);
    put_pairs(out, "ENVIRONMENT", environment, sizeof environment / sizeof environment[0]);
    put_pairs(out, "FILES", files, sizeof files / sizeof files[0]);
    put_examples(out, d);
}

/* ---- */

static error_t parse_man(int key, char *value, struct argp_state *state)
{
    if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    argp_error(state, "nothing is expected here, not \"%s\"", value);
    return 0;
}

int cmd_man(int argc, char **argv, struct cli *cli)
{
    /* No options: a table of none, not even an empty one, which argp-help.c of glibc leaks. */
    static const struct argp argp = {
        NULL,
        parse_man,
        NULL,
        "Example:\n  tercet man | man -l -\n\n"
        "Prints the manual page, in the form that man reads. An installed tercet "
        "has it as man tercet.",
        NULL,
        NULL,
        NULL};
    int status = cli_parse(cli, &argp, argc, argv, NULL);
    if (status != 0)
        return status;
    struct description d;
    struct strbuf text = {0};
    describe_program(cli, &d);
    put_page(&text, &d);
    return cli_print(cli, &text);
}
