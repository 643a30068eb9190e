/* The manifest, which checkpoints a run has, and one that is being written. Private to the room. */
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

/* One set of tensors of a checkpoint. */
struct checkpoint_set {
    enum shard_kind kind;
    const char *prefix; /* of its files' names: "" or "training/" */
    struct weights_layout layout;
};

/* A checkpoint on its way. Rank 0 makes the directory and seals it; the ranks write the tensors in between.
 */
struct checkpoint_draft {
    const struct model *model;
    struct checkpoint_options options;
    struct checkpoint_state state;
    char *final, *temporary, *training; /* directories */
    struct manifest_list list;
};
/* The names, from options and state; `owner` is rank 0's process. */
int checkpoint_draft_name(struct checkpoint_draft *d, int64_t owner, struct error *err);
/* Checks free space and makes the directory, empty. */
int checkpoint_draft_begin(struct checkpoint_draft *d, struct error *err);
/* All tensors are on the disk: everything else, the manifest, the name, `last`; older checkpoints go. */
int checkpoint_draft_seal(struct checkpoint_draft *d, const struct checkpoint_set *sets, int count,
                          struct error *err);
/* Removes what there is of it, as far as it can. */
void checkpoint_draft_drop(struct checkpoint_draft *d);
void checkpoint_draft_free(struct checkpoint_draft *d); /* zeroed afterwards; safe on a zeroed one */

/* Removes the checkpoints that were set aside. */
int checkpoint_drop_aside(const char *output, struct error *err);

#endif
