#include "config/schema.h"

#include <stddef.h>
#include <string.h>

static const struct choice add_bos[] = {
    {"auto", RUN_ADD_BOS_AUTO, false},
    {"true", RUN_ADD_BOS_TRUE, false},
    {"false", RUN_ADD_BOS_FALSE, false},
    {NULL, 0, false},
};
static const struct choice bad_lines[] = {
    {"error", DATA_BAD_LINES_ERROR, false},
    {"skip", DATA_BAD_LINES_SKIP, false},
    {NULL, 0, false},
};
static const struct choice train_dtypes[] = {
    {"fp32", RUN_DTYPE_FP32, false},
    {"bf16", RUN_DTYPE_BF16, false},
    {"fp16", RUN_DTYPE_FP16, true},
    {NULL, 0, false},
};
static const struct choice file_dtypes[] = {
    {"auto", RUN_DTYPE_AUTO, false},
    {"fp32", RUN_DTYPE_FP32, false},
    {"bf16", RUN_DTYPE_BF16, false},
    {"fp16", RUN_DTYPE_FP16, false},
    {NULL, 0, false},
};
static const struct choice recompute[] = {
    {"none", RUN_RECOMPUTE_NONE, false},
    {"selective", RUN_RECOMPUTE_SELECTIVE, false},
    {"full", RUN_RECOMPUTE_FULL, false},
    {NULL, 0, false},
};
static const struct choice optimizers[] = {
    {"adamw", RUN_OPTIMIZER_ADAMW, false},
    {NULL, 0, false},
};
static const struct choice schedules[] = {
    {"constant", RUN_SCHEDULE_CONSTANT, false},   {"linear", RUN_SCHEDULE_LINEAR, false},
    {"cosine", RUN_SCHEDULE_COSINE, false},       {"wsd", RUN_SCHEDULE_WSD, false},
    {"multistep", RUN_SCHEDULE_MULTISTEP, false}, {NULL, 0, false},
};
static const struct choice decays[] = {
    {"linear", RUN_DECAY_LINEAR, false},
    {"cosine", RUN_DECAY_COSINE, false},
    {"sqrt", RUN_DECAY_SQRT, false},
    {NULL, 0, false},
};
static const struct choice transports[] = {
    {"auto", COMM_AUTO, false},
    {"shm", COMM_SHM, false},
    {"mpi", COMM_MPI, false},
    {NULL, 0, false},
};
static const struct choice backends[] = {
    {"auto", 0, false}, {"cpu", 0, false}, {"reference", 0, false}, {"guarded", 0, false}, {NULL, 0, false},
};
static const struct choice instruction_sets[] = {
    {"auto", 0, false},   {"portable", 0, false},    {"avx2", 0, false},
    {"avx512", 0, false}, {"avx512_bf16", 0, false}, {NULL, 0, false},
};
static const struct choice products[] = {
    {"auto", 0, false}, {"own", 0, false}, {"onednn", 0, false}, {NULL, 0, false}};

#define AT(member) offsetof(struct run_config, member)
#define HUGE_INT 9223372036854775807.0
#define ANY_COUNT .max = HUGE_INT
#define ANY_NUMBER .max = 1e300

const struct schema_key schema_keys[SCHEMA_KEYS] = {
    {"output", KEY_TEXT, AT(output), .path = true, .required = true, .free = true,
     .help = "directory of this run: the resolved run file, metrics and checkpoints"},
    {"seed", KEY_INT, AT(seed), "42", ANY_COUNT, .help = "of everything random"},
    {"tokenizer", KEY_TEXT, AT(tokenizer), .path = true, .shown = "the one in model.from",
     .help = "directory with a tokenizer.json, or the file itself"},

    {"model.from", KEY_TEXT, AT(model.from), .path = true,
     .help = "model directory to start from; this or model.config is required"},
    {"model.config", KEY_MODEL, AT(model.config), .path = true,
     .help = "start from random weights: the path of a config.json, or its keys as a map"},

    {"data.train", KEY_TEXTS, AT(data.train), .path = true, .required = true,
     .help =
         "files and globs: JSONL (one object a line) or .txt (one document a file), also .gz, .zst and .xz"},
    {"data.eval", KEY_TEXTS, AT(data.eval), .path = true, .help = "the same, for evaluation"},
    {"data.text", KEY_TEXT, AT(data.text), "text", .help = "field of a JSONL line that holds the text"},
    {"data.seq_len", KEY_INT, AT(data.seq_len), .required = true, .min = 1, .max = 1 << 24,
     .help = "positions of one row"},
    {"data.pack", KEY_BOOL, AT(data.pack), "true",
     .help = "several documents in a row, each attending to itself only; false: one a row, cut and padded"},
    {"data.add_bos", KEY_CHOICE, AT(data.add_bos), "auto", .choices = add_bos,
     .help = "BOS before each document; auto: as Transformers would for this tokenizer"},
    {"data.add_eos", KEY_BOOL, AT(data.add_eos), "true",
     .help = "EOS after each document that does not end in it"},
    {"data.special_in_text", KEY_BOOL, AT(data.special_in_text), "false",
     .help = "the text of a special token inside a document becomes that token"},
    {"data.shuffle", KEY_BOOL, AT(data.shuffle), "true",
     .help = "visit the documents of each epoch in another order; false: in file order"},
    {"data.bad_lines", KEY_CHOICE, AT(data.bad_lines), "error", .choices = bad_lines,
     .help = "a line that cannot be used ends the run, or is skipped, counted and shown"},
    {"data.cache", KEY_TEXT, AT(data.cache), .path = true, .shown = "token-cache beside the output",
     .free = true, .help = "directory of tokenized text, shared between runs"},

    {"train.steps", KEY_INT, AT(train.steps), .min = 1, ANY_COUNT,
     .help = "optimizer steps; this or train.epochs is required"},
    {"train.epochs", KEY_NUMBER, AT(train.epochs), .above_min = true, .max = 1e9,
     .help = "passes over the data, fractions too: ceil(epochs x steps of an epoch) steps"},
    {"train.global_batch", KEY_INT, AT(train.global_batch), .required = true, .min = 1, .max = INT32_MAX,
     .help = "rows of one optimizer step, over all ranks"},
    {"train.micro_batch", KEY_INT, AT(train.micro_batch), .required = true, .min = 1, .max = INT32_MAX,
     .help = "rows of one forward and backward pass on one rank"},
    {"train.dtype", KEY_CHOICE, AT(train.dtype), "bf16", .choices = train_dtypes,
     .help = "type of weights and activations in a step; masters and optimizer states are always fp32"},
    {"train.recompute", KEY_CHOICE, AT(train.recompute), "none", .free = true, .choices = recompute,
     .help = "activations computed again in the backward pass instead of kept"},
    {"train.lanes", KEY_INT, AT(train.lanes), "0", ANY_COUNT,
     .help = "chains of gradient addition, 0: one a micro-batch; the bits of a run depend on it"},

    {"optimizer.name", KEY_CHOICE, AT(optimizer.name), "adamw", .choices = optimizers,
     .help = "the optimizer"},
    {"optimizer.lr", KEY_NUMBER, AT(optimizer.lr), "5e-5", ANY_NUMBER, .help = "highest learning rate"},
    {"optimizer.betas", KEY_PAIR, AT(optimizer.betas), "[0.9, 0.95]", .max = 1, .below_max = true,
     .help = "decay of the two moments"},
    {"optimizer.eps", KEY_NUMBER, AT(optimizer.eps), "1e-8", .above_min = true, ANY_NUMBER,
     .help = "added to the root of the second moment"},
    {"optimizer.weight_decay", KEY_NUMBER, AT(optimizer.weight_decay), "0.1", ANY_NUMBER,
     .help = "decoupled weight decay, of matrices only"},
    {"optimizer.decay_all", KEY_BOOL, AT(optimizer.decay_all), "false",
     .help = "weight decay of norms, biases and embeddings too"},
    {"optimizer.clip", KEY_NUMBER, AT(optimizer.clip), "1.0", ANY_NUMBER,
     .help = "highest global gradient norm; 0: no clipping"},

    {"schedule.name", KEY_CHOICE, AT(schedule.name), "linear", .choices = schedules,
     .help = "course of the learning rate after warm-up"},
    {"schedule.warmup_steps", KEY_INT, AT(schedule.warmup_steps), "0", ANY_COUNT,
     .help = "W: update k (from 0) of the first W has the rate lr (k+1)/W"},
    {"schedule.min_lr", KEY_NUMBER, AT(schedule.min_lr), "0", ANY_NUMBER,
     .help = "learning rate at the end of linear, cosine and wsd"},
    {"schedule.hf_schedule", KEY_BOOL, AT(schedule.hf_schedule), "false",
     .help = "warm up as Hugging Face does: k/W, so that the first update has the rate 0"},
    {"schedule.decay_steps", KEY_INT, AT(schedule.decay_steps), .shown = "required with wsd", .min = 1,
     .max = HUGE_INT,
     .help = "wsd: the rate stays at lr until so many steps before the end, and then falls to min_lr"},
    {"schedule.decay", KEY_CHOICE, AT(schedule.decay), "linear", .choices = decays,
     .help = "wsd: course of that fall; sqrt: lr + (min_lr - lr) sqrt(p)"},
    {"schedule.at", KEY_NUMBERS, AT(schedule.at), .shown = "required with multistep", .max = 1,
     .above_min = true, .below_max = true,
     .help = "multistep: shares of all steps from which on the rate is another, ascending"},
    {"schedule.factor", KEY_NUMBERS, AT(schedule.factor), .shown = "required with multistep", .max = 1,
     .above_min = true,
     .help = "multistep: what lr is multiplied by from each of them on (not by the one before)"},

    {"parallel.zero", KEY_INT, AT(parallel.zero), "3", .free = true, .max = 3,
     .help = "ZeRO stage: what is sharded over ranks (1 states, 2 gradients too, 3 parameters too)"},
    {"parallel.threads", KEY_INT, AT(parallel.threads), "0", .free = true, .max = 4096,
     .help = "threads of a rank; 0: cores / ranks of this machine"},
    {"parallel.transport", KEY_CHOICE, AT(parallel.transport), "auto", .free = true, .choices = transports,
     .help = "how ranks exchange data; auto: shm with -n, mpi under an MPI launcher"},
    {"parallel.overlap", KEY_BOOL, AT(parallel.overlap), "true", .free = true,
     .help = "fetch the next unit while one computes"},
    {"parallel.watchdog", KEY_NUMBER, AT(parallel.watchdog), "60", .free = true, .min = 0.1, .max = 1e9,
     .help = "seconds without a sign of life after which a rank counts as lost (stopped, or starved by the "
             "machine; never by long computing or writing); for the ranks of -n 2 and more, not under an MPI "
             "launcher"},

    {"backend.name", KEY_TEXT, AT(backend.name), "auto", .choices = backends,
     .help = "where ops are computed; reference and guarded are for tests"},
    {"backend.isa", KEY_TEXT, AT(backend.isa), "auto", .choices = instruction_sets,
     .help = "highest instruction set that may be used; for tests"},
    {"backend.products", KEY_TEXT, AT(backend.products), "auto", .choices = products,
     .help = "whose kernels make matrix products; auto: own, but oneDNN's on AMX and below AVX2"},

    {"checkpoint.every", KEY_INT, AT(checkpoint.every), "500", .free = true, ANY_COUNT,
     .help = "steps between checkpoints; 0: none by steps; the last step is always saved"},
    {"checkpoint.minutes", KEY_NUMBER, AT(checkpoint.minutes), "0", .free = true, .max = 1e9,
     .help = "minutes between checkpoints; 0: none by time"},
    {"checkpoint.keep", KEY_INT, AT(checkpoint.keep), "3", .free = true, ANY_COUNT,
     .help = "newest checkpoints to keep; 0: all"},
    {"checkpoint.dtype", KEY_CHOICE, AT(checkpoint.dtype), "auto", .free = true, .choices = file_dtypes,
     .help = "type of the model files; auto: train.dtype"},

    {"eval.every", KEY_INT, AT(eval.every), "500", .free = true, ANY_COUNT,
     .help = "steps between evaluations on data.eval; 0: only at the end"},
    {"eval.at_start", KEY_BOOL, AT(eval.at_start), "true", .free = true,
     .help = "evaluate before the first step"},
    {"log.every", KEY_INT, AT(log.every), "1", .free = true, .min = 1, ANY_COUNT,
     .help = "steps between progress lines and TensorBoard points; metrics.jsonl has every step"},
    {"log.tensorboard", KEY_BOOL, AT(log.tensorboard), "true", .free = true,
     .help = "write TensorBoard event files"},
};

static const struct {
    const char *name, *help;
} sections[] = {
    {"model", "What is trained."},
    {"data", "What it is trained on."},
    {"train", "How long, and in which portions."},
    {"optimizer", "The update."},
    {"schedule", "The learning rate over time."},
    {"parallel", "How the work is spread. Nothing here changes a bit of the results."},
    {"backend", "What computes."},
    {"checkpoint", "What is saved, and when."},
    {"eval", "Evaluation during training."},
    {"log", "What is recorded."},
};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

int schema_find(const char *name)
{
    for (int i = 0; i < SCHEMA_KEYS; i++)
        if (strcmp(schema_keys[i].name, name) == 0)
            return i;
    return -1;
}

const char *schema_section(int i)
{
    return i < SECTIONS ? sections[i].name : NULL;
}

bool schema_is_section(const char *name)
{
    for (int i = 0; i < SECTIONS; i++)
        if (strcmp(sections[i].name, name) == 0)
            return true;
    return false;
}

const char *schema_section_help(const char *section, size_t length)
{
    for (int i = 0; i < SECTIONS; i++)
        if (strlen(sections[i].name) == length && strncmp(sections[i].name, section, length) == 0)
            return sections[i].help;
    return "The run.";
}

const char *schema_leaf(const char *name, size_t *section_length)
{
    const char *dot = strchr(name, '.');
    *section_length = dot != NULL ? (size_t)(dot - name) : 0;
    return dot != NULL ? dot + 1 : name;
}
