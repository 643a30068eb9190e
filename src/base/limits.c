/* Sources: /proc/meminfo; /proc/self/cgroup and the files of the control groups named there, of version 2
 * (/sys/fs/cgroup, or /sys/fs/cgroup/unified) and of version 1. A limit holds for all groups below, so the
 * way up to the root is followed, and the lowest one counts. */
#include "base/limits.h"

#include "base/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 4096 };

/* ---- limits of control groups ---- */

/* The lower of two numbers, where negative is none. */
static double lower(double a, double b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* A file of a group; NULL where there is none. The caller frees. */
static char *group_text(const char *root, const char *directory, const char *name)
{
    char path[PATH_SIZE];
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    return n > 0 && (size_t)n < sizeof path ? proc_text(root, path) : NULL;
}

/* One number of a file; -1: none ("max", or no such file). */
static double read_number(const char *root, const char *directory, const char *name)
{
    double value = -1;
    char *text = group_text(root, directory, name);
    if (text && sscanf(text, "%lf", &value) != 1)
        value = -1;
    free(text);
    /* Version 1 says "no limit" with the largest number of pages. */
    return value >= 0x1p62 ? -1 : value;
}

static double read_quota(const char *root, const char *directory, bool version2)
{
    double quota, period;
    if (!version2) {
        quota = read_number(root, directory, "cpu.cfs_quota_us");
        period = read_number(root, directory, "cpu.cfs_period_us");
        return quota > 0 && period > 0 ? quota / period : -1;
    }
    char *text = group_text(root, directory, "cpu.max");
    bool limited = text && sscanf(text, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0;
    free(text);
    return limited ? quota / period : -1;
}

/* Pages of files not used lately count as the group's, and are given back when it needs them. */
static double reclaimable(const char *root, const char *directory, bool version2)
{
    const char *name = version2 ? "inactive_file " : "total_inactive_file ";
    char *text = group_text(root, directory, "memory.stat");
    double bytes = 0;
    for (const char *line = text; line && *line; line += *line == '\n') {
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%lf", &bytes) != 1)
            bytes = 0;
        line += strcspn(line, "\n");
    }
    free(text);
    return bytes > 0 ? bytes : 0;
}

struct group_limits {
    double memory, left, quota; /* negative: none */
};

/* Lowers the limits to those of the group in this directory. */
static void limits_of_directory(const char *root, const char *directory, bool version2,
                                struct group_limits *limits)
{
    double most = read_number(root, directory, version2 ? "memory.max" : "memory.limit_in_bytes");
    double used = read_number(root, directory, version2 ? "memory.current" : "memory.usage_in_bytes");
    limits->quota = lower(limits->quota, read_quota(root, directory, version2));
    limits->memory = lower(limits->memory, most);
    if (most < 0)
        return;
    used -= reclaimable(root, directory, version2);
    double left = used > 0 ? most - used : most;
    limits->left = lower(limits->left, left > 0 ? left : 0);
}

/* The same for the group at mount/path and all above it. Inside a container the path may be one that only the
 * host sees: the mount's own files then still hold. */
static void limits_of_group(const char *root, const char *mount, const char *path, bool version2,
                            struct group_limits *limits)
{
    char directory[PATH_SIZE];
    int n = snprintf(directory, sizeof directory, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
    if (n < 0 || (size_t)n >= sizeof directory || strstr(path, "/.."))
        snprintf(directory, sizeof directory, "%s", mount);
    for (;;) {
        limits_of_directory(root, directory, version2, limits);
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(mount))
            return;
        *slash = '\0';
    }
}

static void limits_of_groups(const char *root, struct group_limits *limits)
{
    char *groups = proc_text(root, "/proc/self/cgroup");
    for (char *line = groups, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        char *kind = strchr(line, ':'), *path = kind ? strchr(kind + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        kind++;
        if (!*kind) { /* version 2 */
            limits_of_group(root, "/sys/fs/cgroup", path, true, limits);
            limits_of_group(root, "/sys/fs/cgroup/unified", path, true, limits);
            continue;
        }
        for (char *comma = kind; (comma = strchr(comma, ',')) != NULL;)
            *comma = ' ';
        if (proc_word(kind, "memory"))
            limits_of_group(root, "/sys/fs/cgroup/memory", path, false, limits);
        if (proc_word(kind, "cpu"))
            limits_of_group(root, "/sys/fs/cgroup/cpu", path, false, limits);
    }
    free(groups);
}

/* ---- the machine ---- */

static int64_t kilobytes(const char *text, const char *name)
{
    char value[32];
    long long kb;
    proc_line(text, name, value, sizeof value);
    return sscanf(value, "%lld", &kb) == 1 && kb >= 0 && kb < INT64_MAX / 1024 ? (int64_t)kb * 1024 : -1;
}

void limits_read(const char *root, struct limits *out)
{
    struct group_limits groups = {-1, -1, -1};
    limits_of_groups(root, &groups);
    char *text = proc_text(root, "/proc/meminfo");
    *out = (struct limits){.memory = text ? kilobytes(text, "MemTotal") : -1,
                           .memory_available = text ? kilobytes(text, "MemAvailable") : -1,
                           .swap_free = text ? kilobytes(text, "SwapFree") : 0,
                           .memory_limit = groups.memory >= 0 ? (int64_t)groups.memory : -1,
                           .quota = groups.quota > 0 ? groups.quota : 0};
    free(text);
    if (out->swap_free < 0)
        out->swap_free = 0;
    if (groups.left >= 0 && (out->memory_available < 0 || groups.left < (double)out->memory_available))
        out->memory_available = (int64_t)groups.left;
}
