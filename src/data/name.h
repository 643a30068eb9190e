/* What a file's name says about its content. Private to the room. */
#ifndef TERCET_DATA_NAME_H
#define TERCET_DATA_NAME_H

#include <stdbool.h>

enum text_packing { TEXT_PLAIN, TEXT_GZIP, TEXT_ZSTD, TEXT_XZ };

struct text_kind {
    bool jsonl; /* otherwise one document a file */
    enum text_packing packing;
};

/* Returns 0, or -1 for a name of no known kind. Case does not matter. */
int text_kind_of(const char *path, struct text_kind *out);

#endif
