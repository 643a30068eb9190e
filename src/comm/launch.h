/* Ranks of one machine: forked, watched and ended by a launcher. */
#ifndef TERCET_COMM_LAUNCH_H
#define TERCET_COMM_LAUNCH_H

#include "comm/comm.h"

/* Forks options->ranks ranks (at least 2), runs body in each and waits for them; see comm_run_with. Each rank
 * dies with the launcher (PR_SET_PDEATHSIG), so a killed launcher leaves none behind; all they share is
 * memory without a name. A rank ends in exit(), so that leak checkers and buffered output see its end. */
int launch_run(const struct comm_options *options, comm_body *body, void *context, struct error *err);

#endif
