/* tercet completion. */
#include "cli/cli.h"

#include "cli/completion.h"

#include <string.h>

typedef void write_script(const struct description *d, struct strbuf *out);

static error_t parse_completion(int key, char *value, struct argp_state *state)
{
    write_script **script = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (*script)
            argp_error(state, "one shell at a time; \"%s\" is too many", value);
        if (strcmp(value, "bash") == 0)
            *script = completion_bash;
        else if (strcmp(value, "zsh") == 0)
            *script = completion_zsh;
        else
            argp_error(state, "there are scripts for bash and zsh, not for \"%s\"", value);
        return 0;
    case ARGP_KEY_END:
        if (!*script)
            argp_error(state, "for which shell? Give bash or zsh");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_completion(int argc, char **argv, struct cli *cli)
{
    /* No options: a table of none, not even an empty one, which argp-help.c of glibc leaks. */
    static const struct argp argp = {
        NULL,
        parse_completion,
        "bash|zsh",
        "Example:\n  source <(tercet completion bash)\n\n"
        "Prints a script with which the shell completes verbs, options, keys of the run file and their "
        "values."
        "\vThe line of the example, with bash or zsh, belongs in ~/.bashrc or ~/.zshrc (there behind "
        "compinit). "
        "An installed tercet needs no such line where the shell looks in the directories of its prefix.",
        NULL,
        NULL,
        NULL};
    write_script *script = NULL;
    int status = cli_parse(cli, &argp, argc, argv, &script);
    if (status != 0)
        return status;
    struct description d;
    struct strbuf text = {0};
    describe_program(cli, &d);
    script(&d, &text);
    return cli_print(cli, &text);
}

void completion_put_word(struct strbuf *out, const char *text, size_t length)
{
    bool plain = length > 0;
    for (size_t i = 0; i < length; i++)
        plain = plain && text[i] != '\0' &&
                strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=/", text[i]);
    if (plain) {
        strbuf_append(out, text, length);
        return;
    }
    strbuf_puts(out, "'");
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\'')
            strbuf_puts(out, "'\\''");
        else
            strbuf_append(out, &text[i], 1);
    strbuf_puts(out, "'");
}
