#include "train/saver.h"

#include "base/clock.h"
#include "train/checkpoint_files.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files beyond this size are cut in shards, as Transformers does. */
enum { FILE_LIMIT_GB = 5, MAX_SETS = 4 };

enum phase { IDLE, WRITING, SEALING };
enum { PROGRESS_DONE, PROGRESS_BUSY, PROGRESS_FAILED };

struct saver {
    struct engine *e;
    struct background *thread;
    struct checkpoint_draft draft;
    struct checkpoint_options options;
    struct checkpoint_set sets[MAX_SETS];
    int set_count;
    struct file_part *parts; /* of all files of all sets, in order; not open: this rank has nothing in it */
    int part_count;
    struct weights_buffers buffers;
    enum phase phase;
    /* Between the thread and the caller. */
    pthread_mutex_t lock;
    pthread_cond_t was_read;
    bool read_all;       /* under the lock: the shard is looked at no more */
    atomic_bool give_up; /* nobody wants it any longer */
    int status;          /* of the thread's job; the thread's until it is over */
    struct error error;
    /* What is told of it. */
    int64_t bytes;
    double began, held;
    double ended; /* the thread's until its job is over */
    bool completed;
    struct saver_done done;
};

int64_t saver_bytes(void)
{
    return 2 * (int64_t)WEIGHTS_PIECE * (int64_t)sizeof(float);
}

static bool is_root(const struct saver *s)
{
    return comm_rank(s->e->comm) == 0;
}

static int add_set(struct saver *s, enum shard_kind kind, enum dtype type, const char *prefix,
                   const char *stem, struct error *err)
{
    int64_t limit = s->options.file_limit > 0 ? s->options.file_limit : (int64_t)FILE_LIMIT_GB * 1000000000;
    struct checkpoint_set *set = &s->sets[s->set_count];
    set->kind = kind;
    set->prefix = prefix;
    if (weights_layout_create(&set->layout, s->e->model, type, stem, limit, err) != 0)
        return -1;
    s->set_count++;
    s->part_count += set->layout.file_count;
    for (int i = 0; i < set->layout.file_count; i++)
        s->bytes += set->layout.files[i].bytes;
    return 0;
}

static int add_sets(struct saver *s, struct error *err)
{
    if (add_set(s, SHARD_MASTER, s->options.type, "", "model", err) != 0)
        return -1;
    if (s->options.type != DTYPE_F32 && add_set(s, SHARD_MASTER, DTYPE_F32, "training/", "master", err) != 0)
        return -1;
    if (add_set(s, SHARD_MOMENT1, DTYPE_F32, "training/", "moment1", err) != 0)
        return -1;
    return add_set(s, SHARD_MOMENT2, DTYPE_F32, "training/", "moment2", err);
}

int saver_create(struct saver **out, struct engine *e, const struct checkpoint_options *options,
                 struct background *thread, struct error *err)
{
    *out = NULL;
    struct saver *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(err, sizeof *s, "saving");
    s->e = e;
    s->thread = thread;
    s->options = *options;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->was_read, NULL);
    void *values = NULL, *converted = NULL;
    size_t bytes = (size_t)saver_bytes() / 2;
    int status = add_sets(s, err);
    if (status == 0)
        status = backend_alloc(e->backend, MEMORY_HOST, bytes, &values, err);
    if (status == 0)
        status = backend_alloc(e->backend, MEMORY_HOST, bytes, &converted, err);
    s->buffers = (struct weights_buffers){values, converted};
    s->parts = calloc((size_t)s->part_count + 1, sizeof *s->parts);
    if (status == 0 && !s->parts)
        status = error_memory(err, (size_t)s->part_count * sizeof *s->parts, "saving");
    if (status != 0) {
        saver_free(s);
        return -1;
    }
    *out = s;
    return 0;
}

/* ---- The thread: writing ---- */

static int open_part(struct saver *s, const struct checkpoint_set *set, int file, bool create,
                     struct file_part *part, struct error *err)
{
    char name[sizeof set->layout.files->name + 16];
    snprintf(name, sizeof name, "%s%s", set->prefix, set->layout.files[file].name);
    char *path = file_join(s->draft.temporary, name);
    int status = path ? file_part_open(part, path, create, err) : error_memory(err, 0, "a path");
    free(path);
    return status;
}

/* What this rank owns of one set, and on rank 0 the headers. */
static int write_set(struct saver *s, const struct checkpoint_set *set, struct file_part *parts,
                     struct error *err)
{
    const struct weights_layout *l = &set->layout;
    for (int f = 0; is_root(s) && f < l->file_count; f++)
        if (open_part(s, set, f, false, &parts[f], err) != 0 ||
            file_part_write(&parts[f], 0, l->files[f].header.data, l->files[f].header.length, err) != 0)
            return -1;
    for (int i = 0; i < l->tensor_count; i++) {
        struct file_part *part = &parts[l->tensors[i].file];
        if (!weights_tensor_owned(l, i, s->e->shard))
            continue;
        if (atomic_load(&s->give_up))
            return error_set(err, ERROR_RUN, s->draft.temporary, NULL, "saving was broken off");
        if ((!part->path && open_part(s, set, l->tensors[i].file, false, part, err) != 0) ||
            weights_write_owned(l, i, s->e->shard, set->kind, part, &s->buffers, err) != 0)
            return -1;
    }
    return 0;
}

/* All is read before anything is waited for, so that the update is held up as little as possible. */
static int write_parts(struct saver *s, struct error *err)
{
    struct file_part *parts = s->parts;
    for (int i = 0; i < s->set_count; parts += s->sets[i++].layout.file_count)
        if (write_set(s, &s->sets[i], parts, err) != 0)
            return -1;
    return 0;
}

static void read_is_over(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    s->read_all = true;
    pthread_cond_signal(&s->was_read);
    pthread_mutex_unlock(&s->lock);
}

static int sync_parts(struct saver *s, int status, struct error *err)
{
    for (int i = 0; i < s->part_count; i++) {
        if (status == 0 && atomic_load(&s->give_up))
            status = error_set(err, ERROR_RUN, s->draft.temporary, NULL, "saving was broken off");
        if (status == 0 && s->parts[i].path)
            status = file_part_sync(&s->parts[i], err);
        if (file_part_close(&s->parts[i], status == 0 ? err : NULL) != 0)
            status = -1;
    }
    return status;
}

static void seal_job(void *context)
{
    struct saver *s = context;
    s->status = checkpoint_draft_seal(&s->draft, s->sets, s->set_count, &s->error);
    s->ended = clock_seconds();
}

static void write_job(void *context)
{
    struct saver *s = context;
    s->status = write_parts(s, &s->error);
    read_is_over(s);
    s->status = sync_parts(s, s->status, &s->error);
    /* Alone, there is nobody to wait for. */
    if (s->status == 0 && comm_size(s->e->comm) == 1)
        seal_job(s);
}

/* ---- The caller ---- */

/* The directory with all files of tensors, empty: other ranks make none, so that it can be removed at any
 * time. */
static int make_files(struct saver *s, struct error *err)
{
    if (checkpoint_draft_begin(&s->draft, err) != 0)
        return -1;
    for (int i = 0; i < s->set_count; i++) {
        for (int f = 0; f < s->sets[i].layout.file_count; f++) {
            struct file_part part;
            if (open_part(s, &s->sets[i], f, true, &part, err) != 0 || file_part_close(&part, err) != 0)
                return -1;
        }
    }
    return 0;
}

static void end(struct saver *s)
{
    s->phase = IDLE;
    checkpoint_draft_free(&s->draft);
}

/* Rank 0 alone has something to remove. */
static void drop(struct saver *s)
{
    if (is_root(s))
        checkpoint_draft_drop(&s->draft);
    end(s);
}

void saver_free(struct saver *s)
{
    if (!s)
        return;
    if (s->phase != IDLE) {
        atomic_store(&s->give_up, true);
        background_wait(s->thread);
        drop(s);
    }
    for (int i = 0; i < s->set_count; i++)
        weights_layout_free(&s->sets[i].layout);
    backend_free(s->e->backend, s->buffers.values);
    backend_free(s->e->backend, s->buffers.converted);
    free(s->parts);
    pthread_cond_destroy(&s->was_read);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int begin(struct saver *s, const struct checkpoint_state *state, struct error *err)
{
    int64_t owner = getpid();
    s->draft = (struct checkpoint_draft){.model = s->e->model, .options = s->options, .state = *state};
    int status = 0;
    if (is_root(s))
        status = checkpoint_draft_name(&s->draft, owner, err);
    if (status == 0 && is_root(s))
        status = make_files(s, err);
    /* The others hear of the directory when its files are there. */
    if (status == 0)
        status = comm_broadcast(s->e->comm, &owner, sizeof owner, 0, err);
    if (status == 0 && !is_root(s))
        status = checkpoint_draft_name(&s->draft, owner, err);
    return status;
}

int saver_begin(struct saver *s, const struct checkpoint_state *state, struct error *err)
{
    if (saver_finish(s, err) != 0)
        return -1;
    double began = clock_seconds();
    if (begin(s, state, err) != 0) {
        drop(s);
        return -1;
    }
    s->began = began;
    s->held = clock_seconds() - began;
    s->phase = WRITING;
    s->status = 0;
    s->error = (struct error){.kind = ERROR_NONE};
    s->read_all = false;
    atomic_store(&s->give_up, false);
    background_start(s->thread, write_job, s);
    return 0;
}

void saver_hold(struct saver *s)
{
    if (s->phase != WRITING)
        return;
    double began = clock_seconds();
    pthread_mutex_lock(&s->lock);
    while (!s->read_all)
        pthread_cond_wait(&s->was_read, &s->lock);
    pthread_mutex_unlock(&s->lock);
    s->held += clock_seconds() - began;
}

int64_t saver_progress(struct saver *s)
{
    if (s->phase == IDLE)
        return PROGRESS_DONE;
    if (background_busy(s->thread))
        return PROGRESS_BUSY;
    return s->status == 0 ? PROGRESS_DONE : PROGRESS_FAILED;
}

/* All ranks' threads stop before the directory goes, and it goes before anybody reports: of the ranks that
 * failed, the first. The others wait for that to end them. */
static int fail(struct saver *s, struct error *err)
{
    struct comm *comm = s->e->comm;
    int64_t rank = comm_rank(comm), first = -INT64_MAX; /* negated for a maximum */
    if (saver_progress(s) == PROGRESS_FAILED)
        first = -rank;
    atomic_store(&s->give_up, true);
    background_wait(s->thread);
    if (comm_max_i64(comm, &first, 1, err) != 0)
        return -1;
    drop(s);
    if (comm_barrier(comm, err) != 0)
        return -1;
    if (first != -rank) {
        comm_barrier(comm, err);
        return error_set(err, ERROR_RUN, NULL, NULL, "saving failed on another rank");
    }
    if (err)
        *err = s->error;
    return -1;
}

int saver_advance(struct saver *s, int64_t agreed, struct error *err)
{
    if (s->phase == IDLE || agreed == PROGRESS_BUSY)
        return 0;
    if (agreed == PROGRESS_FAILED)
        return fail(s, err);
    if (s->phase == WRITING && comm_size(s->e->comm) > 1) {
        s->phase = SEALING;
        if (is_root(s))
            background_start(s->thread, seal_job, s);
        return 0;
    }
    /* Rank 0 knows when; the others hear of it at the end of a step. */
    double seconds = (is_root(s) ? s->ended : clock_seconds()) - s->began;
    s->done = (struct saver_done){.step = s->draft.state.step,
                                  .bytes = s->bytes,
                                  .seconds = seconds,
                                  .held = s->held < seconds ? s->held : seconds};
    snprintf(s->done.path, sizeof s->done.path, "%s", s->draft.final);
    s->completed = true;
    end(s);
    return 0;
}

int saver_finish(struct saver *s, struct error *err)
{
    double began = clock_seconds();
    while (s->phase != IDLE) {
        background_wait(s->thread);
        int64_t agreed = saver_progress(s);
        if (comm_max_i64(s->e->comm, &agreed, 1, err) != 0)
            return -1;
        double now = clock_seconds();
        s->held += now - began;
        began = now;
        if (saver_advance(s, agreed, err) != 0)
            return -1;
    }
    return 0;
}

bool saver_completed(struct saver *s, struct saver_done *done)
{
    bool completed = s->completed;
    if (completed)
        *done = s->done;
    s->completed = false;
    return completed;
}
