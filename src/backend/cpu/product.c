#include "backend/cpu/internal.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* Chunks of a sum over tokens, and how far a last part may be padded. */
static const int64_t chunk_sizes[] = {2048, 512, 256, 64, 16};
enum { ROW_TILE = 256, COLUMN_TILE = 512 };
enum { CHUNK_SIZES = 5, PADDED_CHUNK = 512, ROW_SIZES = 3 };
static const int64_t row_sizes[ROW_SIZES] = {16, 64, ROW_TILE};

/* A padded number of rows for a tile: 16, 64 or ROW_TILE. oneDNN's choice of kernel, and with it the bits of
 * a row, is the same for these on all instruction sets (tests/backend checks it). */
static int64_t row_bucket(int64_t rows)
{
    for (int i = 0; i < ROW_SIZES - 1; i++)
        if (rows <= row_sizes[i])
            return row_sizes[i];
    return ROW_TILE;
}

static int64_t equal_tiles(int64_t n, int64_t most)
{
    int64_t width = divide_up(n, divide_up(n, most));
    return min_i64(divide_up(width, 16) * 16, n);
}

/* Width of equal column tiles of at most COLUMN_TILE. */
static int64_t column_tile(int64_t n)
{
    return equal_tiles(n, COLUMN_TILE);
}

enum dtype product_type(const struct cpu *cpu, enum dtype type)
{
    return type == DTYPE_BF16 && !gemm_has_bf16(cpu->gemms) ? DTYPE_F32 : type;
}

/* The next chunk of a sum with `left` tokens to go: *used of them, padded to the returned size. */
static int64_t next_chunk(int64_t left, int64_t *used)
{
    int64_t size = chunk_sizes[CHUNK_SIZES - 1];
    for (int i = 0; i < CHUNK_SIZES; i++)
        if (left >= chunk_sizes[i] || (chunk_sizes[i] <= PADDED_CHUNK && left > chunk_sizes[i] / 2)) {
            size = chunk_sizes[i];
            break;
        }
    *used = min_i64(left, size);
    return size;
}

bool product_uses_own(const struct cpu *cpu, enum dtype type)
{
    if (cpu->products == PRODUCTS_AUTO)
        return gemm_isa(cpu->gemms) > ISA_PORTABLE && !(type == DTYPE_BF16 && gemm_has_amx(cpu->gemms));
    return cpu->products == PRODUCTS_OWN;
}

struct convert_job {
    const struct flat_kernels *flat;
    char *to;
    const char *from;
    enum dtype to_type, from_type;
    int64_t n;
};

enum { CONVERT_BLOCK = 65536 };

static void convert_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct convert_job *job = context;
    int64_t at = piece * CONVERT_BLOCK, n = min_i64(CONVERT_BLOCK, job->n - at);
    job->flat->convert(job->to + dtype_bytes(job->to_type, at), job->to_type,
                       job->from + dtype_bytes(job->from_type, at), job->from_type, n);
}

void convert_parallel(struct cpu *cpu, void *to, enum dtype to_type, const void *from, enum dtype from_type,
                      int64_t n)
{
    struct convert_job job = {cpu->kernels->flat, to, from, to_type, from_type, n};
    pool_run(cpu->pool, divide_up(n, CONVERT_BLOCK), convert_piece, &job);
}

struct zero_job {
    char *data;
    int64_t bytes;
};

static void zero_piece(void *context, int64_t piece, int thread)
{
    (void)thread;
    const struct zero_job *job = context;
    int64_t at = piece * 4 * CONVERT_BLOCK;
    memset(job->data + at, 0, (size_t)min_i64(4 * CONVERT_BLOCK, job->bytes - at));
}

void zero_parallel(struct cpu *cpu, void *data, int64_t bytes)
{
    struct zero_job job = {data, bytes};
    pool_run(cpu->pool, divide_up(bytes, 4 * CONVERT_BLOCK), zero_piece, &job);
}

/* Workspace of a product; pointers are NULL while it is only counted. */
struct layout {
    void *a32, *b32, *bias32; /* fp32 copies, where the CPU has no bf16 products */
    void *a_tail, *b_tail;    /* padded last rows */
    char *threads;            /* a slot each: scratch of the library, then a tile of c */
    size_t slot, scratch;
};

static bool converted(const struct cpu *cpu, const struct product *p)
{
    return product_type(cpu, p->in) != p->in;
}

static void lay_out_copies(const struct cpu *cpu, const struct product *p, struct carve *carve,
                           struct layout *l)
{
    memset(l, 0, sizeof *l);
    if (!converted(cpu, p))
        return;
    l->a32 = carve_take(carve, (size_t)(p->m * p->k) * sizeof(float));
    l->b32 = carve_take(carve, (size_t)(p->k * p->n) * sizeof(float));
    l->bias32 = carve_take(carve, (size_t)p->n * sizeof(float));
}

static void lay_out(const struct cpu *cpu, const struct product *p, size_t scratch, struct carve *carve,
                    struct layout *l)
{
    size_t element = (size_t)dtype_bytes(product_type(cpu, p->in), 1);
    lay_out_copies(cpu, p, carve, l);
    if (p->sum_over_tokens) {
        int64_t rows = min_i64(PADDED_CHUNK, max_i64(16, 2 * p->k));
        l->a_tail = carve_take(carve, (size_t)(rows * p->m) * element);
        l->b_tail = carve_take(carve, (size_t)(rows * p->n) * element);
    } else {
        l->a_tail = carve_take(carve, (size_t)(row_bucket(p->m) * p->k) * element);
    }
    int64_t tile_rows = p->sum_over_tokens ? equal_tiles(p->m, ROW_TILE) : row_bucket(p->m);
    struct carve slot = {0};
    carve_take(&slot, scratch);
    l->scratch = slot.used;
    carve_take(&slot, (size_t)(tile_rows * column_tile(p->n)) * sizeof(float));
    l->slot = slot.used;
    l->threads = carve_take(carve, l->slot * (size_t)cpu->threads);
}

/* The library's view of one tile: into c directly, or into a tile of its own. */
static struct gemm_spec tile_spec(const struct cpu *cpu, const struct product *p, int64_t m, int64_t n,
                                  int64_t k, bool direct)
{
    enum dtype type = product_type(cpu, p->in);
    return (struct gemm_spec){
        .m = m,
        .n = n,
        .k = k,
        .lda = p->sum_over_tokens ? p->m : p->k,
        .ldb = p->b_transposed ? p->k : p->n,
        .ldc = direct ? p->n : n,
        .a_transposed = p->sum_over_tokens,
        .b_transposed = p->b_transposed,
        .bias = p->has_bias,
        .in = type,
        .out = type == DTYPE_F32 ? DTYPE_F32 : p->out,
    };
}

/* Whether no tile can be written in place: the library computes in another type than c has. */
static bool never_direct(const struct cpu *cpu, const struct product *p)
{
    return product_type(cpu, p->in) == DTYPE_F32 && p->out != DTYPE_F32;
}

struct product_job {
    struct cpu *cpu;
    struct product p; /* operands in the product's type */
    struct layout l;
    int64_t tile_m, tile_n, tiles_n;
    int64_t tail_rows; /* padded rows of the last row tile, 0: it is none or not padded */
    bool temporary;    /* c is of another type than the library's result, or added to (rows) */
    /* Rows: [last row tile][last column tile]. Sums: [chunk size][direct][last m][last n]. */
    struct gemm *row_gemm[2][2];
    struct gemm *sum_gemm[CHUNK_SIZES][2][2][2];
    atomic_int failures;
};

static int64_t last_width(int64_t n, int64_t tile)
{
    return n - (divide_up(n, tile) - 1) * tile;
}

static int find_built(struct cpu *cpu, const struct gemm_spec *spec, struct gemm **out, struct error *err)
{
    return gemm_find(cpu->gemms, spec, out, err) != 0 || gemm_build(cpu->gemms, *out, err) != 0 ? -1 : 0;
}

static int raise_scratch(struct cpu *cpu, const struct gemm_spec *spec, size_t *scratch, struct error *err)
{
    struct gemm *g;
    if (gemm_find(cpu->gemms, spec, &g, err) != 0)
        return -1;
    if (gemm_scratch(g) > *scratch)
        *scratch = gemm_scratch(g);
    return 0;
}

/* The most scratch that any tile needs, over all numbers of tokens up to the product's own. */
static int rows_scratch(struct cpu *cpu, const struct product *p, size_t *scratch, struct error *err)
{
    int64_t tile = column_tile(p->n), widths[2] = {tile, last_width(p->n, tile)};
    for (int i = 0; i < ROW_SIZES && row_sizes[i] <= row_bucket(p->m); i++)
        for (int w = 0; w < 2; w++)
            for (int direct = 0; direct < 2; direct++) {
                struct gemm_spec spec = tile_spec(cpu, p, row_sizes[i], widths[w], p->k, direct);
                if (raise_scratch(cpu, &spec, scratch, err) != 0)
                    return -1;
            }
    return 0;
}

static int sums_scratch(struct cpu *cpu, const struct product *p, size_t *scratch, struct error *err)
{
    int64_t tile_n = column_tile(p->n), widths[2] = {tile_n, last_width(p->n, tile_n)};
    int64_t tile_m = equal_tiles(p->m, ROW_TILE), heights[2] = {tile_m, last_width(p->m, tile_m)};
    for (int i = 0; i < CHUNK_SIZES; i++) {
        bool possible =
            chunk_sizes[i] <= p->k || chunk_sizes[i] <= min_i64(PADDED_CHUNK, max_i64(16, 2 * p->k));
        for (int variant = 0; possible && variant < 8; variant++) {
            struct gemm_spec spec = tile_spec(cpu, p, heights[variant & 1], widths[variant >> 1 & 1],
                                              chunk_sizes[i], variant >> 2);
            if (raise_scratch(cpu, &spec, scratch, err) != 0)
                return -1;
        }
    }
    return 0;
}

static int product_scratch(struct cpu *cpu, const struct product *p, size_t *scratch, struct error *err)
{
    *scratch = 0;
    if (p->m == 0 || p->k == 0)
        return 0;
    return p->sum_over_tokens ? sums_scratch(cpu, p, scratch, err) : rows_scratch(cpu, p, scratch, err);
}

static const void *at(const void *data, enum dtype type, int64_t element)
{
    return (const char *)data + dtype_bytes(type, element);
}

/* Moves the rows of a finished tile to c, in c's type, or adds them to it. */
static void put_tile(const struct product_job *job, const void *tile, enum dtype tile_type, int64_t stride,
                     int64_t first_row, int64_t rows, int64_t first_column, int64_t columns)
{
    const struct product *p = &job->p;
    for (int64_t r = 0; r < rows; r++) {
        int64_t place = (first_row + r) * p->n + first_column;
        const void *from = at(tile, tile_type, r * stride);
        void *to = (char *)p->c + dtype_bytes(p->out, place);
        if (p->accumulate)
            job->cpu->kernels->flat->accumulate(to, from, columns, 0);
        else if (tile_type == p->out)
            memcpy(to, from, (size_t)dtype_bytes(p->out, columns));
        else
            job->cpu->kernels->flat->convert(to, p->out, from, tile_type, columns);
    }
}

static void rows_piece(void *context, int64_t piece, int thread)
{
    struct product_job *job = context;
    const struct product *p = &job->p;
    int64_t first_row = piece / job->tiles_n * job->tile_m, first_column = piece % job->tiles_n * job->tile_n;
    int64_t rows = min_i64(job->tile_m, p->m - first_row),
            columns = min_i64(job->tile_n, p->n - first_column);
    bool last_row = first_row + rows == p->m, padded = last_row && job->tail_rows > 0;
    struct gemm *g = job->row_gemm[last_row][first_column + columns == p->n];
    char *scratch = job->l.threads + job->l.slot * (size_t)thread;
    void *tile = scratch + job->l.scratch;
    const void *a = padded ? job->l.a_tail : at(p->a, p->in, first_row * p->k);
    const void *b = at(p->b, p->in, p->b_transposed ? first_column * p->k : first_column);
    const void *bias = p->has_bias ? at(p->bias, p->in, first_column) : NULL;
    bool direct = !padded && !job->temporary;
    void *c = direct ? (char *)p->c + dtype_bytes(p->out, first_row * p->n + first_column) : tile;
    if (gemm_run(g, thread, a, b, bias, c, scratch) != 0)
        atomic_fetch_add(&job->failures, 1);
    else if (!direct)
        put_tile(job, tile, job->temporary ? DTYPE_F32 : p->out, columns, first_row, rows, first_column,
                 columns);
}

/* Copies rows first … first+count-1 of a dense matrix and pads them with zero rows. */
static void copy_padded(void *to, const void *from, enum dtype type, int64_t width, int64_t first,
                        int64_t count, int64_t padded)
{
    size_t bytes = (size_t)dtype_bytes(type, count * width);
    memcpy(to, at(from, type, first * width), bytes);
    memset((char *)to + bytes, 0, (size_t)dtype_bytes(type, (padded - count) * width));
}

/* Finds the code of all tiles and builds what is new. */
static int resolve_rows(struct product_job *job, struct error *err)
{
    struct product *p = &job->p;
    int64_t tail = p->m % ROW_TILE == 0 ? ROW_TILE : p->m % ROW_TILE;
    job->tile_m = ROW_TILE;
    job->tail_rows = row_bucket(tail) == tail ? 0 : row_bucket(tail);
    bool direct_tail = job->tail_rows == 0 && !job->temporary;
    for (int last = 0; last < 2; last++)
        for (int w = 0; w < 2; w++) {
            if (!last && p->m <= ROW_TILE)
                continue;
            struct gemm_spec spec = tile_spec(job->cpu, p, last ? row_bucket(tail) : ROW_TILE,
                                              w ? last_width(p->n, job->tile_n) : job->tile_n, p->k,
                                              last ? direct_tail : !job->temporary);
            if (find_built(job->cpu, &spec, &job->row_gemm[last][w], err) != 0)
                return -1;
        }
    return 0;
}

static void run_rows(struct product_job *job)
{
    struct product *p = &job->p;
    int64_t tail = p->m % ROW_TILE;
    if (job->tail_rows > 0)
        copy_padded(job->l.a_tail, p->a, p->in, p->k, p->m - tail, tail, job->tail_rows);
    pool_run(job->cpu->pool, divide_up(p->m, ROW_TILE) * job->tiles_n, rows_piece, job);
}

static int chunk_index(int64_t size)
{
    int i = 0;
    while (chunk_sizes[i] != size)
        i++;
    return i;
}

/* One tile of c: all chunks in order, the first one straight into it. */
static void sums_piece(void *context, int64_t piece, int thread)
{
    struct product_job *job = context;
    const struct product *p = &job->p;
    int64_t first_row = piece / job->tiles_n * job->tile_m, first_column = piece % job->tiles_n * job->tile_n;
    int64_t rows = min_i64(job->tile_m, p->m - first_row),
            columns = min_i64(job->tile_n, p->n - first_column);
    char *scratch = job->l.threads + job->l.slot * (size_t)thread;
    float *tile = (float *)(void *)(scratch + job->l.scratch);
    float *c = (float *)p->c + first_row * p->n + first_column;
    int64_t used;
    for (int64_t token = 0; token < p->k; token += used) {
        int64_t size = next_chunk(p->k - token, &used);
        bool direct = token == 0 && !p->accumulate, padded = used < size;
        struct gemm *g = job->sum_gemm[chunk_index(size)][direct][first_row + rows == p->m]
                                      [first_column + columns == p->n];
        const void *a =
            padded ? at(job->l.a_tail, p->in, first_row) : at(p->a, p->in, token * p->m + first_row);
        const void *b =
            padded ? at(job->l.b_tail, p->in, first_column) : at(p->b, p->in, token * p->n + first_column);
        if (gemm_run(g, thread, a, b, NULL, direct ? (void *)c : tile, scratch) != 0) {
            atomic_fetch_add(&job->failures, 1);
            return;
        }
        for (int64_t r = 0; r < rows && !direct; r++)
            job->cpu->kernels->flat->accumulate(c + r * p->n, tile + r * columns, columns, 0);
    }
}

static int resolve_sums(struct product_job *job, struct error *err)
{
    struct product *p = &job->p;
    int64_t used;
    job->tile_m = equal_tiles(p->m, ROW_TILE);
    for (int64_t token = 0; token < p->k; token += used) {
        int64_t size = next_chunk(p->k - token, &used);
        int i = chunk_index(size), direct = token == 0 && !p->accumulate;
        for (int last = 0; last < 4; last++) {
            struct gemm **g = &job->sum_gemm[i][direct][last & 1][last >> 1];
            struct gemm_spec spec =
                tile_spec(job->cpu, p, last & 1 ? last_width(p->m, job->tile_m) : job->tile_m,
                          last >> 1 ? last_width(p->n, job->tile_n) : job->tile_n, size, direct);
            if (!*g && find_built(job->cpu, &spec, g, err) != 0)
                return -1;
        }
    }
    return 0;
}

static void run_sums(struct product_job *job)
{
    struct product *p = &job->p;
    int64_t used, token = 0, size;
    for (; token < p->k; token += used) {
        size = next_chunk(p->k - token, &used);
        if (used < size) {
            copy_padded(job->l.a_tail, p->a, p->in, p->m, token, used, size);
            copy_padded(job->l.b_tail, p->b, p->in, p->n, token, used, size);
        }
    }
    pool_run(job->cpu->pool, divide_up(p->m, job->tile_m) * job->tiles_n, sums_piece, job);
}

static int resolve(struct cpu *cpu, const struct product *p, struct product_job *job, struct error *err)
{
    *job = (struct product_job){
        .cpu = cpu, .p = *p, .temporary = never_direct(cpu, p) || (p->accumulate && !p->sum_over_tokens)};
    job->tile_n = column_tile(p->n);
    job->tiles_n = divide_up(p->n, job->tile_n);
    if (p->m == 0 || p->k == 0)
        return 0;
    return p->sum_over_tokens ? resolve_sums(job, err) : resolve_rows(job, err);
}

/* Fills the fp32 copies and puts them in the place of p's operands. */
static void convert_operands(struct cpu *cpu, struct product *p, const struct layout *l)
{
    if (!converted(cpu, p))
        return;
    convert_parallel(cpu, l->a32, DTYPE_F32, p->a, p->in, p->m * p->k);
    convert_parallel(cpu, l->b32, DTYPE_F32, p->b, p->in, p->k * p->n);
    if (p->has_bias)
        convert_parallel(cpu, l->bias32, DTYPE_F32, p->bias, p->in, p->n);
    p->a = l->a32;
    p->b = l->b32;
    p->bias = p->has_bias ? l->bias32 : NULL;
    p->in = DTYPE_F32;
}

int product_workspace(struct cpu *cpu, const struct product *p, size_t *bytes, struct error *err)
{
    size_t scratch;
    struct carve carve = {0};
    struct layout l;
    struct product_job job;
    if (product_uses_own(cpu, product_type(cpu, p->in))) {
        struct product own = *p;
        own.in = product_type(cpu, p->in);
        lay_out_copies(cpu, p, &carve, &l);
        *bytes += carve.used + panels_workspace(cpu, &own);
        return 0;
    }
    if (product_scratch(cpu, p, &scratch, err) != 0 || resolve(cpu, p, &job, err) != 0)
        return -1;
    lay_out(cpu, p, scratch, &carve, &l);
    *bytes += carve.used;
    return 0;
}

int product_run(struct cpu *cpu, const struct product *p, void *workspace, struct error *err)
{
    if (p->m == 0 || p->k == 0) {
        if (!p->accumulate)
            zero_parallel(cpu, p->c, dtype_bytes(p->out, p->m * p->n));
        return 0;
    }
    assert(workspace); /* as large as product_workspace() said, which was not nothing */
    size_t scratch;
    struct product_job job;
    struct carve carve = {workspace, 0};
    if (product_uses_own(cpu, product_type(cpu, p->in))) {
        struct product own = *p;
        struct layout l;
        lay_out_copies(cpu, p, &carve, &l);
        convert_operands(cpu, &own, &l);
        panels_run(cpu, &own, (char *)workspace + carve.used);
        return 0;
    }
    if (product_scratch(cpu, p, &scratch, err) != 0 || resolve(cpu, p, &job, err) != 0)
        return -1;
    lay_out(cpu, p, scratch, &carve, &job.l);
    convert_operands(cpu, &job.p, &job.l);
    if (p->sum_over_tokens)
        run_sums(&job);
    else
        run_rows(&job);
    if (atomic_load(&job.failures) > 0)
        return error_set(err, ERROR_RUN, "oneDNN", NULL, "a matrix product failed");
    return 0;
}
