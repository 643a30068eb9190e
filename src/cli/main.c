/* tercet: the table of verbs, and what surrounds every one of them. */
#include "cli/cli.h"

#include "cli/dispatch.h"
#include "cli/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In the order of the help. */
static const struct verb verbs[] = {
    {"train", "trains a model", cmd_train},
    {"plan", "the memory that each rank of a run needs", cmd_plan},
    {"eval", "the loss of a model on text", cmd_eval},
    {"generate", "continues a text", cmd_generate},
    {"logits", "all logits of one sequence, for comparing with other programs", cmd_logits},
    {"tokenizer", "trains a tokenizer; turns text into token ids and back", cmd_tokenizer},
    {"data", "what a data set holds: documents, tokens, lengths, what is dropped", cmd_data},
    {"inspect", "what a model directory, checkpoint, safetensors or event file holds", cmd_inspect},
    {"doctor", "what this machine offers, how fast it is, and what is missing", cmd_doctor},
    {"version", "version, build options and libraries", cmd_version},
    {NULL, NULL, NULL},
};

static const struct verb_table table = {
    "tercet", "tercet train run.yaml -n 2", "Trains language models, and shows what they are made of.",
    " Verbs that report print one JSON object with --json.\n"
    "Exit status: 0 done; 1 failed; 2 wrong usage, configuration or input; 128+N ended by\n"
    "signal N after saving.",
    verbs};

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
    struct cli cli = {0};
    char version[] = "version";
    hold_standard_streams();
    log_to_stream(&cli.log, &cli.stream, stderr);
    /* What ends other programs here makes a write fail, and is told as such. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    argp_err_exit_status = ERROR_INPUT;
    if (atexit(output_finish) != 0)
        return ERROR_RUN;
    if (argc > 1 && strcmp(argv[1], "--version") == 0)
        argv[1] = version;
    return dispatch(&table, argc, argv, &cli);
}
