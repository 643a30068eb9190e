#include "comm/shm.h"

#include "base/limits.h"
#include "comm/extents.h"
#include "comm/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct shm {
    struct region *region;
    struct extents extents;
    uint32_t arrivals; /* barriers that this rank has reached */
    uint32_t rounds;   /* uses of the mailboxes */
};

static struct shm *shm_of(const struct comm *c)
{
    return c->transport;
}

static int shm_stop_signal(struct comm *c)
{
    return (int)atomic_load(&shm_of(c)->region->stop);
}

/* ---- small collectives ---- */

static int shm_barrier(struct comm *c, struct error *err)
{
    struct shm *s = shm_of(c);
    struct region *g = s->region;
    uint32_t target = ++s->arrivals;
    word_set(&g->rank[c->rank].barrier, target);
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && region_wait(c, g, r, &g->rank[r].barrier, WORD_REACHES, target, err) != 0)
            return -1;
    return 0;
}

/* One round: every rank that has something (bytes > 0) lays it in its mailbox; after the barrier all may
 * read all of them, through *box. Two mailboxes take turns, so the readers of a round need not be waited
 * for: who writes the one again has passed the barrier of the other, which all reached after reading. */
static int mail_round(struct comm *c, const void *mine, size_t bytes, int *box, struct error *err)
{
    struct shm *s = shm_of(c);
    *box = (int)(s->rounds++ & 1u);
    if (bytes > 0)
        memcpy(region_mail(s->region, c->rank, *box), mine, bytes);
    return shm_barrier(c, err);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int shm_broadcast(struct comm *c, void *data, size_t bytes, int root, struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = least(bytes - done, REGION_MAIL_BYTES);
        char *piece = (char *)data + done;
        int box;
        if (mail_round(c, piece, c->rank == root ? n : 0, &box, err) != 0)
            return -1;
        if (c->rank != root)
            memcpy(piece, region_mail(shm_of(c)->region, root, box), n);
        done += n;
    }
    return 0;
}

static int shm_all_gather(struct comm *c, const void *mine, size_t bytes, void *all, struct error *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t n = least(bytes - done, REGION_MAIL_BYTES);
        int box;
        if (mail_round(c, (const char *)mine + done, n, &box, err) != 0)
            return -1;
        for (int r = 0; r < c->size; r++)
            memcpy((char *)all + (size_t)r * bytes + done, region_mail(shm_of(c)->region, r, box), n);
        done += n;
    }
    return 0;
}

static int64_t add_wrapping(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int combine(struct comm *c, int64_t *values, int64_t n, int64_t (*op)(int64_t, int64_t),
                   struct error *err)
{
    const int64_t most = REGION_MAIL_BYTES / (int64_t)sizeof *values;
    for (int64_t done = 0; done < n;) {
        int64_t count = n - done < most ? n - done : most;
        int64_t *piece = values + done;
        int box;
        if (mail_round(c, piece, (size_t)count * sizeof *piece, &box, err) != 0)
            return -1;
        for (int r = 0; r < c->size; r++) {
            const int64_t *other = region_mail(shm_of(c)->region, r, box);
            for (int64_t i = 0; i < count; i++)
                piece[i] = r == 0 ? other[i] : op(piece[i], other[i]);
        }
        done += count;
    }
    return 0;
}

static int shm_sum(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return combine(c, values, n, add_wrapping, err);
}

static int shm_max(struct comm *c, int64_t *values, int64_t n, struct error *err)
{
    return combine(c, values, n, greater, err);
}

/* A move goes through the sender's third mailbox. Its gate says for whom it is full; the receiver opens it
 * again. */
static int shm_send(struct comm *c, int to, const void *source, size_t bytes, struct error *err)
{
    struct region *g = shm_of(c)->region;
    struct word *gate = &g->rank[c->rank].gate;
    for (size_t done = 0; done < bytes;) {
        size_t n = least(bytes - done, REGION_MAIL_BYTES);
        memcpy(region_mail(g, c->rank, 2), (const char *)source + done, n);
        word_set(gate, (uint32_t)to + 1);
        if (region_wait(c, g, to, gate, WORD_EQUALS, 0, err) != 0)
            return -1;
        done += n;
    }
    return 0;
}

static int shm_receive(struct comm *c, int from, void *target, size_t bytes, struct error *err)
{
    struct region *g = shm_of(c)->region;
    struct word *gate = &g->rank[from].gate;
    for (size_t done = 0; done < bytes;) {
        size_t n = least(bytes - done, REGION_MAIL_BYTES);
        if (region_wait(c, g, from, gate, WORD_EQUALS, (uint32_t)c->rank + 1, err) != 0)
            return -1;
        memcpy((char *)target + done, region_mail(g, from, 2), n);
        word_set(gate, 0);
        done += n;
    }
    return 0;
}

/* ---- windows ---- */

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Bytes that `w` takes in the file: one piece, or one for each rank. */
static size_t window_total(const struct comm *c, const struct comm_window *w, bool shared)
{
    return whole_pages(w->bytes) * (shared ? 1 : (size_t)c->size);
}

/* The part of an extent whose pages rank r reserves, so that they lie near it: its own piece, or an equal
 * share of what is shared. */
static void share_of(const struct comm *c, size_t total, int r, size_t *first, size_t *bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = total / page, size = (size_t)c->size;
    size_t a = pages / size * (size_t)r + pages % size * (size_t)r / size;
    size_t b = pages / size * ((size_t)r + 1) + pages % size * ((size_t)r + 1) / size;
    *first = a * page;
    *bytes = (b - a) * page;
}

/* All ranks learn the first rank's problem (an errno value), so that all fail together or none does. */
static int agree(struct comm *c, int problem, size_t bytes, struct error *err)
{
    int64_t worst[COMM_MAX_LOCAL_RANKS], mine = problem;
    if (shm_all_gather(c, &mine, sizeof mine, worst, err) != 0)
        return -1;
    for (int r = 0; r < c->size; r++)
        if (worst[r] != 0) {
            char text[32];
            return error_set(err, ERROR_RUN, NULL,
                             "take fewer ranks, a smaller micro_batch or a smaller model",
                             "cannot reserve %s of memory that ranks share: %s",
                             format_bytes((int64_t)bytes, text), strerrordesc_np((int)worst[r]));
        }
    return 0;
}

static void punch(struct comm *c, size_t offset, size_t bytes)
{
    if (bytes > 0)
        (void)fallocate(shm_of(c)->region->windows_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)offset, (off_t)bytes);
}

/* Reserves this rank's share of the extent and maps the whole of it; returns an errno value. */
static int reserve_and_map(struct comm *c, size_t offset, size_t total, void **memory)
{
    int fd = shm_of(c)->region->windows_fd;
    size_t first, bytes;
    share_of(c, total, c->rank, &first, &bytes);
    while (bytes > 0 && fallocate(fd, 0, (off_t)(offset + first), (off_t)bytes) != 0)
        if (errno != EINTR)
            return errno;
    *memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    return *memory == MAP_FAILED ? errno : 0;
}

/* Two agreements: before, which also lets every rank come past the windows that it freed earlier, whose
 * pages the last one punched out; and after. */
static int create_in_file(struct comm *c, size_t total, void **memory, size_t *offset, struct error *err)
{
    struct shm *s = shm_of(c);
    struct limits limits = {.memory_available = -1};
    if (c->rank == 0)
        limits_read("", &limits);
    int64_t left = limits.memory_available;
    int problem = left >= 0 && total > (size_t)(left + limits.swap_free) ? ENOMEM : 0;
    bool taken = extents_take(&s->extents, total, offset) == 0;
    if (!taken)
        problem = ENOMEM;
    if (agree(c, problem, total, err) != 0 || !taken) {
        if (taken)
            extents_give(&s->extents, *offset);
        return -1;
    }
    problem = reserve_and_map(c, *offset, total, memory);
    if (agree(c, problem, total, err) == 0 && problem == 0)
        return 0;
    if (problem == 0)
        munmap(*memory, total);
    size_t first, bytes;
    share_of(c, total, c->rank, &first, &bytes);
    punch(c, *offset + first, bytes);
    extents_give(&s->extents, *offset);
    return -1;
}

static int shm_window_create(struct comm *c, bool shared, struct comm_window *w, struct error *err)
{
    size_t total = window_total(c, w, shared), offset = 0;
    void *memory = NULL;
    if (c->size == 1) {
        memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return error_memory(err, total, "a window");
    } else if (create_in_file(c, total, &memory, &offset, err) != 0)
        return -1;
    size_t stride = shared ? 0 : whole_pages(w->bytes);
    for (int r = 0; r < c->size; r++)
        w->part[r] = (char *)memory + (size_t)r * stride;
    w->memory = w->part[c->rank];
    w->place = (int64_t)offset;
    return 0;
}

static void shm_window_free(struct comm *c, struct comm_window *w)
{
    struct shm *s = shm_of(c);
    struct region *g = s->region;
    bool shared = c->size == 1 || w->part[0] == w->part[1];
    size_t total = window_total(c, w, shared);
    munmap(w->part[0], total);
    if (c->size == 1)
        return;
    extents_give(&s->extents, (size_t)w->place);
    /* The last rank to come here sees that all others have been here (perhaps two do: harmless, for nobody
     * uses the extent again before both have gone on to the next creation). */
    uint32_t mine = word_add(&g->rank[c->rank].freed);
    for (int r = 0; r < c->size; r++)
        if ((int32_t)(atomic_load(&g->rank[r].freed.value) - mine) < 0)
            return;
    punch(c, (size_t)w->place, total);
}

/* ---- gathers ---- */

struct shm_gather {
    struct comm_window words; /* struct word [size]: gathers that rank r has begun */
    uint32_t waited;
};

static int shm_gather_create(struct comm_gather *g, struct error *err)
{
    struct comm *c = g->comm;
    struct shm_gather *own = calloc(1, sizeof *own);
    if (!own)
        return error_memory(err, sizeof *own, "a gather");
    if (comm_window_create(c, (size_t)c->size * sizeof(struct word), true, &own->words, err) != 0) {
        free(own);
        return -1;
    }
    g->internal = own;
    return 0;
}

static void shm_gather_free(struct comm_gather *g)
{
    struct shm_gather *own = g->internal;
    comm_window_free(g->comm, &own->words);
    free(own);
}

static int shm_gather_begin(struct comm_gather *g, const void *mine, void *full, struct error *err)
{
    (void)mine, (void)full, (void)err;
    struct shm_gather *own = g->internal;
    struct word *words = own->words.memory;
    word_add(&words[g->comm->rank]);
    return 0;
}

static int shm_gather_wait(struct comm_gather *g, struct error *err)
{
    struct comm *c = g->comm;
    struct shm_gather *own = g->internal;
    struct word *words = own->words.memory;
    uint32_t target = ++own->waited;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank && region_wait(c, shm_of(c)->region, r, &words[r], WORD_REACHES, target, err) != 0)
            return -1;
    return 0;
}

/* ---- exchanges ---- */

struct exchange_words {
    struct word written; /* the last round that this rank has written its buffer for */
    struct word taken;   /* the last round that this rank has read all parts of */
};

struct shm_exchange {
    struct comm_window words; /* struct exchange_words [size] */
    uint32_t round, contributed;
};

static int shm_exchange_create(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct comm *c = x->comm;
    struct shm_exchange *own = calloc(1, sizeof *own);
    if (!own)
        return error_memory(err, sizeof *own, "an exchange");
    if (comm_window_create(c, (size_t)c->size * sizeof(struct exchange_words), true, &own->words, err) != 0) {
        free(own);
        return -1;
    }
    s->transport = own;
    return 0;
}

static void shm_exchange_free(struct comm_exchange *x, struct exchange_state *s)
{
    struct shm_exchange *own = s->transport;
    comm_window_free(x->comm, &own->words);
    free(own);
}

static int shm_exchange_reuse(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    struct comm *c = x->comm;
    struct shm_exchange *own = s->transport;
    struct exchange_words *words = own->words.memory;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank &&
            region_wait(c, shm_of(c)->region, r, &words[r].taken, WORD_REACHES, own->contributed, err) != 0)
            return -1;
    return 0;
}

static int shm_exchange_begin(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    (void)err;
    struct shm_exchange *own = s->transport;
    struct exchange_words *words = own->words.memory;
    own->round++;
    if (x->comm->rank < s->contributors) {
        own->contributed = own->round;
        word_set(&words[x->comm->rank].written, own->round);
    }
    return 0;
}

static int shm_exchange_part(struct comm_exchange *x, struct exchange_state *s, int rank, const void **part,
                             struct error *err)
{
    struct comm *c = x->comm;
    struct shm_exchange *own = s->transport;
    struct exchange_words *words = own->words.memory;
    if (rank != c->rank &&
        region_wait(c, shm_of(c)->region, rank, &words[rank].written, WORD_REACHES, own->round, err) != 0)
        return -1;
    *part = (const char *)s->send.part[rank] + s->offset[c->rank];
    return 0;
}

static int shm_exchange_end(struct comm_exchange *x, struct exchange_state *s, struct error *err)
{
    (void)err;
    struct shm_exchange *own = s->transport;
    struct exchange_words *words = own->words.memory;
    word_set(&words[x->comm->rank].taken, own->round);
    return 0;
}

/* ---- the table ---- */

static const struct comm_ops shm_ops = {
    .name = "shm",
    .shares_memory = true,
    .stop_signal = shm_stop_signal,
    .barrier = shm_barrier,
    .broadcast = shm_broadcast,
    .sum = shm_sum,
    .max = shm_max,
    .all_gather = shm_all_gather,
    .send = shm_send,
    .receive = shm_receive,
    .window_create = shm_window_create,
    .window_free = shm_window_free,
    .gather_create = shm_gather_create,
    .gather_free = shm_gather_free,
    .gather_begin = shm_gather_begin,
    .gather_wait = shm_gather_wait,
    .exchange_create = shm_exchange_create,
    .exchange_free = shm_exchange_free,
    .exchange_reuse = shm_exchange_reuse,
    .exchange_begin = shm_exchange_begin,
    .exchange_part = shm_exchange_part,
    .exchange_end = shm_exchange_end,
};

int shm_open_rank(struct comm *c, struct region *g, int rank, struct error *err)
{
    *c = (struct comm){.ops = &shm_ops,
                       .name = g->size == 1 ? "self" : "shm",
                       .rank = rank,
                       .size = g->size,
                       .local_rank = rank,
                       .local_size = g->size};
    struct shm *s = calloc(1, sizeof *s);
    if (!s)
        return error_memory(err, sizeof *s, "a rank");
    s->region = g;
    c->transport = s;
    return 0;
}

void shm_close_rank(struct comm *c)
{
    struct shm *s = c->transport;
    extents_free(&s->extents);
    free(s);
    c->transport = NULL;
}
