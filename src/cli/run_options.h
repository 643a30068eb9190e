/* From a run file to what a run takes: shared by train and plan. */
#ifndef TERCET_CLI_RUN_OPTIONS_H
#define TERCET_CLI_RUN_OPTIONS_H

#include "config/runfile.h"
#include "train/run.h"

/* Everything but what the command line alone says (resume, overwrite, plan_ranks). The options borrow from
 * `config` and `yaml`. */
void run_options_fill(const struct run_config *config, const char *yaml, struct train_options *out);

#endif
