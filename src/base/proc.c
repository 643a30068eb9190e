#include "base/proc.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>

enum { FILE_LIMIT = 4 << 20, PATH_SIZE = 4096 };

char *proc_text(const char *root, const char *path)
{
    char full[PATH_SIZE], *text;
    size_t size;
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full || file_read(full, FILE_LIMIT, &text, &size, NULL) != 0)
        return NULL;
    return text;
}

void proc_line(const char *text, const char *name, char *out, size_t size)
{
    size_t length = strlen(name);
    out[0] = '\0';
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        size_t at = length;
        if (n > length && strncmp(line, name, length) == 0) {
            at += strspn(line + at, " \t");
            if (line[at] == ':') {
                at++;
                at += strspn(line + at, " \t");
                if (at < n)
                    snprintf(out, size, "%.*s", (int)(n - at < size ? n - at : size - 1), line + at);
                return;
            }
        }
        line += n + (line[n] == '\n');
    }
}

bool proc_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0' || at[n] == '\n'))
            return true;
    return false;
}
