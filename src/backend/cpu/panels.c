/* Products by the kernels of kernels/product.h.
 *
 * Rows (c[m,n] = a[m,k] b): a piece is PRODUCT_COLUMNS columns of a block of rows. A thread packs the panel
 * of b and leads all rows of the block past it; it keeps the panel for the next block of the same columns.
 * Sums (c[m,n] = a[k,m]^T b[k,n]): b is packed whole, by all threads; a piece is PRODUCT_ROWS rows of c. A
 * thread packs those columns of a and leads them past all panels.
 *
 * An element of c is one chain of additions in the order of k, so neither cut leaves a trace in the bits. */
#include "backend/cpu/internal.h"

#include <string.h>

enum {
    WORD = 4,                      /* bytes */
    MOST_ROWS = 10 * PRODUCT_ROWS, /* of a block: 120 KB of sums */
    PIECES_WANTED = 24             /* at least, so that threads end together */
};

static const void *at(const void *data, enum dtype type, int64_t element)
{
    return (const char *)data + dtype_bytes(type, element);
}

/* Words of a row of a do not line up with its neighbours': rows are copied before they are read. */
static bool is_odd(enum dtype type, int64_t k)
{
    return type == DTYPE_BF16 && k % 2 != 0;
}

static int64_t panel_steps(enum dtype type, int64_t k)
{
    return min_i64(product_steps(type, k), PRODUCT_STEPS);
}

/* ---- one panel on one thread ---- */

/* c[rows, columns] (+)= a[rows, k] b; at most PRODUCT_COLUMNS columns, which are written rounded up to 16. b
 * is stored [k, b_row], or [columns, b_row] where transposed. */
struct panel_product {
    const void *a, *b;
    enum dtype type;
    int64_t b_row, k, rows, columns;
    bool b_transposed, add;
    float *c;
    int64_t c_row;
};

static size_t panel_scratch(enum dtype type, int64_t k)
{
    struct carve slot = {0};
    int64_t steps = panel_steps(type, k);
    carve_take(&slot, (size_t)(steps * PRODUCT_COLUMNS) * WORD);
    if (is_odd(type, k))
        carve_take(&slot, (size_t)(PRODUCT_ROWS * steps) * WORD);
    return slot.used;
}

static void pack_panel(const struct cpu *cpu, const struct panel_product *p, void *panel, int64_t first,
                       int64_t k)
{
    const struct product_kernels *kernels = cpu->kernels->product;
    if (p->b_transposed)
        kernels->pack_transposed(panel, at(p->b, p->type, first), p->type, p->b_row, k, p->columns);
    else
        kernels->pack(panel, PRODUCT_COLUMNS, at(p->b, p->type, first * p->b_row), p->type, p->b_row, k,
                      p->columns);
}

/* `packed`: scratch holds the panel of b from a call before. */
static void run_panel(const struct cpu *cpu, const struct panel_product *p, void *scratch, bool packed)
{
    const struct product_kernels *kernels = cpu->kernels->product;
    struct carve slot = {scratch, 0};
    int64_t steps = panel_steps(p->type, p->k), depth = p->type == DTYPE_BF16 ? 2 * steps : steps;
    void *panel = carve_take(&slot, (size_t)(steps * PRODUCT_COLUMNS) * WORD);
    bool odd = is_odd(p->type, p->k);
    char *copies = odd ? carve_take(&slot, (size_t)(PRODUCT_ROWS * steps) * WORD) : NULL;
    for (int64_t first = 0; first < p->k; first += depth) {
        int64_t k = min_i64(depth, p->k - first);
        steps = product_steps(p->type, k);
        if (!packed)
            pack_panel(cpu, p, panel, first, k);
        for (int64_t r = 0; r < p->rows; r += PRODUCT_ROWS) {
            int64_t rows = min_i64(PRODUCT_ROWS, p->rows - r), a_row = product_steps(p->type, p->k);
            const void *a = at(p->a, p->type, r * p->k + first);
            for (int64_t i = 0; odd && i < rows; i++) {
                memset(copies + (i + 1) * steps * WORD - WORD, 0, WORD);
                memcpy(copies + i * steps * WORD, at(a, p->type, i * p->k), (size_t)dtype_bytes(p->type, k));
            }
            kernels->run(p->c + r * p->c_row, p->c_row, odd ? copies : a, odd ? steps : a_row, 1, panel,
                         p->type, steps, rows, p->columns, first > 0 || p->add);
        }
    }
}

/* ---- rows ---- */

struct panels_job {
    struct cpu *cpu;
    struct product p;
    int64_t block, blocks, panels, steps;
    size_t scratch, slot; /* of a thread */
    char *threads, *b;
};

/* What a thread's slot begins with. */
struct slot_start {
    int64_t panel; /* that is packed in the slot; -1: none */
};

static void cut_rows(struct panels_job *job)
{
    const struct product *p = &job->p;
    job->panels = divide_up(p->n, PRODUCT_COLUMNS);
    int64_t blocks = max_i64(divide_up(p->m, MOST_ROWS), divide_up(PIECES_WANTED, job->panels));
    blocks = min_i64(blocks, divide_up(p->m, PRODUCT_ROWS));
    job->block = divide_up(divide_up(p->m, blocks), PRODUCT_ROWS) * PRODUCT_ROWS;
    job->blocks = divide_up(p->m, job->block);
}

static void lay_out_rows(struct panels_job *job, struct carve *carve)
{
    struct carve slot = {0};
    carve_take(&slot, sizeof(struct slot_start));
    job->scratch = slot.used;
    carve_take(&slot, panel_scratch(job->p.in, job->p.k));
    carve_take(&slot, (size_t)(MOST_ROWS * PRODUCT_COLUMNS) * sizeof(float));
    job->slot = slot.used;
    job->threads = carve_take(carve, job->slot * (size_t)job->cpu->threads);
}

static void rows_piece(void *context, int64_t piece, int thread)
{
    const struct panels_job *job = context;
    const struct product *p = &job->p;
    int64_t panel = piece / job->blocks, first_row = piece % job->blocks * job->block,
            first_column = panel * PRODUCT_COLUMNS;
    int64_t rows = min_i64(job->block, p->m - first_row),
            columns = min_i64(PRODUCT_COLUMNS, p->n - first_column);
    char *slot = job->threads + job->slot * (size_t)thread, *scratch = slot + job->scratch;
    float *tile = (float *)(void *)(scratch + panel_scratch(p->in, p->k));
    struct slot_start *start = (struct slot_start *)(void *)slot;
    void *c = (char *)p->c + dtype_bytes(p->out, first_row * p->n + first_column);
    bool direct = p->out == DTYPE_F32 && !p->has_bias && columns % 16 == 0;
    struct panel_product part = {
        .a = at(p->a, p->in, first_row * p->k),
        .b = at(p->b, p->in, p->b_transposed ? first_column * p->k : first_column),
        .b_row = p->b_transposed ? p->k : p->n,
        .b_transposed = p->b_transposed,
        .type = p->in,
        .k = p->k,
        .rows = rows,
        .columns = columns,
        .c = direct ? c : tile,
        .c_row = direct ? p->n : PRODUCT_COLUMNS,
        .add = p->accumulate,
    };
    if (p->accumulate && !direct)
        for (int64_t r = 0; r < rows; r++)
            memcpy(tile + r * PRODUCT_COLUMNS, (const float *)c + r * p->n, (size_t)columns * sizeof(float));
    bool whole = product_steps(p->in, p->k) <= PRODUCT_STEPS;
    run_panel(job->cpu, &part, scratch, whole && start->panel == panel);
    start->panel = whole ? panel : -1;
    if (!direct)
        job->cpu->kernels->product->finish(c, p->out, p->n, tile,
                                           p->has_bias ? at(p->bias, p->in, first_column) : NULL, p->in, rows,
                                           columns);
}

static void run_rows(struct panels_job *job)
{
    cut_rows(job);
    for (int i = 0; i < job->cpu->threads; i++)
        ((struct slot_start *)(void *)(job->threads + job->slot * (size_t)i))->panel = -1;
    pool_run(job->cpu->pool, job->panels * job->blocks, rows_piece, job);
}

/* ---- sums ---- */

static void lay_out_sums(struct panels_job *job, struct carve *carve)
{
    struct product *p = &job->p;
    job->panels = divide_up(p->n, PRODUCT_COLUMNS);
    job->steps = product_steps(p->in, p->k);
    job->b = carve_take(carve, (size_t)(job->steps * job->panels * PRODUCT_COLUMNS) * WORD);
    struct carve slot = {0};
    carve_take(&slot, (size_t)(panel_steps(p->in, p->k) * PRODUCT_ROWS) * WORD);
    job->scratch = slot.used;
    carve_take(&slot, (size_t)(PRODUCT_ROWS * PRODUCT_COLUMNS) * sizeof(float));
    job->slot = slot.used;
    job->threads = carve_take(carve, job->slot * (size_t)job->cpu->threads);
}

/* The panel's words from step `first` on. */
static char *packed_at(const struct panels_job *job, int64_t panel, int64_t first)
{
    return job->b + (panel * job->steps + first) * PRODUCT_COLUMNS * WORD;
}

static void pack_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct panels_job *job = context;
    const struct product *p = &job->p;
    int64_t cuts = divide_up(job->steps, PRODUCT_STEPS), panel = piece / cuts,
            first = piece % cuts * PRODUCT_STEPS, in_word = p->in == DTYPE_BF16 ? 2 : 1;
    int64_t k = min_i64(PRODUCT_STEPS * in_word, p->k - first * in_word), column = panel * PRODUCT_COLUMNS;
    job->cpu->kernels->product->pack(packed_at(job, panel, first), PRODUCT_COLUMNS,
                                     at(p->b, p->in, first * in_word * p->n + column), p->in, p->n, k,
                                     min_i64(PRODUCT_COLUMNS, p->n - column));
}

/* PRODUCT_ROWS rows of c by one panel, from step `first` on; narrow panels go through a tile. */
static void sum_panel(const struct panels_job *job, const void *a, float *tile, int64_t row, int64_t rows,
                      int64_t panel, int64_t first, int64_t steps)
{
    const struct product *p = &job->p;
    int64_t column = panel * PRODUCT_COLUMNS, columns = min_i64(PRODUCT_COLUMNS, p->n - column);
    float *c = (float *)p->c + row * p->n + column;
    bool add = first > 0 || p->accumulate, direct = columns % 16 == 0;
    size_t bytes = (size_t)columns * sizeof *c;
    for (int64_t r = 0; !direct && add && r < rows; r++)
        memcpy(tile + r * PRODUCT_COLUMNS, c + r * p->n, bytes);
    job->cpu->kernels->product->run(direct ? c : tile, direct ? p->n : PRODUCT_COLUMNS, a, 1, rows,
                                    packed_at(job, panel, first), p->in, steps, rows, columns, add);
    for (int64_t r = 0; !direct && r < rows; r++)
        memcpy(c + r * p->n, tile + r * PRODUCT_COLUMNS, bytes);
}

static void sums_piece(void *context, int64_t piece, int thread)
{
    const struct panels_job *job = context;
    const struct product *p = &job->p;
    int64_t row = piece * PRODUCT_ROWS, rows = min_i64(PRODUCT_ROWS, p->m - row);
    int64_t in_word = p->in == DTYPE_BF16 ? 2 : 1;
    char *a = job->threads + job->slot * (size_t)thread;
    float *tile = (float *)(void *)(a + job->scratch);
    for (int64_t first = 0; first < job->steps; first += PRODUCT_STEPS) {
        int64_t steps = min_i64(PRODUCT_STEPS, job->steps - first), token = first * in_word;
        job->cpu->kernels->product->pack(a, rows, at(p->a, p->in, token * p->m + row), p->in, p->m,
                                         min_i64(steps * in_word, p->k - token), rows);
        for (int64_t panel = 0; panel < job->panels; panel++)
            sum_panel(job, a, tile, row, rows, panel, first, steps);
    }
}

static void run_sums(struct panels_job *job)
{
    int64_t cuts = divide_up(job->steps, PRODUCT_STEPS);
    pool_run(job->cpu->pool, job->panels * cuts, pack_piece, job);
    pool_run(job->cpu->pool, divide_up(job->p.m, PRODUCT_ROWS), sums_piece, job);
}

/* ---- both ---- */

size_t panels_workspace(struct cpu *cpu, const struct product *p)
{
    struct carve carve = {0};
    struct panels_job job = {.cpu = cpu, .p = *p};
    if (p->sum_over_tokens)
        lay_out_sums(&job, &carve);
    else
        lay_out_rows(&job, &carve);
    return carve.used;
}

void panels_run(struct cpu *cpu, const struct product *p, void *workspace)
{
    struct carve carve = {workspace, 0};
    struct panels_job job = {.cpu = cpu, .p = *p};
    if (p->sum_over_tokens) {
        lay_out_sums(&job, &carve);
        run_sums(&job);
    } else {
        lay_out_rows(&job, &carve);
        run_rows(&job);
    }
}
