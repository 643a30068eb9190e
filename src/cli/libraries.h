/* The libraries that this process runs with: their versions as loaded, not those of the headers. */
#ifndef TERCET_CLI_LIBRARIES_H
#define TERCET_CLI_LIBRARIES_H

#include <stdbool.h>

enum { LIBRARIES = 9, LIBRARY_VERSION = 64 };

struct libraries {
    struct {
        const char *name;
        char version[LIBRARY_VERSION];
    } items[LIBRARIES];
    bool pcre2_jit; /* this PCRE2 compiles patterns to machine code */
};

void libraries_collect(struct libraries *out);

#endif
