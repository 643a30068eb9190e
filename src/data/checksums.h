/* Checksums of files, remembered from run to run in one JSON file, so that a file that is known to be
 * unchanged is not read again. A file is known by its path, device, inode, size, modification and
 * change time (the last cannot be set by programs). A file changed within the last seconds is not
 * remembered, for it could change again without its times moving. Private to the room. */
#ifndef TERCET_DATA_CHECKSUMS_H
#define TERCET_DATA_CHECKSUMS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct file_identity {
    int64_t device, inode, size, mtime_ns, ctime_ns;
};

struct checksum_entry {
    char *path;
    struct file_identity identity;
    uint64_t checksum;
};

struct checksum_record {
    char *path; /* of the JSON file */
    struct checksum_entry *entries;
    int64_t count, capacity;
    int64_t sorted; /* entries from the file, in order of path; new ones follow */
    bool changed;
    double settled_seconds; /* how old a file's times must be for it to be remembered */
};

/* Reads DIRECTORY/checksums.json; a missing or damaged one counts as empty. -1 only without memory. */
int checksums_load(struct checksum_record *record, const char *directory, struct error *err);
/* Writes it back if it changed. Entries whose file is gone are dropped. */
int checksums_save(struct checksum_record *record, struct error *err);
void checksums_free(struct checksum_record *record);

int file_identify(const char *path, struct file_identity *out, struct error *err);
bool file_identity_equal(const struct file_identity *a, const struct file_identity *b);

/* The identity and XXH3-64 of the file at an absolute path, read only where it has to be. ERROR_INPUT
 * when it cannot be read, ERROR_RUN when it changes meanwhile. */
int checksums_of(struct checksum_record *record, const char *path, struct file_identity *identity,
                 uint64_t *checksum, struct error *err);

#endif
