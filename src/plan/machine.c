/* Sources: /proc/cpuinfo, /proc/meminfo; /proc/self/cgroup and the files of the control groups named
 * there, of version 2 (/sys/fs/cgroup, or /sys/fs/cgroup/unified) and of version 1. A limit holds for all
 * groups below, so the way up to the root is followed and the lowest one counts. */
#include "plan/machine.h"

#include "base/file.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FILE_LIMIT = 4 << 20, PATH_SIZE = 4096 };

/* A small text file; NULL where it cannot be read. The caller frees. */
static char *read_text(const char *root, const char *path)
{
    char full[PATH_SIZE], *text;
    size_t size;
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full || file_read(full, FILE_LIMIT, &text, &size, NULL) != 0)
        return NULL;
    return text;
}

/* The value of the first line "name : value", without the blanks around it; empty where there is none. */
static void find_line(const char *text, const char *name, char *out, size_t size)
{
    size_t length = strlen(name);
    out[0] = '\0';
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        size_t at = length;
        if (n > length && strncmp(line, name, length) == 0) {
            at += strspn(line + at, " \t");
            if (line[at] == ':') {
                at++;
                at += strspn(line + at, " \t");
                if (at < n)
                    snprintf(out, size, "%.*s", (int)(n - at < size ? n - at : size - 1), line + at);
                return;
            }
        }
        line += n + (line[n] == '\n');
    }
}

/* A word of a list of words. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0' || at[n] == '\n'))
            return true;
    return false;
}

/* ---- CPU ---- */

static void keep_features(const char *flags, struct machine *out)
{
    static const char *const matter[] = {"avx",         "avx2",     "fma",      "f16c",        "avx512f",
                                         "avx512bw",    "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
                                         "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",    "asimd",
                                         "sve",         "bf16",     "i8mm"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof matter / sizeof matter[0]; i++)
        if (has_word(flags, matter[i]))
            used += (size_t)snprintf(out->features + used, sizeof out->features - used, "%s%s",
                                     used > 0 ? " " : "", matter[i]);
}

static void describe_cpu(const char *root, struct machine *out)
{
    char *text = read_text(root, "/proc/cpuinfo");
    char name[100] = "", family[16] = "", model[16] = "", flags[4096] = "";
    if (text) {
        find_line(text, "model name", name, sizeof name);
        find_line(text, "cpu family", family, sizeof family);
        find_line(text, "model", model, sizeof model);
        find_line(text, "flags", flags, sizeof flags);
        if (!flags[0])
            find_line(text, "Features", flags, sizeof flags);
        if (!name[0]) { /* Arm gives numbers */
            find_line(text, "CPU implementer", family, sizeof family);
            find_line(text, "CPU part", model, sizeof model);
        }
        free(text);
    }
    if (!name[0]) {
        struct utsname system;
        snprintf(name, sizeof name, "%.60s CPU", uname(&system) == 0 ? system.machine : "unknown");
    }
    /* Virtual machines often hide the name, but not the numbers. */
    int n = snprintf(out->cpu, sizeof out->cpu, "%s", name);
    if (family[0] && model[0])
        snprintf(out->cpu + n, sizeof out->cpu - (size_t)n, ", family %s, model %s", family, model);
    keep_features(flags, out);
}

/* ---- limits of control groups ---- */

/* The lower of two limits, where negative is none. */
static double lower(double a, double b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* One number of a file; -1: none ("max", or no such file). */
static double read_number(const char *root, const char *directory, const char *name)
{
    char path[PATH_SIZE];
    double value = -1;
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    char *text = n > 0 && (size_t)n < sizeof path ? read_text(root, path) : NULL;
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
    char path[PATH_SIZE];
    int n = snprintf(path, sizeof path, "%s/cpu.max", directory);
    char *text = n > 0 && (size_t)n < sizeof path ? read_text(root, path) : NULL;
    bool limited = text && sscanf(text, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0;
    free(text);
    return limited ? quota / period : -1;
}

/* Lowers both limits to those of the group at mount/path and of all above it. Inside a container the path
 * may be one that only the host sees: the mount's own files then still hold. */
static void limits_of_group(const char *root, const char *mount, const char *path, bool version2,
                            double *memory, double *quota)
{
    char directory[PATH_SIZE];
    int n = snprintf(directory, sizeof directory, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
    if (n < 0 || (size_t)n >= sizeof directory || strstr(path, "/.."))
        snprintf(directory, sizeof directory, "%s", mount);
    for (;;) {
        *memory =
            lower(*memory, read_number(root, directory, version2 ? "memory.max" : "memory.limit_in_bytes"));
        *quota = lower(*quota, read_quota(root, directory, version2));
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < strlen(mount))
            return;
        *slash = '\0';
    }
}

static void describe_limits(const char *root, struct machine *out)
{
    double memory = -1, quota = -1;
    char *groups = read_text(root, "/proc/self/cgroup");
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
            limits_of_group(root, "/sys/fs/cgroup", path, true, &memory, &quota);
            limits_of_group(root, "/sys/fs/cgroup/unified", path, true, &memory, &quota);
            continue;
        }
        for (char *comma = kind; (comma = strchr(comma, ',')) != NULL;)
            *comma = ' ';
        if (has_word(kind, "memory"))
            limits_of_group(root, "/sys/fs/cgroup/memory", path, false, &memory, &quota);
        if (has_word(kind, "cpu"))
            limits_of_group(root, "/sys/fs/cgroup/cpu", path, false, &memory, &quota);
    }
    free(groups);
    out->memory_limit = memory >= 0 ? (int64_t)memory : -1;
    out->quota = quota > 0 ? quota : 0;
}

/* ---- memory ---- */

static int64_t kilobytes(const char *text, const char *name)
{
    char value[32];
    long long kb;
    find_line(text, name, value, sizeof value);
    return sscanf(value, "%lld", &kb) == 1 && kb >= 0 && kb < INT64_MAX / 1024 ? (int64_t)kb * 1024 : -1;
}

static void describe_memory(const char *root, struct machine *out)
{
    char *text = read_text(root, "/proc/meminfo");
    out->memory = text ? kilobytes(text, "MemTotal") : -1;
    out->memory_available = text ? kilobytes(text, "MemAvailable") : -1;
    free(text);
    static const int levels[] = {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && out->last_cache == 0; i++) {
        long bytes = sysconf(levels[i]);
        out->last_cache = bytes > 0 ? bytes : 0;
    }
}

void machine_describe(const char *root, const struct backend *backend, struct machine *out)
{
    *out = (struct machine){0};
    describe_cpu(root, out);
    describe_limits(root, out);
    describe_memory(root, out);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->cores = pool_cpus();
    out->cores_online = online > out->cores ? (int)online : out->cores;
    backend_describe(backend, &out->products);
}

bool machine_has(const struct machine *m, const char *feature)
{
    return has_word(m->features, feature);
}

void machine_key(const struct machine *m, struct strbuf *out)
{
    strbuf_printf(out, "%s; %d cores", m->cpu, m->cores_online);
    if (m->quota > 0)
        strbuf_printf(out, ", %.2f usable", m->quota);
    strbuf_printf(out, "; %s; %s", m->products.library, m->products.isa);
}
