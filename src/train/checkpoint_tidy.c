/* What surrounds the checkpoints of a run: the link to the newest, those set aside, what an interrupted run
 * left. */
#include "train/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char aside_suffix[] = ".aside";

int checkpoint_point_last(const char *output, const char *path, struct error *err)
{
    char *link = file_join(output, "last"), *made = file_join(output, "last.tmp-new");
    const char *slash = strrchr(path, '/');
    int status = -1;
    if (!link || !made)
        error_memory(err, 0, "a path");
    else if ((unlink(made) != 0 && errno != ENOENT) || symlink(slash ? slash + 1 : path, made) != 0)
        error_errno(err, errno, made, "make the link to the newest checkpoint");
    else
        status = file_rename(made, link, err);
    if (status != 0 && made)
        unlink(made);
    free(link);
    free(made);
    return status;
}

int checkpoint_set_aside(const char *output, int64_t step, const struct log *log, struct error *err)
{
    struct checkpoint_listing listing;
    if (checkpoint_list(output, &listing, err) != 0)
        return -1;
    int status = 0;
    for (int64_t i = 0; i < listing.count && status == 0; i++) {
        if (listing.items[i].step <= step)
            continue;
        char *aside = NULL;
        if (asprintf(&aside, "%s%s", listing.items[i].path, aside_suffix) < 0)
            status = error_memory(err, 0, "a path");
        else if (file_remove_tree(aside, err) != 0 || file_rename(listing.items[i].path, aside, err) != 0)
            status = -1;
        else
            log_info(
                log,
                "the run goes on from step %lld: %s is set aside as %s until the next checkpoint is complete",
                (long long)step, listing.items[i].path, aside);
        free(aside);
    }
    checkpoint_listing_free(&listing);
    return status;
}

/* Removes from OUTPUT what has a name that `wanted` accepts. */
static int remove_entries(const char *output, bool (*wanted)(const char *name), struct error *err)
{
    DIR *directory = opendir(output);
    if (!directory)
        return errno == ENOENT ? 0 : error_errno(err, errno, output, "read the run's directory");
    const char *name;
    int status;
    while ((status = file_next_name(directory, output, &name, err)) == 0 && name) {
        if (!wanted(name))
            continue;
        char *path = file_join(output, name);
        status = path ? file_remove_tree(path, err) : error_memory(err, 0, "a path");
        free(path);
        if (status != 0)
            break;
    }
    closedir(directory);
    return status;
}

static bool is_aside(const char *name)
{
    size_t n = strlen(name), suffix = sizeof aside_suffix - 1;
    return strncmp(name, "checkpoint-", 11) == 0 && n > suffix &&
           strcmp(name + n - suffix, aside_suffix) == 0;
}

int checkpoint_drop_aside(const char *output, struct error *err)
{
    return remove_entries(output, is_aside, err);
}

/* A file or directory of a run, written but not yet renamed, or renamed to be removed. */
static bool is_leftover(const char *name)
{
    static const char *const ours[] = {"checkpoint-", "metrics.jsonl.", "run.yaml.", "last."};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strncmp(name, ours[i], strlen(ours[i])) == 0)
            return strstr(name, ".tmp-") != NULL;
    return false;
}

int checkpoint_clean(const char *output, struct error *err)
{
    return remove_entries(output, is_leftover, err);
}
