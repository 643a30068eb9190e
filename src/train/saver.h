/* Saving while the run goes on.
 *
 * What a checkpoint holds (masters, moments) changes in an update and nowhere else. So a save begins right
 * after one, and a thread of each rank writes what the rank owns into its place in the checkpoint's files
 * while the forward and backward passes of the next step compute. Nothing is copied beforehand. Only what the
 * next update would overwrite has to be read before it: saver_hold waits for that, and as a rule need not.
 * Bringing the files to the disk, checksums, the manifest and the name come after it, beside whatever the run
 * does then.
 *
 *     struct saver *s;
 *     saver_create(&s, e, &options, thread, err)
 *     after the update of a step that is to be saved:
 *         saver_begin(s, &state, err)                     // collective
 *     before each update:
 *         saver_hold(s)
 *     after each step, with what ranks agree on there anyway:
 *         int64_t agreed = saver_progress(s);             // … the maximum over all ranks …
 *         saver_advance(s, agreed, err)                   // collective
 *         if (saver_completed(s, &done)) … report it …
 *     at the end:
 *         saver_finish(s, err)                            // collective: waits until all of it is done
 *     saver_free(s)
 *
 * A save goes through two phases. WRITING: each rank's thread writes and syncs its parts. When all have,
 * SEALING: rank 0's thread adds the small files, the checksums and the manifest, renames the directory and
 * removes what is no longer kept. All calls that ranks make together are the caller's thread's: comm is not
 * used beside it. Where writing fails on any rank, all of them learn it from the agreement; the directory is
 * removed, and the checkpoints before it stay. */
#ifndef TERCET_TRAIN_SAVER_H
#define TERCET_TRAIN_SAVER_H

#include "base/background.h"
#include "train/checkpoint.h"

struct saver;

/* A save that is complete. */
struct saver_done {
    int64_t step, bytes; /* bytes: of its tensors */
    double seconds,
        held; /* from its beginning to its name; of that, how long this rank's run waited for it */
    char path[4096];
};

/* Bytes that one rank's saver needs besides. */
int64_t saver_bytes(void);

/* Not collective. The options' texts, the engine and the thread are borrowed; the thread is for this alone.
 */
int saver_create(struct saver **out, struct engine *e, const struct checkpoint_options *options,
                 struct background *thread, struct error *err);
/* What is under way is broken off and removed. NULL is allowed. */
void saver_free(struct saver *s);

/* A save that is still under way is finished first. Free space is checked. */
int saver_begin(struct saver *s, const struct checkpoint_state *state, struct error *err);
/* Returns when this rank's masters and moments may change. Not collective. */
void saver_hold(struct saver *s);
/* How far this rank is: 0 nothing left to do in this phase, 1 at work, 2 failed. Does not wait. */
int64_t saver_progress(struct saver *s);
/* `agreed`: the largest of all ranks' saver_progress, which each asked before. On the rank that failed *err
 * says why; it waits for nothing but the disk. */
int saver_advance(struct saver *s, int64_t agreed, struct error *err);
int saver_finish(struct saver *s, struct error *err);
/* True once for each save that has become complete. */
bool saver_completed(struct saver *s, struct saver_done *done);

#endif
