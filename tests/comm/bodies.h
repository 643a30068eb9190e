/* What every rank does in the tests of comm: one function a property, the same for all transports. A body
 * returns 1 with the failed line and condition in *err. */
#ifndef TEST_COMM_BODIES_H
#define TEST_COMM_BODIES_H

#include "base/rng.h"
#include "comm/comm.h"
#include "comm/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failed_at(struct error *err, const char *file, int line, const char *condition)
{
    char where[256], before[512] = "";
    snprintf(where, sizeof where, "%.200s:%d", file, line);
    if (err->kind != ERROR_NONE)
        snprintf(before, sizeof before, " (%.500s)", err->what);
    error_set(err, ERROR_RUN, where, NULL, "%s%s", condition, before);
    return ERROR_RUN;
}

#define CHECK(condition)                                                                                     \
    if (!(condition))                                                                                        \
    return failed_at(err, __FILE__, __LINE__, #condition)

/* Up to a millisecond and a half, different for every rank and place: ranks overtake each other. */
static void dawdle(const struct comm *c, uint64_t place)
{
    uint64_t draw = rng_below(7, (uint64_t)comm_rank(c), place, 8);
    struct timespec t = {.tv_nsec = (long)rng_below(8, (uint64_t)comm_rank(c), place, 1500000)};
    if (draw < 3)
        nanosleep(&t, NULL);
}

/* Byte i of what rank r writes in a round. */
static unsigned char pattern(uint64_t round, int r, int64_t i)
{
    return (unsigned char)((round * 131 + (uint64_t)r * 31 + (uint64_t)i * 7 + ((uint64_t)i >> 9)) & 255);
}

static void write_pattern(void *out, uint64_t round, int r, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ((unsigned char *)out)[i] = pattern(round, r, first + i);
}

static bool is_pattern(const void *in, uint64_t round, int r, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (((const unsigned char *)in)[i] != pattern(round, r, first + i))
            return false;
    return true;
}

enum { LAYOUTS = 7, LAYOUT_BYTES = 70001, LAYOUT_RANKS = 8 };

/* Uneven layouts, with empty runs at either end and in the middle; kind 4 is all empty, kind 5 whole blocks
 * of 64 bytes, kind 6 a prime total. */
static void make_layout(int kind, int size, int64_t offset[LAYOUT_RANKS + 1])
{
    offset[0] = 0;
    for (int r = 0; r < size; r++) {
        int64_t bytes = 0;
        if (kind == 0)
            bytes = 1000 + r;
        else if (kind == 1)
            bytes = r == size - 1 ? 0 : 4096 * (r + 1);
        else if (kind == 2)
            bytes = r == size / 2 ? 70001 / size : 0;
        else if (kind == 3)
            bytes = r == 0 ? 0 : 13 * r * r + 1;
        else if (kind == 5)
            bytes = 64 * ((r * 5) % 7);
        else if (kind == 6)
            bytes = r == size - 1 ? 1009 : 2 * r;
        offset[r + 1] = offset[r] + bytes;
    }
}

static int body_names(struct comm *c, void *context, struct error *err)
{
    (void)context;
    CHECK(comm_size(c) >= 1 && comm_rank(c) >= 0 && comm_rank(c) < comm_size(c));
    bool mpi = strcmp(comm_name(c), "mpi") == 0;
    CHECK(mpi || strcmp(comm_name(c), comm_size(c) == 1 ? "self" : "shm") == 0);
    CHECK(comm_shares_memory(c) == !mpi);
    /* All test ranks are on one machine. */
    CHECK(comm_local_size(c) == comm_size(c));
    CHECK(comm_local_rank(c) == comm_rank(c));
    CHECK(comm_stop_signal(c) == 0);
    CHECK(comm_stats(c)->gathers == 0 && comm_stats(c)->bytes_sent == 0);
    return 0;
}

static const size_t odd_sizes[] = {0, 1, 7, 4096, 65535, 65536, 65537, 200003};

static int body_broadcast(struct comm *c, void *context, struct error *err)
{
    (void)context;
    unsigned char *data = malloc(200003);
    CHECK(data);
    for (size_t i = 0; i < sizeof odd_sizes / sizeof odd_sizes[0]; i++)
        for (int root = 0; root < comm_size(c); root++) {
            int64_t n = (int64_t)odd_sizes[i];
            uint64_t round = i * 10 + (uint64_t)root;
            memset(data, 0, 200003);
            if (comm_rank(c) == root)
                write_pattern(data, round, root, 0, n);
            dawdle(c, round);
            CHECK(comm_broadcast(c, data, odd_sizes[i], root, err) == 0);
            CHECK(is_pattern(data, round, root, 0, n));
        }
    free(data);
    return 0;
}

static int body_all_gather(struct comm *c, void *context, struct error *err)
{
    (void)context;
    size_t size = (size_t)comm_size(c);
    unsigned char *mine = malloc(200003), *all = malloc(200003 * size);
    CHECK(mine && all);
    for (uint64_t round = 0; round < 16; round++) {
        size_t n = odd_sizes[round % 8];
        write_pattern(mine, round, comm_rank(c), 0, (int64_t)n);
        memset(all, 0, 200003 * size);
        dawdle(c, round);
        CHECK(comm_all_gather(c, mine, n, all, err) == 0);
        for (size_t r = 0; r < size; r++)
            CHECK(is_pattern(all + r * n, round, (int)r, 0, (int64_t)n));
    }
    free(mine);
    free(all);
    return 0;
}

static int body_sums(struct comm *c, void *context, struct error *err)
{
    (void)context;
    const int64_t sizes[] = {0, 1, 3, 8191, 8192, 8193, 20001};
    int64_t *v = malloc(20001 * sizeof *v), size = comm_size(c), rank = comm_rank(c);
    CHECK(v);
    for (uint64_t round = 0; round < 14; round++) {
        int64_t n = sizes[round % 7];
        for (int64_t i = 0; i < n; i++)
            v[i] = (rank + 1) * (i - 100);
        dawdle(c, round);
        CHECK(comm_sum_i64(c, v, n, err) == 0);
        for (int64_t i = 0; i < n; i++)
            CHECK(v[i] == size * (size + 1) / 2 * (i - 100));
        for (int64_t i = 0; i < n; i++)
            v[i] = i % size == rank ? -5 - i : INT64_MIN + rank;
        CHECK(comm_max_i64(c, v, n, err) == 0);
        for (int64_t i = 0; i < n; i++)
            CHECK(v[i] == -5 - i);
    }
    v[0] = INT64_MAX; /* wraps around */
    CHECK(comm_sum_i64(c, v, 1, err) == 0);
    CHECK((uint64_t)v[0] == (uint64_t)size * (uint64_t)INT64_MAX);
    free(v);
    return 0;
}

/* Nobody comes out of a barrier before all have gone in. */
static int body_barrier(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct timespec before, after;
    for (uint64_t round = 0; round < 60; round++) {
        int64_t went_in, came_out;
        dawdle(c, round);
        clock_gettime(CLOCK_MONOTONIC, &before); /* one clock for all processes of a machine */
        CHECK(comm_barrier(c, err) == 0);
        clock_gettime(CLOCK_MONOTONIC, &after);
        went_in = before.tv_sec * 1000000000L + before.tv_nsec;
        came_out = after.tv_sec * 1000000000L + after.tv_nsec;
        CHECK(comm_max_i64(c, &went_in, 1, err) == 0);
        CHECK(came_out >= went_in);
    }
    return 0;
}

static int body_move(struct comm *c, void *context, struct error *err)
{
    (void)context;
    enum { MOST = 200003 };
    unsigned char *source = malloc(MOST), *target = malloc(MOST);
    CHECK(source && target);
    for (int from = 0; from < comm_size(c); from++)
        for (int root = 0; root < comm_size(c); root++)
            for (size_t i = 0; i < sizeof odd_sizes / sizeof odd_sizes[0]; i++) {
                uint64_t round = (uint64_t)(from * 8 + root) * 10 + i;
                int64_t n = (int64_t)odd_sizes[i];
                dawdle(c, round);
                if (comm_rank(c) == from)
                    write_pattern(source, round, from, 0, n);
                memset(target, 0, MOST);
                if (comm_rank(c) == from || comm_rank(c) == root)
                    CHECK(comm_move(c, from, root, source, target, (size_t)n, err) == 0);
                if (comm_rank(c) == root)
                    CHECK(is_pattern(target, round, from, 0, n));
                if (i % 3 == 0) { /* collectives between moves do not disturb them */
                    int64_t one = 1;
                    CHECK(comm_sum_i64(c, &one, 1, err) == 0 && one == comm_size(c));
                }
            }
    free(source);
    free(target);
    return 0;
}

static bool all_zero(const void *memory, size_t bytes)
{
    const unsigned char *p = memory;
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* One window: zeroed, aligned, seen by the others where that is promised, and free to write. */
static int use_window(struct comm *c, struct comm_window *w, size_t bytes, bool shared, uint64_t round,
                      struct error *err)
{
    int rank = comm_rank(c), size = comm_size(c);
    int64_t n = (int64_t)bytes;
    CHECK(w->bytes == bytes && w->memory && w->part[rank] == w->memory);
    CHECK((uintptr_t)w->memory % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    CHECK(all_zero(w->memory, bytes));
    CHECK(comm_barrier(c, err) == 0); /* all have seen the zeros */
    bool common = shared && comm_shares_memory(c);
    int writer = (int)(round % (uint64_t)size);
    if (!common || rank == writer)
        write_pattern(w->memory, round, rank, 0, n);
    CHECK(comm_barrier(c, err) == 0);
    for (int r = 0; r < size; r++) {
        CHECK((w->part[r] != NULL) == (comm_shares_memory(c) || r == rank));
        if (w->part[r])
            CHECK(is_pattern(w->part[r], round, common ? writer : r, 0, n));
    }
    return 0;
}

static int body_windows(struct comm *c, void *context, struct error *err)
{
    (void)context;
    enum { LIVE = 4 };
    const size_t sizes[] = {1, 4096, 4097, 100003, 0, 12288, 700001};
    struct comm_window live[LIVE] = {{0}};
    for (uint64_t round = 0; round < 40; round++) {
        struct comm_window *w = &live[rng_below(1, 1, round, LIVE)];
        size_t bytes = sizes[round % 7];
        bool shared = rng_below(1, 2, round, 2) == 0;
        comm_window_free(c, w);
        CHECK(w->part == NULL && w->memory == NULL);
        dawdle(c, round);
        CHECK(comm_window_create(c, bytes, shared, w, err) == 0);
        if (use_window(c, w, bytes, shared, round, err) != 0)
            return ERROR_RUN;
    }
    for (int i = 0; i < LIVE; i++)
        comm_window_free(c, &live[i]);
    CHECK(comm_window_create(c, SIZE_MAX / 2, false, &live[0], err) != 0);
    CHECK(live[0].memory == NULL);
    *err = (struct error){0};
    return 0;
}

/* Several gathers in flight: three objects of different layouts and one of them begun twice, round by
 * round. Full buffers are shared windows where memory is shared, private ones elsewhere. */
static int gather_rounds(struct comm *c, struct comm_gather g[3], struct comm_window full[4],
                         struct error *err)
{
    const int object[4] = {0, 1, 2, 1};
    int rank = comm_rank(c);
    unsigned char *aside = malloc(LAYOUT_BYTES);
    CHECK(aside);
    for (uint64_t round = 0; round < 40; round++) {
        for (int i = 0; i < 4; i++) {
            const int64_t *offset = g[object[i]].offset;
            int64_t n = offset[rank + 1] - offset[rank];
            unsigned char *place = (unsigned char *)full[i].memory + offset[rank];
            /* With messages the first may come from elsewhere. */
            bool elsewhere = !comm_shares_memory(c) && i == 0;
            write_pattern(elsewhere ? aside : place, round + 50 * (uint64_t)i, rank, 0, n);
            dawdle(c, round * 4 + (uint64_t)i);
            CHECK(comm_gather_begin(&g[object[i]], elsewhere ? aside : place, full[i].memory, err) == 0);
        }
        dawdle(c, round + 1000);
        for (int i = 0; i < 4; i++) {
            const int64_t *offset = g[object[i]].offset;
            CHECK(comm_gather_wait(&g[object[i]], err) == 0);
            for (int r = 0; r < comm_size(c); r++)
                CHECK(is_pattern((unsigned char *)full[i].memory + offset[r], round + 50 * (uint64_t)i, r, 0,
                                 offset[r + 1] - offset[r]));
        }
        if (comm_shares_memory(c))
            CHECK(comm_barrier(c, err) == 0); /* all have read before the next round is written */
    }
    free(aside);
    return 0;
}

static int body_gather(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct comm_window full[4];
    for (int i = 0; i < 4; i++)
        CHECK(comm_window_create(c, LAYOUT_BYTES, true, &full[i], err) == 0);
    int64_t sent = 0, before = comm_stats(c)->bytes_sent;
    for (int first = 0; first < LAYOUTS; first++) {
        struct comm_gather g[3];
        int64_t offset[LAYOUT_RANKS + 1];
        for (int i = 0; i < 3; i++) {
            make_layout((first + i) % LAYOUTS, comm_size(c), offset);
            CHECK(comm_gather_create(c, offset, comm_shares_memory(c), &g[i], err) == 0);
            int64_t mine = offset[comm_rank(c) + 1] - offset[comm_rank(c)];
            sent += 40 * (i == 1 ? 2 : 1) * mine * (comm_size(c) - 1);
        }
        if (gather_rounds(c, g, full, err) != 0)
            return ERROR_RUN;
        for (int i = 0; i < 3; i++)
            comm_gather_free(&g[i]);
    }
    CHECK(comm_stats(c)->gathers == LAYOUTS * 40 * 4 && comm_stats(c)->last_gather_begin > 0);
    CHECK(comm_stats(c)->bytes_sent - before == (comm_shares_memory(c) ? 0 : sent));
    for (int i = 0; i < 4; i++)
        comm_window_free(c, &full[i]);
    return 0;
}

/* Many rounds with every number of contributors and changing layouts; the rounds of two exchanges
 * overlap. */
static int exchange_round(struct comm *c, struct comm_exchange *x, uint64_t round, bool begin,
                          struct error *err)
{
    int rank = comm_rank(c), k = (int)(round % (uint64_t)(comm_size(c) + 1));
    int64_t offset[LAYOUT_RANKS + 1];
    make_layout((int)(round % LAYOUTS), comm_size(c), offset);
    if (begin) {
        CHECK(comm_exchange_layout(x, offset, err) == 0);
        CHECK(comm_exchange_reuse(x, err) == 0);
        if (rank < k)
            write_pattern(x->send, round, rank, 0, offset[comm_size(c)]);
        dawdle(c, round);
        CHECK(comm_exchange_begin(x, k, err) == 0);
        return 0;
    }
    for (int r = 0; r < k; r++) {
        const void *part;
        if (r % 2 == 0)
            dawdle(c, round * 10 + (uint64_t)r);
        CHECK(comm_exchange_part(x, r, &part, err) == 0);
        CHECK(is_pattern(part, round, r, offset[rank], offset[rank + 1] - offset[rank]));
    }
    CHECK(comm_exchange_end(x, err) == 0);
    return 0;
}

static int body_exchange(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct comm_exchange x[2];
    for (int i = 0; i < 2; i++) {
        CHECK(comm_exchange_create(c, LAYOUT_BYTES, LAYOUT_BYTES, &x[i], err) == 0);
        CHECK(x[i].send && (uintptr_t)x[i].send % 4096 == 0 && x[i].capacity == LAYOUT_BYTES);
        CHECK((x[i].staging != NULL) == (!comm_shares_memory(c) && comm_size(c) > 1));
    }
    for (uint64_t round = 0; round < 168; round++) {
        if (exchange_round(c, &x[round % 2], round, true, err) != 0)
            return ERROR_RUN;
        if (round > 0 && exchange_round(c, &x[(round - 1) % 2], round - 1, false, err) != 0)
            return ERROR_RUN;
    }
    if (exchange_round(c, &x[1], 167, false, err) != 0)
        return ERROR_RUN;
    CHECK(comm_stats(c)->exchanges == 168);
    for (int i = 0; i < 2; i++)
        comm_exchange_free(&x[i]); /* with messages: sends may still be under way */
    return 0;
}

/* Ordered sum over an exchange, as the reduce does it: the same bits on every rank count. */
static int body_ordered_sum(struct comm *c, void *context, struct error *err)
{
    (void)context;
    enum { COUNT = 1000, MICRO = 7 };
    int size = comm_size(c), rank = comm_rank(c);
    int64_t offset[LAYOUT_RANKS + 1] = {0};
    for (int r = 0; r < size; r++)
        offset[r + 1] = (int64_t)sizeof(float) * (COUNT * (r + 1) / size);
    struct comm_exchange x;
    CHECK(comm_exchange_create(c, sizeof(float) * COUNT, sizeof(float) * COUNT, &x, err) == 0);
    CHECK(comm_exchange_layout(&x, offset, err) == 0);
    float sum[COUNT] = {0}, expected[COUNT] = {0}, grad[COUNT];
    int64_t first = offset[rank] / 4, last = offset[rank + 1] / 4;
    for (int micro = 0; micro < MICRO; micro += size) {
        int k = MICRO - micro < size ? MICRO - micro : size;
        CHECK(comm_exchange_reuse(&x, err) == 0);
        if (rank < k)
            rng_normal(1, (uint64_t)micro + (uint64_t)rank, 0, COUNT, 1.0f, x.send);
        CHECK(comm_exchange_begin(&x, k, err) == 0);
        for (int r = 0; r < k; r++) {
            const void *part;
            CHECK(comm_exchange_part(&x, r, &part, err) == 0);
            for (int64_t i = first; i < last; i++)
                sum[i] += ((const float *)part)[i - first];
        }
        CHECK(comm_exchange_end(&x, err) == 0);
    }
    for (int micro = 0; micro < MICRO; micro++) {
        rng_normal(1, (uint64_t)micro, 0, COUNT, 1.0f, grad);
        for (int i = 0; i < COUNT; i++)
            expected[i] += grad[i];
    }
    CHECK(memcmp(sum + first, expected + first, (size_t)(last - first) * sizeof(float)) == 0);
    comm_exchange_free(&x);
    return 0;
}

/* Calls out of order and layouts that do not fit are errors, and all goes on after them. */
static int body_misuse(struct comm *c, void *context, struct error *err)
{
    (void)context;
    const void *part;
    int64_t backwards[LAYOUT_RANKS + 1] = {0}, offset[LAYOUT_RANKS + 1];
    struct comm_gather g;
    struct comm_exchange x;
    struct comm_window full;
    backwards[comm_size(c)] = -1;
    make_layout(0, comm_size(c), offset);
    CHECK(comm_gather_create(c, offset, !comm_shares_memory(c), &g, err) != 0 && err->what[0] != '\0');
    CHECK(comm_gather_create(c, backwards, comm_shares_memory(c), &g, err) != 0);
    comm_gather_free(&g);
    CHECK(comm_gather_create(c, offset, comm_shares_memory(c), &g, err) == 0);
    CHECK(comm_gather_wait(&g, err) != 0);
    CHECK(comm_window_create(c, LAYOUT_BYTES * COMM_REQUESTS, true, &full, err) == 0);
    char *memory = full.memory;
    for (int i = 0; i < COMM_REQUESTS; i++, memory += LAYOUT_BYTES)
        CHECK(comm_gather_begin(&g, memory + offset[comm_rank(c)], memory, err) == 0);
    if (!comm_shares_memory(c)) /* requests of messages are limited, counters are not */
        CHECK(comm_gather_begin(&g, full.memory, full.memory, err) != 0);
    for (int i = 0; i < COMM_REQUESTS; i++)
        CHECK(comm_gather_wait(&g, err) == 0);
    CHECK(comm_gather_wait(&g, err) != 0);

    CHECK(comm_exchange_create(c, 100, 60, &x, err) == 0);
    CHECK(comm_exchange_layout(&x, backwards, err) != 0);
    CHECK(comm_exchange_layout(&x, offset, err) != 0);
    CHECK(comm_exchange_begin(&x, comm_size(c), err) != 0);
    CHECK(comm_exchange_part(&x, 0, &part, err) != 0);
    CHECK(comm_exchange_end(&x, err) != 0);
    CHECK(comm_exchange_reuse(&x, err) == 0);
    CHECK(comm_exchange_begin(&x, 1, err) == 0);
    CHECK(comm_exchange_reuse(&x, err) != 0);
    CHECK(comm_exchange_layout(&x, offset, err) != 0);
    CHECK(comm_exchange_part(&x, 1, &part, err) != 0);
    CHECK(comm_exchange_part(&x, 0, &part, err) == 0);
    CHECK(comm_exchange_end(&x, err) == 0);
    comm_exchange_free(&x);
    comm_exchange_free(&x);
    comm_gather_free(&g);
    comm_window_free(c, &full);
    *err = (struct error){0};
    return 0;
}

/* Things begun and not ended are given back without waiting and without harm. */
static int body_abandon(struct comm *c, void *context, struct error *err)
{
    (void)context;
    int64_t offset[LAYOUT_RANKS + 1];
    struct comm_gather g;
    struct comm_exchange x;
    struct comm_window full;
    make_layout(0, comm_size(c), offset);
    for (int round = 0; round < 5; round++) {
        CHECK(comm_window_create(c, LAYOUT_BYTES, true, &full, err) == 0);
        CHECK(comm_gather_create(c, offset, comm_shares_memory(c), &g, err) == 0);
        CHECK(comm_exchange_create(c, LAYOUT_BYTES, LAYOUT_BYTES, &x, err) == 0);
        CHECK(comm_exchange_layout(&x, offset, err) == 0 && comm_exchange_reuse(&x, err) == 0);
        CHECK(comm_gather_begin(&g, (char *)full.memory + offset[comm_rank(c)], full.memory, err) == 0);
        CHECK(comm_exchange_begin(&x, comm_size(c), err) == 0);
        comm_window_free(c, &full);
        comm_exchange_free(&x);
        comm_gather_free(&g);
    }
    CHECK(comm_barrier(c, err) == 0);
    return 0;
}

/* Everything again with counts so small that every call is cut in pieces; elsewhere than with messages the
 * limit means nothing. */
static int body_pieces(struct comm *c, void *context, struct error *err)
{
    mpi_limit_count(c, 1000);
    comm_body *const bodies[] = {body_broadcast, body_all_gather, body_sums,
                                 body_move,      body_gather,     body_exchange};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (bodies[i](c, context, err) != 0)
            return ERROR_RUN;
    return 0;
}

struct named_body {
    const char *name;
    comm_body *body;
};

static const struct named_body all_bodies[] = {
    {"names", body_names},           {"broadcast", body_broadcast},
    {"all_gather", body_all_gather}, {"sums", body_sums},
    {"barrier", body_barrier},       {"move", body_move},
    {"windows", body_windows},       {"gather", body_gather},
    {"exchange", body_exchange},     {"ordered_sum", body_ordered_sum},
    {"misuse", body_misuse},         {"abandon", body_abandon},
    {"pieces", body_pieces},
};
enum { BODIES = sizeof all_bodies / sizeof all_bodies[0] };

#endif
