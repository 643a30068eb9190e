#include "support/scratch.h"

#include "base/file.h"
#include "support/cmocka.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void scratch_open(struct scratch *s)
{
    const char *parent = getenv("TMPDIR");
    memset(s, 0, sizeof *s);
    int n = snprintf(s->directory, sizeof s->directory, "%s/tercet-test-XXXXXX", parent ? parent : "/tmp");
    assert_true(n > 0 && (size_t)n < sizeof s->directory);
    assert_non_null(mkdtemp(s->directory));
}

char *scratch_path(struct scratch *s, const char *name)
{
    assert_true(s->count < SCRATCH_PATHS);
    char *path = file_join(s->directory, name);
    assert_non_null(path);
    s->paths[s->count++] = path;
    return path;
}

int scratch_entries(const struct scratch *s)
{
    DIR *stream = opendir(s->directory);
    assert_non_null(stream);
    int count = 0;
    for (struct dirent *e = readdir(stream); e; e = readdir(stream))
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(stream);
    return count;
}

void scratch_close(struct scratch *s)
{
    struct error err;
    assert_int_equal(file_remove_tree(s->directory, &err), 0);
    for (int i = 0; i < s->count; i++)
        free(s->paths[i]);
    memset(s, 0, sizeof *s);
}
