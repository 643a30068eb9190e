/* A directory of its own for a test that writes files.
 *
 *     struct scratch scratch;
 *     scratch_open(&scratch);                       // asserts that it worked
 *     char *path = scratch_path(&scratch, "a.txt"); // valid until scratch_close
 *     scratch_close(&scratch);                      // removes all of it */
#ifndef TERCET_TESTS_SCRATCH_H
#define TERCET_TESTS_SCRATCH_H

enum { SCRATCH_PATHS = 64 };

struct scratch {
    char directory[256];
    char *paths[SCRATCH_PATHS];
    int count;
};

void scratch_open(struct scratch *s);
char *scratch_path(struct scratch *s, const char *name);
/* Entries of the scratch directory (not recursive). */
int scratch_entries(const struct scratch *s);
void scratch_close(struct scratch *s);

#endif
