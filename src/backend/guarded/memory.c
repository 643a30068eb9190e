#include "backend/guarded/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void guarded_memory_start(struct guarded_memory *m)
{
    memset(m, 0, sizeof *m);
    m->page = (size_t)sysconf(_SC_PAGESIZE);
}

static void release(struct region *r)
{
    if (r->mapped)
        munmap(r->base, r->bytes);
    else
        mprotect(r->base, r->bytes, PROT_READ | PROT_WRITE);
    free(r->holds);
}

void guarded_memory_end(struct guarded_memory *m)
{
    for (size_t i = 0; i < m->count; i++)
        release(&m->regions[i]);
    free(m->regions);
}

static int add_region(struct guarded_memory *m, struct region r, struct error *err)
{
    r.holds = calloc(r.bytes / m->page, sizeof *r.holds);
    if (m->count == m->capacity && r.holds) {
        size_t capacity = m->capacity ? 2 * m->capacity : 64;
        struct region *regions = realloc(m->regions, capacity * sizeof *regions);
        if (regions) {
            m->regions = regions;
            m->capacity = capacity;
        }
    }
    if (!r.holds || m->count == m->capacity) {
        free(r.holds);
        return error_memory(err, r.bytes / m->page * sizeof *r.holds, "guarded memory");
    }
    m->regions[m->count++] = r;
    return 0;
}

int guarded_map(struct guarded_memory *m, size_t bytes, void **out, struct error *err)
{
    size_t rounded = (bytes + m->page - 1) / m->page * m->page;
    if (rounded < bytes)
        return error_memory(err, bytes, "guarded memory");
    if (rounded == 0)
        rounded = m->page;
    void *memory = mmap(NULL, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_errno(err, errno, NULL, "map guarded memory");
    if (add_region(m, (struct region){memory, rounded, true, NULL}, err) != 0) {
        munmap(memory, rounded);
        return -1;
    }
    *out = memory;
    return 0;
}

int guarded_watch(struct guarded_memory *m, void *memory, size_t bytes, struct error *err)
{
    if ((uintptr_t)memory % m->page != 0)
        return error_set(err, ERROR_RUN, "guarded backend", NULL, "adopted memory is not page-aligned");
    size_t rounded = (bytes + m->page - 1) / m->page * m->page;
    if (rounded == 0)
        return error_set(err, ERROR_RUN, "guarded backend", NULL, "adopted memory is empty");
    if (mprotect(memory, rounded, PROT_NONE) != 0)
        return error_errno(err, errno, NULL, "protect adopted memory");
    if (add_region(m, (struct region){memory, rounded, false, NULL}, err) != 0) {
        mprotect(memory, rounded, PROT_READ | PROT_WRITE);
        return -1;
    }
    return 0;
}

bool guarded_drop(struct guarded_memory *m, void *memory)
{
    for (size_t i = 0; i < m->count; i++)
        if (m->regions[i].base == memory) {
            release(&m->regions[i]);
            m->regions[i] = m->regions[--m->count];
            return true;
        }
    return false;
}

bool guarded_watches(const struct guarded_memory *m, const void *data, size_t bytes)
{
    uintptr_t from = (uintptr_t)data;
    for (size_t i = 0; i < m->count; i++) {
        uintptr_t base = (uintptr_t)m->regions[i].base;
        if (from >= base && from - base <= m->regions[i].bytes &&
            bytes <= m->regions[i].bytes - (from - base))
            return true;
    }
    return false;
}

/* The part of a range in a region, as pages first … end-1. */
static bool touched_pages(const struct guarded_memory *m, const struct region *r, const void *data,
                          size_t bytes, size_t *first, size_t *end)
{
    uintptr_t from = (uintptr_t)data, base = (uintptr_t)r->base;
    if (bytes == 0 || from >= base + r->bytes || from + bytes <= base)
        return false;
    size_t offset = from > base ? from - base : 0;
    size_t stop = from + bytes < base + r->bytes ? from + bytes - base : r->bytes;
    *first = offset / m->page;
    *end = (stop + m->page - 1) / m->page;
    return true;
}

/* Runs of pages that nobody holds change together. */
static int protect_pages(const struct guarded_memory *m, const struct region *r, size_t first, size_t end,
                         int flags)
{
    while (first < end) {
        size_t run = first;
        while (run < end && r->holds[run] == 0)
            run++;
        if (run > first && mprotect(r->base + first * m->page, (run - first) * m->page, flags) != 0)
            return -1;
        first = run;
        while (first < end && r->holds[first] > 0)
            first++;
    }
    return 0;
}

int guarded_protect(struct guarded_memory *m, const void *data, size_t bytes, enum guarded_use use,
                    struct error *err)
{
    static const int flags[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
    for (size_t i = 0; i < m->count; i++) {
        size_t first, end;
        if (touched_pages(m, &m->regions[i], data, bytes, &first, &end) &&
            protect_pages(m, &m->regions[i], first, end, flags[use]) != 0)
            return error_errno(err, errno, "guarded backend", "change the protection of memory");
    }
    return 0;
}

int guarded_hold(struct guarded_memory *m, void *data, size_t bytes, struct error *err)
{
    if (guarded_protect(m, data, bytes, GUARDED_WRITE, err) != 0)
        return -1;
    for (size_t i = 0; i < m->count; i++) {
        size_t first, end;
        if (touched_pages(m, &m->regions[i], data, bytes, &first, &end))
            for (size_t page = first; page < end; page++)
                m->regions[i].holds[page]++;
    }
    return 0;
}

int guarded_let_go(struct guarded_memory *m, void *data, size_t bytes, struct error *err)
{
    for (size_t i = 0; i < m->count; i++) {
        size_t first, end;
        if (!touched_pages(m, &m->regions[i], data, bytes, &first, &end))
            continue;
        for (size_t page = first; page < end; page++) {
            if (m->regions[i].holds[page] == 0)
                return error_set(err, ERROR_RUN, "guarded backend", NULL,
                                 "an access ends that did not begin");
            m->regions[i].holds[page]--;
        }
    }
    return guarded_protect(m, data, bytes, GUARDED_CLOSED, err);
}
