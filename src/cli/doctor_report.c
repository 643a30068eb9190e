#include "cli/doctor.h"

#include "formats/json.h"

#include <stdio.h>
#include <string.h>

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* "417 GFLOP/s", "12.3 TFLOP/s" */
static char *format_flops(double rate, char out[32])
{
    if (rate < 1e12)
        snprintf(out, 32, "%.*f GFLOP/s", rate < 1e10 ? 2 : 0, rate / 1e9);
    else
        snprintf(out, 32, "%.*f TFLOP/s", rate < 1e14 ? 1 : 0, rate / 1e12);
    return out;
}

static void machine_text(const struct machine *m, struct strbuf *out)
{
    char a[32], b[32];
    struct strbuf line = {0};
    cli_put_field(out, "CPU", "%s", m->cpu);
    if (m->features[0])
        cli_put_field(out, "features", "%s", m->features);
    strbuf_printf(&line, "%d usable of %d", m->cores, m->cores_online);
    if (m->limits.quota > 0)
        strbuf_printf(&line, ", time of %.2f", m->limits.quota);
    cli_put_field(out, "cores", "%s", line.data ? line.data : "");
    strbuf_clear(&line);
    if (m->limits.memory >= 0)
        strbuf_printf(&line, "%s, %s available", format_bytes(m->limits.memory, a),
                      format_bytes(m->limits.memory_available, b));
    else
        strbuf_puts(&line, "unknown");
    if (m->limits.memory_limit >= 0)
        strbuf_printf(&line, ", limited to %s by the control group", format_bytes(m->limits.memory_limit, a));
    cli_put_field(out, "memory", "%s", line.data ? line.data : "");
    out->failed |= line.failed;
    strbuf_free(&line);
}

static void speed_text(const struct doctor *d, struct strbuf *out)
{
    const struct machine *m = &d->machine;
    char name[48], peak[32], a[32], b[32], c[32];
    if (d->bandwidth > 0)
        cli_put_field(out, "memory bandwidth", "%.1f GB/s with %d thread%s, %.1f with 1", d->bandwidth / 1e9,
                      d->threads, plural(d->threads), d->bandwidth_one_thread / 1e9);
    else
        cli_put_field(out, "memory bandwidth", "not measured");
    cli_put_field(out, "products", "%s, %s%s", m->products.library, m->products.isa,
                  strcmp(m->products.isa, "avx512_bf16") == 0 ? "" : "; bf16 is computed in fp32");
    for (int64_t i = 0; i < d->peaks.count; i++) {
        const struct peak *p = &d->peaks.items[i];
        snprintf(name, sizeof name, "  %s, %d thread%s", dtype_info(p->dtype)->name, p->threads,
                 plural(p->threads));
        cli_put_field(out, name, "%s (forward %s, gradients %s and %s)",
                      format_flops(measured_peak(&p->rates), peak), format_flops(p->rates.linear, a),
                      format_flops(p->rates.grad_input, b), format_flops(p->rates.grad_weight, c));
    }
    if (d->peaks.count == 0)
        cli_put_field(out, "  peak", "not measured; run `tercet doctor` on the idle machine");
    else
        cli_put_field(out, "  kept in", "%s", d->path ? d->path : "no file");
}

/* "0,2-5" */
static void put_cores(struct strbuf *out, const struct doctor_rank *r)
{
    int cpus = 64 * 64;
    const char *comma = "";
    for (int i = 0; i < cpus; i++) {
        int last = i;
        while (last < cpus && (r->allowed[last / 64] >> (last % 64) & 1) != 0)
            last++;
        if (last == i)
            continue;
        strbuf_printf(out, last - i > 1 ? "%s%d-%d" : "%s%d", comma, i, last - 1);
        comma = ",";
        i = last;
    }
}

static void mpi_text(const struct doctor_mpi *mpi, struct strbuf *out)
{
    cli_put_field(out, "MPI", "%s", mpi->built ? mpi->library : "not built in");
    if (mpi->launcher[0])
        cli_put_field(out, "  launcher", "%s%s%s", mpi->launcher, mpi->launcher_version[0] ? ": " : "",
                      mpi->launcher_version);
    else if (mpi->built)
        cli_put_field(out, "  launcher", "none on PATH");
    if (!mpi->under_launcher)
        return;
    if (mpi->rank_count == 0)
        cli_put_field(out, "  ranks", "not joined");
    for (int i = 0; i < mpi->rank_count; i++) {
        char name[32];
        struct strbuf cores = {0};
        put_cores(&cores, &mpi->ranks[i]);
        snprintf(name, sizeof name, "  rank %d of %d", i, mpi->rank_count);
        cli_put_field(out, name, "%s, cores %s", mpi->ranks[i].host, cores.data ? cores.data : "unknown");
        out->failed |= cores.failed;
        strbuf_free(&cores);
    }
}

void doctor_text(const struct doctor *d, struct strbuf *out)
{
    strbuf_puts(out, "tercet " TERCET_VERSION "\n\n");
    machine_text(&d->machine, out);
    strbuf_puts(out, "\n");
    speed_text(d, out);
    strbuf_puts(out, "\n");
    mpi_text(&d->mpi, out);
    if (d->nvidia_gpus > 0)
        cli_put_field(out, "GPUs", "none used by this version; %d of NVIDIA here", d->nvidia_gpus);
    else
        cli_put_field(out, "GPUs", "none used by this version");
    strbuf_puts(out, "\n");
    for (int i = 0; i < LIBRARIES; i++)
        cli_put_field(out, d->libraries.items[i].name, "%s", d->libraries.items[i].version);
    strbuf_puts(out, "\n");
    if (d->missing.count == 0)
        strbuf_puts(out, "Nothing is missing.\n");
    else
        strbuf_printf(out, "To mend:\n");
    for (int64_t i = 0; i < d->missing.count - d->missing.lost; i++) {
        const struct error *item = &d->missing.items[i];
        strbuf_puts(out, "  ");
        cli_put_text(out, item->what);
        strbuf_puts(out, item->remedy[0] ? "\n    " : "");
        cli_put_text(out, item->remedy);
        strbuf_puts(out, "\n");
    }
    if (d->missing.lost > 0)
        out->failed = 1;
}

/* ---- JSON ---- */

static void write_known(struct json_writer *w, const char *key, int64_t value)
{
    if (value < 0)
        json_write_null(w, key);
    else
        json_write_int(w, key, value);
}

static void write_positive(struct json_writer *w, const char *key, double value)
{
    if (value > 0)
        json_write_double(w, key, value);
    else
        json_write_null(w, key);
}

static void write_text(struct json_writer *w, const char *key, const char *value)
{
    json_write_string(w, key, value[0] ? value : NULL);
}

/* "a b c" as an array. */
static void write_words(struct json_writer *w, const char *key, const char *words)
{
    json_write_array(w, key);
    while (*words) {
        size_t n = strcspn(words, " ");
        json_write_string_n(w, NULL, words, n);
        words += n + (words[n] == ' ');
    }
    json_write_end(w);
}

static void machine_json(struct json_writer *w, const struct machine *m)
{
    json_write_object(w, "cpu");
    json_write_string(w, "model", m->cpu);
    write_words(w, "features", m->features);
    json_write_int(w, "cores", m->cores);
    json_write_int(w, "cores_online", m->cores_online);
    write_positive(w, "quota", m->limits.quota);
    write_known(w, "last_cache", m->last_cache > 0 ? m->last_cache : -1);
    json_write_end(w);
    json_write_object(w, "memory");
    write_known(w, "total", m->limits.memory);
    write_known(w, "available", m->limits.memory_available);
    write_known(w, "limit", m->limits.memory_limit);
    json_write_end(w);
}

static void speed_json(struct json_writer *w, const struct doctor *d)
{
    json_write_object(w, "bandwidth");
    write_positive(w, "bytes_per_second", d->bandwidth);
    write_positive(w, "one_thread", d->bandwidth_one_thread);
    json_write_end(w);
    json_write_object(w, "products");
    json_write_string(w, "library", d->machine.products.library);
    json_write_string(w, "isa", d->machine.products.isa);
    json_write_array(w, "peaks");
    for (int64_t i = 0; i < d->peaks.count; i++) {
        const struct peak *p = &d->peaks.items[i];
        json_write_object(w, NULL);
        json_write_string(w, "dtype", dtype_info(p->dtype)->name);
        json_write_int(w, "threads", p->threads);
        json_write_double(w, "flops", measured_peak(&p->rates));
        json_write_double(w, "linear", p->rates.linear);
        json_write_double(w, "grad_input", p->rates.grad_input);
        json_write_double(w, "grad_weight", p->rates.grad_weight);
        json_write_int(w, "time", p->time);
        json_write_end(w);
    }
    json_write_end(w);
    json_write_string(w, "kept_in", d->path);
    json_write_end(w);
}

static void mpi_json(struct json_writer *w, const struct doctor_mpi *mpi)
{
    json_write_object(w, "mpi");
    json_write_bool(w, "built", mpi->built);
    write_text(w, "library", mpi->library);
    write_text(w, "launcher", mpi->launcher);
    write_text(w, "launcher_version", mpi->launcher_version);
    json_write_bool(w, "under_launcher", mpi->under_launcher);
    json_write_array(w, "ranks");
    for (int i = 0; i < mpi->rank_count; i++) {
        struct strbuf cores = {0};
        put_cores(&cores, &mpi->ranks[i]);
        json_write_object(w, NULL);
        json_write_string(w, "host", mpi->ranks[i].host);
        json_write_string(w, "cores", cores.data);
        json_write_int(w, "cores_online", mpi->ranks[i].cores_online);
        json_write_end(w);
        w->out->failed |= cores.failed;
        strbuf_free(&cores);
    }
    json_write_end(w);
    json_write_end(w);
}

void doctor_json(const struct doctor *d, struct strbuf *out)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "version", TERCET_VERSION);
    machine_json(&w, &d->machine);
    speed_json(&w, d);
    mpi_json(&w, &d->mpi);
    json_write_object(&w, "gpus");
    json_write_int(&w, "used", 0);
    json_write_int(&w, "nvidia", d->nvidia_gpus);
    json_write_end(&w);
    json_write_object(&w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        json_write_string(&w, d->libraries.items[i].name, d->libraries.items[i].version);
    json_write_end(&w);
    json_write_array(&w, "missing");
    for (int64_t i = 0; i < d->missing.count - d->missing.lost; i++) {
        json_write_object(&w, NULL);
        json_write_string(&w, "problem", d->missing.items[i].what);
        write_text(&w, "remedy", d->missing.items[i].remedy);
        json_write_end(&w);
    }
    json_write_end(&w);
    json_write_end(&w);
    if (d->missing.lost > 0)
        out->failed = 1;
}
