/* Whole training runs of a small model inside a test, on ranks of either transport, with what each rank saw
 * told to the test through a file that all of them map.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (runs_is_rank(argc, argv))             // this process is one of mpirun's
 *             return runs_rank(argv, watch);
 *         …
 *     }
 *     struct runs *r = runs_open();                 // text, tokenizer, the file
 *     runs_train(r, &ask, watch);                   // fails the test when the run does
 *     const struct seen *s = runs_record(r->table, rank);
 *     runs_close(r);
 *
 * `watch` is called in each rank: before the engine is made (step 0, engine NULL) and after each step. What
 * it finds goes into its rank's record. */
#ifndef TERCET_TESTS_TRAIN_RUNS_H
#define TERCET_TESTS_TRAIN_RUNS_H

#include "base/file.h"
#include "support/cmocka.h"
#include "support/scratch.h"
#include "text/train.h"
#include "train/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS_RANKS = 5, RUNS_RECORD = 4096, RUNS_VOCABULARY = 331, RUNS_SKIPPED = 77 };

/* Zeros mean what is in brackets. */
struct ask {
    int ranks;     /* (1) */
    bool messages; /* under mpirun */
    int stage, threads /* (1) */;
    enum recompute recompute;
    enum dtype compute;
    bool no_overlap, untied, bfloat;
    char backend[32]; /* (cpu) */
    int64_t steps /* (2) */, global_batch /* (5) */, micro_batch /* (1) */, seq_len /* (19) */;
    int64_t hidden /* (60) */, intermediate /* (100) */, layers /* (3) */;
    int64_t eval_every; /* (0) evaluate the same text, too */
};

struct runs_table {
    struct ask ask;
    char directory[256];
    char problem[2048]; /* of a run under mpirun, in the words of one of its ranks */
    int64_t rows_per_epoch, parameters;
    struct engine_memory planned;
    struct train_report report;
    _Alignas(64) unsigned char record[RUNS_RANKS][RUNS_RECORD];
};

struct runs {
    struct scratch scratch;
    const char *file;
    struct runs_table *table;
};

typedef void runs_watch(struct runs_table *table, int rank, struct engine *e, int64_t step);

static inline void *runs_record(struct runs_table *table, int rank)
{
    return table->record[rank];
}

/* ---- in a rank ---- */

static inline int64_t runs_or(int64_t value, int64_t otherwise)
{
    return value ? value : otherwise;
}

enum { RUNS_HEADS = 5 };

static inline json_t *runs_model(const struct ask *a)
{
    return json_pack("{s:s, s:I, s:I, s:i, s:i, s:I, s:i, s:b, s:b, s:b}", "model_type", "llama",
                     "hidden_size", (json_int_t)runs_or(a->hidden, 60), "num_hidden_layers",
                     (json_int_t)runs_or(a->layers, 3), "num_attention_heads", RUNS_HEADS,
                     "num_key_value_heads", 1, "intermediate_size", (json_int_t)runs_or(a->intermediate, 100),
                     "vocab_size", RUNS_VOCABULARY, "tie_word_embeddings", !a->untied, "attention_bias",
                     a->untied, "mlp_bias", a->untied);
}

struct runs_context {
    struct runs_table *table;
    runs_watch *watch;
    int rank;
};

static inline void runs_on_step(void *context, struct engine *e, int64_t step)
{
    struct runs_context *c = context;
    c->watch(c->table, c->rank, e, step);
}

static inline int runs_execute(struct runs_context *c, struct comm *comm, const struct train_options *o,
                               int *stop_signal, struct error *err)
{
    struct train_run *run;
    struct train_report report;
    const struct log log = {NULL, NULL, NULL};
    if (train_prepare(&run, comm, o, &log, err) != 0)
        return -1;
    if (c->rank == 0) {
        c->table->rows_per_epoch = train_plan(run)->rows->rows_per_epoch;
        c->table->parameters = train_plan(run)->parameters;
        c->table->planned = train_plan(run)->memory;
    }
    train_observe(run, runs_on_step, c);
    c->watch(c->table, c->rank, NULL, 0);
    int status = train_execute(run, &report, err);
    if (status == 0)
        *stop_signal = report.stop_signal;
    if (status == 0 && c->rank == 0)
        c->table->report = report;
    train_free(run);
    return status;
}

static inline int runs_body(struct comm *comm, void *context, struct error *err)
{
    struct runs_context *c = context;
    const struct ask *a = &c->table->ask;
    char text[300], cache[300], output[300], tokenizer[300];
    snprintf(text, sizeof text, "%s/text.jsonl", c->table->directory);
    snprintf(cache, sizeof cache, "%s/cache", c->table->directory);
    snprintf(output, sizeof output, "%s/out", c->table->directory);
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", c->table->directory);
    const char *const texts[] = {text};
    c->rank = comm_rank(comm);
    json_t *model = runs_model(a);
    if (!model)
        return error_memory(err, 0, "a model's configuration"), ERROR_RUN;
    struct train_options o = {
        .output = output,
        .seed = 42,
        .model_inline = model,
        .model_place = "the test",
        .tokenizer = tokenizer,
        .train = {texts, 1},
        .eval = {texts, a->eval_every ? 1 : 0},
        .field = "text",
        .cache_root = cache,
        .add_eos = true,
        .pack = true,
        .shuffle = true,
        .steps = runs_or(a->steps, 2),
        .global_batch = runs_or(a->global_batch, 5),
        .engine = {.compute = a->bfloat ? DTYPE_BF16 : DTYPE_F32,
                   .recompute = a->recompute,
                   .micro_batch = runs_or(a->micro_batch, 1),
                   .seq_len = runs_or(a->seq_len, 19),
                   .stage = a->stage,
                   .overlap = !a->no_overlap},
        .backend = {.name = a->backend[0] ? a->backend : "cpu",
                    .isa = "auto",
                    .threads = a->threads ? a->threads : 1},
        .adamw = {0.9, 0.95, 1e-8, 0.1, 1.0},
        .schedule = {.kind = SCHEDULE_CONSTANT, .lr = 1e-3},
        .checkpoint_type = a->bfloat ? DTYPE_BF16 : DTYPE_F32,
        .eval_every = a->eval_every,
        .log_every = 1,
        .tensorboard = true,
        .run_yaml = "seed: 42\n",
        .overwrite = true,
    };
    int stopped_by = 0, status = runs_execute(c, comm, &o, &stopped_by, err);
    json_decref(model);
    /* A run that somebody stopped is none to compare with. */
    return status != 0 ? (int)err->kind : stopped_by ? 128 + stopped_by : 0;
}

static inline struct runs_table *runs_map(const char *file)
{
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct runs_table)) != 0)
        return NULL;
    void *memory = mmap(NULL, sizeof(struct runs_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static inline bool runs_is_rank(int argc, char **argv)
{
    return argc == 3 && strcmp(argv[1], "--rank") == 0;
}

static inline void runs_tell(void *context, enum log_level level, const char *text)
{
    struct runs_table *table = context;
    if (level == LOG_ERROR)
        snprintf(table->problem, sizeof table->problem, "%s", text);
}

/* The whole life of a process that mpirun started. */
static inline int runs_rank(char **argv, runs_watch *watch)
{
    struct error err = {0};
    struct runs_table *table = runs_map(argv[2]);
    if (!table)
        return 1;
    const struct log log = {.line = runs_tell, .context = table};
    struct runs_context c = {table, watch, 0};
    int status = comm_run(0, COMM_AUTO, &log, runs_body, &c, &err);
    if (err.kind != ERROR_NONE)
        error_format(&err, table->problem, sizeof table->problem);
    return status;
}

/* ---- in the test ---- */

static inline int runs_wait(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* mpirun, silent; `file` NULL: only whether it is there. */
static inline int runs_mpirun(int ranks, const char *file)
{
    char count[16], self[4096] = {0};
    snprintf(count, sizeof count, "%d", ranks);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return runs_wait(pid);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    /* Sanitizers report through the file below; what the MPI library never frees is not ours. */
    if (!getenv("TERCET_TEST_SHOW"))
        dup2(null, STDERR_FILENO);
    char sanitizer[512];
    const char *before = getenv("ASAN_OPTIONS");
    snprintf(sanitizer, sizeof sanitizer, "%s%sdetect_leaks=0", before ? before : "", before ? ":" : "");
    setenv("ASAN_OPTIONS", sanitizer, 1);
    setenv("TSAN_OPTIONS", "report_bugs=0:atexit_sleep_ms=0", 1); /* nor are its threads */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    if (file)
        execlp("mpirun", "mpirun", "-n", count, self, "--rank", file, (char *)NULL);
    else
        execlp("mpirun", "mpirun", "--version", (char *)NULL);
    _exit(127);
}

/* False, with the reason shown, where ranks cannot pass messages. */
static inline bool runs_have_messages(void)
{
    if (comm_has_mpi() && runs_mpirun(1, NULL) == 0)
        return true;
    print_message("SKIP: no MPI, or no mpirun\n");
    return false;
}

static inline void runs_train(struct runs *r, const struct ask *ask, runs_watch *watch)
{
    struct runs_table *t = r->table;
    struct error err = {0};
    int ranks = ask->ranks ? ask->ranks : 1, status;
    memset(t, 0, sizeof *t);
    t->ask = *ask;
    t->ask.ranks = ranks;
    memcpy(t->directory, r->scratch.directory, sizeof t->directory);
    if (ask->messages) {
        status = runs_mpirun(ranks, r->file);
    } else {
        struct runs_context c = {t, watch, 0};
        status = comm_run(ranks, COMM_AUTO, NULL, runs_body, &c, &err);
        if (err.kind != ERROR_NONE)
            error_format(&err, t->problem, sizeof t->problem);
    }
    if (status != 0)
        fail_msg("%d ranks%s, stage %d: status %d: %s", ranks, ask->messages ? " with messages" : "",
                 ask->stage, status, t->problem);
}

/* Documents of 1 to 30 words, so that rows of packed text have borders of documents in them. */
static inline void runs_write_text(const struct runs *r)
{
    static const char *const words[] = {"one", "two", "a", "sparrow", "stands", "on", "three", "cards"};
    char path[300];
    struct bpe_trainer *trainer;
    struct error err;
    snprintf(path, sizeof path, "%s/text.jsonl", r->scratch.directory);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(bpe_trainer_create(&trainer, &err), 0);
    for (unsigned i = 0; i < 40; i++) {
        char text[400] = "";
        size_t n = 0;
        for (unsigned w = 0; w <= i * 7 % 30; w++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s%u", w ? " " : "",
                                  words[(i * i + w * 3) % 8], i * w % 13);
        fprintf(f, "{\"text\": \"%s\"}\n", text);
        assert_int_equal(bpe_trainer_add(trainer, text, n, &err), 0);
    }
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/tokenizer", r->scratch.directory);
    struct bpe_options options = {.vocab_size = RUNS_VOCABULARY};
    assert_int_equal(bpe_trainer_write(trainer, &options, path, NULL, &err), 0);
    bpe_trainer_free(trainer);
}

static inline struct runs *runs_open(void)
{
    struct runs *r = calloc(1, sizeof *r);
    assert_non_null(r);
    scratch_open(&r->scratch);
    r->file = scratch_path(&r->scratch, "table");
    r->table = runs_map(r->file);
    assert_non_null(r->table);
    runs_write_text(r);
    return r;
}

static inline void runs_close(struct runs *r)
{
    munmap(r->table, sizeof *r->table);
    scratch_close(&r->scratch);
    free(r);
}

#endif
