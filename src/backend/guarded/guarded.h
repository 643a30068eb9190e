/* The guarded backend: another backend (cpu or reference), held to the contract of a device.
 *
 * Device memory is unreadable and unwritable outside the op or the transfer that uses it: a host access
 * is a segmentation fault. Ops and transfers are queued and computed only when somebody waits (or the
 * queue is full: then the oldest), stream by stream, as late as waits allow. What a call will write is
 * filled with 0xFF bytes (NaN) when it is enqueued, and workspace before it is used: so a missing
 * wait reads poison. During an op only the pages of its operands are open, inputs read-only where no
 * output shares the page. Operands that were neither allocated here nor adopted are an error, and so is
 * backend_begin_access() on memory that queued work still touches.
 *
 * Everything is under one lock; it is for tests, not for speed. */
#ifndef TERCET_BACKEND_GUARDED_GUARDED_H
#define TERCET_BACKEND_GUARDED_GUARDED_H

#include "backend/backend.h"

/* Takes `inner` over, whether it works or not. */
int guarded_create(struct backend **out, struct backend *inner, struct error *err);

#endif
