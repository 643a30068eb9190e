#include "plan/peaks.h"

#include "base/file.h"
#include "formats/json.h"
#include "plan/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, FILE_LIMIT = 16 << 20, MOST_THREADS = 1 << 20 };

char *peaks_path(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct strbuf path = {0};
    if (cache && cache[0] == '/') /* its specification: relative paths are invalid */
        strbuf_printf(&path, "%s/tercet/peaks.json", cache);
    else if (home && home[0] == '/')
        strbuf_printf(&path, "%s/.cache/tercet/peaks.json", home);
    if (path.failed)
        strbuf_free(&path);
    return path.data;
}

void peaks_free(struct peaks *p)
{
    for (int64_t i = 0; i < p->count; i++)
        free(p->items[i].machine);
    free(p->items);
    *p = (struct peaks){0};
}

static struct peak *find(const struct peaks *p, const char *machine, enum dtype dtype, int threads)
{
    for (int64_t i = 0; i < p->count; i++)
        if (p->items[i].threads == threads && p->items[i].dtype == dtype &&
            strcmp(p->items[i].machine, machine) == 0)
            return &p->items[i];
    return NULL;
}

const struct peak *peaks_find(const struct peaks *p, const char *machine, enum dtype dtype, int threads)
{
    return find(p, machine, dtype, threads);
}

int peaks_put(struct peaks *p, const struct peak *peak, struct error *err)
{
    struct peak *there = find(p, peak->machine, peak->dtype, peak->threads);
    if (there) {
        there->rates = peak->rates;
        there->time = peak->time;
        return 0;
    }
    if (p->count == p->capacity) {
        int64_t capacity = p->capacity > 0 ? 2 * p->capacity : 16;
        struct peak *items = realloc(p->items, (size_t)capacity * sizeof *items);
        if (!items)
            return error_memory(err, (size_t)capacity * sizeof *items, "measured peaks");
        p->items = items;
        p->capacity = capacity;
    }
    char *machine = strdup(peak->machine);
    if (!machine)
        return error_memory(err, strlen(peak->machine) + 1, "measured peaks");
    p->items[p->count] = *peak;
    p->items[p->count++].machine = machine;
    return 0;
}

static bool plausible(double rate)
{
    return isfinite(rate) && rate > 0 && rate < 1e18;
}

/* One entry of the file; false: it is not what was written. */
static bool read_peak(const struct json_document *doc, const json_t *entry, struct peak *out)
{
    const char *machine, *dtype;
    int64_t threads;
    struct measured_products *r = &out->rates;
    if (json_get_string(doc, entry, "machine", &machine, NULL) != 0 ||
        json_get_string(doc, entry, "dtype", &dtype, NULL) != 0 || dtype_from_name(dtype, &out->dtype) != 0 ||
        json_get_int(doc, entry, "threads", 1, MOST_THREADS, &threads, NULL) != 0 ||
        json_get_double(doc, entry, "linear", &r->linear, NULL) != 0 ||
        json_get_double(doc, entry, "grad_input", &r->grad_input, NULL) != 0 ||
        json_get_double(doc, entry, "grad_weight", &r->grad_weight, NULL) != 0 ||
        json_get_int(doc, entry, "time", 0, INT64_MAX, &out->time, NULL) != 0)
        return false;
    out->machine = (char *)(uintptr_t)machine; /* peaks_put copies it */
    out->threads = (int)threads;
    return plausible(r->linear) && plausible(r->grad_input) && plausible(r->grad_weight);
}

/* 1: damaged. */
static int read_all(const struct json_document *doc, struct peaks *out, struct error *err)
{
    int64_t format;
    json_t *list;
    if (json_get_int(doc, doc->root, "format", FORMAT, FORMAT, &format, NULL) != 0 ||
        json_get_array(doc, doc->root, "peaks", &list, NULL) != 0)
        return 1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct peak peak;
        if (!read_peak(doc, json_array_get(list, i), &peak))
            return 1;
        if (peaks_put(out, &peak, err) != 0)
            return -1;
    }
    return 0;
}

int peaks_load(const char *path, struct peaks *out, bool *damaged, struct error *err)
{
    struct json_document doc;
    *out = (struct peaks){0};
    if (damaged)
        *damaged = false;
    if (!file_exists(path))
        return 0;
    int status = 1;
    if (json_open(&doc, path, FILE_LIMIT, NULL) == 0) {
        status = read_all(&doc, out, err);
        json_close(&doc);
    }
    if (status != 0)
        peaks_free(out);
    if (damaged)
        *damaged = status == 1;
    return status < 0 ? -1 : 0;
}

int peaks_save(const char *path, const struct peaks *p, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    json_writer_start(&w, &text, 1);
    json_write_object(&w, NULL);
    json_write_int(&w, "format", FORMAT);
    json_write_array(&w, "peaks");
    for (int64_t i = 0; i < p->count; i++) {
        const struct peak *peak = &p->items[i];
        json_write_object(&w, NULL);
        json_write_string(&w, "machine", peak->machine);
        json_write_string(&w, "dtype", dtype_info(peak->dtype)->name);
        json_write_int(&w, "threads", peak->threads);
        json_write_double(&w, "linear", peak->rates.linear);
        json_write_double(&w, "grad_input", peak->rates.grad_input);
        json_write_double(&w, "grad_weight", peak->rates.grad_weight);
        json_write_int(&w, "time", peak->time);
        json_write_end(&w);
    }
    json_write_end(&w);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    char *directory = strdup(path), *slash = directory ? strrchr(directory, '/') : NULL;
    int status = -1;
    if (slash && slash > directory)
        *slash = '\0';
    if (text.failed || !directory)
        error_memory(err, text.length, "measured peaks");
    else if (!slash || slash == directory || file_make_directories(directory, err) == 0)
        status = file_write_all(path, text.data, text.length, err);
    free(directory);
    strbuf_free(&text);
    return status;
}

double peaks_of_backend(const struct backend *backend, enum dtype dtype, int threads)
{
    struct machine machine;
    struct peaks peaks = {0};
    struct strbuf key = {0};
    double rate = 0;
    char *path = peaks_path();
    machine_describe("", backend, &machine);
    machine_key(&machine, &key);
    if (path && !key.failed && peaks_load(path, &peaks, NULL, NULL) == 0) {
        int most = machine.cores_online;
        const struct peak *peak = peaks_find(&peaks, key.data, dtype, threads < most ? threads : most);
        rate = peak ? measured_peak(&peak->rates) : 0;
    }
    peaks_free(&peaks);
    strbuf_free(&key);
    free(path);
    return rate;
}
