/* tercet tokenizer train. */
#ifndef TERCET_CLI_TOKENIZER_TRAIN_H
#define TERCET_CLI_TOKENIZER_TRAIN_H

#include "cli/cli.h"

cli_verb tokenizer_train;

#endif
