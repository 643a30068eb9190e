/* The script for bash: tables as functions with one case a verb, option or key, and below them the code that
 * looks up where in the line the cursor stands. */
#include "cli/completion.h"

#include "config/runfile.h"

#include <string.h>

static const char opening[] =
    "# shellcheck shell=bash\n"
    "# Completion of tercet's command lines for bash 4.3 or newer, written by `tercet completion bash`.\n"
    "\n"
    "# What may follow a verb: verbs of its own, or options and the kinds of its first and further "
    "arguments.\n"
    "_tercet_verb()\n"
    "{\n"
    "    case $1 in\n";
static const char before_values[] = "    esac\n"
                                    "}\n"
                                    "\n"
                                    "# What an option of a verb takes, and whether only after a '='.\n"
                                    "_tercet_option()\n"
                                    "{\n"
                                    "    case $1 in\n";
static const char before_settings[] = "    esac\n"
                                      "}\n"
                                      "\n"
                                      "# What a key of the run file takes.\n"
                                      "_tercet_setting()\n"
                                      "{\n"
                                      "    case $1 in\n";
static const char before_keys[] = "    esac\n"
                                  "}\n"
                                  "\n"
                                  "_tercet_keys()\n"
                                  "{\n"
                                  "    words=(";
static const char before_sections[] = ")\n"
                                      "}\n"
                                      "\n"
                                      "_tercet_sections()\n"
                                      "{\n"
                                      "    words=(";
static const char code[] =
    ")\n"
    "}\n"
    "\n"
    "# COMPREPLY for the text $2 of kind $1; $3 is what stands before it in the same word.\n"
    "_tercet_reply()\n"
    "{\n"
    "    local kind=$1 text=$2 before=$3 candidate\n"
    "    local -a found=()\n"
    "    if [[ $kind = setting && $text = *=* ]]; then\n"
    "        before+=${text%%=*}= kind='' words=()\n"
    "        _tercet_setting \"${text%%=*}\"\n"
    "        text=${text#*=}\n"
    "    elif [[ $kind = setting ]]; then\n"
    "        _tercet_keys\n"
    "        words=(\"${words[@]/%/=}\") kind=words\n"
    "    elif [[ $kind = key ]]; then\n"
    "        local -a sections\n"
    "        _tercet_sections\n"
    "        sections=(\"${words[@]}\")\n"
    "        _tercet_keys\n"
    "        words+=(\"${sections[@]}\") kind=words\n"
    "    fi\n"
    "    case $kind in\n"
    "    file)\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t found < <(compgen -f -- \"$text\")\n"
    "        ;;\n"
    "    directory)\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t found < <(compgen -d -- \"$text\")\n"
    "        ;;\n"
    "    words)\n"
    "        for candidate in \"${words[@]}\"; do\n"
    "            # What begins with a dash is offered where one was typed.\n"
    "            if [[ $candidate = \"$text\"* && ( -n $text || $candidate != -* ) ]]; then\n"
    "                found+=(\"$candidate\")\n"
    "            fi\n"
    "        done\n"
    "        ;;\n"
    "    esac\n"
    "    if ((${#found[@]} == 1)) && [[ ${found[0]} = *= ]]; then\n"
    "        compopt -o nospace 2>/dev/null\n"
    "    fi\n"
    "    # Readline replaces the part of the word behind the last '=' only.\n"
    "    for candidate in \"${found[@]}\"; do\n"
    "        candidate=$before$candidate\n"
    "        COMPREPLY+=(\"${candidate#\"$kept\"}\")\n"
    "    done\n"
    "}\n"
    "\n"
    "_tercet()\n"
    "{\n"
    "    local current path='' file='' last='' ended='' kept part first='' rest='' kind='' attached=''\n"
    "    local -a line=() verbs=() options=() words=()\n"
    "    local -i i position=0\n"
    "    COMPREPLY=()\n"
    "    # Readline parts words at '='; here they are whole again.\n"
    "    for ((i = 1; i <= COMP_CWORD; i++)); do\n"
    "        part=${COMP_WORDS[i]}\n"
    "        if ((${#line[@]} > 0)) && [[ $part = '=' || ${COMP_WORDS[i - 1]} = '=' ]]; then\n"
    "            line[-1]+=$part\n"
    "        else\n"
    "            line+=(\"$part\")\n"
    "        fi\n"
    "    done\n"
    "    ((${#line[@]} > 0)) || return 0\n"
    "    current=${line[-1]}\n"
    "    unset 'line[-1]'\n"
    "    [[ $part != '=' ]] || part=''\n"
    "    kept=${current%\"$part\"}\n"
    "\n"
    "    _tercet_verb ''\n"
    "    for ((i = 0; i < ${#line[@]} && ${#verbs[@]} > 0; i++)); do\n"
    "        [[ ${line[i]} != help ]] || continue\n"
    "        path+=${path:+ }${line[i]} verbs=()\n"
    "        _tercet_verb \"$path\"\n"
    "    done\n"
    "    if ((${#verbs[@]} > 0)); then\n"
    "        words=(\"${verbs[@]}\")\n"
    "        _tercet_reply words \"$current\" ''\n"
    "        return 0\n"
    "    fi\n"
    "\n"
    "    for (( ; i < ${#line[@]}; i++)); do\n"
    "        if [[ $last ]]; then\n"
    "            last=''\n"
    "        elif [[ $ended || ${line[i]} != -?* ]]; then\n"
    "            position+=1\n"
    "            ((position > 1)) || file=${line[i]}\n"
    "        elif [[ ${line[i]} = -- ]]; then\n"
    "            ended=1\n"
    "        else\n"
    "            kind='' attached=''\n"
    "            _tercet_option \"$path ${line[i]}\"\n"
    "            [[ ! $kind || $attached ]] || last=${line[i]}\n"
    "        fi\n"
    "    done\n"
    "\n"
    "    kind='' words=()\n"
    "    if [[ $last ]]; then\n"
    "        _tercet_option \"$path $last\"\n"
    "        _tercet_reply \"$kind\" \"$current\" ''\n"
    "    elif [[ ! $ended && $current = --*=* ]]; then\n"
    "        _tercet_option \"$path ${current%%=*}\"\n"
    "        _tercet_reply \"$kind\" \"${current#*=}\" \"${current%%=*}=\"\n"
    "    elif [[ ! $ended && $current = -* ]]; then\n"
    "        words=(\"${options[@]}\")\n"
    "        _tercet_reply words \"$current\" ''\n"
    "    else\n"
    "        verbs=() words=()\n"
    "        _tercet_verb \"$path\"\n"
    "        kind=$first\n"
    "        ((position == 0)) || kind=$rest\n"
    "        if [[ $kind = setting_or_file ]]; then\n"
    "            kind='file'\n"
    "            [[ $file != *.@(yaml|yml|json) ]] || kind=setting\n"
    "        fi\n"
    "        _tercet_reply \"$kind\" \"$current\" ''\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _tercet tercet\n";

static void put_words(struct strbuf *out, const char *name, const struct described_value *value)
{
    const char *at = value->text, *word;
    int length = 0;
    strbuf_printf(out, " %s=(", name);
    for (const char *between = ""; (word = describe_word(value, &at, &length)) != NULL; between = " ") {
        strbuf_puts(out, between);
        completion_put_word(out, word, (size_t)length);
    }
    strbuf_puts(out, ")");
}

/* "first=file"; the words too where the kind is one of a few. */
static void put_kind(struct strbuf *out, const char *name, const struct described_value *value)
{
    static const char *const names[] = {
        [VALUE_NONE] = "none",           [VALUE_OTHER] = "other", [VALUE_FILE] = "file",
        [VALUE_DIRECTORY] = "directory", [VALUE_WORDS] = "words", [VALUE_KEY] = "key",
        [VALUE_SETTING] = "setting"};
    strbuf_printf(out, " %s='%s'", name, names[value->kind]);
    if (value->kind == VALUE_WORDS)
        put_words(out, "words", value);
}

static void put_group(struct strbuf *out, const struct verb_table *table)
{
    const char *word;
    strbuf_puts(out, "        verbs=(");
    for (const struct verb *verb = table->verbs; verb->name; verb++) {
        completion_put_word(out, verb->name, strlen(verb->name));
        strbuf_puts(out, " ");
        if (verb->option) {
            completion_put_word(out, verb->option, strlen(verb->option));
            strbuf_puts(out, " ");
        }
    }
    for (int i = 0; (word = dispatch_help_word(i)) != NULL; i++) {
        strbuf_puts(out, i > 0 ? " " : "");
        completion_put_word(out, word, strlen(word));
    }
    strbuf_puts(out, ")\n");
}

/* An option by its long name and its letter; one with an optional argument also with the '=' before it. */
static void put_option(struct strbuf *out, const struct described_option *o, const char *between)
{
    const char letter[] = {'-', o->letter, '\0'};
    strbuf_puts(out, between);
    if (o->name)
        strbuf_printf(out, "--%s", o->name);
    if (o->name && o->optional)
        strbuf_printf(out, " --%s=", o->name);
    if (o->letter) {
        strbuf_puts(out, o->name ? " " : "");
        completion_put_word(out, letter, strlen(letter));
    }
}

static void put_verb(struct strbuf *out, const struct described_verb *verb)
{
    struct described_option options[DESCRIBE_MOST_OPTIONS];
    int count = describe_options(verb->argp, options);
    struct described_arguments a = describe_arguments(verb->argp);
    strbuf_puts(out, "        options=(");
    for (int i = 0; i < count; i++)
        put_option(out, &options[i], i > 0 ? " " : "");
    strbuf_puts(out, ")\n       ");
    put_kind(out, "first", &a.first);
    if (a.files_too)
        strbuf_puts(out, " rest='setting_or_file'");
    else
        put_kind(out, "rest", &a.rest);
    strbuf_puts(out, "\n");
}

static void put_values(struct strbuf *out, const struct described_verb *verb)
{
    struct described_option options[DESCRIBE_MOST_OPTIONS];
    int count = describe_options(verb->argp, options);
    for (int i = 0; i < count; i++) {
        const struct described_option *o = &options[i];
        if (!o->argument)
            continue;
        struct described_value value = describe_value(o->argument);
        strbuf_puts(out, "    ");
        if (o->name)
            strbuf_printf(out, "'%s --%s'", verb->path, o->name);
        if (o->letter)
            strbuf_printf(out, "%s'%s -%c'", o->name ? " | " : "", verb->path, o->letter);
        strbuf_puts(out, ")");
        put_kind(out, "kind", &value);
        strbuf_puts(out, o->optional ? " attached=1 ;;\n" : " ;;\n");
    }
}

static void put_settings(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++) {
        const char *word;
        if (!key.path && !run_config_key_word(i, 0))
            continue;
        strbuf_printf(out, "    %s)", key.name);
        if (key.path)
            strbuf_puts(out, " kind='file'");
        else
            strbuf_puts(out, " kind='words' words=(");
        for (int n = 0; !key.path && (word = run_config_key_word(i, n)) != NULL; n++) {
            strbuf_puts(out, n > 0 ? " " : "");
            completion_put_word(out, word, strlen(word));
        }
        strbuf_puts(out, key.path ? " ;;\n" : ") ;;\n");
    }
}

static void put_keys(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++)
        strbuf_printf(out, "\n        %s", key.name);
}

static void put_sections(struct strbuf *out)
{
    struct run_key key;
    for (int i = 0; run_config_key(i, &key); i++) {
        const char *dot = strchr(key.name, '.');
        if (key.section && dot)
            strbuf_printf(out, " %.*s", (int)(dot - key.name), key.name);
    }
}

void completion_bash(const struct description *d, struct strbuf *out)
{
    strbuf_puts(out, opening);
    strbuf_puts(out, "    '')\n");
    put_group(out, d->root);
    strbuf_puts(out, "        ;;\n");
    for (int i = 0; i < d->count; i++) {
        strbuf_printf(out, "    '%s')\n", d->verbs[i].path);
        if (d->verbs[i].group)
            put_group(out, d->verbs[i].group);
        else
            put_verb(out, &d->verbs[i]);
        strbuf_puts(out, "        ;;\n");
    }
    strbuf_puts(out, before_values);
    for (int i = 0; i < d->count; i++)
        if (d->verbs[i].argp)
            put_values(out, &d->verbs[i]);
    strbuf_puts(out, before_settings);
    put_settings(out);
    strbuf_puts(out, before_keys);
    put_keys(out);
    strbuf_puts(out, before_sections);
    put_sections(out);
    strbuf_puts(out, code);
}
