/* Reading the text that the kernel tells of itself in /proc and /sys.
 *
 *     char *text = proc_text("", "/proc/meminfo");
 *     if (text)
 *         proc_line(text, "MemTotal", value, sizeof value);
 *     free(text);
 */
#ifndef TERCET_BASE_PROC_H
#define TERCET_BASE_PROC_H

#include <stdbool.h>
#include <stddef.h>

/* A text file of at most 4 MiB at `path`, with `root` before it (as a rule ""); NULL where it cannot be read.
 * The caller frees. */
char *proc_text(const char *root, const char *path);
/* The value of the first line "name : value", without the blanks around the colon and cut to `size`; empty
 * where there is none. */
void proc_line(const char *text, const char *name, char *out, size_t size);
/* Whether `word` is one of the words of `list`, which has blanks between them. */
bool proc_word(const char *list, const char *word);

#endif
