/* tercet: the table of verbs, and what surrounds every one of them. */
#include "cli/cli.h"

#include "cli/dispatch.h"
#include "cli/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* In the order of the help. */
static const struct verb verbs[] = {
    {"train", "trains a model", cmd_train, NULL},
    {"plan", "the memory that each rank of a run needs", cmd_plan, NULL},
    {"eval", "the loss of a model on text", cmd_eval, NULL},
    {"generate", "continues a text", cmd_generate, NULL},
    {"logits", "all logits of one sequence, for comparing with other programs", cmd_logits, NULL},
    {"tokenizer", "trains a tokenizer; turns text into token ids and back", cmd_tokenizer, NULL},
    {"data", "what a data set holds: documents, tokens, lengths, what is dropped", cmd_data, NULL},
    {"inspect", "what a model directory, checkpoint, safetensors or event file holds", cmd_inspect, NULL},
    {"doctor", "what this machine offers, how fast it is, and what is missing", cmd_doctor, NULL},
    {"completion", "a script with which bash or zsh completes tercet's command lines", cmd_completion, NULL},
    {"man", "this program's manual page", cmd_man, NULL},
    {"version", "version, build options and libraries", cmd_version, "--version"},
    {NULL, NULL, NULL, NULL},
};

static const struct verb_table table = {
    .program = "tercet",
    .example = "tercet train run.yaml -n 2",
    .about = "Trains language models, and shows what they are made of.",
    .more = "Verbs that report print one JSON object with --json.",
    .statuses =
        "0 done; 1 failed; 2 wrong usage, configuration or input;\n128+N ended by signal N after saving",
    .verbs = verbs,
};

/* Where a standard stream is closed, the next file opened would take its place and receive what is meant
 * for the stream. Held open the wrong way round, its use fails as it should. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) != -1)
            continue;
        /* cppcheck-suppress leakReturnValNotUsed ; it is to stay open */
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(ERROR_RUN);
    }
}

int main(int argc, char **argv)
{
    struct cli cli = {.verbs = &table};
    hold_standard_streams();
    log_to_stream(&cli.log, &cli.stream, stderr);
    /* What ends other programs here makes a write fail, and is told as such. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    argp_err_exit_status = ERROR_INPUT;
    if (atexit(output_finish) != 0)
        return ERROR_RUN;
    return dispatch(&table, argc, argv, &cli);
}
