#include "cli/inference.h"

#include "base/pool.h"
#include "train/weights.h"

#include <string.h>

enum { OPTION_DTYPE = CLI_OWN + 0x80, OPTION_THREADS, OPTION_BACKEND, MAX_THREADS = 4096 };

static const struct argp_option options_table[] = {
    {"dtype", OPTION_DTYPE, "fp32|bf16", 0, "Compute in fp32 (default) or bf16", 0},
    {"threads", OPTION_THREADS, "N", 0, "Threads; 0 (default) takes all cores", 0},
    {"backend", OPTION_BACKEND, "auto|cpu|reference|guarded|guarded-reference", 0,
     "Where ops are computed (auto)", 0},
    {0},
};

static void set_dtype(struct inference_options *o, const char *name, struct argp_state *state)
{
    if (dtype_from_name(name, &o->compute) != 0 || (o->compute != DTYPE_F32 && o->compute != DTYPE_BF16))
        argp_error(state, "--dtype: expected fp32 or bf16, not \"%s\"", name);
}

static void set_backend(struct inference_options *o, const char *name, struct argp_state *state)
{
    static const char *const names[] = {"auto", "cpu", "reference", "guarded", "guarded-reference"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            o->backend = names[i];
    if (strcmp(name, o->backend) != 0)
        argp_error(state,
                   "--backend: expected auto, cpu, reference, guarded or guarded-reference, not \"%s\"",
                   name);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct inference_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        *o = (struct inference_options){.compute = DTYPE_F32, .backend = "auto"};
        return 0;
    case OPTION_DTYPE:
        set_dtype(o, text, state);
        return 0;
    case OPTION_THREADS:
        o->threads = (int)cli_parse_int(state, "--threads", text, 0, MAX_THREADS);
        return 0;
    case OPTION_BACKEND:
        set_backend(o, text, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp inference_argp = {options_table, parse, NULL, NULL, NULL, NULL, NULL};

int inference_backend(struct backend **out, const struct inference_options *o, struct comm *comm,
                      struct error *err)
{
    int cpus = pool_cpus(), local = comm_local_size(comm), threads = o->threads;
    if (threads == 0)
        threads = cpus / local > 0 ? cpus / local : 1;
    struct backend_options options = {.name = o->backend,
                                      .isa = "auto",
                                      .threads = threads,
                                      .pin = local * threads <= cpus,
                                      .first_cpu = comm_local_rank(comm) * threads};
    return backend_create(out, &options, err);
}

int inference_open(struct inference *in, const char *directory, const struct log *log, struct error *err)
{
    if (!file_is_directory(directory))
        return error_set(err, ERROR_INPUT, directory,
                         "give a directory with config.json and model.safetensors",
                         file_exists(directory) ? "this is a file, not a model directory"
                                                : "there is no such model directory");
    if (model_load_config(&in->model, directory, log, err) != 0)
        return -1;
    return weights_open(&in->weights, in->model, directory, log, err);
}

int inference_start(struct inference *in, const struct inference_options *o, int64_t capacity,
                    int64_t logits_rows, struct comm *comm, struct error *err)
{
    struct decoder_options options = {
        .compute = o->compute, .capacity = capacity, .logits_rows = logits_rows};
    if (inference_backend(&in->backend, o, comm, err) != 0 ||
        decoder_create(&in->decoder, in->model, comm, in->backend, &options, err) != 0)
        return -1;
    return decoder_load(in->decoder, &in->weights, err);
}

void inference_close(struct inference *in)
{
    decoder_free(in->decoder);
    backend_destroy(in->backend);
    safetensors_set_close(&in->weights);
    model_free(in->model);
    *in = (struct inference){0};
}
