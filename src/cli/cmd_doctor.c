/* tercet doctor: what this machine offers, how fast it is, and what is missing. */
#include "cli/doctor.h"

#include "base/clock.h"
#include "comm/comm.h"
#include "plan/measure.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_QUICK = CLI_OWN, OPTION_THREADS };
enum { COUNTS = 8 };

struct doctor_arguments {
    bool json, quick;
    int threads; /* 0: not asked for */
};

static const struct argp_option table[] = {
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
    {"quick", OPTION_QUICK, NULL, 0, "Measure nothing; show what was measured before", 0},
    {"threads", OPTION_THREADS, "N", 0,
     "Measure products with so many threads too: of all ranks on this machine together", 0},
    {0},
};

static error_t parse(int key, char *value, struct argp_state *state)
{
    struct doctor_arguments *a = state->input;
    switch (key) {
    case CLI_JSON:
        a->json = true;
        return 0;
    case OPTION_QUICK:
        a->quick = true;
        return 0;
    case OPTION_THREADS:
        a->threads = (int)cli_parse_int(state, "--threads", value, 1, 1 << 16);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "nothing is expected here, not \"%s\"", value);
        return 0;
    case ARGP_KEY_END:
        if (a->quick && a->threads)
            argp_error(state, "--quick measures nothing, so --threads has no use");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void doctor_miss(struct doctor *d, const char *remedy, const char *format, ...)
{
    struct error item = {.kind = ERROR_INPUT};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(item.what, sizeof item.what, format, arguments);
    va_end(arguments);
    if (remedy)
        snprintf(item.remedy, sizeof item.remedy, "%s", remedy);
    error_list_add(&d->missing, &item);
}

/* ---- looking ---- */

static int count_gpus(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/driver/nvidia/gpus");
    if (!directory)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* The instruction set that products could use on this CPU. */
static const char *isa_of_cpu(const struct machine *m)
{
    if (machine_has(m, "avx512bw") && machine_has(m, "avx512dq") && machine_has(m, "avx512vl"))
        return machine_has(m, "avx512_bf16") ? "avx512_bf16" : "avx512";
    return machine_has(m, "avx2") && machine_has(m, "fma") ? "avx2" : "portable";
}

static void look_at_build(struct doctor *d)
{
    if (strcmp(TERCET_BUILD_TYPE, "Release") != 0 && strcmp(TERCET_BUILD_TYPE, "RelWithDebInfo") != 0)
        doctor_miss(d, "build with ./setup", "this is a %s build: it is slow",
                    TERCET_BUILD_TYPE[0] ? TERCET_BUILD_TYPE : "plain");
    if (TERCET_SANITIZE[0])
        doctor_miss(d, "build with ./setup", "this build has sanitizers (%s): it is slow", TERCET_SANITIZE);
    if (!d->libraries.pcre2_jit)
        doctor_miss(d, "apt-get install libpcre2-8-0, or build PCRE2 with --enable-jit",
                    "this PCRE2 has no JIT: tokenizing is slower");
}

static void look_at_cpu(struct doctor *d)
{
    const struct machine *m = &d->machine;
    const char *could = isa_of_cpu(m);
    const char *cap = getenv("ONEDNN_MAX_CPU_ISA") ? "ONEDNN_MAX_CPU_ISA" : "DNNL_MAX_CPU_ISA";
    if (strcmp(could, m->products.isa) != 0) {
        char remedy[64];
        snprintf(remedy, sizeof remedy, "unset %s", cap);
        doctor_miss(d, getenv(cap) ? remedy : "apt-get install libdnnl-dev, then build again with ./setup",
                    "the CPU has %s, products use %s", could, m->products.isa);
    }
    if (m->limits.quota > 0 && m->limits.quota < m->cores) {
        char remedy[128];
        int threads = m->limits.quota < 1 ? 1 : (int)m->limits.quota;
        snprintf(remedy, sizeof remedy, "set parallel.threads so that all ranks together have %d", threads);
        doctor_miss(d, remedy, "the control group allows %.2f cores' worth of time on %d cores",
                    m->limits.quota, m->cores);
    }
}

/* ---- measuring ---- */

static void add_count(int counts[COUNTS], int *n, int threads, int most)
{
    bool there = threads < 1 || threads > most || *n == COUNTS;
    for (int i = 0; i < *n; i++)
        there = there || counts[i] == threads;
    if (!there)
        counts[(*n)++] = threads;
}

/* Numbers of threads that runs have in all: one; all cores; as many as 2, 3 or 4 ranks share out evenly. */
static int thread_counts(const struct doctor *d, int wanted, int counts[COUNTS])
{
    int n = 0, cores = d->machine.cores;
    add_count(counts, &n, 1, cores);
    add_count(counts, &n, cores, cores);
    for (int ranks = 2; ranks <= 4; ranks++)
        add_count(counts, &n, cores / ranks * ranks, cores);
    add_count(counts, &n, (int)d->machine.limits.quota, cores);
    add_count(counts, &n, wanted, cores);
    return n;
}

static int measure_peaks(struct peaks *kept, char *key, int threads, const struct log *log, struct error *err)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    struct backend *backend;
    struct backend_options options = {.threads = threads, .pin = true};
    if (backend_create(&backend, &options, err) != 0)
        return -1;
    int status = 0;
    for (int i = 0; i < 2 && status == 0; i++) {
        struct peak peak = {
            .machine = key, .dtype = types[i], .threads = threads, .time = (int64_t)clock_wall()};
        log_progress(log, false, "measuring products, %s, %d thread%s", dtype_info(types[i])->name, threads,
                     threads == 1 ? "" : "s");
        status = measure_products(backend, types[i], threads, &peak.rates, err);
        if (status == 0)
            status = peaks_put(kept, &peak, err);
    }
    backend_destroy(backend);
    return status;
}

static int measure_memory(struct doctor *d, const struct log *log, struct error *err)
{
    const struct machine *m = &d->machine;
    int64_t memory = m->limits.memory_available;
    if (memory < 0)
        memory = (int64_t)1 << 30;
    d->threads = m->cores;
    log_progress(log, false, "measuring memory");
    return measure_bandwidth(d->threads, m->last_cache, memory / 4, &d->bandwidth, err) != 0 ||
                   measure_bandwidth(1, m->last_cache, memory / 4, &d->bandwidth_one_thread, err) != 0
               ? -1
               : 0;
}

/* Everything, after what was measured before; what is kept is also what a run will find. */
static int measure_all(struct doctor *d, struct peaks *kept, char *key, const struct doctor_arguments *a,
                       const struct log *log, struct error *err)
{
    int counts[COUNTS], n = thread_counts(d, a->threads, counts);
    if (a->threads > d->machine.cores)
        return error_set(err, ERROR_INPUT, "--threads", NULL, "this process may run on %d cores only",
                         d->machine.cores);
    for (int i = 0; i < n; i++)
        if (measure_peaks(kept, key, counts[i], log, err) != 0)
            return -1;
    int status = measure_memory(d, log, err);
    log_progress(log, true, "measured");
    if (status == 0 && d->path) {
        struct error unkept; /* no reason to hide what was found out */
        if (peaks_save(d->path, kept, &unkept) != 0)
            doctor_miss(d, unkept.remedy, "measured peaks are not kept: %s: %s", unkept.where, unkept.what);
    }
    return status;
}

static int peaks_of_machine(struct doctor *d, const struct doctor_arguments *a, const struct log *log,
                            struct error *err)
{
    struct strbuf key = {0};
    struct peaks kept = {0};
    bool damaged = false;
    int status = 0;
    machine_key(&d->machine, &key);
    d->path = peaks_path();
    if (key.failed)
        status = error_memory(err, key.length, "the name of this machine");
    else if (!d->path)
        doctor_miss(d, "set HOME or XDG_CACHE_HOME to an absolute path",
                    "measured peaks cannot be kept, so runs cannot tell their share of them");
    else
        status = peaks_load(d->path, &kept, &damaged, err);
    if (status == 0 && !a->quick)
        status = measure_all(d, &kept, key.data, a, log, err);
    else if (damaged)
        doctor_miss(d, "run `tercet doctor` on an idle machine", "the measured peaks in %s are damaged",
                    d->path);
    for (int64_t i = 0; i < kept.count && status == 0; i++)
        if (strcmp(kept.items[i].machine, key.data) == 0)
            status = peaks_put(&d->peaks, &kept.items[i], err);
    peaks_free(&kept);
    strbuf_free(&key);
    return status;
}

/* ---- the verb ---- */

static int examine(struct doctor *d, struct doctor_arguments *a, struct cli *cli, struct error *err)
{
    struct backend *backend;
    struct backend_options options = {.threads = 1};
    if (backend_create(&backend, &options, err) != 0)
        return -1;
    machine_describe("", backend, &d->machine);
    backend_destroy(backend);
    libraries_collect(&d->libraries);
    d->nvidia_gpus = count_gpus();
    look_at_build(d);
    look_at_cpu(d);
    /* Ranks of a launcher have a part of the machine each: what they would measure is something else. */
    a->quick = a->quick || d->mpi.under_launcher;
    return peaks_of_machine(d, a, &cli->log, err);
}

static int report(const struct doctor *d, bool json, struct cli *cli)
{
    struct strbuf text = {0};
    (json ? doctor_json : doctor_text)(d, &text);
    return cli_print(cli, &text);
}

int cmd_doctor(int argc, char **argv, struct cli *cli)
{
    static const struct argp argp = {
        table,
        parse,
        NULL,
        "Example:\n  tercet doctor\n\n"
        "Shows what this machine offers for training, measures its matrix products and its memory, and says "
        "what is missing, with the command that mends it.\v"
        "Let nothing else run meanwhile: it takes about ten seconds. The peaks are kept in "
        "$XDG_CACHE_HOME/tercet or ~/.cache/tercet, by machine, dtype and number of threads; training then "
        "tells its share of them (peak_share in metrics.jsonl). Under an MPI launcher (mpirun -n 2 tercet "
        "doctor) it looks at the ranks instead, and measures nothing.",
        NULL,
        NULL,
        NULL};
    struct doctor_arguments a = {0};
    struct doctor d = {0};
    struct error err = {0};
    int status = cli_parse(cli, &argp, argc, argv, &a);
    if (status != 0)
        return status;
    doctor_look_at_mpi(&d, cli); /* first: MPI wants to be joined before threads exist */
    if (comm_launcher_rank() == 0)
        status = examine(&d, &a, cli, &err) != 0 ? cli_fail(cli, &err) : report(&d, a.json, cli);
    peaks_free(&d.peaks);
    error_list_free(&d.missing);
    free(d.mpi.ranks);
    free(d.path);
    return status;
}
