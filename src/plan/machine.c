/* Sources: /proc/cpuinfo, sysconf, and what base/limits.h reads. */
#include "plan/machine.h"

#include "base/pool.h"
#include "base/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- CPU ---- */

static void keep_features(const char *flags, struct machine *out)
{
    static const char *const matter[] = {"avx",         "avx2",     "fma",      "f16c",        "avx512f",
                                         "avx512bw",    "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16",
                                         "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",    "asimd",
                                         "sve",         "bf16",     "i8mm"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof matter / sizeof matter[0]; i++)
        if (proc_word(flags, matter[i]))
            used += (size_t)snprintf(out->features + used, sizeof out->features - used, "%s%s",
                                     used > 0 ? " " : "", matter[i]);
}

static void describe_cpu(const char *root, struct machine *out)
{
    char *text = proc_text(root, "/proc/cpuinfo");
    char name[100] = "", family[16] = "", model[16] = "", flags[4096] = "";
    if (text) {
        proc_line(text, "model name", name, sizeof name);
        proc_line(text, "cpu family", family, sizeof family);
        proc_line(text, "model", model, sizeof model);
        proc_line(text, "flags", flags, sizeof flags);
        if (!flags[0])
            proc_line(text, "Features", flags, sizeof flags);
        if (!name[0]) { /* Arm gives numbers */
            proc_line(text, "CPU implementer", family, sizeof family);
            proc_line(text, "CPU part", model, sizeof model);
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

static void describe_caches(struct machine *out)
{
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
    limits_read(root, &out->limits);
    describe_caches(out);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    out->cores = pool_cpus();
    out->cores_online = online > out->cores ? (int)online : out->cores;
    backend_describe(backend, &out->products);
}

bool machine_has(const struct machine *m, const char *feature)
{
    return proc_word(m->features, feature);
}

void machine_key(const struct machine *m, struct strbuf *out)
{
    strbuf_printf(out, "%s; %d cores", m->cpu, m->cores_online);
    if (m->limits.quota > 0)
        strbuf_printf(out, ", %.2f usable", m->limits.quota);
    strbuf_printf(out, "; %s; %s", m->products.library, m->products.isa);
}
