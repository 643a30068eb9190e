/* A thread beside the caller's for one long job at a time: writing files while something else goes on.
 *
 *     struct background *b;
 *     background_create(&b, err);
 *     background_start(b, job, context);    // returns at once
 *     … something else; background_busy(b) asks …
 *     background_wait(b);                   // what the job wrote may be read now
 *     background_free(b);
 *
 * The thread is made once, so that starting a job cannot fail, on the CPUs that the caller may use at that
 * moment: make it before a pool pins the caller to one. It takes no signals. */
#ifndef TERCET_BASE_BACKGROUND_H
#define TERCET_BASE_BACKGROUND_H

#include "base/error.h"

#include <stdbool.h>

enum { BACKGROUND_STACK = 512 << 10 }; /* bytes */

struct background;

int background_create(struct background **out, struct error *err);
/* Waits for the job. NULL is allowed. */
void background_free(struct background *b);

/* Begins job(context) in the thread. The one before must be over (background_busy is false). */
void background_start(struct background *b, void (*job)(void *context), void *context);
bool background_busy(struct background *b);
/* Returns when no job is under way. */
void background_wait(struct background *b);

#endif
