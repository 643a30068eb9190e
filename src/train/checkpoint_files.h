/* The manifest, and which checkpoints a run has. Private to the room. */
#ifndef TERCET_TRAIN_CHECKPOINT_FILES_H
#define TERCET_TRAIN_CHECKPOINT_FILES_H

#include "train/checkpoint.h"

enum { CHECKPOINT_VERSION = 1 };

struct manifest_entry {
    char name[128]; /* relative to the checkpoint */
    int64_t bytes;
    uint64_t hash; /* XXH3-64 */
};
struct manifest_list {
    struct manifest_entry *items;
    int64_t count, capacity;
};
int manifest_list_add(struct manifest_list *list, const char *name, int64_t bytes, uint64_t hash,
                      struct error *err);
int manifest_list_write(const struct manifest_list *list, const char *directory, struct error *err);
int manifest_list_read(struct manifest_list *list, const char *directory, struct error *err);
void manifest_list_free(struct manifest_list *list);

/* The checkpoints of a run that have a manifest, oldest first by their numbers. */
struct checkpoint_listing {
    struct {
        char *path;
        int64_t step;
    } * items;
    int64_t count, capacity;
};
int checkpoint_list(const char *output, struct checkpoint_listing *out, struct error *err);
void checkpoint_listing_free(struct checkpoint_listing *listing);

/* Removes the checkpoints that were set aside. */
int checkpoint_drop_aside(const char *output, struct error *err);

#endif
