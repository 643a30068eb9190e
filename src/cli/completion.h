/* Completion scripts, and what they quote text with. */
#ifndef TERCET_CLI_COMPLETION_H
#define TERCET_CLI_COMPLETION_H

#include "cli/describe.h"

/* Append a script for bash (4.3 or newer; needs nothing else), and one for zsh, which works as a function
 * file
 * `_tercet` in $fpath and when it is sourced. Check out->failed. */
void completion_bash(const struct description *d, struct strbuf *out);
void completion_zsh(const struct description *d, struct strbuf *out);

/* Appends `length` bytes of text as one word of a shell, in quotes where it needs them. */
void completion_put_word(struct strbuf *out, const char *text, size_t length);

#endif
