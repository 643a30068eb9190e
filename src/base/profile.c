#include "base/profile.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct span {
    const char *name;
    double begin, end;
};

/* Of one thread, which alone writes it. Padded, so that threads do not write to one cache line. */
struct track {
    _Alignas(64) struct span *spans;
    int64_t count, lost;
};

struct profile {
    struct track *tracks;
    struct span *spans;
    int threads, rows;
    int64_t capacity;
    bool on;
    double began, ended;
    double told; /* seconds of all rows */
    struct profile_row row[PROFILE_MAX_ROWS];
};

int64_t profile_bytes(int threads, int64_t spans)
{
    return (int64_t)sizeof(struct profile) +
           threads * ((int64_t)sizeof(struct track) + spans * (int64_t)sizeof(struct span));
}

int profile_create(struct profile **out, int threads, int64_t spans, struct error *err)
{
    *out = NULL;
    struct profile *p = calloc(1, sizeof *p);
    size_t track_bytes = (size_t)threads * sizeof *p->tracks;
    if (p) {
        p->tracks = aligned_alloc(64, track_bytes);
        p->spans = calloc((size_t)threads * (size_t)spans, sizeof *p->spans);
    }
    if (!p || !p->tracks || !p->spans) {
        profile_free(p);
        return error_memory(err, (size_t)profile_bytes(threads, spans), "a profile");
    }
    memset(p->tracks, 0, track_bytes);
    p->threads = threads;
    p->capacity = spans;
    for (int t = 0; t < threads; t++)
        p->tracks[t].spans = p->spans + t * spans;
    *out = p;
    return 0;
}

void profile_free(struct profile *p)
{
    if (!p)
        return;
    free(p->tracks);
    free(p->spans);
    free(p);
}

void profile_start(struct profile *p)
{
    if (!p)
        return;
    for (int t = 0; t < p->threads; t++)
        p->tracks[t].count = p->tracks[t].lost = 0;
    p->rows = 0;
    p->told = 0;
    p->on = true;
    p->began = p->ended = clock_seconds();
}

void profile_stop(struct profile *p)
{
    if (!profile_records(p))
        return;
    p->ended = clock_seconds();
    p->on = false;
}

bool profile_records(const struct profile *p)
{
    return p && p->on;
}

struct profile_mark profile_begin(const struct profile *p)
{
    return profile_records(p) ? (struct profile_mark){clock_seconds(), p->told}
                              : (struct profile_mark){-1, 0};
}

static struct profile_row *row_of(struct profile *p, const char *name)
{
    for (int i = 0; i < p->rows; i++)
        if (p->row[i].name == name)
            return &p->row[i];
    if (p->rows == PROFILE_MAX_ROWS) {
        p->row[p->rows - 1].name = "others";
        return &p->row[p->rows - 1];
    }
    p->row[p->rows] = (struct profile_row){.name = name};
    return &p->row[p->rows++];
}

void profile_end(struct profile *p, const char *name, struct profile_mark mark,
                 const struct profile_cost *cost)
{
    if (!profile_records(p) || mark.begin < p->began)
        return;
    double end = clock_seconds();
    double own = end - mark.begin - (p->told - mark.inside);
    struct profile_row *row = row_of(p, name);
    row->calls++;
    row->seconds += own;
    p->told += own;
    if (cost) {
        row->cost.product_flops += cost->product_flops;
        row->cost.other_flops += cost->other_flops;
        row->cost.bytes += cost->bytes;
    }
    profile_add(p, 0, name, mark.begin, end);
}

void profile_add(struct profile *p, int thread, const char *name, double begin, double end)
{
    if (!profile_records(p) || thread < 0 || thread >= p->threads)
        return;
    struct track *t = &p->tracks[thread];
    if (t->count == p->capacity)
        t->lost++;
    else
        t->spans[t->count++] = (struct span){name, begin, end};
}

const struct profile_row *profile_rows(const struct profile *p, int *count)
{
    *count = p->rows;
    return p->row;
}

double profile_seconds(const struct profile *p)
{
    return p->ended - p->began;
}

int64_t profile_lost(const struct profile *p)
{
    int64_t lost = 0;
    for (int t = 0; t < p->threads; t++)
        lost += p->tracks[t].lost;
    return lost;
}

static void write_name(FILE *out, const char *what, int rank, int thread, const char *name, int number)
{
    fprintf(out,
            "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s %d\"}},\n",
            what, rank, thread, name, number);
}

void profile_write_trace(const struct profile *p, FILE *out, int rank)
{
    write_name(out, "process_name", rank, 0, "rank", rank);
    for (int t = 0; t < p->threads; t++) {
        write_name(out, "thread_name", rank, t, "thread", t);
        for (int64_t i = 0; i < p->tracks[t].count; i++) {
            const struct span *s = &p->tracks[t].spans[i];
            fprintf(
                out,
                "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f},\n",
                s->name, rank, t, 1e6 * (s->begin - p->began), 1e6 * (s->end - s->begin));
        }
    }
}
