/* The script for zsh: one function a verb, which hands zsh's _arguments the verb's options with their help.
 */
#include "cli/completion.h"

#include "config/runfile.h"

#include <string.h>

static const char opening[] =
    "#compdef tercet\n"
    "# Completion of tercet's command lines for zsh, written by `tercet completion zsh`.\n"
    "\n"
    "# key=value of the run file.\n"
    "_tercet_setting()\n"
    "{\n"
    "    local -a keys\n"
    "    keys=(\n";
static const char before_settings[] = "    )\n"
                                      "    if [[ $PREFIX != *=* ]]; then\n"
                                      "        _describe -t keys 'key of the run file' keys -q -S =\n"
                                      "        return\n"
                                      "    fi\n"
                                      "    local key=${PREFIX%%=*} expl\n"
                                      "    compset -P 1 '*='\n"
                                      "    case $key in\n";
static const char before_sections[] = "    esac\n"
                                      "}\n"
                                      "\n"
                                      "# A key of the run file or a section.\n"
                                      "_tercet_key()\n"
                                      "{\n"
                                      "    local expl\n"
                                      "    _wanted keys expl 'key of the run file' compadd --";
static const char before_verbs[] = "\n"
                                   "}\n"
                                   "\n"
                                   "# Keys behind a run file, else files.\n"
                                   "_tercet_setting_or_file()\n"
                                   "{\n"
                                   "    if [[ ${line[1]} == *.(yaml|yml|json) ]]; then\n"
                                   "        _tercet_setting\n"
                                   "    else\n"
                                   "        _files\n"
                                   "    fi\n"
                                   "}\n";
static const char closing[] =
    "\n"
    "# As a function file this is run when first needed; sourced, it only says what it is for.\n"
    "if [[ ${funcstack[1]} == _tercet ]]; then\n"
    "    _tercet \"$@\"\n"
    "else\n"
    "    compdef _tercet tercet\n"
    "fi\n";

/* Text inside single quotes, with a backslash before each of `special`. */
static void put_quoted(struct strbuf *out, const char *text, size_t length, const char *special)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\'') {
            strbuf_puts(out, "'\\''");
            continue;
        }
        if (text[i] != '\0' && strchr(special, text[i]))
            strbuf_puts(out, "\\");
        strbuf_append(out, &text[i], 1);
    }
}

/* ":name:action" of an _arguments specification. */
static void put_value(struct strbuf *out, const struct described_value *value, const char *action)
{
    static const char *const actions[] = {[VALUE_NONE] = " ",
                                          [VALUE_OTHER] = " ",
                                          [VALUE_FILE] = "_files",
                                          [VALUE_DIRECTORY] = "_files -/",
                                          [VALUE_WORDS] = "",
                                          [VALUE_KEY] = "_tercet_key",
                                          [VALUE_SETTING] = "_tercet_setting"};
    const char *at = value->text, *word;
    int length = 0;
    strbuf_puts(out, ":");
    put_quoted(out, value->text, (size_t)value->length, "\\:");
    strbuf_printf(out, ":%s", action ? action : actions[value->kind]);
    if (value->kind != VALUE_WORDS)
        return;
    for (const char *between = "("; (word = describe_word(value, &at, &length)) != NULL; between = " ")
        strbuf_printf(out, "%s%.*s", between, length, word);
    strbuf_puts(out, ")");
}

/* Options may be given again: '*' says so, since the tables do not tell which have a use then. */
static void put_option(struct strbuf *out, const struct described_option *o)
{
    struct described_value value = describe_value(o->argument);
    for (int form = 0; form < 2; form++) {
        bool letter = form == 0;
        if (letter ? !o->letter : !o->name)
            continue;
        strbuf_puts(out, "        '*");
        if (letter)
            strbuf_printf(out, "-%c%s", o->letter, !o->argument ? "" : o->optional ? "-" : "+");
        else
            strbuf_printf(out, "--%s%s", o->name, !o->argument ? "" : o->optional ? "=-" : "=");
        strbuf_puts(out, "[");
        put_quoted(out, o->help, strlen(o->help), "\\[]");
        strbuf_puts(out, "]");
        if (o->argument) {
            strbuf_puts(out, o->optional ? ":" : "");
            put_value(out, &value, NULL);
        }
        strbuf_puts(out, "' \\\n");
    }
}

static void put_function_name(struct strbuf *out, const char *path)
{
    strbuf_puts(out, "_tercet");
    if (path[0])
        strbuf_puts(out, "_verb_");
    for (; *path; path++)
        strbuf_append(out, *path == ' ' ? "_" : path, 1);
}

static void put_verb(struct strbuf *out, const struct described_verb *verb)
{
    struct described_option options[DESCRIBE_MOST_OPTIONS];
    int count = describe_options(verb->argp, options);
    struct described_arguments a = describe_arguments(verb->argp);
    strbuf_puts(out, "\n");
    put_function_name(out, verb->path);
    strbuf_puts(out, "()\n{\n    local -a line\n    local -A opt_args\n    _arguments -s -S : \\\n");
    for (int i = 0; i < count; i++)
        put_option(out, &options[i]);
    /* Of a free text there is nothing to complete, and _arguments would complete no options beside it. */
    if (a.first.kind != VALUE_NONE && a.first.kind != VALUE_OTHER) {
        strbuf_puts(out, "        '1");
        put_value(out, &a.first, NULL);
        strbuf_puts(out, "' \\\n");
    }
    if (a.rest.kind != VALUE_NONE && a.rest.kind != VALUE_OTHER) {
        strbuf_puts(out, "        '*");
        put_value(out, &a.rest, a.files_too ? "_tercet_setting_or_file" : NULL);
        strbuf_puts(out, "' \\\n");
    }
    strbuf_puts(out, "        && return 0\n    return 1\n}\n");
}

static void put_described(struct strbuf *out, const char *name, const char *line)
{
    strbuf_puts(out, "        '");
    put_quoted(out, name, strlen(name), "\\:");
    strbuf_puts(out, ":");
    put_quoted(out, line, strlen(line), "\\");
    strbuf_puts(out, "'\n");
}

/* A function for a table of verbs: completes them, or hands over to theirs. */
static void put_group(struct strbuf *out, const char *path, const struct verb_table *table)
{
    const char *word;
    strbuf_puts(out, "\n");
    put_function_name(out, path);
    strbuf_puts(out, "()\n{\n    local context state state_descr curcontext=$curcontext\n"
                     "    local -a line verbs\n    local -A opt_args\n    verbs=(\n");
    for (const struct verb *verb = table->verbs; verb->name; verb++)
        put_described(out, verb->name, verb->line);
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++)
        if (word[0] != '-')
            put_described(out, word, "this list, or the help of a verb");
    strbuf_puts(out, "    )\n    _arguments -C \\\n");
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++)
        if (word[0] == '-')
            strbuf_printf(out, "        '(- : *)%s[List the verbs]' \\\n", word);
    for (const struct verb *verb = table->verbs; verb->name; verb++)
        if (verb->option) {
            strbuf_printf(out, "        '(- : *)%s[", verb->option);
            put_quoted(out, verb->line, strlen(verb->line), "\\[]");
            strbuf_puts(out, "]' \\\n");
        }
    strbuf_puts(out, "        '1:verb:->verb' '*::argument:->rest' && return 0\n"
                     "    case $state in\n"
                     "    (verb) _describe -t verbs verb verbs ;;\n"
                     "    (rest)\n"
                     "        case ${line[1]} in\n");
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++)
        if (word[0] != '-')
            strbuf_printf(out, "        (%s) (( CURRENT > 2 )) || _describe -t verbs verb verbs ;;\n", word);
    for (const struct verb *verb = table->verbs; verb->name; verb++) {
        strbuf_printf(out, "        (%s) ", verb->name);
        put_function_name(out, path);
        strbuf_printf(out, "%s%s ;;\n", path[0] ? "_" : "_verb_", verb->name);
    }
    strbuf_puts(out, "        esac\n        ;;\n    esac\n}\n");
}

static void put_keys(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++)
        put_described(out, key.name, key.help);
}

static void put_settings(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++) {
        const char *word;
        strbuf_printf(out, "    (%s) ", key.name);
        if (key.path) {
            strbuf_puts(out, "_files");
        } else if (run_config_key_word(i, 0)) {
            strbuf_puts(out, "_wanted values expl value compadd --");
            for (int n = 0; (word = run_config_key_word(i, n)) != NULL; n++) {
                strbuf_puts(out, " ");
                completion_put_word(out, word, strlen(word));
            }
        } else {
            struct strbuf takes = {0};
            run_config_key_takes(i, &takes);
            strbuf_puts(out, "_message ");
            completion_put_word(out, takes.data ? takes.data : "", takes.length);
            out->failed |= takes.failed;
            strbuf_free(&takes);
        }
        strbuf_puts(out, " ;;\n");
    }
}

static void put_key_names(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++) {
        const char *dot = strchr(key.name, '.');
        if (key.section && dot)
            strbuf_printf(out, " \\\n        %.*s", (int)(dot - key.name), key.name);
        strbuf_printf(out, " \\\n        %s", key.name);
    }
}

void completion_zsh(const struct description *d, struct strbuf *out)
{
    strbuf_puts(out, opening);
    put_keys(out);
    strbuf_puts(out, before_settings);
    put_settings(out);
    strbuf_puts(out, before_sections);
    put_key_names(out);
    strbuf_puts(out, before_verbs);
    for (int i = 0; i < d->count; i++)
        if (d->verbs[i].group)
            put_group(out, d->verbs[i].path, d->verbs[i].group);
        else
            put_verb(out, &d->verbs[i]);
    put_group(out, "", d->root);
    strbuf_puts(out, closing);
}
