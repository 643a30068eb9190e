/* Ranks of one machine that share memory; with one rank, the transport `self`.
 *
 * Windows are pieces of one memfd that every rank inherited. Its extents are given out by a list that each
 * rank keeps for itself: all ranks make the same calls in the same order, so all lists are the same and
 * no offset needs to be sent. Pages are reserved with fallocate when a window is made and punched out by
 * the last rank that frees it. With one rank a window is private memory. */
#ifndef TERCET_COMM_SHM_H
#define TERCET_COMM_SHM_H

#include "comm/comm.h"
#include "comm/region.h"

/* Fills *c for one rank of the region. c->signals is left NULL. */
int shm_open_rank(struct comm *c, struct region *g, int rank, struct error *err);
void shm_close_rank(struct comm *c);

#endif
