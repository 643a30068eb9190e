#include "base/strbuf.h"
#include "data/cache.h"
#include "data/cache_lock.h"
#include "data/checksums.h"
#include "data/encode.h"
#include "data/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct build {
    struct token_cache_options options; /* with defaults filled in */
    struct pool *pool;
    const struct log *log;
    struct text_files files;
    struct checksum_record checksums;
    struct cache_manifest manifest;
    struct file_identity *identities; /* of the files, when they were hashed */
    char *root;                       /* absolute */
    char name[32];                    /* tokens-<key> */
    char *path;                       /* ROOT/tokens-<key> */
};

static int wrong_root(struct error *err)
{
    if (err && err->kind == ERROR_RUN) {
        err->kind = ERROR_INPUT;
        snprintf(err->remedy, sizeof err->remedy, "set data.cache to a directory that can be written");
    }
    return -1;
}

static int prepare_root(struct build *b, struct error *err)
{
    if (file_make_directories(b->options.root, err) != 0)
        return wrong_root(err);
    b->root = realpath(b->options.root, NULL);
    if (!b->root) {
        error_errno(err, errno, b->options.root, "find the directory of token caches");
        return wrong_root(err);
    }
    return checksums_load(&b->checksums, b->root, err);
}

/* Hashes the text, or knows its checksums, and derives the key. */
static int make_key(struct build *b, struct error *err)
{
    struct cache_manifest *m = &b->manifest;
    size_t n = (size_t)b->files.count;
    if (b->files.count > CACHE_FILE_LIMIT)
        return error_set(err, ERROR_INPUT, NULL, "join some of them", "%zu text files are too many", n);
    m->files = calloc(n, sizeof *m->files);
    b->identities = calloc(n, sizeof *b->identities);
    if (!m->files || !b->identities)
        return error_memory(err, n * sizeof *m->files, "the list of text files");
    const struct token_cache_options *o = &b->options;
    struct strbuf text = {0};
    strbuf_printf(&text, "tercet token cache %d\n%016" PRIx64 " %d %d %" PRId64 " %" PRId64 "\n%zu:%s\n",
                  CACHE_VERSION, o->tokenizer_hash, (int)o->special_in_text, (int)o->bad_lines, o->bos_id,
                  o->eos_id, strlen(o->field), o->field);
    int result = 0;
    for (int64_t i = 0; i < b->files.count && result == 0; i++) {
        struct manifest_file *f = &m->files[i];
        f->path = realpath(b->files.paths[i], NULL);
        if (!f->path) {
            result = error_errno(err, errno, b->files.paths[i], "find the text file");
            break;
        }
        m->file_count++;
        log_progress(b->log, i + 1 == b->files.count, "checking text files: %lld of %lld", (long long)i + 1,
                     (long long)b->files.count);
        result = checksums_of(&b->checksums, f->path, &b->identities[i], &f->checksum, err);
        f->size = b->identities[i].size;
        f->mtime_ns = b->identities[i].mtime_ns;
        strbuf_printf(&text, "%zu:%s %" PRId64 " %" PRId64 " %016" PRIx64 "\n", strlen(f->path), f->path,
                      f->size, f->mtime_ns, f->checksum);
        if (result == 0 && o->stopped && o->stopped(o->stopped_context))
            result = error_set(err, ERROR_RUN, NULL, "start again", "stopped while checking text files");
    }
    if (result == 0 && text.failed)
        result = error_memory(err, text.length, "the key of a token cache");
    if (result == 0) {
        m->key = hash_bytes(text.data, text.length, 0);
        snprintf(b->name, sizeof b->name, "tokens-%016" PRIx64, m->key);
        b->path = file_join(b->root, b->name);
        if (!b->path)
            result = error_memory(err, strlen(b->root), "the path of a token cache");
    }
    strbuf_free(&text);
    return result;
}

static int check_part(struct build *b, enum cache_part part, uint64_t wanted, struct error *err)
{
    char *path = file_join(b->path, cache_part_name(part));
    if (!path)
        return error_memory(err, strlen(b->path), "a path");
    struct file_identity identity;
    uint64_t checksum;
    int result = checksums_of(&b->checksums, path, &identity, &checksum, err);
    if (result == 0 && checksum != wanted)
        result = error_set(err, ERROR_INPUT, path, NULL, "the checksum is not the manifest's");
    free(path);
    return result;
}

/* Looks for the finished cache. 1: it is there and sound; 0: it is not there; -1: it is damaged, or its
 * ids are too high (*refused). */
static int find_cache(struct build *b, bool *refused, struct error *err)
{
    *refused = false;
    struct stat st;
    if (lstat(b->path, &st) != 0)
        return 0;
    struct token_cache cache;
    if (token_cache_open(b->path, &cache, err) != 0)
        return -1;
    int result = 1;
    if (cache.key != b->manifest.key)
        result = error_set(err, ERROR_INPUT, b->path, NULL, "the cache has another key than its name");
    for (int i = 0; i < CACHE_PARTS && result == 1; i++)
        if (check_part(b, (enum cache_part)i, cache.checksums[i], err) != 0)
            result = -1;
    if (result == 1 && b->options.vocab_limit > 0 && cache.max_id >= b->options.vocab_limit) {
        *refused = true;
        result = vocabulary_error(&b->options, cache.max_id, b->options.tokenizer_name, err);
    }
    token_cache_close(&cache);
    return result;
}

/* Removes what makers of caches left that are gone. `held` is the cache whose lock is ours. */
static void remove_stale(const struct build *b, const char *held)
{
    DIR *directory = opendir(b->root);
    if (!directory)
        return;
    struct dirent *entry;
    while ((entry = readdir(directory))) {
        const size_t prefix = strlen(b->name); /* tokens- and 16 digits */
        if (strncmp(entry->d_name, "tokens-", 7) != 0 || strlen(entry->d_name) < prefix ||
            strncmp(entry->d_name + prefix, ".tmp-", 5) != 0)
            continue;
        char name[sizeof b->name];
        snprintf(name, sizeof name, "%.*s", (int)prefix, entry->d_name);
        struct cache_lock lock = {.fd = -1};
        enum cache_lock_state state = CACHE_LOCKED;
        if (strcmp(name, held) != 0 && cache_lock_try(b->root, name, &lock, &state, NULL) != 0)
            continue;
        if (state == CACHE_LOCKED) {
            char *path = file_join(b->root, entry->d_name);
            if (path)
                (void)file_remove_tree(path, NULL); /* a nuisance, but no failure */
            free(path);
        }
        cache_lock_release(&lock);
    }
    closedir(directory);
}

static int make_temporary(const struct build *b, char **out, struct error *err)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        if (asprintf(out, "%s.tmp-%ld-%d", b->path, (long)getpid(), attempt) < 0) {
            *out = NULL;
            return error_memory(err, strlen(b->path), "a path");
        }
        if (mkdir(*out, 0777) == 0)
            return 0;
        int why = errno;
        if (why != EEXIST) {
            error_errno(err, why, *out, "make a directory for the token cache");
            free(*out);
            *out = NULL;
            return why == ENOSPC ? -1 : wrong_root(err);
        }
        free(*out);
    }
    *out = NULL;
    return error_set(err, ERROR_RUN, b->root, "remove old tokens-*.tmp-* from it",
                     "cannot find a free name for the token cache");
}

static int check_unchanged(const struct build *b, struct error *err)
{
    for (int64_t i = 0; i < b->files.count; i++) {
        struct file_identity now;
        if (file_identify(b->files.paths[i], &now, err) != 0)
            return -1;
        if (!file_identity_equal(&now, &b->identities[i]))
            return error_set(err, ERROR_RUN, b->files.paths[i], "start again when it is complete",
                             "the file changed while it was tokenized");
    }
    return 0;
}

/* Tokenizes everything into a directory. */
static int fill_directory(struct build *b, const char *directory, struct error *err)
{
    struct file_writer writers[CACHE_PARTS] = {0};
    int result = 0, open = 0;
    for (; open < CACHE_PARTS && result == 0; open++) {
        char *path = file_join(directory, cache_part_name((enum cache_part)open));
        result = path ? file_writer_open(&writers[open], path, err)
                      : error_memory(err, strlen(directory), "a path");
        free(path);
    }
    memset(&b->manifest.summary, 0, sizeof b->manifest.summary);
    b->manifest.max_id = 0;
    if (result == 0)
        result = encode_files(&b->options, &b->files, b->pool, b->log, writers, &b->manifest, err);
    if (result == 0 && b->manifest.summary.documents == 0) {
        const struct data_summary *s = &b->manifest.summary;
        result = error_set(err, ERROR_INPUT, b->files.paths[0],
                           "check the files and the name of the field (data.text, --text)",
                           "no document is left: all %lld were dropped", (long long)data_summary_dropped(s));
    }
    if (result == 0)
        result = check_unchanged(b, err);
    for (int i = 0; i < CACHE_PARTS; i++) {
        if (result == 0) {
            b->manifest.parts[i].bytes = writers[i].bytes;
            b->manifest.parts[i].checksum = file_writer_hash(&writers[i]);
            result = file_writer_commit(&writers[i], err);
        } else {
            file_writer_abort(&writers[i]);
        }
    }
    if (result == 0)
        result = manifest_write(directory, &b->manifest, &b->options, err);
    return result == 0 ? file_sync_directory(directory, err) : -1;
}

/* A token takes 4 bytes and stands for about as many of text. Of what is compressed less is known, so only
 * what cannot go well is refused. */
static int check_space(const struct build *b, struct error *err)
{
    int64_t text = 0, space;
    for (int64_t i = 0; i < b->manifest.file_count; i++)
        text += b->manifest.files[i].size;
    if (file_free_space(b->root, &space, err) != 0)
        return -1;
    if (space >= text / 4)
        return 0;
    char needed[32], there[32];
    return error_set(err, ERROR_INPUT, b->root,
                     "free some space there, or set data.cache to another directory",
                     "the tokens of %s of text do not fit into the %s that are free",
                     format_bytes(text, needed), format_bytes(space, there));
}

/* Makes the cache aside and gives it its name. */
static int make_cache(struct build *b, struct error *err)
{
    char *temporary;
    if (check_space(b, err) != 0 || make_temporary(b, &temporary, err) != 0)
        return -1;
    int result = fill_directory(b, temporary, err);
    if (result == 0 && rename(temporary, b->path) == 0) {
        result = file_sync_directory(b->root, err);
    } else {
        int why = errno;
        (void)file_remove_tree(temporary, NULL);
        bool refused;
        /* Without locks another run may have been faster. */
        if (result == 0 && ((why != ENOTEMPTY && why != EEXIST) || find_cache(b, &refused, NULL) != 1))
            result = error_errno(err, why, b->path, "give the token cache its name");
    }
    free(temporary);
    return result;
}

/* Takes the lock of this cache, waiting for another run that makes it. */
static int wait_for_lock(struct build *b, struct cache_lock *lock, enum cache_lock_state *state,
                         struct error *err)
{
    bool told = false;
    for (;;) {
        if (cache_lock_try(b->root, b->name, lock, state, err) != 0)
            return wrong_root(err);
        if (*state != CACHE_LOCK_BUSY)
            return 0;
        if (!told)
            log_info(b->log, "another run is tokenizing the same text: waiting for it");
        told = true;
        if (b->options.stopped && b->options.stopped(b->options.stopped_context))
            return error_set(err, ERROR_RUN, NULL, "start again",
                             "stopped while waiting for another run's token cache");
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static int find_or_make(struct build *b, struct error *err)
{
    bool refused;
    struct error damage;
    int found = find_cache(b, &refused, &damage);
    if (found == 1)
        return 0;
    if (refused)
        goto refuse;
    struct cache_lock lock = {.fd = -1};
    enum cache_lock_state state;
    if (wait_for_lock(b, &lock, &state, err) != 0)
        return -1;
    /* Another run may have made it since. */
    found = find_cache(b, &refused, &damage);
    int result = 0;
    if (found < 0 && !refused) {
        char text[sizeof(struct error)];
        error_format(&damage, text, sizeof text);
        log_warning(b->log, "%s. The cache is made anew", text);
        result = file_remove_tree(b->path, err);
    }
    if (result == 0 && found != 1 && !refused) {
        if (state == CACHE_LOCKED)
            remove_stale(b, b->name);
        result = make_cache(b, err);
    }
    cache_lock_release(&lock);
    if (!refused)
        return result;
refuse:
    if (err)
        *err = damage;
    return -1;
}

int token_cache_build(const struct token_cache_options *options, struct pool *pool, const struct log *log,
                      char **path, struct error *err)
{
    *path = NULL;
    struct build b = {.options = *options, .pool = pool, .log = log};
    if (!b.options.field)
        b.options.field = "text";
    int result = text_files_find(options->files, options->file_count, &b.files, err);
    if (result == 0)
        result = prepare_root(&b, err);
    if (result == 0)
        result = make_key(&b, err);
    if (result == 0)
        result = find_or_make(&b, err);
    if (result == 0 && checksums_save(&b.checksums, NULL) != 0)
        log_warning(log, "cannot write %s: the text will be read again at the next start", b.checksums.path);
    if (result == 0) {
        *path = b.path;
        b.path = NULL;
    }
    free(b.path);
    free(b.root);
    free(b.identities);
    manifest_free(&b.manifest);
    checksums_free(&b.checksums);
    text_files_free(&b.files);
    return result;
}
