/* The ranks of an MPI launcher, talking in messages.
 *
 * Everything is started non-blocking and waited for with MPI_Testall and short naps, so that a waiting rank
 * leaves its core to the others. Gathers are MPI_Iallgatherv; exchanges and moves are sends and receives
 * on a communicator of their own, a tag for each exchange. Counts beyond what an int holds are cut in
 * pieces or counted in larger units. */
#ifndef TERCET_COMM_MPI_H
#define TERCET_COMM_MPI_H

#include "comm/comm.h"

/* Joins the group (`started`: ranks that the launcher started, 0 if it does not say), runs body, leaves.
 * See comm_run. Only where comm_has_mpi(). */
int mpi_run(int started, const struct log *log, comm_body *body, void *context, struct error *err);

/* For tests: the largest count given to one MPI call, INT_MAX at first. Every rank sets the same, before any
 * gather or exchange is created. No effect on other transports. */
void mpi_limit_count(struct comm *c, int most);

#endif
