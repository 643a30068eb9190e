/* What generate, logits and eval share: options, the backend, a model directory that is run forward. */
#ifndef TERCET_CLI_INFERENCE_H
#define TERCET_CLI_INFERENCE_H

#include "cli/cli.h"
#include "comm/comm.h"
#include "infer/decoder.h"

struct inference_options {
    enum dtype compute;
    int threads; /* 0: cores / ranks of this machine */
    const char *backend;
};

/* --dtype, --threads and --backend. A child of the verb's own parser: at ARGP_KEY_INIT its child input is
 * a struct inference_options, which gets its defaults. */
extern const struct argp inference_argp;

int inference_backend(struct backend **out, const struct inference_options *options, struct comm *comm,
                      struct error *err);

/* A model directory with its weights open. */
struct inference {
    struct model *model;
    struct safetensors_set weights;
    struct backend *backend;
    struct decoder *decoder;
};

/* Opens and checks configuration and weights; reads no weights. Keys and tensors that are not understood are
 * named through log. Zero-initialise; inference_close in any case. */
int inference_open(struct inference *in, const char *directory, const struct log *log, struct error *err);
/* Makes backend and decoder, and reads the weights. */
int inference_start(struct inference *in, const struct inference_options *options, int64_t capacity,
                    int64_t logits_rows, struct comm *comm, struct error *err);
void inference_close(struct inference *in);

#endif
